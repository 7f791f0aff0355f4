//! The address book: where peers were seen lately, so that a node that starts again finds its
//! network though every address it was first told is dead.
//!
//! **Invariant:** a book has at most [`PEERS_MAX`] peers with [`ADDRESSES_MAX`] addresses each,
//! whatever the file or a peer says. Of too many, those seen last stay.
//!
//! **Invariant:** a file that cannot be understood is reported and later replaced; it never keeps
//! a node from starting.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::Instant;

use super::address::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};
use crate::shell::durable;

/// Peers in the book: those of a large hive that one node meets in some days.
pub const PEERS_MAX: usize = 256;
/// Bytes of the file: [`PEERS_MAX`] peers with the longest addresses take about as many.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// The form of the file.
const FORM: u32 = 1;
/// How long a peer rests after a dial to it failed the first time; each time it is twice as long.
const REST: Duration = Duration::from_secs(2);
/// How long a peer rests at most.
const REST_MAX: Duration = Duration::from_secs(5 * 60);

/// Why a file is not used.
#[derive(Debug, Error)]
pub enum BookError {
    /// It cannot be read or written.
    #[error("the peer cache {path} cannot be used; see who owns it. Going on without")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is too long.
    #[error("the peer cache {path} is longer than {max} bytes; it is replaced")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How long it may be.
        max: u64,
    },
    /// It is not in the form that this version writes.
    #[error("the peer cache {path} is damaged; it is replaced")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        source: serde_json::Error,
    },
    /// It is of another form or network.
    #[error("the peer cache {path} is of form {form}, network {network}; it is replaced")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its form.
        form: u32,
        /// Its network.
        network: String,
    },
}

/// Where peers were seen.
#[derive(Debug)]
pub struct Book {
    network: String,
    entries: BTreeMap<PeerId, Entry>,
    changed: bool,
}

#[derive(Debug)]
struct Entry {
    addresses: Vec<Multiaddr>,
    seen_ms: u64,
    rest: Rest,
}

/// How long to leave somebody alone who did not answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    failures: u32,
    until: Option<Instant>,
}

impl Rest {
    /// Whether a dial may be tried.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Whether no dial has failed since the last that did not.
    pub fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// A dial failed.
    pub fn lengthen(&mut self, now: Instant) {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.until = Some(now + REST.saturating_mul(factor).min(REST_MAX));
        self.failures = self.failures.saturating_add(1);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    form: u32,
    network: String,
    peers: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    seen_ms: u64,
    addresses: Vec<String>,
}

impl Book {
    /// A book without entries.
    pub fn empty(network: &str) -> Self {
        Self { network: network.into(), entries: BTreeMap::new(), changed: false }
    }

    /// Reads the file, if there is one.
    pub fn read(path: &Path, network: &str, now_ms: u64) -> Result<Self, BookError> {
        let file = |source| BookError::File { path: path.into(), source };
        let mut text = Vec::new();
        match File::open(path) {
            Ok(open) => open.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::empty(network));
            }
            Err(error) => return Err(file(error)),
        };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(BookError::TooLong { path: path.into(), max: FILE_BYTES_MAX });
        }
        let page: Page = serde_json::from_slice(&text)
            .map_err(|source| BookError::Damaged { path: path.into(), source })?;
        if page.form != FORM || page.network != network {
            let (form, network) = (page.form, page.network.chars().take(64).collect());
            return Err(BookError::Foreign { path: path.into(), form, network });
        }
        let mut book = Self::empty(network);
        book.take_over(page.peers, now_ms);
        Ok(book)
    }

    /// A peer was met, or parted from, at these addresses.
    pub fn seen(&mut self, peer: PeerId, addresses: &[Multiaddr], now_ms: u64) {
        let known = addresses.iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        let addresses: Vec<_> = known.take(ADDRESSES_MAX).cloned().collect();
        if addresses.is_empty() {
            return;
        }
        let entry = Entry { addresses, seen_ms: now_ms, rest: Rest::default() };
        self.entries.insert(peer, entry);
        self.shorten();
        self.changed = true;
    }

    /// A dial to a peer failed.
    pub fn failed(&mut self, peer: &PeerId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(peer) {
            entry.rest.lengthen(now);
        }
    }

    /// Where a peer was seen.
    pub fn addresses(&self, peer: &PeerId) -> &[Multiaddr] {
        self.entries.get(peer).map_or(&[], |entry| &entry.addresses)
    }

    /// Peers that may be dialled now: those that failed least, of them those seen last.
    pub fn due(&self, now: Instant) -> Vec<PeerId> {
        let mut due: Vec<_> =
            self.entries.iter().filter(|(_, entry)| entry.rest.is_over(now)).collect();
        due.sort_by_key(|(_, entry)| (entry.rest.failures, u64::MAX - entry.seen_ms));
        due.into_iter().map(|(peer, _)| *peer).collect()
    }

    /// How many peers are in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The bytes to write, if there is anything new since the last call.
    pub fn unwritten(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let peers = self.entries.iter().map(|(peer, entry)| Line {
            id: peer.to_base58(),
            seen_ms: entry.seen_ms,
            addresses: entry.addresses.iter().map(Multiaddr::to_string).collect(),
        });
        let page = Page { form: FORM, network: self.network.clone(), peers: peers.collect() };
        Some(serde_json::to_vec(&page).expect("strings and numbers can be written"))
    }

    /// Lines that make no sense are left out: the file may come from a newer version's library.
    fn take_over(&mut self, lines: Vec<Line>, now_ms: u64) {
        for line in lines {
            let Ok(peer) = line.id.parse() else { continue };
            let addresses: Vec<Multiaddr> = line
                .addresses
                .iter()
                .filter(|text| text.len() <= 2 * ADDRESS_BYTES_MAX)
                .filter_map(|text| text.parse().ok())
                .take(ADDRESSES_MAX)
                .collect();
            // A time to come would keep an entry for ever.
            self.seen(peer, &addresses, line.seen_ms.min(now_ms));
        }
        self.changed = false;
    }

    fn shorten(&mut self) {
        while self.entries.len() > PEERS_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.seen_ms);
            let oldest = *oldest.expect("the book is longer than its bound, so not empty").0;
            self.entries.remove(&oldest);
        }
    }
}

/// Writes the file so that it appears whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), BookError> {
    let all = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        std::fs::write(&part, bytes)?;
        durable::publish(Path::new(&part), path)
    };
    all().map_err(|source| BookError::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: usize) -> Multiaddr {
        format!("/ip4/127.0.0.1/udp/{port}/quic-v1").parse().unwrap()
    }

    fn full(peers: usize) -> Book {
        let mut book = Book::empty("public");
        for at in 0..peers {
            book.seen(PeerId::random(), &[address(at + 1)], at as u64);
        }
        book
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new folder").join("peers.json");
        let peer = PeerId::random();
        let mut book = full(3);
        book.seen(peer, &[address(9), address(8)], 50);
        write(&path, &book.unwritten().unwrap()).unwrap();
        assert!(book.unwritten().is_none());

        let book = Book::read(&path, "public", 100).unwrap();
        assert_eq!(book.len(), 4);
        assert_eq!(book.addresses(&peer), [address(9), address(8)]);
        assert_eq!(book.due(Instant::now())[0], peer, "who was seen last comes first");
    }

    #[test]
    fn a_book_keeps_those_seen_last_and_never_more_than_its_bound() {
        let book = full(650);
        assert_eq!(book.len(), PEERS_MAX);
        assert!(book.entries.values().all(|entry| entry.seen_ms >= 650 - PEERS_MAX as u64));
    }

    #[test]
    fn a_peer_met_ten_times_is_there_once() {
        let (peer, mut book) = (PeerId::random(), Book::empty("public"));
        (0..10).for_each(|time| book.seen(peer, &[address(1)], time));
        assert_eq!(book.len(), 1);
    }

    #[test]
    fn torn_hostile_and_foreign_files_are_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.json");
        let good = full(5).unwritten().unwrap();
        let long = vec![b' '; FILE_BYTES_MAX as usize + 1];
        let other = br#"{"form":1,"network":"hive-00","peers":[]}"#;
        let cases: [(&[u8], &str); 6] = [
            (&good[..good.len() / 2], "damaged"),
            (b"", "damaged"),
            (&[0xff; 100], "damaged"),
            (&long, "longer"),
            (other, "network hive-00"),
            (br#"{"form":2,"network":"public","peers":[]}"#, "form 2"),
        ];
        for (bytes, reason) in cases {
            std::fs::write(&path, bytes).unwrap();
            let error = Book::read(&path, "public", 0).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_with_a_time_to_come_does_not_hold_its_places_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.json");
        let mut book = Book::empty("public");
        book.seen(PeerId::random(), &[address(1)], u64::MAX);
        write(&path, &book.unwritten().unwrap()).unwrap();
        let book = Book::read(&path, "public", 7).unwrap();
        assert!(book.entries.values().all(|entry| entry.seen_ms == 7));
    }

    #[test]
    fn a_peer_that_fails_rests_longer_each_time_up_to_a_bound() {
        let (peer, now) = (PeerId::random(), Instant::now());
        let mut book = Book::empty("public");
        book.seen(peer, &[address(1)], 0);
        book.failed(&peer, now);
        assert!(book.due(now).is_empty());
        assert_eq!(book.due(now + REST), [peer]);
        (0..100).for_each(|_| book.failed(&peer, now));
        assert!(book.due(now + REST_MAX - Duration::from_secs(1)).is_empty());
        assert_eq!(book.due(now + REST_MAX), [peer]);
    }
}
