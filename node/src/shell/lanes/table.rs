//! The links of a node, by peer.
//!
//! **Invariant:** a peer has at most one link in each direction. When two nodes dial each other at
//! once, both connections stand and both nodes prefer the one that the smaller name began; the other
//! has no pipes soon and goes by idleness. Nothing that runs over it is disturbed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Mutex as AsyncMutex;
use wire::NodeId;

use super::error::Goodbye;
use super::link::{Begun, Link};

/// The links of one node.
#[derive(Debug)]
pub(super) struct Table {
    me: NodeId,
    links_max: usize,
    peers: BTreeMap<NodeId, Links>,
    /// Who is being dialled, so that two who want the same peer do not both dial.
    dials: BTreeMap<NodeId, Arc<AsyncMutex<()>>>,
}

#[derive(Debug, Default)]
struct Links {
    begun_here: Option<Link>,
    begun_there: Option<Link>,
}

impl Links {
    fn slot(&mut self, begun: Begun) -> &mut Option<Link> {
        match begun {
            Begun::Here => &mut self.begun_here,
            Begun::There => &mut self.begun_there,
        }
    }

    fn both(&self) -> impl Iterator<Item = &Link> {
        self.begun_here.iter().chain(&self.begun_there)
    }
}

impl Table {
    pub(super) fn new(me: NodeId, links_max: usize) -> Self {
        Self { me, links_max, peers: BTreeMap::new(), dials: BTreeMap::new() }
    }

    /// The open link to `peer` that both sides prefer.
    pub(super) fn find(&self, peer: NodeId) -> Option<Link> {
        let links = self.peers.get(&peer)?;
        let order = match self.me < peer {
            true => [&links.begun_here, &links.begun_there],
            false => [&links.begun_there, &links.begun_here],
        };
        order.into_iter().flatten().find(|link| link.is_open()).cloned()
    }

    /// Every link.
    pub(super) fn all(&self) -> Vec<Link> {
        self.peers.values().flat_map(Links::both).cloned().collect()
    }

    /// Whether a link that `peer` begins could be taken in.
    pub(super) fn has_room(&self, peer: NodeId) -> bool {
        let replaces = self.peers.get(&peer).is_some_and(|links| links.begun_there.is_some());
        replaces || self.count() < self.links_max || self.all().iter().any(|l| l.pipes() == 0)
    }

    /// Takes a link in, in place of one that the same side began before; that one's peer must have
    /// lost it. `false` if there is no room: every link is in use.
    pub(super) fn insert(&mut self, link: &Link) -> bool {
        let known = self.peers.get_mut(&link.peer());
        if let Some(old) = known.and_then(|links| links.slot(link.begun()).take()) {
            old.close(Goodbye::Replaced);
        } else if self.count() >= self.links_max && !self.drop_unused() {
            return false;
        }
        let links = self.peers.entry(link.peer()).or_default();
        *links.slot(link.begun()) = Some(link.clone());
        true
    }

    /// Forgets a link that has ended, unless another took its place.
    pub(super) fn remove(&mut self, link: &Link) {
        let Some(links) = self.peers.get_mut(&link.peer()) else { return };
        let slot = links.slot(link.begun());
        if slot.as_ref().is_some_and(|kept| kept.is_same(link)) {
            *slot = None;
        }
        if links.both().next().is_none() {
            self.peers.remove(&link.peer());
        }
    }

    /// The lock that whoever dials `peer` holds.
    pub(super) fn dial_lock(&mut self, peer: NodeId) -> Arc<AsyncMutex<()>> {
        // Those that nobody holds or waits for any more are of no use.
        self.dials.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(self.dials.entry(peer).or_default())
    }

    fn count(&self) -> usize {
        self.peers.values().map(|links| links.both().count()).sum()
    }

    /// Ends one link without pipes.
    fn drop_unused(&mut self) -> bool {
        let links = self.all();
        let Some(unused) = links.iter().find(|link| link.pipes() == 0) else { return false };
        unused.close(Goodbye::Idle);
        self.remove(unused);
        true
    }
}
