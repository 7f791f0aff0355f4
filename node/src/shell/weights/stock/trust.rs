//! How far what lies on the disk is believed.

use bytes::Bytes;

use super::inner::{Inner, Layout};
use super::{HEAD, Stock};
use crate::shell::weights::error::StoreError;
use crate::shell::weights::record::Entry;
use crate::shell::weights::survey::{Reader, part_of, told};
use crate::shell::weights::tree;

impl Stock {
    /// Takes over what a record says: the head after it was hashed again, and of the rest what the
    /// head leaves possible.
    pub(super) fn recall(&self, entries: &[Entry]) -> Result<(), StoreError> {
        self.adopt(&mut self.lock(), entries.iter().filter(|entry| entry.part == HEAD));
        self.settle_lead();
        self.recheck(HEAD);
        self.read_headers()?;
        if matches!(self.lock().layout, Layout::Known(_)) {
            self.adopt(&mut self.lock(), entries.iter());
            self.recheck(HEAD);
        }
        let mut disk = self.disk();
        let kept = self.lock().entries();
        match kept.len() == entries.len() {
            true => Ok(()),
            false => self.rewrite(&mut disk, &kept),
        }
    }

    fn adopt<'a>(&self, inner: &mut Inner, entries: impl Iterator<Item = &'a Entry>) {
        for entry in entries {
            let count = self.chunks(entry.part).unwrap_or(0);
            if entry.chunk < count {
                inner.held(entry.part, count).recall(entry.chunk, entry.leaf);
            }
        }
        for (&part, held) in &mut inner.parts {
            if let Some(told) = told(&self.manifest, part_of(part)) {
                held.complete(&told.root);
            }
        }
    }

    /// Finds out where the headers' chunks lie from what the files hold of them.
    fn settle_lead(&self) {
        let mut inner = self.lock();
        let Inner { layout: Layout::Lead(lead), parts, .. } = &mut *inner else { return };
        let mut reader = Reader::new(&self.paths);
        while let Some((number, at)) = lead.probe() {
            let Some(leaf) = parts.get(&HEAD).and_then(|held| held.leaf(number)) else { return };
            match reader.read(&at) {
                Ok(bytes) if tree::leaf(bytes) == leaf => lead.probed(bytes),
                _ => lead.probed(&[]),
            }
        }
    }

    /// Hashes `part` again unless that was done since the program began; what is wrong is forgotten.
    pub fn check(&self, part: u32) -> Result<(), StoreError> {
        if self.recheck(part) == 0 {
            return Ok(());
        }
        let mut disk = self.disk();
        let kept = self.lock().entries();
        self.rewrite(&mut disk, &kept)
    }

    /// How many chunks were wrong.
    fn recheck(&self, part: u32) -> usize {
        let here: Vec<_> = {
            let inner = self.lock();
            let Some(held) = inner.parts.get(&part).filter(|held| !held.checked) else { return 0 };
            let spots = inner.spots(part).into_iter();
            spots.filter_map(|(chunk, at)| Some((chunk, at, held.leaf(chunk)?))).collect()
        };
        let mut reader = Reader::new(&self.paths);
        let mut wrong = here.clone();
        // What cannot be read is fetched again.
        wrong
            .retain(|(_, at, leaf)| !reader.read(at).is_ok_and(|bytes| tree::leaf(bytes) == *leaf));
        let mut inner = self.lock();
        wrong.iter().for_each(|(chunk, ..)| inner.lose(part, *chunk));
        if let Some(held) = inner.parts.get_mut(&part) {
            held.checked = true;
        }
        wrong.len()
    }

    /// A chunk of a part that is here whole, with its proof. It is hashed again: one that is not what
    /// it was is forgotten, and not served.
    pub fn serve(&self, part: u32, chunk: u32) -> Option<(Bytes, Vec<u8>)> {
        let (at, tree) = {
            let inner = self.lock();
            let held = inner.parts.get(&part)?;
            (held.spots.get(chunk as usize)?.clone(), held.tree.clone()?)
        };
        let (leaf, proof) = (*tree.leaves().get(chunk as usize)?, tree.proof(chunk as usize)?);
        let read = Reader::new(&self.paths).read(&at).ok().map(Bytes::copy_from_slice);
        match read.filter(|bytes| tree::leaf(bytes) == leaf) {
            Some(bytes) => Some((bytes, proof)),
            None => {
                self.forget(part, chunk);
                None
            }
        }
    }

    /// A chunk turned out to be damaged.
    fn forget(&self, part: u32, chunk: u32) {
        tracing::warn!("chunk {chunk} of part {part} of {} is damaged on disk", self.id);
        let mut disk = self.disk();
        let kept = {
            let mut inner = self.lock();
            inner.lose(part, chunk);
            inner.entries()
        };
        if let Err(error) = self.rewrite(&mut disk, &kept) {
            tracing::warn!("{error}");
        }
    }
}
