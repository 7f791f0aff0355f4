//! What things cost, in microseconds: the planner's model of the world, in one place.
//!
//! * A token of an answer: each node reads its weights once, at the rate that it is believed to have.
//!   The network takes half a round trip a hop, and [`HOP_US`], around the ring from the requester over
//!   all stages and back.
//! * A prompt: its multiply-adds at the believed rate, one node after the other. That stages overlap
//!   while chunks of a prompt follow one another is not counted; it makes the truth better.
//! * Getting ready: weights come from memory, from a node's disk, or over the network.

use wire::Work;

use crate::house::fitness::Rates;

/// What a hop costs beside distance: a frame is sealed, sent, woken for and opened.
pub const HOP_US: u64 = 150;
/// Memory beside weights and caches that a node with any part of a model needs: rows in flight, buffers
/// of its lanes, and what allocation wastes.
pub const OVERHEAD_BYTES: u64 = 64 << 20;
/// How fast weights are taken to come from a disk, MB/s: a plain solid-state disk.
const DISK_MB_S: u64 = 400;
/// How fast they are taken to come over a network, MB/s: 80 Mbit/s, a usual home line.
const FETCH_MB_S: u64 = 10;
/// A wait for weights up to here is spread over the answers that follow; what is longer counts whole.
const PATIENCE_US: u64 = 60_000_000;
/// Over so many answers: it happens once, and the least that a plan is good for.
const ANSWERS: u64 = 8;

/// What a plan is predicted to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Computing a token of an answer, microseconds.
    pub compute_us: u64,
    /// The network's part of a token, microseconds.
    pub network_us: u64,
    /// From the prompt to the first token, microseconds.
    pub first_token_us: u64,
    /// Until all weights are in memory, microseconds.
    pub ready_us: u64,
}

impl Times {
    /// A token of an answer, microseconds.
    pub fn token_us(&self) -> u64 {
        self.compute_us.saturating_add(self.network_us)
    }

    /// What a plan is compared by: an answer of `tokens`, and its part of the wait before.
    pub(super) fn score(&self, tokens: u64) -> u64 {
        let patient = self.ready_us.min(PATIENCE_US);
        let wait = patient / ANSWERS + (self.ready_us - patient);
        let answer = self.token_us().saturating_mul(tokens);
        self.first_token_us.saturating_add(answer).saturating_add(wait)
    }
}

/// Where weights come from, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stock {
    /// They are in memory.
    Memory,
    /// They are on the node's disk.
    Disk,
    /// They must be fetched.
    Network,
}

impl Stock {
    /// How long until so many bytes of weights are in memory.
    pub(super) fn ready_us(self, bytes: u64) -> u64 {
        match self {
            Self::Memory => 0,
            Self::Disk => bytes / DISK_MB_S,
            Self::Network => bytes / FETCH_MB_S,
        }
    }
}

/// A token of an answer: a megabyte a second is a byte a microsecond.
pub(super) fn read_us(bytes: u64, rates: Rates) -> u64 {
    bytes.div_ceil(u64::from(rates.read_mb_s).max(1))
}

/// `rows` tokens of a prompt: a multiply-add is two operations.
pub(super) fn rows_us(macs: u64, rows: u32, rates: Rates) -> u64 {
    let operations = 2 * u128::from(macs) * u128::from(rows);
    let us = operations / (u128::from(rates.int8_gops.max(1)) * 1000);
    u64::try_from(us).unwrap_or(u64::MAX)
}

/// One hop.
pub(super) fn hop_us(rtt_us: u64) -> u64 {
    (rtt_us / 2).saturating_add(HOP_US)
}

/// What `work` of weights and multiply-adds adds to a plan's score, nanoseconds: for the search, where
/// it must be a sum. The largest has some 92 bits, so sums of it need no check.
pub(super) fn weight_ns(work: Work, rows: u32, tokens: u64, rates: Rates) -> i128 {
    let read = i128::from(work.memory) * i128::from(tokens) * 1000;
    let compute = 2 * i128::from(work.macs) * i128::from(rows);
    read / i128::from(rates.read_mb_s.max(1)) + compute / i128::from(rates.int8_gops.max(1))
}
