//! The line of requests that wait for a place in an engine: fair among owners, and no longer than its
//! bound.
//!
//! A request holds a [`Place`]. Dropping it, as happens when a client goes away, takes the request
//! out of the line at once, or halts it if it is being answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::mpsc;

use super::ask::{Ask, Heard, Outcome};
use crate::house::{Owner, Queues};

/// The longest time after which a client is asked to come back, seconds.
const RETRY_SECONDS_MAX: u64 = 120;
/// How long nothing is looked at while a closed line's last answers are on their way.
const REST: Duration = Duration::from_millis(50);
/// How much the last answer counts in how long answers usually take, against all before it.
const LAST_COUNTS: u32 = 8;

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum Turned {
    /// The line is as long as it may be.
    #[error("{waiting} requests wait already, and no more may; try again in {retry_seconds} s")]
    Full {
        /// How many wait.
        waiting: usize,
        /// When there will be room, going by how long answers took lately.
        retry_seconds: u64,
    },
    /// More belong together than may ever be here.
    #[error("{asked} answers at once are wanted, and no more than {most} are given; ask for fewer")]
    TooMany {
        /// How many belong together.
        asked: usize,
        /// How many may be here.
        most: usize,
    },
    /// The node is stopping.
    #[error("this node is stopping and takes no more requests")]
    Closed,
}

/// What becomes of a request, in order.
#[derive(Debug)]
pub enum Event {
    /// It is its turn.
    Begun,
    /// The answer grows.
    Heard(Heard),
    /// The answer is complete.
    Done(Outcome),
    /// There is none, through no fault of the client's.
    Failed(String),
    /// There is none now, for other nodes do not do their part.
    Unreachable(String),
}

/// Whoever waits for an answer, as the engine sees them.
#[derive(Debug)]
pub struct Asker {
    halt: Arc<AtomicBool>,
    // No bound of its own, for the engine must not wait for a slow client; it never holds more
    // than one event for each token of the context.
    tell: mpsc::UnboundedSender<Event>,
    joined: Instant,
    /// Where it came from; `None` for one who asks alone.
    from: Option<Origin>,
}

#[derive(Debug)]
struct Origin {
    line: Arc<Line>,
    number: u64,
    model: usize,
    owner: Owner,
}

impl Asker {
    /// One who asks without a line, and what they hear; setting the flag halts the answer.
    pub fn alone() -> (Self, Arc<AtomicBool>, mpsc::UnboundedReceiver<Event>) {
        let (tell, events) = mpsc::unbounded_channel();
        let halt = Arc::new(AtomicBool::new(false));
        (Self { halt: halt.clone(), tell, joined: Instant::now(), from: None }, halt, events)
    }

    /// Tells the client; a client that is gone hears nothing and is not missed.
    pub fn tell(&self, event: Event) {
        let _ = self.tell.send(event);
    }

    /// Whether nobody wants the answer any more.
    pub fn is_halted(&self) -> bool {
        self.halt.load(Ordering::Relaxed)
    }

    /// Since when they wait.
    pub fn joined(&self) -> Instant {
        self.joined
    }

    /// `tokens` more have been computed for them.
    pub fn charge(&self, tokens: usize) {
        if let Some(from) = &self.from {
            let mut state = from.line.state();
            if let Some(queues) = state.models.get_mut(from.model) {
                queues.charge(from.owner, tokens as u64);
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let Some(from) = self.from.take() else { return };
        let mut state = from.line.state();
        // One that never had its turn is not among those that are answered.
        let Some(working) = state.answering.remove(&from.number) else { return };
        let took = working.since.elapsed();
        state.usual = match state.usual {
            Duration::ZERO => took,
            usual => (usual * (LAST_COUNTS - 1) + took) / LAST_COUNTS,
        };
        if let Some(queues) = state.models.get_mut(from.model) {
            queues.done(from.owner);
        }
        drop(state);
        from.line.bell.notify_one();
    }
}

/// The line.
#[derive(Debug)]
pub struct Line {
    waiting_max: usize,
    /// Requests that are answered at a time, for all models together.
    parallel: usize,
    state: Mutex<State>,
    bell: Condvar,
}

type Waiting = (u64, Ask, Asker);

#[derive(Debug, Default)]
struct State {
    /// Who waits for which model.
    models: Vec<Queues<Waiting>>,
    /// Those that are being answered.
    answering: BTreeMap<u64, Working>,
    /// How long answers take, the last ones counting most.
    usual: Duration,
    next_number: u64,
    closed: bool,
}

#[derive(Debug)]
struct Working {
    halt: Arc<AtomicBool>,
    since: Instant,
}

impl State {
    fn waiting(&self) -> usize {
        self.models.iter().map(Queues::waiting).sum()
    }
}

/// What there is to do.
#[derive(Debug)]
pub enum Next {
    /// To answer this.
    Ask(Box<Ask>, Asker),
    /// Nothing now.
    Nothing,
    /// Nothing any more: the line is closed and nobody waits.
    Closed,
}

impl Line {
    /// A line in which at most `waiting_max` wait while `parallel` are answered.
    pub fn new(waiting_max: usize, parallel: usize) -> Arc<Self> {
        Arc::new(Self { waiting_max, parallel, state: Mutex::default(), bell: Condvar::new() })
    }

    /// Whether a request would be turned away now, before the work of reading its prompt.
    pub fn check(&self) -> Result<(), Turned> {
        self.admit(&self.state(), 1)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting()
    }

    /// Joins the line with requests that belong together: all of them, or none.
    pub fn join(self: &Arc<Self>, asks: Vec<Ask>) -> Result<Vec<Place>, Turned> {
        let mut state = self.state();
        self.admit(&state, asks.len())?;
        let joined = Instant::now();
        let join = |ask: Ask| {
            let (tell, events) = mpsc::unbounded_channel();
            let halt = Arc::new(AtomicBool::new(false));
            let number = state.next_number;
            state.next_number += 1;
            let (model, owner) = (ask.model, ask.owner);
            let from = Some(Origin { line: self.clone(), number, model, owner });
            if state.models.len() <= model {
                state.models.resize_with(model + 1, Queues::default);
            }
            let asker = Asker { halt: halt.clone(), tell, joined, from };
            state.models[model].push(owner, (number, ask, asker));
            Place { line: self.clone(), number, model, halt, events }
        };
        let places = asks.into_iter().map(join).collect();
        self.bell.notify_one();
        Ok(places)
    }

    /// The next request to a model of which `room` says that it can take one.
    pub fn next(&self, room: &dyn Fn(usize) -> bool) -> Next {
        let mut state = self.state();
        self.take(&mut state, room)
    }

    /// As [`Line::next`], but waits until there is one, until something else is `ready` to be done, or
    /// `until` then. Whoever makes something ready rings.
    pub fn wait(
        &self,
        room: &dyn Fn(usize) -> bool,
        ready: &dyn Fn() -> bool,
        until: Option<Instant>,
    ) -> Next {
        let mut state = self.state();
        loop {
            match self.take(&mut state, room) {
                Next::Nothing if ready() => return Next::Nothing,
                Next::Nothing => {}
                next => return next,
            }
            let now = Instant::now();
            state = match until.map(|until| until.saturating_duration_since(now)) {
                Some(Duration::ZERO) => return Next::Nothing,
                Some(left) => {
                    let woken = self.bell.wait_timeout(state, left);
                    woken.expect("no holder of the line panics").0
                }
                None => self.bell.wait(state).expect("no holder of the line panics"),
            };
        }
    }

    /// Waits a moment, or until something is `ready`; for a line that is closed.
    pub fn rest(&self, ready: &dyn Fn() -> bool) {
        let state = self.state();
        if !ready() {
            let woken = self.bell.wait_timeout(state, REST);
            drop(woken.expect("no holder of the line panics"));
        }
    }

    /// Wakes whoever waits, to look whether something is ready.
    pub fn ring(&self) {
        // Not between their look and their sleep.
        drop(self.state());
        self.bell.notify_all();
    }

    fn take(&self, state: &mut State, room: &dyn Fn(usize) -> bool) -> Next {
        for model in (0..state.models.len()).filter(|model| room(*model)) {
            let Some((_, (number, ask, asker))) = state.models[model].pop() else { continue };
            let working = Working { halt: asker.halt.clone(), since: Instant::now() };
            state.answering.insert(number, working);
            return Next::Ask(Box::new(ask), asker);
        }
        match state.closed && state.waiting() == 0 {
            true => Next::Closed,
            false => Next::Nothing,
        }
    }

    /// Lets nobody join any more; who waits is still answered.
    pub fn close(&self) {
        self.state().closed = true;
        self.bell.notify_all();
    }

    /// Closes, sends away who waits and halts what is being answered.
    pub fn clear(&self) {
        self.close();
        let mut state = self.state();
        // Askers that are dropped look into the line themselves.
        let gone = std::mem::take(&mut state.models);
        state.answering.values().for_each(|working| working.halt.store(true, Ordering::Relaxed));
        drop(state);
        drop(gone);
    }

    fn admit(&self, state: &State, count: usize) -> Result<(), Turned> {
        let waiting = state.waiting();
        // While there are free places, the first to wait are not waiting but next.
        let free = self.parallel.saturating_sub(state.answering.len());
        if state.closed {
            return Err(Turned::Closed);
        }
        let most = self.waiting_max + self.parallel;
        if count > most {
            return Err(Turned::TooMany { asked: count, most });
        }
        if waiting + count > self.waiting_max + free {
            // Room appears when one of those that are answered is done.
            let next = state.usual / u32::try_from(self.parallel).unwrap_or(u32::MAX).max(1);
            let retry_seconds = (next.as_secs() + 1).min(RETRY_SECONDS_MAX);
            return Err(Turned::Full { waiting, retry_seconds });
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the line panics")
    }
}

/// A request's place in the line, and then the client's end of its answer.
#[derive(Debug)]
pub struct Place {
    line: Arc<Line>,
    number: u64,
    model: usize,
    halt: Arc<AtomicBool>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Place {
    /// What happens next; `None` when the engine is gone.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.halt.store(true, Ordering::Relaxed);
        let mut state = self.line.state();
        let mut gone = Vec::new();
        if let Some(queues) = state.models.get_mut(self.model) {
            gone = queues.take_out(|(number, _, _)| *number == self.number);
        }
        drop(state);
        // Whoever waits for others to compute it need wait no more.
        self.line.bell.notify_all();
        // An asker that is dropped looks into the line itself.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use compute::sample::{Sampler, SamplerOptions};

    use super::super::ask::{Goal, Manner};
    use super::*;

    fn ask(first: u32, owner: u64) -> Ask {
        let sampler = Sampler::new(SamplerOptions::default()).unwrap();
        let goal = Goal::Answer(Manner::plain(sampler));
        Ask { model: 0, owner: Owner(owner), prompt: vec![first], goal }
    }

    fn join(line: &Arc<Line>, first: u32) -> Result<Place, Turned> {
        Ok(line.join(vec![ask(first, 0)])?.remove(0))
    }

    #[track_caller]
    fn next(line: &Line) -> (u32, Asker) {
        match line.next(&|_| true) {
            Next::Ask(ask, asker) => (ask.prompt[0], asker),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_one_owner_first_come_is_first_served() {
        let line = Line::new(2, 1);
        let _places: Vec<_> = (0..2).map(|n| join(&line, n).unwrap()).collect();
        let (first, asker) = next(&line);
        let (second, _asker) = (next(&line), asker);
        assert_eq!((first, second.0), (0, 1));
    }

    #[test]
    fn owners_take_turns() {
        let line = Line::new(9, 1);
        let _many = line.join((0..3).map(|n| ask(n, 1)).collect()).unwrap();
        let _one = line.join(vec![ask(10, 2)]).unwrap();
        let (first, asker) = next(&line);
        asker.charge(100);
        let (second, _asker) = (next(&line), asker);
        assert_eq!((first, second.0), (0, 10));
    }

    #[test]
    fn a_full_line_turns_away_and_a_place_given_up_is_free() {
        let line = Line::new(1, 1);
        let _first = join(&line, 0).unwrap();
        let (_, _asker) = next(&line);
        let second = join(&line, 1).unwrap();
        assert_eq!(join(&line, 2).unwrap_err(), Turned::Full { waiting: 1, retry_seconds: 1 });
        drop(second);
        let _third = join(&line, 3).unwrap();
        assert_eq!(next(&line).0, 3);
    }

    #[test]
    fn without_a_line_as_many_as_have_places_are_answered() {
        let line = Line::new(0, 2);
        let _first = join(&line, 0).unwrap();
        let _second = join(&line, 1).unwrap();
        assert!(join(&line, 2).is_err());
        let _asker = next(&line);
        assert_eq!(join(&line, 2).unwrap_err(), Turned::Full { waiting: 1, retry_seconds: 1 });
    }

    #[test]
    fn what_belongs_together_joins_together_or_not_at_all() {
        let line = Line::new(1, 2);
        let _first = join(&line, 0).unwrap();
        let three = || (0..3).map(|n| ask(n, 0)).collect();
        assert!(matches!(line.join(three()), Err(Turned::Full { waiting: 1, .. })));
        let four = (0..4).map(|n| ask(n, 0)).collect();
        assert_eq!(line.join(four).unwrap_err(), Turned::TooMany { asked: 4, most: 3 });
        assert_eq!(line.waiting(), 1);
    }

    #[test]
    fn a_model_without_room_is_passed_over() {
        let line = Line::new(4, 2);
        let _first = join(&line, 0).unwrap();
        let other = Ask { model: 1, ..ask(7, 0) };
        let _second = line.join(vec![other]).unwrap();
        assert!(matches!(line.next(&|model| model == 1), Next::Ask(ask, _) if ask.prompt == [7]));
        assert!(matches!(line.next(&|model| model == 1), Next::Nothing));
    }

    #[test]
    fn who_goes_away_halts_the_answer() {
        let line = Line::new(1, 1);
        let place = join(&line, 0).unwrap();
        let (_, asker) = next(&line);
        assert!(!asker.is_halted());
        drop(place);
        assert!(asker.is_halted());
    }

    #[test]
    fn a_closed_line_serves_who_waits_and_then_ends() {
        let line = Line::new(1, 1);
        let _place = join(&line, 0).unwrap();
        line.close();
        assert_eq!(join(&line, 1).unwrap_err(), Turned::Closed);
        let _asker = next(&line);
        assert!(matches!(line.wait(&|_| true, &|| false, None), Next::Closed));
    }

    #[test]
    fn clearing_halts_the_answer_and_sends_away_who_waits() {
        let line = Line::new(4, 1);
        let (_first, mut second) = (join(&line, 0).unwrap(), join(&line, 1).unwrap());
        let (_, asker) = next(&line);
        line.clear();
        assert!(asker.is_halted());
        assert!(matches!(line.next(&|_| true), Next::Closed));
        assert!(matches!(second.events.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    }
}
