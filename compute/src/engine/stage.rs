//! A part of a model at work on one sequence.

use std::ops::Range;
use std::sync::Arc;

use super::step::{RowsOf, share_out};
use super::{Model, PAGE, Page, StepError};
use crate::forward::Span;
use crate::kv::{Cache, NoPage};
use crate::numeric::block::{BlockVec, GROUP};

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

    /// Tokens that it can hold.
    pub fn context_max(&self) -> usize {
        self.context_max
    }

    /// The model it belongs to.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Its pages, in order. All but the last hold [`PAGE`] tokens.
    pub fn pages(&self) -> &[Arc<Page>] {
        self.cache.pages()
    }

    /// Goes on with `pages` in place of its first ones, which hold the same: another sequence's, say,
    /// that has been fed the same tokens.
    ///
    /// # Panics
    /// Where there are more of them than full pages.
    pub fn exchange(&mut self, pages: Vec<Arc<Page>>) {
        assert!(pages.len() * PAGE <= self.position, "only full pages are exchanged");
        self.cache.exchange(pages);
    }

    /// How many pages must be had before `tokens` more can be fed.
    pub fn pages_wanted(&self, tokens: usize) -> usize {
        self.cache.pages_wanted(&(self.position..self.position + tokens))
    }

    /// Takes the residual rows of the next tokens through the stage, in place.
    ///
    /// # Errors
    /// There is no room for them, or a row is not a valid encoding; the stage is as it was.
    pub fn feed(&mut self, residual: &mut BlockVec) -> Result<(), StepError> {
        pass_rows(&mut [StageFeed { stage: self, rows: residual }])
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

/// What a stage begins with: pages that hold the keys and values of the first `position` tokens.
/// The default is an empty sequence.
#[derive(Debug, Default)]
pub struct Beginning {
    /// The pages, in order.
    pub pages: Vec<Arc<Page>>,
    /// Tokens in them that count.
    pub position: usize,
}

/// What one sequence brings to a stage.
#[derive(Debug)]
pub struct StageFeed<'a> {
    /// The sequence's state there.
    pub stage: &'a mut Stage,
    /// The residual rows of its next tokens, to be replaced by what leaves the stage.
    pub rows: &'a mut BlockVec,
}

/// Takes rows of several sequences through the same half-blocks together, so that weights are read
/// once for all of them. Who else is there never changes bits.
///
/// # Errors
/// There is no room in a sequence, there are no pages, or a row is not a valid encoding; all
/// sequences and rows are as they were.
///
/// # Panics
/// Where the stages are not all of the same half-blocks of one model.
pub fn pass_rows(feeds: &mut [StageFeed]) -> Result<(), StepError> {
    let Some(first) = feeds.first() else { return Ok(()) };
    let (model, halves) = (first.stage.model.clone(), first.stage.halves());
    let mut left = Vec::with_capacity(feeds.len());
    for StageFeed { stage, rows } in feeds.iter() {
        assert!(Arc::ptr_eq(&stage.model, &model), "stages of different models");
        assert!(stage.halves == halves, "stages of different half-blocks");
        left.push(model.count_rows(rows.view())?);
    }
    let mut each = feeds.iter_mut().zip(&left);
    if let Err(error) = each.try_for_each(|(feed, &tokens)| feed.stage.reserve(tokens)) {
        feeds.iter_mut().for_each(|feed| feed.stage.rewind(feed.stage.position));
        return Err(error);
    }
    // The usual case needs no copies.
    if let ([feed], &[tokens]) = (&mut *feeds, &left[..])
        && tokens <= model.tokens_max()
    {
        let span = feed.stage.span(tokens);
        model.pass(halves, feed.rows, &[span]);
        return Ok(());
    }
    let mut done = vec![0; feeds.len()];
    loop {
        let parts = share_out(&left, model.tokens_max());
        if parts.is_empty() {
            return Ok(());
        }
        pass_together(&model, feeds, &mut done, &parts);
        parts.iter().for_each(|&(i, tokens)| left[i] -= tokens);
    }
}

/// One pass of the next rows of each feed, as `parts` says.
fn pass_together(
    model: &Model,
    feeds: &mut [StageFeed],
    done: &mut [usize],
    parts: &[(usize, usize)],
) {
    let width = model.width();
    let mut residual = BlockVec::default();
    let mut spans = Vec::with_capacity(parts.len());
    let halves = feeds[parts[0].0].stage.halves();
    for &(i, tokens) in parts {
        let mut rows = RowsOf::new(feeds[i].rows.view(), width);
        rows.next(done[i]);
        rows.next(tokens).append_to(&mut residual);
        spans.push(feeds[i].stage.span(tokens));
    }
    model.pass(halves, &mut residual, &spans);
    let mut rows = RowsOf::new(residual.view(), width);
    for &(i, tokens) in parts {
        let own = rows.next(tokens);
        let at = done[i] * width;
        feeds[i].rows.m[at..][..own.m.len()].copy_from_slice(own.m);
        feeds[i].rows.e[at / GROUP..][..own.e.len()].copy_from_slice(own.e);
        done[i] += tokens;
    }
}
