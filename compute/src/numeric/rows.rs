//! Residual rows as bytes: what crosses a wire between two stages.
//!
//! A row of width `w` is `w / 32` exponents, a signed byte each, then `w` mantissas, two bytes each
//! with the low one first. Rows follow one another with nothing between.
//!
//! **Invariant:** since a value has one encoding, equal rows have equal bytes, and bytes that are
//! taken in come out again as they were.

use thiserror::Error;

use super::block::{BlockVec, Blocks, GROUP, check, fault};

/// Why bytes are no rows.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum RowError {
    /// They are not a whole number of rows.
    #[error("{bytes} bytes are not whole rows of {row} bytes; send rows as wide as the model")]
    Length {
        /// Bytes that came.
        bytes: usize,
        /// Bytes of a row.
        row: usize,
    },
    /// A block breaks a rule of the format.
    #[error("row {row}, block {block}: {rule}; send rows as a stage returns them")]
    Block {
        /// The row.
        row: usize,
        /// The block in it.
        block: usize,
        /// Which rule.
        rule: &'static str,
    },
}

/// Bytes of one row of `width`, a multiple of 32.
pub const fn row_bytes(width: usize) -> usize {
    width / GROUP + 2 * width
}

/// Writes `rows`, each of `width`, behind what `to` holds.
///
/// # Panics
/// Where `rows` are not whole rows of `width`, a multiple of 32.
pub fn rows_to_bytes(rows: Blocks, width: usize, to: &mut Vec<u8>) {
    let groups = groups(width);
    assert!(rows.m.len() == GROUP * rows.e.len() && rows.e.len().is_multiple_of(groups));
    to.reserve(rows.e.len() / groups * row_bytes(width));
    for (e, m) in rows.e.chunks_exact(groups).zip(rows.m.chunks_exact(width)) {
        to.extend(e.iter().map(|e| e.to_le_bytes()[0]));
        to.extend(m.iter().flat_map(|m| m.to_le_bytes()));
    }
}

/// Reads rows of `width` into `rows`, whose memory is used again.
///
/// # Errors
/// The bytes are not whole rows, or a block breaks a rule; `rows` is empty then.
///
/// # Panics
/// Where `width` is not a multiple of 32, or 0.
pub fn rows_from_bytes(bytes: &[u8], width: usize, rows: &mut BlockVec) -> Result<(), RowError> {
    let groups = groups(width);
    let row = row_bytes(width);
    let count = bytes.len() / row;
    // What it held is written over below, or forgotten.
    rows.m.resize(count * width, 0);
    rows.e.resize(count * groups, 0);
    let taken = match bytes.len().is_multiple_of(row) {
        true => take(bytes, groups, rows),
        false => Err(RowError::Length { bytes: bytes.len(), row }),
    };
    if taken.is_err() {
        rows.m.clear();
        rows.e.clear();
    }
    taken
}

/// Fills `rows`, each of `groups` blocks, and checks each while it is still near.
fn take(bytes: &[u8], groups: usize, rows: &mut BlockVec) -> Result<(), RowError> {
    let width = groups * GROUP;
    let to = rows.m.chunks_exact_mut(width).zip(rows.e.chunks_exact_mut(groups));
    for (row, (bytes, (m, e))) in bytes.chunks_exact(row_bytes(width)).zip(to).enumerate() {
        let (exponents, mantissas) = bytes.split_at(groups);
        e.iter_mut().zip(exponents).for_each(|(e, byte)| *e = i8::from_le_bytes([*byte]));
        let (pairs, _) = mantissas.as_chunks::<2>();
        m.iter_mut().zip(pairs).for_each(|(m, pair)| *m = i16::from_le_bytes(*pair));
        let own = Blocks { m, e };
        if check(own).is_err() {
            let found = (0..groups).find_map(|g| Some((g, fault(own.block(g))?)));
            let (block, rule) = found.expect("the check found a block at fault");
            return Err(RowError::Block { row, block, rule });
        }
    }
    Ok(())
}

/// Blocks in a row.
fn groups(width: usize) -> usize {
    assert!(width > 0 && width.is_multiple_of(GROUP), "a row is whole blocks, and {width} is not");
    width / GROUP
}
