//! A tile unpacked into memory, for many tokens: codes by block, then scales, then minima.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::format::{Format, Source, both, codes, mins, scales};
use crate::matrix::Family;

/// Registers of codes in a block.
const fn registers<F: Format>() -> usize {
    if matches!(F::LAYOUT.family, Family::Wide) { 16 } else { 8 }
}

/// Scales of a block.
const fn scales_per_block<F: Format>() -> usize {
    if F::PAIR == 64 { 1 } else { 2 }
}

/// Unpacks a tile's units into `panel`.
///
/// # Safety
/// AVX2; `units` holds whole units.
#[target_feature(enable = "avx2")]
pub unsafe fn unpack<F: Format>(units: &[u8], panel: &mut Vec<u8>) {
    let l = F::LAYOUT;
    let (blocks, pairs) = (l.columns / 32, l.columns / F::PAIR);
    let count = units.len() / l.bytes;
    let size = 32 * count * (blocks * (registers::<F>() + scales_per_block::<F>()) + pairs);
    if panel.len() < size {
        panel.resize(size, 0);
    }
    // SAFETY: the panel has room for all that is written, as `size` counts it.
    unsafe {
        let codes_at: *mut __m256i = panel.as_mut_ptr().cast();
        let scales_at = codes_at.add(count * blocks * registers::<F>());
        let mins_at = scales_at.add(count * blocks * scales_per_block::<F>());
        for u in 0..count {
            let unit = units.as_ptr().add(u * l.bytes);
            for block in 0..blocks {
                for k in 0..registers::<F>() {
                    let at = (u * blocks + block) * registers::<F>() + k;
                    _mm256_storeu_si256(
                        codes_at.add(at),
                        codes::<F>(unit, block & !3, block & 3, k),
                    );
                }
            }
            for pair in 0..pairs {
                let s = scales::<F>(unit, pair);
                let at = 2 * (u * pairs + pair);
                _mm256_storeu_si256(scales_at.add(at), both(s, 0));
                _mm256_storeu_si256(scales_at.add(at + 1), both(s, 1));
                if l.m != 0 {
                    let at = mins_at.add(u * pairs + pair);
                    _mm256_storeu_si256(at, mins::<F>(unit, pair));
                }
            }
        }
    }
}

/// An unpacked tile.
#[derive(Clone, Copy)]
pub struct Panel<'a, F> {
    codes: *const __m256i,
    scales: *const __m256i,
    mins: *const __m256i,
    life: PhantomData<(&'a [u8], F)>,
}

impl<'a, F: Format> Panel<'a, F> {
    /// Of `count` units, as [`unpack`] left them.
    pub fn new(panel: &'a [u8], count: usize) -> Self {
        let blocks = count * F::LAYOUT.columns / 32;
        let pairs = count * F::LAYOUT.columns / F::PAIR;
        let (registers, scales) = (blocks * registers::<F>(), blocks * scales_per_block::<F>());
        assert!(panel.len() >= 32 * (registers + scales + pairs));
        let codes: *const __m256i = panel.as_ptr().cast();
        let scales_at = codes.wrapping_add(registers);
        let mins = scales_at.wrapping_add(scales);
        Self { codes, scales: scales_at, mins, life: PhantomData }
    }
}

impl<F: Format> Source for Panel<'_, F> {
    type F = F;
    const STEP: usize = 2;

    #[inline(always)]
    unsafe fn scale(self, first: usize, b: usize, half: usize) -> __m256i {
        let at = (first + b) * scales_per_block::<F>() + half;
        // SAFETY: the block exists, so the place lies in the panel.
        unsafe { _mm256_loadu_si256(self.scales.add(at)) }
    }

    #[inline(always)]
    unsafe fn mins(self, first: usize, b: usize) -> __m256i {
        let pair = if F::PAIR == 64 { (first + b) / 2 } else { first + b };
        // SAFETY: the pair exists, so the place lies in the panel.
        unsafe { _mm256_loadu_si256(self.mins.add(pair)) }
    }

    #[inline(always)]
    unsafe fn codes(self, first: usize, b: usize, k: usize) -> __m256i {
        // SAFETY: the block exists, so the place lies in the panel.
        unsafe { _mm256_loadu_si256(self.codes.add((first + b) * registers::<F>() + k)) }
    }
}
