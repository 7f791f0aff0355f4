//! The control plane: a libp2p swarm in a task of its own that passes bytes and knows nothing of
//! what they mean.
//!
//! [`Swarm::start`] gives a handle, which may be cloned, and a queue of [`Event`]s. The handle asks
//! (connect, gossip, look up, request, open a stream); the queue tells what others do. The owner
//! must read the queue: what it is too slow for is dropped and counted in [`Swarm::counts`].
//!
//! **Invariant:** two nodes of different networks or wire versions share no protocol that carries
//! a record, and part as soon as one has said what it speaks.
//!
//! **Invariant:** in a private network only listed nodes get as far as the first byte of any
//! protocol; strangers are refused when they have shown their key.
//!
//! **Invariant:** every wait has a deadline, and every error of one names who was silent.

mod actor;
mod address;
mod behaviour;
mod book;
mod codec;
mod config;
mod event;
mod identity;
mod names;
mod refusal;
mod transport;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, StreamProtocol};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use wire::NodeId;

pub use self::address::{Reach, reach};
pub use self::config::{
    Config, DhtRole, GOSSIP_BYTES_MAX, Limits, Network, RelayUse, Topic, WIRE_VERSION,
};
pub use self::event::{Counts, Direction, Event, Path, PeerInfo, Reachability, Reply, Verdict};
pub use self::identity::{node_of, peer_of};
pub use self::refusal::{
    AskError, DialError, Gone, ListError, LookupError, Mismatch, PublishError, ReplyTooLong,
    StartError, StreamError,
};

use self::actor::{Actor, COMMANDS_MAX, Command, EVENTS_MAX, Ends, Redial};
use self::book::Book;
use self::config::{JOIN_MAX, TOPIC_BYTES_MAX, TOPICS_MAX};
use self::event::Tally;
use self::names::Names;

/// How long the task may take to answer what needs no other node.
const TASK_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a dial may take until the other node has said what it is: ten seconds for the
/// connection and five for the words.
const DIAL_WAIT_MAX: Duration = Duration::from_secs(15);
/// How long a look-up may take: what Kademlia is given, and a moment more.
const LOOKUP_WAIT_MAX: Duration = behaviour::LOOKUP_WAIT_MAX.saturating_add(TASK_WAIT_MAX);
/// How long a connected node may take to accept a stream.
const STREAM_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a node may take to leave.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(15);

/// A handle to a running swarm. The swarm ends when [`Swarm::shutdown`] is called or the last
/// handle is dropped.
#[derive(Clone)]
pub struct Swarm {
    commands: mpsc::Sender<Command>,
    streams: libp2p_stream::Control,
    lane: StreamProtocol,
    tally: Arc<Tally>,
    me: NodeId,
    ask_wait_max: Duration,
}

impl Swarm {
    /// Starts a swarm as a task of `runtime`.
    pub fn start(
        config: Config,
        runtime: &Handle,
    ) -> Result<(Self, mpsc::Receiver<Event>), StartError> {
        check(&config)?;
        let keys = Keypair::ed25519_from_bytes(config.secret).map_err(StartError::Secret)?;
        let me = keys.public().to_peer_id();
        let names = Names::new(config.version, &config.network);
        // Sockets and watchers belong to the runtime they are made in.
        let _inside = runtime.enter();
        let (ways, relay_client) = transport::ways(&keys)?;
        let behaviour = behaviour::assemble(&config, &names, &keys, relay_client)?;
        let mut streams = behaviour.lanes.new_control();
        let lanes = streams.accept(names.lane.clone()).expect("nobody else accepts lanes");
        let mut swarm = libp2p::Swarm::new(ways, behaviour, me, transport::treatment());
        for address in &config.listen {
            let failed = |source| StartError::Listen { address: address.clone(), source };
            swarm.listen_on(address.clone()).map_err(failed)?;
        }
        config.external.iter().for_each(|address| swarm.add_external_address(address.clone()));

        let (commands, orders) = mpsc::channel(COMMANDS_MAX);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let tally = Arc::new(Tally::default());
        let handle = Self {
            commands,
            streams,
            lane: names.lane.clone(),
            tally: tally.clone(),
            me: node_of(&me).expect("an ed25519 key is inside the name of its peer"),
            ask_wait_max: config.ask_wait_max,
        };
        let book = open_book(&config, &names);
        let redial = Redial::new(&config.join, book, config.cache.clone());
        let ends = Ends { commands: orders, events: sender, tally, lanes };
        runtime.spawn(Actor::new(swarm, config, names, redial, ends).run());
        Ok((handle, events))
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Connects to whoever is at `address`, with or without `/p2p/ID` at its end, and waits until
    /// it has said that it is of the same version and network.
    pub async fn dial(&self, address: Multiaddr) -> Result<NodeId, DialError> {
        let target = address.to_string();
        self.wait_for_dial(target, |waiter| Command::Dial { address, waiter }).await
    }

    /// Gossips; others get it if their owners accept it.
    pub async fn publish(&self, topic: Topic, bytes: Bytes) -> Result<(), PublishError> {
        self.order(TASK_WAIT_MAX, |reply| Command::Publish { topic, bytes, reply }).await?
    }

    /// Announces that this node has what `key` stands for, until told otherwise.
    pub async fn provide(&self, key: [u8; 32]) -> Result<(), LookupError> {
        self.order(LOOKUP_WAIT_MAX, |reply| Command::Provide { key, reply }).await?
    }

    /// Announces it no longer. Others forget it within an hour.
    pub async fn stop_providing(&self, key: [u8; 32]) -> Result<(), Gone> {
        let sent = self.commands.send_timeout(Command::StopProviding { key }, TASK_WAIT_MAX).await;
        sent.map_err(|error| gone(&error, TASK_WAIT_MAX))
    }

    /// Who has what `key` stands for. Those found are being dialled already.
    pub async fn providers(&self, key: [u8; 32]) -> Result<Vec<NodeId>, LookupError> {
        self.order(LOOKUP_WAIT_MAX, |reply| Command::Providers { key, reply }).await?
    }

    /// Sends a request and waits for its reply, dialling `node` if need be.
    pub async fn ask(&self, node: NodeId, bytes: Bytes) -> Result<Bytes, AskError> {
        let peer = peer_of(node).ok_or(AskError::NoKey(node))?;
        let command = |reply| Command::Ask { peer, node, bytes, reply };
        match self.order(self.ask_wait_max, command).await {
            Ok(reply) => reply,
            // The task is well; it is the other node that says nothing.
            Err(Gone::Silent(waited)) => Err(AskError::Silent { peer: node, waited }),
            Err(gone) => Err(gone.into()),
        }
    }

    /// Opens a stream to `node`, dialling it if need be. The other side's owner gets it as an
    /// event; if it has no room, the stream ends at once.
    pub async fn open_stream(&self, node: NodeId) -> Result<libp2p::Stream, StreamError> {
        let peer = peer_of(node).ok_or(DialError::NoKey(node))?;
        let target = node.to_string();
        self.wait_for_dial(target, |waiter| Command::Reach { peer, waiter }).await?;
        let mut streams = self.streams.clone();
        let opening = streams.open_stream(peer, self.lane.clone());
        match tokio::time::timeout(STREAM_WAIT_MAX, opening).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(StreamError::Refused { peer: node, source }),
            Err(_) => Err(StreamError::Silent { peer: node, waited: STREAM_WAIT_MAX }),
        }
    }

    /// Who is connected, of the same version and network.
    pub async fn peers(&self) -> Result<Vec<PeerInfo>, Gone> {
        self.order(TASK_WAIT_MAX, |reply| Command::Peers { reply }).await
    }

    /// Where this node listens and can be dialled, circuits through relays among them.
    pub async fn addresses(&self) -> Result<Vec<Multiaddr>, Gone> {
        self.order(TASK_WAIT_MAX, |reply| Command::Addresses { reply }).await
    }

    /// Lets a node in: onto a private network's list, and off the list of the blocked.
    pub async fn allow(&self, node: NodeId) -> Result<(), ListError> {
        let peer = peer_of(node).ok_or(ListError::NoKey(node))?;
        self.order(TASK_WAIT_MAX, |reply| Command::Allow { peer, reply }).await?
    }

    /// Disconnects a node and keeps it out.
    pub async fn block(&self, node: NodeId) -> Result<(), ListError> {
        let peer = peer_of(node).ok_or(ListError::NoKey(node))?;
        self.order(TASK_WAIT_MAX, |reply| Command::Block { peer, reply }).await?
    }

    /// What was dropped or refused for lack of room since the start.
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Says goodbye to all peers, writes the peer cache and ends. A swarm that has ended already
    /// has nothing left to do.
    pub async fn shutdown(&self) -> Result<(), Gone> {
        match self.order(SHUTDOWN_WAIT_MAX, |reply| Command::Shutdown { reply }).await {
            Ok(()) | Err(Gone::Ended) => Ok(()),
            Err(silent) => Err(silent),
        }
    }

    async fn wait_for_dial(
        &self,
        target: String,
        command: impl FnOnce(actor::Waiter) -> Command,
    ) -> Result<NodeId, DialError> {
        match self.order(DIAL_WAIT_MAX, command).await {
            Ok(dialled) => dialled,
            Err(Gone::Silent(waited)) => Err(DialError::Silent { target, waited }),
            Err(gone) => Err(gone.into()),
        }
    }

    async fn order<T>(
        &self,
        wait_max: Duration,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.commands.send(command(reply)).await.map_err(|_| Gone::Ended)?;
            answer.await.map_err(|_| Gone::Ended)
        };
        tokio::time::timeout(wait_max, exchange).await.unwrap_or(Err(Gone::Silent(wait_max)))
    }
}

fn gone<T>(error: &mpsc::error::SendTimeoutError<T>, waited: Duration) -> Gone {
    match error {
        mpsc::error::SendTimeoutError::Timeout(_) => Gone::Silent(waited),
        mpsc::error::SendTimeoutError::Closed(_) => Gone::Ended,
    }
}

/// The peer cache, or an empty book where there is none to use.
fn open_book(config: &Config, names: &Names) -> Book {
    let Some(file) = &config.cache else { return Book::empty(&names.label) };
    Book::read(file, &names.label, (config.clock)()).unwrap_or_else(|error| {
        let error = anyhow::Error::from(error);
        tracing::warn!("{error:#}");
        Book::empty(&names.label)
    })
}

fn check(config: &Config) -> Result<(), StartError> {
    let name_max = config.topics.iter().map(|topic| topic.0.len()).max().unwrap_or(0);
    let bounds = [
        ("topics", config.topics.len(), TOPICS_MAX),
        ("bytes of a topic's name", name_max, TOPIC_BYTES_MAX),
        ("addresses to join by", config.join.len(), JOIN_MAX),
        ("addresses to listen on", config.listen.len(), JOIN_MAX),
        ("external addresses", config.external.len(), JOIN_MAX),
    ];
    match bounds.into_iter().find(|(_, given, max)| given > max) {
        Some((what, given, max)) => Err(StartError::TooMany { what, given, max }),
        None => Ok(()),
    }
}
