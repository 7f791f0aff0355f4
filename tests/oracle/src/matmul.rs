//! Products of activations with a matrix that stays in its file's format until it is needed.

use compute::gguf::TensorType;

use crate::decode::decode;

/// Tokens and rows of one tile: its sums fill 12 of AVX2's 16 registers.
const TOKENS: usize = 6;
const ROWS: usize = 16;

/// A matrix as a file has it, row by row.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) kind: TensorType,
    pub(crate) bytes: &'a [u8],
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Matrix<'_> {
    /// Decodes one row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let row_bytes = self.columns / self.kind.block_len() * self.kind.block_bytes();
        decode(self.kind, &self.bytes[row * row_bytes..][..row_bytes], out);
    }

    /// `x [n, columns]` times this: `[n, rows]`. Threads share out the tokens, and each decodes
    /// the matrix for itself, which costs little beside the product of many tokens.
    pub(crate) fn multiply(&self, x: &[f32], threads: usize) -> Vec<f32> {
        let tokens = x.len() / self.columns;
        let mut out = vec![0.0; tokens * self.rows];
        let share = tokens.div_ceil(threads).next_multiple_of(TOKENS);
        std::thread::scope(|scope| {
            let x = x.chunks(share * self.columns);
            for (x, out) in x.zip(out.chunks_mut(share * self.rows)) {
                scope.spawn(move || self.multiply_share(x, out));
            }
        });
        out
    }

    fn multiply_share(&self, x: &[f32], out: &mut [f32]) {
        let packed = pack_tokens(x, self.columns);
        let tile = fastest_tile();
        let mut row = vec![0.0; self.columns];
        let mut panel = vec![[0.0; ROWS]; self.columns];
        for first in (0..self.rows).step_by(ROWS) {
            let rows = ROWS.min(self.rows - first);
            for r in 0..rows {
                self.row(first + r, &mut row);
                for (panel, &w) in panel.iter_mut().zip(&row) {
                    panel[r] = w;
                }
            }
            let tiles = packed.chunks_exact(self.columns);
            for (tokens, out) in tiles.zip(out.chunks_mut(TOKENS * self.rows)) {
                let sums = tile(tokens, &panel);
                for (sums, out) in sums.iter().zip(out.chunks_exact_mut(self.rows)) {
                    out[first..first + rows].copy_from_slice(&sums[..rows]);
                }
            }
        }
    }
}

/// `x [n, columns]` as tiles of `[columns][TOKENS]`, the last filled up with zeros.
fn pack_tokens(x: &[f32], columns: usize) -> Vec<[f32; TOKENS]> {
    let tokens = x.len() / columns;
    let mut packed = vec![[0.0; TOKENS]; tokens.div_ceil(TOKENS) * columns];
    for (token, x) in x.chunks_exact(columns).enumerate() {
        let tile = &mut packed[token / TOKENS * columns..][..columns];
        for (tile, &x) in tile.iter_mut().zip(x) {
            tile[token % TOKENS] = x;
        }
    }
    packed
}

type Sums = [[f32; ROWS]; TOKENS];
type Tile = fn(&[[f32; TOKENS]], &[[f32; ROWS]]) -> Sums;

/// The sums of one tile; `add` is `x * w + sum`, with one rounding or two.
#[inline(always)]
fn tile(x: &[[f32; TOKENS]], w: &[[f32; ROWS]], add: impl Fn(f32, f32, f32) -> f32) -> Sums {
    let mut sums = [[0.0; ROWS]; TOKENS];
    for (x, w) in x.iter().zip(w) {
        for t in 0..TOKENS {
            for r in 0..ROWS {
                sums[t][r] = add(x[t], w[r], sums[t][r]);
            }
        }
    }
    sums
}

fn tile_portable(x: &[[f32; TOKENS]], w: &[[f32; ROWS]]) -> Sums {
    tile(x, w, |x, w, sum| x * w + sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn tile_fma(x: &[[f32; TOKENS]], w: &[[f32; ROWS]]) -> Sums {
    tile(x, w, f32::mul_add)
}

/// The fastest tile that this machine has. They differ in the last bits, which is nothing beside
/// what is measured here.
fn fastest_tile() -> Tile {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the machine has both features.
        return |x, w| unsafe { tile_fma(x, w) };
    }
    tile_portable
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers, whose products and sums are exact in f32.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as f32 - 128.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn every_remainder_and_thread_count_gives_the_plain_product() {
        for (tokens, rows, columns) in [(1, 1, 32), (5, 16, 64), (6, 17, 32), (13, 100, 96)] {
            let (x, w) = (numbers(tokens * columns, 1), numbers(rows * columns, 2));
            let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
            let matrix = Matrix { kind: TensorType::F32, bytes: &bytes, columns, rows };
            let plain: Vec<f32> = x
                .chunks(columns)
                .flat_map(|x| {
                    w.chunks(columns).map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>())
                })
                .collect();
            for threads in 1..4 {
                assert_eq!(matrix.multiply(&x, threads), plain);
            }
        }
    }

    #[test]
    fn both_tiles_agree() {
        let x: Vec<[f32; TOKENS]> = vec![[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; 40];
        let w: Vec<[f32; ROWS]> = vec![[2.0; ROWS]; 40];
        assert_eq!(fastest_tile()(&x, &w), tile_portable(&x, &w));
    }
}
