//! What an earlier survey found, so that a large file is not read at each start.
//!
//! **Invariant:** an entry is bound to the paths, sizes and times of change of a model's files, and
//! carries its own digest; any doubt, and it is as if there were none. And nothing that is served
//! rests on it alone, for a chunk's digest is taken again each time.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::tree::{Leaf, Tree};
use crate::shell::durable;

/// The domains of entries and their names among digests.
const ENTRY: u8 = 20;
const NAME: u8 = 21;
/// Entries in a folder; beyond it the oldest go, since models come and go.
const ENTRIES_MAX: usize = 256;
/// The longest entry, bytes: that of 2 TiB in chunks.
const BYTES_MAX: u64 = 64 << 20;
/// What entries' names end with.
const ENDING: &str = "survey";

/// The place of one model's entry.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    /// The digest of what an entry is bound to; `None` where the files cannot be looked at.
    stamp: Option<Leaf>,
}

impl Kept {
    /// For the model in `files`.
    pub fn new(folder: &Path, files: &[PathBuf]) -> Self {
        let first = files.first().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        let first = first.unwrap_or_default();
        let name = wire::digest(NAME, first.as_os_str().as_encoded_bytes());
        let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = folder.join(format!("{name}.{ENDING}"));
        Self { path, stamp: stamp(&first, files) }
    }

    /// The trees of parts with so many chunks, if an entry of just those files says them.
    pub fn read(&self, counts: &[usize]) -> Option<Vec<Tree>> {
        let stamp = self.stamp?;
        let mut bytes = Vec::new();
        File::open(&self.path).ok()?.take(BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
        let (check, leaves) = bytes.split_first_chunk::<32>()?;
        if wire::digest(ENTRY, &[&stamp, leaves].concat()) != *check {
            return None;
        }
        let (leaves, rest) = leaves.as_chunks::<32>();
        if !rest.is_empty() || leaves.len() != counts.iter().sum::<usize>() {
            return None;
        }
        let mut leaves = leaves.iter().copied();
        Some(counts.iter().map(|&count| Tree::new(leaves.by_ref().take(count).collect())).collect())
    }

    /// Keeps `trees`.
    pub fn write(&self, trees: &[Tree]) -> io::Result<()> {
        let Some(stamp) = self.stamp else { return Ok(()) };
        let leaves: Vec<u8> = trees.iter().flat_map(Tree::leaves).flatten().copied().collect();
        if leaves.len() as u64 > BYTES_MAX {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let check = wire::digest(ENTRY, &[&stamp[..], &leaves].concat());
        let part = self.path.with_extension("new");
        std::fs::write(&part, [&check[..], &leaves].concat())?;
        durable::publish(&part, &self.path)?;
        prune(folder)
    }
}

/// A digest over what would change if the files did.
fn stamp(first: &Path, files: &[PathBuf]) -> Option<Leaf> {
    let mut all = first.as_os_str().as_encoded_bytes().to_vec();
    for file in files {
        let found = file.metadata().ok()?;
        let changed = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        all.extend(found.len().to_le_bytes());
        all.extend(changed.as_nanos().to_le_bytes());
    }
    Some(wire::digest(NAME, &all))
}

/// Removes the oldest entries beyond the bound.
fn prune(folder: &Path) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            entries.push((path.metadata()?.modified()?, path));
        }
    }
    entries.sort();
    let surplus = entries.len().saturating_sub(ENTRIES_MAX);
    entries[..surplus].iter().try_for_each(|(_, path)| std::fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::weights::tree::leaf;

    fn trees() -> Vec<Tree> {
        [3, 0, 2].map(|count| Tree::new((0..count).map(|n| leaf(&[n])).collect())).into()
    }

    #[test]
    fn a_damaged_entry_is_none() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("a.gguf");
        std::fs::write(&file, b"GGUF").unwrap();
        let kept = Kept::new(room.path(), &[file]);
        assert!(kept.read(&[3, 0, 2]).is_none());
        kept.write(&trees()).unwrap();
        let roots = |trees: Vec<Tree>| trees.iter().map(Tree::root).collect::<Vec<_>>();
        assert_eq!(kept.read(&[3, 0, 2]).map(roots), Some(roots(trees())));
        assert!(kept.read(&[3, 0, 3]).is_none() && kept.read(&[3, 0, 1]).is_none());
        let whole = std::fs::read(&kept.path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&kept.path, damaged).unwrap();
            assert!(kept.read(&[3, 0, 2]).is_none(), "byte {at}");
            std::fs::write(&kept.path, &whole[..at]).unwrap();
            assert!(kept.read(&[3, 0, 2]).is_none(), "{at} bytes");
        }
    }

    #[test]
    fn old_entries_make_room_for_new_ones() {
        let room = tempfile::tempdir().unwrap();
        for n in 0..ENTRIES_MAX + 3 {
            let file = room.path().join(format!("{n}.gguf"));
            std::fs::write(&file, b"GGUF").unwrap();
            Kept::new(room.path(), &[file]).write(&[]).unwrap();
        }
        let entries = std::fs::read_dir(room.path()).unwrap().flatten();
        let left = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == ENDING));
        assert_eq!(left.count(), ENTRIES_MAX);
    }
}
