//! Who may take part, and with what: from many candidates to a few dozen that are worth a search.

use std::collections::BTreeSet;

use wire::{Halves, Health, ManifestId, NodeId};

use super::cost::{OVERHEAD_BYTES, Stock};
use super::task::{Sums, Task};
use super::{Candidate, Scene};
use crate::house::fitness::{Purpose, Rates, fitness};

/// Of the fittest so many are looked at...
const FITTEST: usize = 16;
/// ...and of those with the most memory...
const ROOMIEST: usize = 10;
/// ...and of those who hold a part of the model already.
const HOLDERS: usize = 8;
/// Ranges of the model in memory that are looked at a node.
const RANGES: usize = 2;
/// Ways to take part in all: with more than these a search would take too long.
const ABLE_MAX: usize = 48;

/// One way in which a node can take part. A node that holds a range of the model has one for what it
/// holds, and one for anything else.
#[derive(Debug, Clone)]
pub(super) struct Able {
    pub node: NodeId,
    pub rates: Rates,
    pub rtt_us: u64,
    pub stock: Stock,
    /// Where its range must lie.
    pub within: Halves,
    /// Half-blocks that its range may have at most.
    pub halves_max: usize,
    /// Memory that it offers, bytes.
    pub room: u64,
    /// Whether there is room for the caches in what it holds, so that they need none of `room`.
    pub caches_there: bool,
    /// Ranges that it refused: none that covers one of them is asked for.
    pub refused: Vec<Halves>,
}

/// Why candidates were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sieved {
    /// Who speak another protocol or compute in another class.
    pub foreign: usize,
    /// Whose offer does not hold any more.
    pub expired: usize,
    /// Who refused or failed lately.
    pub refused: usize,
    /// Who have no seat for so many sequences.
    pub full: usize,
}

impl Able {
    /// Memory that `halves` take of what the node offers, beside what counts once a node.
    pub fn memory(&self, sums: &Sums, halves: Halves) -> u64 {
        match (self.stock, self.caches_there) {
            (Stock::Memory, true) => 0,
            (Stock::Memory, false) => sums.kv(halves),
            (Stock::Disk | Stock::Network, _) => sums.both(halves),
        }
    }

    /// What counts once a node, however many ranges it takes.
    pub fn overhead(&self) -> u64 {
        match self.stock {
            Stock::Memory => 0,
            Stock::Disk | Stock::Network => OVERHEAD_BYTES,
        }
    }

    /// Whether it may be asked for `halves`, memory aside.
    pub fn permits(&self, halves: Halves) -> bool {
        self.within.covers(halves)
            && halves.count() <= self.halves_max
            && !self.refused.iter().any(|refused| halves.covers(*refused))
    }

    /// Whether it may be asked for `halves`, and nothing else.
    pub fn takes(&self, sums: &Sums, halves: Halves) -> bool {
        self.permits(halves) && self.memory(sums, halves) + self.overhead() <= self.room
    }
}

/// Those who may take part, and how many were left out for which reason.
pub(super) fn pool(task: &Task, scene: &Scene) -> (Vec<Able>, Sieved) {
    let mut sieved = Sieved::default();
    let mut seen = BTreeSet::from([scene.me.node]);
    let mut fit = Vec::new();
    for candidate in scene.candidates {
        if !seen.insert(candidate.node) || !passes(task, scene, candidate, &mut sieved) {
            continue;
        }
        let Some(health) = &candidate.offer.health else { continue };
        let rates = candidate.belief.of(Rates::claimed(health));
        fit.push((judged(task, candidate, health, rates), rates, candidate));
    }
    fit.sort_by_key(|(fit, _, candidate)| (std::cmp::Reverse(*fit), candidate.node));
    let mut chosen: BTreeSet<usize> = (0..fit.len().min(FITTEST)).collect();
    let mut roomy: Vec<usize> = (0..fit.len()).collect();
    roomy.sort_by_key(|i| std::cmp::Reverse(fit[*i].2.offer.memory_free_mb));
    chosen.extend(roomy.iter().take(ROOMIEST));
    let holds = |i: &usize| held(fit[*i].2, task.manifest).next().is_some();
    chosen.extend((0..fit.len()).filter(holds).take(HOLDERS));
    let each = chosen.into_iter().flat_map(|i| able(task, scene, fit[i].2, fit[i].1));
    (each.take(ABLE_MAX).collect(), sieved)
}

fn judged(task: &Task, candidate: &Candidate, health: &Health, rates: Rates) -> u32 {
    let purpose = match task.wish.prompt / 8 > task.wish.answer {
        true => Purpose::Prefill,
        false => Purpose::Decode,
    };
    // What is free for models is what counts here, not what is free in all.
    let health = Health { ram_free_mb: candidate.offer.memory_free_mb, ..health.clone() };
    fitness(&health, rates, candidate.rtt_us, purpose)
}

fn passes(task: &Task, scene: &Scene, candidate: &Candidate, sieved: &mut Sieved) -> bool {
    let offer = candidate.offer;
    let why = if offer.protocol != task.protocol || offer.class != task.class {
        &mut sieved.foreign
    } else if offer.expires() <= scene.now {
        &mut sieved.expired
    } else if scene.refusals.forbids_node(candidate.node, scene.now) {
        &mut sieved.refused
    } else if offer.seats_free < task.wish.sequences {
        &mut sieved.full
    } else {
        return true;
    };
    *why += 1;
    false
}

/// Ranges of the model that a candidate holds, with the positions that there is room for.
fn held<'a>(
    candidate: &'a Candidate,
    manifest: ManifestId,
) -> impl Iterator<Item = (Halves, u64)> + 'a {
    let its = candidate.offer.held.iter().filter(move |held| held.manifest == manifest.0);
    its.filter_map(|held| Some((held.halves?, u64::from(held.positions_free))))
}

/// The ways in which a candidate can take part, what it holds first.
fn able(task: &Task, scene: &Scene, candidate: &Candidate, rates: Rates) -> Vec<Able> {
    let has_file = candidate.offer.has_file(task.manifest);
    let fresh = Able {
        node: candidate.node,
        rates,
        rtt_us: candidate.rtt_us,
        stock: if has_file { Stock::Disk } else { Stock::Network },
        within: Halves::new(0, task.halves.len()),
        halves_max: task.halves_max(),
        room: u64::from(candidate.offer.memory_free_mb) * 1_000_000,
        caches_there: false,
        refused: scene.refusals.ranges(candidate.node, task.manifest, scene.now),
    };
    let mut ranges: Vec<_> = held(candidate, task.manifest).collect();
    ranges.sort_by_key(|(halves, _)| std::cmp::Reverse(halves.count()));
    let kept = ranges.into_iter().take(RANGES).map(|(within, positions)| Able {
        stock: Stock::Memory,
        within,
        caches_there: positions >= task.positions(),
        ..fresh.clone()
    });
    let mut all: Vec<_> = kept.collect();
    all.push(fresh);
    all
}
