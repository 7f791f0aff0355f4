//! Every dense architecture and every weight type, against llama.cpp's logits from the same file.
//!
//! Equality is not expected: llama.cpp rounds activations in its own way. A mistake in a weight
//! type, a norm, the rotation or the attention shows as a cosine far below the bound.

use std::path::Path;

use cadencia_tests::{fixture, logits, tiny_models, token_ids};
use compute::engine::{KernelChoice, LoadOptions, Model};

/// Median over the positions of the cosine between our logits and llama.cpp's.
const COSINE_MEDIAN_MIN: f64 = 0.999;

#[test]
fn llama_agrees_in_every_weight_type() {
    check(&[
        "llama-F16",
        "llama-BF16",
        "llama-Q8_0",
        "llama-Q4_0",
        "llama-Q4_1",
        "llama-Q5_0",
        "llama-Q5_1",
        "llama-Q2_K",
        "llama-Q3_K_M",
        "llama-Q4_K_M",
        "llama-Q5_K_M",
        "llama-Q6_K",
        "llama-IQ4_NL",
        "llama-IQ4_XS",
    ]);
}

#[test]
fn llama_3_agrees_with_its_rope_factors() {
    check(&["llama3-ropefreqs-Q8_0", "llama3-ropefreqs-Q4_K_M"]);
}

#[test]
fn qwen2_agrees_with_its_biases() {
    check(&["qwen2-Q8_0", "qwen2-Q4_K_M"]);
}

#[test]
fn qwen3_agrees_with_its_head_norms() {
    check(&["qwen3-Q8_0", "qwen3-Q4_K_M"]);
}

#[test]
fn gemma3_agrees_with_its_windows_and_post_norms() {
    check(&["gemma3-Q8_0", "gemma3-Q4_K_M"]);
}

#[test]
fn no_dense_fixture_is_left_out() {
    let source = include_str!("fixtures.rs");
    for path in tiny_models() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(source.contains(&format!("\"{name}\"")), "no test names {name}");
    }
}

/// All of `names` are looked at before any failure is told, so that one run shows the pattern.
fn check(names: &[&str]) {
    let short: Vec<String> = names.iter().filter_map(|name| short_of_the_bound(name)).collect();
    assert!(short.is_empty(), "below {COSINE_MEDIAN_MIN}: {short:?}");
}

fn short_of_the_bound(name: &str) -> Option<String> {
    let cosines = cosines(name);
    let mut sorted = cosines.clone();
    sorted.sort_by(f64::total_cmp);
    let (least, median) = (sorted[0], sorted[sorted.len() / 2]);
    println!("{name}: median cosine {median:.6}, least {least:.6}");
    // A NaN fails too: it is not at least the bound.
    let holds = median >= COSINE_MEDIAN_MIN;
    (!holds).then(|| format!("{name} {median:.6}"))
}

/// The cosine at each position.
fn cosines(name: &str) -> Vec<f64> {
    let theirs = logits(name);
    let tokens = token_ids();
    let model = load(&fixture(&format!("gguf/{name}.gguf")));
    let vocabulary = model.summary().vocabulary;
    assert_eq!(theirs.len(), tokens.len() * vocabulary, "{name}: shape of the right answers");
    let mut cosines = Vec::new();
    let mut each = |index: usize, ours: &[f32]| {
        assert_eq!(index, cosines.len(), "{name}: positions come in order");
        assert_eq!(ours.len(), vocabulary, "{name}: one logit for each token");
        cosines.push(cosine(ours, &theirs[index * vocabulary..][..vocabulary]));
    };
    model.session(tokens.len()).logits_each(&tokens, &mut each).unwrap();
    assert_eq!(cosines.len(), tokens.len(), "{name}: every position");
    cosines
}

fn load(path: &Path) -> std::sync::Arc<Model> {
    let options = LoadOptions { threads: 1, kernels: KernelChoice::Auto };
    Model::load(path, &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}
