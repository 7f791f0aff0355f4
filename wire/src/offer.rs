//! What a node offers to others, and how it is.

use prost::Message;

use crate::codec::{Checked, Word, at_most, exactly, range, text};
use crate::manifest::ManifestId;
use crate::place::{Address, Halves, Millis};
use crate::signed::Content;

/// Addresses in an offer.
const ADDRESSES_MAX: usize = 8;
/// Ranges of models in memory that an offer names.
const HELD_MAX: usize = 16;
/// Models on disk that an offer names.
const FILES_MAX: usize = 32;
/// Neighbours whose latency an offer names.
const NEIGHBOURS_MAX: usize = 16;
/// How long an offer may say that it holds, milliseconds.
pub const OFFER_LIFE_MAX: u64 = 600_000;

/// What a node would do for others. Signed by it; the one with the largest `sequence` counts.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Offer {
    /// Unix time when it was made, milliseconds; larger than that of the one before.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// How long it holds, milliseconds.
    #[prost(uint32, tag = "2")]
    pub life_ms: u32,
    /// Version of the protocol that it speaks.
    #[prost(uint32, tag = "3")]
    pub protocol: u32,
    /// Its program, for people.
    #[prost(string, tag = "4")]
    pub program: String,
    /// Numeric class that it computes in.
    #[prost(string, tag = "5")]
    pub class: String,
    /// Where its lanes are.
    #[prost(message, repeated, tag = "6")]
    pub lanes: Vec<Address>,
    /// How it is.
    #[prost(message, optional, tag = "7")]
    pub health: Option<Health>,
    /// Parts of models that it holds in memory for others.
    #[prost(message, repeated, tag = "8")]
    pub held: Vec<Held>,
    /// Ids of models whose files it has, so that it could hold any part of them at once.
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub files: Vec<Vec<u8>>,
    /// Memory that it would still give to parts of models and their caches, MB.
    #[prost(uint32, tag = "10")]
    pub memory_free_mb: u32,
    /// Sequences of others that it could still take.
    #[prost(uint32, tag = "11")]
    pub seats_free: u32,
}

/// A part of a model in memory.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Held {
    /// The model's id, 32 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub manifest: Vec<u8>,
    /// Which half-blocks.
    #[prost(message, optional, tag = "2")]
    pub halves: Option<Halves>,
    /// Positions for which there is still room in its KV cache.
    #[prost(uint32, tag = "3")]
    pub positions_free: u32,
}

/// How a node is: whole numbers in the units of their names.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Health {
    /// Rate of 8-bit multiply-adds as measured with its own kernels, 10^9 operations a second, two a
    /// multiply-add.
    #[prost(uint32, tag = "1")]
    pub int8_gops: u32,
    /// Rate at which it reads memory in those kernels, MB/s.
    #[prost(uint32, tag = "2")]
    pub read_mb_s: u32,
    /// Memory free, MB.
    #[prost(uint32, tag = "3")]
    pub ram_free_mb: u32,
    /// Charge, percent; absent where there is no battery.
    #[prost(uint32, optional, tag = "4")]
    pub battery_percent: Option<u32>,
    /// Whether it runs on mains.
    #[prost(bool, tag = "5")]
    pub mains: bool,
    /// Share of lately that it was up, permille; what is long ago counts less.
    #[prost(uint32, tag = "6")]
    pub stability_permille: u32,
    /// By how much it is slowed by heat, permille.
    #[prost(uint32, tag = "7")]
    pub throttled_permille: u32,
    /// How far its neighbours are.
    #[prost(message, repeated, tag = "8")]
    pub neighbours: Vec<Neighbour>,
    /// Threads that compute.
    #[prost(uint32, tag = "9")]
    pub threads: u32,
}

/// How far another node is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Neighbour {
    /// Its key, 32 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub node: Vec<u8>,
    /// Round trip, microseconds.
    #[prost(uint32, tag = "2")]
    pub rtt_us: u32,
}

impl Offer {
    /// Until when it holds.
    pub fn expires(&self) -> Millis {
        Millis(self.sequence).plus(self.life_ms.into())
    }

    /// Whether it says that the model's files are there.
    pub fn has_file(&self, manifest: ManifestId) -> bool {
        self.files.iter().any(|file| file[..] == manifest.0)
    }
}

impl Content for Offer {
    const DOMAIN: &'static str = "cadencia offer 1";
}

impl Word for Offer {
    const NAME: &'static str = "an offer";
    const BYTES_MAX: usize = 6 << 10;

    fn check(&self) -> Checked {
        let life = u64::from(self.life_ms);
        range::<Self>("life_ms", life > 0 && life <= OFFER_LIFE_MAX, || life.to_string())?;
        text::<Self>("program", &self.program, 64)?;
        text::<Self>("class", &self.class, 32)?;
        at_most::<Self>("lanes", self.lanes.len(), ADDRESSES_MAX)?;
        self.lanes.iter().try_for_each(Word::check)?;
        at_most::<Self>("held", self.held.len(), HELD_MAX)?;
        for held in &self.held {
            exactly::<Self>("held", &held.manifest, 32)?;
            range::<Self>("held", held.halves.is_some(), || "a range is missing".into())?;
            held.halves.as_ref().map_or(Ok(()), Word::check)?;
        }
        at_most::<Self>("files", self.files.len(), FILES_MAX)?;
        self.files.iter().try_for_each(|file| exactly::<Self>("files", file, 32))?;
        range::<Self>("health", self.health.is_some(), || "it is missing".into())?;
        self.health.as_ref().map_or(Ok(()), Health::check)
    }
}

impl Health {
    fn check(&self) -> Checked {
        let battery = self.battery_percent.unwrap_or(0);
        range::<Offer>("battery_percent", battery <= 100, || battery.to_string())?;
        let stability = self.stability_permille;
        range::<Offer>("stability_permille", stability <= 1000, || stability.to_string())?;
        let throttled = self.throttled_permille;
        range::<Offer>("throttled_permille", throttled <= 1000, || throttled.to_string())?;
        at_most::<Offer>("neighbours", self.neighbours.len(), NEIGHBOURS_MAX)?;
        self.neighbours.iter().try_for_each(|n| exactly::<Offer>("neighbours", &n.node, 32))
    }
}
