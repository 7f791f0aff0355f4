//! From a file's rows to tiles.

use super::{Exponents, Layout, TILE};
use crate::gguf::TensorType;
use crate::numeric::weights::{Fractions, NotFinite, fractions, row, sub_scale};

/// Packs up to eight rows (the rest stay zero) into a tile, which must be zeroed, and notes the
/// rows' exponents.
///
/// # Errors
/// A scale is not finite.
pub fn pack_tile(
    layout: &Layout,
    rows: &[&[u8]],
    tile: &mut [u8],
    found: &mut Exponents,
) -> Result<(), NotFinite> {
    debug_assert!(rows.len() <= TILE);
    for (lane, bytes) in rows.iter().enumerate() {
        if matches!(layout.kind, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            let row = row(layout.kind, bytes)?;
            found.scales.push(row.exponent);
            found.mins.push(row.min_exponent);
            for (u, unit) in tile.chunks_exact_mut(layout.bytes).enumerate() {
                pack_floats(layout, unit, lane, &row.scales[2 * u..], &row.q[64 * u..]);
            }
            continue;
        }
        let fractions = fractions(layout.kind, bytes)?;
        found.scales.push(fractions.exponent);
        found.mins.push(fractions.min_exponent);
        let size = layout.kind.block_bytes();
        let per_unit = layout.columns / layout.kind.block_len();
        for (u, unit) in tile.chunks_exact_mut(layout.bytes).enumerate() {
            for b in 0..per_unit {
                let at = u * per_unit + b;
                let Some(block) = bytes.get(at * size..(at + 1) * size) else { continue };
                if layout.columns == 64 {
                    pack_half(layout, unit, lane, b, block, &fractions, at);
                } else {
                    pack_super(layout, unit, lane, block, &fractions, at);
                }
            }
        }
    }
    Ok(())
}

fn put(unit: &mut [u8], at: usize, x: i16) {
    unit[at..at + 2].copy_from_slice(&x.to_le_bytes());
}

/// Copies the words of `from` to their places among the eight rows' words at `to`.
fn put_words(unit: &mut [u8], to: usize, lane: usize, from: &[u8]) {
    let to = &mut unit[to..to + from.len() * TILE];
    for (to, word) in to.chunks_exact_mut(4 * TILE).zip(from.chunks_exact(4)) {
        to[4 * lane..4 * lane + 4].copy_from_slice(word);
    }
}

/// One block of 32 columns, the first or second of a unit.
fn pack_half(
    layout: &Layout,
    unit: &mut [u8],
    lane: usize,
    b: usize,
    block: &[u8],
    fractions: &Fractions,
    at: usize,
) {
    use TensorType::*;
    put(unit, layout.d + 4 * lane + 2 * b, fractions.d[at]);
    if let Some(&m) = fractions.m.get(at) {
        put(unit, layout.m + 4 * lane + 2 * b, m);
    }
    let (high, low) = match layout.kind {
        Q4_1 => (None, 4..20),
        Q5_0 => (Some(2), 6..22),
        Q5_1 => (Some(4), 8..24),
        Q8_0 => (None, 2..34),
        _ => (None, 2..18),
    };
    let low_bytes = low.len() * TILE;
    put_words(unit, layout.low + b * low_bytes, lane, &block[low]);
    if let Some(at) = high {
        let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let word = fifth_bits(bits);
        put_words(unit, layout.high + b * 32, lane, &word);
    }
}

/// Byte `i` collects bits `i, 4 + i, 8 + i, ...`: bit `s` of it belongs to column `4 s + i`.
fn fifth_bits(bits: u32) -> [u8; 4] {
    [0, 1, 2, 3].map(|i| {
        let x = (bits >> i) & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        (x | x >> 12) as u8
    })
}

/// One K-quant block.
fn pack_super(
    layout: &Layout,
    unit: &mut [u8],
    lane: usize,
    block: &[u8],
    fractions: &Fractions,
    at: usize,
) {
    use TensorType::*;
    put(unit, layout.d + 2 * lane, fractions.d[at]);
    if let Some(&m) = fractions.m.get(at) {
        put(unit, layout.m + 2 * lane, m);
    }
    let subs = if layout.family == super::Family::Half { 16 } else { 8 };
    for j in 0..subs {
        let place = 16 * (j / 2) + 2 * lane + j % 2;
        if layout.kind == Q2_K {
            // Scale and minimum share a byte, as in the file.
            unit[layout.sub + place] = block[j];
            continue;
        }
        let (scale, min) = sub_scale(layout.kind, block, j);
        unit[layout.sub + place] = scale as u8;
        if layout.sub_min != 0 {
            unit[layout.sub_min + place] = min as u8;
        }
    }
    let (high, low) = match layout.kind {
        Q4_K => (None, 16..144),
        Q5_K => (Some(16..48), 48..176),
        Q6_K => (Some(128..192), 0..128),
        Q3_K => (Some(0..32), 32..96),
        Q2_K => (None, 16..80),
        _ => (None, 8..136),
    };
    put_words(unit, layout.low, lane, &block[low]);
    if let Some(high) = high {
        put_words(unit, layout.high, lane, &block[high]);
    }
}

/// Two blocks of floats that have become fixed point.
fn pack_floats(layout: &Layout, unit: &mut [u8], lane: usize, scales: &[i16], q: &[i16]) {
    for (b, &scale) in scales.iter().take(2).enumerate() {
        put(unit, layout.d + 4 * lane + 2 * b, scale);
    }
    for (i, &q) in q.iter().take(64).enumerate() {
        // Word w of a row is columns 2w and 2w + 1.
        put(unit, layout.low + (i / 2) * 4 * TILE + 4 * lane + 2 * (i % 2), q);
    }
}
