//! Brings parts of models here, from several nodes at once.
//!
//! Each source has a pipe with some questions on their way. What comes is proven, written and
//! recorded at once, so that whoever stops may go on later where he was. Fetches of one model share
//! their work, and it stops when the last of them is dropped.
//!
//! **Invariant:** a source that sends something wrong, or nothing for too long, is named and asked no
//! more. Every wait has an end.

mod fault;
mod job;
mod pace;
mod plan;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use compute::engine::{LoadError, LoadOptions, Model};
use compute::gguf::GgufError;
use compute::parts::FilePart;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use wire::lane::Hop;
use wire::{Manifest, ManifestId};

pub use self::fault::{DialError, Fault, Faults, FetchError};
pub use self::pace::Progress;

use self::job::Job;
use super::stock::{HEAD, Hold};
use super::store::Store;
use super::survey::part_number;
use crate::shell::lanes::{Lanes, Pipe};

/// How often a part is loaded anew when its files were written to at the wrong moment.
const LOADS_MAX: usize = 5;

/// Opens a pipe to a source.
pub type Dial =
    Arc<dyn Fn(Hop) -> BoxFuture<'static, Result<Pipe, DialError>> + Send + Sync + 'static>;

/// Dials over `lanes`.
pub fn over(lanes: Lanes) -> Dial {
    Arc::new(move |hop| {
        let lanes = lanes.clone();
        Box::pin(async move {
            let peer = hop.node();
            let addresses: Vec<SocketAddr> =
                hop.lanes.iter().filter_map(|address| address.socket()).collect();
            if addresses.is_empty() && !lanes.links().iter().any(|link| link.peer() == peer) {
                return Err(DialError::NoAddress { peer });
            }
            Ok(lanes.link(peer, &addresses).await?.open().await?)
        })
    })
}

/// How long sources are waited for.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// For a pipe. Lanes try each of a node's addresses for some seconds.
    pub dial: Duration,
    /// For the next answer, which is a chunk at most: at 2 Mbit/s it takes four seconds.
    pub answer: Duration,
    /// Between questions about which parts there are, while nothing else is to be asked.
    pub recheck: Duration,
    /// Before one that has no place is asked again.
    pub again: Duration,
    /// For anything at all to come from anybody.
    pub stall: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(15),
            answer: Duration::from_secs(15),
            recheck: Duration::from_secs(2),
            again: Duration::from_secs(1),
            stall: Duration::from_secs(60),
        }
    }
}

/// Fetches. Clones are the same.
#[derive(Clone)]
pub struct Fetcher {
    store: Arc<Store>,
    dial: Dial,
    waits: Waits,
    jobs: Arc<Mutex<BTreeMap<ManifestId, Weak<Job>>>>,
}

impl Fetcher {
    /// Into `store`, from sources that are reached by `dial`.
    pub fn new(store: Arc<Store>, dial: Dial, waits: Waits) -> Self {
        Self { store, dial, waits, jobs: Arc::default() }
    }

    /// Where parts go.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Starts to bring `parts` of a model here, and its head. Belongs on an async thread; tasks that
    /// ask the sources run where this was called.
    pub fn fetch(
        &self,
        id: ManifestId,
        parts: impl IntoIterator<Item = FilePart>,
        sources: Vec<Hop>,
    ) -> Fetch {
        let job = self.job(id);
        sources.into_iter().for_each(|hop| job.add(hop));
        let parts = parts.into_iter().map(part_number).chain([HEAD]).collect();
        Fetch { job, parts }
    }

    /// The work on a model: what is going on, or new.
    fn job(&self, id: ManifestId) -> Arc<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, job| job.strong_count() > 0);
        if let Some(job) = jobs.get(&id).and_then(Weak::upgrade).filter(|job| !job.is_over()) {
            return job;
        }
        let (store, dial) = (Arc::clone(&self.store), Arc::clone(&self.dial));
        let job = Arc::new(Job::new(id, store, dial, self.waits));
        jobs.insert(id, Arc::downgrade(&job));
        job
    }
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetcher into {:?}", self.store)
    }
}

/// Parts on their way. Dropping it gives them up, but what has come stays.
pub struct Fetch {
    job: Arc<Job>,
    parts: BTreeSet<u32>,
}

impl Fetch {
    /// Asks one more source.
    pub fn add(&self, hop: Hop) {
        self.job.add(hop);
    }

    /// How far all fetches of this model are together.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.job.core().news()
    }

    /// Which sources are asked no more, and why.
    pub fn dropped(&self) -> Faults {
        self.job.core().faults()
    }

    /// Waits until the parts are here. May be abandoned and called again.
    ///
    /// # Errors
    /// See [`FetchError`]. What has come stays.
    pub async fn done(&self) -> Result<Ready, FetchError> {
        let core = self.job.core();
        let own = Arc::clone(core);
        aside(move || own.look()).await;
        core.until(|core| core.stock()).await?;
        let (own, parts) = (Arc::clone(core), self.parts.clone());
        let hold = aside(move || own.reserve(&parts)).await?;
        let _wanted = Wanted::new(&self.job, &self.parts);
        core.until(|_| hold.stock().has(&self.parts).then_some(())).await?;
        let stock = Arc::clone(hold.stock());
        aside(move || stock.sync()).await?;
        core.tell();
        Ok(Ready { path: hold.stock().path(), hold })
    }
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetch of {} parts of {}", self.parts.len(), self.job.core().id())
    }
}

/// Does what takes the disk long, where it holds up nobody.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Parts count as wanted while it lives.
struct Wanted<'a> {
    job: &'a Job,
    parts: &'a BTreeSet<u32>,
}

impl<'a> Wanted<'a> {
    fn new(job: &'a Job, parts: &'a BTreeSet<u32>) -> Self {
        job.core().want(parts);
        Self { job, parts }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.job.core().unwant(self.parts);
    }
}

/// Parts that are here, proven, and stay while this lives.
#[derive(Debug)]
pub struct Ready {
    path: PathBuf,
    hold: Hold,
}

impl Ready {
    /// The model's first file, with holes where other parts would be. While other parts come, its
    /// bytes change there, and its time of change may for a moment.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The model.
    pub fn manifest(&self) -> &Manifest {
        self.hold.stock().manifest()
    }

    /// Loads what `options` say, which must be no more than was fetched.
    ///
    /// # Errors
    /// As [`Model::load`]'s.
    pub fn load(
        &self,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Arc<Model>, LoadError> {
        let mut tries = 1;
        loop {
            match Model::load(&self.path, options, progress) {
                // Another part came just then; see `settle` of the store's files.
                Err(LoadError::Gguf(GgufError::Changed { .. })) if tries < LOADS_MAX => tries += 1,
                done => return done,
            }
        }
    }
}
