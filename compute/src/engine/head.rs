//! From the last residual row to logits.

use crate::kernels::{Group, Kernels, Norm, ROWS, Scratch};
use crate::numeric::activation::Activations;
use crate::numeric::block::{BlockVec, Blocks, GROUP};
use crate::numeric::matmul::Unit;
use crate::pool::Pool;
use crate::share::Shared;
use crate::weights::Weights;

/// Groups that a thread takes at a time.
const GROUPS_PER_TASK: usize = 8;

/// The logits of each row of `residual`, `[rows, vocabulary]`.
pub fn logits(
    weights: &Weights,
    kernels: Kernels,
    pool: &Pool,
    residual: Blocks,
    logits: &mut Vec<f32>,
) {
    let (width, vocab) = (weights.arch.width, weights.arch.vocab);
    let count = residual.m.len() / width;
    let norm = Norm { weights: weights.output_norm.view(), epsilon: weights.width_epsilon };
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
    let matrix = &weights.output;
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
