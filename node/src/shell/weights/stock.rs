//! What is here of one model.
//!
//! It lies in files of the model's full length, with holes where nothing has come yet, so that what
//! loads models can open them. Or it is a whole model of the user's, which is only read.
//!
//! **Invariant:** a chunk counts from when it was proven and written, and the record says so only
//! once it is on disk. Of what a record says, the head is hashed again when it is opened, and each
//! other part before it is first used. A chunk that is served is hashed each time.

mod held;
mod inner;
mod on_disk;
mod taking;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use wire::{Manifest, ManifestId};

use self::held::Held;
use self::inner::{Inner, Layout};
use self::on_disk::Files;
use super::error::StoreError;
use super::lead::Lead;
use super::plausible::parts_count;
use super::record::{Entry, Record};
use super::survey::{Survey, part_of, told};

pub use self::on_disk::{HOLES, WriteAt, name_of, write_at};

/// The head's number among parts.
pub const HEAD: u32 = 0;

/// How a model that was fetched is written.
#[derive(Clone)]
pub struct Writing {
    /// Writes bytes at a place in a file.
    pub write_at: WriteAt,
    /// Bytes after which what was written is brought to disk and recorded. A crash loses so much.
    pub sync_bytes: u64,
}

/// What is here of one model.
pub struct Stock {
    id: ManifestId,
    manifest: Manifest,
    encoded: Bytes,
    place: Place,
    paths: Vec<PathBuf>,
    writing: Writing,
    /// When something of it was last used, in ticks of the store.
    used: AtomicU64,
    /// Whoever wants both locks takes this one first.
    disk: Mutex<OnDisk>,
    /// Never held while the disk is waited for.
    inner: Mutex<Inner>,
}

/// Its files and its record, for whoever writes.
struct OnDisk {
    files: Files,
    /// A model of the user's has none.
    record: Option<Record>,
}

/// Where it lies.
enum Place {
    /// A model of the user's.
    Library,
    /// A folder of the store.
    Folder(PathBuf),
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It is here now.
    New,
    /// It was here already.
    Had,
    /// It is right, but nobody can say yet where it belongs.
    Later,
}

/// Why a chunk was not taken.
#[derive(Debug)]
pub enum Refusal {
    /// It is not what the manifest says.
    Unproven,
    /// It could not be kept.
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Stock {
    /// A model of the user's.
    pub(super) fn of_survey(survey: Survey, writing: Writing) -> Self {
        let Survey { manifest, files, layout, trees } = survey;
        let parts = (0..).zip(trees).map(|(number, tree)| {
            let chunks = layout.chunks(part_of(number)).collect();
            (number, Held::whole(tree, chunks))
        });
        let parts = parts.collect();
        let inner = Inner::new(Layout::Known(layout), parts);
        let disk = OnDisk { files: Files::new(files.clone()), record: None };
        Self::with(manifest, Place::Library, files, writing, disk, inner)
    }

    /// An empty one in `folder`, which is made.
    pub(super) fn create(
        folder: &Path,
        manifest: Manifest,
        writing: Writing,
    ) -> Result<Self, StoreError> {
        let disk = |cause| StoreError::Disk { path: folder.into(), cause };
        on_disk::create(folder, &manifest)?;
        let record = Record::write(folder, manifest.id(), &[]).map_err(disk)?;
        Ok(Self::in_folder(folder, manifest, writing, record))
    }

    /// What `folder` holds of the model that it is named after; `None` where that is nothing.
    pub(super) fn reopen(folder: &Path, writing: Writing) -> Result<Option<Self>, StoreError> {
        let disk = |cause| StoreError::Disk { path: folder.into(), cause };
        let Some(manifest) = on_disk::manifest(folder)? else { return Ok(None) };
        let id = manifest.id();
        let entries = Record::read(folder, id).map_err(disk)?;
        let record = Record::write(folder, id, &entries).map_err(disk)?;
        let stock = Self::in_folder(folder, manifest, writing, record);
        stock.recall(&entries)?;
        Ok(Some(stock))
    }

    fn in_folder(folder: &Path, manifest: Manifest, writing: Writing, record: Record) -> Self {
        let lead = Lead::new(&manifest).expect("the manifest was checked to be plausible");
        let inner = Inner::new(Layout::Lead(lead), BTreeMap::new());
        let paths = on_disk::paths(folder, manifest.files.len());
        let disk = OnDisk { files: Files::new(paths.clone()), record: Some(record) };
        Self::with(manifest, Place::Folder(folder.into()), paths, writing, disk, inner)
    }

    fn with(
        manifest: Manifest,
        place: Place,
        paths: Vec<PathBuf>,
        writing: Writing,
        disk: OnDisk,
        inner: Inner,
    ) -> Self {
        let encoded = wire::encode(&manifest).into();
        let (used, disk, inner) = (AtomicU64::new(0), Mutex::new(disk), Mutex::new(inner));
        Self { id: manifest.id(), manifest, encoded, place, paths, writing, used, disk, inner }
    }

    /// The model.
    pub fn id(&self) -> ManifestId {
        self.id
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its manifest's bytes.
    pub fn encoded(&self) -> Bytes {
        self.encoded.clone()
    }

    /// Its first file.
    pub fn path(&self) -> PathBuf {
        self.paths.first().cloned().unwrap_or_default()
    }

    /// Whether it is a model of the user's.
    pub fn is_library(&self) -> bool {
        matches!(self.place, Place::Library)
    }

    /// Which parts are here whole: a bit a part, from the lowest of the first byte.
    pub fn whole_parts(&self) -> Vec<u8> {
        let inner = self.lock();
        let mut bits = vec![0; parts_count(&self.manifest).div_ceil(8)];
        for (&number, held) in &inner.parts {
            if held.tree.is_some() {
                bits[number as usize / 8] |= 1 << (number % 8);
            }
        }
        bits
    }

    /// Whether all of `parts` are here, and were hashed since the program began.
    pub fn has(&self, parts: &BTreeSet<u32>) -> bool {
        let inner = self.lock();
        parts.iter().all(|part| {
            inner.parts.get(part).is_some_and(|held| held.tree.is_some() && held.checked)
        })
    }

    /// Bytes of `part` that are here.
    pub fn bytes_here(&self, part: u32) -> u64 {
        self.lock().parts.get(&part).map_or(0, |held| held.bytes_here())
    }

    /// The chunks of `part` that are missing and may be asked for now.
    pub fn missing(&self, part: u32) -> Vec<u32> {
        let inner = self.lock();
        let lacks = |chunk: &u32| inner.parts.get(&part).is_none_or(|held| !held.has(*chunk));
        match &inner.layout {
            Layout::Lead(lead) if part == HEAD => lead.askable().filter(lacks).collect(),
            Layout::Lead(_) => Vec::new(),
            Layout::Known(_) => (0..self.chunks(part).unwrap_or(0)).filter(lacks).collect(),
        }
    }

    /// Where it lies, for errors.
    fn folder(&self) -> &Path {
        match &self.place {
            Place::Folder(folder) => folder,
            Place::Library => self.paths.first().map_or(Path::new(""), |first| first),
        }
    }

    /// Bytes that `parts` take which have no room set aside yet; none for a model of the user's.
    pub(super) fn unreserved(&self, parts: &BTreeSet<u32>) -> u64 {
        let inner = self.lock();
        let new = parts.iter().filter(|part| !inner.parts.contains_key(part));
        new.map(|part| self.bytes(*part)).fold(0, u64::saturating_add)
    }

    /// Bytes of `parts` that are still to come.
    pub(super) fn bytes_missing(&self, parts: &BTreeSet<u32>) -> u64 {
        let left = parts.iter().map(|part| self.bytes(*part) - self.bytes_here(*part));
        left.fold(0, u64::saturating_add)
    }

    /// Bytes that are set aside on this store's account.
    pub(super) fn reserved(&self) -> u64 {
        if self.is_library() {
            return 0;
        }
        let inner = self.lock();
        inner.parts.keys().map(|part| self.bytes(*part)).fold(0, u64::saturating_add)
    }

    /// Parts that nobody uses, and whether nobody uses anything of the model.
    pub(super) fn idle(&self) -> (Vec<u32>, bool) {
        let inner = self.lock();
        let idle = inner.parts.iter().filter(|(_, held)| held.holds == 0);
        (idle.map(|(part, _)| *part).collect(), inner.holds == 0)
    }

    /// When it was last used.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// It is used, at `now`.
    pub(super) fn touch(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    fn hold(&self, parts: &BTreeSet<u32>) {
        let mut inner = self.lock();
        inner.holds += 1;
        for &part in parts {
            let count = self.chunks(part).unwrap_or(0);
            inner.held(part, count).holds += 1;
        }
    }

    /// The opposite of [`Stock::hold`]. What has nothing and is wanted by nobody takes no room.
    fn release(&self, parts: &BTreeSet<u32>) {
        let mut inner = self.lock();
        inner.holds = inner.holds.saturating_sub(1);
        for part in parts {
            let Some(held) = inner.parts.get_mut(part) else { continue };
            held.holds = held.holds.saturating_sub(1);
            if held.holds == 0 && held.is_empty() {
                inner.parts.remove(part);
            }
        }
    }

    /// Gives the bytes of `part` back to the disk. The record forgets it first.
    pub(super) fn give_up(&self, part: u32) -> Result<(), StoreError> {
        let mut disk = self.disk();
        let (spots, kept) = {
            let mut inner = self.lock();
            let spots = inner.parts.remove(&part).map(|held| held.spots).unwrap_or_default();
            inner.pending.retain(|entry| entry.part != part);
            (spots, inner.entries())
        };
        self.rewrite(&mut disk, &kept)?;
        disk.files.free(&spots)
    }

    /// Removes everything. Files that are still open elsewhere last until they are closed.
    pub(super) fn remove(&self) -> Result<(), StoreError> {
        let _disk = self.disk();
        {
            let mut inner = self.lock();
            inner.parts.clear();
            inner.pending.clear();
        }
        match &self.place {
            Place::Library => Ok(()),
            Place::Folder(folder) => on_disk::remove(folder),
        }
    }

    fn rewrite(&self, disk: &mut OnDisk, entries: &[Entry]) -> Result<(), StoreError> {
        let Some(record) = disk.record.as_mut() else { return Ok(()) };
        let bytes = entries.len() as u64;
        record.rewrite(entries).map_err(|cause| StoreError::of_write(self.folder(), bytes, cause))
    }

    /// Chunks of `part`, if the model has it.
    fn chunks(&self, part: u32) -> Option<u32> {
        told(&self.manifest, part_of(part)).map(|told| told.chunks)
    }

    /// Bytes of `part`.
    pub(super) fn bytes(&self, part: u32) -> u64 {
        told(&self.manifest, part_of(part)).map_or(0, |told| told.bytes)
    }

    fn disk(&self) -> MutexGuard<'_, OnDisk> {
        // What a panic left half written is not recorded.
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A step that panicked has at most not counted what it wrote.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Stock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stock of {} in {}", self.id, self.folder().display())
    }
}

/// A hold on parts of a model, or just on its place: they are not given up while it lives.
#[derive(Debug)]
pub struct Hold {
    stock: Arc<Stock>,
    parts: BTreeSet<u32>,
}

impl Hold {
    pub(super) fn new(stock: &Arc<Stock>, parts: &BTreeSet<u32>, now: u64) -> Self {
        stock.touch(now);
        stock.hold(parts);
        Self { stock: Arc::clone(stock), parts: parts.clone() }
    }

    /// What it holds on to.
    pub fn stock(&self) -> &Arc<Stock> {
        &self.stock
    }

    /// The parts' numbers.
    pub fn parts(&self) -> &BTreeSet<u32> {
        &self.parts
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.stock.release(&self.parts);
    }
}
