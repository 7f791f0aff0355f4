//! Attention on some nodes (alpha), feed-forward on others (beta): a route of many short ranges.

use std::collections::BTreeSet;

use wire::Halves;

use super::case::{Case, Rooms, Route};
use super::cost::{Stock, read_us};

/// Nodes of which any two may begin: 240 pairs.
const FIRST_MAX: usize = 16;

/// The best such route that is found, with this node's front up to `front_end`, the end of a layer.
pub(super) fn weave(case: &Case, front_end: u32) -> Option<Route> {
    // What a node holds already is one range, and of no use here.
    let fresh = (0..case.ables.len()).filter(|i| case.ables[*i].stock != Stock::Memory);
    let all: Vec<usize> = fresh.collect();
    let first = &all[..all.len().min(FIRST_MAX)];
    let pairs = first.iter().flat_map(|a| first.iter().map(|b| (*a, *b)));
    let routes = pairs.filter(|(a, b)| a != b).filter_map(|(alpha, beta)| {
        let mut weaving = Weaving {
            case,
            all: &all,
            used: BTreeSet::from([alpha, beta]),
            rooms: Rooms::default(),
            stages: Vec::new(),
        };
        weaving.fill(front_end, alpha, beta)?;
        // Who asks for many stages asks for many nodes.
        let nodes: BTreeSet<_> = weaving.stages.iter().map(|(i, _)| *i).collect();
        let enough = nodes.len() >= case.task.wish.stages_min as usize;
        let front = Halves { start: 0, end: front_end };
        enough.then(|| case.route(front, weaving.stages)).flatten()
    });
    routes.min_by_key(|route| route.score)
}

struct Weaving<'a> {
    case: &'a Case<'a>,
    all: &'a [usize],
    /// Who has a role: nobody gets two, and who is full does not come again.
    used: BTreeSet<usize>,
    rooms: Rooms,
    stages: Vec<(usize, Halves)>,
}

impl Weaving<'_> {
    /// Gives out every half-block; who is full is followed by the best that is left.
    fn fill(&mut self, front_end: u32, mut alpha: usize, mut beta: usize) -> Option<()> {
        for start in front_end..self.case.sums.end() {
            let halves = Halves { start, end: start + 1 };
            let (role, other) = match start.is_multiple_of(2) {
                true => (&mut alpha, beta),
                false => (&mut beta, alpha),
            };
            let mut who = *role;
            while !self.gives(who, halves) {
                who = self.next(other, halves)?;
                self.used.insert(who);
            }
            *role = who;
        }
        Some(())
    }

    fn gives(&mut self, who: usize, halves: Halves) -> bool {
        let given = self.rooms.take(&self.case.sums, &self.case.ables[who], halves).is_some();
        if given {
            self.stages.push((who, halves));
        }
        given
    }

    fn next(&self, other: usize, halves: Halves) -> Option<usize> {
        let weights = self.case.sums.weights(halves);
        let able = |i: &usize| {
            !self.used.contains(i) && self.case.ables[*i].takes(&self.case.sums, halves)
        };
        let cost = |i: &usize| {
            let read = read_us(weights, self.case.ables[*i].rates);
            (read.saturating_add(self.case.hop_us(*i + 1, other + 1)), *i)
        };
        self.all.iter().copied().filter(able).min_by_key(cost)
    }
}
