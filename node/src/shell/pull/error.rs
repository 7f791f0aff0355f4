//! Why a model did not come.

use std::io;
use std::path::PathBuf;

use compute::gguf::GgufError;
use thiserror::Error;

use super::address::AddressError;
use super::digest::Digest;
use super::hub::HubError;
use super::names::{NameError, PARTS_MAX};
use super::web::WebError;

/// Why a model did not come, and what to do about it.
#[derive(Debug, Error)]
pub enum PullError {
    /// The name it has there, or was given, is none to have here.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A URL that is none to fetch from.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The repository does not lead to files.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The web does not give it.
    #[error(transparent)]
    Web(#[from] WebError),
    /// The web did not give it for too long.
    #[error(
        "{last} (tried {tries} times in a row without a byte); what came before is kept, and \
         the same command goes on from there"
    )]
    GaveUp {
        /// Tries that brought nothing.
        tries: u32,
        /// How the last one ended.
        last: WebError,
    },
    /// Nobody has said what its bytes come to.
    #[error(
        "nothing says what the bytes from {place} should come to: give the digest that their \
         publisher shows with --sha256, or take whatever comes with --insecure-no-checksum \
         (files on Hugging Face are checked by themselves if named OWNER/REPOSITORY/FILE.gguf)"
    )]
    NoDigest {
        /// Host.
        place: String,
    },
    /// More or fewer digests than files.
    #[error("{given} digests are given for {files} files; give --sha256 once for each, in order")]
    DigestCount {
        /// How many were given.
        given: usize,
        /// How many files there are.
        files: usize,
    },
    /// The user and the repository say different things.
    #[error("{file}: --sha256 is {given}, and the repository says {told}; one of them is wrong")]
    DigestsDiffer {
        /// The file.
        file: String,
        /// What the user says.
        given: Digest,
        /// What the repository says.
        told: Digest,
    },
    /// The bytes are not those that were meant.
    #[error(
        "{file} is not what was meant: its sha256 is {found}, and {expected} was expected. It was \
         thrown away; check the digest, and pull again"
    )]
    Digest {
        /// The file.
        file: String,
        /// What was expected.
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// The size is not what was meant.
    #[error(
        "{file} has {found} bytes where {expected} were promised; it was changed, so pull again"
    )]
    Size {
        /// The file.
        file: String,
        /// What was promised, bytes.
        expected: u64,
        /// What there is, bytes.
        found: u64,
    },
    /// It is no GGUF file, from its first bytes on.
    #[error(
        "{file} is no GGUF file (it does not begin with GGUF): is it a page about the model, or a \
         model in another format? It was thrown away"
    )]
    NotGguf {
        /// The file.
        file: String,
    },
    /// It is a damaged or wrongly made GGUF file.
    #[error("what came is no sound model, and was thrown away")]
    Unsound {
        /// What is wrong.
        source: GgufError,
    },
    /// The disk is too full.
    #[error(
        "it needs {} MB more and there is room for {} MB: free some, choose another folder with \
         --models-dir, or keep less free with --keep-free",
        needed.div_ceil(1_000_000),
        room / 1_000_000
    )]
    NoRoom {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that may be used.
        room: u64,
    },
    /// Another model has the name.
    #[error("{folder} has a model named {name} already; replace it with --force, or choose --name")]
    Taken {
        /// The name.
        name: String,
        /// The folder.
        folder: PathBuf,
    },
    /// Another process fetches it.
    #[error("another `cadencia pull` is fetching {name}; wait for it, or choose another --name")]
    Busy {
        /// The name.
        name: String,
    },
    /// One file of a split model, and not the first.
    #[error(
        "that is one of {count} files of a split model (at most {max} are read): give the first \
         one, {first}, and the others come with it",
        max = PARTS_MAX
    )]
    NotFirst {
        /// How many there are.
        count: u32,
        /// The first one's name.
        first: String,
    },
    /// A name that would hide the model.
    #[error("a model named {name} would be taken for a part of a split one; choose another --name")]
    LooksSplit {
        /// The name.
        name: String,
    },
    /// A local file cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk does not do what it should.
    #[error("cannot write to {path}; is the disk full, or the folder someone else's?")]
    Disk {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PullError {
    /// Whether it was asked wrongly, rather than failed.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Name(_)
                | Self::Address(_)
                | Self::NoDigest { .. }
                | Self::DigestCount { .. }
                | Self::NotFirst { .. }
                | Self::LooksSplit { .. }
        )
    }
}
