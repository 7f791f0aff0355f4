//! Parts of models that this node computes for others: one thread, all sequences, computed together.
//!
//! Pipes bring orders; what comes of them goes into outlets. A sequence has a seat (the rules of
//! `house::lane`) and a stage (its keys and values). Rows of several sequences that wait are taken
//! through a part in one pass, so that its weights are read once for all.
//!
//! **Invariant:** a seat is only given if all positions that it may grow to have pages, so a sequence
//! that was let in can always go on. Pages kept for later are given up first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use compute::engine::{
    Beginning, Model, PAGE, Page, Pages, Stage, StageFeed, StepError, pass_rows,
};
use compute::numeric::block::BlockVec;
use compute::numeric::rows::{row_bytes, rows_from_bytes, rows_to_bytes};
use tokio::sync::OwnedSemaphorePermit;
use wire::lane::{Hop, Keep, Open, Opened, PAGE_KEY, Reason, Refused, Rows, Say};
use wire::{Halves, ManifestId, NodeId};

use super::outlet::Outlet;
use crate::house::lane::{Seat, SeatEffect, SeatInput, SeatPlan};
use crate::house::turns::{FEW, Turns, Waiting};

const _: () = assert!(wire::lane::PAGE as usize == PAGE, "nodes agree on what a page is");

/// Sequences of others at a time.
pub const SEATS_MAX: usize = 64;
/// Bytes of results that are kept for each of them: with all seats taken, half a GiB.
const KEPT_MAX: usize = 8 << 20;
/// How long a requester that found no room should wait, milliseconds.
const RETRY_MS: u32 = 500;
/// How long the rows of one frame may take, seconds: others wait for their tokens meanwhile.
const FRAME_TIME: f64 = 0.1;
/// Rows in a frame, at least and at most.
const ROWS_MIN: u32 = 16;
const ROWS_MAX: u32 = 256;

/// A sequence's name, and which stage of its route this is.
pub type Session = ([u8; 16], u32);

/// A part of a model in memory, lent to others.
#[derive(Debug)]
pub struct Lent {
    /// Of which model.
    pub manifest: ManifestId,
    /// Which half-blocks.
    pub halves: Halves,
    /// It.
    pub model: Arc<Model>,
    /// Pages for sequences in it.
    pub pages: Arc<Pages>,
    /// Sequences in it now.
    pub seats: AtomicU64,
}

/// How far a sequence is, for whoever asks while the thread computes.
#[derive(Debug, Default)]
pub struct Progress {
    /// The last step that came.
    pub received: AtomicU64,
    /// The last that was computed and sent on.
    pub done: AtomicU64,
    /// Positions computed.
    pub positions: AtomicU64,
}

/// What the thread is told.
#[derive(Debug)]
pub enum Order {
    /// A part may be used from now on.
    Lend(Arc<Lent>),
    /// A part is not lent any more; its sequences end.
    TakeBack(ManifestId, Halves),
    /// A seat is wanted; what is to be said to the requester goes into `answers`.
    Open {
        /// By whom.
        from: NodeId,
        /// Which.
        open: Box<Open>,
        /// Where answers go.
        answers: Outlet,
        /// Where it is kept how far it is.
        progress: Arc<Progress>,
    },
    /// Somebody has said something about a sequence.
    Said {
        /// About which.
        session: Session,
        /// Who.
        from: NodeId,
        /// What.
        say: Say,
        /// With these rows.
        body: Bytes,
        /// Gives the memory of the rows back when they have been computed.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// The pipe through which a requester opened a seat is gone.
    Left(Session, NodeId),
    /// The pipe to another stage broke.
    Broken {
        /// Of which sequence.
        session: Session,
        /// To whom.
        node: NodeId,
        /// How that was noticed.
        why: String,
    },
}

/// What is going on, for offers and metrics.
#[derive(Debug, Default)]
pub struct StageStats {
    /// Gauge: seats taken.
    pub seats: AtomicU64,
    /// Counter: rows computed for others.
    pub rows: AtomicU64,
    /// Counter: passes.
    pub passes: AtomicU64,
    /// Counter: time in passes, microseconds.
    pub busy_us: AtomicU64,
    /// Counter: bytes of weights read in passes of few rows, and the time of these, microseconds.
    pub read_bytes: AtomicU64,
    /// See `read_bytes`.
    pub read_us: AtomicU64,
    /// Gauge: bytes of KV cache that sequences hold.
    pub kv_used_bytes: AtomicU64,
    /// Gauge: bytes of KV cache that is kept for sequences that begin alike.
    pub kv_kept_bytes: AtomicU64,
}

/// Makes a way to another stage.
pub type Connect = Box<dyn Fn(Session, Hop) -> Outlet + Send>;

/// Starts the thread; it ends when all senders of orders are gone.
pub fn start(connect: Connect, stats: Arc<StageStats>, take: mpsc::Receiver<Order>) -> Result<()> {
    let work = move || Host::new(connect, stats).run(&take);
    std::thread::Builder::new()
        .name("stages".into())
        .spawn(work)
        .context("cannot start the thread that computes for others")?;
    Ok(())
}

struct Host {
    connect: Connect,
    stats: Arc<StageStats>,
    parts: Vec<Part>,
    places: BTreeMap<Session, Place>,
    turns: Turns,
    /// Which part had its turn last.
    last: usize,
}

/// A part and what is known of it.
struct Part {
    lent: Arc<Lent>,
    /// Pages that seats may come to need.
    reserved: usize,
    kept: BTreeMap<[u8; PAGE_KEY], Kept>,
    /// How many of these no sequence holds.
    idle: usize,
    clock: u64,
    /// How long a row takes among many, seconds; 0 while not known.
    row_time: f64,
}

struct Kept {
    page: Arc<Page>,
    used: u64,
    /// How many pages come before it, without which it is never found.
    depth: usize,
}

impl Kept {
    /// Whether no sequence holds it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.page) == 1
    }
}

/// One sequence here.
struct Place {
    seat: Seat,
    stage: Stage,
    manifest: ManifestId,
    halves: Halves,
    reserved: usize,
    answers: Outlet,
    progress: Arc<Progress>,
    outlets: BTreeMap<NodeId, Outlet>,
    queue: VecDeque<Work>,
}

struct Work {
    rows: Rows,
    body: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Host {
    fn new(connect: Connect, stats: Arc<StageStats>) -> Self {
        let (parts, places) = (Vec::new(), BTreeMap::new());
        Self { connect, stats, parts, places, turns: Turns::default(), last: 0 }
    }

    fn run(&mut self, orders: &mpsc::Receiver<Order>) {
        loop {
            let busy = self.places.values().any(|place| !place.queue.is_empty());
            let first = match busy {
                true => orders.try_recv().map_err(|e| e == mpsc::TryRecvError::Disconnected),
                false => orders.recv().map_err(|_| true),
            };
            match first {
                Ok(order) => self.obey(order),
                Err(true) => return,
                Err(false) => {}
            }
            while let Ok(order) = orders.try_recv() {
                self.obey(order);
            }
            self.pass();
            self.count();
        }
    }

    fn count(&self) {
        self.stats.seats.store(self.places.len() as u64, Ordering::Relaxed);
        let (mut used, mut kept) = (0, 0);
        for part in &self.parts {
            let page = part.lent.pages.shape().page_bytes();
            used += part.lent.pages.taken().saturating_sub(part.idle) * page;
            kept += part.idle * page;
        }
        self.stats.kv_used_bytes.store(used as u64, Ordering::Relaxed);
        self.stats.kv_kept_bytes.store(kept as u64, Ordering::Relaxed);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Lend(lent) => {
                self.parts.push(Part {
                    lent,
                    reserved: 0,
                    kept: BTreeMap::new(),
                    idle: 0,
                    clock: 0,
                    row_time: 0.0,
                });
            }
            Order::TakeBack(manifest, halves) => self.take_back(manifest, halves),
            Order::Open { from, open, answers, progress } => {
                self.open(from, *open, answers, progress);
            }
            Order::Said { session, from, say, body, permit } => {
                self.said(session, from, say, body, permit);
            }
            Order::Left(session, from) => {
                if self.places.get(&session).is_some_and(|place| place.seat.requester() == from) {
                    self.leave(session);
                }
            }
            Order::Broken { session, node, why } => {
                let Some(place) = self.places.get_mut(&session) else { return };
                place.outlets.remove(&node);
                self.step(session, SeatInput::Broken { node, why }, None);
            }
        }
    }

    fn take_back(&mut self, manifest: ManifestId, halves: Halves) {
        let of = |place: &Place| place.manifest == manifest && place.halves == halves;
        let gone: Vec<Session> = self
            .places
            .iter()
            .filter(|(_, place)| of(place))
            .map(|(session, _)| *session)
            .collect();
        for session in gone {
            let text = "this part of the model is being given up".to_owned();
            self.refuse(session, Reason::Leaving, text);
        }
        self.parts.retain(|part| part.lent.manifest != manifest || part.lent.halves != halves);
    }

    fn part(&mut self, manifest: ManifestId, halves: Halves) -> Option<&mut Part> {
        let own = |part: &&mut Part| part.lent.manifest == manifest && part.lent.halves == halves;
        self.parts.iter_mut().find(own)
    }

    fn open(&mut self, from: NodeId, open: Open, answers: Outlet, progress: Arc<Progress>) {
        match self.seat(from, &open, &answers, progress) {
            Ok(opened) => {
                // Whoever is gone already is noticed by the end of the pipe.
                let _ = answers.send(Say::Opened(opened), Bytes::new());
            }
            Err(refused) => {
                let _ = answers.send(Say::Refused(refused), Bytes::new());
            }
        }
    }

    fn seat(
        &mut self,
        from: NodeId,
        open: &Open,
        answers: &Outlet,
        progress: Arc<Progress>,
    ) -> Result<Opened, Refused> {
        let name = open.session[..].try_into().expect("checked when it was read");
        let session: Session = (name, open.leg);
        let (manifest, halves) = (open.manifest(), open.halves());
        if self.places.contains_key(&session) {
            return Err(Refused::new(Reason::Broken, "a sequence of this name is here", 0));
        }
        if self.places.len() >= SEATS_MAX {
            let text = format!("all {SEATS_MAX} seats are taken");
            return Err(Refused::new(Reason::Full, text, RETRY_MS));
        }
        let Some(part) = self.part(manifest, halves) else {
            let text = format!("layers {halves} of this model are not in memory here");
            return Err(Refused::new(Reason::NotHeld, text, 0));
        };
        // One more for a page that is shared and must be copied, and one that is not full.
        let reserved = (open.positions as usize).div_ceil(PAGE) + 2;
        let max = part.lent.pages.max();
        if part.reserved + reserved > max {
            let free = max.saturating_sub(part.reserved) * PAGE;
            let text = format!("{} positions are wanted and {free} are free", open.positions);
            return Err(Refused::new(Reason::Full, text, RETRY_MS));
        }
        let pages = part.find(&open.beginning);
        let begun = pages.len() * PAGE;
        let beginning = Beginning { pages, position: begun };
        let lent = part.lent.clone();
        let context = open.positions as usize;
        let stage = lent.model.stage_in(halves.range(), &lent.pages, context, beginning);
        let broken = |error: StepError| Refused::new(Reason::Broken, error.to_string(), 0);
        let stage = stage.map_err(broken)?;
        part.reserved += reserved;
        part.count_idle();
        part.lent.seats.fetch_add(1, Ordering::Relaxed);
        let rows_max = part.rows_max();
        let width = lent.model.summary().width;
        let plan = SeatPlan {
            requester: from,
            from: open.from.iter().filter_map(|node| NodeId::from_slice(node)).collect(),
            next: open.next.clone(),
            positions: open.positions,
            begun: begun as u32,
            row_bytes: row_bytes(width),
            kept_bytes: KEPT_MAX,
        };
        let place = Place {
            seat: Seat::new(plan),
            stage,
            manifest,
            halves,
            reserved,
            answers: answers.clone(),
            progress,
            outlets: BTreeMap::new(),
            queue: VecDeque::new(),
        };
        self.places.insert(session, place);
        Ok(Opened { rows_max, begun: begun as u32 })
    }

    fn said(
        &mut self,
        session: Session,
        from: NodeId,
        say: Say,
        body: Bytes,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let Some(place) = self.places.get_mut(&session) else { return };
        let requester = place.seat.requester() == from;
        let input = match say {
            Say::Rows(rows) => SeatInput::Rows { from, rows, body },
            Say::Attach(attach) if requester => SeatInput::Attach(attach),
            Say::Keep(keep) if requester => return self.keep(session, &keep),
            _ => {
                let text = "this is not said to a stage".to_owned();
                return self.refuse(session, Reason::Broken, text);
            }
        };
        self.step(session, input, permit);
    }

    /// Hands an input to a seat and does what it wants.
    fn step(&mut self, session: Session, input: SeatInput, permit: Option<OwnedSemaphorePermit>) {
        let Some(place) = self.places.get_mut(&session) else { return };
        let mut permit = permit;
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if let SeatInput::Computed { rows, .. } = &input {
                place.progress.done.fetch_max(rows.step, Ordering::Relaxed);
                place.progress.positions.store(rows.end().into(), Ordering::Relaxed);
            }
            for effect in place.seat.handle(input) {
                match effect {
                    SeatEffect::Compute { rows, body } => {
                        place.queue.push_back(Work { rows, body, _permit: permit.take() });
                    }
                    SeatEffect::Send { to, rows, body } => {
                        let node = to.node();
                        let connect = || (self.connect)(session, to);
                        let outlet = place.outlets.entry(node).or_insert_with(connect);
                        if let Err(error) = outlet.send(Say::Rows(rows), body) {
                            place.outlets.remove(&node);
                            inputs.push_back(SeatInput::Broken { node, why: error.to_string() });
                        }
                    }
                    SeatEffect::Tell { say, body } => {
                        if place.answers.send(say, body).is_err() {
                            return self.leave(session);
                        }
                    }
                    SeatEffect::Hang(node) => {
                        place.outlets.remove(&node);
                    }
                    SeatEffect::End => return self.leave(session),
                }
            }
        }
    }

    fn keep(&mut self, session: Session, keep: &Keep) {
        let Some(place) = self.places.get(&session) else { return };
        let (manifest, halves) = (place.manifest, place.halves);
        // A page that is not full yet, or is not computed, is none to be found by others.
        let full = place.stage.position() / PAGE;
        let first = keep.first as usize;
        let pages: Vec<Arc<Page>> =
            place.stage.pages().iter().take(full).skip(first).cloned().collect();
        let Some(part) = self.part(manifest, halves) else { return };
        part.clock += 1;
        for ((key, page), depth) in keep.keys.chunks_exact(PAGE_KEY).zip(pages).zip(first..) {
            let key = key.try_into().expect("chunks are that long");
            let kept = part.kept.entry(key).or_insert(Kept { page, used: 0, depth });
            kept.used = part.clock;
        }
    }

    fn refuse(&mut self, session: Session, reason: Reason, text: String) {
        if let Some(place) = self.places.get(&session) {
            let say = Say::Refused(Refused::new(reason, text, 0));
            let _ = place.answers.send(say, Bytes::new());
        }
        self.leave(session);
    }

    fn leave(&mut self, session: Session) {
        let Some(place) = self.places.remove(&session) else { return };
        let (manifest, halves, reserved) = (place.manifest, place.halves, place.reserved);
        drop(place);
        if let Some(part) = self.part(manifest, halves) {
            part.reserved -= reserved;
            part.lent.seats.fetch_sub(1, Ordering::Relaxed);
            part.count_idle();
        }
    }

    /// Computes rows of the next part for which any wait.
    fn pass(&mut self) {
        for n in 1..=self.parts.len() {
            let i = (self.last + n) % self.parts.len();
            let lent = self.parts[i].lent.clone();
            let own =
                |place: &Place| place.manifest == lent.manifest && place.halves == lent.halves;
            let waiting = self.places.iter().filter(|(_, place)| own(place));
            let (sessions, frames): (Vec<Session>, Vec<Waiting>) = waiting
                .filter_map(|(session, place)| {
                    let rows = place.queue.front()?.rows.count;
                    Some((*session, Waiting { requester: place.seat.requester(), rows }))
                })
                .unzip();
            if frames.is_empty() {
                continue;
            }
            self.last = i;
            let chosen = self.turns.next(&frames);
            return self.compute(i, chosen.into_iter().map(|at| sessions[at]).collect());
        }
    }

    fn compute(&mut self, part: usize, sessions: Vec<Session>) {
        let width = self.parts[part].lent.model.summary().width;
        let mut batch: Vec<(Session, Rows, BlockVec)> = Vec::with_capacity(sessions.len());
        for session in sessions {
            let place = self.places.get_mut(&session).expect("it waits");
            let Work { rows, body, .. } = place.queue.pop_front().expect("it waits");
            let mut all = BlockVec::default();
            match rows_from_bytes(&body, width, &mut all) {
                Ok(()) => {
                    place.stage.rewind(rows.first as usize);
                    batch.push((session, rows, all));
                }
                Err(error) => self.refuse(session, Reason::Broken, error.to_string()),
            }
        }
        batch.sort_unstable_by_key(|(session, ..)| *session);
        let start = Instant::now();
        if let Err(error) = self.run_pass(part, &mut batch) {
            for (session, ..) in batch {
                self.refuse(session, Reason::Internal, error.to_string());
            }
            return;
        }
        self.note(part, &batch, start);
        for (session, rows, all) in batch {
            let mut bytes = Vec::with_capacity(row_bytes(width) * rows.count as usize);
            rows_to_bytes(all.view(), width, &mut bytes);
            self.step(session, SeatInput::Computed { rows, body: bytes.into() }, None);
        }
    }

    /// Takes a batch, in the order of its sessions, through a part.
    fn run_pass(
        &mut self,
        part: usize,
        batch: &mut [(Session, Rows, BlockVec)],
    ) -> Result<(), StepError> {
        let mut each = batch.iter_mut().peekable();
        let mut feeds = Vec::new();
        let mut wanted = 0;
        for (session, place) in &mut self.places {
            let Some((_, rows, all)) = each.next_if(|(of, ..)| of == session) else { continue };
            wanted += place.stage.pages_wanted(rows.count as usize);
            feeds.push(StageFeed { stage: &mut place.stage, rows: all });
        }
        self.parts[part].make_room(wanted);
        pass_rows(&mut feeds)
    }

    fn note(&mut self, part: usize, batch: &[(Session, Rows, BlockVec)], start: Instant) {
        let took = start.elapsed();
        let rows: u32 = batch.iter().map(|(_, rows, _)| rows.count).sum();
        self.stats.passes.fetch_add(1, Ordering::Relaxed);
        self.stats.rows.fetch_add(u64::from(rows), Ordering::Relaxed);
        self.stats.busy_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        if rows <= FEW {
            let bytes = self.parts[part].lent.model.summary().bytes_per_token;
            self.stats.read_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.stats.read_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        } else {
            let each = took.as_secs_f64() / f64::from(rows);
            let row_time = &mut self.parts[part].row_time;
            *row_time = if *row_time == 0.0 { each } else { *row_time + 0.3 * (each - *row_time) };
        }
    }
}

impl Part {
    /// Pages of a sequence that begins with these keys.
    fn find(&mut self, keys: &[u8]) -> Vec<Arc<Page>> {
        self.clock += 1;
        let clock = self.clock;
        let mut found = Vec::new();
        for key in keys.chunks_exact(PAGE_KEY) {
            let Some(kept) = self.kept.get_mut(key) else { break };
            kept.used = clock;
            found.push(kept.page.clone());
        }
        found
    }

    /// Sees to it that `wanted` pages can be taken: those kept for later go, the longest unused
    /// first.
    fn make_room(&mut self, wanted: usize) {
        let free = self.lent.pages.max() - self.lent.pages.taken();
        if free >= wanted {
            return;
        }
        let idle = self.kept.iter().filter(|(_, kept)| kept.is_idle());
        let mut idle: Vec<_> =
            idle.map(|(key, kept)| (kept.used, Reverse(kept.depth), *key)).collect();
        idle.sort_unstable();
        for (.., key) in idle.into_iter().take(wanted - free) {
            self.kept.remove(&key);
        }
        self.count_idle();
    }

    /// Looks at all pages that are kept; sequences have come or gone, or pages have.
    fn count_idle(&mut self) {
        self.idle = self.kept.values().filter(|kept| kept.is_idle()).count();
    }

    fn rows_max(&self) -> u32 {
        match self.row_time {
            0.0 => 4 * ROWS_MIN,
            each => ((FRAME_TIME / each) as u32).clamp(ROWS_MIN, ROWS_MAX),
        }
    }
}
