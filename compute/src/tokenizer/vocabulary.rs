//! The tokens of a model: one run of bytes for all of them, and an index from bytes to id.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry as Slot;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::TokenizerError;
use super::spelling::Spelling;
use crate::gguf::Metadata;

/// Most tokens that a vocabulary may have; the largest known have 262,144.
const TOKENS_MAX: usize = 1 << 22;

/// Longest token, bytes of its text; known ones have under 600. Matching looks at so many bytes
/// for each byte of text at worst.
const TOKEN_BYTES_MAX: usize = 4096;

/// What a token is for, by `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text.
    Normal,
    /// What stands for anything unknown.
    Unknown,
    /// Marks structure; matched only where special tokens are parsed, shown as nothing.
    Control,
    /// Added whole; matched in any text, before everything else.
    UserDefined,
    /// A single byte, spelled `<0x0A>`.
    Byte,
    /// Not in use; shown as nothing.
    Unused,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its bytes end; they begin where those of the token before end.
    end: u32,
    kind: Kind,
    /// Its bytes are its text as written, not what the text spells.
    literal: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Vocabulary {
    spelling: Spelling,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    longest: usize,
}

impl Vocabulary {
    /// Reads `tokenizer.ggml.tokens` and their types.
    pub fn read(metadata: &Metadata, spelling: Spelling) -> Result<Self, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        let texts = metadata.strings(TOKENS).ok_or(TokenizerError::Missing(TOKENS))?;
        if texts.len() > TOKENS_MAX {
            return Err(TokenizerError::TooMany { count: texts.len(), max: TOKENS_MAX });
        }
        let types = match metadata.get(TYPES) {
            None => None,
            Some(_) => Some(metadata.integers(TYPES).ok_or(TokenizerError::Missing(TYPES))?),
        };
        if let Some(found) = types.map(<[i64]>::len).filter(|found| *found < texts.len()) {
            return Err(TokenizerError::Short { key: TYPES, found, wanted: texts.len() });
        }
        let mut vocabulary = Self::empty(spelling, texts);
        for (id, text) in texts.iter().enumerate() {
            vocabulary.add(text, types.map_or(Kind::Normal, |types| kind(types[id])))?;
        }
        Ok(vocabulary)
    }

    fn empty(spelling: Spelling, texts: &[String]) -> Self {
        Self {
            spelling,
            bytes: Vec::with_capacity(texts.iter().map(String::len).sum()),
            entries: Vec::with_capacity(texts.len()),
            index: HashTable::with_capacity(texts.len()),
            hasher: DefaultHashBuilder::default(),
            longest: 0,
        }
    }

    fn add(&mut self, text: &str, kind: Kind) -> Result<(), TokenizerError> {
        let id = self.entries.len() as u32;
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenizerError::TooLong { id, bytes: text.len(), max: TOKEN_BYTES_MAX });
        }
        if kind == Kind::Byte && hex_byte(text).is_none() {
            return Err(TokenizerError::BadByte { id, text: text.to_owned() });
        }
        let special = matches!(kind, Kind::Unknown | Kind::Control | Kind::UserDefined);
        // What special tokens spell is never looked for, only their text.
        let as_written = special && self.spelling == Spelling::ByteLevel && !text.is_ascii();
        let spelled = if as_written { None } else { self.spelling.read(text) };
        let bytes = spelled.as_deref().unwrap_or(text.as_bytes());
        let literal = spelled.is_none();
        self.longest = self.longest.max(bytes.len());
        let hash = self.hasher.hash_one(bytes);
        let (all, entries, hasher) = (&self.bytes, &self.entries, &self.hasher);
        let same = |id: &u32| same(all, entries, *id, bytes, literal);
        match self.index.entry(hash, same, |id| hasher.hash_one(slice(all, entries, *id))) {
            // Tokens without text are never looked for.
            _ if bytes.is_empty() => {}
            Slot::Occupied(first) => {
                let (first, text) = (*first.get(), text.to_owned());
                return Err(TokenizerError::Twice { first, second: id, text });
            }
            Slot::Vacant(slot) => drop(slot.insert(id)),
        }
        self.bytes.extend_from_slice(bytes);
        // TOKENS_MAX times TOKEN_BYTES_MAX does not fit; what a real file has does.
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| TokenizerError::TooMany { count: self.entries.len(), max: TOKENS_MAX })?;
        self.entries.push(Entry { end, kind, literal });
        Ok(())
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The bytes of token `id`, which is in the vocabulary.
    pub fn raw(&self, id: u32) -> &[u8] {
        slice(&self.bytes, &self.entries, id)
    }

    /// The bytes of all tokens that spell something.
    pub fn spelled(&self) -> impl Iterator<Item = &[u8]> {
        let ids = (0..).zip(&self.entries).filter(|(_, entry)| !entry.literal);
        ids.map(|(id, _)| self.raw(id))
    }

    /// The token with these bytes.
    #[inline]
    pub fn token(&self, bytes: &[u8]) -> Option<u32> {
        self.find(bytes, false)
    }

    /// The token written `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let spelled = self.spelling.read(text).and_then(|bytes| self.find(&bytes, false));
        spelled.filter(|_| !text.is_empty()).or_else(|| self.find(text.as_bytes(), true))
    }

    #[inline]
    fn find(&self, bytes: &[u8], literal: bool) -> Option<u32> {
        let same = |id: &u32| same(&self.bytes, &self.entries, *id, bytes, literal);
        self.index.find(self.hasher.hash_one(bytes), same).copied()
    }

    /// What token `id` is for; `Unused` beyond the vocabulary.
    pub fn kind(&self, id: u32) -> Kind {
        self.entries.get(id as usize).map_or(Kind::Unused, |entry| entry.kind)
    }

    /// Corrects what token `id` is for.
    pub fn set_kind(&mut self, id: u32, kind: Kind) {
        self.entries[id as usize].kind = kind;
    }

    /// The text of token `id` as the file writes it; empty beyond the vocabulary.
    pub fn text(&self, id: u32) -> String {
        let Some(entry) = self.entries.get(id as usize) else { return String::new() };
        let bytes = slice(&self.bytes, &self.entries, id);
        match entry.literal {
            true => String::from_utf8_lossy(bytes).into_owned(),
            false => self.spelling.write(bytes),
        }
    }

    /// The bytes that token `id` adds to a text; none for special tokens.
    pub fn piece(&self, id: u32) -> &[u8] {
        match self.kind(id) {
            Kind::Normal | Kind::UserDefined => slice(&self.bytes, &self.entries, id),
            Kind::Byte => {
                let text = std::str::from_utf8(slice(&self.bytes, &self.entries, id));
                let byte = text.ok().and_then(hex_byte).expect("checked when it was read");
                std::slice::from_ref(&BYTES[usize::from(byte)])
            }
            Kind::Unknown | Kind::Control | Kind::Unused => &[],
        }
    }
}

static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = byte as u8;
        byte += 1;
    }
    bytes
};

#[inline]
fn slice<'a>(bytes: &'a [u8], entries: &[Entry], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { entries[id - 1].end };
    &bytes[start as usize..entries[id].end as usize]
}

#[inline]
fn same(all: &[u8], entries: &[Entry], id: u32, bytes: &[u8], literal: bool) -> bool {
    entries[id as usize].literal == literal && slice(all, entries, id) == bytes
}

fn kind(number: i64) -> Kind {
    match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        6 => Kind::Byte,
        _ => Kind::Unused,
    }
}

/// The byte of `<0x0A>`.
fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
