//! What is here of one model.
//!
//! It lies in files of the model's full length, with holes where nothing has come yet, so that what
//! loads models can open them. Or it is a whole model of the user's, which is only read.
//!
//! **Invariant:** a chunk counts from when it was proven and written, and the record says so only
//! once it is on disk. Of what a record says, the head is hashed again when it is opened, and each
//! other part before it is first used. A chunk that is served is hashed each time.

mod held;
mod on_disk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use compute::parts::{Chunk, FileParts};
use wire::{Manifest, ManifestId};

use self::held::Held;
use self::on_disk::Files;
use super::error::StoreError;
use super::lead::{Lead, Spot};
use super::plausible::parts_count;
use super::record::{Entry, Record};
use super::survey::{Reader, Survey, borne_out, part_of, told};
use super::tree;

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
    writing: Writing,
    /// When something of it was last used, in ticks of the store.
    used: AtomicU64,
    inner: Mutex<Inner>,
}

/// Where it lies.
enum Place {
    /// A model of the user's, in these files.
    Library(Vec<PathBuf>),
    /// A folder of the store.
    Folder(PathBuf),
}

struct Inner {
    layout: Layout,
    parts: BTreeMap<u32, Held>,
    files: Files,
    record: Option<Record>,
    /// Written, and perhaps not on disk yet.
    pending: Vec<Entry>,
    pending_bytes: u64,
    /// How many use it.
    holds: usize,
}

/// Where chunks lie.
enum Layout {
    /// Only the headers' are known.
    Lead(Lead),
    /// All are.
    Known(FileParts),
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
        let inner = Inner {
            parts: parts.collect(),
            layout: Layout::Known(layout),
            files: Files::new(files.clone()),
            record: None,
            pending: Vec::new(),
            pending_bytes: 0,
            holds: 0,
        };
        Self::with(manifest, Place::Library(files), writing, inner)
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
        let inner = Inner {
            layout: Layout::Lead(lead),
            parts: BTreeMap::new(),
            files: Files::new(on_disk::paths(folder, manifest.files.len())),
            record: Some(record),
            pending: Vec::new(),
            pending_bytes: 0,
            holds: 0,
        };
        Self::with(manifest, Place::Folder(folder.into()), writing, inner)
    }

    fn with(manifest: Manifest, place: Place, writing: Writing, inner: Inner) -> Self {
        let encoded = wire::encode(&manifest).into();
        let (used, inner) = (AtomicU64::new(0), Mutex::new(inner));
        Self { id: manifest.id(), manifest, encoded, place, writing, used, inner }
    }

    /// Takes over what a record says: the head after it was hashed again, and of the rest what the
    /// head leaves possible.
    fn recall(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let mut inner = self.lock();
        self.adopt(&mut inner, entries.iter().filter(|entry| entry.part == HEAD));
        inner.settle_lead();
        self.recheck(&mut inner, HEAD);
        self.find_layout(&mut inner)?;
        if matches!(inner.layout, Layout::Known(_)) {
            self.adopt(&mut inner, entries.iter());
            self.recheck(&mut inner, HEAD);
        }
        let kept = inner.entries();
        match kept.len() == entries.len() {
            true => Ok(()),
            false => self.rewrite(&mut inner, &kept),
        }
    }

    fn adopt<'a>(&self, inner: &mut Inner, entries: impl Iterator<Item = &'a Entry>) {
        for entry in entries {
            let Some(count) = self.chunks(entry.part) else { continue };
            if entry.chunk >= count {
                continue;
            }
            inner.held(entry.part, count).recall(entry.chunk, entry.leaf);
        }
        let numbers: Vec<u32> = inner.parts.keys().copied().collect();
        for number in numbers {
            self.find_tree(inner, number);
        }
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
        self.lock().files.first()
    }

    /// Whether it is a model of the user's.
    pub fn is_library(&self) -> bool {
        matches!(self.place, Place::Library(_))
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
        let mut inner = self.lock();
        let Some(at) = self.place(&mut inner, part, chunk, bytes) else {
            return Ok(Accepted::Later);
        };
        if at.range.end - at.range.start != bytes.len() as u64 {
            // It is what the manifest says, so that it is the manifest that is wrong.
            return Err(StoreError::Untrue { id: self.id }.into());
        }
        if inner.held(part, told.chunks).has(chunk) {
            return Ok(Accepted::Had);
        }
        inner.files.write(&self.writing.write_at, &at, bytes)?;
        inner.held(part, told.chunks).put(chunk, leaf, bytes.len() as u64);
        inner.pending.push(Entry { part, chunk, leaf });
        inner.pending_bytes += bytes.len() as u64;
        if part == HEAD {
            self.find_layout(&mut inner)?;
        }
        self.find_tree(&mut inner, part);
        let whole = inner.parts.get(&part).is_some_and(|held| held.tree.is_some());
        if whole || inner.pending_bytes >= self.writing.sync_bytes {
            self.sync_now(&mut inner)?;
        }
        Ok(Accepted::New)
    }

    /// Where a chunk that was proven belongs, if anybody can say.
    fn place(&self, inner: &mut Inner, part: u32, chunk: u32, bytes: &[u8]) -> Option<Chunk> {
        match &mut inner.layout {
            Layout::Lead(lead) if part == HEAD => {
                if lead.spot(chunk) == Spot::Probe {
                    lead.probed(bytes);
                }
                match lead.spot(chunk) {
                    Spot::At(at) => Some(at),
                    Spot::Probe | Spot::Later => None,
                }
            }
            Layout::Lead(_) => None,
            Layout::Known(_) => {
                let count = self.chunks(part)?;
                inner.held(part, count).spots.get(chunk as usize).cloned()
            }
        }
    }

    /// Reads where everything lies, once all headers are here, and compares it with the manifest.
    fn find_layout(&self, inner: &mut Inner) -> Result<(), StoreError> {
        let Layout::Lead(lead) = &inner.layout else { return Ok(()) };
        let head = inner.parts.get(&HEAD);
        let here = |number: usize| head.is_some_and(|held| held.has(number as u32));
        if !lead.is_settled() || !lead.known().all(|(number, _)| here(number)) {
            return Ok(());
        }
        let header = |cause| StoreError::Header { id: self.id, cause: Box::new(cause) };
        let layout = borne_out(&inner.files.first(), &self.manifest).map_err(header)?;
        let layout = layout.ok_or(StoreError::Untrue { id: self.id })?;
        for (&part, held) in &mut inner.parts {
            held.spots = layout.chunks(part_of(part)).collect();
        }
        inner.layout = Layout::Known(layout);
        Ok(())
    }

    /// Makes the tree of a part that has become whole. One whose leaves are not the manifest's, as a
    /// damaged disk may have it, is forgotten.
    fn find_tree(&self, inner: &mut Inner, part: u32) {
        let Some(told) = told(&self.manifest, part_of(part)) else { return };
        if let Some(held) = inner.parts.get_mut(&part) {
            held.complete(&told.root);
        }
    }

    /// Hashes `part` again unless that was done since the program began; what is wrong is forgotten.
    pub fn check(&self, part: u32) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let before = inner.entries().len();
        self.recheck(&mut inner, part);
        let kept = inner.entries();
        if kept.len() != before && !self.is_library() {
            self.rewrite(&mut inner, &kept)?;
        }
        Ok(())
    }

    fn recheck(&self, inner: &mut Inner, part: u32) {
        let Some(held) = inner.parts.get(&part).filter(|held| !held.checked) else { return };
        let spots: Vec<(u32, Chunk)> = match &inner.layout {
            Layout::Lead(lead) => lead.known().map(|(number, at)| (number as u32, at)).collect(),
            Layout::Known(_) => (0..).zip(held.spots.iter().cloned()).collect(),
        };
        let mut reader = Reader::new(inner.files.paths());
        let mut good = BTreeMap::new();
        for (number, at) in spots {
            let Some(leaf) = held.leaf(number) else { continue };
            // What cannot be read is fetched again.
            if reader.read(&at).is_ok_and(|bytes| tree::leaf(bytes) == leaf) {
                good.insert(number, at.range.end - at.range.start);
            }
        }
        if let Some(held) = inner.parts.get_mut(&part) {
            held.keep(&good);
        }
    }

    /// A chunk of a part that is here whole, with its proof. It is hashed again: one that is not what
    /// it was is forgotten, and not served.
    pub fn serve(&self, part: u32, chunk: u32) -> Option<(Bytes, Vec<u8>)> {
        let (at, tree, paths) = {
            let inner = self.lock();
            let tree = inner.parts.get(&part)?.tree.clone()?;
            let at = inner.spots(part).get(chunk as usize)?.clone();
            (at, tree, inner.files.paths().to_vec())
        };
        let (leaf, proof) = (*tree.leaves().get(chunk as usize)?, tree.proof(chunk as usize)?);
        let read = Reader::new(&paths).read(&at).ok().map(Bytes::copy_from_slice);
        let Some(bytes) = read.filter(|bytes| tree::leaf(bytes) == leaf) else {
            self.lose(part, chunk);
            return None;
        };
        Some((bytes, proof))
    }

    /// A chunk turned out to be damaged.
    fn lose(&self, part: u32, chunk: u32) {
        tracing::warn!("chunk {chunk} of part {part} of {} is damaged on disk", self.id);
        let mut inner = self.lock();
        if let Some(held) = inner.parts.get_mut(&part) {
            held.lose(chunk);
        }
        let kept = inner.entries();
        if let (false, Err(error)) = (self.is_library(), self.rewrite(&mut inner, &kept)) {
            tracing::warn!("{error}");
        }
    }

    /// Brings what was written to disk, and records it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.sync_now(&mut self.lock())
    }

    fn sync_now(&self, inner: &mut Inner) -> Result<(), StoreError> {
        if inner.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut inner.pending);
        let bytes = std::mem::take(&mut inner.pending_bytes);
        let done = inner.files.sync(bytes).and_then(|()| self.add(inner, &pending));
        if done.is_err() {
            // Whether they are on disk is not known, so that they have to come again.
            pending.iter().for_each(|entry| inner.take_back(entry));
        }
        done
    }

    fn add(&self, inner: &mut Inner, entries: &[Entry]) -> Result<(), StoreError> {
        let sound = inner.record.as_ref().is_some_and(Record::is_sound);
        if !sound {
            let all = inner.entries();
            return self.rewrite(inner, &all);
        }
        let bytes = entries.len() as u64;
        let record = inner.record.as_mut().expect("it is sound");
        record.add(entries).map_err(|cause| StoreError::of_write(self.folder(), bytes, cause))
    }

    fn rewrite(&self, inner: &mut Inner, entries: &[Entry]) -> Result<(), StoreError> {
        let Some(record) = inner.record.as_mut() else { return Ok(()) };
        let bytes = entries.len() as u64;
        record.rewrite(entries).map_err(|cause| StoreError::of_write(self.folder(), bytes, cause))
    }

    fn folder(&self) -> &Path {
        match &self.place {
            Place::Folder(folder) => folder,
            Place::Library(files) => files.first().map_or(Path::new(""), |first| first),
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
        let mut inner = self.lock();
        let spots = inner.spots(part).to_vec();
        inner.parts.remove(&part);
        inner.pending.retain(|entry| entry.part != part);
        let kept = inner.entries();
        self.rewrite(&mut inner, &kept)?;
        inner.files.free(&spots)
    }

    /// Removes everything. Files that are still open elsewhere last until they are closed.
    pub(super) fn remove(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.parts.clear();
        inner.pending.clear();
        match &self.place {
            Place::Library(_) => Ok(()),
            Place::Folder(folder) => on_disk::remove(folder),
        }
    }

    /// Chunks of `part`, if the model has it.
    fn chunks(&self, part: u32) -> Option<u32> {
        told(&self.manifest, part_of(part)).map(|told| told.chunks)
    }

    /// Bytes of `part`.
    pub(super) fn bytes(&self, part: u32) -> u64 {
        told(&self.manifest, part_of(part)).map_or(0, |told| told.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A step that panicked has at most not counted what it wrote.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Finds out where the headers' chunks lie from what the files hold of them.
    fn settle_lead(&mut self) {
        let Layout::Lead(lead) = &mut self.layout else { return };
        let mut reader = Reader::new(self.files.paths());
        while let Some((number, at)) = lead.probe() {
            let leaf = self.parts.get(&HEAD).and_then(|held| held.leaf(number));
            let Some(leaf) = leaf else { return };
            match reader.read(&at) {
                Ok(bytes) if tree::leaf(bytes) == leaf => lead.probed(bytes),
                _ => lead.probed(&[]),
            }
        }
    }

    /// What is held of `part`, which has `count` chunks.
    fn held(&mut self, part: u32, count: u32) -> &mut Held {
        let known = match &self.layout {
            Layout::Lead(_) => None,
            Layout::Known(layout) => Some(layout),
        };
        let held = self.parts.entry(part).or_insert_with(|| Held::empty(count as usize));
        if let (true, Some(layout)) = (held.spots.is_empty(), known) {
            held.spots = layout.chunks(part_of(part)).collect();
        }
        held
    }

    /// Where the chunks of `part` lie; none while nobody knows.
    fn spots(&self, part: u32) -> &[Chunk] {
        self.parts.get(&part).map_or(&[], |held| &held.spots)
    }

    /// All that is here and on disk.
    fn entries(&self) -> Vec<Entry> {
        let pending: BTreeSet<(u32, u32)> =
            self.pending.iter().map(|entry| (entry.part, entry.chunk)).collect();
        let all = self.parts.iter().flat_map(|(&part, held)| {
            held.here().map(move |(chunk, leaf)| Entry { part, chunk, leaf })
        });
        all.filter(|entry| !pending.contains(&(entry.part, entry.chunk))).collect()
    }

    fn take_back(&mut self, entry: &Entry) {
        if let Some(held) = self.parts.get_mut(&entry.part) {
            held.lose(entry.chunk);
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
