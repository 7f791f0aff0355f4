//! Files put together byte by byte, so that they can break any rule.

use compute::gguf::{Gguf, GgufError};

/// Value types by their numbers in the format.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// Tensor types by their numbers in the format.
pub const F32: u32 = 0;
pub const Q4_0: u32 = 2;
pub const Q4_K: u32 = 12;

/// A file, in pieces.
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    /// What the file says, where it lies.
    pub tensors_count: Option<u64>,
    pub keys_count: Option<u64>,
    pub pairs: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    /// Padding before the data is up to a multiple of this.
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Raw {
    /// A sound file: two keys, a vector of 8 floats, a matrix of two rows of 32 in Q4_0.
    pub fn sound() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensors_count: None,
            keys_count: None,
            pairs: vec![
                pair(b"general.architecture", STRING, &text(b"llama")),
                pair(b"llama.block_count", U32, &2u32.to_le_bytes()),
            ],
            tensors: vec![tensor(b"a", &[8], F32, 0), tensor(b"b", &[32, 2], Q4_0, 32)],
            alignment: 32,
            data: (0..96).collect(),
        }
    }

    /// The sound file with one more key.
    pub fn with_pair(key: &[u8], kind: u32, value: &[u8]) -> Self {
        let mut raw = Self::sound();
        raw.pairs.push(pair(key, kind, value));
        raw
    }

    /// The sound file with these tensors instead.
    pub fn with_tensors(tensors: Vec<Vec<u8>>) -> Self {
        Self { tensors, ..Self::sound() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensors_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.keys_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        self.pairs.iter().chain(&self.tensors).for_each(|piece| out.extend(piece));
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }

    pub fn open(&self) -> Result<Gguf, GgufError> {
        Gguf::from_bytes(self.bytes())
    }
}

/// A string with its length before it.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// A key, a type and a value.
pub fn pair(key: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

/// An array's element type, its length and its elements.
pub fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A tensor's entry.
pub fn tensor(name: &[u8], shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((shape.len() as u32).to_le_bytes());
    shape.iter().for_each(|length| out.extend(length.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}
