//! Who belongs to a private hive, as far as this node has seen proof.
//!
//! **Invariant:** nobody stands here without a proof, and no more than [`MEMBERS_MAX`] do.

use std::collections::BTreeMap;

use wire::{Membership, Millis, NodeId, Signed, Verified};

use super::refusal::Refusal;

/// Members of a hive: as many as the swarm's list of who may connect has room for.
pub const MEMBERS_MAX: usize = 4096;

/// What a proof told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// Whose it is.
    pub member: NodeId,
    /// Those of whom nothing was known: the member, and those who vouch for it.
    pub new: Vec<NodeId>,
}

/// Proofs by member.
#[derive(Debug, Clone)]
pub struct Members {
    hive: NodeId,
    proofs: BTreeMap<NodeId, Verified<Membership>>,
}

impl Members {
    /// Of `hive`, of whom nobody but its founder is known.
    pub fn of(hive: NodeId) -> Self {
        Self { hive, proofs: BTreeMap::new() }
    }

    /// Takes a proof in, and those that it rests on.
    pub fn learn(&mut self, bytes: &[u8], now: Millis) -> Result<Learned, Refusal> {
        let member = member_of(bytes)?;
        let mut new = Vec::new();
        let (mut bytes, mut who) = (bytes.to_vec(), member);
        loop {
            let proof = Membership::prove(&bytes, who, self.hive, now)?;
            bytes = proof.content().issuer.clone();
            let next = proof.signer();
            if self.keep(who, proof, now)? {
                new.push(who);
            }
            if next == self.hive {
                return Ok(Learned { member, new });
            }
            who = next;
        }
    }

    /// Keeps the proof that lasts longest; whether the member is a new one.
    fn keep(
        &mut self,
        who: NodeId,
        proof: Verified<Membership>,
        now: Millis,
    ) -> Result<bool, Refusal> {
        if let Some(known) = self.proofs.get_mut(&who) {
            let is_new = is_over(known, now);
            if proof.content().expires_ms > known.content().expires_ms {
                *known = proof;
            }
            return Ok(is_new);
        }
        if self.proofs.len() >= MEMBERS_MAX {
            self.proofs.retain(|_, proof| !is_over(proof, now));
        }
        if self.proofs.len() >= MEMBERS_MAX {
            return Err(Refusal::Full(MEMBERS_MAX));
        }
        self.proofs.insert(who, proof);
        Ok(true)
    }

    /// Whether `node` belongs to the hive at `now`. The founder does without proof.
    pub fn holds(&self, node: NodeId, now: Millis) -> bool {
        let proof = self.proofs.get(&node).map(|proof| proof.signed().encode());
        let proves = |bytes: Vec<u8>| Membership::prove(&bytes, node, self.hive, now).is_ok();
        node == self.hive || proof.is_some_and(proves)
    }

    /// The founder, and all whose membership lasts at `now`.
    pub fn known(&self, now: Millis) -> Vec<NodeId> {
        let lasting = self.proofs.iter().filter(|(_, proof)| !is_over(proof, now));
        let others = lasting.map(|(node, _)| *node).filter(|node| *node != self.hive);
        std::iter::once(self.hive).chain(others).collect()
    }

    /// All proofs.
    pub fn proofs(&self) -> impl Iterator<Item = &Verified<Membership>> {
        self.proofs.values()
    }
}

/// Whom a membership names, if its signature holds.
pub fn member_of(bytes: &[u8]) -> Result<NodeId, Refusal> {
    let signed = Signed::<Membership>::decode(bytes).map_err(wire::MembershipError::from)?;
    let verified = signed.verify().map_err(wire::MembershipError::from)?;
    Ok(NodeId::from_slice(&verified.content().member).expect("checked when it was read"))
}

fn is_over(proof: &Verified<Membership>, now: Millis) -> bool {
    proof.content().expires_ms <= now.0
}
