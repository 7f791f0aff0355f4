//! Guessing tokens ahead, and knowing when it pays.
//!
//! A guess is checked by computing it together with the token before it, in one step that costs more
//! than a step of one token but less than several. Tokens are picked from logits exactly as without
//! guesses, so guesses change speed and never answers.

/// The longest stretch of tokens that is looked up.
const MATCH_MAX: usize = 8;
/// The shortest.
const MATCH_MIN: usize = 2;
/// Tokens guessed at a time, at most.
pub const GUESS_MAX: usize = 15;
/// How much one trial counts against all before it.
const TRIAL: f64 = 0.08;
/// A guess must promise at least this much more than it costs, for estimates err.
const GAIN_MIN: f64 = 1.12;
/// Rows whose costs are told apart; more cost proportionally more.
const ROWS_MAX: usize = 64;

/// A guess at the next tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess<'a> {
    /// They; not empty.
    pub tokens: &'a [u32],
    /// How many tokens before them are the same where they were found.
    pub alike: usize,
}

/// What followed when the last tokens of `text` occurred before: the latest place where the most of
/// them did. Looks back over all of `text`, at one token after the other.
pub fn look_up(text: &[u32]) -> Option<Guess<'_>> {
    let end = text.len();
    let last = *text.last()?;
    let mut best: Option<(usize, usize)> = None;
    for at in (MATCH_MIN..end).rev() {
        // `at` is where the guess would begin.
        if text[at - 1] != last || best.is_some_and(|(_, alike)| alike >= MATCH_MAX) {
            continue;
        }
        let pairs = text[..at].iter().rev().zip(text.iter().rev());
        let alike = pairs.take(MATCH_MAX).take_while(|(a, b)| a == b).count();
        if alike >= MATCH_MIN && best.is_none_or(|(_, longest)| alike > longest) {
            best = Some((at, alike));
        }
    }
    let (at, alike) = best?;
    Some(Guess { tokens: &text[at..end.min(at + GUESS_MAX)], alike })
}

/// How often guesses of one sequence were right, by how much was alike.
#[derive(Debug, Clone)]
pub struct Record {
    right: [f64; 3],
}

impl Default for Record {
    fn default() -> Self {
        // Hopeful, so that the first guesses are tried where the text repeats itself.
        Self { right: [0.35, 0.6, 0.8] }
    }
}

impl Record {
    /// Chance that the next token of a guess is right.
    pub fn chance(&self, alike: usize) -> f64 {
        self.right[class(alike)]
    }

    /// A token of a guess turned out right or wrong, whether it had been computed ahead or not.
    pub fn note(&mut self, alike: usize, right: bool) {
        let chance = &mut self.right[class(alike)];
        *chance += TRIAL * (f64::from(u8::from(right)) - *chance);
    }
}

fn class(alike: usize) -> usize {
    match alike {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    }
}

/// What steps cost by the number of tokens computed in them, relative to one: measured as they
/// happen.
#[derive(Debug, Clone)]
pub struct Costs {
    /// `rows[n - 1]` for n tokens, seconds; 0 where not known.
    rows: [f64; ROWS_MAX],
}

impl Default for Costs {
    fn default() -> Self {
        Self { rows: [0.0; ROWS_MAX] }
    }
}

impl Costs {
    /// A step of `rows` tokens took `seconds`.
    pub fn note(&mut self, rows: usize, seconds: f64) {
        let Some(cost) = rows.checked_sub(1).and_then(|n| self.rows.get_mut(n)) else { return };
        // A step that something disturbed must not count for much.
        let seen = if *cost > 0.0 { seconds.min(2.0 * *cost) } else { seconds };
        *cost = if *cost > 0.0 { *cost + 0.1 * (seen - *cost) } else { seen };
    }

    /// How long a step of one token takes, seconds, if that was measured.
    pub fn one_seconds(&self) -> Option<f64> {
        (self.rows[0] > 0.0).then_some(self.rows[0])
    }

    /// What a step of `rows` tokens, 1 or more, costs in steps of one; before anything is measured,
    /// what is usual.
    pub fn of(&self, rows: usize) -> f64 {
        let usual = |n: usize| 1.0 + 0.35 * (n as f64 - 1.0);
        let known = |n: usize| (self.rows[n - 1] > 0.0).then(|| self.rows[n - 1]);
        let Some(one) = known(1) else { return usual(rows) };
        if let Some(cost) = (rows <= ROWS_MAX).then(|| known(rows)).flatten() {
            return (cost / one).max(1.0);
        }
        // As the nearest that is known, and from there as usual.
        let near = (1..=ROWS_MAX).filter(|n| self.rows[n - 1] > 0.0);
        let near = near.min_by_key(|n| n.abs_diff(rows)).unwrap_or(1);
        (self.rows[near - 1] / one * usual(rows) / usual(near)).max(1.0)
    }
}

/// How many tokens of a guess of `most` to compute ahead, each of which is right with `chance`, in a
/// step that computes `others` tokens anyway; 0 where it does not pay. `each` is what guessing one
/// token costs by itself, in steps of one token.
pub fn depth(most: usize, chance: f64, others: usize, each: f64, costs: &Costs) -> usize {
    let plain = costs.of(others + 1);
    let mut best = (0, 1.0 / plain);
    let (mut expected, mut run) = (1.0, 1.0);
    for n in 1..=most.min(GUESS_MAX) {
        run *= chance;
        expected += run;
        // Others in the step get their one token each, later the more is guessed.
        let gain = (expected + others as f64) / (costs.of(others + 1 + n) + each * n as f64);
        let threshold = (1.0 + others as f64) / plain * GAIN_MIN;
        if gain > threshold && gain > best.1 {
            best = (n, gain);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3];
        let guess = look_up(&text).unwrap();
        assert_eq!((guess.tokens[0], guess.alike), (4, 3));
        assert_eq!(look_up(&[5, 5]), None);
        assert_eq!(look_up(&[1, 2, 3]), None);
        assert_eq!(look_up(&[]), None);
    }

    #[test]
    fn of_equal_matches_the_latest_counts() {
        let guess = [1, 2, 3, 0, 1, 2, 4, 0, 1, 2];
        assert_eq!(look_up(&guess).unwrap().tokens, [4, 0, 1, 2]);
    }

    #[test]
    fn guesses_are_bounded() {
        let text: Vec<u32> = (0..100).chain(0..20).collect();
        let guess = look_up(&text).unwrap();
        assert_eq!((guess.tokens.len(), guess.alike), (GUESS_MAX, MATCH_MAX));
    }

    #[test]
    fn guessing_stops_when_it_does_not_pay_and_comes_back() {
        let mut record = Record::default();
        let costs = Costs::default();
        let deep = |record: &Record| depth(GUESS_MAX, record.chance(8), 0, 0.0, &costs);
        assert!(deep(&record) > 0);
        (0..40).for_each(|_| record.note(8, false));
        assert_eq!(deep(&record), 0);
        (0..60).for_each(|_| record.note(8, true));
        assert!(deep(&record) >= 4, "{}", deep(&record));
        // Other classes were not touched.
        assert_eq!(record.chance(3), Record::default().chance(3));
    }

    #[test]
    fn where_every_token_costs_a_step_nothing_is_guessed() {
        let mut costs = Costs::default();
        (1..=32).for_each(|rows| costs.note(rows, rows as f64));
        assert_eq!(depth(GUESS_MAX, 0.99, 0, 0.0, &costs), 0);
        assert_eq!(depth(GUESS_MAX, 0.99, 7, 0.0, &costs), 0);
    }

    #[test]
    fn a_dear_guesser_is_asked_for_less() {
        let costs = Costs::default();
        let cheap = depth(GUESS_MAX, 0.8, 0, 0.0, &costs);
        let dear = depth(GUESS_MAX, 0.8, 0, 0.3, &costs);
        assert!(cheap > dear, "{cheap} {dear}");
    }

    #[test]
    fn costs_follow_what_is_measured() {
        let mut costs = Costs::default();
        assert!((costs.of(1) - 1.0).abs() < 1e-9);
        costs.note(1, 0.010);
        costs.note(4, 0.016);
        assert!((costs.of(4) - 1.6).abs() < 1e-9);
        assert!(costs.of(5) > 1.6 && costs.of(3) < 1.6);
        // One step that took a second says little.
        costs.note(4, 1.0);
        assert!(costs.of(4) < 1.8, "{}", costs.of(4));
        assert!(costs.of(200) > costs.of(64));
    }
}
