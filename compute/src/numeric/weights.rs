//! A matrix row in the class: the file's integers untouched, its scales and minima as signed
//! fractions of 15 bits under exponents that the row has to itself.
//!
//! Weight `i` is `127 * (scales[i / span] * 2^exponent * q[i] + mins[i / span] * 2^min_exponent)`;
//! the factor 127 meets the 1/127 of the activations and vanishes.
//!
//! Scales of two levels (K-quants) keep both: the block's own `d` becomes a fraction of 15 bits and
//! is multiplied by the small integer scale with [`mul_q15`], so that no format grows in memory.

use half::f16;

use super::bits::{bit_length, mul_q15};
use super::block::{GROUP, encode_floats};
use crate::gguf::TensorType;

/// The values that 4-bit codes of IQ4_NL and IQ4_XS stand for.
pub const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The exponent of a row whose scales are all zero.
pub const ROW_ZERO: i32 = -300;

/// How a weight type's numbers are bounded and grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Weights under one scale: 16 or 32.
    pub span: usize,
    /// Largest |q|.
    pub q_max: u32,
    /// Whether blocks have minima.
    pub has_min: bool,
}

/// The [`Shape`] of a type.
pub fn shape(kind: TensorType) -> Shape {
    use TensorType::*;
    let (span, q_max, has_min) = match kind {
        F32 | F16 | BF16 => (32, 32767, false),
        Q4_0 => (32, 8, false),
        Q4_1 => (32, 15, true),
        Q5_0 => (32, 16, false),
        Q5_1 => (32, 16, true),
        Q8_0 | IQ4_NL | IQ4_XS => (32, 128, false),
        Q2_K => (16, 3, true),
        Q3_K => (16, 4, false),
        Q4_K => (32, 15, true),
        Q5_K => (32, 31, true),
        Q6_K => (16, 32, false),
    };
    Shape { span, q_max, has_min }
}

/// One row, unpacked.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Row {
    /// Weights under one scale: 16 or 32.
    pub span: usize,
    /// Exponent of `scales`.
    pub exponent: i32,
    /// One scale for each `span` weights, within `[-32767, 32767]`.
    pub scales: Vec<i16>,
    /// Exponent of `mins`.
    pub min_exponent: i32,
    /// Minima, added; empty for types that have none.
    pub mins: Vec<i16>,
    /// The integers.
    pub q: Vec<i16>,
}

/// A row's fractions before they are multiplied out: what a kernel keeps in memory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fractions {
    /// Exponent of the scales, the integer scales' width included.
    pub exponent: i32,
    /// The same of minima.
    pub min_exponent: i32,
    /// `d` of each block of the file.
    pub d: Vec<i16>,
    /// `m`, or `-dmin`, of each block of the file; empty where there are none.
    pub m: Vec<i16>,
}

/// A scale that is infinite or not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("block {block} of a row has a scale that is not a finite number")]
pub struct NotFinite {
    /// Which block of the row.
    pub block: usize,
}

/// Where in a file's block its halves are: offsets of `d` and of `m` or `dmin`.
fn scale_offsets(kind: TensorType) -> (usize, Option<usize>) {
    use TensorType::*;
    match kind {
        Q4_1 | Q5_1 | Q4_K | Q5_K => (0, Some(2)),
        Q2_K => (80, Some(82)),
        Q3_K => (108, None),
        Q6_K => (208, None),
        _ => (0, None),
    }
}

/// Bits by which a product with the integer scales of a type is shifted down.
fn sub_scale_bits(kind: TensorType) -> u32 {
    use TensorType::*;
    match kind {
        Q4_K | Q5_K => 6,
        Q6_K => 7,
        Q3_K | IQ4_XS => 5,
        Q2_K => 4,
        _ => 0,
    }
}

/// The fractions of one row of a quantised type.
///
/// # Errors
/// A scale is not finite.
pub fn fractions(kind: TensorType, row: &[u8]) -> Result<Fractions, NotFinite> {
    let (d_at, m_at) = scale_offsets(kind);
    let size = kind.block_bytes();
    let count = row.len() / size;
    let read = |at: usize| -> Result<Vec<i64>, NotFinite> {
        (0..count).map(|block| exact(&row[block * size + at..], block)).collect()
    };
    let bits = sub_scale_bits(kind) as i32;
    let d = read(d_at)?;
    let (d, exponent) = fit(&d);
    let mut out = Fractions { exponent: exponent + bits, min_exponent: ROW_ZERO, d, m: vec![] };
    if let Some(at) = m_at {
        let mut m = read(at)?;
        match kind {
            // The centre of the codes moves into the minimum, which then is small: the codes of
            // Q5_1 become signed and every product with a scale fits 32 bits.
            TensorType::Q5_1 => {
                let d = read(d_at)?;
                m.iter_mut().zip(d).for_each(|(m, d)| *m += 16 * d);
            }
            TensorType::Q4_1 => {}
            _ => m.iter_mut().for_each(|m| *m = -*m),
        }
        let (m, exponent) = fit(&m);
        out.m = m;
        out.min_exponent = exponent + bits;
    }
    Ok(out)
}

/// An f16 as a multiple of 2^-24, exactly.
fn exact(bytes: &[u8], block: usize) -> Result<i64, NotFinite> {
    let x = f16::from_le_bytes([bytes[0], bytes[1]]);
    if x.is_finite() { Ok((f64::from(x) * 16_777_216.0) as i64) } else { Err(NotFinite { block }) }
}

/// `x * 2^-24 / 127` as fractions of 15 bits under the exponent that the largest asks for, rounded
/// half away from zero.
fn fit(x: &[i64]) -> (Vec<i16>, i32) {
    let peak = x.iter().fold(0, |p, x| p.max(x.unsigned_abs()));
    if peak == 0 {
        return (vec![0; x.len()], ROW_ZERO);
    }
    // The largest up with floor(peak * 2^up / 127) below 2^15.
    let quotient_bits = |up: i32| {
        let (n, d) = if up >= 0 { (peak << up, 127) } else { (peak, 127u64 << -up) };
        bit_length(n / d)
    };
    let mut up = 22 - bit_length(peak) as i32;
    while quotient_bits(up) > 15 {
        up -= 1;
    }
    while quotient_bits(up + 1) <= 15 {
        up += 1;
    }
    let divide = |x: i64| {
        let (n, d) =
            if up >= 0 { (x.unsigned_abs() << up, 127) } else { (x.unsigned_abs(), 127u64 << -up) };
        let magnitude = ((2 * n + d) / (2 * d)).min(32767) as i16;
        if x < 0 { -magnitude } else { magnitude }
    };
    (x.iter().map(|&x| divide(x)).collect(), -24 - up)
}

/// The small integer scale and minimum of sub-block `j` of one K-quant block; the minimum of types
/// that have none is 0.
pub fn sub_scale(kind: TensorType, block: &[u8], j: usize) -> (i8, i8) {
    use TensorType::*;
    match kind {
        Q2_K => ((block[j] & 15) as i8, (block[j] >> 4) as i8),
        Q3_K => {
            let s = &block[96..108];
            let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
            let high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
            ((low | high << 4) as i8 - 32, 0)
        }
        Q4_K | Q5_K => {
            let s = &block[4..16];
            if j < 4 {
                ((s[j] & 63) as i8, (s[j + 4] & 63) as i8)
            } else {
                let scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
                let min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
                (scale as i8, min as i8)
            }
        }
        Q6_K => (block[192 + j] as i8, 0),
        IQ4_XS => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            let low = (block[4 + j / 2] >> (4 * (j % 2))) & 15;
            ((low | (((high >> (2 * j)) & 3) as u8) << 4) as i8 - 32, 0)
        }
        _ => (0, 0),
    }
}

/// A fraction times a small integer scale of `bits` bits.
#[inline(always)]
pub fn times_sub_scale(fraction: i16, scale: i8, bits: u32) -> i16 {
    mul_q15(fraction, i16::from(scale) << (15 - bits))
}

/// The integers of one block of a quantised file, centred as the class has them.
pub fn codes(kind: TensorType, block: &[u8], q: &mut [i16]) {
    use TensorType::*;
    match kind {
        Q4_0 => nibbles(&block[2..18], q, |x| i16::from(x) - 8),
        Q4_1 => nibbles(&block[4..20], q, i16::from),
        IQ4_NL => nibbles(&block[2..18], q, |x| IQ4_VALUES[usize::from(x)].into()),
        Q5_0 => fives(&block[2..6], &block[6..22], q),
        Q5_1 => fives(&block[4..8], &block[8..24], q),
        Q8_0 => q.iter_mut().zip(&block[2..]).for_each(|(q, &x)| *q = i16::from(x as i8)),
        IQ4_XS => {
            for (j, q) in q.chunks_exact_mut(32).enumerate() {
                let bytes = &block[8 + 16 * j..][..16];
                nibbles(bytes, q, |x| IQ4_VALUES[usize::from(x)].into());
            }
        }
        Q4_K | Q5_K => {
            let low = if kind == Q4_K { 16 } else { 48 };
            for (i, q) in q.iter_mut().enumerate() {
                let (pair, half, l) = (i / 64, i / 32 % 2, i % 32);
                let nibble = (block[low + 32 * pair + l] >> (4 * half)) & 15;
                let fifth = if kind == Q5_K { (block[16 + l] >> (i / 32)) & 1 } else { 0 };
                *q = i16::from(nibble | fifth << 4);
            }
        }
        Q6_K => {
            for (i, q) in q.iter_mut().enumerate() {
                let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                let low = block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2));
                let high = block[128 + 32 * half + l] >> (2 * quarter);
                *q = i16::from((low & 15) | (high & 3) << 4) - 32;
            }
        }
        Q3_K => {
            for (i, q) in q.iter_mut().enumerate() {
                let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                let low = (block[32 + 32 * half + l] >> (2 * quarter)) & 3;
                let high = (block[l] >> (4 * half + quarter)) & 1;
                *q = i16::from(low | high << 2) - 4;
            }
        }
        Q2_K => {
            for (i, q) in q.iter_mut().enumerate() {
                let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                *q = i16::from((block[16 + 32 * half + l] >> (2 * quarter)) & 3);
            }
        }
        F32 | F16 | BF16 => unreachable!("floats have no codes; `row` encodes them"),
    }
}

fn nibbles(bytes: &[u8], q: &mut [i16], value: impl Fn(u8) -> i16) {
    for (l, &byte) in bytes.iter().enumerate() {
        q[l] = value(byte & 15);
        q[l + 16] = value(byte >> 4);
    }
}

fn fives(high: &[u8], low: &[u8], q: &mut [i16]) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    nibbles(low, q, i16::from);
    for (i, q) in q.iter_mut().enumerate() {
        *q += 16 * ((high >> i) & 1) as i16 - 16;
    }
}

/// Numbers that a file stores one by one, for the types that are floats.
pub fn floats(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
    match kind {
        TensorType::F32 => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        TensorType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
            .collect(),
        _ => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

/// 2^21 / 127: the unit of a float row's scales.
const FLOAT_SCALE: i32 = 16513;

/// One row of any type, unpacked from the file's bytes. `row.len()` is a whole number of blocks
/// and of groups of 32.
///
/// # Errors
/// A scale, or a weight that is a float, is not finite.
pub fn row(kind: TensorType, bytes: &[u8]) -> Result<Row, NotFinite> {
    match kind {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => float_row(kind, bytes),
        _ => quantised_row(kind, bytes),
    }
}

fn float_row(kind: TensorType, bytes: &[u8]) -> Result<Row, NotFinite> {
    let values = floats(kind, bytes);
    let groups = values.len() / GROUP;
    let mut q = vec![0i16; values.len()];
    let mut exponents = vec![0i32; groups];
    for g in 0..groups {
        let x = values[g * GROUP..][..GROUP].try_into().expect("a group has 32 numbers");
        let out = (&mut q[g * GROUP..][..GROUP]).try_into().expect("a group has 32 numbers");
        exponents[g] = encode_floats(x, out).map_err(|_| NotFinite { block: g })?.into();
    }
    let top = exponents.iter().copied().max().unwrap_or(-128);
    let scales = exponents.iter().map(|&e| float_scale(top - e)).collect();
    let exponent = if top == -128 { ROW_ZERO } else { top - 21 };
    Ok(Row { span: 32, exponent, scales, min_exponent: ROW_ZERO, mins: vec![], q })
}

/// The scale of a float block whose exponent lies `below` the row's largest.
pub fn float_scale(below: i32) -> i16 {
    super::bits::round_shift_32(FLOAT_SCALE, below as u32) as i16
}

fn quantised_row(kind: TensorType, bytes: &[u8]) -> Result<Row, NotFinite> {
    let Fractions { exponent, min_exponent, d, m } = fractions(kind, bytes)?;
    let shape = shape(kind);
    let bits = sub_scale_bits(kind);
    let blocks = bytes.chunks_exact(kind.block_bytes());
    let mut q = vec![0; d.len() * kind.block_len()];
    for (q, block) in q.chunks_exact_mut(kind.block_len()).zip(blocks.clone()) {
        codes(kind, block, q);
    }
    let (mut scales, mut mins) = (d.clone(), m.clone());
    if bits != 0 {
        (scales, mins) = (vec![], vec![]);
        for (b, block) in blocks.enumerate() {
            for j in 0..256 / shape.span {
                let (scale, min) = sub_scale(kind, block, j);
                scales.push(times_sub_scale(d[b], scale, bits));
                if shape.has_min {
                    mins.push(times_sub_scale(m[b], min, bits));
                }
            }
        }
    }
    Ok(Row { span: shape.span, exponent, scales, min_exponent, mins, q })
}
