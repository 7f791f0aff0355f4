//! Those who ask go away, and those who compute: what they held is free again, and the others go on.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Stream, text_of};
use crate::nest::{Api, Hive, Member, greedy, smollm2, text};

const ROWS: &str = "cadencia_stage_rows_total";
const SEATS: &str = "cadencia_stage_seats";
const USED: &str = "cadencia_stage_kv_used_bytes";
/// Rows that a stage may compute after a client has gone: the one under way, and those of the time in
/// which the test looks.
const ROWS_AFTER: f64 = 8.0;
/// How long a stage may take to notice that a requester was killed, which nobody tells it.
const SILENCE: Duration = Duration::from_secs(10);

fn streaming(api: Api, prompt: &str, tokens: usize) -> Stream {
    let mut body = greedy(prompt, tokens);
    body["stream"] = true.into();
    api.client().stream("/v1/completions", &body)
}

/// The APIs of those who compute.
fn stages(hive: &mut Hive) -> Vec<Api> {
    hive.workers.iter().map(|worker| worker.bound).collect()
}

fn rows(stages: &[Api]) -> Vec<f64> {
    stages.iter().map(|stage| stage.metric(ROWS)).collect()
}

/// Waits until nothing of any sequence is held at any stage.
fn freed(stages: &[Api]) {
    for stage in stages {
        stage.until(SEATS, 0.0);
        stage.until(USED, 0.0);
    }
}

/// exo PR#1027
#[test]
fn whatever_ends_an_answer_frees_every_stage_within_one_token() {
    let Some(model) = smollm2() else { return };
    let flags = ["--spares", "0", "--guessing", "off", "--stages", "2"];
    let mut hive = Hive::start(&model, 2, &flags, &[]);
    let stages = stages(&mut hive);
    freed(&stages);

    // The client hangs up in mid-answer.
    let mut stream = streaming(hive.api, &text(40), 400);
    for _ in 0..20 {
        stream.next().unwrap();
    }
    for stage in &stages {
        assert_eq!(stage.metric(SEATS), 1.0);
        assert!(stage.metric(USED) > 0.0);
    }
    let before = rows(&stages);
    drop(stream);
    let gone = Instant::now();
    freed(&stages);
    eprintln!("stages were free {:?} after the client was gone", gone.elapsed());
    for (before, after) in before.iter().zip(rows(&stages)) {
        assert!(after - before <= ROWS_AFTER, "{} rows more", after - before);
    }

    // The client hangs up while its prompt is being read.
    let long = text(900);
    let before = rows(&stages);
    let stream = {
        let mut body = greedy(&long, 4);
        body["stream"] = true.into();
        let mut client = hive.api.client();
        client.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
        client
    };
    while rows(&stages)[1] == before[1] {}
    drop(stream);
    freed(&stages);
    for (before, after) in before.iter().zip(rows(&stages)) {
        // There are over 1,200 tokens in it.
        assert!(after - before < 900.0, "{} rows were computed of a prompt", after - before);
    }

    // An answer ends at its limit, and at a stop.
    let answer = hive.api.continued(&text(40), 24);
    freed(&stages);
    let stop = answer.split_whitespace().nth(5).unwrap();
    let mut body = greedy(&text(40), 400);
    body["stop"] = stop.into();
    let before = rows(&stages);
    let stopped = hive.api.post("/v1/completions", &body);
    assert_eq!(stopped.json()["choices"][0]["finish_reason"], "stop", "{stopped:?}");
    freed(&stages);
    let tokens = stopped.json()["usage"]["completion_tokens"].as_f64().unwrap();
    let prompt = stopped.json()["usage"]["prompt_tokens"].as_f64().unwrap();
    for (before, after) in before.iter().zip(rows(&stages)) {
        assert!(after - before <= prompt + tokens + ROWS_AFTER, "{} rows", after - before);
    }
}

#[test]
fn a_requester_that_is_killed_frees_every_stage_and_another_goes_on() {
    let Some(model) = smollm2() else { return };
    let path = model.to_str().unwrap();
    let hive = Hive::start(&model, 2, &["--spares", "0"], &[]);
    let stages = [hive.workers[0].bound, hive.workers[1].bound];
    let seed = hive.workers[0].address.clone();
    let mut other = Hive::requester(path, &seed, 2, &["--spares", "0"]);
    let other_api = other.ready();
    let expected = hive.api.continued(&text(40), 60);
    let mut lost = streaming(hive.api, &text(40), 1000);
    let mut stays = streaming(other_api, &text(40), 60);
    let mut events: Vec<String> = (0..10).map(|_| stays.next().unwrap()).collect();
    (0..10).for_each(|_| drop(lost.next().unwrap()));
    hive.requester.killed();
    let gone = Instant::now();
    events.extend(stays.rest());
    assert_eq!(text_of(&events), expected);
    freed(&stages);
    eprintln!("stages were free {:?} after the requester was killed", gone.elapsed());
    assert!(gone.elapsed() < SILENCE + Duration::from_secs(20));
}

/// llama.cpp#25938
#[test]
fn a_stage_that_stops_in_mid_answer_takes_nobody_down_and_is_used_again_when_it_goes_on() {
    let Some(model) = smollm2() else { return };
    let mut solo = Member::start(&["--model", model.to_str().unwrap()]);
    let alone = solo.ready();
    let flags = ["--spares", "1", "--stages", "2", "--parallel", "4"];
    let mut hive = Hive::start(&model, 3, &flags, &[]);
    let prompts: Vec<String> = (0..4).map(|n| text(20 + 5 * n)).collect();
    let expected: Vec<String> = prompts.iter().map(|p| alone.continued(p, 60)).collect();
    drop(solo);

    let mut streams: Vec<Stream> = prompts.iter().map(|p| streaming(hive.api, p, 60)).collect();
    let mut begun: Vec<Vec<String>> =
        streams.iter_mut().map(|stream| (0..6).map(|_| stream.next().unwrap()).collect()).collect();
    let stopped = hive.stage(0);
    stopped.signal("STOP");
    assert_eq!(hive.api.get("/health").status, 200);
    for ((stream, events), expected) in streams.into_iter().zip(&mut begun).zip(&expected) {
        events.extend(stream.rest());
        let failed = events.iter().find(|event| is_error(event));
        assert_eq!(failed, None);
        assert_eq!(text_of(events), *expected);
    }
    // Others are let in, too.
    assert_eq!(hive.api.continued(&prompts[0], 60), expected[0]);

    // The others are lost for good: nothing works without the one that was stopped.
    stopped.signal("CONT");
    hive.workers.clear();
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let answer = hive.api.post("/v1/completions", &greedy(&prompts[1], 60));
        match answer.status {
            200 => {
                assert_eq!(answer.text(), expected[1]);
                break;
            }
            503 => assert!(answer.headers.contains_key("retry-after"), "{answer:?}"),
            _ => panic!("{answer:?}"),
        }
        assert!(Instant::now() < end, "{answer:?}");
    }
    let used = hive.api.get("/v1/hive").json()["hive"]["models"][0]["plan"].to_string();
    assert!(used.contains(&stopped.id), "{} is not in {used}", stopped.id);
}

fn is_error(event: &str) -> bool {
    serde_json::from_str::<Value>(event).is_ok_and(|value| value["error"].is_object())
}
