//! Parts of models that this node lends: loaded when somebody wants them, given back when the memory
//! is wanted for others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use compute::blueprint::Blueprint;
use compute::engine::{Ends, KernelChoice, LoadOptions, PAGE, Part};
use compute::parts::FileParts;
use tokio::sync::watch;
use wire::lane::{Hop, Line, Prepare, Prepared, Reason, Refused, Say, Want};
use wire::{Halves, Held, Manifest, ManifestId, NodeId};

use super::post::Desk;
use super::stages::{Lent, Order, SEATS_MAX};
use crate::shell::lanes::{Lanes, Pipe};
use crate::shell::weights::{Fetcher, Ready, Server, Stock, Store, StoreError, Waits, over};

/// How often whoever waits for a part hears how far it is.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Positions for which a part has pages, at most: all seats with a usual conversation each.
pub const POSITIONS_MAX: usize = SEATS_MAX * 2048;
/// Positions without which lending a part is of no use.
const POSITIONS_MIN: usize = 2048;
/// Memory of buffers beside weights and caches, as placement counts it.
const OVERHEAD: u64 = crate::house::place::OVERHEAD_BYTES;
/// After how long a part that no sequence uses may be given up for another.
const UNUSED: Duration = Duration::from_secs(10);
/// Parts at a time.
const PARTS_MAX: usize = 8;

/// A model whose files are here.
#[derive(Debug, Clone)]
pub struct Local {
    /// What it is.
    pub manifest: Arc<Manifest>,
    /// Its first file.
    pub path: PathBuf,
}

/// How parts are loaded.
#[derive(Debug, Clone, Copy)]
pub struct Means {
    /// Memory for weights and caches of all parts, bytes.
    pub bytes: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Which kernels.
    pub kernels: KernelChoice,
}

/// The lender.
pub struct Lender {
    means: Means,
    fetcher: Fetcher,
    server: Server,
    state: Mutex<State>,
    orders: mpsc::Sender<Order>,
    /// Rings when what is lent has changed.
    changed: watch::Sender<u64>,
}

type Key = (ManifestId, Halves);
type Refusal = (Reason, String);

#[derive(Default)]
struct State {
    parts: BTreeMap<Key, Kept>,
    loading: BTreeMap<Key, watch::Receiver<Progress>>,
}

/// A part that is lent.
struct Kept {
    lent: Arc<Lent>,
    bytes: u64,
    wanted: Instant,
    /// Holds on to the files that it was loaded from.
    _files: Arc<Ready>,
}

/// How far a part is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Coming { done: u64, whole: u64, eta_s: u32 },
    Ready,
    Refused(Reason, String),
}

impl Lender {
    /// Lends by `means`, what is in `store` or comes over `lanes`; the thread behind `orders` computes.
    pub fn new(
        means: Means,
        orders: mpsc::Sender<Order>,
        store: Arc<Store>,
        lanes: Lanes,
    ) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        let server = Server::new(store.clone());
        let fetcher = Fetcher::new(store, over(lanes), Waits::default());
        Arc::new(Self { means, fetcher, server, state: Mutex::default(), orders, changed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn libraries(&self) -> impl Iterator<Item = Arc<Stock>> {
        self.fetcher.store().all().into_iter().filter(|stock| stock.is_library())
    }

    /// A model's files are here: it can be lent and given on. Reads all of it, unless it was seen
    /// before.
    ///
    /// # Errors
    /// It is no model, or cannot be read.
    pub fn know(&self, path: &Path) -> Result<Arc<Manifest>, StoreError> {
        let stock = self.fetcher.store().add_library(path)?;
        self.changed.send_modify(|n| *n += 1);
        Ok(Arc::new(stock.manifest().clone()))
    }

    /// The manifest with this id, if the model is known here.
    pub fn manifest(&self, id: ManifestId) -> Option<Arc<Manifest>> {
        let stock = self.fetcher.store().find(id)?;
        Some(Arc::new(stock.manifest().clone()))
    }

    /// All models whose files are here.
    pub fn known(&self) -> Vec<Local> {
        let local = |stock: Arc<Stock>| Local {
            manifest: Arc::new(stock.manifest().clone()),
            path: stock.path(),
        };
        self.libraries().map(local).collect()
    }

    /// Ids of models whose files are here.
    pub fn files(&self) -> Vec<ManifestId> {
        self.libraries().map(|stock| stock.id()).collect()
    }

    /// Changes of what is lent or known.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What is lent, for an offer.
    pub fn held(&self) -> Vec<Held> {
        let state = self.state();
        let each = state.parts.values().map(|held| {
            let pages = &held.lent.pages;
            let free = pages.max().saturating_sub(pages.taken()) * PAGE;
            Held {
                manifest: held.lent.manifest.0.to_vec(),
                halves: Some(held.lent.halves),
                positions_free: free as u32,
            }
        });
        each.collect()
    }

    /// Memory that is lent at most, bytes.
    pub fn bytes(&self) -> u64 {
        self.means.bytes
    }

    /// Memory that may still be lent, bytes: that of parts nobody uses counts as free.
    pub fn free(&self) -> u64 {
        let state = self.state();
        let used = state.parts.values().filter(|held| !is_idle(held)).map(|held| held.bytes);
        self.means.bytes.saturating_sub(used.sum())
    }

    /// The part, brought here and loaded from now on if it is not there: how far it is.
    fn wanted(self: &Arc<Self>, key: Key, sources: Vec<Hop>) -> watch::Receiver<Progress> {
        let mut state = self.state();
        if let Some(held) = state.parts.get_mut(&key) {
            held.wanted = Instant::now();
            return watch::channel(Progress::Ready).1;
        }
        if let Some(progress) = state.loading.get(&key) {
            return progress.clone();
        }
        let (tell, progress) = watch::channel(Progress::Coming { done: 0, whole: 0, eta_s: 0 });
        state.loading.insert(key, progress.clone());
        tokio::spawn(self.clone().bring(key, sources, tell));
        progress
    }

    async fn bring(self: Arc<Self>, key: Key, sources: Vec<Hop>, tell: watch::Sender<Progress>) {
        let outcome = match self.fetch(key, sources, &tell).await {
            Ok(files) => {
                let (own, files, telling) = (self.clone(), Arc::new(files), tell.clone());
                let load = move || own.load(key, files, &telling);
                let broken = |_| Err((Reason::Internal, "loading has broken off".to_owned()));
                tokio::task::spawn_blocking(load).await.unwrap_or_else(broken)
            }
            Err(refusal) => Err(refusal),
        };
        let mut state = self.state();
        state.loading.remove(&key);
        match outcome {
            Ok(held) => {
                // The thread is there as long as the node is.
                let _ = self.orders.send(Order::Lend(held.lent.clone()));
                state.parts.insert(key, held);
                tell.send_replace(Progress::Ready);
            }
            Err((reason, text)) => {
                tracing::warn!(halves = %key.1, text, "a part is not lent");
                tell.send_replace(Progress::Refused(reason, text));
            }
        }
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    /// The files of a part: what is missing of them comes from `sources`.
    async fn fetch(
        &self,
        (manifest, halves): Key,
        sources: Vec<Hop>,
        tell: &watch::Sender<Progress>,
    ) -> Result<Ready, Refusal> {
        let part = Part { halves: halves.range(), ends: Ends::Elsewhere };
        if let Some(known) = self.manifest(manifest)
            && !known.all().covers(halves)
        {
            let text = format!("layers {halves} of a model with {}", known.all());
            return Err((Reason::Broken, text));
        }
        let fetch = self.fetcher.fetch(manifest, FileParts::needed(&part), sources);
        let mut progress = fetch.progress();
        let done = fetch.done();
        tokio::pin!(done);
        loop {
            tokio::select! {
                ready = &mut done => {
                    return ready.map_err(|error| (Reason::NotHeld, error.to_string()));
                }
                Ok(()) = progress.changed() => {
                    let now = *progress.borrow_and_update();
                    let eta_s = now.eta_s.unwrap_or(0);
                    tell.send_replace(Progress::Coming { done: now.done, whole: now.whole, eta_s });
                }
            }
        }
    }

    fn load(
        &self,
        (manifest, halves): Key,
        files: Arc<Ready>,
        tell: &watch::Sender<Progress>,
    ) -> Result<Kept, Refusal> {
        let broken = |error: &dyn std::fmt::Display| (Reason::Internal, error.to_string());
        let blueprint = Blueprint::read(files.path()).map_err(|error| broken(&error))?;
        let part = Part { halves: halves.range(), ends: Ends::Elsewhere };
        let weights = blueprint.weight_bytes(&part);
        let page = blueprint.page_bytes(&part.halves).max(1);
        let pages = self.make_room(weights, page)?;
        tracing::info!(model = blueprint.name, layers = %halves, "a part is being loaded");
        let options = LoadOptions {
            threads: self.means.threads,
            kernels: self.means.kernels,
            part: Some(part),
        };
        let model = files.load(&options, &mut |done, whole| {
            tell.send_replace(Progress::Coming { done, whole, eta_s: 0 });
        });
        let model = model.map_err(|error| broken(&error))?;
        let pages = model.pages_of(&halves.range(), pages);
        let bytes = weights + pages.max() as u64 * page + OVERHEAD;
        let seats = AtomicU64::new(0);
        let lent = Arc::new(Lent { manifest, halves, model, pages, seats });
        Ok(Kept { lent, bytes, wanted: Instant::now(), _files: files })
    }

    /// Sees to it that there is memory for `weights` and pages of `page` bytes each: how many. Parts
    /// that nobody uses go, the longest unwanted first.
    fn make_room(&self, weights: u64, page: u64) -> Result<usize, Refusal> {
        let mut state = self.state();
        let least = (POSITIONS_MIN / PAGE + 2) as u64 * page;
        loop {
            let used: u64 = state.parts.values().map(|held| held.bytes).sum();
            let free = self.means.bytes.saturating_sub(used);
            let rest = free.saturating_sub(weights + OVERHEAD);
            if rest >= least && state.parts.len() < PARTS_MAX {
                let most = (POSITIONS_MAX / PAGE) as u64;
                return Ok((rest / page).min(most) as usize);
            }
            let idle = state.parts.iter().filter(|(_, held)| is_idle(held));
            let oldest = idle.min_by_key(|(_, held)| held.wanted).map(|(key, _)| *key);
            let Some(key) = oldest else {
                let needed = (weights + OVERHEAD + least) / 1_000_000;
                let text =
                    format!("it takes {needed} MB and {} MB are free here", free / 1_000_000);
                return Err((Reason::Full, text));
            };
            state.parts.remove(&key);
            let _ = self.orders.send(Order::TakeBack(key.0, key.1));
        }
    }
}

/// Whether no sequence uses a part.
fn is_idle(held: &Kept) -> bool {
    held.lent.seats.load(Ordering::Relaxed) == 0 && held.wanted.elapsed() > UNUSED
}

impl Desk for Lender {
    fn prepare(self: Arc<Self>, peer: NodeId, prepare: Prepare, pipe: Pipe) {
        let manifest = ManifestId::from_slice(&prepare.manifest).expect("checked when it was read");
        let halves = prepare.halves.expect("checked when it was read");
        tracing::debug!(%peer, layers = %halves, "a part is wanted");
        let progress = self.wanted((manifest, halves), prepare.sources);
        tokio::spawn(tell(progress, pipe));
    }

    fn want(self: Arc<Self>, peer: NodeId, want: Want, pipe: Pipe) {
        let server = self.server.clone();
        tokio::spawn(async move { server.serve(peer, want, pipe).await });
    }
}

/// Says how far a part is until it is there.
async fn tell(mut progress: watch::Receiver<Progress>, mut pipe: Pipe) {
    loop {
        let now = progress.borrow_and_update().clone();
        let (say, over) = match now {
            Progress::Coming { done, whole, eta_s } => {
                (Say::Prepared(Prepared { done, whole, ready: false, eta_s }), false)
            }
            Progress::Ready => {
                (Say::Prepared(Prepared { done: 1, whole: 1, ready: true, eta_s: 0 }), true)
            }
            Progress::Refused(reason, text) => (Say::Refused(Refused::new(reason, text, 0)), true),
        };
        if pipe.send(&wire::encode(&Line::from(say)), [Bytes::new()]).await.is_err() {
            return;
        }
        if over {
            let (sender, _receiver) = pipe.split();
            let _ = sender.finish().await;
            return;
        }
        // Also when nothing has changed, so that whoever waits knows that this node lives.
        let _ = tokio::time::timeout(4 * TELL_EVERY, progress.changed()).await;
        tokio::time::sleep(TELL_EVERY).await;
    }
}
