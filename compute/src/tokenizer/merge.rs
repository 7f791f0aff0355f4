//! Joins neighbours, best first, until no pair is left that may join.
//!
//! A list of symbols linked both ways and a heap of candidate pairs: O(n log n) for any text. A
//! candidate is not removed when one of its sides changes; it is found stale when its turn comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

/// A stretch of text that will be, or already is, a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// Where it begins, bytes.
    pub start: u32,
    /// How long it is, bytes; 0 once it has been joined to the one before.
    pub len: u32,
    /// Its token, or whatever the caller tells symbols apart by.
    pub id: u32,
    prev: u32,
    next: u32,
}

/// What two neighbours become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    /// Lower is sooner; equal ones from left to right.
    pub rank: u32,
    /// The token that they make.
    pub id: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Length of both when they were paired.
    len: u32,
    id: u32,
}

/// The symbols of one word or text, and room to work in.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets all symbols.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Adds a symbol of `len` bytes, 1 or more, after those already there.
    pub fn push(&mut self, len: u32, id: u32) {
        let index = self.symbols.len() as u32;
        let (start, prev) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.len, index - 1)
            }
            None => (0, NONE),
        };
        self.symbols.push(Symbol { start, len, id, prev, next: NONE });
    }

    /// Joins all that `join` lets, and hands over what is left, in order.
    pub fn merge(
        &mut self,
        join: impl Fn(&Symbol, &Symbol) -> Option<Join>,
    ) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.pair(right - 1, right, &join);
        }
        while let Some(Reverse(best)) = self.queue.pop() {
            let (left, right) = (best.left as usize, best.right as usize);
            let (one, other) = (self.symbols[left], self.symbols[right]);
            // A side joined elsewhere has no length; a side that grew makes another sum.
            if one.len == 0 || other.len == 0 || one.len + other.len != best.len {
                continue;
            }
            self.symbols[left] = Symbol { len: best.len, id: best.id, next: other.next, ..one };
            self.symbols[right].len = 0;
            if other.next != NONE {
                self.symbols[other.next as usize].prev = best.left;
                self.pair(best.left, other.next, &join);
            }
            if one.prev != NONE {
                self.pair(one.prev, best.left, &join);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn pair(&mut self, left: u32, right: u32, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        let (one, other) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Join { rank, id }) = join(one, other) {
            let len = one.len + other.len;
            self.queue.push(Reverse(Candidate { rank, left, right, len, id }));
        }
    }
}
