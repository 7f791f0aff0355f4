//! The two ends of a model: from tokens to residual rows, and from those to what is wanted of them.

use std::ops::Range;

use super::step::{Rows, RowsOf, Wanted};
use super::{Model, StepError, head};
use crate::numeric::block::{BlockVec, Blocks, BlocksMut, GROUP};
use crate::weights::EndWeights;

/// Bytes of logits that are computed together, at most.
const LOGITS_BYTES_MAX: usize = 16 << 20;

/// Residual rows of one sequence that have left the last half-block, wherever that is.
#[derive(Debug, Clone, Copy)]
pub struct Returned<'a> {
    /// The rows, one after another.
    pub rows: Blocks<'a>,
    /// What is wanted of them.
    pub wanted: Wanted,
}

impl Model {
    /// The residual rows that `tokens` begin with: what enters half-block 0.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or the model's ends are elsewhere.
    pub fn embed(&self, tokens: &[u32]) -> Result<BlockVec, StepError> {
        let ends = self.ends()?;
        self.check_tokens(tokens)?;
        let mut all = BlockVec::zeros(tokens.len() * self.width());
        for (row, &token) in tokens.iter().enumerate() {
            ends.embed_row(token, self.width(), &mut all, row);
        }
        Ok(all)
    }

    /// What is wanted of rows that have left the last half-block, for several sequences together:
    /// the last part of a step, with the same bits. `take` receives it as [`super::step`] hands it
    /// out; a row is named by (index in `returned`, index among its rows).
    ///
    /// # Errors
    /// A row is not a valid encoding, or the model's ends are elsewhere; nothing was handed out.
    pub fn heads(
        &self,
        returned: &[Returned],
        take: &mut dyn FnMut(Rows),
    ) -> Result<(), StepError> {
        let ends = self.ends()?;
        let mut wishes = Vec::new();
        for (feed, Returned { rows, wanted }) in returned.iter().enumerate() {
            let count = self.count_rows(*rows)?;
            let mut rows = RowsOf::new(*rows, self.width());
            let asked = Asked { feed, wanted: *wanted, of: count };
            asked.wishes(&mut rows, 0..count, &mut wishes);
        }
        self.grant(ends, wishes, take);
        Ok(())
    }

    /// Logits of each row of `residual`, which has left the last half-block: (index, logits).
    ///
    /// # Errors
    /// As [`Model::heads`].
    pub fn logits_of(
        &self,
        residual: Blocks,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        self.heads(&[Returned { rows: residual, wanted: Wanted::Each }], &mut |found| {
            let rows = found.numbers.chunks_exact(found.width);
            found.of.iter().zip(rows).for_each(|(&(_, index), row)| each(index, row));
        })
    }

    /// Hands out what is wished for. Rows have been checked.
    pub(super) fn grant(&self, ends: &EndWeights, wishes: Vec<Wish>, take: &mut dyn FnMut(Rows)) {
        let (vectors, logits): (Vec<_>, Vec<_>) =
            wishes.into_iter().partition(|wish| wish.form == Form::Vector);
        for Wish { row, of, .. } in vectors {
            let numbers = &mut head::vector(&self.weights, ends, row);
            take(Rows { of: &[of], width: self.width(), numbers });
        }
        let of: Vec<_> = logits.iter().map(|wish| wish.of).collect();
        let rows: Vec<Blocks> = logits.iter().map(|wish| wish.row).collect();
        let width = self.weights.arch.vocab;
        self.logits_in_parts(ends, &rows, &mut |first, numbers| {
            let of = &of[first..][..numbers.len() / width];
            take(Rows { of, width, numbers });
        });
    }

    /// Logits of `rows`, as many at a time as memory for them is meant for: (first row, logits).
    fn logits_in_parts(
        &self,
        ends: &EndWeights,
        rows: &[Blocks],
        part: &mut dyn FnMut(usize, &mut [f32]),
    ) {
        let vocab = self.weights.arch.vocab;
        let rows_max = (LOGITS_BYTES_MAX / (size_of::<f32>() * vocab)).max(1);
        let mut residual = BlockVec::default();
        let mut numbers = Vec::new();
        for (n, some) in rows.chunks(rows_max).enumerate() {
            residual.m.clear();
            residual.e.clear();
            some.iter().for_each(|row| row.append_to(&mut residual));
            let view = residual.view();
            head::logits(&self.weights, ends, self.kernels, &self.pool, view, &mut numbers);
            part(n * rows_max, &mut numbers[..some.len() * vocab]);
        }
    }
}

impl EndWeights {
    /// Writes what `token`, which is in the vocabulary, begins with into row `row` of `all`.
    pub(super) fn embed_row(&self, token: u32, width: usize, all: &mut BlockVec, row: usize) {
        let groups = width / GROUP;
        let m = &mut all.m[row * width..][..width];
        let e = &mut all.e[row * groups..][..groups];
        self.embed(token, &mut BlocksMut { m, e });
    }
}

/// A row that something is wanted of.
pub(super) struct Wish<'a> {
    row: Blocks<'a>,
    /// Whose it is: (index of the feed, index of its token).
    of: (usize, usize),
    form: Form,
}

/// What is made of a row.
#[derive(PartialEq)]
enum Form {
    Logits,
    Vector,
}

/// What is wanted of a feed.
pub(super) struct Asked {
    pub(super) feed: usize,
    pub(super) wanted: Wanted,
    /// Tokens in all.
    pub(super) of: usize,
}

impl Asked {
    /// Takes the rows of the feed's tokens `places`, and adds to `wishes` those of which something
    /// is wanted.
    pub(super) fn wishes<'a>(
        &self,
        rows: &mut RowsOf<'a>,
        places: Range<usize>,
        wishes: &mut Vec<Wish<'a>>,
    ) {
        for place in places {
            let row = rows.next(1);
            let form = match self.wanted {
                Wanted::Each => Form::Logits,
                Wanted::Last if place + 1 == self.of => Form::Logits,
                Wanted::Vectors => Form::Vector,
                Wanted::Last | Wanted::Nothing => continue,
            };
            wishes.push(Wish { row, of: (self.feed, place), form });
        }
    }
}
