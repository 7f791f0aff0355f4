//! The fields that say how tokens are picked and when an answer ends.

use std::collections::BTreeMap;

use compute::sample::{LOGIT_BIASES_MAX, SampleError, Sampler, SamplerOptions};
use serde_json::Value;

use crate::shell::ask::EndTokens;

use super::super::fault::Fault;
use super::super::fields::Fields;

/// Strings that may end one answer.
const STOPS_MAX: usize = 16;
/// Bytes of one of them: each delays text by its length.
const STOP_BYTES_MAX: usize = 1024;
/// Tokens that may end one answer.
const STOP_TOKENS_MAX: usize = 16;

/// Two names for one thing: the old one and the new.
pub fn tokens_max(fields: &mut Fields) -> Result<Option<usize>, Fault> {
    let old = fields.whole("max_tokens", 1..=i64::MAX)?;
    let new = fields.whole("max_completion_tokens", 1..=i64::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(fields.wrong("max_tokens", "equal to max_completion_tokens where both are given"))
        }
        (old, new) => Ok(new.or(old).map(|n| usize::try_from(n).unwrap_or(usize::MAX))),
    }
}

/// Strings that end the answer.
pub fn stops(fields: &mut Fields) -> Result<Vec<String>, Fault> {
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

/// Tokens that end the answer, as vLLM names them.
pub fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, Fault> {
    let wanted = format!("an array of at most {STOP_TOKENS_MAX} token ids");
    match fields.take("stop_token_ids") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= STOP_TOKENS_MAX => {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            let ids: Option<Vec<u32>> = list.iter().map(id).collect();
            ids.ok_or_else(|| fields.wrong("stop_token_ids", &wanted))
        }
        Some(_) => Err(fields.wrong("stop_token_ids", &wanted)),
    }
}

/// What the model's own end tokens do.
pub fn end(fields: &mut Fields) -> Result<EndTokens, Fault> {
    match fields.flag("ignore_eos")? {
        Some(true) => Ok(EndTokens::Forbidden),
        _ => Ok(EndTokens::End),
    }
}

/// How tokens are picked; `seed` where the request brings none.
pub fn sampler(fields: &mut Fields, seed: u64) -> Result<SamplerOptions, Fault> {
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
    let refused = |error| {
        let field = match error {
            SampleError::OutOfRange { field, .. } | SampleError::TooMany { field, .. } => field,
            SampleError::Bias { .. } => "logit_bias",
        };
        Fault::field(field, error.to_string())
    };
    Sampler::new(options).map_err(refused).map(|sampler| sampler.options().clone())
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
