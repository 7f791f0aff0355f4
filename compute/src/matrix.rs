//! Weight matrices in memory: eight rows interleaved, so that one vector register holds the same
//! four columns of eight rows and a row's sums never have to be added across a register.
//!
//! A *tile* is eight rows. It is a sequence of *units*, each 64 columns (types whose file blocks
//! have 32) or 256 columns (K-quants). A unit holds, in this order, the eight rows' fractions, the
//! integer sub-scales, and the codes: the file's own bytes, regrouped in words of four so that word
//! `w` of all eight rows lies together. A unit is as large as the file's blocks that it replaces,
//! or up to 4 % larger where the file packs sub-scales into 6 bits.
//!
//! **Invariant:** [`Matrix::row`] gives back exactly what `numeric::weights::row` says of the
//! file's bytes. Kernels read the same units.

pub mod layout;
mod pack;
mod unpack;

use std::ops::Range;
use std::sync::Arc;

use memmap2::MmapMut;

pub use layout::{Family, Layout};
pub use pack::pack_tile;
pub use unpack::{scales, vectors, words};

use crate::gguf::TensorType;
use crate::numeric::activation::Token;
use crate::numeric::matmul::Unit;
use crate::numeric::weights::{ROW_ZERO, Row, Shape, shape};

/// Rows in a tile.
pub const TILE: usize = 8;

/// Memory for all matrices of a model: one anonymous map, so that large pages can serve it.
#[derive(Debug)]
pub struct Arena {
    bytes: MmapMut,
}

impl Arena {
    /// Room for `len` bytes, zeroed.
    ///
    /// # Errors
    /// What the system says when it has no such memory.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let bytes = MmapMut::map_anon(len.max(1))?;
        #[cfg(target_os = "linux")]
        // Only a hint: without it everything works, with more page faults.
        let _ = bytes.advise(memmap2::Advice::HugePage);
        Ok(Self { bytes })
    }

    /// The whole, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A weight matrix, ready for kernels.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Rows, which is the length of a result.
    pub rows: usize,
    /// Columns, which is the length of a vector that it is multiplied with.
    pub cols: usize,
    /// How the file stored it.
    pub kind: TensorType,
    /// Where things lie in a unit.
    pub layout: Layout,
    arena: Arc<Arena>,
    place: Range<usize>,
    /// Exponents of scales and of minima by row, padded with [`ROW_ZERO`] to whole tiles.
    exponents: Vec<i32>,
    min_exponents: Vec<i32>,
    top: i32,
    min_top: i32,
}

/// What packing the rows of a matrix found out about them.
#[derive(Debug, Default)]
pub struct Exponents {
    /// Of scales, by row.
    pub scales: Vec<i32>,
    /// Of minima, by row.
    pub mins: Vec<i32>,
}

impl Matrix {
    /// Bytes that a matrix takes in an arena.
    pub fn bytes_needed(kind: TensorType, rows: usize, cols: usize) -> usize {
        let layout = Layout::of(kind);
        rows.div_ceil(TILE) * cols.div_ceil(layout.columns) * layout.bytes
    }

    /// A matrix whose tiles have been packed into `place` of `arena`.
    pub fn new(
        kind: TensorType,
        (rows, cols): (usize, usize),
        arena: Arc<Arena>,
        place: Range<usize>,
        found: Exponents,
    ) -> Self {
        let (mut exponents, mut min_exponents) = (found.scales, found.mins);
        exponents.resize(rows.next_multiple_of(TILE), ROW_ZERO);
        min_exponents.resize(rows.next_multiple_of(TILE), ROW_ZERO);
        let top = exponents.iter().copied().max().unwrap_or(ROW_ZERO);
        let min_top = min_exponents.iter().copied().max().unwrap_or(ROW_ZERO);
        let layout = Layout::of(kind);
        Self { rows, cols, kind, layout, arena, place, exponents, min_exponents, top, min_top }
    }

    /// How its numbers are bounded and grouped.
    pub fn shape(&self) -> Shape {
        shape(self.kind)
    }

    /// Units in a row.
    pub fn units(&self) -> usize {
        self.cols.div_ceil(self.layout.columns)
    }

    /// Tiles, the last of which may be padded with zero rows.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.place.len()
    }

    /// The units of tile `t`.
    #[inline]
    pub fn tile(&self, t: usize) -> &[u8] {
        let size = self.units() * self.layout.bytes;
        &self.arena.bytes[self.place.start + t * size..][..size]
    }

    /// The exponents of tile `t`: scales, minima.
    #[inline]
    pub fn tile_exponents(&self, t: usize) -> (&[i32; TILE], &[i32; TILE]) {
        (tile_of(&self.exponents, t), tile_of(&self.min_exponents, t))
    }

    /// The largest exponents among all rows: of scales, of minima.
    pub fn tops(&self) -> (i32, i32) {
        (self.top, self.min_top)
    }

    /// The unit of results for a vector.
    pub fn unit(&self, token: &Token) -> Unit {
        Unit::new(self.shape(), self.top, self.min_top, token)
    }

    /// Row `r`, unpacked: the definition's view of this matrix.
    pub fn row(&self, r: usize) -> Row {
        let (tile, lane) = (self.tile(r / TILE), r % TILE);
        let shape = self.shape();
        let mut row = Row {
            span: shape.span,
            exponent: self.exponents[r],
            min_exponent: self.min_exponents[r],
            ..Row::default()
        };
        let per_pair = 2 * shape.span;
        for unit in tile.chunks_exact(self.layout.bytes) {
            for pair in 0..self.layout.columns / per_pair {
                let (s, m) = scales(&self.layout, unit, pair);
                row.scales.extend_from_slice(&s[2 * lane..][..2]);
                if shape.has_min {
                    row.mins.extend_from_slice(&m[2 * lane..][..2]);
                }
            }
            for block in 0..self.layout.columns / 32 {
                self.row_codes(unit, block, lane, &mut row.q);
            }
        }
        row.q.truncate(self.cols);
        row.scales.truncate(self.cols / shape.span);
        row.mins.truncate(self.cols / shape.span);
        row
    }

    fn row_codes(&self, unit: &[u8], block: usize, lane: usize, q: &mut Vec<i16>) {
        if self.layout.family == Family::Wide {
            let words = words(&self.layout, unit, block);
            q.extend(words.iter().flat_map(|w| [w[2 * lane], w[2 * lane + 1]]));
        } else {
            let mut codes = [[0i8; 32]; 8];
            vectors(&self.layout, unit, block, &mut codes);
            let centre = self.layout.centre as i16;
            let own = codes.iter().flat_map(|v| &v[4 * lane..][..4]);
            q.extend(own.map(|&c| i16::from(c) - centre));
        }
    }
}

/// The numbers of tile `t` among those of all rows.
fn tile_of(all: &[i32], t: usize) -> &[i32; TILE] {
    all[t * TILE..][..TILE].try_into().expect("a slice of TILE is an array of TILE")
}
