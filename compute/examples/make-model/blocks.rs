//! Random weight blocks of every type, whose values have a mean near 0 and a chosen spread.
//!
//! Nothing is quantised: the stored integers are uniformly random, and the scales are set so that
//! what they decode to has the spread asked for.

use compute::gguf::TensorType;
use half::{bf16, f16};

/// A small fast generator (splitmix64): the same seed gives the same file everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.next() >> 40) as f32 / (1 << 24) as f32)
    }

    /// Uniform in `low..=high`.
    fn whole(&mut self, low: i32, high: i32) -> i32 {
        low + (self.next() % (high - low + 1) as u64) as i32
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

/// Fills `bytes`, which is a whole number of blocks of `kind`, with weights of standard deviation
/// `spread`.
pub fn fill(bytes: &mut [u8], kind: TensorType, spread: f32, dice: &mut Dice) {
    use TensorType::*;
    let block = match kind {
        F32 | F16 | BF16 => plain,
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL => one_scale,
        Q4_1 | Q5_1 => scale_and_minimum,
        Q2_K => q2_k,
        Q4_K | Q5_K => packed_scales,
        Q3_K | Q6_K | IQ4_XS => signed_scales,
    };
    dice.fill(bytes);
    for bytes in bytes.chunks_exact_mut(kind.block_bytes()) {
        // Blocks differ in size as those of trained weights do.
        let spread = spread * dice.between(0.7, 1.3);
        block(bytes, kind, spread, dice);
    }
}

/// Standard deviation of `count` neighbouring integers, each as likely as the others.
fn deviation(count: f32) -> f32 {
    ((count * count - 1.0) / 12.0).sqrt()
}

fn put(bytes: &mut [u8], at: usize, scale: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
}

fn plain(bytes: &mut [u8], kind: TensorType, spread: f32, dice: &mut Dice) {
    // The sum of four uniform numbers is close to a bell curve; its deviation is 2 / sqrt(3).
    let x: f32 = (0..4).map(|_| dice.between(-1.0, 1.0)).sum::<f32>() * spread * 0.866;
    match kind {
        TensorType::F16 => bytes.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        TensorType::BF16 => bytes.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        _ => bytes.copy_from_slice(&x.to_le_bytes()),
    }
}

fn one_scale(bytes: &mut [u8], kind: TensorType, spread: f32, dice: &mut Dice) {
    let unit = match kind {
        TensorType::Q4_0 => deviation(16.0),
        TensorType::Q5_0 => deviation(32.0),
        TensorType::Q8_0 => deviation(255.0),
        // IQ4_NL's sixteen levels, from -127 to 113.
        _ => 71.0,
    };
    // Real files have scales of both signs, except in Q8_0.
    let sign = if kind != TensorType::Q8_0 && dice.whole(0, 1) == 1 { -1.0 } else { 1.0 };
    put(bytes, 0, sign * spread / unit);
    if kind == TensorType::Q8_0 {
        // No quantiser writes -128.
        bytes[2..].iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0x81);
    }
}

fn scale_and_minimum(bytes: &mut [u8], kind: TensorType, spread: f32, _dice: &mut Dice) {
    let levels = if kind == TensorType::Q4_1 { 16.0 } else { 32.0 };
    let scale = spread / deviation(levels);
    put(bytes, 0, scale);
    put(bytes, 2, -scale * (levels - 1.0) / 2.0);
}

/// 16 bytes of 4-bit scale and minimum, 64 of 2-bit levels, d, dmin.
fn q2_k(bytes: &mut [u8], _kind: TensorType, spread: f32, dice: &mut Dice) {
    for byte in &mut bytes[..16] {
        let scale = dice.whole(8, 15) as u8;
        *byte = scale | scale << 4;
    }
    let d = spread / (11.5 * deviation(4.0));
    put(bytes, 80, d);
    // Level 1.5 of four decodes to 0 where a minimum equals its scale.
    put(bytes, 82, 1.5 * d);
}

/// d, dmin, 12 bytes of eight 6-bit scales and minima, levels.
fn packed_scales(bytes: &mut [u8], kind: TensorType, spread: f32, dice: &mut Dice) {
    let levels = if kind == TensorType::Q4_K { 16.0 } else { 32.0 };
    let d = spread / (47.5 * deviation(levels));
    put(bytes, 0, d);
    put(bytes, 2, d * (levels - 1.0) / 2.0);
    let scales: [u8; 8] = std::array::from_fn(|_| dice.whole(32, 63) as u8);
    for j in 0..4 {
        let high = scales[j + 4] >> 4;
        // Each minimum equals its scale, so that the middle level decodes to 0.
        bytes[4 + j] = scales[j] | high << 6;
        bytes[8 + j] = scales[j] | high << 6;
        bytes[12 + j] = scales[j + 4] & 15 | scales[j + 4] << 4;
    }
}

/// Types whose sub-scales have a sign: what the levels lack in balance, the signs make up.
fn signed_scales(bytes: &mut [u8], kind: TensorType, spread: f32, dice: &mut Dice) {
    match kind {
        // Random 6-bit scales, less 32, have a mean square of 18.5 squared.
        TensorType::Q3_K => put(bytes, 108, spread / (18.5 * 2.35)),
        TensorType::IQ4_XS => put(bytes, 0, spread / (18.5 * 71.0)),
        _ => {
            for byte in &mut bytes[192..208] {
                let scale = dice.whole(48, 127) as i8;
                *byte = if dice.whole(0, 1) == 1 { scale } else { -scale } as u8;
            }
            put(bytes, 208, spread / (90.0 * deviation(64.0)));
        }
    }
}
