//! The requester's end of a route: sends steps, takes results, and mends the route.
//!
//! It asks each stage for a seat, numbers the steps it sends and keeps what it sent. When a result is
//! late it asks all stages how far they are; who does not answer is silent. The place of a silent or
//! lost stage is taken by a spare that was fed along, if there is one; otherwise the passage fails,
//! naming the stage, and whoever holds the tokens begins anew on another route.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use thiserror::Error;
use wire::lane::{At, Attach, Hop, Onward, Open, Opened, Reason, Role, Rows, Say, Wanted, Where};
use wire::{Halves, Millis, NodeId};

use super::kept::Kept;
use super::pace::Pace;

/// How long a stage may take to give a seat, milliseconds. It only looks into its tables.
const OPEN_MAX: u64 = 5_000;
/// How long a stage may take to say how far it is, milliseconds: a packet each way, and a moment.
const ANSWER_MAX: u64 = 500;
/// How long rows may be on their way between two stages, milliseconds, where both say that they live.
const WAY_MAX: u64 = 1_000;
/// How long mending may take, milliseconds, and making the pipes of a way that is new.
const MEND_MAX: u64 = 2_000;
/// How long a step may take while the stage that has it says that it is at work, milliseconds.
const STEP_MAX: u64 = 120_000;
/// Rows that a spare of the first stage is behind before it is fed again.
const SPARE_BEHIND: u32 = 32;

/// What is to be passed, and through whom.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sequence's name at the stages, 16 random bytes.
    pub session: Vec<u8>,
    /// The model's id.
    pub manifest: Vec<u8>,
    /// The stages, in order; one or more.
    pub legs: Vec<Leg>,
    /// Positions that it may grow to.
    pub positions: u32,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes that are kept of what was sent.
    pub kept_bytes: usize,
    /// Keys of pages that stages may still hold.
    pub beginning: Vec<u8>,
    /// What those beside the first of each leg do.
    pub replication: Replication,
}

/// Who computes a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    /// The half-blocks.
    pub halves: Halves,
    /// Nodes that can: the first does, one or more.
    pub nodes: Vec<Hop>,
}

/// What the further nodes of a leg do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// They are fed along lazily, to take over.
    Spare,
    /// They compute everything, too, and the fastest result counts.
    All,
}

/// What happens to a passage.
#[derive(Debug)]
pub enum Input {
    /// It begins.
    Begin,
    /// Rows are to be passed, from position `first` on.
    Send {
        /// Position of the first.
        first: u32,
        /// They.
        rows: Bytes,
        /// Which results are wanted.
        wanted: Wanted,
    },
    /// Pages that hold nothing provisional, by their keys.
    Keep {
        /// Number of the first.
        first: u32,
        /// 16 bytes each.
        keys: Vec<u8>,
    },
    /// A stage has said something.
    Said {
        /// Its place in the route.
        leg: u32,
        /// Which node.
        node: NodeId,
        /// What.
        say: Say,
        /// With these rows.
        body: Bytes,
    },
    /// The pipe to a stage broke, or could not be made.
    Broken {
        /// Its place in the route.
        leg: u32,
        /// Which node.
        node: NodeId,
        /// How that was noticed.
        why: String,
    },
    /// Time has passed.
    Tick,
}

/// What a passage wants done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell a stage, over a pipe that is made at first for it and its place in the route.
    Tell {
        /// Whom.
        to: Hop,
        /// What.
        say: Say,
        /// With these rows.
        body: Bytes,
    },
    /// There are seats: rows may come, from this position on.
    Ready {
        /// Positions that need not be sent.
        begun: u32,
        /// Rows that a step should have at most.
        rows_max: u32,
    },
    /// Results.
    Deliver {
        /// Position of the first row that was sent.
        first: u32,
        /// How many were.
        count: u32,
        /// Those that were wanted.
        rows: Bytes,
    },
    /// A stage is not used any more; others should know.
    Dropped {
        /// Its place in the route.
        leg: u32,
        /// Which node.
        node: NodeId,
        /// Why.
        why: String,
    },
    /// Look again at this time.
    Wake(Millis),
    /// It is over.
    Failed(PassageError),
}

/// Why a passage is over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PassageError {
    /// A stage is gone and nobody can take its place.
    #[error("stage {node} ({halves}) {why}, and it has no spare")]
    Lost {
        /// Which.
        node: NodeId,
        /// Its layers.
        halves: Halves,
        /// What it did.
        why: String,
    },
    /// A stage will not do it.
    #[error("stage {node} refuses: {text}")]
    Refused {
        /// Which.
        node: NodeId,
        /// Why.
        reason: Reason,
        /// In its words.
        text: String,
        /// When to ask again, milliseconds.
        retry_ms: u32,
    },
    /// No stage answers.
    #[error("none of {stages} stages answers; this node seems to be cut off")]
    CutOff {
        /// How many there are.
        stages: usize,
    },
}

/// One node of a leg.
#[derive(Debug)]
struct Replica {
    hop: Hop,
    state: Standing,
    /// Positions that it is known to have.
    has: u32,
    /// Positions that this end has sent it; for nodes of the first leg.
    sent: u32,
    rows_max: u32,
}

impl Replica {
    fn who(&self) -> (u32, NodeId) {
        (self.hop.leg, self.hop.node())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Asked,
    Open,
    Gone,
}

#[derive(Debug)]
struct Stage {
    halves: Halves,
    /// Which of the replicas results come from.
    active: usize,
    nodes: Vec<Replica>,
}

/// A step on its way.
#[derive(Debug)]
struct Sent {
    step: u64,
    first: u32,
    wanted: Wanted,
    rows: Bytes,
    count: u32,
    since: Millis,
    /// The first time that it was sent: replaying it does not make it younger.
    born: Millis,
}

/// A step between two stages, as all of them said.
#[derive(Debug, Clone, Copy)]
struct Astray {
    step: u64,
    /// Whom it has not reached.
    before: (u32, NodeId),
    /// When that was first found.
    since: Millis,
}

#[derive(Debug)]
enum State {
    Opening {
        since: Millis,
    },
    Running,
    /// Something is late.
    Asking {
        nonce: u64,
        since: Millis,
        answers: BTreeMap<(u32, NodeId), At>,
    },
    /// A stage is being replaced; these have not said yet that they are ready for it.
    Mending {
        nonce: u64,
        since: Millis,
        waiting: BTreeSet<(u32, NodeId)>,
    },
    Over,
}

/// The requester's end of a route.
#[derive(Debug)]
pub struct Passage {
    plan: Plan,
    stages: Vec<Stage>,
    state: State,
    sent: VecDeque<Sent>,
    kept: Kept,
    pace: Pace,
    /// Where rows begin: what is before, the stages had.
    begun: u32,
    last_step: u64,
    last_nonce: u64,
    /// No question is asked before: after all answered, and somebody is at work.
    patience: Millis,
    /// The step that had not reached a stage though it had left the one before.
    astray: Option<Astray>,
    /// Steps up to this one go a way that is new: pipes between stages are made when it is first used.
    new_way: u64,
    /// The step for which a second way was tried.
    hedged: u64,
    hedges: u64,
}

impl Passage {
    /// A passage that has not begun.
    ///
    /// # Panics
    /// Where a leg has no node, or there is no leg.
    pub fn new(plan: Plan) -> Self {
        assert!(!plan.legs.is_empty() && plan.legs.iter().all(|leg| !leg.nodes.is_empty()));
        let replica = |leg: usize, hop: &Hop| Replica {
            hop: Hop { leg: leg as u32, ..hop.clone() },
            state: Standing::Asked,
            has: 0,
            sent: 0,
            rows_max: 0,
        };
        let stage = |(i, leg): (usize, &Leg)| Stage {
            halves: leg.halves,
            active: 0,
            nodes: leg.nodes.iter().map(|hop| replica(i, hop)).collect(),
        };
        Self {
            stages: plan.legs.iter().enumerate().map(stage).collect(),
            kept: Kept::new(plan.row_bytes, plan.kept_bytes, 0),
            plan,
            state: State::Opening { since: Millis(0) },
            sent: VecDeque::new(),
            pace: Pace::default(),
            begun: 0,
            last_step: 0,
            last_nonce: 0,
            patience: Millis(0),
            astray: None,
            new_way: 1,
            hedged: 0,
            hedges: 0,
        }
    }

    /// The nodes whose results count, in order.
    pub fn active(&self) -> Vec<NodeId> {
        self.active_ones().into_iter().map(|(_, node)| node).collect()
    }

    /// How often a second way was tried for a late step.
    pub fn hedges(&self) -> u64 {
        self.hedges
    }

    /// Takes what happens; says what to do.
    pub fn handle(&mut self, now: Millis, input: Input) -> Vec<Effect> {
        if matches!(self.state, State::Over) {
            return Vec::new();
        }
        match input {
            Input::Begin => self.begin(now),
            Input::Send { first, rows, wanted } => self.send(now, first, rows, wanted),
            Input::Keep { first, keys } => self.keep(first, &keys),
            Input::Said { leg, node, say, body } => self.said(now, (leg, node), say, body),
            Input::Broken { leg, node, why } => self.broken(now, (leg, node), &why),
            Input::Tick => self.tick(now),
        }
    }

    fn begin(&mut self, now: Millis) -> Vec<Effect> {
        self.state = State::Opening { since: now };
        let mut effects = Vec::new();
        for (i, stage) in self.stages.iter().enumerate() {
            for replica in &stage.nodes {
                let say = Say::Open(self.open(i));
                effects.push(Effect::Tell { to: replica.hop.clone(), say, body: Bytes::new() });
            }
        }
        effects.push(Effect::Wake(now.plus(OPEN_MAX)));
        effects
    }

    fn open(&self, i: usize) -> Open {
        let fed = match self.plan.replication {
            Replication::All => usize::MAX,
            Replication::Spare => 1,
        };
        let next = self.stages.get(i + 1).map_or(&[][..], |stage| &stage.nodes);
        let before = i.checked_sub(1).map_or(&[][..], |i| &self.stages[i].nodes);
        Open {
            session: self.plan.session.clone(),
            manifest: self.plan.manifest.clone(),
            halves: Some(self.stages[i].halves),
            positions: self.plan.positions,
            next: next.iter().take(fed).map(|replica| replica.hop.clone()).collect(),
            from: before.iter().map(|replica| replica.hop.node.clone()).collect(),
            beginning: self.plan.beginning.clone(),
            leg: i as u32,
        }
    }

    fn send(&mut self, now: Millis, first: u32, rows: Bytes, wanted: Wanted) -> Vec<Effect> {
        let count = (rows.len() / self.plan.row_bytes) as u32;
        if first > self.kept.end() {
            // The first rows after a beginning that stages had kept.
            self.kept = Kept::new(self.plan.row_bytes, self.plan.kept_bytes, first);
        }
        self.kept.put(first, rows.clone());
        for replica in &mut self.stages[0].nodes {
            replica.sent = replica.sent.min(first);
        }
        self.last_step += 1;
        let step = self.last_step;
        let (since, born) = (now, now);
        self.sent.push_back(Sent { step, first, wanted, rows, count, since, born });
        if matches!(self.state, State::Mending { .. }) {
            // It goes with those that are sent again.
            return Vec::new();
        }
        let mut effects = self.send_last();
        effects.push(Effect::Wake(self.deadline(now)));
        effects
    }

    /// Sends the last step to those of the first leg who compute, and spares what they are behind.
    fn send_last(&mut self) -> Vec<Effect> {
        let Some(last) = self.sent.back() else { return Vec::new() };
        let rows = header(last);
        let body = last.rows.clone();
        let stage = &mut self.stages[0];
        let mut effects = Vec::new();
        for (n, replica) in stage.nodes.iter_mut().enumerate() {
            if replica.state != Standing::Open {
                continue;
            }
            if n == stage.active || self.plan.replication == Replication::All {
                effects.extend(feed(&self.kept, replica, rows.first));
                replica.sent = rows.end();
                effects.push(tell(&replica.hop, Say::Rows(rows), body.clone()));
            } else if self.kept.end().saturating_sub(replica.sent) >= SPARE_BEHIND {
                effects.extend(feed(&self.kept, replica, self.kept.end()));
            }
        }
        effects
    }

    fn keep(&self, first: u32, keys: &[u8]) -> Vec<Effect> {
        let keep = wire::lane::Keep { first, keys: keys.to_vec() };
        let open = self.stages.iter().flat_map(|stage| &stage.nodes);
        let open = open.filter(|replica| replica.state == Standing::Open);
        open.map(|replica| tell(&replica.hop, Say::Keep(keep.clone()), Bytes::new())).collect()
    }

    fn said(&mut self, now: Millis, who: (u32, NodeId), say: Say, body: Bytes) -> Vec<Effect> {
        let Some((i, n)) = self.find(who) else { return Vec::new() };
        match say {
            Say::Opened(opened) => self.opened(now, i, n, opened),
            Say::Rows(rows) => self.deliver(now, rows, body),
            Say::At(at) => self.at(now, i, n, at),
            Say::Lost(lost) => {
                // Only its neighbour may say that one is gone.
                let node = NodeId::from_slice(&lost.node);
                node.map_or(Vec::new(), |node| self.broken(now, (who.0 + 1, node), &lost.text))
            }
            Say::Refused(refused) => {
                let (reason, retry_ms) = (refused.reason(), refused.retry_ms);
                self.refused(now, (i, n), reason, refused.text, retry_ms)
            }
            // Nothing else is said to a requester.
            _ => self.broken(now, who, "says what no stage should"),
        }
    }

    fn find(&self, (leg, node): (u32, NodeId)) -> Option<(usize, usize)> {
        let stage = self.stages.get(leg as usize)?;
        let live = |r: &Replica| r.hop.node() == node && r.state != Standing::Gone;
        Some((leg as usize, stage.nodes.iter().position(live)?))
    }

    /// The active node of each stage, with its place.
    fn active_ones(&self) -> Vec<(u32, NodeId)> {
        let each = self.stages.iter().zip(0..);
        each.map(|(stage, leg)| (leg, stage.nodes[stage.active].hop.node())).collect()
    }

    fn opened(&mut self, now: Millis, i: usize, n: usize, opened: Opened) -> Vec<Effect> {
        let replica = &mut self.stages[i].nodes[n];
        if replica.state != Standing::Asked {
            return Vec::new();
        }
        replica.state = Standing::Open;
        (replica.has, replica.sent, replica.rows_max) =
            (opened.begun, opened.begun, opened.rows_max);
        match self.state {
            State::Opening { .. } => self.ready(now),
            // A spare that took its time.
            _ => self.attach_spare(i, n),
        }
    }

    /// Begins, if all stages have a seat.
    fn ready(&mut self, now: Millis) -> Vec<Effect> {
        let active = || self.stages.iter().map(|stage| &stage.nodes[stage.active]);
        if active().any(|replica| replica.state != Standing::Open) {
            return Vec::new();
        }
        let begun = active().map(|replica| replica.has).min().unwrap_or(0);
        let rows_max = active().map(|replica| replica.rows_max).min().unwrap_or(1);
        self.kept = Kept::new(self.plan.row_bytes, self.plan.kept_bytes, begun);
        self.begun = begun;
        self.state = State::Running;
        let mut effects = vec![Effect::Ready { begun, rows_max }];
        for i in 0..self.stages.len() {
            for n in 0..self.stages[i].nodes.len() {
                effects.extend(self.attach_spare(i, n));
            }
        }
        effects.push(Effect::Wake(now.plus(OPEN_MAX)));
        effects
    }

    /// Has a spare fed along. One that lacks what the others had kept of the beginning cannot be, for
    /// nobody has sent that now.
    fn attach_spare(&mut self, i: usize, n: usize) -> Vec<Effect> {
        let begun = self.begun;
        let stage = &mut self.stages[i];
        let replica = &mut stage.nodes[n];
        if n != stage.active && replica.state == Standing::Open && replica.has < begun {
            replica.state = Standing::Gone;
        }
        let stage = &self.stages[i];
        let replica = &stage.nodes[n];
        let spare = self.plan.replication == Replication::Spare;
        if n == stage.active || replica.state != Standing::Open || !spare || i == 0 {
            return Vec::new();
        }
        self.last_nonce += 1;
        let nonce = self.last_nonce;
        let before = &self.stages[i - 1];
        let before = &before.nodes[before.active];
        // What that one has it was not sent; if it is sent again, so it will be to the spare.
        let (hop, from) = (replica.hop.clone(), replica.has.max(before.has));
        vec![tell(&before.hop, attach(hop, Role::Spare, from, nonce), Bytes::new())]
    }

    fn deliver(&mut self, now: Millis, rows: Rows, body: Bytes) -> Vec<Effect> {
        // Of a replica that was slower, or of a step that was sent again.
        let Some(front) = self.sent.front() else { return Vec::new() };
        if rows.step != front.step {
            return Vec::new();
        }
        let Sent { first, count, wanted, born, .. } = *front;
        let expected = match wanted {
            Wanted::Nothing => 0,
            Wanted::Last => self.plan.row_bytes,
            Wanted::Each => count as usize * self.plan.row_bytes,
        };
        if body.len() != expected {
            let who = self.active_ones().pop().expect("there is a stage");
            let why = format!("sent {} bytes where {expected} were due", body.len());
            return self.broken(now, who, &why);
        }
        self.sent.pop_front();
        self.pace.note(count, now.since(born));
        for stage in &mut self.stages {
            let active = &mut stage.nodes[stage.active];
            active.has = first + count;
        }
        if matches!(self.state, State::Asking { .. }) {
            self.state = State::Running;
        }
        // The next began when this one was done.
        if let Some(next) = self.sent.front_mut() {
            next.since = now;
        }
        let mut effects = vec![Effect::Deliver { first, count, rows: body }];
        if !self.sent.is_empty() {
            effects.push(Effect::Wake(self.deadline(now)));
        }
        effects
    }

    /// When to look whether the oldest step is late.
    fn deadline(&self, now: Millis) -> Millis {
        let Some(oldest) = self.sent.front() else { return now.plus(OPEN_MAX) };
        let late = oldest.since.plus(self.pace.late(oldest.count)).max(self.patience);
        let hedge = self.hedge_time(oldest).filter(|_| self.hedged < oldest.step);
        hedge.map_or(late, |hedge| hedge.min(late))
    }

    fn hedge_time(&self, oldest: &Sent) -> Option<Millis> {
        let lone = self.sent.len() == 1 && self.plan.replication == Replication::Spare;
        let spare = |stage: &Stage| self.spare(stage).is_some();
        (lone && self.stages.iter().any(spare)).then_some(())?;
        Some(oldest.since.plus(self.pace.hedge(oldest.count)?))
    }

    /// A replica that could take the active one's place.
    fn spare(&self, stage: &Stage) -> Option<usize> {
        let mut others = stage.nodes.iter().enumerate();
        let open = |(n, r): &(usize, &Replica)| *n != stage.active && r.state == Standing::Open;
        others.find(open).map(|(n, _)| n)
    }

    fn tick(&mut self, now: Millis) -> Vec<Effect> {
        match &self.state {
            State::Opening { since } if now.since(*since) >= OPEN_MAX => self.nobody_opens(now),
            State::Opening { since } => vec![Effect::Wake(since.plus(OPEN_MAX))],
            State::Asking { since, .. } if now.since(*since) >= ANSWER_MAX => self.silent(now),
            State::Asking { since, .. } => vec![Effect::Wake(since.plus(ANSWER_MAX))],
            State::Mending { since, waiting, .. } if now.since(*since) >= MEND_MAX => {
                let who = *waiting.first().expect("mending ends when nobody is waited for");
                self.broken(now, who, "did not answer while the route was mended")
            }
            State::Mending { since, .. } => vec![Effect::Wake(since.plus(MEND_MAX))],
            State::Running if self.sent.is_empty() => Vec::new(),
            State::Running if now >= self.deadline(now) => self.ask(now),
            State::Running => vec![Effect::Wake(self.deadline(now))],
            // Nothing matters any more.
            State::Over => Vec::new(),
        }
    }

    fn nobody_opens(&mut self, now: Millis) -> Vec<Effect> {
        let mut asked = self.stages.iter().map(|stage| &stage.nodes[stage.active]);
        let late = asked.find(|replica| replica.state == Standing::Asked);
        match late.map(Replica::who) {
            Some(who) => self.broken(now, who, "gave no seat in time"),
            None => Vec::new(),
        }
    }

    /// Asks all stages how far they are.
    fn ask(&mut self, now: Millis) -> Vec<Effect> {
        self.last_nonce += 1;
        let nonce = self.last_nonce;
        self.state = State::Asking { nonce, since: now, answers: BTreeMap::new() };
        let say = Say::Where(Where { nonce });
        let open = self.stages.iter().flat_map(|stage| &stage.nodes);
        let open = open.filter(|replica| replica.state == Standing::Open);
        let mut effects: Vec<_> =
            open.map(|replica| tell(&replica.hop, say.clone(), Bytes::new())).collect();
        effects.push(Effect::Wake(now.plus(ANSWER_MAX)));
        effects
    }

    fn at(&mut self, now: Millis, i: usize, n: usize, at: At) -> Vec<Effect> {
        let who = self.stages[i].nodes[n].who();
        if n != self.stages[i].active {
            self.stages[i].nodes[n].has = at.positions;
        }
        match &mut self.state {
            State::Asking { nonce, answers, .. } if *nonce == at.nonce => {
                answers.insert(who, at);
                let active = self.stages.iter().map(|stage| stage.nodes[stage.active].who());
                let all = active.into_iter().all(|who| answers.contains_key(&who));
                if all { self.all_answered(now) } else { Vec::new() }
            }
            State::Mending { nonce, waiting, .. } if *nonce == at.nonce => {
                waiting.remove(&who);
                if waiting.is_empty() { self.send_again(now) } else { Vec::new() }
            }
            // An answer to what is settled.
            _ => Vec::new(),
        }
    }

    /// All active stages have said how far they are with the oldest step.
    fn all_answered(&mut self, now: Millis) -> Vec<Effect> {
        let State::Asking { answers, .. } = std::mem::replace(&mut self.state, State::Running)
        else {
            unreachable!("only asked while asking")
        };
        let Some(oldest) = self.sent.front() else { return Vec::new() };
        let (step, born) = (oldest.step, oldest.born);
        let at = |stage: &Stage| answers[&stage.nodes[stage.active].who()];
        // Where the step is: the first stage that is not done with it.
        let holder = self.stages.iter().position(|stage| at(stage).done < step);
        let Some(i) = holder else {
            // It is on its way back.
            self.patience = now.plus(ANSWER_MAX);
            return vec![Effect::Wake(self.deadline(now))];
        };
        let (who, received) = {
            let stage = &self.stages[i];
            (stage.nodes[stage.active].who(), at(stage).received)
        };
        if received < step {
            let found = Astray { step, before: who, since: now };
            let same = |astray: &Astray| astray.step == step && astray.before == who;
            let astray = self.astray.filter(same).unwrap_or(found);
            let most = if step <= self.new_way { MEND_MAX } else { WAY_MAX };
            if now.since(astray.since) >= most {
                // It was on its way then, and still is: the way is cut.
                return self.broken(now, who, "answers, but rows do not reach it");
            }
            self.astray = Some(astray);
            self.patience = now.plus(ANSWER_MAX);
            return vec![Effect::Wake(self.deadline(now))];
        }
        if now.since(born) >= STEP_MAX {
            return self.broken(now, who, "has been computing for too long");
        }
        let mut effects = self.hedge(i, step);
        // It is at work: ask again when it has had as long once more.
        self.patience = now.plus(now.since(born).max(ANSWER_MAX));
        effects.push(Effect::Wake(self.deadline(now)));
        effects
    }

    /// Has a spare of stage `i` compute the oldest step, too.
    fn hedge(&mut self, i: usize, step: u64) -> Vec<Effect> {
        let lone = self.sent.len() == 1 && self.hedged < step;
        let Some(n) = self.spare(&self.stages[i]).filter(|_| lone) else { return Vec::new() };
        (self.hedged, self.hedges) = (step, self.hedges + 1);
        if i == 0 {
            let sent = self.sent.front().expect("there is a step");
            let (rows, body) = (header(sent), sent.rows.clone());
            let replica = &mut self.stages[0].nodes[n];
            let mut effects = feed(&self.kept, replica, rows.first);
            replica.sent = rows.end();
            effects.push(tell(&replica.hop, Say::Rows(rows), body));
            return effects;
        }
        self.last_nonce += 1;
        let nonce = self.last_nonce;
        let replica = &self.stages[i].nodes[n];
        let (hop, from) = (replica.hop.clone(), replica.has);
        let before = &self.stages[i - 1];
        let to = &before.nodes[before.active].hop;
        vec![tell(to, attach(hop, Role::Hedge, from, nonce), Bytes::new())]
    }

    /// Not all have answered in time.
    fn silent(&mut self, now: Millis) -> Vec<Effect> {
        let State::Asking { answers, .. } = &self.state else { return Vec::new() };
        let active = self.active_ones();
        let silent: Vec<_> = active.iter().filter(|who| !answers.contains_key(who)).collect();
        if silent.len() == active.len() && active.len() > 1 {
            self.state = State::Over;
            return vec![Effect::Failed(PassageError::CutOff { stages: active.len() })];
        }
        let Some(who) = silent.first().map(|who| **who) else { return self.all_answered(now) };
        self.state = State::Running;
        let why = format!("is silent: no answer within {ANSWER_MAX} ms");
        let mut effects = self.stands_by_no_more(who.1, &why);
        effects.extend(self.broken(now, who, &why));
        effects
    }

    /// A node that is silent at one place takes over at no other.
    fn stands_by_no_more(&mut self, node: NodeId, why: &str) -> Vec<Effect> {
        let mut effects = Vec::new();
        for stage in &mut self.stages {
            for (n, replica) in stage.nodes.iter_mut().enumerate() {
                let silent = replica.hop.node() == node && replica.state != Standing::Gone;
                if silent && n != stage.active {
                    replica.state = Standing::Gone;
                    let leg = replica.hop.leg;
                    effects.push(Effect::Dropped { leg, node, why: why.to_owned() });
                }
            }
        }
        effects
    }

    fn refused(
        &mut self,
        now: Millis,
        (i, n): (usize, usize),
        reason: Reason,
        text: String,
        retry_ms: u32,
    ) -> Vec<Effect> {
        let (leg, node) = self.stages[i].nodes[n].who();
        if n != self.stages[i].active {
            self.stages[i].nodes[n].state = Standing::Gone;
            return vec![Effect::Dropped { leg, node, why: text }];
        }
        if self.spare(&self.stages[i]).is_some() {
            return self.broken(now, (leg, node), &text);
        }
        self.state = State::Over;
        vec![Effect::Failed(PassageError::Refused { node, reason, text, retry_ms })]
    }

    /// A node is not to be relied on any more at this place.
    fn broken(&mut self, now: Millis, (leg, node): (u32, NodeId), why: &str) -> Vec<Effect> {
        let Some((i, n)) = self.find((leg, node)) else { return Vec::new() };
        let why: String = why.chars().filter(|c| !c.is_control()).collect();
        self.stages[i].nodes[n].state = Standing::Gone;
        let mut effects = vec![Effect::Dropped { leg, node, why: why.clone() }];
        if n != self.stages[i].active {
            return effects;
        }
        let Some(spare) = self.spare(&self.stages[i]) else {
            let halves = self.stages[i].halves;
            self.state = State::Over;
            effects.push(Effect::Failed(PassageError::Lost { node, halves, why }));
            return effects;
        };
        self.stages[i].active = spare;
        if matches!(self.state, State::Opening { .. }) {
            effects.extend(self.ready(now));
            return effects;
        }
        if self.plan.replication == Replication::All {
            // It has had everything all along.
            if matches!(self.state, State::Asking { .. }) {
                self.state = State::Running;
            }
            effects.push(Effect::Wake(self.deadline(now)));
            return effects;
        }
        effects.extend(self.mend(now, i));
        effects
    }

    /// Puts the new active node of stage `i` between its neighbours.
    fn mend(&mut self, now: Millis, i: usize) -> Vec<Effect> {
        self.last_nonce += 1;
        let nonce = self.last_nonce;
        let mut waiting = match &mut self.state {
            State::Mending { waiting, .. } => std::mem::take(waiting),
            _ => BTreeSet::new(),
        };
        let live = self.active_ones();
        waiting.retain(|who| live.contains(who));
        let mut effects = Vec::new();
        let hop_of = |stage: &Stage| stage.nodes[stage.active].hop.clone();
        let own = hop_of(&self.stages[i]);
        let say = match self.stages.get(i + 1) {
            Some(next) => attach(hop_of(next), Role::Only, next.nodes[next.active].has, nonce),
            None => Say::Where(Where { nonce }),
        };
        effects.push(tell(&own, say, Bytes::new()));
        waiting.insert((own.leg, own.node()));
        match i.checked_sub(1) {
            None => {
                let replica = self.stages[0].active;
                let replica = &mut self.stages[0].nodes[replica];
                effects.extend(feed(&self.kept, replica, self.kept.end()));
            }
            Some(before) => {
                let from = self.stages[i].nodes[self.stages[i].active].has;
                let to = hop_of(&self.stages[before]);
                effects.push(tell(&to, attach(own, Role::Only, from, nonce), Bytes::new()));
                waiting.insert((to.leg, to.node()));
            }
        }
        // Whoever was waited for is asked again under the new number.
        for who in waiting.clone() {
            if let Some((at, n)) = self.find(who)
                && at != i
                && at + 1 != i
            {
                let say = Say::Where(Where { nonce });
                effects.push(tell(&self.stages[at].nodes[n].hop, say, Bytes::new()));
            }
        }
        self.state = State::Mending { nonce, since: now, waiting };
        effects.push(Effect::Wake(now.plus(MEND_MAX)));
        effects
    }

    /// Sends all steps that are on their way again, under new numbers.
    fn send_again(&mut self, now: Millis) -> Vec<Effect> {
        self.state = State::Running;
        self.patience = now;
        let mut effects = Vec::new();
        let stage = &mut self.stages[0];
        let replica = &mut stage.nodes[stage.active];
        for sent in &mut self.sent {
            self.last_step += 1;
            (sent.step, sent.since) = (self.last_step, now);
            replica.sent = sent.first + sent.count;
            effects.push(tell(&replica.hop, Say::Rows(header(sent)), sent.rows.clone()));
        }
        self.new_way = self.last_step;
        if !self.sent.is_empty() {
            effects.push(Effect::Wake(self.deadline(now)));
        }
        effects
    }
}

fn header(sent: &Sent) -> Rows {
    let Sent { step, first, count, wanted, .. } = *sent;
    Rows { step, first, count, wanted: wanted as i32, onward: Onward::Send as i32 }
}

fn tell(to: &Hop, say: Say, body: Bytes) -> Effect {
    Effect::Tell { to: to.clone(), say, body }
}

fn attach(hop: Hop, role: Role, from: u32, nonce: u64) -> Say {
    Say::Attach(Attach { hop: Some(hop), role: role as i32, from, nonce })
}

/// Sends `replica` what it lacks before `to`, to be held there.
fn feed(kept: &Kept, replica: &mut Replica, to: u32) -> Vec<Effect> {
    if replica.sent >= to {
        return Vec::new();
    }
    let Some(pieces) = kept.rows(replica.sent, to) else { return Vec::new() };
    replica.sent = to;
    let (wanted, onward) = (Wanted::Nothing as i32, Onward::Hold as i32);
    let held = |piece: super::kept::Piece| {
        let (first, count) = (piece.first, piece.count);
        let rows = Rows { step: 0, first, count, wanted, onward };
        tell(&replica.hop, Say::Rows(rows), piece.body)
    };
    pieces.into_iter().map(held).collect()
}

#[cfg(test)]
mod tests;
