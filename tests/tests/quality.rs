//! What the integer class loses on the two real models, against a floating-point forward pass.
//!
//! The models are looked for in `CADENCIA_MODELS`, else in `models/` of the workspace; a model
//! that is not there is passed over with a line that says so. With `CADENCIA_SOAK=1` all 14
//! windows of the text are run, and the perplexity is held against llama.cpp's; else three.

use std::path::{Path, PathBuf};

use oracle::quality::{GATES, WINDOWS_FULL, measure, windows};

/// Windows where nobody asked for more.
const WINDOWS_FEW: usize = 3;
/// How far perplexity may be from llama.cpp's on the same file, as a share.
const PERPLEXITY_SHARE: f64 = 0.0075;

/// A real model, and what is known of it.
struct Case {
    file: &'static str,
    /// The text's ids in `tests/fixtures/text`, made with llama.cpp.
    ids: &'static str,
    /// The id of beginning, where the model wants one.
    bos: Option<u32>,
    /// llama.cpp's perplexity over all windows.
    perplexity: f64,
}

#[test]
fn smollm2_stays_within_the_gates() {
    check(Case {
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        ids: "gpl-3.smollm2.ids",
        bos: None,
        perplexity: 18.35,
    });
}

#[test]
fn gemma3_stays_within_the_gates() {
    check(Case {
        file: "gemma-3-270m-q4_k_m.gguf",
        ids: "gpl-3.gemma3.ids",
        bos: Some(2),
        perplexity: 13.88,
    });
}

fn check(case: Case) {
    let model = models().join(case.file);
    if !model.exists() {
        println!("passed over: {} is not there", model.display());
        return;
    }
    let soak = std::env::var_os("CADENCIA_SOAK").is_some_and(|value| value == "1");
    let count = if soak { WINDOWS_FULL } else { WINDOWS_FEW };
    let windows = windows(&ids(case.ids), case.bos, count);
    assert_eq!(windows.len(), count);
    let found = measure(&model, &windows, 2).unwrap();
    println!("{}: {found:?}", case.file);
    let mut violations = GATES.violations(&found);
    let away = (found.other_ppl / case.perplexity - 1.0).abs();
    if soak && away > PERPLEXITY_SHARE {
        violations.push(format!("perplexity {:.3} is {away:.4} from llama.cpp's", found.other_ppl));
    }
    assert!(violations.is_empty(), "{}: {violations:#?}", case.file);
}

fn models() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    std::env::var_os("CADENCIA_MODELS").map_or_else(beside, PathBuf::from)
}

fn ids(name: &str) -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/text").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}
