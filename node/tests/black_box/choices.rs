//! Several answers to one request.

use serde_json::{Value, json};

use crate::client::{choices_of, text_of_choice};
use crate::process::Node;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn hello(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 1.5, "seed": 7, "max_tokens": 12,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(choice: &Value) -> &str {
    choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap()
}

#[test]
fn each_choice_is_the_answer_to_its_own_seed() {
    let node = Node::start(&[]);
    let value = node.chat(&hello(json!({"n": 3}))).json();
    let choices = value["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let alone = node.chat(&hello(json!({"seed": 7 + index}))).text();
        assert_eq!(text(choice), alone);
    }
    assert_ne!(text(&choices[0]), text(&choices[1]));
    assert_eq!(value["seed"], 7);
    // The prompt counts once, and its first answer found nothing in memory.
    assert_eq!(value["usage"]["prompt_tokens"], 24);
    assert_eq!(value["usage"]["completion_tokens"], 36);
    assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn streamed_choices_are_told_apart_by_their_index() {
    let node = Node::start(&[]);
    let whole = node.chat(&hello(json!({"n": 3}))).json();
    let wish = json!({"n": 3, "stream": true, "stream_options": {"include_usage": true}});
    let events = node.client().stream(CHAT, &hello(wish)).rest();
    for index in 0..3 {
        assert_eq!(text_of_choice(&events, index), text(&whole["choices"][index]));
        let own = choices_of(&events);
        let own: Vec<_> = own.iter().filter(|choice| choice["index"] == index).collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["finish_reason"], "length");
        let ends = own.iter().filter(|choice| !choice["finish_reason"].is_null());
        assert_eq!(ends.count(), 1);
    }
    assert_eq!(events.last().unwrap(), "[DONE]");
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(36)));
}

#[test]
fn each_of_several_prompts_is_answered() {
    let node = Node::start(&[]);
    let complete = |more: Value| {
        let mut body = json!({"temperature": 1.5, "seed": 3, "max_tokens": 8});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node.post(TEXT, &body)
    };
    let value = complete(json!({"prompt": ["one", [116, 119, 111]], "n": 2})).json();
    let choices = value["choices"].as_array().unwrap();
    for (index, (prompt, seed)) in
        [("one", 3), ("one", 4), ("two", 5), ("two", 6)].iter().enumerate()
    {
        assert_eq!(choices[index]["index"], index);
        let alone = complete(json!({"prompt": prompt, "seed": seed}));
        assert_eq!(text(&choices[index]), alone.text(), "{index}");
    }
    assert_eq!(value["usage"]["prompt_tokens"], 6);
    // One of them that does not fit refuses all, by its name.
    let response = complete(json!({"prompt": ["one", "x".repeat(9000)]}));
    assert_eq!(response.error("code"), "context_length_exceeded");
    assert_eq!(response.error("param"), "prompt[1]");
    let message = response.error("message");
    assert!(message.contains("9000") && message.contains("8192"), "{message}");
}

#[test]
fn an_answer_can_begin_with_its_prompt() {
    let node = Node::start(&[]);
    let body = |echo: bool, stream: bool| {
        json!({"prompt": ["héllo", "you"], "echo": echo, "stream": stream, "temperature": 0,
               "max_tokens": 6})
    };
    let plain = node.post(TEXT, &body(false, false)).json();
    let echoed = node.post(TEXT, &body(true, false)).json();
    let streamed = node.client().stream(TEXT, &body(true, true)).rest();
    for (index, prompt) in ["héllo", "you"].iter().enumerate() {
        let expected = format!("{prompt}{}", text(&plain["choices"][index]));
        assert_eq!(text(&echoed["choices"][index]), expected);
        assert_eq!(text_of_choice(&streamed, index), expected);
    }
}

#[test]
fn all_choices_wait_together_or_none_does() {
    let node = Node::start(&["--parallel", "1", "--queue", "2", "--ctx", "32768"]);
    let endless = json!({"messages": [{"role": "user", "content": "go on"}], "stream": true,
                         "temperature": 0});
    let mut running = node.client().stream(CHAT, &endless);
    running.next().unwrap();
    let response = node.chat(&hello(json!({"n": 3})));
    assert_eq!((response.status, response.error("code").as_str()), (429, "queue_full"));
    assert!(response.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    drop(running);
    // None of them took a place: there is room for others.
    assert_eq!(node.chat(&hello(json!({"n": 2}))).status, 200);
}

#[test]
fn tokens_end_an_answer_or_do_not() {
    let node = Node::start(&[]);
    let forced = json!({"logit_bias": {"65": 100}, "temperature": 0, "max_tokens": 5});
    let mut stopped = forced.clone();
    stopped["stop_token_ids"] = json!([65]);
    let value = node.chat(&hello(stopped)).json();
    assert_eq!(value["choices"][0]["finish_reason"], "stop");
    assert_eq!(value["choices"][0]["message"]["content"], "");
    assert_eq!(value["usage"]["completion_tokens"], 1);
    // The end token would be the likeliest by far.
    let wish = json!({"logit_bias": {"258": 100}, "ignore_eos": true, "max_tokens": 5});
    let value = node.chat(&hello(wish)).json();
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert_eq!(value["usage"]["completion_tokens"], 5);
}

#[test]
fn a_message_can_be_continued() {
    let node = Node::start(&[]);
    let user = json!({"role": "user", "content": "hello"});
    let begun = json!({"role": "assistant", "content": "Well"});
    let wish = json!({"messages": [user, begun], "temperature": 0, "max_tokens": 8,
                      "continue_final_message": true});
    let prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nWell";
    let raw = json!({"prompt": prompt, "temperature": 0, "max_tokens": 8});
    assert_eq!(node.chat(&wish).text(), node.post(TEXT, &raw).text());
    let wish = json!({"messages": [user], "temperature": 0, "max_tokens": 8,
                      "add_generation_prompt": false});
    let raw = json!({"prompt": "<|im_start|>user\nhello<|im_end|>\n", "temperature": 0,
                     "max_tokens": 8});
    assert_eq!(node.chat(&wish).text(), node.post(TEXT, &raw).text());
}
