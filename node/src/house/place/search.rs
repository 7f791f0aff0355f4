//! The search for contiguous routes: which nodes in which order.
//!
//! The best cuts for an order come from [`super::cuts`]. Orders of few nodes are all tried; of many, one
//! is built and improved.

use wire::Halves;

use super::Marks;
use super::case::{Case, Route};
use super::cuts::{Level, Line, NEVER, close, extend, front, line};

/// Work of trying all orders of nodes, in orders times marks: some milliseconds.
const TRIED_MAX: usize = 1_000_000;
/// Work of improving one long route, in stages times marks: some ten milliseconds.
const CLIMBED_MAX: usize = 4_000_000;
/// Up to so many stages orders are tried one by one; of more, only the best of few nodes could be.
const EXACT_STAGES: usize = 4;
/// Work of moving single cuts, in stages times cuts tried.
const POLISHED_MAX: usize = 100_000;
/// Rounds of improvement.
const ROUNDS: usize = 3;

/// How fine cuts may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    Layers,
    Halves,
    /// Just before these half-blocks, and nowhere else.
    Exact(Marks),
}

/// A search among cuts of one grain.
pub(super) struct Search<'a> {
    case: &'a Case<'a>,
    /// Half-blocks at which may be cut, both ends among them.
    marks: Vec<u32>,
    lines: Vec<Line>,
    /// How much a node could take at most, in marks, for each of those able.
    spans: Vec<usize>,
    front: Level,
}

/// What is tried.
struct Trial {
    order: Vec<usize>,
    levels: Vec<Level>,
    network_us: u64,
    best: Option<Route>,
}

impl<'a> Search<'a> {
    pub fn new(case: &'a Case<'a>, grain: Grain) -> Self {
        let end = case.sums.end();
        let marks: Vec<u32> = match grain {
            Grain::Layers => (0..=end).step_by(2).collect(),
            Grain::Halves => (0..=end).collect(),
            Grain::Exact(marks) => [0].into_iter().chain(marks.iter()).chain([end]).collect(),
        };
        let lines: Vec<_> = case.ables.iter().map(|able| line(case, &marks, able)).collect();
        let span = |line: &Line| line.reach.iter().enumerate().map(|(a, b)| b - a).max();
        let spans = lines.iter().map(|line| span(line).unwrap_or(0)).collect();
        let front = front(case, &marks);
        Self { case, marks, lines, spans, front }
    }

    /// Everything here, if that is possible.
    pub fn here(&self) -> Option<Route> {
        let fits = *self.front.cost.last()? != NEVER;
        fits.then(|| self.case.route(self.halves(0, self.end()), Vec::new())).flatten()
    }

    /// The best route found over `count` other nodes.
    pub fn over(&self, count: usize) -> Option<Route> {
        if count == 0 {
            return self.here();
        }
        if !self.could_reach(count) {
            return None;
        }
        let among = self.shortlist(count);
        let tried = (among.len() >= count).then(|| self.try_all(count, &among)).flatten();
        let climbed = (among.len() < self.lines.len()).then(|| self.climb(count)).flatten();
        let best = [tried, climbed].into_iter().flatten().min_by_key(|route| route.score)?;
        Some(self.polished(best))
    }

    /// Moves single cuts as long as that helps: waits for weights are no sums, so the search of cuts
    /// does not know them.
    fn polished(&self, mut best: Route) -> Route {
        let mut left = POLISHED_MAX / best.stages.len();
        for _ in 0..ROUNDS {
            let before = best.score;
            for at in 0..best.stages.len() {
                for mark in 0..self.marks.len() {
                    if let Some(route) = self.moved(&best, at, mark)
                        && left > 0
                    {
                        left -= 1;
                        best = if route.score < best.score { route } else { best };
                    }
                }
            }
            if best.score == before {
                break;
            }
        }
        best
    }

    /// The route with its cut before stage `at` moved to a mark, if that fits.
    fn moved(&self, route: &Route, at: usize, mark: usize) -> Option<Route> {
        let (mut front, mut stages) = (route.front, route.stages.clone());
        let cut = self.marks[mark];
        stages[at].1.start = cut;
        let fits = |(i, halves): (usize, Halves)| {
            halves.count() > 0 && self.case.ables[i].takes(&self.case.sums, halves)
        };
        let before = match at.checked_sub(1) {
            Some(before) => {
                stages[before].1.end = cut;
                fits(stages[before])
            }
            None => {
                front.end = cut;
                self.front.cost[mark] != NEVER
            }
        };
        (before && fits(stages[at])).then(|| self.case.route(front, stages)).flatten()
    }

    fn end(&self) -> usize {
        self.marks.len() - 1
    }

    fn halves(&self, from: usize, to: usize) -> Halves {
        Halves { start: self.marks[from], end: self.marks[to] }
    }

    /// Whether the longest ranges of `count` nodes together could be enough.
    fn could_reach(&self, count: usize) -> bool {
        let mut spans = self.spans.clone();
        spans.sort_unstable_by_key(|span| std::cmp::Reverse(*span));
        let here = (0..=self.end()).rev().find(|b| self.front.cost[*b] != NEVER).unwrap_or(0);
        here > 0 && here + spans.iter().take(count).sum::<usize>() >= self.end()
    }

    /// So many of those able that all orders of `count` of them can be tried: the roomiest and the
    /// fastest by turns.
    fn shortlist(&self, count: usize) -> Vec<usize> {
        let all = self.lines.len();
        let orders =
            |n: usize| (0..count).map(|i| n.saturating_sub(i)).fold(1, usize::saturating_mul);
        let orders_max = TRIED_MAX / self.marks.len();
        if orders(all) <= orders_max {
            return (0..all).collect();
        }
        if count > EXACT_STAGES {
            return Vec::new();
        }
        let most = (count..all).take_while(|n| orders(*n) <= orders_max).last().unwrap_or(0);
        let mut fast: Vec<usize> = (0..all).collect();
        let tokens = self.case.task.tokens();
        fast.sort_by_cached_key(|i| {
            let way = 2 * i128::from(self.case.hop_us(0, i + 1)) * i128::from(tokens);
            way + self.lines[*i].cost[self.end()] / 1000
        });
        let mut roomy: Vec<usize> = (0..all).collect();
        roomy.sort_by_key(|i| std::cmp::Reverse(self.spans[*i]));
        let mut chosen = Vec::new();
        for i in fast.iter().zip(&roomy).flat_map(|(fast, roomy)| [*fast, *roomy]) {
            if chosen.len() < most && !chosen.contains(&i) {
                chosen.push(i);
            }
        }
        chosen
    }

    fn try_all(&self, count: usize, among: &[usize]) -> Option<Route> {
        let levels = vec![self.front.clone()];
        let mut trial = Trial { order: Vec::new(), levels, network_us: 0, best: None };
        self.descend(count, among, &mut trial);
        trial.best
    }

    /// Tries everyone as the next stage of what was begun.
    fn descend(&self, count: usize, among: &[usize], trial: &mut Trial) {
        let before = trial.network_us;
        for &i in among {
            if trial.order.iter().any(|j| self.same_node(i, *j)) {
                continue;
            }
            trial.network_us = before.saturating_add(self.case.hop_us(last(&trial.order), i + 1));
            trial.order.push(i);
            if trial.order.len() == count {
                self.finish(trial);
            } else {
                let level = trial.levels.last().expect("the front is there");
                let level = extend(level, &self.lines[i]);
                if level.least != NEVER && self.promising(trial, level.least) {
                    trial.levels.push(level);
                    self.descend(count, among, trial);
                    trial.levels.pop();
                }
            }
            trial.order.pop();
        }
        trial.network_us = before;
    }

    /// Whether a route that costs this much so far can still become the best.
    fn promising(&self, trial: &Trial, cost: i128) -> bool {
        let network = trial.network_us.saturating_mul(self.case.task.tokens());
        let compute = u64::try_from(cost / 1000).unwrap_or(u64::MAX);
        let least = network.saturating_add(compute);
        trial.best.as_ref().is_none_or(|best| least < best.score)
    }

    /// Ends a route with the last in the order, and keeps it if it is the best so far.
    fn finish(&self, trial: &mut Trial) {
        let before = trial.levels.last().expect("the front is there");
        let i = *trial.order.last().expect("somebody was put there");
        let Some((from, cost)) = close(before, &self.lines[i]) else { return };
        trial.network_us = trial.network_us.saturating_add(self.case.hop_us(i + 1, 0));
        if !self.promising(trial, cost) {
            return;
        }
        let mut stages = Vec::with_capacity(trial.order.len());
        let (mut start, mut end) = (from, self.end());
        for (&i, level) in trial.order.iter().zip(&trial.levels).rev() {
            stages.push((i, self.halves(start, end)));
            (end, start) = (start, level.from[start]);
        }
        stages.reverse();
        let route = self.case.route(self.halves(0, end), stages);
        if let Some(route) = route
            && trial.best.as_ref().is_none_or(|best| route.score < best.score)
        {
            trial.best = Some(route);
        }
    }

    fn same_node(&self, i: usize, j: usize) -> bool {
        self.case.ables[i].node == self.case.ables[j].node
    }

    /// The best cuts for one order.
    fn along(&self, order: &[usize]) -> Option<Route> {
        let mut trial = Trial {
            order: order.to_vec(),
            levels: vec![self.front.clone()],
            network_us: 0,
            best: None,
        };
        let mut at = 0;
        for &i in order {
            trial.network_us = trial.network_us.saturating_add(self.case.hop_us(at, i + 1));
            at = i + 1;
            if trial.levels.len() < order.len() {
                let level = extend(trial.levels.last()?, &self.lines[i]);
                if level.least == NEVER {
                    return None;
                }
                trial.levels.push(level);
            }
        }
        self.finish(&mut trial);
        trial.best
    }

    /// A route that is built step by step and then improved by exchanging nodes and by swapping
    /// neighbours.
    fn climb(&self, count: usize) -> Option<Route> {
        let begun = [self.strides(count), self.roomiest(count)];
        let begun = begun.into_iter().flatten().filter_map(|order| self.along(&order));
        let mut best = begun.min_by_key(|route| route.score)?;
        let mut left = CLIMBED_MAX / (count * self.marks.len());
        for _ in 0..ROUNDS {
            let before = best.score;
            for at in 0..count {
                for i in 0..self.lines.len() {
                    let mut order: Vec<usize> = best.stages.iter().map(|(i, _)| *i).collect();
                    order[at] = i;
                    self.better(&mut best, &order, &mut left);
                }
                let mut order: Vec<usize> = best.stages.iter().map(|(i, _)| *i).collect();
                order.swap(at, (at + 1) % count);
                self.better(&mut best, &order, &mut left);
            }
            if best.score == before {
                break;
            }
        }
        Some(best)
    }

    /// Takes `order` if no node is in it twice, it is better, and there is work left to find out.
    fn better(&self, best: &mut Route, order: &[usize], left: &mut usize) {
        let twice = |at: usize| order[..at].iter().any(|j| self.same_node(order[at], *j));
        if *left == 0 || (0..order.len()).any(twice) {
            return;
        }
        *left -= 1;
        if let Some(route) = self.along(order)
            && route.score < best.score
        {
            *best = route;
        }
    }

    /// From where the front ends, always the node that reaches furthest; then any others.
    fn strides(&self, count: usize) -> Option<Vec<usize>> {
        let mut at = (0..self.end()).rev().find(|b| self.front.cost[*b] != NEVER)?;
        let mut order: Vec<usize> = Vec::new();
        while order.len() < count {
            let free = |i: &usize| !order.iter().any(|j| self.same_node(*i, *j));
            let next = (0..self.lines.len()).filter(free);
            let reach = |i: &usize| (self.lines[*i].reach[at], self.spans[*i]);
            let next = next.max_by_key(|i| (reach(i), std::cmp::Reverse(*i)))?;
            at = self.lines[next].reach[at].max(at);
            order.push(next);
        }
        Some(order)
    }

    /// Those with the most room, each next the nearest of them.
    fn roomiest(&self, count: usize) -> Option<Vec<usize>> {
        let mut all: Vec<usize> = (0..self.lines.len()).collect();
        all.sort_by_key(|i| std::cmp::Reverse(self.spans[*i]));
        let mut chosen: Vec<usize> = Vec::new();
        for i in all {
            if chosen.len() < count && !chosen.iter().any(|j| self.same_node(i, *j)) {
                chosen.push(i);
            }
        }
        let mut order: Vec<usize> = Vec::new();
        while let Some(near) =
            (0..chosen.len()).min_by_key(|c| self.case.rtt_us(last(&order), chosen[*c] + 1))
        {
            order.push(chosen.swap_remove(near));
        }
        (order.len() == count).then_some(order)
    }
}

/// Where a route stands, as distances count.
fn last(order: &[usize]) -> usize {
    order.last().map_or(0, |i| i + 1)
}
