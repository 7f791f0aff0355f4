//! JSON as Python's `json.dumps` writes it, which is what models have seen.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// How deep values may nest.
const DEPTH_MAX: usize = 64;

/// Most spaces to indent by.
const INDENT_MAX: usize = 16;

/// How it is laid out.
#[derive(Debug)]
pub(super) struct Layout {
    /// Spaces for each level, each item on a line of its own; `None` for all on one line.
    indent: Option<usize>,
    between_items: String,
    after_key: String,
    ascii: bool,
    sorted: bool,
}

impl Layout {
    /// From the arguments that the `tojson` of `transformers` takes.
    pub fn from_kwargs(kwargs: &Kwargs) -> Result<Self, Error> {
        let indent = kwargs.get::<Option<usize>>("indent")?;
        if indent.is_some_and(|indent| indent > INDENT_MAX) {
            return Err(invalid(format!("indents by more than {INDENT_MAX} spaces")));
        }
        let usual = if indent.is_some() { "," } else { ", " };
        let (between_items, after_key) = match kwargs.get::<Option<Vec<String>>>("separators")? {
            None => (usual.to_owned(), ": ".to_owned()),
            Some(both) => <[String; 2]>::try_from(both)
                .map(|[items, key]| (items, key))
                .map_err(|_| invalid("separators are two texts".to_owned()))?,
        };
        let flag = |name| kwargs.get::<Option<bool>>(name).map(Option::unwrap_or_default);
        Ok(Self {
            indent,
            between_items,
            after_key,
            ascii: flag("ensure_ascii")?,
            sorted: flag("sort_keys")?,
        })
    }
}

/// Writes `value`. `charge` is told of each stretch of bytes before it is kept.
pub(super) fn dumps(
    value: &Value,
    layout: &Layout,
    charge: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), layout, charge };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    layout: &'a Layout,
    charge: &'a mut dyn FnMut(u64) -> Result<(), Error>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid(format!("nests deeper than {DEPTH_MAX}")));
        }
        match value.kind() {
            ValueKind::None => self.text("null"),
            ValueKind::Bool => self.text(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth),
            ValueKind::Map => self.map(value, depth),
            kind => Err(invalid(format!("{kind} cannot be written as JSON"))),
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text("[")?;
        let mut empty = true;
        for item in value.try_iter()? {
            self.begin_item(empty, depth + 1)?;
            self.value(&item, depth + 1)?;
            empty = false;
        }
        self.end_items(empty, depth)?;
        self.text("]")
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text("{")?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.layout.sorted {
            keys.sort();
        }
        for (index, key) in keys.iter().enumerate() {
            self.begin_item(index == 0, depth + 1)?;
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default())?,
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.text("\"")?;
                    self.value(key, depth)?;
                    self.text("\"")?;
                }
                kind => return Err(invalid(format!("{kind} cannot be a key in JSON"))),
            }
            let layout = self.layout;
            self.text(&layout.after_key)?;
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end_items(keys.is_empty(), depth)?;
        self.text("}")
    }

    fn begin_item(&mut self, first: bool, depth: usize) -> Result<(), Error> {
        let layout = self.layout;
        if !first {
            self.text(&layout.between_items)?;
        }
        self.new_line(depth)
    }

    fn end_items(&mut self, empty: bool, depth: usize) -> Result<(), Error> {
        if empty { Ok(()) } else { self.new_line(depth) }
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        match self.layout.indent {
            Some(indent) => self.text(&format!("\n{:width$}", "", width = indent * depth)),
            None => Ok(()),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.text("\"")?;
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let escape = match c {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\0'..='\u{1f}' => utf16(c),
                '\u{7f}'.. if self.layout.ascii && !c.is_ascii() => utf16(c),
                _ => continue,
            };
            self.text(&text[plain..at])?;
            self.text(&escape)?;
            plain = at + c.len_utf8();
        }
        self.text(&text[plain..])?;
        self.text("\"")
    }

    fn text(&mut self, text: &str) -> Result<(), Error> {
        (self.charge)(text.len() as u64)?;
        self.out.push_str(text);
        Ok(())
    }
}

fn utf16(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Whole numbers as they are; others as Python writes them: `1.0`, `1e+16`, `1e-05`.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else { return value.to_string() };
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}
