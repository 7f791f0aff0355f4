//! Finding the network and finding it again: addresses to join by, and the book of peers.

use std::path::PathBuf;
use std::time::Duration;

use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::book::{self, Book, Rest};
use super::Actor;
use super::peers::{Peer, Purpose};

/// Peers with which a node is content, beside those it was told to join by; gossip's mesh wants
/// about as many.
pub const PEERS_WANTED: usize = 4;
/// Dials at a time to find the network again.
pub const REDIALS_MAX: usize = 8;
/// How often the book is written, if it has changed.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// How long the last writing may take when the node leaves.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Where to look for the network.
pub struct Redial {
    /// Addresses to join by.
    pub seeds: Vec<Seed>,
    /// Where peers were seen.
    pub book: Book,
    file: Option<PathBuf>,
    writing: Option<JoinHandle<()>>,
    written: Option<Instant>,
}

/// An address to join by.
pub struct Seed {
    address: Multiaddr,
    /// Who was there.
    pub peer: Option<PeerId>,
    rest: Rest,
    /// It leads to this node itself.
    is_me: bool,
}

impl Redial {
    pub fn new(join: &[Multiaddr], book: Book, file: Option<PathBuf>) -> Self {
        let seed = |address: &Multiaddr| Seed {
            address: address.clone(),
            peer: None,
            rest: Rest::default(),
            is_me: false,
        };
        let seeds = join.iter().map(seed).collect();
        Self { seeds, book, file, writing: None, written: None }
    }

    /// A dial to an address came to nothing.
    pub fn seed_failed(&mut self, place: usize, error: &DialError, now: Instant) {
        let seed = &mut self.seeds[place];
        // Once is news; the same again, every few seconds, is not.
        match seed.rest.is_fresh() {
            true => {
                let error = error.to_string().replace('\n', " ");
                tracing::info!(address = %seed.address, error, "an address to join by does not answer");
            }
            false => tracing::debug!(address = %seed.address, %error, "it still does not answer"),
        }
        seed.is_me = matches!(error, DialError::LocalPeerId { .. });
        seed.rest.lengthen(now);
    }

    /// A peer turned out to be one of us.
    pub fn joined(&mut self, peer: PeerId) {
        for seed in self.seeds.iter_mut().filter(|seed| seed.peer == Some(peer)) {
            seed.rest = Rest::default();
        }
    }

    /// A peer turned out to be none of us.
    pub fn refused(&mut self, peer: PeerId, now: Instant) {
        for seed in self.seeds.iter_mut().filter(|seed| seed.peer == Some(peer)) {
            seed.rest.lengthen(now);
        }
        self.book.failed(&peer, now);
    }
}

impl Actor {
    /// How many of the network are connected beside those this node was told to join by. Those may
    /// all go at once.
    pub(super) fn members_met(&self) -> usize {
        let is_seed = |peer: &PeerId| self.redial.seeds.iter().any(|it| it.peer == Some(*peer));
        let members = self.peers.iter().filter(|(_, peer)| peer.profile().is_some());
        members.filter(|(peer, _)| !is_seed(peer)).count()
    }

    /// Dials addresses and peers that may be tried, while too few are connected.
    pub(super) fn redial(&mut self, now: Instant) {
        if self.members_met() >= PEERS_WANTED {
            return;
        }
        let under_way = |actor: &Self| {
            let redials = |dial: &&Purpose| !matches!(dial, Purpose::Asked { .. });
            actor.dials.values().filter(redials).count()
        };
        for place in 0..self.redial.seeds.len() {
            if under_way(self) < REDIALS_MAX {
                self.dial_seed(place, now);
            }
        }
        for peer in self.redial.book.due(now) {
            if under_way(self) >= REDIALS_MAX {
                break;
            }
            if self.peers.contains_key(&peer) {
                continue;
            }
            match self.dial_peer(peer) {
                Ok(id) => drop(self.dials.insert(id, Purpose::Known)),
                // It is being dialled already, and that counts for nothing here.
                Err(DialError::DialPeerConditionFalse(_)) => {}
                Err(_) => self.redial.book.failed(&peer, now),
            }
        }
    }

    fn dial_seed(&mut self, place: usize, now: Instant) {
        let seed = &self.redial.seeds[place];
        let is_connected = seed.peer.is_some_and(|peer| self.peers.contains_key(&peer));
        let is_dialled =
            self.dials.values().any(|dial| matches!(dial, Purpose::Seed(of) if *of == place));
        if seed.is_me || is_connected || is_dialled || !seed.rest.is_over(now) {
            return;
        }
        if self.is_mine(&seed.address) {
            return;
        }
        let options = DialOpts::from(seed.address.clone());
        let id = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => drop(self.dials.insert(id, Purpose::Seed(place))),
            Err(error) => self.redial.seed_failed(place, &error, now),
        }
    }

    /// Puts down where a peer of ours is.
    pub(super) fn meet(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get(&peer).filter(|state| state.profile().is_some()) else {
            return;
        };
        self.redial.book.seen(peer, &state.places(), (self.clock)());
    }

    /// Puts down everybody who is connected.
    pub(super) fn meet_again(&mut self) {
        let members = self.peers.iter().filter(|(_, state)| Peer::profile(state).is_some());
        let members: Vec<PeerId> = members.map(|(peer, _)| *peer).collect();
        members.into_iter().for_each(|peer| self.meet(peer));
    }

    /// Writes the book beside the task, not too often.
    pub(super) fn save(&mut self, now: Instant) {
        let redial = &mut self.redial;
        let is_early = redial.written.is_some_and(|last| now - last < WRITE_EVERY);
        let is_busy = redial.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        let Some(file) = redial.file.clone().filter(|_| !is_early && !is_busy) else { return };
        let Some(bytes) = redial.book.unwritten() else { return };
        redial.written = Some(now);
        redial.writing = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = book::write(&file, &bytes) {
                let error = anyhow::Error::from(error);
                tracing::warn!("{error:#}");
            }
        }));
    }

    /// Writes the book once more, and waits for it.
    pub(super) async fn save_last(&mut self) {
        self.finish_writing().await;
        self.redial.written = None;
        self.save(Instant::now());
        self.finish_writing().await;
    }

    async fn finish_writing(&mut self) {
        if let Some(writing) = self.redial.writing.take()
            && tokio::time::timeout(WRITE_WAIT_MAX, writing).await.is_err()
        {
            tracing::warn!("the disk has been silent for {WRITE_WAIT_MAX:?}; peers are not saved");
        }
    }
}
