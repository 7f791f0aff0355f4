//! What goes into a matrix: 8-bit integers, 32 to a scale, all scales of a token under one exponent.

use super::bits::{bit_length, round_shift};
use super::block::{Blocks, GROUP, ZERO};
use super::scalar::Factor;

/// Quantised vectors of several tokens, each of `width` numbers.
///
/// Number `i` of a token is `q[i] * a[i / 32] * 2^exponent / 127`; matrices carry the 1/127.
#[derive(Debug, Default, Clone)]
pub struct Activations {
    /// Numbers in a vector, padded with zeros to a multiple of 64.
    pub width: usize,
    /// `[tokens, width]`, each in `[-127, 127]`.
    pub q: Vec<i8>,
    /// Scales, `[tokens, width / 32]`, each in `[0, 32767]`.
    pub a: Vec<i16>,
    /// Sums of `q` over each block, `[tokens, width / 32]`, at most 4,064 in magnitude.
    pub sums: Vec<i16>,
    /// Sums over each half block, `[tokens, width / 16]`.
    pub half_sums: Vec<i16>,
    /// `a * sums` under an exponent of the token's own: what minima are multiplied by.
    pub t: Vec<i16>,
    /// The same of half blocks.
    pub half_t: Vec<i16>,
    /// What belongs to each token.
    pub tokens: Vec<Token>,
}

/// What belongs to one quantised vector as a whole.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Exponent of the scales `a`.
    pub exponent: i32,
    /// Exponent of `t`.
    pub t_exponent: i32,
    /// Exponent of `half_t`.
    pub half_t_exponent: i32,
    /// `sum over blocks of a * sum of |q|`: bounds every dot product with this vector.
    pub bound: u64,
    /// `sum of |t|`.
    pub t_bound: u64,
    /// `sum of |half_t|`.
    pub half_t_bound: u64,
}

impl Activations {
    /// Makes room for `tokens` vectors of `width` numbers. What was there is lost.
    pub fn resize(&mut self, tokens: usize, width: usize) {
        let width = width.next_multiple_of(64);
        self.width = width;
        let (blocks, halves) = (tokens * width / 32, tokens * width / 16);
        self.q.resize(tokens * width, 0);
        self.a.resize(blocks, 0);
        self.sums.resize(blocks, 0);
        self.half_sums.resize(halves, 0);
        self.t.resize(blocks, 0);
        self.half_t.resize(halves, 0);
        self.tokens.resize(tokens, Token::default());
    }

    /// The whole, to be written token by token.
    pub fn rows(&mut self) -> Rows<'_> {
        Rows {
            width: self.width,
            q: &mut self.q,
            a: &mut self.a,
            sums: &mut self.sums,
            half_sums: &mut self.half_sums,
            t: &mut self.t,
            half_t: &mut self.half_t,
            tokens: &mut self.tokens,
        }
    }
}

/// Some tokens of an [`Activations`], to be written.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Rows<'a> {
    pub width: usize,
    pub q: &'a mut [i8],
    pub a: &'a mut [i16],
    pub sums: &'a mut [i16],
    pub half_sums: &'a mut [i16],
    pub t: &'a mut [i16],
    pub half_t: &'a mut [i16],
    pub tokens: &'a mut [Token],
}

impl Rows<'_> {
    /// Quantises `x * factor` into row `row`.
    #[inline(always)]
    pub fn quantise(&mut self, row: usize, x: Blocks, factor: Factor) {
        let width = self.width;
        let (blocks, halves) = (width / 32, width / 16);
        let q = &mut self.q[row * width..][..width];
        let a = &mut self.a[row * blocks..][..blocks];
        let sums = &mut self.sums[row * blocks..][..blocks];
        let half_sums = &mut self.half_sums[row * halves..][..halves];
        let top = x.e.iter().copied().max().unwrap_or(ZERO);
        let mut bound = 0;
        for g in x.e.len()..blocks {
            q[g * GROUP..][..GROUP].fill(0);
            (a[g], sums[g], half_sums[2 * g], half_sums[2 * g + 1]) = (0, 0, 0, 0);
        }
        for g in 0..x.e.len() {
            let (m, e) = x.block(g);
            let q: &mut [i8; GROUP] =
                (&mut q[g * GROUP..][..GROUP]).try_into().expect("a block has 32 numbers");
            let peak = quantise_block(m, q);
            // At most 32767 * 2^16, below 2^31.
            let scale = u64::from(peak) * u64::from(factor.m);
            let down = 16 + (i32::from(top) - i32::from(e)) as u32;
            a[g] = round_shift(scale as i64, down) as i16;
            let (first, second, size) = block_sums(q);
            (half_sums[2 * g], half_sums[2 * g + 1]) = (first, second);
            sums[g] = first + second;
            bound += u64::from(a[g] as u16) * u64::from(size);
        }
        let exponent = if top == ZERO { -400 } else { i32::from(top) + factor.e + 16 };
        let t = &mut self.t[row * blocks..][..blocks];
        let half_t = &mut self.half_t[row * halves..][..halves];
        let (up, t_bound) = weigh(a, sums, 1, t);
        let (half_up, half_t_bound) = weigh(a, half_sums, 2, half_t);
        self.tokens[row] = Token {
            exponent,
            t_exponent: exponent + up,
            half_t_exponent: exponent + half_up,
            bound,
            t_bound,
            half_t_bound,
        };
    }
}

/// Brings a normalised block to 8 bits; returns its largest magnitude, whose 127th part is the unit.
#[inline(always)]
pub fn quantise_block(m: &[i16], q: &mut [i8]) -> u16 {
    let peak = m.iter().fold(0, |p, m| p.max(m.unsigned_abs()));
    if peak == 0 {
        q.fill(0);
        return 0;
    }
    // peak >= 2^14, so the quotient has 15 bits and every product stays below 127 * 2^22.
    let inverse = (127 << 22) / i32::from(peak);
    for (q, &m) in q.iter_mut().zip(m) {
        *q = ((i32::from(m) * inverse + (1 << 21)) >> 22) as i8;
    }
    peak
}

/// Sums of the first and second half of a block, and of all magnitudes.
#[inline(always)]
fn block_sums(q: &[i8; GROUP]) -> (i16, i16, u16) {
    let (mut first, mut second, mut size) = (0i16, 0i16, 0u16);
    for i in 0..GROUP / 2 {
        first += i16::from(q[i]);
        second += i16::from(q[i + 16]);
        size += u16::from(q[i].unsigned_abs()) + u16::from(q[i + 16].unsigned_abs());
    }
    (first, second, size)
}

/// `a * sums`, brought to 15 bits under one exponent: returns that exponent's gain and the sum of
/// magnitudes. `a` has one entry for each `per` sums.
#[inline(always)]
fn weigh(a: &[i16], sums: &[i16], per: usize, t: &mut [i16]) -> (i32, u64) {
    let product = |i: usize| i32::from(a[i / per]) * i32::from(sums[i]);
    let peak = (0..sums.len()).fold(0, |p, i| p.max(product(i).unsigned_abs()));
    let down = bit_length(u64::from(peak)).saturating_sub(15);
    let half = (1i32 << down) >> 1;
    let mut bound = 0;
    for (i, t) in t.iter_mut().enumerate() {
        *t = ((product(i) + half) >> down).clamp(-32767, 32767) as i16;
        bound += u64::from(t.unsigned_abs());
    }
    (down as i32, bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_values_to_half_a_step() {
        let m: Vec<i16> = (0..32).map(|i| ((i * 2003) % 32767 - 16000) as i16).collect();
        let mut q = [0i8; 32];
        let peak = quantise_block(&m, &mut q);
        for (m, q) in m.iter().zip(q) {
            let back = f64::from(q) * f64::from(peak) / 127.0;
            assert!((back - f64::from(*m)).abs() <= f64::from(peak) / 127.0 * 0.501);
        }
    }

    #[test]
    fn the_largest_becomes_127() {
        for peak in 1 << 14..=32767i16 {
            let mut q = [0i8; 2];
            quantise_block(&[peak, -peak], &mut q);
            assert_eq!(q, [127, -127], "{peak}");
        }
    }
}
