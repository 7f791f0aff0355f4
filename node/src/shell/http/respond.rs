//! Takes a request from its body to its answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::house::Finish;
use crate::shell::ask::{AnswerError, Ask, EndTokens, Goal, Heard, Manner, Outcome, Owner};
use crate::shell::line::{Event, Place, Turned};
use crate::shell::speaker::{SpeechError, unix_now};
use crate::shell::worker::{Served, Serving};

use super::Api;
use super::access::{Access, random};
use super::fault::{Fault, json_response, quoted};
use super::reply::{Reply, Route, SSE_ALIVE, SSE_DONE, sse};
use super::wanted::{Delivery, Input, Wanted};

/// Bytes of a request's body: several times what the longest context holds as text.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes read and thrown away beyond that, so that the client lives to read its refusal.
const BODY_DISCARDED_MAX: usize = 64 << 20;
/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a request may wait for its turn. Its client has long given up by then.
const TURN_TIME_MAX: Duration = Duration::from_secs(600);
/// A stream that has nothing to say shows this often that it lives.
const ALIVE: Duration = Duration::from_secs(10);

/// Answers a request to `route`.
pub async fn respond(api: &Api, route: Route, request: Request) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let access = parts.extensions.get::<Arc<Access>>().expect("each request is recorded").clone();
    let body = read(api, body).await?;
    let served = api.served()?;
    api.line.check().map_err(turned)?;
    let wanted = match route {
        Route::Chat => Wanted::chat(&body.bytes, random())?,
        Route::Completion => Wanted::completion(&body.bytes, random())?,
    };
    drop(body);
    let (model, serving) = find(&served, wanted.model.as_deref())?;
    let reply = Reply {
        route,
        id: access.id().to_string(),
        created: unix_now(),
        model: serving.speaker.name().to_string(),
        usage: wanted.options.delivery == Delivery::StreamWithUsage,
    };
    let delivery = wanted.options.delivery;
    let ask = ask(api, model, serving, wanted).await?;
    let mut places = api.line.join(vec![ask]).map_err(turned)?;
    let mut place = places.remove(0);
    tracing::debug!(id = access.id(), "joined the line");
    begin(&mut place).await?;
    match delivery {
        Delivery::Whole => whole(place, &reply, &access).await,
        Delivery::Stream | Delivery::StreamWithUsage => Ok(streamed(place, reply, access)),
    }
}

/// A whole body, and the share of the memory for bodies that it takes.
struct Whole {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl Whole {
    fn add(&mut self, api: &Api, chunk: &[u8]) -> Result<(), Fault> {
        let wanted = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let Ok(more) = api.bodies.clone().try_acquire_many_owned(wanted) else {
            let message = "too many requests are being received; try again";
            let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
            return Err(fault.later(1));
        };
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

/// The whole body, if it is small enough and comes in time.
async fn read(api: &Api, body: Body) -> Result<Whole, Fault> {
    let announced = body.size_hint().lower();
    // Far too large: not even worth reading for the sake of a kind refusal.
    if announced > BODY_DISCARDED_MAX as u64 {
        return Err(large());
    }
    let collect = collect(api, body.into_data_stream());
    timeout(BODY_TIME_MAX, collect).await.unwrap_or_else(|_| {
        let message = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
        Err(Fault::new(StatusCode::REQUEST_TIMEOUT, "body_late", message))
    })
}

async fn collect(api: &Api, mut chunks: BodyDataStream) -> Result<Whole, Fault> {
    let (mut whole, mut length) = (Whole { bytes: Vec::new(), share: None }, 0usize);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            let message = "the body ended before it was complete";
            Fault::new(StatusCode::BAD_REQUEST, "body_incomplete", message)
        })?;
        length = length.saturating_add(chunk.len());
        match length {
            n if n > BODY_DISCARDED_MAX => break,
            n if n > BODY_BYTES_MAX => whole = Whole { bytes: Vec::new(), share: None },
            _ => whole.add(api, &chunk)?,
        }
    }
    if length > BODY_BYTES_MAX { Err(large()) } else { Ok(whole) }
}

fn large() -> Fault {
    let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// The model that a request names, and its place; the first where it names none.
fn find<'a>(served: &'a Served, asked: Option<&str>) -> Result<(usize, &'a Arc<Serving>), Fault> {
    served.find(asked).ok_or_else(|| {
        let message = format!(
            "the model {} is not served here; {} is",
            quoted(asked.unwrap_or_default()),
            served.names().join(", ")
        );
        Fault::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model")
    })
}

/// Turns what is wanted into tokens, and refuses what does not fit.
async fn ask(
    api: &Api,
    model: usize,
    serving: &Arc<Serving>,
    wanted: Wanted,
) -> Result<Ask, Fault> {
    let param = if matches!(wanted.input, Input::Chat(_)) { "messages" } else { "prompt" };
    let options = wanted.options;
    let permit = api.readers.clone().acquire_owned().await.expect("it is never closed");
    let reader = serving.clone();
    let tokens = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        match wanted.input {
            Input::Chat(messages) => reader.speaker.conversation(&messages, unix_now()),
            Input::Text(text) => reader.speaker.raw(&text),
            Input::Tokens(tokens) => reader.speaker.tokenizer().map(|_| tokens),
        }
    });
    let prompt = match tokens.await {
        Ok(Ok(prompt)) => prompt,
        Ok(Err(SpeechError::Refused(error))) => {
            return Err(Fault::field(param, SpeechError::Refused(error).to_string()));
        }
        Ok(Err(error)) => {
            return Err(Fault::new(
                StatusCode::BAD_REQUEST,
                "unsupported_by_model",
                error.to_string(),
            )
            .about("model"));
        }
        Err(_) => return Err(internal("reading the prompt failed")),
    };
    let vocabulary = serving.speaker.model().summary().vocabulary;
    if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
        let message = format!("token {token} is outside the vocabulary of {vocabulary}");
        return Err(Fault::field(param, message));
    }
    let manner = Manner {
        tokens_max: options.tokens_max.unwrap_or(usize::MAX),
        stops: options.stops,
        stop_tokens: Vec::new(),
        end: EndTokens::End,
        shown_specials: Vec::new(),
        sampler: options.sampler,
        log_probs: None,
    };
    let ask = Ask { model, owner: Owner::default(), prompt, goal: Goal::Answer(Box::new(manner)) };
    ask.check(serving.context).map_err(|error| match error {
        AnswerError::Long { .. } => {
            let code = "context_length_exceeded";
            Fault::new(StatusCode::BAD_REQUEST, code, error.to_string()).about(param)
        }
        error => Fault::field(param, error.to_string()),
    })?;
    Ok(ask)
}

fn turned(turned: Turned) -> Fault {
    let message = turned.to_string();
    match turned {
        Turned::Full { retry_seconds, .. } => {
            Fault::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
                .of_kind("rate_limit_error")
                .later(retry_seconds)
        }
        Turned::Closed => stopping(),
    }
}

fn stopping() -> Fault {
    let message = Turned::Closed.to_string();
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message).later(5)
}

fn internal(message: &str) -> Fault {
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Waits until it is the request's turn.
async fn begin(place: &mut Place) -> Result<(), Fault> {
    match timeout(TURN_TIME_MAX, place.event()).await {
        Ok(Some(Event::Failed(message))) => Err(internal(&message)),
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(stopping()),
        Err(_) => {
            let message = format!("no turn came within {} s", TURN_TIME_MAX.as_secs());
            Err(Fault::new(StatusCode::SERVICE_UNAVAILABLE, "queue_slow", message).later(60))
        }
    }
}

/// The answer in one piece.
async fn whole(mut place: Place, reply: &Reply, access: &Access) -> Result<Response, Fault> {
    let mut text = String::new();
    loop {
        match place.event().await {
            Some(Event::Begun | Event::Heard(Heard::Prompt { .. } | Heard::Embedding(_))) => {}
            Some(Event::Heard(Heard::Shown(more))) => text.push_str(&more.text),
            Some(Event::Done(outcome)) => {
                access.outcome(outcome.clone());
                check_finish(&outcome)?;
                return Ok(json_response(StatusCode::OK, &reply.whole(&text, &outcome)));
            }
            Some(Event::Failed(message)) => return Err(internal(&message)),
            None => return Err(stopping()),
        }
    }
}

/// An answer that was halted while its client still waits is no answer: the node is stopping.
fn check_finish(outcome: &Outcome) -> Result<(), Fault> {
    match outcome.finish {
        Finish::Halted => Err(stopping()),
        Finish::Stop | Finish::Length => Ok(()),
    }
}

/// The answer as it grows. Dropping the response, as when the client goes away, drops its place.
fn streamed(place: Place, reply: Reply, access: Arc<Access>) -> Response {
    let ready = reply.first().iter().map(sse).collect();
    let growing = Growing { place, reply, access, ready, over: false };
    let body = stream::unfold(growing, |mut growing| async {
        let event = growing.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), growing))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    let set = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in set {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Proxies that gather a response before they pass it on would defeat the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An answer that is being sent.
struct Growing {
    place: Place,
    reply: Reply,
    access: Arc<Access>,
    ready: VecDeque<String>,
    over: bool,
}

impl Growing {
    /// The next piece of the stream; `None` at its end.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            match timeout(ALIVE, self.place.event()).await {
                Err(_) => return Some(SSE_ALIVE.to_string()),
                Ok(event) => self.take(event),
            }
        }
    }

    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Begun | Event::Heard(Heard::Prompt { .. } | Heard::Embedding(_))) => {}
            Some(Event::Heard(Heard::Shown(shown))) if shown.text.is_empty() => {}
            Some(Event::Heard(Heard::Shown(shown))) => {
                self.ready.push_back(sse(&self.reply.text(&shown.text)));
            }
            Some(Event::Done(outcome)) => {
                self.access.outcome(outcome.clone());
                match check_finish(&outcome) {
                    Ok(()) => self.end(&outcome),
                    Err(fault) => self.fail(&fault),
                }
            }
            Some(Event::Failed(message)) => self.fail(&internal(&message)),
            None => self.fail(&stopping()),
        }
    }

    fn end(&mut self, outcome: &Outcome) {
        self.ready.extend(self.reply.last(outcome).iter().map(sse));
        self.ready.push_back(SSE_DONE.to_string());
        self.over = true;
    }

    /// The status is sent already, so the error comes as an event, and `[DONE]` does not.
    fn fail(&mut self, fault: &Fault) {
        self.ready.push_back(sse(&fault.json()));
        self.over = true;
    }
}
