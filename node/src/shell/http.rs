//! The HTTP API: OpenAI's routes and shapes over the models of this node.

mod access;
mod body;
mod choice;
mod embed;
mod fault;
mod fields;
mod group;
mod guard;
mod hive;
mod metrics;
mod prepare;
mod reply;
mod respond;
mod ring;
mod serve;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use self::access::Access;
use self::fault::{Code, Fault, json_response, quoted};
use self::metrics::Metrics;
use self::reply::Route;
use super::hive::HiveNode;
use super::line::Line;
use super::worker::{Phase, Served, Serving};

pub use access::random;
pub use guard::{Guard, Key};
pub use metrics::Connections;
pub use reply::timings;
pub use ring::Ring;
pub use serve::Server;

/// Prompts that are turned into tokens at a time. Beside the model, which has the processor.
const READERS: usize = 2;
/// Bytes that the bodies of all requests together may take while they are read.
const BODIES_BYTES_MAX: usize = 64 << 20;
/// All routes, as a refusal tells them.
const ROUTES: &str = "POST /v1/chat/completions, POST /v1/completions, POST /v1/embeddings, \
    GET /v1/models, GET /v1/models/{model}, GET /v1/hive, GET /v1/hive/plan, GET /health, GET /ready, GET /metrics";
/// For how long a browser may remember what a preflight was told, seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// What the handlers share.
#[derive(Debug)]
pub struct Api {
    line: Arc<Line>,
    phase: watch::Receiver<Phase>,
    guard: Guard,
    /// The hive that this node is part of.
    hive: Option<HiveNode>,
    /// After so long a silence, a stream shows that it lives.
    alive: Duration,
    metrics: Arc<Metrics>,
    readers: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl Api {
    /// An API whose requests join `line`, as soon as `phase` says that a model answers. A stream
    /// that has been silent for `alive` sends a comment.
    pub fn new(
        line: Arc<Line>,
        phase: watch::Receiver<Phase>,
        guard: Guard,
        hive: Option<HiveNode>,
        alive: Duration,
    ) -> Arc<Self> {
        let stages = hive.as_ref().map(|hive| hive.stats.clone());
        let metrics = Metrics::new(Some(phase.clone()), stages);
        let readers = Arc::new(Semaphore::new(READERS));
        let bodies = Arc::new(Semaphore::new(BODIES_BYTES_MAX));
        Arc::new(Self { line, phase, guard, hive, alive, metrics, readers, bodies })
    }

    /// Open connections, to be counted by whoever accepts them.
    pub fn connections(&self) -> Connections {
        self.metrics.connections()
    }

    /// The models, or the refusal that says how far their loading is.
    fn served(&self) -> Result<Arc<Served>, Fault> {
        let (done, whole) = match &*self.phase.borrow() {
            Phase::Ready(served) => return Ok(served.clone()),
            Phase::Loading { done, whole } => (*done, *whole),
            Phase::Waiting(why) => {
                let message = format!("the hive does not compute this model yet: {why}");
                return Err(
                    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message).later(2)
                );
            }
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
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/hive", get(hive::hive))
        .route("/v1/hive/plan", get(hive::plan))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/embeddings", post(embeddings))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_route)
        .layer(middleware::from_fn_with_state(api.clone(), guarded))
        .with_state(api)
}

/// Around every request: its record, its id, and whether it may be served at all.
async fn guarded(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri(), request.headers());
    let access = Arc::new(Access::new(method, uri.path(), headers, api.metrics.clone()));
    let granted = api.guard.granted(headers);
    let preflight = granted.is_some() && guard::is_preflight(request.method(), headers);
    let checked = api.guard.check(uri, headers);
    // Before a page's request, a browser asks without the page's key whether it may send it.
    let caller = checked.and_then(|()| match preflight {
        true => Ok(None),
        false => api.guard.caller(uri, headers).map(Some),
    });
    request.extensions_mut().insert(access.clone());
    let mut response = match caller {
        Ok(None) => allowed(),
        Ok(Some(caller)) => {
            access.key(caller.name.clone());
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(fault) => fault.into_response(),
    };
    access.status(response.status());
    if let Some(Code(code)) = response.extensions().get() {
        access.refused(code);
    }
    let headers = response.headers_mut();
    let id = HeaderValue::from_str(access.id()).expect("ids are plain ASCII");
    headers.insert("x-request-id", id);
    if api.guard.has_origins() {
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = granted {
        let told =
            HeaderValue::from_static("x-request-id, retry-after, server-timing, x-cadencia-route");
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, told);
    }
    response
}

/// What a browser is told that asks whether a page of an origin that is served may ask more.
fn allowed() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let set = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        // The star does not stand for `authorization`, by the rules of fetch.
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-request-id, *"),
        (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS),
    ];
    for (name, value) in set {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn health() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

async fn ready(State(api): State<Arc<Api>>) -> Result<Response, Fault> {
    let served = api.served()?;
    for serving in &served.models {
        stands(serving)?;
    }
    let names = served.names();
    let value = json!({"status": "ready", "model": names.first(), "models": names});
    Ok(json_response(StatusCode::OK, &value))
}

async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let mut response = Response::new(Body::from(api.metrics.text()));
    let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Refuses while the stages of a model that is computed over the hive do not compute it.
fn stands(serving: &Serving) -> Result<(), Fault> {
    serving.stands().map_err(|why| no_route(serving, &why))
}

/// The stages of a model do not compute it.
fn no_route(serving: &Serving, why: &str) -> Fault {
    let message = format!("the hive does not compute {} now: {why}", serving.speaker.name());
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "no_route", message).later(2)
}

/// A model that does not answer yet, or not now, is not listed.
async fn models(State(api): State<Arc<Api>>) -> Response {
    let served = api.served();
    let list: Vec<Value> = served
        .iter()
        .flat_map(|served| &served.models)
        .filter(|s| s.stands().is_ok())
        .map(|s| card(s))
        .collect();
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

async fn embeddings(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Fault> {
    embed::respond(&api, request).await
}

async fn wrong_method(request: Request) -> Fault {
    let message = format!("{} is not answered at this route; there are {ROUTES}", request.method());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

async fn unknown_route() -> Fault {
    let message = format!("there is no such route; there are {ROUTES}");
    Fault::new(StatusCode::NOT_FOUND, "unknown_route", message)
}
