//! Everything that a swarm can refuse, with what to do next.

use std::io;
use std::time::Duration;

use libp2p::Multiaddr;
use thiserror::Error;
use wire::NodeId;

/// Why a swarm cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The secret is no key.
    #[error("the node's secret key is not one of ed25519; remove it to get a new one")]
    Secret(#[source] libp2p::identity::DecodingError),
    /// A member of the private network has a name that is no key.
    #[error("member {0} is not an ed25519 key; look for a typing error in the list of members")]
    Member(NodeId),
    /// More of something than fits.
    #[error("{given} {what} are given, and {max} fit; leave some out")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// Encryption for TCP cannot be set up.
    #[error("encryption cannot be set up")]
    Noise(#[from] libp2p::noise::Error),
    /// The gossip's parameters contradict each other.
    #[error("gossip cannot be set up: {reason}")]
    Gossip {
        /// What the library said.
        reason: String,
    },
    /// The local network cannot be watched.
    #[error("mDNS cannot be started; switch it off to do without")]
    Mdns(#[source] io::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}; is it in use, or of another machine?")]
    Listen {
        /// The address.
        address: Multiaddr,
        /// What the system said.
        source: libp2p::TransportError<io::Error>,
    },
}

/// The swarm's task does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Gone {
    /// It has ended.
    #[error("this node's swarm has ended; restart the node")]
    Ended,
    /// It has not answered in time.
    #[error("this node's swarm has not answered for {0:?}; the machine is overloaded")]
    Silent(Duration),
}

/// Two nodes that cannot talk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// They speak different versions.
    #[error("peer {peer} speaks {theirs} and this node {ours}; update the older one")]
    Version {
        /// The other node.
        peer: NodeId,
        /// What it says that it speaks.
        theirs: String,
        /// What this node speaks.
        ours: String,
    },
    /// They are of different networks.
    #[error("peer {peer} is not of the network {ours}; check the address, or ask it for an invite")]
    Network {
        /// The other node.
        peer: NodeId,
        /// This node's network.
        ours: String,
    },
}

/// Why another node cannot be reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// The task does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Nobody answered there.
    #[error("{target} cannot be reached: {reason}; check the address and that its node runs")]
    Unreachable {
        /// The address or the node.
        target: String,
        /// What was tried, and what came of it.
        reason: String,
    },
    /// It is this node itself.
    #[error("{target} is this node itself; give the address of another")]
    Myself {
        /// The address.
        target: String,
    },
    /// The connection stood, and the other side said nothing about itself.
    #[error("peer {peer} accepted a connection and left before it said what it is; try again")]
    Left {
        /// The other node.
        peer: NodeId,
    },
    /// The two cannot talk.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Too many dials wait.
    #[error("{max} dials are under way; wait for some of them")]
    TooMany {
        /// How many there may be.
        max: usize,
    },
    /// Nothing came of it in time.
    #[error("{target} has been silent for {waited:?}; check that its node runs")]
    Silent {
        /// The address or the node.
        target: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The bytes are no key.
    #[error("{0} is not an ed25519 key; look for a typing error")]
    NoKey(NodeId),
}

/// Why there is no reply.
#[derive(Debug, Error)]
pub enum AskError {
    /// The task does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The request is too long.
    #[error("the request takes {given} bytes, and {max} are allowed; split it")]
    TooLong {
        /// Its bytes.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// Too many requests wait.
    #[error("{max} requests are under way; wait for some of them")]
    TooMany {
        /// How many there may be.
        max: usize,
    },
    /// The other node is not connected and cannot be dialled.
    #[error("peer {peer} cannot be reached; look for another provider")]
    Unreachable {
        /// The other node.
        peer: NodeId,
    },
    /// The other node said that it is busy.
    #[error("peer {peer} is too busy to answer; ask it later, or another")]
    Busy {
        /// The other node.
        peer: NodeId,
    },
    /// The other node's owner chose not to answer, or the connection broke.
    #[error("peer {peer} did not answer: {reason}; ask another")]
    Unanswered {
        /// The other node.
        peer: NodeId,
        /// What the transport said.
        reason: String,
    },
    /// The other node said nothing in time.
    #[error("peer {peer} has been silent for {waited:?}; ask another")]
    Silent {
        /// The other node.
        peer: NodeId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The bytes are no key.
    #[error("{0} is not an ed25519 key; look for a typing error")]
    NoKey(NodeId),
}

/// Why there is no stream.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The other node is not connected.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The other node does not take a stream.
    #[error("peer {peer} does not take a stream; connect to another")]
    Refused {
        /// The other node.
        peer: NodeId,
        /// What the transport said.
        source: libp2p_stream::OpenStreamError,
    },
    /// The other node said nothing in time.
    #[error("peer {peer} has not opened a stream for {waited:?}; connect to another")]
    Silent {
        /// The other node.
        peer: NodeId,
        /// How long it was waited for.
        waited: Duration,
    },
}

/// Why a message is not gossiped.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The task does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The message is too long.
    #[error("the message takes {given} bytes, and {max} are allowed; gossip its digest instead")]
    TooLong {
        /// Its bytes.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// Nobody listens.
    #[error("no peer listens to {topic}; publish again when one has connected", topic = .0.0)]
    NobodyListens(super::config::Topic),
    /// The topic is not one that the swarm was started with.
    #[error("{topic} is not among the swarm's topics; name it at the start", topic = .0.0)]
    Unknown(super::config::Topic),
    /// The library refused.
    #[error("the message cannot be gossiped: {reason}; try again in a second")]
    Refused {
        /// What it said.
        reason: String,
    },
}

/// Why a key is not announced, or nobody is found who provides it.
#[derive(Debug, Error)]
pub enum LookupError {
    /// The task does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Too many look-ups run.
    #[error("{max} look-ups are under way; wait for some of them")]
    TooMany {
        /// How many there may be.
        max: usize,
    },
    /// Too many keys are provided.
    #[error("this node provides {max} keys already; stop providing some")]
    TooManyKeys {
        /// How many there may be.
        max: usize,
    },
    /// The nodes that should know said nothing in time.
    #[error("of {connected} connected peers none told providers in {waited:?}; try again")]
    Silent {
        /// How many peers were connected.
        connected: usize,
        /// How long they were waited for.
        waited: Duration,
    },
}

/// Why a node is not put on a list.
#[derive(Debug, Error)]
pub enum ListError {
    /// The task does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The list is full.
    #[error("the list holds {max} nodes already; take some off")]
    Full {
        /// How many fit.
        max: usize,
    },
    /// The bytes are no key.
    #[error("{0} is not an ed25519 key; look for a typing error")]
    NoKey(NodeId),
}

/// A reply that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the reply takes {given} bytes, and {max} are allowed; answer in parts")]
pub struct ReplyTooLong {
    /// Its bytes.
    pub given: usize,
    /// How many there may be.
    pub max: usize,
}
