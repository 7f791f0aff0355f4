//! Answers several requests with one model, their tokens computed together.
//!
//! Each step computes the next token of every sequence that answers, with guesses at the tokens
//! after it where that pays, and a share of the prompts that are still to be read. Sequences share
//! the pages of what they have in common, also with those that are gone, as long as memory allows.
//!
//! **Invariant:** who else is in a step, what is shared, what was guessed and what had to be computed
//! again changes speed and never answers.

mod drafter;
mod far;
pub mod road;
mod running;
mod writing;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use compute::engine::{Feed, Model, PAGE, Page, Pages, Rows, StepError, step};

use super::ask::{AnswerError, Ask, Heard, Outcome};
use super::line::{Asker, Event};
use super::settings::Guessing;
use super::worker::Serving;
use crate::house::{Prefixes, draft, share};
use drafter::Drafter;
use far::{Far, Trip};
use road::{Inbox, Road};
use running::{Body, Running};

/// How long a step may take while someone watches an answer grow, and while nobody does: within the
/// latter a client that goes away is noticed.
const STEP_TIME_WATCHED: Duration = Duration::from_millis(80);
const STEP_TIME: Duration = Duration::from_millis(250);
/// Prompt tokens in a step: fewer are much slower each, more are no faster.
const PROMPT_TOKENS_MIN: usize = 16;
const PROMPT_TOKENS_MAX: usize = 512;

/// How much an engine does at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sequences.
    pub parallel: usize,
    /// Pages of KV cache for all of them and for what is kept; enough for one context at least.
    pub pages: usize,
    /// Whether tokens are guessed ahead.
    pub guessing: Guessing,
}

impl Limits {
    /// The fewest pages with which a context of `context` tokens can always be answered: one more
    /// than it fills, for a page that is shared and must be copied.
    pub fn pages_min(context: usize) -> usize {
        context.div_ceil(PAGE) + 1
    }
}

/// The sequences of one model.
#[derive(Debug)]
pub struct Engine<'a> {
    serving: &'a Serving,
    limits: Limits,
    pages: Arc<Pages>,
    known: Prefixes<Arc<Page>>,
    /// In the order in which they came.
    running: Vec<Running<'a>>,
    costs: draft::Costs,
    /// A smaller model that guesses for this one, and pages for it.
    helper: Option<(&'a Serving, Arc<Pages>)>,
    /// How long one prompt token takes among others, seconds; 0 while not known.
    prompt_token_time: f64,
    /// The way to half-blocks that are not here.
    far: Option<Far>,
}

impl<'a> Engine<'a> {
    /// An engine with nothing to do.
    pub fn new(serving: &'a Serving, limits: Limits) -> Self {
        let pages = serving.speaker.model().pages(limits.pages);
        let page_bytes = pages.shape().page_bytes() as u64;
        serving.stats.kv_max_bytes.set(page_bytes * limits.pages as u64);
        Self {
            serving,
            limits,
            pages,
            known: Prefixes::new(PAGE),
            running: Vec::new(),
            costs: draft::Costs::default(),
            helper: None,
            prompt_token_time: 0.0,
            far: None,
        }
    }

    /// With the rest of the model over `road`, which tells `inbox`. Pages that stages keep are named
    /// by keys made with `secret`.
    pub fn over(mut self, road: Arc<dyn Road>, inbox: Arc<Inbox>, secret: [u8; 32]) -> Self {
        self.far = Some(Far::new(road, inbox, secret));
        self
    }

    /// With `helper`'s model, which has the same vocabulary, to guess tokens ahead.
    pub fn helped_by(mut self, helper: &'a Serving) -> Self {
        let most = self.limits.parallel * self.serving.context.div_ceil(PAGE);
        self.helper = Some((helper, helper.speaker.model().pages(most)));
        self
    }

    /// Whether one more sequence can be taken.
    pub fn has_room(&self) -> bool {
        self.running.len() < self.limits.parallel
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether a step would do something now.
    pub fn has_work(&self) -> bool {
        let Some(far) = &self.far else { return !self.is_idle() };
        let due = self.due().is_some_and(|at| at <= Instant::now());
        far.has_news() || due || (far.restless && !self.is_idle()) || self.is_forsaken()
    }

    /// Lets go of all sequences.
    pub fn dismiss(&mut self) {
        for running in self.running.drain(..) {
            far::close(self.far.as_ref(), &running);
        }
    }

    /// Whether somebody has gone away.
    fn is_forsaken(&self) -> bool {
        self.running.iter().any(|running| running.asker.is_halted())
    }

    /// Takes a request; `asker` hears what becomes of it.
    pub fn admit(&mut self, ask: Ask, asker: Asker) {
        if asker.is_halted() {
            return;
        }
        asker.tell(Event::Begun);
        if let Err(error) = ask.check(self.serving.context) {
            asker.tell(Event::Failed(error.to_string()));
            return;
        }
        let context = self.serving.context;
        let helper = self.helper.as_ref().filter(|_| self.limits.guessing == Guessing::On);
        let drafter = helper.map(|(helper, pages)| Drafter::new(helper, pages, context));
        match Running::new(self.serving, &self.pages, ask, asker, drafter) {
            Ok(running) => {
                self.running.push(running);
                if let Some(far) = &mut self.far {
                    far.restless = true;
                }
            }
            Err((error, asker)) => asker.tell(Event::Failed(error.to_string())),
        }
    }

    /// Computes one step for all sequences.
    ///
    /// # Errors
    /// The model refused what should be right; those who asked have been told.
    pub fn step(&mut self) -> Result<(), AnswerError> {
        self.let_go();
        let heard = self.hear();
        let mut ended = self.finish();
        let outcome = heard.and_then(|()| self.advance());
        if let Err(error) = &outcome {
            for running in self.running.drain(..) {
                far::close(self.far.as_ref(), &running);
                running.asker.tell(Event::Failed(error.to_string()));
            }
        }
        ended.extend(self.finish());
        // Counted before those who asked hear of it, and look.
        self.count();
        ended.into_iter().for_each(|(asker, event)| asker.tell(event));
        Ok(outcome?)
    }

    fn advance(&mut self) -> Result<(), StepError> {
        self.unpark();
        match &self.far {
            None => self.recognise(),
            Some(_) => self.ask_for_seats(),
        }
        let plan = self.plan();
        match &self.far {
            None => self.compute(&plan),
            Some(_) => self.send_off(&plan),
        }
    }

    /// Lets go of sequences that nobody wants any more.
    fn let_go(&mut self) {
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|r| r.asker.is_halted());
        self.running = stay;
        for running in gone {
            far::close(self.far.as_ref(), &running);
            self.remember(&running);
            let outcome = running.outcome();
            running.asker.tell(Event::Done(outcome));
        }
    }

    /// Lets those that wait for pages go on, in their order, as long as there are pages for the text
    /// that they have, beside what the others still need for theirs: prompts that pushed one another
    /// out would be read again and again.
    fn unpark(&mut self) {
        if self.running.iter().all(|running| !running.parked) {
            return;
        }
        let wanted = |r: &Running| r.text.len().div_ceil(PAGE) + 1;
        let going = self.running.iter().filter(|running| !running.parked);
        let still: usize = going.map(|r| wanted(r).saturating_sub(r.session.pages().len())).sum();
        let free = self.pages.max() - self.pages.taken() + self.known.idle(is_idle);
        let mut free = free.saturating_sub(still);
        for (i, running) in self.running.iter_mut().enumerate().filter(|(_, r)| r.parked) {
            // Pages that others are using cost nothing more; idle ones are counted as free.
            let shared = self.known.full_pages(&running.text, |page| !is_idle(page));
            let wanted = wanted(running) - shared;
            // The first of all never waits, or nobody would go on.
            if i > 0 && wanted > free {
                return;
            }
            running.parked = false;
            free = free.saturating_sub(wanted);
        }
    }

    /// Gives sequences at their beginning the pages of what has been computed before.
    fn recognise(&mut self) {
        for running in &mut self.running {
            let Some(text) = running.recognisable() else { continue };
            let position = running.session.position();
            // A page more, or all that there is to find: less is not worth the exchange.
            let known = self.known.known(text);
            if known < position + PAGE && (position > 0 || known == 0) {
                continue;
            }
            let found = self.known.find(text);
            let model = self.serving.speaker.model();
            let context = self.serving.context;
            self.serving.stats.kept_tokens.add((found.tokens - position) as u64);
            let found_tokens = found.tokens;
            let session = model.session_in(&self.pages, context, found.pages, found.tokens);
            running.go_on_with(session, found_tokens);
        }
    }

    /// How many tokens of which sequence are computed next, guesses among them.
    fn plan(&mut self) -> Vec<usize> {
        let mut plan = vec![0; self.running.len()];
        let far = self.far.is_some();
        let ready = |r: &Running| r.is_answering() && !r.parked && (!far || r.trip.is_free());
        let answering = self.running.iter().filter(|r| ready(r)).count();
        let mut rows = answering;
        for (tokens, running) in plan.iter_mut().zip(&mut self.running) {
            if ready(running) {
                let most = if self.limits.guessing == Guessing::On { draft::GUESS_MAX } else { 0 };
                running.guess(most, rows - 1, &self.costs);
                *tokens = 1 + running.guessed();
                rows += running.guessed();
            }
        }
        self.plan_prompts(&mut plan, answering);
        self.make_room(&mut plan);
        plan
    }

    /// Shares what is left of a step among prompts.
    fn plan_prompts(&self, plan: &mut [usize], answering: usize) {
        let time = if answering > 0 { STEP_TIME_WATCHED } else { STEP_TIME };
        let room = match self.prompt_token_time {
            0.0 => 4 * PROMPT_TOKENS_MIN,
            each => (time.as_secs_f64() / each) as usize,
        };
        let room = room.clamp(PROMPT_TOKENS_MIN, PROMPT_TOKENS_MAX);
        let mut who = Vec::new();
        let mut wanted = Vec::new();
        for (i, running) in self.running.iter().enumerate() {
            if running.is_answering() || running.parked {
                continue;
            }
            let left = running.tokens_left();
            let left = match &self.far {
                None if self.follows(i) => continue,
                None => left,
                Some(_) => running.trip.sendable(running.session.position(), left),
            };
            who.push(i);
            wanted.push(left);
        }
        for (i, tokens) in who.into_iter().zip(share(&wanted, room)) {
            plan[i] = tokens;
        }
    }

    /// Whether an earlier sequence is reading the very pages that this one would read next: then it
    /// is better to wait for them.
    fn follows(&self, i: usize) -> bool {
        let own = &self.running[i];
        let Some(text) = own.recognisable() else { return false };
        let next = own.session.position() + PAGE;
        let mut before = self.running[..i].iter().filter(|r| r.is_reading() && !r.parked);
        text.len() >= next && before.any(|r| r.text.get(..next) == Some(&text[..next]))
    }

    /// Sees to it that there are pages for `plan`: gives up kept ones, then shortens the plan, then
    /// lets the latest sequences wait. The first always goes on.
    fn make_room(&mut self, plan: &mut [usize]) {
        let mut taken = 0;
        for i in 0..plan.len() {
            while plan[i] > 0 {
                let wanted = taken + self.running[i].session.pages_wanted(plan[i]);
                if self.free_pages(wanted) {
                    taken = wanted;
                    break;
                }
                let guessed = self.running[i].guessed();
                let later = (i + 1..plan.len()).rev().find(|&n| self.running[n].holds_pages());
                if guessed > 0 {
                    self.running[i].forget_guess();
                    plan[i] -= guessed;
                } else if let Some(latest) = later {
                    self.park(latest);
                    plan[latest] = 0;
                } else {
                    assert!(i > 0, "pages suffice for one context, and the first has all by now");
                    self.park(i);
                    plan[i] = 0;
                }
            }
        }
    }

    /// Whether `count` pages can be taken, after giving up kept ones if need be.
    fn free_pages(&mut self, count: usize) -> bool {
        let free = self.pages.max() - self.pages.taken();
        if free < count {
            self.known.give_up(count - free, is_idle);
        }
        self.pages.max() - self.pages.taken() >= count
    }

    /// Takes the pages of a sequence away; it begins again when there are pages.
    fn park(&mut self, i: usize) {
        let running = &mut self.running[i];
        let model = self.serving.speaker.model();
        running.session = model.session_in(&self.pages, self.serving.context, Vec::new(), 0);
        running.parked = true;
        running.full = 0;
        running.forget_guess();
        if let Some(far) = &self.far {
            far.close(running);
            running.trip = Trip::Wanted(Instant::now());
        }
        self.serving.stats.preempted.add(1);
    }

    /// Feeds what is planned, and lets each sequence take what comes of it.
    fn compute(&mut self, plan: &[usize]) -> Result<(), StepError> {
        let rows: usize = plan.iter().sum();
        if rows == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let mut feeds = Vec::new();
        let mut bodies: Vec<Mutex<(&mut Body, usize)>> = Vec::new();
        let mut prompt_rows = 0;
        let tokens: Vec<Vec<u32>> =
            self.running.iter().zip(plan).map(|(r, &count)| r.next_tokens(count)).collect();
        for ((running, tokens), &count) in self.running.iter_mut().zip(&tokens).zip(plan) {
            if count == 0 {
                continue;
            }
            let position = running.session.position();
            if !running.is_answering() {
                prompt_rows += count;
            }
            let wanted = running.wanted(count);
            let Running { session, body, .. } = running;
            feeds.push(Feed { session, tokens, wanted });
            bodies.push(Mutex::new((body, position)));
        }
        let model = self.serving.speaker.model();
        step(&mut feeds, &mut |rows| hand_out(model, &bodies, rows))?;
        drop((feeds, bodies));
        let seconds = start.elapsed().as_secs_f64();
        self.note_time(rows, prompt_rows, seconds);
        for (running, &count) in self.running.iter_mut().zip(plan) {
            if count > 0 {
                running.settle(count, &self.serving.stats);
            }
        }
        for i in (0..plan.len()).filter(|&i| plan[i] > 0) {
            self.remember_full(i);
        }
        Ok(())
    }

    fn note_time(&mut self, rows: usize, prompt_rows: usize, seconds: f64) {
        self.serving.stats.steps.add(1);
        self.serving.stats.prompt_tokens.add(prompt_rows as u64);
        if prompt_rows == 0 {
            self.costs.note(rows, seconds);
        } else if prompt_rows >= PROMPT_TOKENS_MIN {
            let each = seconds / rows as f64;
            self.prompt_token_time = match self.prompt_token_time {
                0.0 => each,
                before => before + 0.3 * (each - before),
            };
        }
    }

    /// Keeps full pages that a sequence has just filled, so that others find them.
    fn remember_full(&mut self, i: usize) {
        let Running { session, text, full: before, .. } = &mut self.running[i];
        let full = session.position() / PAGE;
        if full > std::mem::replace(before, full) {
            let text = &text[..full * PAGE];
            // Where another has computed the same meanwhile, one copy is enough.
            let held = self.known.insert(text, &session.pages()[..full]);
            session.exchange(held);
        }
    }

    /// Keeps all that a sequence holds.
    fn remember(&mut self, running: &Running) {
        // Guesses that are on their way are not the text's.
        let held = running.session.position().min(running.text.len());
        self.known.insert(&running.text[..held], running.session.pages());
    }

    /// Takes out those that are complete: who is to hear what.
    fn finish(&mut self) -> Vec<(Asker, Event)> {
        let (done, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(Running::is_over);
        self.running = on;
        let mut ended = Vec::with_capacity(done.len());
        for mut running in done {
            far::close(self.far.as_ref(), &running);
            self.remember(&running);
            let event = match (running.given_up.take(), running.broken()) {
                (Some(why), _) => Event::Unreachable(why),
                (None, Some(why)) => Event::Failed(why),
                (None, None) => {
                    running.say_the_rest();
                    let outcome = running.outcome();
                    let stats = &self.serving.stats;
                    stats.drafted_tokens.add(outcome.drafted as u64);
                    stats.accepted_tokens.add(outcome.accepted as u64);
                    Event::Done(outcome)
                }
            };
            ended.push((running.asker, event));
        }
        ended
    }

    fn count(&self) {
        let stats = &self.serving.stats;
        let bytes = self.pages.shape().page_bytes() as u64;
        let idle = self.known.idle(is_idle);
        stats.running.set(self.running.len() as u64);
        stats.kv_kept_bytes.set(idle as u64 * bytes);
        stats.kv_used_bytes.set((self.pages.taken() - idle) as u64 * bytes);
    }
}

/// Lets each sequence take its rows, in their order, several sequences at once.
fn hand_out(model: &Model, bodies: &[Mutex<(&mut Body, usize)>], rows: Rows) {
    let mut numbers = rows.numbers;
    let mut parts = Vec::new();
    for of in rows.of.chunk_by(|(a, _), (b, _)| a == b) {
        let (own, rest) = numbers.split_at_mut(of.len() * rows.width);
        parts.push(Mutex::new((of, own)));
        numbers = rest;
    }
    model.share(parts.len(), &|i| {
        let (of, own) = &mut *parts[i].lock().expect("no holder of a row panics");
        let mut body = bodies[of[0].0].lock().expect("no holder of a body panics");
        let (body, position) = &mut *body;
        for ((_, token), row) in of.iter().zip(own.chunks_exact_mut(rows.width)) {
            body.take(*position + token, row);
        }
    });
}

/// Whether nobody but the memory of prompts holds a page.
fn is_idle(page: &Arc<Page>) -> bool {
    Arc::strong_count(page) == 1
}

/// Answers one request after another with a model that nobody else uses.
#[derive(Debug)]
pub struct Solo<'a> {
    engine: Engine<'a>,
}

impl<'a> Solo<'a> {
    /// With a context of its own.
    pub fn new(serving: &'a Serving) -> Self {
        let pages = 2 * Limits::pages_min(serving.context);
        let limits = Limits { parallel: 1, pages, guessing: Guessing::On };
        Self { engine: Engine::new(serving, limits) }
    }

    /// Computes the answer to `ask`. `hear` is told of everything as it comes; `halted` is looked
    /// at between steps, and ends the answer when it is true.
    pub fn answer(
        &mut self,
        ask: Ask,
        halted: &dyn Fn() -> bool,
        hear: &mut dyn FnMut(Heard),
    ) -> Result<Outcome, AnswerError> {
        ask.check(self.engine.serving.context)?;
        let (asker, halt, mut events) = Asker::alone();
        self.engine.admit(ask, asker);
        loop {
            halt.store(halted(), Ordering::Relaxed);
            self.engine.step()?;
            while let Ok(event) = events.try_recv() {
                match event {
                    Event::Begun => {}
                    Event::Heard(heard) => hear(heard),
                    Event::Done(outcome) => return Ok(outcome),
                    // Steps that fail have ended this already.
                    Event::Failed(_) | Event::Unreachable(_) => return Err(AnswerError::Mute),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
