//! Templates and ends: an API over a hive says what the terminal says, and stops where it should.

use std::path::Path;

use cadencia_tests::Real;
use compute::gguf::Gguf;
use compute::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::nest::{Api, Hive, smollm2};
use crate::process::run;

const TOKENS: u32 = 24;
const FIRST: &str = "What is a lighthouse?";
const SECOND: &str = "Who keeps it?";

fn chat(api: Api, messages: &[(&str, &str)], wish: Value) -> Value {
    let said = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    let messages: Vec<Value> = messages.iter().map(said).collect();
    let mut body = json!({"messages": messages, "temperature": 0, "max_tokens": TOKENS});
    body.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
    api.post("/v1/chat/completions", &body).json()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// What the terminal says of a model that is here, an API says of one that is spread.
fn says_the_same(model: &Path, api: Api) {
    let path = model.to_str().unwrap();
    let tokens = TOKENS.to_string();
    let args = ["chat", "--model", path, "--temp", "0", "-n", &tokens, "--ctx", "1024"];
    let terminal = run(&args, &format!("{FIRST}\n{SECOND}\n"));
    assert_eq!(terminal.code, 0, "{terminal:?}");
    let first = chat(api, &[("user", FIRST)], json!({}));
    let messages = [("user", FIRST), ("assistant", text(&first)), ("user", SECOND)];
    let second = chat(api, &messages, json!({}));
    let expected = format!("{}\n{}\n", text(&first), text(&second));
    // The terminal leaves a line free between answers.
    assert_eq!(terminal.out.replace("\n\n", "\n"), expected.replace("\n\n", "\n"));
}

fn stops_at_every_end(model: &Path, api: Api) {
    let file = Gguf::open(model).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap().unwrap();
    let ends = tokenizer.ends();
    assert!(ends.len() > 1, "{ends:?}");
    for end in ends {
        // It becomes the likeliest token by far.
        let bias = json!({end.to_string(): 100});
        let body = json!({"prompt": FIRST, "max_tokens": 5, "temperature": 0, "logit_bias": bias});
        let stopped = api.post("/v1/completions", &body).json();
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop", "token {end}: {stopped}");
        assert_eq!(stopped["choices"][0]["text"], "", "token {end}");
        assert_eq!(stopped["usage"]["completion_tokens"], 1, "token {end}");
    }
}

/// dllama#167
#[test]
fn an_api_over_a_hive_and_the_terminal_agree_and_every_end_stops() {
    let Some(model) = smollm2() else { return };
    let hive = Hive::start(&model, 2, &["--spares", "0"], &[]);
    says_the_same(&model, hive.api);
    stops_at_every_end(&model, hive.api);
}

/// Its file has no template, so there is no chat to compare.
#[test]
fn every_end_of_gemma_stops_an_answer_over_a_hive() {
    let Some(model) = Real::Gemma3.find() else { return };
    let hive = Hive::start(&model, 2, &["--spares", "0", "--own-mb", "320"], &[]);
    stops_at_every_end(&model, hive.api);
}
