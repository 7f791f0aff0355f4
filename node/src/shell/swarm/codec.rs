//! Requests and replies on a stream: a length of four bytes, big-endian, and as many bytes.
//!
//! **Invariant:** memory grows with what has arrived, never with what a length announces.

use std::io;

use bytes::Bytes;
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::StreamProtocol;
use libp2p::request_response;

/// Bytes of a request: signed objects and a path of nodes fit many times over.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Bytes of a reply: a manifest with the roots of all its half-blocks is the largest.
pub const REPLY_BYTES_MAX: usize = 1 << 20;

/// A length that no reply has; it stands for "too busy to answer".
const BUSY: u32 = u32::MAX;

/// What comes back for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the other node's owner replied.
    Bytes(Bytes),
    /// The other node has too many requests waiting to look at this one.
    Busy,
}

/// Reads and writes frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames;

impl request_response::Codec for Frames {
    type Protocol = StreamProtocol;
    type Request = Bytes;
    type Response = Answer;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Bytes>
    where
        T: AsyncRead + Unpin + Send,
    {
        let length = read_length(io).await?;
        read_body(io, length, REQUEST_BYTES_MAX).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Answer>
    where
        T: AsyncRead + Unpin + Send,
    {
        match read_length(io).await? {
            BUSY => Ok(Answer::Busy),
            length => Ok(Answer::Bytes(read_body(io, length, REPLY_BYTES_MAX).await?)),
        }
    }

    async fn write_request<T>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        request: Bytes,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        write_frame(io, &request).await
    }

    async fn write_response<T>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        answer: Answer,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        match answer {
            Answer::Busy => io.write_all(&BUSY.to_be_bytes()).await,
            Answer::Bytes(bytes) => write_frame(io, &bytes).await,
        }
    }
}

async fn read_length<T: AsyncRead + Unpin + Send>(io: &mut T) -> io::Result<u32> {
    let mut length = [0; 4];
    io.read_exact(&mut length).await?;
    Ok(u32::from_be_bytes(length))
}

async fn read_body<T>(io: &mut T, length: u32, max: usize) -> io::Result<Bytes>
where
    T: AsyncRead + Unpin + Send,
{
    let length = length as usize;
    if length > max {
        let error = format!("a frame of {length} bytes is announced, and {max} are allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    let mut bytes = Vec::new();
    io.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        let error = format!("a frame ended after {} of {length} bytes", bytes.len());
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
    }
    Ok(bytes.into())
}

async fn write_frame<T: AsyncWrite + Unpin + Send>(io: &mut T, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    io.write_all(&length.to_be_bytes()).await?;
    io.write_all(bytes).await
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;
    use libp2p::request_response::Codec;

    use super::*;

    const NAME: StreamProtocol = StreamProtocol::new("/x");

    async fn request(bytes: &[u8]) -> io::Result<Bytes> {
        Frames.read_request(&NAME, &mut Cursor::new(bytes.to_vec())).await
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        for answer in [Answer::Busy, Answer::Bytes(Bytes::from(vec![5; 70_000]))] {
            let mut io = Cursor::new(Vec::new());
            Frames.write_response(&NAME, &mut io, answer.clone()).await.unwrap();
            let mut io = Cursor::new(io.into_inner());
            assert_eq!(Frames.read_response(&NAME, &mut io).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn lengths_that_lie_are_refused() {
        let too_long = (REQUEST_BYTES_MAX as u32 + 1).to_be_bytes();
        assert_eq!(request(&too_long).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(request(&[0, 0]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let short = [0, 0, 0, 9, 1, 2];
        assert_eq!(request(&short).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(request(&[0, 0, 0, 2, 1, 2]).await.unwrap(), Bytes::from_static(&[1, 2]));
    }
}
