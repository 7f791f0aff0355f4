//! Why a model was refused, and why tokens were.

use std::ops::Range;

use thiserror::Error;

use crate::arch::ArchError;
use crate::gguf::GgufError;
use crate::tokenizer::TokenizerError;

/// Why a model was refused.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file itself is not sound.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// What it describes cannot be computed.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The tokeniser is unknown or broken.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A weight is infinite or not a number.
    #[error("tensor {tensor}, row {row}, block {block}: not a finite number; fetch the file again")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The first row of the eight that it is among.
        row: usize,
        /// The block in that row.
        block: usize,
    },
    /// There is no memory for the weights.
    #[error("{size} bytes for the weights cannot be had: {source}; use a smaller model or type")]
    Memory {
        /// Bytes asked for.
        size: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Threads could not be started.
    #[error("compute threads cannot be started: {0}; ask for fewer")]
    Threads(std::io::Error),
    /// The model has no such part.
    #[error(
        "half-blocks {start} to {end} are not a range of the model's {halves}; \
         ask for a part of it"
    )]
    Part {
        /// The first half-block asked for.
        start: usize,
        /// The one after the last.
        end: usize,
        /// Half-blocks of the model.
        halves: usize,
    },
    /// The kernels asked for do not run here.
    #[error("this processor has no {0}; use --kernels auto")]
    Kernels(&'static str),
}

/// Why tokens could not be fed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StepError {
    /// The session has no room for them.
    #[error("the context holds {context_max} tokens and {wanted} are wanted")]
    ContextFull {
        /// Tokens the session can hold.
        context_max: usize,
        /// Tokens it would have to hold.
        wanted: usize,
    },
    /// The sequences that share a cache hold all of it.
    #[error("all {pages_max} pages of the KV cache are in use; end another sequence first")]
    NoPage {
        /// Pages that there may be.
        pages_max: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// How many ids there are.
        vocabulary: usize,
    },
    /// A residual row that somebody sent breaks a rule of the format.
    #[error("the rows are not valid block floats: {0}")]
    Encoding(&'static str),
    /// Half-blocks are wanted that are not loaded.
    #[error(
        "half-blocks {} to {} are wanted and {} to {} are loaded here; \
         send rows to those who hold the others",
        wanted.start, wanted.end, loaded.start, loaded.end
    )]
    HalvesElsewhere {
        /// Half-blocks in memory.
        loaded: Range<usize>,
        /// Half-blocks that it would take.
        wanted: Range<usize>,
    },
    /// The model's ends are wanted and are not loaded.
    #[error("embedding and output of the model are not loaded here; load a part with its ends")]
    EndsElsewhere,
}
