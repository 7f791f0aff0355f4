//! What a swarm tells its owner, and the handles by which the owner answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use libp2p::gossipsub::{MessageAcceptance, MessageId};
use libp2p::request_response::ResponseChannel;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::mpsc;
use wire::NodeId;

use super::codec::{Answer, REPLY_BYTES_MAX};
use super::config::Topic;
use super::refusal::{Mismatch, ReplyTooLong};

/// Something that happened. A request may come before the `Connected` of its sender, since a peer
/// may know this node a moment before this node knows it.
#[derive(Debug)]
pub enum Event {
    /// A node of the same version and network is connected; said once until it disconnects.
    Connected {
        /// Who.
        peer: NodeId,
        /// Who opened the connection.
        direction: Direction,
        /// How it goes.
        path: Path,
    },
    /// The last connection to a node is gone.
    Disconnected {
        /// Who.
        peer: NodeId,
    },
    /// A message. It goes on to others only when its verdict says so.
    Gossip {
        /// On what.
        topic: Topic,
        /// Who wrote and signed it.
        author: NodeId,
        /// What.
        bytes: Bytes,
        /// To be answered within seconds.
        verdict: Verdict,
    },
    /// Another node asks.
    Request {
        /// Who.
        from: NodeId,
        /// What.
        bytes: Bytes,
        /// Where the answer goes.
        reply: Reply,
    },
    /// Another node opened a stream.
    Stream {
        /// Who.
        from: NodeId,
        /// The stream.
        stream: Stream,
    },
    /// A node was sent away since the two cannot talk; the words for people are in its `Display`.
    Mismatch(Mismatch),
    /// This node listens on one more address.
    Listening {
        /// Where.
        address: Multiaddr,
    },
    /// Who can dial this node has changed.
    Reachability(Reachability),
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The other node.
    Inbound,
    /// This one.
    Outbound,
}

/// How a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Straight.
    Direct,
    /// Through a third node, which carries sealed bytes.
    Relayed,
}

/// Who can dial a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Nobody has tried.
    Unknown,
    /// Others have tried and failed.
    Unreachable,
    /// Nodes of the same machine or local network.
    Local,
    /// Everybody.
    Public,
}

/// A connected node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Who.
    pub id: NodeId,
    /// Where it says it listens, and where it was dialled.
    pub addresses: Vec<Multiaddr>,
    /// Who opened the best connection.
    pub direction: Direction,
    /// How the best connection goes.
    pub path: Path,
    /// How long a ping takes there and back, in microseconds, once measured.
    pub rtt_us: Option<u64>,
    /// What program it says it is.
    pub agent: String,
    /// What version it speaks.
    pub version: String,
}

/// What was dropped or sent away since the start, for lack of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gossiped messages that the owner was too slow for.
    pub gossip_dropped: u64,
    /// Requests answered with "busy".
    pub requests_refused: u64,
    /// Streams closed since the owner was too slow.
    pub streams_dropped: u64,
    /// Other events that the owner did not get; what they tell is in `peers` and `addresses`.
    pub events_dropped: u64,
    /// Connections refused by a limit or a list.
    pub connections_refused: u64,
}

/// What is dropped, counted by the task and read by anybody.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub gossip_dropped: AtomicU64,
    pub requests_refused: AtomicU64,
    pub streams_dropped: AtomicU64,
    pub events_dropped: AtomicU64,
    pub connections_refused: AtomicU64,
}

impl Tally {
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            gossip_dropped: read(&self.gossip_dropped),
            requests_refused: read(&self.requests_refused),
            streams_dropped: read(&self.streams_dropped),
            events_dropped: read(&self.events_dropped),
            connections_refused: read(&self.connections_refused),
        }
    }
}

/// Adds one.
pub(super) fn count(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// The way to the owner: a bounded queue that never makes the swarm wait.
pub(super) struct Outbox {
    pub sender: mpsc::Sender<Event>,
    pub tally: Arc<Tally>,
}

impl Outbox {
    /// Tells the owner; if its queue is full, or it is gone, the event is dropped and counted.
    pub fn tell(&self, event: Event) {
        if let Err(error) = self.sender.try_send(event) {
            let tally = &self.tally;
            // What is dropped answers for itself: a verdict ignores, a reply leaves unanswered.
            match error.into_inner() {
                Event::Gossip { .. } => count(&tally.gossip_dropped),
                Event::Request { .. } => count(&tally.requests_refused),
                Event::Stream { .. } => count(&tally.streams_dropped),
                _ => count(&tally.events_dropped),
            }
        }
    }
}

/// The owner's judgement of one gossiped message. Dropped unanswered, it says "ignore": the
/// message goes no further, and nobody is blamed.
#[derive(Debug)]
pub struct Verdict {
    place: Option<mpsc::OwnedPermit<Ruling>>,
    id: MessageId,
    from: PeerId,
}

/// What was ruled about a message.
#[derive(Debug)]
pub(super) struct Ruling {
    pub id: MessageId,
    pub from: PeerId,
    pub acceptance: MessageAcceptance,
}

impl Verdict {
    /// A verdict has its place in the queue from the beginning, so giving it never waits.
    pub(super) fn new(place: mpsc::OwnedPermit<Ruling>, id: MessageId, from: PeerId) -> Self {
        Self { place: Some(place), id, from }
    }

    /// The message is good; it goes on to others.
    pub fn accept(mut self) {
        self.rule(MessageAcceptance::Accept);
    }

    /// The message is bad, and so is whoever passed it on.
    pub fn reject(mut self) {
        self.rule(MessageAcceptance::Reject);
    }

    /// The message is of no use, which is nobody's fault.
    pub fn ignore(mut self) {
        self.rule(MessageAcceptance::Ignore);
    }

    fn rule(&mut self, acceptance: MessageAcceptance) {
        if let Some(place) = self.place.take() {
            place.send(Ruling { id: self.id.clone(), from: self.from, acceptance });
        }
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.rule(MessageAcceptance::Ignore);
    }
}

/// Where the answer to one request goes. Dropped, it leaves the request unanswered, which the
/// other node learns at once.
#[derive(Debug)]
pub struct Reply {
    place: mpsc::OwnedPermit<Outgoing>,
    channel: ResponseChannel<Answer>,
}

/// An answer on its way to the task.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub channel: ResponseChannel<Answer>,
    pub bytes: Bytes,
}

impl Reply {
    pub(super) fn new(
        place: mpsc::OwnedPermit<Outgoing>,
        channel: ResponseChannel<Answer>,
    ) -> Self {
        Self { place, channel }
    }

    /// Whether somebody still waits for the answer.
    pub fn is_awaited(&self) -> bool {
        self.channel.is_open()
    }

    /// Answers.
    pub fn send(self, bytes: Bytes) -> Result<(), ReplyTooLong> {
        if bytes.len() > REPLY_BYTES_MAX {
            return Err(ReplyTooLong { given: bytes.len(), max: REPLY_BYTES_MAX });
        }
        self.place.send(Outgoing { channel: self.channel, bytes });
        Ok(())
    }
}
