//! Tokens as llama.cpp gives them, for every family and for real models.
//!
//! The files of ids are made by `tests/fixtures/tokenizer/make.py`, which says how to make more of
//! them; `CADENCIA_TOKENIZER_CASES` names a folder of those. Real models are looked for in
//! `CADENCIA_MODELS` or in `models` beside the workspace, and left out where they are not.

use std::fs;
use std::path::{Path, PathBuf};

use compute::gguf::{Gguf, Metadata, Value};
use compute::tokenizer::{Specials, Tokenizer};
use serde_json::Value as Json;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizer")
}

fn json(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn metadata(pairs: &[&Json]) -> Metadata {
    let pairs = pairs.iter().flat_map(|pairs| pairs.as_object().unwrap());
    Metadata::from_pairs(pairs.map(|(key, value)| (key.clone(), metadata_value(value))))
}

fn metadata_value(value: &Json) -> Value {
    match value {
        Json::String(text) => Value::String(text.clone()),
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => Value::Unsigned(number.as_u64().unwrap()),
        Json::Array(list) if list[0].is_string() => {
            Value::Strings(list.iter().map(|item| item.as_str().unwrap().to_owned()).collect())
        }
        Json::Array(list) if list[0].is_f64() => {
            Value::Floats(list.iter().map(|item| item.as_f64().unwrap() as f32).collect())
        }
        Json::Array(list) => {
            Value::Integers(list.iter().map(|item| item.as_i64().unwrap()).collect())
        }
        other => panic!("no metadata: {other}"),
    }
}

fn ids(value: &Json) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A real model's tokeniser, or a line that says why there is none.
fn real(name: &str) -> Option<Tokenizer> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = std::env::var_os("CADENCIA_MODELS").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        println!("skipped: no {name} in {}", folder.display());
        return None;
    }
    let gguf = Gguf::open(&path).unwrap();
    Some(Tokenizer::from_metadata(gguf.metadata()).unwrap().unwrap())
}

/// A tokeniser and what it may lose.
struct Subject<'a> {
    tokenizer: Tokenizer,
    name: &'a str,
    /// Which bytes have a token: SmolLM2 lacks some that no text it saw had.
    bytes: Vec<u8>,
    /// Whether each stretch between user-defined tokens begins with a space of its own.
    prefixes: bool,
}

impl<'a> Subject<'a> {
    fn new(tokenizer: Tokenizer, name: &'a str) -> Self {
        let pieces = (0..tokenizer.vocabulary() as u32).map(|id| tokenizer.piece(id));
        let bytes = pieces.filter(|piece| piece.len() == 1).map(|piece| piece[0]).collect();
        Self { bytes, name, prefixes: name == "ids-pieces.json", tokenizer }
    }

    #[track_caller]
    fn check(&self, text: &str, plain: &[u32], special: &[u32]) {
        let Self { tokenizer, name, .. } = self;
        assert_eq!(tokenizer.encode(text, Specials::Plain), plain, "{name}: plain {text:?}");
        let parsed = tokenizer.encode(text, Specials::Parse);
        assert_eq!(parsed, special, "{name}: special {text:?}");
        // What is parsed and not added to is the same but for the ends.
        let only = tokenizer.encode(text, Specials::ParseOnly);
        let begins = usize::from(tokenizer.adds_bos());
        assert_eq!(only, parsed[begins..], "{name}: only parsed {text:?}");

        let defined = |id: &u32| matches!(&*tokenizer.token_text(*id), "  " | "<tool>");
        let loses = text.bytes().any(|byte| !self.bytes.contains(&byte))
            || (self.prefixes && plain.iter().any(defined));
        if !loses {
            // To SentencePiece a space and its mark are one.
            let same = |text: &str| text.replace('▁', " ");
            let decoded = tokenizer.decode(plain);
            assert_eq!(same(&decoded), same(text), "{name}: decoded {text:?}");
        }
    }
}

/// Every file of ids in a folder; how many there are.
fn check_folder(folder: &Path) -> usize {
    let texts = json(&folder.join("texts.json"));
    let texts: Vec<&str> = texts.as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.retain(|name| name.to_str().unwrap().starts_with("ids-"));
    names.sort();
    for name in names.iter().map(|name| name.to_str().unwrap()) {
        let case = json(&folder.join(name));
        let tokenizer = match case["model"].as_str() {
            Some(model) => real(model),
            None => {
                let vocabulary = json(&folder.join(case["vocabulary"].as_str().unwrap()));
                Tokenizer::from_metadata(&metadata(&[&vocabulary, &case["with"]])).unwrap()
            }
        };
        let Some(tokenizer) = tokenizer else { continue };
        let all = 0..tokenizer.vocabulary() as u32;
        let ends: Vec<u32> = all.filter(|id| tokenizer.is_end(*id)).collect();
        let subject = Subject::new(tokenizer, name);
        assert_eq!(ends, ids(&case["ends"]), "{name}: what ends an answer");
        for (index, text) in texts.iter().enumerate() {
            let (plain, special) = (ids(&case["plain"][index]), ids(&case["special"][index]));
            subject.check(text, &plain, &special);
        }
    }
    names.len()
}

#[test]
fn every_family_gives_the_ids_of_llama_cpp() {
    assert!(check_folder(&fixtures()) >= 20);
    if let Some(folder) = std::env::var_os("CADENCIA_TOKENIZER_CASES") {
        println!("{} files more", check_folder(Path::new(&folder)));
    }
}

#[test]
fn real_models_give_the_ids_of_llama_cpp() {
    for (file, cases) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json"),
        ("gemma-3-270m-q4_k_m.gguf", "gemma3.json"),
    ] {
        let Some(tokenizer) = real(file) else { continue };
        let subject = Subject::new(tokenizer, file);
        for case in json(&fixtures().join(cases)).as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            subject.check(text, &ids(&case["plain"]), &ids(&case["special"]));
        }
    }
}
