//! The description at its door: keys and tensors in, numbers or a refusal out.

use std::collections::BTreeMap;

use super::*;
use crate::gguf::{Metadata, TensorInfo, TensorType, Value};

/// A file as `Arch` sees it, sound until a test spoils it.
struct File {
    pairs: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    factors: Option<Vec<u8>>,
    architecture: &'static str,
}

impl File {
    fn new(architecture: &'static str) -> Self {
        let mut file =
            Self { pairs: BTreeMap::new(), tensors: BTreeMap::new(), factors: None, architecture };
        file.pairs.insert("general.architecture".into(), Value::String(architecture.into()));
        for (key, n) in [
            ("block_count", 7),
            ("embedding_length", 256),
            ("feed_forward_length", 512),
            ("context_length", 2048),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 64),
            ("attention.value_length", 64),
        ] {
            file.set(key, Value::Unsigned(n));
        }
        file.set("attention.layer_norm_rms_epsilon", Value::Float(f64::from(1e-6f32)));
        file.set("rope.freq_base", Value::Float(100_000.0));
        file.tensor("token_embd.weight", &[256, 1000], TensorType::Q8_0);
        file.tensor("output_norm.weight", &[256], TensorType::F32);
        for layer in 0..7 {
            file.layer(layer);
        }
        file
    }

    fn layer(&mut self, layer: usize) {
        let mut vectors = vec![("attn_norm.weight", 256), ("ffn_norm.weight", 256)];
        for (name, shape) in [
            ("attn_q.weight", [256, 256]),
            ("attn_k.weight", [256, 128]),
            ("attn_v.weight", [256, 128]),
            ("attn_output.weight", [256, 256]),
            ("ffn_gate.weight", [256, 512]),
            ("ffn_up.weight", [256, 512]),
            ("ffn_down.weight", [512, 256]),
        ] {
            self.tensor(&format!("blk.{layer}.{name}"), &shape, TensorType::Q4_K);
        }
        match self.architecture {
            "qwen2" => {
                vectors.extend([("attn_q.bias", 256), ("attn_k.bias", 128), ("attn_v.bias", 128)])
            }
            "qwen3" => vectors.extend([("attn_q_norm.weight", 64), ("attn_k_norm.weight", 64)]),
            "gemma3" => vectors.extend([
                ("attn_q_norm.weight", 64),
                ("attn_k_norm.weight", 64),
                ("post_attention_norm.weight", 256),
                ("post_ffw_norm.weight", 256),
            ]),
            _ => {}
        }
        for (name, len) in vectors {
            self.tensor(&format!("blk.{layer}.{name}"), &[len], TensorType::F32);
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        self.pairs.insert(format!("{}.{key}", self.architecture), value);
    }

    fn unset(&mut self, key: &str) {
        self.pairs.remove(&format!("{}.{key}", self.architecture));
    }

    fn tensor(&mut self, name: &str, shape: &[usize], kind: TensorType) {
        let info = TensorInfo {
            name: name.into(),
            shape: shape.into(),
            kind,
            part: 0,
            offset: 0,
            len: shape.iter().product::<usize>() / kind.block_len() * kind.block_bytes(),
        };
        self.tensors.insert(name.into(), info);
    }

    fn factors(&mut self, factors: &[f32]) {
        self.tensor("rope_freqs.weight", &[factors.len()], TensorType::F32);
        self.factors = Some(factors.iter().flat_map(|x| x.to_le_bytes()).collect());
    }

    fn read(&self) -> Result<Arch, ArchError> {
        let metadata = Metadata::from_pairs(self.pairs.clone());
        Arch::from_parts(&metadata, self.tensors.values(), self.factors.as_deref())
    }
}

/// What the refusal of a sound llama file says, once `spoil` has been at it.
fn refusal(spoil: impl FnOnce(&mut File)) -> String {
    refusal_of("llama", spoil)
}

fn refusal_of(architecture: &'static str, spoil: impl FnOnce(&mut File)) -> String {
    let mut file = File::new(architecture);
    spoil(&mut file);
    file.read().expect_err("the file is not sound").to_string()
}

#[test]
fn llama_is_the_plain_case() {
    let arch = File::new("llama").read().unwrap();
    assert_eq!(arch.layers.len(), 7);
    assert_eq!((arch.width, arch.vocab, arch.ff, arch.context_length), (256, 1000, 512, 2048));
    assert_eq!((arch.heads, arch.kv_heads, arch.head_dim, arch.value_dim), (4, 2, 64, 64));
    assert_eq!(arch.rope, Rope { dims: 64, pairing: Pairing::Adjacent, factors: None });
    assert_eq!((arch.activation, arch.embedding_scale), (Activation::Silu, None));
    assert!(!arch.qk_norm && !arch.qkv_bias && !arch.post_norms && arch.tied_embeddings);
    assert_eq!((arch.attention_scale, arch.norm_eps), (0.125, 1e-6));
    let layer = Layer { window: None, rope_base: 100_000.0, rope_scale: 1.0 };
    assert_eq!(arch.layers, [layer; 7]);
    assert_eq!(arch.output_tensor(), ModelTensor::Embedding);
}

#[test]
fn an_output_matrix_unties_the_embeddings() {
    let mut file = File::new("llama");
    file.tensor("output.weight", &[256, 1000], TensorType::Q6_K);
    let arch = file.read().unwrap();
    assert!(!arch.tied_embeddings);
    assert_eq!(arch.output_tensor(), ModelTensor::Output);
}

#[test]
fn qwen2_has_biases_and_qwen3_head_norms() {
    let qwen2 = File::new("qwen2").read().unwrap();
    assert!(qwen2.qkv_bias && !qwen2.qk_norm && qwen2.rope.pairing == Pairing::Halves);
    let qwen3 = File::new("qwen3").read().unwrap();
    assert!(!qwen3.qkv_bias && qwen3.qk_norm && qwen3.rope.pairing == Pairing::Halves);
}

#[test]
fn gemma3_looks_far_in_every_sixth_layer() {
    let mut file = File::new("gemma3");
    file.set("attention.sliding_window", Value::Unsigned(512));
    file.set("rope.scaling.type", Value::String("linear".into()));
    file.set("rope.scaling.factor", Value::Float(8.0));
    let arch = file.read().unwrap();
    let local = Layer { window: Some(512), rope_base: 10_000.0, rope_scale: 1.0 };
    let global = Layer { window: None, rope_base: 100_000.0, rope_scale: 8.0 };
    assert_eq!(arch.layers, [local, local, local, local, local, global, local]);
    assert_eq!(arch.embedding_scale, Some(16.0));
    assert_eq!(arch.activation, Activation::GeluTanh);
    assert!(arch.post_norms && arch.qk_norm);
}

#[test]
fn gemma3_takes_its_pattern_from_the_file() {
    let mut file = File::new("gemma3");
    file.set("attention.sliding_window", Value::Unsigned(512));
    file.set("attention.sliding_window_pattern", Value::Unsigned(2));
    file.set("rope.freq_base_swa", Value::Float(5000.0));
    let windows = |file: &File| -> Vec<bool> {
        file.read().unwrap().layers.iter().map(|layer| layer.window.is_some()).collect()
    };
    assert_eq!(windows(&file), [true, false, true, false, true, false, true]);
    assert_eq!(file.read().unwrap().layers[0].rope_base, 5000.0);
    let listed = [true, true, false, false, true, true, false];
    file.set("attention.sliding_window_pattern", Value::Bools(listed.into()));
    assert_eq!(windows(&file), listed);
    file.unset("attention.sliding_window");
    assert_eq!(windows(&file), [false; 7]);
}

#[test]
fn the_largest_gemma3_scales_by_width() {
    let mut file = File::new("gemma3");
    file.set("block_count", Value::Unsigned(62));
    file.set("attention.head_count", Value::Unsigned(8));
    file.set("attention.head_count_kv", Value::Unsigned(4));
    for layer in 0..62 {
        file.layer(layer);
        for (name, shape) in [
            ("attn_q.weight", [256, 512]),
            ("attn_k.weight", [256, 256]),
            ("attn_v.weight", [256, 256]),
            ("attn_output.weight", [512, 256]),
        ] {
            file.tensor(&format!("blk.{layer}.{name}"), &shape, TensorType::Q4_K);
        }
    }
    assert_eq!(file.read().unwrap().attention_scale, 1.0 / 32f32.sqrt());
}

#[test]
fn absent_lengths_follow_from_the_width() {
    let mut file = File::new("llama");
    for key in ["attention.key_length", "attention.value_length", "rope.freq_base"] {
        file.unset(key);
    }
    let arch = file.read().unwrap();
    assert_eq!((arch.head_dim, arch.rope.dims), (64, 64));
    assert_eq!(arch.layers[0].rope_base, 10_000.0);
}

#[test]
fn equal_numbers_for_each_layer_count_as_one() {
    let mut file = File::new("llama");
    file.set("feed_forward_length", Value::Integers(vec![512; 7]));
    assert_eq!(file.read().unwrap().ff, 512);
    let said = refusal(|file| {
        file.set("attention.head_count_kv", Value::Integers(vec![2, 2, 2, 1, 2, 2, 2]));
    });
    assert!(said.contains("head_count_kv") && said.contains("layer to layer"), "{said}");
}

#[test]
fn unknown_architectures_are_refused_by_name() {
    let said = refusal(|file| {
        file.pairs.insert("general.architecture".into(), Value::String("mamba".into()));
    });
    assert_eq!(
        said,
        "architecture \"mamba\" is not supported; supported are llama, qwen2, qwen3, gemma3"
    );
    let mut file = File::new("llama");
    file.pairs.remove("general.architecture");
    assert_eq!(file.read(), Err(ArchError::Unnamed));
}

#[test]
fn keys_that_change_the_computation_are_refused_by_name() {
    for (key, value) in [
        ("expert_count", Value::Unsigned(8)),
        ("rope.scaling.type", Value::String("yarn".into())),
        ("rope.scaling.type", Value::String("longrope".into())),
        ("rope.scaling.attn_factor", Value::Float(1.2)),
        ("rope.dimension_count", Value::Unsigned(32)),
        ("rope.dimension_sections", Value::Integers(vec![16, 24, 24])),
        ("attention.value_length", Value::Unsigned(128)),
        ("attention.logit_softcapping", Value::Float(50.0)),
        ("attn_logit_softcapping", Value::Float(50.0)),
        ("final_logit_softcapping", Value::Float(30.0)),
        ("attention.kv_lora_rank", Value::Unsigned(512)),
        ("attention.scale", Value::Float(0.0156)),
        ("attention.causal", Value::Bool(false)),
        ("attention.sliding_window", Value::Unsigned(4096)),
        ("attention.never_heard_of", Value::Unsigned(1)),
        ("logit_scale", Value::Float(0.0625)),
        ("embedding_length", Value::Unsigned(250)),
    ] {
        let said = refusal(|file| file.set(key, value.clone()));
        let full = format!("llama.{key}");
        assert!(said.starts_with(&full) && said.contains("not supported"), "{key}: {said}");
    }
}

#[test]
fn keys_at_their_neutral_value_are_accepted() {
    let mut file = File::new("llama");
    let plain = file.read().unwrap();
    for (key, value) in [
        ("expert_count", Value::Unsigned(0)),
        ("rope.scaling.type", Value::String("none".into())),
        ("rope.scaling.factor", Value::Float(4.0)),
        ("attention.causal", Value::Bool(true)),
        ("attention.sliding_window", Value::Unsigned(0)),
        ("final_logit_softcapping", Value::Float(0.0)),
        ("rope.scaling.original_context_length", Value::Unsigned(8192)),
        ("vocab_size", Value::Unsigned(1000)),
    ] {
        file.set(key, value);
    }
    assert_eq!(file.read(), Ok(plain));
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (key, value) in [
        ("block_count", Value::Unsigned(0)),
        ("block_count", Value::Unsigned(1025)),
        ("block_count", Value::Signed(-1)),
        ("block_count", Value::String("seven".into())),
        ("embedding_length", Value::Unsigned(u64::MAX)),
        ("feed_forward_length", Value::Unsigned(65_536)),
        ("context_length", Value::Unsigned(1 << 40)),
        ("attention.head_count", Value::Unsigned(0)),
        ("attention.head_count_kv", Value::Unsigned(3)),
        ("attention.head_count_kv", Value::Unsigned(8)),
        ("attention.key_length", Value::Unsigned(63)),
        ("attention.key_length", Value::Unsigned(1024)),
        ("attention.layer_norm_rms_epsilon", Value::Float(f64::NAN)),
        ("attention.layer_norm_rms_epsilon", Value::Float(0.0)),
        ("rope.freq_base", Value::Float(f64::INFINITY)),
        ("rope.freq_base", Value::Float(-1.0)),
        ("rope.scaling.factor", Value::Float(1e-9)),
    ] {
        let mut file = File::new("llama");
        file.set(key, value.clone());
        let said = file.read();
        let full = format!("llama.{key}");
        assert!(
            matches!(&said, Err(ArchError::OutOfRange { key, .. }) if *key == full),
            "{key} = {value:?}: {said:?}"
        );
    }
    for key in ["block_count", "embedding_length", "context_length", "attention.head_count"] {
        let said = refusal(|file| file.unset(key));
        assert!(said.contains(key), "{said}");
    }
}

#[test]
fn tensors_must_be_exactly_those_of_the_pass() {
    let said = refusal(|file| drop(file.tensors.remove("blk.3.ffn_up.weight")));
    assert!(said.contains("blk.3.ffn_up.weight is missing"), "{said}");
    let said = refusal(|file| drop(file.tensors.remove("token_embd.weight")));
    assert!(said.contains("token_embd.weight is missing"), "{said}");
    let said = refusal(|file| file.tensor("blk.3.ffn_up.weight", &[512, 256], TensorType::F16));
    assert!(said.contains("blk.3.ffn_up.weight has shape [512, 256]"), "{said}");
    let said = refusal(|file| file.tensor("blk.6.attn_norm.weight", &[256], TensorType::Q8_0));
    assert!(said.contains("blk.6.attn_norm.weight is stored as Q8_0"), "{said}");
    let extras = ["blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight", "blk.7.attn_norm.weight"];
    for extra in extras {
        let said = refusal(|file| file.tensor(extra, &[256], TensorType::F32));
        assert!(said.contains(&format!("{extra} is not part of the llama")), "{said}");
    }
    let said = refusal_of("qwen3", |file| file.factors(&[1.0; 32]));
    assert!(said.contains("rope_freqs.weight is not part of the qwen3"), "{said}");
}

#[test]
fn every_token_has_a_row() {
    let said = refusal(|file| {
        let tokens = Value::Strings(vec![String::new(); 1001]);
        file.pairs.insert("tokenizer.ggml.tokens".into(), tokens);
    });
    assert!(said.contains("1001") && said.contains("1000"), "{said}");
}

#[test]
fn rope_factors_are_read_and_bounded() {
    let mut file = File::new("llama");
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 8.0).collect();
    file.factors(&factors);
    assert_eq!(file.read().unwrap().rope.factors, Some(factors));
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-30] {
        let mut factors = [1.0; 32];
        factors[5] = bad;
        let said = refusal(|file| file.factors(&factors));
        assert!(said.contains("rope_freqs.weight[5]"), "{said}");
    }
    let said = refusal(|file| file.factors(&[1.0; 31]));
    assert!(said.contains("rope_freqs.weight has shape [31]"), "{said}");
}

/// Increments from an arbitrary-precision calculation (200 bits), rounded once.
#[test]
fn phase_increments_match_high_precision() {
    let mut file = File::new("llama");
    let plain = file.read().unwrap();
    check(
        &plain.phase_increments(0),
        &[
            683565276, 477012756, 332874091, 232289721, 162098872, 113117551, 78936887, 55084574,
            38439700, 26824399, 18718886, 13062611, 9115489, 6361067, 4438947, 3097633, 2161623,
            1508447, 1052640, 734565, 512602, 357709, 249620, 174193, 121557, 84826, 59194, 41308,
            28826, 20115, 14037, 9796,
        ],
    );
    // Factors below 1/2 pi turn more than once a position; whole turns are dropped.
    let mut factors = [1.5; 32];
    factors[..4].fill(0.0625);
    file.factors(&factors);
    file.set("rope.freq_base", Value::Float(500_000.0));
    check(
        &file.read().unwrap().phase_increments(6)[..8],
        &[2347109817, 2962868911, 521341794, 3196108673, 88372570, 58644147, 38916328, 25824924],
    );
}

#[test]
fn phase_increments_follow_dimensions_and_scale() {
    let mut arch = File::new("llama").read().unwrap();
    arch.rope.dims = 96;
    arch.layers[0].rope_base = 10_000.0;
    check(
        &arch.phase_increments(0)[..10],
        &[
            683565276, 564217639, 465707601, 384397003, 317282895, 261886629, 216162320, 178421284,
            147269674, 121557005,
        ],
    );
    arch.rope.dims = 256;
    arch.layers[1].rope_base = 1_000_000.0;
    check(&arch.phase_increments(1)[122..], &[1306, 1173, 1053, 945, 848, 761]);
    arch.layers[1].rope_scale = 8.0;
    check(&arch.phase_increments(1)[60..66], &[131580, 118118, 106033, 95184, 85446, 76703]);
}

fn check(found: &[u32], exact: &[u32]) {
    assert_eq!(found, exact);
}

mod hostile {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            (0..3000u64).prop_map(Value::Unsigned),
            any::<u64>().prop_map(Value::Unsigned),
            any::<i64>().prop_map(Value::Signed),
            any::<f64>().prop_map(Value::Float),
            (0.0..2e6f64).prop_map(Value::Float),
            any::<bool>().prop_map(Value::Bool),
            ".{0,60}".prop_map(Value::String),
            prop::collection::vec(any::<i64>(), 0..9).prop_map(Value::Integers),
            prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::Bools),
        ]
    }

    /// Keys that the description reads, so that values reach every branch.
    fn any_key() -> impl Strategy<Value = &'static str> {
        prop::sample::select(keys::READ.to_vec())
    }

    proptest! {
        /// Whatever the keys say: a refusal, or a description within its bounds whose phases
        /// can be computed.
        #[test]
        fn no_value_panics(
            family in prop::sample::select(Arch::known().collect::<Vec<_>>()),
            changes in prop::collection::vec((any_key(), any_value()), 0..4),
            factors in prop::option::of(prop::collection::vec(any::<f32>(), 0..40)),
        ) {
            let mut file = File::new(family);
            changes.into_iter().for_each(|(key, value)| file.set(key, value));
            if let Some(factors) = factors {
                file.factors(&factors);
            }
            if let Ok(arch) = file.read() {
                prop_assert!((1..=LAYERS_MAX).contains(&arch.layers.len()));
                prop_assert!(arch.width <= ROW_MAX && arch.ff <= ROW_MAX);
                prop_assert_eq!(arch.heads % arch.kv_heads, 0);
                for layer in 0..arch.layers.len() {
                    prop_assert_eq!(arch.phase_increments(layer).len(), arch.head_dim / 2);
                }
            }
        }
    }
}
