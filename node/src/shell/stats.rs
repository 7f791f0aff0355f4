//! Counts that the thread which computes keeps, for whoever watches: gauges of now, and counters
//! that only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// One number that one thread writes and any may read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// It, now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Makes it `value`.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// What the engine of one model is doing.
#[derive(Debug, Default)]
pub struct EngineStats {
    /// Gauge: sequences that are being computed.
    pub running: Count,
    /// Gauge: requests that wait for a place among them.
    pub waiting: Count,
    /// Gauge: bytes of KV cache that running sequences hold.
    pub kv_used_bytes: Count,
    /// Gauge: bytes of KV cache kept for prompts that may come again; given up when needed.
    pub kv_kept_bytes: Count,
    /// Gauge: bytes of KV cache that there may be.
    pub kv_max_bytes: Count,
    /// Counter: steps, each of which computes some tokens of some sequences together.
    pub steps: Count,
    /// Counter: prompt tokens computed.
    pub prompt_tokens: Count,
    /// Counter: prompt tokens that were in memory already.
    pub kept_tokens: Count,
    /// Counter: tokens answered.
    pub answer_tokens: Count,
    /// Counter: tokens guessed ahead.
    pub drafted_tokens: Count,
    /// Counter: of these, those that were right.
    pub accepted_tokens: Count,
    /// Counter: sequences that had to make room for others and were computed again later.
    pub preempted: Count,
}
