//! Tokens back to text, one at a time.

use super::Tokenizer;
use super::vocabulary::Kind;

/// Turns tokens into text as they come. A character whose bytes are spread over tokens appears
/// when it is whole; bytes that are no UTF-8 become U+FFFD, as few as possible.
///
/// All texts that [`push`](Self::push) and [`finish`](Self::finish) give, put together, are what
/// [`Tokenizer::decode`] gives for the same tokens.
#[derive(Debug)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Bytes of a character that is not whole yet.
    held: Vec<u8>,
    /// What the last push gave.
    text: String,
    /// Whether the space that SentencePiece puts before a text is still to come.
    strip: bool,
    /// Special tokens that appear as their text.
    shown: Vec<u32>,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, strip: bool, shown: &[u32]) -> Self {
        Self { tokenizer, held: Vec::new(), text: String::new(), strip, shown: shown.to_vec() }
    }

    /// Adds a token; gives the text that is now whole, which may be empty.
    pub fn push(&mut self, id: u32) -> &str {
        let mut piece = self.tokenizer.piece(id);
        let text;
        if piece.is_empty() && self.shown.contains(&id) {
            text = self.tokenizer.token_text(id);
            piece = text.as_bytes();
        }
        if self.strip && !piece.is_empty() {
            // None is put before a user-defined token.
            if self.tokenizer.vocabulary.kind(id) != Kind::UserDefined {
                piece = piece.strip_prefix(b" ").unwrap_or(piece);
            }
            self.strip = false;
        }
        self.held.extend_from_slice(piece);
        self.text.clear();
        let mut used = 0;
        for chunk in self.held.utf8_chunks() {
            let whole = chunk.valid();
            self.text.push_str(whole);
            used += whole.len();
            let broken = chunk.invalid();
            // The last bytes may only be waiting for their rest.
            let waits = used + broken.len() == self.held.len() && may_continue(broken);
            if !broken.is_empty() && !waits {
                self.text.push(char::REPLACEMENT_CHARACTER);
                used += broken.len();
            }
        }
        self.held.drain(..used);
        &self.text
    }

    /// Ends the text: U+FFFD if it ends inside a character, or else nothing.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Whether more bytes could make `broken` a character.
fn may_continue(broken: &[u8]) -> bool {
    std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none())
}
