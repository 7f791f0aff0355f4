//! How fast this machine multiplies and reads, measured with the kernels that will do the work.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use compute::engine::KernelChoice;
use compute::gguf::TensorType;
use compute::kernels::{Group, Kernels, ROWS, Scratch};
use compute::matrix::{Arena, Exponents, Layout, Matrix, TILE, pack_tile};
use compute::numeric::activation::Activations;
use compute::numeric::block::{BlockVec, GROUP};
use compute::numeric::scalar::Factor;

use crate::house::fitness::Rates;

/// The weight type that is measured: most files that people fetch are of it.
const KIND: TensorType = TensorType::Q4_K;
/// Columns: the width of a model with 8 billion weights.
const COLS: usize = 4096;
/// Memory that is read: more than the caches of a machine for the home, and little beside a model.
const BYTES: usize = 96 << 20;
/// Tokens of the product that counts as arithmetic: a chunk of a prompt.
const TOKENS: usize = 64;
/// Rows of it: they and their sums stay in the caches, as they do while a chunk is computed.
const ROWS_NEAR: usize = 512;
/// How long each measurement takes, in slices of which the best counts: the one least disturbed.
const SLICE: Duration = Duration::from_millis(100);
const SLICES: usize = 3;

/// Measures for some 0.6 s, with as many threads as will compute.
///
/// # Errors
/// The memory for it cannot be had.
pub fn measure(threads: usize, kernels: KernelChoice) -> io::Result<Rates> {
    measure_for(threads, kernels, (BYTES, SLICE))
}

fn measure_for(
    threads: usize,
    kernels: KernelChoice,
    (bytes, slice): (usize, Duration),
) -> io::Result<Rates> {
    let kernels = match kernels {
        KernelChoice::Auto => Kernels::fastest(),
        // One that is not there is refused where models are loaded.
        KernelChoice::Avx2 => Kernels::avx2().unwrap_or(Kernels::Portable),
        KernelChoice::Portable => Kernels::Portable,
        KernelChoice::Reference => Kernels::Reference,
    };
    let (matrix, x) = (synthetic(bytes)?, vectors());
    let groups = matrix.rows / ROWS;
    let best = |tokens: Range<usize>, groups: usize| {
        let rate =
            |_| rate(threads, slice, |run| run.groups(kernels, &matrix, &x, &tokens, groups));
        (0..SLICES).map(rate).fold(0.0, f64::max)
    };
    let read = best(0..1, groups) * (matrix.bytes() / groups) as f64;
    let products = (2 * ROWS * COLS * TOKENS) as f64;
    let gops = best(0..TOKENS, groups.min(ROWS_NEAR / ROWS)) * products;
    // At least 1, since 0 would say that nothing is known.
    let whole = |rate: f64| (rate as u32).max(1);
    Ok(Rates { int8_gops: whole(gops / 1e9), read_mb_s: whole(read / 1e6) })
}

/// One slice of a measurement, shared by its threads.
struct Run {
    next: AtomicUsize,
    end: Instant,
}

impl Run {
    /// Computes groups until the time is up.
    fn groups(
        &self,
        kernels: Kernels,
        matrix: &Matrix,
        x: &Activations,
        tokens: &Range<usize>,
        groups: usize,
    ) {
        let units: Vec<_> = x.tokens[tokens.clone()].iter().map(|t| matrix.unit(t)).collect();
        let mut out: Vec<Group> = vec![[0; ROWS]; units.len()];
        let mut scratch = Scratch::default();
        while Instant::now() < self.end {
            let g = self.next.fetch_add(1, Ordering::Relaxed) % groups;
            kernels.group(matrix, g, x, tokens.clone(), &units, &mut scratch, &mut out);
            std::hint::black_box(&out);
        }
    }
}

/// Groups a second.
fn rate(threads: usize, slice: Duration, work: impl Fn(&Run) + Sync) -> f64 {
    let begun = Instant::now();
    let run = Run { next: AtomicUsize::new(0), end: begun + slice };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(|| work(&run))));
        work(&run);
    });
    run.next.into_inner() as f64 / begun.elapsed().as_secs_f64()
}

/// A matrix of about `bytes`: one tile of any bits whose 16-bit words are finite floats, repeated.
fn synthetic(bytes: usize) -> io::Result<Matrix> {
    let layout = Layout::of(KIND);
    let size = COLS / KIND.block_len() * KIND.block_bytes();
    let mut state = 1;
    // Bit 14 is clear in each word, so that scales are finite, wherever they lie.
    let words = std::iter::repeat_with(|| (next(&mut state) as u16 & !0x4000).to_le_bytes());
    let file: Vec<u8> = words.flatten().take(TILE * size).collect();
    let rows: Vec<&[u8]> = file.chunks_exact(size).collect();
    let tile = Matrix::bytes_needed(KIND, TILE, COLS);
    let mut packed = vec![0; tile];
    let mut one = Exponents::default();
    pack_tile(&layout, &rows, &mut packed, &mut one).expect("no scale is infinite");
    let tiles = (bytes / tile).next_multiple_of(ROWS / TILE);
    let mut arena = Arena::new(tiles * tile)?;
    arena.bytes_mut().chunks_exact_mut(tile).for_each(|place| place.copy_from_slice(&packed));
    let repeated = |all: &[i32]| all.repeat(tiles);
    let found = Exponents { scales: repeated(&one.scales), mins: repeated(&one.mins) };
    Ok(Matrix::new(KIND, (tiles * TILE, COLS), Arc::new(arena), 0..tiles * tile, found))
}

fn vectors() -> Activations {
    let mut state = 2;
    let mut x = Activations::default();
    x.resize(TOKENS, COLS);
    for token in 0..TOKENS {
        let mut row = BlockVec::zeros(COLS);
        for g in 0..COLS / GROUP {
            let z = std::array::from_fn(|_| (next(&mut state) as i32) >> 4);
            row.view_mut().encode(g, &z, -(next(&mut state) as i32 & 7));
        }
        x.rows().quantise(token, row.view(), Factor::ONE);
    }
    x
}

/// SplitMix64: numbers that no kernel can take a short way through.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_rates_and_more_work_is_not_counted_than_done() {
        let small = (4 << 20, Duration::from_millis(20));
        let rates = measure_for(2, KernelChoice::Portable, small).unwrap();
        assert!(rates.int8_gops >= 1 && rates.read_mb_s >= 1, "{rates:?}");
        // No processor reads a terabyte a second or multiplies 10^15 times.
        assert!(rates.read_mb_s < 1_000_000 && rates.int8_gops < 1_000_000, "{rates:?}");
        let fast = measure_for(1, KernelChoice::Auto, small).unwrap();
        assert!(fast.int8_gops < 1_000_000 && fast.read_mb_s < 1_000_000, "{fast:?}");
    }
}
