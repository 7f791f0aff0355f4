//! Byte-level BPE: words of bytes, joined in the order in which the merges were learned.

use hashbrown::HashMap;

use super::family::Family;
use super::merge::{Join, Merger};
use super::split::split;
use super::vocabulary::Vocabulary;
use super::{TokenizerError, Work};
use crate::gguf::Metadata;

/// Stands for a byte that the vocabulary lacks.
const NO_TOKEN: u32 = u32::MAX;

/// The merges of a model.
#[derive(Debug)]
pub(super) struct Bpe {
    family: &'static Family,
    bytes: Box<[u32; 256]>,
    merges: HashMap<(u32, u32), Join>,
}

impl Bpe {
    /// Reads `tokenizer.ggml.merges`. A merge that names or makes a piece outside the vocabulary
    /// is left out: it could only lose text.
    pub fn read(
        metadata: &Metadata,
        family: &'static Family,
        vocabulary: &Vocabulary,
    ) -> Result<Self, TokenizerError> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let lines = metadata.strings(MERGES).ok_or(TokenizerError::Missing(MERGES))?;
        let mut merges = HashMap::with_capacity(lines.len());
        let mut joined = Vec::new();
        for (rank, line) in lines.iter().enumerate() {
            // A token may itself begin with a space.
            let Some(space) = line.bytes().skip(1).position(|byte| byte == b' ') else { continue };
            let ends = (vocabulary.id_of(&line[..=space]), vocabulary.id_of(&line[space + 2..]));
            let (Some(left), Some(right)) = ends else { continue };
            joined.clear();
            joined.extend_from_slice(vocabulary.raw(left));
            joined.extend_from_slice(vocabulary.raw(right));
            if let Some(id) = vocabulary.token(&joined) {
                // The first of two equal merges counts.
                merges.entry((left, right)).or_insert(Join { rank: rank as u32, id });
            }
        }
        merges.shrink_to_fit();
        let mut bytes = Box::new([NO_TOKEN; 256]);
        for byte in 0..=u8::MAX {
            bytes[usize::from(byte)] = vocabulary.token(&[byte]).unwrap_or(NO_TOKEN);
        }
        Ok(Self { family, bytes, merges })
    }

    /// Appends the tokens of `text`, which has no special tokens.
    pub fn encode(&self, vocabulary: &Vocabulary, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        split(text, self.family.passes, &mut work.ends, &mut work.spare);
        let mut start = 0;
        for &end in &work.ends {
            self.word(vocabulary, &text.as_bytes()[start..end], &mut work.merger, out);
            start = end;
        }
    }

    fn word(&self, vocabulary: &Vocabulary, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        if self.family.whole_words
            && let Some(id) = vocabulary.token(word)
        {
            out.push(id);
            return;
        }
        merger.clear();
        for (at, byte) in word.iter().enumerate() {
            merger.push(at as u32, 1, self.bytes[usize::from(*byte)]);
        }
        let merged = merger.merge(|left, right| self.merges.get(&(left.id, right.id)).copied());
        // A byte that the vocabulary lacks has no token to be.
        out.extend(merged.map(|symbol| symbol.id).filter(|id| *id != NO_TOKEN));
    }
}
