//! The models of which something is here: the user's own, and parts that were fetched.
//!
//! **Invariant:** parts that were fetched take no more than the cap. When another needs their room,
//! parts go that nobody uses, those of the model first that was used longest ago.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use wire::{Manifest, ManifestId};

use super::error::StoreError;
use super::plausible;
use super::stock::{HEAD, HOLES, Hold, Stock, Writing, name_of, write_at};
use super::survey::survey_with;

/// Models that a store tells of; beyond it, none is added.
const MODELS_MAX: usize = 1024;
/// See [`Writing::sync_bytes`]: a third of a second of a fast home connection, and few enough waits
/// for a slow disk.
const SYNC_BYTES: u64 = 32 << 20;
/// Bytes that are left free on the disk for everything else.
const KEEP_FREE: u64 = 1 << 30;

/// The bounds of a store.
#[derive(Clone)]
pub struct Limits {
    /// Bytes that parts which were fetched may take.
    pub bytes_max: u64,
    /// Bytes of the disk that are left to others.
    pub keep_free: u64,
    /// How what comes is written.
    pub writing: Writing,
}

impl Limits {
    /// The usual ones, with this cap.
    pub fn new(bytes_max: u64) -> Self {
        let writing = Writing { write_at: Arc::new(write_at), sync_bytes: SYNC_BYTES };
        Self { bytes_max, keep_free: KEEP_FREE, writing }
    }
}

/// What is here of all models.
pub struct Store {
    folder: PathBuf,
    limits: Limits,
    models: Mutex<BTreeMap<ManifestId, Arc<Stock>>>,
    /// Counts uses, to tell which was earlier.
    clock: AtomicU64,
    /// Held as long as the store lives.
    _lock: File,
}

impl Store {
    /// The store in `folder`, which is made if it is not there. What cannot be used in it is removed.
    pub fn open(folder: &Path, limits: Limits) -> Result<Arc<Self>, StoreError> {
        let disk = |cause| StoreError::Disk { path: folder.into(), cause };
        std::fs::create_dir_all(folder).map_err(disk)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let lock = options.open(folder.join("lock")).map_err(disk)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Busy { folder: folder.into() });
            }
            Err(TryLockError::Error(cause)) => return Err(disk(cause)),
        }
        let store = Self {
            folder: folder.into(),
            limits,
            models: Mutex::default(),
            clock: AtomicU64::new(1),
            _lock: lock,
        };
        store.find_all()?;
        Ok(Arc::new(store))
    }

    /// Opens what earlier runs left, the longest untouched first.
    fn find_all(&self) -> Result<(), StoreError> {
        let disk = |cause| StoreError::Disk { path: self.folder.clone(), cause };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(disk)? {
            let path = entry.map_err(disk)?.path();
            if path.is_dir() && is_ours(&path) {
                let touched = path.join("record").metadata().and_then(|found| found.modified());
                found.push((touched.ok(), path));
            }
        }
        found.sort();
        for (_, path) in found {
            match Stock::reopen(&path, self.limits.writing.clone()) {
                Ok(Some(stock)) => {
                    stock.touch(self.tick());
                    self.lock().insert(stock.id(), Arc::new(stock));
                }
                Ok(None) => std::fs::remove_dir_all(&path).map_err(disk)?,
                Err(error) if error.is_of_model() => {
                    tracing::warn!("{}: {error}; it is removed", path.display());
                    std::fs::remove_dir_all(&path).map_err(disk)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Offers the model of the user's whose first file is at `path`. Takes as long as reading it, the
    /// first time.
    pub fn add_library(&self, path: &Path) -> Result<Arc<Stock>, StoreError> {
        let survey = survey_with(path, &self.folder.join("surveys"))?;
        let stock = Arc::new(Stock::of_survey(survey, self.limits.writing.clone()));
        let mut models = self.lock();
        let known = models.contains_key(&stock.id());
        if known || models.len() < MODELS_MAX {
            let before = models.insert(stock.id(), Arc::clone(&stock));
            // What was fetched of it before is not needed any more.
            if let Some(before) = before.filter(|before| !before.is_library() && before.idle().1) {
                before.remove()?;
            }
        }
        Ok(stock)
    }

    /// What is here of a model.
    pub fn find(&self, id: ManifestId) -> Option<Arc<Stock>> {
        self.lock().get(&id).cloned()
    }

    /// All models of which something is here.
    pub fn all(&self) -> Vec<Arc<Stock>> {
        self.lock().values().cloned().collect()
    }

    /// What is here of a model, which keeps its place while the hold lives.
    pub(super) fn visit(&self, id: ManifestId) -> Option<Hold> {
        let models = self.lock();
        models.get(&id).map(|stock| Hold::new(stock, &BTreeSet::new(), self.tick()))
    }

    /// The place for the model with this manifest, which whoever calls has proven to be the one of
    /// its id.
    pub(super) fn begin(&self, manifest: Manifest) -> Result<Hold, StoreError> {
        let id = manifest.id();
        plausible::check(id, &manifest)?;
        let mut models = self.lock();
        if let Some(stock) = models.get(&id) {
            return Ok(Hold::new(stock, &BTreeSet::new(), self.tick()));
        }
        let folder = self.folder.join(name_of(id));
        let stock = Arc::new(Stock::create(&folder, manifest, self.limits.writing.clone())?);
        let hold = Hold::new(&stock, &BTreeSet::new(), self.tick());
        models.insert(id, stock);
        Ok(hold)
    }

    /// Sets room aside for `parts` of a model, and hashes what is here of them.
    pub(super) fn reserve(
        &self,
        stock: &Arc<Stock>,
        parts: &BTreeSet<u32>,
    ) -> Result<Hold, StoreError> {
        let halves = stock.manifest().halves.len();
        let count = plausible::parts_count(stock.manifest()) as u32;
        if let Some(&part) = parts.iter().find(|part| **part >= count) {
            return Err(StoreError::NoSuchPart { id: stock.id(), part, halves });
        }
        let hold = {
            // Whoever else wants room waits until this is decided.
            let mut models = self.lock();
            if !stock.is_library() {
                self.make_room(&mut models, stock, parts)?;
                models.insert(stock.id(), Arc::clone(stock));
            }
            Hold::new(stock, parts, self.tick())
        };
        if stock.is_library() && !stock.has(parts) {
            self.lock().remove(&stock.id());
            return Err(StoreError::Changed { path: stock.path() });
        }
        parts.iter().try_for_each(|part| stock.check(*part))?;
        Ok(hold)
    }

    /// Gives parts up until `parts` of `stock` fit.
    fn make_room(
        &self,
        models: &mut BTreeMap<ManifestId, Arc<Stock>>,
        stock: &Arc<Stock>,
        parts: &BTreeSet<u32>,
    ) -> Result<(), StoreError> {
        let bytes_max = self.limits.bytes_max;
        loop {
            let needed = stock.unreserved(parts);
            let in_use = models.values().map(|stock| stock.reserved()).sum::<u64>();
            let fits = in_use.saturating_add(needed) <= bytes_max;
            let missing = stock.bytes_missing(parts);
            let free = fs4::available_space(&self.folder)
                .map_err(|cause| StoreError::Disk { path: self.folder.clone(), cause })?;
            let free = free.saturating_sub(self.limits.keep_free);
            if fits && missing <= free {
                return Ok(());
            }
            match spare(models, stock.id(), parts) {
                Some(Spare::Part(of, part)) => of.give_up(part)?,
                Some(Spare::Whole(of)) => {
                    models.remove(&of.id());
                    of.remove()?;
                }
                None if fits => return Err(StoreError::NoRoom { needed: missing, free }),
                None => return Err(StoreError::Cap { needed, in_use, bytes_max }),
            }
        }
    }

    /// Forgets a model that proved to be of no use.
    pub(super) fn discard(&self, stock: &Stock) {
        self.lock().remove(&stock.id());
        if let Err(error) = stock.remove() {
            tracing::warn!("{error}");
        }
    }

    /// A manifest's bytes, for whoever asks.
    pub(super) fn manifest(&self, id: ManifestId) -> Option<Bytes> {
        self.find(id).map(|stock| stock.encoded())
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ManifestId, Arc<Stock>>> {
        // No step leaves the table half changed.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store in {}", self.folder.display())
    }
}

/// What can be given up.
enum Spare {
    Part(Arc<Stock>, u32),
    Whole(Arc<Stock>),
}

/// What goes next, for the sake of `parts` of the model `wanting`: something of the model that was
/// used longest ago, and of that model itself only when no other has anything to give.
fn spare(
    models: &BTreeMap<ManifestId, Arc<Stock>>,
    wanting: ManifestId,
    parts: &BTreeSet<u32>,
) -> Option<Spare> {
    let mut others: Vec<&Arc<Stock>> =
        models.values().filter(|stock| !stock.is_library() && stock.id() != wanting).collect();
    others.sort_by_key(|stock| stock.used());
    for stock in others {
        let (idle, all) = stock.idle();
        match idle.iter().rev().find(|part| **part != HEAD) {
            Some(&part) if HOLES => return Some(Spare::Part(Arc::clone(stock), part)),
            _ if all => return Some(Spare::Whole(Arc::clone(stock))),
            _ => {}
        }
    }
    let own = models.get(&wanting)?;
    let (idle, _) = own.idle();
    let part = idle.into_iter().rev().find(|part| *part != HEAD && !parts.contains(part))?;
    HOLES.then(|| Spare::Part(Arc::clone(own), part))
}

/// Whether a folder is named as those of this store are.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
