//! Parts of models that this node lends: loaded when somebody wants them, given back when the memory
//! is wanted for others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use compute::blueprint::Blueprint;
use compute::engine::{Ends, KernelChoice, LoadOptions, Model, PAGE, Part};
use tokio::sync::watch;
use wire::lane::{Line, Prepare, Prepared, Reason, Refused, Say, Want};
use wire::{Halves, Held, Manifest, ManifestId, NodeId};

use super::post::{Desk, refuse};
use super::stages::{Lent, Order, SEATS_MAX};
use crate::shell::lanes::Pipe;

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
#[derive(Debug)]
pub struct Lender {
    means: Means,
    local: Mutex<BTreeMap<ManifestId, Local>>,
    state: Mutex<State>,
    orders: mpsc::Sender<Order>,
    /// Rings when what is lent has changed.
    changed: watch::Sender<u64>,
}

type Key = (ManifestId, Halves);

#[derive(Debug, Default)]
struct State {
    parts: BTreeMap<Key, Kept>,
    loading: BTreeMap<Key, watch::Receiver<Progress>>,
}

/// A part that is lent.
#[derive(Debug)]
struct Kept {
    lent: Arc<Lent>,
    bytes: u64,
    wanted: Instant,
}

/// How far a part is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Loading { done: u64, whole: u64 },
    Ready,
    Refused(Reason, String),
}

impl Lender {
    /// Lends by `means`; the thread behind `orders` computes.
    pub fn new(means: Means, orders: mpsc::Sender<Order>) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        let (local, state) = (Mutex::default(), Mutex::default());
        Arc::new(Self { means, local, state, orders, changed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locals(&self) -> MutexGuard<'_, BTreeMap<ManifestId, Local>> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model's files are here.
    pub fn know(&self, local: Local) {
        self.locals().insert(local.manifest.id(), local);
        self.changed.send_modify(|n| *n += 1);
    }

    /// The manifest with this id, if the model is here.
    pub fn manifest(&self, id: ManifestId) -> Option<Arc<Manifest>> {
        self.locals().get(&id).map(|local| local.manifest.clone())
    }

    /// Ids of models whose files are here.
    pub fn files(&self) -> Vec<ManifestId> {
        self.locals().keys().copied().collect()
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

    /// Memory that may still be lent, bytes: that of parts nobody uses counts as free.
    pub fn free(&self) -> u64 {
        let state = self.state();
        let used = state.parts.values().filter(|held| !is_idle(held)).map(|held| held.bytes);
        self.means.bytes.saturating_sub(used.sum())
    }

    /// The part, loaded from now on if it is not there: how far it is.
    fn wanted(self: &Arc<Self>, key: Key) -> watch::Receiver<Progress> {
        let mut state = self.state();
        if let Some(held) = state.parts.get_mut(&key) {
            held.wanted = Instant::now();
            return watch::channel(Progress::Ready).1;
        }
        if let Some(progress) = state.loading.get(&key) {
            return progress.clone();
        }
        let (tell, progress) = watch::channel(Progress::Loading { done: 0, whole: 0 });
        state.loading.insert(key, progress.clone());
        let own = self.clone();
        tokio::task::spawn_blocking(move || own.load(key, &tell));
        progress
    }

    fn load(&self, key: Key, tell: &watch::Sender<Progress>) {
        let outcome = self.try_load(key, tell);
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

    fn try_load(&self, key: Key, tell: &watch::Sender<Progress>) -> Result<Kept, (Reason, String)> {
        let (manifest, halves) = key;
        let local = self.locals().get(&manifest).cloned();
        let local = local
            .ok_or_else(|| (Reason::NotHeld, "the files of this model are not here".to_owned()))?;
        let broken = |error: &dyn std::fmt::Display| (Reason::Internal, error.to_string());
        let blueprint = Blueprint::read(&local.path).map_err(|error| broken(&error))?;
        if halves.range().end > blueprint.halves {
            let text = format!("layers {halves} of a model with {} layers", blueprint.layers);
            return Err((Reason::Broken, text));
        }
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
        let model = Model::load(&local.path, &options, &mut |done, whole| {
            tell.send_replace(Progress::Loading { done, whole });
        });
        let model = model.map_err(|error| broken(&error))?;
        let pages = model.pages_of(&halves.range(), pages);
        let bytes = weights + pages.max() as u64 * page + OVERHEAD;
        let seats = AtomicU64::new(0);
        let lent = Arc::new(Lent { manifest, halves, model, pages, seats });
        Ok(Kept { lent, bytes, wanted: Instant::now() })
    }

    /// Sees to it that there is memory for `weights` and pages of `page` bytes each: how many. Parts
    /// that nobody uses go, the longest unwanted first.
    fn make_room(&self, weights: u64, page: u64) -> Result<usize, (Reason, String)> {
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
        let progress = self.wanted((manifest, halves));
        tokio::spawn(tell(progress, pipe));
    }

    fn want(self: Arc<Self>, _peer: NodeId, _want: Want, pipe: Pipe) {
        tokio::spawn(refuse(pipe, Reason::NotHeld, "this node does not pass weights on".into()));
    }
}

/// Says how far a part is until it is there.
async fn tell(mut progress: watch::Receiver<Progress>, mut pipe: Pipe) {
    loop {
        let now = progress.borrow_and_update().clone();
        let (say, over) = match now {
            Progress::Loading { done, whole } => {
                (Say::Prepared(Prepared { done, whole, ready: false, eta_s: 0 }), false)
            }
            Progress::Ready => {
                (Say::Prepared(Prepared { done: 1, whole: 1, ready: true, eta_s: 0 }), true)
            }
            Progress::Refused(reason, text) => {
                let text = text.chars().filter(|c| !c.is_control()).take(400).collect();
                (Say::Refused(Refused { reason: reason as i32, text, retry_ms: 0 }), true)
            }
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
