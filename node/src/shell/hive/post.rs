//! Pipes that others open: what each is for is said in its first frame.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use wire::lane::{At, Hop, Line, Prepare, Reason, Refused, Say};
use wire::{Malformed, Millis, NodeId};

use super::outlet::{Frames, Outlet};
use super::stages::{Order, Progress, Session};
use crate::shell::admission::{self, Admission, Standing};
use crate::shell::lanes::{Frame, Lanes, Pipe, PipeLimits, Receiver};
use crate::shell::speaker::unix_now_ms;
use crate::shell::swarm::Swarm;

/// Memory for rows of others that wait to be computed, KiB: 256 MiB.
const WAITING_KIB: usize = 256 << 10;

/// How long it is remembered that no lane leads to a node: a try takes seconds.
const LANE_REST: Duration = Duration::from_secs(60);
/// Of how many nodes that is remembered.
const NO_LANE_MAX: usize = 1024;

/// Whoever answers pipes that are not about sequences.
pub trait Desk: Send + Sync {
    /// A part of a model will be wanted: `pipe` hears how far it is.
    fn prepare(self: Arc<Self>, peer: NodeId, prepare: Prepare, pipe: Pipe);
    /// Pieces of models are wanted, the first of them this one.
    fn want(self: Arc<Self>, peer: NodeId, want: wire::lane::Want, pipe: Pipe);
}

/// Takes pipes in.
#[derive(Clone)]
pub struct Post {
    orders: mpsc::Sender<Order>,
    desk: Arc<dyn Desk>,
    gate: Gate,
    room: Arc<Semaphore>,
    /// How far the sequences here are: asked about while the thread computes.
    known: Arc<Mutex<BTreeMap<Session, Arc<Progress>>>>,
}

/// Who may come in.
#[derive(Clone)]
pub struct Gate {
    /// Who belongs here.
    pub admission: Admission,
    /// Where those who are let in are allowed to connect.
    pub swarm: Swarm,
}

impl Post {
    /// Sequences' frames go to `orders`, all else to `desk`.
    pub fn new(orders: mpsc::Sender<Order>, desk: Arc<dyn Desk>, gate: Gate) -> Self {
        let room = Arc::new(Semaphore::new(WAITING_KIB));
        Self { orders, desk, gate, room, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Session, Arc<Progress>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a pipe that `peer` opened, until it ends.
    pub async fn serve(self, peer: NodeId, mut pipe: Pipe) {
        let Ok(Some(frame)) = pipe.recv().await else { return };
        let say = match read(&frame) {
            Ok(say) => say,
            Err(error) => return refuse(pipe, Reason::Broken, error.to_string()).await,
        };
        let Gate { admission, swarm } = &self.gate;
        match say {
            Say::Admit(ask) => {
                let allow = async |peer| {
                    if let Err(error) = swarm.allow(peer).await {
                        tracing::warn!(%error, "one who was let in cannot connect");
                    }
                };
                // What was decided is in the log.
                let _ = admission::serve(admission.clone(), ask, pipe, allow).await;
            }
            _ if admission.standing(peer, Millis(unix_now_ms())) == Standing::Applicant => {
                refuse(pipe, Reason::NotAllowed, "be let in first".into()).await;
            }
            Say::Open(open) => {
                let session = name(&open.session, open.leg);
                let (sender, receiver) = pipe.split();
                let (answers, frames) = Outlet::new();
                tokio::spawn(frames.deliver(sender));
                let progress = Arc::<Progress>::default();
                let taken = self.known().contains_key(&session);
                if !taken {
                    self.known().insert(session, progress.clone());
                }
                let (open, own) = (Box::new(open), answers.clone());
                let order = Order::Open { from: peer, open, answers, progress };
                // The thread is there as long as the node is.
                let _ = self.orders.send(order);
                self.relay(session, peer, receiver, Some(own)).await;
                if !taken {
                    self.known().remove(&session);
                }
                let _ = self.orders.send(Order::Left(session, peer));
            }
            Say::Feed(feed) => {
                let session = name(&feed.session, feed.leg);
                let (_sender, receiver) = pipe.split();
                self.relay(session, peer, receiver, None).await;
            }
            Say::Prepare(prepare) => self.desk.prepare(peer, prepare, pipe),
            Say::Want(want) => self.desk.want(peer, want, pipe),
            _ => refuse(pipe, Reason::Broken, "no pipe begins like this".into()).await,
        }
    }

    /// Hands frames about a sequence on. While much waits to be computed it reads no more, which
    /// holds up whoever sends.
    ///
    /// That a requester asks how far this is is answered here, through `answers`: the thread may be
    /// computing, and only who is silent should seem so.
    async fn relay(
        &self,
        session: Session,
        from: NodeId,
        mut receiver: Receiver,
        answers: Option<Outlet>,
    ) {
        while let Ok(Some(frame)) = receiver.recv().await {
            let Ok(say) = read(&frame) else { return };
            let progress = self.known().get(&session).cloned().unwrap_or_default();
            match (&say, &answers) {
                (Say::Rows(rows), _) => {
                    progress.received.fetch_max(rows.step, Ordering::Relaxed);
                }
                (Say::Where(question), Some(answers)) => {
                    if answers.send(Say::At(at(&progress, question.nonce)), Bytes::new()).is_err() {
                        return;
                    }
                    continue;
                }
                // The thread says what is to be said to it.
                _ => {}
            }
            let body = frame.body;
            let kib = body.len().div_ceil(1024) as u32;
            let permit = match kib {
                0 => None,
                _ => self.room.clone().acquire_many_owned(kib).await.ok(),
            };
            let order = Order::Said { session, from, say, body, permit };
            if self.orders.send(order).is_err() {
                return;
            }
        }
    }
}

/// How far a sequence is, as it is told.
fn at(progress: &Progress, nonce: u64) -> At {
    At {
        nonce,
        received: progress.received.load(Ordering::Relaxed),
        done: progress.done.load(Ordering::Relaxed),
        positions: progress.positions.load(Ordering::Relaxed) as u32,
        queued: 0,
    }
}

/// The name of a sequence at one stage of its route.
fn name(session: &[u8], leg: u32) -> Session {
    (session.try_into().expect("checked when it was read"), leg)
}

/// What a frame says.
pub fn read(frame: &Frame) -> Result<Say, Malformed> {
    let line: Line = wire::decode(&frame.header)?;
    Ok(line.say.expect("checked when it was read"))
}

/// Says why not, and ends the pipe.
pub async fn refuse(mut pipe: Pipe, reason: Reason, text: String) {
    let say = Say::Refused(Refused::new(reason, text, 0));
    // Who is gone needs no reason.
    let _ = pipe.send(&wire::encode(&Line::from(say)), [Bytes::new()]).await;
    let (sender, _receiver) = pipe.split();
    let _ = sender.finish().await;
}

/// A way from a stage to the next, made while the first rows wait for it. When it breaks, `orders`
/// hear of it.
pub fn connect(
    dialler: &Dialler,
    orders: mpsc::Sender<Order>,
    session: Session,
    hop: Hop,
) -> Outlet {
    let (outlet, frames) = Outlet::new();
    let node = hop.node();
    let own = dialler.clone();
    if node == dialler.lanes.id() {
        // The next stage is this node, too.
        let next = (session.0, hop.leg);
        dialler.lanes.spawn(frames.each(move |say, body| {
            let order = Order::Said { session: next, from: node, say, body, permit: None };
            let _ = orders.send(order);
        }));
        return outlet;
    }
    dialler.lanes.spawn(async move {
        if let Err(why) = feed(own, session, hop, frames).await {
            let _ = orders.send(Order::Broken { session, node, why: why.to_string() });
        }
    });
    outlet
}

async fn feed(own: Dialler, session: Session, hop: Hop, frames: Frames) -> anyhow::Result<()> {
    let pipe = own.dial(&hop).await?;
    let (mut sender, mut receiver) = pipe.split();
    let first =
        Line::from(Say::Feed(wire::lane::Feed { session: session.0.to_vec(), leg: hop.leg }));
    sender.send(&wire::encode(&first), [Bytes::new()]).await?;
    let delivering = frames.deliver(sender);
    tokio::pin!(delivering);
    tokio::select! {
        done = &mut delivering => Ok(done?),
        // Nothing is said there but that it ends.
        ended = receiver.recv() => match ended {
            Ok(Some(_)) => anyhow::bail!("speaks where it should listen"),
            Ok(None) => anyhow::bail!("has ended the pipe"),
            Err(error) => Err(error.into()),
        },
    }
}

/// Makes pipes to nodes.
#[derive(Clone)]
pub struct Dialler {
    /// The usual way.
    pub lanes: Lanes,
    /// The other: streams of the swarm, which reaches nodes by holes that it punched, or through a third.
    pub swarm: Swarm,
    /// To whom no lane led, and when that was found.
    no_lane: Arc<Mutex<BTreeMap<NodeId, Instant>>>,
}

impl Dialler {
    /// Over both.
    pub fn new(lanes: Lanes, swarm: Swarm) -> Self {
        Self { lanes, swarm, no_lane: Arc::default() }
    }

    /// A pipe to a node: over a lane, or, where none can be had, over a stream of the swarm. Where no
    /// lane led a moment ago, the stream is tried first.
    ///
    /// # Errors
    /// Neither way leads there; both are told.
    pub async fn dial(&self, hop: &Hop) -> anyhow::Result<Pipe> {
        let node = hop.node();
        if self.had_no_lane(node)
            && let Ok(stream) = self.swarm.open_stream(node).await
        {
            return Ok(Pipe::opened_over(node, stream, PipeLimits::default()));
        }
        let addresses: Vec<_> = hop.lanes.iter().filter_map(wire::Address::socket).collect();
        let lane = async { anyhow::Ok(self.lanes.link(node, &addresses).await?.open().await?) };
        let no_lane = match lane.await {
            Ok(pipe) => return Ok(pipe),
            Err(error) => error,
        };
        match self.swarm.open_stream(node).await {
            Ok(stream) => {
                self.remember_no_lane(node);
                tracing::info!(%node, why = %no_lane, "no lane leads there; a stream of the swarm does");
                Ok(Pipe::opened_over(node, stream, PipeLimits::default()))
            }
            Err(no_stream) => anyhow::bail!("cannot be reached: {no_lane}; and {no_stream}"),
        }
    }
    fn remember_no_lane(&self, node: NodeId) {
        let mut known = self.no_lane.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, since| since.elapsed() < LANE_REST);
        if known.len() < NO_LANE_MAX {
            known.insert(node, Instant::now());
        }
    }

    fn had_no_lane(&self, node: NodeId) -> bool {
        let known = self.no_lane.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&node).is_some_and(|since| since.elapsed() < LANE_REST)
    }
}
