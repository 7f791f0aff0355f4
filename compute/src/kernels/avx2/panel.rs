//! A tile unpacked into memory, for many tokens: codes by block, then scales, then minima.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::format::{Format, Source, codes, scales};
use crate::matrix::Family;

/// Registers of codes in a block.
const fn registers<F: Format>() -> usize {
    if matches!(F::LAYOUT.family, Family::Wide) { 16 } else { 8 }
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
    let size = count * 32 * (blocks * registers::<F>() + 2 * pairs);
    if panel.len() < size {
        panel.resize(size, 0);
    }
    let at = panel.as_mut_ptr();
    // SAFETY: the panel has room for all that is written, as `size` counts it.
    unsafe {
        let mut to = at;
        for u in 0..count {
            let unit = units.as_ptr().add(u * l.bytes);
            for block in 0..blocks {
                for k in 0..registers::<F>() {
                    _mm256_storeu_si256(to.cast(), codes::<F>(unit, block, k));
                    to = to.add(32);
                }
            }
        }
        let mins = to.add(32 * pairs * count);
        for u in 0..count {
            let unit = units.as_ptr().add(u * l.bytes);
            for pair in 0..pairs {
                let (s, m) = scales::<F>(unit, pair);
                let offset = 32 * (u * pairs + pair);
                _mm256_storeu_si256(to.add(offset).cast(), s);
                _mm256_storeu_si256(mins.add(offset).cast(), m);
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
        let registers = count * F::LAYOUT.columns / 32 * registers::<F>();
        let pairs = count * F::LAYOUT.columns / F::PAIR;
        let codes: *const __m256i = panel.as_ptr().cast();
        assert!(panel.len() >= 32 * (registers + 2 * pairs));
        let scales = codes.wrapping_add(registers);
        Self { codes, scales, mins: scales.wrapping_add(pairs), life: PhantomData }
    }
}

impl<F: Format> Source for Panel<'_, F> {
    type F = F;

    #[inline(always)]
    unsafe fn scales(self, pair: usize) -> (__m256i, __m256i) {
        // SAFETY: the pair exists, so both places lie in the panel.
        unsafe {
            (_mm256_loadu_si256(self.scales.add(pair)), _mm256_loadu_si256(self.mins.add(pair)))
        }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize, k: usize) -> __m256i {
        // SAFETY: the block exists, so the place lies in the panel.
        unsafe { _mm256_loadu_si256(self.codes.add(block * registers::<F>() + k)) }
    }
}
