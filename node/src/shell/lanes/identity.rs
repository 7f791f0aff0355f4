//! Who a node is, and how that is read from its certificate.

use libp2p::identity::Keypair;
use libp2p_tls::certificate;
use rustls::pki_types::CertificateDer;
use wire::NodeId;

use crate::shell::swarm::node_of;

/// The name of whoever holds `key`; `None` unless it is an ed25519 key.
pub fn node_of_key(key: &Keypair) -> Option<NodeId> {
    let key = key.public().try_into_ed25519().ok()?;
    Some(NodeId(key.to_bytes()))
}

/// The name that a certificate proves; `None` if it proves none.
pub(super) fn node_of_certificate(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let parsed = certificate::parse(certificate).ok()?;
    node_of(&parsed.peer_id())
}
