//! A node is named by the 32 bytes of its ed25519 key, which libp2p writes in a longer form.

use libp2p::PeerId;
use libp2p::identity::{PublicKey, ed25519};
use wire::NodeId;

/// The peer that holds `node`'s key; `None` if the bytes are no point of the curve.
pub fn peer_of(node: NodeId) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&node.0).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

/// The key inside a peer's name; `None` for peers whose key is of another kind, which this hive
/// does not admit.
pub fn node_of(peer: &PeerId) -> Option<NodeId> {
    /// The multihash code of "these are the bytes themselves".
    const IDENTITY: u64 = 0;
    let hash = peer.as_ref();
    if hash.code() != IDENTITY {
        return None;
    }
    let key = PublicKey::try_decode_protobuf(hash.digest()).ok()?;
    Some(NodeId(key.try_into_ed25519().ok()?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_peer_name_each_give_the_other() {
        let keys = libp2p::identity::Keypair::ed25519_from_bytes([7; 32]).unwrap();
        let peer = keys.public().to_peer_id();
        let node = node_of(&peer).unwrap();
        assert_eq!(node.0, keys.public().try_into_ed25519().unwrap().to_bytes());
        assert_eq!(peer_of(node), Some(peer));
    }

    #[test]
    fn a_peer_name_without_a_key_inside_is_no_node() {
        assert_eq!(node_of(&PeerId::random()).map(|node| node.0.len()), None);
    }
}
