//! Attention: from block floats to 8-bit heads, exact scores, a softmax without running rescale,
//! and the weighted sum of values.

use super::activation::quantise_block;
use super::bits::{bit_length, round_shift};
use super::block::{Blocks, GROUP, ZERO};
use super::functions::{exp2_negative, sine_cosine};
use super::norm::{Epsilon, rms_norm_head, settle};
use super::scalar::{Factor, Positive};

/// The longest head, in numbers.
pub const HEAD_MAX: usize = 512;

/// The scale of an 8-bit head: numbers are `q * m * 2^e / 127`; `m` is 0 or in `[2^14, 2^15)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadScale {
    /// Mantissa.
    pub m: i16,
    /// Exponent, within ±100.
    pub e: i8,
}

/// How pairs of numbers are chosen for rotation; a property of the architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `(0, 1), (2, 3), ...`
    Adjacent,
    /// `(0, n/2), (1, n/2 + 1), ...`
    Halves,
}

/// Sines and cosines of one position.
#[derive(Debug, Clone, Default)]
pub struct Rotation {
    /// (sine, cosine) of each pair, in units of 2^-15.
    pub pairs: Vec<(i32, i32)>,
}

impl Rotation {
    /// The rotation at `position`, from phase increments: 2^32 is a whole turn, and products wrap.
    pub fn at(&mut self, position: u32, increments: &[u32]) {
        self.pairs.clear();
        self.pairs.extend(increments.iter().map(|&i| sine_cosine(i.wrapping_mul(position))));
    }

    /// Rotates the first `2 * pairs` numbers of a head of 15 bits.
    #[inline(always)]
    pub fn apply(&self, pairing: Pairing, x: &mut [i32]) {
        let n = self.pairs.len();
        // |u|, |v| <= 32767 and sine^2 + cosine^2 is 2^30 to 4 digits: below 2^31 each.
        let rotate = |u: &mut i32, v: &mut i32, (sine, cosine): (i32, i32)| {
            (*u, *v) = (round_once(*u * cosine - *v * sine), round_once(*u * sine + *v * cosine));
        };
        match pairing {
            Pairing::Adjacent => {
                for (pair, &by) in x.chunks_exact_mut(2).zip(&self.pairs) {
                    let [u, v] = pair else { unreachable!("chunks of two") };
                    rotate(u, v, by);
                }
            }
            Pairing::Halves => {
                let (first, second) = x[..2 * n].split_at_mut(n);
                for ((u, v), &by) in first.iter_mut().zip(second).zip(&self.pairs) {
                    rotate(u, v, by);
                }
            }
        }
    }
}

#[inline(always)]
fn round_once(x: i32) -> i32 {
    (x + (1 << 14)) >> 15
}

/// How far the Hadamard rotation of a head of `n` numbers reaches: the largest power of two that
/// divides it, 256 at most.
pub fn hadamard_len(n: usize) -> usize {
    1 << n.trailing_zeros().min(8)
}

/// The unscaled Walsh-Hadamard transform of each stretch of [`hadamard_len`] numbers. Keys and
/// queries both take it, so their products grow by that length, a power of two.
#[inline(always)]
pub fn hadamard(x: &mut [i32]) {
    let len = hadamard_len(x.len());
    // Stages commute, and their sums are exact; those within eight numbers are done by register.
    let within = if len >= 8 { 8 } else { 1 };
    if within == 8 {
        for eight in x.chunks_exact_mut(8) {
            let eight: &mut [i32; 8] = eight.try_into().expect("chunks of eight");
            *eight = butterfly::<4>(&butterfly::<2>(&butterfly::<1>(eight)));
        }
    }
    for x in x.chunks_exact_mut(len) {
        let mut step = within;
        while step < len {
            for x in x.chunks_exact_mut(2 * step) {
                let (a, b) = x.split_at_mut(step);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            step *= 2;
        }
    }
}

/// One stage of the transform of eight numbers: sums and differences of those `STEP` apart.
#[inline(always)]
fn butterfly<const STEP: usize>(x: &[i32; 8]) -> [i32; 8] {
    std::array::from_fn(|i| {
        let (own, other) = (x[i], x[i ^ STEP]);
        other + if i & STEP == 0 { own } else { -own }
    })
}

/// What happens to a head before it is quantised.
#[derive(Debug, Clone, Copy)]
pub struct Treatment<'a> {
    /// Weights of a norm over the head, if the architecture has one.
    pub norm: Option<(Blocks<'a>, Epsilon)>,
    /// The rotation by position.
    pub rotation: &'a Rotation,
    /// How it pairs numbers.
    pub pairing: Pairing,
}

/// Quantises the head at `x[start..start + q.len()]`; queries and keys bring a treatment, values
/// do not.
#[inline(always)]
pub fn quantise_head(
    x: Blocks,
    start: usize,
    treatment: Option<Treatment>,
    q: &mut [i8],
) -> HeadScale {
    let mut head = [0i32; HEAD_MAX];
    let head = &mut head[..q.len()];
    let mut e = gather(x, start, head);
    let mut factor = Factor::ONE;
    if let Some(treatment) = treatment {
        if let Some((weights, epsilon)) = treatment.norm {
            let (moved, inverse_rms) = rms_norm_head(head, e, weights, epsilon);
            e += moved;
            factor = inverse_rms;
        }
        treatment.rotation.apply(treatment.pairing, head);
        hadamard(head);
    }
    e += settle(head);
    let mut m = [0i16; HEAD_MAX];
    let m = &mut m[..q.len()];
    m.iter_mut().zip(head.iter()).for_each(|(m, &x)| *m = x as i16);
    let peak = quantise_block(m, q);
    let scale = head_scale(peak, e, factor);
    if scale.m == 0 {
        q.fill(0);
    }
    scale
}

/// Takes a head out of a vector and puts it under one exponent, which is returned.
#[inline(always)]
fn gather(x: Blocks, start: usize, head: &mut [i32]) -> i32 {
    let groups = start / GROUP..(start + head.len()).div_ceil(GROUP);
    let top = i32::from(x.e[groups].iter().copied().max().unwrap_or(ZERO));
    let mut at = start;
    let mut rest = head;
    while !rest.is_empty() {
        // What is left of the block that the next number lies in.
        let (own, later) = rest.split_at_mut((GROUP - at % GROUP).min(rest.len()));
        let down = (top - i32::from(x.e[at / GROUP])) as u32;
        let m = &x.m[at..at + own.len()];
        let half = if (1..=30).contains(&down) { 1 << (down - 1) } else { 0 };
        match down {
            0..=30 => {
                own.iter_mut().zip(m).for_each(|(h, &m)| *h = (i32::from(m) + half) >> down);
            }
            _ => own.fill(0),
        }
        at += own.len();
        rest = later;
    }
    top
}

#[inline(always)]
fn head_scale(peak: u16, e: i32, factor: Factor) -> HeadScale {
    let product = u64::from(peak) * u64::from(factor.m);
    if product == 0 {
        return HeadScale::default();
    }
    let down = bit_length(product) as i32 - 15;
    let m = (product >> down) as i16;
    match e + factor.e + down {
        101.. => HeadScale { m: 32767, e: 100 },
        ..-100 => HeadScale::default(),
        e => HeadScale { m, e: e as i8 },
    }
}

/// What turns a dot product of 8-bit heads into a base-2 logit: a fraction of 15 bits and an
/// exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryFactor {
    /// Mantissa in `[2^14, 2^15)`, or 0.
    pub m: i16,
    /// Exponent.
    pub e: i32,
}

/// `attention_scale * log2(e) / 127^2 / hadamard_len`, the constant part of [`QueryFactor`].
pub fn score_constant(attention_scale: f64, head: usize) -> (i16, i32) {
    let log2_e = std::f64::consts::LOG2_E;
    let scale = attention_scale * log2_e / 16129.0 / hadamard_len(head) as f64;
    Positive::from_f64(scale).short()
}

impl QueryFactor {
    /// For a query with `scale`.
    pub fn new(scale: HeadScale, constant: (i16, i32)) -> Self {
        let product = u64::from(scale.m as u16) * u64::from(constant.0 as u16);
        if product == 0 {
            return Self { m: 0, e: 0 };
        }
        let down = bit_length(product) - 15;
        Self { m: (product >> down) as i16, e: i32::from(scale.e) + constant.1 + down as i32 }
    }
}

/// Logits are cut to this magnitude, in units of 2^-16 of a doubling.
pub const LOGIT_MAX: i64 = 1 << 30;

/// The product of a query's factor and a key's scale: (fraction of 15 bits, exponent of a logit in
/// units of 2^-16, within `[-60, 24]`).
#[inline(always)]
pub fn score_scale(query: QueryFactor, key: HeadScale) -> (i32, i32) {
    let m = (i32::from(query.m) * i32::from(key.m) + (1 << 14)) >> 15;
    (m, (query.e + i32::from(key.e) + 31).clamp(-60, 24))
}

/// The base-2 logit of a dot product, in units of 2^-16, rounded down.
#[inline(always)]
pub fn logit(dot: i32, query: QueryFactor, key: HeadScale) -> i32 {
    let (m, e) = score_scale(query, key);
    let product = i64::from(dot) * i64::from(m);
    let logit = if e < 0 { product >> -e } else { product << e };
    logit.clamp(-LOGIT_MAX, LOGIT_MAX) as i32
}

/// A probability's weight once its value's scale is in it: `p * m * 2^(e - top) / 2^15`, cut, where
/// `p` is in units of 2^-24 of the largest.
#[inline(always)]
pub fn value_weight(p: u32, scale: HeadScale, top: i8) -> u32 {
    if scale.m == 0 {
        return 0;
    }
    let down = (i32::from(top) - i32::from(scale.e)).min(31) as u32;
    ((u64::from(p >> down) * scale.m as u64) >> 15) as u32
}

/// How the sum of weighted values becomes an average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Average {
    down: u32,
    inverse: i64,
}

impl Average {
    /// For probabilities that sum to `total >= 2^23`.
    #[inline(always)]
    pub fn new(total: u64) -> Self {
        let down = bit_length(total) - 16;
        Self { down: down - 7, inverse: ((1u64 << 37) / (127 * (total >> down))) as i64 }
    }

    /// One number of the average, in units of `2^(top - 13)`, where `top` is the largest exponent
    /// among the values' scales; below 2^29.
    #[inline(always)]
    pub fn of(&self, sum: i64) -> i32 {
        ((round_shift(sum, self.down) * self.inverse) >> 16) as i32
    }
}

/// One query head against keys and values of the positions that it may see, all given plainly:
/// the definition that kernels must equal. `key` and `value` copy position `j`'s head and return
/// its scale; `out` receives the average, and the exponent of its unit is returned.
pub fn attend(
    q: &[i8],
    query: QueryFactor,
    positions: std::ops::Range<usize>,
    key: &mut dyn FnMut(usize, &mut [i8]) -> HeadScale,
    value: &mut dyn FnMut(usize, &mut [i8]) -> HeadScale,
    out: &mut [i32],
) -> i32 {
    let mut head = vec![0i8; q.len()];
    let logits: Vec<i32> = positions
        .clone()
        .map(|j| {
            let scale = key(j, &mut head);
            let dot = q.iter().zip(&head).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum();
            logit(dot, query, scale)
        })
        .collect();
    let largest = logits.iter().copied().max().expect("a token sees at least itself");
    // The difference is at most 2^31, which fits unsigned.
    let p: Vec<u32> =
        logits.iter().map(|&l| exp2_negative(largest.wrapping_sub(l) as u32)).collect();
    let total = p.iter().map(|&p| u64::from(p)).sum();
    let mut head = vec![0i8; out.len()];
    let scales: Vec<HeadScale> = positions.clone().map(|j| value(j, &mut head)).collect();
    let top = scales.iter().filter(|s| s.m != 0).map(|s| s.e).max().unwrap_or(-100);
    let mut sums = vec![0i64; out.len()];
    for (n, j) in positions.enumerate() {
        let weight = i64::from(value_weight(p[n], scales[n], top));
        value(j, &mut head);
        sums.iter_mut().zip(&head).for_each(|(sum, &v)| *sum += weight * i64::from(v));
    }
    let average = Average::new(total);
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = average.of(sum));
    i32::from(top) - 13
}
