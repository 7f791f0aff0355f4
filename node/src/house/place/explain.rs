//! A plan in words, for people.

use std::collections::BTreeMap;

use super::case::{Case, Route};
use super::cost::{Stock, Times};
use super::plan::{Plan, Stage};
use super::{Cuts, Found, mb};

/// Lines of stages before those of one node are told in one.
const LINES_MAX: usize = 16;
/// Stages that are named where there is little room.
const NAMED_MAX: usize = 12;

impl Plan {
    /// Lines of text: a table of who computes what, then what it takes and why.
    pub fn explain(&self) -> Vec<String> {
        let head = row(["stage", "node", "layers", "memory", "a token", "round trip", "weights"]);
        let here = self.times.compute_us;
        let here = self.stages.iter().fold(here, |us, stage| us.saturating_sub(stage.compute_us));
        let layers = format!("{} + ends", self.front);
        let memory = format!("{} MB", mb(self.front_bytes));
        let own = row(["0", "this node", &layers, &memory, &ms(here), "", ""]);
        let mut lines = vec![head, own];
        match self.stages.len() {
            0..=LINES_MAX => lines.extend(self.stages.iter().enumerate().map(stage_line)),
            _ => lines.extend(self.by_node()),
        }
        let Times { first_token_us, ready_us, .. } = self.times;
        lines.push(format!("{}; first token after {}.", token(&self.times), ms(first_token_us)));
        if ready_us > 0 {
            lines.push(format!("Weights are in memory after {} s.", ready_us.div_ceil(1_000_000)));
        }
        lines.push(self.why.clone());
        lines
    }

    /// Who computes what, in a few ASCII letters, as a header has room for.
    pub fn words(&self) -> String {
        if self.stages.is_empty() {
            return "alone; all of the model fits here, so it is not split".to_owned();
        }
        let mut words = format!("layers {} here", self.front);
        for stage in self.stages.iter().take(NAMED_MAX) {
            words.push_str(&format!("; {} at {}", stage.halves, stage.node.short()));
        }
        match self.stages.len().saturating_sub(NAMED_MAX) {
            0 => {}
            more => words.push_str(&format!("; and {more} more stages")),
        }
        words
    }

    /// One line a node, for a route of many short ranges.
    fn by_node(&self) -> Vec<String> {
        let mut nodes: BTreeMap<_, Vec<&Stage>> = BTreeMap::new();
        self.stages.iter().for_each(|stage| nodes.entry(stage.node).or_default().push(stage));
        let line = |(node, stages): (&wire::NodeId, &Vec<&Stage>)| {
            let (first, last) = (stages[0].halves, stages[stages.len() - 1].halves);
            let alike = stages.iter().all(|stage| stage.halves.start % 2 == first.start % 2);
            let what = match (alike && first.count() == 1, first.start % 2) {
                (true, 0) => "attention",
                (true, _) => "feed-forward",
                _ => "ranges",
            };
            let layers = format!("{}-{} {what}", first.start / 2, (last.end.max(1) - 1) / 2);
            let memory =
                stages.iter().fold(0_u64, |sum, stage| sum.saturating_add(stage.memory_bytes));
            let us = stages.iter().fold(0_u64, |sum, stage| sum.saturating_add(stage.compute_us));
            let count = format!("{} x", stages.len());
            let (memory, rtt) = (format!("{} MB", mb(memory)), ms(stages[0].rtt_us));
            row([&count, &node.short(), &layers, &memory, &ms(us), &rtt, stock(stages[0].stock)])
        };
        nodes.iter().map(line).collect()
    }
}

fn stage_line((at, stage): (usize, &Stage)) -> String {
    let (number, memory) = ((at + 1).to_string(), format!("{} MB", mb(stage.memory_bytes)));
    let (layers, node) = (stage.halves.to_string(), stage.node.short());
    let (us, rtt) = (ms(stage.compute_us), ms(stage.rtt_us));
    let mut line = row([&number, &node, &layers, &memory, &us, &rtt, stock(stage.stock)]);
    for (what, nodes) in [("with", &stage.twins), ("spare", &stage.spares)] {
        if !nodes.is_empty() {
            let names: Vec<_> = nodes.iter().map(|node| node.short()).collect();
            line = format!("{line}; {what} {}", names.join(", "));
        }
    }
    line
}

fn row(cells: [&str; 7]) -> String {
    let [stage, node, layers, memory, us, rtt, weights] = cells;
    let line =
        format!("{stage:<6} {node:<10} {layers:<20} {memory:>12} {us:>12} {rtt:>12}  {weights}");
    line.trim_end().to_owned()
}

fn stock(stock: Stock) -> &'static str {
    match stock {
        Stock::Memory => "in memory",
        Stock::Disk => "on its disk",
        Stock::Network => "to be fetched",
    }
}

/// Milliseconds with a tenth.
fn ms(us: u64) -> String {
    let tenths = us / 100;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

fn token(times: &Times) -> String {
    let (compute, network) = (ms(times.compute_us), ms(times.network_us));
    format!("{} a token: {compute} computing, {network} network", ms(times.token_us()))
}

/// Why a plan is as it is.
pub(super) fn why(case: &Case, found: &Found, stages: &[Stage]) -> String {
    let (wish, route) = (&case.task.wish, &found.route);
    let count = route.stages.len();
    let mut why = if wish.cuts == Cuts::AlphaBeta {
        let cost = found.alone.as_ref().filter(|alone| alone.stages.len() < count);
        format!(
            "Attention and feed-forward were asked to be apart: {}{}.",
            per(route),
            instead(cost)
        )
    } else if wish.stages_min as usize > 0 && wish.stages_min as usize >= count {
        let cost = found.alone.as_ref().filter(|alone| *alone != route);
        format!("{} were asked for: {}{}.", counted(count), per(route), instead(cost))
    } else {
        unforced(case, found)
    };
    let twins = (wish.replicas.clamp(1, 3) - 1) as usize;
    let least = stages.iter().map(|stage| stage.twins.len()).min().unwrap_or(twins);
    if least < twins {
        let (wanted, found) = (twins + 1, least + 1);
        why.push_str(&format!(" {wanted} replicas were asked for; a stage has only {found}."));
    }
    why
}

fn unforced(case: &Case, found: &Found) -> String {
    let (route, count) = (&found.route, found.route.stages.len());
    let against = |other: &Option<Route>| {
        let other = other.as_ref().filter(|other| *other != route);
        other.map_or(String::new(), |other| {
            let farthest = over(case, other);
            format!("; {}{farthest}: {}", counted(other.stages.len()), per(other))
        })
    };
    match count {
        0 => {
            format!("Not split, for all fits here. Alone: {}{}.", per(route), against(&found.split))
        }
        1 => format!(
            "Not split further, for one other node holds all the rest. Alone: {}{}.",
            per(route),
            against(&found.split)
        ),
        2 if found.alone.is_some() => format!(
            "Split, for it is faster. {}{}: {}{}.",
            counted(2),
            over(case, route),
            per(route),
            instead(found.alone.as_ref())
        ),
        _ => {
            let apart = route
                .stages
                .windows(2)
                .any(|pair| pair[0].1.count() == 1 && pair[1].1.count() == 1);
            let what =
                if apart { "attention and feed-forward apart" } else { "the fewest that fit" };
            format!(
                "Split, for no node alone has the memory. {}{}, {what}: {}.",
                counted(count),
                over(case, route),
                per(route)
            )
        }
    }
}

fn counted(stages: usize) -> String {
    match stages {
        0 => "All here".to_owned(),
        1 => "1 stage".to_owned(),
        many => format!("{many} stages"),
    }
}

fn per(route: &Route) -> String {
    format!("{} a token", ms(route.times.token_us()))
}

fn instead(alone: Option<&Route>) -> String {
    alone.map_or(String::new(), |alone| {
        format!(" instead of {} by one node alone", ms(alone.times.token_us()))
    })
}

/// Over which distance, the largest on the way.
fn over(case: &Case, route: &Route) -> String {
    let stops = route.stages.iter().map(|(i, _)| i + 1);
    let round: Vec<usize> = [0].into_iter().chain(stops).chain([0]).collect();
    let farthest = round.windows(2).map(|pair| case.rtt_us(pair[0], pair[1])).max();
    farthest
        .filter(|_| round.len() > 2)
        .map_or(String::new(), |us| format!(" over {} round trip", ms(us)))
}
