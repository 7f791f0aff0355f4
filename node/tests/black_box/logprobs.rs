//! Probabilities of tokens.

use serde_json::{Value, json};

use crate::client::choices_of;
use crate::process::Node;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn hello(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The bytes of all tokens, one after the other.
fn bytes(tokens: &[Value]) -> Vec<u8> {
    let each = tokens.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    each.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

#[test]
fn a_chat_tells_how_likely_its_tokens_were() {
    let node = Node::start(&[]);
    let value = node.chat(&hello(json!({"logprobs": true, "top_logprobs": 3}))).json();
    let tokens = value["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 12);
    assert!(value["choices"][0]["logprobs"]["refusal"].is_null());
    for token in &tokens {
        let own = token["logprob"].as_f64().unwrap();
        assert!(own <= 0.0);
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // What is greedy is the likeliest, and the others are less likely, in order.
        assert_eq!((&top[0]["bytes"], &top[0]["logprob"]), (&token["bytes"], &token["logprob"]));
        let all: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
    }
    let text = value["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes(&tokens)), text);

    let wish = json!({"logprobs": true, "top_logprobs": 3, "stream": true});
    let events = node.client().stream(CHAT, &hello(wish)).rest();
    let streamed: Vec<Value> = choices_of(&events)
        .iter()
        .flat_map(|choice| choice["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(streamed, tokens);
    // Without a wish there are none.
    assert!(node.chat(&hello(json!({}))).json()["choices"][0]["logprobs"].is_null());
    let value = node.chat(&hello(json!({"logprobs": true}))).json();
    assert_eq!(value["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn a_completion_tells_it_in_four_lists() {
    let node = Node::start(&[]);
    let body = |stream: bool| {
        json!({"prompt": "hello", "temperature": 0, "max_tokens": 9, "logprobs": 2, "stream": stream,
               "logit_bias": {"72": 100, "105": 100}, "frequency_penalty": 2})
    };
    let value = node.post(TEXT, &body(false)).json();
    let choice = &value["choices"][0];
    let lists = &choice["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    let text = choice["text"].as_str().unwrap();
    let tokens: String = list("tokens").iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!((tokens.as_str(), list("tokens").len()), (text, 9));
    assert_eq!(list("text_offset"), (0..9).map(Value::from).collect::<Vec<_>>());
    for (n, top) in list("top_logprobs").iter().enumerate() {
        // A token that a bias made is none of the likeliest two, and is listed beside them.
        let own = list("tokens")[n].as_str().unwrap().to_string();
        assert_eq!(top[own], list("token_logprobs")[n]);
        assert!((2..=3).contains(&top.as_object().unwrap().len()), "{top}");
    }
    let events = node.client().stream(TEXT, &body(true)).rest();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed: Vec<Value> = choices_of(&events)
            .iter()
            .flat_map(|choice| choice["logprobs"][name].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(streamed, list(name), "{name}");
    }
}

#[test]
fn tokens_that_a_stop_string_takes_are_not_told() {
    let node = Node::start(&[]);
    let wish = json!({"logprobs": true, "logit_bias": {"65": 100}, "stop": ["AAA"]});
    let value = node.chat(&hello(wish)).json();
    assert_eq!(value["choices"][0]["message"]["content"], "");
    assert_eq!(value["choices"][0]["logprobs"]["content"], json!([]));
}
