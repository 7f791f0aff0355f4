//! Many at once.

use serde_json::Value;

use crate::client::text_of;
use crate::nest::{Hive, Member, greedy, smollm2, text};

/// exo#2108
#[test]
fn of_64_streams_all_that_are_let_in_finish_and_the_rest_are_told_when_to_come_back() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let flags = ["--spares", "0", "--parallel", "16", "--queue", "16"];
    let hive = Hive::start(&model, 3, &flags, &[]);
    let ask = |n: usize| {
        let mut body = greedy(&format!("{n}: {}", text(8 + n % 5)), 16);
        body["stream"] = true.into();
        body
    };
    let expected: Vec<String> =
        (0..64).map(|n| alone.continued(ask(n)["prompt"].as_str().unwrap(), 16)).collect();
    let each: Vec<_> = (0..64)
        .map(|n| {
            let (api, body) = (hive.api, ask(n));
            std::thread::spawn(move || {
                let mut client = api.client();
                client.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
                let (status, headers) = client.head();
                (status, headers, client)
            })
        })
        .collect();
    let mut answered = 0;
    for (n, each) in each.into_iter().enumerate() {
        let (status, headers, client) = each.join().unwrap();
        match status {
            200 => {
                let events = client.events();
                assert!(events.iter().all(|event| !is_error(event)), "{events:?}");
                assert_eq!(text_of(&events), expected[n], "stream {n}");
                answered += 1;
            }
            429 => assert!(headers.contains_key("retry-after"), "{headers:?}"),
            other => panic!("stream {n}: {other}"),
        }
    }
    assert!((32..=64).contains(&answered), "{answered}");
}

fn is_error(event: &str) -> bool {
    serde_json::from_str::<Value>(event).is_ok_and(|value| value["error"].is_object())
}
