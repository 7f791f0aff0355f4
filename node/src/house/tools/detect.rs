//! Tells from a chat template how its model writes calls.

use super::ToolFormat;
use super::format::{HERMES_CLOSE, HERMES_OPEN, LLAMA_OPEN, MISTRAL_ARGUMENTS, MISTRAL_OPEN};

impl ToolFormat {
    /// From the source of a chat template. `None` if it never looks at `tools`: a model that is
    /// not told of its tools cannot call them.
    pub fn of_template(source: &str) -> Option<Self> {
        if !looks_at_tools(source) {
            return None;
        }
        let has = |text: &str| source.contains(text);
        // Others put XML or lists between the same tags.
        let hermes = has(HERMES_OPEN) && has(HERMES_CLOSE) && has("arguments");
        let other = has("<function=") || has("<arg_key>") || has("<tool_call>[");
        let llama = has("\"parameters\": ") && has("<|start_header_id|>");
        Some(match () {
            () if has(MISTRAL_OPEN) && has(MISTRAL_ARGUMENTS) => ToolFormat::MistralNamed,
            () if has(MISTRAL_OPEN) => ToolFormat::MistralList,
            () if hermes && !other => ToolFormat::Hermes,
            () if (has(LLAMA_OPEN) || llama) && !hermes => ToolFormat::Llama,
            () => ToolFormat::Unknown,
        })
    }
}

/// Whether the variable `tools` occurs in a tag of a Jinja template, outside of its strings.
fn looks_at_tools(source: &str) -> bool {
    let mut rest = source;
    while let Some(start) = ["{%", "{{", "{#"].iter().filter_map(|tag| rest.find(tag)).min() {
        let (close, code) = match &rest[start..start + 2] {
            "{%" => ("%}", true),
            "{{" => ("}}", true),
            _ => ("#}", false),
        };
        let inside = &rest[start + 2..];
        let end = inside.find(close).unwrap_or(inside.len());
        if code && has_variable(&inside[..end]) {
            return true;
        }
        rest = inside.get(end + close.len()..).unwrap_or("");
    }
    false
}

fn has_variable(code: &str) -> bool {
    let mut quote = None;
    let mut word = String::new();
    let mut before = ' ';
    for letter in code.chars().chain([' ']) {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter.is_alphanumeric() || letter == '_' => {
                word.push(letter);
                continue;
            }
            None => {
                if word == "tools" && before != '.' {
                    return true;
                }
                if !letter.is_whitespace() || !word.is_empty() {
                    before = letter;
                }
                if matches!(letter, '\'' | '"') {
                    quote = Some(letter);
                }
            }
        }
        word.clear();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/template/");
        std::fs::read_to_string(format!("{folder}{name}.jinja")).unwrap()
    }

    #[test]
    fn templates_tell_how_their_models_call() {
        for (name, format) in [
            ("chatml-tools", Some(ToolFormat::Hermes)),
            ("headers", Some(ToolFormat::Llama)),
            ("instructions", Some(ToolFormat::MistralList)),
            ("schema-macros", Some(ToolFormat::Unknown)),
            ("bars", None),
            ("turns", None),
        ] {
            assert_eq!(ToolFormat::of_template(&fixture(name)), format, "{name}");
        }
        let named = "{% if tools %}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}{% endif %}";
        assert_eq!(ToolFormat::of_template(named), Some(ToolFormat::MistralNamed));
        let xml = "{% if tools %}<tool_call>\n<function=f>arguments</tool_call>{% endif %}";
        assert_eq!(ToolFormat::of_template(xml), Some(ToolFormat::Unknown));
    }

    #[test]
    fn only_the_variable_counts() {
        for with in
            ["{% if tools %}", "{{tools|tojson}}", "{{- 'a' if not tools }}", "{% for t in tools"]
        {
            assert!(looks_at_tools(with), "{with}");
        }
        for without in [
            "tools",
            "{# tools #}",
            "{{ 'my tools' }}",
            "{{ message.tools }}",
            "{{ custom_tools }}",
            "{{ \"tools",
            "{% if tool %}",
        ] {
            assert!(!looks_at_tools(without), "{without}");
        }
    }
}
