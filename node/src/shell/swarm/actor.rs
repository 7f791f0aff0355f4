//! The task that owns the libp2p swarm: everything that happens to it happens here, in turn.
//!
//! **Invariant:** the task never waits for its owner. What the owner is too slow for is dropped
//! and counted.
//!
//! **Invariant:** each table has a bound named beside it, or is bounded by the connections, which
//! [`Limits`](super::config::Limits) bounds.

mod dht;
mod exchange;
mod peers;
mod reach;
mod redial;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use libp2p::gossipsub::TopicHash;
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use libp2p_stream::IncomingStreams;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use wire::NodeId;

use self::dht::Dht;
use self::exchange::Asks;
use self::peers::Peer;
use self::reach::Reachable;
pub use self::redial::Redial;
use super::behaviour::{Behaviour, BehaviourEvent};
use super::config::{Config, Topic};
use super::event::{Event, Outbox, Outgoing, PeerInfo, Ruling, Tally, count};
use super::names::Names;
use super::refusal::{AskError, DialError, ListError, LookupError, PublishError};

/// Commands that wait for the task.
pub const COMMANDS_MAX: usize = 256;
/// Events that wait for the owner. Messages and requests have bounds of their own below it, so
/// they cannot crowd out the others.
pub const EVENTS_MAX: usize = 1024;
/// Messages that wait for the owner's verdict: four MiB of the longest.
const RULINGS_MAX: usize = 256;
/// Requests that wait for the owner's answer: sixteen MiB of the longest.
const OUTGOING_MAX: usize = 256;
/// How often things are looked after that no event announces.
const TICK: Duration = Duration::from_millis(500);
/// How long connections may take to close when the node leaves.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Who waits for a connection.
pub type Waiter = oneshot::Sender<Result<NodeId, DialError>>;

/// What a handle asks of the task.
pub enum Command {
    /// Connect to whoever is there.
    Dial { address: Multiaddr, waiter: Waiter },
    /// Connect to a peer.
    Reach { peer: PeerId, waiter: Waiter },
    /// Gossip.
    Publish { topic: Topic, bytes: Bytes, reply: oneshot::Sender<Result<(), PublishError>> },
    /// Announce that this node has something.
    Provide { key: [u8; 32], reply: oneshot::Sender<Result<(), LookupError>> },
    /// Announce it no longer.
    StopProviding { key: [u8; 32] },
    /// Who has it?
    Providers { key: [u8; 32], reply: oneshot::Sender<Result<Vec<NodeId>, LookupError>> },
    /// Send a request.
    Ask { peer: PeerId, node: NodeId, bytes: Bytes, reply: AskReply },
    /// Who is connected?
    Peers { reply: oneshot::Sender<Vec<PeerInfo>> },
    /// Where can this node be found?
    Addresses { reply: oneshot::Sender<Vec<Multiaddr>> },
    /// Let a node in.
    Allow { peer: PeerId, reply: oneshot::Sender<Result<(), ListError>> },
    /// Keep a node out.
    Block { peer: PeerId, reply: oneshot::Sender<Result<(), ListError>> },
    /// Close everything and end.
    Shutdown { reply: oneshot::Sender<()> },
}

/// Where a reply goes.
pub type AskReply = oneshot::Sender<Result<Bytes, AskError>>;

/// A bounded queue with both of its ends.
struct Line<T> {
    sender: mpsc::Sender<T>,
    receiver: mpsc::Receiver<T>,
}

impl<T> Line<T> {
    fn new(max: usize) -> Self {
        let (sender, receiver) = mpsc::channel(max);
        Self { sender, receiver }
    }
}

/// The task's state.
pub struct Actor {
    swarm: libp2p::Swarm<Behaviour>,
    names: Names,
    topics: Vec<(TopicHash, Topic)>,
    clock: fn() -> u64,
    commands: mpsc::Receiver<Command>,
    rulings: Line<Ruling>,
    outgoing: Line<Outgoing>,
    lanes: IncomingStreams,
    outbox: Outbox,
    /// Who is connected; bounded by the connections.
    peers: BTreeMap<PeerId, Peer>,
    /// What dials under way are for; bounded by [`peers::DIALS_MAX`] and [`redial::REDIALS_MAX`].
    dials: BTreeMap<ConnectionId, peers::Purpose>,
    /// Who waits until a peer has said what it is; bounded by [`peers::DIALS_MAX`].
    waiting: Vec<(PeerId, Waiter)>,
    asks: Asks,
    dht: Dht,
    reachable: Reachable,
    redial: Redial,
}

/// What the task is connected to.
pub struct Ends {
    /// From the handles.
    pub commands: mpsc::Receiver<Command>,
    /// To the owner.
    pub events: mpsc::Sender<Event>,
    /// Counts for everybody.
    pub tally: Arc<Tally>,
    /// Streams that others open.
    pub lanes: IncomingStreams,
}

impl Actor {
    /// A task that is ready to run.
    pub fn new(
        swarm: libp2p::Swarm<Behaviour>,
        config: Config,
        names: Names,
        redial: Redial,
        ends: Ends,
    ) -> Self {
        let topics = config.topics.iter().map(|topic| (names.topic(*topic).hash(), *topic));
        Self {
            topics: topics.collect(),
            clock: config.clock,
            commands: ends.commands,
            rulings: Line::new(RULINGS_MAX),
            outgoing: Line::new(OUTGOING_MAX),
            lanes: ends.lanes,
            outbox: Outbox { sender: ends.events, tally: ends.tally },
            peers: BTreeMap::new(),
            dials: BTreeMap::new(),
            waiting: Vec::new(),
            asks: Asks::new(config.ask_wait_max),
            dht: Dht::default(),
            reachable: Reachable::new(&config),
            redial,
            swarm,
            names,
        }
    }

    /// Runs until a handle says to end, or until there is no handle.
    pub async fn run(mut self) {
        self.judge_reachability();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let farewell = loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some((peer, stream)) = self.lanes.next() => self.on_stream(peer, stream),
                Some(ruling) = self.rulings.receiver.recv() => self.on_ruling(ruling),
                Some(outgoing) = self.outgoing.receiver.recv() => self.on_outgoing(outgoing),
                command = self.commands.recv() => match command {
                    None => break None,
                    Some(Command::Shutdown { reply }) => break Some(reply),
                    Some(command) => self.on_command(command),
                },
                _ = tick.tick() => self.on_tick(),
            }
        };
        self.leave().await;
        if let Some(reply) = farewell {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(());
        }
    }

    fn on_command(&mut self, command: Command) {
        // In each arm: whoever asked may have stopped waiting for the reply.
        match command {
            Command::Dial { address, waiter } => self.dial(address, waiter),
            Command::Reach { peer, waiter } => self.reach(peer, waiter),
            Command::Publish { topic, bytes, reply } => {
                let _ = reply.send(self.publish(topic, bytes));
            }
            Command::Provide { key, reply } => self.provide(key, reply),
            Command::StopProviding { key } => self.stop_providing(key),
            Command::Providers { key, reply } => self.look_up(key, reply),
            Command::Ask { peer, node, bytes, reply } => self.ask(peer, node, bytes, reply),
            Command::Peers { reply } => {
                let _ = reply.send(self.peer_infos());
            }
            Command::Addresses { reply } => {
                let _ = reply.send(self.addresses());
            }
            Command::Allow { peer, reply } => {
                let _ = reply.send(self.allow(peer));
            }
            Command::Block { peer, reply } => {
                let _ = reply.send(self.block(peer));
            }
            Command::Shutdown { .. } => unreachable!("the loop ends on it"),
        }
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_established(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, .. } => {
                self.on_closed(peer_id, connection_id);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                self.on_dial_failed(connection_id, peer_id, &error);
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                tracing::debug!(%error, "a connection from outside came to nothing");
                if matches!(error, libp2p::swarm::ListenError::Denied { .. }) {
                    count(&self.outbox.tally.connections_refused);
                }
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                self.outbox.tell(Event::Listening { address });
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
                self.on_listener_closed(listener_id, &reason);
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!(%error, "a listener stumbled and goes on");
            }
            SwarmEvent::ExternalAddrConfirmed { .. } | SwarmEvent::ExternalAddrExpired { .. } => {
                self.judge_reachability();
            }
            // The rest announces beginnings whose ends are handled above.
            _ => {}
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Identify(event) => self.on_identify(event),
            BehaviourEvent::Ping(event) => self.on_ping(&event),
            BehaviourEvent::Dht(event) => self.on_dht(event),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Ask(event) => self.on_ask(event),
            BehaviourEvent::Probe(event) => self.on_probe(&event),
            BehaviourEvent::Mdns(event) => self.on_mdns(event),
            BehaviourEvent::RelayClient(event) => tracing::debug!(?event, "relay client"),
            BehaviourEvent::RelayServer(event) => tracing::debug!(?event, "relay server"),
            BehaviourEvent::HolePunch(event) => self.on_punched(&event),
            // Neither the lists nor the lanes nor the probed say anything that is not said above.
            _ => {}
        }
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        self.send_away(now);
        self.redial(now);
        self.walk(now);
        self.seek_relays(now);
        self.tend_dht(now);
        self.save(now);
    }

    /// Closes every connection, so that others need not find out by themselves.
    async fn leave(&mut self) {
        self.meet_again();
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers {
            // It may have gone in this moment.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let closing = async {
            while !self.peers.is_empty() {
                let event = self.swarm.select_next_some().await;
                self.on_swarm(event);
            }
        };
        // Peers that do not let go are left to notice.
        let _ = tokio::time::timeout(LEAVE_WAIT_MAX, closing).await;
        self.save_last().await;
    }
}
