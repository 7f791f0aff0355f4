//! A hive's planning, as data: what happens in, what is to be done out.

use wire::{Health, Key, Manifest, Part, Verified, Work};

use super::*;
use crate::house::fitness::Rates;

const START: u64 = 1_000_000;
const MB: u64 = 1_000_000;

fn key(n: u8) -> Key {
    Key::new([n; 32])
}

fn id(n: u8) -> NodeId {
    key(n).id()
}

/// A model of 8 layers of 100 MB, with ends of 50 MB.
fn manifest() -> Manifest {
    let part = |mb: u64| Part {
        root: vec![1; 32],
        chunks: mb as u32,
        bytes: mb * MB,
        work: Some(Work { memory: mb * MB, macs: mb * MB }),
    };
    Manifest {
        name: "eight".into(),
        class: "int8x-v1".into(),
        width: 64,
        context: 4096,
        header: Some(part(1)),
        ends: Some(part(50)),
        halves: (0..16).map(|half| part(if half % 2 == 0 { 40 } else { 60 })).collect(),
        kv_bytes: 100,
        ..Manifest::default()
    }
}

/// A planner and the nodes around it.
struct World {
    hive: Hive,
    now: u64,
    done: Vec<Effect>,
}

impl World {
    /// Node 0 with 300 MB wants the model computed.
    fn new() -> Self {
        let mut world = Self { hive: Hive::new(id(0)), now: START, done: Vec::new() };
        let rates = Rates { int8_gops: 400, read_mb_s: 10_000 };
        let memory_bytes = 300 * MB;
        let me = Me { node: id(0), memory_bytes, rates, whole: true, front: None };
        let wish = Wish { positions: 1000, ..Wish::default() };
        world.happens(Input::Want(Box::new(Want { manifest: manifest(), wish, me })));
        world
    }

    fn happens(&mut self, input: Input) {
        let effects = self.hive.handle(Millis(self.now), input);
        self.done.extend(effects.into_iter().filter(|effect| !matches!(effect, Effect::Wake(_))));
    }

    /// Time passes in steps of 100 ms, offers are renewed by those that live.
    fn pass(&mut self, ms: u64, alive: &[u8]) {
        for _ in 0..ms / 100 {
            self.now += 100;
            if self.now.is_multiple_of(5_000) {
                alive.iter().for_each(|n| self.offers(*n, 900));
            }
            self.happens(Input::Tick);
        }
    }

    fn offers(&mut self, n: u8, memory_mb: u32) {
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
            memory_free_mb: memory_mb,
            seats_free: 4,
            ..Offer::default()
        };
        let offer = Verified::sign(offer, &key(n)).unwrap();
        self.happens(Input::Offer(Box::new(offer)));
    }

    /// Who was asked to get ready for what since the last look.
    fn asked(&self) -> Vec<(NodeId, Halves)> {
        let each = self.done.iter().filter_map(|effect| match effect {
            Effect::Prepare { node, halves, .. } => Some((node.node(), *halves)),
            _ => None,
        });
        each.collect()
    }

    /// All that were asked get ready.
    fn all_ready(&mut self) {
        for (node, halves) in self.asked() {
            let manifest = manifest().id();
            self.happens(Input::Prepared {
                node,
                manifest,
                halves,
                done: 1,
                whole: 1,
                ready: true,
            });
        }
    }

    /// The last route that was given out: the nodes of each stage.
    fn route(&self) -> Option<Vec<Vec<NodeId>>> {
        self.done.iter().rev().find_map(|effect| match effect {
            Effect::Route { legs, .. } => {
                let nodes = |leg: &Leg| leg.nodes.iter().map(Hop::node).collect();
                Some(legs.iter().map(nodes).collect())
            }
            _ => None,
        })
    }

    fn uses(&self, n: u8) -> bool {
        self.route().is_some_and(|legs| legs.iter().flatten().any(|node| *node == id(n)))
    }
}

#[test]
fn a_route_is_given_out_when_all_its_stages_are_ready_and_not_before() {
    let mut world = World::new();
    assert!(world.done.iter().any(|e| matches!(e, Effect::NoRoute { .. })), "nobody is here");
    world.offers(1, 900);
    let asked = world.asked();
    assert!(!asked.is_empty() && world.route().is_none());
    world.all_ready();
    assert_eq!(world.route(), Some(vec![vec![id(1)]]));
    assert!(matches!(world.hive.stand(Millis(world.now), manifest().id()), Some(Stand::Used(_))));
}

#[test]
fn a_spare_takes_the_place_of_a_lost_node_at_once() {
    let mut world = World::new();
    world.offers(1, 900);
    world.all_ready();
    // A newcomer is soon asked to stand by, and is part of the route when it is ready.
    world.offers(2, 900);
    world.pass(SPARES_SOON, &[]);
    world.all_ready();
    let lost = world.route().unwrap()[0][0];
    let spare = world.route().unwrap()[0][1];
    world.done.clear();
    world.happens(Input::Dropped { node: lost, why: "is silent".into() });
    assert_eq!(world.route(), Some(vec![vec![spare]]));
}

/// mesh-llm PR#568
#[test]
fn a_lost_node_is_in_no_plan_until_it_has_rested_and_shown_that_it_lives() {
    let mut world = World::new();
    world.offers(1, 900);
    world.all_ready();
    assert!(world.uses(1));
    world.done.clear();
    world.happens(Input::Dropped { node: id(1), why: "is silent".into() });
    assert!(world.done.iter().any(|e| matches!(e, Effect::NoRoute { .. })));
    // Nothing is heard of it: however long that takes, it is not asked.
    world.pass(50_000, &[]);
    assert_eq!(world.asked(), []);
    // An offer from before its death is no sign of life.
    let later = std::mem::replace(&mut world.now, START);
    world.offers(1, 900);
    world.now = later;
    world.pass(5_000, &[]);
    assert_eq!(world.asked(), []);
    world.offers(1, 900);
    world.pass(1_000, &[]);
    assert!(!world.asked().is_empty(), "it lives");
}

#[test]
fn a_node_that_has_rested_is_asked_whether_it_lives_ever_more_seldom() {
    let mut world = World::new();
    world.offers(1, 900);
    world.all_ready();
    world.done.clear();
    world.happens(Input::Dropped { node: id(1), why: "is silent".into() });
    let asks = |world: &World| world.done.iter().filter(|e| **e == Effect::Ask(id(1))).count();
    world.pass(2_900, &[]);
    assert_eq!(asks(&world), 0, "it rests");
    world.pass(1_000, &[]);
    assert_eq!(asks(&world), 1);
    world.pass(50_000, &[]);
    assert!((4..=6).contains(&asks(&world)), "{}", asks(&world));
    assert_eq!(world.asked(), []);
    world.happens(Input::Answered(id(1)));
    assert!(!world.asked().is_empty(), "it lives");
    world.all_ready();
    world.done.clear();
    world.pass(50_000, &[1]);
    assert_eq!(asks(&world), 0, "nobody doubts it");
}

#[test]
fn who_fails_again_and_again_rests_ever_longer() {
    let mut world = World::new();
    world.offers(1, 900);
    let mut waits = Vec::new();
    for _ in 0..5 {
        world.pass(1_000, &[1]);
        let since = world.now;
        while world.asked().is_empty() {
            world.pass(1_000, &[1]);
            assert!(world.now < since + 120_000, "it is asked again");
        }
        waits.push(world.now - since);
        world.done.clear();
        world.happens(Input::Dropped { node: id(1), why: "is silent".into() });
        world.done.clear();
    }
    assert!(waits.is_sorted() && waits[4] > 20_000, "{waits:?}");
}

#[test]
fn who_asks_for_stages_waits_for_others_and_is_not_left_with_a_route_of_none() {
    let mut world = World::new();
    let rates = Rates { int8_gops: 400, read_mb_s: 10_000 };
    let me = Me { node: id(0), memory_bytes: 9_000 * MB, rates, whole: true, front: None };
    let wish = Wish { positions: 1000, stages_min: 1, ..Wish::default() };
    world.happens(Input::Want(Box::new(Want { manifest: manifest(), wish, me })));
    world.offers(1, 900);
    world.all_ready();
    assert!(world.uses(1));
    world.done.clear();
    world.happens(Input::Dropped { node: id(1), why: "is silent".into() });
    world.pass(10_000, &[]);
    assert!(world.done.iter().any(|effect| matches!(effect, Effect::NoRoute { .. })));
    let begins =
        |effect: &&Effect| matches!(effect, Effect::Say(text) if text.contains("made ready"));
    assert_eq!(world.done.iter().find(begins), None);
    world.pass(20_000, &[1]);
    assert!(!world.asked().is_empty(), "it is asked again when it lives");
}

#[test]
fn a_failure_that_many_answers_tell_of_is_one_failure() {
    let mut world = World::new();
    world.offers(1, 900);
    world.all_ready();
    world.done.clear();
    for _ in 0..8 {
        world.happens(Input::Dropped { node: id(1), why: "is silent".into() });
    }
    let said = world.done.iter().filter(|effect| matches!(effect, Effect::Say(_))).count();
    assert_eq!(said, 1, "{:?}", world.done);
    let since = world.now;
    world.done.clear();
    while world.asked().is_empty() {
        world.pass(1_000, &[1]);
        assert!(world.now < since + 6_000, "it is asked again after the first rest");
    }
}

#[test]
fn what_a_node_refused_is_not_asked_of_it_again_soon() {
    let mut world = World::new();
    world.offers(1, 900);
    let (node, halves) = world.asked()[0];
    world.done.clear();
    let (manifest, why) = (manifest().id(), "it takes 700 MB".into());
    world.happens(Input::Unprepared { node, manifest, halves, why, refused: true });
    world.pass(REFUSED_FOR - 1_000, &[1]);
    assert!(!world.asked().contains(&(node, halves)), "{:?}", world.asked());
    world.pass(5_000, &[1]);
    assert!(world.asked().contains(&(node, halves)));
}

#[test]
fn a_node_that_says_nothing_while_it_gets_ready_is_named_and_left_out() {
    let mut world = World::new();
    world.offers(1, 900);
    world.pass(READY_SILENCE_MAX + 1_000, &[]);
    let said = |effect: &Effect| matches!(effect, Effect::Say(text) if text.contains(&id(1).short()) && text.contains("said nothing"));
    assert!(world.done.iter().any(said), "{:?}", world.done);
    assert!(!world.uses(1));
}

/// parallax#166, #342
#[test]
fn who_leaves_and_comes_back_ten_times_counts_once() {
    let mut world = World::new();
    for _ in 0..10 {
        world.offers(1, 900);
        world.happens(Input::Left(id(1)));
        world.pass(1_000, &[]);
    }
    assert_eq!(world.hive.offers().count(), 1);
}

/// mesh-llm PR#601
#[test]
fn offers_of_650_that_are_gone_do_no_harm() {
    let mut world = World::new();
    for n in 0..650u32 {
        let mut secret = [9; 32];
        secret[..4].copy_from_slice(&n.to_le_bytes());
        let own = Key::new(secret);
        let health = Some(Health::default());
        let offer = Offer {
            sequence: world.now,
            life_ms: 1_000,
            protocol: wire::PROTOCOL,
            class: "int8x-v1".into(),
            health,
            ..Offer::default()
        };
        let offer = Verified::sign(offer, &own).unwrap();
        world.happens(Input::Offer(Box::new(offer)));
    }
    world.pass(5_000, &[]);
    world.offers(1, 900);
    world.all_ready();
    assert!(world.uses(1));
    assert_eq!(world.hive.offers().count(), 1, "the others have expired");
}
