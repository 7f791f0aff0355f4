//! Who may be where: this node's hive, the invitations it makes, and whom it lets in.
//!
//! * [`Admission::open`] reads what this node is to its hive; [`Admission::found`] makes it the founder
//!   of a private one, [`join`](apply::join) has it let in by an invitation.
//! * [`Admission::hello`] is what it says first in lanes, and [`Admission::judge`] what it thinks of
//!   what others say. Who shows a membership is a [`Standing::Member`]; who shows none is an
//!   [`Standing::Applicant`], is linked only while an invitation is open here, and is served nothing
//!   but [`Say::Admit`](wire::lane::Say::Admit), by [`Admission::admit`].
//! * Members gossip their proofs ([`Admission::proof`]); [`Admission::learn`] takes others' in, and
//!   whom it did not know has to be allowed in the swarm, as [`Admission::known_members`] were at its
//!   start.
//!
//! **Invariant:** that an invitation was used is on disk before the membership is given out.
//! **Invariant:** nobody is a member here who has not proved it, and none longer than the proof lasts.

mod apply;
mod hive;
mod invites;
mod members;
mod refusal;
mod store;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use wire::lane::Admit;
use wire::{Hello, InviteText, Key, Membership, Millis, NetworkId, NodeId, PROTOCOL};

pub use self::apply::{join, renew, serve};
pub use self::hive::{Belonging, InviteError, RENEW_MS, Wish};
pub use self::invites::{InviteId, Open};
pub use self::members::Learned;
pub use self::refusal::Refusal;
pub use self::store::StoreError;

use self::members::Members;
use self::store::Store;

/// What another node is to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It belongs where this node belongs.
    Member,
    /// It has shown nothing: it may ask to be let in, and nothing else.
    Applicant,
}

/// Why this node's own hive could not be changed.
#[derive(Debug, Error)]
pub enum AdmissionError {
    /// What is remembered cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No invitation was made.
    #[error(transparent)]
    Invite(#[from] InviteError),
    /// It is in a hive already.
    #[error("this node is of {0} already; leave that first, or use another --state-dir")]
    Taken(NetworkId),
    /// The membership that came proves nothing.
    #[error("what came is no membership of this node: {0}")]
    NotOurs(Refusal),
    /// The system gives no random bytes.
    #[error("this machine gives no random bytes: {0}")]
    Dice(getrandom::Error),
}

/// This node's hive. Clones are the same.
#[derive(Debug, Clone)]
pub struct Admission {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    key: Key,
    store: Store,
    live: Mutex<Live>,
}

/// What is asked too often to be read from disk each time.
#[derive(Debug)]
struct Live {
    belonging: Belonging,
    members: Members,
    /// Whether proofs came that are not on disk.
    unsaved: bool,
}

impl Admission {
    /// What folder `state` remembers; a node that was never told otherwise is of the public network.
    ///
    /// # Errors
    /// See [`StoreError`]; a file that is damaged lets nobody in and is not written over.
    pub fn open(state: &Path, key: &Key, now: Millis) -> Result<Self, AdmissionError> {
        let store = Store::new(state, key.id());
        let belonging = store.load()?.belonging;
        let hive = match belonging.network(key.id()) {
            NetworkId::Private(hive) => hive,
            NetworkId::Public => key.id(),
        };
        let mut members = Members::of(hive);
        let own = belonging.proof(now);
        // What lasts no longer, or is of a hive that was left, is let go.
        for proof in store.load_proofs()?.iter().chain([&own].into_iter().filter(|p| !p.is_empty()))
        {
            members.learn(proof, now).ok();
        }
        let live = Mutex::new(Live { belonging, members, unsaved: false });
        Ok(Self { inner: Arc::new(Inner { key: key.clone(), store, live }) })
    }

    /// Makes this node the founder of a private hive, which has its key for a name.
    ///
    /// # Errors
    /// It belongs to one already, or that cannot be written down.
    pub fn found(&self) -> Result<NetworkId, AdmissionError> {
        let me = self.inner.key.id();
        self.inner.store.change(|hive| match hive.belonging {
            Belonging::Public => {
                hive.belonging = Belonging::Founder;
                Ok(())
            }
            Belonging::Founder => Ok(()),
            Belonging::Member(_) => Err(AdmissionError::Taken(hive.belonging.network(me))),
        })?;
        *self.live() =
            Live { belonging: Belonging::Founder, members: Members::of(me), unsaved: false };
        Ok(NetworkId::Private(me))
    }

    /// Leaves the private hive for the public network; its invitations are void. A founder that comes
    /// back founds the same hive, for its key is the same.
    ///
    /// # Errors
    /// That cannot be written down.
    pub fn leave(&self) -> Result<(), AdmissionError> {
        self.inner.store.change(|hive| {
            *hive = hive::Hive::public();
            Ok::<_, AdmissionError>(())
        })?;
        let members = Members::of(self.inner.key.id());
        *self.live() = Live { belonging: Belonging::Public, members, unsaved: false };
        Ok(())
    }

    /// Takes on a membership that this node was given: in the hive in which it is, or in one which it
    /// enters from the public network.
    ///
    /// # Errors
    /// It is not this node's, or cannot be written down.
    pub fn enter(
        &self,
        hive: NodeId,
        membership: &[u8],
        now: Millis,
    ) -> Result<(), AdmissionError> {
        let me = self.inner.key.id();
        let proof = Membership::prove(membership, me, hive, now);
        let proof = proof.map_err(|error| AdmissionError::NotOurs(error.into()))?;
        let belonging = Belonging::Member(proof);
        self.inner.store.change(|state| {
            let ours = state.belonging.network(me);
            if ours != NetworkId::Public && ours != NetworkId::Private(hive) {
                return Err(AdmissionError::Taken(ours));
            }
            state.belonging = belonging.clone();
            Ok(())
        })?;
        let mut live = self.live();
        if live.belonging.network(me) != NetworkId::Private(hive) {
            live.members = Members::of(hive);
        }
        live.belonging = belonging;
        live.members.learn(membership, now).map_err(AdmissionError::NotOurs)?;
        live.unsaved = true;
        Ok(())
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.inner.key.id()
    }

    /// Where it belongs.
    pub fn network(&self) -> NetworkId {
        self.live().belonging.network(self.me())
    }

    /// Its proof, to be gossiped; `None` for a founder, on the public network, and when it is over.
    pub fn proof(&self, now: Millis) -> Option<Vec<u8>> {
        let proof = self.live().belonging.proof(now);
        (!proof.is_empty()).then_some(proof)
    }

    /// Until when its membership lasts; `None` where it needs none.
    pub fn lasts(&self) -> Option<Millis> {
        match &self.live().belonging {
            Belonging::Member(proof) => Some(hive::lasts(proof)),
            Belonging::Public | Belonging::Founder => None,
        }
    }

    /// What it says first in lanes.
    pub fn hello(&self, now: Millis) -> Hello {
        let live = self.live();
        Hello {
            protocol: PROTOCOL,
            program: concat!("cadencia ", env!("CARGO_PKG_VERSION")).into(),
            network: live.belonging.network(self.me()).bytes(),
            membership: live.belonging.proof(now),
        }
    }

    /// What `peer`, who says `hello`, is to this node.
    ///
    /// # Errors
    /// Why it gets no link, in words for its user.
    pub fn judge(&self, hello: &Hello, peer: NodeId, now: Millis) -> Result<Standing, Refusal> {
        hello.check_version()?;
        let ours = self.network();
        let theirs = NetworkId::from_bytes(&hello.network).expect("checked when it was read");
        if theirs != ours {
            return Err(Refusal::Network { theirs, ours });
        }
        let NetworkId::Private(hive) = ours else { return Ok(Standing::Member) };
        if hello.membership.is_empty() {
            return match self.standing(peer, now) {
                Standing::Member => Ok(Standing::Member),
                Standing::Applicant => self.applicant(now),
            };
        }
        match Membership::prove(&hello.membership, peer, hive, now) {
            Ok(_) => self.learn(&hello.membership, now).map(|_| Standing::Member),
            // It may have been renewed since it began to say hello so, and its proof gossiped.
            Err(error) => match self.standing(peer, now) {
                Standing::Member => Ok(Standing::Member),
                Standing::Applicant => Err(error.into()),
            },
        }
    }

    /// What `peer` is now, as far as it has proved it: for a pipe over a link that may be old.
    pub fn standing(&self, peer: NodeId, now: Millis) -> Standing {
        let live = self.live();
        let member = match live.belonging {
            Belonging::Public => true,
            Belonging::Founder | Belonging::Member(_) => live.members.holds(peer, now),
        };
        if member { Standing::Member } else { Standing::Applicant }
    }

    /// Whether one that shows nothing may come as far as asking.
    fn applicant(&self, now: Millis) -> Result<Standing, Refusal> {
        if !self.live().belonging.may_admit(now) {
            return Err(Refusal::Closed);
        }
        // Read anew: an invitation may just have been made by another process.
        let hive = self.inner.store.load().map_err(|error| unable(&error))?;
        hive.invites.any_open(now).then_some(Standing::Applicant).ok_or(Refusal::Closed)
    }

    /// Makes an invitation.
    ///
    /// # Errors
    /// See [`AdmissionError`].
    pub fn invite(&self, wish: &Wish, now: Millis) -> Result<InviteText, AdmissionError> {
        let mut id = InviteId::default();
        getrandom::fill(&mut id).map_err(AdmissionError::Dice)?;
        let key = &self.inner.key;
        let invite = self.inner.store.change(|hive| {
            let made = hive.invite(key, wish, id, now);
            made.map_err(AdmissionError::Invite)
        })?;
        Ok(InviteText(invite.signed().clone()))
    }

    /// Invitations that are open at `now`.
    ///
    /// # Errors
    /// What is remembered cannot be read.
    pub fn invites(&self, now: Millis) -> Result<Vec<(InviteId, Open)>, AdmissionError> {
        let mut invites = self.inner.store.load()?.invites;
        invites.tidy(now);
        Ok(invites.iter().map(|(id, open)| (*id, open.clone())).collect())
    }

    /// Takes an invitation back; whether there was one. Who came with it stays.
    ///
    /// # Errors
    /// That cannot be written down.
    pub fn withdraw(&self, id: &InviteId) -> Result<bool, AdmissionError> {
        self.inner.store.change(|hive| Ok(hive.invites.withdraw(id)))
    }

    /// Lets `peer` in by the invitation in `ask`, or renews the membership in it. It flushes a disk,
    /// so it is no work for a thread that others wait for.
    ///
    /// # Errors
    /// See [`Refusal::say`].
    pub fn admit(&self, ask: &Admit, peer: NodeId, now: Millis) -> Result<Admit, Refusal> {
        let key = &self.inner.key;
        let membership = match (ask.invite.is_empty(), ask.membership.is_empty()) {
            (false, _) => self.inner.store.change(|hive| {
                hive.redeem(key, &ask.invite, peer, now).map_err(Unadmitted::Refused)
            }),
            (true, false) => self.inner.store.load().map_err(Unadmitted::Store).and_then(|hive| {
                hive.renew(key, &ask.membership, peer, now).map_err(Unadmitted::Refused)
            }),
            (true, true) => Err(Unadmitted::Refused(Refusal::Empty)),
        };
        let membership = membership.map_err(|error| match error {
            Unadmitted::Refused(refusal) => refusal,
            Unadmitted::Store(error) => unable(&error),
        })?;
        let membership = membership.signed().encode();
        self.learn(&membership, now)?;
        Ok(Admit { invite: Vec::new(), membership })
    }

    /// Takes in a proof that was gossiped or shown. Those that are new have to be allowed in the swarm.
    ///
    /// # Errors
    /// It proves nothing, or there are too many members.
    pub fn learn(&self, proof: &[u8], now: Millis) -> Result<Learned, Refusal> {
        let mut live = self.live();
        if live.belonging == Belonging::Public {
            return Err(Refusal::Public);
        }
        let learned = live.members.learn(proof, now)?;
        live.unsaved |= !learned.new.is_empty();
        Ok(learned)
    }

    /// Who is known to belong to the hive, this node aside.
    pub fn known_members(&self, now: Millis) -> Vec<NodeId> {
        let (me, live) = (self.me(), self.live());
        match live.belonging {
            Belonging::Public => Vec::new(),
            Belonging::Founder | Belonging::Member(_) => {
                live.members.known(now).into_iter().filter(|node| *node != me).collect()
            }
        }
    }

    /// Who may renew this node's membership, as far as is known: the founder first.
    pub fn inviters(&self, now: Millis) -> Vec<NodeId> {
        let (me, live) = (self.me(), self.live());
        let NetworkId::Private(hive) = live.belonging.network(me) else { return Vec::new() };
        let may = live.members.proofs().filter(|proof| proof.content().may_invite);
        let named = may.filter_map(|proof| NodeId::from_slice(&proof.content().member));
        let lasting = named.filter(|node| live.members.holds(*node, now));
        let all = std::iter::once(hive).chain(lasting);
        all.filter(|node| *node != me).collect()
    }

    /// Puts proofs on disk if there are new ones. To be called now and then, and before the end; what
    /// a crash loses, others gossip again.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn save(&self) -> Result<(), AdmissionError> {
        let members = {
            let mut live = self.live();
            if !std::mem::take(&mut live.unsaved) {
                return Ok(());
            }
            live.members.clone()
        };
        let kept = self.inner.store.keep_proofs(members.proofs());
        if kept.is_err() {
            self.live().unsaved = true;
        }
        Ok(kept?)
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // Each change is one assignment or insertion.
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why nobody was let in.
enum Unadmitted {
    Refused(Refusal),
    Store(StoreError),
}

impl From<StoreError> for Unadmitted {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The user of this node hears what is wrong with it, the other that it is not their fault.
fn unable(error: &StoreError) -> Refusal {
    tracing::error!(%error, "somebody could not be let in");
    Refusal::Unable
}
