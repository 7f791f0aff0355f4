//! RMS normalisation of block floats.

use super::bits::round_shift_32;
use super::block::{Blocks, BlocksMut, GROUP, ZERO, normalise, peak};
use super::scalar::{Factor, Positive, inverse_square_root};

/// What a norm needs beside its weights.
#[derive(Debug, Clone, Copy)]
pub struct Epsilon {
    /// `1 / n`.
    pub per_count: Positive,
    /// The number added under the root.
    pub epsilon: Positive,
}

/// `x * w`, to which the returned factor `1 / rms(x)` still has to be applied: whoever quantises
/// or adds the result folds it in, once for each block and not for each number.
#[inline(always)]
pub fn rms_norm(x: Blocks, w: Blocks, epsilon: Epsilon, out: &mut BlocksMut) -> Factor {
    for g in 0..x.e.len() {
        let ((xm, xe), (wm, we)) = (x.block(g), w.block(g));
        let mut z = [0; GROUP];
        for ((z, &x), &w) in z.iter_mut().zip(xm).zip(wm) {
            *z = i32::from(x) * i32::from(w);
        }
        out.encode(g, &z, i32::from(xe) + i32::from(we));
    }
    inverse_square_root(mean_square(x, epsilon))
}

/// `mean(x^2) + epsilon`. Each block's sum is exact and is cut when aligned to the largest, so the
/// order of blocks does not matter.
#[inline(always)]
fn mean_square(x: Blocks, epsilon: Epsilon) -> Positive {
    let top = x.e.iter().copied().max().unwrap_or(ZERO);
    if top == ZERO {
        return epsilon.epsilon;
    }
    let mut sum = 0u64;
    for g in 0..x.e.len() {
        let (m, e) = x.block(g);
        let down = 2 * (i32::from(top) - i32::from(e)) as u32;
        if down < 40 {
            sum += square_sum(m) >> down;
        }
    }
    Positive::new(sum, 2 * i32::from(top)).times(epsilon.per_count).plus(epsilon.epsilon)
}

/// The exact sum of squares of a block, below 2^35.
#[inline(always)]
fn square_sum(m: &[i16; GROUP]) -> u64 {
    // A square fits 30 bits; the sums of 32 are taken in halves of 16 bits, so that registers of 32
    // bits hold them.
    let (mut low, mut high) = (0u32, 0u32);
    for &m in m {
        let square = (i32::from(m) * i32::from(m)) as u32;
        low += square & 0xffff;
        high += square >> 16;
    }
    u64::from(low) + (u64::from(high) << 16)
}

/// Applies a factor that [`rms_norm`] left open: `x * factor`, as block floats.
#[inline(always)]
pub fn apply(x: Blocks, factor: Factor, out: &mut BlocksMut) {
    for g in 0..x.e.len() {
        let (m, e) = x.block(g);
        if e == ZERO {
            out.m[g * GROUP..][..GROUP].fill(0);
            out.e[g] = ZERO;
            continue;
        }
        // 32767 * 2^16 is below 2^31; half of it leaves the bit that the encoding needs.
        let z = m.map(|m| (i32::from(m) * factor.m as i32) >> 1);
        out.encode(g, &z, i32::from(e) + factor.e + 1);
    }
}

/// RMS normalisation of one head: `x` (15 bits each) becomes `x * w`, again of 15 bits.
///
/// Returns the exponent to add and the factor `1 / rms(x * 2^e)`.
#[inline(always)]
pub fn rms_norm_head(x: &mut [i32], e: i32, w: Blocks, epsilon: Epsilon) -> (i32, Factor) {
    let sum = x.iter().map(|&x| (i64::from(x) * i64::from(x)) as u64).sum();
    let factor = inverse_square_root(
        Positive::new(sum, 2 * e).times(epsilon.per_count).plus(epsilon.epsilon),
    );
    let top = w.e.iter().copied().max().unwrap_or(ZERO);
    for (i, x) in x.iter_mut().enumerate() {
        let down = (i32::from(top) - i32::from(w.e[i / GROUP])) as u32;
        *x = round_shift_32(*x * i32::from(w.m[i]), down);
    }
    let moved = settle(x);
    (i32::from(top) + moved, factor)
}

/// Brings numbers of at most 30 bits to 15 bits in place; returns the exponent taken out.
#[inline(always)]
pub fn settle(x: &mut [i32]) -> i32 {
    let peak = peak(x);
    if peak == 0 {
        return 0;
    }
    let mut short = [0i16; 512];
    let short = &mut short[..x.len()];
    let moved = normalise(x, peak, short);
    for (x, &m) in x.iter_mut().zip(short.iter()) {
        *x = i32::from(m);
    }
    moved
}
