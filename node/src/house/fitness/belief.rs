//! How far a node's claims are believed: as far as measurement has borne them out.
//!
//! What is remembered is the rate that was *borne out*, not a share of the claim; so a node that
//! raises its claim is believed no more than before, until work shows it.

use std::collections::BTreeMap;

use wire::NodeId;

use super::Rates;

/// What of a newcomer's claim is believed, permille.
pub const NEWCOMER_PERMILLE: u32 = 700;
/// Nodes remembered: as many as a table of offers holds.
const NODES_MAX: usize = 2048;
/// Of a measurement below what is believed, this share counts: belief falls fast...
const FALL: u32 = 2;
/// ...and rises slowly, so that it pays nobody to be good now and then.
const RISE: u32 = 16;

/// What a measured time depended on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Reading weights: few rows at a time.
    Read,
    /// Arithmetic: many rows at a time.
    Compute,
}

/// What a stage took, and what it should have taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// What the time depended on.
    pub resource: Resource,
    /// The claim at that time.
    pub claimed: Rates,
    /// What it would have taken by that claim, microseconds.
    pub predicted_us: u64,
    /// What it took, without the network, microseconds.
    pub taken_us: u64,
}

/// How far one node is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Belief {
    read_mb_s: Option<u32>,
    int8_gops: Option<u32>,
    observed: u32,
}

impl Belief {
    /// What is believed of a claim: never more than it says, nor than was borne out.
    pub fn of(&self, claimed: Rates) -> Rates {
        Rates {
            int8_gops: believed(self.int8_gops, claimed.int8_gops),
            read_mb_s: believed(self.read_mb_s, claimed.read_mb_s),
        }
    }

    /// How many measurements it rests on.
    pub fn observed(&self) -> u32 {
        self.observed
    }

    /// Takes in a measurement. One of which nothing can be told changes nothing.
    pub fn observe(&mut self, seen: Observed) {
        let (borne_out, claim) = match seen.resource {
            Resource::Read => (&mut self.read_mb_s, seen.claimed.read_mb_s),
            Resource::Compute => (&mut self.int8_gops, seen.claimed.int8_gops),
        };
        if seen.predicted_us == 0 || claim == 0 {
            return;
        }
        let measured = u128::from(claim) * u128::from(seen.predicted_us);
        let measured = measured / u128::from(seen.taken_us.max(1));
        // Faster than claimed is no merit: the claim is what a node answers for.
        let measured = measured.min(claim.into()) as u32;
        let before = believed(*borne_out, claim);
        *borne_out = Some(if measured < before {
            measured + (before - measured) / FALL
        } else {
            before + (measured - before).div_ceil(RISE)
        });
        self.observed = self.observed.saturating_add(1);
    }
}

fn believed(borne_out: Option<u32>, claim: u32) -> u32 {
    let discounted = || (u64::from(claim) * u64::from(NEWCOMER_PERMILLE) / 1000) as u32;
    borne_out.map_or_else(discounted, |rate| rate.min(claim))
}

/// How far each node is believed.
#[derive(Debug, Clone, Default)]
pub struct Beliefs {
    nodes: BTreeMap<NodeId, Belief>,
}

impl Beliefs {
    /// How far `node` is believed.
    pub fn of(&self, node: NodeId) -> Belief {
        self.nodes.get(&node).copied().unwrap_or_default()
    }

    /// Takes in a measurement of `node`. When too many are remembered, the one that was observed
    /// least is forgotten and becomes a newcomer again, which pays nobody who did well.
    pub fn observe(&mut self, node: NodeId, seen: Observed) {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
            let least = self.nodes.iter().min_by_key(|(node, belief)| (belief.observed, **node));
            let least = least.map(|(node, _)| *node);
            least.and_then(|node| self.nodes.remove(&node));
        }
        self.nodes.entry(node).or_default().observe(seen);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLAIM: Rates = Rates { int8_gops: 1_000, read_mb_s: 50_000 };

    fn seen(claimed: Rates, predicted_us: u64, taken_us: u64) -> Observed {
        Observed { resource: Resource::Read, claimed, predicted_us, taken_us }
    }

    #[test]
    fn who_claims_ten_times_what_is_measured_ends_at_what_is_measured() {
        let mut belief = Belief::default();
        (0..20).for_each(|_| belief.observe(seen(CLAIM, 1_000, 10_000)));
        assert_eq!(belief.of(CLAIM).read_mb_s, 5_000);
        let louder = Rates { read_mb_s: 500_000, ..CLAIM };
        assert_eq!(belief.of(louder).read_mb_s, 5_000, "a larger claim changes nothing");
        (0..20).for_each(|_| belief.observe(seen(louder, 100, 10_000)));
        assert_eq!(belief.of(louder).read_mb_s, 5_000);
    }

    #[test]
    fn a_newcomer_is_believed_in_part_and_an_honest_one_soon_wholly() {
        let mut belief = Belief::default();
        assert_eq!(belief.of(CLAIM), Rates { int8_gops: 700, read_mb_s: 35_000 });
        (0..10).for_each(|_| belief.observe(seen(CLAIM, 1_000, 1_000)));
        assert!((40_000..45_000).contains(&belief.of(CLAIM).read_mb_s));
        (0..200).for_each(|_| belief.observe(seen(CLAIM, 1_000, 900)));
        assert_eq!(belief.of(CLAIM).read_mb_s, 50_000, "and never more than it claims");
        assert_eq!(belief.of(CLAIM).int8_gops, 700, "of what was not measured nothing is known");
    }

    #[test]
    fn belief_falls_at_once_and_comes_back_slowly() {
        let mut belief = Belief { read_mb_s: Some(50_000), ..Belief::default() };
        belief.observe(seen(CLAIM, 1_000, 5_000));
        assert_eq!(belief.of(CLAIM).read_mb_s, 30_000);
        belief.observe(seen(CLAIM, 1_000, 1_000));
        assert_eq!(belief.of(CLAIM).read_mb_s, 31_250);
    }

    #[test]
    fn those_remembered_are_bounded_and_the_best_known_stay() {
        let mut beliefs = Beliefs::default();
        let node = |n: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            NodeId(id)
        };
        (0..9).for_each(|_| beliefs.observe(node(0), seen(CLAIM, 1_000, 1_000)));
        (1..NODES_MAX + 50).for_each(|n| beliefs.observe(node(n), seen(CLAIM, 1_000, 1_000)));
        assert_eq!(beliefs.nodes.len(), NODES_MAX);
        assert_eq!(beliefs.of(node(0)).observed(), 9);
    }

    proptest! {
        #[test]
        fn nobody_is_believed_more_than_they_claim(
            all in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20), claim in any::<u32>(),
        ) {
            let mut belief = Belief::default();
            for (rate, predicted, taken) in all {
                let claimed = Rates { int8_gops: rate, read_mb_s: rate };
                belief.observe(seen(claimed, predicted, taken));
            }
            let claimed = Rates { int8_gops: claim, read_mb_s: claim };
            prop_assert!(belief.of(claimed).read_mb_s <= claim);
            prop_assert!(belief.of(claimed).int8_gops <= claim);
        }
    }
}
