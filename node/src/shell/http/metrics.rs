//! What this node has done and is doing, for Prometheus.
//!
//! Names and bucket boundaries that OpenTelemetry's conventions for generative AI have are used
//! as Prometheus writes them; the rest begins with `cadencia_`.
//!
//! **Invariant:** labels have values from small fixed sets: routes, statuses, codes of refusals,
//! names of models that are served. Nothing that a client wrote becomes one.

mod stages;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::shell::ask::Outcome;
use crate::shell::hive::StageStats;
use crate::shell::machine;
use crate::shell::stats::{Count, EngineStats};
use crate::shell::worker::Phase;

use super::access::Asked;

/// The type of what [`Metrics::text`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Seconds that a request takes.
const DURATION: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Seconds to the first token.
const FIRST: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Seconds from one token to the next.
const EACH: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Tokens.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// Paths that are told apart.
const ROUTES: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/health",
    "/ready",
    "/metrics",
];

type Labels<const N: usize> = [(&'static str, String); N];
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// What kind of answer was asked for, in OpenTelemetry's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Of a conversation.
    Chat,
    /// Of a text.
    Completion,
    /// A vector.
    Embeddings,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Operation::Chat => "chat",
            Operation::Completion => "text_completion",
            Operation::Embeddings => "embeddings",
        }
    }
}

/// All that is counted.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels<2>, Counter>,
    refusals: Family<Labels<1>, Counter>,
    connections: Gauge,
    duration: Histograms<2>,
    first: Histograms<2>,
    each: Histograms<2>,
    tokens: Histograms<3>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Nothing counted yet; `phase` knows the models whose engines are watched, and `stages` what is
    /// computed for others.
    pub fn new(
        phase: Option<watch::Receiver<Phase>>,
        stages: Option<Arc<StageStats>>,
    ) -> Arc<Self> {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            refusals: Family::default(),
            connections: Gauge::default(),
            duration: Family::new_with_constructor(|| Histogram::new(DURATION)),
            first: Family::new_with_constructor(|| Histogram::new(FIRST)),
            each: Family::new_with_constructor(|| Histogram::new(EACH)),
            tokens: Family::new_with_constructor(|| Histogram::new(TOKENS)),
        };
        metrics.register();
        if let Some(phase) = phase {
            metrics.registry.register_collector(Box::new(Engines(phase)));
        }
        if let Some(stats) = stages {
            metrics.registry.register_collector(Box::new(stages::Stages(stats)));
        }
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("cadencia_requests", "Requests by route and status", self.requests.clone());
        r.register("cadencia_refusals", "Refusals by code", self.refusals.clone());
        r.register("cadencia_connections", "Connections that are open", self.connections.clone());
        r.register(
            "gen_ai_server_request_duration_seconds",
            "From a request's first byte to its answer's last",
            self.duration.clone(),
        );
        r.register(
            "gen_ai_server_time_to_first_token_seconds",
            "From a request's first byte to the first token of its answer",
            self.first.clone(),
        );
        r.register(
            "gen_ai_server_time_per_output_token_seconds",
            "From one token of an answer to the next",
            self.each.clone(),
        );
        r.register(
            "gen_ai_client_token_usage",
            "Tokens of prompts and answers",
            self.tokens.clone(),
        );
        let version = [("version", env!("CARGO_PKG_VERSION")), ("class", "int8x-v1")];
        r.register("cadencia_build", "What runs", Info::new(version));
        r.register_collector(Box::new(Process));
    }

    /// A request to `path` ended with `status`.
    pub fn request(&self, path: &str, status: u16) {
        let route = ROUTES.into_iter().find(|route| *route == path);
        let route = route.unwrap_or(match path.starts_with("/v1/models/") {
            true => "/v1/models/{model}",
            false => "other",
        });
        let labels = [("route", route.to_string()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    /// A request was refused with `code`.
    pub fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&[("code", code.to_string())]).inc();
    }

    /// The connections that are open, to be counted up and down.
    pub fn connections(&self) -> Connections {
        Connections(self.connections.clone())
    }

    /// What was `asked` took `time` in all, its first token came after `first`, and this came of
    /// it.
    pub fn answered(
        &self,
        asked: &Asked,
        time: Duration,
        first: Option<Duration>,
        outcomes: &[Outcome],
    ) {
        let labels = [
            ("gen_ai_operation_name", asked.operation.word().to_string()),
            ("gen_ai_request_model", asked.model.clone()),
        ];
        self.duration.get_or_create(&labels).observe(time.as_secs_f64());
        if let Some(first) = first {
            self.first.get_or_create(&labels).observe(first.as_secs_f64());
        }
        for outcome in outcomes {
            let steps = outcome.tokens.len().saturating_sub(1);
            if steps > 0 {
                let each = outcome.answer_time.as_secs_f64() / steps as f64;
                self.each.get_or_create(&labels).observe(each);
            }
            let [operation, model] = labels.clone();
            let count = |kind: &str, tokens: usize| {
                let kind = ("gen_ai_token_type", kind.to_string());
                let labels = [operation.clone(), model.clone(), kind];
                self.tokens.get_or_create(&labels).observe(tokens as f64);
            };
            count("input", outcome.prompt);
            if asked.operation != Operation::Embeddings {
                count("output", outcome.tokens.len());
            }
        }
    }

    /// All of it, in the text form of OpenMetrics.
    pub fn text(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("a string takes all that is written");
        out
    }
}

/// The number of connections that are open.
#[derive(Debug, Clone)]
pub struct Connections(Gauge);

impl Connections {
    /// One was opened; it counts until what is returned is dropped.
    pub fn open(&self) -> Open {
        self.0.inc();
        Open(self.0.clone())
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What the process takes of the machine.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(bytes) = machine::rss() else { return Ok(()) };
        let (name, help) = ("process_resident_memory_bytes", "Memory that is resident");
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&bytes)
    }
}

/// The engines of the models that are served.
#[derive(Debug)]
struct Engines(watch::Receiver<Phase>);

type Part = fn(&EngineStats) -> &Count;

const GAUGES: [(&str, &str, Part); 5] = [
    ("running", "Sequences that are being computed", |s| &s.running),
    ("waiting", "Requests that wait", |s| &s.waiting),
    ("kv_used_bytes", "KV cache that running sequences hold", |s| &s.kv_used_bytes),
    ("kv_kept_bytes", "KV cache kept for prompts that may come again", |s| &s.kv_kept_bytes),
    ("kv_max_bytes", "KV cache that there may be", |s| &s.kv_max_bytes),
];
const COUNTERS: [(&str, &str, Part); 7] = [
    ("steps", "Steps computed", |s| &s.steps),
    ("prompt_tokens", "Prompt tokens computed", |s| &s.prompt_tokens),
    ("kept_tokens", "Prompt tokens that were in memory already", |s| &s.kept_tokens),
    ("answer_tokens", "Tokens answered", |s| &s.answer_tokens),
    ("drafted_tokens", "Tokens guessed ahead", |s| &s.drafted_tokens),
    ("accepted_tokens", "Tokens guessed ahead rightly", |s| &s.accepted_tokens),
    ("preempted", "Sequences that made room for others", |s| &s.preempted),
];

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Phase::Ready(served) = self.0.borrow().clone() else { return Ok(()) };
        let kinds = GAUGES.map(|part| (MetricType::Gauge, part));
        let counters = COUNTERS.map(|part| (MetricType::Counter, part));
        for (kind, (name, help, part)) in kinds.into_iter().chain(counters) {
            let name = format!("cadencia_engine_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
            for serving in &served.models {
                let labels = [("model", serving.speaker.name())];
                let mut one = metric.encode_family(&labels)?;
                let value = part(&serving.stats).get();
                match kind {
                    MetricType::Counter => {
                        one.encode_counter(&value, None::<&Exemplar<[(&str, &str); 1], u64>>)?;
                    }
                    _ => one.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::Finish;

    #[test]
    fn what_is_counted_is_told_in_known_words() {
        let metrics = Metrics::new(None, Some(Arc::default()));
        metrics.request("/v1/completions", 200);
        metrics.request("/v1/models/../../etc", 404);
        metrics.request("/a secret", 404);
        metrics.refused("queue_full");
        let asked = Asked { operation: Operation::Completion, model: "m".into(), choices: 1 };
        let outcome = Outcome {
            prompt: 10,
            kept: 0,
            tokens: vec![1, 2, 3],
            finish: Finish::Stop,
            queue_time: Duration::ZERO,
            prompt_time: Duration::ZERO,
            answer_time: Duration::from_millis(80),
            drafted: 0,
            accepted: 0,
        };
        let second = Duration::from_secs(1);
        metrics.answered(&asked, second, Some(second), &[outcome]);
        let text = metrics.text();
        let labels = "gen_ai_operation_name=\"text_completion\",gen_ai_request_model=\"m\"";
        for line in [
            "cadencia_requests_total{route=\"/v1/completions\",status=\"200\"} 1".to_string(),
            "cadencia_requests_total{route=\"/v1/models/{model}\",status=\"404\"} 1".into(),
            "cadencia_requests_total{route=\"other\",status=\"404\"} 1".into(),
            "cadencia_refusals_total{code=\"queue_full\"} 1".into(),
            "cadencia_connections 0".into(),
            "cadencia_stage_seats 0".into(),
            "cadencia_stage_rows_total 0".into(),
            "cadencia_stage_busy_seconds_total 0.0".into(),
            format!("gen_ai_server_request_duration_seconds_count{{{labels}}} 1"),
            format!("gen_ai_server_time_to_first_token_seconds_sum{{{labels}}} 1.0"),
            format!("gen_ai_server_time_per_output_token_seconds_sum{{{labels}}} 0.04"),
            format!("gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=\"input\"}} 10.0"),
            format!("gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=\"output\"}} 3.0"),
            "# EOF".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        assert!(!text.contains("secret"));
    }
}
