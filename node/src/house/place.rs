//! Placement: who computes which part of a model, or why nobody can.
//!
//! [`place`] turns a [`Task`] and a [`Scene`] (this node, candidates with their offers, distances, and
//! what was refused lately) into a [`Plan`] or a [`NoRoute`]. This node keeps embedding, at least the
//! first layer, last norm and head. Of the rest it prefers the fewest stages, and does not split where
//! one node alone is faster; [`Plan::why`] says so with the figures.
//!
//! **Invariant:** a plan covers every half-block after the front exactly once, asks no node for more
//! memory than it offers, and asks nobody for what [`Refusals`] rules out. The same arguments give the
//! same plan.

mod alpha_beta;
mod case;
mod cost;
mod cuts;
mod explain;
mod plan;
mod pool;
mod refusals;
mod search;
mod task;
mod wish_cuts;

use thiserror::Error;
use wire::{Halves, Millis, NodeId, Offer};

pub use cost::{HOP_US, OVERHEAD_BYTES, Stock, Times};
pub use plan::{Alone, Plan, SPARES_MAX, Stage};
pub use pool::Sieved;
pub use refusals::{Refusals, Until};
pub use task::{Task, Wish};
pub use wish_cuts::{Cuts, Marks, NoCuts};

use case::{Case, Route};
use search::{Grain, Search};

use crate::house::fitness::{Belief, Rates};

/// Stages of a route whose ranges are not interleaved: each costs a hop and may fail.
pub const STAGES_MAX: u32 = 32;
/// A further stage must make an answer faster by this share of it, one in ten, to be worth its risk.
const GAIN: u64 = 10;

/// This node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Me {
    /// Who it is.
    pub node: NodeId,
    /// Memory that it gives to this model, bytes.
    pub memory_bytes: u64,
    /// How fast it computes, as measured.
    pub rates: Rates,
    /// Whether the model's file is here.
    pub whole: bool,
    /// What it holds of the model already, from the first half-block on, and will not change.
    pub front: Option<u32>,
}

/// Another node.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Who.
    pub node: NodeId,
    /// What it offers.
    pub offer: &'a Offer,
    /// Round trip to it, microseconds.
    pub rtt_us: u64,
    /// How far it is believed.
    pub belief: Belief,
}

/// What placement looks at.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Now.
    pub now: Millis,
    /// This node.
    pub me: Me,
    /// All others.
    pub candidates: &'a [Candidate<'a>],
    /// Round trip between two others, microseconds.
    pub roads: &'a dyn Fn(NodeId, NodeId) -> u64,
    /// What must not be asked.
    pub refusals: &'a Refusals,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoRoute {
    /// The model's table of work is no model's.
    #[error(
        "a model of {halves} half-blocks cannot be placed, only whole layers, and {most} half-blocks at most; make its manifest again"
    )]
    Shape {
        /// How many there are.
        halves: usize,
        /// How many there may be.
        most: u32,
    },
    /// The model's table of work, or what is promised, is absurd.
    #[error(
        "{most} bytes or operations are wanted, and {max} are the most that can be placed; promise fewer positions, or make the manifest again"
    )]
    TooLarge {
        /// How much is wanted.
        most: u128,
        /// How much may be.
        max: u64,
    },
    /// The model has no such half-block.
    #[error(
        "the model is to be cut before half-block {cut}, and it has {end}: 2 for each layer; ask for cuts below that"
    )]
    NoSuchCut {
        /// Where it is to be cut.
        cut: u32,
        /// Half-blocks of the model.
        end: u32,
    },
    /// This node cannot hold what it must keep.
    #[error("this node must keep both ends and the first layer, {} MB with caches for {positions} positions, and gives {} MB; give it more memory, or promise fewer positions", mb(*.needs), .has / 1_000_000)]
    FrontTooLarge {
        /// Bytes that it must hold.
        needs: u64,
        /// Bytes that it gives.
        has: u64,
        /// Positions of all sequences.
        positions: u64,
    },
    /// Nobody may take part.
    #[error("the model needs {} MB besides this node, and none of {offers} others can take part ({} of another version or class, {} expired, {} refused or failed lately, {} without free seats); wait, or invite other nodes", mb(*.needs), sieved.foreign, sieved.expired, sieved.refused, sieved.full)]
    Nobody {
        /// Bytes that others must hold.
        needs: u64,
        /// How many came.
        offers: usize,
        /// Why they were left out.
        sieved: Sieved,
    },
    /// There is not enough memory.
    #[error("the model needs {} MB besides this node, and {nodes} others together offer {} MB; invite more nodes, or promise fewer positions", mb(*.needs), .offered / 1_000_000)]
    TooLittle {
        /// Bytes that others must hold.
        needs: u64,
        /// Bytes that they offer.
        offered: u64,
        /// How many they are.
        nodes: usize,
    },
    /// There is enough memory, in the wrong places.
    #[error("{nodes} others offer {} MB where {} MB are needed, but no cut into {stages_min} to {stages_max} stages fits or was not refused lately; allow cuts within layers, ask for other stages, or promise fewer positions", .offered / 1_000_000, mb(*.needs))]
    NoCut {
        /// Bytes that others must hold.
        needs: u64,
        /// Bytes that they offer.
        offered: u64,
        /// How many they are.
        nodes: usize,
        /// Stages that there must be.
        stages_min: u32,
        /// Stages that there may be.
        stages_max: u32,
    },
}

/// Megabytes, rounded up.
fn mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// What was found, and what it is compared with.
struct Found {
    route: Route,
    /// One node alone: all here, or all but the front on one other.
    alone: Option<Route>,
    /// The best over two other nodes, where that was looked for.
    split: Option<Route>,
}

/// Places a model.
///
/// # Errors
/// Nothing fits; see [`NoRoute`].
pub fn place(task: &Task, scene: &Scene) -> Result<Plan, NoRoute> {
    let (case, sieved) = Case::of(task, scene)?;
    let mut searches = vec![Search::new(&case, Grain::Layers)];
    if task.wish.cuts == Cuts::Halves {
        searches.push(Search::new(&case, Grain::Halves));
    }
    let end = case.sums.end();
    if let Cuts::Before(marks) = task.wish.cuts
        && let Some(cut) = marks.iter().find(|mark| *mark >= end)
    {
        return Err(NoRoute::NoSuchCut { cut, end });
    }
    let over = |count: usize| searches.iter().find_map(|search| search.over(count));
    let simple = [over(0), over(1), over(2)];
    let alone = simple[..2].iter().flatten().min_by_key(|route| route.score).cloned();
    let split = simple[2].clone();
    let route = match task.wish.cuts {
        Cuts::AlphaBeta => alpha_beta::weave(&case, scene.me.front.unwrap_or(2)),
        Cuts::Before(marks) => Search::new(&case, Grain::Exact(marks)).over(marks.count()),
        Cuts::Layers | Cuts::Halves => {
            few(&case, &simple, task.wish.stages_min).or_else(|| many(&case, over))
        }
    };
    let Some(route) = route else { return Err(no_route(&case, sieved)) };
    Ok(Plan::of(&case, Found { route, alone, split }))
}

/// The best over up to two others. A further one must be worth it, and that more nodes fetch weights
/// in less time is not worth slower answers.
fn few(case: &Case, simple: &[Option<Route>; 3], stages_min: u32) -> Option<Route> {
    let allowed = simple.iter().skip(stages_min as usize).flatten();
    let worth = |new: &Route, old: &Route| {
        let faster = new.times.token_us() <= old.times.token_us();
        let sooner = case.stock(new) < case.stock(old);
        (faster || sooner) && new.score < old.score - old.score / GAIN
    };
    allowed.cloned().reduce(|old, new| if worth(&new, &old) { new } else { old })
}

/// The fewest that fit; where none do, attention and feed-forward apart.
fn many(case: &Case, over: impl Fn(usize) -> Option<Route>) -> Option<Route> {
    let fewest = case.task.wish.stages_min.max(3);
    let contiguous = (fewest..=STAGES_MAX).find_map(|count| over(count as usize));
    contiguous.or_else(|| {
        let fits = |end: &u32| case.sums.both(Halves { start: 0, end: *end }) <= case.front_room();
        let largest = || (2..case.sums.end()).step_by(2).take_while(fits).last();
        alpha_beta::weave(case, case.scene.me.front.or_else(largest)?)
    })
}

fn no_route(case: &Case, sieved: Sieved) -> NoRoute {
    let all = Halves { start: 0, end: case.sums.end() };
    let needs = case.sums.both(all).saturating_sub(case.front_room());
    let mut nodes: Vec<_> = case.ables.iter().map(|able| (able.node, able.room)).collect();
    nodes.dedup();
    let offered: u64 = nodes.iter().map(|(_, room)| *room).sum();
    let nodes = nodes.len();
    let held = case.ables.iter().any(|able| able.stock == Stock::Memory);
    if nodes == 0 {
        return NoRoute::Nobody { needs, offers: case.scene.candidates.len(), sieved };
    }
    if offered < needs && !held {
        return NoRoute::TooLittle { needs, offered, nodes };
    }
    let stages_min = case.task.wish.stages_min;
    NoRoute::NoCut { needs, offered, nodes, stages_min, stages_max: STAGES_MAX }
}

#[cfg(test)]
mod tests;
