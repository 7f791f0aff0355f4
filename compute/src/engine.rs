//! A model that answers: load a file, feed tokens, read logits.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::gguf::{Gguf, GgufError};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why a model was refused.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file itself is not sound.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokeniser is unknown or broken.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
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
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// How many ids there are.
        vocabulary: usize,
    },
}

/// Which kernels compute. Every choice gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// The fastest that this machine passes the self-test with.
    #[default]
    Auto,
    /// AVX2; refused where the machine has none.
    Avx2,
    /// Plain Rust, fast enough to use anywhere.
    Portable,
    /// The definition of the numeric class; slow.
    Reference,
}

/// How to load.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Threads that compute, 1 or more.
    pub threads: usize,
    /// Which kernels.
    pub kernels: KernelChoice,
}

/// What a loaded model is.
#[derive(Debug, Clone)]
pub struct Summary {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Tokens that it was trained to attend over.
    pub context_length: usize,
    /// Layers.
    pub layers: usize,
    /// Residual width.
    pub width: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Size of the files, bytes.
    pub file_bytes: u64,
    /// Weights in memory, bytes.
    pub weight_bytes: u64,
    /// Bytes of weights read to decode one token.
    pub bytes_per_token: u64,
    /// KV cache for one token of context, bytes.
    pub kv_bytes_per_token: u64,
    /// Kernels in use, such as `avx2`.
    pub kernels: &'static str,
}

/// A model in memory, ready to compute.
#[derive(Debug)]
pub struct Model {}

impl Model {
    /// Loads the file at `path`; `progress` hears (bytes done, bytes in all).
    pub fn load(
        path: &Path,
        _options: &LoadOptions,
        _progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Arc<Model>, LoadError> {
        let _ = Gguf::open(path)?;
        Ok(Arc::new(Model {}))
    }
    /// What it is.
    pub fn summary(&self) -> &Summary {
        panic!("not loaded")
    }
    /// Its tokeniser; `None` where the file says that it has none.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        None
    }
    /// Its chat template's source, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        None
    }
    /// A new, empty sequence that can hold `context_max` tokens.
    pub fn session(self: &Arc<Model>, context_max: usize) -> Session {
        Session { model: self.clone(), _context_max: context_max }
    }
}

/// One sequence: its KV cache and position. Dropping it frees the cache.
#[derive(Debug)]
pub struct Session {
    model: Arc<Model>,
    _context_max: usize,
}

impl Session {
    /// Tokens fed so far.
    pub fn position(&self) -> usize {
        0
    }
    /// The model it belongs to.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
    /// Runs `tokens` without computing logits. Long prompts are fed in pieces by the caller, so
    /// that it can show progress and stop; 512 at a time is efficient. Pieces never change bits.
    pub fn feed(&mut self, _tokens: &[u32]) -> Result<(), StepError> {
        Ok(())
    }
    /// Runs `tokens` (one or more) and returns the logits after the last, one per vocabulary entry.
    pub fn logits(&mut self, _tokens: &[u32]) -> Result<&[f32], StepError> {
        Ok(&[])
    }
    /// Runs `tokens` and hands `each` the logits after every one: (index in `tokens`, logits).
    pub fn logits_each(
        &mut self,
        _tokens: &[u32],
        _each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        Ok(())
    }
    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, _position: usize) {}
}
