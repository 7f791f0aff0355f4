//! Many streams at once: all are answered as if each were alone, and nothing is left of them.
//!
//! Short by default; with `CADENCIA_SOAK=1` clients storm a node for a minute.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Client, Stream, text_of};
use crate::process::{DEADLINE, Node, run_at};

const CHAT: &str = "/v1/chat/completions";
/// How long the soak lasts.
const SOAK: Duration = Duration::from_secs(60);
/// How much a node may grow once it has answered for a while: allocators keep some of what they get.
const GROWTH_MAX: f64 = 0.05;

fn soak() -> bool {
    std::env::var_os("CADENCIA_SOAK").is_some_and(|value| value == "1")
}

fn ask(content: &str, tokens: Option<usize>) -> Value {
    json!({
        "messages": [{"role": "user", "content": content}],
        "temperature": 0, "stream": true, "max_tokens": tokens,
    })
}

fn send(node: &Node, body: &Value) -> Client {
    let mut client = node.client();
    client.send("POST", CHAT, &[], body.to_string().as_bytes());
    client
}

/// The text of a stream that came to its end.
#[track_caller]
fn whole(stream: Stream) -> String {
    let events = stream.rest();
    assert_eq!(events.last().unwrap(), "[DONE]", "{events:?}");
    text_of(&events)
}

/// One of the node's metrics, whatever its labels.
#[track_caller]
fn metric(node: &Node, name: &str) -> f64 {
    let text = node.get("/metrics").body;
    let is = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let line = text.lines().find(is).unwrap_or_else(|| panic!("{name} is not in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until nothing is left of any client: nothing runs, nobody waits, no page is held.
#[track_caller]
fn wait_idle(node: &Node) {
    let end = Instant::now() + DEADLINE;
    for name in ["waiting", "running", "kv_used_bytes"] {
        while metric(node, &format!("cadencia_engine_{name}")) > 0.0 {
            assert!(Instant::now() < end, "{name} does not become 0");
        }
    }
}

#[test]
fn of_64_streams_those_who_may_stay_are_answered_as_if_alone() {
    let question = |n: usize| ask(&format!("{n}, please"), Some(3 + n % 7));
    let alone = Node::start(&[]);
    let expected: Vec<String> =
        (0..28).map(|n| whole(alone.client().stream(CHAT, &question(n)))).collect();
    let node = Node::start(&["--parallel", "4", "--queue", "28", "--ctx", "32768"]);
    let mut first: Vec<Stream> =
        (0..4).map(|_| node.client().stream(CHAT, &ask("go on", None))).collect();
    first.iter_mut().for_each(|stream| assert!(stream.next().is_some()));
    let (tell, told) = mpsc::channel();
    for n in 0..60 {
        let (tell, mut client) = (tell.clone(), send(&node, &question(n % 28)));
        thread::spawn(move || tell.send((n % 28, client.receive())).unwrap());
    }
    // Those who are turned away hear it while the others wait.
    for _ in 0..32 {
        let (_, response) = told.recv().unwrap();
        assert_eq!((response.status, response.error("code").as_str()), (429, "queue_full"));
        assert!(response.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    }
    drop(first);
    for _ in 0..28 {
        let (n, response) = told.recv().unwrap();
        assert_eq!(response.status, 200);
        let events = response.body.split("\n\n").filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<String> = events.map(String::from).collect();
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert_eq!(text_of(&events), expected[n], "{n}");
    }
    wait_idle(&node);
}

#[test]
fn nothing_is_left_of_clients_that_hang_up_at_any_moment() {
    // Pages for little more than one context: a few that were lost would be missed at the end.
    let flags = ["--parallel", "4", "--queue", "28", "--ctx", "1536", "--kv-mb", "1"];
    let node = Node::start(&flags);
    let long = "a long prompt, ".repeat(60);
    for n in 0..if soak() { 2000 } else { 200 } {
        let prompt = if n % 3 == 0 { long.as_str() } else { "go on" };
        let question = ask(prompt, None);
        match n % 5 {
            // While it waits, or its prompt is read.
            0 | 1 => drop(send(&node, &question)),
            events => {
                let mut stream = node.client().stream(CHAT, &question);
                (2..events).for_each(|_| assert!(stream.next().is_some()));
            }
        }
    }
    // An answer that fills the whole context needs all the pages that there are.
    let mut full = ask(&long, None);
    full["stream"] = json!(false);
    let response = node.chat(&full);
    assert_eq!(response.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(response.json()["usage"]["total_tokens"], 1536);
    wait_idle(&node);
    // And all places are free: as many as may be answered are, at once.
    let mut all: Vec<Stream> =
        (0..4).map(|_| node.client().stream(CHAT, &ask("go on", None))).collect();
    all.iter_mut().for_each(|stream| assert!(stream.next().is_some()));
}

#[test]
fn a_signal_lets_all_running_answers_finish() {
    let mut node = Node::start(&["--parallel", "8"]);
    let question = |n: usize| ask(&format!("go on, {n}"), Some(120));
    let expected: Vec<String> =
        (0..8).map(|n| whole(node.client().stream(CHAT, &question(n)))).collect();
    let mut running: Vec<Stream> =
        (0..8).map(|n| node.client().stream(CHAT, &question(n))).collect();
    let began: Vec<String> = running.iter_mut().map(|stream| stream.next().unwrap()).collect();
    node.signal("TERM");
    node.log.wait_for("stopping");
    for ((stream, first), expected) in running.into_iter().zip(began).zip(expected) {
        let mut events = vec![first];
        events.extend(stream.rest());
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert_eq!(text_of(&events), expected);
    }
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn who_is_being_answered_does_not_wait_for_a_long_prompt() {
    let node = Node::start(&["--ctx", "32768"]);
    let mut answered = node.client().stream(CHAT, &ask("go on", None));
    (0..4).for_each(|_| assert!(answered.next().is_some()));
    let events = Arc::new(AtomicUsize::new(0));
    let count = events.clone();
    let (stop, stopped) = mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) && answered.next().is_some() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    // Its first event says that its turn has come, the second is text.
    let mut reading = node.client().stream(CHAT, &ask(&"a long prompt, ".repeat(500), Some(1)));
    reading.next().unwrap();
    let before = events.load(Ordering::Relaxed);
    reading.next().unwrap();
    let meanwhile = events.load(Ordering::Relaxed) - before;
    drop(stop);
    reader.join().unwrap();
    // 7,500 tokens take 15 steps at least, and each of them answers a token to the other.
    assert!(meanwhile >= 5, "{meanwhile} tokens while a long prompt was read");
}

#[test]
fn a_key_with_many_requests_does_not_delay_one_with_a_single_one() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("keys.toml");
    let file = file.to_str().unwrap();
    let add = |name: &str| {
        let made = run_at(&home, &["keys", "add", name, "--api-keys-file", file], "");
        format!("Bearer {}", made.out.trim())
    };
    let (many, single) = (add("many"), add("single"));
    let flags = ["--parallel", "1", "--queue", "32", "--api-keys-file", file];
    let mut node = Node::start(&[&flags[..], &["--log", "cadencia=debug"]].concat());
    let body = ask("go on", Some(500)).to_string();
    let (tell, told) = mpsc::channel();
    for n in 0..9 {
        let mut client = node.client();
        let key = if n == 8 { &single } else { &many };
        client.send("POST", CHAT, &[("authorization", key.as_str())], body.as_bytes());
        // All of the others are there before the last.
        node.log.wait_for("joined the line");
        let tell = tell.clone();
        thread::spawn(move || tell.send((n, client.receive().status)).unwrap());
    }
    let order: Vec<(usize, u16)> = told.iter().take(9).collect();
    assert!(order.iter().all(|(_, status)| *status == 200), "{order:?}");
    let place = order.iter().position(|(n, _)| *n == 8).unwrap();
    assert!(place <= 3, "the single request was answered in place {place} of {order:?}");
}

/// What clients that storm a node have seen.
#[derive(Debug, Default)]
struct Seen {
    answered: AtomicU64,
    turned_away: AtomicU64,
}

/// Asks again and again until `end`; told no, comes back a little later.
fn storm(address: SocketAddr, number: usize, end: Instant, seen: &Seen) {
    for n in 0.. {
        if Instant::now() >= end {
            return;
        }
        let prompt = format!("{number} {}", "and so on, ".repeat((number + n) % 20));
        let body = ask(&prompt, Some(1 + (7 * number + n) % 40)).to_string();
        let mut client = Client::connect(address);
        client.send("POST", CHAT, &[], body.as_bytes());
        let response = client.receive();
        match response.status {
            200 => {
                assert!(response.body.ends_with("data: [DONE]\n\n"), "{response:?}");
                assert!(!response.body.contains("\"error\""), "{response:?}");
                seen.answered.fetch_add(1, Ordering::Relaxed);
            }
            429 => {
                assert!(response.headers["retry-after"].parse::<u64>().unwrap() >= 1);
                seen.turned_away.fetch_add(1, Ordering::Relaxed);
                // Long enough that refusals are not all that the node does.
                thread::park_timeout(Duration::from_millis(50));
            }
            _ => panic!("{response:?}"),
        }
    }
}

#[test]
fn under_a_storm_all_who_are_accepted_are_answered_and_memory_stays() {
    let node = Node::start(&["--parallel", "4", "--queue", "28", "--ctx", "1536", "--kv-mb", "1"]);
    let time = if soak() { SOAK } else { Duration::from_secs(2) };
    let (start, seen) = (Instant::now(), Seen::default());
    let mut sizes = Vec::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|number| {
                let (address, seen) = (node.address, &seen);
                scope.spawn(move || storm(address, number, start + time, seen))
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            sizes.push(metric(&node, "process_resident_memory_bytes"));
            thread::park_timeout(time / 60);
        }
    });
    wait_idle(&node);
    let (answered, away) = (seen.answered.into_inner(), seen.turned_away.into_inner());
    assert!(answered >= 32 && away >= 1, "{answered} answered, {away} turned away");
    if soak() {
        let quarter = sizes.len() / 4;
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (early, late) = (mean(&sizes[quarter..2 * quarter]), mean(&sizes[3 * quarter..]));
        assert!(late < early * (1.0 + GROWTH_MAX), "{early} bytes became {late}");
    }
}
