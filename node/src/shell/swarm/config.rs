//! What a swarm is told when it starts, and the bounds it keeps.

use std::path::PathBuf;
use std::time::Duration;

use libp2p::Multiaddr;
use wire::NodeId;

/// The version of what nodes say to each other. Nodes of two versions part at once.
pub const WIRE_VERSION: u32 = 1;

/// Topics of one node; each costs a mesh.
pub const TOPICS_MAX: usize = 16;
/// Bytes of a topic's name.
pub const TOPIC_BYTES_MAX: usize = 64;
/// Bytes of a gossiped message; an offer with its health vector takes about one KiB.
pub const GOSSIP_BYTES_MAX: usize = 16 << 10;
/// Addresses to join by: people write these.
pub const JOIN_MAX: usize = 64;
/// Members of a private network.
pub const MEMBERS_MAX: usize = 4096;

/// Everything a swarm is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The secret half of this node's ed25519 key.
    pub secret: [u8; 32],
    /// Who may take part.
    pub network: Network,
    /// The version of what nodes say to each other; [`WIRE_VERSION`] but in tests.
    pub version: u32,
    /// Where to listen; may be empty for a node that only dials.
    pub listen: Vec<Multiaddr>,
    /// Addresses under which this node can be reached, as its owner says.
    pub external: Vec<Multiaddr>,
    /// Addresses of any nodes of the network, with or without `/p2p/ID`.
    pub join: Vec<Multiaddr>,
    /// What this node gossips about.
    pub topics: Vec<Topic>,
    /// Whether this node answers look-ups.
    pub dht: DhtRole,
    /// Whether this node carries circuits for others.
    pub relay_server: bool,
    /// When this node asks others to carry circuits to it.
    pub relay_use: RelayUse,
    /// Whether to look for nodes on the local network. A private network never does.
    pub mdns: bool,
    /// Where to remember peers; `None` forgets them.
    pub cache: Option<PathBuf>,
    /// Milliseconds since 1970.
    pub clock: fn() -> u64,
    /// How long another node may take to answer a request.
    pub ask_wait_max: Duration,
    /// How many connections there may be.
    pub limits: Limits,
}

impl Config {
    /// A node of the public network that listens nowhere yet and knows nobody.
    pub fn new(secret: [u8; 32], clock: fn() -> u64) -> Self {
        Self {
            secret,
            network: Network::Public,
            version: WIRE_VERSION,
            listen: Vec::new(),
            external: Vec::new(),
            join: Vec::new(),
            topics: Vec::new(),
            dht: DhtRole::WhenReachable,
            relay_server: false,
            relay_use: RelayUse::WhenUnreachable,
            mdns: false,
            cache: None,
            clock,
            ask_wait_max: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

/// Who may take part.
#[derive(Clone, Debug)]
pub enum Network {
    /// Everybody.
    Public,
    /// Those who are listed, and nobody else may connect at all.
    Private {
        /// The hive's id.
        hive: [u8; 32],
        /// Who belongs to it; more may be allowed later.
        members: Vec<NodeId>,
    },
}

impl Network {
    /// What stands for the network in the names of protocols. It is made from a private hive's id
    /// by a hash, so that whoever reads the name does not learn the id.
    pub fn label(&self) -> String {
        match self {
            Self::Public => "public".into(),
            Self::Private { hive, .. } => {
                let hash = blake3::derive_key("cadencia 2026 name of a private network", hive);
                let digits: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
                format!("hive-{digits}")
            }
        }
    }
}

/// Something nodes gossip about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topic(pub &'static str);

/// Whether a node answers look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhtRole {
    /// Once another node has reached this one at one of its addresses.
    WhenReachable,
    /// From the beginning.
    Always,
}

/// When a node asks others to carry circuits to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayUse {
    /// While nobody far away can dial it.
    WhenUnreachable,
    /// From the beginning, with any peer that offers it.
    Always,
    /// Not at all.
    Never,
}

/// How many connections there may be. An idle connection takes about 100 KiB, so the whole takes
/// some 20 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// To one peer: one by relay, one direct, and one of each while the better replaces the worse.
    pub per_peer_max: u32,
    /// That others are opening.
    pub pending_in_max: u32,
    /// That this node is opening.
    pub pending_out_max: u32,
    /// That others opened.
    pub in_max: u32,
    /// That this node opened; strangers cannot take these.
    pub out_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_peer_max: 4, pending_in_max: 64, pending_out_max: 64, in_max: 128, out_max: 96 }
    }
}
