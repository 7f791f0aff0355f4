//! One sequence of a model.

use std::sync::Arc;

use super::stage::Stage;
use super::step::{Feed, Wanted, step};
use super::{Model, Page, StepError};

/// One sequence: its KV cache and position. Dropping it frees the cache.
#[derive(Debug)]
pub struct Session {
    pub(super) stage: Stage,
    pub(super) logits: Vec<f32>,
}

impl Session {
    /// Tokens fed so far.
    pub fn position(&self) -> usize {
        self.stage.position
    }

    /// Tokens that it can hold.
    pub fn context_max(&self) -> usize {
        self.stage.context_max
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Arc<Model> {
        &self.stage.model
    }

    /// Its pages, in order. All but the last hold [`super::PAGE`] tokens.
    pub fn pages(&self) -> &[Arc<Page>] {
        self.stage.pages()
    }

    /// Goes on with `pages` in place of its first ones, which hold the same: another sequence's, say,
    /// that has been fed the same tokens.
    ///
    /// # Panics
    /// Where there are more of them than full pages.
    pub fn exchange(&mut self, pages: Vec<Arc<Page>>) {
        self.stage.exchange(pages);
    }

    /// How many pages must be had before `tokens` more can be fed.
    pub fn pages_wanted(&self, tokens: usize) -> usize {
        self.stage.pages_wanted(tokens)
    }

    /// Runs `tokens` without computing logits. Long prompts are fed in pieces by the caller, so
    /// that it can show progress and stop; 512 at a time is efficient. Pieces never change bits.
    ///
    /// # Errors
    /// There is no room, or a token is unknown; the session is as it was.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<(), StepError> {
        step(&mut [Feed { session: self, tokens, wanted: Wanted::Nothing }], &mut |_| {})
    }

    /// Runs `tokens` (one or more) and returns the logits after the last, one per vocabulary entry.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], StepError> {
        let mut logits = std::mem::take(&mut self.logits);
        let feed = Feed { session: self, tokens, wanted: Wanted::Last };
        let outcome = step(&mut [feed], &mut |found| {
            logits.clear();
            logits.extend_from_slice(found.numbers);
        });
        self.logits = logits;
        outcome.map(|()| &self.logits[..])
    }

    /// Runs `tokens` and hands `each` the logits after every one: (index in `tokens`, logits).
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn logits_each(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let feed = Feed { session: self, tokens, wanted: Wanted::Each };
        step(&mut [feed], &mut |found| {
            let rows = found.numbers.chunks_exact(found.width);
            found.of.iter().zip(rows).for_each(|(&(_, token), row)| each(token, row));
        })
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.stage.rewind(position);
    }
}
