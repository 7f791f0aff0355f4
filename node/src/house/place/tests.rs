mod laws;

use wire::{Health, Held, ManifestId, Work};

use super::*;
use crate::house::fitness::{Observed, Resource};

const NOW: Millis = Millis(1_000_000);
const MODEL: ManifestId = ManifestId([7; 32]);
const MB: u64 = 1_000_000;

fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

/// A model of `layers`, each 20 MB of attention and 30 MB of feed-forward, with ends of 50 MB.
fn model(layers: usize, wish: Wish) -> Task {
    let half = |mb: u64| Work { memory: mb * MB, macs: mb * MB };
    Task {
        manifest: MODEL,
        class: "int8x-v1".into(),
        protocol: wire::PROTOCOL,
        halves: [half(20), half(30)].repeat(layers),
        ends: half(50),
        kv_bytes: 1000,
        wish,
    }
}

/// 1,000 positions: 1 MB of cache a layer.
fn short() -> Wish {
    Wish { positions: 1000, ..Wish::default() }
}

fn offer(memory_mb: u32) -> Offer {
    let health = Health {
        int8_gops: 400,
        read_mb_s: 10_000,
        mains: true,
        stability_permille: 900,
        ..Health::default()
    };
    Offer {
        sequence: NOW.0,
        life_ms: 60_000,
        protocol: wire::PROTOCOL,
        class: "int8x-v1".into(),
        health: Some(health),
        memory_free_mb: memory_mb,
        seats_free: 4,
        ..Offer::default()
    }
}

fn believed() -> Belief {
    let claimed = Rates { int8_gops: u32::MAX, read_mb_s: u32::MAX };
    let mut belief = Belief::default();
    for resource in [Resource::Read, Resource::Compute] {
        let seen = Observed { resource, claimed, predicted_us: 1, taken_us: 1 };
        (0..200).for_each(|_| belief.observe(seen));
    }
    belief
}

/// Some nodes, all at the same distance from one another.
#[derive(Debug)]
struct World {
    me: Me,
    others: Vec<(NodeId, Offer, Belief)>,
    rtt_us: u64,
    refusals: Refusals,
}

impl World {
    /// This node with `own_mb`, and others that offer so much.
    fn of(own_mb: u64, others: &[u32]) -> Self {
        let rates = Rates { int8_gops: 400, read_mb_s: 10_000 };
        let me = Me { node: id(0), memory_bytes: own_mb * MB, rates, whole: true, front: None };
        let each = others.iter().zip(1..);
        let others = each.map(|(mb, n)| (id(n), offer(*mb), believed())).collect();
        Self { me, others, rtt_us: 1000, refusals: Refusals::default() }
    }

    fn at(self, rtt_us: u64) -> Self {
        Self { rtt_us, ..self }
    }

    /// Everybody has the model's file.
    fn with_files(mut self) -> Self {
        self.others.iter_mut().for_each(|(_, offer, _)| offer.files = vec![MODEL.0.to_vec()]);
        self
    }

    fn place(&self, task: &Task) -> Result<Plan, NoRoute> {
        let candidate =
            |(node, offer, belief): &'_ (NodeId, Offer, Belief)| (*node, *belief, offer.clone());
        let all: Vec<_> = self.others.iter().map(candidate).collect();
        let candidates: Vec<_> = all
            .iter()
            .map(|(node, belief, offer)| Candidate {
                node: *node,
                offer,
                rtt_us: self.rtt_us,
                belief: *belief,
            })
            .collect();
        let roads = |_, _| self.rtt_us;
        let (now, me, refusals) = (NOW, self.me, &self.refusals);
        place(task, &Scene { now, me, candidates: &candidates, roads: &roads, refusals })
    }
}

fn ranges(plan: &Plan) -> Vec<(NodeId, String)> {
    plan.stages.iter().map(|stage| (stage.node, stage.halves.to_string())).collect()
}

#[test]
fn a_model_that_fits_here_is_not_split_and_the_plan_says_what_that_would_cost() {
    // 50 MB of ends and 20 layers of 50 MB at 10 GB/s make 105 ms.
    let plan = World::of(4000, &[4000, 4000]).at(20_000).place(&model(20, short())).unwrap();
    assert_eq!((plan.stages.len(), plan.front), (0, Halves::new(0, 40)));
    assert_eq!(plan.times.token_us(), 105_000);
    assert_eq!(plan.alone.map(|alone| alone.node), Some(id(0)));
    let why = "Not split, for all fits here. Alone: 105.0 ms a token; \
               2 stages over 20.0 ms round trip: 135.4 ms a token.";
    assert_eq!(plan.why, why);
}

#[test]
fn one_other_node_takes_all_the_rest_before_two_share_it() {
    let plan = World::of(400, &[4000, 4000]).place(&model(20, short())).unwrap();
    assert_eq!(plan.stages.len(), 1);
    assert_eq!(plan.alone.map(|alone| alone.node), Some(plan.stages[0].node));
    assert!(plan.why.starts_with("Not split further"), "{}", plan.why);
    assert_eq!(plan.stages[0].spares, [id(2)]);
    assert_eq!(plan.front.start, 0);
    assert_eq!(plan.front.end, plan.stages[0].halves.start);
}

#[test]
fn a_fast_node_gets_all_but_the_first_layer_and_a_slow_one_little() {
    let mut world = World::of(4000, &[4000]).with_files();
    world.others[0].1.health.as_mut().unwrap().read_mb_s = 100_000;
    let plan = world.place(&model(20, short())).unwrap();
    assert_eq!(ranges(&plan), [(id(1), "1-19".into())]);
    world.me.memory_bytes = 800 * MB;
    world.others[0].1.health.as_mut().unwrap().read_mb_s = 1_000;
    let plan = world.place(&model(20, short())).unwrap();
    // 800 MB less ends and overhead leave 13 layers of 51 MB.
    assert_eq!(plan.front, Halves::new(0, 26));
    assert!(plan.front_bytes <= world.me.memory_bytes);
}

#[test]
fn two_fast_nodes_are_used_where_splitting_is_faster() {
    let mut world = World::of(4000, &[700, 700]).at(100).with_files();
    for (_, offer, _) in &mut world.others {
        offer.health.as_mut().unwrap().read_mb_s = 100_000;
    }
    let plan = world.place(&model(20, short())).unwrap();
    assert_eq!(plan.stages.len(), 2);
    assert!(plan.why.starts_with("Split, for it is faster."), "{}", plan.why);
}

#[test]
fn stages_that_are_asked_for_are_made_and_their_cost_is_told() {
    let wish = Wish { stages_min: 2, ..short() };
    let plan = World::of(4000, &[4000, 4000]).at(20_000).place(&model(20, wish)).unwrap();
    assert_eq!(plan.stages.len(), 2);
    let why = "2 stages were asked for: 135.4 ms a token instead of 105.0 ms by one node alone.";
    assert_eq!(plan.why, why);
}

#[test]
fn the_fewest_stages_that_fit_are_made() {
    // A layer takes 51 MB; 500 MB less overhead hold 8, 300 MB 4; here are 2.
    let others = [300, 500, 300, 500, 300, 500];
    let plan = World::of(220, &others).place(&model(24, short())).unwrap();
    assert_eq!(plan.stages.len(), 3, "{:?}", ranges(&plan));
    assert!(plan.alone.is_none());
    assert!(plan.why.contains("the fewest that fit"), "{}", plan.why);
    let others = [300; 12];
    let plan = World::of(220, &others).place(&model(40, short())).unwrap();
    assert_eq!(plan.stages.len(), 10, "{:?}", ranges(&plan));
}

#[test]
fn what_is_in_memory_comes_before_what_is_on_disk_and_that_before_what_must_be_fetched() {
    let mut world = World::of(400, &[2000, 2000, 2000]);
    let plan = world.place(&model(20, short())).unwrap();
    assert_eq!(plan.stages[0].stock, Stock::Network);
    world.others[1].1.files = vec![MODEL.0.to_vec()];
    let plan = world.place(&model(20, short())).unwrap();
    assert_eq!((plan.stages[0].node, plan.stages[0].stock), (id(2), Stock::Disk));
    let halves = Some(Halves::new(4, 40));
    let held = Held { manifest: MODEL.0.to_vec(), halves, positions_free: 1000 };
    world.others[2].1.held = vec![held];
    let plan = world.place(&model(20, short())).unwrap();
    let stage = &plan.stages[0];
    assert_eq!((stage.node, stage.stock, stage.memory_bytes), (id(3), Stock::Memory, 0));
    assert_eq!(stage.halves.start, plan.front.end);
    assert!(Halves::new(4, 40).covers(stage.halves));
    world.others[2].1.held[0].positions_free = 10;
    let plan = world.place(&model(20, short())).unwrap();
    let kv = plan.stages[0].halves.attentions() as u64 * MB;
    assert_eq!(plan.stages[0].memory_bytes, kv, "caches that are not there are counted");
}

#[test]
fn a_node_that_claimed_ten_times_what_it_does_is_passed_over() {
    let mut world = World::of(400, &[4000, 4000]).with_files();
    let loud = world.others[0].1.health.as_mut().unwrap();
    loud.read_mb_s = 50_000;
    assert_eq!(world.place(&model(20, short())).unwrap().stages[0].node, id(1));
    let claimed = Rates { int8_gops: 400, read_mb_s: 50_000 };
    let (resource, predicted_us, taken_us) = (Resource::Read, 1000, 10_000);
    for _ in 0..20 {
        let seen = Observed { resource, claimed, predicted_us, taken_us };
        world.others[0].2.observe(seen);
    }
    assert_eq!(world.place(&model(20, short())).unwrap().stages[0].node, id(2));
}

#[test]
fn who_cannot_take_part_is_left_out_and_counted() {
    let mut world = World::of(400, &[4000, 4000, 4000, 4000, 4000]);
    world.others[0].1.protocol += 1;
    world.others[1].1.class = "float".into();
    world.others[2].1.sequence = NOW.0 - 60_000;
    world.others[3].1.seats_free = 0;
    world.refusals.node(id(5), Until::ProofOfLife);
    let sieved = Sieved { foreign: 2, expired: 1, refused: 1, full: 1 };
    let refused = world.place(&model(20, short())).unwrap_err();
    // 1,020 MB are wanted, and 400 MB less 50 MB of ends and the overhead are here.
    let needs = 1020 * MB - (350 * MB - OVERHEAD_BYTES);
    assert_eq!(refused, NoRoute::Nobody { needs, offers: 5, sieved });
    world.refusals.lives(id(5));
    assert_eq!(world.place(&model(20, short())).unwrap().stages[0].node, id(5));
}

#[test]
fn what_cannot_be_held_is_refused_with_the_numbers() {
    let task = model(20, short());
    let refused = World::of(100, &[4000]).place(&task).unwrap_err();
    let needs = 101 * MB + OVERHEAD_BYTES;
    assert_eq!(refused, NoRoute::FrontTooLarge { needs, has: 100 * MB, positions: 1000 });
    let refused = World::of(400, &[100, 200]).place(&task).unwrap_err();
    let needs = 670 * MB + OVERHEAD_BYTES;
    assert_eq!(refused, NoRoute::TooLittle { needs, offered: 300 * MB, nodes: 2 });
    let refused = World::of(400, &[110; 10]).place(&task).unwrap_err();
    assert!(matches!(refused, NoRoute::NoCut { nodes: 10, .. }), "{refused}");
    let empty = Task { halves: Vec::new(), ..task.clone() };
    let refused = World::of(400, &[]).place(&empty).unwrap_err();
    assert!(matches!(refused, NoRoute::Shape { halves: 0, .. }), "{refused}");
    let absurd = Task { ends: Work { memory: u64::MAX, macs: 0 }, ..task };
    let refused = World::of(400, &[]).place(&absurd).unwrap_err();
    assert!(matches!(refused, NoRoute::TooLarge { .. }), "{refused}");
}

#[test]
fn a_range_that_was_refused_is_not_asked_for_again_and_a_smaller_one_may_be() {
    let mut world = World::of(400, &[4000]);
    let task = model(20, short());
    let first = world.place(&task).unwrap().stages[0].clone();
    let smaller = Halves { start: first.halves.start, end: first.halves.end - 4 };
    world.refusals.range(first.node, MODEL, smaller, Until::Time(NOW.plus(1000)));
    let refused = world.place(&task).unwrap_err();
    assert!(matches!(refused, NoRoute::NoCut { .. }), "{refused}");
    world.others.push((id(2), offer(4000), believed()));
    let plan = world.place(&task).unwrap();
    assert!(plan.stages.iter().all(|s| s.node != id(1) || !s.halves.covers(smaller)));
    assert!(!plan.stages[0].spares.contains(&id(1)));
}

#[test]
fn cuts_within_layers_fit_where_whole_layers_do_not() {
    // Beside the overhead there is room for 92 MB: a layer and a half, but not two; one layer is here.
    let world = World::of(190, &[160, 160, 160]);
    let task = model(5, Wish { cuts: Cuts::Halves, ..short() });
    let plan = world.place(&task).unwrap();
    assert_eq!(plan.stages.len(), 3);
    assert!(plan.stages.iter().any(|stage| stage.halves.start % 2 == 1), "{:?}", ranges(&plan));
    let plan = world.place(&model(2, task.wish)).unwrap();
    assert!(plan.stages.iter().all(|stage| stage.halves.start % 2 == 0), "{:?}", ranges(&plan));
}

#[test]
fn a_model_is_cut_just_where_that_is_asked_for() {
    let world = World::of(400, &[400, 400, 400]);
    let at = |marks: &[u32]| Wish { cuts: Cuts::Before(Marks::new(marks).unwrap()), ..short() };
    for marks in [&[2][..], &[3], &[9], &[2, 3], &[3, 8], &[4, 5, 7]] {
        let plan = world.place(&model(5, at(marks))).unwrap();
        let starts: Vec<u32> = plan.stages.iter().map(|stage| stage.halves.start).collect();
        assert_eq!((plan.front.end, &starts[..]), (marks[0], marks));
    }
    let refused = world.place(&model(5, at(&[4, 10]))).unwrap_err();
    assert_eq!(refused, NoRoute::NoSuchCut { cut: 10, end: 10 });
    // A fourth stage would have to be one of the others again.
    let refused = world.place(&model(5, at(&[4, 5, 6, 7]))).unwrap_err();
    assert!(matches!(refused, NoRoute::NoCut { .. }), "{refused}");
}

#[test]
fn attention_and_feed_forward_are_set_apart_when_that_is_asked_for() {
    let wish = Wish { cuts: Cuts::AlphaBeta, ..short() };
    let world = World::of(400, &[300, 400]);
    let plan = world.place(&model(10, wish)).unwrap();
    assert_eq!(plan.front, Halves::new(0, 2));
    assert_eq!(plan.stages.len(), 18);
    for stage in &plan.stages {
        let role = if stage.halves.start % 2 == 0 { id(1) } else { id(2) };
        assert_eq!((stage.node, stage.halves.count()), (role, 1));
    }
    assert!(plan.why.starts_with("Attention and feed-forward were asked to be apart"));
    let lines = plan.explain();
    assert!(lines.iter().any(|line| line.contains("1-9 attention")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("1-9 feed-forward")), "{lines:#?}");
    let refused = World::of(400, &[300]).place(&model(10, wish)).unwrap_err();
    assert!(matches!(refused, NoRoute::TooLittle { .. } | NoRoute::NoCut { .. }), "{refused}");
}

#[test]
fn attention_and_feed_forward_are_set_apart_when_nothing_else_fits() {
    // One refuses every feed-forward half, the other every attention half: no contiguous range of two
    // halves is left to anybody.
    let mut world = World::of(170, &[2000, 2000]);
    for layer in 0..40 {
        let half = |h: usize| Halves::new(2 * layer + h, 2 * layer + h + 1);
        world.refusals.range(id(1), MODEL, half(1), Until::ProofOfLife);
        world.refusals.range(id(2), MODEL, half(0), Until::ProofOfLife);
    }
    let plan = world.place(&model(40, short())).unwrap();
    assert_eq!(plan.stages.len(), 78);
    assert!(plan.why.contains("attention and feed-forward apart"), "{}", plan.why);
}

#[test]
fn replicas_and_spares_are_other_nodes_with_memory_of_their_own() {
    let wish = Wish { replicas: 2, ..short() };
    let plan = World::of(400, &[4000, 4000, 4000, 50]).place(&model(20, wish)).unwrap();
    let stage = &plan.stages[0];
    let mut all = vec![stage.node];
    all.extend(stage.twins.iter().chain(&stage.spares));
    all.sort();
    assert_eq!((stage.twins.len(), stage.spares.len()), (1, 1));
    assert_eq!(all, [id(1), id(2), id(3)]);
    let plan = World::of(400, &[4000]).place(&model(20, wish)).unwrap();
    assert!(plan.why.ends_with("2 replicas were asked for; a stage has only 1."), "{}", plan.why);
}

#[test]
fn a_plan_is_explained_in_a_table_and_sentences() {
    let others = [300, 500, 300, 500, 300, 500];
    let lines = World::of(220, &others).place(&model(24, short())).unwrap().explain();
    assert!(lines[0].starts_with("stage  node"), "{lines:#?}");
    assert!(lines[1].contains("this node") && lines[1].contains("+ ends"), "{lines:#?}");
    assert!(lines[2].contains("to be fetched") && lines[2].contains("1.0 ms"), "{lines:#?}");
    assert_eq!(lines.len(), 1 + 1 + 3 + 3, "{lines:#?}");
    assert!(lines[5].contains("a token: ") && lines[5].contains("first token after"));
    assert!(lines[6].starts_with("Weights are in memory after "));
}
