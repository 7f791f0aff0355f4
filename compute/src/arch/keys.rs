//! One architecture's metadata keys: typed, bounded reads, and the refusal of keys that would
//! change the computation.

use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;

use crate::gguf::{Metadata, Value};

use super::ArchError;

/// A file's keys under its architecture's prefix.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, architecture: &'static str) -> Self {
        Self { metadata, architecture }
    }

    /// The full name of a key.
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The value under a key, if there is one.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.metadata.get(&self.full(key))
    }

    /// A whole number within `range`. An array is accepted where all its entries are equal, for
    /// some converters write one entry a layer.
    pub(super) fn count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ArchError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            Value::Integers(all) => match all.split_first() {
                Some((first, rest)) if rest.iter().all(|n| n == first) => {
                    u64::try_from(*first).ok()
                }
                Some(_) => return Err(self.unsupported(key, "it differs from layer to layer")),
                None => None,
            },
            _ => None,
        };
        let number = number.and_then(|n| usize::try_from(n).ok());
        match number {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ => Err(self.out_of_range(key, &range)),
        }
    }

    /// As [`Keys::count`], where the model cannot do without.
    pub(super) fn needed(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ArchError> {
        self.count(key, range)?.ok_or_else(|| ArchError::Missing { key: self.full(key) })
    }

    /// A finite number within `range`.
    pub(super) fn number(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ArchError> {
        if self.get(key).is_none() {
            return Ok(None);
        }
        match self.metadata.f64(&self.full(key)) {
            // A range holds no NaN.
            Some(x) if range.contains(&x) => Ok(Some(x)),
            _ => Err(self.out_of_range(key, &range)),
        }
    }

    pub(super) fn unsupported(&self, key: &str, why: &'static str) -> ArchError {
        let value = self.get(key).map(show).unwrap_or_default();
        ArchError::Unsupported { key: self.full(key), value, why }
    }

    pub(super) fn out_of_range<T: Display + Debug>(
        &self,
        key: &str,
        range: &RangeInclusive<T>,
    ) -> ArchError {
        let value = self.get(key).map(show).unwrap_or_default();
        let allowed = format!("{} to {}", range.start(), range.end());
        ArchError::OutOfRange { key: self.full(key), value, allowed }
    }

    /// Refuses every key that would change the computation and is not read elsewhere.
    pub(super) fn check(&self) -> Result<(), ArchError> {
        let prefix = format!("{}.", self.architecture);
        for (name, value) in self.metadata.iter() {
            let Some(key) = name.strip_prefix(&prefix) else { continue };
            if READ.contains(&key) || HARMLESS.contains(&key) {
                continue;
            }
            if let Some((_, neutral, why)) = FOREIGN.iter().find(|(name, ..)| *name == key) {
                if neutral.contains(&number(value)) {
                    continue;
                }
                return Err(self.unsupported(key, why));
            }
            // What comes under these names decides scores and angles, and nothing in a tensor
            // list would betray it.
            if ["attention.", "rope.", "expert", "ssm.", "nextn", "hyper_connection."]
                .iter()
                .any(|start| key.starts_with(start))
            {
                return Err(self.unsupported(key, "its meaning is not known here"));
            }
        }
        Ok(())
    }
}

/// Keys that the description is made from.
pub(super) const READ: [&str; 18] = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "context_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "attention.causal",
];

/// Keys that say nothing about the forward pass of the architectures here.
const HARMLESS: [&str; 6] = [
    "vocab_size",
    "tensor_data_layout",
    "pooling_type",
    "attention.layer_norm_epsilon",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

/// Keys of other computations: the values that leave ours as it is, and what the others ask for.
const FOREIGN: [(&str, &[f64], &str); 21] = [
    ("expert_count", &[0.0], "mixtures of experts are not implemented for this architecture"),
    ("expert_used_count", &[0.0], "mixtures of experts are not implemented for this architecture"),
    ("attn_logit_softcapping", &[0.0], "capping of attention scores is not implemented"),
    ("attention.logit_softcapping", &[0.0], "capping of attention scores is not implemented"),
    ("final_logit_softcapping", &[0.0], "capping of logits is not implemented"),
    ("attention.q_lora_rank", &[0.0], "multi-head latent attention is not implemented"),
    ("attention.kv_lora_rank", &[0.0], "multi-head latent attention is not implemented"),
    ("attention.key_length_mla", &[0.0], "multi-head latent attention is not implemented"),
    ("attention.value_length_mla", &[0.0], "multi-head latent attention is not implemented"),
    ("attention.max_alibi_bias", &[0.0], "ALiBi is not implemented"),
    ("attention.clamp_kqv", &[0.0], "clamping of Q, K and V is not implemented"),
    ("attention.scale", &[0.0], "another attention scale is not implemented"),
    ("attention.temperature_scale", &[0.0], "attention temperature is not implemented"),
    ("logit_scale", &[0.0, 1.0], "scaling of logits is not implemented"),
    ("residual_scale", &[0.0, 1.0], "scaling of residuals is not implemented"),
    ("embedding_scale", &[0.0, 1.0], "this scaling of embeddings is not implemented"),
    ("rope.scaling.attn_factor", &[0.0, 1.0], "scaling of attention by RoPE is not implemented"),
    ("rope.scaling.alpha", &[0.0, 1.0], "NTK scaling of RoPE is not implemented"),
    ("rope.scaling.yarn_log_multiplier", &[0.0], "YaRN is not implemented"),
    ("use_parallel_residual", &[0.0], "parallel residuals are not implemented"),
    ("nextn_predict_layers", &[0.0], "layers that predict further tokens are not implemented"),
];

/// A value as a number; NaN where it is none, which equals no neutral value.
fn number(value: &Value) -> f64 {
    match value {
        Value::Unsigned(n) => *n as f64,
        Value::Signed(n) => *n as f64,
        Value::Float(x) => *x,
        Value::Bool(b) => f64::from(u8::from(*b)),
        _ => f64::NAN,
    }
}

/// A value for an error message, of bounded length.
fn show(value: &Value) -> String {
    match value {
        Value::Unsigned(n) => n.to_string(),
        Value::Signed(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::String(text) => format!("\"{}\"", text.chars().take(40).collect::<String>()),
        Value::Strings(_) => "a list of texts".into(),
        Value::Bools(_) => "a list of booleans".into(),
        Value::Integers(all) => format!("{:?}", &all[..all.len().min(8)]),
        Value::Floats(all) => format!("{:?}", &all[..all.len().min(8)]),
    }
}
