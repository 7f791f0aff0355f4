//! The first words over a connection: which versions the two sides are, and whether they like it.
//!
//! The dialler opens a stream and says hello; the other side says its own; each judges the other
//! and says the verdict. A refusing side waits a moment for the refused one to hang up, so that the
//! reason is read. The form of hello and verdict is the one thing that no version may change.
//!
//! **Invariant:** no pipe is accepted before both sides have said yes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::Connection;
use tokio::time::timeout;
use wire::NodeId;

use super::error::{Goodbye, LinkError, Lost, Objection, PipeError};
use super::pipe::{Far, Pipe, PipeLimits};
use super::transport;

/// How long the whole exchange may take: a few round trips of the slowest paths.
pub const HELLO_WAIT: Duration = Duration::from_secs(3);
/// How long a refused peer may take to hang up before it is cut off.
const PARTING_WAIT: Duration = Duration::from_secs(1);
/// The longest text of a refusal; the rest is cut off.
const REASON_BYTES_MAX: usize = 512;
/// The longest name of a program; the rest is cut off.
const PROGRAM_BYTES_MAX: usize = 64;
/// What the owner's part of a hello may be: capabilities and names, no data.
const HELLO_BYTES_MAX: usize = 16 << 10;

const YES: u8 = 0;
const NO: u8 = 1;

/// What a peer said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Who, as its certificate proves.
    pub peer: NodeId,
    /// Where it was seen.
    pub address: SocketAddr,
    /// The version of its lanes; always our own when a judge sees it.
    pub lane_version: u32,
    /// Its program and that's version.
    pub program: String,
    /// What its owner has to say.
    pub body: Bytes,
}

/// Says yes to a peer, or why not. Runs on the lanes' thread, so it must not wait for anything.
pub type Judge = Arc<dyn Fn(&Hello) -> Result<(), String> + Send + Sync>;

/// This side of every hello.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) lane_version: u32,
    pub(super) program: String,
    pub(super) body: Bytes,
    pub(super) judge: Judge,
    pub(super) silence_max: Duration,
    pub(super) pipes_max: u32,
}

/// A connection whose peer is known by its certificate, before the hello.
pub(super) struct Met<'a> {
    pub(super) peer: NodeId,
    pub(super) connection: &'a Connection,
}

/// The exchange as the side that dialled.
pub(super) async fn dialled(own: &Own, met: Met<'_>) -> Result<Hello, LinkError> {
    within(met.peer, exchange_dialled(own, &met)).await
}

/// The exchange as the side that was dialled.
pub(super) async fn accepted(own: &Own, met: Met<'_>) -> Result<Hello, LinkError> {
    within(met.peer, exchange_accepted(own, &met)).await
}

async fn within(
    peer: NodeId,
    exchange: impl Future<Output = Result<Hello, LinkError>>,
) -> Result<Hello, LinkError> {
    let late = |_| LinkError::NoHello { peer, waited: HELLO_WAIT };
    timeout(HELLO_WAIT, exchange).await.map_err(late)?
}

async fn exchange_dialled(own: &Own, met: &Met<'_>) -> Result<Hello, LinkError> {
    let opened = met.connection.open_bi().await;
    let mut pipe = pipe(own, met, opened.map_err(|cause| lost(own, met, cause))?);
    say(own, &mut pipe).await?;
    let hello = read(met, &mut pipe).await?;
    judge(own, met, &mut pipe, &hello).await?;
    verdict(&mut pipe).await?;
    transport::admit(met.connection, own.pipes_max);
    agree(&mut pipe).await?;
    Ok(hello)
}

async fn exchange_accepted(own: &Own, met: &Met<'_>) -> Result<Hello, LinkError> {
    let accepted = met.connection.accept_bi().await;
    let mut pipe = pipe(own, met, accepted.map_err(|cause| lost(own, met, cause))?);
    let hello = read(met, &mut pipe).await?;
    say(own, &mut pipe).await?;
    judge(own, met, &mut pipe, &hello).await?;
    transport::admit(met.connection, own.pipes_max);
    agree(&mut pipe).await?;
    verdict(&mut pipe).await?;
    Ok(hello)
}

fn pipe(own: &Own, met: &Met<'_>, streams: (quinn::SendStream, quinn::RecvStream)) -> Pipe {
    let far = Far { peer: met.peer, silence_max: own.silence_max, _held: None };
    let limits = PipeLimits {
        header_bytes_max: 4 + PROGRAM_BYTES_MAX,
        body_bytes_max: HELLO_BYTES_MAX,
        ..PipeLimits::default()
    };
    Pipe::over_quic(far, streams, limits, None)
}

fn lost(own: &Own, met: &Met<'_>, cause: quinn::ConnectionError) -> LinkError {
    Lost::of(met.peer, own.silence_max, cause).into()
}

async fn say(own: &Own, pipe: &mut Pipe) -> Result<(), LinkError> {
    let mut header = own.lane_version.to_le_bytes().to_vec();
    header.extend_from_slice(shortened(&own.program, PROGRAM_BYTES_MAX).as_bytes());
    sent(pipe, &header, own.body.clone()).await
}

async fn read(met: &Met<'_>, pipe: &mut Pipe) -> Result<Hello, LinkError> {
    let peer = met.peer;
    let frame = received(pipe).await?;
    let bad = LinkError::BadHello { peer, bytes: frame.header.len() };
    let (version, program) = frame.header.split_first_chunk::<4>().ok_or(bad)?;
    Ok(Hello {
        peer,
        address: met.connection.remote_address(),
        lane_version: u32::from_le_bytes(*version),
        program: shortened(&String::from_utf8_lossy(program), PROGRAM_BYTES_MAX).to_string(),
        body: frame.body,
    })
}

/// Judges the peer; tells it the reason of a refusal, and lets it hang up first.
async fn judge(own: &Own, met: &Met<'_>, pipe: &mut Pipe, hello: &Hello) -> Result<(), LinkError> {
    let error = match hello.lane_version == own.lane_version {
        true => match (own.judge)(hello) {
            Ok(()) => return Ok(()),
            Err(reason) => LinkError::Refused { peer: met.peer, reason },
        },
        false => LinkError::Version {
            peer: met.peer,
            theirs: hello.lane_version,
            their_program: hello.program.clone(),
            ours: own.lane_version,
            our_program: own.program.clone(),
        },
    };
    let reason = match &error {
        LinkError::Refused { reason, .. } => reason.clone(),
        // In the peer's eyes, so that it can show the text as it is.
        _ => format!(
            "it speaks lane version {} ({}), you speak {} ({}); bring the older one up to date",
            own.lane_version, own.program, hello.lane_version, hello.program
        ),
    };
    let reason = shortened(&reason, REASON_BYTES_MAX).to_string();
    sent(pipe, &[NO], Bytes::from(reason)).await?;
    // Whether it hangs up or not, the connection is closed next.
    timeout(PARTING_WAIT, met.connection.closed()).await.ok();
    met.connection.close(Goodbye::Refused.code(), b"");
    Err(error)
}

async fn agree(pipe: &mut Pipe) -> Result<(), LinkError> {
    sent(pipe, &[YES], Bytes::new()).await
}

/// What the peer thinks of us.
async fn verdict(pipe: &mut Pipe) -> Result<(), LinkError> {
    let peer = pipe.peer();
    let frame = received(pipe).await?;
    match frame.header.first() {
        Some(&YES) => Ok(()),
        Some(&NO) => {
            let reason = String::from_utf8_lossy(&frame.body);
            let reason = shortened(&reason, REASON_BYTES_MAX).to_string();
            Err(LinkError::RefusedThere { peer, reason })
        }
        _ => Err(LinkError::BadHello { peer, bytes: frame.header.len() }),
    }
}

async fn sent(pipe: &mut Pipe, header: &[u8], body: Bytes) -> Result<(), LinkError> {
    let peer = pipe.peer();
    pipe.send(header, [body]).await.map_err(|cause| broken(peer, cause))
}

async fn received(pipe: &mut Pipe) -> Result<super::pipe::Frame, LinkError> {
    let peer = pipe.peer();
    let frame = pipe.recv().await.map_err(|cause| broken(peer, cause))?;
    let done = PipeError::GivenUp { peer, why: Objection::Done };
    frame.ok_or(LinkError::Hello { peer, cause: done })
}

fn broken(peer: NodeId, cause: PipeError) -> LinkError {
    match cause {
        PipeError::Lost(lost) => LinkError::Lost(lost),
        cause => LinkError::Hello { peer, cause },
    }
}

/// The longest beginning of `text` within `bytes_max`.
fn shortened(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}
