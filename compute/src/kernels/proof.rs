//! A proof at start-up: a processor (or a compiler, or a hypervisor that hides features badly) whose
//! kernels do not equal the definition must not compute for others. It takes a millisecond or two.

use std::sync::Arc;

use super::{Group, Kernels, ROWS, Scratch};
use crate::gguf::TensorType;
use crate::matrix::{Arena, Exponents, Layout, Matrix, TILE, pack_tile};
use crate::numeric::activation::Activations;
use crate::numeric::block::{BlockVec, GROUP};
use crate::numeric::scalar::Factor;

/// Columns of the matrices that are tried: two K-quant blocks.
const COLS: usize = 512;
/// Numbers of tokens that take different ways through a kernel: few, and many with some left over.
const TOKENS: [usize; 7] = [1, 2, 3, 4, 13, 14, 15];
const TOKENS_MAX: usize = 15;

impl Kernels {
    /// Whether products in every weight type equal the definition here, on fixed inputs.
    pub fn proven(self) -> bool {
        let x = vectors();
        TensorType::ALL.into_iter().all(|kind| {
            let matrix = matrix(kind);
            TOKENS.into_iter().all(|count| {
                let tokens = 0..count;
                let run = |kernels: Kernels| -> Vec<Group> {
                    let units: Vec<_> =
                        x.tokens[tokens.clone()].iter().map(|token| matrix.unit(token)).collect();
                    let mut out = vec![[0; ROWS]; units.len()];
                    let scratch = &mut Scratch::default();
                    kernels.group(&matrix, 0, &x, tokens.clone(), &units, scratch, &mut out);
                    out
                };
                run(self) == run(Kernels::Reference)
            })
        })
    }
}

/// SplitMix64, the same everywhere.
pub(super) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn vectors() -> Activations {
    let mut state = 1;
    let mut x = Activations::default();
    x.resize(TOKENS_MAX, COLS);
    for token in 0..TOKENS_MAX {
        let mut row = BlockVec::zeros(COLS);
        for g in 0..COLS / GROUP {
            let z = std::array::from_fn(|_| (next(&mut state) as i32) >> 4);
            row.view_mut().encode(g, &z, -(next(&mut state) as i32 & 7));
        }
        x.rows().quantise(token, row.view(), Factor::ONE);
    }
    x
}

/// One tile of any bits whose 16-bit words are finite floats, so that scales are, wherever they lie.
fn matrix(kind: TensorType) -> Matrix {
    let mut state = 2;
    let layout = Layout::of(kind);
    let size = COLS / kind.block_len() * kind.block_bytes();
    let mut words = || (next(&mut state) as u16 & !0x4000).to_le_bytes();
    let file: Vec<u8> = std::iter::repeat_with(&mut words).flatten().take(TILE * size).collect();
    let rows: Vec<&[u8]> = file.chunks_exact(size).collect();
    let need = Matrix::bytes_needed(kind, TILE, COLS);
    let mut arena = Arena::new(need).expect("some thousand bytes can be had");
    let mut found = Exponents::default();
    pack_tile(&layout, &rows, arena.bytes_mut(), &mut found)
        .expect("with bit 14 clear neither f16, bf16 nor f32 is infinite");
    Matrix::new(kind, (TILE, COLS), Arc::new(arena), 0..need, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_proven() {
        assert!(Kernels::fastest().proven());
        assert!(Kernels::Portable.proven());
    }
}
