//! Reads what llama.cpp answered. A missing or malformed fixture is our own mistake: it panics.

use std::path::PathBuf;

use serde::Deserialize;

/// One text and its token ids.
#[derive(Debug, Deserialize)]
pub struct Tokenised {
    /// The text.
    pub text: String,
    /// Its ids with no special token parsed or added.
    pub plain: Vec<u32>,
    /// Its ids with special tokens parsed, and BOS where the model asks for it.
    pub special: Vec<u32>,
}

/// A greedy continuation.
#[derive(Debug, Deserialize)]
pub struct Greedy {
    /// What was to be continued; special tokens in it count.
    pub prompt: String,
    /// Its ids.
    pub prompt_tokens: Vec<u32>,
    /// The likeliest token at each step.
    pub tokens: Vec<u32>,
    /// How far the best logit stood above the second at each step.
    pub margins: Vec<f32>,
}

impl Greedy {
    /// The continuations in fixture `name`.
    pub fn read(name: &str) -> Vec<Greedy> {
        json(&format!("greedy/{name}.json"))
    }
}

/// Where fixture `name` is, such as `gguf/llama-Q4_0.gguf`.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Every tiny model: each architecture, and each weight type.
pub fn tiny_models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture("gguf")).expect("the fixtures' folder");
    let paths = entries.map(|entry| entry.expect("its entries").path());
    let mut models: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    models.sort();
    assert!(!models.is_empty(), "there are tiny models");
    models
}

/// The texts in tokeniser fixture `name`.
pub fn tokenised(name: &str) -> Vec<Tokenised> {
    json(&format!("tokenizer/{name}.json"))
}

/// The ids that all logits fixtures were computed from.
pub fn token_ids() -> Vec<u32> {
    let text = String::from_utf8(bytes("logits/tokens.txt")).expect("ids are text");
    text.split_whitespace().map(|id| id.parse().expect("an id is a number")).collect()
}

/// llama.cpp's logits for model `name`: one row of the vocabulary's size for each of `token_ids`.
pub fn logits(name: &str) -> Vec<f32> {
    let bytes = bytes(&format!("logits/{name}.f32"));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|e| panic!("fixture {name}: {e}"))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap_or_else(|e| panic!("fixture {name}: {e}"))
}
