//! What is to be placed: a model by its costs, and what is wanted of it.

use wire::{HALVES_MAX, Halves, Manifest, ManifestId, PROTOCOL, Work};

use super::NoRoute;
use super::wish_cuts::Cuts;

/// Memory and work beyond which a model is taken for a mistake: a petabyte, and 2^50 multiply-adds a
/// token. Below it no sum here can overflow.
const SUM_MAX: u64 = 1 << 50;

/// What is wanted of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Positions that each sequence may grow to.
    pub positions: u32,
    /// Sequences at a time.
    pub sequences: u32,
    /// Stages that there must be besides this node, whatever they cost; 0 leaves that to the planner.
    /// Cuts that are named say it themselves.
    pub stages_min: u32,
    /// Layers that another node may be asked for in one stage; 0 for as many as it has memory for.
    pub layers_max: u32,
    /// Nodes that compute each stage at a time, 1 to 3; the fastest answer counts.
    pub replicas: u32,
    /// Nodes that stand by for each stage, 0 to 2.
    pub spares: u32,
    /// Tokens of a usual prompt.
    pub prompt: u32,
    /// Tokens of a usual answer.
    pub answer: u32,
    /// Where the model may be cut.
    pub cuts: Cuts,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            positions: 4096,
            sequences: 1,
            stages_min: 0,
            layers_max: 0,
            replicas: 1,
            spares: 1,
            prompt: 256,
            answer: 256,
            cuts: Cuts::Layers,
        }
    }
}

/// A model to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Which.
    pub manifest: ManifestId,
    /// The numeric class in which it is computed.
    pub class: String,
    /// The protocol that all must speak.
    pub protocol: u32,
    /// What each half-block costs.
    pub halves: Vec<Work>,
    /// What embedding, last norm and head cost.
    pub ends: Work,
    /// Bytes of KV cache that a position takes in one attention half-block.
    pub kv_bytes: u32,
    /// What is wanted of it.
    pub wish: Wish,
}

impl Task {
    /// Of a model and what is wanted of it.
    pub fn of(manifest: &Manifest, wish: Wish) -> Self {
        Self {
            manifest: manifest.id(),
            class: manifest.class.clone(),
            protocol: PROTOCOL,
            halves: manifest.halves.iter().map(|part| part.work.unwrap_or_default()).collect(),
            ends: manifest.ends_work(),
            kv_bytes: manifest.kv_bytes,
            wish,
        }
    }

    /// Positions of all its sequences together.
    pub fn positions(&self) -> u64 {
        u64::from(self.wish.positions) * u64::from(self.wish.sequences)
    }

    /// Half-blocks that one stage may have.
    pub(super) fn halves_max(&self) -> usize {
        match self.wish.layers_max {
            0 => self.halves.len(),
            layers => 2 * layers as usize,
        }
    }

    /// Tokens of an answer, at least one.
    pub(super) fn tokens(&self) -> u64 {
        self.wish.answer.max(1).into()
    }
}

/// Sums over half-blocks from the first on, so that every range costs one subtraction.
#[derive(Debug)]
pub(super) struct Sums {
    weights: Vec<u64>,
    macs: Vec<u64>,
    /// KV cache of all positions in one attention half-block.
    kv_each: u64,
}

impl Sums {
    /// # Errors
    /// The model has no whole number of layers, or is absurdly large.
    pub fn of(task: &Task) -> Result<Self, NoRoute> {
        let count = task.halves.len();
        if count == 0 || !count.is_multiple_of(2) || count > HALVES_MAX as usize {
            return Err(NoRoute::Shape { halves: count, most: HALVES_MAX });
        }
        let kv_each = u128::from(task.kv_bytes) * u128::from(task.positions());
        let all = task.halves.iter().chain([&task.ends]);
        let memory: u128 = all.clone().map(|work| u128::from(work.memory)).sum();
        let macs: u128 = all.map(|work| u128::from(work.macs)).sum();
        let most = (memory + kv_each.saturating_mul(count as u128)).max(macs);
        if most > u128::from(SUM_MAX) {
            return Err(NoRoute::TooLarge { most, max: SUM_MAX });
        }
        let sums = |cost: fn(&Work) -> u64| {
            let running = task.halves.iter().scan(0, |sum, work| {
                *sum += cost(work);
                Some(*sum)
            });
            [0].into_iter().chain(running).collect()
        };
        let kv_each = kv_each as u64;
        Ok(Self { weights: sums(|work| work.memory), macs: sums(|work| work.macs), kv_each })
    }

    /// Half-blocks in all.
    pub fn end(&self) -> u32 {
        (self.weights.len() - 1) as u32
    }

    /// Bytes of weights.
    pub fn weights(&self, halves: Halves) -> u64 {
        self.weights[halves.end as usize] - self.weights[halves.start as usize]
    }

    /// Multiply-adds a token.
    pub fn macs(&self, halves: Halves) -> u64 {
        self.macs[halves.end as usize] - self.macs[halves.start as usize]
    }

    /// Bytes of KV cache for all positions.
    pub fn kv(&self, halves: Halves) -> u64 {
        self.kv_each * halves.attentions() as u64
    }

    /// Bytes of both.
    pub fn both(&self, halves: Halves) -> u64 {
        self.weights(halves) + self.kv(halves)
    }
}
