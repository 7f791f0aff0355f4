//! Where and when: parts of a model, addresses, time.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::fmt;
use std::ops::Range;

use prost::Message;

use crate::codec::{Checked, Word, exactly, range};

/// Half-blocks that a model may have: more than 1,000 layers.
pub const HALVES_MAX: u32 = 4096;

/// A contiguous range of half-blocks: 2l is layer l's attention, 2l+1 its feed-forward half.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Halves {
    /// The first.
    #[prost(uint32, tag = "1")]
    pub start: u32,
    /// One after the last.
    #[prost(uint32, tag = "2")]
    pub end: u32,
}

impl Halves {
    /// From `start` up to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// As indices.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// How many.
    pub fn count(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether all of `other` lies in it.
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Layers whose attention, and so a KV cache, lies in it.
    pub fn attentions(self) -> usize {
        self.end.div_ceil(2).saturating_sub(self.start.div_ceil(2)) as usize
    }
}

impl Word for Halves {
    const NAME: &'static str = "a range of half-blocks";
    const BYTES_MAX: usize = 16;

    fn check(&self) -> Checked {
        let holds = self.start < self.end && self.end <= HALVES_MAX;
        range::<Self>("end", holds, || format!("{self}, and {HALVES_MAX} is the most"))
    }
}

impl fmt::Display for Halves {
    /// In layers, as `2-5`, or with the half named where one is cut: `2-5a` ends with attention,
    /// `2f-5` begins with feed-forward.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (start, end) = (self.start, self.end.max(1) - 1);
        let first = if start.is_multiple_of(2) { "" } else { "f" };
        let last = if end.is_multiple_of(2) { "a" } else { "" };
        write!(f, "{}{first}-{}{last}", start / 2, end / 2)
    }
}

/// A UDP or TCP address: 16 bytes of IPv6 (IPv4 mapped), 2 bytes of port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Address {
    /// 18 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
}

impl Address {
    /// Of a socket.
    pub fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { bytes: [&ip.octets()[..], &address.port().to_be_bytes()].concat() }
    }

    /// The socket, where there can be one.
    pub fn socket(&self) -> Option<SocketAddr> {
        let (ip, port) = self.bytes.split_first_chunk::<16>()?;
        let port = u16::from_be_bytes(port.try_into().ok()?);
        let ip = Ipv6Addr::from(*ip).to_canonical();
        let usable = port != 0 && !ip.is_unspecified() && !ip.is_multicast();
        usable.then_some(SocketAddr::new(ip, port))
    }
}

impl Word for Address {
    const NAME: &'static str = "an address";
    const BYTES_MAX: usize = 20;

    fn check(&self) -> Checked {
        exactly::<Self>("bytes", &self.bytes, 18)?;
        range::<Self>("bytes", self.socket().is_some(), || "no host can be reached there".into())
    }
}

/// Unix time, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// So much later.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How long after `earlier`, milliseconds; 0 if it is not.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
