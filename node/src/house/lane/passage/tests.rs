//! A route in a box: a passage and its seats over links that delay, lose their ends and come back.
//!
//! A stage's "computation" of a row is a digest of it and of all rows before, so that a row too few,
//! too many or in another order changes everything after it.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use wire::Key;

use super::super::seat::{self, Seat, SeatPlan};
use super::*;

const ROW: usize = 8;

/// What one stage makes of a row after those before it, of which the last became `before`.
fn compute(stage: u32, before: [u8; ROW], row: &[u8]) -> [u8; ROW] {
    let all = [&[stage as u8], &before[..], row].concat();
    wire::digest(0, &all)[..ROW].try_into().unwrap()
}

/// What the undisturbed route makes of rows.
fn truth(stages: u32, rows: &[u8]) -> Vec<u8> {
    (0..stages).fold(rows.to_vec(), |rows, stage| {
        let mut before = [0; ROW];
        let each = rows.chunks(ROW).flat_map(|row| {
            before = compute(stage, before, row);
            before
        });
        each.collect()
    })
}

fn row(position: u32, version: u8) -> [u8; ROW] {
    let mut row = [version; ROW];
    row[..4].copy_from_slice(&position.to_le_bytes());
    row
}

fn node(n: u8) -> NodeId {
    Key::new([n + 1; 32]).id()
}

fn hop(n: u8) -> Hop {
    Hop { node: node(n).0.to_vec(), lanes: vec![], leg: 0 }
}

/// A node with at most one seat.
struct Worker {
    number: u8,
    stage: u32,
    seat: Option<Seat>,
    /// What it made of each row that it has.
    held: Vec<[u8; ROW]>,
    alive: bool,
    /// Extra time that it takes for a computation.
    slow: u64,
    busy_until: u64,
}

#[derive(Debug)]
enum Event {
    Tick,
    ToWorker { from: NodeId, to: NodeId, say: Say, body: Bytes },
    Computed { at: NodeId, rows: Rows, body: Bytes },
    ToRequester { from: NodeId, say: Say, body: Bytes },
}

struct World {
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    number: u64,
    passage: Passage,
    workers: BTreeMap<NodeId, Worker>,
    /// One way, milliseconds.
    delay: u64,
    /// Links that swallow what is sent.
    cut: Vec<(NodeId, NodeId)>,
    /// What making a pipe between two stages takes, milliseconds, and when each is made.
    making: u64,
    made: BTreeMap<(NodeId, NodeId), u64>,
    ready: Option<u32>,
    delivered: Vec<(u32, u32, Bytes)>,
    failed: Option<PassageError>,
    dropped: Vec<NodeId>,
    /// Rows that workers computed.
    computed: u64,
    /// Rows that nodes have kept of the sequence's beginning.
    begun: BTreeMap<NodeId, u32>,
}

const REQUESTER: u8 = 100;

impl World {
    /// `legs[i]` are the numbers of the nodes of stage i.
    fn new(legs: &[&[u8]], replication: Replication) -> Self {
        let leg = |(i, nodes): (usize, &&[u8])| Leg {
            halves: Halves::new(2 * i + 2, 2 * i + 4),
            nodes: nodes.iter().map(|n| hop(*n)).collect(),
        };
        let plan = Plan {
            session: vec![1; 16],
            manifest: vec![2; 32],
            legs: legs.iter().enumerate().map(leg).collect(),
            positions: 4096,
            row_bytes: ROW,
            kept_bytes: 1 << 20,
            beginning: vec![],
            replication,
        };
        let worker = |stage: usize, number: &u8| {
            let stage = stage as u32;
            let (seat, held, number) = (None, vec![], *number);
            let alive = true;
            (node(number), Worker { number, stage, seat, held, alive, slow: 0, busy_until: 0 })
        };
        let workers = legs.iter().enumerate();
        let workers = workers.flat_map(|(i, nodes)| nodes.iter().map(move |n| worker(i, n)));
        let mut world = Self {
            now: 1_000,
            events: BTreeMap::new(),
            number: 0,
            passage: Passage::new(plan),
            workers: workers.collect(),
            delay: 5,
            cut: vec![],
            making: 0,
            made: BTreeMap::new(),
            ready: None,
            delivered: vec![],
            failed: None,
            dropped: vec![],
            computed: 0,
            begun: BTreeMap::new(),
        };
        world.input(Input::Begin);
        world
    }

    /// Node `n` has kept the first `count` rows of the sequence.
    fn keeps(&mut self, n: u8, count: u32) {
        let worker = self.workers.get_mut(&node(n)).unwrap();
        let rows: Vec<u8> = (0..count).flat_map(|p| row(p, 0)).collect();
        let before = truth(worker.stage, &rows);
        let mut last = [0; ROW];
        for row in before.chunks(ROW) {
            last = compute(worker.stage, last, row);
            worker.held.push(last);
        }
        self.begun.insert(node(n), count);
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.insert((time.max(self.now), self.number), event);
    }

    fn input(&mut self, input: Input) {
        for effect in self.passage.handle(Millis(self.now), input) {
            match effect {
                Effect::Tell { to, say, body } => {
                    let (from, to) = (node(REQUESTER), to.node());
                    self.post(from, to, say, body);
                }
                Effect::Ready { begun, rows_max } => {
                    assert!(rows_max > 0);
                    self.ready = Some(begun);
                }
                Effect::Deliver { first, count, rows } => self.delivered.push((first, count, rows)),
                Effect::Dropped { node, .. } => self.dropped.push(node),
                Effect::Wake(at) => self.at(at.0, Event::Tick),
                Effect::Failed(error) => self.failed = Some(error),
            }
        }
    }

    fn post(&mut self, from: NodeId, to: NodeId, say: Say, body: Bytes) {
        if !self.cut.contains(&(from, to)) {
            let making = if from == node(REQUESTER) { 0 } else { self.making };
            let made = *self.made.entry((from, to)).or_insert(self.now + making);
            self.at(made.max(self.now) + self.delay, Event::ToWorker { from, to, say, body });
        }
    }

    /// Lets the next thing happen; whether there was one.
    fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.events.pop_first() else { return false };
        self.now = time;
        match event {
            Event::Tick => self.input(Input::Tick),
            Event::ToRequester { from, say, body } => {
                // What the wire would refuse is never sent.
                let line = wire::lane::Line::from(say.clone());
                assert_eq!(wire::decode(&wire::encode(&line)), Ok(line));
                let leg = self.workers[&from].stage;
                self.input(Input::Said { leg, node: from, say, body });
            }
            Event::ToWorker { from, to, say, body } => self.worker(from, to, say, body),
            Event::Computed { at, rows, body } => {
                self.seat(at, seat::Input::Computed { rows, body });
            }
        }
        true
    }

    fn worker(&mut self, from: NodeId, to: NodeId, say: Say, body: Bytes) {
        let Some(worker) = self.workers.get_mut(&to).filter(|w| w.alive) else { return };
        let input = match say {
            Say::Open(open) => {
                let plan = SeatPlan {
                    requester: from,
                    from: open.from.iter().map(|n| NodeId::from_slice(n).unwrap()).collect(),
                    next: open.next,
                    positions: open.positions,
                    begun: self.begun.get(&to).copied().unwrap_or(0),
                    row_bytes: ROW,
                    kept_bytes: 1 << 20,
                };
                let opened = Say::Opened(Opened { rows_max: 64, begun: plan.begun });
                worker.seat = Some(Seat::new(plan));
                return self.reply(to, opened, Bytes::new());
            }
            Say::Rows(rows) => seat::Input::Rows { from, rows, body },
            Say::Attach(attach) => seat::Input::Attach(attach),
            Say::Where(question) => seat::Input::Where { nonce: question.nonce, queued: 0 },
            _ => return,
        };
        self.seat(to, input);
    }

    fn reply(&mut self, from: NodeId, say: Say, body: Bytes) {
        if !self.cut.contains(&(from, node(REQUESTER))) {
            self.at(self.now + self.delay, Event::ToRequester { from, say, body });
        }
    }

    fn seat(&mut self, at: NodeId, input: seat::Input) {
        let worker = self.workers.get_mut(&at).unwrap();
        let Some(seat) = worker.seat.as_mut().filter(|_| worker.alive) else { return };
        for effect in seat.handle(input) {
            match effect {
                seat::Effect::Compute { rows, body } => self.compute(at, rows, &body),
                seat::Effect::Send { to, rows, body } => {
                    self.post(at, to.node(), Say::Rows(rows), body);
                }
                seat::Effect::Tell { say, body } => self.reply(at, say, body),
                seat::Effect::Hang(_) => {}
                seat::Effect::End => self.workers.get_mut(&at).unwrap().seat = None,
            }
        }
    }

    fn compute(&mut self, at: NodeId, rows: Rows, body: &[u8]) {
        let worker = self.workers.get_mut(&at).unwrap();
        worker.held.truncate(rows.first as usize);
        assert_eq!(worker.held.len(), rows.first as usize, "rows come without gaps");
        for row in body.chunks(ROW) {
            let before = worker.held.last().copied().unwrap_or_default();
            worker.held.push(compute(worker.stage, before, row));
        }
        let out: Vec<u8> = worker.held[rows.first as usize..].as_flattened().to_vec();
        self.computed += u64::from(rows.count);
        let done = worker.busy_until.max(self.now) + 1 + worker.slow;
        worker.busy_until = done;
        self.at(done, Event::Computed { at, rows, body: out.into() });
    }

    fn send(&mut self, first: u32, rows: &[u8], wanted: Wanted) {
        self.input(Input::Send { first, rows: Bytes::copy_from_slice(rows), wanted });
    }

    /// Lets things happen until `done`, or nothing is left to happen.
    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) && self.failed.is_none() {
            if !self.step() {
                return;
            }
        }
    }

    fn kill(&mut self, n: u8) {
        self.workers.get_mut(&node(n)).unwrap().alive = false;
    }

    /// Sends a prompt in pieces, then one row at a time; `trouble` comes before each. What came back.
    fn run(
        &mut self,
        prompt: u32,
        answer: u32,
        mut trouble: impl FnMut(&mut Self, u32),
    ) -> Vec<u8> {
        self.until(|world| world.ready.is_some());
        for first in (0..prompt).step_by(16) {
            let count = 16.min(prompt - first);
            let rows: Vec<u8> = (first..first + count).flat_map(|p| row(p, 0)).collect();
            self.send(first, &rows, Wanted::Each);
        }
        let pieces = prompt.div_ceil(16) as usize;
        self.until(|world| world.delivered.len() == pieces);
        for n in 0..answer {
            trouble(self, n);
            self.send(prompt + n, &row(prompt + n, 0), Wanted::Each);
            let due = pieces + n as usize + 1;
            self.until(|world| world.delivered.len() == due);
        }
        self.delivered.iter().flat_map(|(_, _, rows)| rows.to_vec()).collect()
    }
}

fn expected(stages: u32, count: u32) -> Vec<u8> {
    let rows: Vec<u8> = (0..count).flat_map(|p| row(p, 0)).collect();
    truth(stages, &rows)
}

#[test]
fn rows_pass_through_all_stages_in_order() {
    let mut world = World::new(&[&[0], &[1], &[2]], Replication::Spare);
    assert!(world.run(40, 20, |_, _| {}) == expected(3, 60));
    assert_eq!(world.computed, 3 * 60);
}

#[test]
fn a_killed_stage_is_replaced_by_its_spare_and_nothing_changes() {
    for victim in 0..3 {
        let mut world = World::new(&[&[0, 10], &[1, 11], &[2, 12]], Replication::Spare);
        let kill = |world: &mut World, n| {
            if n == 20 {
                world.kill(victim);
            }
        };
        assert!(world.run(40, 60, kill) == expected(3, 100), "victim {victim}: {:?}", world.failed);
        assert_eq!(world.dropped, [node(victim)]);
    }
}

#[test]
fn recovery_takes_a_moment_and_few_rows() {
    let mut world = World::new(&[&[0], &[1, 11], &[2]], Replication::Spare);
    let mut before = (0, 0);
    world.run(200, 56, |world, n| {
        if n == 20 {
            world.kill(1);
            before = (world.now, world.computed);
        }
        if n == 21 {
            let took = world.now - before.0;
            assert!(took < 1_000, "{took} ms");
            // The spare was at most a batch behind; the others computed the step once more.
            assert!(world.computed - before.1 <= 32 + 4, "{}", world.computed - before.1);
        }
    });
    assert_eq!(world.dropped, [node(1)]);
}

#[test]
fn a_link_that_swallows_rows_is_found_and_went_around() {
    let mut world = World::new(&[&[0], &[1, 11], &[2]], Replication::Spare);
    let cut = |world: &mut World, n| {
        if n == 20 {
            world.cut.push((node(0), node(1)));
        }
    };
    assert!(world.run(10, 60, cut) == expected(3, 70), "{:?}", world.failed);
    assert_eq!(world.dropped, [node(1)]);
}

#[test]
fn nobody_is_blamed_while_pipes_are_made() {
    for making in [100, 300, 700, 1_200, 1_800] {
        for victim in 0..3 {
            let legs: [&[u8]; 3] = [&[0, 10], &[1, 11], &[2, 12]];
            let mut world = World::new(&legs, Replication::Spare);
            world.making = making;
            let kill = |world: &mut World, n| {
                if n == 20 {
                    world.kill(victim);
                }
            };
            let found = world.run(10, 60, kill);
            assert!(found == expected(3, 70), "{making} ms, {victim} killed: {:?}", world.failed);
            assert_eq!(world.dropped, [node(victim)], "{making} ms");
        }
    }
}

#[test]
fn nobody_is_blamed_for_a_way_that_was_slow_once() {
    let mut world = World::new(&[&[0], &[1, 11], &[2]], Replication::Spare);
    let jam = |world: &mut World, n| {
        // Several times what is late, for several steps one after the other.
        if (20..30).contains(&n) {
            world.made.insert((node(0), node(1)), world.now + 900);
        }
    };
    assert!(world.run(10, 60, jam) == expected(3, 70), "{:?}", world.failed);
    assert_eq!(world.dropped, []);
}

#[test]
fn who_is_silent_at_one_place_takes_over_at_no_other() {
    let leg = |start: usize, nodes: &[u8]| Leg {
        halves: Halves::new(start, start + 2),
        nodes: nodes.iter().map(|n| hop(*n)).collect(),
    };
    let plan = Plan {
        session: vec![1; 16],
        manifest: vec![2; 32],
        legs: vec![leg(2, &[0, 10]), leg(4, &[1, 0, 11])],
        positions: 64,
        row_bytes: ROW,
        kept_bytes: 1 << 20,
        beginning: vec![],
        replication: Replication::Spare,
    };
    let mut passage = Passage::new(plan);
    passage.handle(Millis(0), Input::Begin);
    let said = |leg, n, say| Input::Said { leg, node: node(n), say, body: Bytes::new() };
    for (leg, n) in [(0, 0), (0, 10), (1, 1), (1, 0), (1, 11)] {
        let opened = Say::Opened(Opened { rows_max: 64, begun: 0 });
        passage.handle(Millis(1), said(leg, n, opened));
    }
    let rows = Bytes::copy_from_slice(&row(0, 0));
    passage.handle(Millis(2), Input::Send { first: 0, rows, wanted: Wanted::Each });
    passage.handle(Millis(5_000), Input::Tick);
    for (leg, n) in [(0, 10), (1, 1), (1, 11)] {
        let at = At { nonce: passage.last_nonce, received: 0, done: 0, positions: 0, queued: 0 };
        passage.handle(Millis(5_001), said(leg, n, Say::At(at)));
    }
    let mut effects = passage.handle(Millis(5_600), Input::Tick);
    let why = "its pipe broke".to_owned();
    effects.extend(passage.handle(Millis(5_700), Input::Broken { leg: 1, node: node(1), why }));
    let dropped: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Dropped { leg, node, .. } => Some((*leg, *node)),
            _ => None,
        })
        .collect();
    assert_eq!(dropped, [(1, node(0)), (0, node(0)), (1, node(1))]);
    assert_eq!(passage.active(), [node(10), node(11)]);
}

#[test]
fn two_neighbours_that_die_together_are_both_replaced() {
    let mut world = World::new(&[&[0, 10], &[1, 11], &[2, 12]], Replication::Spare);
    let kill = |world: &mut World, n| {
        if n == 20 {
            world.kill(1);
            world.kill(2);
        }
    };
    assert!(world.run(10, 60, kill) == expected(3, 70), "{:?}", world.failed);
    assert_eq!(world.dropped, [node(1), node(2)]);
}

#[test]
fn without_a_spare_the_stage_is_named() {
    let mut world = World::new(&[&[0], &[1], &[2]], Replication::Spare);
    world.run(10, 60, |world, n| {
        if n == 20 {
            world.kill(1);
        }
    });
    let Some(PassageError::Lost { node: lost, why, .. }) = &world.failed else {
        panic!("{:?}", world.failed)
    };
    assert_eq!((*lost, why.as_str()), (node(1), "is silent: no answer within 500 ms"));
}

#[test]
fn what_stages_kept_is_not_sent_and_spares_that_lack_it_do_without() {
    for (kept, spare, victim) in [(32, 0, 1), (32, 32, 1), (32, 64, 1), (64, 32, 0)] {
        let mut world = World::new(&[&[0, 10], &[1, 11]], Replication::Spare);
        for (n, count) in [(0, kept), (1, 32), (10, spare), (11, spare)] {
            world.keeps(n, count);
        }
        world.until(|world| world.ready.is_some());
        assert_eq!(world.ready, Some(32));
        let mut rows: Vec<u8> = Vec::new();
        for n in 0..80u32 {
            if n == 50 {
                world.kill(victim);
            }
            world.send(32 + n, &row(32 + n, 0), Wanted::Each);
            world.until(|world| world.delivered.len() == n as usize + 1);
            rows.extend(world.delivered.get(n as usize).map_or(&[][..], |(_, _, row)| row));
        }
        let whole = expected(2, 32 + 80);
        assert!(whole[32 * ROW..].starts_with(&rows), "{kept} {spare}");
        assert_eq!(world.failed.is_some(), spare < 32, "{kept} {spare}: {:?}", world.failed);
    }
}

#[test]
fn who_is_cut_off_blames_nobody() {
    let mut world = World::new(&[&[0, 10], &[1], &[2]], Replication::Spare);
    world.run(10, 60, |world, n| {
        if n == 20 {
            (0..3).for_each(|worker| world.cut.push((node(REQUESTER), node(worker))));
        }
    });
    assert_eq!(world.failed, Some(PassageError::CutOff { stages: 3 }));
}

#[test]
fn a_slow_stage_is_overtaken_by_its_spare_and_kept() {
    let mut world = World::new(&[&[0], &[1, 11], &[2]], Replication::Spare);
    let slow = |world: &mut World, n| {
        world.workers.get_mut(&node(1)).unwrap().slow = if n == 40 { 100_000 } else { 0 };
    };
    assert!(world.run(10, 60, slow) == expected(3, 70), "{:?}", world.failed);
    assert_eq!(world.passage.hedges(), 20, "every step after it, too, for it is still busy");
    assert!(world.now < 20_000, "nobody waited for it: {}", world.now);
}

#[test]
fn with_all_replicas_the_fastest_counts_and_any_may_die() {
    let mut world = World::new(&[&[0, 10], &[1, 11], &[2, 12]], Replication::All);
    let kill = |world: &mut World, n| match n {
        20 => world.kill(0),
        30 => world.kill(11),
        40 => world.kill(2),
        _ => {}
    };
    assert!(world.run(40, 60, kill) == expected(3, 100), "{:?}", world.failed);
}

#[test]
fn what_was_guessed_wrongly_is_forgotten_everywhere() {
    let mut world = World::new(&[&[0, 10], &[1, 11]], Replication::Spare);
    world.until(|world| world.ready.is_some());
    let mut rows: Vec<u8> = Vec::new();
    for n in 0..80u32 {
        if n == 50 {
            world.kill(1);
        }
        // Four rows, of which only the first turns out to be right.
        let guess: Vec<u8> = (n + 1..n + 4).flat_map(|p| row(p, 7)).collect();
        world.send(n, &[&row(n, 0)[..], &guess].concat(), Wanted::Each);
        world.until(|world| world.delivered.len() == n as usize + 1);
        let (_, _, out) = &world.delivered[n as usize];
        rows.extend(&out[..ROW]);
    }
    assert!(rows == expected(2, 80));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever dies, is cut off or dawdles, and whenever: an answer is the true one, or there is a
    /// named refusal, and either comes in time.
    #[test]
    fn whatever_happens_the_answer_is_true_or_refused(
        troubles in prop::collection::vec((0u32..60, 0u8..8, 0usize..3, 0u8..6), 0..6),
        delay in 0u64..60,
        all in any::<bool>(),
    ) {
        let legs: [&[u8]; 3] = [&[0, 1, 2], &[3, 4], &[5, 6]];
        let replication = if all { Replication::All } else { Replication::Spare };
        let mut world = World::new(&legs, replication);
        world.delay = delay;
        let got = world.run(30, 60, |world, n| {
            for (when, who, kind, other) in &troubles {
                if *when != n {
                    continue;
                }
                let (who, other) = (who % 7, other % 7);
                match kind {
                    0 => world.kill(who),
                    1 => world.cut.push((node(who), node(other))),
                    _ => world.workers.get_mut(&node(who)).unwrap().slow = 700,
                }
            }
        });
        let truth = expected(3, 90);
        prop_assert!(truth.starts_with(&got), "a wrong row");
        prop_assert!(got.len() == truth.len() || world.failed.is_some(), "neither answer nor error");
        prop_assert!(world.now < 400_000, "{} ms", world.now);
        let _ = world.workers.values().map(|worker| worker.number).max();
    }
}
