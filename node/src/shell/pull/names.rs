//! Names of models and of their files, as they come from the user and from strangers.
//!
//! **Invariant:** a [`ModelName`] is one plain part of a path: no separators, nothing that an
//! operating system or a terminal takes for something else, and short enough for what is put
//! behind it.

use thiserror::Error;

/// Bytes of a name. Files have at most 255, and `-00001-of-00099.gguf.part` comes behind it.
pub const NAME_BYTES_MAX: usize = 200;
/// Signs in a name beside letters and digits.
const SIGNS: &str = "._-+=@()[], ~";
/// The most files of a split model; what the reader of GGUF files takes, too.
pub const PARTS_MAX: u32 = 512;
/// What every model file ends in.
pub const ENDING: &str = ".gguf";

/// A name that is none.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no name for a model: 1 to {max} bytes of letters, digits and {SIGNS} are wanted, \
     with neither a dot nor a space nor a dash at the beginning; give one with --name",
    max = NAME_BYTES_MAX
)]
pub struct NameError(String);

/// What a model is called here: its file's name without `.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName(String);

impl ModelName {
    /// From a name or a file name.
    ///
    /// # Errors
    /// If it could lead out of its folder, or mislead.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let stem = text.strip_suffix(ENDING).unwrap_or(text);
        let allowed = |c: char| c.is_alphanumeric() || SIGNS.contains(c);
        let sound = (1..=NAME_BYTES_MAX).contains(&stem.len())
            && stem.chars().all(allowed)
            && !stem.starts_with(['.', ' ', '-', '~'])
            && !stem.ends_with(['.', ' ']);
        match sound {
            true => Ok(Self(stem.into())),
            false => Err(NameError(text.chars().take(NAME_BYTES_MAX).collect())),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which file of a split model a name such as `big-00002-of-00003` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPart {
    /// What comes before the numbers.
    pub base: String,
    /// Which part, from 1.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl SplitPart {
    /// From a file name with or without `.gguf`; `None` if it is no part of a split model.
    pub fn of(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(ENDING).unwrap_or(name);
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then(|| Self { base: base.into(), number, count })
    }

    /// The file name of part `number` of the same model.
    pub fn file(&self, number: u32) -> String {
        file(&self.base, number, self.count)
    }
}

/// The file name of part `number` of `count` of a model; of one that is not split, its only file.
pub fn file(base: &str, number: u32, count: u32) -> String {
    match count {
        1 => format!("{base}{ENDING}"),
        _ => format!("{base}-{number:05}-of-{count:05}{ENDING}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_folder_and_means_what_it_shows() {
        for good in ["a", "SmolLM2-135M-Instruct.Q4_1.gguf", "Größe 7B (v2)", "a..b", "模型"] {
            let name = ModelName::parse(good).unwrap();
            assert_eq!(name.as_str(), good.trim_end_matches(".gguf"));
        }
        for bad in [
            "",
            ".gguf",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            "/etc/passwd",
            "C:x",
            ".hidden",
            "-m",
            "a\0b",
            "a\nb",
            "a\u{1b}[2J",
            "a\u{202e}b",
            "a ",
            "a.",
            "~x",
            "a*b",
            "a\u{7f}",
            "a<b",
            "a|b",
            "a\"b",
            "a?b",
        ] {
            assert!(ModelName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(ModelName::parse(&"x".repeat(200)).is_ok());
        assert!(ModelName::parse(&"x".repeat(201)).is_err());
    }

    #[test]
    fn parts_are_told_from_whole_files() {
        let part = SplitPart::of("big-Q4-00002-of-00003.gguf").unwrap();
        assert_eq!((part.base.as_str(), part.number, part.count), ("big-Q4", 2, 3));
        assert_eq!(part.file(1), "big-Q4-00001-of-00003.gguf");
        for whole in ["a.gguf", "a-1-of-2", "a-00004-of-00003", "a-00000-of-00002", "-of-"] {
            assert_eq!(SplitPart::of(whole), None, "{whole}");
        }
        assert_eq!(file("a", 1, 1), "a.gguf");
    }
}
