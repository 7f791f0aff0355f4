//! The HTTP API: OpenAI's routes and shapes over one model.

mod access;
mod fault;
mod fields;
mod guard;
mod reply;
mod respond;
mod serve;
mod wanted;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use self::access::Access;
use self::fault::{Fault, json_response, quoted};
use self::reply::Route;
use super::line::Line;
use super::worker::{Phase, Served, Serving};

pub use access::random;
pub use guard::{Guard, Key};
pub use reply::timings;
pub use serve::Server;

/// Prompts that are turned into tokens at a time. Beside the model, which has the processor.
const READERS: usize = 2;
/// Bytes that the bodies of all requests together may take while they are read.
const BODIES_BYTES_MAX: usize = 64 << 20;

/// What the handlers share.
#[derive(Debug)]
pub struct Api {
    line: Arc<Line>,
    phase: watch::Receiver<Phase>,
    guard: Guard,
    readers: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl Api {
    /// An API whose requests join `line`, as soon as `phase` says that a model answers.
    pub fn new(line: Arc<Line>, phase: watch::Receiver<Phase>, guard: Guard) -> Arc<Self> {
        let readers = Arc::new(Semaphore::new(READERS));
        let bodies = Arc::new(Semaphore::new(BODIES_BYTES_MAX));
        Arc::new(Self { line, phase, guard, readers, bodies })
    }

    /// The models, or the refusal that says how far their loading is.
    fn served(&self) -> Result<Arc<Served>, Fault> {
        let (done, whole) = match &*self.phase.borrow() {
            Phase::Ready(served) => return Ok(served.clone()),
            Phase::Loading { done, whole } => (*done, *whole),
        };
        let percent = done.saturating_mul(100).checked_div(whole).unwrap_or(0).min(100);
        let message = format!("the model is being loaded ({percent} %); try again soon");
        Err(Fault::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message).later(1))
    }
}

/// The routes, behind the guard.
pub fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_route)
        .layer(middleware::from_fn_with_state(api.clone(), guarded))
        .with_state(api)
}

/// Around every request: its record, its id, and whether it may be served at all.
async fn guarded(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri());
    let access = Arc::new(Access::new(method, uri.path(), request.headers()));
    let checked = api.guard.check(uri, request.headers());
    request.extensions_mut().insert(access.clone());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    };
    access.status(response.status());
    let id = HeaderValue::from_str(access.id()).expect("ids are plain ASCII");
    response.headers_mut().insert("x-request-id", id);
    response
}

async fn health() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

async fn ready(State(api): State<Arc<Api>>) -> Result<Response, Fault> {
    let served = api.served()?;
    let names = served.names();
    let value = json!({"status": "ready", "model": names[0], "models": names});
    Ok(json_response(StatusCode::OK, &value))
}

/// A model that does not answer yet is not listed.
async fn models(State(api): State<Arc<Api>>) -> Response {
    let served = api.served();
    let list: Vec<Value> =
        served.iter().flat_map(|served| &served.models).map(|serving| card(serving)).collect();
    json_response(StatusCode::OK, &json!({"object": "list", "data": list}))
}

async fn model(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Fault> {
    let served = api.served()?;
    // A name that is no text is nobody's.
    let name = name.map(|Path(name)| name).unwrap_or_default();
    match served.models.iter().find(|serving| serving.speaker.name() == name) {
        Some(serving) => Ok(json_response(StatusCode::OK, &card(serving))),
        None => {
            let message = format!("the model {} is not served here", quoted(&name));
            let fault = Fault::new(StatusCode::NOT_FOUND, "model_not_found", message);
            Err(fault.about("model"))
        }
    }
}

/// A model as OpenAI lists it, with what is worth knowing beside.
fn card(serving: &Serving) -> Value {
    let summary = serving.speaker.model().summary();
    json!({
        "id": serving.speaker.name(),
        "object": "model",
        "created": serving.since,
        "owned_by": "cadencia",
        "meta": {
            "name": summary.name,
            "architecture": summary.architecture,
            "n_vocab": summary.vocabulary,
            "n_ctx": serving.context,
            "n_ctx_train": summary.context_length,
            "n_embd": summary.width,
            "size": summary.file_bytes,
            "kernels": summary.kernels,
            "chat": serving.speaker.can_chat().is_ok(),
        },
    })
}

async fn chat(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Fault> {
    respond::respond(&api, Route::Chat, request).await
}

async fn completion(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Fault> {
    respond::respond(&api, Route::Completion, request).await
}

async fn wrong_method(request: Request) -> Fault {
    let message = format!("{} is not answered at this route", request.method());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

async fn unknown_route() -> Fault {
    let message = "there is no such route; see `cadencia up --help` for those there are";
    Fault::new(StatusCode::NOT_FOUND, "unknown_route", message)
}
