//! Exact sums of eight rows with one to four tokens.

use std::arch::x86_64::*;

use super::format::{Format, Source};
use crate::matrix::Family;
use crate::numeric::activation::Activations;

/// Eight exact sums as 64-bit integers: rows 0 to 3 and 4 to 7.
pub type Wide = [__m256i; 2];

/// The two sums of each of eight rows.
#[derive(Clone, Copy)]
pub struct Sums {
    pub dot: Wide,
    pub min: Wide,
}

/// Eight running sums of 32-bit terms.
#[derive(Clone, Copy)]
struct Limbs {
    /// The sum, wrapped to 32 bits.
    low: __m256i,
    /// The sum of each term's upper 16 bits, rounded down.
    high: __m256i,
}

impl Limbs {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: AVX2, by the callers' promise.
        unsafe { Self { low: _mm256_setzero_si256(), high: _mm256_setzero_si256() } }
    }

    #[inline(always)]
    unsafe fn add(&mut self, x: __m256i) {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            self.low = _mm256_add_epi32(self.low, x);
            self.high = _mm256_add_epi32(self.high, _mm256_srai_epi32(x, 16));
        }
    }

    #[inline(always)]
    unsafe fn sub(&mut self, x: __m256i) {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            self.low = _mm256_sub_epi32(self.low, x);
            self.high = _mm256_sub_epi32(self.high, _mm256_srai_epi32(x, 16));
        }
    }

    /// The exact sums. With n terms added and m subtracted the low halves add up to something in
    /// `[-65535 m, 65535 n]`; up to 16,384 of each (a row has at most 3,328 terms of one kind)
    /// that is below 2^30 in magnitude, so its wrapped value is its value.
    #[inline(always)]
    unsafe fn total(self) -> Wide {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            let rest = _mm256_sub_epi32(self.low, _mm256_slli_epi32(self.high, 16));
            let whole = |high: __m128i, rest: __m128i| {
                _mm256_add_epi64(
                    _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 16),
                    _mm256_cvtepi32_epi64(rest),
                )
            };
            [
                whole(_mm256_castsi256_si128(self.high), _mm256_castsi256_si128(rest)),
                whole(_mm256_extracti128_si256(self.high, 1), _mm256_extracti128_si256(rest, 1)),
            ]
        }
    }
}

/// Eight running sums of 32-bit times 16-bit products: even rows, odd rows.
#[derive(Clone, Copy)]
struct Longs {
    even: __m256i,
    odd: __m256i,
}

impl Longs {
    #[inline(always)]
    unsafe fn add_product(&mut self, dot: __m256i, scale: __m256i) {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            self.even = _mm256_add_epi64(self.even, _mm256_mul_epi32(dot, scale));
            let (dot, scale) = (_mm256_srli_epi64(dot, 32), _mm256_srli_epi64(scale, 32));
            self.odd = _mm256_add_epi64(self.odd, _mm256_mul_epi32(dot, scale));
        }
    }

    #[inline(always)]
    unsafe fn total(self) -> Wide {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            let (a, b) = (
                _mm256_unpacklo_epi64(self.even, self.odd),
                _mm256_unpackhi_epi64(self.even, self.odd),
            );
            // a: rows 0 1 | 4 5, b: rows 2 3 | 6 7.
            [_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)]
        }
    }
}

/// Where one token's numbers begin.
#[derive(Clone, Copy)]
struct Vector {
    q: *const i8,
    a: *const i16,
    sums: *const i16,
    half_sums: *const i16,
    t: *const i16,
    half_t: *const i16,
}

impl Vector {
    fn new(x: &Activations, token: usize) -> Self {
        let width = x.width;
        Self {
            q: x.q[token * width..].as_ptr(),
            a: x.a[token * width / 32..].as_ptr(),
            sums: x.sums[token * width / 32..].as_ptr(),
            half_sums: x.half_sums[token * width / 16..].as_ptr(),
            t: x.t[token * width / 32..].as_ptr(),
            half_t: x.half_t[token * width / 16..].as_ptr(),
        }
    }

    /// Four activations in every lane.
    #[inline(always)]
    unsafe fn four(self, at: usize) -> __m256i {
        // SAFETY: AVX2; four activations follow `at`.
        unsafe { _mm256_set1_epi32(self.q.add(at).cast::<i32>().read_unaligned()) }
    }
}

/// Two neighbouring numbers of 16 bits in every lane.
#[inline(always)]
unsafe fn two(at: *const i16) -> __m256i {
    // SAFETY: AVX2; the caller points at two numbers.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// The first or second of each pair, widened to 32 bits.
#[inline(always)]
unsafe fn one_of(pair: __m256i, which: usize) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let pair = if which == 0 { _mm256_slli_epi32(pair, 16) } else { pair };
        _mm256_srai_epi32(pair, 16)
    }
}

/// The first or second of each pair, in both places.
#[inline(always)]
unsafe fn both(pair: __m256i, which: usize) -> __m256i {
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

/// Adds neighbouring 16-bit sums.
#[inline(always)]
unsafe fn join(x: __m256i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe { _mm256_madd_epi16(x, _mm256_set1_epi16(1)) }
}

/// The sums of a tile with tokens `first..first + N`.
///
/// # Safety
/// AVX2; `blocks` blocks exist in the source and in each of the tokens.
#[target_feature(enable = "avx2")]
pub unsafe fn of<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    x: &Activations,
    first: usize,
) -> [Sums; N] {
    let v: [Vector; N] = std::array::from_fn(|n| Vector::new(x, first + n));
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut mins = [Limbs::zero(); N];
        let dots = match S::F::LAYOUT.family {
            Family::Small => small::<S, N>(source, blocks, &v, &mut mins),
            Family::Centred => centred::<S, N>(source, blocks, &v, &mut mins),
            Family::Split => split::<S, N>(source, blocks, &v, &mut mins),
            Family::Signed => signed::<S, N>(source, blocks, &v),
            Family::Half => half::<S, N>(source, blocks, &v, &mut mins),
            Family::Wide => wide::<S, N>(source, blocks, &v),
        };
        std::array::from_fn(|n| Sums { dot: dots[n], min: mins[n].total() })
    }
}

/// Scales of pair `pair` for every token, and the minima's part of the sums.
#[inline(always)]
unsafe fn pair_scales<S: Source, const N: usize>(
    source: S,
    pair: usize,
    v: &[Vector; N],
    mins: &mut [Limbs; N],
) -> [__m256i; N] {
    // SAFETY: the pair exists, in the source and in the tokens.
    unsafe {
        let (s, m) = source.scales(pair);
        if S::F::LAYOUT.m != 0 {
            for n in 0..N {
                let t = if S::F::PAIR == 64 { v[n].t } else { v[n].half_t };
                mins[n].add(_mm256_madd_epi16(m, two(t.add(2 * pair))));
            }
        }
        std::array::from_fn(|n| {
            let a = if S::F::PAIR == 64 {
                two(v[n].a.add(2 * pair))
            } else {
                _mm256_set1_epi16(*v[n].a.add(pair))
            };
            _mm256_mulhrs_epi16(s, a)
        })
    }
}

/// Adds the products of registers `from..to` of a block to 16-bit sums.
#[inline(always)]
unsafe fn products<S: Source, const N: usize>(
    source: S,
    block: usize,
    (from, to): (usize, usize),
    v: &[Vector; N],
) -> [__m256i; N] {
    // SAFETY: the block exists, in the source and in the tokens.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); N];
        for k in from..to {
            let codes = source.codes(block, k);
            for n in 0..N {
                let product = _mm256_maddubs_epi16(codes, v[n].four(32 * block + 4 * k));
                sums[n] = _mm256_add_epi16(sums[n], product);
            }
        }
        sums
    }
}

/// 15 * 127 * 16 = 30,480 fits 16 bits; twice that times 32,767 fits 32.
#[inline(always)]
unsafe fn small<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
    mins: &mut [Limbs; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        for pair in 0..blocks / 2 {
            let s = pair_scales(source, pair, v, mins);
            if S::F::LAYOUT.centre != 0 {
                // 8 times both blocks' sums times their scales: 2 * 32,512 * 32,767 at most.
                for n in 0..N {
                    let centre = _mm256_madd_epi16(s[n], two(v[n].sums.add(2 * pair)));
                    dots[n].sub(_mm256_slli_epi32(centre, 3));
                }
            }
            for b in 0..2 {
                let sums = products(source, 2 * pair + b, (0, 8), v);
                for n in 0..N {
                    dots[n].add(_mm256_madd_epi16(sums[n], both(s[n], b)));
                }
            }
        }
        dots.map(|d| d.total())
    }
}

/// Codes 0 to 31 around 16: half a block's products fit 16 bits (31,496), the centred dot 17
/// (65,024), and times 32,767 it fits 32.
#[inline(always)]
unsafe fn centred<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
    mins: &mut [Limbs; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        for pair in 0..blocks / 2 {
            let s = pair_scales(source, pair, v, mins);
            for b in 0..2 {
                let block = 2 * pair + b;
                let first = products(source, block, (0, 4), v);
                let second = products(source, block, (4, 8), v);
                for n in 0..N {
                    let sum = i32::from(*v[n].sums.add(block)) << 4;
                    let dot = _mm256_add_epi32(join(first[n]), join(second[n]));
                    let dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(sum));
                    dots[n].add(_mm256_mullo_epi32(dot, one_of(s[n], b)));
                }
            }
        }
        dots.map(|d| d.total())
    }
}

/// Codes 0 to 31 with a minimum: each half's products (31,496 twice) times 32,767 fit 32 bits.
#[inline(always)]
unsafe fn split<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
    mins: &mut [Limbs; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        for pair in 0..blocks / 2 {
            let s = pair_scales(source, pair, v, mins);
            for b in 0..2 {
                let first = products(source, 2 * pair + b, (0, 4), v);
                let second = products(source, 2 * pair + b, (4, 8), v);
                for n in 0..N {
                    let scale = both(s[n], b);
                    dots[n].add(_mm256_madd_epi16(first[n], scale));
                    dots[n].add(_mm256_madd_epi16(second[n], scale));
                }
            }
        }
        dots.map(|d| d.total())
    }
}

/// Codes of 8 bits with a sign, which moves to the activation: 2 * 128 * 127 fits 16 bits.
#[inline(always)]
unsafe fn signed<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut dots = [Longs { even: zero, odd: zero }; N];
        for pair in 0..blocks / 2 {
            let s = pair_scales(source, pair, v, &mut [Limbs::zero(); N]);
            for b in 0..2 {
                let block = 2 * pair + b;
                let mut dot = [zero; N];
                for k in 0..8 {
                    let codes = source.codes(block, k);
                    let size = _mm256_abs_epi8(codes);
                    for n in 0..N {
                        let x = _mm256_sign_epi8(v[n].four(32 * block + 4 * k), codes);
                        dot[n] = _mm256_add_epi32(dot[n], join(_mm256_maddubs_epi16(size, x)));
                    }
                }
                for n in 0..N {
                    dots[n].add_product(dot[n], one_of(s[n], b));
                }
            }
        }
        dots.map(|d| d.total())
    }
}

/// Codes 0 to 63 around 32 (or less), a scale for each 16: four products of pairs would pass 16
/// bits, two do not (32,004); a centred half block's dot (65,024) times 32,767 fits 32.
#[inline(always)]
unsafe fn half<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
    mins: &mut [Limbs; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        for block in 0..blocks {
            let s = pair_scales(source, block, v, mins);
            for h in 0..2 {
                let first = products(source, block, (4 * h, 4 * h + 2), v);
                let second = products(source, block, (4 * h + 2, 4 * h + 4), v);
                for n in 0..N {
                    let mut dot = _mm256_add_epi32(join(first[n]), join(second[n]));
                    if S::F::LAYOUT.centre != 0 {
                        let sum = i32::from(*v[n].half_sums.add(2 * block + h));
                        let centre = _mm256_set1_epi32(sum * S::F::LAYOUT.centre);
                        dot = _mm256_sub_epi32(dot, centre);
                    }
                    dots[n].add(_mm256_mullo_epi32(dot, one_of(s[n], h)));
                }
            }
        }
        dots.map(|d| d.total())
    }
}

/// Codes of 16 bits: 32 * 32,767 * 127 fits 28 bits.
#[inline(always)]
unsafe fn wide<S: Source, const N: usize>(source: S, blocks: usize, v: &[Vector; N]) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut dots = [Longs { even: zero, odd: zero }; N];
        for pair in 0..blocks / 2 {
            let s = pair_scales(source, pair, v, &mut [Limbs::zero(); N]);
            for b in 0..2 {
                let block = 2 * pair + b;
                let x: [[i16; 32]; N] = std::array::from_fn(|n| {
                    std::array::from_fn(|i| i16::from(*v[n].q.add(32 * block + i)))
                });
                let mut dot = [zero; N];
                for k in 0..16 {
                    let codes = source.codes(block, k);
                    for n in 0..N {
                        let product = _mm256_madd_epi16(codes, two(x[n].as_ptr().add(2 * k)));
                        dot[n] = _mm256_add_epi32(dot[n], product);
                    }
                }
                for n in 0..N {
                    dots[n].add_product(dot[n], one_of(s[n], b));
                }
            }
        }
        dots.map(|d| d.total())
    }
}
