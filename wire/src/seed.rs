//! How a network is found: what a seed says of itself, in a file that anybody may pass on.

use std::fmt;
use std::str::FromStr;

use prost::Message;
use thiserror::Error;

use crate::codec::{Checked, Malformed, Word, at_most, range, text};
use crate::hello::NetworkId;
use crate::place::{Address, Millis};
use crate::signed::{Content, ENVELOPE, Signed};

/// Addresses of a seed.
const ADDRESSES_MAX: usize = 8;
/// Longest text of an address.
const ADDRESS_MAX: usize = 256;
/// How long a record may say that it holds, milliseconds: 90 days. What ships with a release, or lies
/// in a cache, has to be replaced within that time, so that seeds that are gone are forgotten.
pub const SEED_LIFE_MAX: u64 = 90 * 24 * 3600 * 1000;
/// What the text of a record begins with.
const SCHEME: &str = "cadencia-seed:";

/// Where a seed is. Whoever signed it is the seed; of two, the one made later counts.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BootstrapRecord {
    /// The network: empty, or the founder of a private hive.
    #[prost(bytes = "vec", tag = "1")]
    pub network: Vec<u8>,
    /// Multiaddresses of its swarm.
    #[prost(string, repeated, tag = "2")]
    pub addresses: Vec<String>,
    /// Where its lanes are.
    #[prost(message, repeated, tag = "3")]
    pub lanes: Vec<Address>,
    /// When it was made, Unix time, milliseconds.
    #[prost(uint64, tag = "4")]
    pub made_ms: u64,
    /// Until when it holds.
    #[prost(uint64, tag = "5")]
    pub expires_ms: u64,
    /// Version of the protocol that the seed speaks.
    #[prost(uint32, tag = "6")]
    pub protocol: u32,
}

impl BootstrapRecord {
    /// Of which network.
    pub fn network(&self) -> NetworkId {
        NetworkId::from_bytes(&self.network).expect("checked when it was read or made")
    }

    /// When it was made.
    pub fn made(&self) -> Millis {
        Millis(self.made_ms)
    }

    /// Until when it holds.
    pub fn expires(&self) -> Millis {
        Millis(self.expires_ms)
    }
}

impl Content for BootstrapRecord {
    const DOMAIN: &'static str = "cadencia bootstrap record 1";
}

impl Word for BootstrapRecord {
    const NAME: &'static str = "a bootstrap record";
    const BYTES_MAX: usize = 3 << 10;

    fn check(&self) -> Checked {
        let network = NetworkId::from_bytes(&self.network).is_some();
        range::<Self>("network", network, || format!("{} bytes", self.network.len()))?;
        range::<Self>("addresses", !self.addresses.is_empty(), || "there is none".into())?;
        at_most::<Self>("addresses", self.addresses.len(), ADDRESSES_MAX)?;
        self.addresses.iter().try_for_each(|a| text::<Self>("addresses", a, ADDRESS_MAX))?;
        at_most::<Self>("lanes", self.lanes.len(), ADDRESSES_MAX)?;
        self.lanes.iter().try_for_each(Word::check)?;
        let life = self.expires_ms.checked_sub(self.made_ms);
        let holds = life.is_some_and(|life| (1..=SEED_LIFE_MAX).contains(&life));
        range::<Self>("expires_ms", holds, || {
            format!(
                "{} after {}, 1 to {SEED_LIFE_MAX} later is right",
                self.expires_ms, self.made_ms
            )
        })
    }
}

/// A record as a file holds it: `cadencia-seed:` and its bytes in base 58.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedText(pub Signed<BootstrapRecord>);

impl fmt::Display for SeedText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{SCHEME}{}", bs58::encode(self.0.encode()).into_string())
    }
}

/// Text that is no record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SeedTextError {
    /// It does not look like one.
    #[error("a bootstrap record begins with {SCHEME} and goes on in letters and digits")]
    Shape,
    /// What it holds is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl FromStr for SeedText {
    type Err = SeedTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let body = text.trim().strip_prefix(SCHEME).ok_or(SeedTextError::Shape)?;
        // Base 58 takes time by the square of the length.
        if body.len() > 2 * (BootstrapRecord::BYTES_MAX + ENVELOPE) {
            return Err(SeedTextError::Shape);
        }
        let bytes = bs58::decode(body).into_vec().map_err(|_| SeedTextError::Shape)?;
        Ok(Self(Signed::decode(&bytes)?))
    }
}
