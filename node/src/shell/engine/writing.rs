//! An answer that is being written: picks tokens from logits, and guesses those that follow.

use compute::sample::log_probs;
use compute::tokenizer::{Decoder, Tokenizer};

use super::super::ask::{EndTokens, Manner, Outcome};
use super::super::constraint::{Constraint, ConstraintError};
use super::drafter::Drafter;
use crate::house::{Answer, Finish, Piece, Record, Shown, Stops, draft};

/// An answer that grows.
#[derive(Debug)]
pub struct Writing<'a> {
    tokenizer: &'a Tokenizer,
    manner: Manner,
    answer: Answer,
    decoder: Decoder<'a>,
    /// Where the next token will stand in the text.
    end: usize,
    /// Tokens picked in this step, each with what may be shown since.
    picked: Vec<(u32, Shown)>,
    /// All tokens picked.
    tokens: Vec<u32>,
    finish: Option<Finish>,
    /// Why it cannot go on in the form that it must have.
    broken: Option<ConstraintError>,
    guess: Vec<u32>,
    /// What the next token would be by what was looked up, whether it is computed ahead or not, and
    /// how much was alike.
    foreseen: Option<(u32, usize)>,
    /// Whether the guess is the drafter's.
    by_drafter: bool,
    record: draft::Record,
    drafter: Option<Drafter>,
    drafted: usize,
    accepted: usize,
}

impl<'a> Writing<'a> {
    /// The answer to `prompt`, of `room` tokens at most; `drafter` guesses where the text itself
    /// gives no hint.
    pub fn new(
        tokenizer: &'a Tokenizer,
        mut manner: Manner,
        prompt: &[u32],
        room: usize,
        drafter: Option<Drafter>,
    ) -> Self {
        // Penalties look back into the prompt, too.
        let seen = prompt.len().saturating_sub(manner.sampler.options().penalty_window);
        prompt[seen..].iter().for_each(|token| manner.sampler.accept(*token));
        let stops = Stops::new(std::mem::take(&mut manner.stops));
        Self {
            tokenizer,
            answer: Answer::new(stops, manner.tokens_max.min(room)),
            // The answer continues a text, so a space that it begins with is its own.
            decoder: tokenizer.continuation_showing(&manner.shown_specials),
            manner,
            end: prompt.len(),
            picked: Vec::new(),
            tokens: Vec::new(),
            finish: None,
            broken: None,
            guess: Vec::new(),
            foreseen: None,
            by_drafter: false,
            record: draft::Record::default(),
            drafter,
            drafted: 0,
            accepted: 0,
        }
    }

    /// Why it is over, if it is.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Why it was broken off, if it was.
    pub fn broken(&self) -> Option<&ConstraintError> {
        self.broken.as_ref()
    }

    /// The tokens guessed for the next step.
    pub fn guess(&self) -> &[u32] {
        &self.guess
    }

    /// Computes nothing ahead after all.
    pub fn forget_guess(&mut self) {
        self.guess.clear();
    }

    /// Guesses what follows `text`, `most` tokens at most, if that pays in a step that computes
    /// `others` tokens anyway.
    pub fn make_guess(&mut self, text: &[u32], most: usize, others: usize, costs: &draft::Costs) {
        self.guess.clear();
        self.foreseen = None;
        self.by_drafter = false;
        let most = most.min(self.answer.tokens_left().saturating_sub(1));
        if most == 0 {
            return;
        }
        if let Some(found) = draft::look_up(text) {
            self.foreseen = Some((found.tokens[0], found.alike));
            let chance = self.record.chance(found.alike);
            let depth = draft::depth(most.min(found.tokens.len()), chance, others, 0.0, costs);
            self.guess.extend_from_slice(&found.tokens[..depth]);
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| self.guess.is_empty()) {
            self.guess = drafter.guess(text, most, others, costs);
            self.by_drafter = !self.guess.is_empty();
        }
    }

    /// Picks the token after the one at `position`, if that one is the text's last: after a guess
    /// that was wrong it is not.
    pub fn pick(&mut self, position: usize, logits: &mut [f32]) {
        if self.finish.is_some() || !self.is_last(position) {
            return;
        }
        let own = self.manner.log_probs.map(|top| (logits.to_vec(), top));
        if self.manner.end == EndTokens::Forbidden {
            let end = |token: &usize| self.tokenizer.is_end(*token as u32);
            (0..logits.len()).filter(end).for_each(|token| logits[token] = f32::NEG_INFINITY);
        }
        if let Some(constraint) = &mut self.manner.constraint
            && let Err(error) = constraint.mask(logits)
        {
            return self.break_off(error);
        }
        let token = self.manner.sampler.pick(logits, self.end as u64);
        self.manner.sampler.accept(token);
        if let Some(constraint) = &mut self.manner.constraint
            && let Err(error) = constraint.accept(token)
        {
            return self.break_off(error);
        }
        self.tokens.push(token);
        self.end += 1;
        let record = own.map(|(own, top)| {
            let found = log_probs(&own, token, top);
            Record { token, log_prob: found.chosen, top: found.top }
        });
        let ends = self.tokenizer.is_end(token) || self.manner.stop_tokens.contains(&token);
        let (shown, finish) = match ends {
            true => self.answer.take(Piece::End, record),
            false => self.answer.take(Piece::Text(self.decoder.push(token)), record),
        };
        let complete = self.manner.constraint.as_ref().is_some_and(Constraint::is_complete);
        self.finish = finish.or(complete.then_some(Finish::Stop));
        self.picked.push((token, shown));
    }

    fn break_off(&mut self, error: ConstraintError) {
        self.broken = Some(error);
        self.finish = Some(Finish::Halted);
    }

    /// Whether the token at `position`, which was computed, is the last of the text as it is now.
    fn is_last(&self, position: usize) -> bool {
        let guessed = match self.picked.len().checked_sub(1) {
            // The first of a step follows the text itself.
            None => true,
            Some(n) => self.guess.get(n) == self.picked.last().map(|(token, _)| token),
        };
        guessed && position + 1 == self.end
    }

    /// The step is over: what was picked in it, each with what may be shown since.
    pub fn settle(&mut self) -> Vec<(u32, Shown)> {
        let picked = std::mem::take(&mut self.picked);
        let foreseen = self.foreseen.take();
        if let (Some((token, alike)), Some((first, _))) = (foreseen, picked.first()) {
            self.record.note(alike, token == *first);
            // Later tokens of a guess count as far as they were compared with a token picked.
            let later = self.guess.iter().zip(&picked).skip(1).filter(|_| !self.by_drafter);
            for (guess, (token, _)) in later {
                self.record.note(alike, guess == token);
            }
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| self.by_drafter) {
            let compared = self.guess.iter().zip(&picked);
            compared.for_each(|(guess, (token, _))| drafter.note(guess == token));
        }
        self.drafted += self.guess.len();
        self.accepted += self.guess.iter().zip(&picked).filter(|(a, (b, _))| *a == b).count();
        self.guess.clear();
        picked
    }

    /// What was held back until the end.
    pub fn rest(&mut self) -> Shown {
        let decoder = std::mem::replace(&mut self.decoder, self.tokenizer.continuation());
        let none = Answer::new(Stops::new([]), 0);
        std::mem::replace(&mut self.answer, none).finish(&decoder.finish())
    }

    /// Writes down how it went, so far.
    pub fn tell(&self, outcome: &mut Outcome) {
        outcome.tokens.clone_from(&self.tokens);
        outcome.finish = self.finish.unwrap_or(Finish::Halted);
        outcome.drafted = self.drafted;
        outcome.accepted = self.accepted;
    }
}
