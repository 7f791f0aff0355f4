//! Sequences of which other nodes compute a part: their tokens go through the half-blocks that are
//! here, their rows travel, and what comes back is picked from.
//!
//! Nobody waits for one sequence's rows while another's are here: each is on its own way, and what
//! has come back meanwhile is computed together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use compute::engine::{Feed, PAGE, Returned, StepError, Wanted, front};
use compute::numeric::block::BlockVec;
use compute::numeric::rows::{rows_from_bytes, rows_to_bytes};
use wire::lane;

use super::road::{Inbox, News, Opening, Road, Setback};
use super::running::{Body, Running};
use super::{Engine, hand_out};

/// Pieces of one prompt that are on their way at a time: as many as keep a few stages busy.
const FLIGHTS_MAX: usize = 4;
/// When a sequence that lost its way tries again: each time in a row twice as long.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// How long an answer may get nowhere before whoever asked is told why.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same before its first token where nobody computes the rest: nothing is lost then by asking
/// again, here or elsewhere.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(10);

/// The way to the rest of the model.
#[derive(Debug)]
pub struct Far {
    road: Arc<dyn Road>,
    inbox: Arc<Inbox>,
    /// What keys of pages are made with.
    secret: [u8; 32],
    next_number: u64,
    /// Whether the next step may have something to do although nothing new has come.
    pub restless: bool,
}

/// How far a sequence is on that way.
#[derive(Debug)]
pub enum Trip {
    /// It has no seats yet; it asks for them at this time.
    Wanted(Instant),
    /// It has asked for seats.
    Asked,
    /// It has seats.
    Under(Under),
}

/// A sequence that has seats.
#[derive(Debug)]
pub struct Under {
    /// Positions that the stages had at the beginning: rows before are not sent.
    begun: usize,
    rows_max: usize,
    flights: VecDeque<Flight>,
    /// What came back and was not looked at yet.
    landed: VecDeque<Bytes>,
    /// Pages whose keys the stages were told.
    told: usize,
}

/// Rows on their way.
#[derive(Debug)]
struct Flight {
    first: usize,
    count: usize,
    wanted: Wanted,
    since: Instant,
}

impl Trip {
    /// Tokens of its `left` that may be sent now; `position` is that of the next.
    pub fn sendable(&self, position: usize, left: usize) -> usize {
        match self {
            Trip::Under(under) if position < under.begun => left.min(under.begun - position),
            Trip::Under(under) if under.flights.len() < FLIGHTS_MAX => left.min(under.rows_max),
            _ => 0,
        }
    }

    /// Whether an answer's next token can be sent: nothing of it is on its way.
    pub fn is_free(&self) -> bool {
        matches!(self, Trip::Under(under) if under.flights.is_empty())
    }
}

impl Far {
    /// Over `road`, which tells `inbox`.
    pub fn new(road: Arc<dyn Road>, inbox: Arc<Inbox>, secret: [u8; 32]) -> Self {
        Self { road, inbox, secret, next_number: 0, restless: false }
    }

    /// Whether something has come.
    pub fn has_news(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// A sequence is not wanted any more.
    pub fn close(&self, running: &Running) {
        if !matches!(running.trip, Trip::Wanted(_)) {
            self.road.close(running.number);
        }
    }
}

/// A sequence is not wanted any more by an engine that may have a road.
pub fn close(far: Option<&Far>, running: &Running) {
    if let Some(far) = far {
        far.close(running);
    }
}

impl Engine<'_> {
    /// Takes what has come, and lets sequences pick from what came back.
    pub(super) fn hear(&mut self) -> Result<(), StepError> {
        let Some(far) = &mut self.far else { return Ok(()) };
        far.restless = false;
        for (number, news) in far.inbox.take() {
            // Of a sequence that is gone.
            let Some(i) = self.running.iter().position(|r| r.number == number) else { continue };
            match news {
                News::Ready { begun, rows_max } => self.set_out(i, begun, rows_max),
                News::Rows { first, count, rows } => {
                    let Trip::Under(under) = &mut self.running[i].trip else { continue };
                    let flight = under.flights.get(under.landed.len());
                    assert!(
                        flight.is_some_and(|f| f.first == first && f.count == count),
                        "rows come back as they were sent"
                    );
                    under.landed.push_back(rows);
                }
                News::Failed(setback) => self.set_back(i, setback),
            }
        }
        while self.land()? {}
        Ok(())
    }

    /// There are seats: the sequence begins where both this node and the stages can.
    fn set_out(&mut self, i: usize, begun: usize, rows_max: usize) {
        if !matches!(self.running[i].trip, Trip::Asked) || self.running[i].parked {
            return;
        }
        let text = &self.running[i].text;
        let begun = begun.min((text.len() - 1) / PAGE * PAGE);
        let mut found = self.known.find(&text[..text.len() - 1]);
        if found.tokens > begun {
            found.tokens = begun;
            found.pages.truncate(begun / PAGE);
        }
        let (model, context) = (self.serving.speaker.model(), self.serving.context);
        let session = model.session_in(&self.pages, context, found.pages, found.tokens);
        let told = begun / PAGE;
        let (flights, landed) = (VecDeque::new(), VecDeque::new());
        let running = &mut self.running[i];
        running.go_on_with(session, begun);
        running.trip = Trip::Under(Under { begun, rows_max, flights, landed, told });
        self.serving.stats.kept_tokens.add(begun as u64);
    }

    /// The passage is over: the sequence begins again, unless it has got nowhere for too long.
    fn set_back(&mut self, i: usize, setback: Setback) {
        tracing::debug!(why = setback.text, "a sequence has lost its way");
        let now = Instant::now();
        self.park(i);
        let running = &mut self.running[i];
        running.tries += 1;
        let backed_off = RETRY_MIN * 2u32.saturating_pow(running.tries.min(6) - 1);
        running.trip = Trip::Wanted(now + setback.retry.max(backed_off));
        let has_begun = running.text.len() > running.prompt_len();
        let patience = match setback.is_lost && !has_begun {
            true => PATIENCE_AT_FIRST,
            false => PATIENCE,
        };
        let stuck = running.stuck.get_or_insert(now);
        if stuck.elapsed() > patience {
            running.given_up = Some(setback.text);
        }
        if let Some(far) = &mut self.far {
            far.restless = true;
        }
    }

    /// Asks for seats for all that can go on and have none. Those who would read what an earlier one
    /// is reading wait for it.
    pub(super) fn ask_for_seats(&mut self) {
        let now = Instant::now();
        for i in 0..self.running.len() {
            let due = matches!(self.running[i].trip, Trip::Wanted(at) if at <= now);
            if !due || self.running[i].parked || self.follows(i) {
                continue;
            }
            let Some(far) = &mut self.far else { return };
            let running = &mut self.running[i];
            // A new one each time, so that news of an earlier passage are not taken for this one's.
            far.next_number += 1;
            running.number = far.next_number;
            let full = (running.text.len() - 1) / PAGE;
            running.keys.extend(&far.secret, &running.text, PAGE, full);
            let positions = running.positions_max(self.serving.context) as u32;
            let beginning = running.keys.told(0, full);
            far.road.open(running.number, Opening { positions, beginning });
            running.trip = Trip::Asked;
        }
    }

    /// When the engine should be stepped although nothing has come.
    pub fn due(&self) -> Option<Instant> {
        let waits = |r: &Running| match r.trip {
            Trip::Wanted(at) if !r.parked => Some(at),
            _ => None,
        };
        self.running.iter().filter_map(waits).min()
    }

    /// Takes the first of what came back of each sequence; whether there was any.
    fn land(&mut self) -> Result<bool, StepError> {
        let width = self.serving.speaker.model().summary().width;
        let mut landed = Vec::new();
        for i in 0..self.running.len() {
            let Trip::Under(under) = &mut self.running[i].trip else { continue };
            let Some(bytes) = under.landed.pop_front() else { continue };
            let flight = under.flights.pop_front().expect("what lands has flown");
            let mut rows = BlockVec::default();
            match rows_from_bytes(&bytes, width, &mut rows) {
                Ok(()) => landed.push((i, flight, rows)),
                Err(error) => {
                    let text = format!("what came back is no residual: {error}");
                    self.set_back(i, Setback { text, retry: Duration::ZERO, is_lost: false });
                }
            }
        }
        if landed.is_empty() {
            return Ok(false);
        }
        self.pick(&landed)?;
        for (i, flight, _) in &landed {
            self.settle_flight(*i, flight);
        }
        Ok(true)
    }

    /// Lets each sequence take what was wanted of its rows.
    fn pick(&mut self, landed: &[(usize, Flight, BlockVec)]) -> Result<(), StepError> {
        let model = self.serving.speaker.model();
        let width = model.summary().width;
        let mut returned = Vec::new();
        let mut bodies: Vec<Mutex<(&mut Body, usize)>> = Vec::new();
        let mut each = landed.iter().peekable();
        for (i, running) in self.running.iter_mut().enumerate() {
            let Some((_, flight, rows)) = each.next_if(|(of, ..)| *of == i) else { continue };
            if rows.m.is_empty() {
                continue;
            }
            let count = rows.m.len() / width;
            returned.push(Returned { rows: rows.view(), wanted: flight.wanted });
            bodies.push(Mutex::new((&mut running.body, flight.first + flight.count - count)));
        }
        model.heads(&returned, &mut |rows| hand_out(model, &bodies, rows))
    }

    fn settle_flight(&mut self, i: usize, flight: &Flight) {
        let answering = self.running[i].text.len() > self.running[i].prompt_len();
        let seconds = flight.since.elapsed().as_secs_f64();
        let prompt_rows = if answering { 0 } else { flight.count };
        self.note_time(flight.count, prompt_rows, seconds);
        self.running[i].stuck = None;
        self.running[i].tries = 0;
        self.running[i].settle(flight.count, &self.serving.stats);
        self.remember_full(i);
        self.tell_keys(i);
    }

    /// Tells the stages the keys of pages that are full now.
    fn tell_keys(&mut self, i: usize) {
        let Some(far) = &self.far else { return };
        let running = &mut self.running[i];
        let Trip::Under(under) = &mut running.trip else { return };
        // What is on its way is not there yet.
        let there = under.flights.front().map_or(running.session.position(), |f| f.first);
        let full = there.min(running.text.len()) / PAGE;
        if full > under.told {
            running.keys.extend(&far.secret, &running.text, PAGE, full);
            let keys = running.keys.told(under.told, full);
            far.road.keep(running.number, under.told as u32, keys);
            under.told = full;
        }
    }

    /// Takes the tokens of `plan` through what is here, and sends the rows on.
    pub(super) fn send_off(&mut self, plan: &[usize]) -> Result<(), StepError> {
        if plan.iter().all(|count| *count == 0) {
            return Ok(());
        }
        let tokens: Vec<Vec<u32>> =
            self.running.iter().zip(plan).map(|(r, &count)| r.next_tokens(count)).collect();
        let mut feeds = Vec::new();
        let mut starts = Vec::new();
        for (i, (running, tokens)) in self.running.iter_mut().zip(&tokens).enumerate() {
            if !tokens.is_empty() {
                starts.push((i, running.session.position(), running.wanted(tokens.len())));
                let session = &mut running.session;
                feeds.push(Feed { session, tokens, wanted: Wanted::Nothing });
            }
        }
        let since = Instant::now();
        let rows = front(&mut feeds)?;
        drop(feeds);
        let width = self.serving.speaker.model().summary().width;
        let far = self.far.as_mut().expect("there is a road");
        far.restless = true;
        for ((i, first, wanted), rows) in starts.into_iter().zip(rows) {
            let running = &mut self.running[i];
            let Trip::Under(under) = &mut running.trip else { continue };
            let count = tokens[i].len();
            if first < under.begun {
                // The stages have these already.
                continue;
            }
            under.flights.push_back(Flight { first, count, wanted, since });
            let mut bytes = Vec::new();
            rows_to_bytes(rows.view(), width, &mut bytes);
            far.road.send(running.number, first as u32, bytes.into(), asked(wanted));
        }
        Ok(())
    }
}

/// What a lane is asked for.
fn asked(wanted: Wanted) -> lane::Wanted {
    match wanted {
        Wanted::Nothing => lane::Wanted::Nothing,
        Wanted::Last => lane::Wanted::Last,
        Wanted::Each | Wanted::Vectors => lane::Wanted::Each,
    }
}
