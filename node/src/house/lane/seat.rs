//! One sequence's place at a stage: takes rows in order, has them computed, passes results on.

use bytes::Bytes;
use wire::NodeId;
use wire::lane::{At, Attach, Hop, Lost, Onward, Reason, Refused, Role, Rows, Say, Wanted};

use super::kept::{Kept, Piece};

/// Rows that a spare is behind before it is fed again: few enough to catch up with in a moment, many
/// enough that weights are read for many rows at once.
const SPARE_BEHIND: u32 = 32;

/// What a seat is for.
#[derive(Debug, Clone)]
pub struct SeatPlan {
    /// Who asked for it.
    pub requester: NodeId,
    /// Who else may send rows.
    pub from: Vec<NodeId>,
    /// To whom results go; none means back to the requester.
    pub next: Vec<Hop>,
    /// Positions for which there is room.
    pub positions: u32,
    /// Positions at the beginning that it holds already.
    pub begun: u32,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of results that are kept for others who may need them.
    pub kept_bytes: usize,
}

/// What happens to a seat.
#[derive(Debug)]
pub enum Input {
    /// Rows came.
    Rows {
        /// From whom.
        from: NodeId,
        /// Which.
        rows: Rows,
        /// They.
        body: Bytes,
    },
    /// Rows that it had given away to be computed are.
    Computed {
        /// Which.
        rows: Rows,
        /// Results.
        body: Bytes,
    },
    /// The requester changes to whom results go.
    Attach(Attach),
    /// The requester asks how far this is, while so many rows wait in all of the stage.
    Where {
        /// Its number.
        nonce: u64,
        /// Rows that wait.
        queued: u32,
    },
    /// The pipe to somebody broke.
    Broken {
        /// To whom.
        node: NodeId,
        /// How that was noticed.
        why: String,
    },
}

/// What a seat wants done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Compute these rows, the first of them at their position: what was there is forgotten.
    Compute {
        /// Which.
        rows: Rows,
        /// They.
        body: Bytes,
    },
    /// Send rows to a stage.
    Send {
        /// Which.
        to: Hop,
        /// What they are.
        rows: Rows,
        /// They.
        body: Bytes,
    },
    /// Tell the requester.
    Tell {
        /// What.
        say: Say,
        /// With these rows.
        body: Bytes,
    },
    /// Nothing more is sent to this one.
    Hang(NodeId),
    /// A rule was broken: the seat is given up.
    End,
}

/// One that results go to.
#[derive(Debug)]
struct Target {
    hop: Hop,
    role: Role,
    /// Positions that it was sent; `None` while it gets from elsewhere what it must hold, as the next
    /// of a spare does.
    sent: Option<u32>,
}

/// A sequence's place at a stage.
#[derive(Debug)]
pub struct Seat {
    plan: SeatPlan,
    /// The last step taken, and the last sent on.
    received: u64,
    done: u64,
    /// Positions taken, and computed.
    end: u32,
    computed: u32,
    kept: Kept,
    targets: Vec<Target>,
    /// The last step that was sent on, for a hedge.
    last: Option<(Rows, Bytes)>,
}

impl Seat {
    /// A seat for a sequence of which nothing has come yet.
    pub fn new(plan: SeatPlan) -> Self {
        let begun = plan.begun;
        let kept = Kept::new(plan.row_bytes, plan.kept_bytes, begun);
        let target = |hop: &Hop| Target { hop: hop.clone(), role: Role::Only, sent: None };
        let targets = plan.next.iter().map(target).collect();
        Self { plan, received: 0, done: 0, end: begun, computed: begun, kept, targets, last: None }
    }

    /// Who asked for it.
    pub fn requester(&self) -> NodeId {
        self.plan.requester
    }

    /// One after the last position that was taken.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Takes what happens; says what to do.
    pub fn handle(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Rows { from, rows, body } => self.take(from, rows, body),
            Input::Computed { rows, body } => self.computed(rows, body),
            Input::Attach(attach) => self.attach(attach),
            Input::Where { nonce, queued } => vec![self.at(nonce, queued)],
            Input::Broken { node, why } => self.broken(node, why),
        }
    }

    fn take(&mut self, from: NodeId, rows: Rows, body: Bytes) -> Vec<Effect> {
        if from != self.plan.requester && !self.plan.from.contains(&from) {
            return refuse(Reason::NotAllowed, format!("{from} is not among those who feed this"));
        }
        let held = rows.onward() == Onward::Hold;
        if !held && rows.step <= self.received {
            // Another replica was faster, or the one that was replaced is late.
            return Vec::new();
        }
        if rows.first > self.end {
            let (first, end) = (rows.first, self.end);
            return refuse(Reason::Gap, format!("rows from {first} on, and {end} are here"));
        }
        if rows.end() > self.plan.positions {
            let (end, most) = (rows.end(), self.plan.positions);
            return refuse(Reason::Full, format!("{end} positions, and {most} were asked for"));
        }
        if body.len() != rows.count as usize * self.plan.row_bytes {
            let (size, count, each) = (body.len(), rows.count, self.plan.row_bytes);
            return refuse(Reason::Broken, format!("{size} bytes for {count} rows of {each}"));
        }
        if !held {
            self.received = rows.step;
        }
        self.end = rows.end();
        vec![Effect::Compute { rows, body }]
    }

    fn computed(&mut self, rows: Rows, body: Bytes) -> Vec<Effect> {
        self.computed = rows.end();
        // What was computed at the beginning of pages that were kept is not here, but may be redone.
        if rows.first > self.kept.end() {
            self.kept = Kept::new(self.plan.row_bytes, self.plan.kept_bytes, rows.first);
        }
        if rows.first < self.kept.end() {
            // What was sent of these positions is no longer so.
            for target in &mut self.targets {
                target.sent = target.sent.map(|sent| sent.min(rows.first));
            }
        }
        self.kept.put(rows.first, body.clone());
        if rows.onward() == Onward::Hold {
            return self.feed_all();
        }
        self.done = rows.step;
        if self.plan.next.is_empty() {
            return vec![Effect::Tell { say: Say::Rows(rows), body: wanted(&rows, body) }];
        }
        self.last = Some((rows, body.clone()));
        let mut effects = Vec::new();
        for target in &mut self.targets {
            match target.role {
                Role::Only | Role::Also => {
                    effects.extend(feed(&self.kept, target, rows.first));
                    target.sent = target.sent.map(|_| rows.end());
                    effects.push(Effect::Send { to: target.hop.clone(), rows, body: body.clone() });
                }
                _ => effects.extend(feed_spare(&self.kept, target)),
            }
        }
        effects
    }

    /// Brings all who are fed up to what is here.
    fn feed_all(&mut self) -> Vec<Effect> {
        let end = self.kept.end();
        let each = self.targets.iter_mut().flat_map(|target| match target.role {
            Role::Only | Role::Also => feed(&self.kept, target, end),
            _ => feed_spare(&self.kept, target),
        });
        each.collect()
    }

    fn attach(&mut self, attach: Attach) -> Vec<Effect> {
        let role = attach.role();
        let Some(hop) = attach.hop else { return Vec::new() };
        let node = hop.node();
        let known = self.targets.iter().position(|target| target.hop.node() == node);
        let mut effects = Vec::new();
        if role == Role::Only {
            let fed = |target: &Target| matches!(target.role, Role::Only | Role::Also);
            let gone = self.targets.iter().filter(|t| fed(t) && t.hop.node() != node);
            effects.extend(gone.map(|target| Effect::Hang(target.hop.node())));
        }
        let sent = known.and_then(|at| self.targets[at].sent).unwrap_or(attach.from);
        if role != Role::Never && sent < self.kept.start() {
            let start = self.kept.start();
            let text = format!("results before position {start} are not kept, {sent} is wanted");
            return vec![Effect::Tell { say: refusal(Reason::Gap, text), body: Bytes::new() }];
        }
        let replaced = |target: &Target| {
            let own = target.hop.node() == node;
            own || (role == Role::Only && matches!(target.role, Role::Only | Role::Also))
        };
        self.targets.retain(|target| !replaced(target));
        let mut target = Target { hop, role, sent: Some(sent) };
        match role {
            Role::Never => effects.push(Effect::Hang(node)),
            Role::Hedge => {
                effects.extend(self.hedge(&mut target));
                target.role = Role::Spare;
                self.targets.push(target);
            }
            Role::Only | Role::Also | Role::Spare => {
                effects.extend(feed(&self.kept, &mut target, self.kept.end()));
                self.targets.push(target);
            }
        }
        effects.push(self.at(attach.nonce, 0));
        effects
    }

    /// Gives `target` what it lacks, and the last step to be sent on.
    fn hedge(&self, target: &mut Target) -> Vec<Effect> {
        let Some((rows, body)) = &self.last else { return Vec::new() };
        let mut effects = feed(&self.kept, target, rows.first);
        target.sent = Some(rows.end());
        effects.push(Effect::Send { to: target.hop.clone(), rows: *rows, body: body.clone() });
        effects
    }

    fn broken(&mut self, node: NodeId, text: String) -> Vec<Effect> {
        let before = self.targets.len();
        self.targets.retain(|target| target.hop.node() != node);
        if self.targets.len() == before {
            // It had been replaced before its pipe broke.
            return Vec::new();
        }
        let lost = Lost::new(node, text);
        vec![Effect::Tell { say: Say::Lost(lost), body: Bytes::new() }]
    }

    fn at(&self, nonce: u64, queued: u32) -> Effect {
        let (received, done, positions) = (self.received, self.done, self.computed);
        let at = At { nonce, received, done, positions, queued };
        Effect::Tell { say: Say::At(at), body: Bytes::new() }
    }
}

/// Sends `target` what it lacks before `to`, to be held there.
fn feed(kept: &Kept, target: &mut Target, to: u32) -> Vec<Effect> {
    let Some(sent) = target.sent.filter(|sent| *sent < to) else { return Vec::new() };
    // What is gone from here cannot be had; it will say that there is a gap.
    let Some(pieces) = kept.rows(sent, to) else { return Vec::new() };
    target.sent = Some(to);
    let hop = &target.hop;
    pieces.into_iter().map(|piece| held(hop.clone(), piece)).collect()
}

fn feed_spare(kept: &Kept, target: &mut Target) -> Vec<Effect> {
    match kept.end().saturating_sub(target.sent.unwrap_or(u32::MAX)) >= SPARE_BEHIND {
        true => feed(kept, target, kept.end()),
        false => Vec::new(),
    }
}

fn held(to: Hop, piece: Piece) -> Effect {
    let Piece { first, count, body } = piece;
    let (wanted, onward) = (Wanted::Nothing as i32, Onward::Hold as i32);
    Effect::Send { to, rows: Rows { step: 0, first, count, wanted, onward }, body }
}

/// The results that the requester wants.
fn wanted(rows: &Rows, body: Bytes) -> Bytes {
    match rows.wanted() {
        Wanted::Nothing => Bytes::new(),
        Wanted::Last => body.slice(body.len() - body.len() / rows.count as usize..),
        Wanted::Each => body,
    }
}

fn refusal(reason: Reason, text: String) -> Say {
    Say::Refused(Refused::new(reason, text, 0))
}

fn refuse(reason: Reason, text: String) -> Vec<Effect> {
    vec![Effect::Tell { say: refusal(reason, text), body: Bytes::new() }, Effect::End]
}
