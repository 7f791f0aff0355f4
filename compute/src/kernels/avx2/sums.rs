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

    /// The exact sums. The lower halves of n terms add up to something in `[0, 65535 n]`; a row has
    /// at most 3,328 terms of one kind, so that is below 2^28, and its wrapped value is its value.
    #[inline(always)]
    unsafe fn total(self) -> Wide {
        // SAFETY: AVX2, by the callers' promise.
        unsafe {
            let rest = _mm256_sub_epi32(self.low, _mm256_slli_epi32(self.high, 16));
            [
                join_limbs(_mm256_castsi256_si128(self.high), _mm256_castsi256_si128(rest)),
                join_limbs(
                    _mm256_extracti128_si256(self.high, 1),
                    _mm256_extracti128_si256(rest, 1),
                ),
            ]
        }
    }
}

#[inline(always)]
unsafe fn join_limbs(high: __m128i, rest: __m128i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let high = _mm256_slli_epi64(_mm256_cvtepi32_epi64(high), 16);
        _mm256_add_epi64(high, _mm256_cvtepi32_epi64(rest))
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

/// Totals of all tokens. A loop and not `map`: a closure handed to the library would not be compiled
/// for AVX2, and each intrinsic in it would become a call.
macro_rules! totals {
    ($dots:ident, $n:ident) => {{
        let mut all = [[_mm256_setzero_si256(); 2]; $n];
        for n in 0..$n {
            all[n] = $dots[n].total();
        }
        all
    }};
}

/// Runs `body` for every block, `step` at a time, with the block's number within its step written
/// out as a constant: so the compiler knows which nibble, bit or byte of a unit it is about.
macro_rules! each_block {
    ($source:ident, $blocks:ident, ($first:ident, $b:ident) => $body:block) => {
        let mut $first = 0;
        while $first < $blocks {
            each_block!(@ $b $body 0 1);
            if $source::STEP == 4 {
                each_block!(@ $b $body 2 3);
            }
            $first += $source::STEP;
        }
    };
    (@ $b:ident $body:block $($n:literal)*) => {
        $({
            let $b: usize = $n;
            $body
        })*
    };
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
    #[inline(always)]
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

/// Adds neighbouring 16-bit sums.
#[inline(always)]
unsafe fn join(x: __m256i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe { _mm256_madd_epi16(x, _mm256_set1_epi16(1)) }
}

/// The sums of a tile with tokens `first..first + N`; minima only where the type has them.
///
/// # Safety
/// AVX2; `blocks` blocks exist in the source and in each of the tokens.
#[target_feature(enable = "avx2")]
pub unsafe fn of<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    x: &Activations,
    first: usize,
    sums: &mut [Sums; N],
) {
    let mut v = [Vector::new(x, first); N];
    for n in 1..N {
        v[n] = Vector::new(x, first + n);
    }
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let dots = match S::F::LAYOUT.family {
            Family::Small => small::<S, N>(source, blocks, &v),
            Family::Centred => centred::<S, N>(source, blocks, &v),
            Family::Split => split::<S, N>(source, blocks, &v),
            Family::Signed => signed::<S, N>(source, blocks, &v),
            Family::Half => half::<S, N>(source, blocks, &v),
            Family::Wide => wide::<S, N>(source, blocks, &v),
        };
        for n in 0..N {
            sums[n].dot = dots[n];
        }
        if S::F::LAYOUT.m != 0 {
            let mins = minima(source, blocks, &v);
            for n in 0..N {
                sums[n].min = mins[n].total();
            }
        }
    }
}

/// The product of a block's (or half block's) scale with every token's, each in both halves of a
/// row's lane.
#[inline(always)]
unsafe fn scales<S: Source, const N: usize>(
    source: S,
    (first, b): (usize, usize),
    half: usize,
    v: &[Vector; N],
) -> [__m256i; N] {
    // SAFETY: the block exists, in the source and in the tokens.
    unsafe {
        let s = source.scale(first, b, half);
        let mut scaled = [s; N];
        for n in 0..N {
            scaled[n] = _mm256_mulhrs_epi16(s, _mm256_set1_epi16(*v[n].a.add(first + b)));
        }
        scaled
    }
}

/// The minima's part of the sums. Separate from the dots, so that neither runs out of registers.
#[inline(always)]
unsafe fn minima<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
) -> [Limbs; N] {
    // SAFETY: the pairs exist, in the source and in the tokens.
    unsafe {
        let mut sums = [Limbs::zero(); N];
        each_block!(S, blocks, (first, b) => {
            // A pair is two blocks, or the halves of one.
            if S::F::PAIR == 32 || b.is_multiple_of(2) {
                let m = source.mins(first, b);
                for n in 0..N {
                    let t = if S::F::PAIR == 64 {
                        v[n].t.add(first + b)
                    } else {
                        v[n].half_t.add(2 * (first + b))
                    };
                    sums[n].add(_mm256_madd_epi16(m, two(t)));
                }
            }
        });
        sums
    }
}

/// The upper half of each lane, with its sign.
#[inline(always)]
unsafe fn single(both: __m256i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe { _mm256_srai_epi32(both, 16) }
}

/// Adds the products of registers `from..to` of a block to 16-bit sums.
#[inline(always)]
unsafe fn products<S: Source, const N: usize>(
    source: S,
    (first, b): (usize, usize),
    (from, to): (usize, usize),
    v: &[Vector; N],
) -> [__m256i; N] {
    // SAFETY: the block exists, in the source and in the tokens.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); N];
        if from == 0 {
            source.ahead(first, b);
        }
        for k in from..to {
            let codes = source.codes(first, b, k);
            for n in 0..N {
                let four = v[n].four(32 * (first + b) + 4 * k);
                let product = _mm256_maddubs_epi16(codes, four);
                sums[n] = _mm256_add_epi16(sums[n], product);
            }
        }
        sums
    }
}

/// 15 * 127 * 16 = 30,480 fits 16 bits; twice that times 32,767 fits 32.
#[inline(always)]
unsafe fn small<S: Source, const N: usize>(source: S, blocks: usize, v: &[Vector; N]) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        each_block!(S, blocks, (first, b) => {
            let sums = products(source, (first, b), (0, 8), v);
            let s = scales(source, (first, b), 0, v);
            for n in 0..N {
                let mut sum = sums[n];
                if S::F::LAYOUT.centre != 0 {
                    // Half of 8 times the block's sum from each lane of a row's two. A lane with
                    // 16 products then holds at most (15 - 4) * 127 * 16 + 4 * 127 * 16 = 30,480.
                    let centre = _mm256_set1_epi16(*v[n].sums.add(first + b));
                    sum = _mm256_sub_epi16(sum, _mm256_slli_epi16(centre, 2));
                }
                dots[n].add(_mm256_madd_epi16(sum, s[n]));
            }
        });
        totals!(dots, N)
    }
}

/// Codes 0 to 31 around 16: half a block's products fit 16 bits (31,496), the centred dot 17
/// (65,024), and times 32,767 it fits 32.
#[inline(always)]
unsafe fn centred<S: Source, const N: usize>(
    source: S,
    blocks: usize,
    v: &[Vector; N],
) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        each_block!(S, blocks, (first, b) => {
            let early = products(source, (first, b), (0, 4), v);
            let late = products(source, (first, b), (4, 8), v);
            let s = scales(source, (first, b), 0, v);
            for n in 0..N {
                let sum = i32::from(*v[n].sums.add(first + b)) << 4;
                let dot = _mm256_add_epi32(join(early[n]), join(late[n]));
                let dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(sum));
                dots[n].add(_mm256_mullo_epi32(dot, single(s[n])));
            }
        });
        totals!(dots, N)
    }
}

/// Codes 0 to 31 with a minimum: each half's products (31,496 twice) times 32,767 fit 32 bits.
#[inline(always)]
unsafe fn split<S: Source, const N: usize>(source: S, blocks: usize, v: &[Vector; N]) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        each_block!(S, blocks, (first, b) => {
            let early = products(source, (first, b), (0, 4), v);
            let late = products(source, (first, b), (4, 8), v);
            let s = scales(source, (first, b), 0, v);
            for n in 0..N {
                dots[n].add(_mm256_madd_epi16(early[n], s[n]));
                dots[n].add(_mm256_madd_epi16(late[n], s[n]));
            }
        });
        totals!(dots, N)
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
        each_block!(S, blocks, (first, b) => {
            let mut dot = [zero; N];
            source.ahead(first, b);
            for k in 0..8 {
                let codes = source.codes(first, b, k);
                let size = _mm256_abs_epi8(codes);
                for n in 0..N {
                    let x = _mm256_sign_epi8(v[n].four(32 * (first + b) + 4 * k), codes);
                    dot[n] = _mm256_add_epi32(dot[n], join(_mm256_maddubs_epi16(size, x)));
                }
            }
            let s = scales(source, (first, b), 0, v);
            for n in 0..N {
                dots[n].add_product(dot[n], single(s[n]));
            }
        });
        totals!(dots, N)
    }
}

/// Codes 0 to 63 around 32 (or less), a scale for each 16: four products of pairs would pass 16
/// bits, two do not (32,004); a centred half block's dot (65,024) times 32,767 fits 32.
#[inline(always)]
unsafe fn half<S: Source, const N: usize>(source: S, blocks: usize, v: &[Vector; N]) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let mut dots = [Limbs::zero(); N];
        each_block!(S, blocks, (first, b) => {
            for h in 0..2 {
                let early = products(source, (first, b), (4 * h, 4 * h + 2), v);
                let late = products(source, (first, b), (4 * h + 2, 4 * h + 4), v);
                let s = scales(source, (first, b), h, v);
                for n in 0..N {
                    let mut dot = _mm256_add_epi32(join(early[n]), join(late[n]));
                    if S::F::LAYOUT.centre != 0 {
                        let sum = i32::from(*v[n].half_sums.add(2 * (first + b) + h));
                        let centre = _mm256_set1_epi32(sum * S::F::LAYOUT.centre);
                        dot = _mm256_sub_epi32(dot, centre);
                    }
                    dots[n].add(_mm256_mullo_epi32(dot, single(s[n])));
                }
            }
        });
        totals!(dots, N)
    }
}

/// Codes of 16 bits: 32 * 32,767 * 127 fits 28 bits.
#[inline(always)]
unsafe fn wide<S: Source, const N: usize>(source: S, blocks: usize, v: &[Vector; N]) -> [Wide; N] {
    // SAFETY: the caller's promise is handed on.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut dots = [Longs { even: zero, odd: zero }; N];
        each_block!(S, blocks, (first, b) => {
            let mut x = [[0i16; 32]; N];
            for n in 0..N {
                for i in 0..32 {
                    x[n][i] = i16::from(*v[n].q.add(32 * (first + b) + i));
                }
            }
            let mut dot = [zero; N];
            for k in 0..16 {
                let codes = source.codes(first, b, k);
                for n in 0..N {
                    let product = _mm256_madd_epi16(codes, two(x[n].as_ptr().add(2 * k)));
                    dot[n] = _mm256_add_epi32(dot[n], product);
                }
            }
            let s = scales(source, (first, b), 0, v);
            for n in 0..N {
                dots[n].add_product(dot[n], single(s[n]));
            }
        });
        totals!(dots, N)
    }
}
