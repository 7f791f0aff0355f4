//! Which class a character is in, by Unicode 15.1.
//!
//! **Invariant:** the version is pinned. Every node must split a text alike, and a newer table
//! would make letters of what older ones call unassigned.

mod table;

use std::sync::OnceLock;

use table::CHANGES;

/// What the pre-tokenisers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    /// Controls, format characters, unassigned.
    Other,
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
    /// `\p{M}`.
    Mark,
    /// `\p{P}`.
    Punctuation,
    /// `\p{S}`.
    Symbol,
    /// `\s`: the White_Space property.
    Space,
}

/// The class of `c`.
#[inline]
pub(super) fn class(c: char) -> Class {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::new).class(c as usize)
}

const BLOCK: usize = 256;
const BLOCKS: usize = 0x110000 / BLOCK;

/// Two steps: which block of 256 classes, then which class. Equal blocks are kept once.
struct Table {
    block_of: Box<[u16; BLOCKS]>,
    blocks: Vec<[Class; BLOCK]>,
}

impl Table {
    fn new() -> Self {
        let mut block_of = Box::new([0; BLOCKS]);
        let mut blocks: Vec<[Class; BLOCK]> = Vec::new();
        let mut change = 0;
        for (number, slot) in block_of.iter_mut().enumerate() {
            let mut block = [Class::Other; BLOCK];
            for (offset, class) in block.iter_mut().enumerate() {
                let point = (number * BLOCK + offset) as u32;
                while CHANGES.get(change + 1).is_some_and(|next| next >> 3 <= point) {
                    change += 1;
                }
                *class = numbered(CHANGES[change] & 7);
            }
            // Searched from the back: neighbours are alike (Han, Hangul, the unassigned planes).
            let found = blocks.iter().rposition(|known| *known == block);
            let index = found.unwrap_or_else(|| {
                blocks.push(block);
                blocks.len() - 1
            });
            *slot = index as u16;
        }
        Self { block_of, blocks }
    }

    #[inline]
    fn class(&self, point: usize) -> Class {
        self.blocks[self.block_of[point / BLOCK] as usize][point % BLOCK]
    }
}

fn numbered(number: u32) -> Class {
    use Class::*;
    [Other, Letter, Number, Mark, Punctuation, Symbol, Space][number as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_unicode_15_1() {
        let mut counts = [0; 7];
        for c in '\0'..=char::MAX {
            counts[class(c) as usize] += 1;
        }
        // As UnicodeData 15.1 counts letters, numbers, marks, punctuation, symbols, white space.
        assert_eq!(counts[1..], [136_726, 1_831, 2_450, 842, 7_775, 25]);
        // Surrogates are no `char`s.
        assert_eq!(counts.iter().sum::<u32>(), 0x110000 - 0x800);
    }

    #[test]
    fn white_space_is_what_rust_calls_so() {
        for c in '\0'..=char::MAX {
            assert_eq!(class(c) == Class::Space, c.is_whitespace(), "{c:?}");
        }
    }
}
