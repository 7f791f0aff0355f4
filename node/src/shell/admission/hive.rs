//! What this node is to its hive, and what it decides about those who want to come in. Pure: whoever
//! calls brings the time and the dice, and writes the new state down *before* it gives anything out.

use thiserror::Error;
use wire::{
    Address, Invite, Key, Malformed, Membership, Millis, NetworkId, NodeId, Signed, Verified,
};

use super::invites::{INVITES_MAX, InviteId, Invites, Open, USES_MAX};
use super::refusal::Refusal;

const DAY_MS: u64 = 24 * 3600 * 1000;
/// How long a membership lasts: a node that was off over a long holiday comes back without an
/// invitation, and one that was given away is out in a season.
pub const MEMBERSHIP_MS: u64 = 90 * DAY_MS;
/// So long before its end a membership is to be renewed.
pub const RENEW_MS: u64 = 30 * DAY_MS;
/// How long an invitation may last.
pub const INVITE_MS_MAX: u64 = 30 * DAY_MS;

/// What a node is to its hive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Belonging {
    /// It is of the public network, as everybody is.
    Public,
    /// It founded the private hive that has its own key for a name.
    Founder,
    /// It was let into a private hive.
    Member(Verified<Membership>),
}

/// What an invitation shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// How many nodes may come, 1 to 64.
    pub uses: u32,
    /// For how long, milliseconds, at most 30 days.
    pub lasts_ms: u64,
    /// Whether they may let others in.
    pub may_invite: bool,
    /// Multiaddresses of this node and of others.
    pub addresses: Vec<String>,
    /// Where this node's lanes are.
    pub lanes: Vec<Address>,
}

/// Why no invitation was made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InviteError {
    /// Too many, or none, shall come.
    #[error("{0} uses: 1 to {USES_MAX} are possible; make several invitations for more")]
    Uses(u32),
    /// It shall last too long, or not at all.
    #[error("an invitation of {seconds} s: 1 s to {} s are possible", INVITE_MS_MAX / 1000)]
    Lasts {
        /// How long it shall last.
        seconds: u64,
    },
    /// Nobody could find the way.
    #[error("no address of this node is known yet; start it with --listen, then invite")]
    Nowhere,
    /// Too many are open.
    #[error("{INVITES_MAX} invitations are open; withdraw one, or wait until one is over")]
    TooMany,
    /// This node may not let others in.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It would be refused by whoever reads it.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// What is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hive {
    /// What this node is to its hive.
    pub belonging: Belonging,
    /// Invitations that it made.
    pub invites: Invites,
}

impl Belonging {
    /// Where the node with key `me` belongs.
    pub fn network(&self, me: NodeId) -> NetworkId {
        match self {
            Self::Public => NetworkId::Public,
            Self::Founder => NetworkId::Private(me),
            Self::Member(proof) => NetworkId::Private(hive_of(proof)),
        }
    }

    /// The proof to show at `now`; empty where there is none or none is needed.
    pub fn proof(&self, now: Millis) -> Vec<u8> {
        match self {
            Self::Member(proof) if lasts(proof) > now => proof.signed().encode(),
            _ => Vec::new(),
        }
    }

    /// Until when what this node signs can hold; refused where it may not let others in at `now`.
    fn entitled(&self, now: Millis) -> Result<Millis, Refusal> {
        match self {
            Self::Public => Err(Refusal::Public),
            Self::Founder => Ok(Millis(u64::MAX)),
            Self::Member(proof) => match proof.content().may_invite && lasts(proof) > now {
                true => Ok(lasts(proof)),
                false => Err(Refusal::Unentitled),
            },
        }
    }

    /// Whether this node may let others in at `now`.
    pub fn may_admit(&self, now: Millis) -> bool {
        self.entitled(now).is_ok()
    }

    /// A membership for `member`, lasting until `until`.
    fn sign(
        &self,
        key: &Key,
        (member, may_invite): (NodeId, bool),
        until: Millis,
        now: Millis,
    ) -> Result<Verified<Membership>, Refusal> {
        let hive = match self.network(key.id()) {
            NetworkId::Private(hive) => hive,
            NetworkId::Public => return Err(Refusal::Public),
        };
        let membership = Membership {
            hive: hive.0.to_vec(),
            member: member.0.to_vec(),
            may_invite,
            expires_ms: until.0,
            issuer: self.proof(now),
        };
        let signed = Verified::sign(membership, key).map_err(|_| Refusal::TooDeep)?;
        // As whoever reads it will: also the length of the chain is counted there.
        match Membership::prove(&signed.signed().encode(), member, hive, now) {
            Ok(proof) => Ok(proof),
            Err(wire::MembershipError::TooLong) => Err(Refusal::TooDeep),
            Err(error) => Err(error.into()),
        }
    }
}

impl Hive {
    /// One that was never part of a private hive.
    pub fn public() -> Self {
        Self { belonging: Belonging::Public, invites: Invites::default() }
    }

    /// Makes invitation `id`. On the public network it is an address book that anybody may use.
    ///
    /// # Errors
    /// See [`InviteError`].
    pub fn invite(
        &mut self,
        key: &Key,
        wish: &Wish,
        id: InviteId,
        now: Millis,
    ) -> Result<Verified<Invite>, InviteError> {
        if !(1..=USES_MAX).contains(&wish.uses) {
            return Err(InviteError::Uses(wish.uses));
        }
        if !(1000..=INVITE_MS_MAX).contains(&wish.lasts_ms) {
            return Err(InviteError::Lasts { seconds: wish.lasts_ms / 1000 });
        }
        let network = self.belonging.network(key.id());
        let private = network != NetworkId::Public;
        // A private hive is entered by lanes, the public network by the swarm.
        if (private && wish.lanes.is_empty()) || (!private && wish.addresses.is_empty()) {
            return Err(InviteError::Nowhere);
        }
        let mut expires = now.plus(wish.lasts_ms);
        if private {
            expires = expires.min(self.belonging.entitled(now)?);
        }
        let invite = Invite {
            network: network.bytes(),
            id: id.to_vec(),
            uses: wish.uses,
            expires_ms: expires.0,
            addresses: wish.addresses.clone(),
            may_invite: wish.may_invite && private,
            lanes: wish.lanes.clone(),
        };
        let signed = Verified::sign(invite, key)?;
        if private {
            let (uses, may_invite) = (wish.uses, wish.may_invite);
            let open = Open { uses, expires, may_invite, came: Default::default() };
            if !self.invites.add(id, open, now) {
                return Err(InviteError::TooMany);
            }
        }
        Ok(signed)
    }

    /// Lets `joiner` in with an invitation that this node made. The new state has to be on disk
    /// before the membership goes out: otherwise a crash would forget a use.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing is counted then.
    pub fn redeem(
        &mut self,
        key: &Key,
        invite: &[u8],
        joiner: NodeId,
        now: Millis,
    ) -> Result<Verified<Membership>, Refusal> {
        let ours = self.belonging.network(key.id());
        let invite = Signed::<Invite>::decode(invite).map_err(wire::SignatureError::from)?;
        let invite = invite.verify()?;
        if invite.signer() != key.id() {
            return Err(Refusal::Elsewhere(invite.signer()));
        }
        let theirs = invite.content().network();
        if theirs != ours {
            return Err(Refusal::Foreign { theirs, ours });
        }
        if invite.content().expires_ms <= now.0 {
            let over = now.since(Millis(invite.content().expires_ms));
            return Err(Refusal::Expired(over / 1000));
        }
        let until = self.belonging.entitled(now)?.min(now.plus(MEMBERSHIP_MS));
        let id = invite.content().id[..].try_into().expect("checked when it was read");
        let mut invites = self.invites.clone();
        let (may_invite, until) = invites.take(&id, (joiner, until), now)?;
        let membership = self.belonging.sign(key, (joiner, may_invite), until, now)?;
        self.invites = invites;
        Ok(membership)
    }

    /// Renews the membership that `old` proves, for as long as a new one would last.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn renew(
        &self,
        key: &Key,
        old: &[u8],
        member: NodeId,
        now: Millis,
    ) -> Result<Verified<Membership>, Refusal> {
        let NetworkId::Private(hive) = self.belonging.network(key.id()) else {
            return Err(Refusal::Public);
        };
        let old = Membership::prove(old, member, hive, now)?;
        let until = self.belonging.entitled(now)?.min(now.plus(MEMBERSHIP_MS));
        self.belonging.sign(key, (member, old.content().may_invite), until, now)
    }
}

/// The hive that a membership is of.
pub fn hive_of(proof: &Verified<Membership>) -> NodeId {
    NodeId::from_slice(&proof.content().hive).expect("checked when it was read")
}

/// Until when a membership lasts, with all that it rests on.
pub fn lasts(proof: &Verified<Membership>) -> Millis {
    let mut until = proof.content().expires_ms;
    let mut issuer = proof.content().issuer.clone();
    while !issuer.is_empty() {
        // What was proved once can be read; each is shorter than the one around it.
        let Some(outer) = Signed::decode(&issuer)
            .ok()
            .and_then(|signed: Signed<Membership>| signed.verify().ok())
        else {
            return Millis(0);
        };
        until = until.min(outer.content().expires_ms);
        issuer = outer.content().issuer.clone();
    }
    Millis(until)
}
