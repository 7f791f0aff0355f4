//! Plain Rust over tiles: each block of eight rows is unpacked once and meets all tokens.

use std::ops::Range;

use super::{Call, Group};
use crate::matrix::{Family, TILE, scales, vectors, words};
use crate::numeric::bits::mul_q15;
use crate::numeric::matmul::Sums;

/// Tokens whose sums are kept at once.
const TOKENS: usize = 64;

pub fn group(call: &Call, tiles: Range<usize>, out: &mut [Group]) {
    for tile in tiles.clone() {
        one_tile(call, tile, out, (tile - tiles.start) * TILE);
    }
}

fn one_tile(call: &Call, tile: usize, out: &mut [Group], at: usize) {
    let (exponents, min_exponents) = call.matrix.tile_exponents(tile);
    let rows = call.matrix.rows - tile * TILE;
    for first in (0..out.len()).step_by(TOKENS) {
        let count = (out.len() - first).min(TOKENS);
        let mut sums = [[Sums::default(); TILE]; TOKENS];
        tile_sums(call, tile, call.tokens.start + first, &mut sums[..count]);
        for (i, sums) in sums[..count].iter().enumerate() {
            let unit = call.units[first + i];
            for lane in 0..TILE.min(rows) {
                let settled = unit.settle(sums[lane], exponents[lane], min_exponents[lane]);
                out[first + i][at + lane] = settled;
            }
        }
    }
}

fn tile_sums(call: &Call, tile: usize, first: usize, sums: &mut [[Sums; TILE]]) {
    let layout = &call.matrix.layout;
    let span = call.matrix.shape().span;
    let has_min = call.matrix.shape().has_min;
    let units = call.matrix.tile(tile).chunks_exact(layout.bytes);
    // Columns by row: what the inner loop reads in order.
    let mut codes = [[0i16; TILE]; 32];
    for (u, unit) in units.enumerate() {
        for block in 0..layout.columns / 32 {
            let b = u * layout.columns / 32 + block;
            if b * 32 >= call.matrix.cols {
                break;
            }
            read_block(call, unit, block, &mut codes);
            // For spans of 32 a pair is two blocks, for spans of 16 the halves of one.
            let (pair, parts) =
                if span == 32 { (block / 2, block % 2..block % 2 + 1) } else { (block, 0..2) };
            let (s, m) = scales(layout, unit, pair);
            for (i, sums) in sums.iter_mut().enumerate() {
                for (n, part) in parts.clone().enumerate() {
                    let column = b * 32 + n * span;
                    let at = (first + i) * call.x.width + column;
                    let q = &call.x.q[at..at + span];
                    let a = call.x.a[at / 32];
                    let mut dot = [0i32; TILE];
                    for (codes, &q) in codes[n * span..].iter().zip(q) {
                        for lane in 0..TILE {
                            dot[lane] += i32::from(codes[lane]) * i32::from(q);
                        }
                    }
                    let t = match (has_min, span) {
                        (false, _) => 0,
                        (true, 32) => call.x.t[at / 32],
                        (true, _) => call.x.half_t[at / 16],
                    };
                    for lane in 0..TILE {
                        let scale = mul_q15(s[2 * lane + part], a);
                        sums[lane].dot += i64::from(scale) * i64::from(dot[lane]);
                        sums[lane].min += i64::from(m[2 * lane + part]) * i64::from(t);
                    }
                }
            }
        }
    }
}

fn read_block(call: &Call, unit: &[u8], block: usize, codes: &mut [[i16; TILE]; 32]) {
    let layout = &call.matrix.layout;
    if layout.family == Family::Wide {
        let words = words(layout, unit, block);
        for (k, codes) in codes.iter_mut().enumerate() {
            for (lane, code) in codes.iter_mut().enumerate() {
                *code = words[k / 2][2 * lane + k % 2];
            }
        }
        return;
    }
    let mut v = [[0i8; 32]; 8];
    vectors(layout, unit, block, &mut v);
    for (k, codes) in codes.iter_mut().enumerate() {
        for (lane, code) in codes.iter_mut().enumerate() {
            *code = i16::from(v[k / 4][4 * lane + k % 4]) - layout.centre as i16;
        }
    }
}
