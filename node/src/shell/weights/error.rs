//! Why a store cannot do what it is asked for.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use wire::{Malformed, ManifestId};

use super::survey::SurveyError;

/// Why a store refused, or failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("{folder} is used by another cadencia; stop that one, or give this one another folder")]
    Busy {
        /// Which.
        folder: PathBuf,
    },
    /// The disk failed.
    #[error("{path} cannot be read or written; check the disk")]
    Disk {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// There is no space left on the disk.
    #[error("the disk is full: {bytes} bytes of {path} found no room; free some space")]
    DiskFull {
        /// Where.
        path: PathBuf,
        /// How many bytes were to be written.
        bytes: u64,
    },
    /// It is known beforehand that the disk has too little space.
    #[error("{needed} bytes more are needed, and the disk has {free}; free some space")]
    NoRoom {
        /// Bytes that are missing.
        needed: u64,
        /// Bytes that can be had.
        free: u64,
    },
    /// What is used now leaves too little below the owner's cap.
    #[error(
        "{needed} bytes more are needed, and {in_use} of the {bytes_max} that weights may take are \
         in use; allow more, or use fewer parts"
    )]
    Cap {
        /// Bytes that the new parts take.
        needed: u64,
        /// Bytes of parts that cannot be given up.
        in_use: u64,
        /// The cap.
        bytes_max: u64,
    },
    /// A manifest's numbers contradict each other or are beyond all sense.
    #[error("the manifest {id} has a {field} that no model has: {found}, {bound} is the bound")]
    Implausible {
        /// Which.
        id: ManifestId,
        /// What is wrong.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        bound: u64,
    },
    /// A manifest is of another numeric class.
    #[error("the model {id} is computed as {told:?}, this program computes {own:?}; update it")]
    OtherClass {
        /// Which.
        id: ManifestId,
        /// Its class.
        told: String,
        /// Ours.
        own: &'static str,
    },
    /// A model's header denies what its manifest says.
    #[error("the manifest {id} and the header of its model disagree; do not use that model")]
    Untrue {
        /// Which.
        id: ManifestId,
    },
    /// A model's header cannot be read.
    #[error("the header of the model {id} is of no use; do not use that model")]
    Header {
        /// Which.
        id: ManifestId,
        /// Why not.
        #[source]
        cause: Box<SurveyError>,
    },
    /// A file of the user's cannot be given to others.
    #[error(transparent)]
    Survey(Box<SurveyError>),
    /// A manifest cannot be read.
    #[error("the manifest {id} cannot be used")]
    Manifest {
        /// Which.
        id: ManifestId,
        /// Why not.
        #[source]
        cause: Malformed,
    },
    /// The model has no such part.
    #[error("the model {id} has {halves} half-blocks and no part {part}; plan anew")]
    NoSuchPart {
        /// Which model.
        id: ManifestId,
        /// The number of the part, as in [`wire::lane::ChunkAt`].
        part: u32,
        /// How many half-blocks it has.
        halves: usize,
    },
    /// A file of the user's is not any more what it was.
    #[error("{path} is not what it was when it was offered; it is not offered any more")]
    Changed {
        /// Which.
        path: PathBuf,
    },
}

impl From<SurveyError> for StoreError {
    fn from(cause: SurveyError) -> Self {
        Self::Survey(Box::new(cause))
    }
}

impl StoreError {
    /// What `cause` means where `bytes` were to be written to `path`.
    pub(super) fn of_write(path: &Path, bytes: u64, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path: path.into(), bytes }
            }
            _ => Self::Disk { path: path.into(), cause },
        }
    }

    /// Whether the model itself is to blame, so that nothing of it is worth keeping.
    pub fn is_of_model(&self) -> bool {
        matches!(
            self,
            Self::Implausible { .. }
                | Self::OtherClass { .. }
                | Self::Untrue { .. }
                | Self::Header { .. }
                | Self::Manifest { .. }
        )
    }
}
