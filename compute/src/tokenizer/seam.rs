//! Where a text can be cut without changing its tokens.

use super::vocabulary::Vocabulary;

/// 2^21 bits: 256 KB, an eighth full with the largest known vocabulary.
const WORDS: usize = 1 << 15;

/// Which characters stand side by side in some token. Between two that never do, nothing can be
/// joined, so what is on each side may be merged by itself: words, in most texts.
///
/// A set that may hold more than was put into it, never less: then a text is cut less often.
#[derive(Debug)]
pub(super) struct Seams {
    bits: Vec<u64>,
}

impl Seams {
    /// Of all tokens that text can become.
    pub fn of(vocabulary: &Vocabulary) -> Self {
        let mut bits = vec![0; WORDS];
        for token in vocabulary.spelled() {
            let Ok(text) = std::str::from_utf8(token) else { continue };
            for (one, other) in text.chars().zip(text.chars().skip(1)) {
                let (word, bit) = place(one, other);
                bits[word] |= bit;
            }
        }
        Self { bits }
    }

    /// Whether no token has `one` before `other`.
    #[inline]
    pub fn between(&self, one: char, other: char) -> bool {
        let (word, bit) = place(one, other);
        self.bits[word] & bit == 0
    }
}

#[inline]
fn place(one: char, other: char) -> (usize, u64) {
    // The golden ratio spreads neighbouring code points.
    let pair = u64::from(one) << 32 | u64::from(other);
    let hash = (pair ^ pair >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash >> 49) as usize % WORDS, 1 << (hash >> 43 & 63))
}
