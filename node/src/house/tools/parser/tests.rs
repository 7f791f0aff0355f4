use proptest::prelude::*;

use super::*;

const ALL: [ToolFormat; 5] = [
    ToolFormat::Hermes,
    ToolFormat::Llama,
    ToolFormat::MistralList,
    ToolFormat::MistralNamed,
    ToolFormat::Unknown,
];

fn tools() -> Vec<Tool> {
    let tools = serde_json::json!([{"function": {"name": "f"}}, {"function": {"name": "g"}}]);
    crate::house::tools::parse_tools(&tools).unwrap()
}

/// What comes out of `pieces`, with neighbouring texts joined.
fn run<'a>(format: ToolFormat, pieces: impl IntoIterator<Item = &'a str>) -> Vec<ToolPart> {
    let mut parser = ToolParser::new(format, &tools());
    let mut parts: Vec<ToolPart> =
        pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    assert_eq!(parser.finish(), [], "nothing is held at the end");
    let mut joined: Vec<ToolPart> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(ToolPart::Text(all)), ToolPart::Text(text)) => all.push_str(&text),
            (_, part) => joined.push(part),
        }
    }
    joined
}

fn text(text: &str) -> ToolPart {
    ToolPart::Text(text.to_owned())
}

fn call(name: &str, arguments: &str) -> ToolPart {
    ToolPart::Call { name: name.to_owned(), arguments: arguments.to_owned() }
}

#[test]
fn hermes_calls_are_found_among_text() {
    let answer = "<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n\
        {\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\", \"n\": 1.0}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"unheard_of\", \"arguments\": {}}\n</tool_call>\n";
    let found = [
        text("<think>\nhm\n</think>\n\nLet me see."),
        call("f", "{\"a\": \"}</tool_call>\", \"n\": 1.0}"),
        call("unheard_of", "{}"),
    ];
    assert_eq!(run(ToolFormat::Hermes, [answer]), found);
}

#[test]
fn hermes_models_are_understood_where_they_are_careless() {
    for (answer, found) in [
        ("<tool_call>{\"name\":\"f\"}", vec![call("f", "{}")]),
        (
            "<tool_call>{\"arguments\":{},\"name\":\"f\"} Well.",
            vec![call("f", "{}"), text(" Well.")],
        ),
        (
            "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}",
            vec![call("f", "{\"a\":1}")],
        ),
        ("<tool_call><tool_call>{\"name\":\"f\"}", vec![text("<tool_call>"), call("f", "{}")]),
        ("  <tool_call>{\"name\":\"f\"}", vec![call("f", "{}")]),
    ] {
        assert_eq!(run(ToolFormat::Hermes, [answer]), found, "{answer}");
    }
}

#[test]
fn what_is_no_call_is_text() {
    for (format, answer) in [
        (ToolFormat::Hermes, "a < b <tool_cal"),
        (ToolFormat::Hermes, "<tool_call>get_weather()</tool_call>"),
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1"),
        (ToolFormat::Hermes, "<tool_call>{\"name\": \"two words\", \"arguments\": {}}</tool_call>"),
        (ToolFormat::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call> so"),
        (ToolFormat::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}</tool_call>"),
        (ToolFormat::Hermes, "{\"name\": \"f\", \"arguments\": {}}"),
        (ToolFormat::Llama, "{\"name\": \"Ada\", \"parameters\": {}}"),
        (ToolFormat::Llama, "{\"name\": \"f\"}"),
        (ToolFormat::Llama, "As {\"name\": \"f\", \"parameters\": {}}"),
        (ToolFormat::Llama, "<|python_tag|>search.call(query=\"x\")"),
        (ToolFormat::MistralList, "[TOOL_CALLS] []"),
        (ToolFormat::MistralNamed, "[TOOL_CALLS]f of x"),
        (ToolFormat::MistralNamed, "[TOOL_CALLS]f[ARGS]{\"a\": 1"),
        (ToolFormat::Unknown, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
    ] {
        assert_eq!(run(format, [answer]), [text(answer)], "{format:?} {answer}");
    }
}

#[test]
fn llama_calls_are_the_whole_answer() {
    let one = "{\"name\": \"f\", \"parameters\": {\"a\": {\"b\": [1]}}}";
    let found = call("f", "{\"a\": {\"b\": [1]}}");
    for answer in [one.to_owned(), format!("\n\n<|python_tag|> {one}"), format!("{one}\n")] {
        assert_eq!(
            run(ToolFormat::Llama, [answer.as_str()]),
            std::slice::from_ref(&found),
            "{answer}"
        );
    }
    let two = format!("{one}; {{\"name\": \"g\", \"parameters\": {{}}}}");
    assert_eq!(run(ToolFormat::Llama, [two.as_str()]), [found, call("g", "{}")]);
}

#[test]
fn mistral_calls_are_a_list_or_named() {
    let list = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, \
        {\"name\": \"g\", \"arguments\": {}}]";
    let named = "Well.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}";
    let found = [call("f", "{\"a\": 1}"), call("g", "{}")];
    for format in [ToolFormat::MistralList, ToolFormat::MistralNamed] {
        assert_eq!(run(format, [list]), found);
        assert_eq!(run(format, [named])[1..], found);
    }
}

#[test]
fn text_is_not_held_longer_than_it_must_be() {
    let mut parser = ToolParser::new(ToolFormat::Hermes, &[]);
    assert_eq!(parser.push("a b <"), [text("a b")]);
    assert_eq!(parser.push("b"), [text(" <b")]);
    assert_eq!(parser.push(&" ".repeat(200)), [text(&" ".repeat(200 - SPACE_BYTES_MAX))]);
    let mut parser = ToolParser::new(ToolFormat::Unknown, &[]);
    assert_eq!(parser.push("<tool_call>"), [text("<tool_call>")]);
}

#[test]
fn what_may_be_held_is_bounded() {
    let mut parser = ToolParser::new(ToolFormat::Hermes, &[]);
    let long = format!("<tool_call>{{\"a\": \"{}", "x".repeat(CALL_BYTES_MAX));
    let shown: usize = parser
        .push(&long)
        .iter()
        .map(|part| match part {
            ToolPart::Text(text) => text.len(),
            ToolPart::Call { .. } => 0,
        })
        .sum();
    assert_eq!(shown, long.len());
    let many = "<tool_call>{\"name\": \"f\"}</tool_call>".repeat(CALLS_MAX + 1);
    let parts = run(ToolFormat::Hermes, [many.as_str()]);
    assert_eq!(parts.len(), CALLS_MAX + 1);
    assert_eq!(parts.last(), Some(&text("<tool_call>{\"name\": \"f\"}</tool_call>")));
}

/// Answers made of what matters to some format, whole and broken.
fn answers() -> impl Strategy<Value = String> {
    let bit = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}",
        "{\"name\": \"g\", \"parameters\": {}}",
        "[{\"name\": \"f\", \"arguments\": {}}]",
        "{\"name\": \"f\", ",
        "{}",
        "f",
        "é",
        "\"",
        "}",
        "]",
        ";",
        " ",
        "\n",
        "so",
    ]);
    prop::collection::vec(bit, 0..14).prop_map(|bits| bits.concat())
}

proptest! {
    #[test]
    fn pieces_never_change_the_result(
        answer in answers(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let letters: Vec<usize> =
            answer.char_indices().map(|(at, _)| at).chain([answer.len()]).collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| letters[cut.index(letters.len())]).collect();
        ends.push(answer.len());
        ends.sort_unstable();
        let mut start = 0;
        let mut pieces = Vec::new();
        for end in ends {
            pieces.push(&answer[start..end]);
            start = end;
        }
        for format in ALL {
            prop_assert_eq!(run(format, pieces.iter().copied()), run(format, [answer.as_str()]));
        }
    }

    #[test]
    fn nothing_is_lost(answer in answers()) {
        for format in ALL {
            let parts = run(format, [answer.as_str()]);
            let mut rest = answer.as_str();
            for part in &parts {
                let text = match part {
                    ToolPart::Text(text) => text,
                    ToolPart::Call { name, .. } => name,
                };
                let at = rest.find(text.as_str());
                prop_assert!(at.is_some(), "{:?}: {:?} is not in {:?}", format, text, rest);
                rest = &rest[at.unwrap_or(0) + text.len()..];
            }
            if !parts.iter().any(|part| matches!(part, ToolPart::Call { .. })) {
                prop_assert_eq!(&parts.iter().map(said).collect::<String>(), &answer);
            }
            // This letter is in no mark and in no call.
            let letters = |text: &str| text.matches('é').count();
            let shown: usize = parts.iter().map(|part| letters(said(part))).sum();
            prop_assert_eq!(shown, letters(&answer), "{:?}", format);
        }
    }
}

fn said(part: &ToolPart) -> &str {
    match part {
        ToolPart::Text(text) => text,
        ToolPart::Call { .. } => "",
    }
}
