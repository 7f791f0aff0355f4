//! From the last residual row to logits, or to the vector that they are made of.

use crate::kernels::{Group, Kernels, Norm, ROWS, Scratch};
use crate::numeric::activation::Activations;
use crate::numeric::block::{BlockVec, Blocks, GROUP, ZERO};
use crate::numeric::matmul::Unit;
use crate::numeric::norm::{apply, rms_norm};
use crate::pool::Pool;
use crate::share::Shared;
use crate::weights::{EndWeights, Weights};

/// The vector of a row after the last norm, as wide as the model.
pub fn vector(weights: &Weights, ends: &EndWeights, row: Blocks) -> Vec<f32> {
    let mut normed = BlockVec::zeros(weights.arch.width);
    let mut out = BlockVec::zeros(weights.arch.width);
    let weight = ends.norm.view();
    let factor = rms_norm(row, weight, weights.width_epsilon, &mut normed.view_mut());
    apply(normed.view(), factor, &mut out.view_mut());
    let number = |(i, &m): (usize, &i16)| match out.e[i / GROUP] {
        ZERO => 0.0,
        // 16 bits times a power of two within 2^±100: exact.
        e => (f64::from(m) * 2f64.powi(e.into())) as f32,
    };
    out.m.iter().enumerate().map(number).collect()
}

/// Groups that a thread takes at a time.
const GROUPS_PER_TASK: usize = 8;

/// The logits of each row of `residual`, `[rows, vocabulary]`.
pub fn logits(
    weights: &Weights,
    ends: &EndWeights,
    kernels: Kernels,
    pool: &Pool,
    residual: Blocks,
    logits: &mut Vec<f32>,
) {
    let (width, vocab) = (weights.arch.width, weights.arch.vocab);
    let count = residual.m.len() / width;
    let norm = Norm { weights: ends.norm.view(), epsilon: weights.width_epsilon };
    let mut x = Activations::default();
    x.resize(count, width);
    let mut spare = BlockVec::zeros(width);
    for row in 0..count {
        let groups = width / GROUP;
        let own = Blocks {
            m: &residual.m[row * width..][..width],
            e: &residual.e[row * groups..][..groups],
        };
        kernels.norm_quantise(own, norm, &mut spare.view_mut(), &mut x.rows(), row);
    }
    let matrix = &ends.output;
    let units: Vec<Unit> = x.tokens.iter().map(|token| matrix.unit(token)).collect();
    let steps: Vec<f64> = units.iter().map(|unit| 2f64.powi(unit.exponent)).collect();
    logits.resize(count * vocab, 0.0);
    let shared = Shared::new(logits);
    pool.run(&|team| {
        let mut scratch = Scratch::default();
        let mut out: Vec<Group> = vec![[0; ROWS]; count];
        team.each(vocab.div_ceil(ROWS), GROUPS_PER_TASK, |g| {
            kernels.group(matrix, g, &x, 0..count, &units, &mut scratch, &mut out);
            for (row, (out, step)) in out.iter().zip(&steps).enumerate() {
                let own = g * ROWS..vocab.min((g + 1) * ROWS);
                // SAFETY: a group's logits are written by the one thread that has the group.
                let to = unsafe { shared.write(row * vocab + own.start..row * vocab + own.end) };
                for (to, &y) in to.iter_mut().zip(out) {
                    *to = (f64::from(y) * step) as f32;
                }
            }
        });
    });
}
