//! The same arithmetic as `numeric`, arranged for processors.
//!
//! Work on matrices is cut into *groups* of 32 rows, because 32 results share a block float. A
//! kernel computes one group for some tokens; who computes which group changes nothing.
//!
//! **Invariant:** every kernel equals the definition on every input, bit for bit.

pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
mod proof;
mod reference;
mod rowwise;

use std::ops::Range;

pub use rowwise::{Norm, Results};

use crate::matrix::Matrix;
use crate::numeric::activation::Activations;
use crate::numeric::matmul::Unit;

/// Rows in a group.
pub const ROWS: usize = 32;

/// Results of one group for one token.
pub type Group = [i32; ROWS];

/// Memory that a kernel reuses between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    panel: Vec<u8>,
}

/// Which implementation computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// AVX2 on x86-64. Only [`Kernels::avx2`] makes it, after asking the processor.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// Plain Rust over the interleaved layout.
    Portable,
    /// The definition, row by row.
    Reference,
}

/// Proof that the processor has AVX2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

impl Kernels {
    /// AVX2, where the processor has it.
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Some(Self::Avx2(Avx2(())));
        }
        None
    }

    /// The fastest that this machine has and that equals the definition on it.
    pub fn fastest() -> Self {
        Self::avx2().filter(|kernels| kernels.proven()).unwrap_or(Self::Portable)
    }

    /// Its name in messages and flags.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            Self::Portable => "portable",
            Self::Reference => "reference",
        }
    }

    /// Rows `32 g..32 g + 32` of `matrix` times each of `tokens`: `out[i]` for token
    /// `tokens.start + i`, in that token's `units[i]`. Rows past the end give 0.
    pub fn group(
        self,
        matrix: &Matrix,
        g: usize,
        x: &Activations,
        tokens: Range<usize>,
        units: &[Unit],
        scratch: &mut Scratch,
        out: &mut [Group],
    ) {
        assert!(x.width >= matrix.cols.next_multiple_of(64) && tokens.end <= x.tokens.len());
        assert!(g * ROWS < matrix.rows && units.len() == tokens.len() && out.len() == tokens.len());
        for out in out.iter_mut() {
            out.fill(0);
        }
        let call = Call { matrix, x, tokens, units };
        let tiles = g * 4..matrix.tiles().min(g * 4 + 4);
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the variant exists only where the processor has AVX2; lengths were checked
            // above.
            Self::Avx2(_) => unsafe { avx2::group(&call, tiles, scratch, out) },
            Self::Portable => portable::group(&call, tiles, out),
            Self::Reference => reference::group(&call, tiles, out),
        }
    }
}

/// What one call computes with.
struct Call<'a> {
    matrix: &'a Matrix,
    x: &'a Activations,
    tokens: Range<usize>,
    units: &'a [Unit],
}

#[cfg(test)]
mod tests;
