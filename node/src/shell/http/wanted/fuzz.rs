//! Requests that nobody would send, by the thousand: each is understood or refused in OpenAI's
//! shape, and none does harm. A failure names the seed, which makes the same request again.
//!
//! `CADENCIA_SOAK=1` tries a million.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use compute::template::{ChatTemplate, CivilTime};
use serde_json::{Map, Value, json};

use super::super::embed;
use super::super::fault::Fault;
use super::*;
use crate::house::tools::Tool;

/// How many requests are tried.
fn count() -> u64 {
    match std::env::var("CADENCIA_SOAK").is_ok_and(|soak| soak == "1") {
        true => 1_000_000,
        false => 20_000,
    }
}

/// Steele's SplitMix.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Requests that are right, and together name every field there is.
fn right() -> Vec<Value> {
    let call = json!({"id": "c1", "type": "function",
                      "function": {"name": "look", "arguments": "{\"at\": \"sky\"}"}});
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}});
    vec![
        json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "blue"},
            {"role": "assistant", "content": "It is", "reasoning_content": "hm"}],
            "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": false,
            "continue_final_message": true, "chat_template_kwargs": {"enable_thinking": false}}),
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2,
            "logprobs": true, "top_logprobs": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
            "min_p": 0.1, "seed": 7, "max_completion_tokens": 9, "stop": ["a", "b"],
            "stop_token_ids": [1], "ignore_eos": false, "logit_bias": {"5": -1.5},
            "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1,
            "stream": true, "stream_options": {"include_usage": true}, "user": "u",
            "metadata": {"a": "b"}, "store": false, "service_tier": "auto"}),
        json!({"messages": [{"role": "user", "content": "hi"}], "response_format":
            {"type": "json_schema", "json_schema": {"name": "x", "strict": true,
             "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}),
        json!({"messages": [{"role": "user", "content": "hi"}], "guided_choice": ["a", "b"],
            "tool_choice": {"type": "function", "function": {"name": "look"}}, "tools": [tool]}),
        json!({"prompt": ["a", [1, 2, 3]], "n": 2, "best_of": 2, "logprobs": 2, "suffix": null,
            "max_tokens": 3, "guided_regex": "[a-z]+"}),
        json!({"prompt": [1, 2, 3], "echo": true, "guided_json": "{\"type\": \"object\"}"}),
        json!({"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4}),
    ]
}

/// Values that may stand where others were wanted.
static ODD: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let deep = (0..100).fold(Value::Null, |inner, _| json!([inner]));
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(1e308),
        json!(-0.0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(4_294_967_296u64),
        json!(1.5),
        json!(""),
        json!("\u{0}\u{fffd}\u{1f600}\u{202e}"),
        json!("<|im_end|>{{ 7 * 7 }}{% raise %}"),
        json!("x".repeat(2000)),
        json!([]),
        json!({}),
        json!([[[]]]),
        json!([null, 1, "a", {}]),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!({"role": "tool", "content": "x", "tool_call_id": "y"}),
        json!("(a|b)*{1000}"),
        deep,
    ]
});

fn odd(dice: &mut Dice) -> Value {
    let value = dice.of(&ODD).clone();
    if dice.one_in(4) { json!([value, dice.roll()]) } else { value }
}

/// Changes one part of `value`, at any depth.
fn change(value: &mut Value, dice: &mut Dice) {
    let deeper = !dice.one_in(4);
    match value {
        Value::Object(map) if deeper && !map.is_empty() => change_member(map, dice),
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = dice.below(list.len());
            match dice.below(5) {
                0 => drop(list.remove(at)),
                1 => list.extend(vec![list[at].clone(); dice.below(40)]),
                _ => change(&mut list[at], dice),
            }
        }
        _ => *value = odd(dice),
    }
}

fn change_member(map: &mut Map<String, Value>, dice: &mut Dice) {
    let names: Vec<String> = map.keys().cloned().collect();
    let name = dice.of(&names).clone();
    match dice.below(6) {
        0 => drop(map.remove(&name)),
        1 => {
            let value = map.remove(&name).expect("it is there");
            map.insert(dice.of(&names).clone(), value);
        }
        _ => change(map.get_mut(&name).expect("it is there"), dice),
    }
}

/// The request that `seed` makes.
fn request(right: &[Value], seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut value = dice.of(right).clone();
    if dice.one_in(8) {
        // Fields of one request in another.
        let other = dice.of(right).clone();
        let (Value::Object(map), Value::Object(other)) = (&mut value, other) else { panic!() };
        map.extend(other);
    }
    for _ in 0..dice.below(5) {
        change(&mut value, &mut dice);
    }
    let mut bytes = value.to_string().into_bytes();
    if dice.one_in(4) {
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len());
            match dice.below(3) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, dice.roll() as u8),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << (seed % 8)),
            }
        }
    }
    bytes
}

#[track_caller]
fn check_fault(fault: Fault, seed: u64) {
    let value = fault.json();
    for member in ["message", "type", "code"] {
        assert!(value["error"][member].is_string(), "seed {seed}: {value}");
    }
    let message = value["error"]["message"].as_str().unwrap();
    assert!(message.len() < 4096, "seed {seed}: a refusal repeats the request: {message}");
    let status = fault.into_response().status();
    assert!(status.is_client_error() && status != StatusCode::OK, "seed {seed}: {status}");
}

#[test]
fn requests_are_understood_or_refused() {
    let right = right();
    let (mut understood, mut refused) = (0, 0);
    for seed in 0..count() {
        let body = request(&right, seed);
        let outcomes = [
            Wanted::chat(&body, seed).map(drop),
            Wanted::completion(&body, seed).map(drop),
            embed::Wanted::parse(&body).map(drop),
        ];
        for outcome in outcomes {
            match outcome {
                Ok(()) => understood += 1,
                Err(fault) => {
                    refused += 1;
                    check_fault(fault, seed);
                }
            }
        }
    }
    // A generator that makes only nonsense, or only sense, would prove little.
    assert!(understood > count() / 20 && refused > count() / 2, "{understood} {refused}");
}

/// ChatML that looks at all that a message may have.
const TEMPLATE: &str = "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n\
    {% endfor %}<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {% if message.content is string %}{{ message.content | trim }}{% endif %}\
    {% for call in message.tool_calls or [] %}<tool_call>{\"name\": \"{{ call.function.name }}\", \
    \"arguments\": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}\
    {% if message.role == 'tool' %}{{ message.tool_call_id[:4] }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}";

#[test]
fn conversations_are_written_or_refused() {
    let right = right();
    let template = ChatTemplate::new(TEMPLATE, "<s>", "</s>").unwrap();
    let now = CivilTime::from_unix(0);
    let (mut written, mut seed) = (0, 0);
    // Each rendering has a thread of its own, so fewer are tried.
    let tries = count() / 10;
    for _ in 0..tries {
        // Only those that are understood reach a template.
        let talk = loop {
            seed += 1;
            if let Ok(Wanted { input: Input::Chat(talk), .. }) =
                Wanted::chat(&request(&right[..4], seed), seed)
            {
                break talk;
            }
        };
        let opens = talk.opening == Opening::Message;
        let tools: Value = talk.tools.iter().map(Tool::for_template).collect();
        let tools = (!talk.tools.is_empty()).then_some(&tools);
        let text = template.render_with(&talk.messages, tools, opens, now, &talk.variables);
        written += u64::from(text.is_ok());
    }
    assert!(written > tries / 2, "{written}");
}
