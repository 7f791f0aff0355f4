//! Which part of a model is in memory.

use std::ops::Range;

/// Whether the two ends of a model are loaded: embedding, last norm, output matrix, tokeniser and
/// chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ends {
    /// They are: tokens can go in and logits come out.
    Here,
    /// They are not: residual rows go in and come out.
    Elsewhere,
}

/// A part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its half-blocks: `2 l` is layer `l`'s attention, `2 l + 1` its feed-forward half.
    pub halves: Range<usize>,
    /// Its ends.
    pub ends: Ends,
}

impl Part {
    /// All of a model of `halves` half-blocks.
    pub fn whole(halves: usize) -> Self {
        Self { halves: 0..halves, ends: Ends::Here }
    }
}
