//! Where to cut for nodes in a given order.
//!
//! The best cuts are found exactly, in time linear in the marks there are: the cost of a range is a
//! difference of sums, and how far a node's memory reaches from a start never falls as the start moves
//! on, so the best start for each end is the minimum of a sliding window.

use std::collections::VecDeque;

use wire::{Halves, Work};

use super::case::Case;
use super::cost::weight_ns;
use super::pool::Able;
use crate::house::fitness::Rates;

/// What no cut costs.
pub(super) const NEVER: i128 = i128::MAX;

/// What marks mean to one node.
pub(super) struct Line {
    /// Cost of all before a mark.
    pub cost: Vec<i128>,
    /// The last mark that a range from here can end at; the mark itself where there is none.
    pub reach: Vec<usize>,
}

/// The least cost up to each mark, and where the last range then begins.
#[derive(Clone)]
pub(super) struct Level {
    pub cost: Vec<i128>,
    pub from: Vec<usize>,
    /// The least of all.
    pub least: i128,
}

fn costs(case: &Case, marks: &[u32], rates: Rates) -> Vec<i128> {
    let (rows, tokens) = (case.task.wish.prompt.max(1), case.task.tokens());
    let before = |mark: &u32| {
        let halves = Halves { start: 0, end: *mark };
        let work = Work { memory: case.sums.weights(halves), macs: case.sums.macs(halves) };
        weight_ns(work, rows, tokens, rates)
    };
    marks.iter().map(before).collect()
}

/// What marks mean to a node.
pub(super) fn line(case: &Case, marks: &[u32], able: &Able) -> Line {
    let mut reach = Vec::with_capacity(marks.len());
    let mut b = 0;
    for a in 0..marks.len() {
        b = b.max(a);
        let takes = |b: usize| able.takes(&case.sums, Halves { start: marks[a], end: marks[b] });
        while b + 1 < marks.len() && takes(b + 1) {
            b += 1;
        }
        reach.push(b);
    }
    Line { cost: costs(case, marks, able.rates), reach }
}

/// This node's part: what it costs up to each mark, where that fits here.
pub(super) fn front(case: &Case, marks: &[u32]) -> Level {
    let mut cost = costs(case, marks, case.scene.me.rates);
    for (mark, cost) in marks.iter().zip(&mut cost) {
        let halves = Halves { start: 0, end: *mark };
        let fixed = case.scene.me.front.is_some_and(|end| end != *mark);
        if *mark < 2 || fixed || case.sums.both(halves) > case.front_room() {
            *cost = NEVER;
        }
    }
    Level { from: vec![0; cost.len()], least: 0, cost }
}

/// The least costs after one more stage.
pub(super) fn extend(before: &Level, line: &Line) -> Level {
    let count = before.cost.len();
    let (mut cost, mut from) = (vec![NEVER; count], vec![0; count]);
    let mut least = NEVER;
    // Starts that may still be the best, the best first: what they cost without what lies before them.
    let mut window: VecDeque<(usize, i128)> = VecDeque::new();
    for b in 1..count {
        if before.cost[b - 1] != NEVER {
            let start = before.cost[b - 1] - line.cost[b - 1];
            while window.back().is_some_and(|(_, worse)| *worse >= start) {
                window.pop_back();
            }
            window.push_back((b - 1, start));
        }
        while window.front().is_some_and(|(a, _)| line.reach[*a] < b) {
            window.pop_front();
        }
        if let Some((a, start)) = window.front() {
            (cost[b], from[b]) = (start + line.cost[b], *a);
            least = least.min(cost[b]);
        }
    }
    Level { cost, from, least }
}

/// Where the last stage should begin, and what all costs then.
pub(super) fn close(before: &Level, line: &Line) -> Option<(usize, i128)> {
    let end = line.cost.len() - 1;
    let fits = (0..end).rev().take_while(|a| line.reach[*a] == end);
    let open = fits.filter(|a| before.cost[*a] != NEVER);
    let each = open.map(|a| (a, before.cost[a] - line.cost[a] + line.cost[end]));
    each.min_by_key(|(_, cost)| *cost)
}
