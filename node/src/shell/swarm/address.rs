//! From how far away an address can be used, and which of a peer's addresses are worth keeping.

use std::net::{IpAddr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// Bytes of one address: the longest that a domain name, a relay and two peers' names give is
/// about 400.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// Addresses of one peer: two transports, two versions of IP, two relays and a little room.
pub const ADDRESSES_MAX: usize = 8;

/// From where an address can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// From the same machine.
    Loopback,
    /// From the same local network.
    Local,
    /// From anywhere.
    Global,
}

/// From where `address` can be used; `None` if it names no host, or none that can be dialled.
pub fn reach(address: &Multiaddr) -> Option<Reach> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(reach_of_ip(ip.into())),
        Protocol::Ip6(ip) => Some(reach_of_ip(ip.into())),
        Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_) => {
            Some(Some(Reach::Global))
        }
        _ => None,
    })?
}

/// Whether `address` leads through a relay.
pub fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// The addresses that a peer says it has and that are worth keeping, when it is connected over
/// `over`. A peer far away has no use for telling its local addresses, and dialling them would
/// knock at doors of this network.
pub fn worth_keeping(told: &[Multiaddr], over: &Multiaddr) -> Vec<Multiaddr> {
    let least = reach(over).unwrap_or(Reach::Global);
    let mut kept = Vec::new();
    for address in told.iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX) {
        let near_enough = reach(address).is_some_and(|reach| reach >= least);
        if near_enough && !kept.contains(address) && kept.len() < ADDRESSES_MAX {
            kept.push(address.clone());
        }
    }
    kept
}

fn reach_of_ip(ip: IpAddr) -> Option<Reach> {
    let local = match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            // Addresses that carriers share between customers (RFC 6598).
            let shared = a == 100 && (64..128).contains(&b);
            ip.is_private() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => is_local6(ip),
    };
    match ip {
        _ if ip.is_unspecified() || ip.is_multicast() => None,
        _ if ip.is_loopback() => Some(Reach::Loopback),
        _ if local => Some(Reach::Local),
        _ => Some(Reach::Global),
    }
}

fn is_local6(ip: Ipv6Addr) -> bool {
    ip.is_unique_local() || ip.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_told_apart_by_how_far_they_reach() {
        let cases = [
            ("/ip4/127.0.0.1/tcp/1", Some(Reach::Loopback)),
            ("/ip6/::1/tcp/1", Some(Reach::Loopback)),
            ("/ip4/192.168.1.2/udp/1/quic-v1", Some(Reach::Local)),
            ("/ip4/100.64.0.1/tcp/1", Some(Reach::Local)),
            ("/ip6/fd00::1/tcp/1", Some(Reach::Local)),
            ("/ip4/8.8.8.8/tcp/1", Some(Reach::Global)),
            ("/dns4/example.org/tcp/1", Some(Reach::Global)),
            ("/ip4/0.0.0.0/tcp/1", None),
            ("/memory/5", None),
        ];
        for (text, expected) in cases {
            assert_eq!(reach(&address(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_far_peer_s_local_addresses_are_not_kept() {
        let told = [address("/ip4/10.0.0.1/tcp/1"), address("/ip4/8.8.8.8/tcp/1")];
        assert_eq!(worth_keeping(&told, &address("/ip4/9.9.9.9/tcp/2")), &told[1..]);
        assert_eq!(worth_keeping(&told, &address("/ip4/10.0.0.1/tcp/2")), told);
    }

    #[test]
    fn no_more_than_a_bounded_number_of_addresses_is_kept() {
        let told: Vec<_> =
            (1..100).map(|port| address(&format!("/ip4/8.8.8.8/tcp/{port}"))).collect();
        assert_eq!(worth_keeping(&told, &address("/ip4/8.8.8.8/tcp/1")).len(), ADDRESSES_MAX);
    }
}
