//! A model that answers: load a file, feed tokens, read logits.

mod ends;
mod error;
mod head;
mod part;
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
use crate::numeric::block::{self, BlockVec, Blocks};
use crate::pool::Pool;
use crate::tokenizer::Tokenizer;
use crate::weights::{EndWeights, Weights};

pub use crate::kv::{PAGE, Page, Pages};
pub use ends::Returned;
pub use error::{LoadError, StepError};
pub use part::{Ends, Part};
pub use session::Session;
pub use stage::{Beginning, Stage, StageFeed, pass_rows};
pub use step::{Feed, Rows, Wanted, front, step};

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
    /// Which part of the model; `None` for all of it.
    pub part: Option<Part>,
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
    /// Which part of it is loaded.
    pub part: Part,
    /// Residual width.
    pub width: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Size of the files, bytes.
    pub file_bytes: u64,
    /// Weights of the part in memory, bytes.
    pub weight_bytes: u64,
    /// Bytes of weights read to decode one token in the part.
    pub bytes_per_token: u64,
    /// KV cache for one token of context in the part, bytes.
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
        let metadata = file.metadata();
        let (tokenizer, template) = match &options.part {
            Some(Part { ends: Ends::Elsewhere, .. }) => (None, None),
            _ => {
                let template = metadata.str("tokenizer.chat_template").map(str::to_owned);
                (Tokenizer::from_metadata(metadata)?, template)
            }
        };
        let name = model_name(&file, path);
        let file_bytes = file.file_bytes();
        let weights = Weights::load(file, options.part.as_ref(), threads, progress)?;
        let arch = &weights.arch;
        let part = weights.part.clone();
        let kv_bytes_per_token = shape(arch, &part.halves).bytes_per_position() as u64;
        let summary = Summary {
            name,
            part,
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

    /// Its tokeniser; `None` where the file says that it has none, or the ends are elsewhere.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Its chat template's source, if the file has one and the ends are here.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Half-blocks in the model, loaded or not: two for each layer.
    pub fn halves(&self) -> usize {
        2 * self.weights.arch.layers.len()
    }

    /// Pages for sessions, at most `max` at a time; see [`PAGE`]. Those of a part have room for the
    /// half-blocks that are loaded.
    pub fn pages(&self, max: usize) -> Arc<Pages> {
        self.pages_of(&self.loaded(), max)
    }

    /// Pages for stages of `halves`, at most `max` at a time.
    pub fn pages_of(&self, halves: &Range<usize>, max: usize) -> Arc<Pages> {
        Pages::new(shape(&self.weights.arch, halves), max)
    }

    /// A new, empty sequence that can hold `context_max` tokens, with pages of its own. What a
    /// session of a part is asked for beyond [`front`] is refused.
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
        let beginning = Beginning { pages: beginning, position };
        let stage = self.loaded_stage(self.loaded(), pages, context_max, beginning);
        Session { stage, logits: Vec::new() }
    }

    /// A stage: the half-blocks `halves`, with the caches of one sequence of at most `context_max`
    /// tokens.
    ///
    /// # Panics
    /// Where the half-blocks are not loaded; [`Model::stage_in`] refuses.
    pub fn stage(self: &Arc<Model>, halves: Range<usize>, context_max: usize) -> Stage {
        let pages = self.pages_of(&halves, context_max.div_ceil(PAGE));
        let stage = self.stage_in(halves, &pages, context_max, Beginning::default());
        stage.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A stage that takes its pages from `pages`, made by [`Model::pages_of`] for the same
    /// half-blocks, and begins with what `beginning` holds.
    ///
    /// # Errors
    /// Some of the half-blocks are not loaded.
    ///
    /// # Panics
    /// Where `pages` are of another shape, or `beginning` holds fewer tokens than it says.
    pub fn stage_in(
        self: &Arc<Model>,
        halves: Range<usize>,
        pages: &Arc<Pages>,
        context_max: usize,
        beginning: Beginning,
    ) -> Result<Stage, StepError> {
        let loaded = self.loaded();
        let within = loaded.start <= halves.start && halves.end <= loaded.end;
        if !within || halves.start > halves.end {
            return Err(StepError::HalvesElsewhere { loaded, wanted: halves });
        }
        Ok(self.loaded_stage(halves, pages, context_max, beginning))
    }

    /// As [`Model::stage_in`], of half-blocks that are loaded.
    fn loaded_stage(
        self: &Arc<Model>,
        halves: Range<usize>,
        pages: &Arc<Pages>,
        context_max: usize,
        beginning: Beginning,
    ) -> Stage {
        let Beginning { pages: kept, position } = beginning;
        assert!(pages.shape() == shape(&self.weights.arch, &halves), "pages of another model");
        assert!(position <= kept.len() * PAGE, "tokens without pages");
        let cache = Cache::beginning(pages.clone(), kept);
        // The bound that sums over positions are proven for.
        let context_max = context_max.min(CONTEXT_MAX);
        Stage { model: self.clone(), halves, cache, position, context_max }
    }

    /// The weights, for a device that computes with them.
    #[cfg(feature = "gpu")]
    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
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

    /// How many rows `residual` is, which may come from anybody.
    fn count_rows(&self, residual: Blocks) -> Result<usize, StepError> {
        block::check(residual).map_err(StepError::Encoding)?;
        if !residual.m.len().is_multiple_of(self.width()) {
            return Err(StepError::Encoding("the rows are not as wide as the model"));
        }
        Ok(residual.m.len() / self.width())
    }

    fn width(&self) -> usize {
        self.weights.arch.width
    }

    /// The half-blocks in memory.
    fn loaded(&self) -> Range<usize> {
        self.weights.part.halves.clone()
    }

    fn ends(&self) -> Result<&EndWeights, StepError> {
        self.weights.ends.as_ref().ok_or(StepError::EndsElsewhere)
    }

    /// The ends, if the half-blocks from the first on are loaded, too.
    fn beginning(&self) -> Result<&EndWeights, StepError> {
        let loaded = self.loaded();
        if loaded.start != 0 {
            let wanted = 0..loaded.end;
            return Err(StepError::HalvesElsewhere { loaded, wanted });
        }
        self.ends()
    }

    /// The ends, if all half-blocks are loaded, too.
    fn whole(&self) -> Result<&EndWeights, StepError> {
        let (loaded, wanted) = (self.loaded(), 0..self.halves());
        if loaded != wanted {
            return Err(StepError::HalvesElsewhere { loaded, wanted });
        }
        self.ends()
    }
}

/// What the file at `path` calls its model, or else what the file is called.
pub(crate) fn model_name(file: &Gguf, path: &Path) -> String {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    file.metadata().str("general.name").map_or_else(stem, str::to_owned)
}

/// What pages of sequences in `halves` have room for.
pub(crate) fn shape(arch: &Arch, halves: &Range<usize>) -> Shape {
    Shape { layers: layers(halves).len(), kv_heads: arch.kv_heads, head: arch.head_dim }
}

/// The layers whose attention lies in `halves`: the even ones have a cache.
fn layers(halves: &Range<usize>) -> Range<usize> {
    halves.start.div_ceil(2)..halves.end.div_ceil(2)
}
