//! A model that answers: load a file, feed tokens, read logits.

mod head;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use thiserror::Error;

use crate::arch::{Arch, ArchError, CONTEXT_MAX};
use crate::forward::{Pass, Span, Workspace};
use crate::gguf::{Gguf, GgufError};
use crate::kernels::Kernels;
use crate::kv::{Cache, NoPage, Shape};
use crate::numeric::block::{self, BlockVec, Blocks, BlocksMut, GROUP};
use crate::pool::Pool;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::Weights;

pub use crate::kv::{PAGE, Page, Pages};

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

/// A contiguous range of half-blocks and the state of one sequence in them.
///
/// Half-block `2 l` is layer `l`'s attention, `2 l + 1` its feed-forward half. A chain of stages
/// that covers the model gives the bits of the whole.
#[derive(Debug)]
pub struct Stage {
    model: Arc<Model>,
    halves: Range<usize>,
    cache: Cache,
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
        let tokens = residual.m.len() / width;
        self.reserve(tokens)?;
        let span = self.span(tokens);
        self.model.pass(self.halves.clone(), residual, &[span]);
        Ok(())
    }

    /// Makes sure of room for `tokens` more.
    fn reserve(&mut self, tokens: usize) -> Result<(), StepError> {
        let wanted = self.position + tokens;
        let context_max = self.context_max;
        if wanted > context_max {
            return Err(StepError::ContextFull { context_max, wanted });
        }
        let pages_max = self.cache.home().max();
        let reserved = self.cache.reserve(&(self.position..wanted));
        reserved.map_err(|NoPage| StepError::NoPage { pages_max })
    }

    /// The next `tokens` as part of a pass; from now on they count as fed. Their room is reserved.
    fn span(&mut self, tokens: usize) -> Span {
        let position = self.position;
        self.position += tokens;
        Span { position, tokens, places: self.cache.places(&(position..self.position)) }
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
        self.cache.truncate(self.position);
    }
}

/// One sequence: its KV cache and position. Dropping it frees the cache.
#[derive(Debug)]
pub struct Session {
    stage: Stage,
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

    /// Its pages, in order. All but the last hold [`PAGE`] tokens.
    pub fn pages(&self) -> &[Arc<Page>] {
        self.stage.cache.pages()
    }

    /// Goes on with `pages` in place of its first ones, which hold the same: another sequence's, say,
    /// that has been fed the same tokens.
    ///
    /// # Panics
    /// Where there are more of them than full pages.
    pub fn exchange(&mut self, pages: Vec<Arc<Page>>) {
        assert!(pages.len() * PAGE <= self.position(), "only full pages are exchanged");
        self.stage.cache.exchange(pages);
    }

    /// How many pages must be had before `tokens` more can be fed.
    pub fn pages_wanted(&self, tokens: usize) -> usize {
        let position = self.stage.position;
        self.stage.cache.pages_wanted(&(position..position + tokens))
    }

    /// Runs `tokens` without computing logits. Long prompts are fed in pieces by the caller, so
    /// that it can show progress and stop; 512 at a time is efficient. Pieces never change bits.
    ///
    /// # Errors
    /// There is no room, or a token is unknown; the session is as it was.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        step(&mut [Feed { session: self, tokens, wanted: Wanted::Nothing }], &mut |_| {})
    }

    /// Runs `tokens` (one or more) and returns the logits after the last, one per vocabulary entry.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], StepError> {
        let mut logits = std::mem::take(&mut self.logits);
        let feed = Feed { session: self, tokens, wanted: Wanted::Last };
        let outcome = step(&mut [feed], &mut |found| {
            logits.clear();
            logits.extend_from_slice(found.numbers);
        });
        self.logits = logits;
        outcome.map(|()| &self.logits[..])
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
        let feed = Feed { session: self, tokens, wanted: Wanted::Each };
        step(&mut [feed], &mut |found| {
            let rows = found.numbers.chunks_exact(found.width);
            found.of.iter().zip(rows).for_each(|(&(_, token), row)| each(token, row));
        })
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.stage.rewind(position);
    }
}

/// What is wanted of the tokens that a sequence is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// That they are remembered.
    Nothing,
    /// The logits after the last of them.
    Last,
    /// The logits after each.
    Each,
    /// The vector of each after the last norm, as wide as the model: what logits are made of.
    Vectors,
}

/// Rows of what was wanted, in the order of feeds and of each feed's tokens.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Whose each row is: (index of the feed, index of its token).
    pub of: &'a [(usize, usize)],
    /// Numbers in a row.
    pub width: usize,
    /// `[rows][width]`; whoever takes them may change them.
    pub numbers: &'a mut [f32],
}

/// What one sequence is fed in a step.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub session: &'a mut Session,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// What is wanted of them.
    pub wanted: Wanted,
}

/// Feeds several sequences of one model together, so that weights are read once for all of them.
/// `take` receives what was wanted, in one call or several. Who else is in a step never changes
/// bits.
///
/// # Errors
/// There is no room in a sequence, there are no pages, or a token is unknown; all sequences are as
/// they were.
///
/// # Panics
/// Where the sessions are not all of one model.
pub fn step(feeds: &mut [Feed], take: &mut dyn FnMut(Rows)) -> Result<(), StepError> {
    let Some(first) = feeds.first() else { return Ok(()) };
    let model = first.session.stage.model.clone();
    // All of them before any, so that a refusal leaves the sessions as they were.
    for feed in feeds.iter() {
        assert!(Arc::ptr_eq(&feed.session.stage.model, &model), "sessions of different models");
        model.check_tokens(feed.tokens)?;
    }
    let reserved = feeds.iter_mut().try_for_each(|f| f.session.stage.reserve(f.tokens.len()));
    if let Err(error) = reserved {
        let as_it_was = |feed: &mut Feed| feed.session.rewind(feed.session.position());
        feeds.iter_mut().for_each(as_it_was);
        return Err(error);
    }
    let mut done = vec![0; feeds.len()];
    loop {
        let parts = share_out(feeds, &done, model.tokens_max());
        if parts.is_empty() {
            return Ok(());
        }
        pass(&model, feeds, &mut done, &parts, take);
    }
}

/// The next tokens of each feed that fit into one pass together: (feed, tokens), each not empty.
fn share_out(feeds: &[Feed], done: &[usize], tokens_max: usize) -> Vec<(usize, usize)> {
    let mut room = tokens_max;
    let mut parts = Vec::new();
    for (i, feed) in feeds.iter().enumerate() {
        let tokens = (feed.tokens.len() - done[i]).min(room);
        if tokens > 0 {
            parts.push((i, tokens));
            room -= tokens;
        }
    }
    parts
}

/// One pass of a step.
fn pass(
    model: &Model,
    feeds: &mut [Feed],
    done: &mut [usize],
    parts: &[(usize, usize)],
    take: &mut dyn FnMut(Rows),
) {
    let width = model.weights.arch.width;
    let tokens: usize = parts.iter().map(|(_, tokens)| tokens).sum();
    let mut residual = BlockVec::zeros(tokens * width);
    let mut spans = Vec::with_capacity(parts.len());
    // Rows that something is wanted of: which row, whose, and what.
    let mut wanted = Vec::new();
    let mut row = 0;
    for &(i, count) in parts {
        let feed = &mut feeds[i];
        let own = &feed.tokens[done[i]..][..count];
        for (n, &token) in own.iter().enumerate() {
            model.embed_row(token, &mut residual, row + n);
            let place = done[i] + n;
            let last = place + 1 == feed.tokens.len();
            if feed.wanted != Wanted::Nothing && (feed.wanted != Wanted::Last || last) {
                wanted.push((row + n, i, place, feed.wanted == Wanted::Vectors));
            }
        }
        spans.push(feed.session.stage.span(count));
        done[i] += count;
        row += count;
    }
    model.pass(0..model.halves(), &mut residual, &spans);
    let row_of = |row| residual_row(residual.view(), width, row);
    let (vectors, logits): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|wish| wish.3);
    for (row, feed, place, _) in vectors {
        let numbers = &mut head::vector(&model.weights, row_of(row));
        take(Rows { of: &[(feed, place)], width, numbers });
    }
    let of: Vec<_> = logits.iter().map(|(_, feed, place, _)| (*feed, *place)).collect();
    let rows: Vec<Blocks> = logits.iter().map(|(row, ..)| row_of(*row)).collect();
    let vocab = model.weights.arch.vocab;
    model.logits_in_parts(&rows, &mut |first, numbers| {
        let of = &of[first..][..numbers.len() / vocab];
        take(Rows { of, width: vocab, numbers });
    });
}

/// Row `row` of residual rows as wide as `width`.
fn residual_row(all: Blocks<'_>, width: usize, row: usize) -> Blocks<'_> {
    let groups = width / GROUP;
    Blocks { m: &all.m[row * width..][..width], e: &all.e[row * groups..][..groups] }
}
