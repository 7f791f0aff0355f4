//! Bytes to words and back: one encoding a word, and a bound on each.

use thiserror::Error;

/// Why bytes were not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    /// More bytes than any honest word has.
    #[error("{what} of {size} bytes, where {max} are the most")]
    TooLong {
        /// The word.
        what: &'static str,
        /// Bytes that came.
        size: usize,
        /// Bytes that may come.
        max: usize,
    },
    /// They are no message of this kind.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// The word.
        what: &'static str,
        /// Where reading failed.
        why: String,
    },
    /// The same word would be written with other bytes.
    #[error("{what} is not in its one encoding")]
    NotCanonical {
        /// The word.
        what: &'static str,
    },
    /// A field is outside its range.
    #[error("{what}: {field} is out of range: {why}")]
    OutOfRange {
        /// The word.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// What it is, and what it may be.
        why: String,
    },
}

/// A message that may come from anybody.
pub trait Word: prost::Message + Default {
    /// What it is called when it is refused.
    const NAME: &'static str;
    /// Bytes that it takes at most.
    const BYTES_MAX: usize;

    /// Whether every field is in its range.
    ///
    /// # Errors
    /// The first field that is not.
    fn check(&self) -> Checked;
}

/// What a check of ranges has found.
pub type Checked = Result<(), Malformed>;

/// Reads a word from exactly these bytes.
///
/// # Errors
/// See [`Malformed`].
pub fn decode<W: Word>(bytes: &[u8]) -> Result<W, Malformed> {
    let (what, size, max) = (W::NAME, bytes.len(), W::BYTES_MAX);
    if size > max {
        return Err(Malformed::TooLong { what, size, max });
    }
    let unreadable =
        |error: prost::DecodeError| Malformed::Unreadable { what, why: error.to_string() };
    let word = W::decode(bytes).map_err(unreadable)?;
    // Unknown fields, repeated scalars and long numbers would otherwise give one word two hashes.
    if word.encode_to_vec() != bytes {
        return Err(Malformed::NotCanonical { what });
    }
    word.check()?;
    Ok(word)
}

/// The bytes of a word.
pub fn encode<W: Word>(word: &W) -> Vec<u8> {
    word.encode_to_vec()
}

/// Refuses unless `holds`.
pub(crate) fn range<W: Word>(
    field: &'static str,
    holds: bool,
    why: impl FnOnce() -> String,
) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(Malformed::OutOfRange { what: W::NAME, field, why: why() }),
    }
}

/// Refuses bytes that are not `len` long.
pub(crate) fn exactly<W: Word>(field: &'static str, bytes: &[u8], len: usize) -> Checked {
    range::<W>(field, bytes.len() == len, || format!("{} bytes, {len} are wanted", bytes.len()))
}

/// Refuses lists with more than `max` entries.
pub(crate) fn at_most<W: Word>(field: &'static str, count: usize, max: usize) -> Checked {
    range::<W>(field, count <= max, || format!("{count} entries, {max} are the most"))
}

/// Refuses text that is longer than `max` bytes or holds control characters, which could rewrite a
/// terminal.
pub(crate) fn text<W: Word>(field: &'static str, text: &str, max: usize) -> Checked {
    range::<W>(field, text.len() <= max, || format!("{} bytes, {max} are the most", text.len()))?;
    let plain = !text.chars().any(char::is_control);
    range::<W>(field, plain, || "it holds control characters".into())
}
