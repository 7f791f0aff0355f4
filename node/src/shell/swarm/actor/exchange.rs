//! What passes through: gossip, requests and replies, streams. The bytes mean nothing here.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use libp2p::gossipsub::{self, MessageAcceptance};
use libp2p::request_response::{self, OutboundFailure, OutboundRequestId, ResponseChannel};
use libp2p::{PeerId, Stream};
use wire::NodeId;

use super::super::codec::{Answer, REQUEST_BYTES_MAX};
use super::super::config::{GOSSIP_BYTES_MAX, Topic};
use super::super::event::{Event, Outgoing, Reply, Ruling, Verdict, count};
use super::super::identity::node_of;
use super::super::refusal::{AskError, PublishError};
use super::{Actor, AskReply};

/// Requests of this node that wait for their replies.
const ASKS_MAX: usize = 1024;

/// This node's requests under way.
pub struct Asks {
    wait_max: Duration,
    waiting: BTreeMap<OutboundRequestId, (NodeId, AskReply)>,
}

impl Asks {
    pub fn new(wait_max: Duration) -> Self {
        Self { wait_max, waiting: BTreeMap::new() }
    }
}

impl Actor {
    pub(super) fn publish(&mut self, topic: Topic, bytes: Bytes) -> Result<(), PublishError> {
        if bytes.len() > GOSSIP_BYTES_MAX {
            return Err(PublishError::TooLong { given: bytes.len(), max: GOSSIP_BYTES_MAX });
        }
        let known = self.topics.iter().find(|(_, known)| *known == topic);
        let (hash, _) = known.ok_or(PublishError::Unknown(topic))?;
        let sent = self.swarm.behaviour_mut().gossip.publish(hash.clone(), bytes);
        match sent {
            // What was said before need not be said again.
            Ok(_) | Err(gossipsub::PublishError::Duplicate) => Ok(()),
            Err(gossipsub::PublishError::NoPeersSubscribedToTopic) => {
                Err(PublishError::NobodyListens(topic))
            }
            Err(error) => Err(PublishError::Refused { reason: error.to_string() }),
        }
    }

    pub(super) fn on_gossip(&mut self, event: gossipsub::Event) {
        // The other events tell who listens to what, which gossipsub itself keeps.
        let gossipsub::Event::Message { propagation_source: from, message_id: id, message } = event
        else {
            return;
        };
        let known = self.topics.iter().find(|(hash, _)| *hash == message.topic);
        let author = message.source.as_ref().and_then(node_of);
        let (Some((_, topic)), Some(author)) = (known, author) else {
            let acceptance = MessageAcceptance::Reject;
            return self.on_ruling(Ruling { id, from, acceptance });
        };
        let Ok(place) = self.rulings.sender.clone().try_reserve_owned() else {
            count(&self.outbox.tally.gossip_dropped);
            let acceptance = MessageAcceptance::Ignore;
            return self.on_ruling(Ruling { id, from, acceptance });
        };
        self.outbox.tell(Event::Gossip {
            topic: *topic,
            author,
            bytes: message.data.into(),
            verdict: Verdict::new(place, id, from),
        });
    }

    pub(super) fn on_ruling(&mut self, ruling: Ruling) {
        let Ruling { id, from, acceptance } = ruling;
        let gossip = &mut self.swarm.behaviour_mut().gossip;
        if !gossip.report_message_validation_result(&id, &from, acceptance) {
            tracing::debug!(%id, "the verdict came after the message was forgotten");
        }
    }

    pub(super) fn ask(&mut self, peer: PeerId, node: NodeId, bytes: Bytes, reply: AskReply) {
        let refusal = match bytes.len() {
            given if given > REQUEST_BYTES_MAX => {
                Some(AskError::TooLong { given, max: REQUEST_BYTES_MAX })
            }
            _ if self.asks.waiting.len() >= ASKS_MAX => Some(AskError::TooMany { max: ASKS_MAX }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let _ = reply.send(Err(refusal));
            return;
        }
        let places = self.redial.book.addresses(&peer).to_vec();
        let ask = &mut self.swarm.behaviour_mut().ask;
        let id = ask.send_request_with_addresses(&peer, bytes, places);
        self.asks.waiting.insert(id, (node, reply));
    }

    pub(super) fn on_ask(&mut self, event: request_response::Event<Bytes, Answer>) {
        use request_response::{Event, Message};
        match event {
            Event::Message { peer, message: Message::Request { request, channel, .. }, .. } => {
                self.on_request(peer, request, channel);
            }
            Event::Message { message: Message::Response { request_id, response }, .. } => {
                self.on_answer(request_id, response);
            }
            Event::OutboundFailure { request_id, error, .. } => {
                self.on_no_answer(request_id, error);
            }
            Event::InboundFailure { peer, error, .. } => {
                tracing::debug!(%peer, %error, "a request was not answered");
            }
            // The answer is on its way, as wished.
            Event::ResponseSent { .. } => {}
        }
    }

    fn on_request(&mut self, peer: PeerId, bytes: Bytes, channel: ResponseChannel<Answer>) {
        // A peer whose key cannot be named is not connected; dropping the channel tells it.
        let Some(from) = node_of(&peer) else { return };
        let place = self.outgoing.sender.clone().try_reserve_owned();
        match place {
            Ok(place) if self.outbox.sender.capacity() > 0 => {
                let reply = Reply::new(place, channel);
                self.outbox.tell(Event::Request { from, bytes, reply });
            }
            Ok(_) | Err(_) => {
                count(&self.outbox.tally.requests_refused);
                // The other side may have gone.
                let _ = self.swarm.behaviour_mut().ask.send_response(channel, Answer::Busy);
            }
        }
    }

    pub(super) fn on_outgoing(&mut self, outgoing: Outgoing) {
        let Outgoing { channel, bytes } = outgoing;
        let ask = &mut self.swarm.behaviour_mut().ask;
        if ask.send_response(channel, Answer::Bytes(bytes)).is_err() {
            tracing::debug!("an answer came after the other node had stopped waiting");
        }
    }

    fn on_answer(&mut self, id: OutboundRequestId, answer: Answer) {
        let Some((peer, reply)) = self.asks.waiting.remove(&id) else { return };
        // Whoever asked may have stopped waiting.
        let _ = reply.send(match answer {
            Answer::Bytes(bytes) => Ok(bytes),
            Answer::Busy => Err(AskError::Busy { peer }),
        });
    }

    fn on_no_answer(&mut self, id: OutboundRequestId, error: OutboundFailure) {
        let Some((peer, reply)) = self.asks.waiting.remove(&id) else { return };
        let error = match error {
            OutboundFailure::DialFailure => AskError::Unreachable { peer },
            OutboundFailure::Timeout => AskError::Silent { peer, waited: self.asks.wait_max },
            error => AskError::Unanswered { peer, reason: error.to_string() },
        };
        // Whoever asked may have stopped waiting.
        let _ = reply.send(Err(error));
    }

    pub(super) fn on_stream(&mut self, peer: PeerId, stream: Stream) {
        // A peer whose key cannot be named is not connected; dropping the stream closes it.
        if let Some(from) = node_of(&peer) {
            self.outbox.tell(Event::Stream { from, stream });
        }
    }
}
