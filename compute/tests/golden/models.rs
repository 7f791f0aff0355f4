//! Whole models: a digest of the residual after every half-block, and of the logits.

use std::path::{Path, PathBuf};

use compute::arch::Arch;
use compute::engine::{KernelChoice, LoadOptions, Model};
use compute::gguf::Gguf;
use compute::numeric::block::BlockVec;
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::record::Record;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// The small models, by name.
fn models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures().join("gguf")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    assert!(paths.len() >= 22, "{paths:?}");
    paths
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn tokens() -> Vec<u32> {
    let text = std::fs::read_to_string(fixtures().join("logits/tokens.txt")).unwrap();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn digest(row: &BlockVec) -> String {
    let mut digest = Digest::new();
    digest.row(row);
    digest.text()
}

#[test]
fn phases() {
    let mut record = Record::new("phases");
    // An architecture's files differ in weights alone.
    for path in models().iter().filter(|path| name(path).ends_with("Q8_0")) {
        let arch = Arch::from_gguf(&Gguf::open(path).unwrap()).unwrap();
        let mut known: Vec<Vec<u32>> = Vec::new();
        for (layer, of) in arch.layers.iter().enumerate() {
            let increments = arch.phase_increments(layer);
            if known.contains(&increments) {
                continue;
            }
            let about = json!({
                "model": name(path), "layer": layer, "base": of.rope_base, "scale": of.rope_scale,
                "dims": arch.rope.dims, "factors": arch.rope.factors,
            });
            record.case("phase_increments", about, increments.clone());
            known.push(increments);
        }
    }
    record.check();
}

#[test]
fn logits() {
    let mut record = Record::new("models");
    for path in models() {
        let options = LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None };
        let model = Model::load(&path, &options, &mut |_, _| {}).unwrap();
        record.case(&name(&path), json!({ "tokens": "tokens.txt" }), run(&model, &tokens()));
    }
    record.check();
}

fn run(model: &std::sync::Arc<Model>, tokens: &[u32]) -> Value {
    let mut residual = model.embed(tokens).unwrap();
    let embedded = digest(&residual);
    let halves: Vec<String> = (0..model.halves())
        .map(|half| {
            let mut stage = model.stage(half..half + 1, tokens.len());
            stage.feed(&mut residual).unwrap();
            digest(&residual)
        })
        .collect();
    let mut logits = Digest::new();
    let each =
        &mut |_: usize, row: &[f32]| row.iter().for_each(|logit| logits.add(logit.to_bits()));
    model.logits_of(residual.view(), each).unwrap();
    json!({ "embedded": embedded, "halves": halves, "logits": logits.text() })
}

/// The page alone must be enough to build the class from: a program that was written from it gives
/// the same answers.
#[test]
fn a_second_implementation_agrees() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/second.py");
    let run = std::process::Command::new("python3").arg(script).arg("llama-Q4_1").output();
    let run = match run {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIPPED: there is no python3");
            return;
        }
        run => run.unwrap(),
    };
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("llama-Q4_1: equal"), "{said}");
}
