//! A plan: who computes what, who stands by, and what it will take.

use std::collections::BTreeSet;

use wire::{Halves, ManifestId, NodeId};

use super::Found;
use super::case::{Case, Rooms};
use super::cost::{OVERHEAD_BYTES, Stock, Times, read_us};
use super::explain::why;

/// Nodes that stand by for a stage.
pub const SPARES_MAX: usize = 2;

/// Who computes which part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Which model.
    pub manifest: ManifestId,
    /// What this node computes, beside both ends: from the first half-block on, at least a layer.
    pub front: Halves,
    /// Memory that front and ends take here, caches and [`OVERHEAD_BYTES`] among it.
    pub front_bytes: u64,
    /// What others compute, in order; none where all is here.
    pub stages: Vec<Stage>,
    /// What it will take.
    pub times: Times,
    /// What one node alone would take, where one could.
    pub alone: Option<Alone>,
    /// Why it is as it is, for people.
    pub why: String,
}

/// A range on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Who computes it.
    pub node: NodeId,
    /// Which half-blocks.
    pub halves: Halves,
    /// What it takes of the memory that the node offers: nothing of what it holds already.
    pub memory_bytes: u64,
    /// Where its weights come from.
    pub stock: Stock,
    /// Computing a token there, microseconds.
    pub compute_us: u64,
    /// Round trip to the node from the one before, microseconds.
    pub rtt_us: u64,
    /// Who computes it, too, where more than one replica is wanted.
    pub twins: Vec<NodeId>,
    /// Who stands by, the best first.
    pub spares: Vec<NodeId>,
}

/// One node alone, with this one for the ends and the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone {
    /// Which; this one where all is here.
    pub node: NodeId,
    /// What it would take.
    pub times: Times,
}

impl Plan {
    pub(super) fn of(case: &Case, found: Found) -> Self {
        let alone = found.alone.as_ref().map(|route| {
            let other = route.stages.first().map(|(i, _)| case.ables[*i].node);
            Alone { node: other.unwrap_or(case.scene.me.node), times: route.times }
        });
        let front = found.route.front;
        let ends = case.task.ends.memory + OVERHEAD_BYTES;
        let stages = stages(case, &found.route.stages);
        Self {
            manifest: case.task.manifest,
            front,
            front_bytes: ends + case.sums.both(front),
            why: why(case, &found, &stages),
            stages,
            times: found.route.times,
            alone,
        }
    }
}

/// The stages of a route, with twins and then spares from the memory that is left.
fn stages(case: &Case, route: &[(usize, Halves)]) -> Vec<Stage> {
    let mut rest = Rest { case, route, rooms: Rooms::default() };
    let mut stages: Vec<_> = (0..route.len()).map(|at| rest.stage(at)).collect();
    let used: BTreeSet<_> = stages.iter().map(|stage| stage.node).collect();
    let twins = (case.task.wish.replicas.clamp(1, 3) - 1) as usize;
    for (at, stage) in stages.iter_mut().enumerate() {
        stage.twins = rest.standing_by(at, twins, &used, &used);
    }
    for (at, stage) in stages.iter_mut().enumerate() {
        let mut taken = BTreeSet::from([stage.node]);
        taken.extend(&stage.twins);
        let spares = (case.task.wish.spares as usize).min(SPARES_MAX);
        stage.spares = rest.standing_by(at, spares, &taken, &used);
    }
    stages
}

/// A route, and the memory that it leaves.
struct Rest<'a> {
    case: &'a Case<'a>,
    route: &'a [(usize, Halves)],
    rooms: Rooms,
}

impl Rest<'_> {
    /// A stage by itself.
    fn stage(&mut self, at: usize) -> Stage {
        let (i, halves) = self.route[at];
        let (case, able) = (self.case, &self.case.ables[i]);
        let memory_bytes = self.rooms.take(&case.sums, able, halves);
        Stage {
            node: able.node,
            halves,
            memory_bytes: memory_bytes.expect("the route was found under the same bounds"),
            stock: able.stock,
            compute_us: read_us(case.sums.weights(halves), able.rates),
            rtt_us: case.rtt_us(before(self.route, at), i + 1),
            twins: Vec::new(),
            spares: Vec::new(),
        }
    }

    /// Up to `count` that are not `taken` and could compute a stage, the best first, and those in `used`
    /// after all others, for their loss would cost a stage and a spare at once. Memory is set aside
    /// for them.
    fn standing_by(
        &mut self,
        at: usize,
        count: usize,
        taken: &BTreeSet<NodeId>,
        used: &BTreeSet<NodeId>,
    ) -> Vec<NodeId> {
        let (case, halves) = (self.case, self.route[at].1);
        let free = |i: &usize| {
            let able = &case.ables[*i];
            able.permits(halves) && !taken.contains(&able.node)
        };
        let mut others: Vec<usize> = (0..case.ables.len()).filter(free).collect();
        others.sort_by_cached_key(|i| {
            let node = case.ables[*i].node;
            (used.contains(&node), self.cost(at, *i), node)
        });
        let mut chosen = Vec::new();
        for able in others.into_iter().map(|i| &case.ables[i]) {
            if chosen.len() < count
                && !chosen.contains(&able.node)
                && self.rooms.take(&case.sums, able, halves).is_some()
            {
                chosen.push(able.node);
            }
        }
        chosen
    }

    /// What a stage would cost on another node.
    fn cost(&self, at: usize, i: usize) -> u64 {
        let (case, able, halves) = (self.case, &self.case.ables[i], self.route[at].1);
        let to = self.route.get(at + 1).map_or(0, |(i, _)| i + 1);
        let network_us =
            case.hop_us(before(self.route, at), i + 1).saturating_add(case.hop_us(i + 1, to));
        let weights = case.sums.weights(halves);
        let (compute_us, ready_us) = (read_us(weights, able.rates), able.stock.ready_us(weights));
        let times = Times { compute_us, network_us, ready_us, ..Times::default() };
        times.score(case.task.tokens())
    }
}

/// Who sends to a stage, as distances count.
fn before(route: &[(usize, Halves)], at: usize) -> usize {
    at.checked_sub(1).map_or(0, |before| route[before].0 + 1)
}
