//! Rotation by position and causal attention, in plain floating point.

use compute::arch::{Arch, Layer, Pairing};

/// Tokens that one thread takes at a time. Later tokens see more, so pieces are dealt in turn.
const PIECE: usize = 16;

/// Turns every head of `x [n, heads * head_dim]` by its token's position.
///
/// The angle is `position * base^(-2i/dims) / scale / factor_i`, computed here in f64 and not
/// from the engine's integer increments.
pub(crate) fn rotate(x: &mut [f32], width: usize, arch: &Arch, layer: &Layer) {
    let dims = arch.rope.dims;
    let frequencies: Vec<f64> = (0..dims / 2)
        .map(|pair| {
            let factor = arch.rope.factors.as_ref().map_or(1.0, |all| f64::from(all[pair]));
            layer.rope_base.powf(-2.0 * pair as f64 / dims as f64) / layer.rope_scale / factor
        })
        .collect();
    for (position, x) in x.chunks_exact_mut(width).enumerate() {
        let turns: Vec<(f32, f32)> = frequencies
            .iter()
            .map(|frequency| {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                (sin as f32, cos as f32)
            })
            .collect();
        for head in x.chunks_exact_mut(arch.head_dim) {
            for (pair, &(sin, cos)) in turns.iter().enumerate() {
                let (a, b) = match arch.rope.pairing {
                    Pairing::Adjacent => (2 * pair, 2 * pair + 1),
                    Pairing::Halves => (pair, pair + dims / 2),
                };
                let (first, second) = (head[a], head[b]);
                head[a] = first * cos - second * sin;
                head[b] = first * sin + second * cos;
            }
        }
    }
}

/// Queries, keys and values of all tokens, turned and normalised.
pub(crate) struct Heads<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
}

impl Heads<'_> {
    /// What every query head gathers: `[n, heads * value_dim]`.
    pub(crate) fn attend(&self, arch: &Arch, layer: &Layer, threads: usize) -> Vec<f32> {
        let width = arch.heads * arch.value_dim;
        let tokens = self.q.len() / arch.query_width();
        let mut out = vec![0.0; tokens * width];
        let mut hands: Vec<Vec<(usize, &mut [f32])>> = Vec::new();
        hands.resize_with(threads, Vec::new);
        for (piece, out) in out.chunks_mut(PIECE * width).enumerate() {
            hands[piece % threads].push((piece * PIECE, out));
        }
        std::thread::scope(|scope| {
            for hand in hands {
                scope.spawn(move || {
                    for (first, out) in hand {
                        for (i, out) in out.chunks_exact_mut(width).enumerate() {
                            self.attend_one(arch, layer, first + i, out);
                        }
                    }
                });
            }
        });
        out
    }

    fn attend_one(&self, arch: &Arch, layer: &Layer, position: usize, out: &mut [f32]) {
        let dim = arch.head_dim;
        let q = &self.q[position * arch.query_width()..][..arch.query_width()];
        let first = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let shared = arch.heads / arch.kv_heads;
        let mut scores = vec![0.0; position + 1 - first];
        let heads = q.chunks_exact(dim).zip(out.chunks_exact_mut(arch.value_dim)).enumerate();
        for (head, (q, out)) in heads {
            let kv = head / shared;
            for (k, score) in self.rows(self.k, arch, kv, first).zip(&mut scores) {
                *score = dot(q, k) * arch.attention_scale;
            }
            softmax(&mut scores);
            for (v, &p) in self.rows(self.v, arch, kv, first).zip(&scores) {
                for (out, &v) in out.iter_mut().zip(v) {
                    *out += p * v;
                }
            }
        }
    }

    /// A key-value head's rows, from position `first` on.
    fn rows<'a>(
        &self,
        of: &'a [f32],
        arch: &Arch,
        head: usize,
        first: usize,
    ) -> impl Iterator<Item = &'a [f32]> {
        let (width, dim) = (arch.kv_width(), arch.head_dim);
        of[first * width..].chunks_exact(width).map(move |row| &row[head * dim..][..dim])
    }
}

/// Scores to probabilities.
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        sum += f64::from(*score);
    }
    let scale = (1.0 / sum) as f32;
    for score in scores {
        *score *= scale;
    }
}

/// A dot product in eight lanes, so that it vectorises.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut lanes = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}
