//! `/v1/embeddings`: a vector for each text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::shell::ask::{Ask, Goal, Heard, Outcome, Owner};
use crate::shell::line::{Event, Turned};

use super::Api;
use super::access::{Access, Asked};
use super::body;
use super::fault::{Fault, internal, json_response, quoted, stopping, turned, unreachable};
use super::fields::Fields;
use super::group::Group;
use super::guard::Caller;
use super::metrics::Operation;
use super::prepare::{Target, check, read, tokens};
use super::reply::{FINGERPRINT, together};
use super::respond::time;
use super::wanted::{Prompt, prompts};

/// Texts of one request.
const INPUTS_MAX: usize = 256;
/// Of these, how many join the line at a time, so that others find room in it.
const TOGETHER_MAX: usize = 8;
/// How long to wait before trying again where the line has no room for the next text.
const ROOM_WAIT: Duration = Duration::from_millis(200);
/// How long there may be no room for the next text once some have been read.
const ROOM_TIME_MAX: Duration = Duration::from_secs(120);

/// What a client wants.
#[derive(Debug)]
pub struct Wanted {
    /// Texts, 1 to 256.
    pub inputs: Vec<Prompt>,
    /// The model asked for, if one was.
    pub model: Option<String>,
    /// How numbers are written.
    pub encoding: Encoding,
    /// Numbers that a vector must have.
    pub dimensions: Option<usize>,
}

/// How the numbers of a vector are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As a list.
    Float,
    /// As little-endian f32, in base64.
    Base64,
}

impl Wanted {
    /// From a request's body.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let inputs = prompts(&mut fields, "input", INPUTS_MAX)?;
        let encoding = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let message =
                    format!("encoding_format is {}; float and base64 are known", quoted(other));
                return Err(Fault::field("encoding_format", message));
            }
        };
        let dimensions = fields.whole("dimensions", 1..=i64::MAX)?;
        let dimensions = dimensions.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Self { inputs, model: fields.text("model")?, encoding, dimensions })
    }
}

/// Answers a request for vectors.
pub async fn respond(api: &Api, request: Request) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let access = parts.extensions.get::<Arc<Access>>().expect("each request is recorded").clone();
    let owner = parts.extensions.get::<Caller>().expect("each request is checked").owner;
    let body = body::read(api, body).await?;
    let served = api.served()?;
    api.line.check().map_err(turned)?;
    let wanted = Wanted::parse(&body.bytes)?;
    drop(body);
    let target = Target::find(&served, wanted.model.as_deref())?;
    let width = target.serving.speaker.model().summary().width;
    if let Some(dimensions) = wanted.dimensions.filter(|n| *n != width) {
        let message = format!("this model's vectors have {width} numbers, not {dimensions}");
        return Err(Fault::unsupported("dimensions", message));
    }
    let (inputs, model) = (wanted.inputs, target.place);
    let serving = target.serving.clone();
    let prompts = read(api, move || {
        let prompts = tokens(&serving, "input", inputs)?;
        for (param, prompt) in &prompts {
            check(&ask(model, owner, prompt.clone()), serving.context, param)?;
        }
        Ok(prompts)
    });
    let prompts: Vec<_> = prompts.await?.into_iter().map(|(_, prompt)| prompt).collect();
    let name = target.serving.speaker.name().to_string();
    let operation = Operation::Embeddings;
    access.asked(Asked { operation, model: name.clone(), choices: prompts.len() });
    let work = Work { api, access: &access, model, owner };
    let (vectors, outcomes) = work.all(&prompts).await?;
    let value = reply(&name, &vectors, &outcomes, wanted.encoding);
    let outcomes: Vec<(usize, &Outcome)> = outcomes.iter().enumerate().collect();
    let mut response = json_response(StatusCode::OK, &value);
    let prompt_time = together(&outcomes).prompt_time;
    time(&mut response, &[("queue", access.queue_time()), ("prompt", prompt_time)]);
    Ok(response)
}

fn ask(model: usize, owner: Owner, prompt: Vec<u32>) -> Ask {
    Ask { model, owner, prompt, goal: Goal::Embedding }
}

/// Whose vectors are made by which model.
struct Work<'a> {
    api: &'a Api,
    access: &'a Access,
    model: usize,
    owner: Owner,
}

impl Work<'_> {
    /// The vectors of `prompts`, a few at a time.
    async fn all(&self, prompts: &[Vec<u32>]) -> Result<(Vec<Vec<f32>>, Vec<Outcome>), Fault> {
        let (mut vectors, mut outcomes) = (Vec::new(), Vec::new());
        while vectors.len() < prompts.len() {
            let done = vectors.len();
            let joined = Instant::now();
            let mut group = self.join(&prompts[done..], done > 0).await?;
            let count = group.count();
            let mut found = vec![None; count];
            let mut ends = vec![None; count];
            while let Some((n, event)) = group.event().await {
                if outcomes.is_empty() && matches!(event, Some(Event::Begun)) {
                    self.access.queued(joined.elapsed());
                }
                match event {
                    Some(Event::Begun | Event::Heard(Heard::Prompt { .. } | Heard::Shown(_))) => {}
                    Some(Event::Heard(Heard::Embedding(vector))) => found[n] = Some(vector),
                    Some(Event::Done(outcome)) => ends[n] = Some(outcome),
                    Some(Event::Failed(message)) => return Err(internal(&message)),
                    Some(Event::Unreachable(message)) => return Err(unreachable(message)),
                    None => return Err(stopping()),
                }
            }
            for (vector, end) in found.into_iter().zip(ends) {
                // One that ended without a vector was halted: the node is stopping.
                let (Some(vector), Some(outcome)) = (vector, end) else { return Err(stopping()) };
                self.access.outcome(outcome.clone());
                vectors.push(vector);
                outcomes.push(outcome);
            }
        }
        Ok((vectors, outcomes))
    }

    /// Lets as many of `prompts` join the line as it has room for, one or more. A request that has
    /// `begun` waits for room; another is turned away.
    async fn join(&self, prompts: &[Vec<u32>], begun: bool) -> Result<Group, Fault> {
        let since = Instant::now();
        let mut count = prompts.len().min(TOGETHER_MAX);
        loop {
            let asks = prompts[..count].iter();
            let asks = asks.map(|prompt| ask(self.model, self.owner, prompt.clone())).collect();
            match self.api.line.join(asks) {
                Ok(places) => return Ok(Group::new(places)),
                Err(Turned::Full { .. } | Turned::TooMany { .. }) if count > 1 => count /= 2,
                Err(Turned::Full { .. }) if begun && since.elapsed() < ROOM_TIME_MAX => {
                    tokio::time::sleep(ROOM_WAIT).await;
                }
                Err(refusal) => return Err(turned(refusal)),
            }
        }
    }
}

fn reply(model: &str, vectors: &[Vec<f32>], outcomes: &[Outcome], encoding: Encoding) -> Value {
    let written = |vector: &[f32]| match encoding {
        Encoding::Float => json!(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            STANDARD.encode(bytes).into()
        }
    };
    let one = |(index, vector): (usize, &Vec<f32>)| json!({"object": "embedding", "index": index, "embedding": written(vector)});
    let data: Vec<Value> = vectors.iter().enumerate().map(one).collect();
    let tokens: usize = outcomes.iter().map(|outcome| outcome.prompt).sum();
    json!({
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {
            "pooling": "mean",
            "normalized": true,
            "dimensions": vectors.first().map_or(0, Vec::len),
            "system_fingerprint": FINGERPRINT,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: Value) -> Result<Wanted, String> {
        let param = |fault: Fault| fault.json()["error"]["param"].as_str().unwrap().to_string();
        Wanted::parse(body.to_string().as_bytes()).map_err(param)
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": {}}), "input"),
            (json!({"input": vec!["x"; 257]}), "input"),
            (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
            (json!({"input": "a", "dimensions": 0}), "dimensions"),
            (json!({"input": "a", "model": 3}), "model"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err(), param, "{body}");
        }
        let wanted = parse(json!({"input": vec!["x"; 256], "encoding_format": "base64"})).unwrap();
        assert_eq!((wanted.inputs.len(), wanted.encoding), (256, Encoding::Base64));
    }

    #[test]
    fn base64_holds_the_numbers_in_little_endian() {
        let value = reply("m", &[vec![1.0, -2.0]], &[], Encoding::Base64);
        assert_eq!(value["data"][0]["embedding"], "AACAPwAAAMA=");
        assert_eq!(value["meta"]["pooling"], "mean");
        let value = reply("m", &[vec![1.0, -2.0]], &[], Encoding::Float);
        assert_eq!(value["data"][0]["embedding"], json!([1.0, -2.0]));
    }
}
