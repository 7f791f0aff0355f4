//! Where this node can be found: its own addresses, who can dial them, and relays where nobody can.

use std::io;

use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, autonat, dcutr, kad};
use tokio::time::Instant;

use super::super::address::{Reach, is_circuit, reach};
use super::super::config::{Config, DhtRole, RelayUse};
use super::super::event::{Direction, Event, Path, Reachability};
use super::Actor;
use super::peers::{Peer, without_peer};

/// Relays at a time; the second is for when the first goes.
const RELAYS_MAX: usize = 2;
/// Failed probes after which a node takes itself for unreachable.
const PROBES_FAILED_MIN: u32 = 3;

/// What is known about who can dial this node.
pub struct Reachable {
    now: Reachability,
    told: Vec<Multiaddr>,
    dht: DhtRole,
    relay_use: RelayUse,
    probes_failed: u32,
    /// At most [`RELAYS_MAX`].
    relays: Vec<(ListenerId, PeerId)>,
}

impl Reachable {
    pub fn new(config: &Config) -> Self {
        Self {
            now: Reachability::Unknown,
            told: config.external.clone(),
            dht: config.dht,
            relay_use: config.relay_use,
            probes_failed: 0,
            relays: Vec::new(),
        }
    }
}

impl Actor {
    /// Where this node listens and can be dialled, circuits among them.
    pub(super) fn addresses(&self) -> Vec<Multiaddr> {
        let mut addresses: Vec<Multiaddr> = self.swarm.external_addresses().cloned().collect();
        for address in self.swarm.listeners() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// Whether an address leads back to this node.
    pub(super) fn is_mine(&self, address: &Multiaddr) -> bool {
        let me = *self.swarm.local_peer_id();
        let leads_to_me = matches!(address.iter().last(), Some(Protocol::P2p(peer)) if peer == me);
        let place = without_peer(address.clone());
        leads_to_me || self.swarm.listeners().any(|mine| *mine == place)
    }

    pub(super) fn on_probe(&mut self, event: &autonat::v2::client::Event) {
        if let Err(error) = &event.result {
            tracing::debug!(address = %event.tested_addr, %error, "nobody can dial this address");
            self.reachable.probes_failed = self.reachable.probes_failed.saturating_add(1);
        }
        self.judge_reachability();
    }

    /// There is a straight way to a peer, or not: then whoever carried it has done its part. Streams go
    /// over the oldest connection, and would die with the relay.
    pub(super) fn on_punched(&mut self, event: &dcutr::Event) {
        let peer = event.remote_peer_id;
        if let Err(error) = &event.result {
            tracing::debug!(%peer, %error, "no hole could be punched");
            return;
        }
        tracing::info!(%peer, "a hole was punched: the two are connected directly");
        let Some(state) = self.peers.get(&peer) else { return };
        let relayed = state.links.iter().filter(|(_, link)| link.path == Path::Relayed);
        for id in relayed.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.swarm.close_connection(id);
        }
    }

    /// Thinks again about who can dial this node, and says so if it has changed.
    pub(super) fn judge_reachability(&mut self) {
        let straight = self.swarm.external_addresses().filter(|address| !is_circuit(address));
        let told = &self.reachable.told;
        let farthest = straight
            .filter_map(|address| match told.contains(address) {
                true => Some(Reach::Global),
                false => reach(address),
            })
            .max();
        let now = match farthest {
            Some(Reach::Global) => Reachability::Public,
            Some(Reach::Local | Reach::Loopback) => Reachability::Local,
            None if self.reachable.probes_failed >= PROBES_FAILED_MIN => Reachability::Unreachable,
            // Those in the same room can; if not, probes will tell soon. Waiting for them would leave
            // the others without a way to this node if whom all joined by goes at once.
            None if self.has_near() => Reachability::Local,
            None => Reachability::Unknown,
        };
        if now == self.reachable.now {
            return;
        }
        self.reachable.now = now;
        if self.reachable.dht == DhtRole::WhenReachable {
            let mode = match now {
                Reachability::Local | Reachability::Public => kad::Mode::Server,
                Reachability::Unknown | Reachability::Unreachable => kad::Mode::Client,
            };
            self.swarm.behaviour_mut().dht.set_mode(Some(mode));
        }
        self.outbox.tell(Event::Reachability(now));
    }

    /// Whether somebody on the same machine or local network is connected, and this node listens there.
    fn has_near(&self) -> bool {
        let is_near = |address: &Multiaddr| {
            !is_circuit(address)
                && reach(address)
                    .is_some_and(|reach| matches!(reach, Reach::Loopback | Reach::Local))
        };
        let members = self.peers.values().filter(|peer| peer.profile().is_some());
        let mut links = members.flat_map(|peer| peer.links.values());
        links.any(|link| is_near(&link.address)) && self.swarm.listeners().any(is_near)
    }

    /// Asks peers that offer it to carry circuits to this node, while it needs them.
    pub(super) fn seek_relays(&mut self, now: Instant) {
        let far = match (self.reachable.relay_use, self.reachable.now) {
            (RelayUse::Never, _) | (RelayUse::WhenUnreachable, Reachability::Public) => return,
            (RelayUse::Always, _) => None,
            // A relay in the same room helps nobody to come in from outside.
            (RelayUse::WhenUnreachable, _) => Some(Reach::Global),
        };
        if self.reachable.relays.len() >= RELAYS_MAX {
            return;
        }
        let relays = &self.reachable.relays;
        let offers = self.peers.iter().find_map(|(peer, state)| {
            let is_used = relays.iter().any(|(_, used)| used == peer);
            let place = relay_place(state).filter(|place| far.is_none() || reach(place) == far)?;
            (!is_used && state.relay_rest.is_over(now)).then_some((*peer, place))
        });
        let Some((peer, place)) = offers else { return };
        let Ok(place) = place.with_p2p(peer) else { return };
        match self.swarm.listen_on(place.with(Protocol::P2pCircuit)) {
            Ok(listener) => self.reachable.relays.push((listener, peer)),
            Err(error) => {
                tracing::debug!(%peer, %error, "a relay cannot be asked");
                self.let_relay_rest(&peer, now);
            }
        }
    }

    pub(super) fn on_listener_closed(&mut self, id: ListenerId, reason: &io::Result<()>) {
        let relays = &mut self.reachable.relays;
        match relays.iter().position(|(listener, _)| *listener == id) {
            Some(place) => {
                let (_, peer) = relays.swap_remove(place);
                tracing::debug!(%peer, ?reason, "a relay is gone");
                self.let_relay_rest(&peer, Instant::now());
            }
            None => tracing::warn!(?reason, "a listener has closed; this node hears less"),
        }
    }

    fn let_relay_rest(&mut self, peer: &PeerId, now: Instant) {
        if let Some(state) = self.peers.get_mut(peer) {
            state.relay_rest.lengthen(now);
        }
    }
}

/// Where a peer that carries circuits can be dialled by others, if it does.
pub(super) fn relay_place(peer: &Peer) -> Option<Multiaddr> {
    let profile = peer.profile().filter(|profile| profile.serves_relay)?;
    let dialled = peer
        .links
        .values()
        .find(|link| link.direction == Direction::Outbound && link.path == Path::Direct);
    let told = profile.addresses.iter().find(|address| !is_circuit(address));
    dialled.map(|link| &link.address).or(told).cloned()
}
