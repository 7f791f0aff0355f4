//! Joins neighbours, best first, until no pair is left that may join.
//!
//! A list of symbols linked both ways and a heap of places where a pair may join: O(n log n) for
//! any text. A place is not taken off the heap when its pair changes; it is found stale when its
//! turn comes, since its symbol then waits for another rank.

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
    /// What it and the next become; the rank is `NONE` where they become nothing.
    pair: Join,
}

/// What two neighbours become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    /// Lower is sooner; equal ones from left to right. Below `u32::MAX`.
    pub rank: u32,
    /// The token that they make.
    pub id: u32,
}

const NO_JOIN: Join = Join { rank: NONE, id: NONE };

/// The symbols of one word or text, and room to work in.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    /// Rank and place of a pair, in one number that orders by both.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Forgets all symbols.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Adds a symbol after those already there: `len` bytes, 1 or more, at `start`.
    pub fn push(&mut self, start: u32, len: u32, id: u32) {
        let index = self.symbols.len() as u32;
        let prev = index.checked_sub(1).unwrap_or(NONE);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol { start, len, id, prev, next: NONE, pair: NO_JOIN });
    }

    /// Joins all that `join` lets, and hands over what is left, in order.
    pub fn merge(
        &mut self,
        join: impl Fn(&Symbol, &Symbol) -> Option<Join>,
    ) -> impl Iterator<Item = &Symbol> {
        for left in 1..self.symbols.len() {
            self.symbols[left - 1].pair = self.joined(left as u32 - 1, &join);
        }
        let pairs = self.symbols.iter().enumerate().filter(|(_, one)| one.pair.rank != NONE);
        self.queue.extend(pairs.map(|(at, one)| Reverse(key(one.pair.rank, at as u32))));
        while let Some(Reverse(best)) = self.queue.pop() {
            let (rank, left) = ((best >> 32) as u32, best as u32);
            let one = self.symbols[left as usize];
            if one.pair.rank != rank {
                continue;
            }
            let other = self.symbols[one.next as usize];
            self.symbols[one.next as usize] = Symbol { len: 0, pair: NO_JOIN, ..other };
            self.symbols[left as usize] =
                Symbol { len: one.len + other.len, id: one.pair.id, next: other.next, ..one };
            if other.next != NONE {
                self.symbols[other.next as usize].prev = left;
            }
            self.pair(left, &join);
            if one.prev != NONE {
                self.pair(one.prev, &join);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn pair(&mut self, left: u32, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        let pair = self.joined(left, join);
        self.symbols[left as usize].pair = pair;
        if pair.rank != NONE {
            self.queue.push(Reverse(key(pair.rank, left)));
        }
    }

    fn joined(&self, left: u32, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) -> Join {
        let one = &self.symbols[left as usize];
        let other = self.symbols.get(one.next as usize);
        other.and_then(|other| join(one, other)).unwrap_or(NO_JOIN)
    }
}

fn key(rank: u32, left: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(left)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The definition: the best pair, leftmost among equals, again and again.
    fn slowly(ids: &[u32], joins: &HashMap<(u32, u32), Join>) -> Vec<u32> {
        let mut ids = ids.to_vec();
        loop {
            let pairs = ids.windows(2).enumerate();
            let joins = pairs.filter_map(|(at, pair)| Some((at, *joins.get(&(pair[0], pair[1]))?)));
            let Some((at, join)) = joins.min_by_key(|(at, join)| (join.rank, *at)) else {
                return ids;
            };
            ids.splice(at..at + 2, [join.id]);
        }
    }

    proptest! {
        #[test]
        fn merging_is_by_rank_then_from_the_left(
            ids in prop::collection::vec(0u32..4, 0..40),
            joins in prop::collection::hash_map((0u32..9, 0u32..9), (0u32..6, 4u32..9), 0..40),
        ) {
            let joins = joins.into_iter().map(|(pair, (rank, id))| (pair, Join { rank, id }));
            let joins: HashMap<_, _> = joins.collect();
            let mut merger = Merger::default();
            for (at, id) in ids.iter().enumerate() {
                merger.push(at as u32, 1, *id);
            }
            let merged = merger.merge(|one, other| joins.get(&(one.id, other.id)).copied());
            let merged: Vec<Symbol> = merged.copied().collect();
            let found: Vec<u32> = merged.iter().map(|symbol| symbol.id).collect();
            prop_assert_eq!(found, slowly(&ids, &joins));
            let mut end = 0;
            for symbol in merged {
                prop_assert_eq!(symbol.start, end);
                end += symbol.len;
            }
            prop_assert_eq!(end as usize, ids.len());
        }
    }
}
