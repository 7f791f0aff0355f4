//! How chunks that others sent come to be here.

use super::{Accepted, HEAD, OnDisk, Refusal, Stock};
use crate::shell::weights::error::StoreError;
use crate::shell::weights::record::Entry;
use crate::shell::weights::survey::{borne_out, part_of, told};
use crate::shell::weights::tree;

impl Stock {
    /// Takes a chunk that somebody sent, if `proof` shows that it is the one.
    pub fn accept(
        &self,
        part: u32,
        chunk: u32,
        bytes: &[u8],
        proof: &[u8],
    ) -> Result<Accepted, Refusal> {
        let told = told(&self.manifest, part_of(part)).ok_or(Refusal::Unproven)?;
        let leaf = tree::leaf(bytes);
        if !tree::proves(proof, &told.root, leaf, chunk as usize, told.chunks as usize) {
            return Err(Refusal::Unproven);
        }
        let place = self.lock().place(part, told.chunks, chunk, bytes);
        let Some(at) = place else { return Ok(Accepted::Later) };
        let size = bytes.len() as u64;
        if at.range.end - at.range.start != size {
            // It is what the manifest says, so that it is the manifest that is wrong.
            return Err(StoreError::Untrue { id: self.id }.into());
        }
        let mut disk = self.disk();
        if self.lock().held(part, told.chunks).has(chunk) {
            return Ok(Accepted::Had);
        }
        disk.files.write(&self.writing.write_at, &at, bytes)?;
        let due = {
            let mut inner = self.lock();
            let held = inner.held(part, told.chunks);
            held.put(chunk, leaf, size);
            let whole = held.complete(&told.root);
            inner.pending.push(Entry { part, chunk, leaf });
            inner.pending_bytes += size;
            whole || inner.pending_bytes >= self.writing.sync_bytes
        };
        if part == HEAD {
            self.read_headers()?;
        }
        if due {
            self.sync_now(&mut disk)?;
        }
        Ok(Accepted::New)
    }

    /// Reads where everything lies, once all headers are here, and compares it with the manifest.
    pub(super) fn read_headers(&self) -> Result<(), StoreError> {
        if !self.lock().can_read_headers() {
            return Ok(());
        }
        let header = |cause| StoreError::Header { id: self.id, cause: Box::new(cause) };
        let layout = borne_out(&self.path(), &self.manifest).map_err(header)?;
        let layout = layout.ok_or(StoreError::Untrue { id: self.id })?;
        self.lock().set_layout(layout);
        Ok(())
    }

    /// Brings what was written to disk, and records it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.sync_now(&mut self.disk())
    }

    fn sync_now(&self, disk: &mut OnDisk) -> Result<(), StoreError> {
        let (pending, bytes) = {
            let mut inner = self.lock();
            (std::mem::take(&mut inner.pending), std::mem::take(&mut inner.pending_bytes))
        };
        if pending.is_empty() {
            return Ok(());
        }
        let done = disk.files.sync(bytes).and_then(|()| self.record(disk, &pending));
        if done.is_err() {
            // Whether they are on disk is not known, so that they have to come again.
            let mut inner = self.lock();
            pending.iter().for_each(|entry| inner.lose(entry.part, entry.chunk));
        }
        done
    }

    fn record(&self, disk: &mut OnDisk, entries: &[Entry]) -> Result<(), StoreError> {
        match disk.record.as_mut() {
            Some(record) if record.is_sound() => {
                let bytes = entries.len() as u64;
                let full = |cause| StoreError::of_write(self.folder(), bytes, cause);
                record.add(entries).map_err(full)
            }
            _ => {
                let all = self.lock().entries();
                self.rewrite(disk, &all)
            }
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        if let Err(error) = self.sync() {
            tracing::warn!("{error}");
        }
    }
}
