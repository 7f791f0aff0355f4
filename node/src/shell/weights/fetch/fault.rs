//! What sources did wrong, and why a fetch ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wire::lane::{Hop, Reason, Refused};
use wire::{Malformed, ManifestId, NodeId};

use crate::shell::lanes::{LinkError, PipeError};
use crate::shell::weights::error::StoreError;

/// Why a source could not be reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// It has no address that can be dialled.
    #[error("{peer} has no address; ask it for its lanes")]
    NoAddress {
        /// Who.
        peer: NodeId,
    },
    /// There is no link to it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No pipe could be opened over the link.
    #[error(transparent)]
    Pipe(#[from] PipeError),
}

/// Why a source is not asked any more.
#[derive(Debug, Error)]
pub enum Fault {
    /// It could not be reached.
    #[error("{peer} cannot be reached: {cause}")]
    Dial {
        /// Who.
        peer: NodeId,
        /// Why not.
        #[source]
        cause: Box<DialError>,
    },
    /// Nothing came of dialling it.
    #[error("{peer} was not reached in {} ms", .waited.as_millis())]
    NotReached {
        /// Who.
        peer: NodeId,
        /// The time it had.
        waited: Duration,
    },
    /// The pipe broke.
    #[error("{cause}")]
    Pipe {
        /// How.
        #[source]
        cause: PipeError,
    },
    /// It ended the pipe with questions left.
    #[error("{peer} ended the pipe and left {unanswered} questions unanswered")]
    Ended {
        /// Who.
        peer: NodeId,
        /// How many.
        unanswered: usize,
    },
    /// It answered nothing in time.
    #[error("{peer} was silent for {} ms with {unanswered} questions unanswered", .waited.as_millis())]
    Silent {
        /// Who.
        peer: NodeId,
        /// How long.
        waited: Duration,
        /// How many.
        unanswered: usize,
    },
    /// It sent a chunk that is not the one.
    #[error("{peer} sent a wrong chunk {chunk} of part {part}; do not use it")]
    WrongChunk {
        /// Who.
        peer: NodeId,
        /// Of which part.
        part: u32,
        /// Which.
        chunk: u32,
    },
    /// It sent a manifest that is not the one.
    #[error("{peer} sent another manifest than {wanted}; do not use it")]
    WrongManifest {
        /// Who.
        peer: NodeId,
        /// Which was wanted.
        wanted: ManifestId,
    },
    /// It said something that cannot be read.
    #[error("{peer}: {cause}")]
    Nonsense {
        /// Who.
        peer: NodeId,
        /// What is wrong with it.
        #[source]
        cause: Malformed,
    },
    /// It said something else than an answer.
    #[error("{peer} said what is no answer; it may be of another version")]
    NoAnswer {
        /// Who.
        peer: NodeId,
    },
    /// It refused.
    #[error("{peer} refused: {reason:?}, {text:?}")]
    Refused {
        /// Who.
        peer: NodeId,
        /// Why.
        reason: Reason,
        /// In its words.
        text: String,
    },
}

impl Fault {
    /// Of what `peer` refused.
    pub(super) fn refused(peer: NodeId, refused: Refused) -> Self {
        let reason = Reason::try_from(refused.reason).unwrap_or(Reason::Internal);
        Self::Refused { peer, reason, text: refused.text }
    }

    /// Whether it may be worth asking again soon.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Refused { reason: Reason::Full, .. })
    }
}

/// Faults in a row, for people.
#[derive(Debug, Clone, Default)]
pub struct Faults(pub Vec<Arc<Fault>>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none was named");
        }
        for (number, fault) in self.0.iter().enumerate() {
            let between = if number == 0 { "" } else { "; " };
            write!(f, "{between}{fault}")?;
        }
        Ok(())
    }
}

/// Why parts did not come. What has come stays, and is not fetched again.
#[derive(Debug, Clone, Error)]
pub enum FetchError {
    /// Nobody is left to ask.
    #[error("{missing} bytes of {id} are missing and nobody is left to ask: {faults}")]
    NoSource {
        /// Of which model.
        id: ManifestId,
        /// How many bytes; 0 where even the manifest is missing.
        missing: u64,
        /// Who was asked, and what they did.
        faults: Faults,
    },
    /// Those who are left have sent nothing for too long.
    #[error(
        "{missing} bytes of {id} are missing, and for {} s nothing came from {}; {faults}",
        .waited.as_secs(), names(.sources)
    )]
    Stalled {
        /// Of which model.
        id: ManifestId,
        /// How many bytes.
        missing: u64,
        /// How long.
        waited: Duration,
        /// Who are left.
        sources: Vec<Hop>,
        /// Who was dropped before, and why.
        faults: Faults,
    },
    /// What came could not be kept.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

fn names(sources: &[Hop]) -> String {
    let names: Vec<String> = sources.iter().map(|hop| hop.node().to_string()).collect();
    names.join(", ")
}

impl From<StoreError> for FetchError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
