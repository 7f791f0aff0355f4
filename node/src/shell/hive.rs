//! Being part of a hive: computing for others, and having others compute.
//!
//! [`HiveNode::start`] binds both planes and starts what serves them. [`HiveNode::want`] has a model
//! computed over the hive; its sequences go over the road that is returned.

pub mod desk;
pub mod hub;
mod outlet;
pub mod planning;
mod post;
pub mod road;
mod seeds;
mod stages;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use tokio::sync::mpsc;
use wire::{Hello, Key, Manifest, Millis, NetworkId, NodeId};

use self::desk::{Lender, Means};
use self::hub::{Hub, MEMBERS, OFFERS, Parts};
use self::post::{Dialler, Gate, Post};
use self::road::{HiveRoad, Report};
use self::seeds::address;
pub use self::stages::StageStats;
use super::admission::{self, Admission};
use super::engine::road::Inbox;
use super::health::{self, Meter};
use super::identity;
use super::lanes::{self, Lanes};
use super::machine;
use super::settings::Settings;
use super::speaker::unix_now_ms;
use super::swarm::{self, DhtRole, Reach, Swarm, reach};
use super::weights;
use crate::house::fitness::{Rates, Resource};
use crate::house::hive::Want;
use crate::house::lane::Replication;
use crate::house::place::{Me, Wish};

/// Where a node listens that joins a hive and was not told where.
const LISTEN_DEFAULT: &str = "0.0.0.0:4610";
/// What placement is told of a usual request.
const PROMPT_USUAL: u32 = 256;
const ANSWER_USUAL: u32 = 256;

/// This node's part in a hive.
#[derive(Clone)]
pub struct HiveNode {
    /// Who it is.
    pub me: NodeId,
    /// What is known of the hive.
    pub hub: Hub,
    /// What it does for others.
    pub stats: Arc<StageStats>,
    /// How this node is.
    rates: Rates,
    dialler: Dialler,
    lender: Arc<Lender>,
    reports: mpsc::UnboundedSender<Report>,
    page_secret: [u8; 32],
    settings: Arc<Settings>,
}

impl std::fmt::Debug for HiveNode {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "HiveNode {}", self.me)
    }
}

impl HiveNode {
    /// Starts it, on the present runtime.
    ///
    /// # Errors
    /// An address cannot be had, or what is remembered is broken.
    pub async fn start(settings: &Settings) -> Result<Self> {
        let key = identity::load_or_create(&settings.state_dir)?;
        let join = seeds::expanded(&settings.join)?;
        let admission = admit(settings, &join, &key).await?;
        if let NetworkId::Private(_) = admission.network() {
            tracing::info!(hive = %admission.network(), "of a private hive");
        }
        let listen = address(settings.listen.as_deref().unwrap_or(LISTEN_DEFAULT), "--listen")?;
        let lanes_at = match (settings.lanes.as_deref(), listen.port()) {
            (Some(text), _) => address(text, "--lanes")?,
            (None, 0) => SocketAddr::new(listen.ip(), 0),
            (None, port) => SocketAddr::new(listen.ip(), port.checked_add(1).unwrap_or(0)),
        };
        let (swarm, events) = start_swarm(settings, &join, &key, listen, &admission)?;
        let (lanes, mut incoming) = start_lanes(&key, lanes_at, &admission)?;
        let stats = Arc::<StageStats>::default();
        let dialler = Dialler::new(lanes.clone(), swarm.clone());
        let own = dialler.clone();
        let (orders, take) = std::sync::mpsc::channel();
        let back = orders.clone();
        let connect = move |session, hop| post::connect(&own, back.clone(), session, hop);
        stages::start(Box::new(connect), stats.clone(), take)?;
        let cap = weights::Limits::new(settings.disk_mb.saturating_mul(1_000_000));
        let store = weights::Store::open(&settings.state_dir.join("weights"), cap)?;
        let lender = Lender::new(means(settings), orders.clone(), store, lanes.clone());
        let gate = Gate { admission: admission.clone(), swarm: swarm.clone() };
        let post = Post::new(orders, lender.clone(), gate);
        let taking = post.clone();
        lanes.spawn(async move {
            while let Some(lanes::Incoming { peer, pipe }) = incoming.recv().await {
                tokio::spawn(taking.clone().serve(peer, pipe));
            }
        });
        let sensors = std::path::Path::new("/sys");
        let setting = health::Setting {
            state: &settings.state_dir,
            sensors,
            threads: settings.threads,
            kernels: settings.kernels.into(),
        };
        let meter = Arc::new(Meter::start(setting, Millis(unix_now_ms())));
        let (rates, watched) = (meter.rates(), meter.clone());
        let (reports, told) = mpsc::unbounded_channel();
        let replication = match settings.replicate {
            0 | 1 => Replication::Spare,
            _ => Replication::All,
        };
        let parts = Parts {
            key: key.clone(),
            dialler: dialler.clone(),
            post,
            lender: lender.clone(),
            stats: stats.clone(),
            health: Box::new(move || meter.health(Vec::new(), Millis(unix_now_ms()))),
            observed: Box::new(move |mb_s| watched.observe(Resource::Read, mb_s)),
            admission,
            replication,
            record: settings.record.clone(),
            lanes_at: settings
                .lanes_at
                .as_deref()
                .map(|at| address(at, "--lanes-at"))
                .transpose()?,
        };
        let hub = Hub::start(parts, events, told);
        let mut page_secret = [0; 32];
        getrandom::fill(&mut page_secret).map_err(identity::IdentityError::Dice)?;
        let me = key.id();
        Ok(Self {
            me,
            hub,
            stats,
            rates,
            dialler,
            lender,
            reports,
            page_secret,
            settings: Arc::new(settings.clone()),
        })
    }

    /// A model's files are here: parts of it can be lent at once.
    ///
    /// # Errors
    /// It is no model, or cannot be read.
    pub async fn know(&self, path: std::path::PathBuf) -> Result<Arc<Manifest>> {
        let lender = self.lender.clone();
        Ok(tokio::task::spawn_blocking(move || lender.know(&path)).await??)
    }

    /// What is asked of the hive for a model whose file is here.
    pub fn wish(&self, manifest: &Manifest, settings: &Settings) -> Want {
        let positions = settings.ctx.unwrap_or(super::settings::CONTEXT_DEFAULT);
        let positions = (positions as u32).min(manifest.context);
        let wish = Wish {
            positions,
            sequences: 1,
            stages_min: settings.stages.max(settings.cuts.stages_min()),
            cuts: settings.cuts,
            layers_max: settings.stage_layers,
            replicas: settings.replicate,
            spares: settings.spares,
            prompt: PROMPT_USUAL,
            answer: ANSWER_USUAL,
        };
        let own = settings.own_mb.map(|mb| mb.saturating_mul(1_000_000));
        let memory_bytes = own.or_else(machine::memory_available).unwrap_or(u64::MAX / 4);
        let me = Me { node: self.me, memory_bytes, rates: self.rates, whole: true, front: None };
        Want { manifest: manifest.clone(), wish, me }
    }

    /// Has a model computed over the hive; news of its sequences go into `inbox`.
    pub async fn want(&self, want: Want, inbox: Arc<Inbox>) -> Arc<HiveRoad> {
        let why = "no route was found yet".to_owned();
        let road = HiveRoad::new(self.dialler.clone(), inbox, self.reports.clone(), why);
        self.hub.want(want, road.clone()).await;
        road
    }

    /// What keys of pages are made with.
    pub fn page_secret(&self) -> [u8; 32] {
        self.page_secret
    }

    /// Tells others that it leaves.
    pub async fn stop(self) {
        if let Err(error) = self.dialler.swarm.shutdown().await {
            tracing::warn!(%error, "the swarm did not end in order");
        }
        let lanes = self.dialler.lanes.clone();
        drop(self);
        let _ = tokio::task::spawn_blocking(move || lanes.stop()).await;
    }
}

/// What this node is to its hive: the founder of a private one, one who was invited, or of the public
/// network.
async fn admit(settings: &Settings, join: &[String], key: &Key) -> Result<Admission> {
    let state = &settings.state_dir;
    let mut admission = Admission::open(state, key, Millis(unix_now_ms()))?;
    if settings.private {
        admission.found()?;
    }
    for invite in seeds::invites(join)? {
        admission = admission::join(state, key, &invite).await?;
    }
    Ok(admission)
}

fn start_swarm(
    settings: &Settings,
    join: &[String],
    key: &Key,
    listen: SocketAddr,
    admission: &Admission,
) -> Result<(Swarm, mpsc::Receiver<swarm::Event>)> {
    let now = Millis(unix_now_ms());
    let listens = seeds::both(listen).to_vec();
    // The owner of a seed who names an address of the whole internet says that it is reached there:
    // the first to come need it as a relay before anybody could have tried.
    let is_told = |at: &Multiaddr| settings.seed && reach(at) == Some(Reach::Global);
    let config = swarm::Config {
        external: listens.iter().filter(|at| is_told(at)).cloned().collect(),
        listen: listens,
        join: seeds::addresses(join, admission.network(), now)?,
        network: match admission.network() {
            NetworkId::Public => swarm::Network::Public,
            NetworkId::Private(hive) => {
                swarm::Network::Private { hive: hive.0, members: admission.known_members(now) }
            }
        },
        topics: vec![OFFERS, MEMBERS],
        dht: if settings.seed { DhtRole::Always } else { DhtRole::WhenReachable },
        relay_server: settings.seed,
        mdns: settings.mdns && !listen.ip().is_loopback(),
        cache: Some(settings.state_dir.join("peers.json")),
        ..swarm::Config::new(key.secret(), unix_now_ms)
    };
    let runtime = tokio::runtime::Handle::current();
    Swarm::start(config, &runtime).context("cannot become part of a hive")
}

fn start_lanes(
    key: &Key,
    at: SocketAddr,
    admission: &Admission,
) -> Result<(Lanes, mpsc::Receiver<lanes::Incoming>)> {
    let keys = Keypair::ed25519_from_bytes(key.secret()).context("the node's key is none")?;
    let hello = admission.hello(Millis(unix_now_ms()));
    let config = lanes::Config::new(at, wire::encode(&hello).into());
    let admission = admission.clone();
    let judge = move |hello: &lanes::Hello| {
        let said: Hello = wire::decode(&hello.body).map_err(|error| error.to_string())?;
        let judged = admission.judge(&said, hello.peer, Millis(unix_now_ms()));
        judged.map(|_| ()).map_err(|refusal| refusal.to_string())
    };
    Lanes::start(&keys, config, Arc::new(judge)).with_context(|| format!("cannot listen on {at}"))
}

/// What is lent: what the user says, or half of what is free.
fn means(settings: &Settings) -> Means {
    // A seed lends nothing unless its owner says so.
    let free = if settings.seed { 0 } else { machine::memory_available().unwrap_or(0) / 2 };
    let bytes = settings.lend_mb.map_or(free, |mb| mb.saturating_mul(1_000_000));
    Means { bytes, threads: settings.threads, kernels: settings.kernels.into() }
}
