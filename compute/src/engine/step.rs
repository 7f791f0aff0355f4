//! Several sequences of one model, fed together.

use std::sync::Arc;

use super::session::Session;
use super::{Model, StepError, head};
use crate::numeric::block::{BlockVec, Blocks, GROUP};

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
/// There is no room in a sequence, there are no pages, or a token is unknown; all sequences are as
/// they were.
///
/// # Panics
/// Where the sessions are not all of one model.
pub fn step(feeds: &mut [Feed], take: &mut dyn FnMut(Rows)) -> Result<(), StepError> {
    let Some(first) = feeds.first() else { return Ok(()) };
    let model = first.session.stage.model.clone();
    // All of them before any, so that a refusal leaves the sessions as they were.
    for feed in feeds.iter() {
        assert!(Arc::ptr_eq(&feed.session.stage.model, &model), "sessions of different models");
        model.check_tokens(feed.tokens)?;
    }
    let reserved = feeds.iter_mut().try_for_each(|f| f.session.stage.reserve(f.tokens.len()));
    if let Err(error) = reserved {
        let as_it_was = |feed: &mut Feed| feed.session.rewind(feed.session.position());
        feeds.iter_mut().for_each(as_it_was);
        return Err(error);
    }
    let mut done = vec![0; feeds.len()];
    loop {
        let parts = share_out(feeds, &done, model.tokens_max());
        if parts.is_empty() {
            return Ok(());
        }
        pass(&model, feeds, &mut done, &parts, take);
    }
}

/// The next tokens of each feed that fit into one pass together: (feed, tokens), each not empty.
fn share_out(feeds: &[Feed], done: &[usize], tokens_max: usize) -> Vec<(usize, usize)> {
    let mut room = tokens_max;
    let mut parts = Vec::new();
    for (i, feed) in feeds.iter().enumerate() {
        let tokens = (feed.tokens.len() - done[i]).min(room);
        if tokens > 0 {
            parts.push((i, tokens));
            room -= tokens;
        }
    }
    parts
}

/// One pass of a step.
fn pass(
    model: &Model,
    feeds: &mut [Feed],
    done: &mut [usize],
    parts: &[(usize, usize)],
    take: &mut dyn FnMut(Rows),
) {
    let width = model.weights.arch.width;
    let tokens: usize = parts.iter().map(|(_, tokens)| tokens).sum();
    let mut residual = BlockVec::zeros(tokens * width);
    let mut spans = Vec::with_capacity(parts.len());
    // Rows that something is wanted of: which row, whose, and what.
    let mut wanted = Vec::new();
    let mut row = 0;
    for &(i, count) in parts {
        let feed = &mut feeds[i];
        let own = &feed.tokens[done[i]..][..count];
        for (n, &token) in own.iter().enumerate() {
            model.embed_row(token, &mut residual, row + n);
            let place = done[i] + n;
            let last = place + 1 == feed.tokens.len();
            if feed.wanted != Wanted::Nothing && (feed.wanted != Wanted::Last || last) {
                wanted.push((row + n, i, place, feed.wanted == Wanted::Vectors));
            }
        }
        spans.push(feed.session.stage.span(count));
        done[i] += count;
        row += count;
    }
    model.pass(0..model.halves(), &mut residual, &spans);
    let row_of = |row| residual_row(residual.view(), width, row);
    let (vectors, logits): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|wish| wish.3);
    for (row, feed, place, _) in vectors {
        let numbers = &mut head::vector(&model.weights, row_of(row));
        take(Rows { of: &[(feed, place)], width, numbers });
    }
    let of: Vec<_> = logits.iter().map(|(_, feed, place, _)| (*feed, *place)).collect();
    let rows: Vec<Blocks> = logits.iter().map(|(row, ..)| row_of(*row)).collect();
    let vocab = model.weights.arch.vocab;
    model.logits_in_parts(&rows, &mut |first, numbers| {
        let of = &of[first..][..numbers.len() / vocab];
        take(Rows { of, width: vocab, numbers });
    });
}

/// Row `row` of residual rows as wide as `width`.
pub(super) fn residual_row(all: Blocks<'_>, width: usize, row: usize) -> Blocks<'_> {
    let groups = width / GROUP;
    Blocks { m: &all.m[row * width..][..width], e: &all.e[row * groups..][..groups] }
}
