//! SHA-256, as people and servers write it.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What the bytes of a file come to.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// From 64 hexadecimal digits in either case; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 || !text.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let nibble = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        Some(Self(std::array::from_fn(|n| nibble(text[2 * n]) << 4 | nibble(text[2 * n + 1]))))
    }

    /// Of what `hasher` has heard.
    pub fn of(hasher: &Sha256) -> Self {
        Self(hasher.clone().finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("64 hexadecimal digits are wanted")
    }
}

impl std::str::FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_string().try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        // FIPS 180-4's example of three bytes.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut hasher = Sha256::new();
        hasher.update(b"abc");
        assert_eq!(Digest::of(&hasher).to_string(), text);
        assert_eq!(Digest::parse(&text.to_uppercase()), Some(Digest::of(&hasher)));
        for bad in ["", &text[1..], &format!("{text}0"), &text.replace('b', "g"), &"é".repeat(32)]
        {
            assert_eq!(Digest::parse(bad), None, "{bad:?}");
        }
    }
}
