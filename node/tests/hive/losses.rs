//! Nodes that are lost in the middle of an answer.

use std::time::{Duration, Instant};

use cadencia_tests::udp_proxy::Weather;
use serde_json::Value;

use crate::client::{Stream, text_of};
use crate::nest::{Api, BETWEEN, Behind, Hive, Member, deep_toy, greedy, smollm2, text};
use crate::process::{DEADLINE, send_signal};

const TOKENS: usize = 80;
/// How long an answer may stand still: two seconds, and longer where the node is not optimised and other
/// tests compute beside it.
const RECOVERY_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 2 });

/// Streams an answer; `trouble` comes after token 20. The text, and the longest wait after that.
fn streamed(api: Api, prompt: &str, trouble: impl FnOnce()) -> (String, Duration) {
    let mut body = greedy(prompt, TOKENS);
    body["stream"] = true.into();
    let mut stream: Stream = api.client().stream("/v1/completions", &body);
    let mut events = Vec::new();
    let mut trouble = Some(trouble);
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    while let Some(event) = stream.next() {
        if events.len() >= 20 {
            match trouble.take() {
                Some(trouble) => trouble(),
                None => longest = longest.max(last.elapsed()),
            }
        }
        last = Instant::now();
        let failed = serde_json::from_str::<Value>(&event).is_ok_and(|v| v["error"].is_object());
        assert!(!failed, "{event}");
        events.push(event);
    }
    assert!(trouble.is_none(), "the answer was long enough");
    (text_of(&events), longest)
}

/// petals#587
#[test]
fn a_stage_killed_after_token_20_changes_nothing_and_its_spare_goes_on_at_once() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let prompt = text(110);
    let expected = alone.continued(&prompt, TOKENS);
    let mut hive = Hive::start(&model, 3, &["--spares", "1"], &[]);
    // Spares get ready after the stages.
    let victim = hive.stage(0);
    let (found, longest) = streamed(hive.api, &prompt, || drop(victim));
    assert_eq!(found, expected);
    eprintln!("recovery with a warm spare took {longest:?}");
    assert!(longest < RECOVERY_MAX, "{longest:?}");
    // The node goes on answering, now over those that are left.
    assert_eq!(hive.api.continued(&prompt, TOKENS), expected);
}

/// A node that was blamed, rightly or not, is found again, also when that is gone by which all had
/// joined: without it they would hear of one another no more.
#[test]
fn whoever_is_left_finds_each_other_when_the_one_all_joined_by_dies_in_mid_answer() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let prompt = text(110);
    let expected = alone.continued(&prompt, TOKENS);
    drop(solo);
    let mut hive = Hive::start(&model, 3, &["--spares", "1"], &[]);
    let api = hive.api;
    let (seed, pauses) = (hive.workers.remove(0), hive.workers.remove(0));
    let (found, longest) = std::thread::scope(|scope| {
        let (goes_on, waits) = std::sync::mpsc::channel();
        let pauses = pauses.pid();
        scope.spawn(move || {
            waits.recv().unwrap();
            // It goes on when no route is left.
            let end = Instant::now() + DEADLINE;
            while api.get("/v1/hive").json()["hive"]["models"][0]["plan"].is_object() {
                assert!(Instant::now() < end, "the route is still thought to be there");
                std::thread::sleep(BETWEEN);
            }
            send_signal(pauses, "CONT");
        });
        streamed(api, &prompt, move || {
            send_signal(pauses, "STOP");
            drop(seed);
            goes_on.send(()).unwrap();
        })
    });
    assert_eq!(found, expected);
    eprintln!("with one of three left for a while an answer stood still for {longest:?}");
    assert_eq!(api.continued(&prompt, TOKENS), expected);
}

#[test]
fn without_a_spare_the_answer_is_computed_again_by_others() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let prompt = text(110);
    let expected = alone.continued(&prompt, TOKENS);
    let mut hive = Hive::start(&model, 3, &["--spares", "0"], &[]);
    let victim = hive.stage(1);
    let (found, longest) = streamed(hive.api, &prompt, || drop(victim));
    assert_eq!(found, expected);
    eprintln!("recovery without a spare took {longest:?}");
}

#[test]
fn a_stage_that_is_cut_off_silently_is_replaced() {
    let Some(model) = smollm2() else { return };
    let path = model.to_str().unwrap();
    let mut solo = Member::start(&["--model", path]);
    let alone = solo.ready();
    let prompt = text(110);
    let expected = alone.continued(&prompt, TOKENS);
    let lent = ["--model", path, "--lend-mb", "400"];
    let mut nodes = vec![Behind::start(&lent, Weather::default())];
    for _ in 0..2 {
        let seed = nodes[0].member.address.clone();
        nodes.push(Behind::start(&[&lent[..], &["--join", &seed]].concat(), Weather::default()));
    }
    nodes.iter_mut().for_each(|node| {
        node.member.ready();
    });
    let seed = nodes[0].member.address.clone();
    let mut requester = Hive::requester(path, &seed, 3, &["--spares", "1"]);
    let api = requester.ready();
    let (found, longest) = streamed(api, &prompt, || nodes[1].proxy.cut());
    assert_eq!(found, expected);
    eprintln!("recovery from a cut took {longest:?}");
    assert!(longest < RECOVERY_MAX, "{longest:?}");
}

/// mesh-llm#951: not ready, not listed and not asked while nobody computes the rest.
#[test]
fn without_any_stage_prompts_are_refused_at_once_until_somebody_comes() {
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let prompt = text(20);
    let mut hive = Hive::start(&model, 2, &["--spares", "0", "--own-mb", "2000"], &[]);
    let expected = hive.api.continued(&prompt, 16);
    hive.workers.clear();
    // The first notices the loss, and waits for others as long as there may be some.
    let asked = Instant::now();
    let first = hive.api.post("/v1/completions", &greedy(&prompt, 16));
    assert_eq!(first.status, 503, "{first:?}");
    assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());

    let asked = Instant::now();
    let refused = hive.api.post("/v1/completions", &greedy(&prompt, 16));
    assert_eq!((refused.status, &*refused.error("code")), (503, "no_route"), "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let ready = hive.api.get("/ready");
    assert_eq!((ready.status, &*ready.error("code")), (503, "no_route"), "{ready:?}");
    assert_eq!(hive.api.get("/v1/models").json()["data"].as_array().unwrap().len(), 0);
    assert_eq!(hive.api.get("/health").status, 200);

    let seed = hive.requester.address.clone();
    let others: Vec<Member> =
        (0..2).map(|_| Member::start(&["--lend", path, "--join", &seed])).collect();
    let end = Instant::now() + DEADLINE;
    while hive.api.get("/ready").status != 200 {
        assert!(Instant::now() < end, "{:?}", hive.api.get("/ready"));
        std::thread::sleep(BETWEEN);
    }
    assert_eq!(hive.api.continued(&prompt, 16), expected);
    drop(others);
}

#[test]
fn three_that_compute_the_same_lose_two_in_mid_answer_and_stand_still_for_neither() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let prompt = text(110);
    let expected = alone.continued(&prompt, TOKENS);
    drop(solo);
    let flags = ["--stages", "1", "--replicate", "3", "--spares", "0"];
    let mut hive = Hive::start(&model, 3, &flags, &[]);
    let found = hive.api.get("/v1/hive").json()["hive"]["models"][0]["plan"]["stages"].clone();
    assert_eq!(found[0]["twins"].as_array().unwrap().len(), 2, "{found}");
    // One dies, one only stops: the third is there already and is as far.
    let (dies, stops) = (hive.workers.pop().unwrap(), hive.workers.pop().unwrap());
    let (text, longest) = streamed(hive.api, &prompt, || {
        drop(dies);
        stops.signal("STOP");
    });
    assert_eq!(text, expected);
    eprintln!("with two of three gone an answer stood still for {longest:?}");
    // To find out that one is silent takes longer.
    assert!(longest < Duration::from_millis(700), "{longest:?}");
}
