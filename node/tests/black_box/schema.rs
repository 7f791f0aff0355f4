//! Answers that keep to a form.

use serde_json::{Value, json};

use crate::client::text_of;
use crate::process::Node;

const CHAT: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}], "temperature": 1, "max_tokens": 300,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn schema(strict: Value) -> Value {
    let schema = json!({"type": "object", "properties": {
        "colour": {"enum": ["red", "blå"]}, "many": {"type": "boolean"}},
        "required": ["colour", "many"], "additionalProperties": false});
    json!({"type": "json_schema",
           "json_schema": {"name": "x", "strict": strict, "schema": schema}})
}

#[track_caller]
fn check_text(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value["many"].is_boolean() && value.as_object().unwrap().len() == 2, "{text}");
    assert!([json!("red"), json!("blå")].contains(&value["colour"]), "{text}");
}

#[test]
fn a_schema_is_kept_to_whatever_the_model_likes() {
    let node = Node::start(&[]);
    for strict in [json!(true), json!(false), json!(null)] {
        let value = node.chat(&ask(json!({"response_format": schema(strict), "n": 4}))).json();
        for choice in value["choices"].as_array().unwrap() {
            check_text(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
}

#[test]
fn a_stream_keeps_to_it_too() {
    let node = Node::start(&[]);
    let wish = json!({"response_format": schema(json!(true)), "seed": 3});
    let whole = node.chat(&ask(wish.clone())).text();
    let mut wish = wish;
    wish["stream"] = json!(true);
    let streamed = text_of(&node.client().stream(CHAT, &ask(wish)).rest());
    assert_eq!(streamed, whole);
    check_text(&whole);
}

#[test]
fn other_names_for_forms_are_understood() {
    let node = Node::start(&[]);
    let inner = schema(json!(true))["json_schema"]["schema"].clone();
    check_text(&node.chat(&ask(json!({"guided_json": inner}))).text());
    check_text(&node.chat(&ask(json!({"json_schema": inner}))).text());
    let text = node.chat(&ask(json!({"guided_choice": ["yes", "no"]}))).text();
    assert!(["yes", "no"].contains(&text.as_str()), "{text}");
    let body = json!({"prompt": "x", "guided_regex": "[0-9]{2}-[a-f]{3}", "max_tokens": 20});
    let text = node.post("/v1/completions", &body).text();
    let (left, right) = text.split_once('-').unwrap();
    assert!(left.len() == 2 && left.bytes().all(|b| b.is_ascii_digit()), "{text}");
    assert!(right.len() == 3 && right.bytes().all(|b| (b'a'..=b'f').contains(&b)), "{text}");
    let text = node.chat(&ask(json!({"response_format": {"type": "json_object"}}))).text();
    assert!(text.starts_with('{'), "{text}");
}

#[test]
fn forms_that_cannot_be_kept_to_are_refused_by_name() {
    let node = Node::start(&[]);
    let format = |schema: Value| {
        json!({"response_format": {"type": "json_schema",
                                   "json_schema": {"name": "x", "schema": schema}}})
    };
    for (more, param) in [
        (format(json!({"$ref": "#/nowhere"})), "response_format.json_schema.schema.$ref"),
        (
            format(json!({"type": "object", "properties": {"a": {"unheard": 1}}})),
            "response_format.json_schema.schema.properties.a.unheard",
        ),
        (format(json!(3)), "response_format.json_schema.schema"),
        (json!({"guided_regex": "(a"}), "guided_regex"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"response_format": {"type": "xml"}}), "response_format"),
        (json!({"response_format": {"type": "json_object"}, "ignore_eos": true}), "ignore_eos"),
        (json!({"grammar": "root ::= x"}), "grammar"),
    ] {
        let response = node.chat(&ask(more.clone()));
        assert_eq!((response.status, response.error("param").as_str()), (400, param), "{more}");
    }
}
