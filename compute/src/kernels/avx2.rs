//! AVX2: a register holds four columns of eight rows, so a sum of products of one row stays in its
//! own 32 bits from the first product to the last.
//!
//! Exact sums are kept in two halves: `low` wraps, `high` adds each term's upper 16 bits. Together
//! they give 48 bits and more, whatever the order ([`Limbs::total`]).

pub mod attention;
mod format;
mod panel;
mod settle;
mod sums;

use std::ops::Range;

use super::{Call, Group, Scratch};
use crate::matrix::TILE;
use format::*;

/// From this many tokens on a tile is unpacked once into memory for all of them; fewer unpack it in
/// registers each time, four tokens at once. Codes of K-quants take more work to unpack.
const fn panel_min<F: Format>() -> usize {
    if F::LAYOUT.columns == 64 { 13 } else { 9 }
}

/// # Safety
/// The processor has AVX2, and `call` has been checked by `Kernels::group`.
#[target_feature(enable = "avx2")]
pub unsafe fn group(call: &Call, tiles: Range<usize>, scratch: &mut Scratch, out: &mut [Group]) {
    use crate::gguf::TensorType as T;
    // SAFETY: the caller's promise is handed on.
    unsafe {
        match call.matrix.kind {
            T::F32 | T::F16 | T::BF16 => group_of::<Floats>(call, tiles, scratch, out),
            T::Q4_0 => group_of::<Q4_0>(call, tiles, scratch, out),
            T::Q4_1 => group_of::<Q4_1>(call, tiles, scratch, out),
            T::Q5_0 => group_of::<Q5_0>(call, tiles, scratch, out),
            T::Q5_1 => group_of::<Q5_1>(call, tiles, scratch, out),
            T::Q8_0 => group_of::<Q8_0>(call, tiles, scratch, out),
            T::Q2_K => group_of::<Q2_K>(call, tiles, scratch, out),
            T::Q3_K => group_of::<Q3_K>(call, tiles, scratch, out),
            T::Q4_K => group_of::<Q4_K>(call, tiles, scratch, out),
            T::Q5_K => group_of::<Q5_K>(call, tiles, scratch, out),
            T::Q6_K => group_of::<Q6_K>(call, tiles, scratch, out),
            T::IQ4_NL => group_of::<IQ4_NL>(call, tiles, scratch, out),
            T::IQ4_XS => group_of::<IQ4_XS>(call, tiles, scratch, out),
        }
    }
}

#[target_feature(enable = "avx2")]
unsafe fn group_of<F: Format>(
    call: &Call,
    tiles: Range<usize>,
    scratch: &mut Scratch,
    out: &mut [Group],
) {
    let first = tiles.start;
    for tile in tiles {
        let units = call.matrix.tile(tile);
        let at = (tile - first) * TILE;
        // SAFETY: a tile holds `units()` whole units; the activations are as wide as they are
        // (checked by `Kernels::group`), rounded up to 64 columns.
        unsafe {
            if out.len() < panel_min::<F>() {
                run(call, tile, format::Packed::<F>::new(units), out, at);
            } else {
                panel::unpack::<F>(units, &mut scratch.panel);
                let source = panel::Panel::<F>::new(&scratch.panel, units.len() / F::LAYOUT.bytes);
                run(call, tile, source, out, at);
            }
        }
    }
}

/// Four tokens at a time, then what is left.
#[inline(always)]
unsafe fn run<S: Source>(call: &Call, tile: usize, source: S, out: &mut [Group], at: usize) {
    let mut i = 0;
    // SAFETY: tokens `start + i..start + i + N` exist in the activations.
    unsafe {
        while i + 4 <= out.len() {
            some::<S, 4>(call, tile, source, i, out, at);
            i += 4;
        }
        match out.len() - i {
            3 => some::<S, 3>(call, tile, source, i, out, at),
            2 => some::<S, 2>(call, tile, source, i, out, at),
            1 => some::<S, 1>(call, tile, source, i, out, at),
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn some<S: Source, const N: usize>(
    call: &Call,
    tile: usize,
    source: S,
    i: usize,
    out: &mut [Group],
    at: usize,
) {
    let blocks = call.matrix.units() * S::F::LAYOUT.columns / 32;
    // K-quants have whole units; other types were padded to 64 columns, as activations are.
    debug_assert!(blocks * 32 <= call.x.width);
    // SAFETY: see `run`.
    unsafe {
        let zero = [std::arch::x86_64::_mm256_setzero_si256(); 2];
        let mut sums = [sums::Sums { dot: zero, min: zero }; N];
        sums::of::<S, N>(source, blocks, call.x, call.tokens.start + i, &mut sums);
        let (exponents, min_exponents) = call.matrix.tile_exponents(tile);
        for n in 0..N {
            let unit = &call.units[i + n];
            let y = settle::settle(&sums[n], unit, exponents, min_exponents, S::F::LAYOUT.m != 0);
            let to: &mut [i32] = &mut out[i + n][at..at + TILE];
            std::arch::x86_64::_mm256_storeu_si256(to.as_mut_ptr().cast(), y);
        }
    }
}
