//! How a vocabulary writes the bytes of its tokens as text.

use std::borrow::Cow;

/// The mark that stands for a space in SentencePiece vocabularies.
const SPACE_MARK: &str = "\u{2581}";

/// One of two ways to spell bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: a printable character for each of the 256 bytes.
    ByteLevel,
    /// SentencePiece's: text as it is, with a mark for each space.
    Spaced,
}

impl Spelling {
    /// The bytes that `text` spells; `None` where it is no spelling, as with many special tokens:
    /// `<｜User｜>` has characters outside the alphabet, a run of real spaces has no marks.
    pub fn read(self, text: &str) -> Option<Cow<'_, [u8]>> {
        match self {
            Spelling::ByteLevel if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Some(Cow::Borrowed(text.as_bytes()))
            }
            Spelling::ByteLevel => text.chars().map(letter_byte).collect::<Option<_>>(),
            Spelling::Spaced if text.contains(' ') => None,
            Spelling::Spaced => Some(match unmark(text) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
        }
    }

    /// The text that spells `bytes`.
    pub fn write(self, bytes: &[u8]) -> String {
        match self {
            Spelling::ByteLevel => bytes.iter().map(|byte| byte_letter(*byte)).collect(),
            Spelling::Spaced => String::from_utf8_lossy(bytes).replace(' ', SPACE_MARK),
        }
    }
}

/// `text` with spaces for SentencePiece's marks; to its models the two are one.
pub(super) fn unmark(text: &str) -> Cow<'_, str> {
    match text.contains(SPACE_MARK) {
        true => Cow::Owned(text.replace(SPACE_MARK, " ")),
        false => Cow::Borrowed(text),
    }
}

/// The bytes of a character as a SentencePiece model sees it.
pub(super) fn marked(character: &[u8]) -> &[u8] {
    if character == b" " { SPACE_MARK.as_bytes() } else { character }
}

/// Printable bytes stand for themselves, the others for 256 and on, in order.
fn byte_letter(byte: u8) -> char {
    match byte {
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte) - 0x7f),
        0xad => Some('\u{143}'),
        _ => Some(char::from(byte)),
    }
    .expect("below the surrogates")
}

fn letter_byte(letter: char) -> Option<u8> {
    let point = u32::from(letter);
    let byte = match point {
        0x100..=0x120 => point - 0x100,
        0x121..=0x142 => point - 0x121 + 0x7f,
        0x143 => 0xad,
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => point,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        let all: Vec<u8> = (0..=255).collect();
        let text = Spelling::ByteLevel.write(&all);
        assert_eq!(text.chars().count(), 256);
        assert_eq!(Spelling::ByteLevel.read(&text).as_deref(), Some(all.as_slice()));
        assert_eq!(byte_letter(b' '), 'Ġ');
        assert_eq!(byte_letter(b'\n'), 'Ċ');
        let legible = |c: char| !c.is_control() && !c.is_whitespace();
        assert!(text.chars().all(legible));
    }

    #[test]
    fn what_is_no_spelling_is_told_apart() {
        assert_eq!(Spelling::ByteLevel.read("<｜User｜>"), None);
        assert_eq!(Spelling::ByteLevel.read("two words"), None);
        assert_eq!(Spelling::Spaced.read("two words"), None);
        assert_eq!(Spelling::Spaced.read("two▁words").as_deref(), Some(&b"two words"[..]));
    }
}
