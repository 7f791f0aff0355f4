//! How long steps of a route take, and so from when on one is late.

use std::collections::VecDeque;

/// Durations of steps that count: the last ones.
const STEPS: usize = 64;
/// Steps after which what is usual is known.
const KNOWN: usize = 8;
/// Steps of more rows than this are reading a prompt; their time goes by the row.
const ROWS_FEW: u32 = 16;
/// Nothing is late before this, milliseconds: a machine that does other things, too, pauses so long.
const LATE_MIN: u64 = 250;
/// No second way is tried before this, milliseconds.
const HEDGE_MIN: u64 = 40;
/// While nothing is known: so long for a step, and for each row, milliseconds.
const FIRST: u64 = 1_000;
const FIRST_ROW: u64 = 20;

/// What steps have taken.
#[derive(Debug, Default)]
pub struct Pace {
    /// Of few rows, milliseconds, the latest last.
    steps: VecDeque<u64>,
    /// For each row of long ones, microseconds; 0 while not known.
    row_us: u64,
}

impl Pace {
    /// A step of `rows` has taken `ms`.
    pub fn note(&mut self, rows: u32, ms: u64) {
        if rows > ROWS_FEW {
            let each = ms * 1000 / u64::from(rows);
            self.row_us = if self.row_us == 0 { each } else { (3 * self.row_us + each) / 4 };
            return;
        }
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(ms);
    }

    /// What 95 of 100 steps of few rows have taken at most, milliseconds.
    pub fn p95(&self) -> Option<u64> {
        if self.steps.len() < KNOWN {
            return None;
        }
        let mut sorted: Vec<u64> = self.steps.iter().copied().collect();
        sorted.sort_unstable();
        Some(sorted[sorted.len() * 95 / 100])
    }

    /// When steps of `rows` in all are late, milliseconds after the last of them was due to begin.
    pub fn late(&self, rows: u32) -> u64 {
        let usual = match (rows > ROWS_FEW, self.p95()) {
            (false, Some(p95)) => 3 * p95,
            (true, _) if self.row_us > 0 => 3 * self.row_us * u64::from(rows) / 1000,
            _ => FIRST + FIRST_ROW * u64::from(rows),
        };
        usual.max(LATE_MIN)
    }

    /// When a second way is worth its cost for a step of `rows`; never while what is usual is not
    /// known.
    pub fn hedge(&self, rows: u32) -> Option<u64> {
        (rows <= ROWS_FEW).then_some(())?;
        Some((self.p95()? * 3 / 2).max(HEDGE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_what_is_much_later_than_usual() {
        let mut pace = Pace::default();
        assert_eq!((pace.late(1), pace.hedge(1)), (FIRST + FIRST_ROW, None));
        (0..100).for_each(|n| pace.note(1, if n % 20 == 0 { 300 } else { 100 }));
        assert_eq!((pace.p95(), pace.late(1), pace.hedge(1)), (Some(100), 300, Some(150)));
        pace.note(512, 1024);
        assert_eq!((pace.late(512), pace.hedge(512)), (3072, None));
    }
}
