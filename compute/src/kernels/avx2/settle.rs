//! From exact sums to results of 30 bits.

use std::arch::x86_64::*;

use super::sums::{Sums, Wide};
use crate::matrix::TILE;
use crate::numeric::matmul::Unit;

/// Eight rows' results, as [`Unit::settle`] defines them.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub unsafe fn settle(
    sums: &Sums,
    unit: &Unit,
    exponents: &[i32; TILE],
    min_exponents: &[i32; TILE],
    has_min: bool,
) -> __m256i {
    // SAFETY: AVX2, by the caller's promise.
    unsafe {
        let dot = shift(sums.dot, unit.dot_shift(), exponents);
        if !has_min {
            return dot;
        }
        _mm256_add_epi32(dot, shift(sums.min, unit.min_shift(), min_exponents))
    }
}

/// `round_shift(x, base - exponent)` of eight sums, cut to 32 bits.
#[inline(always)]
unsafe fn shift(x: Wide, base: i32, exponents: &[i32; TILE]) -> __m256i {
    // SAFETY: AVX2, by the caller's promise.
    unsafe {
        let exponents = _mm256_loadu_si256(exponents.as_ptr().cast());
        let n = _mm256_sub_epi32(_mm256_set1_epi32(base), exponents);
        // A shift of 63 and more gives 0; lanes are pushed past 64, where that is what shifts do.
        let far = _mm256_cmpgt_epi32(n, _mm256_set1_epi32(62));
        let n = _mm256_or_si256(n, _mm256_and_si256(far, _mm256_set1_epi32(1 << 20)));
        let low = four(x[0], _mm256_cvtepi32_epi64(_mm256_castsi256_si128(n)));
        let high = four(x[1], _mm256_cvtepi32_epi64(_mm256_extracti128_si256(n, 1)));
        // The lower 32 bits of each.
        let low = _mm256_shuffle_epi32(low, 0b1000);
        let high = _mm256_shuffle_epi32(high, 0b1000);
        let low = _mm256_permute4x64_epi64(low, 0b1000);
        let high = _mm256_permute4x64_epi64(high, 0b1000);
        _mm256_permute2x128_si256(low, high, 0x20)
    }
}

/// `(x + 2^(n - 1)) >> n` of four sums below 2^61. There is no arithmetic shift of 64 bits here, so
/// 2^62 is added before the shift and what became of it is subtracted after.
#[inline(always)]
unsafe fn four(x: __m256i, n: __m256i) -> __m256i {
    // SAFETY: AVX2, by the caller's promise.
    unsafe {
        let lift = _mm256_set1_epi64x(1 << 62);
        let one = _mm256_set1_epi64x(1);
        // For n = 0 the count is 2^64 - 1, and the shift gives 0 as it should.
        let half = _mm256_sllv_epi64(one, _mm256_sub_epi64(n, one));
        let lifted = _mm256_add_epi64(_mm256_add_epi64(x, half), lift);
        _mm256_sub_epi64(_mm256_srlv_epi64(lifted, n), _mm256_srlv_epi64(lift, n))
    }
}
