//! Who somebody is: an ed25519 key.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{SigningKey, VerifyingKey};
use thiserror::Error;

/// What libp2p puts before an ed25519 key to make a peer id: identity multihash, then the key as a
/// protobuf message.
const PEER_ID_HEAD: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// A node: its ed25519 public key. It prints as its libp2p peer id, `12D3KooW...`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

/// Text that is no node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no node id; one looks like 12D3KooW... and has 52 characters")]
pub struct NodeIdError(String);

impl NodeId {
    /// The node of `bytes`, if there are 32.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// Its key, if it is a point that can sign.
    pub(crate) fn verifying_key(&self) -> Option<VerifyingKey> {
        VerifyingKey::from_bytes(&self.0).ok()
    }

    /// The last characters of its name, enough to tell the nodes of one hive apart.
    pub fn short(&self) -> String {
        let whole = self.to_string();
        whole[whole.len() - 8..].to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut bytes = [0; 38];
        bytes[..6].copy_from_slice(&PEER_ID_HEAD);
        bytes[6..].copy_from_slice(&self.0);
        f.write_str(&bs58::encode(bytes).into_string())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.short())
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NodeIdError(text.chars().take(64).collect());
        if text.len() > 64 {
            return Err(wrong());
        }
        let bytes = bs58::decode(text).into_vec().map_err(|_| wrong())?;
        let key = bytes.strip_prefix(&PEER_ID_HEAD).and_then(Self::from_slice);
        key.ok_or_else(wrong)
    }
}

/// A node's secret: it signs, and says who the node is.
#[derive(Clone)]
pub struct Key(SigningKey);

impl Key {
    /// From the 32 bytes of an ed25519 secret.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&secret))
    }

    /// The secret, to be kept in a file or given to a transport.
    pub fn secret(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Whose it is.
    pub fn id(&self) -> NodeId {
        NodeId(self.0.verifying_key().to_bytes())
    }

    pub(crate) fn signing_key(&self) -> &SigningKey {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Key of {:?}", self.id())
    }
}

/// BLAKE3 of `bytes` in the domain of `kind`, so that no object can pass for one of another kind.
pub fn digest(kind: u8, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(bytes);
    *hasher.finalize().as_bytes()
}
