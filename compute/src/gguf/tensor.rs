//! How tensors are stored, and what is known of each.

use std::fmt;

use super::error::Fault;

/// The most dimensions: the format's own bound.
pub(super) const DIMENSIONS_MAX: usize = 4;

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
    /// Every type that this crate reads, in the format's own order.
    pub const ALL: [TensorType; 15] = {
        use TensorType::*;
        [F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16]
    };
    /// The number that stands for this type in a file.
    pub fn id(self) -> u32 {
        use TensorType::*;
        match self {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q2_K => 10,
            Q3_K => 11,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
            IQ4_NL => 20,
            IQ4_XS => 23,
            BF16 => 30,
        }
    }
    /// The type that a file's number stands for, or `None` where this crate does not read it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }
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

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The variants are spelled as the format spells them.
        fmt::Debug::fmt(self, f)
    }
}

/// What the format calls a type that this crate does not read, so that it can be refused by name.
pub(super) fn foreign_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
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

/// Refuses a number of dimensions that the format does not have.
pub(super) fn check_dimensions(name: &str, count: u64) -> Result<(), Fault> {
    if (1..=DIMENSIONS_MAX as u64).contains(&count) {
        return Ok(());
    }
    Err(Fault::Dimensions { name: name.to_owned(), count, max: DIMENSIONS_MAX as u64 })
}

/// A tensor's size in bytes, where its shape is one that `kind` can store and that this machine
/// can count.
pub(super) fn measure(name: &str, shape: &[u64], kind: TensorType) -> Result<u64, Fault> {
    check_dimensions(name, shape.len() as u64)?;
    let name = || name.to_owned();
    if let Some(axis) = shape.iter().position(|&length| length == 0) {
        return Err(Fault::ZeroDimension { name: name(), axis });
    }
    let (columns, block) = (shape[0], kind.block_len() as u64);
    if !columns.is_multiple_of(block) {
        return Err(Fault::BrokenRow { name: name(), columns, kind, block });
    }
    bytes_of(shape, kind)
        .ok_or_else(|| Fault::ShapeOverflow { name: name(), shape: shape.to_vec() })
}

/// `None` where the bytes, or the elements, are more than this machine can address.
fn bytes_of(shape: &[u64], kind: TensorType) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, &length| product.checked_mul(length))?;
    let len = (elements / kind.block_len() as u64).checked_mul(kind.block_bytes() as u64)?;
    isize::try_from(elements).ok()?;
    isize::try_from(len).ok()?;
    Some(len)
}
