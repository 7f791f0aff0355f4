//! Which bytes of a model's files each part of the model lies in, for those who exchange them.
//!
//! [`FileParts::read`] looks at headers alone, so it also answers for files that have their full
//! length and nothing but holes behind the header.
//!
//! **Invariant:** every byte of every file belongs to exactly one part, and so to exactly one chunk.
//! What a file has between two tensors goes with the one before, and what stands before the first
//! with the head. Whoever has the head and the parts that he loads has all that loading reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::arch::{Arch, LayerTensor, ModelTensor};
use crate::engine::{Ends, LoadError, Part};
use crate::gguf::{Gguf, TensorInfo};

/// The largest chunk, bytes: small enough to hold many in memory at once and to lose little when
/// one is sent again, large enough that asking costs nothing beside it.
pub const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// A part of a model as files have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilePart {
    /// What everybody needs: headers, and RoPE's factors, if there are any.
    Head,
    /// Embedding, last norm and output matrix.
    Ends,
    /// A half-block.
    Half(usize),
}

/// Bytes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Which of the files, from 0.
    pub file: usize,
    /// Where in it.
    pub range: Range<u64>,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Its name, without folders.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Where the parts of a model lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileParts {
    files: Vec<ModelFile>,
    halves: usize,
    /// By part, in the files' order: a range for each tensor, and for what stands before them.
    ranges: BTreeMap<FilePart, Vec<Chunk>>,
}

impl FileParts {
    /// Of the file at `path`; for the first file of a split model, of all of them.
    ///
    /// # Errors
    /// As [`crate::engine::Model::load`], of what a header can have wrong.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        Self::of(&Gguf::open(path)?)
    }

    /// Of `file`.
    ///
    /// # Errors
    /// As [`FileParts::read`].
    pub fn of(file: &Gguf) -> Result<Self, LoadError> {
        let arch = Arch::outline(file)?;
        let owners = owners(&arch);
        let files = file.files().map(|(path, bytes)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ModelFile { name, bytes }
        });
        let files: Vec<ModelFile> = files.collect();
        let mut ranges: BTreeMap<FilePart, Vec<Chunk>> = BTreeMap::new();
        for (number, of) in files.iter().enumerate() {
            let mut tensors: Vec<&TensorInfo> =
                file.tensors().filter(|tensor| tensor.part == number).collect();
            tensors.sort_unstable_by_key(|tensor| tensor.offset);
            let owner = |tensor: &&TensorInfo| {
                let part = owners.get(&tensor.name).copied();
                part.expect("the description checked that there are no others")
            };
            // Each begins where it begins, and ends where the next does.
            let own = tensors.iter().map(|tensor| (owner(tensor), tensor.offset as u64));
            let starts: Vec<(FilePart, u64)> =
                [(FilePart::Head, 0)].into_iter().chain(own).collect();
            let ends = starts.iter().skip(1).map(|&(_, start)| start).chain([of.bytes]);
            for (&(part, start), end) in starts.iter().zip(ends) {
                let range = Chunk { file: number, range: start..end };
                ranges.entry(part).or_default().push(range);
            }
        }
        Ok(Self { files, halves: 2 * arch.layers.len(), ranges })
    }

    /// The files, in order.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// All parts: the head, the ends, and each half-block.
    pub fn all(&self) -> impl Iterator<Item = FilePart> + use<> {
        let halves = (0..self.halves).map(FilePart::Half);
        [FilePart::Head, FilePart::Ends].into_iter().chain(halves)
    }

    /// The parts that loading `part` reads.
    pub fn needed(part: &Part) -> impl Iterator<Item = FilePart> + use<> {
        let ends = (part.ends == Ends::Here).then_some(FilePart::Ends);
        let halves = part.halves.clone().map(FilePart::Half);
        [FilePart::Head].into_iter().chain(ends).chain(halves)
    }

    /// Bytes of a part; 0 where the model has no such part.
    pub fn bytes(&self, part: FilePart) -> u64 {
        self.ranges(part).iter().map(|chunk| chunk.range.end - chunk.range.start).sum()
    }

    /// A part in chunks of at most [`CHUNK_BYTES_MAX`], in the files' order. None is empty, none
    /// crosses from one tensor to another, and everyone who has the header gets the same.
    pub fn chunks(&self, part: FilePart) -> impl Iterator<Item = Chunk> + '_ {
        self.ranges(part).iter().flat_map(|whole| {
            let Range { start, end } = whole.range;
            let count = (end - start).div_ceil(CHUNK_BYTES_MAX);
            (0..count).map(move |i| {
                let first = start + i * CHUNK_BYTES_MAX;
                // Within the range, so that nothing wraps.
                let last = first + CHUNK_BYTES_MAX.min(end - first);
                Chunk { file: whole.file, range: first..last }
            })
        })
    }

    fn ranges(&self, part: FilePart) -> &[Chunk] {
        self.ranges.get(&part).map_or(&[], |ranges| ranges)
    }
}

/// Whose each tensor is, by name.
fn owners(arch: &Arch) -> BTreeMap<String, FilePart> {
    let once = [
        (ModelTensor::RopeFactors, FilePart::Head),
        (ModelTensor::Embedding, FilePart::Ends),
        (ModelTensor::Output, FilePart::Ends),
        (ModelTensor::OutputNorm, FilePart::Ends),
    ];
    let once = once.map(|(tensor, part)| (tensor.name().to_owned(), part));
    let layers = (0..arch.layers.len()).flat_map(|layer| {
        let own = LayerTensor::ALL.into_iter();
        own.map(move |tensor| (tensor.name(layer), FilePart::Half(tensor.half(layer))))
    });
    once.into_iter().chain(layers).collect()
}
