//! What the API answers when it is asked rightly.

use serde_json::{Value, json};

use crate::client::text_of;
use crate::process::{Node, run, toy_path};

const CHAT: &str = "/v1/chat/completions";

fn hello(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": 24,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_ready_node_says_what_it_serves() {
    let node = Node::start(&["--ctx", "1024"]);
    assert_eq!(node.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(
        node.get("/ready").json(),
        json!({"status": "ready", "model": "toy", "models": ["toy"]})
    );
    let list = node.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "toy");
    assert_eq!(list["data"][0]["meta"]["n_ctx"], 1024);
    assert_eq!(node.get("/v1/models/toy").json(), list["data"][0]);
}

#[test]
fn a_chat_is_answered_and_counted() {
    let node = Node::start(&[]);
    let response = node.chat(&hello(json!({})));
    let value = response.json();
    assert_eq!(value["object"], "chat.completion");
    assert_eq!(value["model"], "toy");
    assert_eq!(value["choices"][0]["message"]["role"], "assistant");
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert_eq!(value["usage"]["completion_tokens"], 24);
    // <|im_start|> "user" "\n" "hello" <|im_end|> "\n" <|im_start|> "assistant" "\n", in bytes.
    assert_eq!(value["usage"]["prompt_tokens"], 1 + 4 + 1 + 5 + 1 + 1 + 1 + 9 + 1);
    assert_eq!(value["usage"]["total_tokens"], 48);
    assert!(!response.text().is_empty());
}

#[test]
fn a_stream_has_the_text_of_the_whole_answer() {
    let node = Node::start(&[]);
    let whole = node.chat(&hello(json!({}))).text();
    let wish = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = node.client().stream(CHAT, &hello(wish)).rest();
    assert_eq!(text_of(&events), whole);
    let value = |n: usize| serde_json::from_str::<Value>(&events[n]).unwrap();
    assert_eq!(value(0)["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[events.len() - 1], "[DONE]");
    let (finish, usage) = (value(events.len() - 3), value(events.len() - 2));
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 24);
    let events = node.client().stream(CHAT, &hello(json!({"stream": true}))).rest();
    assert!(events.iter().all(|event| !event.contains("\"usage\"")));
}

#[test]
fn the_same_question_has_the_same_answer_and_is_remembered() {
    let node = Node::start(&[]);
    let first = node.chat(&hello(json!({})));
    let again = node.chat(&hello(json!({})));
    assert_eq!(first.text(), again.text());
    let cached = |value: Value| value["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(first.json()), 0);
    assert_eq!(cached(again.json()), 23);
}

#[test]
fn a_seed_decides_what_the_dice_show() {
    let node = Node::start(&[]);
    let with = |seed: u64| node.chat(&hello(json!({"temperature": 1.5, "seed": seed}))).text();
    let first = with(1);
    assert_eq!(first, with(1));
    assert!((2..6).any(|seed| with(seed) != first));
}

#[test]
fn a_bias_can_force_and_forbid_tokens() {
    let node = Node::start(&[]);
    let forced = node.chat(&hello(json!({"logit_bias": {"65": 100}, "max_tokens": 5})));
    assert_eq!(forced.text(), "AAAAA");
    // The end token is biased to be the likeliest: the answer is over at once.
    let ended = node.chat(&hello(json!({"logit_bias": {"258": 100}})));
    assert_eq!(ended.text(), "");
    let value = ended.json();
    assert_eq!(value["choices"][0]["finish_reason"], "stop");
    assert_eq!(value["usage"]["completion_tokens"], 1);
}

#[test]
fn penalties_keep_an_answer_from_repeating_itself() {
    let node = Node::start(&[]);
    let wish = json!({"frequency_penalty": 2, "presence_penalty": 2, "max_tokens": 40});
    let body = json!({"prompt": [65, 66, 67], "temperature": 0, "logit_bias": {"65": 9, "66": 8}});
    let count_a = |more: &Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node.post("/v1/completions", &body).text().matches('A').count()
    };
    assert_eq!(count_a(&json!({"max_tokens": 40})), 40);
    assert!(count_a(&wish) < 10);
}

#[test]
fn a_stop_string_ends_the_answer_and_never_shows() {
    let node = Node::start(&[]);
    let whole = node.chat(&hello(json!({"max_tokens": 40}))).text();
    let letters: Vec<char> = whole.chars().collect();
    let stop: String = letters[letters.len() / 2..].iter().take(3).collect();
    let before = whole.split(&stop).next().unwrap();
    let wish = json!({"max_tokens": 40, "stop": [stop, "never said"]});
    let response = node.chat(&hello(wish.clone()));
    assert_eq!(response.text(), before);
    assert_eq!(response.json()["choices"][0]["finish_reason"], "stop");
    let mut wish = wish;
    wish["stream"] = json!(true);
    assert_eq!(text_of(&node.client().stream(CHAT, &hello(wish)).rest()), before);
}

#[test]
fn a_prompt_may_be_text_or_tokens() {
    let node = Node::start(&[]);
    let complete = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
        node.post("/v1/completions", &body)
    };
    let text = complete(json!("hello"));
    assert_eq!(text.json()["object"], "text_completion");
    assert_eq!(text.text(), complete(json!([104, 101, 108, 108, 111])).text());
    let body = json!({"prompt": "hello", "max_tokens": 12, "temperature": 0, "stream": true});
    let events = node.client().stream("/v1/completions", &body).rest();
    assert_eq!(text_of(&events), text.text());
}

#[test]
fn the_api_and_the_command_line_agree() {
    let node = Node::start(&[]);
    let body = json!({"prompt": "<|im_start|>hello", "max_tokens": 16, "temperature": 0});
    let toy = toy_path();
    let said = run(
        &[
            "generate",
            "--model",
            toy.to_str().unwrap(),
            "--prompt",
            "<|im_start|>hello",
            "--special",
            "-n",
            "16",
            "--temp",
            "0",
            "--json",
        ],
        "",
    );
    assert_eq!(said.json()["text"], node.post("/v1/completions", &body).text());
}

#[test]
fn a_connection_serves_many_requests() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for _ in 0..3 {
        let body = hello(json!({"max_tokens": 2})).to_string();
        assert_eq!(client.request("POST", CHAT, &[], body.as_bytes()).status, 200);
        assert_eq!(client.request("GET", "/health", &[], b"").status, 200);
    }
}

#[test]
fn a_request_keeps_its_id_and_the_log_does_not_tell_what_was_said() {
    let mut node = Node::start(&["--log", "trace"]);
    let body = json!({
        "messages": [{"role": "user", "content": "a secret matter"}], "max_tokens": 2,
    });
    let headers = [("x-request-id", "mine-1"), ("authorization", "Bearer hush")];
    let response = node.client().request("POST", CHAT, &headers, body.to_string().as_bytes());
    assert_eq!(response.headers["x-request-id"], "mine-1");
    let line = node.log.wait_for("request id=\"mine-1\"");
    for part in ["/v1/chat/completions", "status=200", "tokens=2", "prompt="] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(node.get("/health").headers["x-request-id"].len(), 16);
    node.signal("TERM");
    let log = node.log.rest().join("\n");
    assert!(!log.contains("secret") && !log.contains("hush"), "{log}");
}
