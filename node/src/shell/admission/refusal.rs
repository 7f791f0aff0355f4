//! Why somebody is not let in, in words that may be sent to them.

use thiserror::Error;
use wire::lane::{Reason, Refused};
use wire::{MembershipError, NetworkId, NodeId, SignatureError, Skew};

/// When to come back after something that passes by itself, milliseconds.
const RETRY_MS: u32 = 2_000;

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It speaks another version.
    #[error(transparent)]
    Skew(#[from] Skew),
    /// It belongs elsewhere.
    #[error("it is of {theirs} and this node of {ours}; join {ours} first")]
    Network {
        /// Where it belongs.
        theirs: NetworkId,
        /// Where this node belongs.
        ours: NetworkId,
    },
    /// What it shows as membership proves nothing.
    #[error("not let in: {0}")]
    Membership(#[from] MembershipError),
    /// What it shows as invitation is not what somebody signed.
    #[error("not let in: {0}; ask for the invitation again and copy all of it")]
    Signature(#[from] SignatureError),
    /// It shows no membership, and nobody can be let in here now.
    #[error("it shows no membership, and no invitation is open at this node; ask for one")]
    Closed,
    /// Everybody may take part.
    #[error("this node is of the public network, where nobody has to be let in")]
    Public,
    /// Another node has to be asked.
    #[error("the invitation was made by {0}; be let in there")]
    Elsewhere(NodeId),
    /// The invitation leads to another hive.
    #[error("the invitation leads to {theirs}, and this node is of {ours}")]
    Foreign {
        /// Where it leads.
        theirs: NetworkId,
        /// Where this node belongs.
        ours: NetworkId,
    },
    /// The invitation is over.
    #[error("the invitation has expired {0} s ago; ask for a new one")]
    Expired(u64),
    /// The invitation was taken back, or is not remembered.
    #[error("the invitation was withdrawn; ask for a new one")]
    Withdrawn,
    /// All who may come with it have come.
    #[error("all {0} uses of the invitation are taken; ask for a new one")]
    UsedUp(u32),
    /// This node may not let others in, or not any more.
    #[error("this node may not let others in; ask the founder or one that may")]
    Unentitled,
    /// Members enough vouch for one another between this node and the founder.
    #[error("too many members stand between this node and the founder; ask one nearer to it")]
    TooDeep,
    /// It asks with nothing to show.
    #[error("neither an invitation nor a membership came; send one of them")]
    Empty,
    /// There are as many members as a hive may have.
    #[error("the hive has {0} members, and more are not kept; leave out those who are gone")]
    Full(usize),
    /// What was decided could not be written down.
    #[error("this node cannot write down who came; ask again, or tell whoever runs it")]
    Unable,
}

impl Refusal {
    /// As it is said in lanes.
    pub fn say(&self) -> Refused {
        let (reason, retry_ms) = match self {
            Self::Unable => (Reason::Internal, RETRY_MS),
            Self::Full(_) => (Reason::Full, 0),
            Self::Empty | Self::Signature(_) => (Reason::Broken, 0),
            _ => (Reason::NotAllowed, 0),
        };
        Refused::new(reason, self.to_string(), retry_ms)
    }
}
