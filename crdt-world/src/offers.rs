//! The table of what nodes offer.
//!
//! It holds one offer a node, that with the largest sequence; so it is a join of what came, and two
//! nodes that heard the same news have the same table, whatever the order, grouping and repetition.
//! That somebody is gone is known here alone: it hides an offer, and newer life shows it again.
//!
//! **Invariant:** the table of offers depends on the set of news and on who is a neighbour, never on
//! the order. For that reason the *stalest* makes room, and not the farthest: staleness is part of the
//! news, distance changes.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use wire::{Millis, NodeId, OFFER_LIFE_MAX, Offer, Verified};

use crate::near::{Near, Road, Rtt, Source, between};

/// Nodes in the table: more than a planner looks at, and with [`NODE_BYTES_MAX`] 64 MB at the very most.
pub const NODES_MAX: usize = 2048;
/// Memory that one node's offer may take: 6 KiB that came, kept as they came; the same once more as
/// fields; and the headers of its lists, some 100 of up to 64 bytes, with room to grow to the next
/// power of two.
pub const NODE_BYTES_MAX: usize = 32 << 10;
/// Nodes remembered as gone: as many as can be in the table.
pub const GONE_MAX: usize = NODES_MAX;
/// By how much another's clock may be ahead, milliseconds.
pub const SKEW_MS_MAX: u64 = 60_000;

/// What became of a piece of news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Nothing was known of that node.
    New,
    /// It replaces an older offer.
    Newer,
    /// It was here already.
    Known,
    /// A newer one is here.
    Older {
        /// Its sequence.
        newest: u64,
    },
    /// It holds no more.
    Expired {
        /// For how long it has not, milliseconds.
        late_ms: u64,
    },
    /// It is from the future: somebody's clock is wrong.
    Ahead {
        /// By how much, milliseconds.
        ahead_ms: u64,
    },
    /// It is kept, and not offered: the node was found dead after it was made.
    Gone,
    /// The table is full of fresher ones.
    Crowded,
    /// It is this node's own.
    Own,
}

impl Taken {
    /// Whether it was news, so that passing it on makes sense.
    pub fn is_news(self) -> bool {
        matches!(self, Self::New | Self::Newer)
    }
}

/// Who offers what, and how near it is.
#[derive(Debug, Clone)]
pub struct Offers {
    own: NodeId,
    nodes_max: usize,
    offers: BTreeMap<NodeId, Verified<Offer>>,
    /// Who was found dead, and the sequence above which an offer proves life.
    gone: BTreeMap<NodeId, u64>,
    near: Near,
}

impl Offers {
    /// An empty table of the node `own`.
    pub fn new(own: NodeId) -> Self {
        Self {
            own,
            nodes_max: NODES_MAX,
            offers: BTreeMap::new(),
            gone: BTreeMap::new(),
            near: Near::default(),
        }
    }

    /// Takes in an offer that came from anywhere.
    pub fn take(&mut self, now: Millis, offer: Verified<Offer>) -> Taken {
        let (node, sequence) = (offer.signer(), offer.content().sequence);
        if node == self.own {
            return Taken::Own;
        }
        if let Some(refused) = untimely(now, offer.content()) {
            return refused;
        }
        let before = self.offers.get(&node);
        let known = before.is_some();
        if let Some(before) = before {
            match against(&offer, before) {
                Ordering::Equal => return Taken::Known,
                Ordering::Less => return Taken::Older { newest: before.content().sequence },
                Ordering::Greater => {}
            }
        }
        self.offers.insert(node, offer);
        if self.offers.len() > self.nodes_max && self.crowd_out() == Some(node) {
            return Taken::Crowded;
        }
        match self.gone.get(&node) {
            Some(floor) if sequence <= *floor => Taken::Gone,
            _ => {
                self.gone.remove(&node);
                if known { Taken::Newer } else { Taken::New }
            }
        }
    }

    /// Takes in all that another table holds, and says how much of it was news.
    pub fn merge(&mut self, now: Millis, other: &Self) -> usize {
        let theirs = other.offers.values().cloned();
        theirs.map(|offer| self.take(now, offer)).filter(|taken| taken.is_news()).count()
    }

    /// Forgets what holds no more, and says of whom.
    pub fn expire(&mut self, now: Millis) -> Vec<NodeId> {
        let old = |offer: &Verified<Offer>| offer.content().expires() <= now;
        let late: Vec<_> = self.offers.iter().filter(|(_, offer)| old(offer)).collect();
        let late: Vec<_> = late.into_iter().map(|(node, _)| *node).collect();
        late.iter().for_each(|node| drop(self.offers.remove(node)));
        // After that time no offer that is hidden can hold.
        self.gone.retain(|_, floor| floor.saturating_add(OFFER_LIFE_MAX) > now.0);
        late
    }

    /// A node was found dead: it is not offered until it makes a new offer, or is reached.
    pub fn gone(&mut self, now: Millis, node: NodeId) {
        let known = self.offers.get(&node).map_or(0, |offer| offer.content().sequence);
        // An offer made before its death may still be on its way.
        let floor = self.gone.entry(node).or_insert(0);
        *floor = (*floor).max(known).max(now.0);
        self.near.left(node);
        if self.gone.len() > GONE_MAX {
            let oldest = self.gone.iter().min_by_key(|(node, floor)| (**floor, **node));
            let oldest = oldest.map(|(node, _)| *node);
            oldest.and_then(|node| self.gone.remove(&node));
        }
    }

    /// A node answered, after `rtt_us`: it lives, is a neighbour, and so far away.
    pub fn reached(&mut self, now: Millis, node: NodeId, rtt_us: u64) {
        if node != self.own {
            self.gone.remove(&node);
            self.near.measured(now, node, rtt_us);
        }
    }

    /// A node that was asked has answered: it lives, whatever was thought of it, and its offer holds.
    pub fn answered(&mut self, node: NodeId) {
        self.gone.remove(&node);
    }

    /// A node is no neighbour any more, for whatever good reason.
    pub fn left(&mut self, node: NodeId) {
        self.near.left(node);
    }

    /// What a node offers, if it is not known to be dead.
    pub fn of(&self, node: NodeId) -> Option<&Verified<Offer>> {
        self.offers.get(&node).filter(|offer| self.shown(node, offer))
    }

    /// All offers of nodes that are not known to be dead, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Verified<Offer>)> {
        let all = self.offers.iter().map(|(node, offer)| (*node, offer));
        all.filter(|(node, offer)| self.shown(*node, offer))
    }

    /// How many nodes are offered.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// What was measured here.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// The way to a neighbour.
    pub fn road(&self, node: NodeId) -> Option<Road> {
        self.near.road(node)
    }

    /// How far two nodes are from each other, as far as can be told.
    pub fn rtt(&self, a: NodeId, b: NodeId) -> Rtt {
        if a == b {
            return Rtt { us: 0, source: Source::Own };
        }
        if let Some(known) = self.direct(a, b) {
            return known;
        }
        let named = self.named_by(a).chain(self.named_by(b)).map(|(node, _)| node);
        let over = named.chain([self.own]).filter(|node| *node != a && *node != b);
        between(over.filter_map(|c| Some((self.direct(a, c)?.us, self.direct(c, b)?.us))))
    }

    /// What was measured here or said by one of the two.
    fn direct(&self, a: NodeId, b: NodeId) -> Option<Rtt> {
        let other = if a == self.own { Some(b) } else { (b == self.own).then_some(a) };
        if let Some(road) = other.and_then(|node| self.near.road(node)) {
            return Some(Rtt { us: road.rtt_us, source: Source::Own });
        }
        let said = |by, of| self.named_by(by).find(|(node, _)| *node == of).map(|(_, us)| us);
        let us = said(a, b).max(said(b, a))?;
        Some(Rtt { us, source: Source::Reported })
    }

    fn named_by(&self, node: NodeId) -> impl Iterator<Item = (NodeId, u64)> {
        let health = self.offers.get(&node).and_then(|offer| offer.content().health.as_ref());
        let named = health.map_or(&[][..], |health| &health.neighbours);
        named.iter().filter_map(|n| Some((NodeId::from_slice(&n.node)?, n.rtt_us.into())))
    }

    fn shown(&self, node: NodeId, offer: &Verified<Offer>) -> bool {
        self.gone.get(&node).is_none_or(|floor| offer.content().sequence > *floor)
    }

    /// Takes out the stalest that is no neighbour, and says whose it was.
    fn crowd_out(&mut self) -> Option<NodeId> {
        let rank = |(node, offer): (&NodeId, &Verified<Offer>)| {
            (self.near.is_neighbour(*node), offer.content().sequence, *node)
        };
        let (_, _, node) = self.offers.iter().map(rank).min()?;
        self.offers.remove(&node);
        Some(node)
    }
}

/// Why an offer does not count now.
fn untimely(now: Millis, offer: &Offer) -> Option<Taken> {
    let ahead_ms = Millis(offer.sequence).since(now);
    if ahead_ms > SKEW_MS_MAX {
        return Some(Taken::Ahead { ahead_ms });
    }
    let expires = offer.expires();
    (expires <= now).then(|| Taken::Expired { late_ms: now.since(expires) })
}

/// Which of a node's offers counts: the newer. One that signs two with one sequence is not honest; that
/// with the larger bytes counts then, everywhere.
fn against(offer: &Verified<Offer>, before: &Verified<Offer>) -> Ordering {
    let sequences = offer.content().sequence.cmp(&before.content().sequence);
    sequences.then_with(|| offer.signed().encode().cmp(&before.signed().encode()))
}

#[cfg(test)]
mod tests;
