//! Many clients at once, and clients that go away.

use std::thread;

use serde_json::{Value, json};

use crate::process::Node;

const CHAT: &str = "/v1/chat/completions";

/// A question whose answer takes longer than any test.
fn endless() -> Value {
    json!({"messages": [{"role": "user", "content": "go on"}], "temperature": 0, "stream": true})
}

fn short() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4})
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let node = Node::start(&["--parallel", "1", "--queue", "0", "--ctx", "32768"]);
    let mut running = node.client().stream(CHAT, &endless());
    running.next().unwrap();
    let response = node.chat(&short());
    assert_eq!((response.status, response.error("code").as_str()), (429, "queue_full"));
    assert_eq!(response.error("type"), "rate_limit_error");
    assert!(response.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    // Health does not wait in the queue.
    assert_eq!(node.get("/ready").status, 200);
}

#[test]
fn a_client_that_hangs_up_makes_room_at_once() {
    let mut node = Node::start(&["--parallel", "1", "--queue", "1", "--ctx", "32768"]);
    let mut running = node.client().stream(CHAT, &endless());
    for _ in 0..4 {
        running.next().unwrap();
    }
    let mut waiting = node.client();
    waiting.send("POST", CHAT, &[], short().to_string().as_bytes());
    drop(running);
    assert_eq!(waiting.receive().status, 200);
    let line = node.log.wait_for("status=200");
    assert!(!line.contains("finish=\"length\""), "the first was cut off: {line}");
}

#[test]
fn a_client_that_hangs_up_in_the_queue_is_not_answered() {
    let mut node = Node::start(&["--parallel", "1", "--queue", "1", "--ctx", "32768", "--log", "cadencia=debug"]);
    let mut running = node.client().stream(CHAT, &endless());
    running.next().unwrap();
    let mut leaving = node.client();
    leaving.send("POST", CHAT, &[("x-request-id", "leaving")], short().to_string().as_bytes());
    node.log.wait_for("joined the line id=\"leaving\"");
    drop(leaving);
    let line = node.log.wait_for("request id=\"leaving\"");
    assert!(line.contains("status=499"), "{line}");
    // Its place is free for another, who is answered when the first is gone.
    let mut waiting = node.client();
    waiting.send("POST", CHAT, &[], short().to_string().as_bytes());
    drop(running);
    assert_eq!(waiting.receive().status, 200);
}

#[test]
fn of_too_many_streams_the_rest_is_turned_away_and_the_others_finish() {
    let node = Node::start(&["--parallel", "1", "--queue", "32", "--ctx", "32768"]);
    let mut first = node.client().stream(CHAT, &endless());
    first.next().unwrap();
    let mut wish = short();
    wish["stream"] = json!(true);
    let wish = wish.to_string();
    let mut clients: Vec<_> = (0..64).map(|_| node.client()).collect();
    for client in &mut clients {
        client.send("POST", CHAT, &[], wish.as_bytes());
    }
    // Those who are turned away hear it while the others still wait. Then the first makes room.
    let waiting: Vec<_> =
        clients.into_iter().map(|mut client| thread::spawn(move || client.receive())).collect();
    let (done, waiting): (Vec<_>, Vec<_>) = {
        let mut done = Vec::new();
        let mut waiting = waiting;
        while done.len() < 32 {
            let ended = waiting.iter().position(|thread| thread.is_finished());
            match ended {
                Some(n) => done.push(waiting.swap_remove(n).join().unwrap()),
                None => thread::yield_now(),
            }
        }
        (done, waiting)
    };
    drop(first);
    assert!(done.iter().all(|r| r.status == 429 && r.headers.contains_key("retry-after")));
    assert_eq!(waiting.len(), 32);
    for thread in waiting {
        let response = thread.join().unwrap();
        assert_eq!(response.status, 200);
        assert!(response.body.ends_with("data: [DONE]\n\n"), "{response:?}");
    }
}
