//! Holds back what the engine's fuel does not see.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter};
use minijinja_contrib::pycompat;

/// Parts that a value may have for each 8 units of fuel: 62,500 and one for each 8 bytes of the
/// conversation. A part counts as often as it is met.
const FUEL_PER_PART: u64 = 8;

/// Bytes of text that a value may have for each unit of fuel: 1 MB and twice the conversation.
const TEXT_BYTES_PER_FUEL: u64 = 2;

/// How deep a named value may nest; JSON from outside does not nest deeper than 128.
const DEPTH_MAX: usize = 160;

/// Longest number in the text of `str.format`: it may be a width.
const WIDTH_DIGITS_MAX: usize = 3;

/// The value itself, if it is not too large: a filter.
pub(super) fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    weigh(state, &value)?;
    Ok(value)
}

/// Prints as the engine does, what is not too large.
pub(super) fn formatter(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    weigh(state, value)?;
    escape_formatter(out, state, value)
}

/// As text, what is not too large: a filter.
pub(super) fn string(state: &State, value: Value) -> Result<Value, Error> {
    weigh(state, &value)?;
    minijinja::filters::string(state, &value)
}

/// Refuses what has more parts or text than a value of this conversation may.
pub(super) fn weigh(state: &State, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return Ok(());
    }
    let (consumed, left) = state.fuel_levels().unwrap_or((0, 0));
    let fuel = consumed + left;
    let most = Scale { parts: fuel / FUEL_PER_PART, bytes: fuel * TEXT_BYTES_PER_FUEL };
    let mut scale = Scale { parts: 0, bytes: 0 };
    scale.add(value, &most, 0)?;
    state.consume_fuel(scale.parts / 16)
}

struct Scale {
    parts: u64,
    bytes: u64,
}

impl Scale {
    fn add(&mut self, value: &Value, most: &Self, depth: usize) -> Result<(), Error> {
        self.parts += 1;
        self.bytes += value.as_str().map_or(0, |text| text.len() as u64);
        if self.parts > most.parts || self.bytes > most.bytes || depth > DEPTH_MAX {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter()?.try_for_each(|item| self.add(&item, most, depth + 1))
            }
            ValueKind::Map => value.try_iter()?.try_for_each(|key| {
                self.add(&key, most, depth + 1)?;
                self.add(&value.get_item(&key)?, most, depth + 1)
            }),
            _ => Ok(()),
        }
    }
}

/// Python's methods. Some make long texts of short ones: those are paid before they are made.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let text = value.as_str().unwrap_or_default();
    let arg = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    let bytes = match name {
        "replace" => text.matches(arg(0)).count() * arg(1).len(),
        "join" => args.first().and_then(Value::len).unwrap_or(0) * text.len(),
        "format" if has_width(text) => {
            let detail = "format() with such a width is not rendered";
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        _ => 0,
    };
    state.consume_fuel(bytes as u64 / 64)?;
    for arg in args {
        weigh(state, arg)?;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// Whether a format text has a long number, or a width from its arguments.
fn has_width(text: &str) -> bool {
    let long = |run: &str| run.len() > WIDTH_DIGITS_MAX;
    text.split(|c: char| !c.is_ascii_digit()).any(long) || text.contains("{:{")
}
