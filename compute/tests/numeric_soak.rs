//! Kernels against each other and the definition, for as long as one likes.
//!
//! Some ten thousand rows by default; with `CADENCIA_SOAK=1` 10^8 of them, in release some minutes
//! on two cores. A *row* is one row of a matrix times one vector, its result by each kernel compared
//! with the definition's by `==`. A failure names the round; a round depends on its number alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use compute::gguf::TensorType;
use compute::kernels::{Kernels, Norm, ROWS, Results, Scratch};
use compute::matrix::{Arena, Exponents, Layout, Matrix, TILE, pack_tile};
use compute::numeric::activation::Activations;
use compute::numeric::block::{BlockVec, GROUP, ZERO};
use compute::numeric::functions::Gate;
use compute::numeric::norm::Epsilon;
use compute::numeric::scalar::{Factor, Positive, reciprocal};
use compute::numeric::weights;

/// Rows compared in the long form.
const ROWS_LONG: u64 = 100_000_000;
/// Rows compared where nobody asked for more.
const ROWS_SHORT: u64 = 30_000;
/// The longest row that a model may have.
const COLS_MAX: usize = 53_248;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn within(&mut self, range: Range<usize>) -> usize {
        range.start + (self.next() % range.len() as u64) as usize
    }
}

/// What a round computes.
#[derive(Debug, Clone, Copy)]
struct Round {
    number: u64,
    kind: TensorType,
    rows: usize,
    cols: usize,
    tokens: usize,
    /// How the file's bytes are made: 0 to 3 are the same over and over, from 4 on any.
    fill: usize,
    /// How vectors are made: 0 and 1 are as loud as they can be, from 2 on any.
    vectors: usize,
}

impl Round {
    fn new(number: u64) -> (Self, Dice) {
        let mut dice = Dice(number);
        let kind = TensorType::ALL[dice.within(0..TensorType::ALL.len())];
        // Most rows are short, so that there are many; one round in 64 has rows as long as they get.
        let most = match dice.within(0..64) {
            0 => COLS_MAX,
            1..=16 => 4096,
            _ => 768,
        };
        let step = kind.block_len().max(32);
        let cols = if most == COLS_MAX && dice.next() & 1 == 0 {
            COLS_MAX
        } else {
            step * dice.within(1..most / step + 1)
        };
        let rows = if cols > 4096 { dice.within(1..10) } else { dice.within(1..97) };
        let tokens = dice.within(1..14);
        let (fill, vectors) = (dice.within(0..9), dice.within(0..6));
        (Self { number, kind, rows, cols, tokens, fill, vectors }, dice)
    }

    /// Compares all kernels on all rows and vectors.
    fn run(number: u64) -> u64 {
        let (round, mut dice) = Self::new(number);
        let file = round.file(&mut dice);
        let matrix = matrix(round.kind, (round.rows, round.cols), &file);
        let x = round.activations(&file, &mut dice);
        let units: Vec<_> = x.tokens.iter().map(|token| matrix.unit(token)).collect();
        let mut scratch = Scratch::default();
        for g in 0..round.rows.div_ceil(ROWS) {
            let mut run = |kernels: Kernels| {
                let mut out = vec![[0; ROWS]; round.tokens];
                kernels.group(&matrix, g, &x, 0..round.tokens, &units, &mut scratch, &mut out);
                out
            };
            let portable = run(Kernels::Portable);
            assert!(portable.iter().flatten().all(|y| y.unsigned_abs() <= 1 << 30), "{round:?}");
            if let Some(avx2) = Kernels::avx2() {
                assert!(run(avx2) == portable, "{round:?}: AVX2 in group {g}");
            }
            assert!(run(Kernels::Reference) == portable, "{round:?}: definition in group {g}");
        }
        (round.rows * round.tokens) as u64
    }

    /// The matrix as a file has it.
    fn file(&self, dice: &mut Dice) -> Vec<u8> {
        let size = self.kind.block_bytes();
        let len = self.rows * self.cols / self.kind.block_len() * size;
        let (byte, half) = [(0xff, 0x7bff), (0, 0xfbff), (0x7f, 0x7bff), (0x80, 0xfbff), (0x55, 1)]
            [self.fill.min(4)];
        let mut bytes: Vec<u8> = if self.fill < 5 {
            vec![byte; len]
        } else {
            (0..len.div_ceil(8)).flat_map(|_| dice.next().to_le_bytes()).take(len).collect()
        };
        for block in bytes.chunks_exact_mut(size) {
            for &at in halves(self.kind) {
                let half = if self.fill < 5 {
                    half
                } else {
                    // Any exponent but the one of infinity; often all alike, then far apart.
                    let x = dice.next() as u16;
                    if self.fill < 7 { x & 0xbfff } else { x & 0x83ff | 0x3400 }
                };
                block[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
        bytes
    }

    /// Vectors to multiply with; of the loud ones each number has the sign of the first row's.
    fn activations(&self, file: &[u8], dice: &mut Dice) -> Activations {
        let bytes = &file[..file.len() / self.rows];
        let first = weights::row(self.kind, bytes).expect("all scales are finite");
        let mut x = Activations::default();
        x.resize(self.tokens, self.cols);
        for token in 0..self.tokens {
            let mut row = BlockVec::zeros(self.cols);
            for g in 0..self.cols / GROUP {
                let z: [i32; GROUP] = std::array::from_fn(|i| {
                    let sign = if first.q[g * GROUP + i] < 0 { -1 } else { 1 };
                    match self.vectors {
                        0 => 32_767 * sign,
                        1 => {
                            if token & 1 == 0 {
                                32_767
                            } else {
                                -32_767
                            }
                        }
                        _ => (dice.next() as i32) >> 3,
                    }
                });
                let unit = match self.vectors {
                    0 | 1 => 0,
                    2 => dice.within(0..60) as i32 - 30,
                    _ => dice.within(0..8) as i32 - 20,
                };
                row.view_mut().encode(g, &z, unit);
            }
            let m = if self.vectors < 2 { 1 << 16 } else { dice.within(1 << 15..(1 << 16) + 1) };
            x.rows().quantise(token, row.view(), Factor { m: m as u32, e: -16 });
        }
        x
    }
}

/// Where a block of the file has halves, or the upper half of a float.
fn halves(kind: TensorType) -> &'static [usize] {
    use TensorType::*;
    match kind {
        F16 | BF16 | Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        F32 => &[2],
    }
}

fn matrix(kind: TensorType, (rows, cols): (usize, usize), file: &[u8]) -> Matrix {
    let layout = Layout::of(kind);
    let size = Matrix::bytes_needed(kind, rows, cols);
    let mut arena = Arena::new(size).unwrap();
    let mut found = Exponents::default();
    let row_bytes = file.len() / rows;
    let tile_bytes = cols.div_ceil(layout.columns) * layout.bytes;
    let file_rows: Vec<&[u8]> = file.chunks_exact(row_bytes).collect();
    for (rows, tile) in file_rows.chunks(TILE).zip(arena.bytes_mut().chunks_exact_mut(tile_bytes)) {
        pack_tile(&layout, rows, tile, &mut found).unwrap();
    }
    Matrix::new(kind, (rows, cols), Arc::new(arena), 0..size, found)
}

/// Whether the long form was asked for.
fn long() -> bool {
    std::env::var_os("CADENCIA_SOAK").is_some_and(|value| value == "1")
}

/// Runs rounds 0, 1, 2, ... on all processors until `wanted` rows are compared.
fn soak(what: &str, wanted: u64, round: impl Fn(u64) -> u64 + Sync) {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    let work = || {
        while done.load(Relaxed) < wanted {
            let rows = round(next.fetch_add(1, Relaxed));
            let before = done.fetch_add(rows, Relaxed);
            // A line for each fiftieth part.
            let part = |done: u64| done * 50 / wanted;
            if part(before + rows) > part(before) {
                let now = (before + rows) as f64 / 1e6;
                println!(
                    "{what}: {now:.2} million of {:.2}, {:.0?}",
                    wanted as f64 / 1e6,
                    started.elapsed()
                );
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
}

#[test]
fn kernels_agree_on_rows_soak() {
    soak("rows", if long() { ROWS_LONG } else { ROWS_SHORT }, Round::run);
}

/// The longest rows with the largest numbers that they can hold, aligned so that sums reach their
/// bounds, on every type.
#[test]
fn kernels_agree_at_the_bounds_soak() {
    let tokens: &[usize] = if long() { &[1, 2, 3, 4, 5, 6, 7, 8, 13] } else { &[1, 5] };
    let mut number = 0;
    for kind in TensorType::ALL {
        for fill in 0..5 {
            for vectors in 0..2 {
                for &tokens in tokens {
                    let round =
                        Round { number, kind, rows: 9, cols: COLS_MAX, tokens, fill, vectors };
                    at_the_bounds(round);
                    number += 1;
                }
            }
        }
    }
}

fn at_the_bounds(round: Round) {
    let mut dice = Dice(round.number);
    let file = round.file(&mut dice);
    let matrix = matrix(round.kind, (round.rows, round.cols), &file);
    let x = round.activations(&file, &mut dice);
    let units: Vec<_> = x.tokens.iter().map(|token| matrix.unit(token)).collect();
    let run = |kernels: Kernels| {
        let mut out = vec![[0; ROWS]; round.tokens];
        let scratch = &mut Scratch::default();
        kernels.group(&matrix, 0, &x, 0..round.tokens, &units, scratch, &mut out);
        out
    };
    let defined = run(Kernels::Reference);
    assert!(run(Kernels::Portable) == defined, "{round:?}: portable");
    if let Some(avx2) = Kernels::avx2() {
        assert!(run(avx2) == defined, "{round:?}: AVX2");
    }
}

/// What lies between matrices is the definition compiled twice, for narrow and wide registers.
#[test]
fn wide_registers_change_nothing_between_matrices_soak() {
    let Some(avx2) = Kernels::avx2() else { return };
    soak("blocks", if long() { 20_000_000 } else { 20_000 }, |number| between(avx2, number));
}

/// Compares 64 blocks and a row.
fn between(avx2: Kernels, number: u64) -> u64 {
    let mut dice = Dice(number);
    let mut wide = || -> [i32; GROUP] {
        let down = dice.within(0..30);
        std::array::from_fn(|_| (dice.next() as i32 >> 1).clamp(-(1 << 30), 1 << 30) >> down)
    };
    let pairs: Vec<_> = (0..64).map(|_| (wide(), wide())).collect();
    let units: Vec<_> = (0..64).map(|_| [0; 2].map(|_| dice.within(0..240) as i32 - 120)).collect();
    let mut row = BlockVec::zeros(64 * GROUP);
    let mut other = row.clone();
    for (g, ((x, y), units)) in pairs.iter().zip(&units).enumerate() {
        row.view_mut().encode(g, x, units[0] / 8 - 20);
        other.view_mut().encode(g, y, units[1] / 8 - 20);
        let run = |kernels: Kernels| {
            let (mut m, mut e) = ([0; GROUP], ZERO);
            let (x, y) = (Results { y: x, unit: units[0] }, Results { y, unit: units[1] });
            let mut all = Vec::new();
            for kind in [Gate::Silu, Gate::GeluTanh] {
                kernels.gate_block(kind, x, y, &mut m, &mut e);
                all.push((m, e));
                kernels.add_block(y, &mut m, &mut e);
                all.push((m, e));
            }
            kernels.encode_block(x, &mut m, &mut e);
            all.push((m, e));
            all
        };
        assert!(run(avx2) == run(Kernels::Portable), "round {number}, block {g}");
    }
    let epsilon = Epsilon { per_count: reciprocal(64 * GROUP), epsilon: Positive::from_f64(1e-6) };
    let run = |kernels: Kernels| {
        let norm = Norm { weights: other.view(), epsilon };
        let (mut spare, mut x) = (BlockVec::zeros(64 * GROUP), Activations::default());
        x.resize(2, 64 * GROUP);
        kernels.norm_quantise(row.view(), norm, &mut spare.view_mut(), &mut x.rows(), 0);
        kernels.quantise(row.view(), Factor::ONE, &mut x.rows(), 1);
        let mut sum = row.clone();
        kernels.norm_add(&mut sum.view_mut(), other.view(), norm, &mut spare.view_mut());
        (sum, x.q, x.a, x.sums, x.half_sums, x.t, x.half_t, x.tokens)
    };
    assert!(run(avx2) == run(Kernels::Portable), "round {number}: rows");
    64
}
