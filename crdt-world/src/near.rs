//! How far nodes are: what was measured here, what others say, and what follows from both.

use std::collections::BTreeMap;

use wire::{Millis, Neighbour, NodeId};

/// Nodes whose distance is measured here. More connections than that are not kept open, and it is well
/// below the table of offers, so that neighbours never fill it.
const ROADS_MAX: usize = 256;
/// Neighbours that an offer may name: the wire's bound.
const NAMED_MAX: usize = 16;
/// What is assumed of two nodes about which nothing is known, microseconds: far enough that a known
/// road on one continent is preferred to it.
pub const RTT_ASSUMED_US: u64 = 100_000;

/// A measured way to a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Road {
    /// Round trip, smoothed, microseconds.
    pub rtt_us: u64,
    /// By how much it varies, smoothed, microseconds.
    pub spread_us: u64,
    /// When it was last measured.
    pub at: Millis,
}

/// How far two nodes are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rtt {
    /// Round trip, microseconds.
    pub us: u64,
    /// How that is known.
    pub source: Source,
}

/// How a distance is known, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// It was measured here.
    Own,
    /// One of the two says so; of two reports the larger counts, for who lies wants to seem near.
    Reported,
    /// It lies between two bounds that follow from ways over others; the middle is taken.
    Between {
        /// It cannot well be less, microseconds.
        least_us: u64,
        /// Nor more, for there is a way of that length.
        most_us: u64,
    },
    /// Nothing is known: [`RTT_ASSUMED_US`].
    Assumed,
}

/// The ways that were measured here, to neighbours that were reached.
#[derive(Debug, Clone, Default)]
pub struct Near {
    roads: BTreeMap<NodeId, Road>,
}

impl Near {
    /// Takes in one measurement, smoothed as TCP does it (RFC 6298): an eighth of the news for the
    /// mean, a quarter for the spread.
    pub fn measured(&mut self, now: Millis, node: NodeId, rtt_us: u64) {
        let road =
            self.roads.entry(node).or_insert(Road { rtt_us, spread_us: rtt_us / 2, at: now });
        let off = road.rtt_us.abs_diff(rtt_us);
        road.spread_us = weighed(road.spread_us, off, 4);
        road.rtt_us = weighed(road.rtt_us, rtt_us, 8);
        road.at = road.at.max(now);
        if self.roads.len() > ROADS_MAX {
            let silent = self.roads.iter().filter(|(other, _)| **other != node);
            let silent = silent.min_by_key(|(_, road)| road.at).map(|(node, _)| *node);
            silent.and_then(|node| self.roads.remove(&node));
        }
    }

    /// A node is no neighbour any more.
    pub fn left(&mut self, node: NodeId) {
        self.roads.remove(&node);
    }

    /// The way to a neighbour.
    pub fn road(&self, node: NodeId) -> Option<Road> {
        self.roads.get(&node).copied()
    }

    /// Whether a node was reached from here.
    pub fn is_neighbour(&self, node: NodeId) -> bool {
        self.roads.contains_key(&node)
    }

    /// The nearest neighbours, as an offer names them.
    pub fn named(&self) -> Vec<Neighbour> {
        let mut all: Vec<_> = self.roads.iter().map(|(node, road)| (road.rtt_us, *node)).collect();
        all.sort_unstable();
        all.truncate(NAMED_MAX);
        let us = |rtt: u64| u32::try_from(rtt).unwrap_or(u32::MAX);
        all.into_iter()
            .map(|(rtt, node)| Neighbour { node: node.0.to_vec(), rtt_us: us(rtt) })
            .collect()
    }
}

fn weighed(old: u64, new: u64, share: u64) -> u64 {
    let sum = u128::from(old) * u128::from(share - 1) + u128::from(new);
    (sum / u128::from(share)) as u64
}

/// What follows for `a` to `b` from the ways of both to common neighbours.
pub(crate) fn between(ways: impl Iterator<Item = (u64, u64)>) -> Rtt {
    let bounds = ways.map(|(a, b)| (a.abs_diff(b), a.saturating_add(b)));
    let tighter = |(least, most): (u64, u64), (l, m): (u64, u64)| (least.max(l), most.min(m));
    match bounds.reduce(tighter) {
        // Reports need not obey the triangle; then the way that exists counts.
        Some((least, most)) => {
            let least = least.min(most);
            let us = least + (most - least) / 2;
            Rtt { us, source: Source::Between { least_us: least, most_us: most } }
        }
        None => Rtt { us: RTT_ASSUMED_US, source: Source::Assumed },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(n: u16) -> NodeId {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        NodeId(id)
    }

    #[test]
    fn one_late_answer_hardly_moves_a_road() {
        let mut near = Near::default();
        for at in 0..50 {
            near.measured(Millis(at), node(1), 10_000);
        }
        near.measured(Millis(60), node(1), 90_000);
        let road = near.road(node(1)).unwrap();
        assert_eq!(road.rtt_us, 20_000);
        assert!(road.spread_us > 15_000, "{road:?}");
    }

    #[test]
    fn the_neighbour_that_was_silent_longest_makes_room() {
        let mut near = Near::default();
        for n in 0..=ROADS_MAX as u16 {
            near.measured(Millis(1000 - u64::from(n)), node(n), 5);
        }
        assert_eq!(near.roads.len(), ROADS_MAX);
        assert!(near.is_neighbour(node(ROADS_MAX as u16)), "the newest stays");
        assert!(!near.is_neighbour(node(ROADS_MAX as u16 - 1)));
    }

    #[test]
    fn the_nearest_neighbours_are_named() {
        let mut near = Near::default();
        (0..40).for_each(|n| near.measured(Millis(0), node(n), 1000 - u64::from(n)));
        let named = near.named();
        assert_eq!(named.len(), NAMED_MAX);
        assert_eq!(named[0], Neighbour { node: node(39).0.to_vec(), rtt_us: 961 });
    }

    proptest! {
        #[test]
        fn an_estimate_lies_between_its_bounds(ways in prop::collection::vec(any::<(u64, u64)>(), 0..9)) {
            let rtt = between(ways.iter().copied());
            match rtt.source {
                Source::Between { least_us, most_us } => {
                    prop_assert!(least_us <= rtt.us && rtt.us <= most_us);
                    prop_assert!(ways.iter().all(|(a, b)| most_us <= a.saturating_add(*b)));
                }
                source => prop_assert!(ways.is_empty() && source == Source::Assumed),
            }
        }

        #[test]
        fn a_road_lies_within_what_was_measured(all in prop::collection::vec(any::<u64>(), 1..20)) {
            let mut near = Near::default();
            all.iter().for_each(|rtt| near.measured(Millis(1), node(1), *rtt));
            let rtt = near.road(node(1)).unwrap().rtt_us;
            let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
            prop_assert!((least..=most).contains(&&rtt));
        }
    }
}
