//! Picks the next token from logits.
//!
//! Biases and penalties change logits; then filters leave out tokens, in the order that llama.cpp
//! has by default: top-k, top-p, min-p, each by probabilities before temperature; then one token
//! is drawn at the temperature.
//!
//! **Invariant:** the token depends on the logits, the options, the tokens accepted and the
//! position, and on nothing else: no state of a random generator, no function of the system's
//! mathematics library. A retry, a replay and a verification of guessed tokens agree, here and on
//! any other machine.

mod exp;
mod log_probs;
mod random;
mod select;

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

pub use log_probs::{LogProbs, log_probs};
pub use random::uniform;

use exp::{exp, exp_sum};
use select::{Candidate, largest};

/// Most tokens that may have a bias.
pub const LOGIT_BIASES_MAX: usize = 4096;

/// Most tokens that penalties may look back on.
pub const PENALTY_WINDOW_MAX: usize = 1 << 20;

/// How a token is picked. The default is that of llama.cpp.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// 0 picks the likeliest token; above 1 makes unlikely ones likelier. 0 to 100.
    pub temperature: f32,
    /// Only so many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this probability; 0 to 1.
    pub top_p: f32,
    /// Only tokens with at least this share of the likeliest one's probability; 0 to 1.
    pub min_p: f32,
    /// Divides the logits of tokens seen before, or multiplies those below 0; 1 changes nothing.
    /// Above 0, up to 100.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens seen before; -100 to 100.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens for each time they were seen; -100 to 100.
    pub frequency_penalty: f32,
    /// How many of the last tokens count as seen; 0 for none.
    pub penalty_window: usize,
    /// With the position, decides what chance decides.
    pub seed: u64,
    /// Added to logits, by token; negative infinity forbids one.
    pub logit_bias: BTreeMap<u32, f32>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
            logit_bias: BTreeMap::new(),
        }
    }
}

impl SamplerOptions {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    fn check(&self) -> Result<(), SampleError> {
        let within = |field, value: f32, min: f32, max: f32| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(SampleError::OutOfRange { field, value, min, max }),
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, f32::MIN_POSITIVE, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        let at_most = |field, value: usize, max: usize| match value <= max {
            true => Ok(()),
            false => Err(SampleError::TooMany { field, value, max }),
        };
        at_most("penalty_window", self.penalty_window, PENALTY_WINDOW_MAX)?;
        at_most("logit_bias", self.logit_bias.len(), LOGIT_BIASES_MAX)?;
        for (token, bias) in &self.logit_bias {
            if bias.is_nan() || *bias == f32::INFINITY {
                return Err(SampleError::Bias { token: *token, bias: *bias });
            }
        }
        Ok(())
    }
}

/// Why options were refused.
#[derive(Debug, Error, PartialEq)]
pub enum SampleError {
    /// A number is not in its range, or is no number.
    #[error("{field} is {value}; it must be from {min} to {max}")]
    OutOfRange {
        /// The option.
        field: &'static str,
        /// What it is.
        value: f32,
        /// The least it may be.
        min: f32,
        /// The most it may be.
        max: f32,
    },
    /// A count is too high.
    #[error("{field} is {value}; {max} is the most")]
    TooMany {
        /// The option.
        field: &'static str,
        /// What it is.
        value: usize,
        /// The most it may be.
        max: usize,
    },
    /// A bias is no number, or would force a token.
    #[error("logit_bias of token {token} is {bias}; it must be a number")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        bias: f32,
    },
}

/// Picks tokens for one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    recent: VecDeque<u32>,
    counts: BTreeMap<u32, u32>,
    /// Room to work in.
    kept: Vec<Candidate>,
}

impl Sampler {
    /// Checks the options.
    pub fn new(options: SamplerOptions) -> Result<Self, SampleError> {
        options.check()?;
        let (recent, counts, kept) = Default::default();
        Ok(Self { options, recent, counts, kept })
    }

    /// What it was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Notes a token of the sequence, of the prompt or picked, for penalties.
    pub fn accept(&mut self, token: u32) {
        if self.options.penalty_window == 0 {
            return;
        }
        if self.recent.len() == self.options.penalty_window
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.recent.clear();
        self.counts.clear();
    }

    /// The token that follows, at `position` in the sequence. Leaves `logits` with biases and
    /// penalties in them. What is no number counts as the least likely; if nothing can be picked,
    /// token 0 is.
    pub fn pick(&mut self, logits: &mut [f32], position: u64) -> u32 {
        self.adjust(logits);
        let likeliest = argmax(logits);
        let Some(best) = logits.get(likeliest as usize).copied() else { return 0 };
        let certain = self.options.temperature == 0.0 || self.options.top_k == 1;
        if certain || best == f32::NEG_INFINITY {
            return likeliest;
        }
        self.filter(logits, best);
        self.draw(best, uniform(self.options.seed, position)).unwrap_or(likeliest)
    }

    /// Biases and penalties; and only numbers that can be compared are left.
    fn adjust(&self, logits: &mut [f32]) {
        let options = &self.options;
        for (token, bias) in &options.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        for (token, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*token as usize) {
                let repetition = options.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
                let frequency = options.frequency_penalty * *count as f32;
                *logit -= frequency + options.presence_penalty;
            }
        }
        for logit in logits {
            *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
        }
    }

    /// Leaves in `kept` what top-k, top-p and min-p leave. Each keeps a number of the likeliest
    /// tokens, so together they keep the least of these numbers.
    fn filter(&mut self, logits: &[f32], best: f32) {
        let SamplerOptions { top_k, top_p, min_p, .. } = self.options;
        let limited = top_k > 0 && top_k < logits.len();
        if limited {
            largest(logits, top_k, &mut self.kept);
        }
        if top_p < 1.0 {
            if limited {
                let logits = self.kept.iter().map(|kept| kept.logit);
                let wanted = f64::from(top_p) * exp_sum(logits, best);
                let count = reaching(&self.kept, best, wanted).unwrap_or(self.kept.len());
                self.kept.truncate(count);
            } else {
                let wanted = f64::from(top_p) * exp_sum(logits.iter().copied(), best);
                self.keep_reaching(logits, best, wanted);
            }
        } else if !limited {
            self.kept.clear();
            let all = (0..).zip(logits).map(|(token, logit)| Candidate { logit: *logit, token });
            self.kept.extend(all);
        }
        if min_p > 0.0 {
            self.kept.retain(|kept| exp(kept.logit - best) >= min_p);
        }
    }

    /// The likeliest tokens whose weights reach `wanted`, without sorting all where few do.
    fn keep_reaching(&mut self, logits: &[f32], best: f32, wanted: f64) {
        let mut count = 256;
        loop {
            count = count.min(logits.len());
            largest(logits, count, &mut self.kept);
            if let Some(enough) = reaching(&self.kept, best, wanted) {
                return self.kept.truncate(enough);
            }
            if count == logits.len() {
                return;
            }
            count *= 16;
        }
    }

    /// One of the kept tokens, by their weights at the temperature; `chance` is from 0 to 1.
    fn draw(&mut self, best: f32, chance: f64) -> Option<u32> {
        let temperature = self.options.temperature;
        let mut total = 0.0;
        for kept in &mut self.kept {
            // From here on a weight, which is all that matters now.
            kept.logit = exp((kept.logit - best) / temperature);
            total += f64::from(kept.logit);
        }
        let mut left = chance * total;
        let mut last = None;
        for kept in self.kept.iter().filter(|kept| kept.logit > 0.0) {
            left -= f64::from(kept.logit);
            last = Some(kept.token);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

/// The likeliest token, the first of equals. `logits` has one or more.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// How many of the first candidates have weights that together reach `wanted`.
fn reaching(sorted: &[Candidate], best: f32, wanted: f64) -> Option<usize> {
    let mut sum = 0.0;
    let enough = sorted.iter().position(|candidate| {
        sum += f64::from(exp(candidate.logit - best));
        sum >= wanted
    });
    enough.map(|at| at + 1)
}
