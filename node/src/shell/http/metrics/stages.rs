//! What this node computes for others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::shell::hive::StageStats;

/// The stages that this node lends.
#[derive(Debug)]
pub struct Stages(pub Arc<StageStats>);

type Part = fn(&StageStats) -> &AtomicU64;

const GAUGES: [(&str, &str, Part); 3] = [
    ("seats", "Sequences of other nodes that are here", |s| &s.seats),
    ("kv_used_bytes", "KV cache that sequences of other nodes hold", |s| &s.kv_used_bytes),
    ("kv_kept_bytes", "KV cache kept for prompts that may come again", |s| &s.kv_kept_bytes),
];
const COUNTERS: [(&str, &str, Part); 3] = [
    ("rows", "Rows computed for other nodes", |s| &s.rows),
    ("passes", "Passes in which these were computed", |s| &s.passes),
    ("read_bytes", "Weights read in passes of few rows", |s| &s.read_bytes),
];
const TIMES: [(&str, &str, Part); 2] = [
    ("busy_seconds", "Time in passes", |s| &s.busy_us),
    ("read_seconds", "Time in passes of few rows", |s| &s.read_us),
];

impl Collector for Stages {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let value = |part: Part| part(&self.0).load(Ordering::Relaxed);
        for (name, help, part) in GAUGES {
            let name = format!("cadencia_stage_{name}");
            let kind = MetricType::Gauge;
            encoder.encode_descriptor(&name, help, None, kind)?.encode_gauge(&value(part))?;
        }
        for (name, help, part) in COUNTERS {
            let name = format!("cadencia_stage_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            metric.encode_counter(&value(part), NO_EXEMPLAR)?;
        }
        for (name, help, part) in TIMES {
            let name = format!("cadencia_stage_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            metric.encode_counter(&(value(part) as f64 / 1e6), NO_EXEMPLAR)?;
        }
        Ok(())
    }
}

const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 0], f64>> = None;
