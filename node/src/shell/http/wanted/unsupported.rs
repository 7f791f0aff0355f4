//! Fields that would change an answer and are not supported, with the values that do not.

use serde_json::Value;

use super::super::fault::Fault;
use super::super::fields::Fields;

type Harmless = fn(&Value) -> bool;

fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0) || value == &Value::Bool(false)
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn idle(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn only_text(value: &Value) -> bool {
    value == &serde_json::json!(["text"])
}

fn medium(value: &Value) -> bool {
    value == "medium"
}

fn usual_tier(value: &Value) -> bool {
    value == "auto" || value == "default"
}

fn never(_: &Value) -> bool {
    false
}

/// Each with the advice that its refusal gives.
const UNSUPPORTED: [(&str, Harmless, &str); 25] = [
    ("functions", empty, "use tools, which replaced it"),
    ("function_call", idle, "use tool_choice, which replaced it"),
    ("audio", never, "only text is answered"),
    ("modalities", only_text, "only text is answered"),
    ("prediction", never, "repeated text is guessed ahead without it"),
    ("web_search_options", never, "nothing is looked up; give the model a tool for it"),
    ("reasoning_effort", never, "set what the model's template knows in chat_template_kwargs"),
    ("verbosity", medium, "ask for it in the prompt"),
    ("store", zero, "no answer is kept here"),
    ("service_tier", usual_tier, "all requests of a key are served alike"),
    ("suffix", empty, "text is only continued, not filled in"),
    // What clients of llama-server and vLLM send.
    ("grammar", empty, "use response_format, guided_json, guided_regex or guided_choice"),
    ("guided_grammar", empty, "use response_format, guided_json, guided_regex or guided_choice"),
    ("structured_outputs", empty, "use response_format"),
    ("n_probs", zero, "use logprobs"),
    ("prompt_logprobs", never, "only tokens of the answer have probabilities"),
    ("typical_p", one, "use top_p or min_p"),
    ("mirostat", zero, "use top_p or min_p"),
    ("dynatemp_range", zero, "use temperature"),
    ("xtc_probability", zero, "use top_p or min_p"),
    ("dry_multiplier", zero, "use frequency_penalty"),
    ("min_tokens", zero, "use ignore_eos with max_tokens"),
    ("lora", empty, "start the node with a merged model"),
    ("samplers", empty, "the order is fixed: top_k, top_p, min_p, temperature"),
    ("chat_template", empty, "the model's own template is used"),
];

/// Refuses by name what is not supported.
pub fn refuse(fields: &mut Fields) -> Result<(), Fault> {
    for (name, harmless, advice) in UNSUPPORTED {
        if let Some(value) = fields.take(name)
            && !harmless(&value)
        {
            let message = format!("{name} is not supported with this value; {advice}");
            return Err(Fault::unsupported(name, message));
        }
    }
    Ok(())
}
