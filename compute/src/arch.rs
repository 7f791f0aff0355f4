//! What a model computes, as data: one description of a decoder transformer for every family.
//!
//! [`Arch::from_gguf`] reads a file's metadata and tensor list and answers with numbers and
//! switches that a forward pass follows. The pass is the same for every family:
//!
//! ```text
//! x = embedding[token] * embedding_scale
//! for each layer:
//!     h = norm(x, AttentionNorm)
//!     q, k, v = Query h + QueryBias, Key h + KeyBias, Value h + ValueBias    (biases: qkv_bias)
//!     q, k = norm of each head by QueryNorm, KeyNorm                         (qk_norm)
//!     q, k = turned by position * phase_increments(layer)
//!     a = softmax(q . k * attention_scale over the layer's window) v
//!     x += norm(AttentionOutput a, PostAttentionNorm)                        (norm: post_norms)
//!     h = norm(x, FeedForwardNorm)
//!     f = activation(Gate h) * (Up h)
//!     x += norm(Down f, PostFeedForwardNorm)                                 (norm: post_norms)
//! logits = Output norm(x, OutputNorm)
//! ```
//!
//! where `norm(x, w) = x / sqrt(mean(x^2) + norm_eps) * w`; Gemma's files carry `w` with its `+1`
//! already added. Query head `h` reads key-value head `h / (heads / kv_heads)`.
//!
//! The rules are those of llama.cpp (`src/models/{llama,qwen2,qwen3,gemma3}.cpp`,
//! `llama_model_base::load_hparams`), because its converters define what the files mean.
//!
//! **Invariant:** a description exists only for a file that has exactly the tensors that the pass
//! uses, in the right shapes, and no key that would change the pass. Whatever is not understood
//! is refused by name, never skipped.

mod keys;
mod phase;
mod read;
mod tensors;

#[cfg(test)]
mod tests;

use thiserror::Error;

pub use tensors::{LayerTensor, ModelTensor};

/// Which two elements of a head turn together. Decided by the architecture; no key records it
/// (adjacent for llama, whose converter permuted the rows of Q and K; halves for qwen and gemma).
pub use crate::numeric::attention::Pairing;
/// The gate's function in the feed-forward half.
pub use crate::numeric::functions::Gate as Activation;

use crate::gguf::TensorType;

/// Most layers that a model may have.
pub const LAYERS_MAX: usize = 1024;
/// Longest row of a weight matrix, in elements: what the integer accumulators are proven for.
pub const ROW_MAX: usize = 53_248;
/// Widths are whole groups of this many elements: activations are quantised by 32.
pub const ROW_GROUP: usize = 32;
/// Most entries in a vocabulary.
pub const VOCAB_MAX: usize = 1 << 20;
/// Most elements in one attention head.
pub const HEAD_DIM_MAX: usize = 512;
/// Longest context that a file may claim, tokens. Phases are accurate to 2^-32 turn a position.
pub const CONTEXT_MAX: usize = 1 << 23;

/// Why a file's model cannot be run.
#[derive(Debug, Error, PartialEq)]
pub enum ArchError {
    /// `general.architecture` is absent or not text.
    #[error("the file does not name its architecture (general.architecture); convert it again")]
    Unnamed,
    /// The architecture is not one of those known here.
    #[error("architecture \"{name}\" is not supported; supported are {known}")]
    Unknown {
        /// What the file says.
        name: String,
        /// The names that would have been accepted.
        known: String,
    },
    /// A key without which nothing can be computed.
    #[error("the file has no usable {key}; convert it again")]
    Missing {
        /// The key's full name.
        key: String,
    },
    /// A number that no sound model has.
    #[error("{key} is {value}, but must be {allowed}; the file is damaged or not supported")]
    OutOfRange {
        /// The key's full name.
        key: String,
        /// What the file says.
        value: String,
        /// What would have been accepted.
        allowed: String,
    },
    /// A key that changes the computation in a way that is not implemented.
    #[error("{key} = {value} is not supported: {why}; use another model file")]
    Unsupported {
        /// The key's full name.
        key: String,
        /// What the file says.
        value: String,
        /// What it asks for.
        why: &'static str,
    },
    /// A needed tensor is not there.
    #[error("tensor {name} is missing; the file is incomplete, fetch or convert it again")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor {name} has shape {found:?}, but the metadata asks for {wanted:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape, innermost dimension first.
        found: Vec<usize>,
        /// The shape that the metadata asks for.
        wanted: Vec<usize>,
    },
    /// A vector (norm, bias, RoPE factors) is stored in blocks.
    #[error("tensor {name} is stored as {found:?}, which is not supported for a vector")]
    VectorType {
        /// Its name.
        name: String,
        /// How it is stored.
        found: TensorType,
    },
    /// A tensor that the computation has no place for.
    #[error(
        "tensor {name} is not part of the {architecture} computation known here; \
             running without it would give wrong answers, use another model file"
    )]
    ExtraTensor {
        /// Its name.
        name: String,
        /// The file's architecture.
        architecture: &'static str,
    },
    /// A RoPE frequency factor that no sound model has.
    #[error("rope_freqs.weight[{index}] is {value}, but must be within 2^-10 and 2^20")]
    RopeFactor {
        /// Which one.
        index: usize,
        /// Its value.
        value: f32,
    },
}

/// How positions turn queries and keys, as far as all layers agree on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Elements of each head that turn, from its start; even. Here always all of them.
    pub dims: usize,
    /// Which elements turn together.
    pub pairing: Pairing,
    /// One divisor of the frequency a pair (`rope_freqs.weight`), `dims/2` of them, each within
    /// 2^-10 and 2^20.
    pub factors: Option<Vec<f32>>,
}

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layer {
    /// Positions that a token sees, itself included: position `p` sees `p - window < k <= p`.
    /// `None` for all of them.
    pub window: Option<usize>,
    /// Base of the RoPE frequencies, 1 to 10^12.
    pub rope_base: f64,
    /// Linear position scaling: positions are divided by it. 1 for none; 2^-10 to 2^20.
    pub rope_scale: f64,
}

/// A decoder transformer. Every number has been checked against its bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Arch {
    /// `general.architecture`, one of [`Arch::known`].
    pub name: &'static str,
    /// What is particular to each layer, 1 to [`LAYERS_MAX`] of them.
    pub layers: Vec<Layer>,
    /// Elements of the residual; a multiple of [`ROW_GROUP`], at most [`ROW_MAX`].
    pub width: usize,
    /// Vocabulary entries, 1 to [`VOCAB_MAX`].
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key head; even, at most [`HEAD_DIM_MAX`].
    pub head_dim: usize,
    /// Elements of a value head; here always equal to `head_dim`.
    pub value_dim: usize,
    /// Width of the feed-forward half; a multiple of [`ROW_GROUP`], at most [`ROW_MAX`].
    pub ff: usize,
    /// Tokens that the model was trained to attend over, 1 to [`CONTEXT_MAX`].
    pub context_length: usize,
    /// Added to the mean square in every norm; 1e-12 to 0.1.
    pub norm_eps: f32,
    /// Factor on the embeddings (Gemma: square root of the width, rounded to f32).
    pub embedding_scale: Option<f32>,
    /// The gate's function.
    pub activation: Activation,
    /// How positions turn queries and keys.
    pub rope: Rope,
    /// Whether each query and key head is normalised before it turns.
    pub qk_norm: bool,
    /// Whether query, key and value have biases.
    pub qkv_bias: bool,
    /// Whether the output of each half is normalised before it joins the residual.
    pub post_norms: bool,
    /// Factor on `q . k`, as the f32 that llama.cpp uses.
    pub attention_scale: f32,
    /// Whether logits come from the embedding matrix, for want of `output.weight`.
    pub tied_embeddings: bool,
}

impl Arch {
    /// The architectures that can be run, by the name that files use.
    pub fn known() -> impl Iterator<Item = &'static str> {
        read::FAMILIES.iter().map(|family| family.name)
    }

    /// Turns per position for each pair of `layer`, in units of 2^-32 turn:
    /// `round(base^(-2i/dims) / factor_i / scale / 2 pi * 2^32) mod 2^32`. At position `p` pair
    /// `i` has turned by `p * increment` (wrapping). The same on every machine: only IEEE
    /// additions, multiplications and divisions are used.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn phase_increments(&self, layer: usize) -> Vec<u32> {
        let Layer { rope_base, rope_scale, .. } = self.layers[layer];
        let turned = |pair: usize| {
            let factor = self.rope.factors.as_ref().map_or(1.0, |all| f64::from(all[pair]));
            phase::increment(rope_base, pair, self.rope.dims, factor * rope_scale)
        };
        (0..self.rope.dims / 2).map(turned).collect()
    }

    /// Elements of all query heads together, which is the width of Query's output and of
    /// AttentionOutput's input.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads together; of all value heads too.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
