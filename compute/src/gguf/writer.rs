//! Writes GGUF version 3 files, for tests and for tools that make models.
//!
//! First an [`Outline`]: the metadata and the tensors' names, shapes and types. Then a [`Writer`],
//! which takes the tensors' bytes in that order, in pieces of any size, so that a file much larger
//! than memory can be written.
//!
//! ```
//! use compute::gguf::writer::Outline;
//! use compute::gguf::{Gguf, Metadata, TensorType, Value};
//!
//! let name = ("general.architecture".to_owned(), Value::String("llama".to_owned()));
//! let mut outline = Outline::new(Metadata::from_pairs([name]))?;
//! outline.tensor("output_norm.weight", &[2], TensorType::F32)?;
//! let mut writer = outline.begin(Vec::new())?;
//! writer.write("output_norm.weight", &1.0f32.to_le_bytes())?;
//! writer.write("output_norm.weight", &2.0f32.to_le_bytes())?;
//! let model = Gguf::from_bytes(writer.finish()?)?;
//! assert_eq!(model.tensor("output_norm.weight").unwrap().shape, [2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Invariant:** what the writer accepts, the reader reads back as the same values, within the
//! reader's bounds on how many there are.

use std::collections::BTreeSet;
use std::io::{self, Write};

use thiserror::Error;

use super::error::Fault;
use super::header::{KEY_BYTES_MAX, NAME_BYTES_MAX, alignment};
use super::metadata::{Metadata, Value};
use super::split;
use super::tensor::{TensorType, measure};

/// Why a file could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The system could not write.
    #[error("cannot write the model file: {0}")]
    Io(#[from] io::Error),
    /// A reader would refuse it.
    #[error(transparent)]
    Refused(#[from] Fault),
    /// Bytes came for another tensor than the one whose turn it is.
    #[error("bytes came for tensor {got:?} when it was the turn of {turn:?}")]
    OutOfTurn {
        /// The tensor whose bytes came.
        got: String,
        /// The tensor whose turn it is.
        turn: String,
    },
    /// Bytes came after the last tensor was complete.
    #[error("bytes came for tensor {got:?} when all tensors were complete")]
    AllComplete {
        /// The tensor whose bytes came.
        got: String,
    },
    /// More bytes came for a tensor than it has.
    #[error("{got} bytes came for tensor {name:?}, which has room for {left} more")]
    TooMany {
        /// The tensor.
        name: String,
        /// Bytes that came.
        got: u64,
        /// Bytes that it lacked.
        left: u64,
    },
    /// The file was finished before all bytes had come.
    #[error("tensor {name:?} still lacks {left} bytes")]
    Unfinished {
        /// The first tensor that is not complete.
        name: String,
        /// Bytes that it lacks.
        left: u64,
    },
}

/// What a file will hold.
#[derive(Debug)]
pub struct Outline {
    metadata: Metadata,
    alignment: u64,
    names: BTreeSet<String>,
    tensors: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    shape: Vec<u64>,
    kind: TensorType,
    len: u64,
}

impl Outline {
    /// A file with this metadata and no tensors yet. `general.alignment`, if it is there, says
    /// where they begin.
    ///
    /// # Errors
    /// Where a key is empty or too long, or the alignment is not one that the format allows.
    pub fn new(metadata: Metadata) -> Result<Self, WriteError> {
        for (index, (key, _)) in (0..).zip(metadata.iter()) {
            let len = key.len() as u64;
            if !(1..=KEY_BYTES_MAX).contains(&len) {
                return Err(Fault::KeyLength { index, len, max: KEY_BYTES_MAX }.into());
            }
        }
        let alignment = alignment(&metadata)?;
        Ok(Self { metadata, alignment, names: BTreeSet::new(), tensors: Vec::new() })
    }

    /// Adds a tensor after those added before. `shape` has the innermost dimension first.
    ///
    /// # Errors
    /// Where the name is empty, too long or taken, or `kind` cannot store the shape.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: TensorType,
    ) -> Result<(), WriteError> {
        let (index, len) = (self.tensors.len() as u64, name.len() as u64);
        if !(1..=NAME_BYTES_MAX).contains(&len) {
            return Err(Fault::NameLength { index, len, max: NAME_BYTES_MAX }.into());
        }
        let shape: Vec<u64> = shape.iter().map(|&length| length as u64).collect();
        let len = measure(name, &shape, kind)?;
        if !self.names.insert(name.to_owned()) {
            return Err(Fault::DuplicateTensor { name: name.to_owned() }.into());
        }
        self.tensors.push(Planned { name: name.to_owned(), shape, kind, len });
        Ok(())
    }

    /// Writes everything that comes before the tensors' bytes. `out` should be buffered.
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin<W: Write>(self, mut out: W) -> Result<Writer<W>, WriteError> {
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        put_u64(&mut header, self.tensors.len() as u64);
        put_u64(&mut header, self.metadata.iter().count() as u64);
        for (key, value) in self.metadata.iter() {
            put_text(&mut header, key);
            put_value(&mut header, key, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_text(&mut header, &tensor.name);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|&length| put_u64(&mut header, length));
            header.extend(tensor.kind.id().to_le_bytes());
            put_u64(&mut header, offset);
            // Every length is below 2^63, so that one sum cannot wrap; a file of such a size
            // cannot be written to any disk, so a saturated offset is never reached.
            offset = offset.saturating_add(tensor.len.next_multiple_of(self.alignment));
        }
        header.resize(header.len().next_multiple_of(self.alignment as usize), 0);
        out.write_all(&header)?;
        let alignment = self.alignment;
        Ok(Writer { out, tensors: self.tensors, alignment, turn: 0, written: 0 })
    }
}

/// A file whose tensors' bytes are being written.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    tensors: Vec<Planned>,
    alignment: u64,
    /// Which tensor is being written.
    turn: usize,
    /// How many of its bytes have come.
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the next `bytes` of the tensor `name`. A tensor may come in any number of pieces,
    /// but the tensors must come whole and in the outline's order.
    ///
    /// # Errors
    /// Where it is another tensor's turn, the tensor has fewer bytes, or `out` fails.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let Some(tensor) = self.tensors.get(self.turn) else {
            return Err(WriteError::AllComplete { got: name.to_owned() });
        };
        if tensor.name != name {
            let turn = tensor.name.clone();
            return Err(WriteError::OutOfTurn { got: name.to_owned(), turn });
        }
        let (got, left) = (bytes.len() as u64, tensor.len - self.written);
        if got > left {
            return Err(WriteError::TooMany { name: name.to_owned(), got, left });
        }
        self.out.write_all(bytes)?;
        self.written += got;
        if got == left {
            let gap = tensor.len.next_multiple_of(self.alignment) - tensor.len;
            // The alignment is at most 64 KiB.
            self.out.write_all(&vec![0; gap as usize])?;
            (self.turn, self.written) = (self.turn + 1, 0);
        }
        Ok(())
    }

    /// Ends the file and gives back what it was written to, flushed.
    ///
    /// # Errors
    /// Where a tensor is not complete, or `out` fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(tensor) = self.tensors.get(self.turn) {
            let (name, left) = (tensor.name.clone(), tensor.len - self.written);
            return Err(WriteError::Unfinished { name, left });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend(n.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend(text.as_bytes());
}

/// Writes a value's type and the value. Other readers expect the usual 32-bit types under the
/// usual keys, so a number is written in 32 bits if it keeps its value there.
fn put_value(out: &mut Vec<u8>, key: &str, value: &Value) {
    let mut put = |id: u32, raw: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(raw);
    };
    match value {
        // The format's one exception: these two have 16 bits.
        Value::Unsigned(n) if [split::NUMBER_KEY, split::COUNT_KEY].contains(&key) => {
            match u16::try_from(*n) {
                Ok(n) => put(2, &n.to_le_bytes()),
                Err(_) => put(10, &n.to_le_bytes()),
            }
        }
        Value::Unsigned(n) => match u32::try_from(*n) {
            Ok(n) => put(4, &n.to_le_bytes()),
            Err(_) => put(10, &n.to_le_bytes()),
        },
        Value::Signed(n) => match i32::try_from(*n) {
            Ok(n) => put(5, &n.to_le_bytes()),
            Err(_) => put(11, &n.to_le_bytes()),
        },
        // Compared by bits, so that a NaN keeps its own.
        Value::Float(x) if f64::from(*x as f32).to_bits() == x.to_bits() => {
            put(6, &(*x as f32).to_le_bytes());
        }
        Value::Float(x) => put(12, &x.to_le_bytes()),
        Value::Bool(b) => put(7, &[u8::from(*b)]),
        Value::String(text) => {
            put(8, &[]);
            put_text(out, text);
        }
        Value::Strings(list) => {
            put_array(out, 8, list.len());
            list.iter().for_each(|text| put_text(out, text));
        }
        Value::Integers(list) if list.iter().all(|&n| i32::try_from(n).is_ok()) => {
            put_array(out, 5, list.len());
            list.iter().for_each(|&n| out.extend((n as i32).to_le_bytes()));
        }
        Value::Integers(list) => {
            put_array(out, 11, list.len());
            list.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        Value::Floats(list) => {
            put_array(out, 6, list.len());
            list.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Value::Bools(list) => {
            put_array(out, 7, list.len());
            out.extend(list.iter().map(|&b| u8::from(b)));
        }
    }
}

fn put_array(out: &mut Vec<u8>, element: u32, count: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(element.to_le_bytes());
    put_u64(out, count as u64);
}
