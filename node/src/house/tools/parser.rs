//! Finds calls in an answer that arrives in pieces.
//!
//! **Invariant:** what pieces the text comes in never changes what comes out, put together. Nothing
//! is lost: what goes in comes out as text or inside a call, but for the marks around a call and
//! the white space beside them. What begins like a call and is none comes out as the text it is.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::format::{
    HERMES_CLOSE, HERMES_OPEN, LLAMA_OPEN, MISTRAL_ARGUMENTS, MISTRAL_ID, MISTRAL_OPEN,
};
use super::object_end::ObjectEnd;
use super::request::is_name;
use super::{Tool, ToolFormat};

/// Longest call, bytes; what is longer is text.
const CALL_BYTES_MAX: usize = 256 << 10;

/// Most calls in an answer; what follows is text.
const CALLS_MAX: usize = 128;

/// Most white space that waits for a call to follow, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// Longest name and id between a mark and its arguments, bytes.
const HEAD_BYTES_MAX: usize = 256;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolPart {
    /// What is said.
    Text(String),
    /// A call of a tool. The name has the form of one, and need not be that of a tool that there
    /// is.
    Call {
        /// Which tool.
        name: String,
        /// A JSON object, as the model wrote it.
        arguments: String,
    },
}

/// Splits one answer into text and calls.
#[derive(Debug, Clone)]
pub struct ToolParser {
    format: ToolFormat,
    /// The tools that there are, by name.
    names: Vec<String>,
    state: State,
    /// What may be part of a call, and so waits for what follows.
    held: String,
    place: Place,
    calls_left: usize,
    parts: Vec<ToolPart>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// In text; white space or the beginning of a mark may be held.
    Text,
    /// After a mark, which ends at `head` of what is held, and before the call's JSON.
    Head { head: usize },
    /// In the call's JSON, which begins at `start`.
    Json { head: usize, start: usize, end: ObjectEnd },
}

/// What came last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing, or white space.
    Start,
    /// Text.
    Text,
    /// A call, and perhaps white space.
    Call,
}

/// A call as models write it. Another `arguments` beside `parameters` makes it none.
#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

impl ToolParser {
    /// For an answer in `format`, of a model that was told of `tools`.
    pub fn new(format: ToolFormat, tools: &[Tool]) -> Self {
        Self {
            format,
            names: tools.iter().map(|tool| tool.name.clone()).collect(),
            state: State::Text,
            held: String::new(),
            place: Place::Start,
            calls_left: CALLS_MAX,
            parts: Vec::new(),
        }
    }

    /// Takes more text; what is certain by now. Neighbouring texts are one part.
    pub fn push(&mut self, text: &str) -> Vec<ToolPart> {
        for letter in text.chars() {
            self.take(letter);
        }
        std::mem::take(&mut self.parts)
    }

    /// The answer ended: what was held back. A call that is not whole is text.
    pub fn finish(&mut self) -> Vec<ToolPart> {
        // White space after the last call means nothing.
        let blank = self.held.trim().is_empty();
        let held = std::mem::take(&mut self.held);
        self.state = State::Text;
        if !(blank && self.place == Place::Call) {
            self.say(&held);
        }
        std::mem::take(&mut self.parts)
    }

    fn take(&mut self, letter: char) {
        self.held.push(letter);
        match self.state {
            State::Text => self.in_text(),
            State::Head { head } => self.in_head(head, letter),
            State::Json { head, start, mut end } => {
                if end.push(letter) {
                    self.end_call(head, start);
                } else if self.held.len() > CALL_BYTES_MAX {
                    self.give_up();
                } else {
                    self.state = State::Json { head, start, end };
                }
            }
        }
    }

    /// The texts that begin a call here.
    fn openers(&self) -> &'static [&'static str] {
        match (self.format, self.place) {
            _ if self.calls_left == 0 => &[],
            (ToolFormat::Hermes, _) => &[HERMES_OPEN],
            (ToolFormat::Llama, Place::Text) => &[LLAMA_OPEN],
            (ToolFormat::Llama, Place::Start | Place::Call) => &[LLAMA_OPEN, "{"],
            (ToolFormat::MistralList | ToolFormat::MistralNamed, _) => &[MISTRAL_OPEN],
            (ToolFormat::Unknown, _) => &[],
        }
    }

    /// What may follow a call and belongs to it.
    fn closer(&self) -> Option<&'static str> {
        match self.format {
            ToolFormat::Hermes if self.place == Place::Call => Some(HERMES_CLOSE),
            ToolFormat::Llama if self.place == Place::Call => Some(";"),
            _ => None,
        }
    }

    /// Lets go of the beginning of what is held until the rest may begin a call.
    fn in_text(&mut self) {
        loop {
            let begun = self.held.trim_start();
            let space = self.held.len() - begun.len();
            if begun.is_empty() && space <= SPACE_BYTES_MAX {
                return;
            }
            if self.closer() == Some(begun) {
                self.held.clear();
                return;
            }
            if self.openers().contains(&begun) {
                return self.open(space);
            }
            let waits = |mark: &&str| !begun.is_empty() && mark.starts_with(begun);
            if self.openers().iter().chain(&self.closer()).any(waits) {
                return;
            }
            let first = self.held.remove(0);
            self.say(first.encode_utf8(&mut [0; 4]));
        }
    }

    /// A mark is whole; it stands after `space` bytes.
    fn open(&mut self, space: usize) {
        let head = self.held.len();
        self.state = match self.held.ends_with('{') {
            true => {
                let mut end = ObjectEnd::default();
                end.push('{');
                State::Json { head: space, start: space, end }
            }
            false => State::Head { head },
        };
    }

    fn in_head(&mut self, head: usize, letter: char) {
        let named = matches!(self.format, ToolFormat::MistralList | ToolFormat::MistralNamed);
        let blank = self.held[head..self.held.len() - letter.len_utf8()].trim().is_empty();
        let begins = letter == '{' || (letter == '[' && named && blank);
        if begins {
            let mut end = ObjectEnd::default();
            end.push(letter);
            self.state = State::Json { head, start: self.held.len() - 1, end };
        } else if !(letter.is_whitespace() || named) || self.held.len() - head > HEAD_BYTES_MAX {
            // It may begin the mark of a call itself.
            self.held.pop();
            self.give_up();
            self.held.push(letter);
            self.in_text();
        }
    }

    /// The JSON is whole.
    fn end_call(&mut self, head: usize, start: usize) {
        let calls = self.calls(self.held[head..start].trim(), &self.held[start..]);
        match calls.filter(|calls| calls.len() <= self.calls_left) {
            None => self.give_up(),
            Some(calls) => {
                self.calls_left -= calls.len();
                self.parts.extend(calls);
                self.held.clear();
                self.state = State::Text;
                self.place = Place::Call;
            }
        }
    }

    /// The calls that `json` is, if it is any.
    fn calls(&self, head: &str, json: &str) -> Option<Vec<ToolPart>> {
        if !head.is_empty() {
            let head = head.strip_suffix(MISTRAL_ARGUMENTS).unwrap_or(head);
            let (name, id) = head.split_once(MISTRAL_ID).unwrap_or((head, "id"));
            return is_name(id.trim()).then(|| call(name.trim(), json).map(|call| vec![call]))?;
        }
        let written: Vec<Written> = match json.starts_with('[') {
            true => serde_json::from_str(json).ok()?,
            false => vec![serde_json::from_str(json).ok()?],
        };
        let calls = written.iter().map(|written| {
            // Without a mark an object may be an answer and no call.
            let sure = self.format != ToolFormat::Llama || self.names.contains(&written.name);
            match written.arguments {
                _ if !sure => None,
                None if self.format == ToolFormat::Llama => None,
                None => call(&written.name, "{}"),
                Some(arguments) => call(&written.name, arguments.get()),
            }
        });
        calls.collect::<Option<Vec<_>>>().filter(|calls| !calls.is_empty())
    }

    /// What is held is no call.
    fn give_up(&mut self) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.held);
        self.say(&held);
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.place != Place::Start || !text.trim().is_empty() {
            self.place = Place::Text;
        }
        match self.parts.last_mut() {
            Some(ToolPart::Text(said)) => said.push_str(text),
            _ => self.parts.push(ToolPart::Text(text.to_owned())),
        }
    }
}

/// A call of `name`; `None` if that is no name, or `arguments` no object, as text or as it is.
fn call(name: &str, arguments: &str) -> Option<ToolPart> {
    let text: String;
    let mut arguments = arguments.trim();
    if arguments.starts_with('"') {
        text = serde_json::from_str(arguments).ok()?;
        arguments = text.trim();
    }
    let object = arguments.starts_with('{') && serde_json::from_str::<&RawValue>(arguments).is_ok();
    (is_name(name) && object)
        .then(|| ToolPart::Call { name: name.to_owned(), arguments: arguments.to_owned() })
}

#[cfg(test)]
mod tests;
