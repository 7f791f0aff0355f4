//! Who may be where: what two nodes say first, memberships of private hives, invitations.

use std::fmt;
use std::str::FromStr;

use prost::Message;
use thiserror::Error;

use crate::codec::{Checked, Malformed, Word, at_most, exactly, range, text};
use crate::id::NodeId;
use crate::place::Millis;
use crate::signed::{Content, ENVELOPE, SignatureError, Signed, Verified};

/// Version of what nodes say to one another. Nodes of different versions refuse each other.
pub const PROTOCOL: u32 = 1;
/// Members that may stand between a member and the founder of its hive.
const CHAIN_MAX: usize = 6;
/// Bytes of a member's own proof of membership.
const PROOF_MAX: usize = 2 << 10;
/// Addresses in an invitation.
const ADDRESSES_MAX: usize = 8;
/// Longest text of an address.
const ADDRESS_MAX: usize = 256;
/// What the text of an invitation begins with.
const SCHEME: &str = "cadencia:";

/// Where a node belongs: everybody's network, or a private hive, named by its founder's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkId {
    /// Everybody's.
    Public,
    /// A private hive.
    Private(NodeId),
}

impl NetworkId {
    /// As fields hold it: nothing, or a key.
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Public => Vec::new(),
            Self::Private(founder) => founder.0.to_vec(),
        }
    }

    /// From what a field holds.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [] => Some(Self::Public),
            _ => NodeId::from_slice(bytes).map(Self::Private),
        }
    }
}

impl fmt::Display for NetworkId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Public => f.write_str("the public network"),
            Self::Private(founder) => write!(f, "the private hive {}", founder.short()),
        }
    }
}

/// Two nodes speak different versions.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "it speaks version {theirs} of the protocol ({program}) and this node {ours}; update the older one"
)]
pub struct Skew {
    /// The other's version.
    pub theirs: u32,
    /// The other's program.
    pub program: String,
    /// Ours.
    pub ours: u32,
}

/// What two nodes say first.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hello {
    /// Version of the protocol.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The program, for people.
    #[prost(string, tag = "2")]
    pub program: String,
    /// Where it belongs: empty, or its hive's founder.
    #[prost(bytes = "vec", tag = "3")]
    pub network: Vec<u8>,
    /// A signed membership of that hive.
    #[prost(bytes = "vec", tag = "4")]
    pub membership: Vec<u8>,
}

impl Hello {
    /// Refuses another version, naming both.
    ///
    /// # Errors
    /// See [`Skew`].
    pub fn check_version(&self) -> Result<(), Skew> {
        let (theirs, ours) = (self.protocol, PROTOCOL);
        match theirs == ours {
            true => Ok(()),
            false => Err(Skew { theirs, program: self.program.clone(), ours }),
        }
    }
}

impl Word for Hello {
    const NAME: &'static str = "a hello";
    const BYTES_MAX: usize = 4 << 10;

    fn check(&self) -> Checked {
        text::<Self>("program", &self.program, 64)?;
        let network = NetworkId::from_bytes(&self.network).is_some();
        range::<Self>("network", network, || format!("{} bytes", self.network.len()))?;
        let size = self.membership.len();
        range::<Self>("membership", size <= PROOF_MAX + ENVELOPE, || format!("{size} bytes"))
    }
}

/// That a node belongs to a private hive. Signed by the founder, or by a member that may invite.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Membership {
    /// The founder's key.
    #[prost(bytes = "vec", tag = "1")]
    pub hive: Vec<u8>,
    /// The member's.
    #[prost(bytes = "vec", tag = "2")]
    pub member: Vec<u8>,
    /// Whether it may let others in.
    #[prost(bool, tag = "3")]
    pub may_invite: bool,
    /// Until when it holds, Unix time, milliseconds.
    #[prost(uint64, tag = "4")]
    pub expires_ms: u64,
    /// The signer's own signed membership; empty where the founder signs.
    #[prost(bytes = "vec", tag = "5")]
    pub issuer: Vec<u8>,
}

/// Why a membership was not believed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MembershipError {
    /// It, or one that it rests on, cannot be read or is forged.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// It is of another hive.
    #[error("the membership is of another hive")]
    Foreign,
    /// It is somebody else's.
    #[error("the membership is that of {0}")]
    Stolen(NodeId),
    /// It is over.
    #[error("the membership has expired; ask for a new invitation")]
    Expired,
    /// Whoever signed may not let others in.
    #[error("{0} may not let others in")]
    Unentitled(NodeId),
    /// Too many stand between it and the founder.
    #[error("more than {CHAIN_MAX} members vouch for one another")]
    TooLong,
}

impl From<Malformed> for MembershipError {
    fn from(malformed: Malformed) -> Self {
        Self::Signature(malformed.into())
    }
}

impl Membership {
    /// Checks that `bytes` prove that `member` belongs to `hive` at `now`.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn prove(
        bytes: &[u8],
        member: NodeId,
        hive: NodeId,
        now: Millis,
    ) -> Result<Verified<Self>, MembershipError> {
        let own = Signed::<Self>::decode(bytes)?.verify()?;
        let (mut verified, mut who) = (own.clone(), member);
        for _ in 0..CHAIN_MAX {
            let content = verified.content();
            if content.hive[..] != hive.0 {
                return Err(MembershipError::Foreign);
            }
            if content.member[..] != who.0 {
                return Err(MembershipError::Stolen(
                    NodeId::from_slice(&content.member).expect("checked when it was read"),
                ));
            }
            if content.expires_ms <= now.0 {
                return Err(MembershipError::Expired);
            }
            who = verified.signer();
            if who == hive {
                return Ok(own);
            }
            if content.issuer.is_empty() {
                return Err(MembershipError::Unentitled(who));
            }
            let issuer = Signed::<Self>::decode(&content.issuer)?.verify()?;
            if !issuer.content().may_invite {
                return Err(MembershipError::Unentitled(who));
            }
            verified = issuer;
        }
        Err(MembershipError::TooLong)
    }
}

impl Content for Membership {
    const DOMAIN: &'static str = "cadencia membership 1";
}

impl Word for Membership {
    const NAME: &'static str = "a membership";
    const BYTES_MAX: usize = PROOF_MAX;

    fn check(&self) -> Checked {
        exactly::<Self>("hive", &self.hive, 32)?;
        exactly::<Self>("member", &self.member, 32)
    }
}

/// A way in: whom to ask, and, for a private hive, the right to be let in.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Invite {
    /// Empty, or the founder of a private hive.
    #[prost(bytes = "vec", tag = "1")]
    pub network: Vec<u8>,
    /// Which one it is, 16 random bytes: its uses are counted under it.
    #[prost(bytes = "vec", tag = "2")]
    pub id: Vec<u8>,
    /// How many nodes may come with it.
    #[prost(uint32, tag = "3")]
    pub uses: u32,
    /// Until when, Unix time, milliseconds.
    #[prost(uint64, tag = "4")]
    pub expires_ms: u64,
    /// Multiaddresses of whoever made it and of others.
    #[prost(string, repeated, tag = "5")]
    pub addresses: Vec<String>,
    /// Whether those who come may let others in.
    #[prost(bool, tag = "6")]
    pub may_invite: bool,
    /// Where the signer's lanes are: there one is let in.
    #[prost(message, repeated, tag = "7")]
    pub lanes: Vec<crate::place::Address>,
}

impl Invite {
    /// Where it leads.
    pub fn network(&self) -> NetworkId {
        NetworkId::from_bytes(&self.network).expect("checked when it was read or made")
    }
}

impl Content for Invite {
    const DOMAIN: &'static str = "cadencia invite 1";
}

impl Word for Invite {
    const NAME: &'static str = "an invitation";
    const BYTES_MAX: usize = 3 << 10;

    fn check(&self) -> Checked {
        let network = NetworkId::from_bytes(&self.network).is_some();
        range::<Self>("network", network, || format!("{} bytes", self.network.len()))?;
        exactly::<Self>("id", &self.id, 16)?;
        range::<Self>("uses", self.uses > 0, || "0".into())?;
        at_most::<Self>("addresses", self.addresses.len(), ADDRESSES_MAX)?;
        self.addresses.iter().try_for_each(|a| text::<Self>("addresses", a, ADDRESS_MAX))?;
        at_most::<Self>("lanes", self.lanes.len(), ADDRESSES_MAX)?;
        self.lanes.iter().try_for_each(Word::check)
    }
}

/// An invitation as people pass it on: `cadencia:` and its bytes in base 58.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InviteText(pub Signed<Invite>);

impl fmt::Display for InviteText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{SCHEME}{}", bs58::encode(self.0.encode()).into_string())
    }
}

/// Text that is no invitation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InviteTextError {
    /// It does not look like one.
    #[error("an invitation begins with {SCHEME} and goes on in letters and digits; copy all of it")]
    Shape,
    /// What it holds is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl FromStr for InviteText {
    type Err = InviteTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let body = text.trim().strip_prefix(SCHEME).ok_or(InviteTextError::Shape)?;
        // Base 58 takes time by the square of the length.
        if body.len() > 2 * (Invite::BYTES_MAX + ENVELOPE) {
            return Err(InviteTextError::Shape);
        }
        let bytes = bs58::decode(body).into_vec().map_err(|_| InviteTextError::Shape)?;
        let signed = Signed::decode(&bytes)?;
        Ok(Self(signed))
    }
}
