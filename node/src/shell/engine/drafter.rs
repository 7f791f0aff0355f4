//! A small model that guesses what a large one will say.
//!
//! Guesses are greedy. Whether they pay is learnt as they are tried; where they do not, the small
//! model is asked again only now and then.

use std::sync::Arc;
use std::time::Instant;

use compute::engine::{Pages, Session, StepError};
use compute::sample::argmax;

use super::super::worker::Serving;
use crate::house::draft;

/// Tokens that the small model reads at a time to catch up, so that nobody waits long for it.
const READ_MAX: usize = 512;
/// Tokens guessed where it is only to be seen whether guesses are any good.
const PROBE: usize = 2;
/// Tokens between two such probes: after the first that failed, and at most.
const PAUSE_MIN: u32 = 32;
const PAUSE_MAX: u32 = 1024;
/// How much one guess counts in the chance of the next, against all before it.
const TRIAL: f64 = 0.05;

/// The small model's view of one sequence.
#[derive(Debug)]
pub struct Drafter {
    session: Session,
    /// What the session holds.
    fed: Vec<u32>,
    /// Chance that a guess is right.
    chance: f64,
    /// Tokens until it is asked again, and how many these will be the next time.
    wait: u32,
    pause: u32,
    /// How long it takes for one token, seconds; 0 while not known.
    token_time: f64,
}

impl Drafter {
    /// `serving`'s model for a sequence of `context` tokens, with pages from `pages`.
    pub fn new(serving: &Serving, pages: &Arc<Pages>, context: usize) -> Self {
        let session = serving.speaker.model().session_in(pages, context, Vec::new(), 0);
        Self { session, fed: Vec::new(), chance: 0.6, wait: 0, pause: PAUSE_MIN, token_time: 0.0 }
    }

    /// Guesses what follows `text`, `most` tokens at most, if that pays in a step that computes
    /// `others` tokens anyway. Where there is no memory for guessing there is no guess.
    pub fn guess(
        &mut self,
        text: &[u32],
        most: usize,
        others: usize,
        costs: &draft::Costs,
    ) -> Vec<u32> {
        if self.wait > 0 {
            self.wait -= 1;
            return Vec::new();
        }
        let count = self.depth(most, others, costs);
        if count == 0 {
            return Vec::new();
        }
        self.say(text, count).unwrap_or_default()
    }

    fn depth(&mut self, most: usize, others: usize, costs: &draft::Costs) -> usize {
        let each = match costs.one_seconds() {
            Some(one) if self.token_time > 0.0 => self.token_time / one,
            // Nothing is known yet: a quarter, as of a model of a quarter's size.
            _ => 0.25,
        };
        match draft::depth(most, self.chance, others, each, costs) {
            0 => {
                self.wait = self.pause;
                self.pause = (2 * self.pause).min(PAUSE_MAX);
                most.min(PROBE)
            }
            depth => {
                self.pause = PAUSE_MIN;
                depth
            }
        }
    }

    /// The likeliest `count` tokens after `text`; none while there is more of it to read.
    fn say(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, StepError> {
        let same = self.fed.iter().zip(text).take_while(|(a, b)| a == b).count();
        let same = same.min(text.len() - 1);
        self.session.rewind(same);
        self.fed.truncate(same);
        let missing = &text[same..];
        if missing.len() > READ_MAX {
            self.session.feed(&missing[..READ_MAX])?;
            self.fed.extend_from_slice(&missing[..READ_MAX]);
            return Ok(Vec::new());
        }
        let mut guess = Vec::with_capacity(count);
        guess.push(argmax(self.session.logits(missing)?));
        self.fed.extend_from_slice(missing);
        while guess.len() < count && self.session.position() < self.session.context_max() {
            let start = Instant::now();
            let last = guess[guess.len() - 1];
            guess.push(argmax(self.session.logits(&[last])?));
            self.fed.push(last);
            let took = start.elapsed().as_secs_f64();
            self.token_time +=
                if self.token_time > 0.0 { 0.1 } else { 1.0 } * (took - self.token_time);
        }
        Ok(guess)
    }

    /// A guessed token turned out right or wrong.
    pub fn note(&mut self, right: bool) {
        self.chance += TRIAL * (f64::from(u8::from(right)) - self.chance);
    }
}
