//! Every kernel against the definition, with `==`.

use std::sync::Arc;

use super::proof::next;
use super::*;
use crate::gguf::TensorType;
use crate::matrix::TILE;
use crate::matrix::{Arena, Exponents, Layout, pack_tile};
use crate::numeric::block::{Blocks, BlocksMut, GROUP, encode};
use crate::numeric::scalar::Factor;
use crate::numeric::weights;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        next(&mut self.0)
    }
}

/// How bytes of a file are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// Any bits; scales of any finite size.
    Random,
    /// All codes and sub-scales as large as they go, scales at the largest f16.
    Largest,
    /// The same with the smallest codes and negative scales.
    Smallest,
}

fn file_bytes(kind: TensorType, len: usize, fill: Fill, dice: &mut Dice) -> Vec<u8> {
    let mut bytes: Vec<u8> = match fill {
        Fill::Random => (0..len).map(|_| dice.next() as u8).collect(),
        Fill::Largest => vec![0xff; len],
        Fill::Smallest => vec![0; len],
    };
    let mut put = |at: usize, dice: &mut Dice| {
        let x = match fill {
            // Exponents 0 to 30, so never infinite.
            Fill::Random => {
                (dice.next() as u16) & 0xfbff & !(1 << 14) | (dice.next() as u16 & 0x3ff)
            }
            Fill::Largest => 0x7bff,
            Fill::Smallest => 0xfbff,
        };
        bytes[at..at + 2].copy_from_slice(&x.to_le_bytes());
    };
    let size = kind.block_bytes();
    use TensorType::*;
    let offsets: &[usize] = match kind {
        F16 | Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        F32 => &[2],
        BF16 => &[0],
    };
    for block in 0..len / size {
        for offset in offsets {
            put(block * size + offset, dice);
        }
    }
    bytes
}

fn matrix(kind: TensorType, rows: usize, cols: usize, file: &[u8]) -> Matrix {
    let layout = Layout::of(kind);
    let mut arena = Arena::new(Matrix::bytes_needed(kind, rows, cols)).unwrap();
    let mut found = Exponents::default();
    let row_bytes = cols / kind.block_len() * kind.block_bytes();
    let tile_bytes = cols.div_ceil(layout.columns) * layout.bytes;
    let file_rows: Vec<&[u8]> = file.chunks_exact(row_bytes).collect();
    for (rows, tile) in file_rows.chunks(TILE).zip(arena.bytes_mut().chunks_exact_mut(tile_bytes)) {
        pack_tile(&layout, rows, tile, &mut found).unwrap();
    }
    let size = Matrix::bytes_needed(kind, rows, cols);
    Matrix::new(kind, (rows, cols), Arc::new(arena), 0..size, found)
}

fn activations(tokens: usize, cols: usize, extreme: bool, dice: &mut Dice) -> Activations {
    let mut x = Activations::default();
    x.resize(tokens, cols);
    for token in 0..tokens {
        let mut m = vec![0i16; cols];
        let mut e = vec![0i8; cols / GROUP];
        let mut blocks = BlocksMut { m: &mut m, e: &mut e };
        for g in 0..cols / GROUP {
            let loud = dice.next().is_multiple_of(7);
            let z: [i32; GROUP] = std::array::from_fn(|_| {
                let z = (dice.next() as i32) >> 4;
                if extreme { if token % 2 == 0 { 1 << 20 } else { z.signum() << 20 } } else { z }
            });
            let unit = if extreme { 0 } else { -(dice.next() as i32 & 7) + i32::from(loud) * 6 };
            blocks.encode(g, &z, unit);
        }
        x.rows().quantise(token, Blocks { m: &m, e: &e }, Factor { m: 50_000, e: -20 });
    }
    x
}

fn all_agree(kind: TensorType, rows: usize, cols: usize, tokens: usize, fill: Fill, seed: u64) {
    let mut dice = Dice(seed);
    let row_bytes = cols / kind.block_len() * kind.block_bytes();
    let file = file_bytes(kind, rows * row_bytes, fill, &mut dice);
    let m = matrix(kind, rows, cols, &file);
    for r in 0..rows {
        let defined = weights::row(kind, &file[r * row_bytes..][..row_bytes]).unwrap();
        assert_eq!(m.row(r), defined, "{kind:?} row {r}");
    }
    let x = activations(tokens, cols, fill != Fill::Random, &mut dice);
    let units: Vec<_> = x.tokens.iter().map(|t| m.unit(t)).collect();
    let mut scratch = Scratch::default();
    for g in 0..rows.div_ceil(ROWS) {
        let mut run = |kernels: Kernels| {
            let mut out = vec![[0; ROWS]; tokens];
            kernels.group(&m, g, &x, 0..tokens, &units, &mut scratch, &mut out);
            out
        };
        let defined = run(Kernels::Reference);
        assert_eq!(run(Kernels::Portable), defined, "{kind:?} portable {fill:?} {cols} {tokens}");
        if let Some(avx2) = Kernels::avx2() {
            assert_eq!(run(avx2), defined, "{kind:?} avx2 {fill:?} {cols} {tokens}");
        }
    }
}

#[test]
fn kernels_equal_the_definition_on_every_type() {
    for kind in TensorType::ALL {
        for (cols, tokens) in
            [(256, 1), (256, 2), (256, 3), (768, 4), (512, 7), (512, 10), (256, 17)]
        {
            all_agree(kind, 41, cols, tokens, Fill::Random, cols as u64);
        }
        if kind.block_len() <= 32 {
            // An odd number of blocks.
            all_agree(kind, 8, 96, 6, Fill::Random, 5);
        }
    }
}

#[test]
fn kernels_equal_the_definition_at_the_bounds() {
    for kind in TensorType::ALL {
        for fill in [Fill::Largest, Fill::Smallest] {
            all_agree(kind, 8, 53_248, 5, fill, 1);
            all_agree(kind, 9, 256, 1, fill, 2);
        }
    }
}

#[test]
fn results_stay_within_30_bits() {
    for kind in TensorType::ALL {
        for fill in [Fill::Largest, Fill::Smallest] {
            let mut dice = Dice(3);
            let row_bytes = 2048 / kind.block_len() * kind.block_bytes();
            let file = file_bytes(kind, 8 * row_bytes, fill, &mut dice);
            let m = matrix(kind, 8, 2048, &file);
            let x = activations(2, 2048, true, &mut dice);
            let units: Vec<_> = x.tokens.iter().map(|t| m.unit(t)).collect();
            let mut out = vec![[0; ROWS]; 2];
            let scratch = &mut Scratch::default();
            Kernels::fastest().group(&m, 0, &x, 0..2, &units, scratch, &mut out);
            assert!(out.iter().flatten().all(|y| y.unsigned_abs() <= 1 << 30), "{kind:?}");
            let mut short = [0; GROUP];
            encode(&out[0], 0, &mut short);
        }
    }
}
