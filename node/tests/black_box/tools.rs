//! Tools that a model may call.

use serde_json::{Value, json};

use crate::client::{choices_of, text_of};
use crate::process::{Node, toy_path};

const CHAT: &str = "/v1/chat/completions";

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                      "required": ["city"], "additionalProperties": false});
    let tool = |name: &str| {
        json!({"type": "function",
               "function": {"name": name, "description": "d", "parameters": city}})
    };
    json!([tool("weather"), tool("time")])
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hello"}],
        "tools": tools(), "temperature": 0, "max_tokens": 200, "seed": 5,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[track_caller]
fn check_call(call: &Value, names: &[&str]) {
    assert_eq!(call["type"], "function");
    assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!([json!({"city": "Paris"}), json!({"city": "Rome"})].contains(&arguments), "{call}");
    let id = call["id"].as_str().unwrap();
    assert!(id.len() >= 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
}

#[test]
fn a_tool_that_is_named_is_called() {
    let node = Node::start(&[]);
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "time"}}, "n": 2});
    let value = node.chat(&ask(named)).json();
    for choice in value["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "tool_calls", "{value}");
        assert!(choice["message"]["content"].is_null());
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        check_call(&calls[0], &["time"]);
    }
}

#[test]
fn a_call_that_is_required_is_made_whole_and_streamed_alike() {
    let node = Node::start(&[]);
    let wish = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let whole = node.chat(&ask(wish.clone())).json();
    let whole = whole["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
    assert_eq!(whole.len(), 1);
    check_call(&whole[0], &["weather", "time"]);
    let mut wish = wish;
    wish["stream"] = json!(true);
    let events = node.client().stream(CHAT, &ask(wish)).rest();
    assert_eq!(text_of(&events), "");
    let choices = choices_of(&events);
    let deltas: Vec<&Value> = choices
        .iter()
        .flat_map(|choice| choice["delta"]["tool_calls"].as_array().into_iter().flatten())
        .collect();
    assert_eq!((deltas.len(), &deltas[0]["index"]), (1, &json!(0)));
    check_call(deltas[0], &["weather", "time"]);
    assert_eq!(deltas[0]["function"], whole[0]["function"]);
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
}

#[test]
fn several_calls_are_numbered() {
    let node = Node::start(&[]);
    let wish = json!({"tool_choice": "required", "temperature": 1.5, "max_tokens": 2000});
    // Whether another call follows is the model's choice; some seed makes it.
    let calls = (0..40).find_map(|seed| {
        let mut wish = ask(wish.clone());
        wish["seed"] = seed.into();
        let value = node.chat(&wish).json();
        let calls = value["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
        (calls.len() > 1).then_some(calls)
    });
    let calls = calls.expect("one of forty answers calls twice");
    calls.iter().for_each(|call| check_call(call, &["weather", "time"]));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[test]
fn a_model_that_need_not_call_may_speak() {
    let node = Node::start(&[]);
    let value = node.chat(&ask(json!({"max_tokens": 8}))).json();
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert!(value["choices"][0]["message"].get("tool_calls").is_none());
    let told = value["usage"]["prompt_tokens"].as_u64().unwrap();
    // One that must not is not told of tools.
    let value = node.chat(&ask(json!({"max_tokens": 8, "tool_choice": "none"}))).json();
    let untold = value["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(untold == 24 && told > 200, "{untold} {told}");
}

#[test]
fn what_tools_answered_becomes_part_of_the_prompt() {
    let node = Node::start(&[]);
    let call = json!({"id": "abcdefghi", "type": "function",
                      "function": {"name": "time", "arguments": "{\"city\": \"Rome\"}"}});
    let body = json!({"temperature": 0, "max_tokens": 8, "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"},
    ]});
    let prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
        {\"name\": \"time\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n";
    let raw = json!({"prompt": prompt, "temperature": 0, "max_tokens": 8});
    assert_eq!(node.chat(&body).text(), node.post("/v1/completions", &raw).text());
}

#[test]
fn wrong_tools_are_refused_by_name() {
    let node = Node::start(&[]);
    let call = json!({"type": "function", "function": {"name": "f", "arguments": "{"}});
    for (more, param) in [
        (json!({"tools": 3}), "tools"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"parallel_tool_calls": 3}), "parallel_tool_calls"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"guided_choice": ["a"]}), "guided_choice"),
        (json!({"tool_choice": "required", "ignore_eos": true}), "ignore_eos"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [call]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        let response = node.chat(&ask(more.clone()));
        assert_eq!((response.status, response.error("param").as_str()), (400, param), "{more}");
    }
}

#[test]
fn a_model_whose_template_knows_no_tools_refuses_them() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("plain.gguf");
    let mut bytes = std::fs::read(toy_path()).unwrap();
    // The variable that templates look at, under a name of the same length.
    for at in 0..bytes.len() - 8 {
        if [&b"if tools"[..], b"in tools"].contains(&&bytes[at..at + 8]) {
            bytes[at + 7] = b'z';
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let node = Node::start_with(path.to_str().unwrap(), "127.0.0.1:0", &[]);
    let response = node.chat(&ask(json!({})));
    assert_eq!((response.status, response.error("param").as_str()), (400, "tools"));
    assert_eq!(response.error("code"), "unsupported_parameter");
    assert_eq!(node.chat(&ask(json!({"tool_choice": "none", "max_tokens": 2}))).status, 200);
    let call = json!({"type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "assistant", "tool_calls": [call]}]);
    let response = node.chat(&json!({"messages": messages}));
    assert_eq!(response.error("param"), "messages[0].tool_calls");
}
