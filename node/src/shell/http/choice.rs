//! One answer of a reply as it grows: what of it is told, and in which words it ends.

use std::sync::Arc;

use crate::house::tools::{Calls, ToolParser, ToolPart, call_id};
use crate::house::{Finish, Record, Shown};
use crate::shell::ask::Outcome;
use crate::shell::worker::Serving;

use super::access::random;

/// A token and how likely it was, in bytes: a token may be a part of a letter.
#[derive(Debug, Clone, PartialEq)]
pub struct Spelled {
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub log_prob: f32,
    /// The likeliest in its place, likeliest first.
    pub top: Vec<(Vec<u8>, f32)>,
    /// Letters of the answer before the one in which it begins.
    pub offset: usize,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its place among the choice's calls.
    pub index: usize,
    /// By which the client's answer names it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// A JSON object, as the model wrote it.
    pub arguments: String,
}

/// What a choice grows by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Text.
    pub text: String,
    /// Calls of tools, each of them whole.
    pub calls: Vec<Call>,
    /// The tokens that end with it, where they were asked for.
    pub spelled: Vec<Spelled>,
}

impl Delta {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty() && self.spelled.is_empty()
    }

    /// Appends `more`.
    pub fn append(&mut self, more: Delta) {
        self.text.push_str(&more.text);
        self.calls.extend(more.calls);
        self.spelled.extend(more.spelled);
    }
}

/// An answer that grows.
#[derive(Debug)]
pub struct Choice {
    serving: Arc<Serving>,
    /// Which of the request's prompts it answers.
    pub prompt: usize,
    /// Text that comes before the answer.
    echo: String,
    /// Letters that the tokens so far have begun.
    letters: usize,
    /// What finds calls in the answer, where there are tools.
    parser: Option<ToolParser>,
    /// Calls found, and how many there may be.
    calls: usize,
    calls_max: usize,
}

impl Choice {
    /// An answer of `serving` to the request's prompt number `prompt`, after the text `echo`.
    pub fn new(serving: Arc<Serving>, prompt: usize, echo: String) -> Self {
        Self { serving, prompt, echo, letters: 0, parser: None, calls: 0, calls_max: usize::MAX }
    }

    /// One in which `parser` finds calls, as many as `calls` lets it have.
    pub fn calling(self, parser: Option<ToolParser>, calls: Option<Calls>) -> Self {
        let calls_max = if calls == Some(Calls::One) { 1 } else { usize::MAX };
        Self { parser, calls_max, ..self }
    }

    /// What is told before the answer begins.
    pub fn opening(&mut self) -> Delta {
        Delta { text: std::mem::take(&mut self.echo), ..Delta::default() }
    }

    /// The answer grew by `shown`.
    pub fn take(&mut self, shown: Shown) -> Delta {
        let spelled = shown.records.into_iter().map(|record| self.spell(record)).collect();
        match &mut self.parser {
            None => Delta { text: shown.text, spelled, ..Delta::default() },
            Some(parser) => {
                let parts = parser.push(&shown.text);
                Delta { spelled, ..self.told(parts) }
            }
        }
    }

    /// The answer is complete: what is left to tell, and the word for why.
    pub fn finish(&mut self, outcome: &Outcome) -> (Delta, &'static str) {
        let parts = self.parser.as_mut().map(ToolParser::finish).unwrap_or_default();
        let delta = self.told(parts);
        match outcome.finish {
            Finish::Stop if self.calls > 0 => (delta, "tool_calls"),
            finish => (delta, finish.word()),
        }
    }

    /// What is told of `parts`; calls beyond the most are not.
    fn told(&mut self, parts: Vec<ToolPart>) -> Delta {
        let mut delta = Delta::default();
        for part in parts {
            match part {
                ToolPart::Text(text) => delta.text.push_str(&text),
                ToolPart::Call { .. } if self.calls == self.calls_max => {}
                ToolPart::Call { name, arguments } => {
                    let (index, id) = (self.calls, call_id(random()));
                    self.calls += 1;
                    delta.calls.push(Call { index, id, name, arguments });
                }
            }
        }
        delta
    }

    fn spell(&mut self, record: Record) -> Spelled {
        let bytes = self.bytes(record.token);
        let offset = self.letters;
        self.letters += bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let top = record.top.into_iter().map(|(token, p)| (self.bytes(token), p)).collect();
        Spelled { bytes, log_prob: record.log_prob, top, offset }
    }

    /// A token's bytes; of a special one, those of its name.
    fn bytes(&self, token: u32) -> Vec<u8> {
        let Some(tokenizer) = self.serving.speaker.model().tokenizer() else { return Vec::new() };
        match tokenizer.piece(token) {
            [] => tokenizer.token_text(token).into_bytes(),
            piece => piece.to_vec(),
        }
    }
}
