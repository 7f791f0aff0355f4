//! What can go wrong between two nodes; every message names the peer and what to do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quinn::{ConnectionError, TransportErrorCode, VarInt};
use thiserror::Error;
use wire::NodeId;

use super::tls::TlsError;

/// Why a link was closed on purpose, as the other side reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goodbye {
    /// The node stops.
    Leaving,
    /// No pipe was open for a while.
    Idle,
    /// The same peer came again over another connection.
    Replaced,
    /// The hello was not liked.
    Refused,
    /// Whoever owns the node wanted it.
    Asked,
    /// Every link of the node is in use.
    Full,
    /// A newer version says something that this one does not know.
    Unknown(u64),
}

impl Goodbye {
    pub(super) fn code(self) -> VarInt {
        match self {
            Self::Leaving => VarInt::from_u32(1),
            Self::Idle => VarInt::from_u32(2),
            Self::Replaced => VarInt::from_u32(3),
            Self::Refused => VarInt::from_u32(4),
            Self::Asked => VarInt::from_u32(5),
            Self::Full => VarInt::from_u32(6),
            Self::Unknown(code) => VarInt::from_u64(code).unwrap_or(VarInt::MAX),
        }
    }

    pub(super) fn of_code(code: VarInt) -> Self {
        match code.into_inner() {
            1 => Self::Leaving,
            2 => Self::Idle,
            3 => Self::Replaced,
            4 => Self::Refused,
            5 => Self::Asked,
            6 => Self::Full,
            code => Self::Unknown(code),
        }
    }
}

/// How a link ended.
#[derive(Debug, Clone, Error)]
pub enum Lost {
    /// Nothing came any more.
    #[error("{peer} has been silent for {} ms; use another node or dial it again", .silence.as_millis())]
    Silent {
        /// Who.
        peer: NodeId,
        /// How long is too long.
        silence: Duration,
    },
    /// The peer closed the link.
    #[error("{peer} closed the link: {why:?}; dial it again if it is still needed")]
    Closed {
        /// Who.
        peer: NodeId,
        /// Why, in its words.
        why: Goodbye,
    },
    /// The peer was started anew and has forgotten the link.
    #[error("{peer} was restarted; dial it again")]
    Restarted {
        /// Who.
        peer: NodeId,
    },
    /// This side closed the link.
    #[error("the link to {peer} was closed here; dial it again if it is still needed")]
    Here {
        /// Who was at the other end.
        peer: NodeId,
    },
    /// QUIC or TLS failed.
    #[error("the link to {peer} broke; dial it again")]
    Broken {
        /// Who was at the other end.
        peer: NodeId,
        /// How.
        #[source]
        cause: ConnectionError,
    },
}

impl Lost {
    pub(super) fn of(peer: NodeId, silence: Duration, cause: ConnectionError) -> Self {
        match cause {
            ConnectionError::TimedOut => Self::Silent { peer, silence },
            ConnectionError::ApplicationClosed(close) => {
                Self::Closed { peer, why: Goodbye::of_code(close.error_code) }
            }
            ConnectionError::Reset => Self::Restarted { peer },
            ConnectionError::LocallyClosed => Self::Here { peer },
            cause => Self::Broken { peer, cause },
        }
    }
}

/// Why a peer gave up a pipe, as the other side reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// A header was longer than it takes.
    LongHeader,
    /// A body was longer than it takes.
    LongBody,
    /// A frame came too slowly or not at all.
    Slow,
    /// It has as many pipes as it can look after.
    Busy,
    /// It has no more use for the pipe.
    Done,
    /// A newer version says something that this one does not know.
    Unknown(u64),
}

impl Objection {
    pub(super) fn code(self) -> VarInt {
        match self {
            Self::Done => VarInt::from_u32(0),
            Self::LongHeader => VarInt::from_u32(1),
            Self::LongBody => VarInt::from_u32(2),
            Self::Slow => VarInt::from_u32(3),
            Self::Busy => VarInt::from_u32(4),
            Self::Unknown(code) => VarInt::from_u64(code).unwrap_or(VarInt::MAX),
        }
    }

    pub(super) fn of_code(code: VarInt) -> Self {
        match code.into_inner() {
            0 => Self::Done,
            1 => Self::LongHeader,
            2 => Self::LongBody,
            3 => Self::Slow,
            4 => Self::Busy,
            code => Self::Unknown(code),
        }
    }
}

/// What a pipe refuses or suffers. After any of these but the two of one's own frames, it is over.
#[derive(Debug, Error)]
pub enum PipeError {
    /// Our header is too long; nothing was sent.
    #[error("a header of {bytes} bytes for {peer} exceeds {bytes_max}; put it into the body")]
    OwnHeader {
        /// For whom.
        peer: NodeId,
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// Our body is too long; nothing was sent.
    #[error("a body of {bytes} bytes for {peer} exceeds {bytes_max}; send it in parts")]
    OwnBody {
        /// For whom.
        peer: NodeId,
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The peer announced a header that is too long.
    #[error("{peer} announced a header of {bytes} bytes, the most is {bytes_max}; do not use it")]
    LongHeader {
        /// Who.
        peer: NodeId,
        /// The length announced.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The peer announced a body that is too long.
    #[error("{peer} announced a body of {bytes} bytes, the most is {bytes_max}; do not use it")]
    LongBody {
        /// Who.
        peer: NodeId,
        /// The length announced.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// A frame began and did not end in time.
    #[error("{peer} sent {bytes} of a frame's {bytes_wanted} bytes in {} ms; use another node", .waited.as_millis())]
    Slow {
        /// Who.
        peer: NodeId,
        /// What came.
        bytes: usize,
        /// What should have come, as far as it was known.
        bytes_wanted: usize,
        /// The time it had.
        waited: Duration,
    },
    /// The peer opened a pipe and sent no frame.
    #[error("{peer} opened a pipe and sent nothing for {} ms", .waited.as_millis())]
    NoFirstFrame {
        /// Who.
        peer: NodeId,
        /// The time it had.
        waited: Duration,
    },
    /// The peer does not read.
    #[error("{peer} took none of the rest of {bytes} bytes for {} ms; use another node", .waited.as_millis())]
    Unread {
        /// Who.
        peer: NodeId,
        /// The whole frame.
        bytes: usize,
        /// The time it had.
        waited: Duration,
    },
    /// The pipe ended within a frame.
    #[error("{peer} ended a pipe after {bytes} of a frame's {bytes_wanted} bytes; ask again")]
    Cut {
        /// Who.
        peer: NodeId,
        /// What came.
        bytes: usize,
        /// What should have come, as far as it was known.
        bytes_wanted: usize,
    },
    /// The peer gave up the pipe.
    #[error("{peer} gave up a pipe: {why:?}")]
    GivenUp {
        /// Who.
        peer: NodeId,
        /// Why, in its words.
        why: Objection,
    },
    /// An error or an abandoned call has left this half of the pipe within a frame.
    #[error("the pipe with {peer} stopped within a frame before; open another")]
    Over {
        /// Who is at the other end.
        peer: NodeId,
    },
    /// The peer lets us open no further pipe.
    #[error("{peer} has opened no further pipe for {} ms, it allows {pipes_max}; close some", .waited.as_millis())]
    NoPipe {
        /// Who.
        peer: NodeId,
        /// How many may be open, as far as this side's version knows.
        pipes_max: u32,
        /// How long it had.
        waited: Duration,
    },
    /// The link is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The stream under a pipe that is not one of QUIC failed.
    #[error("the stream to {peer} failed; open another")]
    Stream {
        /// Who was at the other end.
        peer: NodeId,
        /// How.
        #[source]
        cause: io::Error,
    },
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Nowhere to dial.
    #[error("no address of {peer} is known")]
    NoAddress {
        /// Who.
        peer: NodeId,
    },
    /// A node needs no link to itself.
    #[error("{peer} is this node itself; call it without a link")]
    Itself {
        /// Who.
        peer: NodeId,
    },
    /// Nobody answered.
    #[error("{peer} did not answer at {address} for {} ms; is it up, and is UDP let through?", .waited.as_millis())]
    NoAnswer {
        /// Who was wanted.
        peer: NodeId,
        /// Where.
        address: SocketAddr,
        /// How long.
        waited: Duration,
    },
    /// Somebody else answered.
    #[error("at {address} is {found}, not {wanted}; the address is out of date")]
    WrongPeer {
        /// Who was wanted.
        wanted: NodeId,
        /// Who answered.
        found: NodeId,
        /// Where.
        address: SocketAddr,
    },
    /// What answered speaks QUIC, but not with nodes.
    #[error("what answers at {address} instead of {peer} is no node of a hive")]
    NoNode {
        /// Who was wanted.
        peer: NodeId,
        /// Where.
        address: SocketAddr,
    },
    /// The peer has no room.
    #[error("{peer} at {address} takes no further links now; try again later")]
    Busy {
        /// Who.
        peer: NodeId,
        /// Where.
        address: SocketAddr,
    },
    /// This node has no room.
    #[error("{links_max} links are in use here; close one before linking to {peer}")]
    Full {
        /// Who was to be linked.
        peer: NodeId,
        /// The bound.
        links_max: usize,
    },
    /// The two programs do not understand each other.
    #[error(
        "{peer} speaks lane version {theirs} ({their_program}) and this node {ours} \
         ({our_program}); bring the older one up to date"
    )]
    Version {
        /// Who.
        peer: NodeId,
        /// Its lane version.
        theirs: u32,
        /// Its program.
        their_program: String,
        /// Our lane version.
        ours: u32,
        /// Our program.
        our_program: String,
    },
    /// This node refused the peer.
    #[error("{peer} was refused here: {reason}")]
    Refused {
        /// Who.
        peer: NodeId,
        /// In the words of whoever judged.
        reason: String,
    },
    /// The peer refused this node.
    #[error("{peer} refuses this node: {reason}")]
    RefusedThere {
        /// Who.
        peer: NodeId,
        /// In its words.
        reason: String,
    },
    /// The peer's hello did not come.
    #[error("{peer} did not say hello for {} ms", .waited.as_millis())]
    NoHello {
        /// Who.
        peer: NodeId,
        /// How long it had.
        waited: Duration,
    },
    /// The peer's hello cannot be read.
    #[error("the hello of {peer} has {bytes} bytes of header that say nothing")]
    BadHello {
        /// Who.
        peer: NodeId,
        /// How long its header is.
        bytes: usize,
    },
    /// The hello broke off.
    #[error("the hello with {peer} broke off")]
    Hello {
        /// Who.
        peer: NodeId,
        /// How.
        #[source]
        cause: PipeError,
    },
    /// The connection ended before there was a link.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The system or QUIC would not dial.
    #[error("{address} cannot be dialled for {peer}")]
    Dial {
        /// Who was wanted.
        peer: NodeId,
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        cause: quinn::ConnectError,
    },
    /// TLS could not be set up.
    #[error("no connection to {peer} could be set up")]
    Tls {
        /// Who was wanted.
        peer: NodeId,
        /// Why not.
        #[source]
        cause: TlsError,
    },
    /// The lanes of this node are stopped.
    #[error("the lanes of this node are stopped; {peer} was not dialled")]
    Stopped {
        /// Who was wanted.
        peer: NodeId,
    },
}

/// TLS's alert for "none of your protocols".
const ALERT_NO_PROTOCOL: u8 = 120;

impl LinkError {
    /// What a dial to `address` that ended in `cause` says about `peer`.
    pub(super) fn of_dial(
        peer: NodeId,
        address: SocketAddr,
        waited: Duration,
        cause: ConnectionError,
    ) -> Self {
        let no_protocol = TransportErrorCode::crypto(ALERT_NO_PROTOCOL);
        match cause {
            ConnectionError::TimedOut => Self::NoAnswer { peer, address, waited },
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                Self::Busy { peer, address }
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == no_protocol => {
                Self::NoNode { peer, address }
            }
            ConnectionError::TransportError(error) if error.code == no_protocol => {
                Self::NoNode { peer, address }
            }
            cause => Lost::of(peer, waited, cause).into(),
        }
    }
}

/// Lanes could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The port cannot be had.
    #[error("UDP {address} cannot be bound; is another node running? Choose another port")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// Identity.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No thread or no event queue.
    #[error("the system gave no thread or event queue for the lanes")]
    Thread(#[source] io::Error),
}
