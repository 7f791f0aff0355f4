//! What a model is to a network: which parts it has, what they weigh, and how their bytes are proven.

use std::fmt;

use prost::Message;

use crate::codec::{Checked, Word, at_most, encode, exactly, range, text};
use crate::id::digest;
use crate::place::{HALVES_MAX, Halves};

/// Bytes in a chunk of weights, at most; a chunk never crosses a tensor.
pub const CHUNK: u64 = 1 << 20;
/// Files that a model may be split into.
const FILES_MAX: usize = 64;
/// The domain of manifest ids among digests.
const KIND: u8 = 1;

/// A model, as nodes agree on it. Its id is the digest of its bytes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Manifest {
    /// What people call it: the file's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its architecture, as in the file.
    #[prost(string, tag = "2")]
    pub architecture: String,
    /// The numeric class in which it is computed.
    #[prost(string, tag = "3")]
    pub class: String,
    /// Residual width, numbers.
    #[prost(uint32, tag = "4")]
    pub width: u32,
    /// Tokens that it can attend over.
    #[prost(uint32, tag = "5")]
    pub context: u32,
    /// Its files, in order.
    #[prost(message, repeated, tag = "6")]
    pub files: Vec<File>,
    /// What stands before the tensors: metadata and tokeniser.
    #[prost(message, optional, tag = "7")]
    pub header: Option<Part>,
    /// Embedding, last norm and head.
    #[prost(message, optional, tag = "8")]
    pub ends: Option<Part>,
    /// Each half-block.
    #[prost(message, repeated, tag = "9")]
    pub halves: Vec<Part>,
    /// Bytes of KV cache that one position takes in one attention half-block.
    #[prost(uint32, tag = "10")]
    pub kv_bytes: u32,
}

/// One of a model's files.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct File {
    /// Its size, bytes.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// How many of them stand before the tensors.
    #[prost(uint64, tag = "2")]
    pub header_bytes: u64,
}

/// A part that a node can hold alone.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Part {
    /// The Merkle root over its chunks.
    #[prost(bytes = "vec", tag = "1")]
    pub root: Vec<u8>,
    /// How many chunks.
    #[prost(uint32, tag = "2")]
    pub chunks: u32,
    /// Their bytes in the file.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// What it costs to compute.
    #[prost(message, optional, tag = "4")]
    pub work: Option<Work>,
}

/// What a part costs.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Work {
    /// Bytes of memory that its weights take, all read once for a token.
    #[prost(uint64, tag = "1")]
    pub memory: u64,
    /// Multiply-adds for a token.
    #[prost(uint64, tag = "2")]
    pub macs: u64,
}

/// The digest of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestId(pub [u8; 32]);

impl ManifestId {
    /// Of 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Manifest {
    /// The digest of its bytes.
    pub fn id(&self) -> ManifestId {
        ManifestId(digest(KIND, &encode(self)))
    }

    /// All half-blocks.
    pub fn all(&self) -> Halves {
        Halves::new(0, self.halves.len())
    }

    /// What the ends cost.
    pub fn ends_work(&self) -> Work {
        self.ends.as_ref().and_then(|part| part.work).unwrap_or_default()
    }

    /// What `halves` cost together.
    ///
    /// # Panics
    /// Where they are not the model's.
    pub fn work(&self, halves: Halves) -> Work {
        let each = self.halves[halves.range()].iter().filter_map(|part| part.work);
        each.fold(Work::default(), |sum, part| Work {
            memory: sum.memory.saturating_add(part.memory),
            macs: sum.macs.saturating_add(part.macs),
        })
    }

    /// Bytes of KV cache that one position takes in `halves`.
    pub fn kv_bytes(&self, halves: Halves) -> u64 {
        u64::from(self.kv_bytes) * halves.attentions() as u64
    }
}

impl Part {
    fn check(&self, field: &'static str) -> Checked {
        exactly::<Manifest>(field, &self.root, 32)?;
        let chunks = u64::from(self.chunks);
        let fits = chunks <= self.bytes && self.bytes <= chunks.saturating_mul(CHUNK);
        range::<Manifest>(field, fits, || format!("{} bytes in {chunks} chunks", self.bytes))
    }
}

impl Word for Manifest {
    const NAME: &'static str = "a manifest";
    // Some 70 bytes for each of 4,096 half-blocks, and the rest.
    const BYTES_MAX: usize = 400 << 10;

    fn check(&self) -> Checked {
        text::<Self>("name", &self.name, 128)?;
        text::<Self>("architecture", &self.architecture, 64)?;
        text::<Self>("class", &self.class, 32)?;
        let wide = self.width > 0 && self.width <= 1 << 16 && self.width.is_multiple_of(32);
        range::<Self>("width", wide, || self.width.to_string())?;
        let long = self.context > 0 && self.context <= 1 << 23;
        range::<Self>("context", long, || self.context.to_string())?;
        at_most::<Self>("files", self.files.len(), FILES_MAX)?;
        range::<Self>("files", !self.files.is_empty(), || "there are none".into())?;
        for file in &self.files {
            let holds = file.header_bytes <= file.bytes && file.bytes <= 1 << 44;
            range::<Self>("files", holds, || format!("{} of {}", file.header_bytes, file.bytes))?;
        }
        at_most::<Self>("halves", self.halves.len(), HALVES_MAX as usize)?;
        let layers = !self.halves.is_empty() && self.halves.len().is_multiple_of(2);
        range::<Self>("halves", layers, || format!("{} of them", self.halves.len()))?;
        range::<Self>("kv_bytes", self.kv_bytes <= 1 << 24, || self.kv_bytes.to_string())?;
        let ends = [(&self.header, "header"), (&self.ends, "ends")];
        for (part, field) in ends {
            let part = part.as_ref();
            range::<Self>(field, part.is_some(), || "it is missing".into())?;
            part.map_or(Ok(()), |part| part.check(field))?;
        }
        self.halves.iter().try_for_each(|part| part.check("halves"))
    }
}
