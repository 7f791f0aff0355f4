//! Reads one metadata value.

use super::cursor::{Cursor, signed, unsigned};
use super::error::Fault;
use super::header::shown;
use super::metadata::Value;

/// Array elements of all keys together. The largest vocabularies have about 300,000 tokens and as
/// many merges, scores and kinds. One byte in the file becomes eight in memory, so the file's
/// length alone would let a long file take too much.
pub(super) const ELEMENTS_MAX: u64 = 1 << 23;

/// A value's type, as the format numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    Unsigned { width: u64 },
    Signed { width: u64 },
    F32,
    F64,
    Bool,
    String,
    Array,
}

impl ValueType {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::Unsigned { width: 1 },
            1 => Self::Signed { width: 1 },
            2 => Self::Unsigned { width: 2 },
            3 => Self::Signed { width: 2 },
            4 => Self::Unsigned { width: 4 },
            5 => Self::Signed { width: 4 },
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::Unsigned { width: 8 },
            11 => Self::Signed { width: 8 },
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes that one such value has at least: all of them, but for strings and arrays.
    fn size_min(self) -> u64 {
        match self {
            Self::Unsigned { width } | Self::Signed { width } => width,
            Self::F32 => 4,
            Self::F64 | Self::String => 8,
            Self::Bool => 1,
            Self::Array => 12,
        }
    }
}

/// Reads values, and counts the array elements of the whole file.
pub(super) struct Values {
    elements_left: u64,
}

impl Values {
    pub fn new() -> Self {
        Self { elements_left: ELEMENTS_MAX }
    }

    /// The value under `key`, with its type before it.
    pub fn read(&mut self, from: &mut Cursor<'_>, key: &str) -> Result<Value, Fault> {
        let kind = value_type(from, key)?;
        if kind == ValueType::Array {
            return self.array(from, key);
        }
        if kind == ValueType::String {
            return Ok(Value::String(string(from, key)?));
        }
        let raw = from.take(kind.size_min(), "a metadata value")?;
        Ok(match kind {
            ValueType::Unsigned { .. } => Value::Unsigned(unsigned(raw)),
            ValueType::Signed { .. } => Value::Signed(signed(raw)),
            ValueType::F32 => Value::Float(f64::from(f32_of(raw))),
            ValueType::F64 => Value::Float(f64::from_bits(unsigned(raw))),
            _ => Value::Bool(boolean(raw[0], key)?),
        })
    }

    fn array(&mut self, from: &mut Cursor<'_>, key: &str) -> Result<Value, Fault> {
        let kind = value_type(from, key)?;
        if kind == ValueType::Array {
            return Err(Fault::NestedArray { key: shown(key) });
        }
        let count = from.u64("an array's length")?;
        let room = from.holds(count, kind.size_min(), "array elements")?;
        self.elements_left = self.elements_left.checked_sub(count).ok_or(Fault::TooMany {
            what: "array elements",
            count,
            max: ELEMENTS_MAX,
        })?;
        if kind == ValueType::String {
            return Ok(Value::Strings(gather(room, 0..room, |_| string(from, key))?));
        }
        // `holds` has bounded the product by the bytes that are there.
        let raw = from.take(count * kind.size_min(), "an array")?;
        let each = raw.chunks_exact(kind.size_min() as usize);
        Ok(match kind {
            ValueType::Unsigned { .. } => {
                Value::Integers(gather(room, each, |raw| narrowed(raw, key))?)
            }
            ValueType::Signed { .. } => Value::Integers(each.map(signed).collect()),
            ValueType::F32 => Value::Floats(each.map(f32_of).collect()),
            ValueType::F64 => {
                Value::Floats(each.map(|raw| f64::from_bits(unsigned(raw)) as f32).collect())
            }
            _ => Value::Bools(gather(room, each, |raw| boolean(raw[0], key))?),
        })
    }
}

/// As collecting into a `Result` does, but in a list that is given its room at once: one that
/// grows holds up to three times as much.
fn gather<I, T>(
    room: usize,
    each: impl Iterator<Item = I>,
    mut read: impl FnMut(I) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut list = Vec::with_capacity(room);
    for item in each {
        list.push(read(item)?);
    }
    Ok(list)
}

fn value_type(from: &mut Cursor<'_>, key: &str) -> Result<ValueType, Fault> {
    let id = from.u32("a metadata value's type")?;
    ValueType::from_id(id).ok_or_else(|| Fault::ValueType { key: shown(key), id })
}

/// Text must be UTF-8, tokens of a vocabulary included: byte-level vocabularies spell bytes with
/// printable letters and SentencePiece ones as `<0x0A>`, so other bytes are damage, and repairing
/// them silently would change what a token is.
fn string(from: &mut Cursor<'_>, key: &str) -> Result<String, Fault> {
    let len = from.u64("a string's length")?;
    // Copied first, then judged: see `part.rs` on files that change below the map.
    String::from_utf8(from.take(len, "a string")?.to_vec())
        .map_err(|_| Fault::NotUtf8 { what: "the text under metadata key", name: shown(key) })
}

fn boolean(byte: u8, key: &str) -> Result<bool, Fault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::BoolByte { key: shown(key), byte }),
    }
}

fn narrowed(raw: &[u8], key: &str) -> Result<i64, Fault> {
    let value = unsigned(raw);
    i64::try_from(value).map_err(|_| Fault::IntegerRange { key: shown(key), value })
}

fn f32_of(raw: &[u8]) -> f32 {
    f32::from_bits(unsigned(raw) as u32)
}
