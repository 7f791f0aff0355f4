//! One conversation in a model's memory, and how an answer to it is computed.
//!
//! A sequence remembers which tokens it holds, so a prompt that begins like the last one costs only
//! its new tokens. That changes speed and never bits: the cache of a token depends on the tokens
//! before it and on nothing else.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::house::{Answer, Finish, Piece, Record, Shown, Stops};
use compute::engine::{Model, Session, StepError};
use compute::sample::log_probs;
use compute::tokenizer::Tokenizer;

use super::ask::{AnswerError, Ask, EndTokens, Goal, Heard, Manner, Outcome};

/// Prompt tokens computed between two looks at whether the answer is still wanted: as many as take
/// about [`PIECE_TIME`], within these bounds. More than the most are not faster, and fewer than the
/// least much slower.
const PIECE_TOKENS: RangeInclusive<usize> = 16..=512;
/// How long a client that goes away may keep the processor busy.
const PIECE_TIME: Duration = Duration::from_millis(250);

/// A conversation in a model's memory. Dropping it frees its cache.
#[derive(Debug)]
pub struct Sequence {
    session: Session,
    tokens: Vec<u32>,
    context: usize,
    /// Tokens of the next piece, going by how long the last ones took.
    piece: usize,
}

impl Sequence {
    /// An empty one that holds up to `context` tokens.
    pub fn new(model: &Arc<Model>, context: usize) -> Self {
        Self { session: model.session(context), tokens: Vec::new(), context, piece: 64 }
    }

    /// Tokens that it holds.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Computes the answer to `ask`. `hear` is told of everything as it comes; `halted` is looked
    /// at between steps, and ends the answer when it is true.
    pub fn answer(
        &mut self,
        ask: Ask,
        tokenizer: &Tokenizer,
        halted: &dyn Fn() -> bool,
        hear: &mut dyn FnMut(Heard),
    ) -> Result<Outcome, AnswerError> {
        ask.check(self.context)?;
        let start = Instant::now();
        let kept = self.keep(&ask.prompt);
        let prompt = ask.prompt.len();
        let mut outcome = Outcome {
            prompt,
            kept,
            tokens: Vec::new(),
            finish: Finish::Halted,
            queue_time: Duration::ZERO,
            drafted: 0,
            accepted: 0,
            prompt_time: Duration::ZERO,
            answer_time: Duration::ZERO,
        };
        let first = self.read(&ask.prompt[kept..], halted, &mut |done| {
            hear(Heard::Prompt { done: kept + done, whole: prompt });
        })?;
        outcome.prompt_time = start.elapsed();
        if let (Some(logits), Goal::Answer(mut manner)) = (first, ask.goal) {
            // Penalties look back into the prompt, too.
            let seen = prompt.saturating_sub(manner.sampler.options().penalty_window);
            ask.prompt[seen..].iter().for_each(|token| manner.sampler.accept(*token));
            self.write(&mut manner, logits, tokenizer, halted, hear, &mut outcome)?;
        }
        outcome.answer_time = start.elapsed() - outcome.prompt_time;
        Ok(outcome)
    }

    /// Forgets what differs from `prompt`; returns how many tokens stay. The last token of the
    /// prompt never does, for its logits are wanted.
    fn keep(&mut self, prompt: &[u32]) -> usize {
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = same.min(prompt.len() - 1);
        self.session.rewind(kept);
        self.tokens.truncate(kept);
        kept
    }

    /// Computes `tokens`, one or more; the logits after the last, or `None` if it was halted.
    fn read(
        &mut self,
        tokens: &[u32],
        halted: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Option<Vec<f32>>, StepError> {
        let mut rest = tokens;
        while !halted() {
            let start = Instant::now();
            let (piece, later) = rest.split_at(rest.len().min(self.piece));
            let last = later.is_empty();
            let logits = match last {
                true => Some(self.session.logits(piece)?.to_vec()),
                false => self.session.feed(piece).map(|()| None)?,
            };
            self.tokens.extend_from_slice(piece);
            rest = later;
            progress(tokens.len() - rest.len());
            if last {
                return Ok(logits);
            }
            self.piece = next_piece(self.piece, start.elapsed());
        }
        Ok(None)
    }

    /// Picks tokens until the answer is over, beginning with `logits`.
    fn write(
        &mut self,
        ask: &mut Manner,
        mut logits: Vec<f32>,
        tokenizer: &Tokenizer,
        halted: &dyn Fn() -> bool,
        hear: &mut dyn FnMut(Heard),
        outcome: &mut Outcome,
    ) -> Result<(), StepError> {
        let room = self.context - self.tokens.len();
        let stops = Stops::new(std::mem::take(&mut ask.stops));
        let mut answer = Answer::new(stops, ask.tokens_max.min(room));
        // The answer continues a text, so a space that it begins with is its own.
        let mut decoder = tokenizer.continuation();
        outcome.finish = loop {
            let own = (ask.log_probs.is_some()).then(|| logits.clone());
            if ask.end == EndTokens::Forbidden {
                let end = |token: &usize| tokenizer.is_end(*token as u32);
                (0..logits.len()).filter(end).for_each(|t| logits[t] = f32::NEG_INFINITY);
            }
            let token = ask.sampler.pick(&mut logits, self.tokens.len() as u64);
            ask.sampler.accept(token);
            outcome.tokens.push(token);
            let record = own.zip(ask.log_probs).map(|(own, top)| {
                let found = log_probs(&own, token, top);
                Record { token, log_prob: found.chosen, top: found.top }
            });
            let (shown, finish) = match tokenizer.is_end(token) || ask.stop_tokens.contains(&token)
            {
                true => answer.take(Piece::End, record),
                false => answer.take(Piece::Text(decoder.push(token)), record),
            };
            hear(Heard::Shown(shown));
            if let Some(finish) = finish {
                break finish;
            }
            if halted() {
                break Finish::Halted;
            }
            logits.copy_from_slice(self.session.logits(&[token])?);
            self.tokens.push(token);
        };
        let rest = answer.finish(&decoder.finish());
        if rest != Shown::default() {
            hear(Heard::Shown(rest));
        }
        Ok(())
    }
}

/// The size of the piece after one of `tokens` that took `time`.
fn next_piece(tokens: usize, time: Duration) -> usize {
    let next = if time < PIECE_TIME / 2 {
        tokens * 2
    } else if time > PIECE_TIME {
        tokens / 2
    } else {
        tokens
    };
    next.clamp(*PIECE_TOKENS.start(), *PIECE_TOKENS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_and_shrink_with_the_time_they_take() {
        let next = |tokens, ms| next_piece(tokens, Duration::from_millis(ms));
        assert_eq!([next(64, 100), next(64, 200), next(64, 300)], [128, 64, 32]);
        assert_eq!([next(512, 1), next(16, 9000)], [512, 16]);
    }
}
