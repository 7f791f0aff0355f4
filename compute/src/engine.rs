//! A model that answers: load a file, feed tokens, read logits.

mod head;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use thiserror::Error;

use crate::arch::{ArchError, CONTEXT_MAX};
use crate::forward::{Pass, Workspace};
use crate::gguf::{Gguf, GgufError};
use crate::kernels::Kernels;
use crate::kv::LayerCache;
use crate::numeric::block::{self, BlockVec, Blocks, BlocksMut, GROUP};
use crate::pool::Pool;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::Weights;

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
pub struct Model {
    weights: Weights,
    kernels: Kernels,
    pool: Pool,
    summary: Summary,
    tokenizer: Option<Tokenizer>,
    template: Option<String>,
    /// Buffers of passes; whoever computes holds them, so sessions take turns.
    space: Mutex<Workspace>,
}

/// Tokens that go through the layers together, at most; pieces never change bits.
const TOKENS_MAX: usize = 512;
/// Bytes of buffers that a pass may use; a wide model takes fewer tokens at once.
const SPACE_MAX: usize = 24 << 20;
/// Tokens whose logits are computed together.
const LOGITS_MAX: usize = 16;

impl Model {
    /// Loads the file at `path`; `progress` hears (bytes done, bytes in all).
    ///
    /// # Errors
    /// See [`LoadError`]; nothing stays in memory.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Arc<Model>, LoadError> {
        let threads = NonZeroUsize::new(options.threads).unwrap_or(NonZeroUsize::MIN);
        let kernels = match options.kernels {
            KernelChoice::Auto => Kernels::fastest(),
            KernelChoice::Avx2 => Kernels::avx2()
                .filter(|kernels| kernels.proven())
                .ok_or(LoadError::Kernels("AVX2 that computes as it should"))?,
            KernelChoice::Portable => Kernels::Portable,
            KernelChoice::Reference => Kernels::Reference,
        };
        let file = Gguf::open(path)?;
        let tokenizer = Tokenizer::from_metadata(file.metadata())?;
        let template = file.metadata().str("tokenizer.chat_template").map(str::to_owned);
        let name =
            file.metadata().str("general.name").map(str::to_owned).unwrap_or_else(|| {
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            });
        let file_bytes = file.file_bytes();
        let weights = Weights::load(file, threads, progress)?;
        let arch = &weights.arch;
        let kv = LayerCache::bytes_per_position(arch.kv_heads, arch.head_dim) * arch.layers.len();
        let summary = Summary {
            name,
            architecture: arch.name.to_owned(),
            context_length: arch.context_length,
            layers: arch.layers.len(),
            width: arch.width,
            vocabulary: arch.vocab,
            file_bytes,
            weight_bytes: weights.bytes,
            // Every packed matrix is read once a token.
            bytes_per_token: weights.bytes,
            kv_bytes_per_token: kv as u64,
            kernels: kernels.name(),
        };
        let pool = Pool::new(threads).map_err(LoadError::Threads)?;
        let space = Mutex::default();
        Ok(Arc::new(Model { weights, kernels, pool, summary, tokenizer, template, space }))
    }

    /// What it is.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Its tokeniser; `None` where the file says that it has none.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Its chat template's source, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Half-blocks in the model: two for each layer.
    pub fn halves(&self) -> usize {
        2 * self.weights.layers.len()
    }

    /// A new, empty sequence that can hold `context_max` tokens.
    pub fn session(self: &Arc<Model>, context_max: usize) -> Session {
        let stage = self.stage(0..self.halves(), context_max);
        Session { stage, last: BlockVec::default(), logits: Vec::new() }
    }

    /// A stage: the half-blocks `halves`, with the caches of one sequence of at most `context_max`
    /// tokens.
    ///
    /// # Panics
    /// Where the range is not one of the model's.
    pub fn stage(self: &Arc<Model>, halves: Range<usize>, context_max: usize) -> Stage {
        assert!(halves.start <= halves.end && halves.end <= self.halves());
        let arch = &self.weights.arch;
        // The bound that sums over positions are proven for.
        let context_max = context_max.min(CONTEXT_MAX);
        // Only attention halves (the even ones) have a cache.
        let caches = (halves.start.div_ceil(2)..halves.end.div_ceil(2))
            .map(|_| LayerCache::new(context_max, arch.kv_heads, arch.head_dim))
            .collect();
        Stage { model: self.clone(), halves, caches, position: 0, context_max }
    }

    /// Tokens that fit a pass.
    fn tokens_max(&self) -> usize {
        let arch = &self.weights.arch;
        let per_token = 12 * arch.width + 8 * arch.query_width() + 5 * arch.ff;
        (SPACE_MAX / per_token).clamp(16, TOKENS_MAX)
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), StepError> {
        let vocabulary = self.weights.arch.vocab;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(StepError::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// The residual rows that `tokens` begin with: what enters half-block 0.
    ///
    /// # Errors
    /// A token is outside the vocabulary.
    pub fn embed(&self, tokens: &[u32]) -> Result<BlockVec, StepError> {
        self.check_tokens(tokens)?;
        let width = self.weights.arch.width;
        let mut all = BlockVec::zeros(tokens.len() * width);
        let groups = width / GROUP;
        for (i, &token) in tokens.iter().enumerate() {
            let m = &mut all.m[i * width..][..width];
            let e = &mut all.e[i * groups..][..groups];
            self.weights.embed(token, &mut BlocksMut { m, e });
        }
        Ok(all)
    }

    /// Logits of each row of `residual`, which has left the last half-block: (index, logits).
    pub fn logits_of(&self, residual: Blocks, each: &mut dyn FnMut(usize, &[f32])) {
        let (width, groups) = (self.weights.arch.width, self.weights.arch.width / GROUP);
        let count = residual.m.len() / width;
        let mut logits = Vec::new();
        for first in (0..count).step_by(LOGITS_MAX) {
            let some = first..count.min(first + LOGITS_MAX);
            let rows = Blocks {
                m: &residual.m[some.start * width..some.end * width],
                e: &residual.e[some.start * groups..some.end * groups],
            };
            head::logits(&self.weights, self.kernels, &self.pool, rows, &mut logits);
            for (i, row) in logits.chunks_exact(self.weights.arch.vocab).enumerate() {
                each(first + i, row);
            }
        }
    }
}

/// A contiguous range of half-blocks and the state of one sequence in them.
///
/// Half-block `2 l` is layer `l`'s attention, `2 l + 1` its feed-forward half. A chain of stages
/// that covers the model gives the bits of the whole.
#[derive(Debug)]
pub struct Stage {
    model: Arc<Model>,
    halves: Range<usize>,
    caches: Vec<LayerCache>,
    position: usize,
    context_max: usize,
}

impl Stage {
    /// Tokens fed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The half-blocks.
    pub fn halves(&self) -> Range<usize> {
        self.halves.clone()
    }

    /// Takes the residual rows of the next tokens through the stage, in place.
    ///
    /// # Errors
    /// There is no room for them, or a row is not a valid encoding; the stage is as it was.
    pub fn feed(&mut self, residual: &mut BlockVec) -> Result<(), StepError> {
        let width = self.model.weights.arch.width;
        block::check(residual.view()).map_err(StepError::Encoding)?;
        if !residual.m.len().is_multiple_of(width) {
            return Err(StepError::Encoding("the rows are not as wide as the model"));
        }
        self.room(residual.m.len() / width)?;
        self.run(residual);
        Ok(())
    }

    fn room(&self, tokens: usize) -> Result<(), StepError> {
        let wanted = self.position + tokens;
        let context_max = self.context_max;
        if wanted > context_max {
            return Err(StepError::ContextFull { context_max, wanted });
        }
        Ok(())
    }

    /// Rows have been checked, and there is room.
    fn run(&mut self, residual: &mut BlockVec) {
        let model = &*self.model;
        let tokens = residual.m.len() / model.weights.arch.width;
        let pass = Pass {
            weights: &model.weights,
            kernels: model.kernels,
            position: self.position,
            tokens,
        };
        let mut space = model.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let first_layer = self.halves.start.div_ceil(2);
        let caches = (&mut self.caches[..], first_layer);
        pass.run(&model.pool, self.halves.clone(), residual, caches, &mut space);
        self.position += tokens;
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
    }
}

/// One sequence: its KV cache and position. Dropping it frees the cache.
#[derive(Debug)]
pub struct Session {
    stage: Stage,
    /// The last residual rows that left the last half-block.
    last: BlockVec,
    logits: Vec<f32>,
}

impl Session {
    /// Tokens fed so far.
    pub fn position(&self) -> usize {
        self.stage.position
    }

    /// Tokens that it can hold.
    pub fn context_max(&self) -> usize {
        self.stage.context_max
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Arc<Model> {
        &self.stage.model
    }

    /// Runs `tokens` without computing logits. Long prompts are fed in pieces by the caller, so
    /// that it can show progress and stop; 512 at a time is efficient. Pieces never change bits.
    ///
    /// # Errors
    /// There is no room, or a token is unknown; the session is as it was.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        self.through(tokens, &mut |_, _| {})
    }

    /// Runs `tokens` (one or more) and returns the logits after the last, one per vocabulary entry.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], StepError> {
        self.feed(tokens)?;
        let width = self.model().weights.arch.width;
        let (m, e) = (&self.last.m, &self.last.e);
        let row = Blocks { m: &m[m.len() - width..], e: &e[e.len() - width / GROUP..] };
        let model = &self.stage.model;
        head::logits(&model.weights, model.kernels, &model.pool, row, &mut self.logits);
        Ok(&self.logits)
    }

    /// Runs `tokens` and hands `each` the logits after every one: (index in `tokens`, logits).
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn logits_each(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let model = self.model().clone();
        self.through(tokens, &mut |first, rows| {
            model.logits_of(rows, &mut |i, logits| each(first + i, logits));
        })
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.stage.rewind(position);
    }

    /// Runs `tokens` in passes; `done` receives (index of the first token, residual rows).
    fn through(
        &mut self,
        tokens: &[u32],
        done: &mut dyn FnMut(usize, Blocks),
    ) -> Result<(), StepError> {
        self.stage.room(tokens.len())?;
        // All of them before any, so that a refusal leaves the session as it was.
        self.model().check_tokens(tokens)?;
        let pass = self.model().tokens_max();
        for (i, piece) in tokens.chunks(pass).enumerate() {
            let mut residual = self.model().embed(piece)?;
            self.stage.run(&mut residual);
            self.last = residual;
            done(i * pass, self.last.view());
        }
        Ok(())
    }
}
