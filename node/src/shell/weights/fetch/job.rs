//! What all fetches of one model share: the plan of chunks, and the tasks that ask sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout_at;
use wire::lane::Hop;
use wire::{Manifest, ManifestId};

use super::fault::{Fault, Faults, FetchError};
use super::pace::{Pace, Progress};
use super::plan::{Plan, Source, Spot};
use super::source;
use super::{Dial, Waits};
use crate::shell::weights::error::StoreError;
use crate::shell::weights::stock::{Accepted, HEAD, Hold, Stock};
use crate::shell::weights::store::Store;

/// Sources that are asked at a time: each has some chunks on their way.
const SOURCES_MAX: usize = 16;
/// Faults that are remembered.
const FAULTS_MAX: usize = 32;

/// All that is done to bring one model here. When it is dropped, the work stops.
pub struct Job {
    core: Arc<Core>,
    tasks: Mutex<JoinSet<()>>,
}

/// What the tasks share.
pub struct Core {
    id: ManifestId,
    store: Arc<Store>,
    dial: Dial,
    waits: Waits,
    state: Mutex<State>,
    news: watch::Sender<Progress>,
}

struct State {
    /// The model's place, once its manifest is here.
    place: Option<Hold>,
    plan: Plan,
    /// How many fetches want each part.
    wanted: BTreeMap<u32, usize>,
    /// Why it is over, if it is.
    ended: Option<FetchError>,
    live: BTreeMap<Source, Hop>,
    sources_ever: Source,
    faults: Faults,
    pace: Pace,
    /// When something last came.
    gained: Instant,
}

impl Job {
    /// For the model `id`.
    pub fn new(id: ManifestId, store: Arc<Store>, dial: Dial, waits: Waits) -> Self {
        let now = Instant::now();
        let state = State {
            place: None,
            plan: Plan::default(),
            wanted: BTreeMap::new(),
            ended: None,
            live: BTreeMap::new(),
            sources_ever: 0,
            faults: Faults::default(),
            pace: Pace::new(now),
            gained: now,
        };
        let (news, _) = watch::channel(Progress::default());
        let core = Core { id, store, dial, waits, state: Mutex::new(state), news };
        Self { core: Arc::new(core), tasks: Mutex::default() }
    }

    /// What the tasks share.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Asks `hop`, too, unless it is asked already or there are enough.
    pub fn add(&self, hop: Hop) {
        let source = {
            let mut state = self.core.lock();
            let known = state.live.values().any(|other| other.node == hop.node);
            if known || state.live.len() >= SOURCES_MAX {
                return;
            }
            state.sources_ever += 1;
            let source = state.sources_ever;
            state.live.insert(source, hop.clone());
            state.gained = Instant::now();
            source
        };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are not kept.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(source::run(Arc::clone(&self.core), source, hop));
        self.core.tell();
    }

    /// Whether it has failed, so that whoever comes later needs another.
    pub fn is_over(&self) -> bool {
        self.core.lock().ended.is_some()
    }
}

impl Core {
    /// The model.
    pub fn id(&self) -> ManifestId {
        self.id
    }

    /// How to reach sources.
    pub fn dial(&self) -> &Dial {
        &self.dial
    }

    /// How long to wait for them.
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// Hears of each change.
    pub fn news(&self) -> watch::Receiver<Progress> {
        self.news.subscribe()
    }

    /// What was done wrong so far, by whom.
    pub fn faults(&self) -> Faults {
        self.lock().faults.clone()
    }

    /// What is here of the model, once its manifest is.
    pub fn stock(&self) -> Option<Arc<Stock>> {
        self.lock().place.as_ref().map(|place| Arc::clone(place.stock()))
    }

    /// Looks whether the store knows the model. Not for use on an async thread.
    pub fn look(&self) {
        if let Some(place) = self.store.visit(self.id) {
            self.lock().place.get_or_insert(place);
        }
    }

    /// A manifest that was proven to be the one has come. Not for use on an async thread.
    pub fn begin(&self, manifest: Manifest) {
        match self.store.begin(manifest) {
            Ok(place) => {
                self.lock().place.get_or_insert(place);
            }
            Err(error) => self.fail(error),
        }
        self.tell();
    }

    /// Sets room aside for `parts`. Not for use on an async thread.
    pub fn reserve(&self, parts: &BTreeSet<u32>) -> Result<Hold, FetchError> {
        let stock = self.stock().expect("whoever reserves has seen it");
        Ok(self.store.reserve(&stock, parts)?)
    }

    /// A fetch wants `parts`.
    pub fn want(&self, parts: &BTreeSet<u32>) {
        let mut state = self.lock();
        parts.iter().for_each(|part| *state.wanted.entry(*part).or_default() += 1);
        state.gained = Instant::now();
        state.refresh();
        drop(state);
        self.tell();
    }

    /// The opposite of [`Core::want`].
    pub fn unwant(&self, parts: &BTreeSet<u32>) {
        let mut state = self.lock();
        for part in parts {
            let Some(count) = state.wanted.get_mut(part) else { continue };
            *count -= 1;
            if *count == 0 {
                state.wanted.remove(part);
                state.plan.remove(*part);
            }
        }
    }

    /// What `source`, which has `parts`, should be asked for next.
    pub fn take(&self, source: Source, parts: &[u8]) -> Option<Spot> {
        self.lock().plan.take(source, parts, Instant::now())
    }

    /// `source` will not send that one.
    pub fn give_back(&self, source: Source, spot: Spot) {
        self.lock().plan.give_back(source, spot);
        self.tell();
    }

    /// A chunk of `bytes` bytes came and was right.
    pub fn gain(&self, (part, chunk): Spot, bytes: u64, accepted: Accepted) {
        let mut state = self.lock();
        let now = Instant::now();
        state.plan.done((part, chunk));
        if accepted != Accepted::Had {
            state.pace.add(bytes, now);
            state.gained = now;
        }
        if part == HEAD {
            // What more can be asked for may be known now.
            state.refresh();
        }
        drop(state);
        self.tell();
    }

    /// `source` is asked no more.
    pub fn leave(&self, source: Source, fault: Fault) {
        tracing::debug!("weights of {}: {fault}", self.id);
        let mut state = self.lock();
        state.live.remove(&source);
        state.plan.leave(source);
        if state.faults.0.len() < FAULTS_MAX {
            state.faults.0.push(Arc::new(fault));
        }
        drop(state);
        self.tell();
    }

    /// It is over for all who wait. Not for use on an async thread.
    pub fn fail(&self, error: StoreError) {
        let useless = error.is_of_model();
        let mut state = self.lock();
        state.ended.get_or_insert(error.into());
        let place = if useless { state.place.take() } else { None };
        drop(state);
        if let Some(place) = place {
            self.store.discard(place.stock());
        }
        self.tell();
    }

    /// Waits until `look` finds something, or until nothing can come any more.
    pub async fn until<T>(
        &self,
        mut look: impl FnMut(&Core) -> Option<T>,
    ) -> Result<T, FetchError> {
        let mut news = self.news();
        loop {
            news.borrow_and_update();
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let deadline = self.outlook()?;
            // Its sender is in this very core.
            let _ = timeout_at(deadline.into(), news.changed()).await;
        }
    }

    /// Until when something has to come.
    fn outlook(&self) -> Result<Instant, FetchError> {
        let state = self.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let (id, faults, waited) = (self.id, state.faults.clone(), self.waits.stall);
        let missing = state.missing();
        if state.live.is_empty() {
            return Err(FetchError::NoSource { id, missing, faults });
        }
        let deadline = state.gained + waited;
        if Instant::now() >= deadline {
            let sources = state.live.values().cloned().collect();
            return Err(FetchError::Stalled { id, missing, waited, sources, faults });
        }
        Ok(deadline)
    }

    /// Tells everyone who waits how things are.
    pub fn tell(&self) {
        let progress = self.lock().progress(Instant::now());
        self.news.send_modify(|told| {
            *told = match progress.whole {
                // Nobody wants anything any more: what was told last stays true.
                0 => Progress { sources: progress.sources, ..*told },
                _ => progress,
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes up in the plan what is missing of the parts that are wanted.
    fn refresh(&mut self) {
        let Some(place) = &self.place else { return };
        for part in self.wanted.keys() {
            self.plan.add(*part, &place.stock().missing(*part));
        }
    }

    /// Bytes of wanted parts: in all, and here.
    fn bytes(&self) -> (u64, u64) {
        let Some(place) = &self.place else { return (0, 0) };
        let stock = place.stock();
        self.wanted.keys().fold((0, 0), |(whole, here), part| {
            (whole + stock.bytes(*part), here + stock.bytes_here(*part))
        })
    }

    fn missing(&self) -> u64 {
        let (whole, here) = self.bytes();
        whole.saturating_sub(here)
    }

    fn progress(&self, now: Instant) -> Progress {
        let (whole, done) = self.bytes();
        Progress {
            done,
            whole,
            rate: self.pace.rate(now),
            eta_s: self.pace.eta_s(whole.saturating_sub(done), now),
            sources: self.live.len(),
        }
    }
}
