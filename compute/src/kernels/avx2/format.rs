//! How each weight type comes out of its units, in registers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::gguf::TensorType;
use crate::matrix::{Family, Layout};
use crate::numeric::weights::IQ4_VALUES;

/// A weight type, known when compiling.
pub trait Format: Copy {
    /// Where things lie.
    const LAYOUT: Layout;
    /// Columns of a pair of scales: two blocks, or the halves of one.
    const PAIR: usize = if matches!(Self::LAYOUT.family, Family::Half) { 32 } else { 64 };
}

macro_rules! formats {
    ($($name:ident = $kind:ident),*) => {$(
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types)]
        pub struct $name;
        impl Format for $name {
            const LAYOUT: Layout = Layout::of(TensorType::$kind);
        }
    )*};
}

formats!(
    Floats = F16,
    Q4_0 = Q4_0,
    Q4_1 = Q4_1,
    Q5_0 = Q5_0,
    Q5_1 = Q5_1,
    Q8_0 = Q8_0,
    Q2_K = Q2_K,
    Q3_K = Q3_K,
    Q4_K = Q4_K,
    Q5_K = Q5_K,
    Q6_K = Q6_K,
    IQ4_NL = IQ4_NL,
    IQ4_XS = IQ4_XS
);

/// Where a kernel takes codes and scales from. A block is given as `first + b`: `first` is a multiple
/// of `STEP`, and `b`, below it, is known when compiling.
pub trait Source: Copy {
    /// What they are.
    type F: Format;
    /// Blocks that a kernel takes together: 2 or 4.
    const STEP: usize;
    /// The scale of a block, or of one half of it for [`Family::Half`], twice for each row.
    ///
    /// # Safety
    /// AVX2; the block exists.
    unsafe fn scale(self, first: usize, b: usize, half: usize) -> __m256i;
    /// The minima of the pair that begins with a block, `[8 rows][2]` of 16 bits.
    ///
    /// # Safety
    /// AVX2; the pair exists.
    unsafe fn mins(self, first: usize, b: usize) -> __m256i;
    /// Asks for memory that will be read some blocks after this one.
    ///
    /// # Safety
    /// Always safe to call: an address that is not mapped is ignored.
    unsafe fn ahead(self, _first: usize, _b: usize) {}
    /// The codes of a block: eight registers, or sixteen of 16 bits for [`Family::Wide`].
    ///
    /// # Safety
    /// AVX2; the block exists and `k` is below 8 (16).
    unsafe fn codes(self, first: usize, b: usize, k: usize) -> __m256i;
}

/// How far ahead of its use memory is asked for, bytes: the processor's own prefetchers stop at the
/// end of each page.
const AHEAD: usize = 3_072;

/// A tile as it lies in memory.
#[derive(Clone, Copy)]
pub struct Packed<'a, F> {
    units: *const u8,
    life: PhantomData<(&'a [u8], F)>,
}

impl<'a, F: Format> Packed<'a, F> {
    pub fn new(units: &'a [u8]) -> Self {
        Self { units: units.as_ptr(), life: PhantomData }
    }
}

impl<F: Format> Packed<'_, F> {
    /// The unit that holds block `first`.
    #[inline(always)]
    fn unit(self, first: usize) -> *const u8 {
        self.units.wrapping_add(first / (F::LAYOUT.columns / 32) * F::LAYOUT.bytes)
    }

    /// The number of block `first` in its unit.
    #[inline(always)]
    fn inside(self, first: usize) -> usize {
        first % (F::LAYOUT.columns / 32)
    }
}

impl<F: Format> Source for Packed<'_, F> {
    type F = F;
    // Few enough to keep the loop short, so that prefetches spread over it; enough for the position
    // of a code's bits to be known when compiling (Q5_K's fifth bit is the exception).
    const STEP: usize = if matches!(F::LAYOUT.family, Family::Half) { 4 } else { 2 };

    #[inline(always)]
    unsafe fn scale(self, first: usize, b: usize, half: usize) -> __m256i {
        let block = self.inside(first) + b;
        let (pair, which) = if F::PAIR == 64 { (block / 2, b % 2) } else { (block, half) };
        // SAFETY: the pair lies in the tile.
        unsafe { both(scales::<F>(self.unit(first), pair), which) }
    }

    #[inline(always)]
    unsafe fn mins(self, first: usize, b: usize) -> __m256i {
        let block = self.inside(first) + b;
        // SAFETY: the pair lies in the tile.
        unsafe { mins::<F>(self.unit(first), if F::PAIR == 64 { block / 2 } else { block }) }
    }

    #[inline(always)]
    unsafe fn ahead(self, first: usize, b: usize) {
        // A block's share of a unit, whole lines; each line is asked for about once.
        let share = F::LAYOUT.bytes * 32 / F::LAYOUT.columns;
        let at = self.unit(first).wrapping_add((self.inside(first) + b) * share + AHEAD);
        // SAFETY: a prefetch of any address has no effect but on speed.
        unsafe {
            for line in 0..share.div_ceil(64) {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast());
            }
        }
    }

    #[inline(always)]
    unsafe fn codes(self, first: usize, b: usize, k: usize) -> __m256i {
        // SAFETY: the block lies in the tile.
        unsafe { codes::<F>(self.unit(first), self.inside(first), b, k) }
    }
}

#[inline(always)]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller points at 32 readable bytes.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Scales of pair `pair` of a unit, `[8 rows][2]`.
///
/// # Safety
/// AVX2; `unit` points at a whole unit.
#[inline(always)]
pub unsafe fn scales<F: Format>(unit: *const u8, pair: usize) -> __m256i {
    let l = F::LAYOUT;
    // SAFETY: all offsets lie inside a unit, by `Layout`.
    unsafe {
        if l.columns == 64 {
            return load(unit.add(l.d));
        }
        let mut sub = _mm_loadu_si128(unit.add(l.sub + 16 * pair).cast());
        if matches!(l.kind, TensorType::Q2_K) {
            sub = _mm_and_si128(sub, _mm_set1_epi8(15));
        }
        times_sub::<F>(twice(unit.add(l.d)), sub)
    }
}

/// Minima of pair `pair` of a unit, `[8 rows][2]`; only for types that have them.
///
/// # Safety
/// AVX2; `unit` points at a whole unit.
#[inline(always)]
pub unsafe fn mins<F: Format>(unit: *const u8, pair: usize) -> __m256i {
    let l = F::LAYOUT;
    // SAFETY: all offsets lie inside a unit, by `Layout`.
    unsafe {
        if l.columns == 64 {
            return load(unit.add(l.m));
        }
        let sub = if matches!(l.kind, TensorType::Q2_K) {
            let both = _mm_loadu_si128(unit.add(l.sub + 16 * pair).cast());
            _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15))
        } else {
            _mm_loadu_si128(unit.add(l.sub_min + 16 * pair).cast())
        };
        times_sub::<F>(twice(unit.add(l.m)), sub)
    }
}

/// Fractions times small integers of `sub_bits` bits.
#[inline(always)]
unsafe fn times_sub<F: Format>(fractions: __m256i, sub: __m128i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let up = _mm_cvtsi32_si128(15 - F::LAYOUT.sub_bits as i32);
        _mm256_mulhrs_epi16(fractions, _mm256_sll_epi16(_mm256_cvtepi8_epi16(sub), up))
    }
}

/// The first or second of each pair, in both places.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub unsafe fn both(pair: __m256i, which: usize) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let first = _mm256_setr_epi8(
            0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9,
            12, 13, 12, 13,
        );
        let second = _mm256_setr_epi8(
            2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15, 2, 3, 2, 3, 6, 7, 6, 7, 10, 11,
            10, 11, 14, 15, 14, 15,
        );
        _mm256_shuffle_epi8(pair, if which == 0 { first } else { second })
    }
}

/// Eight fractions, each twice.
#[inline(always)]
unsafe fn twice(at: *const u8) -> __m256i {
    // SAFETY: the caller points at 16 readable bytes.
    unsafe {
        let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
        _mm256_or_si256(x, _mm256_slli_epi32(x, 16))
    }
}

/// Register `k` of block `first + b` of a unit, `first` a multiple of 4 for [`Family::Half`] and of
/// 2 for others.
///
/// # Safety
/// AVX2; `unit` points at a whole unit.
#[inline(always)]
pub unsafe fn codes<F: Format>(unit: *const u8, first: usize, b: usize, k: usize) -> __m256i {
    use TensorType::*;
    let l = F::LAYOUT;
    let block = first + b;
    // SAFETY: all offsets lie inside a unit, by `Layout`.
    unsafe {
        let low = |w: usize| load(unit.add(l.low + 32 * w));
        let high = |w: usize| load(unit.add(l.high + 32 * w));
        match l.kind {
            F32 | F16 | BF16 => low(16 * block + k),
            Q8_0 => low(8 * block + k),
            Q4_0 | Q4_1 => nibble(low(4 * block + k % 4), k / 4),
            Q5_0 | Q5_1 => {
                let four = nibble(low(4 * block + k % 4), k / 4);
                _mm256_or_si256(four, bit_to::<0x10>(high(block), k, 4))
            }
            IQ4_NL | IQ4_XS => {
                let table =
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_VALUES.as_ptr().cast()));
                _mm256_shuffle_epi8(table, nibble(low(4 * block + k % 4), k / 4))
            }
            Q4_K => nibble(low(8 * (first / 2 + b / 2) + k), b % 2),
            Q5_K => {
                let four = nibble(low(8 * (first / 2 + b / 2) + k), b % 2);
                let down = _mm_cvtsi32_si128(block as i32);
                let fifth = _mm256_and_si256(_mm256_srl_epi16(high(k), down), _mm256_set1_epi8(1));
                _mm256_or_si256(four, _mm256_slli_epi16(fifth, 4))
            }
            Q6_K => {
                let (half, quarter) = (first / 4, b % 4);
                let four = nibble(low(16 * half + 8 * (quarter % 2) + k), quarter / 2);
                _mm256_or_si256(four, bit_to::<0x30>(high(8 * half + k), 2 * quarter, 4))
            }
            Q3_K | Q2_K => {
                let (half, quarter) = (first / 4, b % 4);
                let two = bit_to::<3>(low(8 * half + k), 2 * quarter, 0);
                if l.high == 0 {
                    return two;
                }
                let down = _mm_cvtsi32_si128(block as i32);
                let third = _mm256_and_si256(_mm256_srl_epi16(high(k), down), _mm256_set1_epi8(1));
                _mm256_or_si256(two, _mm256_slli_epi16(third, 2))
            }
        }
    }
}

/// The low or high four bits of each byte.
#[inline(always)]
unsafe fn nibble(x: __m256i, which: usize) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let x = if which == 0 { x } else { _mm256_srli_epi16(x, 4) };
        _mm256_and_si256(x, _mm256_set1_epi8(15))
    }
}

/// The bits of each byte from `from` on, moved to `to`, where `MASK` keeps them.
#[inline(always)]
unsafe fn bit_to<const MASK: i8>(x: __m256i, from: usize, to: usize) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        // Shifts by constants, once this is inlined where `from` and `to` are known.
        let moved = if from > to {
            _mm256_srl_epi16(x, _mm_cvtsi32_si128((from - to) as i32))
        } else {
            _mm256_sll_epi16(x, _mm_cvtsi32_si128((to - from) as i32))
        };
        _mm256_and_si256(moved, _mm256_set1_epi8(MASK))
    }
}
