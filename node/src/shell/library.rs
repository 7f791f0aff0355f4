//! The models on this machine: which files the folders hold, and what a name stands for.
//!
//! **Invariant:** a *name* never leads out of the models folders: no separators, no `..`, no
//! symbolic link to elsewhere. A *path* that the machine's user types may lead anywhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use compute::arch::Arch;
use compute::gguf::{Gguf, GgufError, TensorType};
use serde::Serialize;
use thiserror::Error;

use super::pull::{PARTS_MAX, SplitPart};
use super::settings::CONTEXT_DEFAULT;

/// Files looked at in one folder; a folder with more is no models folder.
const FILES_MAX: usize = 4096;
/// Names told in one message.
const NAMES_TOLD_MAX: usize = 12;

/// Why no model was found.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FindError {
    /// A path leads to no file.
    #[error("there is no model file at {0}")]
    NoFile(PathBuf),
    /// The name could lead out of the folder.
    #[error("{0:?} is no model name: a name has no separators and does not begin with a dot")]
    NoName(String),
    /// A file of that name is there, and is a link to elsewhere.
    #[error("{0} is a link that leaves its models folder; give the path it leads to instead")]
    Outside(PathBuf),
    /// No folder has it.
    #[error("no model is named {name:?}; {known}")]
    Unknown {
        /// The name.
        name: String,
        /// What there is instead.
        known: String,
    },
    /// Nothing was asked for, and there is not exactly one to take.
    #[error("say which model with --model; {0}")]
    Unsaid(String),
}

/// The file that `model` stands for: a path if it looks like one, or a name in one of `folders`.
/// Without `model`, the only model that there is.
pub fn find(model: Option<&str>, folders: &[PathBuf]) -> Result<PathBuf, FindError> {
    let Some(model) = model else { return only(folders) };
    let path = Path::new(model);
    let looks_like_path = model.contains(std::path::is_separator);
    if looks_like_path || (model.ends_with(".gguf") && path.is_file()) {
        return match path.is_file() {
            true => Ok(path.into()),
            false => Err(FindError::NoFile(path.into())),
        };
    }
    if model.is_empty() || model.starts_with('.') || model.contains('\0') {
        return Err(FindError::NoName(model.into()));
    }
    for folder in folders {
        for file in [folder.join(model), folder.join(format!("{model}.gguf"))] {
            if file.is_file() {
                return inside(&file, folder);
            }
        }
    }
    Err(FindError::Unknown { name: model.into(), known: known(folders) })
}

/// Model files in `folders`, by name. Of a split model only the first file is told.
pub fn list(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.take(FILES_MAX).flatten() {
            let path = entry.path();
            let wanted = path.extension().is_some_and(|e| e == "gguf") && path.is_file();
            if wanted && !is_later_part(&name(&path)) && inside(&path, folder).is_ok() {
                files.entry(name(&path)).or_insert(path);
            }
        }
    }
    files.into_values().collect()
}

/// What a model file is called: its file name without `.gguf`.
pub fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a file's header says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// Its name in the models folder.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Size of all its files, bytes.
    pub bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// The mixture of weight types that it calls itself, or the type that most numbers have.
    pub weights: String,
    /// How many numbers it has.
    pub parameters: u64,
    /// Tokens it was trained to attend over; 0 where the file does not say.
    pub context: u64,
    /// About what running it takes, bytes: its weights, and a conversation of the usual length.
    /// `None` where this program cannot run it.
    pub memory: Option<u64>,
    /// Whether it can chat: has a tokeniser and a chat template.
    pub chat: bool,
}

/// Reads the header of the file at `path`.
pub fn describe(path: &Path) -> Result<Description, GgufError> {
    let file = Gguf::open(path)?;
    let metadata = file.metadata();
    let architecture = metadata.str("general.architecture").unwrap_or("unknown").to_string();
    let context = metadata.u64(&format!("{architecture}.context_length")).unwrap_or(0);
    let tokens = metadata.str("tokenizer.ggml.model").is_some_and(|model| model != "none");
    let mut numbers: BTreeMap<TensorType, u64> = BTreeMap::new();
    for tensor in file.tensors() {
        let count = tensor.shape.iter().fold(1u64, |n, &side| n.saturating_mul(side as u64));
        let all = numbers.entry(tensor.kind).or_default();
        *all = all.saturating_add(count);
    }
    let most = numbers.iter().max_by_key(|(_, count)| **count);
    let most = most.map_or("none".into(), |(kind, _)| format!("{kind:?}"));
    Ok(Description {
        name: name(path),
        path: path.into(),
        bytes: file.file_bytes(),
        memory: memory(&file),
        weights: metadata.u64("general.file_type").and_then(mixture).map_or(most, String::from),
        parameters: numbers.values().fold(0, |sum: u64, count| sum.saturating_add(*count)),
        chat: tokens && metadata.str("tokenizer.chat_template").is_some(),
        architecture,
        context,
    })
}

/// About what running a model takes, bytes.
fn memory(file: &Gguf) -> Option<u64> {
    let arch = Arch::from_gguf(file).ok()?;
    // A byte for each number of a key and a value, and six for the scales of each pair.
    let a_layer = 2 * arch.kv_width() + 6 * arch.kv_heads;
    let tokens = arch.context_length.min(CONTEXT_DEFAULT);
    let conversation =
        (arch.layers.len() as u64).saturating_mul(a_layer as u64).saturating_mul(tokens as u64);
    Some(file.file_bytes().saturating_add(conversation))
}

/// All files of the model that `name` stands for in `folders`, the first one first. Of a split
/// model, parts that are missing are left out.
///
/// # Errors
/// If no folder has a model of that name.
pub fn files_of(name: &str, folders: &[PathBuf]) -> Result<Vec<PathBuf>, FindError> {
    let wanted = name.strip_suffix(".gguf").unwrap_or(name);
    let first = list(folders).into_iter().find(|path| self::name(path) == wanted);
    let unknown = || FindError::Unknown { name: name.into(), known: known(folders) };
    let first = first.ok_or_else(unknown)?;
    let Some(part) = SplitPart::of(wanted) else { return Ok(vec![first]) };
    let others = (2..=part.count.min(PARTS_MAX)).map(|n| first.with_file_name(part.file(n)));
    let others: Vec<_> = others.filter(|path| path.is_file()).collect();
    Ok(std::iter::once(first).chain(others).collect())
}

/// The name of the mixture of types that `general.file_type` stands for.
fn mixture(file_type: u64) -> Option<&'static str> {
    let name = match file_type {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        25 => "IQ4_NL",
        30 => "IQ4_XS",
        32 => "BF16",
        _ => return None,
    };
    Some(name)
}

/// The only model in `folders`.
fn only(folders: &[PathBuf]) -> Result<PathBuf, FindError> {
    match list(folders).as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(FindError::Unsaid(known(folders))),
    }
}

/// Refuses `file` if links lead it out of `folder`.
fn inside(file: &Path, folder: &Path) -> Result<PathBuf, FindError> {
    match (file.canonicalize(), folder.canonicalize()) {
        (Ok(real), Ok(folder)) if real.starts_with(&folder) => Ok(file.into()),
        _ => Err(FindError::Outside(file.into())),
    }
}

/// Whether a name such as `big-00002-of-00003` is a part other than the first.
fn is_later_part(name: &str) -> bool {
    SplitPart::of(name).is_some_and(|part| part.number != 1)
}

/// A sentence that says which models `folders` hold.
fn known(folders: &[PathBuf]) -> String {
    let names: Vec<String> = list(folders).iter().map(|path| name(path)).collect();
    let folders: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    let folders = folders.join(", ");
    match names.len() {
        0 => format!("there are no .gguf files in {folders}"),
        n if n > NAMES_TOLD_MAX => {
            format!(
                "{folders} has {}, and {} more",
                names[..NAMES_TOLD_MAX].join(", "),
                n - NAMES_TOLD_MAX
            )
        }
        _ => format!("{folders} has {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(folder.path().join(file), b"GGUF").unwrap();
        }
        folder
    }

    #[test]
    fn a_name_is_looked_up_with_and_without_its_ending() {
        let dir = folder(&["a.gguf", "b.gguf"]);
        let folders = [dir.path().to_path_buf()];
        for name in ["b", "b.gguf"] {
            assert_eq!(find(Some(name), &folders).unwrap(), dir.path().join("b.gguf"));
        }
        let error = find(Some("c"), &folders).unwrap_err().to_string();
        assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
    }

    #[test]
    fn without_a_name_the_only_model_is_taken() {
        let one = folder(&["a.gguf", "notes.txt"]);
        let path = find(None, &[one.path().into()]).unwrap();
        assert_eq!(path, one.path().join("a.gguf"));
        let two = folder(&["a.gguf", "b.gguf"]);
        assert!(matches!(find(None, &[two.path().into()]), Err(FindError::Unsaid(_))));
    }

    #[test]
    fn a_name_never_leaves_the_folder() {
        let outer = folder(&["secret.gguf"]);
        let inner = outer.path().join("models");
        std::fs::create_dir(&inner).unwrap();
        let folders = [inner.clone()];
        for name in ["..", ".hidden", "", "a\0b", "%2e%2e%2fsecret", "secret"] {
            assert!(find(Some(name), &folders).is_err(), "{name:?}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../secret.gguf", inner.join("link.gguf")).unwrap();
            assert!(matches!(find(Some("link"), &folders), Err(FindError::Outside(_))));
            assert_eq!(list(&folders), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn of_a_split_model_the_first_file_is_told() {
        let dir = folder(&["big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "x-of-y.gguf"]);
        let names: Vec<_> = list(&[dir.path().into()]).iter().map(|p| name(p)).collect();
        assert_eq!(names, ["big-00001-of-00002", "x-of-y"]);
    }
}
