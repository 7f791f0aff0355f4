//! Reads GGUF model files over a memory map, and believes nothing they say.
//!
//! [`Gguf::open`] maps a file (and its siblings, where a model is split), reads the header and
//! checks every count, length, shape and offset in it. What comes out is sound: each
//! [`TensorInfo`] lies within its file and shares no bytes with another, and [`Gguf::bytes`] is a
//! plain slice. The tensors' own numbers are not looked at.
//!
//! **Invariant:** no file, however made, leads to a panic, or to memory beyond a small multiple of
//! its header. Counts are compared with the bytes that are left before memory is asked for.
//!
//! **Invariant:** nothing here writes to a model file. See `part.rs` for what a map relies on.

mod cursor;
mod error;
mod header;
mod metadata;
mod part;
mod split;
mod tensor;
mod value;
pub mod writer;

use std::collections::BTreeMap;
use std::path::Path;

pub use error::{Fault, GgufError, SplitFault};
pub use metadata::{Metadata, Value};
pub use tensor::{TensorInfo, TensorType};

use header::Header;
use part::Part;
use split::Split;

/// A model file, or all the files of a split model, mapped and checked.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: BTreeMap<String, TensorInfo>,
    parts: Vec<Part>,
}

impl Gguf {
    /// Opens `path`; for the first file of a split model, its siblings too.
    ///
    /// # Errors
    /// Where a file cannot be read, breaks a rule of the format, holds a tensor type that this
    /// crate does not read, or where the parts of a split model do not fit together.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let first = Part::open(path)?;
        let header = read(&first, 0)?;
        let split = |fault| GgufError::Split { path: path.display().to_string(), fault };
        let Some(whole) = Split::of(&header.metadata, path).map_err(split)? else {
            return Self::whole(first, header);
        };
        let mut model = Self::whole(first, header)?;
        for (number, sibling) in (2..).zip(whole.siblings(path).map_err(split)?) {
            let part =
                open_sibling(&sibling, number, whole.count).map_err(|error| match error {
                    Sought::Missing(fault) => split(fault),
                    Sought::Failed(error) => error,
                })?;
            let header = read(&part, model.parts.len())?;
            whole.check(number, &header.metadata, &part.path).map_err(split)?;
            model.add(part, header.tensors).map_err(split)?;
        }
        whole.check_tensors(model.tensors.len()).map_err(split)?;
        Ok(model)
    }

    /// Reads a model that is in memory already; for tests, and for small generated models.
    ///
    /// # Errors
    /// As [`Gguf::open`]; a part of a split model is refused, since it has no siblings here.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let part = Part::owned("model in memory".to_owned(), bytes);
        let header = read(&part, 0)?;
        let path = Path::new(&part.path);
        let siblings = match Split::of(&header.metadata, path) {
            Ok(None) => Ok(()),
            Ok(Some(split)) => split.siblings(path).map(|_| ()),
            Err(fault) => Err(fault),
        };
        siblings.map_err(|fault| GgufError::Split { path: part.path.clone(), fault })?;
        Self::whole(part, header)
    }

    fn whole(part: Part, header: Header) -> Result<Self, GgufError> {
        let mut model =
            Self { metadata: header.metadata, tensors: BTreeMap::new(), parts: Vec::new() };
        let path = part.path.clone();
        model.add(part, header.tensors).map_err(|fault| GgufError::Split { path, fault })?;
        Ok(model)
    }

    fn add(&mut self, part: Part, tensors: Vec<TensorInfo>) -> Result<(), SplitFault> {
        self.parts.push(part);
        for tensor in tensors {
            if self.tensors.contains_key(&tensor.name) {
                return Err(SplitFault::DuplicateTensor { name: tensor.name });
            }
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        Ok(())
    }

    /// The key-value section; of a split model, the first file's.
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

    /// A tensor's bytes, as the file has them. They begin on the file's alignment, 8 bytes at
    /// least where the file is mapped.
    ///
    /// # Panics
    /// Where `tensor` was not taken from this model.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.parts[tensor.part].bytes()[tensor.offset..][..tensor.len]
    }

    /// Tells the system that a tensor's pages will not be read again soon, so that they stop
    /// counting as this process's memory. Only pages that lie wholly inside the tensor are let
    /// go; they are read again if they are touched after all.
    ///
    /// # Panics
    /// Where `tensor` was not taken from this model.
    pub fn release(&self, tensor: &TensorInfo) {
        self.parts[tensor.part].release(tensor.offset, tensor.len);
    }

    /// Checks that no file was written to since it was opened. A loader calls this once it has
    /// copied what it needs, so that a file that was still being downloaded is not trusted.
    ///
    /// # Errors
    /// [`GgufError::Changed`] names the file.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.parts.iter().try_for_each(Part::unchanged)
    }

    /// Size of all files together, bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes().len() as u64).sum()
    }

    /// Each file's path, as it was opened, and size in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.parts.iter().map(|part| (Path::new(&part.path), part.bytes().len() as u64))
    }

    /// How many files the model has.
    pub fn parts_count(&self) -> usize {
        self.parts.len()
    }
}

fn read(part: &Part, number: usize) -> Result<Header, GgufError> {
    let header = header::read(part.bytes(), number)
        .map_err(|fault| GgufError::Refused { path: part.path.clone(), fault })?;
    // A large vocabulary is some megabytes, and has been copied.
    part.release(0, header.len);
    Ok(header)
}

/// Why a sibling could not be opened.
enum Sought {
    Missing(SplitFault),
    Failed(GgufError),
}

fn open_sibling(path: &Path, number: u64, count: u64) -> Result<Part, Sought> {
    Part::open(path).map_err(|error| match error {
        GgufError::Io { path: missing, source }
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Sought::Missing(SplitFault::Missing { number, count, missing })
        }
        other => Sought::Failed(other),
    })
}
