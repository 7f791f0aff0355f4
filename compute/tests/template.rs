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

#[test]
fn a_refusal_is_in_the_templates_own_words() {
    let source = "{{ raise_exception('No ' ~ messages[0].role ~ ' here, please') }}";
    let error = render(source, &[message("system", "")]).unwrap_err();
    assert_eq!(error, TemplateError::Refused { message: "No system here, please".to_owned() });
    assert!(error.to_string().ends_with("refuses these messages: No system here, please"));
    // From inside a macro too.
    let source = "{% macro no() %}{{ raise_exception('x') }}{% endmacro %}{{ no() }}";
    assert_eq!(render(source, &[]), Err(TemplateError::Refused { message: "x".to_owned() }));
}

#[test]
fn what_is_wrong_in_a_template_is_told_with_its_line() {
    for (source, line) in [("a\n{% if %}", 2), ("{{ 'open }}", 1), ("\n\n{% endfor %}", 3)] {
        match ChatTemplate::new(source, "", "") {
            Err(TemplateError::Syntax { line: found, .. }) => assert_eq!(found, line, "{source}"),
            other => panic!("{source}: {other:?}"),
        }
    }
    match render("ok\n{{ messages[0].role.nothing.more }}", &[message("user", "")]) {
        Err(TemplateError::Failed { line: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    let long = "x".repeat(300_000);
    assert_eq!(
        ChatTemplate::new(&long, "", "").err(),
        Some(TemplateError::TooLong { bytes: 300_000 })
    );
    // Nothing outside the template can be read.
    for source in ["{% include '/etc/passwd' %}", "{% import 'x' as x %}", "{% extends 'x' %}"] {
        assert!(matches!(ChatTemplate::new(source, "", ""), Err(TemplateError::Syntax { .. })));
    }
}

const DOUBLED: &str = "{% set ns = namespace(x=['a'], y=['a']) %}{% for i in range(60) %}\
    {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";

/// Templates that would take for ever or fill the memory.
#[test]
fn hostile_templates_are_stopped() {
    let nested = "{% for a in [[a, a]] %}".repeat(60) + "{{ a }}" + &"{% endfor %}".repeat(60);
    let endless: &[&str] = &[
        "{% set ns = namespace(x='ab') %}{% for i in range(200) %}\
         {% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(200) %}\
         {% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(200) %}\
         {% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(90000) %}{{ messages[0].content * 100 }}{% endfor %}",
        "{% for a in range(90000) %}{{ [[[[[[[[1]]]]]]]] | tojson(indent=16) }}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}\
         {% endfor %}",
        "{% macro f(x, n) %}{% if n %}{{ f([x, x], n - 1) }}{% else %}{{ x }}{% endif %}\
         {% endmacro %}{{ f([1], 60) }}",
        &nested,
        "{{ ('a' * 100000).replace('a', messages[0].content) }}",
        "{{ (messages[0].content * 999).join(range(90000)) }}",
        "{{ 'a' * 1000000000000 }}",
        "{{ '%1000000000d' | format(1) }}",
    ];
    let user = [message("user", &"x".repeat(1_000))];
    for source in endless {
        assert_eq!(render(source, &user), Err(TemplateError::TooMuch), "{source}");
    }
    for end in ["{{ ns.x }}", "{% if ns.x == ns.y %}{% endif %}", "{{ ns.x ~ '' }}"] {
        assert_eq!(render(&format!("{DOUBLED}{end}"), &user), Err(TemplateError::TooMuch), "{end}");
    }
    for source in [
        "{{ range(1000000000000) | list }}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
    ] {
        let error = render(source, &user).expect_err(source);
        assert!(matches!(error, TemplateError::Failed { .. }), "{source}: {error}");
    }
    for source in ["{{ [1] * 100000000 }}", "{% with a = 1 %}{% endwith %}"] {
        let error = ChatTemplate::new(source, "", "").expect_err(source);
        assert!(matches!(error, TemplateError::Syntax { line: 1, .. }), "{source}: {error}");
    }
}

#[test]
fn deep_expressions_leave_the_process_alone() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("-", ""),
        ("not ", ""),
        ("", "+1"),
        ("", "~1"),
        ("", "|abs"),
        ("", ".a"),
    ] {
        for times in [400, 10_000] {
            let source = format!("{{{{ {}1{} }}}}", open.repeat(times), close.repeat(times));
            // Whatever comes of it.
            let _ = render(&source, &[]);
        }
    }
    let source = "{% if 1 %}".repeat(6_000) + &"{% endif %}".repeat(6_000);
    assert!(matches!(render(&source, &[]), Err(TemplateError::Syntax { .. })));
}

#[test]
fn ordinary_conversations_have_room() {
    let source = fs::read_to_string(fixtures().join("chatml-tools.jinja")).unwrap();
    let long = "A sentence that is said often. ".repeat(30_000);
    let roles = ["user", "assistant"];
    let mut messages: Vec<Message> =
        (0..2_001).map(|at| message(roles[at % 2], "<think>\nhm\n</think>\n\nWell.")).collect();
    messages.push(message("user", &long));
    let text = render(&source, &messages).unwrap();
    assert!(text.len() > long.len() + 2_000 * 30);
}

#[test]
fn a_model_without_a_template_gets_chatml_if_it_has_the_tokens() {
    let vocabulary = |texts: &[&str]| {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        let pairs = [
            ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
            ("tokenizer.ggml.pre", Value::String("gpt-2".to_owned())),
            ("tokenizer.ggml.tokens", Value::Strings(texts)),
            ("tokenizer.ggml.merges", Value::Strings(Vec::new())),
            ("tokenizer.ggml.eos_token_id", Value::Unsigned(1)),
        ];
        let metadata = Metadata::from_pairs(pairs.map(|(key, value)| (key.to_owned(), value)));
        Tokenizer::from_metadata(&metadata).unwrap().unwrap()
    };
    let chatml = vocabulary(&["a", "<|im_end|>", "<|im_start|>"]);
    let template = ChatTemplate::for_model(None, &chatml).unwrap();
    assert_eq!(template.origin(), Origin::ChatMl);
    let messages = [message("system", "Be kind."), message("user", "Hi")];
    let text = template.render(&messages, None, true, NOW).unwrap();
    let expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(text, expected);

    let given = ChatTemplate::for_model(Some("{{ eos_token }}{{ bos_token }}"), &chatml).unwrap();
    assert_eq!(given.origin(), Origin::Given);
    assert_eq!(given.render(&[], None, false, NOW).unwrap(), "<|im_end|>");

    let bare = ChatTemplate::for_model(None, &vocabulary(&["a", "b"])).unwrap_err();
    assert_eq!(bare, TemplateError::Absent);
}
