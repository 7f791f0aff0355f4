//! The line of requests that wait for the model: first come, first served, and no longer than its
//! bound.
//!
//! A request holds a [`Place`]. Dropping it, as happens when a client goes away, takes the request
//! out of the line at once, or halts it if it is being answered.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::mpsc;

use super::ask::{Ask, Heard, Outcome};

/// The longest time after which a client is asked to come back, seconds.
const RETRY_SECONDS_MAX: u64 = 120;

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
}

/// Whoever waits for an answer, as the worker sees them.
#[derive(Debug)]
pub struct Asker {
    halt: Arc<AtomicBool>,
    // No bound of its own, for the worker must not wait for a slow client; it never holds more
    // than one event for each token of the context.
    tell: mpsc::UnboundedSender<Event>,
}

impl Asker {
    /// Tells the client; a client that is gone hears nothing and is not missed.
    pub fn tell(&self, event: Event) {
        let _ = self.tell.send(event);
    }

    /// Whether nobody wants the answer any more.
    pub fn is_halted(&self) -> bool {
        self.halt.load(Ordering::Relaxed)
    }
}

/// The line.
#[derive(Debug)]
pub struct Line {
    waiting_max: usize,
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(u64, Ask, Asker)>,
    /// The one that is being answered, to be halted when the node stops, and since when.
    answering: Option<(Arc<AtomicBool>, Instant)>,
    /// How long answers take, the last ones counting most.
    usual: Duration,
    next_number: u64,
    closed: bool,
}

impl Line {
    /// A line in which at most `waiting_max` wait while one is answered.
    pub fn new(waiting_max: usize) -> Arc<Self> {
        Arc::new(Self { waiting_max, state: Mutex::default(), bell: Condvar::new() })
    }

    /// Whether a request would be turned away now, before the work of reading its prompt.
    pub fn check(&self) -> Result<(), Turned> {
        self.admit(&self.state(), 1)
    }

    /// Joins the line with requests that belong together: all of them, or none.
    pub fn join(self: &Arc<Self>, asks: Vec<Ask>) -> Result<Vec<Place>, Turned> {
        let mut state = self.state();
        self.admit(&state, asks.len())?;
        let join = |ask| {
            let (tell, events) = mpsc::unbounded_channel();
            let halt = Arc::new(AtomicBool::new(false));
            let number = state.next_number;
            state.next_number += 1;
            state.waiting.push_back((number, ask, Asker { halt: halt.clone(), tell }));
            Place { line: self.clone(), number, halt, events }
        };
        let places = asks.into_iter().map(join).collect();
        self.bell.notify_one();
        Ok(places)
    }

    /// Waits for the next request; `None` when the line is closed and nobody waits any more.
    pub fn next(&self) -> Option<(Ask, Asker)> {
        let mut state = self.state();
        if let Some((_, since)) = state.answering.take() {
            state.usual = (state.usual * 3 + since.elapsed()) / 4;
        }
        loop {
            if let Some((_, ask, asker)) = state.waiting.pop_front() {
                state.answering = Some((asker.halt.clone(), Instant::now()));
                return Some((ask, asker));
            }
            if state.closed {
                return None;
            }
            state = self.bell.wait(state).expect("no holder of the line panics");
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
        state.waiting.clear();
        if let Some((halt, _)) = &state.answering {
            halt.store(true, Ordering::Relaxed);
        }
    }

    fn admit(&self, state: &State, count: usize) -> Result<(), Turned> {
        let waiting = state.waiting.len();
        // With nobody being answered, the first to wait is not waiting but next.
        let most = self.waiting_max + usize::from(state.answering.is_none());
        if state.closed {
            return Err(Turned::Closed);
        }
        if waiting + count > most {
            // Room appears when the one that is being answered is done.
            let retry_seconds = (state.usual.as_secs() + 1).min(RETRY_SECONDS_MAX);
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
    halt: Arc<AtomicBool>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Place {
    /// What happens next; `None` when the worker is gone.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.halt.store(true, Ordering::Relaxed);
        let number = self.number;
        self.line.state().waiting.retain(|(other, _, _)| *other != number);
    }
}

#[cfg(test)]
mod tests {
    use compute::sample::{Sampler, SamplerOptions};

    use super::super::ask::{Goal, Manner, Owner};
    use super::*;

    fn ask(first: u32) -> Ask {
        let sampler = Sampler::new(SamplerOptions::default()).unwrap();
        let mut manner = Manner::plain(sampler);
        manner.tokens_max = 1;
        Ask { model: 0, owner: Owner(0), prompt: vec![first], goal: Goal::Answer(manner) }
    }

    fn join(line: &Arc<Line>, first: u32) -> Result<Place, Turned> {
        Ok(line.join(vec![ask(first)])?.remove(0))
    }

    #[test]
    fn first_come_is_first_served() {
        let line = Line::new(2);
        let _places: Vec<_> = (0..2).map(|n| join(&line, n).unwrap()).collect();
        assert_eq!(line.next().unwrap().0.prompt, [0]);
        assert_eq!(line.next().unwrap().0.prompt, [1]);
    }

    #[test]
    fn a_full_line_turns_away_and_a_place_given_up_is_free() {
        let line = Line::new(1);
        let _first = join(&line, 0).unwrap();
        let (_, _asker) = line.next().unwrap();
        let second = join(&line, 1).unwrap();
        assert_eq!(join(&line, 2).unwrap_err(), Turned::Full { waiting: 1, retry_seconds: 1 });
        drop(second);
        let _third = join(&line, 3).unwrap();
        assert_eq!(line.next().unwrap().0.prompt, [3]);
    }

    #[test]
    fn without_a_line_one_request_is_still_answered() {
        let line = Line::new(0);
        let _first = join(&line, 0).unwrap();
        assert!(join(&line, 1).is_err());
        line.next().unwrap();
        assert_eq!(join(&line, 1).unwrap_err(), Turned::Full { waiting: 0, retry_seconds: 1 });
    }

    #[test]
    fn who_goes_away_halts_the_answer() {
        let line = Line::new(1);
        let place = join(&line, 0).unwrap();
        let (_, asker) = line.next().unwrap();
        assert!(!asker.is_halted());
        drop(place);
        assert!(asker.is_halted());
    }

    #[test]
    fn a_closed_line_serves_who_waits_and_then_ends() {
        let line = Line::new(1);
        let _place = join(&line, 0).unwrap();
        line.close();
        assert_eq!(join(&line, 1).unwrap_err(), Turned::Closed);
        assert!(line.next().is_some());
        assert!(line.next().is_none());
    }

    #[test]
    fn clearing_halts_the_answer_and_sends_away_who_waits() {
        let line = Line::new(4);
        let (_first, mut second) = (join(&line, 0).unwrap(), join(&line, 1).unwrap());
        let (_, asker) = line.next().unwrap();
        line.clear();
        assert!(asker.is_halted());
        assert!(line.next().is_none());
        assert!(matches!(second.events.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    }
}
