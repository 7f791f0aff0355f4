//! What a model would take, part by part, from its file's header alone.
//!
//! [`Blueprint::read`] looks at no weight, so it also answers for a file of which only the header
//! is here. **Invariant:** what it says of a part is what loading that part then takes.

use std::ops::Range;
use std::path::Path;

use crate::arch::Arch;
use crate::engine::{Ends, LoadError, Part, model_name, shape};
use crate::gguf::{Gguf, TensorInfo};
use crate::weights::{matrices, packed_bytes};

/// A model before it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Half-blocks, two for each layer.
    pub halves: usize,
    /// Residual width.
    pub width: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Tokens that it was trained to attend over.
    pub context_length: usize,
    /// Size of the files, bytes.
    pub file_bytes: u64,
    /// Packed bytes in memory of the ends. An embedding with a matrix of its own stays in the file.
    pub ends_bytes: u64,
    /// Multiply-adds of the last matrix for a row of logits.
    pub ends_macs: u64,
    /// Packed bytes in memory of each half-block.
    pub half_bytes: Vec<u64>,
    /// Multiply-adds of each half-block's matrices for a token.
    pub half_macs: Vec<u64>,
    /// KV cache of an attention half for one token of context, bytes; others have none.
    pub kv_bytes_per_position: u64,
    arch: Arch,
}

impl Blueprint {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// As [`crate::engine::Model::load`], of what a header can have wrong. The tokeniser is not
    /// looked at.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let file = Gguf::open(path)?;
        let name = model_name(&file, path);
        Self::of(&file, name)
    }

    /// Of `file`, whose model is called `name`.
    ///
    /// # Errors
    /// As [`Blueprint::read`].
    pub fn of(file: &Gguf, name: String) -> Result<Self, LoadError> {
        let arch = Arch::outline(file)?;
        let tensor = |name: &str| -> &TensorInfo {
            file.tensor(name).expect("the description checked that it is there")
        };
        let output = tensor(arch.output_tensor().name());
        let of_half = |half: usize, count: fn(&TensorInfo) -> u64| -> u64 {
            let own = matrices(half).iter().map(|matrix| count(tensor(&matrix.name(half / 2))));
            own.sum()
        };
        let halves = 2 * arch.layers.len();
        Ok(Self {
            name,
            architecture: arch.name.to_owned(),
            layers: arch.layers.len(),
            halves,
            width: arch.width,
            vocabulary: arch.vocab,
            context_length: arch.context_length,
            file_bytes: file.file_bytes(),
            ends_bytes: bytes(output),
            ends_macs: macs(output),
            half_bytes: (0..halves).map(|half| of_half(half, bytes)).collect(),
            half_macs: (0..halves).map(|half| of_half(half, macs)).collect(),
            kv_bytes_per_position: shape(&arch, &(0..1)).bytes_per_position() as u64,
            arch,
        })
    }

    /// The whole model.
    pub fn whole(&self) -> Part {
        Part::whole(self.halves)
    }

    /// Packed bytes in memory of `part`; half-blocks that the model has not count nothing.
    pub fn weight_bytes(&self, part: &Part) -> u64 {
        let ends = if part.ends == Ends::Here { self.ends_bytes } else { 0 };
        let halves = self.half_bytes.get(self.within(&part.halves));
        ends + halves.unwrap_or_default().iter().sum::<u64>()
    }

    /// KV cache of `halves` for one token of context, bytes.
    pub fn kv_bytes_per_token(&self, halves: &Range<usize>) -> u64 {
        shape(&self.arch, &self.within(halves)).bytes_per_position() as u64
    }

    /// Bytes of a page of [`crate::engine::PAGE`] positions for stages of `halves`.
    pub fn page_bytes(&self, halves: &Range<usize>) -> u64 {
        shape(&self.arch, &self.within(halves)).page_bytes() as u64
    }

    /// Multiply-adds of the matrices in `part` for a token with logits.
    pub fn macs(&self, part: &Part) -> u64 {
        let ends = if part.ends == Ends::Here { self.ends_macs } else { 0 };
        let halves = self.half_macs.get(self.within(&part.halves));
        ends + halves.unwrap_or_default().iter().sum::<u64>()
    }

    /// Which of `halves` the model has.
    fn within(&self, halves: &Range<usize>) -> Range<usize> {
        let end = halves.end.min(self.halves);
        halves.start.min(end)..end
    }
}

fn bytes(matrix: &TensorInfo) -> u64 {
    packed_bytes(matrix) as u64
}

fn macs(matrix: &TensorInfo) -> u64 {
    matrix.shape.iter().map(|&n| n as u64).product()
}
