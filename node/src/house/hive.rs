//! Which nodes there are, and over which of them each model goes: routes are planned, made ready,
//! used, and replaced when a node of them is lost.
//!
//! Offers, distances and failures come in; what goes out is to ask nodes to get ready, and which route
//! is to be used. Sequences themselves go by `house::lane`.
//!
//! **Invariant:** a route is only given out when each of its stages has said that it is ready. A node
//! that failed is in no plan until it has both waited and proven that it lives.

mod stand;

use std::collections::BTreeMap;

use crdt_world::Offers;
use wire::lane::Hop;
use wire::{Address, Halves, Manifest, ManifestId, Millis, NodeId, Offer, Verified};

use super::fitness::{Beliefs, Observed, Rates};
use super::lane::Leg;
use super::place::{
    Candidate, Me, NoRoute, OVERHEAD_BYTES, Plan, Refusals, Scene, Task, Until, Wish, place,
};

pub use stand::Stand;

/// How long a node may say nothing while it gets ready, milliseconds. Loading says how far it is
/// several times a second.
const READY_SILENCE_MAX: u64 = 10_000;
/// How long a node that failed is not asked again, milliseconds: the first time, and at most; each
/// further failure doubles it.
const REST_MIN: u64 = 3_000;
const REST_MAX: u64 = 600_000;
/// How long a node that has no room is not asked for the same again, milliseconds.
const REFUSED_FOR: u64 = 20_000;
/// How often it is looked for a better route, milliseconds.
const IMPROVE_EVERY: u64 = 30_000;
/// How soon it is looked for spares when somebody new could be one, milliseconds: newcomers come in
/// flocks.
const SPARES_SOON: u64 = 1_000;
/// How often it is looked for any route while there is none, milliseconds.
const RETRY_EVERY: u64 = 1_000;
/// By how much another route must be faster to be worth the change, in percent.
const GAIN_PERCENT: u64 = 25;
/// How soon a node that has rested is asked again whether it lives when it did not answer, milliseconds:
/// the first time; each further time is twice as long.
const ASK_AGAIN: u64 = 2_000;
/// Nodes of which failures are remembered.
const RESTING_MAX: usize = 1024;

/// A model that this node wants to have computed.
#[derive(Debug, Clone)]
pub struct Want {
    /// The model.
    pub manifest: Manifest,
    /// How it is wanted.
    pub wish: Wish,
    /// This node's part in it.
    pub me: Me,
}

impl Want {
    /// Whether this node alone can compute all of it, and nobody wants it split.
    pub fn fits_here(&self) -> bool {
        let (manifest, wish) = (&self.manifest, &self.wish);
        let positions = u64::from(wish.positions) * u64::from(wish.sequences);
        let caches = manifest.kv_bytes(manifest.all()).saturating_mul(positions);
        let weights = manifest.work(manifest.all()).memory + manifest.ends_work().memory;
        let all = weights.saturating_add(caches).saturating_add(OVERHEAD_BYTES);
        let split = wish.stages_min.max(wish.cuts.stages_min()) > 0;
        !split && all <= self.me.memory_bytes
    }
}

/// What happens.
#[derive(Debug)]
pub enum Input {
    /// A node offers.
    Offer(Box<Verified<Offer>>),
    /// A node answered, after so long, microseconds.
    Reached(NodeId, u64),
    /// A node that was asked whether it lives has answered.
    Answered(NodeId),
    /// A node is not connected any more.
    Left(NodeId),
    /// A model is wanted.
    Want(Box<Want>),
    /// A node has got so far with a part.
    Prepared {
        /// Which node.
        node: NodeId,
        /// Which model.
        manifest: ManifestId,
        /// Which part.
        halves: Halves,
        /// How far, bytes.
        done: u64,
        /// Bytes in all.
        whole: u64,
        /// Whether it is ready.
        ready: bool,
    },
    /// A node will not or cannot get ready.
    Unprepared {
        /// Which node.
        node: NodeId,
        /// Which model.
        manifest: ManifestId,
        /// Which part.
        halves: Halves,
        /// Why, for people.
        why: String,
        /// Whether it said so itself, and so lives.
        refused: bool,
    },
    /// A sequence found that a node does not do its part.
    Dropped {
        /// Which node.
        node: NodeId,
        /// Why, for people.
        why: String,
    },
    /// What a node was seen to do.
    Observed(NodeId, Observed),
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask a node to get ready.
    Prepare {
        /// Whom.
        node: Hop,
        /// For which model.
        manifest: ManifestId,
        /// For which part.
        halves: Halves,
        /// Who has the model's files.
        sources: Vec<Hop>,
    },
    /// Sequences of a model go over these stages from now on.
    Route {
        /// Which model.
        manifest: ManifestId,
        /// Its number, larger than that of the one before.
        number: u64,
        /// What this node computes.
        front: Halves,
        /// The stages.
        legs: Vec<Leg>,
        /// Who computes what, in short.
        words: String,
    },
    /// Ask a node whether it lives.
    Ask(NodeId),
    /// There is no way for a model.
    NoRoute {
        /// Which model.
        manifest: ManifestId,
        /// Why, for people.
        why: String,
    },
    /// Something that people should know.
    Say(String),
    /// Look again at this time.
    Wake(Millis),
}

/// Nodes and routes.
#[derive(Debug)]
pub struct Hive {
    offers: Offers,
    refusals: Refusals,
    beliefs: Beliefs,
    resting: BTreeMap<NodeId, Rest>,
    models: BTreeMap<ManifestId, Model>,
    last_number: u64,
}

/// A node that failed.
#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Millis,
    length: u64,
    /// When to ask it whether it lives, and how long after that again.
    ask: Millis,
    again: u64,
}

#[derive(Debug)]
struct Model {
    want: Want,
    /// The plan that is used.
    used: Option<Plan>,
    /// One that gets ready.
    next: Option<Preparing>,
    why: String,
    look: Millis,
}

impl Model {
    /// Whether a stage of the route that is used has nobody to stand by for it, though it should.
    fn lacks_spares(&self) -> bool {
        let lone = |plan: &Plan| plan.stages.iter().any(|stage| stage.spares.is_empty());
        self.want.wish.spares > 0 && self.next.is_none() && self.used.as_ref().is_some_and(lone)
    }
}

#[derive(Debug)]
struct Preparing {
    plan: Plan,
    begun: Millis,
    parts: BTreeMap<(NodeId, Halves), Progress>,
}

#[derive(Debug)]
struct Progress {
    done: u64,
    whole: u64,
    ready: bool,
    heard: Millis,
    /// Whether the route can do without.
    spare: bool,
}

impl Hive {
    /// Of the node `me`, which knows nobody.
    pub fn new(me: NodeId) -> Self {
        Self {
            offers: Offers::new(me),
            refusals: Refusals::default(),
            beliefs: Beliefs::default(),
            resting: BTreeMap::new(),
            models: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// What others offer, and how near they are.
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// How far the route of a model is.
    pub fn stand(&self, now: Millis, manifest: ManifestId) -> Option<Stand> {
        let model = self.models.get(&manifest)?;
        Some(match (&model.used, &model.next) {
            (Some(plan), _) => Stand::Used(Box::new(plan.clone())),
            (None, Some(next)) => {
                let needed = next.parts.values().filter(|part| !part.spare);
                let (done, whole) =
                    needed.fold((0, 0), |(d, w), part| (d + part.done, w + part.whole));
                Stand::preparing(done, whole, now.since(next.begun))
            }
            (None, None) => Stand::None(model.why.clone()),
        })
    }

    /// What would be planned for a model now.
    ///
    /// # Errors
    /// Nothing fits.
    pub fn plan(&self, now: Millis, want: &Want) -> Result<Plan, NoRoute> {
        let candidates: Vec<Candidate> = self
            .offers
            .iter()
            .map(|(node, offer)| Candidate {
                node,
                offer: offer.content(),
                rtt_us: self.offers.rtt(want.me.node, node).us,
                belief: self.beliefs.of(node),
            })
            .collect();
        let roads = |a, b| self.offers.rtt(a, b).us;
        let scene = Scene {
            now,
            me: want.me,
            candidates: &candidates,
            roads: &roads,
            refusals: &self.refusals,
        };
        place(&Task::of(&want.manifest, want.wish), &scene)
    }

    /// As [`Hive::plan`], with fewer stages than are wished for where there are too few nodes, but not
    /// without any: what all fits here is not the hive's business.
    fn plan_for_less(&self, now: Millis, want: &Want) -> Result<Plan, NoRoute> {
        let first = self.plan(now, want);
        for stages_min in (1..want.wish.stages_min).rev() {
            if first.is_ok() {
                break;
            }
            // Fewer stages are larger ones.
            let wish = Wish { stages_min, layers_max: 0, ..want.wish };
            if let Ok(plan) = self.plan(now, &Want { wish, ..want.clone() }) {
                return Ok(plan);
            }
        }
        first
    }

    /// Takes what happens; says what to do.
    pub fn handle(&mut self, now: Millis, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Offer(offer) => {
                let node = offer.signer();
                if self.offers.take(now, *offer).is_news() {
                    self.lives(now, node);
                    self.look_soon(now);
                }
            }
            Input::Reached(node, rtt_us) => {
                self.offers.reached(now, node, rtt_us);
                self.lives(now, node);
            }
            Input::Answered(node) => {
                self.offers.answered(node);
                self.lives(now, node);
                self.look_soon(now);
            }
            Input::Left(node) => self.offers.left(node),
            Input::Want(want) => {
                let why = "no route was looked for yet".into();
                let model = Model { want: *want, used: None, next: None, why, look: now };
                self.models.insert(model.want.manifest.id(), model);
            }
            Input::Prepared { node, manifest, halves, done, whole, ready } => {
                let heard = Progress { done, whole, ready, heard: now, spare: false };
                self.prepared(now, (node, manifest, halves), heard, &mut effects);
            }
            Input::Unprepared { node, manifest, halves, why, refused } => {
                self.unprepared(now, (node, manifest, halves), &why, refused, &mut effects);
            }
            Input::Dropped { node, why } => self.lost(now, node, &why, &mut effects),
            Input::Observed(node, seen) => self.beliefs.observe(node, seen),
            Input::Tick => self.tidy(now, &mut effects),
        }
        let due: Vec<ManifestId> =
            self.models.iter().filter(|(_, model)| model.look <= now).map(|(id, _)| *id).collect();
        for id in due {
            self.look(now, id, &mut effects);
        }
        if let Some(at) = self.models.values().map(|model| model.look).min() {
            effects.push(Effect::Wake(at));
        }
        effects
    }

    /// A node has proven that it lives; if it has rested long enough, it may be planned again.
    fn lives(&mut self, now: Millis, node: NodeId) {
        if self.resting.get(&node).is_none_or(|rest| rest.until <= now) {
            self.refusals.lives(node);
        }
    }

    fn look_soon(&mut self, now: Millis) {
        for model in self.models.values_mut().filter(|model| model.lacks_spares()) {
            model.look = model.look.min(now.plus(SPARES_SOON));
        }
        for model in self.models.values_mut().filter(|m| m.used.is_none() && m.next.is_none()) {
            model.look = now;
        }
    }

    /// A node failed: it is in no plan until it has rested and shown that it lives.
    fn rest(&mut self, now: Millis, node: NodeId) {
        let before = self.resting.get(&node).map_or(0, |rest| rest.length);
        let length = (2 * before).clamp(REST_MIN, REST_MAX);
        let until = now.plus(length);
        self.resting.insert(node, Rest { until, length, ask: until, again: ASK_AGAIN });
        if self.resting.len() > RESTING_MAX {
            let first = self.resting.iter().min_by_key(|(_, rest)| rest.until);
            let first = first.map(|(node, _)| *node);
            first.map(|node| self.resting.remove(&node));
        }
        self.refusals.node(node, Until::ProofOfLife);
        self.offers.gone(now, node);
    }

    fn tidy(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        self.offers.expire(now);
        self.refusals.expire(now);
        self.resting.retain(|_, rest| now.since(rest.until) < REST_MAX);
        // Nobody may tell of it for long, and somebody may wait for it.
        for (node, rest) in self.resting.iter_mut().filter(|(_, rest)| rest.ask <= now) {
            if self.refusals.forbids_node(*node, now) {
                effects.push(Effect::Ask(*node));
            }
            rest.ask = now.plus(rest.again);
            rest.again = (2 * rest.again).min(REST_MAX);
        }
        let late = |part: &Progress| !part.ready && now.since(part.heard) > READY_SILENCE_MAX;
        let silent: Vec<NodeId> = self
            .models
            .values()
            .filter_map(|model| model.next.as_ref())
            .flat_map(|next| next.parts.iter().filter(|(_, part)| late(part)))
            .map(|((node, _), _)| *node)
            .collect();
        for node in silent {
            let why = format!("said nothing for {} s while it got ready", READY_SILENCE_MAX / 1000);
            self.lost(now, node, &why, effects);
        }
    }

    fn prepared(
        &mut self,
        now: Millis,
        (node, manifest, halves): (NodeId, ManifestId, Halves),
        heard: Progress,
        effects: &mut Vec<Effect>,
    ) {
        let Some(model) = self.models.get_mut(&manifest) else { return };
        let ready = heard.ready;
        if let Some(next) = &mut model.next {
            let Some(part) = next.parts.get_mut(&(node, halves)) else { return };
            // One that is ready may say how much that was, or not.
            let whole = if ready { part.whole } else { heard.whole };
            let done = if ready { whole } else { heard.done };
            *part = Progress { done, whole, spare: part.spare, ..heard };
            if next.parts.values().all(|part| part.ready || part.spare) {
                let spares = next.parts.iter().filter(|(_, part)| !part.ready).map(|(key, _)| *key);
                let spares: Vec<_> = spares.collect();
                let mut plan = model.next.take().expect("it was just looked at").plan;
                leave_out(&mut plan, &spares);
                model.used = Some(plan);
                model.look = now.plus(IMPROVE_EVERY);
                effects.push(Effect::Say(format!("a route is ready: {}", plan_words(model))));
                self.give_out(manifest, effects);
            }
        } else if ready && let Some(plan) = &mut model.used {
            // A spare that took longer than the stages.
            let stages = plan.stages.iter_mut().filter(|stage| stage.halves == halves);
            let mut changed = false;
            for stage in stages.filter(|stage| stage.node != node) {
                if !stage.spares.contains(&node) && !stage.twins.contains(&node) {
                    stage.spares.push(node);
                    changed = true;
                }
            }
            if changed {
                self.give_out(manifest, effects);
            }
        }
    }

    fn unprepared(
        &mut self,
        now: Millis,
        (node, manifest, halves): (NodeId, ManifestId, Halves),
        why: &str,
        refused: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !refused {
            return self.lost(now, node, why, effects);
        }
        let until = Until::Time(now.plus(REFUSED_FOR));
        self.refusals.range(node, manifest, halves, until);
        let Some(model) = self.models.get_mut(&manifest) else { return };
        effects.push(Effect::Say(format!("{} does not take layers {halves}: {why}", node.short())));
        let Some(next) = &mut model.next else { return };
        match next.parts.get(&(node, halves)) {
            Some(part) if part.spare => {
                next.parts.remove(&(node, halves));
                leave_out(&mut next.plan, &[(node, halves)]);
            }
            Some(_) => {
                model.next = None;
                model.look = now;
            }
            None => {}
        }
    }

    /// A node is lost to all routes.
    fn lost(&mut self, now: Millis, node: NodeId, why: &str, effects: &mut Vec<Effect>) {
        // Each answer that runs through a node tells of the same failure; it is in no plan since
        // the first did.
        if self.resting.get(&node).is_some_and(|rest| rest.until > now) {
            return;
        }
        self.rest(now, node);
        effects.push(Effect::Say(format!("{} {why}; routes go around it", node.short())));
        let ids: Vec<ManifestId> = self.models.keys().copied().collect();
        for id in ids {
            let model = self.models.get_mut(&id).expect("its key was just read");
            if model.next.as_ref().is_some_and(|next| next.parts.keys().any(|(n, _)| *n == node)) {
                model.next = None;
                model.look = now;
            }
            let Some(plan) = &mut model.used else { continue };
            if !without(plan, node) {
                model.why = format!("{} {why}, and nobody stands by for it", node.short());
                model.used = None;
                effects.push(Effect::NoRoute { manifest: id, why: model.why.clone() });
            } else {
                self.give_out(id, effects);
            }
            self.models.get_mut(&id).expect("it is still there").look = now;
        }
    }

    /// Gives out the route that is used.
    fn give_out(&mut self, manifest: ManifestId, effects: &mut Vec<Effect>) {
        self.last_number += 1;
        let number = self.last_number;
        let Some(plan) = self.models.get(&manifest).and_then(|model| model.used.as_ref()) else {
            return;
        };
        let legs = plan.stages.iter().map(|stage| {
            let nodes = [&[stage.node][..], &stage.twins, &stage.spares].concat();
            Leg { halves: stage.halves, nodes: nodes.iter().map(|node| self.hop(*node)).collect() }
        });
        let (front, legs, words) = (plan.front, legs.collect(), plan.words());
        // What this node has loaded stays as it is.
        if let Some(model) = self.models.get_mut(&manifest) {
            model.want.me.front = Some(front.end);
        }
        effects.push(Effect::Route { manifest, number, front, legs, words });
    }

    /// Where a node's lanes are, as it offers.
    pub fn hop(&self, node: NodeId) -> Hop {
        let offer = self.offers.of(node);
        let lanes: Vec<Address> = offer.map_or(Vec::new(), |offer| offer.content().lanes.clone());
        Hop { node: node.0.to_vec(), lanes, leg: 0 }
    }

    /// Looks for a route for a model, or for a better one.
    fn look(&mut self, now: Millis, id: ManifestId, effects: &mut Vec<Effect>) {
        let model = &self.models[&id];
        let planned = self.plan_for_less(now, &model.want);
        let used = model.used.as_ref();
        let pending = model.next.is_some();
        let next = match planned {
            Err(error) => {
                let (why, none) = (error.to_string(), used.is_none() && !pending);
                let model = self.models.get_mut(&id).expect("it was just there");
                model.look = now.plus(if none { RETRY_EVERY } else { IMPROVE_EVERY });
                if none && model.why != why {
                    effects.push(Effect::NoRoute { manifest: id, why: why.clone() });
                    model.why = why;
                }
                return;
            }
            Ok(plan) => plan,
        };
        let worth = used.is_none_or(|used| {
            let gain = u128::from(used.times.token_us()) * 100
                > u128::from(next.times.token_us()) * u128::from(100 + GAIN_PERCENT);
            let spares = |plan: &Plan| plan.stages.iter().filter(|s| !s.spares.is_empty()).count();
            (gain || spares(used) < spares(&next)) && next.front == used.front
        });
        let model = self.models.get_mut(&id).expect("it was just there");
        model.look = now.plus(if pending { RETRY_EVERY } else { IMPROVE_EVERY });
        if worth && !pending {
            self.prepare(now, id, next, effects);
        }
    }

    fn prepare(&mut self, now: Millis, id: ManifestId, plan: Plan, effects: &mut Vec<Effect>) {
        let manifest = &self.models[&id].want.manifest;
        let sources = self.sources(id);
        let mut parts = BTreeMap::new();
        for stage in &plan.stages {
            let own = [&[stage.node][..], &stage.twins].concat().into_iter().map(|n| (n, false));
            let nodes = own.chain(stage.spares.iter().map(|node| (*node, true)));
            for (node, spare) in nodes {
                let whole = manifest.work(stage.halves).memory;
                let progress = Progress { done: 0, whole, ready: false, heard: now, spare };
                let before = parts.insert((node, stage.halves), progress);
                if before.is_none() {
                    effects.push(Effect::Prepare {
                        node: self.hop(node),
                        manifest: id,
                        halves: stage.halves,
                        sources: sources.clone(),
                    });
                }
            }
        }
        effects.push(Effect::Say(format!("a route is being made ready: {}", plan.why)));
        let model = self.models.get_mut(&id).expect("it was just there");
        model.next = Some(Preparing { plan, begun: now, parts });
        model.look = now.plus(RETRY_EVERY);
    }

    /// Nodes that have the files of a model.
    fn sources(&self, id: ManifestId) -> Vec<Hop> {
        let has = self.offers.iter().filter(|(_, offer)| offer.content().has_file(id));
        has.take(15).map(|(node, _)| self.hop(node)).collect()
    }

    /// Rates that a node is believed to have.
    pub fn believed(&self, node: NodeId, claimed: Rates) -> Rates {
        self.beliefs.of(node).of(claimed)
    }
}

fn plan_words(model: &Model) -> String {
    model.used.as_ref().map_or(String::new(), |plan| plan.why.clone())
}

/// Takes those who are not ready out of a plan in which they only stand by.
fn leave_out(plan: &mut Plan, gone: &[(NodeId, Halves)]) {
    for stage in &mut plan.stages {
        stage.spares.retain(|node| !gone.contains(&(*node, stage.halves)));
    }
}

/// Takes a node out of a plan; whether there is still somebody for each stage.
fn without(plan: &mut Plan, node: NodeId) -> bool {
    for stage in &mut plan.stages {
        stage.twins.retain(|n| *n != node);
        stage.spares.retain(|n| *n != node);
        if stage.node == node {
            let next = match (stage.twins.is_empty(), stage.spares.is_empty()) {
                (false, _) => stage.twins.remove(0),
                (true, false) => stage.spares.remove(0),
                (true, true) => return false,
            };
            stage.node = next;
        }
    }
    true
}

#[cfg(test)]
mod tests;
