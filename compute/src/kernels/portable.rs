//! Plain Rust over tiles: each block of eight rows is unpacked once and meets all tokens.

use std::ops::Range;

use super::{Call, Group};
use crate::matrix::{Family, Layout, TILE, scales, vectors, words};
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
    let shape = call.matrix.shape();
    let units = call.matrix.tile(tile).chunks_exact(layout.bytes);
    let mut block = Block::default();
    for (u, unit) in units.enumerate() {
        for b in 0..layout.columns / 32 {
            let column = (u * layout.columns / 32 + b) * 32;
            if column >= call.matrix.cols {
                break;
            }
            block.read(layout, unit, b);
            // For spans of 32 a pair is two blocks, for spans of 16 the halves of one.
            let (pair, part) = if shape.span == 32 { (b / 2, b % 2) } else { (b, 0) };
            let (s, m) = scales(layout, unit, pair);
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = (first + i) * call.x.width + column;
                let a = call.x.a[at / 32];
                for n in 0..32 / shape.span {
                    let start = n * shape.span;
                    let q = &call.x.q[at + start..][..shape.span];
                    let dots = block.dots(layout, start, q);
                    let t = match (shape.has_min, shape.span) {
                        (false, _) => 0,
                        (true, 32) => call.x.t[at / 32],
                        (true, _) => call.x.half_t[at / 16 + n],
                    };
                    for lane in 0..TILE {
                        let which = 2 * lane + part + n;
                        let scale = mul_q15(s[which], a);
                        sums[lane].dot += i64::from(scale) * i64::from(dots[lane]);
                        sums[lane].min += i64::from(m[which]) * i64::from(t);
                    }
                }
            }
        }
    }
}

/// A block of eight rows, unpacked.
#[derive(Default)]
struct Block {
    /// Codes, not centred: see `matrix::vectors`.
    codes: [[i8; 32]; 8],
    /// Codes of 16 bits, for floats.
    words: [[i16; 16]; 16],
}

impl Block {
    fn read(&mut self, layout: &Layout, unit: &[u8], block: usize) {
        if layout.family == Family::Wide {
            self.words = words(layout, unit, block);
        } else {
            vectors(layout, unit, block, &mut self.codes);
        }
    }

    /// Dot products of the eight rows with `q`, which meets the columns from `start` on.
    fn dots(&self, layout: &Layout, start: usize, q: &[i8]) -> [i32; TILE] {
        if layout.family == Family::Wide {
            return self.wide_dots(q);
        }
        // Each row has four lanes, as in a vector register; they are added up at the end.
        let mut lanes = [0i32; 32];
        for (codes, q) in self.codes[start / 4..].iter().zip(q.chunks_exact(4)) {
            let q: [i16; 32] = std::array::from_fn(|lane| i16::from(q[lane % 4]));
            for lane in 0..32 {
                lanes[lane] += i32::from(i16::from(codes[lane]) * q[lane]);
            }
        }
        let centre = layout.centre * q.iter().map(|&q| i32::from(q)).sum::<i32>();
        std::array::from_fn(|row| lanes[4 * row..][..4].iter().sum::<i32>() - centre)
    }

    fn wide_dots(&self, q: &[i8]) -> [i32; TILE] {
        let mut dots = [0; TILE];
        for (words, q) in self.words.iter().zip(q.chunks_exact(2)) {
            for (dot, word) in dots.iter_mut().zip(words.chunks_exact(2)) {
                *dot += i32::from(word[0]) * i32::from(q[0]) + i32::from(word[1]) * i32::from(q[1]);
            }
        }
        dots
    }
}
