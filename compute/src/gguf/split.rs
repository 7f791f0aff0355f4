//! Models split over several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! The first file's metadata is the model's; it may hold no tensors. The others say which part
//! they are, and hold tensors.

use std::path::{Path, PathBuf};

use super::error::SplitFault;
use super::metadata::Metadata;

/// The most parts. Published models have fewer than 100; each costs an open file.
pub(super) const PARTS_MAX: u64 = 512;

pub(super) const NUMBER_KEY: &str = "split.no";
pub(super) const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// What a first part says of its model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// How many parts, 2 or more.
    pub count: u64,
    tensors_count: Option<u64>,
}

impl Split {
    /// `Ok(None)` for a whole model. `path` is what was opened.
    pub fn of(metadata: &Metadata, path: &Path) -> Result<Option<Self>, SplitFault> {
        let count = metadata.u64(COUNT_KEY).unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        if count > PARTS_MAX {
            return Err(SplitFault::TooMany { count, max: PARTS_MAX });
        }
        let split = Self { count, tensors_count: metadata.u64(TENSORS_KEY) };
        match metadata.u64(NUMBER_KEY).unwrap_or(0) {
            0 => Ok(Some(split)),
            number => {
                let number = number.saturating_add(1);
                let first = split.first_of(path, number);
                Err(SplitFault::NotFirst { number, count, first })
            }
        }
    }

    /// The other parts' files, beside `first`.
    pub fn siblings(&self, first: &Path) -> Result<Vec<PathBuf>, SplitFault> {
        let Some(stem) = stem(first, &self.ending(1)) else {
            return Err(SplitFault::Name { count: self.count, ending: self.ending(1) });
        };
        let named = |number| first.with_file_name(format!("{stem}{}", self.ending(number)));
        Ok((2..=self.count).map(named).collect())
    }

    /// Checks that a part with this metadata is number `number` (from 1) of this model.
    pub fn check(&self, number: u64, metadata: &Metadata, part: &str) -> Result<(), SplitFault> {
        for (key, expected) in [(NUMBER_KEY, number - 1), (COUNT_KEY, self.count)] {
            let found = metadata.u64(key);
            if found != Some(expected) {
                let found = found.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
                return Err(SplitFault::Disagrees { part: part.to_owned(), key, found, expected });
            }
        }
        Ok(())
    }

    /// Checks the number of tensors of all parts together, if the first part says it.
    pub fn check_tensors(&self, found: usize) -> Result<(), SplitFault> {
        match self.tensors_count {
            Some(expected) if expected != found as u64 => {
                Err(SplitFault::TensorCount { expected, found: found as u64 })
            }
            _ => Ok(()),
        }
    }

    fn ending(&self, number: u64) -> String {
        format!("-{number:05}-of-{:05}.gguf", self.count)
    }

    /// What the first part is called, given that part `number` is at `path`.
    fn first_of(&self, path: &Path, number: u64) -> String {
        match stem(path, &self.ending(number)) {
            Some(stem) => format!("{stem}{}", self.ending(1)),
            None => format!("whose name ends in {}", self.ending(1)),
        }
    }
}

fn stem(path: &Path, ending: &str) -> Option<String> {
    Some(path.file_name()?.to_str()?.strip_suffix(ending)?.to_owned())
}
