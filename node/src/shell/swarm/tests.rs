//! Real swarms on loopback, in one process. Each test waits for what it is about, and every wait
//! has a deadline that says what did not come.

mod finding;
mod gossip;
mod limits;
mod networks;
mod relays;
mod requests;

use std::future::Future;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::multiaddr::Protocol;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;

/// How long a test waits for anything; long, since many tests share a small machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the tests gossip about.
const NEWS: Topic = Topic("news");

/// A running node, and what it has told its owner so far.
struct Node {
    swarm: Swarm,
    events: mpsc::Receiver<Event>,
}

/// Milliseconds since 1970.
fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

/// A node that listens on loopback; `secret` tells nodes of one test apart.
fn config(secret: u8) -> Config {
    Config {
        listen: vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()],
        topics: vec![NEWS],
        dht: DhtRole::Always,
        relay_use: RelayUse::Never,
        ..Config::new([secret; 32], clock)
    }
}

fn start(config: Config) -> Node {
    let (swarm, events) = Swarm::start(config, &Handle::current()).unwrap();
    Node { swarm, events }
}

/// Waits for `future`; a panic that says `what` if it does not come.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("{what} did not come within {PATIENCE:?}"))
}

impl Node {
    /// Reads events until `pick` takes one.
    async fn until<T>(&mut self, what: &str, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        soon(what, async {
            loop {
                let event = self.events.recv().await.expect("the swarm runs");
                if let Some(picked) = pick(event) {
                    return picked;
                }
            }
        })
        .await
    }

    /// The address it listens on, with its name.
    async fn address(&mut self) -> Multiaddr {
        let pick = |event| match event {
            Event::Listening { address } => Some(address),
            _ => None,
        };
        let address = self.until("an address", pick).await;
        address.with(Protocol::P2p(peer_of(self.swarm.me()).unwrap()))
    }

    async fn connected(&mut self) -> NodeId {
        let pick = |event| match event {
            Event::Connected { peer, .. } => Some(peer),
            _ => None,
        };
        self.until("a peer", pick).await
    }

    async fn disconnected(&mut self) -> NodeId {
        let pick = |event| match event {
            Event::Disconnected { peer } => Some(peer),
            _ => None,
        };
        self.until("a farewell", pick).await
    }

    /// What is in the queue now.
    fn waiting(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// An owner that accepts all gossip, and sends back what it is asked and streamed.
    fn serve(mut self) -> (Swarm, JoinHandle<()>) {
        let swarm = self.swarm.clone();
        let task = tokio::spawn(async move {
            while let Some(event) = self.events.recv().await {
                match event {
                    Event::Gossip { verdict, .. } => verdict.accept(),
                    Event::Request { bytes, reply, .. } => reply.send(bytes).unwrap(),
                    Event::Stream { mut stream, .. } => {
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).await.unwrap();
                        stream.write_all(&bytes).await.unwrap();
                        stream.close().await.unwrap();
                    }
                    _ => {}
                }
            }
        });
        (swarm, task)
    }
}

/// A UDP port of loopback that is free now, for nodes that must know their address beforehand.
fn free_port() -> u16 {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn quic(port: u16) -> Multiaddr {
    format!("/ip4/127.0.0.1/udp/{port}/quic-v1").parse().unwrap()
}

fn without_name(mut address: Multiaddr) -> Multiaddr {
    address.pop();
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_by_the_address_of_any_other_with_or_without_its_name() {
    let mut first = start(config(1));
    let address = first.address().await;
    let second = start(Config { join: vec![without_name(address.clone())], ..config(2) });
    let third = start(config(3));
    assert_eq!(first.connected().await, second.swarm.me());
    let named = soon("a dial", third.swarm.dial(address)).await.unwrap();
    assert_eq!(named, first.swarm.me());

    let peers = third.swarm.peers().await.unwrap();
    let info = peers.iter().find(|peer| peer.id == first.swarm.me()).unwrap();
    assert_eq!((info.direction, info.path), (Direction::Outbound, Path::Direct));
    assert_eq!(info.version, "cadencia/1");
    assert!(info.agent.starts_with("cadencia/"));
    assert!(!info.addresses.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_serves_where_quic_does_not() {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let mut first = start(Config { listen, ..config(1) });
    let second = start(config(2));
    let peer = soon("a dial", second.swarm.dial(first.address().await)).await.unwrap();
    assert_eq!(peer, first.swarm.me());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_fails_says_where_and_why() {
    let node = start(config(1));
    let nobody = format!("/ip4/127.0.0.1/tcp/{}", free_port()).parse().unwrap();
    let error = soon("a failure", node.swarm.dial(nobody)).await.unwrap_err();
    assert!(matches!(error, DialError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("/ip4/127.0.0.1/tcp/"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_its_own_address_does_not_stay_on_it() {
    let port = free_port();
    let mut node = start(Config { listen: vec![quic(port)], join: vec![quic(port)], ..config(1) });
    let address = node.address().await;
    let error = soon("a failure", node.swarm.dial(without_name(address))).await.unwrap_err();
    assert!(matches!(error, DialError::Myself { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_leaves_and_returns_ten_times_is_counted_once() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path().join("peers.json");
    let mut host = start(Config { cache: Some(cache.clone()), ..config(1) });
    let address = host.address().await;
    for _ in 0..10 {
        let guest = start(Config { join: vec![address.clone()], ..config(2) });
        assert_eq!(host.connected().await, guest.swarm.me());
        let peers = host.swarm.peers().await.unwrap();
        assert_eq!(peers.len(), 1, "{peers:?}");
        guest.swarm.shutdown().await.unwrap();
        assert_eq!(host.disconnected().await, guest.swarm.me());
        assert!(host.swarm.peers().await.unwrap().is_empty());
    }
    host.swarm.shutdown().await.unwrap();
    let book = Book::read(&cache, "public", clock()).unwrap();
    assert_eq!(book.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_that_was_shut_down_says_so() {
    let node = start(config(1));
    node.swarm.shutdown().await.unwrap();
    assert_eq!(node.swarm.peers().await, Err(Gone::Ended));
    node.swarm.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_ends_with_its_last_handle() {
    let Node { swarm, mut events } = start(config(1));
    drop(swarm);
    soon("the end", async { while events.recv().await.is_some() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_peer_goes_and_stays_out_until_it_is_allowed() {
    let mut host = start(config(1));
    let mut guest = start(config(2));
    let address = host.address().await;
    soon("a dial", guest.swarm.dial(address.clone())).await.unwrap();
    host.connected().await;
    host.swarm.block(guest.swarm.me()).await.unwrap();
    assert_eq!(host.disconnected().await, guest.swarm.me());
    assert_eq!(guest.disconnected().await, host.swarm.me());
    assert!(soon("a refusal", guest.swarm.dial(address.clone())).await.is_err());
    host.swarm.allow(guest.swarm.me()).await.unwrap();
    soon("a dial", guest.swarm.dial(address)).await.unwrap();
}
