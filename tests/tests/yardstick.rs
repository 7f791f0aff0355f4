//! How near the class is to exact arithmetic on every tiny model, and how near llama.cpp is.
//!
//! Both round activations, each in its own way, so their distance from each other says nothing
//! about whose rounding it is. The oracle rounds nothing: it measures each by itself.

use std::path::Path;

use cadencia_tests::{logits, tiny_models, token_ids};
use compute::engine::{KernelChoice, LoadOptions, Model};
use oracle::Oracle;

/// Least median over the positions of the cosine between our logits and the oracle's. Measured on
/// the tiny models: 0.99952 and more.
const COSINE_MEDIAN_MIN: f64 = 0.9994;

#[test]
fn every_tiny_model_is_near_exact_arithmetic() {
    let mut far = Vec::new();
    println!("{:<24} {:>9} {:>9}  median cosine to the oracle", "", "ours", "llama.cpp");
    for path in tiny_models() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let oracle = Oracle::load(&path).unwrap();
        let (exact, vocabulary) = (oracle.logits(&token_ids()).unwrap(), oracle.arch().vocab);
        let ours = median_cosine(&engine_logits(&path), &exact, vocabulary);
        let theirs = median_cosine(&logits(&name), &exact, vocabulary);
        let note = if theirs < COSINE_MEDIAN_MIN { "  llama.cpp itself is further" } else { "" };
        println!("{name:<24} {ours:>9.6} {theirs:>9.6}{note}");
        // A NaN is far too: it is not at least the bound.
        if ours.is_nan() || ours < COSINE_MEDIAN_MIN {
            far.push(format!("{name}: {ours:.6} (llama.cpp {theirs:.6})"));
        }
    }
    assert!(far.is_empty(), "less than {COSINE_MEDIAN_MIN} from the oracle: {far:#?}");
}

fn engine_logits(path: &Path) -> Vec<f32> {
    let options = LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None };
    let model = Model::load(path, &options, &mut |_, _| {}).unwrap();
    let tokens = token_ids();
    let mut rows = Vec::new();
    let mut each = |_: usize, logits: &[f32]| rows.extend_from_slice(logits);
    model.session(tokens.len()).logits_each(&tokens, &mut each).unwrap();
    rows
}

/// The median over positions; of two in the middle, the mean.
fn median_cosine(a: &[f32], b: &[f32], vocabulary: usize) -> f64 {
    assert_eq!((a.len(), a.len()), (b.len(), token_ids().len() * vocabulary));
    let rows = a.chunks_exact(vocabulary).zip(b.chunks_exact(vocabulary));
    let mut cosines: Vec<f64> = rows.map(|(a, b)| cosine(a, b)).collect();
    cosines.sort_by(f64::total_cmp);
    (cosines[(cosines.len() - 1) / 2] + cosines[cosines.len() / 2]) / 2.0
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
