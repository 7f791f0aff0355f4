//! Conversations as Jinja2 renders them, set up as `transformers` sets it up, by templates built
//! like those of well-known models. `tests/fixtures/template/make.py` makes the answers.

use std::fs;
use std::path::{Path, PathBuf};

use compute::gguf::{Metadata, Value};
use compute::template::{ChatTemplate, CivilTime, Message, Origin, TemplateError};
use compute::tokenizer::Tokenizer;
use serde_json::Value as Json;

const NOW: CivilTime = CivilTime { year: 2026, month: 7, day: 4, hour: 9, minute: 5, second: 3 };

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/template")
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned(), ..Message::default() }
}

fn render(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(messages, None, false, NOW)
}

#[test]
fn conversations_are_rendered_as_transformers_renders_them() {
    let file = fs::read(fixtures().join("cases.json")).unwrap();
    let all: Json = serde_json::from_slice(&file).unwrap();
    let mut wrong = 0;
    for case in all["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let source = fs::read_to_string(fixtures().join(name)).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let conversation = &all["conversations"][case["conversation"].as_str().unwrap()];
        let messages: Vec<Message> = serde_json::from_value(conversation.clone()).unwrap();
        let tools = case["tools"].as_bool().unwrap().then_some(&all["tools"]);
        let mut more = case["more"].as_object().unwrap().clone();
        let asks = more.remove("add_generation_prompt").unwrap().as_bool().unwrap();
        let found = template.render_with(&messages, tools, asks, NOW, &more);
        let right = match (&found, case["text"].as_str(), case["refused"].as_str()) {
            (Ok(found), Some(text), _) => found == text,
            (Err(TemplateError::Refused { message }), _, Some(refused)) => message == refused,
            _ => false,
        };
        if !right {
            wrong += 1;
            println!("{case:#}\nfound {found:?}\n{}", found.as_deref().unwrap_or(""));
        }
    }
    assert_eq!(wrong, 0);
}
