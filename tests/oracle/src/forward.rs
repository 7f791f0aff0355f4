//! The forward pass that `compute::arch` describes, in f32 with f64 where it is cheap.

use std::path::Path;

use compute::arch::{Activation, Arch, ArchError, LayerTensor, ModelTensor};
use compute::gguf::{Gguf, GgufError};
use thiserror::Error;

use crate::attention::{Heads, rotate};
use crate::decode::decode;
use crate::matmul::Matrix;

/// Why the oracle has no answer.
#[derive(Debug, Error)]
pub enum OracleError {
    /// The file is not sound.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is not one of those described.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// A token id has no embedding.
    #[error(
        "token {token} is outside the vocabulary of {vocabulary}; was it made by another model's tokeniser?"
    )]
    UnknownToken {
        /// The id.
        token: u32,
        /// How many ids there are.
        vocabulary: usize,
    },
}

/// A model that answers in floating point.
#[derive(Debug)]
pub struct Oracle {
    file: Gguf,
    arch: Arch,
    threads: usize,
}

impl Oracle {
    /// Opens the model at `path`; computes with as many threads as the machine has, up to 8.
    pub fn load(path: &Path) -> Result<Self, OracleError> {
        let file = Gguf::open(path)?;
        let arch = Arch::from_gguf(&file)?;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        Ok(Self { file, arch, threads })
    }

    /// What the model computes.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// The file.
    pub fn file(&self) -> &Gguf {
        &self.file
    }

    /// Logits after each token of a sequence that begins at position 0: `[n, vocab]`.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, OracleError> {
        Ok(self.head(&self.hidden(tokens)?))
    }

    /// The last norm's output after each token: `[n, width]`. [`Oracle::head`] makes logits of
    /// any of its rows, so that a large vocabulary need not be held for all of them.
    pub fn hidden(&self, tokens: &[u32]) -> Result<Vec<f32>, OracleError> {
        let mut x = self.embed(tokens)?;
        for layer in 0..self.arch.layers.len() {
            self.attend(layer, &mut x);
            self.feed_forward(layer, &mut x);
        }
        let weights = self.vector(ModelTensor::OutputNorm.name());
        self.norm(&mut x, &weights);
        Ok(x)
    }

    /// Logits for rows of [`Oracle::hidden`].
    pub fn head(&self, hidden: &[f32]) -> Vec<f32> {
        self.multiply(hidden, self.arch.output_tensor().name())
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, OracleError> {
        let vocabulary = self.arch.vocab;
        let matrix = self.matrix(ModelTensor::Embedding.name());
        let mut x = vec![0.0; tokens.len() * self.arch.width];
        for (&token, x) in tokens.iter().zip(x.chunks_exact_mut(self.arch.width)) {
            if token as usize >= vocabulary {
                return Err(OracleError::UnknownToken { token, vocabulary });
            }
            matrix.row(token as usize, x);
            if let Some(scale) = self.arch.embedding_scale {
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Ok(x)
    }

    /// The attention half of a layer, onto the residual.
    fn attend(&self, layer: usize, x: &mut [f32]) {
        use LayerTensor::*;
        let arch = &self.arch;
        let mut h = x.to_vec();
        self.norm(&mut h, &self.layer_vector(layer, AttentionNorm));
        let project = |weights, bias| {
            let mut out = self.layer_multiply(&h, layer, weights);
            if arch.qkv_bias {
                let bias = self.layer_vector(layer, bias);
                for out in out.chunks_exact_mut(bias.len()) {
                    out.iter_mut().zip(&bias).for_each(|(out, bias)| *out += bias);
                }
            }
            out
        };
        let (mut q, mut k) = (project(Query, QueryBias), project(Key, KeyBias));
        let v = project(Value, ValueBias);
        if arch.qk_norm {
            self.norm(&mut q, &self.layer_vector(layer, QueryNorm));
            self.norm(&mut k, &self.layer_vector(layer, KeyNorm));
        }
        let kind = &arch.layers[layer];
        rotate(&mut q, arch.query_width(), arch, kind);
        rotate(&mut k, arch.kv_width(), arch, kind);
        let gathered = Heads { q: &q, k: &k, v: &v }.attend(arch, kind, self.threads);
        let out = self.layer_multiply(&gathered, layer, AttentionOutput);
        self.join(x, out, layer, PostAttentionNorm);
    }

    /// The feed-forward half of a layer, onto the residual.
    fn feed_forward(&self, layer: usize, x: &mut [f32]) {
        use LayerTensor::*;
        let mut h = x.to_vec();
        self.norm(&mut h, &self.layer_vector(layer, FeedForwardNorm));
        let mut gate = self.layer_multiply(&h, layer, Gate);
        let up = self.layer_multiply(&h, layer, Up);
        let activate = match self.arch.activation {
            Activation::Silu => silu,
            Activation::GeluTanh => gelu,
        };
        gate.iter_mut().zip(&up).for_each(|(gate, up)| *gate = activate(*gate) * up);
        let out = self.layer_multiply(&gate, layer, Down);
        self.join(x, out, layer, PostFeedForwardNorm);
    }

    /// Adds a half's output to the residual, normalised where the model does so.
    fn join(&self, x: &mut [f32], mut out: Vec<f32>, layer: usize, post_norm: LayerTensor) {
        if self.arch.post_norms {
            self.norm(&mut out, &self.layer_vector(layer, post_norm));
        }
        x.iter_mut().zip(&out).for_each(|(x, out)| *x += out);
    }

    /// Normalises each run of `weights.len()` elements.
    fn norm(&self, x: &mut [f32], weights: &[f32]) {
        for x in x.chunks_exact_mut(weights.len()) {
            let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let mean = squares / weights.len() as f64;
            let scale = 1.0 / (mean + f64::from(self.arch.norm_eps)).sqrt();
            for (x, &w) in x.iter_mut().zip(weights) {
                *x = (f64::from(*x) * scale * f64::from(w)) as f32;
            }
        }
    }

    fn layer_multiply(&self, x: &[f32], layer: usize, tensor: LayerTensor) -> Vec<f32> {
        self.multiply(x, &tensor.name(layer))
    }

    fn multiply(&self, x: &[f32], name: &str) -> Vec<f32> {
        self.matrix(name).multiply(x, self.threads)
    }

    fn matrix(&self, name: &str) -> Matrix<'_> {
        let info = self.file.tensor(name).expect("the description was checked against the file");
        let (columns, rows) = (info.shape[0], info.shape[1]);
        Matrix { kind: info.kind, bytes: self.file.bytes(info), columns, rows }
    }

    fn layer_vector(&self, layer: usize, tensor: LayerTensor) -> Vec<f32> {
        self.vector(&tensor.name(layer))
    }

    fn vector(&self, name: &str) -> Vec<f32> {
        let info = self.file.tensor(name).expect("the description was checked against the file");
        let mut out = vec![0.0; info.shape[0]];
        decode(info.kind, self.file.bytes(info), &mut out);
        out
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f32) -> f32 {
    const ROOT: f32 = 0.797_884_6; // sqrt(2 / pi)
    0.5 * x * (1.0 + (ROOT * x * (1.0 + 0.044_715 * x * x)).tanh())
}
