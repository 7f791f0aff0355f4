//! The grammar of an answer that must be a call.

use std::fmt::Write;

use super::format::{HERMES_CLOSE, HERMES_OPEN, MISTRAL_ARGUMENTS, MISTRAL_OPEN};
use super::request::enforceable;
use super::{Tool, ToolChoice, ToolFormat, ToolsError};

/// Most calls in an answer that must be calls: a model that is free to go on may never end.
const CALLS_MAX: usize = 16;

/// How many calls an answer may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Exactly one.
    One,
    /// One or more, where the format knows more than one.
    Many,
}

impl ToolFormat {
    /// The grammar, in llguidance's Lark, of an answer that calls one of `tools` as `choice` wants
    /// it; `None` where nothing is [forced](ToolChoice::forces). A named tool is called once.
    ///
    /// `token` gives the token that a text is, for texts that the vocabulary has as one special
    /// token; these are asked for as such, as models were trained to write them.
    pub fn grammar(
        self,
        tools: &[Tool],
        choice: &ToolChoice,
        calls: Calls,
        token: impl Fn(&str) -> Option<u32>,
    ) -> Result<Option<String>, ToolsError> {
        let (wanted, calls) = match choice {
            ToolChoice::None | ToolChoice::Auto => return Ok(None),
            ToolChoice::Required => (None, calls),
            ToolChoice::Named(name) => (Some(name), Calls::One),
        };
        let format = self.forced();
        let mark = |text: &str| match token(text) {
            Some(id) => format!("<[{id}]>"),
            None => literal(text),
        };
        let mut names = Vec::new();
        let mut rules = String::new();
        for (n, tool) in tools.iter().enumerate() {
            if wanted.is_some_and(|name| *name != tool.name) {
                continue;
            }
            let schema = enforceable(tool, n)?.guided();
            let call = format.call(&tool.name, &format!("arguments_{n}"), &mark);
            writeln!(rules, "call_{n}: {call}\narguments_{n}: %json {schema}")
                .expect("strings take all that is written");
            names.push(format!("call_{n}"));
        }
        if names.is_empty() {
            return Err(ToolsError::NoTools);
        }
        let start = format.start(calls, &mark);
        Ok(Some(format!("start: {start}\ncall: {}\n{rules}", names.join(" | "))))
    }

    /// One call of the tool `name`, whose arguments are the rule `arguments`.
    fn call(self, name: &str, arguments: &str, mark: &impl Fn(&str) -> String) -> String {
        let key = match self {
            ToolFormat::Llama => "parameters",
            _ => "arguments",
        };
        match self {
            ToolFormat::MistralNamed => {
                let (open, middle) = (mark(MISTRAL_OPEN), mark(MISTRAL_ARGUMENTS));
                format!("{open} {} {middle} {arguments}", literal(name))
            }
            _ => {
                let before = literal(&format!("{{\"name\": \"{name}\", \"{key}\": "));
                format!("{before} {arguments} \"}}\"")
            }
        }
    }

    /// As many calls as there may be, and what is around them.
    fn start(self, calls: Calls, mark: &impl Fn(&str) -> String) -> String {
        let more = |then: &str| match calls {
            Calls::One => String::new(),
            Calls::Many => format!(" ({then}){{0,{}}}", CALLS_MAX - 1),
        };
        match self {
            ToolFormat::Hermes | ToolFormat::Unknown => {
                let one =
                    format!("{} \"\\n\" call \"\\n\" {}", mark(HERMES_OPEN), mark(HERMES_CLOSE));
                format!("{one}{}", more(&format!("\"\\n\" {one}")))
            }
            // Its template refuses messages with more calls than one.
            ToolFormat::Llama => "call".to_owned(),
            ToolFormat::MistralList => {
                format!("{} \"[\" call{} \"]\"", mark(MISTRAL_OPEN), more("\", \" call"))
            }
            ToolFormat::MistralNamed => format!("call{}", more("call")),
        }
    }
}

/// `text` as a literal of Lark.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
