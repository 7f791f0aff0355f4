//! Who is connected: from the first byte of a connection to its last, and who is sent away.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{self, ConnectionId};
use libp2p::{Multiaddr, PeerId, identify, mdns, ping, relay};
use tokio::time::Instant;
use wire::NodeId;

use super::super::address::{ADDRESSES_MAX, is_circuit, worth_keeping};
use super::super::book::Rest;
use super::super::config::MEMBERS_MAX;
use super::super::event::{Direction, Event, Path, PeerInfo};
use super::super::identity::node_of;
use super::super::refusal::{DialError, ListError, Mismatch};
use super::reach::relay_place;
use super::{Actor, Waiter};

/// Dials that somebody waits for.
pub const DIALS_MAX: usize = 64;
/// How long a peer may take to say what it is.
const IDENTIFY_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a peer that is sent away stays, so that it, too, learns why.
const REFUSAL_GRACE: Duration = Duration::from_secs(1);
/// Characters of what a peer says about itself that are kept.
const SPEECH_CHARS_MAX: usize = 64;
/// Neighbours on the local network that are dialled when they show up together.
const NEIGHBOURS_MAX: usize = 16;

/// Those who carry circuits through whom a peer is looked for.
const CIRCUITS_TRIED_MAX: usize = 4;

/// What a dial is for.
pub enum Purpose {
    /// Somebody waits for it.
    Asked { waiter: Waiter, target: String },
    /// An address to join by, by its place in the list.
    Seed(usize),
    /// Somebody in the address book.
    Known,
}

/// A connected peer.
pub struct Peer {
    pub links: BTreeMap<ConnectionId, Link>,
    pub standing: Standing,
    pub rtt_us: Option<u64>,
    /// How long not to ask it to carry circuits.
    pub relay_rest: Rest,
}

/// One connection to a peer.
pub struct Link {
    pub address: Multiaddr,
    pub direction: Direction,
    pub path: Path,
}

/// What is known about a peer.
pub enum Standing {
    /// Nothing so far.
    Silent { since: Instant },
    /// It is one of us.
    Member(Profile),
    /// It is not, and will be disconnected.
    Refused { at: Instant },
}

/// What a peer says about itself.
pub struct Profile {
    pub agent: String,
    pub version: String,
    pub addresses: Vec<Multiaddr>,
    /// It answers look-ups.
    pub serves_dht: bool,
    /// It carries circuits.
    pub serves_relay: bool,
}

impl Peer {
    /// The connection that is used first.
    pub fn best(&self) -> &Link {
        let best = self.links.values().min_by_key(|link| link.path);
        best.expect("a peer without links is taken off the table")
    }

    /// What it says about itself, if it is one of us.
    pub fn profile(&self) -> Option<&Profile> {
        match &self.standing {
            Standing::Member(profile) => Some(profile),
            Standing::Silent { .. } | Standing::Refused { .. } => None,
        }
    }

    /// Where to look for it another time: where it was dialled, then where it says it listens.
    pub fn places(&self) -> Vec<Multiaddr> {
        let dialled = self.links.values().filter(|link| link.direction == Direction::Outbound);
        let mut places: Vec<Multiaddr> =
            dialled.map(|link| without_peer(link.address.clone())).collect();
        let told = self.profile().map_or(&[][..], |profile| &profile.addresses);
        for address in told.iter().cloned().map(without_peer) {
            if !places.contains(&address) {
                places.push(address);
            }
        }
        places.truncate(ADDRESSES_MAX);
        places
    }
}

impl Actor {
    pub(super) fn dial(&mut self, address: Multiaddr, waiter: Waiter) {
        let target = address.to_string();
        if self.is_mine(&address) {
            let _ = waiter.send(Err(DialError::Myself { target }));
            return;
        }
        if self.asked_count() >= DIALS_MAX {
            let _ = waiter.send(Err(DialError::TooMany { max: DIALS_MAX }));
            return;
        }
        if let Some(Protocol::P2p(peer)) = address.iter().last()
            && self.peers.get(&peer).is_some_and(|peer| peer.profile().is_some())
        {
            return self.reach(peer, waiter);
        }
        let options = DialOpts::from(address);
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(id, Purpose::Asked { waiter, target });
            }
            Err(error) => {
                let _ = waiter.send(Err(unreachable_at(target, &error)));
            }
        }
    }

    /// Connects to a peer, by the addresses that the book and the protocols know.
    pub(super) fn reach(&mut self, peer: PeerId, waiter: Waiter) {
        if let Some(known) = self.peers.get(&peer).and_then(Peer::profile).and(node_of(&peer)) {
            let _ = waiter.send(Ok(known));
            return;
        }
        if self.asked_count() >= DIALS_MAX {
            let _ = waiter.send(Err(DialError::TooMany { max: DIALS_MAX }));
            return;
        }
        match self.dial_peer(peer) {
            Ok(_) | Err(swarm::DialError::DialPeerConditionFalse(_)) => {
                self.waiting.push((peer, waiter));
            }
            Err(error) => {
                let _ = waiter.send(Err(unreachable_at(peer.to_string(), &error)));
            }
        }
    }

    /// Dials a peer unless it is connected or being dialled: where it was seen, where the protocols
    /// know it, and through those who carry circuits, since it may have asked the same for one.
    pub(super) fn dial_peer(&mut self, peer: PeerId) -> Result<ConnectionId, swarm::DialError> {
        let mut addresses = self.redial.book.addresses(&peer).to_vec();
        addresses.extend(self.circuits(peer));
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(addresses)
            .extend_addresses_through_behaviour()
            .build();
        let id = options.connection_id();
        self.swarm.dial(options).map(|()| id)
    }

    /// Ways to a peer through those connected here who carry circuits.
    fn circuits(&self, peer: PeerId) -> Vec<Multiaddr> {
        let relays = self.peers.iter().filter(|(relay, _)| **relay != peer);
        let places = relays.filter_map(|(relay, state)| {
            let place = relay_place(state)?.with_p2p(*relay).ok()?;
            Some(place.with(Protocol::P2pCircuit).with(Protocol::P2p(peer)))
        });
        places.take(CIRCUITS_TRIED_MAX).collect()
    }

    pub(super) fn on_established(
        &mut self,
        peer: PeerId,
        id: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let link = Link::of(endpoint);
        let state = self.peers.entry(peer).or_insert_with(|| Peer {
            links: BTreeMap::new(),
            standing: Standing::Silent { since: Instant::now() },
            rtt_us: None,
            relay_rest: Rest::default(),
        });
        state.links.insert(id, link);
        match self.dials.remove(&id) {
            Some(Purpose::Asked { waiter, .. }) => {
                match self.peers[&peer].profile().and(node_of(&peer)) {
                    Some(node) => drop(waiter.send(Ok(node))),
                    None => self.waiting.push((peer, waiter)),
                }
            }
            Some(Purpose::Seed(place)) => self.redial.seeds[place].peer = Some(peer),
            Some(Purpose::Known) | None => {}
        }
    }

    pub(super) fn on_closed(&mut self, peer: PeerId, id: ConnectionId) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if state.links.len() > 1 {
            state.links.remove(&id);
            return;
        }
        // The peer is looked at once more with its last link, which says where it was.
        self.meet(peer);
        let state = self.peers.remove(&peer).expect("it was there a moment ago");
        let Some(node) = node_of(&peer) else { return };
        self.release(peer, |_| DialError::Left { peer: node });
        if state.profile().is_some() {
            self.walk_soon();
            self.outbox.tell(Event::Disconnected { peer: node });
        }
    }

    pub(super) fn on_dial_failed(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        error: &swarm::DialError,
    ) {
        let now = Instant::now();
        match self.dials.remove(&id) {
            Some(Purpose::Asked { waiter, target }) => {
                let _ = waiter.send(Err(unreachable_at(target, error)));
            }
            Some(Purpose::Seed(place)) => self.redial.seed_failed(place, error, now),
            Some(Purpose::Known) | None => {}
        }
        let superfluous = matches!(error, swarm::DialError::DialPeerConditionFalse(_));
        if let Some(peer) = peer.filter(|peer| !superfluous && !self.peers.contains_key(peer)) {
            self.redial.book.failed(&peer, now);
            self.release(peer, |peer| unreachable_at(peer.to_string(), error));
        }
    }

    pub(super) fn on_identify(&mut self, event: identify::Event) {
        match event {
            identify::Event::Received { connection_id, peer_id, info } => {
                self.on_identified(peer_id, connection_id, info);
            }
            identify::Event::Error { peer_id, error, .. } => {
                tracing::debug!(%peer_id, %error, "a peer did not say what it is");
            }
            // What this node said about itself is known.
            identify::Event::Sent { .. } | identify::Event::Pushed { .. } => {}
        }
    }

    fn on_identified(&mut self, peer: PeerId, id: ConnectionId, info: identify::Info) {
        let Some(node) = node_of(&peer) else { return };
        let Some(state) = self.peers.get_mut(&peer) else { return };
        let Some(link) = state.links.get(&id) else { return };
        if let Some(mismatch) = mismatch(node, &info, &self.names) {
            return self.refuse(peer, mismatch);
        }
        let profile = Profile {
            agent: short(&info.agent_version),
            version: short(&info.protocol_version),
            addresses: worth_keeping(&info.listen_addrs, &link.address),
            serves_dht: info.protocols.contains(&self.names.dht),
            serves_relay: info.protocols.contains(&relay::HOP_PROTOCOL_NAME),
        };
        let before = std::mem::replace(&mut state.standing, Standing::Member(profile));
        let is_new = !matches!(before, Standing::Member(_));
        self.file_in_dht(peer, before);
        self.meet(peer);
        if is_new {
            self.welcome(peer);
        }
    }

    /// A peer is one of us: everybody who waited for it learns so, once.
    fn welcome(&mut self, peer: PeerId) {
        let (Some(node), Some(state)) = (node_of(&peer), self.peers.get(&peer)) else { return };
        let Link { direction, path, .. } = *state.best();
        self.outbox.tell(Event::Connected { peer: node, direction, path });
        self.redial.joined(peer);
        self.judge_reachability();
        self.walk_soon();
        for (_, waiter) in self.waiting.extract_if(.., |(of, _)| *of == peer) {
            let _ = waiter.send(Ok(node));
        }
    }

    fn refuse(&mut self, peer: PeerId, mismatch: Mismatch) {
        let now = Instant::now();
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if matches!(state.standing, Standing::Refused { .. }) {
            return;
        }
        state.standing = Standing::Refused { at: now };
        tracing::warn!("{mismatch}");
        self.redial.refused(peer, now);
        self.release(peer, |_| DialError::Mismatch(mismatch.clone()));
        self.outbox.tell(Event::Mismatch(mismatch));
    }

    /// Disconnects peers that are not ours, and those that do not say what they are.
    pub(super) fn send_away(&mut self, now: Instant) {
        let is_over = |peer: &Peer| match peer.standing {
            Standing::Refused { at } => now.duration_since(at) >= REFUSAL_GRACE,
            Standing::Silent { since } => now.duration_since(since) >= IDENTIFY_WAIT_MAX,
            Standing::Member(_) => false,
        };
        let over = self.peers.iter().filter(|(_, peer)| is_over(peer));
        let over: Vec<PeerId> = over.map(|(peer, _)| *peer).collect();
        for peer in over {
            tracing::debug!(%peer, "sent away");
            // It may have gone in this moment.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        // Dials end by themselves within the transport's deadline; whoever stopped waiting for
        // one need not be kept.
        self.waiting.retain(|(_, waiter)| !waiter.is_closed());
    }

    pub(super) fn on_ping(&mut self, event: &ping::Event) {
        if let (Ok(rtt), Some(peer)) = (&event.result, self.peers.get_mut(&event.peer)) {
            peer.rtt_us = u64::try_from(rtt.as_micros()).ok();
        }
    }

    pub(super) fn on_mdns(&mut self, event: mdns::Event) {
        let mdns::Event::Discovered(found) = event else { return };
        for (peer, address) in found.into_iter().take(NEIGHBOURS_MAX) {
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(vec![address])
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::debug!(%peer, %error, "a neighbour is not dialled");
            }
        }
    }

    pub(super) fn peer_infos(&self) -> Vec<PeerInfo> {
        let info = |(peer, state): (&PeerId, &Peer)| {
            let (profile, best) = (state.profile()?, state.best());
            Some(PeerInfo {
                id: node_of(peer)?,
                addresses: state.places(),
                direction: best.direction,
                path: best.path,
                rtt_us: state.rtt_us,
                agent: profile.agent.clone(),
                version: profile.version.clone(),
            })
        };
        self.peers.iter().filter_map(info).collect()
    }

    pub(super) fn allow(&mut self, peer: PeerId) -> Result<(), ListError> {
        let behaviour = self.swarm.behaviour_mut();
        if let Some(allowed) = behaviour.allowed.as_mut() {
            if allowed.allowed_peers().len() >= MEMBERS_MAX {
                return Err(ListError::Full { max: MEMBERS_MAX });
            }
            allowed.allow_peer(peer);
        }
        behaviour.blocked.unblock_peer(peer);
        Ok(())
    }

    pub(super) fn block(&mut self, peer: PeerId) -> Result<(), ListError> {
        let behaviour = self.swarm.behaviour_mut();
        if behaviour.blocked.blocked_peers().len() >= MEMBERS_MAX {
            return Err(ListError::Full { max: MEMBERS_MAX });
        }
        behaviour.blocked.block_peer(peer);
        if let Some(allowed) = behaviour.allowed.as_mut() {
            allowed.disallow_peer(peer);
        }
        Ok(())
    }

    /// Tells those who wait for `peer` that it does not come.
    fn release(&mut self, peer: PeerId, error: impl Fn(PeerId) -> DialError) {
        for (_, waiter) in self.waiting.extract_if(.., |(of, _)| *of == peer) {
            let _ = waiter.send(Err(error(peer)));
        }
    }

    fn asked_count(&self) -> usize {
        let asked = self.dials.values().filter(|dial| matches!(dial, Purpose::Asked { .. }));
        asked.count() + self.waiting.len()
    }
}

impl Link {
    fn of(endpoint: &ConnectedPoint) -> Self {
        let (address, direction) = match endpoint {
            ConnectedPoint::Dialer { address, .. } => (address, Direction::Outbound),
            ConnectedPoint::Listener { send_back_addr, .. } => (send_back_addr, Direction::Inbound),
        };
        let path = if endpoint.is_relayed() { Path::Relayed } else { Path::Direct };
        Self { address: address.clone(), direction, path }
    }
}

/// Whether two nodes cannot talk.
fn mismatch(
    peer: NodeId,
    info: &identify::Info,
    names: &super::super::names::Names,
) -> Option<Mismatch> {
    if info.protocol_version != names.speech {
        let theirs = short(&info.protocol_version);
        return Some(Mismatch::Version { peer, theirs, ours: names.speech.clone() });
    }
    if !info.protocols.contains(&names.ask) {
        return Some(Mismatch::Network { peer, ours: names.label.clone() });
    }
    None
}

/// What a stranger says, in a form that can be shown.
fn short(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(SPEECH_CHARS_MAX).collect()
}

/// An address without the name of the peer at its end.
pub fn without_peer(mut address: Multiaddr) -> Multiaddr {
    // In a circuit the last name is where it leads, and the one before is the relay's.
    if !is_circuit(&address) && matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

fn unreachable_at(target: String, error: &swarm::DialError) -> DialError {
    match error {
        swarm::DialError::LocalPeerId { .. } => DialError::Myself { target },
        error => DialError::Unreachable { target, reason: error.to_string() },
    }
}
