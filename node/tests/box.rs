//! A hive in a box: the house and the lanes of one requester among nodes that come and go, from one
//! seed, without a clock, a socket or a thread.
//!
//! What nodes compute is a chain of digests through every half-block and all rows before, so that a row
//! too few, too many or through the wrong half-blocks changes everything after it.

use std::collections::BTreeMap;

use bytes::Bytes;
use cadencia::house::fitness::Rates;
use cadencia::house::hive::{Effect, Hive, Input, Want};
use cadencia::house::lane::{
    Leg, Passage, PassageEffect, PassageInput, PassagePlan, Replication, Seat, SeatEffect,
    SeatInput, SeatPlan,
};
use cadencia::house::place::{Me, Wish};
use wire::lane::{Opened, Rows, Say, Wanted};
use wire::{
    Halves, Health, Key, Manifest, ManifestId, Millis, NodeId, Offer, Part, Verified, Work,
};

const ROW: usize = 8;
const HALVES: usize = 16;
const MB: u64 = 1_000_000;
/// Rows of a prompt and of its answer.
const PROMPT: u32 = 12;
const ANSWER: u32 = 24;
/// When a prompt must have ended, milliseconds after it began.
const DEADLINE: u64 = 60_000;
/// When whoever asks for a lost prompt gives up, as an engine does.
const PATIENCE: u64 = 30_000;

type State = [u8; ROW];

/// A row through half-block `half`, given what the row before became there.
fn compute(half: usize, before: State, row: State) -> State {
    let all = [&[half as u8], &before[..], &row].concat();
    wire::digest(0, &all)[..ROW].try_into().unwrap()
}

/// What a sequence has become in a range of half-blocks: for each row, the state of each.
#[derive(Default)]
struct Range {
    rows: Vec<Vec<State>>,
}

impl Range {
    fn feed(&mut self, halves: Halves, first: usize, row: State) -> State {
        self.rows.truncate(first);
        let zero = vec![State::default(); halves.count()];
        let before = self.rows.last().unwrap_or(&zero).clone();
        let mut now = Vec::with_capacity(halves.count());
        let out = halves.range().enumerate().fold(row, |row, (i, half)| {
            let out = compute(half, before[i], row);
            now.push(out);
            out
        });
        self.rows.push(now);
        out
    }
}

fn row(prompt: u64, position: u32) -> State {
    let mut row = [0; ROW];
    row[..4].copy_from_slice(&(prompt as u32).to_le_bytes());
    row[4..].copy_from_slice(&position.to_le_bytes());
    row
}

fn truth(prompt: u64) -> Vec<State> {
    let mut all = Range::default();
    let halves = Halves::new(0, HALVES);
    (0..PROMPT + ANSWER).map(|p| all.feed(halves, p as usize, row(prompt, p))).collect()
}

fn manifest() -> Manifest {
    let part = |mb: u64| Part {
        root: vec![1; 32],
        chunks: mb as u32,
        bytes: mb * MB,
        work: Some(Work { memory: mb * MB, macs: mb * MB }),
    };
    Manifest {
        name: "boxed".into(),
        class: "int8x-v1".into(),
        width: 32,
        context: 4096,
        header: Some(part(1)),
        ends: Some(part(50)),
        halves: (0..HALVES).map(|half| part(if half % 2 == 0 { 40 } else { 60 })).collect(),
        kv_bytes: 100,
        ..Manifest::default()
    }
}

/// What a requester with so much memory wants.
fn want(memory_mb: u64) -> Want {
    let rates = Rates { int8_gops: 400, read_mb_s: 10_000 };
    let (node, memory_bytes) = (requester(), memory_mb * MB);
    let me = Me { node, memory_bytes, rates, whole: true, front: None };
    let wish = Wish { positions: 1000, ..Wish::default() };
    Want { manifest: manifest(), wish, me }
}

fn requester() -> NodeId {
    Key::new([0xee; 32]).id()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

enum Event {
    Look,
    Offer(usize),
    Prepared {
        node: NodeId,
        manifest: ManifestId,
        halves: Halves,
        life: u64,
    },
    Unprepared {
        node: NodeId,
        manifest: ManifestId,
        halves: Halves,
    },
    Answered(NodeId),
    Comes(usize),
    Goes(usize),
    Asks,
    Retry(u64),
    Tick(u64, u64),
    ToNode {
        from: Option<NodeId>,
        to: usize,
        life: u64,
        session: (u64, u32),
        say: Say,
        body: Bytes,
    },
    ToRequester {
        from: usize,
        number: u64,
        leg: u32,
        say: Say,
        body: Bytes,
    },
    Computed {
        at: usize,
        life: u64,
        session: (u64, u32),
        rows: Rows,
        body: Bytes,
    },
}

struct Node {
    key: Key,
    /// Which of its lives this is; odd while it lives.
    life: u64,
    seats: BTreeMap<(u64, u32), (Seat, Halves, Range)>,
}

impl Node {
    fn lives(&self) -> bool {
        self.life % 2 == 1
    }
}

/// A prompt under way.
struct Prompt {
    id: u64,
    began: u64,
    stuck: Option<u64>,
    /// The number of its present passage; it has a new one after each setback.
    number: u64,
    passage: Option<Passage>,
    front: Range,
    got: Vec<State>,
    sent: u32,
}

struct World {
    now: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    dice: Dice,
    nodes: Vec<Node>,
    by_id: BTreeMap<NodeId, usize>,
    hive: Hive,
    front: Halves,
    route: Result<Vec<Leg>, String>,
    prompts: BTreeMap<u64, Prompt>,
    next: u64,
    answered: u64,
    refused: Vec<String>,
    setbacks: u64,
    gossip_bytes: u64,
}

impl World {
    fn new(seed: u64, count: usize, memory_mb: u64) -> Self {
        let node = |n: usize| {
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
            Node { key: Key::new(secret), life: 0, seats: BTreeMap::new() }
        };
        let nodes: Vec<Node> = (0..count).map(node).collect();
        let by_id = nodes.iter().enumerate().map(|(n, node)| (node.key.id(), n)).collect();
        let mut world = Self {
            now: 1_000_000,
            order: 0,
            events: BTreeMap::new(),
            dice: Dice(seed),
            nodes,
            by_id,
            hive: Hive::new(requester()),
            front: Halves::new(0, 2),
            route: Err("nothing was planned yet".into()),
            prompts: BTreeMap::new(),
            next: 0,
            answered: 0,
            refused: Vec::new(),
            setbacks: 0,
            gossip_bytes: 0,
        };
        world.plan(Input::Want(Box::new(want(memory_mb))));
        world.at(0, Event::Look);
        world
    }

    fn at(&mut self, later: u64, event: Event) {
        self.order += 1;
        self.events.insert((self.now + later, self.order), event);
    }

    fn plan(&mut self, input: Input) {
        for effect in self.hive.handle(Millis(self.now), input) {
            match effect {
                Effect::Prepare { node, manifest, halves, .. } => {
                    let node = node.node();
                    let n = self.by_id[&node];
                    let life = self.nodes[n].life;
                    let event = match self.nodes[n].lives() {
                        true => Event::Prepared { node, manifest, halves, life },
                        false => Event::Unprepared { node, manifest, halves },
                    };
                    let later = if self.nodes[n].lives() { 300 } else { 4_000 };
                    self.at(later, event);
                }
                Effect::Route { front, legs, .. } => (self.front, self.route) = (front, Ok(legs)),
                Effect::NoRoute { why, .. } => self.route = Err(why),
                Effect::Ask(node) => {
                    if self.nodes[self.by_id[&node]].lives() {
                        self.at(20, Event::Answered(node));
                    }
                }
                Effect::Say(_) | Effect::Wake(_) => {}
            }
        }
    }

    fn step(&mut self) {
        let ((time, _), event) = self.events.pop_first().expect("there is always a next look");
        self.now = time;
        match event {
            Event::Look => {
                self.plan(Input::Tick);
                self.give_up();
                self.at(500, Event::Look);
            }
            Event::Offer(n) => self.offer(n),
            Event::Answered(node) => self.plan(Input::Answered(node)),
            Event::Prepared { node, manifest, halves, life } => {
                if self.nodes[self.by_id[&node]].life == life {
                    let (done, whole, ready) = (1, 1, true);
                    self.plan(Input::Prepared { node, manifest, halves, done, whole, ready });
                }
            }
            Event::Unprepared { node, manifest, halves } => {
                let why = "cannot be reached".into();
                self.plan(Input::Unprepared { node, manifest, halves, why, refused: false });
            }
            Event::Comes(n) => {
                if !self.nodes[n].lives() {
                    self.nodes[n].life += 1;
                    self.offer(n);
                }
            }
            Event::Goes(n) => {
                if self.nodes[n].lives() {
                    self.nodes[n].life += 1;
                    self.nodes[n].seats.clear();
                }
            }
            Event::Asks => self.asks(),
            Event::Retry(id) => self.open(id),
            Event::Tick(id, number) => self.input(id, number, PassageInput::Tick),
            Event::ToNode { from, to, life, session, say, body } => {
                self.arrives(from, to, life, session, say, body);
            }
            Event::ToRequester { from, number, leg, say, body } => {
                let node = self.nodes[from].key.id();
                let id = self.prompts.values().find(|prompt| prompt.number == number);
                if let Some(id) = id.map(|prompt| prompt.id) {
                    self.input(id, number, PassageInput::Said { leg, node, say, body });
                }
            }
            Event::Computed { at, life, session, rows, body } => {
                if self.nodes[at].life == life {
                    self.seat(at, session, SeatInput::Computed { rows, body });
                }
            }
        }
    }

    fn offer(&mut self, n: usize) {
        if !self.nodes[n].lives() {
            return;
        }
        let health = Health {
            int8_gops: 400,
            read_mb_s: 10_000,
            mains: true,
            stability_permille: 900,
            ..Health::default()
        };
        let offer = Offer {
            sequence: self.now,
            life_ms: 60_000,
            protocol: wire::PROTOCOL,
            class: "int8x-v1".into(),
            health: Some(health),
            memory_free_mb: 700,
            seats_free: 8,
            ..Offer::default()
        };
        let offer = Verified::sign(offer, &self.nodes[n].key).unwrap();
        self.gossip_bytes += offer.signed().encode().len() as u64;
        let node = self.nodes[n].key.id();
        self.plan(Input::Offer(Box::new(offer)));
        self.plan(Input::Reached(node, 20_000));
        self.at(10_000, Event::Offer(n));
    }

    fn asks(&mut self) {
        self.next += 1;
        let id = self.next;
        let (began, number, front) = (self.now, 0, Range::default());
        let prompt = Prompt {
            id,
            began,
            stuck: None,
            number,
            passage: None,
            front,
            got: Vec::new(),
            sent: 0,
        };
        self.prompts.insert(id, prompt);
        self.open(id);
    }

    /// Opens a passage for a prompt over the route of the moment.
    fn open(&mut self, id: u64) {
        let Some(prompt) = self.prompts.get_mut(&id) else { return };
        let legs = match &self.route {
            Ok(legs) => legs.clone(),
            Err(why) => {
                let why = why.clone();
                return self.set_back(id, why, 300);
            }
        };
        self.order += 1;
        prompt.number = self.order;
        let mut session = prompt.number.to_le_bytes().to_vec();
        session.resize(16, 0);
        let plan = PassagePlan {
            session,
            manifest: manifest().id().0.to_vec(),
            legs,
            positions: 100,
            row_bytes: ROW,
            kept_bytes: 1 << 20,
            beginning: Vec::new(),
            replication: Replication::Spare,
        };
        (prompt.front, prompt.got, prompt.sent) = (Range::default(), Vec::new(), 0);
        prompt.passage = Some(Passage::new(plan));
        let number = prompt.number;
        self.input(id, number, PassageInput::Begin);
    }

    fn set_back(&mut self, id: u64, why: String, retry: u64) {
        self.setbacks += 1;
        let now = self.now;
        let Some(prompt) = self.prompts.get_mut(&id) else { return };
        prompt.passage = None;
        let stuck = *prompt.stuck.get_or_insert(now);
        if now - stuck > PATIENCE {
            assert!(!why.is_empty(), "a refusal says why");
            self.refused.push(why);
            self.prompts.remove(&id);
            return;
        }
        self.at(retry, Event::Retry(id));
    }

    /// No prompt is forgotten.
    fn give_up(&mut self) {
        let late = self.prompts.values().find(|prompt| self.now - prompt.began > DEADLINE);
        if let Some(prompt) = late {
            panic!("prompt {} neither answered nor refused: {:?}", prompt.id, prompt.passage);
        }
    }

    fn input(&mut self, id: u64, number: u64, input: PassageInput) {
        let Some(prompt) = self.prompts.get_mut(&id).filter(|p| p.number == number) else { return };
        let Some(passage) = &mut prompt.passage else { return };
        for effect in passage.handle(Millis(self.now), input) {
            match effect {
                PassageEffect::Tell { to, say, body } => {
                    let session = (number, to.leg);
                    self.post(None, self.by_id[&to.node()], session, say, body);
                }
                PassageEffect::Ready { .. } => self.send(id, PROMPT),
                PassageEffect::Deliver { rows, .. } => self.deliver(id, &rows),
                PassageEffect::Dropped { node, why, .. } => self.plan(Input::Dropped { node, why }),
                PassageEffect::Wake(at) => {
                    self.at(at.0.saturating_sub(self.now), Event::Tick(id, number));
                }
                PassageEffect::Failed(error) => self.set_back(id, error.to_string(), 50),
            }
        }
    }

    /// Sends the next `count` rows of a prompt.
    fn send(&mut self, id: u64, count: u32) {
        let Some(prompt) = self.prompts.get_mut(&id) else { return };
        let (first, front, number) = (prompt.sent, self.front, prompt.number);
        let rows: Vec<u8> = (first..first + count)
            .flat_map(|p| prompt.front.feed(front, p as usize, row(id, p)))
            .collect();
        prompt.sent += count;
        let wanted = Wanted::Each;
        self.input(id, number, PassageInput::Send { first, rows: rows.into(), wanted });
    }

    fn deliver(&mut self, id: u64, rows: &[u8]) {
        let Some(prompt) = self.prompts.get_mut(&id) else { return };
        prompt.stuck = None;
        prompt.got.extend(rows.chunks(ROW).map(|row| State::try_from(row).unwrap()));
        if prompt.sent < PROMPT + ANSWER {
            return self.send(id, 1);
        }
        assert!(prompt.got == truth(id), "a wrong answer");
        self.prompts.remove(&id);
        self.answered += 1;
    }

    fn post(
        &mut self,
        from: Option<NodeId>,
        to: usize,
        session: (u64, u32),
        say: Say,
        body: Bytes,
    ) {
        let life = self.nodes[to].life;
        let later = self.way_in_order(to);
        self.at(later, Event::ToNode { from, to, life, session, say, body });
    }

    /// Packets to one node keep their order, as those of a pipe do.
    fn way_in_order(&mut self, to: usize) -> u64 {
        // The distance of a node does not change.
        5 + (to as u64 * 7) % 25
    }

    fn arrives(
        &mut self,
        from: Option<NodeId>,
        to: usize,
        life: u64,
        session: (u64, u32),
        say: Say,
        body: Bytes,
    ) {
        // Who died meanwhile, or was born again, knows nothing of it.
        if self.nodes[to].life != life || !self.nodes[to].lives() {
            return;
        }
        let requester = requester();
        let from = from.unwrap_or(requester);
        let input = match say {
            Say::Open(open) => {
                let halves = open.halves();
                let plan = SeatPlan {
                    requester,
                    from: open.from.iter().filter_map(|n| NodeId::from_slice(n)).collect(),
                    next: open.next,
                    positions: open.positions,
                    begun: 0,
                    row_bytes: ROW,
                    kept_bytes: 1 << 20,
                };
                let seat = (Seat::new(plan), halves, Range::default());
                self.nodes[to].seats.insert(session, seat);
                let opened = Say::Opened(Opened { rows_max: 64, begun: 0 });
                return self.reply(to, session, opened, Bytes::new());
            }
            Say::Rows(rows) => SeatInput::Rows { from, rows, body },
            Say::Attach(attach) => SeatInput::Attach(attach),
            Say::Where(question) => SeatInput::Where { nonce: question.nonce, queued: 0 },
            _ => return,
        };
        self.seat(to, session, input);
    }

    fn reply(&mut self, from: usize, (number, leg): (u64, u32), say: Say, body: Bytes) {
        let later = self.way_in_order(from);
        self.at(later, Event::ToRequester { from, number, leg, say, body });
    }

    fn seat(&mut self, at: usize, session: (u64, u32), input: SeatInput) {
        let life = self.nodes[at].life;
        let me = self.nodes[at].key.id();
        let Some((seat, ..)) = self.nodes[at].seats.get_mut(&session) else { return };
        for effect in seat.handle(input) {
            match effect {
                SeatEffect::Compute { rows, body } => {
                    let (_, halves, range) = self.nodes[at].seats.get_mut(&session).unwrap();
                    let out: Vec<u8> = body
                        .chunks(ROW)
                        .enumerate()
                        .flat_map(|(i, row)| {
                            let row = row.try_into().unwrap();
                            range.feed(*halves, rows.first as usize + i, row)
                        })
                        .collect();
                    let body = out.into();
                    let later = 3 + self.dice.below(5);
                    self.at(later, Event::Computed { at, life, session, rows, body });
                }
                SeatEffect::Send { to, rows, body } => {
                    let next = (session.0, to.leg);
                    self.post(Some(me), self.by_id[&to.node()], next, Say::Rows(rows), body);
                }
                SeatEffect::Tell { say, body } => self.reply(at, session, say, body),
                SeatEffect::Hang(_) => {}
                SeatEffect::End => {
                    self.nodes[at].seats.remove(&session);
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.events.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            self.step();
        }
        self.now = end;
    }
}

/// Twenty nodes come and go for 200 minutes: whoever asks gets the true answer, or a refusal that says
/// why, in time.
#[test]
fn while_twenty_nodes_come_and_go_every_prompt_ends_in_an_answer_or_a_named_refusal() {
    let seed = 7;
    let minutes = if std::env::var_os("CADENCIA_SOAK").is_some() { 2_000 } else { 200 };
    let mut world = World::new(seed, 20, 300);
    (0..20).for_each(|n| world.at(n as u64 * 50, Event::Comes(n)));
    for second in 0..minutes * 60 {
        if second % 20 == 0 {
            world.at(0, Event::Asks);
        }
        // Each node changes its mind every few minutes, and now and then nearly all are gone.
        let n = world.dice.below(20) as usize;
        match world.dice.below(100) {
            0..4 => world.at(0, Event::Goes(n)),
            4..8 => world.at(0, Event::Comes(n)),
            _ => {}
        }
        if second % 3_000 == 1_500 {
            (0..20).for_each(|n| world.at(0, Event::Goes(n)));
            (0..20).for_each(|n| world.at(70_000 + 500 * n as u64, Event::Comes(n)));
        }
        world.run(1_000);
    }
    world.run(DEADLINE + 1_000);
    let (answered, refused) = (world.answered, world.refused.len() as u64);
    println!(
        "seed {seed}, {minutes} minutes: {answered} answered, {refused} refused, {} setbacks",
        world.setbacks
    );
    assert!(world.prompts.is_empty() && answered + refused == minutes * 3);
    assert!(answered > 20 * refused, "nodes were there most of the time");
    assert!(refused > 0, "at times nobody was: {:?}", world.refused.last());
}

/// How long planning takes and how much is said among a thousand nodes; reported, not judged.
#[test]
fn a_thousand_nodes_are_planned_over_in_a_moment() {
    let mut world = World::new(1, 1_000, 300);
    (0..1_000).for_each(|n| world.at(n as u64 * 2, Event::Comes(n)));
    world.run(30_000);
    assert_eq!(world.hive.offers().count(), 1_000);
    let want = want(300);
    let start = std::time::Instant::now();
    let looks = 10;
    for _ in 0..looks {
        assert!(world.hive.plan(Millis(world.now), &want).is_ok());
    }
    let each = start.elapsed() / looks;
    let bytes = world.gossip_bytes / 1_000 / 30;
    println!("1,000 nodes: a plan takes {each:?}; {bytes} bytes of offers a node and second");
    assert!(each.as_secs() < 5, "{each:?}");
}
