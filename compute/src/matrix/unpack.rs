//! From a unit to codes and scales, in plain Rust: for the definition and for portable kernels.

use super::Layout;
use crate::gguf::TensorType;
use crate::numeric::weights::{IQ4_VALUES, times_sub_scale};

/// Sixteen fractions: two neighbouring blocks' (or half blocks'), `[8 rows][2]`.
pub type Pair = [i16; 16];

fn read(unit: &[u8], at: usize) -> i16 {
    i16::from_le_bytes([unit[at], unit[at + 1]])
}

/// The scales and minima of pair `pair` of a unit; minima of types that have none are 0.
#[inline(always)]
pub fn scales(layout: &Layout, unit: &[u8], pair: usize) -> (Pair, Pair) {
    let (mut s, mut m) = ([0; 16], [0; 16]);
    if layout.columns == 64 {
        for i in 0..16 {
            s[i] = read(unit, layout.d + 2 * i);
            if layout.m != 0 {
                m[i] = read(unit, layout.m + 2 * i);
            }
        }
        return (s, m);
    }
    for i in 0..16 {
        let (d, sub) = (read(unit, layout.d + i / 2 * 2), unit[layout.sub + 16 * pair + i]);
        if layout.kind == TensorType::Q2_K {
            s[i] = times_sub_scale(d, (sub & 15) as i8, 4);
            m[i] = times_sub_scale(read(unit, layout.m + i / 2 * 2), (sub >> 4) as i8, 4);
            continue;
        }
        s[i] = times_sub_scale(d, sub as i8, layout.sub_bits);
        if layout.sub_min != 0 {
            let sub = unit[layout.sub_min + 16 * pair + i] as i8;
            m[i] = times_sub_scale(read(unit, layout.m + i / 2 * 2), sub, layout.sub_bits);
        }
    }
    (s, m)
}

/// The codes of block `block` of a unit, not centred: vector `s` holds columns `4 s..4 s + 4` of
/// row 0, then of row 1, and so on.
#[inline(always)]
pub fn vectors(layout: &Layout, unit: &[u8], block: usize, out: &mut [[i8; 32]; 8]) {
    use TensorType::*;
    let low = |w: usize| -> &[u8] { &unit[layout.low + 32 * w..][..32] };
    let high = |w: usize| -> &[u8] { &unit[layout.high + 32 * w..][..32] };
    for (s, out) in out.iter_mut().enumerate() {
        match layout.kind {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 => {
                let shift = 4 * (s / 4);
                each(out, low(4 * block + s % 4), |x| (x >> shift) & 15);
                if layout.high != 0 {
                    let fifth = high(block);
                    out.iter_mut().zip(fifth).for_each(|(o, x)| *o |= (((x >> s) & 1) << 4) as i8);
                }
            }
            IQ4_NL | IQ4_XS => {
                let shift = 4 * (s / 4);
                let value = |x: u8| IQ4_VALUES[usize::from((x >> shift) & 15)] as u8;
                each(out, low(4 * block + s % 4), value);
            }
            Q8_0 => each(out, low(8 * block + s), |x| x),
            Q4_K | Q5_K => {
                let shift = 4 * (block % 2);
                each(out, low(8 * (block / 2) + s), |x| (x >> shift) & 15);
                if layout.high != 0 {
                    let bit = |x: &u8| (((x >> block) & 1) << 4) as i8;
                    out.iter_mut().zip(high(s)).for_each(|(o, x)| *o |= bit(x));
                }
            }
            Q6_K => {
                let (half, quarter) = (block / 4, block % 4);
                let shift = 4 * (quarter / 2);
                each(out, low(16 * half + 8 * (quarter % 2) + s), |x| (x >> shift) & 15);
                let bits = |x: &u8| (((x >> (2 * quarter)) & 3) << 4) as i8;
                out.iter_mut().zip(high(8 * half + s)).for_each(|(o, x)| *o |= bits(x));
            }
            Q3_K | Q2_K => {
                let (half, quarter) = (block / 4, block % 4);
                each(out, low(8 * half + s), |x| (x >> (2 * quarter)) & 3);
                if layout.high != 0 {
                    let bit = |x: &u8| (((x >> block) & 1) << 2) as i8;
                    out.iter_mut().zip(high(s)).for_each(|(o, x)| *o |= bit(x));
                }
            }
            F32 | F16 | BF16 => unreachable!("floats are read with `words`"),
        }
    }
}

/// Each of `from` through `f`.
#[inline(always)]
fn each(out: &mut [i8; 32], from: &[u8], f: impl Fn(u8) -> u8) {
    out.iter_mut().zip(from).for_each(|(out, &x)| *out = f(x) as i8);
}

/// The 16-bit codes of block `block`: vector `w` holds columns `2 w` and `2 w + 1` of row 0, then
/// of row 1, and so on.
#[inline(always)]
pub fn words(layout: &Layout, unit: &[u8], block: usize) -> [[i16; 16]; 16] {
    std::array::from_fn(|w| {
        let at = layout.low + 512 * block + 32 * w;
        std::array::from_fn(|i| read(unit, at + 2 * i))
    })
}
