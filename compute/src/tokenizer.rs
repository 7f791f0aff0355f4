//! Text to token ids and back, from what the model file itself says.
//!
//! Two kinds of tokeniser: byte-level BPE (`gpt2`), whose families cut text into words by their own
//! rules, and SentencePiece BPE (`llama`). Both give the ids that llama.cpp gives.
//!
//! **Invariant:** every text has tokens and every list of ids has a text; nothing here panics or
//! takes more than O(n log n) time, whatever the text. (A vocabulary may lack some bytes, as that of
//! SmolLM2 does; those are lost, as they are in llama.cpp.)

mod bpe;
mod classes;
mod decode;
mod family;
mod merge;
mod seam;
mod special;
mod spelling;
mod split;
mod spm;
mod vocabulary;

use thiserror::Error;

use crate::gguf::Metadata;
use bpe::Bpe;
use merge::Merger;
use special::{Defaults, Fragment, Special};
use spelling::Spelling;
use spm::Spm;
use vocabulary::{Kind, Vocabulary};

pub use decode::Decoder;

/// Why a tokeniser was refused.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A needed key is absent or malformed.
    #[error("the model file has no usable {0}; convert the model again")]
    Missing(&'static str),
    /// A kind of tokeniser that is not known here.
    #[error("the model file's tokeniser is of kind {kind:?}; known are gpt2 and llama")]
    UnknownKind {
        /// `tokenizer.ggml.model`.
        kind: String,
    },
    /// A pre-tokeniser that is not known here; another one would give the model text that it
    /// cannot read well.
    #[error("the model file's pre-tokeniser is {name:?}; known are {known}")]
    UnknownFamily {
        /// `tokenizer.ggml.pre`.
        name: String,
        /// All that are known.
        known: String,
    },
    /// An array has too few entries.
    #[error("{key} has {found} entries for a vocabulary of {wanted}")]
    Short {
        /// The array.
        key: &'static str,
        /// Entries it has.
        found: usize,
        /// Entries it needs.
        wanted: usize,
    },
    /// Two tokens are the same.
    #[error("tokens {first} and {second} are both {text:?}")]
    Twice {
        /// The one.
        first: u32,
        /// The other.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A token is longer than any real one.
    #[error("token {id} has {bytes} bytes, more than {max}")]
    TooLong {
        /// The token.
        id: u32,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The vocabulary is larger than any real one.
    #[error("the vocabulary has {count} tokens; {max} is the most that is taken")]
    TooMany {
        /// How many tokens it has.
        count: usize,
        /// How many it may have.
        max: usize,
    },
    /// The special tokens are larger than any real ones.
    #[error("the special tokens have more than {max} bytes of text")]
    SpecialText {
        /// How many bytes they may have.
        max: usize,
    },
    /// A byte token whose text is not of the form `<0x0A>`.
    #[error("token {id} is a byte, and its text {text:?} names none")]
    BadByte {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
}

/// What special tokens, such as `<|im_end|>`, mean in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They are text like any other, and none is added.
    Plain,
    /// They are what they say, and BOS and EOS are added if the model wants them.
    Parse,
    /// They are what they say, and none is added: for what a chat template gives.
    ParseOnly,
}

/// A model's tokeniser.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: Special,
    scheme: Scheme,
}

#[derive(Debug)]
enum Scheme {
    Bpe(Bpe),
    Spm(Spm),
}

/// Room to work in, kept from word to word.
#[derive(Debug, Default)]
struct Work {
    merger: Merger,
    ends: Vec<usize>,
    spare: Vec<usize>,
}

impl Tokenizer {
    /// From a file's metadata; `Ok(None)` where the file says that it has no tokeniser, or says
    /// nothing of one. Keeps its own copy of what it needs.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>, TokenizerError> {
        const MODEL: &str = "tokenizer.ggml.model";
        match metadata.str(MODEL) {
            Some("none" | "no_vocab") => Ok(None),
            Some("gpt2") => Self::byte_level(metadata).map(Some),
            Some("llama") => Self::sentence_piece(metadata).map(Some),
            Some(other) => Err(TokenizerError::UnknownKind { kind: other.to_owned() }),
            None if metadata.get(MODEL).is_none()
                && metadata.get("tokenizer.ggml.tokens").is_none() =>
            {
                Ok(None)
            }
            None => Err(TokenizerError::Missing(MODEL)),
        }
    }

    fn byte_level(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let name = metadata.str("tokenizer.ggml.pre").filter(|name| !name.is_empty());
        let name = name.unwrap_or("default");
        let family = family::family(name).ok_or_else(|| TokenizerError::UnknownFamily {
            name: name.to_owned(),
            known: family::known(),
        })?;
        let mut vocabulary = Vocabulary::read(metadata, Spelling::ByteLevel)?;
        let defaults = Defaults { bos: None, eos: None, adds_bos: family.adds_bos };
        let special = Special::read(metadata, &mut vocabulary, defaults)?;
        let scheme = Scheme::Bpe(Bpe::read(metadata, family, &vocabulary)?);
        Ok(Self { vocabulary, special, scheme })
    }

    fn sentence_piece(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocabulary = Vocabulary::read(metadata, Spelling::Spaced)?;
        let defaults = Defaults { bos: Some(1), eos: Some(2), adds_bos: true };
        let unknown = spm::unknown(metadata, &vocabulary);
        let special = Special::read(metadata, &mut vocabulary, defaults)?;
        let scheme = Scheme::Spm(Spm::read(metadata, &vocabulary, unknown)?);
        Ok(Self { vocabulary, special, scheme })
    }

    /// How many tokens there are; ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    /// The tokens of `text`.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        let mut work = Work::default();
        let adds = specials == Specials::Parse;
        if adds && self.special.adds_bos {
            out.extend(self.special.bos);
        }
        let mut after_special = true;
        for fragment in self.special.fragments(text, specials != Specials::Plain) {
            match (fragment, &self.scheme) {
                (Fragment::Token(id), _) => out.push(id),
                (Fragment::Text(text), Scheme::Bpe(bpe)) => {
                    bpe.encode(&self.vocabulary, text, &mut work, &mut out);
                }
                (Fragment::Text(text), Scheme::Spm(spm)) => {
                    spm.encode(&self.vocabulary, text, after_special, &mut work, &mut out);
                }
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        if adds && self.special.adds_eos {
            out.extend(self.special.eos);
        }
        out
    }

    /// The tokens of what a chat template gave: special tokens are parsed, and BOS begins them if
    /// the model wants it and the template has not written it.
    pub fn encode_chat(&self, text: &str) -> Vec<u32> {
        let mut ids = self.encode(text, Specials::ParseOnly);
        if self.special.adds_bos && ids.first().copied() != self.special.bos {
            ids.splice(0..0, self.special.bos);
        }
        ids
    }

    /// The bytes that token `id` adds to a text, which may be a part of a character. Empty for
    /// special tokens and for ids outside the vocabulary.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.vocabulary.piece(id)
    }

    /// Decodes from the start of a text: the space that SentencePiece puts there is taken off.
    pub fn decoder(&self) -> Decoder<'_> {
        let strips = matches!(&self.scheme, Scheme::Spm(spm) if spm.leading_space);
        Decoder::new(self, strips, &[])
    }

    /// Decodes what continues a text, whose first space is its own.
    pub fn continuation(&self) -> Decoder<'_> {
        Decoder::new(self, false, &[])
    }

    /// [`continuation`](Self::continuation), but the special tokens among `shown` appear as their
    /// [text](Self::token_text) and not as nothing: for those that mark the parts of an answer, as
    /// `[TOOL_CALLS]` does.
    pub fn continuation_showing(&self, shown: &[u32]) -> Decoder<'_> {
        Decoder::new(self, false, shown)
    }

    /// The text of `ids`, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text = String::with_capacity(ids.len() * 4);
        for id in ids {
            text.push_str(decoder.push(*id));
        }
        text.push_str(&decoder.finish());
        text
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The token that ends a text. Others may end an answer: [`is_end`](Self::is_end).
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// Whether [`Specials::Parse`] begins with BOS.
    pub fn adds_bos(&self) -> bool {
        self.special.adds_bos
    }

    /// Whether a model that gives `id` has come to the end of its answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.special.is_end(id)
    }

    /// Whether token `id` marks structure, as `<|im_start|>` does, and so adds nothing to a text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Kind::Control
    }

    /// The text of token `id` as the file writes it, special tokens too: `<|im_end|>`, `Ġthe`.
    /// Empty outside the vocabulary.
    pub fn token_text(&self, id: u32) -> String {
        self.vocabulary.text(id)
    }

    /// The token that the file writes as `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocabulary.id_of(text)
    }
}
