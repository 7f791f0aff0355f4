//! Takes a request from its body to its answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;
use tokio::time::timeout;

use crate::house::Finish;
use crate::shell::ask::{Heard, Outcome};
use crate::shell::line::Event;
use crate::shell::speaker::unix_now;

use super::Api;
use super::access::{Access, Asked, random};
use super::body;
use super::choice::{Choice, Delta};
use super::fault::{Fault, internal, json_response, stopping, turned, unreachable};
use super::group::Group;
use super::guard::Caller;
use super::metrics::Operation;
use super::prepare::{Target, prepare};
use super::reply::{Answered, Reply, Route, SSE_DONE, server_timing, sse, sse_alive, together};
use super::wanted::{Delivery, Wanted};

/// How long a request may wait for its turn. Its client has long given up by then.
const TURN_TIME_MAX: Duration = Duration::from_secs(600);

/// The name of the header that says where the time went.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Answers a request to `route`.
pub async fn respond(api: &Api, route: Route, request: Request) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let access = parts.extensions.get::<Arc<Access>>().expect("each request is recorded").clone();
    let caller = parts.extensions.get::<Caller>().expect("each request is checked");
    let body = body::read(api, body).await?;
    let served = api.served()?;
    api.line.check().map_err(turned)?;
    // A seed that is made up here is small enough for every client's numbers to tell it exactly.
    let seed = random() >> 11;
    let (wanted, operation) = match route {
        Route::Chat => (Wanted::chat(&body.bytes, seed)?, Operation::Chat),
        Route::Completion => (Wanted::completion(&body.bytes, seed)?, Operation::Completion),
    };
    drop(body);
    let target = Target::find(&served, wanted.model.as_deref())?;
    let delivery = wanted.options.delivery;
    let reply = Reply {
        route,
        id: access.id().to_string(),
        created: unix_now(),
        model: target.serving.speaker.name().to_string(),
        seed: wanted.options.sampler.seed,
        log_probs: wanted.options.log_probs.is_some(),
        usage: delivery == Delivery::StreamWithUsage,
    };
    let prepared = prepare(api, &target, caller.owner, wanted).await?;
    let choices = prepared.choices.len();
    access.asked(Asked { operation, model: reply.model.clone(), choices });
    let joined = Instant::now();
    let group = Group::new(api.line.join(prepared.asks).map_err(turned)?);
    tracing::debug!(id = access.id(), "joined the line");
    let mut talk = Talking::new(group, prepared.choices, access.clone());
    talk.begin().await?;
    access.queued(joined.elapsed());
    match delivery {
        Delivery::Whole => whole(talk, &reply).await,
        Delivery::Stream | Delivery::StreamWithUsage => Ok(streamed(talk, reply, api.alive)),
    }
}

/// The answers to one request while they grow. Dropping it gives up those that are not complete.
#[derive(Debug)]
struct Talking {
    group: Group,
    choices: Vec<Choice>,
    outcomes: Vec<Option<Outcome>>,
    access: Arc<Access>,
    /// What was heard before the answers began.
    early: Option<(usize, Option<Event>)>,
    /// How far a prompt is: tokens computed, and in all.
    progress: Option<(usize, usize)>,
}

/// What happens to an answer.
#[derive(Debug)]
enum Step {
    /// Nothing that is told.
    Quiet,
    /// The choice has grown.
    Grown(usize, Delta),
    /// The choice is complete, with a last piece and the word for why.
    Ended(usize, Delta, &'static str),
    /// All are.
    Over,
}

impl Talking {
    fn new(group: Group, choices: Vec<Choice>, access: Arc<Access>) -> Self {
        let outcomes = vec![None; choices.len()];
        Self { group, choices, outcomes, access, early: None, progress: None }
    }

    /// Waits until the first of the answers has its turn.
    async fn begin(&mut self) -> Result<(), Fault> {
        match timeout(TURN_TIME_MAX, self.group.event()).await {
            Ok(Some((_, Some(Event::Failed(message))))) => Err(internal(&message)),
            Ok(Some((_, Some(Event::Unreachable(message))))) => Err(unreachable(message)),
            Ok(Some((_, None)) | None) => Err(stopping()),
            Ok(early) => {
                self.early = early;
                Ok(())
            }
            Err(_) => {
                let message = format!("no turn came within {} s", TURN_TIME_MAX.as_secs());
                let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "queue_slow", message);
                Err(fault.later(60))
            }
        }
    }

    /// What happens next. Dropping the wait loses nothing.
    async fn next(&mut self) -> Result<Step, Fault> {
        let event = match self.early.take() {
            Some(event) => Some(event),
            None => self.group.event().await,
        };
        let Some((index, event)) = event else { return Ok(Step::Over) };
        match event {
            Some(Event::Begun | Event::Heard(Heard::Embedding(_))) => Ok(Step::Quiet),
            Some(Event::Heard(Heard::Prompt { done, whole })) => {
                self.progress = Some((done, whole));
                Ok(Step::Quiet)
            }
            Some(Event::Heard(Heard::Shown(shown))) => {
                self.access.token();
                self.progress = None;
                Ok(Step::Grown(index, self.choices[index].take(shown)))
            }
            Some(Event::Done(outcome)) => {
                self.access.outcome(outcome.clone());
                // One that was halted while its client waits is no answer: the node is stopping.
                if outcome.finish == Finish::Halted {
                    return Err(stopping());
                }
                let (delta, finish) = self.choices[index].finish(&outcome);
                self.outcomes[index] = Some(outcome);
                Ok(Step::Ended(index, delta, finish))
            }
            Some(Event::Failed(message)) => Err(internal(&message)),
            Some(Event::Unreachable(message)) => Err(unreachable(message)),
            None => Err(stopping()),
        }
    }

    /// How complete answers went, each with its prompt's number.
    fn outcomes(&self) -> Vec<(usize, &Outcome)> {
        let each = self.choices.iter().zip(&self.outcomes);
        each.filter_map(|(choice, outcome)| Some((choice.prompt, outcome.as_ref()?))).collect()
    }
}

/// The answers in one piece.
async fn whole(mut talk: Talking, reply: &Reply) -> Result<Response, Fault> {
    let mut said: Vec<Delta> = talk.choices.iter_mut().map(Choice::opening).collect();
    let mut finishes = vec![""; said.len()];
    loop {
        match talk.next().await? {
            Step::Quiet => {}
            Step::Grown(index, delta) => said[index].append(delta),
            Step::Ended(index, delta, finish) => {
                said[index].append(delta);
                finishes[index] = finish;
            }
            Step::Over => break,
        }
    }
    let outcomes = talk.outcomes();
    let times = together(&outcomes);
    let answers = said.into_iter().zip(finishes).zip(outcomes);
    let answers: Vec<Answered> = answers
        .map(|((said, finish), (prompt, outcome))| Answered {
            prompt,
            said,
            finish,
            outcome: outcome.clone(),
        })
        .collect();
    let mut response = json_response(StatusCode::OK, &reply.whole(&answers));
    let parts = [
        ("queue", talk.access.queue_time()),
        ("prompt", times.prompt_time),
        ("answer", times.answer_time),
    ];
    time(&mut response, &parts);
    Ok(response)
}

/// Says in `response` where the time went.
pub fn time(response: &mut Response, parts: &[(&str, Duration)]) {
    let value = HeaderValue::from_str(&server_timing(parts)).expect("names and numbers");
    response.headers_mut().insert(SERVER_TIMING, value);
}

/// The answers as they grow. Dropping the response, as when the client goes away, drops their
/// places. A client that reads slowly makes this wait, and what it has not read stays with its
/// places: at most the events of its answers' tokens.
fn streamed(mut talk: Talking, reply: Reply, alive: Duration) -> Response {
    let mut ready = VecDeque::new();
    for (index, choice) in talk.choices.iter_mut().enumerate() {
        ready.extend(reply.first(index).iter().map(sse));
        let opening = choice.opening();
        if !opening.is_empty() {
            ready.push_back(sse(&reply.grown(index, &opening)));
        }
    }
    let queue = talk.access.queue_time();
    let growing = Growing { talk, reply, alive, ready, over: false };
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
    time(&mut response, &[("queue", queue)]);
    response
}

/// Answers that are being sent.
struct Growing {
    talk: Talking,
    reply: Reply,
    /// After so long a silence, a comment shows that the stream lives.
    alive: Duration,
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
            // The silence is over only when something is told: a long prompt is heard of, often.
            let told = async {
                loop {
                    match self.talk.next().await {
                        Ok(Step::Quiet) => {}
                        Ok(Step::Grown(_, delta)) if delta.is_empty() => {}
                        told => return told,
                    }
                }
            };
            match timeout(self.alive, told).await {
                Err(_) => return Some(sse_alive(self.talk.progress)),
                Ok(Ok(step)) => self.tell(step),
                Ok(Err(fault)) => self.fail(&fault),
            }
        }
    }

    fn tell(&mut self, step: Step) {
        match step {
            Step::Quiet => {}
            Step::Grown(index, delta) => {
                self.ready.push_back(sse(&self.reply.grown(index, &delta)));
            }
            Step::Ended(index, delta, finish) => {
                if !delta.is_empty() {
                    self.ready.push_back(sse(&self.reply.grown(index, &delta)));
                }
                let outcome = self.talk.outcomes[index].as_ref().expect("it has just ended");
                self.ready.push_back(sse(&self.reply.end(index, finish, outcome)));
            }
            Step::Over => {
                self.ready.extend(self.reply.counts(&self.talk.outcomes()).iter().map(sse));
                self.ready.push_back(SSE_DONE.to_string());
                self.over = true;
            }
        }
    }

    /// The status is sent already, so the error comes as an event, and `[DONE]` does not.
    fn fail(&mut self, fault: &Fault) {
        self.talk.access.refused(fault.code());
        self.ready.push_back(sse(&fault.json()));
        self.over = true;
    }
}
