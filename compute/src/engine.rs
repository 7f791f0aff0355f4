//! A model that answers: load a file, feed tokens, read logits.

mod error;
mod head;
mod session;
mod stage;
mod step;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::arch::{Arch, CONTEXT_MAX};
use crate::forward::{Pass, Span, Workspace};
use crate::gguf::Gguf;
use crate::kernels::Kernels;
use crate::kv::{Cache, Shape};
use crate::numeric::block::{BlockVec, Blocks, BlocksMut, GROUP};
use crate::pool::Pool;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;

pub use crate::kv::{PAGE, Page, Pages};
pub use error::{LoadError, StepError};
pub use session::Session;
pub use stage::Stage;
use step::residual_row;
pub use step::{Feed, Rows, Wanted, step};

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
/// Bytes of logits that are computed together, at most.
const LOGITS_BYTES_MAX: usize = 16 << 20;

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
        let kv_bytes_per_token = shape(arch, arch.layers.len()).bytes_per_position() as u64;
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
            kv_bytes_per_token,
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

    /// Pages for sequences of the whole model, at most `max` at a time; see [`PAGE`].
    pub fn pages(&self, max: usize) -> Arc<Pages> {
        self.pages_of(&(0..self.halves()), max)
    }

    fn pages_of(&self, halves: &Range<usize>, max: usize) -> Arc<Pages> {
        Pages::new(shape(&self.weights.arch, layers(halves).len()), max)
    }

    /// A new, empty sequence that can hold `context_max` tokens, with pages of its own.
    pub fn session(self: &Arc<Model>, context_max: usize) -> Session {
        let pages = self.pages(context_max.div_ceil(PAGE));
        self.session_in(&pages, context_max, Vec::new(), 0)
    }

    /// A sequence of at most `context_max` tokens that takes its pages from `pages` and begins with
    /// the first `position` tokens of which `beginning` holds the keys and values.
    ///
    /// # Panics
    /// Where `pages` are of another shape, or `beginning` holds fewer tokens.
    pub fn session_in(
        self: &Arc<Model>,
        pages: &Arc<Pages>,
        context_max: usize,
        beginning: Vec<Arc<Page>>,
        position: usize,
    ) -> Session {
        let arch = &self.weights.arch;
        assert!(pages.shape() == shape(arch, arch.layers.len()), "pages of another model");
        assert!(position <= beginning.len() * PAGE, "tokens without pages");
        let cache = Cache::beginning(pages.clone(), beginning);
        let context_max = context_max.min(CONTEXT_MAX);
        let halves = 0..self.halves();
        let stage = Stage { model: self.clone(), halves, cache, position, context_max };
        Session { stage, logits: Vec::new() }
    }

    /// A stage: the half-blocks `halves`, with the caches of one sequence of at most `context_max`
    /// tokens.
    ///
    /// # Panics
    /// Where the range is not one of the model's.
    pub fn stage(self: &Arc<Model>, halves: Range<usize>, context_max: usize) -> Stage {
        assert!(halves.start <= halves.end && halves.end <= self.halves());
        // The bound that sums over positions are proven for.
        let context_max = context_max.min(CONTEXT_MAX);
        let cache = Cache::new(self.pages_of(&halves, context_max.div_ceil(PAGE)));
        Stage { model: self.clone(), halves, cache, position: 0, context_max }
    }

    /// Takes rows of several sequences through `halves` together. Rows have been checked, and there
    /// is room.
    fn pass(&self, halves: Range<usize>, residual: &mut BlockVec, spans: &[Span]) {
        let pass = Pass { weights: &self.weights, kernels: self.kernels, spans };
        let mut space = self.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let first_layer = layers(&halves).start;
        pass.run(&self.pool, halves, residual, first_layer, &mut space);
    }

    /// Tokens that fit a pass.
    fn tokens_max(&self) -> usize {
        let arch = &self.weights.arch;
        let per_token = 12 * arch.width + 8 * arch.query_width() + 5 * arch.ff;
        (SPACE_MAX / per_token).clamp(16, TOKENS_MAX)
    }

    /// Runs `work` for each number below `count`, shared out among the threads that compute. For what
    /// comes between steps, while they would be idle.
    pub fn share(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.pool.run(&|team| team.each(count, 1, work));
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
        let mut all = BlockVec::zeros(tokens.len() * self.weights.arch.width);
        for (row, &token) in tokens.iter().enumerate() {
            self.embed_row(token, &mut all, row);
        }
        Ok(all)
    }

    /// Writes what `token`, which is in the vocabulary, begins with into row `row` of `all`.
    fn embed_row(&self, token: u32, all: &mut BlockVec, row: usize) {
        let width = self.weights.arch.width;
        let groups = width / GROUP;
        let m = &mut all.m[row * width..][..width];
        let e = &mut all.e[row * groups..][..groups];
        self.weights.embed(token, &mut BlocksMut { m, e });
    }

    /// Logits of each row of `residual`, which has left the last half-block: (index, logits).
    pub fn logits_of(&self, residual: Blocks, each: &mut dyn FnMut(usize, &[f32])) {
        let width = self.weights.arch.width;
        let count = residual.m.len() / width;
        let rows: Vec<Blocks> = (0..count).map(|row| residual_row(residual, width, row)).collect();
        self.logits_in_parts(&rows, &mut |first, numbers| {
            let own = numbers.chunks_exact(self.weights.arch.vocab);
            own.enumerate().for_each(|(i, row)| each(first + i, row));
        });
    }

    /// Logits of `rows`, as many at a time as memory for them is meant for: (first row, logits).
    fn logits_in_parts(&self, rows: &[Blocks], part: &mut dyn FnMut(usize, &mut [f32])) {
        let vocab = self.weights.arch.vocab;
        let rows_max = (LOGITS_BYTES_MAX / (size_of::<f32>() * vocab)).max(1);
        let mut residual = BlockVec::default();
        let mut numbers = Vec::new();
        for (n, some) in rows.chunks(rows_max).enumerate() {
            residual.m.clear();
            residual.e.clear();
            for row in some {
                residual.m.extend_from_slice(row.m);
                residual.e.extend_from_slice(row.e);
            }
            let view = residual.view();
            head::logits(&self.weights, self.kernels, &self.pool, view, &mut numbers);
            part(n * rows_max, &mut numbers[..some.len() * vocab]);
        }
    }
}

/// The pages of sequences in `layers` layers.
fn shape(arch: &Arch, layers: usize) -> Shape {
    Shape { layers, kv_heads: arch.kv_heads, head: arch.head_dim }
}

/// The layers whose attention lies in `halves`: the even ones have a cache.
fn layers(halves: &Range<usize>) -> Range<usize> {
    halves.start.div_ceil(2)..halves.end.div_ceil(2)
}
