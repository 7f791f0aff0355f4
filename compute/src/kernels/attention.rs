//! Query heads over a cache, by kernel.

use std::ops::Range;

use super::Kernels;
use crate::kv::{HeadCache, HeadPage, KEYS_ABREAST, Stretch};
use crate::numeric::attention::{
    Average, HeadScale, QueryFactor, attend as defined, logit, value_weight,
};
use crate::numeric::functions::exp2_negative;

/// What some query heads look at.
#[derive(Debug, Clone)]
pub struct Seen<'a> {
    /// The key-value head that they share.
    pub cache: HeadCache<'a>,
    /// The positions that they may see; not empty.
    pub positions: Range<usize>,
}

/// Query heads of one token that share a key-value head.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[heads][head]`.
    pub q: &'a [i8],
    /// One for each head.
    pub factors: &'a [QueryFactor],
}

/// What becomes of them.
#[derive(Debug)]
pub struct Averages<'a> {
    /// `[heads][head]`, below 2^29.
    pub out: &'a mut [i32],
    /// Exponents of their units, one for each head.
    pub units: &'a mut [i32],
}

/// Memory that attention reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Logits, `[heads][positions]`.
    pub(super) logits: Vec<i32>,
    /// Upper and lower 12 bits of values' weights, `[heads][positions]` each.
    pub(super) high: Vec<i16>,
    pub(super) low: Vec<i16>,
    /// Sums of weighted values, `[heads][head]`.
    pub(super) sums: Vec<i64>,
    pub(super) averages: Vec<Average>,
}

impl Kernels {
    /// All query heads of one key-value head for one token.
    pub fn attend(self, seen: &Seen, queries: Queries, to: &mut Averages, scratch: &mut Scratch) {
        let (head, heads) = (seen.cache.head, queries.factors.len());
        assert!(!seen.positions.is_empty());
        assert!(queries.q.len() == heads * head && to.out.len() == heads * head);
        assert!(to.units.len() == heads && seen.positions.end <= seen.cache.capacity());
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) if head.is_multiple_of(16) => {
                // SAFETY: the variant exists only where the processor has AVX2; lengths were
                // checked above.
                unsafe { super::avx2::attention::attend(seen, queries, to, scratch) }
            }
            Self::Reference => plain(seen, queries, to),
            _ => portable(seen, queries, to, scratch),
        }
    }
}

/// Plain Rust over the cache's own layout.
fn portable(seen: &Seen, queries: Queries, to: &mut Averages, scratch: &mut Scratch) {
    let Seen { cache, positions } = seen;
    let head = cache.head;
    let top = top_exponent(cache, positions.clone());
    for (h, &factor) in queries.factors.iter().enumerate() {
        scores(seen, &queries.q[h * head..(h + 1) * head], factor, &mut scratch.logits);
        let largest = scratch.logits.iter().copied().max().expect("there is a position");
        let sums = &mut scratch.sums;
        sums.clear();
        sums.resize(head, 0);
        let mut total = 0;
        let mut logits = scratch.logits.iter();
        for stretch in cache.stretches(positions.clone()) {
            let page = stretch.page;
            for (at, &logit) in stretch.inside.zip(&mut logits) {
                let p = exp2_negative(largest.wrapping_sub(logit) as u32);
                total += u64::from(p);
                let scale = HeadScale { m: page.value_m[at], e: page.value_e[at] };
                let weight = i64::from(value_weight(p, scale, top));
                let values = &page.values[(at - at % 2) * head..][..2 * head];
                for (sum, pair) in sums.iter_mut().zip(values.chunks_exact(2)) {
                    *sum += weight * i64::from(pair[at % 2]);
                }
            }
        }
        let average = Average::new(total);
        to.units[h] = i32::from(top) - 13;
        let out = &mut to.out[h * head..(h + 1) * head];
        out.iter_mut().zip(sums.iter()).for_each(|(out, &sum)| *out = average.of(sum));
    }
}

/// The largest exponent among scales of values that are not zero.
#[inline(always)]
pub(super) fn top_exponent(cache: &HeadCache, positions: Range<usize>) -> i8 {
    cache.stretches(positions).fold(-100, |top, Stretch { page, inside, .. }| {
        let (m, e) = (&page.value_m[inside.clone()], &page.value_e[inside]);
        m.iter().zip(e).fold(top, |top, (&m, &e)| if m == 0 { top } else { top.max(e) })
    })
}

/// The logits of one query head at every position.
fn scores(seen: &Seen, q: &[i8], factor: QueryFactor, logits: &mut Vec<i32>) {
    logits.clear();
    for Stretch { page, inside, .. } in seen.cache.stretches(seen.positions.clone()) {
        let mut dots = [0i32; KEYS_ABREAST];
        let mut of = usize::MAX;
        for at in inside {
            let begin = at - at % KEYS_ABREAST;
            if begin != of {
                of = begin;
                dots = eight_dots(&page, begin, q);
            }
            let scale = HeadScale { m: page.key_m[at], e: page.key_e[at] };
            logits.push(logit(dots[at % KEYS_ABREAST], factor, scale));
        }
    }
}

/// Products of a query head with the eight keys from `begin` on.
fn eight_dots(page: &HeadPage, begin: usize, q: &[i8]) -> [i32; KEYS_ABREAST] {
    let mut dots = [0; KEYS_ABREAST];
    let size = q.len().next_multiple_of(4);
    let keys = &page.keys[begin * size..][..KEYS_ABREAST * size];
    for (keys, q) in keys.chunks_exact(4 * KEYS_ABREAST).zip(q.chunks(4)) {
        for (dot, key) in dots.iter_mut().zip(keys.chunks_exact(4)) {
            *dot += key.iter().zip(q).map(|(&k, &q)| i32::from(k) * i32::from(q)).sum::<i32>();
        }
    }
    dots
}

/// The definition, head by head.
fn plain(seen: &Seen, queries: Queries, to: &mut Averages) {
    let head = seen.cache.head;
    for (h, &factor) in queries.factors.iter().enumerate() {
        to.units[h] = defined(
            &queries.q[h * head..(h + 1) * head],
            factor,
            seen.positions.clone(),
            &mut |j, q| seen.cache.key(j, q),
            &mut |j, q| seen.cache.value(j, q),
            &mut to.out[h * head..(h + 1) * head],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::proof::next;
    use super::*;
    use crate::kv::{Cache, PAGE, Pages, Shape};

    fn scale(dice: &mut u64, wild: bool) -> HeadScale {
        let x = next(dice);
        if wild && x.is_multiple_of(9) {
            return HeadScale::default();
        }
        let spread = if wild { (x >> 40) as i8 / 2 } else { (x >> 40) as i8 & 3 };
        HeadScale { m: (1 << 14) | (x as i16 & 0x3fff), e: (spread - 8).clamp(-100, 100) }
    }

    fn head(dice: &mut u64, n: usize, wild: bool) -> Vec<i8> {
        let fill = next(dice) % 4;
        (0..n)
            .map(|_| match (wild, fill) {
                (true, 0) => 127,
                (true, 1) => -127,
                _ => (next(dice) % 255) as i8,
            })
            .map(|q| q.max(-127))
            .collect()
    }

    fn agree(n: usize, heads: usize, first: usize, last: usize, wild: bool) {
        let dice = &mut ((n * 31 + heads * 7 + first + last) as u64);
        let shape = Shape { layers: 2, kv_heads: 1, head: n };
        let mut cache = Cache::beginning(Pages::new(shape, usize::MAX), Vec::new());
        cache.reserve(&(0..last)).unwrap();
        let places = cache.places(&(0..last));
        for j in 0..last {
            let (k, v) = (head(dice, n, wild), head(dice, n, wild));
            let (ks, vs) = (scale(dice, wild), scale(dice, wild));
            // SAFETY: one thread, one position at a time.
            unsafe {
                places[j / PAGE].put_key((1, 0), j % PAGE, &k, ks);
                places[j / PAGE].put_value((1, 0), j % PAGE, &v, vs);
            }
        }
        let q: Vec<i8> = (0..heads).flat_map(|_| head(dice, n, wild)).collect();
        let factors: Vec<QueryFactor> =
            (0..heads).map(|_| QueryFactor::new(scale(dice, wild), (20_000, -30))).collect();
        // SAFETY: nobody writes any more.
        let head = unsafe { HeadCache::new(&places, 1, 0) };
        let seen = Seen { cache: head, positions: first..last };
        let run = |kernels: Kernels| {
            let (mut out, mut units) = (vec![0; heads * n], vec![0; heads]);
            let to = &mut Averages { out: &mut out, units: &mut units };
            let queries = Queries { q: &q, factors: &factors };
            kernels.attend(&seen, queries, to, &mut Scratch::default());
            (out, units)
        };
        let defined = run(Kernels::Reference);
        assert_eq!(run(Kernels::Portable), defined, "{n} {heads} {first}..{last} {wild}");
        assert_eq!(run(Kernels::fastest()), defined, "{n} {heads} {first}..{last} {wild}");
    }

    #[test]
    fn kernels_equal_the_definition() {
        for n in [16, 18, 64, 80, 128, 256] {
            for heads in [1, 2, 3, 4, 5, 8] {
                for (first, last) in [(0, 1), (0, 7), (3, 8), (5, 77), (0, 300), (299, 300)] {
                    agree(n, heads, first, last, false);
                    agree(n, heads, first, last, true);
                }
            }
        }
    }

    #[test]
    fn long_contexts_do_not_wrap() {
        agree(16, 3, 0, 9_001, true);
        agree(64, 1, 1_234, 20_000, false);
    }
}
