//! A row times a vector, exactly; and how the exact sum becomes a number of 30 bits.

use super::activation::{Activations, Token};
use super::bits::{bit_length, mul_q15, round_shift};
use super::weights::{Row, Shape};

/// The two exact sums of a row with a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// `sum over blocks of (scale * a) * (sum of q * activation)`, the product of scales rounded
    /// to 15 bits. Below 2^54 for any row of at most 53,248 numbers.
    pub dot: i64,
    /// `sum over blocks of min * t`.
    pub min: i64,
}

/// What every row of a matrix shares when it meets one vector: the unit of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Results are multiples of `2^exponent`.
    pub exponent: i32,
    /// `exponent` less the vector's part: a row shifts its dot by this less its own exponent.
    dot: i32,
    /// The same for minima.
    min: i32,
}

impl Unit {
    /// The finest unit in which no row of a matrix can pass 2^30, from the largest exponents among
    /// its rows and the bounds that the vector brings. It depends on no row's result, so that rows
    /// can be computed anywhere and in any order.
    pub fn new(shape: Shape, top: i32, min_top: i32, token: &Token) -> Self {
        let spare = |bound: u64| bit_length(bound).saturating_sub(29) as i32;
        let dot_up = spare(token.bound.saturating_mul(u64::from(shape.q_max)));
        // The product of two fractions was shifted down by 15.
        let scale_exponent = token.exponent + 15;
        let mut exponent = scale_exponent + top + dot_up;
        let (t_exponent, t_bound) = if shape.span == 16 {
            (token.half_t_exponent, token.half_t_bound)
        } else {
            (token.t_exponent, token.t_bound)
        };
        if shape.has_min {
            let min_up = spare(t_bound * 32767);
            exponent = exponent.max(t_exponent + min_top + min_up);
        }
        Self { exponent, dot: exponent - scale_exponent, min: exponent - t_exponent }
    }

    /// The shift of a dot whose row has exponent 0.
    #[inline(always)]
    pub fn dot_shift(&self) -> i32 {
        self.dot
    }

    /// The shift of a sum of minima whose row has exponent 0.
    #[inline(always)]
    pub fn min_shift(&self) -> i32 {
        self.min
    }

    /// A row's result as a multiple of the unit, at most 2^30 in magnitude.
    #[inline(always)]
    pub fn settle(&self, sums: Sums, exponent: i32, min_exponent: i32) -> i32 {
        let dot = round_shift(sums.dot, (self.dot - exponent) as u32);
        let min = round_shift(sums.min, (self.min - min_exponent) as u32);
        (dot + min) as i32
    }
}

/// The sums of a row with vector `token` of `x`.
pub fn sums(row: &Row, x: &Activations, token: usize) -> Sums {
    let q = &x.q[token * x.width..][..x.width];
    let a = &x.a[token * x.width / 32..];
    let t = if row.span == 16 {
        &x.half_t[token * x.width / 16..]
    } else {
        &x.t[token * x.width / 32..]
    };
    let mut sums = Sums::default();
    for (b, &scale) in row.scales.iter().enumerate() {
        let at = b * row.span;
        let block: i32 = row.q[at..at + row.span]
            .iter()
            .zip(&q[at..])
            .map(|(&w, &q)| i32::from(w) * i32::from(q))
            .sum();
        let scale = mul_q15(scale, a[at / 32]);
        sums.dot += i64::from(scale) * i64::from(block);
    }
    for (&min, &t) in row.mins.iter().zip(t) {
        sums.min += i64::from(min) * i64::from(t);
    }
    sums
}
