//! Tokens as llama.cpp gives them, for every family and for real models.
//!
//! The files of ids are made by `tests/fixtures/tokenizer/make.py`, which says how to make more of
//! them; `CADENCIA_TOKENIZER_CASES` names a folder of those. Real models are looked for in
//! `CADENCIA_MODELS` or in `models` beside the workspace, and left out where they are not.

use std::fs;
use std::path::{Path, PathBuf};

use compute::gguf::{Gguf, Metadata, Value};
use compute::tokenizer::{Specials, Tokenizer, TokenizerError};
use proptest::prelude::*;
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

fn strings(list: &[&str]) -> Value {
    Value::Strings(list.iter().map(|text| (*text).to_owned()).collect())
}

fn load(pairs: &[(&str, Value)]) -> Result<Option<Tokenizer>, TokenizerError> {
    let pairs = pairs.iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value.clone()));
    Tokenizer::from_metadata(&Metadata::from_pairs(pairs))
}

fn fixture(name: &str, also: Json) -> Tokenizer {
    let vocabulary = json(&fixtures().join(name));
    Tokenizer::from_metadata(&metadata(&[&vocabulary, &also])).unwrap().unwrap()
}

fn bytes(pre: &str) -> Tokenizer {
    fixture("vocabulary-bytes.json", serde_json::json!({ "tokenizer.ggml.pre": pre }))
}

fn pieces() -> Tokenizer {
    fixture("vocabulary-pieces.json", serde_json::json!({}))
}

#[test]
fn a_model_may_have_no_tokeniser() {
    assert!(load(&[]).unwrap().is_none());
    assert!(load(&[("model", Value::String("none".to_owned()))]).unwrap().is_none());
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    let text = |text: &str| Value::String(text.to_owned());
    let gpt2 = |also: &[(&str, Value)]| {
        let mut pairs = vec![
            ("model", text("gpt2")),
            ("pre", text("gpt-2")),
            ("tokens", strings(&["a", "b", "ab"])),
            ("merges", strings(&["a b"])),
        ];
        pairs.extend_from_slice(also);
        load(&pairs).map(|_| ()).expect_err("refused").to_string()
    };
    let llama = |also: &[(&str, Value)]| {
        let mut pairs = vec![
            ("model", text("llama")),
            ("tokens", strings(&["<unk>", "<s>", "</s>", "a"])),
            ("scores", Value::Floats(vec![0.0; 4])),
        ];
        pairs.extend_from_slice(also);
        load(&pairs).map(|_| ()).expect_err("refused").to_string()
    };
    let long = "x".repeat(5_000);
    for (found, wanted) in [
        (gpt2(&[("model", text("bert"))]), "of kind \"bert\"; known are gpt2 and llama"),
        (gpt2(&[("model", Value::Bool(true))]), "no usable tokenizer.ggml.model"),
        (gpt2(&[("pre", text("new-thing"))]), "\"new-thing\"; known are bailingmoe, chatglm-bpe"),
        (gpt2(&[("tokens", Value::Bool(true))]), "no usable tokenizer.ggml.tokens"),
        (gpt2(&[("merges", Value::Bool(true))]), "no usable tokenizer.ggml.merges"),
        (gpt2(&[("token_type", text("x"))]), "no usable tokenizer.ggml.token_type"),
        (gpt2(&[("token_type", Value::Integers(vec![1]))]), "token_type has 1 entries for a"),
        (gpt2(&[("tokens", strings(&["a", "b", "a"]))]), "tokens 0 and 2 are both \"a\""),
        (gpt2(&[("tokens", strings(&[&long]))]), "token 0 has 5000 bytes, more than 4096"),
        (gpt2(&[("add_bos_token", Value::Bool(true))]), "no usable tokenizer.ggml.bos_token_id"),
        (gpt2(&[("add_eos_token", Value::Bool(true))]), "no usable tokenizer.ggml.eos_token_id"),
        (llama(&[("scores", Value::Floats(vec![0.0]))]), "scores has 1 entries for a vocabulary"),
        (llama(&[("scores", Value::Bool(true))]), "no usable tokenizer.ggml.scores"),
        (
            llama(&[("token_type", Value::Integers(vec![1, 1, 1, 6]))]),
            "token 3 is a byte, and its text \"a\" names none",
        ),
    ] {
        assert!(found.contains(wanted), "{found} / {wanted}");
    }
}

#[test]
fn special_tokens_count_where_they_are_asked_for() {
    let tokenizer = bytes("llama-bpe");
    let [begin, start, end] =
        ["<|begin|>", "<|im_start|>", "<|im_end|>"].map(|text| tokenizer.id_of(text).unwrap());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(begin), Some(end)));
    assert!(tokenizer.is_end(end) && !tokenizer.is_end(start) && tokenizer.adds_bos());
    let text = "<|im_start|>a<|im_end|>";
    let a = tokenizer.id_of("a").unwrap();
    assert_eq!(tokenizer.encode(text, Specials::ParseOnly), [start, a, end]);
    assert_eq!(tokenizer.encode(text, Specials::Parse), [begin, start, a, end]);
    assert!(!tokenizer.encode(text, Specials::Plain).contains(&start));
    // A template may or may not have written BOS; there is one.
    assert_eq!(tokenizer.encode_chat(text), [begin, start, a, end]);
    assert_eq!(tokenizer.encode_chat("<|begin|>a"), [begin, a]);
    // Shown as nothing, but user-defined ones as they are.
    assert_eq!(tokenizer.decode(&[start, a, end]), "a");
    let tool = tokenizer.id_of("<tool>").unwrap();
    assert_eq!(tokenizer.decode(&[tool, a]), "<tool>a");
    assert_eq!(tokenizer.token_text(start), "<|im_start|>");
    // Ids from nowhere are nothing.
    assert_eq!(tokenizer.decode(&[u32::MAX, a, 999_999]), "a");
    assert_eq!((tokenizer.token_text(u32::MAX).as_str(), tokenizer.id_of("")), ("", None));
}

#[test]
fn special_tokens_are_shown_where_they_are_asked_for() {
    let tokenizer = bytes("llama-bpe");
    let [start, end, tool, a] =
        ["<|im_start|>", "<|im_end|>", "<tool>", "a"].map(|text| tokenizer.id_of(text).unwrap());
    assert!(tokenizer.is_control(start) && tokenizer.is_control(end));
    assert!(![tool, a, u32::MAX].iter().any(|id| tokenizer.is_control(*id)));
    let mut decoder = tokenizer.continuation_showing(&[start, tool, u32::MAX]);
    let text: String =
        [start, a, end, tool, u32::MAX].iter().map(|id| decoder.push(*id).to_owned()).collect();
    assert_eq!(text + &decoder.finish(), "<|im_start|>a<tool>");
}

#[test]
fn every_token_is_found_by_its_text() {
    for tokenizer in [bytes("gpt-2"), pieces()] {
        for id in 0..tokenizer.vocabulary() as u32 {
            assert_eq!(tokenizer.id_of(&tokenizer.token_text(id)), Some(id));
        }
    }
}

#[test]
fn characters_appear_when_they_are_whole() {
    let tokenizer = bytes("gpt-2");
    let id = |byte: u8| {
        let all = 0..tokenizer.vocabulary() as u32;
        all.into_iter().find(|id| tokenizer.piece(*id) == [byte]).unwrap()
    };
    let mut decoder = tokenizer.decoder();
    let texts: Vec<String> = "é👋!".bytes().map(|byte| decoder.push(id(byte)).to_owned()).collect();
    assert_eq!(texts, ["", "é", "", "", "", "👋", "!"]);
    assert_eq!(decoder.finish(), "");

    // Broken off, one replacement; broken inside, one for each part that no character has.
    let mut decoder = tokenizer.decoder();
    assert_eq!(decoder.push(id(0xf0)), "");
    assert_eq!(decoder.push(id(0x9f)), "");
    assert_eq!(decoder.finish(), "\u{fffd}");
    let mut decoder = tokenizer.decoder();
    assert_eq!(decoder.push(id(0xf0)), "");
    assert_eq!(decoder.push(id(b'a')), "\u{fffd}a");
    assert_eq!(decoder.push(id(0xff)), "\u{fffd}");
}

#[test]
fn sentence_piece_takes_off_the_space_that_it_put_on() {
    let tokenizer = pieces();
    let ids = tokenizer.encode("the end", Specials::Parse);
    assert_eq!(tokenizer.decode(&ids), "the end");
    // An answer that goes on keeps it.
    let mut continued = String::new();
    let mut decoder = tokenizer.continuation();
    ids.iter().for_each(|id| continued.push_str(decoder.push(*id)));
    assert_eq!(continued, " the end");
    // A character that is no token becomes bytes, and comes back.
    let ids = tokenizer.encode("\u{e0fff}", Specials::Plain);
    assert!(ids.len() > 4);
    assert_eq!(tokenizer.decode(&ids), "\u{e0fff}");
}

/// Were anything here quadratic, it would take minutes.
#[test]
fn long_texts_without_a_break_are_no_slower() {
    for tokenizer in [bytes("default"), bytes("deepseek-llm"), bytes("gpt-4o"), pieces()] {
        for unit in
            ["a", " ", "\n", "1", "é", "一", "'", "A", " \u{3000}", "éA", "<|im_start|", "1 "]
        {
            let text = unit.repeat(150_000 / unit.len());
            let ids = tokenizer.encode(&text, Specials::ParseOnly);
            let decoded = tokenizer.decode(&ids);
            assert_eq!(decoded.len(), text.len());
        }
    }
}

proptest! {
    #[test]
    fn decoding_step_by_step_is_decoding_at_once(ids in prop::collection::vec(0u32..1_300, 0..60)) {
        for tokenizer in [bytes("gpt-2"), pieces()] {
            let mut decoder = tokenizer.decoder();
            let mut text: String = ids.iter().map(|id| decoder.push(*id).to_owned()).collect();
            text.push_str(&decoder.finish());
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.piece(*id)).copied().collect();
            let whole = String::from_utf8_lossy(&bytes);
            // One that SentencePiece put there, not one of a user-defined token.
            let first = ids.iter().find(|id| !tokenizer.piece(**id).is_empty());
            let put = tokenizer.adds_bos() && first.is_some_and(|id| tokenizer.token_text(*id) != "  ");
            let stripped = whole.strip_prefix(' ').filter(|_| put);
            prop_assert_eq!(&text, stripped.unwrap_or(&whole));
            prop_assert_eq!(tokenizer.decode(&ids), text);
        }
    }

    #[test]
    fn any_metadata_gives_a_tokeniser_or_a_refusal(
        model in prop_oneof![Just("gpt2"), Just("llama")],
        tokens in prop::collection::vec("[ a-c\u{2581}<>0xAé｜]{0,5}", 0..12),
        types in prop::collection::vec(-1i64..8, 0..14),
        scores in prop::collection::vec(any::<f32>(), 0..14),
        merges in prop::collection::vec("[a-cé ]{0,6}", 0..10),
        bos in any::<u64>(),
        text in "[ a-c\u{2581}<>0xAé｜]{0,30}",
    ) {
        let loaded = load(&[
            ("model", Value::String(model.to_owned())),
            ("tokens", Value::Strings(tokens)),
            ("token_type", Value::Integers(types)),
            ("scores", Value::Floats(scores)),
            ("merges", Value::Strings(merges)),
            ("bos_token_id", Value::Unsigned(bos % 16)),
        ]);
        if let Ok(Some(tokenizer)) = loaded {
            for specials in [Specials::Plain, Specials::Parse, Specials::ParseOnly] {
                let ids = tokenizer.encode(&text, specials);
                prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary()));
                tokenizer.decode(&ids);
            }
        }
    }
}
