//! Real endpoints on this machine, played against each other.

mod crowd;
mod frames;
mod hello;
mod loss;
mod partings;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::identity::Keypair;
use tokio::sync::mpsc;
use wire::NodeId;

use super::*;

/// Longer than anything here takes, even on a busy machine.
const TEST_WAIT: Duration = Duration::from_secs(120);

/// Runs a test's own part, on a thread of its own as the rest of a node would.
fn run<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(within(test))
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_WAIT, future).await.expect("it ends in time")
}

fn key(n: u8) -> Keypair {
    Keypair::ed25519_from_bytes([n; 32]).unwrap()
}

fn id(n: u8) -> NodeId {
    node_of_key(&key(n)).unwrap()
}

fn config() -> Config {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        silence_max: Duration::from_secs(2),
        ..Config::new(address, Bytes::from_static(b"good day"))
    }
}

fn yes() -> Judge {
    Arc::new(|_| Ok(()))
}

type Started = (Lanes, mpsc::Receiver<Incoming>);

fn start(n: u8) -> Started {
    start_with(n, config(), yes())
}

fn start_with(n: u8, config: Config, judge: Judge) -> Started {
    Lanes::start(&key(n), config, judge).unwrap()
}

/// A node that sends every frame back.
fn start_echo(n: u8, config: Config) -> Lanes {
    let (lanes, incoming) = start_with(n, config, yes());
    echo(&lanes, incoming);
    lanes
}

fn echo(lanes: &Lanes, mut incoming: mpsc::Receiver<Incoming>) {
    lanes.spawn(async move {
        while let Some(Incoming { mut pipe, .. }) = incoming.recv().await {
            tokio::spawn(async move {
                while let Ok(Some(frame)) = pipe.recv().await {
                    if pipe.send(&frame.header, [frame.body]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// A pipe from `here` to `there`, and the same pipe as `there` has it.
async fn connected(here: &Lanes, there: &mut Started) -> (Link, Pipe, Pipe) {
    let link = here.link(there.0.id(), &[there.0.address()]).await.unwrap();
    let mut pipe = link.open().await.unwrap();
    pipe.send(b"first", []).await.unwrap();
    let mut other = within(there.1.recv()).await.unwrap().pipe;
    assert_eq!(other.recv().await.unwrap().unwrap().header, "first");
    (link, pipe, other)
}

/// Bytes that differ everywhere, so that nothing can be mixed up unseen.
fn pattern(seed: usize, len: usize) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(131)) as u8).collect()
}

/// This process's memory, in bytes; 0 where the system does not say.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Whether to run long.
fn soak() -> bool {
    std::env::var("CADENCIA_SOAK").is_ok_and(|value| value == "1")
}
