//! What streams do beside telling the answer.

use serde_json::{Value, json};

use crate::process::Node;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_long_prompt_shows_how_far_it_is() {
    let node = Node::start(&["--ctx", "32768", "--keep-alive-ms", "10"]);
    let body = json!({"messages": [{"role": "user", "content": "x".repeat(12_000)}],
                      "stream": true, "max_tokens": 1});
    let mut stream = node.client().stream(CHAT, &body);
    let blocks: Vec<String> = std::iter::from_fn(|| stream.next_block()).collect();
    let progress: Vec<(usize, usize)> = blocks
        .iter()
        .filter_map(|block| block.strip_prefix(": prompt ")?.split_once('/'))
        .map(|(done, whole)| (done.parse().unwrap(), whole.parse().unwrap()))
        .collect();
    assert!(!progress.is_empty(), "{blocks:?}");
    assert!(progress.is_sorted() && progress.iter().all(|(done, whole)| done < whole));
    assert_eq!(progress[0].1, 12_019);
    assert_eq!(blocks.last().unwrap(), "data: [DONE]");
}

#[test]
fn an_answer_says_where_the_time_went() {
    let node = Node::start(&[]);
    let wish = |stream: bool| json!({"messages": [{"role": "user", "content": "x"}], "stream": stream, "max_tokens": 2});
    let names = |timing: &str| -> Vec<String> {
        let part = |part: &str| {
            let (name, time) = part.split_once(";dur=").unwrap();
            assert!(time.parse::<f64>().unwrap() >= 0.0);
            name.to_string()
        };
        timing.split(", ").map(part).collect()
    };
    let response = node.chat(&wish(false));
    assert_eq!(names(&response.headers["server-timing"]), ["queue", "prompt", "answer"]);
    let stream = node.client().stream(CHAT, &wish(true));
    assert_eq!(names(&stream.headers["server-timing"]), ["queue"]);
    let events = stream.rest();
    let end: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert!(end["timings"]["prompt_ms"].is_number() && end["seed"].is_u64(), "{end}");
}

#[test]
fn the_seed_that_is_told_makes_the_same_answer() {
    let node = Node::start(&[]);
    let mut body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 16,
                          "temperature": 1.5});
    let first = node.chat(&body);
    body["seed"] = first.json()["seed"].clone();
    assert_eq!(node.chat(&body).text(), first.text());
}
