//! The half of a pipe that receives.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::ready;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::io::{AsyncRead, ReadHalf};
use quinn::RecvStream;
use tokio::time::{Instant, timeout_at};
use wire::NodeId;

use super::{Far, Frame, PREFIX_BYTES, PipeLimits, RESERVE_BYTES_MAX, Stream};
use crate::shell::lanes::error::{Objection, PipeError};

/// How much is read from a foreign stream at a time, since the space is cleared before.
const READ_BYTES_MAX: usize = 64 << 10;

/// Receives frames.
#[derive(Debug)]
pub struct Receiver {
    far: Far,
    from: In,
    limits: PipeLimits,
    wait: Wait,
    partial: Partial,
    /// Whether an error was returned, so that what follows could not be understood.
    over: bool,
}

pub(super) enum In {
    /// `rest` came with a packet and belongs to the next frame.
    Quic {
        stream: RecvStream,
        rest: Bytes,
    },
    Other(ReadHalf<Box<dyn Stream>>),
}

impl std::fmt::Debug for In {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Quic { .. }) { "Quic" } else { "Other" })
    }
}

/// What is being waited for, and until when.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// The first frame of a pipe that the peer opened.
    First { since: Instant, wait: Duration },
    /// The next frame, which may take as long as the work before it; the owner knows how long.
    Next,
    /// The rest of a frame.
    Rest { since: Instant },
}

/// A frame as far as it has come. Kept between calls, so that a call may be abandoned.
#[derive(Debug, Default)]
struct Partial {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Header and body length, once the prefix is complete and within the bounds.
    lengths: Option<(usize, usize)>,
    data: BytesMut,
}

impl Partial {
    fn bytes(&self) -> usize {
        self.prefix_bytes + self.data.len()
    }

    fn bytes_wanted(&self) -> usize {
        PREFIX_BYTES + self.lengths.map_or(0, |(header, body)| header + body)
    }

    fn take(&mut self, (header_bytes, _): (usize, usize)) -> Frame {
        let mut body = std::mem::take(self).data.freeze();
        let header = body.split_to(header_bytes);
        Frame { header, body }
    }
}

impl Receiver {
    pub(super) fn new(far: Far, from: In, limits: PipeLimits, first: Option<Duration>) -> Self {
        let wait = first.map_or(Wait::Next, |wait| Wait::First { since: Instant::now(), wait });
        Self { far, from, limits, wait, partial: Partial::default(), over: false }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> NodeId {
        self.far.peer
    }

    /// The next frame; `None` when the peer has finished.
    ///
    /// May be abandoned and called again. For a next frame it waits without end, except that a peer
    /// which is gone is noticed: how long the work before a frame may take, only the caller knows.
    pub async fn recv(&mut self) -> Result<Option<Frame>, PipeError> {
        if self.over {
            return Err(PipeError::Over { peer: self.far.peer });
        }
        let result = self.next().await;
        if let Err(error) = &result {
            self.over = true;
            self.object(error);
        }
        result
    }

    async fn next(&mut self) -> Result<Option<Frame>, PipeError> {
        loop {
            if self.partial.bytes() < self.partial.bytes_wanted() {
                match self.more().await? {
                    0 if self.partial.bytes() == 0 => return Ok(None),
                    0 => return Err(self.cut()),
                    _ => self.begun(),
                }
                continue;
            }
            match self.partial.lengths {
                None => self.measure()?,
                Some(lengths) => {
                    self.wait = Wait::Next;
                    return Ok(Some(self.partial.take(lengths)));
                }
            }
        }
    }

    /// Reads some of what is missing; how much, 0 at the end of the stream.
    async fn more(&mut self) -> Result<usize, PipeError> {
        let Some((deadline, waited)) = self.deadline() else {
            return fill(&self.far, &mut self.from, &mut self.partial).await;
        };
        let fill = fill(&self.far, &mut self.from, &mut self.partial);
        match timeout_at(deadline, fill).await {
            Ok(result) => result,
            Err(_) => Err(self.late(waited)),
        }
    }

    fn deadline(&self) -> Option<(Instant, Duration)> {
        match self.wait {
            Wait::First { since, wait } => Some((since + wait, wait)),
            Wait::Next => None,
            Wait::Rest { since } => {
                let rate = self.limits.bytes_per_second_min.max(1);
                let share = self.partial.bytes_wanted().saturating_mul(1000) / rate;
                let wait = self.limits.frame_wait + Duration::from_millis(share as u64);
                Some((since + wait, wait))
            }
        }
    }

    fn begun(&mut self) {
        if !matches!(self.wait, Wait::Rest { .. }) {
            self.wait = Wait::Rest { since: Instant::now() };
        }
    }

    /// Reads the lengths, and reserves room only if they are within the bounds.
    fn measure(&mut self) -> Result<(), PipeError> {
        let [a, b, c, d, e, f, g, h] = self.partial.prefix;
        let header = u32::from_le_bytes([a, b, c, d]) as usize;
        let body = u32::from_le_bytes([e, f, g, h]) as usize;
        let peer = self.far.peer;
        let limits = &self.limits;
        if header > limits.header_bytes_max {
            let bytes_max = limits.header_bytes_max;
            return Err(PipeError::LongHeader { peer, bytes: header, bytes_max });
        }
        if body > limits.body_bytes_max {
            let bytes_max = limits.body_bytes_max;
            return Err(PipeError::LongBody { peer, bytes: body, bytes_max });
        }
        self.partial.data.reserve((header + body).min(RESERVE_BYTES_MAX));
        self.partial.lengths = Some((header, body));
        Ok(())
    }

    fn late(&self, waited: Duration) -> PipeError {
        let peer = self.far.peer;
        let (bytes, bytes_wanted) = (self.partial.bytes(), self.partial.bytes_wanted());
        match self.wait {
            Wait::First { .. } => PipeError::NoFirstFrame { peer, waited },
            Wait::Next | Wait::Rest { .. } => PipeError::Slow { peer, bytes, bytes_wanted, waited },
        }
    }

    fn cut(&self) -> PipeError {
        let (bytes, bytes_wanted) = (self.partial.bytes(), self.partial.bytes_wanted());
        PipeError::Cut { peer: self.far.peer, bytes, bytes_wanted }
    }

    /// Tells the peer why nothing more is read, and gives back what was reserved.
    fn object(&mut self, error: &PipeError) {
        self.partial = Partial::default();
        let why = match error {
            PipeError::LongHeader { .. } => Objection::LongHeader,
            PipeError::LongBody { .. } => Objection::LongBody,
            PipeError::Slow { .. } | PipeError::NoFirstFrame { .. } => Objection::Slow,
            _ => Objection::Done,
        };
        if let In::Quic { stream, rest } = &mut self.from {
            *rest = Bytes::new();
            // A stream that the peer ended already needs no word.
            stream.stop(why.code()).ok();
        }
    }
}

/// Moves some missing bytes into `partial`.
async fn fill(far: &Far, from: &mut In, partial: &mut Partial) -> Result<usize, PipeError> {
    match from {
        In::Quic { stream, rest } => {
            if rest.is_empty() {
                let chunk = stream.read_chunk(usize::MAX, true).await;
                let Some(chunk) = chunk.map_err(|error| far.of_read(error))? else {
                    return Ok(0);
                };
                *rest = chunk.bytes;
            }
            let missing = partial.bytes_wanted() - partial.bytes();
            let some = rest.split_to(missing.min(rest.len()));
            match partial.lengths {
                None => {
                    let at = partial.prefix_bytes;
                    partial.prefix[at..at + some.len()].copy_from_slice(&some);
                    partial.prefix_bytes += some.len();
                }
                Some(_) => partial.data.extend_from_slice(&some),
            }
            Ok(some.len())
        }
        In::Other(stream) => fill_other(stream, partial)
            .await
            .map_err(|cause| PipeError::Stream { peer: far.peer, cause }),
    }
}

/// Space is cleared, filled and cut to what came within one poll, so that nothing is left half done
/// when the future is dropped.
async fn fill_other(
    stream: &mut ReadHalf<Box<dyn Stream>>,
    partial: &mut Partial,
) -> std::io::Result<usize> {
    let missing = partial.bytes_wanted() - partial.bytes();
    poll_fn(|cx| {
        let mut stream = Pin::new(&mut *stream);
        if partial.lengths.is_none() {
            let at = partial.prefix_bytes;
            let got = ready!(stream.as_mut().poll_read(cx, &mut partial.prefix[at..]))?;
            partial.prefix_bytes += got;
            return Ok(got).into();
        }
        let at = partial.data.len();
        partial.data.resize(at + missing.min(READ_BYTES_MAX), 0);
        let result = stream.as_mut().poll_read(cx, &mut partial.data[at..]);
        let got = match &result {
            std::task::Poll::Ready(Ok(got)) => *got,
            _ => 0,
        };
        partial.data.truncate(at + got);
        result
    })
    .await
}
