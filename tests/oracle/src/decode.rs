//! Blocks of a model file to f32, to the last bit as ggml's own reference decoders have it.

use compute::gguf::TensorType;
use half::{bf16, f16};

/// The 16 levels of IQ4_NL and IQ4_XS.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Decodes `bytes`, a whole number of blocks of `kind`, into `out`.
///
/// # Panics
/// If the lengths do not belong together.
pub fn decode(kind: TensorType, bytes: &[u8], out: &mut [f32]) {
    let (block_bytes, block_len) = (kind.block_bytes(), kind.block_len());
    assert_eq!(bytes.len() % block_bytes, 0, "{kind:?} comes in blocks of {block_bytes} bytes");
    assert_eq!(bytes.len() / block_bytes * block_len, out.len());
    let block: fn(&[u8], &mut [f32]) = match kind {
        TensorType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => |b, y| y[0] = half_at(b, 0),
        TensorType::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q8_0 => q8_0,
        TensorType::Q2_K => q2_k,
        TensorType::Q3_K => q3_k,
        TensorType::Q4_K => q4_k,
        TensorType::Q5_K => q5_k,
        TensorType::Q6_K => q6_k,
        TensorType::IQ4_NL => iq4_nl,
        TensorType::IQ4_XS => iq4_xs,
    };
    for (b, y) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_len)) {
        block(b, y);
    }
}

/// The f16 at `at`.
fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, &q) in b[2..18].iter().enumerate() {
        y[i] = d * (f32::from(q & 15) - 8.0);
        y[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, &q) in b[4..20].iter().enumerate() {
        y[i] = d * f32::from(q & 15) + m;
        y[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bits of a block of 32, as 0 or 16.
fn fifths(b: &[u8]) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    move |i| ((bits >> i & 1) as u8) << 4
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let (d, fifth) = (half_at(b, 0), fifths(&b[2..6]));
    for (i, &q) in b[6..22].iter().enumerate() {
        y[i] = d * (f32::from(q & 15 | fifth(i)) - 16.0);
        y[i + 16] = d * (f32::from(q >> 4 | fifth(i + 16)) - 16.0);
    }
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m, fifth) = (half_at(b, 0), half_at(b, 2), fifths(&b[4..8]));
    for (i, &q) in b[8..24].iter().enumerate() {
        y[i] = d * f32::from(q & 15 | fifth(i)) + m;
        y[i + 16] = d * f32::from(q >> 4 | fifth(i + 16)) + m;
    }
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..34]) {
        *y = d * f32::from(q as i8);
    }
}

/// 16 groups of 16; scale and minimum of a group are the halves of one byte.
fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, q) = (&b[..16], &b[16..80]);
    let (d, m) = (half_at(b, 80), half_at(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let scale = scales[i / 16];
        let bits = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        *y = d * f32::from(scale & 15) * f32::from(bits) - m * f32::from(scale >> 4);
    }
}

/// 16 groups of 16 with signed 6-bit scales; a third bit that is *clear* subtracts 4.
fn q3_k(b: &[u8], y: &mut [f32]) {
    let (high, low, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    let scale = |g: usize| {
        let four = packed[g % 8] >> (g / 8 * 4) & 15;
        let two = packed[8 + g % 4] >> (g / 4 * 2) & 3;
        f32::from((four | two << 4) as i8 - 32)
    };
    for (i, y) in y.iter_mut().enumerate() {
        let bits = (low[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) as i8;
        let third = high[i % 32] >> (i / 32) & 1;
        let q = if third == 1 { bits } else { bits - 4 };
        *y = d * scale(i / 16) * f32::from(q);
    }
}

/// The 6-bit scale and minimum of group `g` of Q4_K and Q5_K.
fn scale_and_minimum(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, minimum) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let shared = packed[g + 4];
        (shared & 15 | packed[g - 4] >> 6 << 4, shared >> 4 | packed[g] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// 8 groups of 32.
fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let (packed, q) = (&b[4..16], &b[16..144]);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, g);
        let (scale, minimum) = (d * scale, m * minimum);
        for (y, &q) in y.iter_mut().zip(&q[g / 2 * 32..]) {
            *y = scale * f32::from(q >> (g % 2 * 4) & 15) - minimum;
        }
    }
}

/// 8 groups of 32; the fifth bit of group `g` is bit `g` of the bytes before.
fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let (packed, high, low) = (&b[4..16], &b[16..48], &b[48..176]);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, g);
        let (scale, minimum) = (d * scale, m * minimum);
        for ((y, &q), &fifth) in y.iter_mut().zip(&low[g / 2 * 32..]).zip(high) {
            let q = q >> (g % 2 * 4) & 15 | (fifth >> g & 1) << 4;
            *y = scale * f32::from(q) - minimum;
        }
    }
}

/// 16 groups of 16 with signed 8-bit scales.
fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        // Each half of 128: four runs of 32; runs 0 and 2 share bytes, and 1 and 3.
        let (half, run, at) = (i / 128, i % 128 / 32, i % 32);
        let four = low[half * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
        let two = high[half * 32 + at] >> (run * 2) & 3;
        let q = (four | two << 4) as i8 - 32;
        *y = d * f32::from(scales[i / 16] as i8) * f32::from(q);
    }
}

fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, &q) in b[2..18].iter().enumerate() {
        y[i] = d * f32::from(LEVELS[usize::from(q & 15)]);
        y[i + 16] = d * f32::from(LEVELS[usize::from(q >> 4)]);
    }
}

/// 8 groups of 32 with signed 6-bit scales, each as IQ4_NL.
fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let high = u16::from_le_bytes([b[2], b[3]]);
    let (low, q) = (&b[4..8], &b[8..136]);
    for (g, y) in y.chunks_exact_mut(32).enumerate() {
        let four = low[g / 2] >> (g % 2 * 4) & 15;
        let two = (high >> (2 * g) & 3) as u8;
        let scale = d * f32::from((four | two << 4) as i8 - 32);
        for (i, &q) in q[g * 16..][..16].iter().enumerate() {
            y[i] = scale * f32::from(LEVELS[usize::from(q & 15)]);
            y[i + 16] = scale * f32::from(LEVELS[usize::from(q >> 4)]);
        }
    }
}
