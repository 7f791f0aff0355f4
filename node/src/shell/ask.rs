//! What may be asked of a model, and what is heard of it: the words between those who ask (HTTP, a
//! terminal) and the thread that computes.

use std::time::Duration;

use compute::engine::StepError;
use compute::sample::Sampler;
use thiserror::Error;

use crate::house::{Finish, Shown};

use super::constraint::Constraint;

pub use crate::house::Owner;

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AnswerError {
    /// Nothing to continue.
    #[error("the prompt has no tokens")]
    Empty,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}, {answer} of which the \
         answer needs; shorten the prompt, or start the node with a larger --ctx"
    )]
    Long {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        context: usize,
        /// Tokens that must be left.
        answer: usize,
    },
    /// The model has no words.
    #[error("the model has no tokeniser, so it takes token ids only (see `cadencia logits`)")]
    Mute,
    /// The model refused.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// One request to a model.
#[derive(Debug)]
pub struct Ask {
    /// Which of the models that are served, by its place among them.
    pub model: usize,
    /// Whose it is.
    pub owner: Owner,
    /// The prompt, one token or more.
    pub prompt: Vec<u32>,
    /// What is wanted of it.
    pub goal: Goal,
}

/// What is wanted of a prompt.
#[derive(Debug)]
pub enum Goal {
    /// To be continued.
    Answer(Box<Manner>),
    /// The mean of its tokens' vectors after the last norm, scaled to length 1.
    Embedding,
}

/// How an answer is given.
#[derive(Debug)]
pub struct Manner {
    /// Tokens at most, 1 or more.
    pub tokens_max: usize,
    /// Strings that end the answer.
    pub stops: Vec<String>,
    /// Tokens that end the answer, beside the model's own.
    pub stop_tokens: Vec<u32>,
    /// What the model's own end tokens do.
    pub end: EndTokens,
    /// Special tokens whose text is shown; that of others is not.
    pub shown_specials: Vec<u32>,
    /// How tokens are picked.
    pub sampler: Sampler,
    /// With each token its probability, and those of so many others; `None` for neither.
    pub log_probs: Option<usize>,
    /// What the answer may say; `None` for anything.
    pub constraint: Option<Constraint>,
}

/// What a model's own end tokens do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndTokens {
    /// They end the answer.
    End,
    /// They are never picked.
    Forbidden,
}

impl Manner {
    /// As many tokens as fit, ended by the model alone.
    pub fn plain(sampler: Sampler) -> Box<Self> {
        Box::new(Self {
            tokens_max: usize::MAX,
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            end: EndTokens::End,
            shown_specials: Vec::new(),
            sampler,
            log_probs: None,
            constraint: None,
        })
    }
}

impl Ask {
    /// Refuses a prompt that a context of `context` tokens cannot answer.
    pub fn check(&self, context: usize) -> Result<(), AnswerError> {
        let answer = usize::from(matches!(self.goal, Goal::Answer(_)));
        match self.prompt.len() {
            0 => Err(AnswerError::Empty),
            prompt if prompt + answer > context => {
                Err(AnswerError::Long { prompt, context, answer })
            }
            _ => Ok(()),
        }
    }
}

/// What can be heard while a request is worked on.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// So many of the prompt's tokens are computed.
    Prompt {
        /// Tokens computed or kept.
        done: usize,
        /// Tokens in all.
        whole: usize,
    },
    /// The answer has grown, and this may be shown.
    Shown(Shown),
    /// The embedding; as many numbers as the model is wide.
    Embedding(Vec<f32>),
}

/// How a request went.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Of these, how many were in memory already.
    pub kept: usize,
    /// The answer's tokens, with the end token if there was one.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// From joining the line to the start.
    pub queue_time: Duration,
    /// From the start to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub answer_time: Duration,
    /// Tokens that were guessed ahead, and of these, how many were right.
    pub drafted: usize,
    /// See `drafted`.
    pub accepted: usize,
}

impl Outcome {
    /// Prompt tokens computed per second.
    pub fn prompt_tps(&self) -> f64 {
        (self.prompt - self.kept) as f64 / self.prompt_time.as_secs_f64().max(1e-9)
    }

    /// Tokens decoded per second. The first one belongs to the prompt.
    pub fn answer_tps(&self) -> f64 {
        let steps = self.tokens.len().saturating_sub(1);
        steps as f64 / self.answer_time.as_secs_f64().max(1e-9)
    }
}
