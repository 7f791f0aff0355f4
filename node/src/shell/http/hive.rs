//! `/v1/hive`: who is there, what is lent, and how models are split.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use wire::{Held, Millis, NodeId, Offer, PROTOCOL};

use super::Api;
use super::fault::{Fault, json_response};
use crate::house::hive::Stand;
use crate::house::place::{Plan, Stage, Times};
use crate::shell::hive::HiveNode;
use crate::shell::hive::hub::{ModelView, View};
use crate::shell::hive::planning::PlanningError;
use crate::shell::machine;
use crate::shell::speaker::unix_now_ms;
use crate::shell::swarm::{Path, PeerInfo};
use crate::shell::worker::Serving;

/// The header that says who computed an answer.
const ROUTE: HeaderName = HeaderName::from_static("x-cadencia-route");

/// Says in `response` who computes for `serving`.
pub fn route(api: &Api, serving: &Serving, response: &mut Response) {
    let words = match &serving.road {
        Some(road) => road.route().map(|route| route.words.clone()).ok(),
        None if api.hive.is_some() => Some(ALONE_IN_HIVE.to_owned()),
        None => Some("alone".to_owned()),
    };
    // A route that was lost meanwhile has no words any more.
    let value = words.and_then(|words| HeaderValue::from_str(&words).ok());
    if let Some(value) = value {
        response.headers_mut().insert(ROUTE, value);
    }
}

const ALONE_IN_HIVE: &str = "alone; all of the model fits here, so it is not split";

/// `GET /v1/hive`
pub async fn hive(State(api): State<Arc<Api>>) -> Result<Response, Fault> {
    let Some(hive) = &api.hive else {
        let why = "this node is in no hive; start it with --join ADDRESS, or with --listen";
        let value = json!({"hive": null, "why": why, "memory": memory()});
        return Ok(json_response(StatusCode::OK, &value));
    };
    let view = hive.hub.look().await.ok_or_else(|| refusal(&PlanningError::Stopping))?;
    let now = Millis(unix_now_ms());
    let value = json!({"hive": whole(&view, now), "memory": memory()});
    Ok(json_response(StatusCode::OK, &value))
}

/// What this process has, and what is left to all; absent where the system does not say.
fn memory() -> Value {
    let mb = |bytes: Option<u64>| bytes.map(|bytes| bytes / 1_000_000);
    json!({"resident_mb": mb(machine::rss()), "available_mb": mb(machine::memory_available())})
}

/// `GET /v1/hive/plan?model=NAME`
pub async fn plan(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Fault> {
    let Some(hive) = &api.hive else {
        let message = "this node is in no hive, so nothing is split; start it with --join ADDRESS, \
                       or with --listen";
        return Err(Fault::new(StatusCode::CONFLICT, "no_hive", message));
    };
    let model = request.uri().query().and_then(|query| parameter(query, "model"));
    planned(hive, model.as_deref()).await
}

/// The value of a parameter in a query, unless it is empty.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let spaced = value.replace('+', " ");
    let value = percent_decode_str(&spaced).decode_utf8_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

async fn planned(hive: &HiveNode, model: Option<&str>) -> Result<Response, Fault> {
    let planned = hive.planned(model).await.map_err(|error| refusal(&error))?;
    let plan = planned.plan.as_ref();
    let value = json!({
        "model": planned.model,
        "fits_here": planned.fits_here,
        "plan": plan.ok().map(plan_value),
        "explanation": plan.map(Plan::explain).unwrap_or_default(),
        "why_not": plan.err().map(ToString::to_string),
    });
    Ok(json_response(StatusCode::OK, &value))
}

fn refusal(error: &PlanningError) -> Fault {
    match error {
        PlanningError::Unknown { .. } | PlanningError::NoModel => {
            Fault::new(StatusCode::NOT_FOUND, "model_not_found", error.to_string()).about("model")
        }
        PlanningError::Stopping => {
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", error.to_string()).later(5)
        }
    }
}

fn whole(view: &View, now: Millis) -> Value {
    json!({
        "node": {
            "id": view.me.to_string(),
            "name": view.me.short(),
            "addresses": texts(&view.addresses),
            "lanes": sockets(&view.lanes),
            "program": concat!("cadencia ", env!("CARGO_PKG_VERSION")),
            "protocol": PROTOCOL,
            "class": compute::numeric::CLASS,
            "seats_taken": view.seats,
            "lends": {
                "memory_mb": view.lent_max / 1_000_000,
                "memory_free_mb": view.lent_free / 1_000_000,
                "parts": view.held.iter().map(|held| part(view, held)).collect::<Vec<_>>(),
            },
        },
        "peers": view.peers.iter().map(peer).collect::<Vec<_>>(),
        "offers": view.offers.iter().map(|(node, it)| offer(view, *node, it, now)).collect::<Vec<_>>(),
        "models": view.models.iter().map(model).collect::<Vec<_>>(),
    })
}

fn texts(all: &[impl ToString]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn sockets(all: &[wire::Address]) -> Vec<String> {
    all.iter().filter_map(|address| Some(address.socket()?.to_string())).collect()
}

fn peer(peer: &PeerInfo) -> Value {
    json!({
        "id": peer.id.to_string(),
        "name": peer.id.short(),
        "path": match peer.path {
            Path::Direct => "direct",
            Path::Relayed => "relayed",
        },
        "rtt_ms": peer.rtt_us.map(ms),
        "program": peer.agent,
        "version": peer.version,
        "addresses": texts(&peer.addresses),
    })
}

/// Milliseconds, to the microsecond.
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn offer(view: &View, node: NodeId, offer: &Offer, now: Millis) -> Value {
    let health = offer.health.as_ref().map(|health| {
        json!({
            "read_mb_s": health.read_mb_s,
            "int8_gops": health.int8_gops,
            "threads": health.threads,
            "ram_free_mb": health.ram_free_mb,
            "battery_percent": health.battery_percent,
            "mains": health.mains,
            "stability_permille": health.stability_permille,
            "throttled_permille": health.throttled_permille,
        })
    });
    json!({
        "node": node.to_string(),
        "name": node.short(),
        "program": offer.program,
        "protocol": offer.protocol,
        "class": offer.class,
        "lanes": sockets(&offer.lanes),
        "memory_free_mb": offer.memory_free_mb,
        "seats_free": offer.seats_free,
        "files": offer.files.iter().map(|id| name_of(view, id)).collect::<Vec<_>>(),
        "held": offer.held.iter().map(|held| part(view, held)).collect::<Vec<_>>(),
        "health": health,
        "expires_ms": offer.expires().0,
        "expires_in_s": offer.expires().since(now) / 1000,
    })
}

/// A part of a model that somebody has in memory.
fn part(view: &View, held: &Held) -> Value {
    json!({
        "model": name_of(view, &held.manifest),
        "layers": held.halves.map(|halves| halves.to_string()),
        "positions_free": held.positions_free,
    })
}

/// What people call the model with this id; the id's first digits where nobody here knows it.
fn name_of(view: &View, id: &[u8]) -> String {
    let known = view.names.iter().find(|(known, _)| known.0[..] == *id);
    let digits = || id.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    known.map_or_else(digits, |(_, name)| name.clone())
}

fn model(model: &ModelView) -> Value {
    let mut value = match &model.stand {
        Stand::None(why) => json!({"stand": "none", "why": why}),
        Stand::Preparing { done, whole, eta_s } => json!({
            "stand": "preparing",
            "done_bytes": done,
            "whole_bytes": whole,
            "percent": Stand::percent(*done, *whole),
            "eta_s": eta_s,
            "why": model.stand.why_not(),
        }),
        Stand::Used(plan) => json!({"stand": "used", "plan": plan_value(plan), "why": plan.why}),
    };
    value["name"] = model.name.clone().into();
    value
}

fn plan_value(plan: &Plan) -> Value {
    json!({
        "words": plan.words(),
        "front": {
            "layers": plan.front.to_string(),
            "memory_mb": plan.front_bytes.div_ceil(1_000_000),
        },
        "stages": plan.stages.iter().map(stage).collect::<Vec<_>>(),
        "predicted": times(&plan.times),
        "alone": plan.alone.map(|alone| {
            json!({"node": alone.node.to_string(), "predicted": times(&alone.times)})
        }),
        "why": plan.why,
    })
}

fn stage(stage: &Stage) -> Value {
    json!({
        "node": stage.node.to_string(),
        "name": stage.node.short(),
        "layers": stage.halves.to_string(),
        "memory_mb": stage.memory_bytes.div_ceil(1_000_000),
        "compute_ms": ms(stage.compute_us),
        "rtt_ms": ms(stage.rtt_us),
        "twins": texts(&stage.twins),
        "spares": texts(&stage.spares),
    })
}

fn times(times: &Times) -> Value {
    json!({
        "token_ms": ms(times.token_us()),
        "compute_ms": ms(times.compute_us),
        "network_ms": ms(times.network_us),
        "first_token_ms": ms(times.first_token_us),
        "ready_ms": ms(times.ready_us),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_and_decoded() {
        assert_eq!(parameter("a=1&model=a%2Fb+c", "model").as_deref(), Some("a/b c"));
        assert_eq!(parameter("model=", "model"), None);
        assert_eq!(parameter("models=x", "model"), None);
        assert_eq!(parameter("", "model"), None);
    }
}
