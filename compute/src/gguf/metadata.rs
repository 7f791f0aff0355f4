//! The key-value section as the rest of the crate sees it.

use std::collections::BTreeMap;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer type of the format, widened.
    Unsigned(u64),
    /// Any signed integer type of the format, widened.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A byte that is 0 or 1.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Array of strings, such as a vocabulary.
    Strings(Vec<String>),
    /// Array of integers of any width.
    Integers(Vec<i64>),
    /// Array of f32 or f64.
    Floats(Vec<f32>),
    /// Array of booleans.
    Bools(Vec<bool>),
}

/// A model file's key-value section.
#[derive(Debug, Clone, Default)]
pub struct Metadata(pub(crate) BTreeMap<String, Value>);

impl Metadata {
    /// From pairs; for tests and tools that make models.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, Value)>) -> Self {
        Self(pairs.into_iter().collect())
    }
    /// The value under `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
    /// A string, or `None` where it is absent or of another type.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
    /// A non-negative integer of any width.
    pub fn u64(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }
    /// A number as f64.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(x) => Some(*x),
            Value::Unsigned(n) => Some(*n as f64),
            Value::Signed(n) => Some(*n as f64),
            _ => None,
        }
    }
    /// A boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }
    /// An array of strings.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.get(key)? {
            Value::Strings(list) => Some(list),
            _ => None,
        }
    }
    /// An array of integers.
    pub fn integers(&self, key: &str) -> Option<&[i64]> {
        match self.get(key)? {
            Value::Integers(list) => Some(list),
            _ => None,
        }
    }
    /// An array of floats.
    pub fn floats(&self, key: &str) -> Option<&[f32]> {
        match self.get(key)? {
            Value::Floats(list) => Some(list),
            _ => None,
        }
    }
}
