//! What memory is for: weights first, then one whole context of each model, then room for more
//! sequences and for prompts that may come again.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::engine::Limits;
use super::machine;
use super::settings::Settings;
use super::worker::Serving;

/// Why there is not enough.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// The weights do not fit.
    #[error(
        "the weights of {model} take {needed_mb} MB and {available_mb} MB are free; use a smaller \
         model, or free memory"
    )]
    Weights {
        /// The file.
        model: String,
        /// Megabytes that they take.
        needed_mb: u64,
        /// Megabytes that there are.
        available_mb: u64,
    },
    /// The KV cache that the user allows does not hold a context of each model.
    #[error(
        "a context of each model takes {needed_mb} MB of KV cache and kv_mb is {given_mb}; ask for \
         more with --kv-mb, or for a shorter context with --ctx"
    )]
    Contexts {
        /// Megabytes that they take.
        needed_mb: u64,
        /// Megabytes that may be taken.
        given_mb: u64,
    },
}

/// Refuses a model file whose weights would not fit into what is free now. Files that cannot be read
/// are for the loader to refuse.
pub fn check_weights(path: &Path) -> Result<(), MemoryError> {
    let (Ok(file), Some(available)) = (path.metadata(), machine::memory_available()) else {
        return Ok(());
    };
    fits(&path.display().to_string(), file.len(), available)
}

fn fits(model: &str, needed: u64, available: u64) -> Result<(), MemoryError> {
    match needed <= available {
        true => Ok(()),
        false => Err(MemoryError::Weights {
            model: model.to_string(),
            needed_mb: needed / 1_000_000,
            available_mb: available / 1_000_000,
        }),
    }
}

/// What each of the loaded `models` may use.
pub fn limits(models: &[Arc<Serving>], settings: &Settings) -> Result<Vec<Limits>, MemoryError> {
    let page_bytes = |serving: &Arc<Serving>| serving.speaker.model().pages(0).shape().page_bytes();
    let wants: Vec<Want> = models
        .iter()
        .map(|serving| Want { page_bytes: page_bytes(serving) as u64, context: serving.context })
        .collect();
    let given = settings.kv_mb.map(|mb| mb.saturating_mul(1_000_000));
    let pages = share(&wants, settings.parallel, given, machine::memory_available())?;
    let limits = |pages| Limits { parallel: settings.parallel, pages, guessing: settings.guessing };
    Ok(pages.into_iter().map(limits).collect())
}

/// What one model wants of the memory for KV caches.
#[derive(Debug, Clone, Copy)]
struct Want {
    page_bytes: u64,
    context: usize,
}

/// How many pages each model gets: one context, and its share of what else is `given`. Where nobody
/// has said how much, that is as much as `parallel` contexts take, and at most a quarter of what is
/// free.
fn share(
    wants: &[Want],
    parallel: usize,
    given: Option<u64>,
    available: Option<u64>,
) -> Result<Vec<usize>, MemoryError> {
    let least = |want: &Want| Limits::pages_min(want.context) as u64 * want.page_bytes;
    let needed: u64 = wants.iter().map(least).sum();
    let most = |want: &Want| least(want).saturating_mul(parallel as u64 + 1);
    let budget = given.unwrap_or_else(|| {
        let all: u64 = wants.iter().map(most).sum();
        all.min(available.map_or(u64::MAX, |bytes| bytes / 4)).max(needed)
    });
    if budget < needed {
        let (needed_mb, given_mb) = (needed.div_ceil(1_000_000), budget / 1_000_000);
        return Err(MemoryError::Contexts { needed_mb, given_mb });
    }
    let rest = (budget - needed) / wants.len().max(1) as u64;
    let pages = |want: &Want| {
        Limits::pages_min(want.context) + usize::try_from(rest / want.page_bytes).unwrap_or(0)
    };
    Ok(wants.iter().map(pages).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: Want = Want { page_bytes: 1_000_000, context: 320 };

    #[test]
    fn each_model_gets_a_context_and_a_share_of_the_rest() {
        assert_eq!(share(&[WANT], 1, Some(11_000_000), None), Ok(vec![11]));
        assert_eq!(share(&[WANT, WANT], 1, Some(32_000_000), None), Ok(vec![16, 16]));
        let error = MemoryError::Contexts { needed_mb: 22, given_mb: 21 };
        assert_eq!(share(&[WANT, WANT], 1, Some(21_999_999), None), Err(error));
    }

    #[test]
    fn without_a_wish_it_is_what_may_be_used_and_no_more_than_a_quarter_of_what_is_free() {
        assert_eq!(share(&[WANT], 3, None, None), Ok(vec![44]));
        assert_eq!(share(&[WANT], 3, None, Some(80_000_000)), Ok(vec![20]));
        assert_eq!(share(&[WANT], 3, None, Some(0)), Ok(vec![11]));
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_with_the_numbers() {
        assert_eq!(fits("m", 5, 5), Ok(()));
        let error = fits("m", 9_000_000, 2_000_000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the weights of m take 9 MB and 2 MB are free; use a smaller model, or free memory"
        );
    }
}
