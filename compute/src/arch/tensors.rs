//! Which tensors a description needs, and the check that a file has those and no others.

use std::collections::BTreeMap;

use crate::gguf::{TensorInfo, TensorType};

use super::{Arch, ArchError};

/// The tensors that a model has once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelTensor {
    /// `[width, vocab]`: a row a token.
    Embedding,
    /// `[width, vocab]`: a row a logit. Absent where embeddings are tied.
    Output,
    /// `[width]`: the last norm.
    OutputNorm,
    /// `[dims/2]`: frequency divisors.
    RopeFactors,
}

impl ModelTensor {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "token_embd.weight",
            Self::Output => "output.weight",
            Self::OutputNorm => "output_norm.weight",
            Self::RopeFactors => "rope_freqs.weight",
        }
    }
}

/// The tensors that every layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerTensor {
    /// `[width]`: before attention.
    AttentionNorm,
    /// `[width, heads * head_dim]`.
    Query,
    /// `[width, kv_heads * head_dim]`.
    Key,
    /// `[width, kv_heads * value_dim]`.
    Value,
    /// `[heads * head_dim]`, with `qkv_bias`.
    QueryBias,
    /// `[kv_heads * head_dim]`, with `qkv_bias`.
    KeyBias,
    /// `[kv_heads * value_dim]`, with `qkv_bias`.
    ValueBias,
    /// `[head_dim]`, with `qk_norm`: one for all heads.
    QueryNorm,
    /// `[head_dim]`, with `qk_norm`: one for all heads.
    KeyNorm,
    /// `[heads * value_dim, width]`.
    AttentionOutput,
    /// `[width]`, with `post_norms`.
    PostAttentionNorm,
    /// `[width]`: before the feed-forward half.
    FeedForwardNorm,
    /// `[width, ff]`: through the activation.
    Gate,
    /// `[width, ff]`: times the gate.
    Up,
    /// `[ff, width]`.
    Down,
    /// `[width]`, with `post_norms`.
    PostFeedForwardNorm,
}

impl LayerTensor {
    /// All of them, in the order in which a layer uses them.
    pub const ALL: [Self; 16] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryBias,
        Self::KeyBias,
        Self::ValueBias,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::AttentionOutput,
        Self::PostAttentionNorm,
        Self::FeedForwardNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::PostFeedForwardNorm,
    ];

    /// The half-block of layer `layer` that it belongs to.
    pub fn half(self, layer: usize) -> usize {
        use LayerTensor::*;
        match self {
            AttentionNorm | Query | Key | Value | QueryBias | KeyBias | ValueBias | QueryNorm
            | KeyNorm | AttentionOutput | PostAttentionNorm => 2 * layer,
            FeedForwardNorm | Gate | Up | Down | PostFeedForwardNorm => 2 * layer + 1,
        }
    }

    /// Its name in the file, for layer `layer`.
    pub fn name(self, layer: usize) -> String {
        let suffix = match self {
            Self::AttentionNorm => "attn_norm.weight",
            Self::Query => "attn_q.weight",
            Self::Key => "attn_k.weight",
            Self::Value => "attn_v.weight",
            Self::QueryBias => "attn_q.bias",
            Self::KeyBias => "attn_k.bias",
            Self::ValueBias => "attn_v.bias",
            Self::QueryNorm => "attn_q_norm.weight",
            Self::KeyNorm => "attn_k_norm.weight",
            Self::AttentionOutput => "attn_output.weight",
            Self::PostAttentionNorm => "post_attention_norm.weight",
            Self::FeedForwardNorm => "ffn_norm.weight",
            Self::Gate => "ffn_gate.weight",
            Self::Up => "ffn_up.weight",
            Self::Down => "ffn_down.weight",
            Self::PostFeedForwardNorm => "post_ffw_norm.weight",
        };
        format!("blk.{layer}.{suffix}")
    }
}

impl Arch {
    /// The shape of a layer's tensor, innermost dimension first; `None` where this model has no
    /// such tensor.
    pub fn layer_shape(&self, tensor: LayerTensor) -> Option<Vec<usize>> {
        use LayerTensor::*;
        let (width, query, kv) = (self.width, self.query_width(), self.kv_width());
        let (shape, present) = match tensor {
            AttentionNorm | FeedForwardNorm => (vec![width], true),
            Query => (vec![width, query], true),
            Key | Value => (vec![width, kv], true),
            QueryBias => (vec![query], self.qkv_bias),
            KeyBias | ValueBias => (vec![kv], self.qkv_bias),
            QueryNorm | KeyNorm => (vec![self.head_dim], self.qk_norm),
            AttentionOutput => (vec![query, width], true),
            PostAttentionNorm | PostFeedForwardNorm => (vec![width], self.post_norms),
            Gate | Up => (vec![width, self.ff], true),
            Down => (vec![self.ff, width], true),
        };
        present.then_some(shape)
    }

    /// The shape of a tensor that the model has once; `None` where this model has no such tensor.
    pub fn model_shape(&self, tensor: ModelTensor) -> Option<Vec<usize>> {
        match tensor {
            ModelTensor::Embedding => Some(vec![self.width, self.vocab]),
            ModelTensor::Output => (!self.tied_embeddings).then(|| vec![self.width, self.vocab]),
            ModelTensor::OutputNorm => Some(vec![self.width]),
            ModelTensor::RopeFactors => {
                self.rope.factors.as_ref().map(|_| vec![self.rope.dims / 2])
            }
        }
    }

    /// The tensor whose rows give the logits.
    pub fn output_tensor(&self) -> ModelTensor {
        if self.tied_embeddings { ModelTensor::Embedding } else { ModelTensor::Output }
    }

    /// Every tensor that the pass uses, with its shape.
    fn needed(&self) -> Vec<(String, Vec<usize>)> {
        use ModelTensor::*;
        let model = [Embedding, Output, OutputNorm, RopeFactors]
            .into_iter()
            .filter_map(|tensor| Some((tensor.name().to_owned(), self.model_shape(tensor)?)));
        let layers = (0..self.layers.len()).flat_map(|layer| {
            LayerTensor::ALL
                .into_iter()
                .filter_map(move |tensor| Some((tensor.name(layer), self.layer_shape(tensor)?)))
        });
        model.chain(layers).collect()
    }

    /// Refuses a file that lacks a tensor, has one of another shape, or has one too many.
    pub(super) fn check_tensors(
        &self,
        tensors: &BTreeMap<&str, &TensorInfo>,
    ) -> Result<(), ArchError> {
        let needed: BTreeMap<String, Vec<usize>> = self.needed().into_iter().collect();
        // Extra ones first: "has ffn_gate_exps" says more than "lacks ffn_gate".
        if let Some(name) = tensors.keys().find(|name| !needed.contains_key(**name)) {
            let name = (*name).to_owned();
            return Err(ArchError::ExtraTensor { name, architecture: self.name });
        }
        for (name, wanted) in needed {
            let Some(found) = tensors.get(name.as_str()) else {
                return Err(ArchError::MissingTensor { name });
            };
            if found.shape != wanted {
                return Err(ArchError::Shape { name, found: found.shape.clone(), wanted });
            }
            if wanted.len() == 1 && !plain(found.kind) {
                return Err(ArchError::VectorType { name, found: found.kind });
            }
        }
        Ok(())
    }
}

/// Whether a type stores numbers one by one, as vectors are stored.
fn plain(kind: TensorType) -> bool {
    matches!(kind, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}
