//! SentencePiece BPE: a text's characters, joined where the pair is a token, best score first.

use std::borrow::Cow;

use super::merge::{Join, Merger};
use super::seam::Seams;
use super::spelling::{marked, unmark};
use super::vocabulary::{Kind, Vocabulary};
use super::{TokenizerError, Work};
use crate::gguf::Metadata;

/// Stands for a character that is no token.
const NO_TOKEN: u32 = u32::MAX;

/// Most bytes merged at once; positions are 32 bits wide. Longer texts are cut.
const PART_BYTES_MAX: usize = 1 << 30;

/// The scores of a model.
#[derive(Debug)]
pub(super) struct Spm {
    /// By token; lower is sooner.
    ranks: Vec<u32>,
    seams: Seams,
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether a text is given a space before it, so that its first word is like the others.
    pub leading_space: bool,
}

impl Spm {
    /// Reads `tokenizer.ggml.scores`.
    pub fn read(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let wanted = vocabulary.len();
        let ranks: Vec<u32> = match (metadata.floats(SCORES), metadata.integers(SCORES)) {
            (Some(scores), _) => scores.iter().take(wanted).map(|score| rank(*score)).collect(),
            (_, Some(scores)) => {
                scores.iter().take(wanted).map(|score| rank(*score as f32)).collect()
            }
            (None, None) => return Err(TokenizerError::Missing(SCORES)),
        };
        if ranks.len() < wanted {
            return Err(TokenizerError::Short { key: SCORES, found: ranks.len(), wanted });
        }
        let mut bytes = Box::new([None; 256]);
        for byte in 0..=u8::MAX {
            let named = vocabulary.id_of(&format!("<0x{byte:02X}>"));
            bytes[usize::from(byte)] = named.or_else(|| vocabulary.token(&[byte]));
        }
        let leading_space = metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        Ok(Self { ranks, seams: Seams::of(vocabulary), bytes, unknown, leading_space })
    }

    /// Appends the tokens of `text`, which has no special tokens and is the first text, or the
    /// first after a special token, if `first`.
    pub fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        first: bool,
        work: &mut Work,
        out: &mut Vec<u32>,
    ) {
        let mut text = unmark(text);
        if first && self.leading_space {
            text = Cow::Owned(format!(" {text}"));
        }
        let mut rest: &str = &text;
        while !rest.is_empty() {
            let mut end = rest.len().min(PART_BYTES_MAX);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            self.part(vocabulary, &rest[..end], work, out);
            rest = &rest[end..];
        }
    }

    fn part(&self, vocabulary: &Vocabulary, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        work.merger.clear();
        let (mut start, mut last) = (0, None);
        for c in text.chars() {
            if last.is_some_and(|last| self.seams.between(last, c)) {
                self.merge(vocabulary, text, &mut work.merger, out);
            }
            let len = c.len_utf8();
            let token = vocabulary.token(&text.as_bytes()[start..start + len]);
            work.merger.push(start as u32, len as u32, token.unwrap_or(NO_TOKEN));
            start += len;
            last = Some(c);
        }
        self.merge(vocabulary, text, &mut work.merger, out);
    }

    /// Merges what has been pushed, and makes room for more.
    fn merge(&self, vocabulary: &Vocabulary, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let stretch = |start: u32, len: u32| &text.as_bytes()[start as usize..][..len as usize];
        let merged = merger.merge(|left, right| {
            let len = left.len + right.len;
            if len as usize > vocabulary.longest() {
                return None;
            }
            let id = vocabulary.token(stretch(left.start, len))?;
            Some(Join { rank: self.ranks[id as usize], id })
        });
        for symbol in merged {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
            } else {
                self.fall_back(marked(stretch(symbol.start, symbol.len)), out);
            }
        }
        merger.clear();
    }

    /// A character that is no token: its bytes, or the unknown token where there are none.
    fn fall_back(&self, character: &[u8], out: &mut Vec<u32>) {
        let tokens: Option<Vec<u32>> =
            character.iter().map(|byte| self.bytes[usize::from(*byte)]).collect();
        match tokens {
            Some(tokens) => out.extend(tokens),
            None => out.extend(self.unknown),
        }
    }
}

/// Orders as scores do, highest first; no number comes last.
fn rank(score: f32) -> u32 {
    // Adding zero makes -0 and 0 the same bits.
    let bits = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 }.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// The token that stands for what is unknown: named by the file, or marked so.
pub(super) fn unknown(metadata: &Metadata, vocabulary: &Vocabulary) -> Option<u32> {
    let named =
        metadata.u64("tokenizer.ggml.unknown_token_id").and_then(|id| u32::try_from(id).ok());
    let marked = |id: &u32| vocabulary.kind(*id) == Kind::Unknown;
    named.filter(|id| (*id as usize) < vocabulary.len()).or(Some(0).filter(marked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fall_as_scores_rise() {
        let scores = [f32::INFINITY, 7.5, 0.0, -0.5, -1e9, f32::NEG_INFINITY];
        let ranks = scores.map(rank);
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(rank(-0.0), rank(0.0));
        assert_eq!(rank(f32::NAN), rank(f32::NEG_INFINITY));
    }
}
