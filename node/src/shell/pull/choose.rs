//! Which of a repository's models is meant.

use std::collections::BTreeMap;

use thiserror::Error;

use super::names::{PARTS_MAX, SplitPart};
use super::source::Wanted;

/// Mixtures of weight types from what suits most people downwards: good text from little memory,
/// then what is larger, then what is worse. Those not named here are for people who ask for them.
const PREFERRED: [&str; 12] = [
    "Q4_K_M", "Q4_0", "Q8_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q6_K", "Q5_0", "IQ4_XS", "IQ4_NL",
    "Q3_K_M", "F16",
];
/// Models told in one message.
const TOLD_MAX: usize = 40;

/// Why no model was chosen.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ChoiceError {
    /// The repository holds no models in this format.
    #[error("there are no .gguf files in it; look for a repository whose name ends in -GGUF")]
    None,
    /// What was asked for is not there.
    #[error("it has no {wanted}; it has {known}")]
    Absent {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// More than one model may be meant.
    #[error("say which: OWNER/REPOSITORY:MIXTURE or OWNER/REPOSITORY/FILE.gguf; it has {known}")]
    Unclear {
        /// What there is.
        known: String,
    },
    /// A part of a split model is missing.
    #[error("{missing} is missing from it, so the model is incomplete; choose another")]
    Incomplete {
        /// The file that is missing.
        missing: String,
    },
    /// More parts than any model has.
    #[error("the model is split into {count} files; at most {max} are read", max = PARTS_MAX)]
    Parts {
        /// How many.
        count: u32,
    },
}

/// The files of the model that `wanted` means, in their order; `paths` are those of the whole
/// repository.
pub fn choose(paths: &[String], wanted: &Wanted) -> Result<Vec<String>, ChoiceError> {
    let models = models(paths);
    if models.is_empty() {
        return Err(ChoiceError::None);
    }
    let chosen = match wanted {
        Wanted::File(path) => {
            let holds = |files: &&Vec<String>| files.contains(path);
            models.values().find(holds).ok_or_else(|| absent(path, &models))?
        }
        Wanted::Mixture(mixture) => match with_mixture(&models, mixture).as_slice() {
            [] => return Err(absent(mixture, &models)),
            [one] => *one,
            several => return Err(unclear(several.iter().copied())),
        },
        Wanted::Any if models.len() == 1 => models.values().next().expect("there is one"),
        Wanted::Any => {
            let found = PREFERRED.iter().map(|mixture| with_mixture(&models, mixture));
            match found.into_iter().find(|found| !found.is_empty()).as_deref() {
                Some([one]) => *one,
                _ => return Err(unclear(models.values())),
            }
        }
    };
    complete(chosen)
}

/// The models among `paths`, by the path of their first file without its numbers.
fn models(paths: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut models: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in paths.iter().filter(|path| path.ends_with(".gguf") && !is_companion(path)) {
        let key = SplitPart::of(path)
            .map_or(path.clone(), |part| format!("{}/{}", part.base, part.count));
        models.entry(key).or_default().push(path.clone());
    }
    models.values_mut().for_each(|files| files.sort());
    models
}

/// Whether a file goes with a model and is none: a projector for pictures, or what quantising used.
fn is_companion(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

fn with_mixture<'a>(
    models: &'a BTreeMap<String, Vec<String>>,
    mixture: &str,
) -> Vec<&'a Vec<String>> {
    models.values().filter(|files| names_mixture(&files[0], mixture)).collect()
}

/// Whether `mixture` stands in the file's name (not its folder's) as a word: `Q4_K` is not
/// `Q4_K_M`, and `Q4_XS` not `IQ4_XS`.
fn names_mixture(path: &str, mixture: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_uppercase();
    let mixture = mixture.to_ascii_uppercase();
    name.match_indices(&mixture).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + mixture.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric)
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The files of a model if none is missing.
fn complete(files: &[String]) -> Result<Vec<String>, ChoiceError> {
    let Some(part) = SplitPart::of(&files[0]) else { return Ok(files.to_vec()) };
    if part.count > PARTS_MAX {
        return Err(ChoiceError::Parts { count: part.count });
    }
    let all: Vec<String> = (1..=part.count).map(|number| part.file(number)).collect();
    match all.iter().find(|file| !files.contains(file)) {
        Some(missing) => Err(ChoiceError::Incomplete { missing: missing.clone() }),
        None => Ok(all),
    }
}

fn absent(wanted: &str, models: &BTreeMap<String, Vec<String>>) -> ChoiceError {
    ChoiceError::Absent { wanted: wanted.into(), known: known(models.values()) }
}

fn unclear<'a>(models: impl Iterator<Item = &'a Vec<String>>) -> ChoiceError {
    ChoiceError::Unclear { known: known(models) }
}

/// The first files of `models`, as a sentence has them. They come from a stranger, so what a
/// terminal would obey is left out.
pub fn known<'a>(models: impl Iterator<Item = &'a Vec<String>>) -> String {
    let shown = |path: &String| path.chars().filter(|c| !c.is_control()).take(200).collect();
    let all: Vec<String> = models.map(|files| shown(&files[0])).collect();
    match all.len() {
        n if n > TOLD_MAX => {
            format!("{}, and {} more", all[..TOLD_MAX].join(", "), n - TOLD_MAX)
        }
        _ => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn any(names: &[&str]) -> Result<Vec<String>, ChoiceError> {
        choose(&paths(names), &Wanted::Any)
    }

    #[test]
    fn the_usual_mixture_is_taken_when_none_is_named() {
        let all = ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf", "mmproj-F16.gguf"];
        assert_eq!(any(&all).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(any(&["m.q8_0.gguf", "m.q4_0.gguf"]).unwrap(), ["m.q4_0.gguf"]);
        assert_eq!(any(&["odd.gguf", "mmproj-odd.gguf"]).unwrap(), ["odd.gguf"]);
        assert_eq!(any(&["README.md"]), Err(ChoiceError::None));
    }

    #[test]
    fn where_several_may_be_meant_all_are_told() {
        let error = any(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q8_0.gguf"]).unwrap_err();
        let known = "a-Q4_K_M.gguf, b-Q4_K_M.gguf, c-Q8_0.gguf".to_string();
        assert_eq!(error, ChoiceError::Unclear { known });
        assert!(matches!(any(&["a-odd.gguf", "b-odd.gguf"]), Err(ChoiceError::Unclear { .. })));
        let all = paths(&["a\u{1b}[2J.gguf", "b.gguf"]);
        let error = choose(&all, &Wanted::Any).unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }

    #[test]
    fn a_mixture_is_a_word_of_the_name() {
        let all = paths(&["m-IQ4_XS.gguf", "m_Q4_K_M.gguf", "m-Q4_K.gguf", "Q8_0/m-F16.gguf"]);
        let of = |mixture: &str| choose(&all, &Wanted::Mixture(mixture.into()));
        assert_eq!(of("q4_k").unwrap(), ["m-Q4_K.gguf"]);
        assert_eq!(of("Q4_K_M").unwrap(), ["m_Q4_K_M.gguf"]);
        for absent in ["Q4_XS", "Q8_0", "Q4"] {
            assert!(matches!(of(absent), Err(ChoiceError::Absent { .. })), "{absent}");
        }
    }

    #[test]
    fn a_split_model_comes_whole_or_not_at_all() {
        let all =
            paths(&["d/m-Q8_0-00002-of-00002.gguf", "d/m-Q8_0-00001-of-00002.gguf", "n.gguf"]);
        let whole = ["d/m-Q8_0-00001-of-00002.gguf", "d/m-Q8_0-00002-of-00002.gguf"];
        for wanted in [Wanted::Mixture("Q8_0".into()), Wanted::File(all[0].clone())] {
            assert_eq!(choose(&all, &wanted).unwrap(), whole);
        }
        let error = choose(&all[..1], &Wanted::Any).unwrap_err();
        assert_eq!(error, ChoiceError::Incomplete { missing: whole[0].into() });
        let endless = paths(&["m-00001-of-09999.gguf"]);
        assert_eq!(choose(&endless, &Wanted::Any), Err(ChoiceError::Parts { count: 9999 }));
        let absent = choose(&all, &Wanted::File("x.gguf".into()));
        assert!(matches!(absent, Err(ChoiceError::Absent { .. })));
    }
}
