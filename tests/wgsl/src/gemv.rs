//! Buffers of `gemv.wgsl`: a matrix of Q4_0, Q8_0 or Q4_K times one vector.

use compute::gguf::TensorType;
use compute::numeric::activation::Activations;
use compute::numeric::matmul::Unit;
use compute::numeric::weights::{Fractions, Row, fractions, row, sub_scale, times_sub_scale};

use crate::{Gpu, Kernel, bytes, pair};

/// Rows that make one block of the result.
pub const ROWS: usize = 32;

/// A matrix as the shader reads it, and as the definition does.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The file's type: Q4_0, Q8_0 or Q4_K.
    pub kind: TensorType,
    /// The definition's rows.
    pub rows: Vec<Row>,
    codes: Vec<u32>,
    fractions: Vec<u32>,
    subs: Vec<u32>,
}

impl Matrix {
    /// From a file's rows, a multiple of [`ROWS`] of them.
    pub fn new(kind: TensorType, rows: &[Vec<u8>]) -> Self {
        assert_eq!(rows.len() % ROWS, 0, "rows come in blocks of 32");
        let mut all = Self { kind, rows: vec![], codes: vec![], fractions: vec![], subs: vec![] };
        for bytes in rows {
            all.rows.push(row(kind, bytes).expect("scales are finite"));
            all.push_fractions(&fractions(kind, bytes).expect("scales are finite"));
            for block in bytes.chunks_exact(kind.block_bytes()) {
                let head = if kind == TensorType::Q4_K { 16 } else { 2 };
                let words = block[head..].chunks_exact(4);
                all.codes.extend(words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
                for j in 0..kind.block_len() / 32 {
                    let (scale, min) = sub_scale(kind, block, j);
                    all.subs.push(u32::from(scale as u8) | u32::from(min as u8) << 8);
                }
            }
        }
        all
    }

    fn push_fractions(&mut self, f: &Fractions) {
        let m = f.m.iter().copied().chain(std::iter::repeat(0));
        self.fractions.extend(f.d.iter().zip(m).map(|(&d, m)| pair(d, m)));
    }

    /// Replaces every fraction, for maxima that hardly a file reaches.
    pub fn set_fractions(&mut self, d: i16, m: i16) {
        self.fractions.fill(pair(d, m));
        let per_row = self.subs.len() / self.rows.len();
        for (row, subs) in self.rows.iter_mut().zip(self.subs.chunks_exact(per_row)) {
            let times = |fraction, sub: u32| match self.kind {
                TensorType::Q4_K => times_sub_scale(fraction, sub as u8 as i8, 6),
                _ => fraction,
            };
            row.scales = subs.iter().map(|&s| times(d, s)).collect();
            if !row.mins.is_empty() {
                row.mins = subs.iter().map(|&s| times(m, s >> 8)).collect();
            }
        }
    }
}

/// What the shader makes of a matrix and a vector.
#[derive(Debug, PartialEq, Eq)]
pub struct Product {
    /// Multiples of the unit, at most 2^30 in magnitude.
    pub settled: Vec<i32>,
    /// The same as block floats: mantissas.
    pub m: Vec<i32>,
    /// Exponents.
    pub e: Vec<i32>,
}

/// The compiled shader for one type.
pub fn kernel(gpu: &Gpu, kind: TensorType) -> Kernel<'_> {
    let entry = match kind {
        TensorType::Q4_0 => "q4_0",
        TensorType::Q8_0 => "q8_0",
        TensorType::Q4_K => "q4_k",
        other => panic!("the spike has no shader for {other:?}"),
    };
    gpu.kernel(include_str!("gemv.wgsl"), &[entry], 8)
}

/// `matrix` times the only token of `x`, in the given unit.
pub fn multiply(kernel: &Kernel, matrix: &Matrix, x: &Activations, unit: &Unit) -> Product {
    let rows = matrix.rows.len();
    let shape = [
        (x.width / 32) as u32,
        rows as u32,
        unit.dot_shift() as u32,
        unit.min_shift() as u32,
        unit.exponent as u32,
    ];
    let exponents: Vec<u32> =
        matrix.rows.iter().flat_map(|r| [r.exponent as u32, r.min_exponent as u32]).collect();
    let blocks: Vec<u32> = (0..x.width / 32)
        .flat_map(|b| [x.a[b], x.sums[b], x.t[b], 0].map(|x| i32::from(x) as u32))
        .collect();
    let inputs: [&[u32]; 7] =
        [&shape, &matrix.codes, &matrix.fractions, &matrix.subs, &exponents, &bytes(&x.q), &blocks];
    let mut all = kernel.run(&[[(rows / ROWS) as u32, 1]], &inputs, 2 * rows + rows / ROWS);
    let e = all.split_off(2 * rows);
    let m = all.split_off(rows);
    Product { settled: all, m, e }
}
