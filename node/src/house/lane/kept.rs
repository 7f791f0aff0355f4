//! Rows that were sent, so that they can be sent again.

use std::collections::VecDeque;

use bytes::Bytes;
use wire::lane::ROWS_MAX;

/// Bytes in a frame's body, at most: enough that frames cost nothing beside their rows.
const BODY_MAX: usize = 8 << 20;

/// Rows of consecutive positions. The oldest go when they take too much memory.
#[derive(Debug)]
pub struct Kept {
    row_bytes: usize,
    bytes_max: usize,
    bytes: usize,
    pieces: VecDeque<Piece>,
    /// Where the next row stands.
    end: u32,
}

/// Rows that came together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Position of the first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// They.
    pub body: Bytes,
}

impl Kept {
    /// Nothing, at position `begin`; a row takes `row_bytes`, and all at most `bytes_max`.
    pub fn new(row_bytes: usize, bytes_max: usize, begin: u32) -> Self {
        Self { row_bytes, bytes_max, bytes: 0, pieces: VecDeque::new(), end: begin }
    }

    /// One after the last position.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The first position from which on all rows are still here.
    pub fn start(&self) -> u32 {
        self.pieces.front().map_or(self.end, |piece| piece.first)
    }

    /// Takes rows from position `first` on; what was there is forgotten.
    ///
    /// # Panics
    /// Where `first` lies beyond the end, or `body` is not made of whole rows.
    pub fn put(&mut self, first: u32, body: Bytes) {
        assert!(first <= self.end && body.len().is_multiple_of(self.row_bytes));
        self.truncate(first);
        let count = (body.len() / self.row_bytes) as u32;
        self.bytes += body.len();
        self.end = first + count;
        self.pieces.push_back(Piece { first, count, body });
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.pieces.pop_front() else { break };
            self.bytes -= oldest.body.len();
        }
    }

    /// Forgets all rows from `position` on.
    pub fn truncate(&mut self, position: u32) {
        while let Some(last) = self.pieces.back_mut() {
            if last.first + last.count <= position {
                break;
            }
            self.bytes -= last.body.len();
            if last.first >= position {
                self.pieces.pop_back();
                continue;
            }
            last.count = position - last.first;
            last.body.truncate(last.count as usize * self.row_bytes);
            self.bytes += last.body.len();
        }
        self.end = self.end.min(position);
    }

    /// The rows of `from..to`, in frames; `None` where some are gone.
    pub fn rows(&self, from: u32, to: u32) -> Option<Vec<Piece>> {
        if from < self.start() || to > self.end {
            return (from >= to).then(Vec::new);
        }
        let most = (BODY_MAX / self.row_bytes).clamp(1, ROWS_MAX as usize) as u32;
        let mut found = Vec::new();
        for piece in &self.pieces {
            let (mut first, last) = (from.max(piece.first), to.min(piece.first + piece.count));
            while first < last {
                let count = (last - first).min(most);
                let at = (first - piece.first) as usize * self.row_bytes;
                let body = piece.body.slice(at..at + count as usize * self.row_bytes);
                found.push(Piece { first, count, body });
                first += count;
            }
        }
        Some(joined(found, most))
    }
}

/// Neighbouring single rows as one piece, so that a long answer is not replayed in as many frames as
/// it has tokens.
fn joined(pieces: Vec<Piece>, most: u32) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    let mut run: Vec<Piece> = Vec::new();
    let mut count = 0;
    let join = |run: &mut Vec<Piece>, all: &mut Vec<Piece>| match run.len() {
        0 | 1 => all.append(run),
        _ => {
            let (first, count) = (run[0].first, run.iter().map(|piece| piece.count).sum());
            let body: Vec<u8> = run.drain(..).flat_map(|piece| piece.body).collect();
            all.push(Piece { first, count, body: body.into() });
        }
    };
    for piece in pieces {
        if count + piece.count > most {
            join(&mut run, &mut all);
            count = 0;
        }
        count += piece.count;
        run.push(piece);
    }
    join(&mut run, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(first: u32, count: u32, mark: u8) -> Bytes {
        (first..first + count).flat_map(|position| [position as u8, mark]).collect()
    }

    fn flat(pieces: Option<Vec<Piece>>) -> Option<Vec<u8>> {
        Some(pieces?.into_iter().flat_map(|piece| piece.body).collect())
    }

    #[test]
    fn rows_come_back_as_they_were_last_put() {
        let mut kept = Kept::new(2, 1 << 20, 0);
        kept.put(0, rows(0, 5, 0));
        kept.put(5, rows(5, 3, 0));
        kept.put(6, rows(6, 4, 1));
        assert_eq!((kept.start(), kept.end()), (0, 10));
        let expected = [2, 0, 3, 0, 4, 0, 5, 0, 6, 1, 7, 1];
        assert_eq!(flat(kept.rows(2, 8)).unwrap(), expected);
        assert_eq!(kept.rows(2, 8).unwrap().len(), 1, "single rows are joined");
        assert_eq!(kept.rows(10, 10), Some(vec![]));
        assert_eq!(kept.rows(9, 11), None);
        kept.truncate(3);
        assert_eq!((kept.end(), flat(kept.rows(0, 3))), (3, Some(vec![0, 0, 1, 0, 2, 0])));
    }

    #[test]
    fn the_oldest_go_when_there_is_too_much() {
        let mut kept = Kept::new(2, 20, 4);
        (0..5).for_each(|n| kept.put(4 + 4 * n, rows(4 + 4 * n, 4, 0)));
        assert_eq!((kept.start(), kept.end(), kept.bytes), (16, 24, 16));
        assert_eq!(kept.rows(15, 24), None);
        assert!(kept.rows(16, 24).is_some());
    }
}
