//! One pass of some tokens, of one sequence or several, through a range of half-blocks.
//!
//! Half-block `2 l` is layer `l`'s attention, `2 l + 1` its feed-forward half. What enters and
//! leaves is the residual as block floats, so a pass through `0..n` equals any chain of passes
//! through its parts, bit for bit. Tokens of different sequences share the reading of weights and
//! nothing else: what becomes of one does not depend on who is beside it.
//!
//! All threads run [`Pass::run`] together; each phase between two meetings says who writes what.

use std::ops::Range;

use crate::kernels::attention::{self, Averages, Queries, Seen};
use crate::kernels::{Group, Kernels, Norm, ROWS, Results, Scratch};
use crate::kv::{HeadCache, PAGE, Place};
use crate::matrix::Matrix;
use crate::numeric::activation::{Activations, Rows, Token};
use crate::numeric::attention::{HeadScale, QueryFactor, Rotation, Treatment};
use crate::numeric::block::{BlockVec, Blocks, BlocksMut, GROUP};
use crate::numeric::matmul::Unit;
use crate::numeric::scalar::Factor;
use crate::pool::Team;
use crate::share::Shared;
use crate::weights::{Attention, FeedForward, HalfWeights, Weights};

/// Block floats of several tokens, to be shared among threads.
struct SharedBlocks<'a> {
    m: Shared<'a, i16>,
    e: Shared<'a, i8>,
    /// Numbers in a row, a multiple of 32.
    width: usize,
}

impl<'a> SharedBlocks<'a> {
    fn new(all: &'a mut BlockVec, width: usize) -> Self {
        let BlockVec { m, e } = all;
        Self { m: Shared::new(m), e: Shared::new(e), width: width.next_multiple_of(GROUP) }
    }

    /// # Safety
    /// As [`Shared::read`].
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> Blocks<'a> {
        let (w, g) = (self.width, self.width / GROUP);
        // SAFETY: handed on.
        unsafe {
            Blocks {
                m: self.m.read(row * w..(row + 1) * w),
                e: self.e.read(row * g..(row + 1) * g),
            }
        }
    }

    /// # Safety
    /// As [`Shared::write`].
    #[inline(always)]
    unsafe fn row_mut(&self, row: usize) -> BlocksMut<'a> {
        let (w, g) = (self.width, self.width / GROUP);
        // SAFETY: handed on.
        unsafe {
            BlocksMut {
                m: self.m.write(row * w..(row + 1) * w),
                e: self.e.write(row * g..(row + 1) * g),
            }
        }
    }

    /// Block `g` of a row.
    ///
    /// # Safety
    /// As [`Shared::write`].
    #[inline(always)]
    unsafe fn block_mut(&self, row: usize, g: usize) -> (&'a mut [i16; GROUP], &'a mut i8) {
        let at = row * self.width / GROUP + g;
        // SAFETY: handed on.
        let (m, e) =
            unsafe { (self.m.write(at * GROUP..(at + 1) * GROUP), self.e.write(at..at + 1)) };
        (m.try_into().expect("a block has 32 numbers"), &mut e[0])
    }
}

/// Memory that passes reuse. It grows to what the largest pass needed.
#[derive(Debug, Default)]
pub struct Workspace {
    normed: BlockVec,
    qkv: BlockVec,
    result: BlockVec,
    hidden: BlockVec,
    /// Query heads, `[tokens][heads][head]`, and their factors.
    queries: Vec<i8>,
    factors: Vec<QueryFactor>,
    /// Averages of values, `[tokens][heads][head]`, and the exponents of their units.
    averages: Vec<i32>,
    average_units: Vec<i32>,
    /// `[rotation][token]`.
    rotations: Vec<Vec<Rotation>>,
    at: Vec<At>,
    narrow: Activations,
    heads: Activations,
    wide: Activations,
    threads: Vec<Private>,
}

/// What each thread has for itself.
#[derive(Debug, Default)]
struct Private {
    scratch: Scratch,
    units: Vec<Unit>,
    second_units: Vec<Unit>,
    first: Vec<Group>,
    second: Vec<Group>,
    attention: attention::Scratch,
    spare: BlockVec,
}

/// What a pass computes with.
pub struct Pass<'a> {
    /// The model.
    pub weights: &'a Weights,
    /// How.
    pub kernels: Kernels,
    /// The sequences that take part, each with the next of its tokens.
    pub spans: &'a [Span],
}

/// The part of one sequence in a pass.
#[derive(Debug)]
pub struct Span {
    /// Position of the first token.
    pub position: usize,
    /// Tokens, one after another.
    pub tokens: usize,
    /// The sequence's pages, with room for these tokens in pages of its own.
    pub places: Vec<Place>,
}

/// Whose a token is, and where in its sequence it stands.
#[derive(Debug, Clone, Copy)]
struct At {
    span: usize,
    position: usize,
}

/// A pass with its buffers, as all threads see it.
struct Run<'a> {
    weights: &'a Weights,
    kernels: Kernels,
    spans: &'a [Span],
    tokens: usize,
    /// One for each token.
    at: &'a [At],
    residual: SharedBlocks<'a>,
    normed: SharedBlocks<'a>,
    qkv: SharedBlocks<'a>,
    result: SharedBlocks<'a>,
    hidden: SharedBlocks<'a>,
    queries: Shared<'a, i8>,
    factors: Shared<'a, QueryFactor>,
    averages: Shared<'a, i32>,
    average_units: Shared<'a, i32>,
    rotations: &'a [Vec<Rotation>],
    narrow: SharedActivations<'a>,
    heads: SharedActivations<'a>,
    wide: SharedActivations<'a>,
    threads: Shared<'a, Private>,
}

/// Activations whose rows different threads write.
struct SharedActivations<'a> {
    all: *mut Activations,
    q: Shared<'a, i8>,
    a: Shared<'a, i16>,
    sums: Shared<'a, i16>,
    half_sums: Shared<'a, i16>,
    t: Shared<'a, i16>,
    half_t: Shared<'a, i16>,
    tokens: Shared<'a, Token>,
    width: usize,
}

// SAFETY: rows are written by one thread each, and the whole is read only after a meeting.
unsafe impl Send for SharedActivations<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedActivations<'_> {}

impl<'a> SharedActivations<'a> {
    fn new(all: &'a mut Activations) -> Self {
        let pointer: *mut Activations = all;
        Self {
            q: Shared::new(&mut all.q),
            a: Shared::new(&mut all.a),
            sums: Shared::new(&mut all.sums),
            half_sums: Shared::new(&mut all.half_sums),
            t: Shared::new(&mut all.t),
            half_t: Shared::new(&mut all.half_t),
            tokens: Shared::new(&mut all.tokens),
            width: all.width,
            all: pointer,
        }
    }

    /// # Safety
    /// As [`Shared::write`], for row `row`.
    unsafe fn row(&self, row: usize) -> Rows<'a> {
        let (w, b, h) = (self.width, self.width / 32, self.width / 16);
        // SAFETY: handed on.
        unsafe {
            Rows {
                width: w,
                q: self.q.write(row * w..(row + 1) * w),
                a: self.a.write(row * b..(row + 1) * b),
                sums: self.sums.write(row * b..(row + 1) * b),
                half_sums: self.half_sums.write(row * h..(row + 1) * h),
                t: self.t.write(row * b..(row + 1) * b),
                half_t: self.half_t.write(row * h..(row + 1) * h),
                tokens: self.tokens.write(row..row + 1),
            }
        }
    }

    /// # Safety
    /// As [`Shared::read`], for everything.
    unsafe fn read(&self) -> &'a Activations {
        // SAFETY: nobody writes now, by the caller's promise; the pointer is the one that the
        // shared parts came from.
        unsafe { &*self.all }
    }
}

impl Workspace {
    fn prepare(&mut self, weights: &Weights, spans: &[Span], threads: usize) {
        let arch = &weights.arch;
        self.at.clear();
        for (i, span) in spans.iter().enumerate() {
            let positions = span.position..span.position + span.tokens;
            self.at.extend(positions.map(|position| At { span: i, position }));
        }
        let tokens = self.at.len();
        let grow = |v: &mut BlockVec, width: usize| {
            let size = tokens * width.next_multiple_of(GROUP);
            v.m.resize(size, 0);
            v.e.resize(size / GROUP, 0);
        };
        grow(&mut self.normed, arch.width);
        grow(&mut self.qkv, qkv_width(weights));
        grow(&mut self.result, arch.width);
        grow(&mut self.hidden, arch.ff);
        self.queries.resize(tokens * arch.query_width(), 0);
        self.factors.resize(tokens * arch.heads, QueryFactor { m: 0, e: 0 });
        self.averages.resize(tokens * arch.query_width(), 0);
        self.average_units.resize(tokens * arch.heads, 0);
        self.narrow.resize(tokens, arch.width);
        self.heads.resize(tokens, arch.query_width());
        self.wide.resize(tokens, arch.ff);
        self.threads.resize_with(threads, Private::default);
        self.rotations.resize_with(weights.increments.len(), Vec::new);
        for (rotations, increments) in self.rotations.iter_mut().zip(&weights.increments) {
            rotations.resize_with(tokens, Rotation::default);
            for (at, rotation) in self.at.iter().zip(rotations.iter_mut()) {
                rotation.at(at.position as u32, increments);
            }
        }
    }
}

/// Width of a row of queries, keys and values, each padded to whole blocks.
fn qkv_width(weights: &Weights) -> usize {
    let kv = weights.arch.kv_width().next_multiple_of(GROUP);
    weights.arch.query_width().next_multiple_of(GROUP) + 2 * kv
}

impl Pass<'_> {
    /// Takes `residual`, the rows of all spans, through `halves` on all threads of `pool`. Layer 0
    /// of the pages is `first_layer`; a pass reads and writes those of the attention halves in it.
    pub fn run(
        &self,
        pool: &crate::pool::Pool,
        halves: Range<usize>,
        residual: &mut BlockVec,
        first_layer: usize,
        space: &mut Workspace,
    ) {
        space.prepare(self.weights, self.spans, pool.count());
        let arch = &self.weights.arch;
        let run = Run {
            weights: self.weights,
            kernels: self.kernels,
            spans: self.spans,
            tokens: space.at.len(),
            at: &space.at,
            residual: SharedBlocks::new(residual, arch.width),
            normed: SharedBlocks::new(&mut space.normed, arch.width),
            qkv: SharedBlocks::new(&mut space.qkv, qkv_width(self.weights)),
            result: SharedBlocks::new(&mut space.result, arch.width),
            hidden: SharedBlocks::new(&mut space.hidden, arch.ff),
            queries: Shared::new(&mut space.queries),
            factors: Shared::new(&mut space.factors),
            averages: Shared::new(&mut space.averages),
            average_units: Shared::new(&mut space.average_units),
            rotations: &space.rotations,
            narrow: SharedActivations::new(&mut space.narrow),
            heads: SharedActivations::new(&mut space.heads),
            wide: SharedActivations::new(&mut space.wide),
            threads: Shared::new(&mut space.threads),
        };
        pool.run(&|team| {
            // SAFETY: each thread takes the entry with its own number.
            let private = unsafe { &mut run.threads.write(team.id..team.id + 1)[0] };
            for half in halves.clone() {
                match run.weights.half(half) {
                    HalfWeights::Attention(own) => {
                        run.attention(team, private, own, half / 2 - first_layer);
                    }
                    HalfWeights::FeedForward(own) => run.feed_forward(team, private, own),
                }
            }
        });
    }
}

impl Run<'_> {
    fn attention(&self, team: &Team, private: &mut Private, layer: &Attention, index: usize) {
        self.norm_residual(team, &layer.norm);
        team.meet();
        self.project(team, private, layer);
        team.meet();
        self.store_heads(team, layer, index);
        team.meet();
        self.attend(team, private, layer, index);
        team.meet();
        self.collect_heads(team, private);
        team.meet();
        let post = layer.post_norm.as_ref();
        // SAFETY: the heads were written before the last meeting.
        let x = unsafe { self.heads.read() };
        self.join(team, private, &layer.output, x, post);
    }

    fn feed_forward(&self, team: &Team, private: &mut Private, layer: &FeedForward) {
        self.norm_residual(team, &layer.norm);
        team.meet();
        self.gate_up(team, private, layer);
        team.meet();
        team.each(self.tokens, 1, |token| {
            // SAFETY: each token has its own row, and `hidden` is only read in this phase.
            let (hidden, mut rows) = unsafe { (self.hidden.row(token), self.wide.row(token)) };
            self.kernels.quantise(hidden, Factor::ONE, &mut rows, 0);
        });
        team.meet();
        let post = layer.post_norm.as_ref();
        // SAFETY: the rows were written before the last meeting.
        let x = unsafe { self.wide.read() };
        self.join(team, private, &layer.down, x, post);
    }

    /// Normalises and quantises the residual, token by token, into `narrow`.
    fn norm_residual(&self, team: &Team, weights: &BlockVec) {
        let norm = Norm { weights: weights.view(), epsilon: self.weights.width_epsilon };
        team.each(self.tokens, 1, |token| {
            // SAFETY: each token has its own rows; the residual is only read in this phase.
            unsafe {
                let mut spare = self.normed.row_mut(token);
                let mut rows = self.narrow.row(token);
                let x = self.residual.row(token);
                self.kernels.norm_quantise(x, norm, &mut spare, &mut rows, 0);
            }
        });
    }

    /// Queries, keys and values, with their biases.
    fn project(&self, team: &Team, private: &mut Private, layer: &Attention) {
        // SAFETY: written before the last meeting.
        let x = unsafe { self.narrow.read() };
        let groups = [&layer.query, &layer.key, &layer.value].map(|m| m.rows.div_ceil(ROWS));
        let starts = [0, groups[0], groups[0] + groups[1]];
        team.each(groups.iter().sum(), 1, |g| {
            let which = if g < starts[1] { 0 } else { 1 + usize::from(g >= starts[2]) };
            let matrix = [&layer.query, &layer.key, &layer.value][which];
            let own = g - starts[which];
            self.multiply(matrix, own, x, private);
            for token in 0..self.tokens {
                // SAFETY: group `g` of every row is this thread's in this phase.
                let (m, e) = unsafe { self.qkv.block_mut(token, g) };
                let y = Results { y: &private.first[token], unit: private.units[token].exponent };
                self.kernels.encode_block(y, m, e);
                if let Some(biases) = &layer.biases {
                    let (bias, be) = biases[which].view().block(own);
                    add_bias(m, e, bias, be);
                }
            }
        });
    }

    /// Quantises heads: queries into their buffer, keys and values into the cache.
    fn store_heads(&self, team: &Team, layer: &Attention, index: usize) {
        let arch = &self.weights.arch;
        let (head, heads, kv_heads) = (arch.head_dim, arch.heads, arch.kv_heads);
        let key_start = arch.query_width().next_multiple_of(GROUP);
        let value_start = key_start + arch.kv_width().next_multiple_of(GROUP);
        let per_token = heads + 2 * kv_heads;
        let pairing = arch.rope.pairing;
        team.each(self.tokens * per_token, 4, |i| {
            let (token, h) = (i / per_token, i % per_token);
            let norm = |which: usize| {
                let norms = layer.head_norms.as_ref();
                norms.map(|norms| (norms[which].view(), self.weights.head_epsilon))
            };
            let rotation = &self.rotations[layer.rotation][token];
            let treat = |which| Some(Treatment { norm: norm(which), rotation, pairing });
            // SAFETY: `qkv` is only read in this phase; each (token, head) is one thread's.
            unsafe {
                let x = self.qkv.row(token);
                if h < heads {
                    let at = token * heads + h;
                    let q = self.queries.write(at * head..(at + 1) * head);
                    let mut scale = HeadScale::default();
                    self.kernels.quantise_head(x, h * head, treat(0), q, &mut scale);
                    let factor = QueryFactor::new(scale, self.weights.score);
                    self.factors.write(at..at + 1)[0] = factor;
                    return;
                }
                let mut q = [0i8; crate::numeric::attention::HEAD_MAX];
                let q = &mut q[..head];
                let At { span, position } = self.at[token];
                let (place, at) = (self.spans[span].places[position / PAGE], position % PAGE);
                if h < heads + kv_heads {
                    let h = h - heads;
                    let mut scale = HeadScale::default();
                    let start = key_start + h * head;
                    self.kernels.quantise_head(x, start, treat(1), q, &mut scale);
                    place.put_key((index, h), at, q, scale);
                } else {
                    let h = h - heads - kv_heads;
                    let mut scale = HeadScale::default();
                    let start = value_start + h * head;
                    self.kernels.quantise_head(x, start, None, q, &mut scale);
                    place.put_value((index, h), at, q, scale);
                }
            }
        });
    }

    /// Every query head over what it may see.
    fn attend(&self, team: &Team, private: &mut Private, layer: &Attention, index: usize) {
        let arch = &self.weights.arch;
        let (head, heads) = (arch.head_dim, arch.heads);
        let per_kv = heads / arch.kv_heads;
        // Heads that share keys and values go together, unless threads would be idle.
        let enough = self.tokens * arch.kv_heads >= 4 * team.count;
        let together = if enough { per_kv } else { per_kv.min(2) };
        let per_token = arch.kv_heads * per_kv.div_ceil(together);
        // Late positions, which see most, first.
        team.each(self.tokens * per_token, 1, |i| {
            let (token, part) = (self.tokens - 1 - i / per_token, i % per_token);
            let kv_head = part % arch.kv_heads;
            let first_head = part / arch.kv_heads * together;
            let own = together.min(per_kv - first_head);
            let At { span, position } = self.at[token];
            let last = position + 1;
            let first = layer.window.map_or(0, |window| last.saturating_sub(window));
            let at = token * heads + kv_head * per_kv + first_head;
            // SAFETY: queries and cache are only read in this phase; each head's average is one
            // thread's.
            unsafe {
                let cache = HeadCache::new(&self.spans[span].places, index, kv_head);
                let seen = Seen { cache, positions: first..last };
                let queries = Queries {
                    q: self.queries.read(at * head..(at + own) * head),
                    factors: self.factors.read(at..at + own),
                };
                let mut to = Averages {
                    out: self.averages.write(at * head..(at + own) * head),
                    units: self.average_units.write(at..at + own),
                };
                self.kernels.attend(&seen, queries, &mut to, &mut private.attention);
            }
        });
    }

    /// Quantises all heads of a token together. A block that two heads share takes the larger of
    /// their exponents.
    fn collect_heads(&self, team: &Team, private: &mut Private) {
        let arch = &self.weights.arch;
        let (head, heads, width) = (arch.head_dim, arch.heads, arch.query_width());
        team.each(self.tokens, 1, |token| {
            let spare = &mut private.spare;
            spare.m.resize(width, 0);
            spare.e.resize(width / GROUP, 0);
            // SAFETY: averages are only read in this phase; each token's row is one thread's.
            unsafe {
                let averages = self.averages.read(token * width..(token + 1) * width);
                let units = self.average_units.read(token * heads..(token + 1) * heads);
                for g in 0..width / GROUP {
                    let own = &units[g * GROUP / head..=((g + 1) * GROUP - 1) / head];
                    let top = own.iter().copied().max().expect("a block lies in some head");
                    let z = std::array::from_fn(|i| {
                        let at = g * GROUP + i;
                        let down = (top - units[at / head]) as u32;
                        crate::numeric::bits::round_shift_32(averages[at], down)
                    });
                    let (m, e) = (&mut spare.m[g * GROUP..][..GROUP], &mut spare.e[g]);
                    let m = m.try_into().expect("a block has 32 numbers");
                    self.kernels.encode_block(Results { y: &z, unit: top }, m, e);
                }
                let mut rows = self.heads.row(token);
                self.kernels.quantise(spare.view(), Factor::ONE, &mut rows, 0);
            }
        });
    }

    /// Gate and up, bent and multiplied, into `hidden`.
    fn gate_up(&self, team: &Team, private: &mut Private, layer: &FeedForward) {
        // SAFETY: written before the last meeting.
        let x = unsafe { self.narrow.read() };
        let kind = self.weights.arch.activation;
        team.each(layer.gate.rows.div_ceil(ROWS), 1, |g| {
            self.multiply(&layer.gate, g, x, private);
            std::mem::swap(&mut private.first, &mut private.second);
            std::mem::swap(&mut private.units, &mut private.second_units);
            self.multiply(&layer.up, g, x, private);
            for token in 0..self.tokens {
                // SAFETY: group `g` of every row is this thread's in this phase.
                let (m, e) = unsafe { self.hidden.block_mut(token, g) };
                let unit = private.second_units[token].exponent;
                let gate = Results { y: &private.second[token], unit };
                let up = Results { y: &private.first[token], unit: private.units[token].exponent };
                self.kernels.gate_block(kind, gate, up, m, e);
            }
        });
    }

    /// Multiplies `x` and adds the result to the residual, through a norm if there is one.
    fn join(
        &self,
        team: &Team,
        private: &mut Private,
        matrix: &Matrix,
        x: &Activations,
        post: Option<&BlockVec>,
    ) {
        team.each(matrix.rows.div_ceil(ROWS), 1, |g| {
            self.multiply(matrix, g, x, private);
            for token in 0..self.tokens {
                let y = Results { y: &private.first[token], unit: private.units[token].exponent };
                // SAFETY: group `g` of every row is this thread's in this phase.
                unsafe {
                    if post.is_some() {
                        let (m, e) = self.result.block_mut(token, g);
                        self.kernels.encode_block(y, m, e);
                    } else {
                        let (m, e) = self.residual.block_mut(token, g);
                        self.kernels.add_block(y, m, e);
                    }
                }
            }
        });
        team.meet();
        let Some(post) = post else { return };
        let norm = Norm { weights: post.view(), epsilon: self.weights.width_epsilon };
        team.each(self.tokens, 1, |token| {
            // SAFETY: each token's rows are one thread's; `result` is only read.
            unsafe {
                let mut spare = self.normed.row_mut(token);
                let mut x = self.residual.row_mut(token);
                self.kernels.norm_add(&mut x, self.result.row(token), norm, &mut spare);
            }
        });
        team.meet();
    }

    /// One group of a matrix for all tokens, into `private.first` in `private.units`.
    fn multiply(&self, matrix: &Matrix, g: usize, x: &Activations, private: &mut Private) {
        private.units.clear();
        private.units.extend(x.tokens[..self.tokens].iter().map(|token| matrix.unit(token)));
        private.first.resize(self.tokens, [0; ROWS]);
        let Private { units, first, scratch, .. } = private;
        self.kernels.group(matrix, g, x, 0..self.tokens, units, scratch, first);
    }
}

/// Adds one block of a bias.
fn add_bias(m: &mut [i16; GROUP], e: &mut i8, bias: &[i16; GROUP], be: i8) {
    let mut sum = ([0; GROUP], [0]);
    let (x, y) = (Blocks { m: &*m, e: &[*e] }, Blocks { m: bias, e: &[be] });
    crate::numeric::block::add(x, y, &mut BlocksMut { m: &mut sum.0, e: &mut sum.1 });
    (*m, *e) = (sum.0, sum.1[0]);
}
