//! What a client wants, read from its JSON and checked field by field.
//!
//! A field that would change the answer and is not supported is refused by name: ignoring it would
//! give an answer to another question. Fields that are not known are ignored, as clients of many
//! servers send them.

use std::collections::BTreeMap;

use compute::sample::{LOGIT_BIASES_MAX, SampleError, Sampler, SamplerOptions};
use compute::template::Message;
use serde_json::Value;

use super::fault::{Fault, quoted};
use super::fields::Fields;

/// Strings that may end one answer.
const STOPS_MAX: usize = 16;
/// Bytes of one of them: each delays text by its length.
const STOP_BYTES_MAX: usize = 1024;
/// Roles of a message.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A request for an answer.
#[derive(Debug)]
pub struct Wanted {
    /// What is to be answered.
    pub input: Input,
    /// The model asked for, if one was.
    pub model: Option<String>,
    /// How it is to be answered.
    pub options: Options,
}

/// What is to be answered.
#[derive(Debug)]
pub enum Input {
    /// A conversation.
    Chat(Vec<Message>),
    /// Text to be continued.
    Text(String),
    /// Tokens to be continued.
    Tokens(Vec<u32>),
}

/// How it is to be answered.
#[derive(Debug)]
pub struct Options {
    /// Tokens at most; `None` for as many as the context holds.
    pub tokens_max: Option<usize>,
    /// Strings that end the answer.
    pub stops: Vec<String>,
    /// How tokens are picked.
    pub sampler: Sampler,
    /// Whether the answer is sent as it grows.
    pub delivery: Delivery,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As it grows.
    Stream,
    /// As it grows, with its token counts at the end.
    StreamWithUsage,
}

impl Wanted {
    /// A request to `/v1/chat/completions`; `seed` is used where it brings none.
    pub fn chat(body: &[u8], seed: u64) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let messages = messages(&mut fields)?;
        Self::rest(fields, Input::Chat(messages), seed)
    }

    /// A request to `/v1/completions`; `seed` is used where it brings none.
    pub fn completion(body: &[u8], seed: u64) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let prompt = prompt(&mut fields)?;
        Self::rest(fields, prompt, seed)
    }

    fn rest(mut fields: Fields, input: Input, seed: u64) -> Result<Self, Fault> {
        refuse_unsupported(&mut fields)?;
        let model = fields.text("model")?;
        let options = Options {
            tokens_max: tokens_max(&mut fields)?,
            stops: stops(&mut fields)?,
            sampler: sampler(&mut fields, seed)?,
            delivery: delivery(&mut fields)?,
        };
        Ok(Self { input, model, options })
    }
}

/// Fields that would change the answer, with the values that do not.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Fault> {
    type Harmless = fn(&Value) -> bool;
    let zero: Harmless = |v| v.as_f64() == Some(0.0) || v == &Value::Bool(false);
    let one: Harmless = |v| v.as_f64() == Some(1.0);
    let empty: Harmless = |v| match v {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let idle: Harmless = |v| v == "none" || v == "auto";
    let text: Harmless = |v| v["type"] == "text" && v.as_object().is_some_and(|m| m.len() == 1);
    let only_text: Harmless = |v| v == &serde_json::json!(["text"]);
    let never: Harmless = |_| false;
    let medium: Harmless = |v| v == "medium";
    let unsupported: [(&str, Harmless); 37] = [
        ("n", one),
        ("best_of", one),
        ("tools", empty),
        ("tool_choice", idle),
        ("functions", empty),
        ("function_call", idle),
        ("response_format", text),
        ("logprobs", zero),
        ("top_logprobs", zero),
        ("audio", never),
        ("modalities", only_text),
        ("prediction", never),
        ("web_search_options", never),
        ("reasoning_effort", never),
        ("verbosity", medium),
        ("echo", zero),
        ("suffix", empty),
        // What clients of llama-server and vLLM send.
        ("grammar", empty),
        ("json_schema", empty),
        ("guided_json", empty),
        ("guided_regex", empty),
        ("guided_choice", empty),
        ("guided_grammar", empty),
        ("n_probs", zero),
        ("typical_p", one),
        ("mirostat", zero),
        ("dynatemp_range", zero),
        ("xtc_probability", zero),
        ("dry_multiplier", zero),
        ("ignore_eos", zero),
        ("min_tokens", zero),
        ("stop_token_ids", empty),
        ("lora", empty),
        ("samplers", empty),
        ("chat_template", empty),
        ("chat_template_kwargs", empty),
        ("continue_final_message", zero),
    ];
    for (name, harmless) in unsupported {
        if let Some(value) = fields.take(name)
            && !harmless(&value)
        {
            let message = format!("{name} is not supported with this value");
            return Err(Fault::unsupported(name, message));
        }
    }
    Ok(())
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>, Fault> {
    let list = match fields.take("messages") {
        None => return Err(fields.missing("messages")),
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(_) => return Err(fields.wrong("messages", "an array of one or more messages")),
    };
    let each = list.into_iter().enumerate();
    each.map(|(n, value)| message(&format!("messages[{n}]"), value)).collect()
}

fn message(path: &str, value: Value) -> Result<Message, Fault> {
    let mut fields = Fields::of(path, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.missing("role"))?;
    if !ROLES.contains(&role.as_str()) {
        return Err(fields.wrong("role", &format!("one of {}", ROLES.join(", "))));
    }
    for name in ["tool_calls", "function_call", "audio"] {
        if fields.take(name).is_some_and(|value| value != serde_json::json!([])) {
            let name = fields.name(name);
            return Err(Fault::unsupported(&name, format!("{name} is not supported")));
        }
    }
    let content = match fields.take("content") {
        None => return Err(fields.missing("content")),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(&fields.name("content"), parts)?,
        Some(_) => return Err(fields.wrong("content", "a string or an array of text parts")),
    };
    // Templates know `system`; `developer` is a newer word for the same.
    let role = if role == "developer" { "system".into() } else { role };
    let name = fields.text("name")?;
    Ok(Message { role, content, name, ..Message::default() })
}

/// The text of a message that comes in parts.
fn joined(path: &str, parts: Vec<Value>) -> Result<String, Fault> {
    let mut whole = String::new();
    for (n, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::of(&format!("{path}[{n}]"), part)?;
        let kind = fields.text("type")?.ok_or_else(|| fields.missing("type"))?;
        if kind != "text" {
            let message =
                format!("{} is {}, and only text is supported", fields.name("type"), quoted(&kind));
            return Err(Fault::unsupported(fields.name("type"), message));
        }
        whole.push_str(&fields.text("text")?.ok_or_else(|| fields.missing("text"))?);
    }
    Ok(whole)
}

fn prompt(fields: &mut Fields) -> Result<Input, Fault> {
    const WANTED: &str = "a string, an array of one string, or an array of token ids";
    let list = match fields.take("prompt") {
        None => return Err(fields.missing("prompt")),
        Some(Value::String(text)) => return Ok(Input::Text(text)),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(fields.wrong("prompt", WANTED)),
    };
    if let [Value::String(text)] = list.as_slice() {
        return Ok(Input::Text(text.clone()));
    }
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let tokens: Option<Vec<u32>> = list.iter().map(id).collect();
    match tokens {
        Some(tokens) if !tokens.is_empty() => Ok(Input::Tokens(tokens)),
        _ => Err(fields.wrong("prompt", WANTED)),
    }
}

/// Two names for one thing: the old one and the new.
fn tokens_max(fields: &mut Fields) -> Result<Option<usize>, Fault> {
    let old = fields.whole("max_tokens", 1..=i64::MAX)?;
    let new = fields.whole("max_completion_tokens", 1..=i64::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(fields.wrong("max_tokens", "equal to max_completion_tokens where both are given"))
        }
        (old, new) => Ok(new.or(old).map(|n| usize::try_from(n).unwrap_or(usize::MAX))),
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    let wanted = format!("a string, or an array of at most {STOPS_MAX} strings");
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) if list.len() <= STOPS_MAX => {
            let text = |value: Value| match value {
                Value::String(text) => Ok(text),
                _ => Err(fields.wrong("stop", &wanted)),
            };
            list.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(fields.wrong("stop", &wanted)),
    };
    match stops.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX) {
        true => Err(fields.wrong("stop", &format!("strings of 1 to {STOP_BYTES_MAX} bytes"))),
        false => Ok(stops),
    }
}

fn sampler(fields: &mut Fields, seed: u64) -> Result<Sampler, Fault> {
    let usual = SamplerOptions::default();
    let repetition = fields.number("repetition_penalty", 0.01..=100.0)?;
    let repeat = fields.number("repeat_penalty", 0.01..=100.0)?;
    let options = SamplerOptions {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(usual.temperature),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(usual.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(usual.min_p),
        // Everything below 1 means all tokens; clients send 0 or -1.
        top_k: match fields.whole("top_k", -1..=i64::from(u32::MAX))? {
            None => usual.top_k,
            Some(k) => usize::try_from(k).unwrap_or(0),
        },
        repetition_penalty: repetition.or(repeat).unwrap_or(usual.repetition_penalty),
        presence_penalty: fields
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(usual.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(usual.frequency_penalty),
        seed: seed_field(fields)?.unwrap_or(seed),
        logit_bias: logit_bias(fields)?,
        ..usual
    };
    Sampler::new(options).map_err(|error| {
        let field = match error {
            SampleError::OutOfRange { field, .. } | SampleError::TooMany { field, .. } => field,
            SampleError::Bias { .. } => "logit_bias",
        };
        Fault::field(field, error.to_string())
    })
}

/// What is added to which token's logit: an object of token ids and numbers from -100 to 100.
fn logit_bias(fields: &mut Fields) -> Result<BTreeMap<u32, f32>, Fault> {
    const WANTED: &str = "an object of token ids and numbers from -100 to 100";
    match fields.take("logit_bias") {
        None => Ok(BTreeMap::new()),
        Some(Value::Object(map)) if map.len() <= LOGIT_BIASES_MAX => {
            let bias = |(id, bias): (String, Value)| {
                let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
                Some((id.parse().ok()?, bias as f32))
            };
            let all: Option<_> = map.into_iter().map(bias).collect();
            all.ok_or_else(|| fields.wrong("logit_bias", WANTED))
        }
        Some(_) => Err(fields.wrong("logit_bias", WANTED)),
    }
}

/// Any 64-bit integer; -1 asks for a new seed, as with other servers.
fn seed_field(fields: &mut Fields) -> Result<Option<u64>, Fault> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    if value.as_i64() == Some(-1) {
        return Ok(None);
    }
    // A negative seed is as good as another: its bits are taken.
    match value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64)) {
        Some(seed) => Ok(Some(seed)),
        None => Err(fields.wrong("seed", "a whole number of 64 bits")),
    }
}

fn delivery(fields: &mut Fields) -> Result<Delivery, Fault> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.take("stream_options") else {
        return Ok(if stream { Delivery::Stream } else { Delivery::Whole });
    };
    if !stream {
        return Err(Fault::field("stream_options", "stream_options needs stream to be true"));
    }
    let usage = Fields::of("stream_options", options)?.flag("include_usage")?;
    Ok(if usage == Some(true) { Delivery::StreamWithUsage } else { Delivery::Stream })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(extra: Value) -> Result<Wanted, Fault> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Wanted::chat(body.to_string().as_bytes(), 7)
    }

    #[track_caller]
    fn check_refused(extra: Value, param: &str) {
        let fault = chat(extra.clone()).expect_err(&extra.to_string()).json();
        assert_eq!(fault["error"]["param"], param, "{extra}");
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (extra, param) in [
            (json!({"messages": "hi"}), "messages"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": ["hi"]}), "messages[0]"),
            (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "king", "content": "hi"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
            (json!({"messages": [{"role": "user", "content": 3}]}), "messages[0].content"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_completion_tokens": "many"}), "max_completion_tokens"),
            (json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -0.5}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"min_p": true}), "min_p"),
            (json!({"seed": "x"}), "seed"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": [""]}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stream": true, "stream_options": 3}), "stream_options"),
            (json!({"model": 3}), "model"),
        ] {
            check_refused(extra, param);
        }
    }

    #[test]
    fn what_would_change_the_answer_and_is_not_supported_is_refused_by_name() {
        for (extra, param) in [
            (json!({"n": 2}), "n"),
            (json!({"tools": [{}]}), "tools"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"audio": {}}), "audio"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content[0].type",
            ),
        ] {
            check_refused(extra.clone(), param);
            let fault = chat(extra).unwrap_err().json();
            assert_eq!(fault["error"]["code"], "unsupported_parameter");
        }
    }

    #[test]
    fn harmless_values_and_unknown_fields_are_accepted() {
        let wanted = chat(json!({
            "n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
            "logprobs": false, "logit_bias": {"5": -100}, "user": "someone", "never_heard_of": 1,
            "temperature": null, "top_k": -1, "seed": -1, "store": false,
        }))
        .unwrap();
        assert_eq!(wanted.options.delivery, Delivery::Whole);
        assert_eq!((wanted.options.tokens_max, wanted.model), (None, None));
    }

    #[test]
    fn content_may_come_in_parts_and_a_developer_speaks_as_the_system() {
        let wanted = chat(json!({"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"},
                                              {"type": "text", "text": "b"}]},
        ]}));
        let Input::Chat(messages) = wanted.unwrap().input else { panic!("it is a chat") };
        assert_eq!((messages[0].role.as_str(), messages[0].content.as_str()), ("system", "ab"));
    }

    #[test]
    fn a_prompt_is_text_or_tokens() {
        let prompt = |value: Value| {
            let body = json!({"prompt": value}).to_string();
            Wanted::completion(body.as_bytes(), 7).map(|wanted| wanted.input)
        };
        assert!(matches!(prompt(json!("a")), Ok(Input::Text(text)) if text == "a"));
        assert!(matches!(prompt(json!(["a"])), Ok(Input::Text(text)) if text == "a"));
        assert!(matches!(prompt(json!([1, 2])), Ok(Input::Tokens(ids)) if ids == [1, 2]));
        for bad in [json!([]), json!(["a", "b"]), json!([1, -2]), json!([1, "a"]), json!({})] {
            assert!(prompt(bad).is_err());
        }
    }

    #[test]
    fn delivery_is_read_from_two_fields() {
        let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(chat(stream).unwrap().options.delivery, Delivery::StreamWithUsage);
        assert_eq!(chat(json!({"stream": true})).unwrap().options.delivery, Delivery::Stream);
    }
}
