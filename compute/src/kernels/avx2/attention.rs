//! Scores, softmax and weighted values, eight positions at a time.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::arch::CONTEXT_MAX;
use crate::kernels::attention::{Averages, Queries, Scratch, Seen, top_exponent};
use crate::kv::{HeadCache, KEYS_ABREAST, PAGE, Stretch};
use crate::numeric::attention::{Average, LOGIT_MAX, QueryFactor};

/// Positions, whole eights, whose weighted values are summed in 32 bits: 4,096 * 4,095 * 127 is below 2^31.
const SPAN: usize = 4_096;

// Sums of probabilities are kept in eight lanes of 32 bits, upper and lower 12 bits apart. The
// longest context, and one more eight where a window begins within one, must not wrap them.
const _: () = assert!((CONTEXT_MAX / KEYS_ABREAST + 1) * 0xfff <= u32::MAX as usize);

/// # Safety
/// AVX2; lengths have been checked by `Kernels::attend`; the head is a multiple of 16.
#[target_feature(enable = "avx2")]
pub unsafe fn attend(seen: &Seen, queries: Queries, to: &mut Averages, scratch: &mut Scratch) {
    let Seen { cache, positions } = seen;
    let (head, heads) = (cache.head, queries.factors.len());
    // Whole eights, of which the first and last may stick out of what is seen.
    let begin = positions.start / KEYS_ABREAST * KEYS_ABREAST;
    let count = positions.end.next_multiple_of(KEYS_ABREAST) - begin;
    scratch.logits.resize(heads * count, 0);
    scratch.high.resize(heads * count, 0);
    scratch.low.resize(heads * count, 0);
    scratch.sums.clear();
    scratch.sums.resize(heads * head, 0);
    let own = positions.start - begin..positions.end - begin;
    let all = begin..begin + count;
    // SAFETY: pages hold whole eights, so whole eights around what is seen lie in them.
    unsafe {
        let mut h = 0;
        while h < heads {
            let some = (heads - h).min(4);
            let q = queries.q[h * head..].as_ptr();
            let factors = &queries.factors[h..h + some];
            let logits = &mut scratch.logits[h * count..(h + some) * count];
            match some {
                4 => scores::<4>(cache, all.clone(), q, factors, logits),
                3 => scores::<3>(cache, all.clone(), q, factors, logits),
                2 => scores::<2>(cache, all.clone(), q, factors, logits),
                _ => scores::<1>(cache, all.clone(), q, factors, logits),
            }
            h += some;
        }
        let top = top_exponent(cache, positions.clone());
        for h in 0..heads {
            let part = h * count..(h + 1) * count;
            let logits = &mut scratch.logits[part.clone()];
            let (high, low) = (&mut scratch.high[part.clone()], &mut scratch.low[part]);
            let total = weights(cache, begin, &own, top, logits, high, low);
            to.units[h] = i32::from(top) - 13;
            let average = Average::new(total);
            if h % 2 == 1 || h + 1 == heads {
                // Two heads share each load of values.
                let pair = h & !1..h + 1;
                let sums = &mut scratch.sums[pair.start * head..pair.end * head];
                let high = &scratch.high[pair.start * count..pair.end * count];
                let low = &scratch.low[pair.start * count..pair.end * count];
                if pair.len() == 2 {
                    values::<2>(cache, begin, count, high, low, sums);
                } else {
                    values::<1>(cache, begin, count, high, low, sums);
                }
            }
            scratch.averages.push(average);
        }
        for (h, average) in scratch.averages.drain(..).enumerate() {
            let sums = &scratch.sums[h * head..(h + 1) * head];
            let out = &mut to.out[h * head..(h + 1) * head];
            out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = average.of(sum));
        }
    }
}

/// Logits of `N` heads at whole eights of positions.
#[target_feature(enable = "avx2")]
unsafe fn scores<const N: usize>(
    cache: &HeadCache,
    positions: Range<usize>,
    q: *const i8,
    factors: &[QueryFactor],
    logits: &mut [i32],
) {
    let (head, count) = (cache.head, positions.len());
    let words = head / 4;
    // SAFETY: the positions are whole eights inside the cache; `q` has N heads.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        for Stretch { number, page, inside, before } in cache.stretches(positions) {
            // Memory that is read soon: the next keys, and the values that are added afterwards.
            ahead(page.values);
            if (number + 1) * PAGE < cache.capacity() {
                ahead(cache.page(number + 1).keys);
            }
            for at in inside.clone().step_by(KEYS_ABREAST) {
                let keys = page.keys.as_ptr().add(at * head).cast::<__m256i>();
                let mut dots = [_mm256_setzero_si256(); N];
                for w in 0..words {
                    let key = _mm256_loadu_si256(keys.add(w));
                    let size = _mm256_abs_epi8(key);
                    for n in 0..N {
                        let four = q.add(n * head + 4 * w).cast::<i32>().read_unaligned();
                        let x = _mm256_sign_epi8(_mm256_set1_epi32(four), key);
                        let pairs = _mm256_maddubs_epi16(size, x);
                        dots[n] = _mm256_add_epi32(dots[n], _mm256_madd_epi16(pairs, ones));
                    }
                }
                let m = _mm256_cvtepi16_epi32(_mm_loadu_si128(page.key_m.as_ptr().add(at).cast()));
                let e = _mm256_cvtepi8_epi32(_mm_loadl_epi64(page.key_e.as_ptr().add(at).cast()));
                for n in 0..N {
                    let to = logits.as_mut_ptr().add(n * count + before + at - inside.start);
                    _mm256_storeu_si256(to.cast(), logit(dots[n], factors[n], m, e));
                }
            }
        }
    }
}

/// Asks for memory: a page's part is too short for the processor to see by itself what is next.
#[inline(always)]
unsafe fn ahead(part: &[i8]) {
    for line in part.chunks(64) {
        // SAFETY: a prefetch has no effect but on speed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr()) };
    }
}

/// `numeric::attention::logit` of eight keys. A dot has 23 bits and a scale 15, so their product is
/// exact as a double, and so is its floor; nothing here is rounded by the float unit.
#[inline(always)]
unsafe fn logit(dot: __m256i, query: QueryFactor, key_m: __m256i, key_e: __m256i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let product = _mm256_mullo_epi32(key_m, _mm256_set1_epi32(query.m.into()));
        let m = _mm256_srai_epi32(_mm256_add_epi32(product, _mm256_set1_epi32(1 << 14)), 15);
        let e = _mm256_add_epi32(key_e, _mm256_set1_epi32(query.e + 31));
        let e = _mm256_max_epi32(e, _mm256_set1_epi32(-60));
        let e = _mm256_min_epi32(e, _mm256_set1_epi32(24));
        let power = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23);
        let scale = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_castsi256_ps(power));
        let (low, high) = (
            four_logits(_mm256_castsi256_si128(dot), _mm256_castps256_ps128(scale)),
            four_logits(_mm256_extracti128_si256(dot, 1), _mm256_extractf128_ps(scale, 1)),
        );
        _mm256_set_m128i(high, low)
    }
}

#[inline(always)]
unsafe fn four_logits(dot: __m128i, scale: __m128) -> __m128i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let product = _mm256_mul_pd(_mm256_cvtepi32_pd(dot), _mm256_cvtps_pd(scale));
        let limit = _mm256_set1_pd(LOGIT_MAX as f64);
        let cut = _mm256_min_pd(_mm256_floor_pd(product), limit);
        let cut = _mm256_max_pd(cut, _mm256_sub_pd(_mm256_setzero_pd(), limit));
        _mm256_cvttpd_epi32(cut)
    }
}

/// From logits to values' weights in two limbs; returns the sum of probabilities. What is not in
/// `own` gets weight 0.
#[target_feature(enable = "avx2")]
unsafe fn weights(
    cache: &HeadCache,
    begin: usize,
    own: &Range<usize>,
    top: i8,
    logits: &mut [i32],
    high: &mut [i16],
    low: &mut [i16],
) -> u64 {
    // Below every logit, and far enough from the largest for a probability of 0.
    logits[..own.start].fill(i32::MIN / 2);
    logits[own.end..].fill(i32::MIN / 2);
    let largest = logits.iter().fold(i32::MIN, |l, &x| l.max(x));
    // SAFETY: all arrays are as long as `logits`, whole eights, and lie in the cache.
    unsafe {
        let largest = _mm256_set1_epi32(largest);
        let twelve = _mm256_set1_epi32(0xfff);
        let mut sums = [_mm256_setzero_si256(); 2];
        for Stretch { page, inside, before, .. } in cache.stretches(begin..begin + logits.len()) {
            for at in inside.clone().step_by(KEYS_ABREAST) {
                let i = before + at - inside.start;
                let l = _mm256_loadu_si256(logits.as_ptr().add(i).cast());
                let mut p = exp2_negative(_mm256_sub_epi32(largest, l));
                if i < own.start || i + KEYS_ABREAST > own.end {
                    p = _mm256_and_si256(p, lanes_of(i, own));
                }
                sums[0] = _mm256_add_epi32(sums[0], _mm256_and_si256(p, twelve));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_srli_epi32(p, 12));
                let m =
                    _mm256_cvtepi16_epi32(_mm_loadu_si128(page.value_m.as_ptr().add(at).cast()));
                let e = _mm256_cvtepi8_epi32(_mm_loadl_epi64(page.value_e.as_ptr().add(at).cast()));
                // Negative only where the mantissa or the probability is 0; such lanes shift to 0.
                let down = _mm256_sub_epi32(_mm256_set1_epi32(top.into()), e);
                let p = _mm256_srlv_epi32(p, down);
                let upper = _mm256_mullo_epi32(_mm256_srli_epi32(p, 12), m);
                let lower = _mm256_mullo_epi32(_mm256_and_si256(p, twelve), m);
                let sum = _mm256_add_epi32(upper, _mm256_srli_epi32(lower, 12));
                let w = _mm256_srli_epi32(sum, 3);
                let both =
                    _mm256_packus_epi32(_mm256_srli_epi32(w, 12), _mm256_and_si256(w, twelve));
                let both = _mm256_permute4x64_epi64(both, 0b1101_1000);
                _mm_storeu_si128(high.as_mut_ptr().add(i).cast(), _mm256_castsi256_si128(both));
                _mm_storeu_si128(low.as_mut_ptr().add(i).cast(), _mm256_extracti128_si256(both, 1));
            }
        }
        lanes(sums[0]) + (lanes(sums[1]) << 12)
    }
}

/// All ones in the lanes of positions `i..i + 8` that are in `own`.
#[inline(always)]
unsafe fn lanes_of(i: usize, own: &Range<usize>) -> __m256i {
    let lanes: [i32; 8] = std::array::from_fn(|n| if own.contains(&(i + n)) { -1 } else { 0 });
    // SAFETY: AVX2, by the callers' promise.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

/// The sum of eight lanes.
#[inline(always)]
unsafe fn lanes(x: __m256i) -> u64 {
    let mut all = [0u32; 8];
    // SAFETY: AVX2; the array has 32 bytes.
    unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), x) };
    all.iter().map(|&x| u64::from(x)).sum()
}

/// `numeric::functions::exp2_negative` of eight lanes.
#[inline(always)]
unsafe fn exp2_negative(t: __m256i) -> __m256i {
    // SAFETY: AVX2, by the callers' promise.
    unsafe {
        let f = _mm256_and_si256(t, _mm256_set1_epi32(0xffff));
        // Upper halves of lanes are 0, so 16-bit products of lower halves are all there is.
        let mut part = _mm256_set1_epi32(428);
        for c in [3443, 15658, 45410, 65535] {
            part = _mm256_sub_epi32(_mm256_set1_epi32(c), _mm256_mulhi_epu16(f, part));
        }
        _mm256_srlv_epi32(_mm256_slli_epi32(part, 8), _mm256_srli_epi32(t, 16))
    }
}

/// Two neighbouring weights in every lane.
#[inline(always)]
unsafe fn two(weights: &[i16], at: usize) -> __m256i {
    // SAFETY: AVX2; the caller points at two weights.
    unsafe { _mm256_set1_epi32(weights.as_ptr().add(at).cast::<i32>().read_unaligned()) }
}

/// Adds the weighted values of `N` heads to `sums`, 16 numbers of a head at a time.
#[target_feature(enable = "avx2")]
unsafe fn values<const N: usize>(
    cache: &HeadCache,
    begin: usize,
    count: usize,
    high: &[i16],
    low: &[i16],
    sums: &mut [i64],
) {
    let head = cache.head;
    // SAFETY: positions `begin..begin + count` lie in the cache; arrays have N parts of `count`.
    unsafe {
        for start in (0..count).step_by(SPAN) {
            let end = count.min(start + SPAN);
            for d in (0..head).step_by(16) {
                let zero = _mm256_setzero_si256();
                let (mut upper, mut lower) = ([[zero; 2]; N], [[zero; 2]; N]);
                for Stretch { page, inside, before, .. } in
                    cache.stretches(begin + start..begin + end)
                {
                    for at in inside.clone().step_by(2) {
                        let i = start + before + at - inside.start;
                        let at = page.values.as_ptr().add(at * head + 2 * d);
                        let v = [
                            _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast())),
                            _mm256_cvtepi8_epi16(_mm_loadu_si128(at.add(16).cast())),
                        ];
                        for n in 0..N {
                            let (h, l) = (two(high, n * count + i), two(low, n * count + i));
                            for x in 0..2 {
                                let product = _mm256_madd_epi16(v[x], h);
                                upper[n][x] = _mm256_add_epi32(upper[n][x], product);
                                let product = _mm256_madd_epi16(v[x], l);
                                lower[n][x] = _mm256_add_epi32(lower[n][x], product);
                            }
                        }
                    }
                }
                for n in 0..N {
                    for x in 0..2 {
                        let sums = &mut sums[n * head + d + 8 * x..][..8];
                        let (mut u, mut l) = ([0i32; 8], [0i32; 8]);
                        _mm256_storeu_si256(u.as_mut_ptr().cast(), upper[n][x]);
                        _mm256_storeu_si256(l.as_mut_ptr().cast(), lower[n][x]);
                        for k in 0..8 {
                            sums[k] += (i64::from(u[k]) << 12) + i64::from(l[k]);
                        }
                    }
                }
            }
        }
    }
}
