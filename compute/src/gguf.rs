//! Reads GGUF model files over a memory map, and believes nothing they say.

use std::collections::BTreeMap;
use std::path::Path;

use thiserror::Error;

/// Why a file was refused.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

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

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl TensorType {
    /// Numbers in one block.
    pub fn block_len(self) -> usize {
        use TensorType::*;
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => 256,
        }
    }
    /// Bytes in one block.
    pub fn block_bytes(self) -> usize {
        use TensorType::*;
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q2_K => 84,
            Q3_K => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            IQ4_XS => 136,
        }
    }
}

/// One tensor of a file: where it is and what shape it has. Everything in it has been checked.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Innermost dimension first, as the format has it: a matrix is `[columns, rows]`.
    pub shape: Vec<usize>,
    /// How its numbers are stored.
    pub kind: TensorType,
    /// Which file of a split model holds it.
    pub part: usize,
    /// Where its bytes begin in that file.
    pub offset: usize,
    /// How many bytes it has.
    pub len: usize,
}

/// A model file, or all the files of a split model, mapped and checked.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Gguf {
    /// Opens `path`; for the first file of a split model, its siblings too.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let source = std::io::Error::other("not read yet");
        Err(GgufError::Io { path: path.display().to_string(), source })
    }
    /// The key-value section.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }
    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }
    /// A tensor's bytes, as the file has them.
    pub fn bytes(&self, _tensor: &TensorInfo) -> &[u8] {
        &[]
    }
    /// Tells the system that a tensor's pages will not be read again soon.
    pub fn release(&self, _tensor: &TensorInfo) {}
    /// Size of all files together, bytes.
    pub fn file_bytes(&self) -> u64 {
        0
    }
}
