//! Who provides what: announcements of this node, look-ups, and the records kept for others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{
    self, GetClosestPeersError, GetClosestPeersOk, GetProvidersOk, InboundRequest, ProviderRecord,
    QueryId, QueryResult, RecordKey,
};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use tokio::sync::oneshot;
use tokio::time::Instant;
use wire::NodeId;

use super::super::address::{ADDRESSES_MAX, worth_keeping};
use super::super::behaviour::{LOOKUP_WAIT_MAX, PROVIDED_KEYS_MAX};
use super::super::book::Rest;
use super::super::identity::node_of;
use super::super::refusal::LookupError;
use super::Actor;
use super::peers::{Peer, Standing};
use super::redial::PEERS_WANTED;

/// Look-ups and announcements at a time that somebody waits for.
const LOOKUPS_MAX: usize = 64;
/// Providers in one answer; whoever looks wants the near ones, not all.
const FOUND_MAX: usize = 64;
/// Providers of one look-up that are dialled while their addresses are at hand.
const FOUND_DIALS_MAX: usize = 8;
/// Keys that this node provides: models and their parts.
const OWN_KEYS_MAX: usize = 64;
/// Keys for which this node remembers any one other as a provider, so that no stranger takes all
/// the room.
const KEYS_PER_PEER_MAX: usize = 64;
/// How long after the last announcement newcomers are told. They arrive in bunches.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// How often records that nobody renewed are thrown away.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

type Found = oneshot::Sender<Result<Vec<NodeId>, LookupError>>;
type Announced = oneshot::Sender<Result<(), LookupError>>;

/// What is provided, looked up and remembered.
#[derive(Default)]
pub struct Dht {
    /// What this node provides; at most [`OWN_KEYS_MAX`].
    own: BTreeSet<[u8; 32]>,
    /// Of whom is remembered that they provide what; at most [`PROVIDED_KEYS_MAX`] keys.
    others: BTreeMap<[u8; 32], BTreeSet<PeerId>>,
    /// At most [`LOOKUPS_MAX`] with the next.
    lookups: Vec<LookUp>,
    announcements: Vec<(QueryId, Announced)>,
    /// Somebody who answers look-ups has come since the last announcement.
    is_announcement_due: bool,
    announced: Option<Instant>,
    swept: Option<Instant>,
    /// A walk under way.
    walk: Option<QueryId>,
    walk_rest: Rest,
}

struct LookUp {
    id: QueryId,
    found: BTreeSet<NodeId>,
    dialled: usize,
    reply: Found,
}

impl Actor {
    pub(super) fn provide(&mut self, key: [u8; 32], reply: Announced) {
        let is_known = self.dht.own.contains(&key);
        let refusal = if !is_known && self.dht.own.len() >= OWN_KEYS_MAX {
            Err(LookupError::TooManyKeys { max: OWN_KEYS_MAX })
        } else if self.dht.under_way() >= LOOKUPS_MAX {
            Err(LookupError::TooMany { max: LOOKUPS_MAX })
        } else {
            let dht = &mut self.swarm.behaviour_mut().dht;
            let full = |_| LookupError::TooManyKeys { max: PROVIDED_KEYS_MAX };
            dht.start_providing(RecordKey::new(&key)).map_err(full)
        };
        match refusal {
            Ok(id) => {
                self.dht.own.insert(key);
                self.dht.announcements.push((id, reply));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    pub(super) fn stop_providing(&mut self, key: [u8; 32]) {
        self.dht.own.remove(&key);
        self.swarm.behaviour_mut().dht.stop_providing(&RecordKey::new(&key));
    }

    pub(super) fn look_up(&mut self, key: [u8; 32], reply: Found) {
        if self.dht.under_way() >= LOOKUPS_MAX {
            let _ = reply.send(Err(LookupError::TooMany { max: LOOKUPS_MAX }));
            return;
        }
        let id = self.swarm.behaviour_mut().dht.get_providers(RecordKey::new(&key));
        self.dht.lookups.push(LookUp { id, found: BTreeSet::new(), dialled: 0, reply });
    }

    pub(super) fn on_dht(&mut self, event: kad::Event) {
        match event {
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => match result {
                QueryResult::GetProviders(result) => {
                    if let Ok(GetProvidersOk::FoundProviders { providers, .. }) = &result {
                        self.on_found(id, providers.iter().copied());
                    }
                    if step.last {
                        self.on_looked_up(id, result.is_err());
                    }
                }
                QueryResult::StartProviding(_) => self.on_announced(id),
                QueryResult::GetClosestPeers(result) if step.last => {
                    let peers = match result {
                        Ok(GetClosestPeersOk { peers, .. })
                        | Err(GetClosestPeersError::Timeout { peers, .. }) => peers,
                    };
                    self.on_walked(id, peers);
                }
                // Bootstraps and renewals: nobody waits for them.
                _ => {}
            },
            kad::Event::InboundRequest {
                request: InboundRequest::AddProvider { record: Some(record) },
            } => self.on_record(record),
            // Values are not kept, and the routing table is the library's own.
            _ => {}
        }
    }

    /// Providers' addresses live as long as the look-up that found them, so they are dialled now.
    fn on_found(&mut self, id: QueryId, providers: impl Iterator<Item = PeerId>) {
        let Some(place) = self.dht.lookups.iter().position(|lookup| lookup.id == id) else {
            return;
        };
        for peer in providers {
            let Some(node) = node_of(&peer) else { continue };
            let lookup = &mut self.dht.lookups[place];
            if lookup.found.len() >= FOUND_MAX || !lookup.found.insert(node) {
                continue;
            }
            let is_near = self.peers.contains_key(&peer) || peer == *self.swarm.local_peer_id();
            if !is_near && lookup.dialled < FOUND_DIALS_MAX {
                lookup.dialled += 1;
                if let Err(error) = self.dial_peer(peer) {
                    tracing::debug!(%peer, %error, "a provider is not dialled");
                }
            }
        }
    }

    fn on_looked_up(&mut self, id: QueryId, timed_out: bool) {
        let Some(place) = self.dht.lookups.iter().position(|lookup| lookup.id == id) else {
            return;
        };
        let LookUp { found, reply, .. } = self.dht.lookups.swap_remove(place);
        let connected = self.peers.len();
        // Whoever asked may have stopped waiting.
        let _ = reply.send(match timed_out && found.is_empty() {
            true => Err(LookupError::Silent { connected, waited: LOOKUP_WAIT_MAX }),
            false => Ok(found.into_iter().collect()),
        });
    }

    /// Looks for nodes near a place nobody chose, while this one knows too few beside those it was
    /// told to join by: when they are gone, the others must still find each other.
    pub(super) fn walk(&mut self, now: Instant) {
        let is_wanted = self.members_met() < PEERS_WANTED && !self.peers.is_empty();
        if !is_wanted || self.dht.walk.is_some() || !self.dht.walk_rest.is_over(now) {
            return;
        }
        self.dht.walk_rest.lengthen(now);
        self.dht.walk = Some(self.swarm.behaviour_mut().dht.get_closest_peers(PeerId::random()));
    }

    /// Somebody came or went: a walk may find others than the last.
    pub(super) fn walk_soon(&mut self) {
        self.dht.walk_rest = Rest::default();
    }

    /// The walk itself has dialled whoever it asked; the rest were only named.
    fn on_walked(&mut self, id: QueryId, found: Vec<kad::PeerInfo>) {
        if self.dht.walk != Some(id) {
            return;
        }
        self.dht.walk = None;
        let me = *self.swarm.local_peer_id();
        let missing = PEERS_WANTED.saturating_sub(self.members_met());
        let new = found.into_iter().filter(|it| it.peer_id != me);
        let new: Vec<_> = new.filter(|it| !self.peers.contains_key(&it.peer_id)).collect();
        for kad::PeerInfo { peer_id, addrs } in new.into_iter().take(missing) {
            let options = DialOpts::peer_id(peer_id)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addrs.into_iter().take(ADDRESSES_MAX).collect())
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::debug!(peer = %peer_id, %error, "a node found by a walk is not dialled");
            }
        }
    }

    fn on_announced(&mut self, id: QueryId) {
        for (_, reply) in self.dht.announcements.extract_if(.., |(of, _)| *of == id) {
            let _ = reply.send(Ok(()));
        }
    }

    /// Keeps a record about another node, after a look at it.
    fn on_record(&mut self, mut record: ProviderRecord) {
        let Ok(key) = <[u8; 32]>::try_from(record.key.as_ref()) else { return };
        let Some(provider) = self.peers.get(&record.provider) else { return };
        record.addresses = worth_keeping(&record.addresses, &provider.best().address);
        if record.addresses.is_empty() {
            // A node that nobody has probed yet announces none, and has told them already.
            let told = provider.profile().map(|profile| profile.addresses.clone());
            record.addresses = told.unwrap_or_default();
        }
        if !self.dht.has_room(&key, &record.provider) {
            tracing::debug!(provider = %record.provider, "no room for a provider's record");
            return;
        }
        let provider = record.provider;
        if self.swarm.behaviour_mut().dht.store_mut().add_provider(record).is_ok() {
            self.dht.others.entry(key).or_default().insert(provider);
        }
    }

    /// A peer has said what it is: those who answer look-ups enter the routing table with the
    /// addresses they have now, and only those.
    pub(super) fn file_in_dht(&mut self, peer: PeerId, before: Standing) {
        let Some(now) = self.peers.get(&peer).and_then(Peer::profile) else { return };
        let dht = &mut self.swarm.behaviour_mut().dht;
        let served = matches!(&before, Standing::Member(profile) if profile.serves_dht);
        if !now.serves_dht {
            if served {
                dht.remove_peer(&peer);
            }
            return;
        }
        for address in &now.addresses {
            dht.add_address(&peer, address.clone());
        }
        if let Standing::Member(profile) = before {
            let gone = profile.addresses.into_iter().filter(|old| !now.addresses.contains(old));
            for address in gone.filter_map(|old| old.with_p2p(peer).ok()) {
                dht.remove_address(&peer, &address);
            }
        }
        if !served {
            self.dht.is_announcement_due = true;
        }
    }

    pub(super) fn tend_dht(&mut self, now: Instant) {
        let is_over = |last: Option<Instant>, every| last.is_none_or(|last| now - last >= every);
        if self.dht.is_announcement_due && is_over(self.dht.announced, ANNOUNCE_EVERY) {
            self.dht.is_announcement_due = false;
            self.dht.announced = Some(now);
            for key in &self.dht.own {
                // The record is there already, so it cannot fail for want of room.
                let _ = self.swarm.behaviour_mut().dht.start_providing(RecordKey::new(key));
            }
        }
        if is_over(self.dht.swept, SWEEP_EVERY) {
            self.dht.swept = Some(now);
            let store = self.swarm.behaviour_mut().dht.store_mut();
            let now = std::time::Instant::now();
            self.dht.others.retain(|key, providers| {
                let key = RecordKey::new(key);
                for old in store.providers(&key).iter().filter(|record| record.is_expired(now)) {
                    store.remove_provider(&key, &old.provider);
                    providers.remove(&old.provider);
                }
                !providers.is_empty()
            });
        }
    }
}

impl Dht {
    fn under_way(&self) -> usize {
        self.lookups.len() + self.announcements.len()
    }

    fn has_room(&self, key: &[u8; 32], provider: &PeerId) -> bool {
        if self.others.get(key).is_some_and(|providers| providers.contains(provider)) {
            return true;
        }
        let of_peer = self.others.values().filter(|providers| providers.contains(provider));
        of_peer.count() < KEYS_PER_PEER_MAX
    }
}
