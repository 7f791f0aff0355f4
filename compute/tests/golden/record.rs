//! One file of golden vectors: compared, or written anew.

use std::collections::BTreeMap;
use std::path::PathBuf;

use compute::numeric::CLASS;
use serde_json::{Value, json};

/// Cases of one topic, in order.
pub struct Record {
    topic: &'static str,
    lines: Vec<String>,
}

impl Record {
    /// An empty record for `golden/TOPIC.jsonl`.
    pub fn new(topic: &'static str) -> Self {
        Self { topic, lines: Vec::new() }
    }

    /// Notes that function `of` gave `out` for `of_what`.
    pub fn case(&mut self, of: &str, of_what: Value, out: impl Into<Value>) {
        let mut line = String::new();
        write(&json!({ "case": of, "in": of_what, "out": out.into() }), &mut line);
        self.lines.push(line);
    }

    /// Compares with the file. With `CADENCIA_BLESS=1` in the environment writes it instead.
    pub fn check(self) {
        let file = format!("tests/golden/{}.jsonl", self.topic);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(&file);
        let found = self.lines.join("\n") + "\n";
        if std::env::var_os("CADENCIA_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, found).unwrap();
            return;
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
        if golden == found {
            return;
        }
        let mut pairs = golden.lines().zip(found.lines()).enumerate();
        let (number, golden, found) = match pairs.find(|(_, (a, b))| a != b) {
            Some((n, (golden, found))) => (n + 1, golden.to_owned(), found.to_owned()),
            None => {
                (golden.lines().count().min(found.lines().count()) + 1, part(&golden), part(&found))
            }
        };
        panic!(
            "{file}, line {number}: this is no longer the class {CLASS}.\n\
             golden: {golden}\n found: {found}\n\
             Nodes of one class compare bits, so a change of one bit is another class: undo the \
             change, or give the class a new name in numeric.rs and NUMERICS.md and write the \
             files anew with CADENCIA_BLESS=1."
        );
    }
}

/// Writes JSON with the names of an object in alphabetical order. (What serde_json does by itself
/// depends on the features that other crates of the build ask for.)
fn write(value: &Value, to: &mut String) {
    let mut first = true;
    let mut comma = |to: &mut String| {
        if !std::mem::take(&mut first) {
            to.push(',');
        }
    };
    match value {
        Value::Array(all) => {
            to.push('[');
            for one in all {
                comma(to);
                write(one, to);
            }
            to.push(']');
        }
        Value::Object(all) => {
            to.push('{');
            let sorted: BTreeMap<&String, &Value> = all.iter().collect();
            for (name, one) in sorted {
                comma(to);
                to.push_str(&Value::from(name.as_str()).to_string());
                to.push(':');
                write(one, to);
            }
            to.push('}');
        }
        other => to.push_str(&other.to_string()),
    }
}

/// What to say of a file that merely ends early or late.
fn part(text: &str) -> String {
    format!("{} lines", text.lines().count())
}
