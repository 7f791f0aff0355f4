//! From a file's metadata and tensor list to a description.

use std::collections::BTreeMap;

use crate::gguf::{Gguf, Metadata, TensorInfo, TensorType, Value};

use super::keys::Keys;
use super::{
    Activation, Arch, ArchError, CONTEXT_MAX, HEAD_DIM_MAX, LAYERS_MAX, Layer, ModelTensor,
    Pairing, ROW_GROUP, ROW_MAX, Rope, VOCAB_MAX,
};

/// What an architecture's name alone decides.
pub(super) struct Family {
    pub(super) name: &'static str,
    pairing: Pairing,
    activation: Activation,
    qk_norm: bool,
    qkv_bias: bool,
    /// Gemma 3's frame: post-norms, scaled embeddings, local layers between global ones.
    gemma: bool,
    /// Whether `rope_freqs.weight` is heeded; llama.cpp does so for llama alone among these.
    rope_factors: bool,
}

const LLAMA: Family = Family {
    name: "llama",
    pairing: Pairing::Adjacent,
    activation: Activation::Silu,
    qk_norm: false,
    qkv_bias: false,
    gemma: false,
    rope_factors: true,
};

/// Every architecture that can be run.
pub(super) const FAMILIES: [Family; 4] = [
    LLAMA,
    Family {
        name: "qwen2",
        pairing: Pairing::Halves,
        qkv_bias: true,
        rope_factors: false,
        ..LLAMA
    },
    Family { name: "qwen3", pairing: Pairing::Halves, qk_norm: true, rope_factors: false, ..LLAMA },
    Family {
        name: "gemma3",
        pairing: Pairing::Halves,
        activation: Activation::GeluTanh,
        qk_norm: true,
        gemma: true,
        rope_factors: false,
        ..LLAMA
    },
];

/// Bounds of RoPE's divisors, wide of anything that models use and within what `phase` bears.
const DIVISOR_MIN: f64 = 1.0 / 1024.0;
const DIVISOR_MAX: f64 = 1_048_576.0;
/// The RoPE base where a file gives none, of Gemma's local layers too.
const ROPE_BASE_DEFAULT: f64 = 10_000.0;
/// Gemma 3: every sixth layer sees everything.
const PATTERN_DEFAULT: usize = 6;
/// Gemma 3 27B, told by its number of layers as llama.cpp does it, for no key records its scale.
const GEMMA_27B_LAYERS: usize = 62;

impl Arch {
    /// Reads and checks a file's description.
    pub fn from_gguf(file: &Gguf) -> Result<Self, ArchError> {
        let factors = file.tensor(ModelTensor::RopeFactors.name()).map(|info| file.bytes(info));
        Self::from_parts(file.metadata(), file.tensors(), factors)
    }

    /// As [`Arch::from_gguf`], from the header alone: RoPE's factors, which are a tensor, are all 1.
    pub(crate) fn outline(file: &Gguf) -> Result<Self, ArchError> {
        let tensors = file.tensors().map(|info| (info.name.as_str(), info)).collect();
        Self::from_header(file.metadata(), &tensors)
    }

    /// As [`Arch::from_gguf`], from the parts that it looks at: `factors` are the bytes of
    /// `rope_freqs.weight`.
    pub(super) fn from_parts<'a>(
        metadata: &Metadata,
        tensors: impl Iterator<Item = &'a TensorInfo>,
        factors: Option<&[u8]>,
    ) -> Result<Self, ArchError> {
        let tensors = tensors.map(|info| (info.name.as_str(), info)).collect();
        let mut arch = Self::from_header(metadata, &tensors)?;
        if arch.rope.factors.is_some() {
            arch.rope.factors = Some(rope_factors(&tensors, factors)?);
        }
        Ok(arch)
    }

    /// All but RoPE's factors.
    fn from_header(
        metadata: &Metadata,
        tensors: &BTreeMap<&str, &TensorInfo>,
    ) -> Result<Self, ArchError> {
        let name = metadata.str("general.architecture").ok_or(ArchError::Unnamed)?;
        let family = FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| {
            let known = Self::known().collect::<Vec<_>>().join(", ");
            ArchError::Unknown { name: name.chars().take(40).collect(), known }
        })?;
        let keys = Keys::new(metadata, family.name);
        keys.check()?;
        let mut arch = describe(family, &keys, tensors)?;
        check_tokens(metadata, arch.vocab)?;
        let factors = tensors.get(ModelTensor::RopeFactors.name());
        let factors = factors.filter(|_| family.rope_factors);
        if factors.is_some() {
            arch.rope.factors = Some(vec![1.0; arch.rope.dims / 2]);
        }
        arch.check_tensors(tensors)?;
        match factors {
            Some(info) if info.kind != TensorType::F32 => {
                Err(ArchError::VectorType { name: info.name.clone(), found: info.kind })
            }
            _ => Ok(arch),
        }
    }
}

/// The description that the keys give; tensors are looked at for the vocabulary and tied
/// embeddings only.
fn describe(
    family: &Family,
    keys: &Keys,
    tensors: &BTreeMap<&str, &TensorInfo>,
) -> Result<Arch, ArchError> {
    let layer_count = keys.needed("block_count", 1..=LAYERS_MAX)?;
    let width = grouped(keys, "embedding_length")?;
    let (heads, kv_heads, head_dim) = head_shape(keys, width)?;
    if let Some(Value::Bool(false)) = keys.get("attention.causal") {
        return Err(keys.unsupported("attention.causal", "only causal models generate text"));
    }
    let eps = keys.number("attention.layer_norm_rms_epsilon", 1e-12..=0.1)?;
    let eps_key = || ArchError::Missing { key: keys.full("attention.layer_norm_rms_epsilon") };
    let scaled = if family.gemma && layer_count == GEMMA_27B_LAYERS {
        // llama.cpp divides whole numbers here.
        width / heads
    } else {
        head_dim
    };
    Ok(Arch {
        name: family.name,
        layers: layers(family, keys, layer_count)?,
        width,
        vocab: vocabulary(tensors)?,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        ff: grouped(keys, "feed_forward_length")?,
        context_length: keys.needed("context_length", 1..=CONTEXT_MAX)?,
        norm_eps: eps.ok_or_else(eps_key)? as f32,
        embedding_scale: family.gemma.then(|| (width as f32).sqrt()),
        activation: family.activation,
        rope: Rope { dims: head_dim, pairing: family.pairing, factors: None },
        qk_norm: family.qk_norm,
        qkv_bias: family.qkv_bias,
        post_norms: family.gemma,
        attention_scale: 1.0 / (scaled as f32).sqrt(),
        tied_embeddings: !tensors.contains_key(ModelTensor::Output.name()),
    })
}

/// A width, which is a whole number of groups.
fn grouped(keys: &Keys, key: &str) -> Result<usize, ArchError> {
    let width = keys.needed(key, ROW_GROUP..=ROW_MAX)?;
    if width % ROW_GROUP != 0 {
        return Err(keys.unsupported(key, "only multiples of 32 are implemented"));
    }
    Ok(width)
}

/// Query heads, key-value heads and the elements of each.
fn head_shape(keys: &Keys, width: usize) -> Result<(usize, usize, usize), ArchError> {
    const HEADS_MAX: usize = 4096;
    let heads = keys.needed("attention.head_count", 1..=HEADS_MAX)?;
    // llama.cpp: as many as query heads where the key is absent.
    let kv_heads = keys.count("attention.head_count_kv", 1..=heads)?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(ArchError::OutOfRange {
            key: keys.full("attention.head_count_kv"),
            value: kv_heads.to_string(),
            allowed: format!("a divisor of {heads}"),
        });
    }
    let head_dim = match keys.count("attention.key_length", 2..=HEAD_DIM_MAX)? {
        Some(dim) => dim,
        None => width / heads,
    };
    let key = || keys.full("attention.key_length");
    if !(2..=HEAD_DIM_MAX).contains(&head_dim) || head_dim % 2 != 0 {
        let allowed = format!("an even number, 2 to {HEAD_DIM_MAX}");
        return Err(ArchError::OutOfRange { key: key(), value: head_dim.to_string(), allowed });
    }
    for key in ["attention.value_length", "rope.dimension_count"] {
        let dim = keys.count(key, 1..=HEAD_DIM_MAX)?;
        if dim.is_some_and(|dim| dim != head_dim) {
            return Err(keys.unsupported(key, "it must equal the length of a key"));
        }
    }
    let row = heads * head_dim;
    if row > ROW_MAX || row % ROW_GROUP != 0 || kv_heads * head_dim % ROW_GROUP != 0 {
        let allowed = format!("such that all heads together are a multiple of 32 up to {ROW_MAX}");
        return Err(ArchError::OutOfRange { key: key(), value: head_dim.to_string(), allowed });
    }
    Ok((heads, kv_heads, head_dim))
}

/// Windows and RoPE of each layer.
fn layers(family: &Family, keys: &Keys, count: usize) -> Result<Vec<Layer>, ArchError> {
    const BASES: std::ops::RangeInclusive<f64> = 1.0..=1e12;
    let rope_base = keys.number("rope.freq_base", BASES)?.unwrap_or(ROPE_BASE_DEFAULT);
    let rope_scale = linear_scale(keys)?;
    let global = Layer { window: None, rope_base, rope_scale };
    let window = keys.count("attention.sliding_window", 0..=CONTEXT_MAX)?.unwrap_or(0);
    if window == 0 {
        return Ok(vec![global; count]);
    }
    if !family.gemma {
        let why = "sliding windows are not implemented for this architecture";
        return Err(keys.unsupported("attention.sliding_window", why));
    }
    let local_base = keys.number("rope.freq_base_swa", BASES)?.unwrap_or(ROPE_BASE_DEFAULT);
    // Scaling stretches global layers only: local ones never see further than in training.
    let local = Layer { window: Some(window), rope_base: local_base, rope_scale: 1.0 };
    let pattern = local_pattern(keys, count)?;
    Ok(pattern.into_iter().map(|is_local| if is_local { local } else { global }).collect())
}

/// Which layers are local: by an array, an entry a layer, or by a period, whose last layer is
/// global. (llama.cpp's `load_swa_pattern`.)
fn local_pattern(keys: &Keys, count: usize) -> Result<Vec<bool>, ArchError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let listed: Option<Vec<bool>> = match keys.get(KEY) {
        Some(Value::Bools(all)) => Some(all.clone()),
        Some(Value::Integers(all)) => Some(all.iter().map(|&n| n != 0).collect()),
        _ => None,
    };
    match listed {
        Some(all) if all.len() == count => Ok(all),
        Some(_) => Err(keys.unsupported(KEY, "it must have one entry for each layer")),
        None => {
            let period = keys.count(KEY, 0..=LAYERS_MAX)?.unwrap_or(PATTERN_DEFAULT);
            Ok((0..count).map(|layer| period == 0 || layer % period < period - 1).collect())
        }
    }
}

/// The factor by which positions are divided.
fn linear_scale(keys: &Keys) -> Result<f64, ArchError> {
    // llama.cpp takes an absent type for linear, and an absent or zero factor for 1.
    match keys.get("rope.scaling.type") {
        None => {}
        Some(Value::String(kind)) if kind == "linear" => {}
        Some(Value::String(kind)) if kind == "none" => return Ok(1.0),
        Some(_) => {
            let why = "only linear scaling of RoPE is implemented";
            return Err(keys.unsupported("rope.scaling.type", why));
        }
    }
    let key = ["rope.scaling.factor", "rope.scale_linear"]
        .into_iter()
        .find(|key| keys.get(key).is_some());
    let Some(key) = key else { return Ok(1.0) };
    let factor = keys.number(key, 0.0..=DIVISOR_MAX)?.unwrap_or(0.0);
    match factor {
        0.0 => Ok(1.0),
        x if x < DIVISOR_MIN => Err(keys.out_of_range(key, &(DIVISOR_MIN..=DIVISOR_MAX))),
        x => Ok(x),
    }
}

/// Rows of the embedding matrix.
fn vocabulary(tensors: &BTreeMap<&str, &TensorInfo>) -> Result<usize, ArchError> {
    let name = ModelTensor::Embedding.name();
    let missing = || ArchError::MissingTensor { name: name.to_owned() };
    let info = tensors.get(name).ok_or_else(missing)?;
    match info.shape[..] {
        [_, rows] if (1..=VOCAB_MAX).contains(&rows) => Ok(rows),
        _ => Err(ArchError::OutOfRange {
            key: format!("the shape of {name}"),
            value: format!("{:?}", info.shape),
            allowed: format!("a matrix of 1 to {VOCAB_MAX} rows"),
        }),
    }
}

/// A token id that the tokeniser gives must have a row.
fn check_tokens(metadata: &Metadata, vocab: usize) -> Result<(), ArchError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    match metadata.strings(KEY) {
        Some(tokens) if tokens.len() != vocab => Err(ArchError::OutOfRange {
            key: format!("the length of {KEY}"),
            value: tokens.len().to_string(),
            allowed: format!("{vocab}, the rows of the embedding matrix"),
        }),
        _ => Ok(()),
    }
}

/// The numbers in `rope_freqs.weight`, whose shape and type have been checked.
fn rope_factors(
    tensors: &BTreeMap<&str, &TensorInfo>,
    bytes: Option<&[u8]>,
) -> Result<Vec<f32>, ArchError> {
    let name = ModelTensor::RopeFactors.name();
    let missing = || ArchError::MissingTensor { name: name.to_owned() };
    let info = tensors.get(name).ok_or_else(missing)?;
    let (words, _) = bytes.ok_or_else(missing)?.as_chunks::<4>();
    let factors: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let sound = |x: f32| (DIVISOR_MIN..=DIVISOR_MAX).contains(&f64::from(x));
    match factors.iter().position(|x| !sound(*x)) {
        Some(index) => Err(ArchError::RopeFactor { index, value: factors[index] }),
        None if factors.len() == info.shape[0] => Ok(factors),
        None => Err(missing()),
    }
}
