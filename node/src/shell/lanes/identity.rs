//! Who a node is, and how that is read from its certificate.

use std::fmt;

use libp2p::PeerId;
use libp2p::identity::{Keypair, PublicKey};
use libp2p_tls::certificate;
use rustls::pki_types::CertificateDer;

/// The multihash that carries a short public key itself instead of a digest of it.
const MULTIHASH_IDENTITY: u64 = 0;

/// A node's name: its ed25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

impl NodeId {
    /// The name of whoever holds `key`; `None` unless it is an ed25519 key.
    pub fn of(key: &Keypair) -> Option<Self> {
        let key = key.public().try_into_ed25519().ok()?;
        Some(Self(key.to_bytes()))
    }

    /// The name behind a libp2p peer id; `None` unless that carries an ed25519 key.
    pub fn of_peer(peer: &PeerId) -> Option<Self> {
        let hash = peer.as_ref();
        if hash.code() != MULTIHASH_IDENTITY {
            return None;
        }
        let key = PublicKey::try_decode_protobuf(hash.digest()).ok()?;
        Some(Self(key.try_into_ed25519().ok()?.to_bytes()))
    }

    /// The name that a certificate proves; `None` if it proves none.
    pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = certificate::parse(certificate).ok()?;
        Self::of_peer(&parsed.peer_id())
    }
}

/// The first eight bytes are enough to tell nodes of one hive apart in a log.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}
