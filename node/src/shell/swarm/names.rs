//! What protocols and topics are called. A name carries the wire version and the network, so that
//! nodes that differ in either find no protocol in common and cannot exchange a record.
//!
//! The names of identify, ping, relay, DCUtR and AutoNAT are libp2p's own and fixed. None of them
//! carries a record of ours; identify is how nodes of two versions learn that they differ.

use libp2p::StreamProtocol;
use libp2p::gossipsub::IdentTopic;

use super::config::{Network, Topic};

/// The names that one node uses.
#[derive(Clone, Debug)]
pub struct Names {
    /// What identify says this node speaks: `cadencia/<N>`.
    pub speech: String,
    /// What identify says this program is.
    pub agent: String,
    /// The network, as it stands in the names below.
    pub label: String,
    /// Kademlia.
    pub dht: StreamProtocol,
    /// Gossipsub; it appends versions of its own.
    pub gossip: String,
    /// Requests and replies.
    pub ask: StreamProtocol,
    /// Raw streams.
    pub lane: StreamProtocol,
}

impl Names {
    /// The names for one wire version in one network.
    pub fn new(version: u32, network: &Network) -> Self {
        let label = network.label();
        let name = |what: &str| format!("/cadencia/{version}/{label}/{what}");
        let protocol = |what: &str| {
            StreamProtocol::try_from_owned(name(what)).expect("the name begins with a slash")
        };
        Self {
            speech: format!("cadencia/{version}"),
            agent: format!("cadencia/{}", env!("CARGO_PKG_VERSION")),
            dht: protocol("dht"),
            gossip: name("gossip"),
            ask: protocol("ask"),
            lane: protocol("lane"),
            label,
        }
    }

    /// The topic as gossipsub knows it.
    pub fn topic(&self, topic: Topic) -> IdentTopic {
        IdentTopic::new(format!("{}/{}", self.gossip, topic.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_between_versions_and_between_networks() {
        let hive = |id| Network::Private { hive: [id; 32], members: Vec::new() };
        let names: Vec<Names> = [
            Names::new(1, &Network::Public),
            Names::new(2, &Network::Public),
            Names::new(1, &hive(1)),
            Names::new(1, &hive(2)),
        ]
        .into();
        for (at, one) in names.iter().enumerate() {
            for other in &names[at + 1..] {
                assert_ne!(one.dht, other.dht);
                assert_ne!(one.gossip, other.gossip);
                assert_ne!(one.ask, other.ask);
                assert_ne!(one.lane, other.lane);
                assert_ne!(one.topic(Topic("x")).hash(), other.topic(Topic("x")).hash());
            }
        }
    }

    #[test]
    fn a_private_network_s_names_do_not_show_its_id() {
        let hive = Network::Private { hive: [0xab; 32], members: Vec::new() };
        assert!(!Names::new(1, &hive).ask.as_ref().contains("abab"));
    }
}
