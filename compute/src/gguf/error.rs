//! Why a file was refused: one variant for each rule, with the names and numbers that broke it.

use thiserror::Error;

use super::tensor::TensorType;

/// Why a model file was refused.
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
    /// A folder, pipe or device was named.
    #[error("{path} is not a regular file: name the .gguf file itself")]
    NotAFile {
        /// What was asked for.
        path: String,
    },
    /// The file was written to after it was opened.
    #[error("{path} changed while it was in use: let the download finish, then start again")]
    Changed {
        /// The file.
        path: String,
    },
    /// The file breaks a rule of the format, or holds what this crate does not read.
    #[error("{path}: {fault}{}", fault.advice())]
    Refused {
        /// The file.
        path: String,
        /// The rule.
        fault: Fault,
    },
    /// The file belongs to a split model, and the parts do not fit together.
    #[error("{path}: {fault}")]
    Split {
        /// The file that was opened.
        path: String,
        /// What is wrong.
        fault: SplitFault,
    },
}

/// Which rule of the format a file breaks. Names from the file are cut to a length fit to print.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// It does not begin with `GGUF`.
    #[error("this is not a GGUF file (it begins with {found:?}){hint}")]
    Magic {
        /// The first bytes, as text.
        found: String,
        /// What the file seems to be instead, or empty.
        hint: &'static str,
    },
    /// Its numbers are big-endian.
    #[error("GGUF version {version} in big-endian order is not read")]
    BigEndian {
        /// The version, in the right order.
        version: u32,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {version} is not read, only 2 and 3")]
    Version {
        /// The version.
        version: u32,
    },
    /// It ends in the middle of something.
    #[error("the file ends inside {what} (byte {at}: {need} bytes wanted, {left} left)")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where, bytes from the start of the file.
        at: u64,
        /// Bytes that it says it has.
        need: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// It counts more of something than its bytes could hold.
    #[error("the file says it has {count} {what}, but has room for {fits}")]
    CountBeyondFile {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// The most that the rest of the file could hold.
        fits: u64,
    },
    /// It counts more of something than any model has.
    #[error("the file has {count} {what}; no more than {max} are read")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// Its header is longer than any model's.
    #[error("the header is longer than {max} bytes")]
    HeaderTooLong {
        /// The bound, bytes.
        max: u64,
    },
    /// A key is empty or too long.
    #[error("metadata key {index} has {len} bytes (1 to {max} are allowed)")]
    KeyLength {
        /// Which key, from 0.
        index: u64,
        /// Its length, bytes.
        len: u64,
        /// The bound, bytes.
        max: u64,
    },
    /// Text that must be UTF-8 is not.
    #[error("{what} {name:?} is not UTF-8")]
    NotUtf8 {
        /// What the text is: a key, a value, a tensor's name.
        what: &'static str,
        /// Whose text it is, as far as it can be shown.
        name: String,
    },
    /// A key occurs twice.
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that the format does not have.
    #[error("metadata key {key:?} has unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: u32,
    },
    /// An array of arrays.
    #[error("metadata key {key:?} is an array of arrays, which no model needs")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key:?} holds the boolean {byte} (0 or 1 are allowed)")]
    BoolByte {
        /// The key.
        key: String,
        /// The byte.
        byte: u8,
    },
    /// An array element beyond 63 bits.
    #[error("metadata key {key:?} holds {value}, which is beyond 63 bits")]
    IntegerRange {
        /// The key.
        key: String,
        /// The element.
        value: u64,
    },
    /// `general.alignment` is not a u32.
    #[error("general.alignment must be a 32-bit unsigned integer")]
    AlignmentType,
    /// `general.alignment` is not a power of two in range.
    #[error("general.alignment is {alignment}; a power of two from {min} to {max} is allowed")]
    Alignment {
        /// The value.
        alignment: u64,
        /// The least, bytes.
        min: u64,
        /// The most, bytes.
        max: u64,
    },
    /// A tensor's name is empty or too long.
    #[error("the name of tensor {index} has {len} bytes (1 to {max} are allowed)")]
    NameLength {
        /// Which tensor, from 0.
        index: u64,
        /// The name's length, bytes.
        len: u64,
        /// The bound, bytes.
        max: u64,
    },
    /// A tensor's name occurs twice.
    #[error("tensor {name:?} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor has no dimensions, or too many.
    #[error("tensor {name:?} has {count} dimensions (1 to {max} are allowed)")]
    Dimensions {
        /// The tensor.
        name: String,
        /// How many.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A dimension is zero.
    #[error("tensor {name:?} has length 0 in dimension {axis}")]
    ZeroDimension {
        /// The tensor.
        name: String,
        /// Which dimension, from 0, innermost first.
        axis: usize,
    },
    /// A tensor's size is beyond what numbers here can say.
    #[error("tensor {name:?} of shape {shape:?} is larger than any memory")]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
    },
    /// A tensor is stored in a way that this crate does not read.
    #[error("tensor {name:?} is stored as {label}, which is not read; these are: {known}")]
    UnknownType {
        /// The tensor.
        name: String,
        /// The type's number.
        id: u32,
        /// The type's name, or its number where it has none.
        label: String,
        /// The types that are read.
        known: &'static str,
    },
    /// A tensor's rows do not fill whole blocks.
    #[error("tensor {name:?} has rows of {columns}, which {kind} cannot store (blocks of {block})")]
    BrokenRow {
        /// The tensor.
        name: String,
        /// The row's length.
        columns: u64,
        /// How it is stored.
        kind: TensorType,
        /// The block's length.
        block: u64,
    },
    /// A tensor does not begin on the alignment.
    #[error("tensor {name:?} begins at {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data section, bytes.
        offset: u64,
        /// The file's alignment, bytes.
        alignment: u64,
    },
    /// A tensor does not lie within the file.
    #[error(
        "tensor {name:?} (byte {begin}, {len} long) lies beyond the end of the file, which has \
         {file_len} bytes"
    )]
    BeyondEnd {
        /// The tensor.
        name: String,
        /// Where it begins, bytes from the start of the file.
        begin: u64,
        /// How long it is, bytes.
        len: u64,
        /// How long the file is, bytes.
        file_len: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} share bytes")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
    },
}

impl Fault {
    /// What the user can do about it, to be put after the fault.
    fn advice(&self) -> &'static str {
        match self {
            // Says it by a hint of its own, where there is one.
            Self::Magic { .. } => "",
            Self::BigEndian { .. } => ": download the little-endian file",
            Self::Version { version: 0..=1 } => ": download a newer conversion",
            Self::Version { .. } => ": this program may be too old for the file",
            Self::Truncated { .. } | Self::CountBeyondFile { .. } | Self::BeyondEnd { .. } => {
                ": the file is incomplete or damaged, download it again"
            }
            Self::TooMany { .. } | Self::HeaderTooLong { .. } => {
                ": no language model needs as much, so the file is damaged or none"
            }
            Self::UnknownType { .. } => ": choose a file in one of these types",
            _ => ": download the file again, and if that does not help, another conversion of it",
        }
    }
}

/// How the parts of a split model fail to fit together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SplitFault {
    /// Another part than the first was opened.
    #[error("this is part {number} of {count}: open the first part, {first}")]
    NotFirst {
        /// Which part it is, from 1.
        number: u64,
        /// How many there are.
        count: u64,
        /// What the first part is called.
        first: String,
    },
    /// The file's name does not say where its siblings are.
    #[error(
        "this is one of {count} parts, but its name does not end in {ending}: \
         give all parts the names under which they were published"
    )]
    Name {
        /// How many parts there are.
        count: u64,
        /// The ending that it should have.
        ending: String,
    },
    /// A sibling is not there.
    #[error("part {number} of {count} is missing: download {missing} into the same folder")]
    Missing {
        /// Which part, from 1.
        number: u64,
        /// How many there are.
        count: u64,
        /// The file that was looked for.
        missing: String,
    },
    /// More parts than any model has.
    #[error("the model is split into {count} parts; no more than {max} are read")]
    TooMany {
        /// How many it says there are.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A part belongs to another model, or to another place in this one.
    #[error("{part} has {key} = {found} where {expected} belongs: download all parts again")]
    Disagrees {
        /// The part's file.
        part: String,
        /// The metadata key.
        key: &'static str,
        /// What it has, or `nothing`.
        found: String,
        /// What it should have.
        expected: u64,
    },
    /// The parts together have more or fewer tensors than the first part says.
    #[error("the parts hold {found} tensors where {expected} belong: download all parts again")]
    TensorCount {
        /// How many there should be.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// Two parts hold a tensor of the same name.
    #[error("tensor {name:?} occurs in two parts: download all parts again")]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
}
