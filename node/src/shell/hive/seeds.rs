//! What `--join` names: addresses, invitations, records of seeds, and files of these.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use anyhow::Result;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use sentinel::Seeds;
use wire::{InviteText, Millis, NetworkId, SeedText};

use crate::shell::Usage;

/// Bytes and lines of a file that are read.
const FILE_MAX: u64 = 256 << 10;
const LINES_MAX: usize = 256;
/// How the text of an invitation and that of a record begin.
const INVITE: &str = "cadencia:";
const RECORD: &str = "cadencia-seed:";

/// Multiaddresses of `address` over QUIC and TCP.
pub fn both(address: SocketAddr) -> [Multiaddr; 2] {
    let host = Multiaddr::from(address.ip());
    let quic = host.clone().with(Protocol::Udp(address.port())).with(Protocol::QuicV1);
    [quic, host.with(Protocol::Tcp(address.port()))]
}

/// What `text` resolves to.
///
/// # Errors
/// It names no host, or has no port.
pub fn address(text: &str, flag: &str) -> Result<SocketAddr> {
    let wrong = |why: String| Usage(format!("{flag} {text:?}: {why}; HOST:PORT is wanted"));
    let mut found = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    Ok(found.next().ok_or_else(|| wrong("no such host".into()))?)
}

/// The same with each file replaced by its lines; empty ones and those that begin with `#` say nothing.
///
/// # Errors
/// A file cannot be read, or is too long for one.
pub fn expanded(join: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for text in join {
        let is_file = text.parse::<Multiaddr>().is_err() && Path::new(text).is_file();
        if !is_file {
            all.push(text.clone());
            continue;
        }
        let wrong = |why: String| Usage(format!("--join {text}: {why}"));
        let length = std::fs::metadata(text).map_err(|error| wrong(error.to_string()))?.len();
        if length > FILE_MAX {
            return Err(wrong(format!("a list of seeds has {FILE_MAX} bytes at most")).into());
        }
        let lines = std::fs::read_to_string(text).map_err(|error| wrong(error.to_string()))?;
        let lines = lines.lines().map(str::trim);
        let said = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        all.extend(said.take(LINES_MAX).map(str::to_owned));
    }
    Ok(all)
}

/// The invitations among `join`.
///
/// # Errors
/// One is none.
pub fn invites(join: &[String]) -> Result<Vec<InviteText>> {
    let texts = join.iter().filter(|text| text.starts_with(INVITE));
    texts.map(|text| Ok(text.parse().map_err(|error| Usage(format!("--join: {error}")))?)).collect()
}

/// Where those are whom `join` names, for a node of `network`. A record or an invitation that holds no
/// longer is left out with a warning: this node may remember others.
///
/// # Errors
/// One is no address, invitation or record.
pub fn addresses(join: &[String], network: NetworkId, now: Millis) -> Result<Vec<Multiaddr>> {
    let mut all = Vec::new();
    let mut seeds = Seeds::of(network);
    for text in join {
        if text.starts_with('/') {
            let wrong = |error| {
                Usage(format!("--join {text:?} is no multiaddress ({error}), and no file is there"))
            };
            all.push(text.parse().map_err(wrong)?);
        } else if text.starts_with(INVITE) {
            let wrong = |error: &dyn std::fmt::Display| Usage(format!("--join: {error}"));
            let invite: InviteText = text.parse().map_err(|error| wrong(&error))?;
            let invite = invite.0.verify().map_err(|error| wrong(&error))?;
            let invite = invite.content();
            if invite.expires_ms <= now.0 {
                tracing::warn!("an invitation has expired; ask for a new one");
                continue;
            }
            all.extend(invite.addresses.iter().filter_map(|address| address.parse().ok()));
        } else if text.starts_with(RECORD) {
            let wrong = |error: &dyn std::fmt::Display| Usage(format!("--join: {error}"));
            let record: SeedText = text.parse().map_err(|error| wrong(&error))?;
            let record = record.0.verify().map_err(|error| wrong(&error))?;
            if let Err(refusal) = seeds.merge(record, now) {
                tracing::warn!(%refusal, "a seed's record is left out");
            }
        } else {
            all.extend(both(address(text, "--join")?));
        }
    }
    for record in seeds.newest(now) {
        let addresses = &record.content().addresses;
        all.extend(addresses.iter().filter_map(|address| address.parse().ok()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use wire::{BootstrapRecord, Key, PROTOCOL, SEED_LIFE_MAX, Verified};

    use super::*;

    const NOW: Millis = Millis(1_900_000_000_000);

    fn record(seed: u8, network: NetworkId, made: u64) -> String {
        let key = Key::new([seed; 32]);
        let record = BootstrapRecord {
            network: network.bytes(),
            addresses: vec![format!("/ip4/192.0.2.{seed}/udp/4610/quic-v1/p2p/{}", key.id())],
            lanes: Vec::new(),
            made_ms: made,
            expires_ms: made + SEED_LIFE_MAX,
            protocol: PROTOCOL,
        };
        SeedText(Verified::sign(record, &key).unwrap().signed().clone()).to_string()
    }

    fn found(join: &[&str]) -> Result<Vec<String>> {
        let join: Vec<String> = join.iter().map(|text| (*text).to_owned()).collect();
        let found = addresses(&expanded(&join)?, NetworkId::Public, NOW)?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_file_of_records_names_the_seeds_that_hold_the_newest_first() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("seeds.txt");
        let private = NetworkId::Private(Key::new([7; 32]).id());
        let lines = [
            "# seeds".to_owned(),
            record(1, NetworkId::Public, NOW.0 - 5000),
            String::new(),
            record(2, NetworkId::Public, NOW.0 - 1000),
            record(3, private, NOW.0 - 1000),
            record(4, NetworkId::Public, NOW.0 - SEED_LIFE_MAX - 1),
            "192.0.2.9:4610".to_owned(),
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let found = found(&[path.to_str().unwrap(), "/ip4/192.0.2.8/tcp/1"]).unwrap();
        let hosts: Vec<&str> = found.iter().map(|at| at.split('/').nth(2).unwrap()).collect();
        assert_eq!(hosts, ["192.0.2.9", "192.0.2.9", "192.0.2.8", "192.0.2.2", "192.0.2.1"]);
    }

    #[test]
    fn what_names_nobody_is_refused_in_words() {
        let broken = record(1, NetworkId::Public, NOW.0).replace('z', "y");
        for (text, word) in [
            ("/nowhere/seeds.txt", "no file is there"),
            ("192.0.2.1", "HOST:PORT"),
            ("cadencia-seed:0O", "bootstrap record"),
            ("cadencia:zzz", "--join"),
            (broken.as_str(), "--join"),
        ] {
            let error = found(&[text]).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(word), "{text}: {error}");
        }
    }
}
