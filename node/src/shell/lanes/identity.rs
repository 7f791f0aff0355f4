//! Who a node is, and how that is read from its certificate.

use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey};
use libp2p_tls::certificate;
use rustls::pki_types::CertificateDer;
use wire::NodeId;

/// The multihash that carries a short public key itself instead of a digest of it.
const MULTIHASH_IDENTITY: u64 = 0;

/// The name of whoever holds `key`; `None` unless it is an ed25519 key.
pub fn node_of_key(key: &Keypair) -> Option<NodeId> {
    let key = key.public().try_into_ed25519().ok()?;
    Some(NodeId(key.to_bytes()))
}

/// The name behind a libp2p peer id; `None` unless that carries an ed25519 key.
pub fn node_of_peer(peer: &PeerId) -> Option<NodeId> {
    let hash = peer.as_ref();
    if hash.code() != MULTIHASH_IDENTITY {
        return None;
    }
    let key = PublicKey::try_decode_protobuf(hash.digest()).ok()?;
    Some(NodeId(key.try_into_ed25519().ok()?.to_bytes()))
}

/// The name that a certificate proves; `None` if it proves none.
pub(super) fn node_of_certificate(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let parsed = certificate::parse(certificate).ok()?;
    node_of_peer(&parsed.peer_id())
}
