//! What was refused or failed lately, so that no plan asks for it again.

use std::collections::BTreeMap;

use wire::{Halves, ManifestId, Millis, NodeId, digest};

use super::Plan;

/// Refusals remembered: some for every node that a planner may ask in an hour.
const REFUSALS_MAX: usize = 1024;
/// The domain of routes among digests; they never leave this node.
const KIND: u8 = 0xf0;

/// How long a refusal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// Until a time.
    Time(Millis),
    /// Until the node proves that it lives.
    ProofOfLife,
}

/// What was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Node(NodeId),
    Range(NodeId, ManifestId, Halves),
    /// A model over these nodes in this order.
    Route([u8; 32]),
}

/// What must not be planned for now.
///
/// A range that a node refused rules out every range of it that holds all of that. A route that failed
/// as a whole rules out those nodes in that order for that model, for another cut a little to the side
/// would fail in the same way.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    /// Until when, and the number under which it came.
    all: BTreeMap<Subject, (Until, u64)>,
    count: u64,
}

impl Refusals {
    /// Nothing is to be planned on a node.
    pub fn node(&mut self, node: NodeId, until: Until) {
        self.insert(Subject::Node(node), until);
    }

    /// A node will not take these half-blocks of a model, or more.
    pub fn range(&mut self, node: NodeId, manifest: ManifestId, halves: Halves, until: Until) {
        self.insert(Subject::Range(node, manifest, halves), until);
    }

    /// A plan failed, and it is not known through whom.
    pub fn plan(&mut self, plan: &Plan, until: Millis) {
        let nodes: Vec<_> = plan.stages.iter().map(|stage| stage.node).collect();
        self.insert(Subject::Route(route(plan.manifest, nodes)), Until::Time(until));
    }

    /// A node has proven that it lives.
    pub fn lives(&mut self, node: NodeId) {
        self.all.retain(|subject, (until, _)| {
            let its = match subject {
                Subject::Node(of) | Subject::Range(of, _, _) => *of == node,
                Subject::Route(_) => false,
            };
            !(its && *until == Until::ProofOfLife)
        });
    }

    /// Forgets what counts no more.
    pub fn expire(&mut self, now: Millis) {
        self.all.retain(|_, (until, _)| counts(*until, now));
    }

    /// Whether nothing may be planned on a node.
    pub fn forbids_node(&self, node: NodeId, now: Millis) -> bool {
        self.forbids(Subject::Node(node), now)
    }

    /// Whether a model may not go over these nodes in this order.
    pub fn forbids_route(
        &self,
        manifest: ManifestId,
        nodes: impl IntoIterator<Item = NodeId>,
        now: Millis,
    ) -> bool {
        let routes = self.all.keys().next_back();
        // Routes are sorted last; where there is none, nothing need be hashed.
        matches!(routes, Some(Subject::Route(_)))
            && self.forbids(Subject::Route(route(manifest, nodes)), now)
    }

    /// The ranges of a model that a node refused.
    pub fn ranges(&self, node: NodeId, manifest: ManifestId, now: Millis) -> Vec<Halves> {
        let first = Subject::Range(node, manifest, Halves::new(0, 0));
        let all = self.all.range(first..).map_while(move |(subject, (until, _))| match subject {
            Subject::Range(of, model, halves) if (*of, *model) == (node, manifest) => {
                Some((*halves, *until))
            }
            _ => None,
        });
        all.filter(|(_, until)| counts(*until, now)).map(|(halves, _)| halves).collect()
    }

    fn forbids(&self, subject: Subject, now: Millis) -> bool {
        self.all.get(&subject).is_some_and(|(until, _)| counts(*until, now))
    }

    /// When full, what would end first goes, and of what waits for a proof of life the oldest.
    fn insert(&mut self, subject: Subject, until: Until) {
        self.count += 1;
        let longest = self.all.get(&subject).map_or(until, |(before, _)| until.max(*before));
        self.all.insert(subject, (longest, self.count));
        if self.all.len() > REFUSALS_MAX {
            let first = self.all.iter().min_by_key(|(_, until)| **until);
            let first = first.map(|(subject, _)| *subject);
            first.and_then(|subject| self.all.remove(&subject));
        }
    }
}

fn counts(until: Until, now: Millis) -> bool {
    match until {
        Until::Time(end) => now < end,
        Until::ProofOfLife => true,
    }
}

fn route(manifest: ManifestId, nodes: impl IntoIterator<Item = NodeId>) -> [u8; 32] {
    let mut bytes = manifest.0.to_vec();
    nodes.into_iter().for_each(|node| bytes.extend(node.0));
    digest(KIND, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u64) -> NodeId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_be_bytes());
        NodeId(id)
    }

    #[test]
    fn what_waits_for_a_proof_of_life_ends_with_it_and_the_rest_in_its_time() {
        let (now, model) = (Millis(100), ManifestId([1; 32]));
        let mut refusals = Refusals::default();
        refusals.node(node(1), Until::ProofOfLife);
        refusals.node(node(2), Until::Time(Millis(200)));
        refusals.range(node(1), model, Halves::new(2, 8), Until::Time(Millis(150)));
        refusals.expire(now);
        assert!(refusals.forbids_node(node(1), now) && refusals.forbids_node(node(2), now));
        refusals.lives(node(1));
        refusals.lives(node(2));
        assert!(!refusals.forbids_node(node(1), now) && refusals.forbids_node(node(2), now));
        assert_eq!(refusals.ranges(node(1), model, now), [Halves::new(2, 8)]);
        assert!(refusals.ranges(node(1), ManifestId([2; 32]), now).is_empty());
        assert!(refusals.ranges(node(1), model, Millis(150)).is_empty());
        refusals.expire(Millis(200));
        assert!(refusals.all.is_empty());
    }

    #[test]
    fn a_later_and_shorter_refusal_does_not_shorten_an_earlier_one() {
        let mut refusals = Refusals::default();
        refusals.node(node(1), Until::ProofOfLife);
        refusals.node(node(1), Until::Time(Millis(5)));
        assert!(refusals.forbids_node(node(1), Millis(10)));
    }

    #[test]
    fn a_full_memory_forgets_what_would_end_first() {
        let mut refusals = Refusals::default();
        for n in 0..REFUSALS_MAX as u64 + 1 {
            refusals.node(node(n), Until::Time(Millis(10_000 - n)));
        }
        assert_eq!(refusals.all.len(), REFUSALS_MAX);
        let last = REFUSALS_MAX as u64;
        assert!(!refusals.forbids_node(node(last), Millis(0)));
        assert!(refusals.forbids_node(node(0), Millis(0)));
    }
}
