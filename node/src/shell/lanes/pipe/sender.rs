//! The half of a pipe that sends.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::io::{AsyncWriteExt, WriteHalf};
use quinn::SendStream;
use tokio::time::timeout;
use wire::NodeId;

use super::{Far, PREFIX_BYTES, PipeLimits, Stream};
use crate::shell::lanes::error::{Objection, PipeError};

/// Bodies up to here are copied behind the header: one piece costs less than the copy of a packet.
const INLINE_BYTES_MAX: usize = 1400;

/// Sends frames.
#[derive(Debug)]
pub struct Sender {
    far: Far,
    out: Out,
    limits: PipeLimits,
    /// Whether a frame was begun and not completed, so that nothing after it could be understood.
    torn: bool,
}

pub(super) enum Out {
    Quic(SendStream),
    Other(WriteHalf<Box<dyn Stream>>),
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Quic(_)) { "Quic" } else { "Other" })
    }
}

impl Sender {
    pub(super) fn new(far: Far, out: Out, limits: PipeLimits) -> Self {
        Self { far, out, limits, torn: false }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> NodeId {
        self.far.peer
    }

    /// Sends one frame whose body is `body`'s parts in a row. They are not copied, unless small.
    ///
    /// Returns when the frame is handed to the transport, not when it has arrived. Waits while the
    /// peer does not read. If the future is dropped before it is done, the frame is torn and this
    /// half is over.
    pub async fn send(
        &mut self,
        header: &[u8],
        body: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), PipeError> {
        if self.torn {
            return Err(PipeError::Over { peer: self.far.peer });
        }
        let body: Vec<Bytes> = body.into_iter().filter(|part| !part.is_empty()).collect();
        let mut pieces = self.pieces(header, body)?;
        let bytes = pieces.iter().map(Bytes::len).sum();
        self.torn = true;
        let limits = self.limits;
        match &mut self.out {
            Out::Quic(stream) => write_quic(&self.far, stream, &mut pieces, bytes, limits).await?,
            Out::Other(stream) => write_other(&self.far, stream, &pieces, bytes, limits).await?,
        }
        self.torn = false;
        Ok(())
    }

    /// Says that no frame follows. The other half goes on.
    pub async fn finish(mut self) -> Result<(), PipeError> {
        let peer = self.far.peer;
        match &mut self.out {
            Out::Quic(stream) => stream.finish().map_err(|_| PipeError::Over { peer }),
            Out::Other(stream) => {
                let waited = self.limits.unread_wait;
                let closed = timeout(waited, stream.close()).await;
                let closed = closed.map_err(|_| PipeError::Unread { peer, bytes: 0, waited })?;
                closed.map_err(|cause| PipeError::Stream { peer, cause })
            }
        }
    }

    /// The frame as it goes over the wire.
    fn pieces(&self, header: &[u8], body: Vec<Bytes>) -> Result<Vec<Bytes>, PipeError> {
        let peer = self.far.peer;
        let (header_max, body_max) = (self.limits.header_bytes_max, self.limits.body_bytes_max);
        let body_bytes = body.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let too_long = PipeError::OwnHeader { peer, bytes: header.len(), bytes_max: header_max };
        let header_len = u32::try_from(header.len()).ok().filter(|_| header.len() <= header_max);
        let header_len = header_len.ok_or(too_long)?;
        let too_long = PipeError::OwnBody { peer, bytes: body_bytes, bytes_max: body_max };
        let body_len = u32::try_from(body_bytes).ok().filter(|_| body_bytes <= body_max);
        let body_len = body_len.ok_or(too_long)?;

        let inline = if body_bytes <= INLINE_BYTES_MAX { body_bytes } else { 0 };
        let mut first = BytesMut::with_capacity(PREFIX_BYTES + header.len() + inline);
        first.put_u32_le(header_len);
        first.put_u32_le(body_len);
        first.put_slice(header);
        if inline == body_bytes {
            body.iter().for_each(|part| first.put_slice(part));
            return Ok(vec![first.freeze()]);
        }
        Ok(std::iter::once(first.freeze()).chain(body).collect())
    }
}

/// A frame that was begun and given up is said to be so, or the peer would take it for a cut one.
impl Drop for Sender {
    fn drop(&mut self) {
        if let (true, Out::Quic(stream)) = (self.torn, &mut self.out) {
            // A stream that is closed already needs no word.
            stream.reset(Objection::Done.code()).ok();
        }
    }
}

async fn write_quic(
    far: &Far,
    stream: &mut SendStream,
    pieces: &mut [Bytes],
    bytes: usize,
    limits: PipeLimits,
) -> Result<(), PipeError> {
    let mut done = 0;
    while done < pieces.len() {
        let write = stream.write_chunks(&mut pieces[done..]);
        let written = timeout(limits.unread_wait, write).await;
        let written = written.map_err(|_| unread(far, bytes, limits.unread_wait))?;
        done += written.map_err(|error| far.of_write(error))?.chunks;
    }
    Ok(())
}

async fn write_other(
    far: &Far,
    stream: &mut WriteHalf<Box<dyn Stream>>,
    pieces: &[Bytes],
    bytes: usize,
    limits: PipeLimits,
) -> Result<(), PipeError> {
    let failed = |cause| PipeError::Stream { peer: far.peer, cause };
    let late = |_| unread(far, bytes, limits.unread_wait);
    for piece in pieces {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let wrote = timeout(limits.unread_wait, stream.write(rest)).await.map_err(late)?;
            let wrote = wrote.map_err(failed)?;
            if wrote == 0 {
                return Err(failed(io::ErrorKind::WriteZero.into()));
            }
            rest = &rest[wrote..];
        }
    }
    timeout(limits.unread_wait, stream.flush()).await.map_err(late)?.map_err(failed)
}

fn unread(far: &Far, bytes: usize, waited: Duration) -> PipeError {
    PipeError::Unread { peer: far.peer, bytes, waited }
}
