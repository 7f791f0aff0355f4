//! Nodes that give each other weights, in one process.

mod fetching;
mod keeping;
mod lying;
mod models;
mod serving;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use compute::engine::{Ends, KernelChoice, LoadOptions, Model, Part};
use compute::parts::{FilePart, FileParts};
use futures_util::future::BoxFuture;
use futures_util::io::{AsyncRead, AsyncWrite};
use tokio::io::{AsyncRead as _, AsyncWrite as _, DuplexStream, ReadBuf};
use tokio::sync::{Notify, watch};
use wire::lane::{ChunkAt, Hop, Line, Piece, Say, Want};
use wire::{ManifestId, NodeId};

use super::*;
use crate::shell::lanes::{Pipe, PipeLimits};

/// Longer than anything here takes, even on a busy machine.
const TEST_WAIT: Duration = Duration::from_secs(120);
/// The models that tests fetch: with RoPE's factors, and without.
const LLAMA: &str = "llama3-ropefreqs-Q4_K_M";
const QWEN: &str = "qwen3-Q8_0";

fn run<F: Future>(test: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(TEST_WAIT, test).await.expect("it ends in time") })
}

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf");
    folder.join(format!("{name}.gguf"))
}

fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

fn hop(number: u8) -> Hop {
    Hop { node: node(number).0.to_vec(), lanes: Vec::new(), leg: 0 }
}

fn limits() -> Limits {
    Limits { keep_free: 0, ..Limits::new(1 << 30) }
}

fn waits() -> Waits {
    Waits { recheck: Duration::from_millis(20), ..Waits::default() }
}

/// A store and its folder, which is gone after the test.
struct Home {
    room: tempfile::TempDir,
    store: Arc<Store>,
}

impl Home {
    fn new(limits: Limits) -> Self {
        let room = tempfile::tempdir().unwrap();
        let store = Store::open(room.path(), limits).unwrap();
        Self { room, store }
    }

    /// With a model of the user's.
    fn with(path: &Path) -> (Self, ManifestId) {
        let home = Self::new(limits());
        let id = home.store.add_library(path).unwrap().id();
        (home, id)
    }

    /// The folder of a model that was fetched.
    fn folder(&self, id: ManifestId) -> PathBuf {
        self.room.path().join(id.to_string())
    }

    /// What is on disk now, as a new store would find it if this one were killed.
    fn killed(&self) -> Self {
        let room = tempfile::tempdir().unwrap();
        copy(self.room.path(), room.path());
        let store = Store::open(room.path(), limits()).unwrap();
        Self { room, store }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A stream as libp2p has them, within this process.
struct Foreign(DuplexStream);

impl AsyncRead for Foreign {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        let read = Pin::new(&mut self.0).poll_read(cx, &mut into);
        read.map_ok(|()| into.filled().len())
    }
}

impl AsyncWrite for Foreign {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Two ends of a stream, the second of which `peer` opened.
fn pair(opener: NodeId, other: NodeId) -> (Pipe, Pipe) {
    let (one, two) = tokio::io::duplex(256 << 10);
    let opened = Pipe::opened_over(other, Foreign(one), PipeLimits::default());
    (opened, Pipe::accepted_over(opener, Foreign(two), PipeLimits::default()))
}

/// How a node answers one question.
enum Deed {
    Say(Say, Bytes),
    /// Nothing, for ever.
    Silent,
    /// It goes away.
    Vanish,
}

/// What a node does with its honest answer to a question. The number counts its chunks.
type Manners = Box<dyn Fn(usize, &Want, Say, Bytes) -> Deed + Send + Sync>;

/// Nodes that answer.
#[derive(Clone, Default)]
struct Net {
    nodes: Arc<Mutex<BTreeMap<NodeId, Arc<Answering>>>>,
}

struct Answering {
    server: Server,
    manners: Manners,
    /// The chunks that it was asked for.
    asked: Mutex<Vec<ChunkAt>>,
    /// It sends a chunk only with one of these.
    permits: Option<Permits>,
    /// How many pipes it has.
    open: watch::Sender<usize>,
}

/// Chunks that may be sent, and chunks that wait for it.
struct Permits {
    given: tokio::sync::Semaphore,
    waiting: Mutex<usize>,
    changed: Arc<Notify>,
}

impl Net {
    fn add(&self, number: u8, store: &Arc<Store>) {
        self.add_with(number, store, Box::new(|_, _, say, body| Deed::Say(say, body)));
    }

    fn add_with(&self, number: u8, store: &Arc<Store>, manners: Manners) {
        self.add_paced(number, store, manners, None);
    }

    fn add_paced(
        &self,
        number: u8,
        store: &Arc<Store>,
        manners: Manners,
        permits: Option<Permits>,
    ) {
        let (server, asked) = (Server::new(Arc::clone(store)), Mutex::default());
        let open = watch::Sender::new(0);
        let answering = Answering { server, manners, asked, permits, open };
        self.nodes.lock().unwrap().insert(node(number), Arc::new(answering));
    }

    fn node(&self, number: u8) -> Arc<Answering> {
        Arc::clone(&self.nodes.lock().unwrap()[&node(number)])
    }

    /// The chunks that a node was asked for.
    fn asked(&self, number: u8) -> Vec<ChunkAt> {
        self.node(number).asked.lock().unwrap().clone()
    }

    fn dial(&self) -> Dial {
        let net = self.clone();
        Arc::new(move |hop| {
            let net = net.clone();
            Box::pin(async move {
                let peer = hop.node();
                let found = net.nodes.lock().unwrap().get(&peer).cloned();
                let Some(answering) = found else { return Err(DialError::NoAddress { peer }) };
                let (here, there) = pair(node(0), peer);
                tokio::spawn(answering.serve(there));
                Ok(here)
            }) as BoxFuture<'static, _>
        })
    }

    fn fetcher(&self, store: &Arc<Store>) -> Fetcher {
        Fetcher::new(Arc::clone(store), self.dial(), waits())
    }
}

impl Answering {
    async fn serve(self: Arc<Self>, pipe: Pipe) {
        self.open.send_modify(|open| *open += 1);
        let (mut sender, mut receiver) = pipe.split();
        let wants: Arc<Mutex<VecDeque<Want>>> = Arc::default();
        let (come, over) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (own, queue, bell, end) =
            (Arc::clone(&self), Arc::clone(&wants), Arc::clone(&come), Arc::clone(&over));
        // Questions are taken at once, so that it is known how many there are.
        let reading = tokio::spawn(async move {
            while let Ok(Some(frame)) = receiver.recv().await {
                let line = wire::decode::<Line>(&frame.header).unwrap();
                let Some(Say::Want(want)) = line.say else { panic!("not a question: {line:?}") };
                if let Some(Piece::Chunk(at)) = want.piece {
                    own.asked.lock().unwrap().push(at);
                    if let Some(permits) = &own.permits {
                        *permits.waiting.lock().unwrap() += 1;
                        permits.changed.notify_one();
                    }
                }
                queue.lock().unwrap().push_back(want);
                bell.notify_one();
            }
            end.notify_one();
        });
        let answering = async {
            let mut chunks = 0;
            loop {
                let next = wants.lock().unwrap().pop_front();
                let Some(want) = next else {
                    come.notified().await;
                    continue;
                };
                if matches!(want.piece, Some(Piece::Chunk(_))) {
                    if let Some(permits) = &self.permits {
                        permits.given.acquire().await.unwrap().forget();
                    }
                    chunks += 1;
                }
                let (say, body) = self.server.answer(want.clone()).await;
                match (self.manners)(chunks, &want, say, body) {
                    Deed::Say(say, body) => {
                        let header = wire::encode(&Line::from(say));
                        if sender.send(&header, [body]).await.is_err() {
                            return;
                        }
                    }
                    Deed::Silent => std::future::pending().await,
                    Deed::Vanish => return,
                }
            }
        };
        tokio::select! {
            () = answering => reading.abort(),
            () = over.notified() => {}
        }
        self.open.send_modify(|open| *open -= 1);
    }
}

fn load(path: &Path, part: Option<Part>) -> Arc<Model> {
    Model::load(path, &options(part), &mut |_, _| {}).unwrap()
}

fn options(part: Option<Part>) -> LoadOptions {
    LoadOptions { threads: 1, kernels: KernelChoice::Auto, part }
}

/// All parts of a model.
fn all_of(path: &Path) -> Vec<FilePart> {
    FileParts::read(path).unwrap().all().collect()
}

/// How many chunks these parts have.
fn chunks_of(path: &Path, parts: &[FilePart]) -> usize {
    let layout = FileParts::read(path).unwrap();
    parts.iter().map(|part| layout.chunks(*part).count()).sum()
}

/// How many bytes these parts have.
fn bytes_of(path: &Path, parts: &[FilePart]) -> u64 {
    let layout = FileParts::read(path).unwrap();
    parts.iter().map(|part| layout.bytes(*part)).sum()
}
