//! Reads everything in a file before the tensors' bytes, and checks where those lie.

use std::collections::{BTreeMap, BTreeSet};

use super::cursor::Cursor;
use super::error::Fault;
use super::metadata::{Metadata, Value};
use super::tensor::{TensorInfo, TensorType, check_dimensions, foreign_name, measure};
use super::value::Values;

/// The longest header read, bytes. A vocabulary of 300,000 tokens with merges takes about 16 MB.
pub(super) const HEADER_BYTES_MAX: usize = 128 << 20;
/// The most metadata keys. Models have fewer than 100; merged adapters a few hundred.
pub(super) const KEYS_MAX: u64 = 1 << 16;
/// The most tensors in a file. A model of 61 layers with stacked experts has about 1,100.
pub(super) const TENSORS_MAX: u64 = 1 << 16;
/// The longest key, bytes: the format's own bound.
pub(super) const KEY_BYTES_MAX: u64 = 65_535;
/// The longest tensor name, bytes: the format's own bound.
pub(super) const NAME_BYTES_MAX: u64 = 64;
/// Where tensors begin if the file does not say, bytes.
pub(super) const ALIGNMENT_DEFAULT: u64 = 32;
/// The least alignment, bytes: the format asks for a multiple of 8.
pub(super) const ALIGNMENT_MIN: u64 = 8;
/// The greatest alignment, bytes: the largest page of any machine in use.
pub(super) const ALIGNMENT_MAX: u64 = 64 << 10;

/// A key's length, one letter, a type and one byte of value.
const KEY_SIZE_MIN: u64 = 8 + 1 + 4 + 1;
/// A name's length, one letter, the number of dimensions, one of them, a type and an offset.
const TENSOR_SIZE_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// How much of a key an error shows, characters.
const SHOWN_MAX: usize = 80;
/// The types that are read, for the error that says so.
const KNOWN_TYPES: &str =
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS";

/// What a file says of itself, checked.
#[derive(Debug)]
pub(super) struct Header {
    /// Bytes before the tensors' own.
    pub len: usize,
    pub metadata: Metadata,
    /// In the file's order; names are unique.
    pub tensors: Vec<TensorInfo>,
}

/// Reads the header of a whole file's `bytes`, which is number `part` of its model.
pub(super) fn read(bytes: &[u8], part: usize) -> Result<Header, Fault> {
    let from = &mut Cursor::new(bytes, HEADER_BYTES_MAX);
    preamble(from)?;
    let tensors_count = from.u64("the number of tensors")?;
    let keys_count = from.u64("the number of metadata keys")?;
    within(tensors_count, TENSORS_MAX, "tensors")?;
    within(keys_count, KEYS_MAX, "metadata keys")?;
    // Both counts are judged before the first key is read: an absurd one says most plainly that
    // the file is damaged.
    from.holds(keys_count, KEY_SIZE_MIN, "metadata keys")?;
    from.holds(tensors_count, TENSOR_SIZE_MIN, "tensors")?;

    let metadata = pairs(from, keys_count)?;
    let alignment = alignment(&metadata)?;
    let entries = entries(from, tensors_count)?;
    let data_begin = from.position().next_multiple_of(alignment);
    let place = Place { part, data_begin, alignment, file_len: bytes.len() as u64 };
    let tensors: Vec<TensorInfo> =
        entries.into_iter().map(|entry| place.tensor(entry)).collect::<Result<_, _>>()?;
    apart(&tensors)?;
    let len = (from.position() as usize).min(bytes.len());
    Ok(Header { len, metadata, tensors })
}

/// As much of a name as an error should show: it comes from a stranger and may be long.
pub(super) fn shown(name: &str) -> String {
    match name.char_indices().nth(SHOWN_MAX) {
        Some((cut, _)) => format!("{}...", &name[..cut]),
        None => name.to_owned(),
    }
}

fn within(count: u64, max: u64, what: &'static str) -> Result<(), Fault> {
    if count > max { Err(Fault::TooMany { what, count, max }) } else { Ok(()) }
}

/// Magic and version.
fn preamble(from: &mut Cursor<'_>) -> Result<(), Fault> {
    let magic = from.take(4, "the first four bytes")?;
    if magic != b"GGUF" {
        let found = String::from_utf8_lossy(magic).into_owned();
        return Err(Fault::Magic { found, hint: guess(magic) });
    }
    let version = from.u32("the version")?;
    match version {
        2 | 3 => Ok(()),
        // No version has more than 16 bits, so one that does was written the other way round.
        _ if version & 0xffff == 0 && version != 0 => {
            Err(Fault::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(Fault::Version { version }),
    }
}

/// What people hand over instead of a model.
fn guess(magic: &[u8]) -> &'static str {
    match magic {
        b"vers" => ": it seems to be a Git LFS pointer; fetch the file itself",
        b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => {
            ": it seems to be a web page; use the link that downloads the file"
        }
        b"PK\x03\x04" => ": it seems to be a zip or PyTorch file; convert it to GGUF first",
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => {
            ": it seems to be an old GGML file; download a GGUF conversion"
        }
        _ => "",
    }
}

fn pairs(from: &mut Cursor<'_>, count: u64) -> Result<Metadata, Fault> {
    let mut pairs = BTreeMap::new();
    let mut values = Values::new();
    for index in 0..count {
        let len = from.u64("a key's length")?;
        if !(1..=KEY_BYTES_MAX).contains(&len) {
            return Err(Fault::KeyLength { index, len, max: KEY_BYTES_MAX });
        }
        let key = text(from.take(len, "a metadata key")?, "metadata key")?;
        let value = values.read(from, &key)?;
        if pairs.contains_key(&key) {
            return Err(Fault::DuplicateKey { key: shown(&key) });
        }
        pairs.insert(key, value);
    }
    Ok(Metadata(pairs))
}

/// A key or a tensor's name.
fn text(raw: &[u8], what: &'static str) -> Result<String, Fault> {
    // Copied first, then judged: see `part.rs` on files that change below the map.
    String::from_utf8(raw.to_vec()).map_err(|error| {
        let name = shown(&String::from_utf8_lossy(error.as_bytes()));
        Fault::NotUtf8 { what, name }
    })
}

/// The file's alignment, bytes: what every tensor's place is a multiple of.
pub(super) fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    let alignment = match metadata.get("general.alignment") {
        None => ALIGNMENT_DEFAULT,
        Some(Value::Unsigned(n)) => *n,
        Some(_) => return Err(Fault::AlignmentType),
    };
    if alignment.is_power_of_two() && (ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment) {
        return Ok(alignment);
    }
    Err(Fault::Alignment { alignment, min: ALIGNMENT_MIN, max: ALIGNMENT_MAX })
}

/// A tensor as the file lists it, before its place is known.
struct Entry {
    name: String,
    shape: Vec<u64>,
    type_id: u32,
    offset: u64,
}

fn entries(from: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, Fault> {
    let mut entries = Vec::with_capacity(from.holds(count, TENSOR_SIZE_MIN, "tensors")?);
    for index in 0..count {
        entries.push(entry(from, index)?);
    }
    let mut names = BTreeSet::new();
    match entries.iter().find(|entry| !names.insert(&entry.name)) {
        Some(twice) => Err(Fault::DuplicateTensor { name: twice.name.clone() }),
        None => Ok(entries),
    }
}

fn entry(from: &mut Cursor<'_>, index: u64) -> Result<Entry, Fault> {
    let len = from.u64("a tensor's name length")?;
    if !(1..=NAME_BYTES_MAX).contains(&len) {
        return Err(Fault::NameLength { index, len, max: NAME_BYTES_MAX });
    }
    let name = text(from.take(len, "a tensor's name")?, "tensor name")?;
    let count = from.u32("a tensor's number of dimensions")?;
    // Before the shape is read: the count says how much to read.
    check_dimensions(&name, count.into())?;
    let mut shape = Vec::with_capacity(count as usize);
    for _ in 0..count {
        shape.push(from.u64("a tensor's shape")?);
    }
    let type_id = from.u32("a tensor's type")?;
    let offset = from.u64("a tensor's offset")?;
    Ok(Entry { name, shape, type_id, offset })
}

/// What is the same for all tensors of one file.
struct Place {
    part: usize,
    data_begin: u64,
    alignment: u64,
    file_len: u64,
}

impl Place {
    /// Checks one tensor's type, size and place.
    fn tensor(&self, entry: Entry) -> Result<TensorInfo, Fault> {
        let name = entry.name;
        let Some(kind) = TensorType::from_id(entry.type_id) else {
            let id = entry.type_id;
            let label = foreign_name(id).map_or_else(|| format!("type {id}"), str::to_owned);
            return Err(Fault::UnknownType { name, id, label, known: KNOWN_TYPES });
        };
        let len = measure(&name, &entry.shape, kind)?;
        if !entry.offset.is_multiple_of(self.alignment) {
            let (offset, alignment) = (entry.offset, self.alignment);
            return Err(Fault::Misaligned { name, offset, alignment });
        }
        let begin = self.data_begin.saturating_add(entry.offset);
        if begin.checked_add(len).is_none_or(|end| end > self.file_len) {
            return Err(Fault::BeyondEnd { name, begin, len, file_len: self.file_len });
        }
        Ok(TensorInfo {
            name,
            // Within the file's length, which is a usize; `measure` has checked the dimensions.
            shape: entry.shape.iter().map(|&length| length as usize).collect(),
            kind,
            part: self.part,
            offset: begin as usize,
            len: len as usize,
        })
    }
}

/// Checks that no two tensors share bytes.
fn apart(tensors: &[TensorInfo]) -> Result<(), Fault> {
    let mut by_place: Vec<&TensorInfo> = tensors.iter().collect();
    by_place.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_place.windows(2) {
        if pair[0].offset + pair[0].len > pair[1].offset {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(Fault::Overlap { first, second });
        }
    }
    Ok(())
}
