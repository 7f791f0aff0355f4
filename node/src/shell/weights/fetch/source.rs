//! One source at work: a pipe, some questions on their way in it, and a deadline for each answer.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use wire::lane::{ChunkAt, Hop, Line, Piece, Reason, Say, Want};
use wire::{Manifest, NodeId};

use super::fault::Fault;
use super::job::Core;
use super::pace::Progress;
use super::plan::{Source, Spot};
use crate::shell::lanes::{Frame, Pipe};
use crate::shell::weights::stock::Refusal;

/// Chunks on their way in one pipe: enough to fill a fast path of 60 ms to and fro.
const FLIGHT_MAX: usize = 8;
/// How often a source that has no place is asked again.
const TRIES_MAX: usize = 5;

/// Asks `hop` until it fails, and says how it did.
pub async fn run(core: Arc<Core>, source: Source, hop: Hop) {
    let mut tries = 1;
    let fault = loop {
        let fault = match Asked::new(&core, source, &hop).await {
            Ok(mut asked) => asked.work().await,
            Err(fault) => fault,
        };
        if !fault.is_full() || tries == TRIES_MAX {
            break fault;
        }
        tries += 1;
        sleep(core.waits().again).await;
    };
    core.leave(source, fault);
}

/// What is on its way from one source.
struct Asked<'a> {
    core: &'a Arc<Core>,
    source: Source,
    peer: NodeId,
    pipe: Pipe,
    news: watch::Receiver<Progress>,
    /// The parts that it has.
    parts: Vec<u8>,
    /// The questions that are not answered yet, in order.
    flight: VecDeque<Spot>,
    /// By when the next answer has to be here.
    deadline: Instant,
}

impl<'a> Asked<'a> {
    async fn new(core: &'a Arc<Core>, source: Source, hop: &Hop) -> Result<Self, Fault> {
        let (peer, waited) = (hop.node(), core.waits().dial);
        let dialled = timeout(waited, core.dial()(hop.clone())).await;
        let dialled = dialled.map_err(|_| Fault::NotReached { peer, waited })?;
        let pipe = dialled.map_err(|cause| Fault::Dial { peer, cause: Box::new(cause) })?;
        let (news, deadline) = (core.news(), Instant::now());
        let flight = VecDeque::new();
        Ok(Self { core, source, peer, pipe, news, parts: Vec::new(), flight, deadline })
    }

    /// Works until something is wrong.
    async fn work(&mut self) -> Fault {
        let fault = self.try_work().await;
        match fault {
            Ok(never) => match never {},
            Err(fault) => fault,
        }
    }

    async fn try_work(&mut self) -> Result<std::convert::Infallible, Fault> {
        if self.core.stock().is_none() {
            self.fetch_manifest().await?;
        }
        loop {
            self.parts = self.ask_alone(Piece::Parts(())).await?.to_vec();
            self.fetch_chunks().await?;
        }
    }

    async fn fetch_manifest(&mut self) -> Result<(), Fault> {
        let bytes = self.ask_alone(Piece::Manifest(())).await?;
        let (peer, wanted) = (self.peer, self.core.id());
        let manifest = wire::decode::<Manifest>(&bytes);
        let manifest = manifest.map_err(|cause| Fault::Nonsense { peer, cause })?;
        if manifest.id() != wanted {
            return Err(Fault::WrongManifest { peer, wanted });
        }
        let core = Arc::clone(self.core);
        self.aside(move || core.begin(manifest)).await
    }

    /// Fetches until it is time to ask again which parts there are.
    async fn fetch_chunks(&mut self) -> Result<(), Fault> {
        let again = Instant::now() + self.core.waits().recheck;
        loop {
            while self.flight.len() < FLIGHT_MAX && self.ask_next().await? {}
            let (idle, full) = (self.flight.is_empty(), self.flight.len() == FLIGHT_MAX);
            tokio::select! {
                frame = timeout_at(self.deadline, self.pipe.recv()), if !idle => {
                    let frame = self.frame(frame)?;
                    self.deadline = Instant::now() + self.core.waits().answer;
                    self.take(frame).await?;
                }
                // Its sender lives as long as the core does.
                _ = self.news.changed(), if !full => {}
                () = sleep_until(again), if idle => return Ok(()),
            }
        }
    }

    /// Asks for the next chunk, if there is one.
    async fn ask_next(&mut self) -> Result<bool, Fault> {
        let Some(spot) = self.core.take(self.source, &self.parts) else { return Ok(false) };
        if self.flight.is_empty() {
            self.deadline = Instant::now() + self.core.waits().answer;
        }
        self.flight.push_back(spot);
        let (part, chunk) = spot;
        self.ask(Piece::Chunk(ChunkAt { part, chunk })).await?;
        Ok(true)
    }

    /// Takes the answer to the first of the open questions.
    async fn take(&mut self, frame: Frame) -> Result<(), Fault> {
        let peer = self.peer;
        let Some((part, chunk)) = self.flight.pop_front() else {
            return Err(Fault::NoAnswer { peer });
        };
        match say(peer, &frame)? {
            Say::Have(have) => self.keep((part, chunk), frame.body, have.proof).await,
            Say::Refused(refused) if refused.reason == Reason::NotHeld as i32 => {
                // It had the part when it said so, and has it no more.
                if let Some(byte) = self.parts.get_mut(part as usize / 8) {
                    *byte &= !(1 << (part % 8));
                }
                self.core.give_back(self.source, (part, chunk));
                Ok(())
            }
            Say::Refused(refused) => Err(Fault::refused(peer, refused)),
            _ => Err(Fault::NoAnswer { peer }),
        }
    }

    /// Proves a chunk and writes it.
    async fn keep(&mut self, spot: Spot, body: Bytes, proof: Vec<u8>) -> Result<(), Fault> {
        let (part, chunk) = spot;
        // Without a place all has failed, and this task will be ended.
        let Some(stock) = self.core.stock() else { return Ok(()) };
        let core = Arc::clone(self.core);
        let right = self.aside(move || match stock.accept(part, chunk, &body, &proof) {
            Ok(accepted) => {
                core.gain(spot, body.len() as u64, accepted);
                true
            }
            Err(Refusal::Unproven) => false,
            Err(Refusal::Store(error)) => {
                core.fail(error);
                true
            }
        });
        match right.await? {
            true => Ok(()),
            false => Err(Fault::WrongChunk { peer: self.peer, part, chunk }),
        }
    }

    /// Does what takes the disk or the processor long, where it holds up nobody.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let done = tokio::task::spawn_blocking(work).await;
        // It panicked, which was reported then, or the program ends.
        done.map_err(|_| Fault::NoAnswer { peer: self.peer })
    }

    /// Asks one question while no other is open, and waits for its answer's body.
    async fn ask_alone(&mut self, piece: Piece) -> Result<Bytes, Fault> {
        self.ask(piece).await?;
        let deadline = Instant::now() + self.core.waits().answer;
        let frame = timeout_at(deadline, self.pipe.recv()).await;
        let frame = self.frame(frame)?;
        match say(self.peer, &frame)? {
            Say::Have(_) => Ok(frame.body),
            Say::Refused(refused) => Err(Fault::refused(self.peer, refused)),
            _ => Err(Fault::NoAnswer { peer: self.peer }),
        }
    }

    async fn ask(&mut self, piece: Piece) -> Result<(), Fault> {
        let want = Want { manifest: self.core.id().0.to_vec(), piece: Some(piece) };
        let header = wire::encode(&Line::from(Say::Want(want)));
        self.pipe.send(&header, []).await.map_err(|cause| Fault::Pipe { cause })
    }

    /// A frame in time, or what is wrong.
    fn frame<E>(
        &self,
        came: Result<Result<Option<Frame>, crate::shell::lanes::PipeError>, E>,
    ) -> Result<Frame, Fault> {
        let (peer, unanswered) = (self.peer, self.flight.len().max(1));
        let waited = self.core.waits().answer;
        let came = came.map_err(|_| Fault::Silent { peer, waited, unanswered })?;
        let frame = came.map_err(|cause| Fault::Pipe { cause })?;
        frame.ok_or(Fault::Ended { peer, unanswered })
    }
}

fn say(peer: NodeId, frame: &Frame) -> Result<Say, Fault> {
    let line = wire::decode::<Line>(&frame.header);
    let line = line.map_err(|cause| Fault::Nonsense { peer, cause })?;
    line.say.ok_or(Fault::NoAnswer { peer })
}
