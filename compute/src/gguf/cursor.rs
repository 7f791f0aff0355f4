//! Walks through a header's bytes and never past them.

use super::error::Fault;

/// A position in a file's first bytes. Every read is checked against what is left.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Set where `bytes` is only the beginning of a longer file.
    limit: Option<u64>,
}

impl<'a> Cursor<'a> {
    /// Over `bytes`, but never further than `max` bytes in.
    pub fn new(bytes: &'a [u8], max: usize) -> Self {
        let limit = (bytes.len() > max).then_some(max as u64);
        Self { bytes: &bytes[..bytes.len().min(max)], at: 0, limit }
    }

    /// Bytes from the start.
    pub fn position(&self) -> u64 {
        self.at as u64
    }

    /// The next `len` bytes, which are `what`.
    pub fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(match self.limit {
                Some(max) => Fault::HeaderTooLong { max },
                None => Fault::Truncated { what, at: self.position(), need: len, left },
            });
        }
        let begin = self.at;
        // No larger than `left`, so it fits.
        self.at += len as usize;
        Ok(&self.bytes[begin..self.at])
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, Fault> {
        Ok(unsigned(self.take(4, what)?) as u32)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, Fault> {
        Ok(unsigned(self.take(8, what)?))
    }

    /// Checks that `count` things of at least `size_min` bytes each could follow. Call it before
    /// memory is asked for: this is what keeps an allocation in proportion to the file.
    pub fn holds(&self, count: u64, size_min: u64, what: &'static str) -> Result<usize, Fault> {
        let fits = (self.bytes.len() - self.at) as u64 / size_min;
        if count <= fits {
            return Ok(count as usize);
        }
        Err(match self.limit {
            Some(max) => Fault::HeaderTooLong { max },
            None => Fault::CountBeyondFile { what, count, fits },
        })
    }
}

/// A little-endian unsigned integer of 1 to 8 bytes.
pub(super) fn unsigned(raw: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..raw.len()].copy_from_slice(raw);
    u64::from_le_bytes(wide)
}

/// A little-endian two's complement integer of 1 to 8 bytes.
pub(super) fn signed(raw: &[u8]) -> i64 {
    let above = 64 - 8 * raw.len() as u32;
    (unsigned(raw) << above) as i64 >> above
}
