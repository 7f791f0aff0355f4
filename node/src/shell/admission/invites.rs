//! Invitations that this node made: how many may still come with each.
//!
//! **Invariant:** no more nodes are taken in by an invitation than it has uses, and whoever was taken
//! in once is not counted again while its membership lasts.

use std::collections::BTreeMap;

use wire::{Millis, NodeId};

use super::refusal::Refusal;

/// Invitations open at a time: more than one person keeps in mind.
pub const INVITES_MAX: usize = 64;
/// Nodes that may come with one invitation: a class or a small office.
pub const USES_MAX: u32 = 64;

/// Which invitation: 16 random bytes.
pub type InviteId = [u8; 16];

/// An invitation that was made and is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// How many may come.
    pub uses: u32,
    /// Until when.
    pub expires: Millis,
    /// Whether they may let others in.
    pub may_invite: bool,
    /// Who came, and until when their memberships last.
    pub came: BTreeMap<NodeId, Millis>,
}

impl Open {
    /// Uses that are left at `now`.
    fn left(&self) -> u32 {
        self.uses.saturating_sub(self.came.len() as u32)
    }
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invites {
    open: BTreeMap<InviteId, Open>,
}

impl Invites {
    /// Remembers one more, unless there are too many that are not over.
    pub fn add(&mut self, id: InviteId, open: Open, now: Millis) -> bool {
        self.tidy(now);
        let room = self.open.len() < INVITES_MAX;
        if room {
            self.open.insert(id, open);
        }
        room
    }

    /// Takes `joiner` in with invitation `id`, so that its membership lasts until `until`; whether it
    /// may let others in, and until when its membership does last: one who came before keeps what it
    /// got.
    pub fn take(
        &mut self,
        id: &InviteId,
        (joiner, until): (NodeId, Millis),
        now: Millis,
    ) -> Result<(bool, Millis), Refusal> {
        let open = self.open.get_mut(id).ok_or(Refusal::Withdrawn)?;
        if open.expires <= now {
            return Err(Refusal::Expired(now.since(open.expires) / 1000));
        }
        if let Some(lasts) = open.came.get(&joiner).filter(|lasts| **lasts > now) {
            return Ok((open.may_invite, *lasts));
        }
        // Whoever came and let its membership run out comes again under its old use.
        if open.left() == 0 && !open.came.contains_key(&joiner) {
            return Err(Refusal::UsedUp(open.uses));
        }
        open.came.insert(joiner, until);
        Ok((open.may_invite, until))
    }

    /// Takes one back; whether there was one.
    pub fn withdraw(&mut self, id: &InviteId) -> bool {
        self.open.remove(id).is_some()
    }

    /// Forgets those that are over.
    pub fn tidy(&mut self, now: Millis) {
        self.open.retain(|_, open| open.expires > now);
    }

    /// All that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = (&InviteId, &Open)> {
        self.open.iter()
    }

    /// Whether anybody could come with one of them at `now`; one who came before may come again.
    pub fn any_open(&self, now: Millis) -> bool {
        self.open.values().any(|open| open.expires > now)
    }
}
