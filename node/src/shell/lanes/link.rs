//! An admitted connection to a peer, over which pipes are opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quinn::Connection;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use wire::NodeId;

use super::Incoming;
use super::error::{Goodbye, Lost, Objection, PipeError};
use super::hello::Hello;
use super::pipe::{Far, Pipe, PipeLimits};

/// How long the peer may take to have room for a further pipe.
const OPEN_WAIT: Duration = Duration::from_secs(2);

/// Which side began a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    Here,
    There,
}

/// An admitted connection. Clones are the same link.
///
/// A link without pipes is closed after a while, whoever holds it; ask [`super::Lanes::link`] each
/// time a pipe is wanted.
#[derive(Debug, Clone)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    hello: Hello,
    begun: Begun,
    silence_max: Duration,
    limits: PipeLimits,
    pipes_max: u32,
    pipes: Arc<Pipes>,
}

/// How many pipes there are and were.
#[derive(Debug, Default)]
struct Pipes {
    open: AtomicUsize,
    ever: AtomicUsize,
}

/// A pipe's hold on its link.
#[derive(Debug)]
pub(super) struct Use(Arc<Pipes>);

impl Use {
    fn of(pipes: &Arc<Pipes>) -> Arc<Self> {
        pipes.open.fetch_add(1, Ordering::Relaxed);
        pipes.ever.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self(Arc::clone(pipes)))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bounds that a link inherits from its lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkBounds {
    pub(super) silence_max: Duration,
    pub(super) idle_max: Duration,
    pub(super) limits: PipeLimits,
    pub(super) pipes_max: u32,
}

impl Link {
    pub(super) fn new(
        connection: Connection,
        hello: Hello,
        begun: Begun,
        bounds: LinkBounds,
    ) -> Self {
        Self(Arc::new(Inner {
            connection,
            hello,
            begun,
            silence_max: bounds.silence_max,
            limits: bounds.limits,
            pipes_max: bounds.pipes_max,
            pipes: Arc::default(),
        }))
    }

    /// Who is at the other end.
    pub fn peer(&self) -> NodeId {
        self.0.hello.peer
    }

    /// What the peer said of itself.
    pub fn hello(&self) -> &Hello {
        &self.0.hello
    }

    /// The present estimate of a round trip.
    pub fn rtt(&self) -> Duration {
        self.0.connection.rtt()
    }

    /// Counts of packets, losses and the like.
    pub fn stats(&self) -> quinn::ConnectionStats {
        self.0.connection.stats()
    }

    /// How many pipes are open, opened by either side.
    pub fn pipes(&self) -> usize {
        self.0.pipes.open.load(Ordering::Relaxed)
    }

    /// Whether pipes can still be opened.
    pub fn is_open(&self) -> bool {
        self.0.connection.close_reason().is_none()
    }

    /// Waits until the link has ended.
    pub async fn ended(&self) -> Lost {
        let cause = self.0.connection.closed().await;
        Lost::of(self.peer(), self.0.silence_max, cause)
    }

    /// Ends the link and all its pipes.
    pub fn close(&self, why: Goodbye) {
        self.0.connection.close(why.code(), b"");
    }

    /// Opens a pipe. The peer learns of it with the first frame.
    pub async fn open(&self) -> Result<Pipe, PipeError> {
        let far = self.far();
        let (peer, pipes_max) = (self.peer(), self.0.pipes_max);
        let late = |_| PipeError::NoPipe { peer, pipes_max, waited: OPEN_WAIT };
        let opened = timeout(OPEN_WAIT, self.0.connection.open_bi()).await.map_err(late)?;
        let streams = opened.map_err(|cause| Lost::of(peer, self.0.silence_max, cause))?;
        Ok(Pipe::over_quic(far, streams, self.0.limits, None))
    }

    /// For tests that speak as no node of ours would.
    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    pub(super) fn begun(&self) -> Begun {
        self.0.begun
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// How many pipes there have been.
    fn ever(&self) -> usize {
        self.0.pipes.ever.load(Ordering::Relaxed)
    }

    fn far(&self) -> Far {
        Far {
            peer: self.peer(),
            silence_max: self.0.silence_max,
            _held: Some(Use::of(&self.0.pipes)),
        }
    }

    /// Hands the peer's pipes over until the link ends, and ends it when it has been idle.
    pub(super) async fn serve(&self, incoming: mpsc::Sender<Incoming>, idle_max: Duration) -> Lost {
        let (mut looked, mut ever) = (Instant::now(), 0);
        loop {
            tokio::select! {
                accepted = self.0.connection.accept_bi() => match accepted {
                    Ok(streams) => self.hand_over(streams, &incoming),
                    Err(cause) => return Lost::of(self.peer(), self.0.silence_max, cause),
                },
                () = tokio::time::sleep_until(looked + idle_max) => {
                    let before = std::mem::replace(&mut ever, self.ever());
                    if self.pipes() == 0 && ever == before {
                        self.close(Goodbye::Idle);
                    }
                    looked = Instant::now();
                }
            }
        }
    }

    /// Refuses a pipe that nobody has time for; it must not wait in a queue that can only grow.
    fn hand_over(
        &self,
        streams: (quinn::SendStream, quinn::RecvStream),
        incoming: &mpsc::Sender<Incoming>,
    ) {
        match incoming.try_reserve() {
            Ok(place) => {
                let first = Some(self.0.limits.first_frame_wait);
                let pipe = Pipe::over_quic(self.far(), streams, self.0.limits, first);
                place.send(Incoming { peer: self.peer(), pipe });
            }
            Err(_) => {
                let (mut sends, mut receives) = streams;
                // Both fail only if the peer has closed them already.
                sends.reset(Objection::Busy.code()).ok();
                receives.stop(Objection::Busy.code()).ok();
            }
        }
    }
}
