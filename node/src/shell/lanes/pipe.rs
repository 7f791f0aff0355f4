//! A pipe: frames in both directions between two nodes, whole and in order.
//!
//! A frame is a header and a body, each of which may be empty; what they mean is the owners' affair.
//! On the wire: header length and body length, u32 little-endian each, then the header, then the
//! body. A pipe runs over a stream of a link, or, where no link can be had, over any other stream,
//! such as one of libp2p, direct or relayed.
//!
//! **Invariant:** no memory is taken on the word of a peer. A length is checked before anything is
//! reserved, and at most [`RESERVE_BYTES_MAX`] is reserved before bytes have come.

mod receiver;
mod sender;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use wire::NodeId;

pub use self::receiver::Receiver;
pub use self::sender::Sender;
use super::error::{Lost, Objection, PipeError};
use super::link::Use;

/// The two lengths before each frame.
const PREFIX_BYTES: usize = 8;
/// What is reserved for a frame before its bytes have come: a chunk of prefill, usually.
const RESERVE_BYTES_MAX: usize = 1 << 20;

/// The bounds of a pipe's frames, in bytes and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipeLimits {
    /// The longest header: the longest word of [`wire::lane`].
    pub header_bytes_max: usize,
    /// The longest body: the residual of 512 tokens of the widest models, with a margin of two.
    pub body_bytes_max: usize,
    /// How long whoever opened the pipe may take until its first frame begins.
    pub first_frame_wait: Duration,
    /// How long a frame that has begun may take, beside its bytes' share of `bytes_per_second_min`.
    pub frame_wait: Duration,
    /// The slowest path that is worth waiting for: 2 Mbit/s.
    pub bytes_per_second_min: usize,
    /// How long a peer may take nothing of what is sent. It reads before it computes, so that this is
    /// the time of one computation at most, and generous.
    pub unread_wait: Duration,
}

impl Default for PipeLimits {
    fn default() -> Self {
        Self {
            header_bytes_max: 72 << 10,
            body_bytes_max: 16 << 20,
            first_frame_wait: Duration::from_secs(5),
            frame_wait: Duration::from_secs(5),
            bytes_per_second_min: 256 << 10,
            unread_wait: Duration::from_secs(30),
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the body is.
    pub header: Bytes,
    /// The tensor, or whatever else the header says.
    pub body: Bytes,
}

/// Frames to and from one peer.
#[derive(Debug)]
pub struct Pipe {
    sender: Sender,
    receiver: Receiver,
}

impl Pipe {
    /// A pipe over a stream that this node opened. The stream is buffered by whoever made it.
    pub fn opened_over<S>(peer: NodeId, stream: S, limits: PipeLimits) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::over(peer, stream, limits, None)
    }

    /// A pipe over a stream that `peer` opened; it has to send a frame soon.
    pub fn accepted_over<S>(peer: NodeId, stream: S, limits: PipeLimits) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::over(peer, stream, limits, Some(limits.first_frame_wait))
    }

    fn over<S>(peer: NodeId, stream: S, limits: PipeLimits, first: Option<Duration>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (reads, writes) = (Box::new(stream) as Box<dyn Stream>).split();
        let far = Far { peer, silence_max: Duration::MAX, _held: None };
        Self {
            sender: Sender::new(far.clone(), sender::Out::Other(writes), limits),
            receiver: Receiver::new(far, receiver::In::Other(reads), limits, first),
        }
    }

    /// A pipe over a stream of a link that this node opened (`first` is `None`) or that the peer did.
    pub(super) fn over_quic(
        far: Far,
        (sends, receives): (SendStream, RecvStream),
        limits: PipeLimits,
        first: Option<Duration>,
    ) -> Self {
        let receives = receiver::In::Quic { stream: receives, rest: Bytes::new() };
        Self {
            sender: Sender::new(far.clone(), sender::Out::Quic(sends), limits),
            receiver: Receiver::new(far, receives, limits, first),
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> NodeId {
        self.sender.peer()
    }

    /// See [`Sender::send`].
    pub async fn send(
        &mut self,
        header: &[u8],
        body: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), PipeError> {
        self.sender.send(header, body).await
    }

    /// See [`Receiver::recv`].
    pub async fn recv(&mut self) -> Result<Option<Frame>, PipeError> {
        self.receiver.recv().await
    }

    /// Both halves, for two tasks. The pipe counts as open while one of them lives.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// What a stream of another transport must be able to do.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The other end, as errors name it, and a hold on the link, which is kept while pipes are open.
#[derive(Debug, Clone)]
pub(super) struct Far {
    pub(super) peer: NodeId,
    pub(super) silence_max: Duration,
    pub(super) _held: Option<Arc<Use>>,
}

impl Far {
    fn lost(&self, cause: quinn::ConnectionError) -> PipeError {
        Lost::of(self.peer, self.silence_max, cause).into()
    }

    fn of_read(&self, error: ReadError) -> PipeError {
        match error {
            ReadError::Reset(code) => self.given_up(code),
            ReadError::ConnectionLost(cause) => self.lost(cause),
            // Neither early data nor unordered reads are used.
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => PipeError::Over { peer: self.peer },
        }
    }

    fn of_write(&self, error: WriteError) -> PipeError {
        match error {
            WriteError::Stopped(code) => self.given_up(code),
            WriteError::ConnectionLost(cause) => self.lost(cause),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => {
                PipeError::Over { peer: self.peer }
            }
        }
    }

    fn given_up(&self, code: quinn::VarInt) -> PipeError {
        PipeError::GivenUp { peer: self.peer, why: Objection::of_code(code) }
    }
}
