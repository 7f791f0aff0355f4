//! What a store has written down about the chunks it holds: a file of small entries, to which each
//! proven chunk adds one.
//!
//! **Invariant:** an entry is added only after its chunk's bytes are on disk. Each entry carries a
//! check of its own, so one that was torn by a crash or damaged later does not count, and the others
//! still do.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use wire::ManifestId;

use super::tree::Leaf;
use crate::shell::durable;

/// The domain of entries' checks among digests.
const CHECK: u8 = 19;
/// Bytes of an entry: part, chunk, leaf, check.
const ENTRY: usize = 4 + 4 + 32 + 8;
/// The longest record that is read, bytes: that of 5 TiB.
const RECORD_MAX: u64 = 256 << 20;
/// What it is called in a model's folder.
const NAME: &str = "record";

/// A chunk that is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its part's number.
    pub part: u32,
    /// Its number in the part.
    pub chunk: u32,
    /// Its digest.
    pub leaf: Leaf,
}

/// The record of one model.
#[derive(Debug)]
pub struct Record {
    folder: PathBuf,
    id: ManifestId,
    /// `None` after a failure, until the record was written anew.
    file: Option<File>,
}

impl Record {
    /// The entries in `folder` that can be believed.
    pub fn read(folder: &Path, id: ManifestId) -> io::Result<Vec<Entry>> {
        let mut bytes = Vec::new();
        match File::open(folder.join(NAME)) {
            Ok(file) => file.take(RECORD_MAX).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(bytes.chunks_exact(ENTRY).filter_map(|entry| parse(entry, id)).collect())
    }

    /// Writes a record of just `entries`, which replaces what there was, whole or not at all.
    pub fn write(folder: &Path, id: ManifestId, entries: &[Entry]) -> io::Result<Self> {
        let mut record = Self { folder: folder.into(), id, file: None };
        record.rewrite(entries)?;
        Ok(record)
    }

    /// As [`Record::write`].
    pub fn rewrite(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.file = None;
        let path = self.folder.join(NAME);
        let part = self.folder.join("record.new");
        std::fs::write(&part, self.bytes(entries))?;
        durable::publish(&part, &path)?;
        self.file = Some(File::options().append(true).open(&path)?);
        Ok(())
    }

    /// Adds `entries`, whose chunks are on disk. After an error the record has to be rewritten.
    pub fn add(&mut self, entries: &[Entry]) -> io::Result<()> {
        let bytes = self.bytes(entries);
        let Some(mut file) = self.file.take() else {
            return Err(io::Error::other("the record was not written after a failure"));
        };
        file.write_all(&bytes)?;
        file.sync_data()?;
        self.file = Some(file);
        Ok(())
    }

    /// Whether entries can be added.
    pub fn is_sound(&self) -> bool {
        self.file.is_some()
    }

    fn bytes(&self, entries: &[Entry]) -> Vec<u8> {
        entries.iter().flat_map(|entry| bytes(entry, self.id)).collect()
    }
}

fn bytes(entry: &Entry, id: ManifestId) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&entry.part.to_le_bytes());
    bytes[4..8].copy_from_slice(&entry.chunk.to_le_bytes());
    bytes[8..40].copy_from_slice(&entry.leaf);
    let check = wire::digest(CHECK, &[&id.0[..], &bytes[..40]].concat());
    bytes[40..].copy_from_slice(&check[..8]);
    bytes
}

fn parse(entry: &[u8], id: ManifestId) -> Option<Entry> {
    let number = |at: usize| entry[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let leaf = entry[8..40].try_into().ok()?;
    let parsed = Entry { part: number(0)?, chunk: number(4)?, leaf };
    (bytes(&parsed, id) == *entry).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ManifestId = ManifestId([5; 32]);

    fn entry(n: u32) -> Entry {
        Entry { part: n / 3, chunk: n % 3, leaf: [n as u8; 32] }
    }

    #[test]
    fn what_was_added_is_read_again() {
        let room = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(room.path(), ID).unwrap(), []);
        let mut record = Record::write(room.path(), ID, &[entry(0)]).unwrap();
        record.add(&[entry(1), entry(2)]).unwrap();
        assert_eq!(Record::read(room.path(), ID).unwrap(), [0, 1, 2].map(entry));
        record.rewrite(&[entry(2)]).unwrap();
        record.add(&[entry(3)]).unwrap();
        assert_eq!(Record::read(room.path(), ID).unwrap(), [2, 3].map(entry));
    }

    #[test]
    fn torn_damaged_and_foreign_entries_do_not_count() {
        let room = tempfile::tempdir().unwrap();
        Record::write(room.path(), ID, &[0, 1, 2].map(entry)).unwrap();
        let path = room.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(Record::read(room.path(), ID).unwrap().len(), cut / ENTRY);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, damaged).unwrap();
            let left: Vec<Entry> = Record::read(room.path(), ID).unwrap();
            assert_eq!(left.len(), 2, "byte {at}");
            assert!(!left.contains(&entry((at / ENTRY) as u32)));
        }
        std::fs::write(&path, whole).unwrap();
        assert_eq!(Record::read(room.path(), ManifestId([6; 32])).unwrap(), []);
    }
}
