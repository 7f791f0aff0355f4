//! What the user wants pulled: a Hugging Face name, a URL or a file.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::address::{Address, AddressError};

/// Bytes of an owner's or repository's name; Hugging Face allows 96.
const ID_BYTES_MAX: usize = 96;
/// Bytes of a branch, tag or commit, and of a path in a repository.
const PATH_BYTES_MAX: usize = 512;
/// Bytes of the name of a mixture of weight types.
const MIXTURE_BYTES_MAX: usize = 32;

/// Why something is nothing to pull.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SourceError {
    /// It has none of the forms.
    #[error(
        "{0:?} is nothing to pull: a Hugging Face name (OWNER/REPOSITORY, \
         OWNER/REPOSITORY:Q4_K_M or OWNER/REPOSITORY/FILE.gguf, each with @REVISION if need be), \
         an https URL, or the path of a file is wanted"
    )]
    Formless(String),
    /// It looks like a path, and there is no such file.
    #[error("there is no file at {0}")]
    NoFile(PathBuf),
    /// It looks like a URL, and is none to fetch from.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// Where a model is to come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository on Hugging Face, or on what `HF_ENDPOINT` names.
    Hub(HubName),
    /// A URL.
    Web(Address),
    /// A file on this machine.
    File(PathBuf),
}

/// A repository, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// `OWNER/REPOSITORY`.
    pub repository: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which model of those in the repository.
    pub wanted: Wanted,
}

/// Which model of a repository is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The one that suits most people.
    Any,
    /// The one with this mixture of weight types, such as `Q4_K_M`.
    Mixture(String),
    /// The one in this file, a path in the repository.
    File(String),
}

impl Source {
    /// Reads what was typed. What is a file, or begins as paths do, is a path.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        if text.contains("://") {
            return Ok(Self::Web(Address::parse(text)?));
        }
        let path = Path::new(text);
        if path.is_file() {
            return Ok(Self::File(path.into()));
        }
        let like_a_path = text.starts_with(['.', '~', '/']) || path.is_absolute() || path.exists();
        if like_a_path && !text.contains('\0') {
            return Err(SourceError::NoFile(path.into()));
        }
        HubName::parse(text)
            .map(Self::Hub)
            .ok_or_else(|| SourceError::Formless(text.chars().take(200).collect()))
    }
}

impl HubName {
    /// From `OWNER/REPOSITORY[:MIXTURE | /FILE.gguf][@REVISION]`.
    fn parse(text: &str) -> Option<Self> {
        let (rest, revision) = text.rsplit_once('@').unwrap_or((text, "main"));
        let (path, mixture) = match rest.split_once(':') {
            Some((path, mixture)) => (path, Some(mixture)),
            None => (rest, None),
        };
        let (owner, rest) = path.split_once('/')?;
        let (repository, file) = match rest.split_once('/') {
            Some((repository, file)) => (repository, Some(file)),
            None => (rest, None),
        };
        let wanted = match (mixture, file) {
            (None, None) => Wanted::Any,
            (Some(mixture), None) if is_plain(mixture, MIXTURE_BYTES_MAX) => {
                Wanted::Mixture(mixture.into())
            }
            (None, Some(file)) if is_hub_path(file) && file.ends_with(".gguf") => {
                Wanted::File(file.into())
            }
            _ => return None,
        };
        let sound = is_plain(owner, ID_BYTES_MAX)
            && is_plain(repository, ID_BYTES_MAX)
            && is_hub_path(revision);
        let repository = format!("{owner}/{repository}");
        sound.then(|| Self { repository, revision: revision.into(), wanted })
    }
}

/// Whether `text` is a word that means itself in a URL.
fn is_plain(text: &str, bytes_max: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=bytes_max).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
}

/// Whether `text` is a path that stays in its repository. Names in it may hold what URLs must
/// encode, and no more than people can read.
pub fn is_hub_path(text: &str) -> bool {
    let sound = |part: &str| !part.is_empty() && part != "." && part != "..";
    (1..=PATH_BYTES_MAX).contains(&text.len())
        && text.split('/').all(sound)
        && !text.chars().any(|c| c.is_control() || c == '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> (String, String, Wanted) {
        match Source::parse(text) {
            Ok(Source::Hub(name)) => (name.repository, name.revision, name.wanted),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn hub_names_are_read_in_all_their_forms() {
        let id = || "Some-Org/Some.Repo-GGUF".to_string();
        let main = || "main".to_string();
        assert_eq!(hub("Some-Org/Some.Repo-GGUF"), (id(), main(), Wanted::Any));
        let mixture = Wanted::Mixture("Q4_K_M".into());
        assert_eq!(hub("Some-Org/Some.Repo-GGUF:Q4_K_M"), (id(), main(), mixture.clone()));
        let revision = "refs/pr/3".to_string();
        assert_eq!(hub("Some-Org/Some.Repo-GGUF:Q4_K_M@refs/pr/3"), (id(), revision, mixture));
        let file = Wanted::File("Q8/a b.gguf".into());
        assert_eq!(hub("Some-Org/Some.Repo-GGUF/Q8/a b.gguf@v1"), (id(), "v1".into(), file));
    }

    #[test]
    fn what_could_lead_elsewhere_is_nothing_to_pull() {
        for bad in [
            "",
            "model",
            "org/",
            "/",
            "org/..",
            "../org/repo",
            "org/repo/../../x.gguf",
            "org/repo/x.bin",
            "org/repo:",
            "org/repo:a/b",
            "org/repo@",
            "org/repo@../x",
            "org/repo/a\n.gguf",
            "org/re po",
            "org/repo?x",
            "org/repo#x",
            "org//x.gguf",
            "org/repo/a//b.gguf",
            "org/repo:Q4/x.gguf",
            "./nothing",
            "/nonexistent/x.gguf",
            "~/x",
            "a\0b/c",
            ".",
            "/",
            "https://",
            "http://example.org/x.gguf",
        ] {
            assert!(Source::parse(bad).is_err(), "{bad:?}: {:?}", Source::parse(bad));
        }
        let long = format!("org/{}", "x".repeat(97));
        assert!(Source::parse(&long).is_err());
    }

    #[test]
    fn urls_and_files_are_told_from_names() {
        let url = Source::parse("https://example.org/a.gguf").unwrap();
        assert!(matches!(url, Source::Web(_)));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        assert_eq!(Source::parse(path.to_str().unwrap()).unwrap(), Source::File(path));
        let error = Source::parse(folder.path().to_str().unwrap()).unwrap_err();
        assert!(matches!(error, SourceError::NoFile(_)));
    }
}
