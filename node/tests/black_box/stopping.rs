//! How a node stops, in good order and otherwise.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::text_of;
use crate::process::{Node, spawn};

const CHAT: &str = "/v1/chat/completions";

fn go_on(tokens: Option<u32>) -> Value {
    json!({
        "messages": [{"role": "user", "content": "go on"}],
        "temperature": 0, "stream": true, "max_tokens": tokens,
    })
}

#[test]
fn a_signal_lets_answers_finish() {
    let mut node = Node::start(&[]);
    let whole = text_of(&node.client().stream(CHAT, &go_on(Some(400))).rest());
    let mut running = node.client().stream(CHAT, &go_on(Some(400)));
    running.next().unwrap();
    node.signal("TERM");
    node.log.wait_for("stopping");
    let events = running.rest();
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert_eq!(text_of(&events), whole);
    assert_eq!(node.wait().code(), Some(0));
    assert!(std::net::TcpStream::connect(node.address).is_err());
}

#[test]
fn an_answer_that_takes_too_long_is_cut_off_and_told_so() {
    let mut node = Node::start(&[
        "--parallel",
        "1",
        "--drain-seconds",
        "0",
        "--ctx",
        "32768",
        "--log",
        "cadencia=debug",
    ]);
    let mut running = node.client().stream(CHAT, &go_on(None));
    running.next().unwrap();
    let mut waiting = node.client();
    let headers = [("x-request-id", "waiting")];
    waiting.send("POST", CHAT, &headers, go_on(None).to_string().as_bytes());
    node.log.wait_for("joined the line id=\"waiting\"");
    node.signal("INT");
    let events = running.rest();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stopping");
    let response = waiting.receive();
    assert_eq!((response.status, response.error("code").as_str()), (503, "stopping"));
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut node = Node::start(&["--drain-seconds", "3600", "--ctx", "32768"]);
    let mut running = node.client().stream(CHAT, &go_on(None));
    running.next().unwrap();
    node.signal("TERM");
    node.log.wait_for("stopping");
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(130));
}

#[test]
fn an_idle_node_stops_with_clients_connected() {
    let mut node = Node::start(&[]);
    let mut client = node.client();
    assert_eq!(client.request("GET", "/health", &[], b"").status, 200);
    let _silent = node.client();
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn a_node_that_was_killed_at_any_time_starts_again() {
    let folder = TempDir::new().unwrap();
    let port_file = folder.path().join("port");
    let flags = ["--port-file", port_file.to_str().unwrap()];

    // While it loads.
    let (mut child, mut log, _home) = spawn("127.0.0.1:0", &flags);
    log.wait_for("bound");
    child.kill().unwrap();
    child.wait().unwrap();

    // While it answers.
    let mut node = Node::start(&flags);
    let port = node.address.port();
    assert_eq!(std::fs::read_to_string(&port_file).unwrap(), format!("{port}\n"));
    let mut running = node.client().stream(CHAT, &go_on(None));
    running.next().unwrap();
    node.kill();

    // On the same port, at once, with the other end of the old connection still open.
    let mut node = Node::start_at(&format!("127.0.0.1:{port}"), &flags);
    assert_eq!(node.address.port(), port);
    assert_eq!(
        node.chat(&json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})).status,
        200
    );
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    assert!(!port_file.exists(), "a node that stops in good order takes its port file with it");
}
