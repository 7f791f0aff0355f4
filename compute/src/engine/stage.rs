//! A part of a model at work on one sequence.

use std::ops::Range;
use std::sync::Arc;

use super::{Model, StepError};
use crate::forward::Span;
use crate::kv::{Cache, NoPage};
use crate::numeric::block::{self, BlockVec};

/// A contiguous range of half-blocks and the state of one sequence in them.
///
/// Half-block `2 l` is layer `l`'s attention, `2 l + 1` its feed-forward half. A chain of stages
/// that covers the model gives the bits of the whole.
#[derive(Debug)]
pub struct Stage {
    pub(super) model: Arc<Model>,
    pub(super) halves: Range<usize>,
    pub(super) cache: Cache,
    pub(super) position: usize,
    pub(super) context_max: usize,
}

impl Stage {
    /// Tokens fed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The half-blocks.
    pub fn halves(&self) -> Range<usize> {
        self.halves.clone()
    }

    /// Takes the residual rows of the next tokens through the stage, in place.
    ///
    /// # Errors
    /// There is no room for them, or a row is not a valid encoding; the stage is as it was.
    pub fn feed(&mut self, residual: &mut BlockVec) -> Result<(), StepError> {
        let width = self.model.weights.arch.width;
        block::check(residual.view()).map_err(StepError::Encoding)?;
        if !residual.m.len().is_multiple_of(width) {
            return Err(StepError::Encoding("the rows are not as wide as the model"));
        }
        let tokens = residual.m.len() / width;
        self.reserve(tokens)?;
        let span = self.span(tokens);
        self.model.pass(self.halves.clone(), residual, &[span]);
        Ok(())
    }

    /// Makes sure of room for `tokens` more.
    pub(super) fn reserve(&mut self, tokens: usize) -> Result<(), StepError> {
        let wanted = self.position + tokens;
        let context_max = self.context_max;
        if wanted > context_max {
            return Err(StepError::ContextFull { context_max, wanted });
        }
        let pages_max = self.cache.home().max();
        let reserved = self.cache.reserve(&(self.position..wanted));
        reserved.map_err(|NoPage| StepError::NoPage { pages_max })
    }

    /// The next `tokens` as part of a pass; from now on they count as fed. Their room is reserved.
    pub(super) fn span(&mut self, tokens: usize) -> Span {
        let position = self.position;
        self.position += tokens;
        Span { position, tokens, places: self.cache.places(&(position..self.position)) }
    }

    /// Forgets all tokens from `position` on.
    pub fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
        self.cache.truncate(self.position);
    }
}
