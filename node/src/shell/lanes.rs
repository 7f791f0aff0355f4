//! The data plane: tensors travel from node to node in pipes, over one QUIC endpoint a node.
//!
//! [`Lanes::start`] binds one UDP port and starts one thread. [`Lanes::link`] dials a peer, or finds
//! the link there is; [`Link::open`] opens a [`Pipe`] over it; pipes that others open come out of the
//! receiver that `start` returned. Work on pipes belongs on the lanes' own thread, by
//! [`Lanes::spawn`], so that a frame wakes one thread and not two:
//!
//! ```text
//! let (lanes, mut incoming) = Lanes::start(&key, Config::new(address, hello), judge)?;
//! lanes.spawn(async move {
//!     while let Some(Incoming { peer, mut pipe }) = incoming.recv().await { ... }
//! });
//! ```
//!
//! **Invariant:** nothing here knows what a frame means. **Invariant:** whoever is at the other end
//! of a pipe has proved its ed25519 name and was admitted by the owner's judge. **Invariant:** what
//! strangers can make this node hold is bounded before they are known (`door`), and what peers can
//! make it hold is bounded for each (`transport`).

mod dial;
mod door;
mod error;
mod hello;
mod identity;
mod link;
mod pipe;
mod table;
mod tls;
mod transport;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use libp2p::identity::Keypair;
use quinn::{Connection, Endpoint, ServerConfig};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use wire::NodeId;

pub use self::door::HANDSHAKES_MAX;
pub use self::error::{Goodbye, LinkError, Lost, Objection, PipeError, StartError};
pub use self::hello::{HELLO_WAIT, Hello, Judge};
pub use self::identity::node_of_key;
pub use self::link::Link;
pub use self::pipe::{Frame, Pipe, PipeLimits, Receiver, Sender};
pub use self::tls::TlsError;
pub use self::transport::SILENCE_MAX;

use self::door::Door;
use self::link::{Begun, LinkBounds};
use self::table::Table;
use self::tls::Identity;
use self::transport::{LaneRuntime, Transports};

/// The version of what is said over lanes. Nodes with different ones refuse each other by name.
pub const LANE_VERSION: u32 = 1;
/// How many links a node has: each may hold 16 MiB if its peer does its worst, 2 GiB in all.
pub const LINKS_MAX: usize = 128;
/// How many pipes a peer may have opened over one link: one a session and stage.
pub const PIPES_PER_LINK_MAX: u32 = 64;
/// How many pipes of peers may wait for their owner to look at them.
const INCOMING_MAX: usize = 64;
/// How long one address may take to answer, with the handshake.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(4);
/// How long a link without pipes is kept, at least.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long peers are told that this node leaves, before it does.
const LEAVING_WAIT: Duration = Duration::from_millis(300);

/// How lanes are set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen, and from where to dial.
    pub address: SocketAddr,
    /// What the owner says to each peer; at most 16 KiB.
    pub hello: Bytes,
    /// The program and its version, as refusals name it.
    pub program: String,
    /// The bounds of frames.
    pub limits: PipeLimits,
    /// See [`LINKS_MAX`].
    pub links_max: usize,
    /// See [`PIPES_PER_LINK_MAX`].
    pub pipes_per_link_max: u32,
    /// See [`SILENCE_MAX`].
    pub silence_max: Duration,
    /// How long a link without pipes is kept, at least.
    pub idle_max: Duration,
    /// Tests play another version.
    lane_version: u32,
}

impl Config {
    /// The usual bounds.
    pub fn new(address: SocketAddr, hello: Bytes) -> Self {
        Self {
            address,
            hello,
            program: concat!("cadencia ", env!("CARGO_PKG_VERSION")).into(),
            limits: PipeLimits::default(),
            links_max: LINKS_MAX,
            pipes_per_link_max: PIPES_PER_LINK_MAX,
            silence_max: SILENCE_MAX,
            idle_max: IDLE_MAX,
            lane_version: LANE_VERSION,
        }
    }
}

/// A pipe that a peer opened.
#[derive(Debug)]
pub struct Incoming {
    /// Who.
    pub peer: NodeId,
    /// Its first frame has to come soon.
    pub pipe: Pipe,
}

/// The data plane of a node. Clones are the same; when the last is gone, it stops.
#[derive(Clone)]
pub struct Lanes {
    core: Arc<Core>,
    thread: Arc<Thread>,
}

impl Lanes {
    /// Binds the port and starts the thread. Peers' pipes come out of the receiver; while its owner
    /// does not take them, further ones are refused.
    pub fn start(
        key: &Keypair,
        config: Config,
        judge: Judge,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), StartError> {
        let identity = Identity::new(key, config.lane_version)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (sends, receives) = mpsc::channel(INCOMING_MAX);
        let core = Arc::new(Core::new(identity, config, judge, runtime.handle(), sends)?);
        runtime.spawn(door::keep(Arc::clone(&core)));
        let thread = Arc::new(Thread::start(runtime, core.endpoint.clone())?);
        Ok((Self { core, thread }, receives))
    }

    /// This node's name.
    pub fn id(&self) -> NodeId {
        self.core.own_id()
    }

    /// Where this node listens.
    pub fn address(&self) -> SocketAddr {
        self.core.address
    }

    /// Runs `work` on the lanes' thread. It must not compute for long: everything else waits.
    pub fn spawn<F>(&self, work: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.core.handle.spawn(work)
    }

    /// The link to `peer`: the one there is, or a new one through the first of `addresses` that
    /// leads to it. Callers who want the same peer at the same time share one dial.
    pub async fn link(&self, peer: NodeId, addresses: &[SocketAddr]) -> Result<Link, LinkError> {
        if let Some(link) = self.core.table().find(peer) {
            return Ok(link);
        }
        // A task of its own, so that a caller who gives up does not stop a dial others wait for.
        let dial = dial::link(Arc::clone(&self.core), peer, addresses.to_vec());
        self.spawn(dial).await.unwrap_or(Err(LinkError::Stopped { peer }))
    }

    /// The links there are.
    pub fn links(&self) -> Vec<Link> {
        self.core.table().all()
    }

    /// Tells all peers that this node leaves, and waits until the thread has ended. Not for use on
    /// the lanes' own thread.
    pub fn stop(self) {
        self.thread.stop(End::Polite);
        self.thread.join();
    }

    /// Ends as a killed process does: without a word.
    #[cfg(test)]
    fn vanish(self) {
        self.thread.stop(End::Vanish);
        self.thread.join();
    }
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({} at {})", self.id(), self.address())
    }
}

/// What the parts of the data plane share.
struct Core {
    identity: Identity,
    own: hello::Own,
    endpoint: Endpoint,
    address: SocketAddr,
    transports: Transports,
    servers: [Arc<ServerConfig>; 2],
    bounds: LinkBounds,
    links_max: usize,
    table: Mutex<Table>,
    door: Door,
    handle: Handle,
    incoming: mpsc::Sender<Incoming>,
}

impl Core {
    fn new(
        identity: Identity,
        config: Config,
        judge: Judge,
        handle: &Handle,
        incoming: mpsc::Sender<Incoming>,
    ) -> Result<Self, StartError> {
        let transports = Transports::new(config.silence_max);
        let tls = Arc::new(identity.server()?);
        let server = |address: IpAddr| {
            let mut server = ServerConfig::with_crypto(Arc::clone(&tls) as _);
            server.transport_config(transports.to(address)).max_incoming(HANDSHAKES_MAX);
            server
        };
        let (here, away) = (server([127, 0, 0, 1].into()), server([0, 0, 0, 0].into()));
        let failed = |cause| StartError::Bind { address: config.address, cause };
        let socket = transport::socket(config.address).map_err(failed)?;
        let runtime = Arc::new(LaneRuntime(handle.clone()));
        let endpoint = Endpoint::new(transport::endpoint(), Some(away.clone()), socket, runtime);
        let endpoint = endpoint.map_err(failed)?;
        let address = endpoint.local_addr().map_err(failed)?;
        Ok(Self {
            own: hello::Own {
                lane_version: config.lane_version,
                program: config.program,
                body: config.hello,
                judge,
                silence_max: config.silence_max,
                pipes_max: config.pipes_per_link_max,
            },
            bounds: LinkBounds {
                silence_max: config.silence_max,
                idle_max: config.idle_max,
                limits: config.limits,
                pipes_max: config.pipes_per_link_max,
            },
            table: Mutex::new(Table::new(identity.node, config.links_max)),
            links_max: config.links_max,
            servers: [here, away].map(Arc::new),
            identity,
            endpoint,
            address,
            transports,
            door: Door::new(),
            handle: handle.clone(),
            incoming,
        })
    }

    fn own_id(&self) -> NodeId {
        self.identity.node
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No step of the table leaves it half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How to receive somebody from `address`.
    fn server(&self, address: IpAddr) -> Arc<ServerConfig> {
        let [here, away] = &self.servers;
        Arc::clone(if address.is_loopback() { here } else { away })
    }

    /// Makes a link of an admitted connection and looks after it until it ends.
    fn take_in(
        self: &Arc<Self>,
        connection: Connection,
        hello: Hello,
        begun: Begun,
    ) -> Result<Link, LinkError> {
        let peer = hello.peer;
        let link = Link::new(connection, hello, begun, self.bounds);
        if !self.table().insert(&link) {
            link.close(Goodbye::Full);
            return Err(LinkError::Full { peer, links_max: self.links_max });
        }
        let (core, served) = (Arc::clone(self), link.clone());
        self.handle.spawn(async move {
            let lost = served.serve(core.incoming.clone(), core.bounds.idle_max).await;
            tracing::debug!("{lost}");
            core.table().remove(&served);
        });
        Ok(link)
    }
}

/// How the thread ends.
enum End {
    Polite,
    /// As if the process had been killed.
    #[cfg(test)]
    Vanish,
}

/// The thread on which everything here runs.
struct Thread {
    end: Mutex<Option<oneshot::Sender<End>>>,
    join: Mutex<Option<JoinHandle<()>>>,
}

impl Thread {
    fn start(runtime: Runtime, endpoint: Endpoint) -> Result<Self, StartError> {
        let (end, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                match ended.await {
                    Ok(End::Polite) | Err(_) => {
                        endpoint.close(Goodbye::Leaving.code(), b"");
                        // Whoever does not hear it in time notices the silence.
                        tokio::time::timeout(LEAVING_WAIT, endpoint.wait_idle()).await.ok();
                    }
                    #[cfg(test)]
                    Ok(End::Vanish) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("lanes".into()).spawn(run);
        let join = Mutex::new(Some(thread.map_err(StartError::Thread)?));
        Ok(Self { end: Mutex::new(Some(end)), join })
    }

    fn stop(&self, how: End) {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread that has ended already needs no word.
        end.map(|end| end.send(how).ok());
    }

    fn join(&self) {
        let join = self.join.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It has nothing to return; a panic in it was reported when it happened.
        join.map(|join| join.join().ok());
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop(End::Polite);
    }
}

#[cfg(test)]
mod tests;
