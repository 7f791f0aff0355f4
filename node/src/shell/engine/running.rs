//! One sequence that is being computed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use compute::engine::{PAGE, Pages, Session, Wanted};

use super::super::ask::{Ask, Goal, Heard, Outcome};
use super::super::line::{Asker, Event};
use super::super::speaker::SpeechError;
use super::super::stats::EngineStats;
use super::super::worker::Serving;
use super::drafter::Drafter;
use super::far::Trip;
use super::road::PageKeys;
use super::writing::Writing;
use crate::house::{Finish, Shown, draft};

/// A sequence and whoever asked for it.
#[derive(Debug)]
pub struct Running<'a> {
    /// They.
    pub asker: Asker,
    /// All its tokens: the prompt, then those that were picked.
    pub text: Vec<u32>,
    /// How many of them are the prompt's.
    prompt: usize,
    /// Prompt tokens that were not computed for it.
    kept: usize,
    /// Its keys and values.
    pub session: Session,
    /// Whether it waits for pages, holding none.
    pub parked: bool,
    /// Its number on the road to other nodes, and how far it is there.
    pub number: u64,
    /// See `number`.
    pub trip: Trip,
    /// Names of its pages there.
    pub keys: PageKeys,
    /// Full pages of it that others can find.
    pub full: usize,
    /// Since when it gets nowhere.
    pub stuck: Option<Instant>,
    /// How often it lost its way since it last got somewhere.
    pub tries: u32,
    /// Why there will be no answer.
    pub given_up: Option<String>,
    /// Positions that it may grow to.
    positions: usize,
    queue_time: Duration,
    start: Instant,
    first: Option<Instant>,
    /// What becomes of its tokens.
    pub body: Body<'a>,
}

/// What becomes of a sequence's tokens, apart from their keys and values.
#[derive(Debug)]
pub enum Body<'a> {
    /// They are continued.
    Answer(Box<Writing<'a>>),
    /// Their vectors are added.
    Embedding(Mean),
}

/// The sum of vectors, in the order of tokens.
#[derive(Debug, Default)]
pub struct Mean {
    sum: Vec<f64>,
    count: usize,
}

impl<'a> Running<'a> {
    /// The sequence of `ask`, with nothing computed yet. A model without a tokeniser cannot answer.
    pub fn new(
        serving: &'a Serving,
        pages: &Arc<Pages>,
        ask: Ask,
        asker: Asker,
        drafter: Option<Drafter>,
    ) -> Result<Self, (SpeechError, Asker)> {
        let positions = match &ask.goal {
            Goal::Embedding => ask.prompt.len(),
            Goal::Answer(manner) => ask.prompt.len().saturating_add(manner.tokens_max),
        };
        let body = match ask.goal {
            Goal::Embedding => Body::Embedding(Mean::default()),
            Goal::Answer(manner) => match serving.speaker.tokenizer() {
                Ok(tokenizer) => {
                    let room = serving.context - ask.prompt.len();
                    let prompt = &ask.prompt;
                    Body::Answer(Box::new(Writing::new(tokenizer, *manner, prompt, room, drafter)))
                }
                Err(error) => return Err((error, asker)),
            },
        };
        let session = serving.speaker.model().session_in(pages, serving.context, Vec::new(), 0);
        Ok(Self {
            queue_time: asker.joined().elapsed(),
            asker,
            prompt: ask.prompt.len(),
            text: ask.prompt,
            kept: 0,
            session,
            // Until there are pages for its prompt.
            parked: true,
            number: 0,
            trip: Trip::Wanted(Instant::now()),
            keys: PageKeys::default(),
            full: 0,
            stuck: None,
            tries: 0,
            given_up: None,
            positions,
            start: Instant::now(),
            first: None,
            body,
        })
    }

    /// Whether all its tokens but the last are computed, and the last was picked.
    pub fn is_answering(&self) -> bool {
        self.text.len() > self.prompt && self.tokens_left() == 1
    }

    /// Whether tokens before its last are still to be computed, or none was picked yet.
    pub fn is_reading(&self) -> bool {
        self.text.len() == self.prompt || self.tokens_left() > 1
    }

    /// Tokens that are not computed yet.
    pub fn tokens_left(&self) -> usize {
        self.text.len().saturating_sub(self.session.position())
    }

    /// Tokens of its prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// Positions that it may grow to in a context of `context`, with guesses at its end.
    pub fn positions_max(&self, context: usize) -> usize {
        self.positions.saturating_add(draft::GUESS_MAX).min(context)
    }

    /// What of its text it may take from others while it is still being read; the last token's
    /// logits are its own to compute.
    pub fn recognisable(&self) -> Option<&[u32]> {
        let reading = !self.is_answering() && !self.parked;
        let wanted = matches!(self.body, Body::Answer(_));
        (reading && wanted).then(|| &self.text[..self.text.len() - 1])
    }

    /// Goes on with `session`, which holds the first of its tokens; `kept` of them need not be
    /// computed anywhere.
    pub fn go_on_with(&mut self, session: Session, kept: usize) {
        self.session = session;
        self.full = self.session.position() / PAGE;
        if self.text.len() == self.prompt {
            self.kept = kept;
        }
        self.tell_progress();
    }

    /// Whether it holds pages, so that parking it would free some.
    pub fn holds_pages(&self) -> bool {
        !self.session.pages().is_empty()
    }

    /// What is wanted of its next `count` tokens.
    pub fn wanted(&self, count: usize) -> Wanted {
        match self.body {
            Body::Embedding(_) => Wanted::Vectors,
            Body::Answer(_) if self.is_answering() => Wanted::Each,
            Body::Answer(_) if count == self.tokens_left() => Wanted::Last,
            Body::Answer(_) => Wanted::Nothing,
        }
    }

    /// Its next `count` tokens, guesses included.
    pub fn next_tokens(&self, count: usize) -> Vec<u32> {
        // Guesses that are on their way reach beyond the text.
        let own = self.text.get(self.session.position()..).unwrap_or_default();
        let guess = match &self.body {
            Body::Answer(writing) => writing.guess(),
            Body::Embedding(_) => &[],
        };
        own.iter().chain(guess).take(count).copied().collect()
    }

    /// Guesses tokens that follow, `most` at most, in a step that computes `others` tokens anyway.
    pub fn guess(&mut self, most: usize, others: usize, costs: &draft::Costs) {
        let room = self.session.context_max() - self.text.len();
        if let Body::Answer(writing) = &mut self.body {
            writing.make_guess(&self.text, most.min(room), others, costs);
        }
    }

    /// Tokens guessed for the next step.
    pub fn guessed(&self) -> usize {
        match &self.body {
            Body::Answer(writing) => writing.guess().len(),
            Body::Embedding(_) => 0,
        }
    }

    /// Computes nothing ahead after all.
    pub fn forget_guess(&mut self) {
        if let Body::Answer(writing) = &mut self.body {
            writing.forget_guess();
        }
    }

    /// `count` of its tokens have been computed, and its body has taken what came of them.
    pub fn settle(&mut self, count: usize, stats: &EngineStats) {
        self.asker.charge(count);
        let picked = match &mut self.body {
            Body::Answer(writing) => writing.settle(),
            Body::Embedding(_) => Vec::new(),
        };
        if picked.is_empty() {
            // Nothing was picked where the answer was broken off; guesses were for nothing.
            self.session.rewind(self.session.position().min(self.text.len()));
            return self.tell_progress();
        }
        stats.answer_tokens.add(picked.len() as u64);
        // Guesses that were wrong are forgotten, and so is what would follow the answer's end.
        self.session.rewind(self.text.len() - 1 + picked.len());
        self.text.extend(picked.iter().map(|(token, _)| token));
        if self.first.is_none() {
            self.first = Some(Instant::now());
            self.tell_progress();
        }
        for (_, shown) in picked {
            self.asker.tell(Event::Heard(Heard::Shown(shown)));
        }
    }

    /// Tells how far the prompt is.
    fn tell_progress(&self) {
        let done = self.session.position().min(self.prompt);
        self.asker.tell(Event::Heard(Heard::Prompt { done, whole: self.prompt }));
    }

    /// Whether all that was wanted is there, or it is given up.
    pub fn is_over(&self) -> bool {
        self.given_up.is_some() || self.is_complete()
    }

    fn is_complete(&self) -> bool {
        match &self.body {
            Body::Answer(writing) => writing.finish().is_some(),
            Body::Embedding(mean) => mean.count == self.prompt,
        }
    }

    /// Why its answer was broken off, if it was.
    pub fn broken(&self) -> Option<String> {
        match &self.body {
            Body::Answer(writing) => writing.broken().map(ToString::to_string),
            Body::Embedding(_) => None,
        }
    }

    /// Tells what was held back until the end was known.
    pub fn say_the_rest(&mut self) {
        let rest = match &mut self.body {
            Body::Answer(writing) => Heard::Shown(writing.rest()),
            Body::Embedding(mean) => {
                self.first = Some(Instant::now());
                Heard::Embedding(mean.unit())
            }
        };
        if rest != Heard::Shown(Shown::default()) {
            self.asker.tell(Event::Heard(rest));
        }
    }

    /// How it went, so far.
    pub fn outcome(&self) -> Outcome {
        let first = self.first.unwrap_or_else(Instant::now);
        let mut outcome = Outcome {
            prompt: self.prompt,
            kept: self.kept,
            tokens: Vec::new(),
            finish: Finish::Halted,
            queue_time: self.queue_time,
            prompt_time: first - self.start,
            answer_time: first.elapsed(),
            drafted: 0,
            accepted: 0,
        };
        match &self.body {
            Body::Answer(writing) => writing.tell(&mut outcome),
            Body::Embedding(_) if self.is_complete() => outcome.finish = Finish::Stop,
            Body::Embedding(_) => {}
        }
        outcome
    }
}

impl Body<'_> {
    /// Takes what was wanted of the token at `position`.
    pub fn take(&mut self, position: usize, numbers: &mut [f32]) {
        match self {
            Body::Embedding(mean) => mean.add(numbers),
            Body::Answer(writing) => writing.pick(position, numbers),
        }
    }
}

impl Mean {
    fn add(&mut self, vector: &[f32]) {
        self.sum.resize(vector.len(), 0.0);
        self.sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += f64::from(*x));
        self.count += 1;
    }

    /// The mean's direction: as a vector of length 1, or of zeros where it has none.
    fn unit(&self) -> Vec<f32> {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        self.sum.iter().map(|x| (x * scale) as f32).collect()
    }
}
