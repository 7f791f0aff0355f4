//! A task with all who may take part, and what any route over them takes.

use std::collections::BTreeMap;

use wire::{Halves, NodeId};

use super::cost::{OVERHEAD_BYTES, Stock, Times, hop_us, read_us, rows_us};
use super::pool::{Able, Sieved, pool};
use super::task::{Sums, Task};
use super::{NoRoute, Scene};

/// A task, who may take part, and how far they are from one another.
pub(super) struct Case<'a> {
    pub task: &'a Task,
    pub scene: &'a Scene<'a>,
    pub sums: Sums,
    pub ables: Vec<Able>,
    /// Round trips: this node first, then those able.
    rtt: Vec<Vec<u64>>,
}

/// Who computes what: indices of those able, and half-blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub front: Halves,
    pub stages: Vec<(usize, Halves)>,
    pub times: Times,
    pub score: u64,
}

/// Memory that is left while parts are given out.
#[derive(Clone, Default)]
pub(super) struct Rooms(BTreeMap<NodeId, Taken>);

#[derive(Clone, Copy, Default)]
struct Taken {
    bytes: u64,
    overhead: u64,
}

impl<'a> Case<'a> {
    /// # Errors
    /// The model's table cannot be right, or this node cannot hold what it must.
    pub fn of(task: &'a Task, scene: &'a Scene<'a>) -> Result<(Self, Sieved), NoRoute> {
        let sums = Sums::of(task)?;
        let needs = task.ends.memory + sums.both(Halves::new(0, 2)) + OVERHEAD_BYTES;
        let has = scene.me.memory_bytes;
        if has < needs {
            return Err(NoRoute::FrontTooLarge { needs, has, positions: task.positions() });
        }
        let (ables, sieved) = pool(task, scene);
        let rtt = distances(scene, &ables);
        Ok((Self { task, scene, sums, ables, rtt }, sieved))
    }

    /// Memory here for the front's weights and caches.
    pub fn front_room(&self) -> u64 {
        self.scene.me.memory_bytes - self.task.ends.memory - OVERHEAD_BYTES
    }

    /// Round trip between two: 0 is this node, 1 + i the i-th of those able.
    pub fn rtt_us(&self, from: usize, to: usize) -> u64 {
        self.rtt[from][to]
    }

    /// One hop between two, counted as above.
    pub fn hop_us(&self, from: usize, to: usize) -> u64 {
        hop_us(self.rtt[from][to])
    }

    /// Whether these, in this order, failed lately.
    pub fn refused(&self, stages: &[(usize, Halves)]) -> bool {
        let nodes = stages.iter().map(|(i, _)| self.ables[*i].node);
        self.scene.refusals.forbids_route(self.task.manifest, nodes, self.scene.now)
    }

    /// Where most of a route's weights come from, at worst.
    pub fn stock(&self, route: &Route) -> Stock {
        let others = route.stages.iter().map(|(i, _)| self.ables[*i].stock).max();
        others.unwrap_or(self.own_stock())
    }

    fn own_stock(&self) -> Stock {
        if self.scene.me.whole { Stock::Disk } else { Stock::Network }
    }

    /// A route with what it takes, unless it failed lately.
    pub fn route(&self, front: Halves, stages: Vec<(usize, Halves)>) -> Option<Route> {
        if self.refused(&stages) {
            return None;
        }
        let times = self.times(front, &stages);
        Some(Route { front, score: times.score(self.task.tokens()), stages, times })
    }

    fn times(&self, front: Halves, stages: &[(usize, Halves)]) -> Times {
        let (task, me) = (self.task, &self.scene.me);
        let here = task.ends.memory + self.sums.weights(front);
        let mut compute_us = read_us(here, me.rates);
        let macs = self.sums.macs(front);
        let mut prefill_us = rows_us(macs, task.wish.prompt.max(1), me.rates)
            .saturating_add(rows_us(task.ends.macs, 1, me.rates));
        let mut network_us: u64 = 0;
        let mut loads: BTreeMap<usize, u64> = BTreeMap::new();
        let mut last = 0;
        for (i, halves) in stages {
            let rates = self.ables[*i].rates;
            let weights = self.sums.weights(*halves);
            compute_us = compute_us.saturating_add(read_us(weights, rates));
            let rows = rows_us(self.sums.macs(*halves), task.wish.prompt.max(1), rates);
            prefill_us = prefill_us.saturating_add(rows);
            network_us = network_us.saturating_add(self.hop_us(last, i + 1));
            *loads.entry(*i).or_default() += weights;
            last = i + 1;
        }
        if last > 0 {
            network_us = network_us.saturating_add(self.hop_us(last, 0));
        }
        let others = loads.iter().map(|(i, bytes)| self.ables[*i].stock.ready_us(*bytes));
        let ready_us = others.fold(self.own_stock().ready_us(here), u64::max);
        let first_token_us = prefill_us.saturating_add(network_us);
        Times { compute_us, network_us, first_token_us, ready_us }
    }
}

fn distances(scene: &Scene, ables: &[Able]) -> Vec<Vec<u64>> {
    let count = ables.len() + 1;
    let mut rtt = vec![vec![0; count]; count];
    for a in 0..ables.len() {
        (rtt[0][a + 1], rtt[a + 1][0]) = (ables[a].rtt_us, ables[a].rtt_us);
        for b in 0..a {
            if ables[a].node != ables[b].node {
                let us = (scene.roads)(ables[a].node, ables[b].node);
                (rtt[a + 1][b + 1], rtt[b + 1][a + 1]) = (us, us);
            }
        }
    }
    rtt
}

impl Rooms {
    /// Sets memory aside for `halves`, if the node has it, and says how much.
    pub fn take(&mut self, sums: &Sums, able: &Able, halves: Halves) -> Option<u64> {
        let taken = self.0.get(&able.node).copied().unwrap_or_default();
        let overhead = able.overhead().saturating_sub(taken.overhead);
        let more = able.memory(sums, halves) + overhead;
        if !able.permits(halves) || taken.bytes + more > able.room {
            return None;
        }
        let overhead = taken.overhead + overhead;
        self.0.insert(able.node, Taken { bytes: taken.bytes + more, overhead });
        Some(more)
    }
}
