//! Several sequences of one model, fed together.

use std::sync::Arc;

use super::ends::Asked;
use super::session::Session;
use super::{Model, StepError};
use crate::numeric::block::{BlockVec, Blocks, GROUP};
use crate::weights::EndWeights;

/// What is wanted of the tokens that a sequence is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// That they are remembered.
    Nothing,
    /// The logits after the last of them.
    Last,
    /// The logits after each.
    Each,
    /// The vector of each after the last norm, as wide as the model: what logits are made of.
    Vectors,
}

/// Rows of what was wanted, in the order of feeds and of each feed's tokens.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Whose each row is: (index of the feed, index of its token).
    pub of: &'a [(usize, usize)],
    /// Numbers in a row.
    pub width: usize,
    /// `[rows][width]`; whoever takes them may change them.
    pub numbers: &'a mut [f32],
}

/// What one sequence is fed in a step.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub session: &'a mut Session,
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// What is wanted of them.
    pub wanted: Wanted,
}

/// Feeds several sequences of one model together, so that weights are read once for all of them.
/// `take` receives what was wanted, in one call or several. Who else is in a step never changes
/// bits.
///
/// # Errors
/// There is no room in a sequence, there are no pages, a token is unknown, or only a part of the
/// model is loaded; all sequences are as they were.
///
/// # Panics
/// Where the sessions are not all of one model.
pub fn step(feeds: &mut [Feed], take: &mut dyn FnMut(Rows)) -> Result<(), StepError> {
    let Some(first) = feeds.first() else { return Ok(()) };
    let model = first.session.stage.model.clone();
    let ends = model.whole()?;
    begin(&model, feeds)?;
    let mut done = vec![0; feeds.len()];
    loop {
        let parts = share_out(&left(feeds, &done), model.tokens_max());
        if parts.is_empty() {
            return Ok(());
        }
        pass(&model, ends, feeds, &mut done, &parts, take);
    }
}

/// The first part of a step, for a model of which the ends and the first half-blocks are loaded:
/// embeds the tokens of several sequences and takes them through those half-blocks. Returns the
/// residual rows of each feed, which the rest of the model goes on with; [`Model::heads`] makes
/// logits of what comes back, so nothing is looked at here but the tokens.
///
/// # Errors
/// As [`step`], or the ends or the first half-blocks are not loaded; all sequences are as they
/// were.
///
/// # Panics
/// Where the sessions are not all of one model.
pub fn front(feeds: &mut [Feed]) -> Result<Vec<BlockVec>, StepError> {
    let Some(first) = feeds.first() else { return Ok(Vec::new()) };
    let model = first.session.stage.model.clone();
    let ends = model.beginning()?;
    begin(&model, feeds)?;
    let mut done = vec![0; feeds.len()];
    let mut found = vec![BlockVec::default(); feeds.len()];
    loop {
        let parts = share_out(&left(feeds, &done), model.tokens_max());
        if parts.is_empty() {
            return Ok(found);
        }
        let residual = local(&model, ends, feeds, &mut done, &parts);
        let mut rows = RowsOf::new(residual.view(), model.width());
        for &(i, count) in &parts {
            rows.next(count).append_to(&mut found[i]);
        }
    }
}

/// Makes sure that all of a step can be done: a refusal leaves the sessions as they were.
fn begin(model: &Arc<Model>, feeds: &mut [Feed]) -> Result<(), StepError> {
    for feed in feeds.iter() {
        assert!(Arc::ptr_eq(&feed.session.stage.model, model), "sessions of different models");
        model.check_tokens(feed.tokens)?;
    }
    let reserved = feeds.iter_mut().try_for_each(|f| f.session.stage.reserve(f.tokens.len()));
    if reserved.is_err() {
        let as_it_was = |feed: &mut Feed| feed.session.rewind(feed.session.position());
        feeds.iter_mut().for_each(as_it_was);
    }
    reserved
}

/// Tokens of each feed that have not been fed yet.
fn left(feeds: &[Feed], done: &[usize]) -> Vec<usize> {
    feeds.iter().zip(done).map(|(feed, done)| feed.tokens.len() - done).collect()
}

/// What fits into one pass together, given how many are `left` of each: (whose, tokens), each not
/// empty.
pub(super) fn share_out(left: &[usize], tokens_max: usize) -> Vec<(usize, usize)> {
    let mut room = tokens_max;
    let mut parts = Vec::new();
    for (i, &left) in left.iter().enumerate() {
        let tokens = left.min(room);
        if tokens > 0 {
            parts.push((i, tokens));
            room -= tokens;
        }
    }
    parts
}

/// Takes the next tokens of each feed, as `parts` says, through what half-blocks are loaded.
fn local(
    model: &Model,
    ends: &EndWeights,
    feeds: &mut [Feed],
    done: &mut [usize],
    parts: &[(usize, usize)],
) -> BlockVec {
    let width = model.width();
    let tokens: usize = parts.iter().map(|(_, tokens)| tokens).sum();
    let mut residual = BlockVec::zeros(tokens * width);
    let mut spans = Vec::with_capacity(parts.len());
    let mut row = 0;
    for &(i, count) in parts {
        let feed = &mut feeds[i];
        for &token in &feed.tokens[done[i]..][..count] {
            ends.embed_row(token, width, &mut residual, row);
            row += 1;
        }
        spans.push(feed.session.stage.span(count));
        done[i] += count;
    }
    model.pass(model.loaded(), &mut residual, &spans);
    residual
}

/// One pass of a step of a whole model.
fn pass(
    model: &Model,
    ends: &EndWeights,
    feeds: &mut [Feed],
    done: &mut [usize],
    parts: &[(usize, usize)],
    take: &mut dyn FnMut(Rows),
) {
    let residual = local(model, ends, feeds, done, parts);
    let mut rows = RowsOf::new(residual.view(), model.width());
    let mut wishes = Vec::new();
    for &(i, count) in parts {
        let feed = &feeds[i];
        let asked = Asked { feed: i, wanted: feed.wanted, of: feed.tokens.len() };
        asked.wishes(&mut rows, done[i] - count..done[i], &mut wishes);
    }
    model.grant(ends, wishes, take);
}

/// Residual rows, to be taken one after another.
pub(super) struct RowsOf<'a> {
    rest: Blocks<'a>,
    width: usize,
}

impl<'a> RowsOf<'a> {
    /// Those of `all`, each as wide as `width`.
    pub(super) fn new(all: Blocks<'a>, width: usize) -> Self {
        Self { rest: all, width }
    }

    /// The next `count` of them.
    pub(super) fn next(&mut self, count: usize) -> Blocks<'a> {
        let (m, more_m) = self.rest.m.split_at(count * self.width);
        let (e, more_e) = self.rest.e.split_at(count * self.width / GROUP);
        self.rest = Blocks { m: more_m, e: more_e };
        Blocks { m, e }
    }
}
