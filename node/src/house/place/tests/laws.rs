//! What holds of every plan, whatever nodes say.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::{Health, Held, Work};

use super::*;

/// Numbers that are usual, and those at the edges.
fn odd(usual: std::ops::Range<u64>) -> impl Strategy<Value = u64> + Clone {
    prop_oneof![8 => usual, 1 => Just(0), 1 => Just(1), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn odd32(usual: std::ops::Range<u64>) -> impl Strategy<Value = u32> + Clone {
    odd(usual).prop_map(|n| n.min(u64::from(u32::MAX)) as u32)
}

fn task() -> impl Strategy<Value = Task> {
    let work = (odd(1..60), odd(1..60)).prop_map(|(mb, macs)| Work {
        memory: mb.saturating_mul(MB),
        macs: macs.saturating_mul(MB),
    });
    let before = prop::collection::btree_set(2u32..12, 1..4);
    let before = before.prop_map(Vec::from_iter);
    let before = before.prop_map(|marks| Cuts::Before(Marks::new(&marks).expect("in order")));
    let cuts = prop_oneof![Just(Cuts::Layers), Just(Cuts::Halves), Just(Cuts::AlphaBeta), before];
    let wish = (odd32(1..4000), odd32(1..3), 0u32..5, 0u32..5, odd32(1..500), odd32(1..500), cuts);
    let most = (prop_oneof![3 => Just(0u32), 1 => 1u32..8], 0u32..3);
    let usual = prop::collection::vec(
        (1u64..60).prop_map(|mb| Work { memory: mb * MB, macs: mb * MB }),
        2..24,
    );
    let halves = prop_oneof![4 => usual, 1 => prop::collection::vec(work, 0..12)];
    (halves, odd(1..60), odd32(0..2000), wish, most).prop_map(
        |(mut halves, ends, kv_bytes, wish, (layers_max, spares))| {
            if halves.len() % 2 == 1 && halves.len() > 5 {
                halves.pop();
            }
            let (positions, sequences, stages_min, replicas, prompt, answer, cuts) = wish;
            let ends = Work { memory: ends.saturating_mul(MB), macs: ends };
            let wish = Wish {
                positions,
                sequences,
                stages_min,
                layers_max,
                spares,
                replicas,
                prompt,
                answer,
                cuts,
            };
            Task { halves, ends, kv_bytes, ..model(1, wish) }
        },
    )
}

fn other() -> impl Strategy<Value = (Offer, Belief)> {
    let held = (0u32..24, 0u32..24, odd32(0..4000));
    let held = prop::collection::vec(held, 0..3);
    let numbers =
        (odd32(50..900), odd32(1..5), odd32(1000..50_000), odd32(10..900), odd32(0..1000));
    (numbers, held, any::<bool>(), any::<bool>()).prop_map(|(numbers, held, file, known)| {
        let (memory_free_mb, seats_free, read_mb_s, int8_gops, throttled_permille) = numbers;
        let range = |(start, end, positions_free)| Held {
            manifest: MODEL.0.to_vec(),
            halves: Some(Halves { start, end }),
            positions_free,
        };
        let health = Health { read_mb_s, int8_gops, throttled_permille, ..Health::default() };
        let offer = Offer {
            seats_free,
            health: Some(health),
            held: held.into_iter().map(range).collect(),
            files: if file { vec![MODEL.0.to_vec()] } else { Vec::new() },
            ..offer(memory_free_mb)
        };
        (offer, if known { believed() } else { Belief::default() })
    })
}

fn world() -> impl Strategy<Value = World> {
    let others = prop::collection::vec(other(), 0..12);
    (odd(100..900), odd(100..50_000), any::<bool>(), others).prop_map(
        |(own, rtt_us, whole, others)| {
            let world = World::of(0, &[]);
            let me = Me { memory_bytes: own.saturating_mul(MB), whole, ..world.me };
            let others =
                others.into_iter().zip(1..).map(|((offer, belief), n)| (id(n), offer, belief));
            World { me, others: others.collect(), rtt_us, ..world }
        },
    )
}

/// What must hold of a plan for `task` in `world`.
fn check(task: &Task, world: &World, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert!(plan.front.start == 0 && plan.front.end >= 2);
    let mut at = plan.front.end;
    for stage in &plan.stages {
        prop_assert_eq!(stage.halves.start, at);
        prop_assert!(stage.halves.end > at);
        let most = 2 * task.wish.layers_max;
        prop_assert!(most == 0 || stage.halves.end - at <= most);
        at = stage.halves.end;
        if task.wish.cuts == Cuts::Layers && plan.stages.len() <= STAGES_MAX as usize {
            let apart = plan.stages.iter().all(|stage| stage.halves.count() == 1);
            prop_assert!(apart || stage.halves.start % 2 == 0);
        }
    }
    prop_assert_eq!(at as usize, task.halves.len());
    match task.wish.cuts {
        // Whoever names the cuts has said how many stages there are.
        Cuts::Before(marks) => {
            let starts = plan.stages.iter().map(|stage| stage.halves.start);
            prop_assert!(starts.eq(marks.iter()));
        }
        _ => prop_assert!(plan.stages.len() >= task.wish.stages_min as usize),
    }
    check_memory(task, world, plan)?;
    let lines = plan.explain();
    prop_assert!(lines.len() >= 4 && lines.iter().all(|line| !line.is_empty()));
    Ok(())
}

/// Adds up again what each node must hold, and compares with what it offers.
fn check_memory(task: &Task, world: &World, plan: &Plan) -> Result<(), TestCaseError> {
    let weights =
        |halves: Halves| task.halves[halves.range()].iter().map(|w| w.memory).sum::<u64>();
    let kv =
        |halves: Halves| task.positions() * u64::from(task.kv_bytes) * halves.attentions() as u64;
    let front = task.ends.memory + weights(plan.front) + kv(plan.front) + OVERHEAD_BYTES;
    prop_assert_eq!(front, plan.front_bytes);
    prop_assert!(front <= world.me.memory_bytes);
    let mut taken: BTreeMap<NodeId, Vec<Halves>> = BTreeMap::new();
    let mut told: BTreeMap<NodeId, u64> = BTreeMap::new();
    for stage in &plan.stages {
        *told.entry(stage.node).or_default() += stage.memory_bytes;
        let all = [&[stage.node][..], &stage.twins, &stage.spares].concat();
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        prop_assert_eq!(distinct.len(), all.len());
        all.into_iter().for_each(|node| taken.entry(node).or_default().push(stage.halves));
    }
    for (node, ranges) in taken {
        let offer = &world.others.iter().find(|(id, _, _)| *id == node).unwrap().1;
        let (mut needs, mut fresh) = (0, 0);
        for halves in ranges {
            let held = offer.held.iter().filter(|held| held.halves.unwrap().covers(halves));
            let there = held.clone().next().is_some();
            let caches =
                held.clone().any(|held| u64::from(held.positions_free) >= task.positions());
            needs += if there { 0 } else { weights(halves) };
            needs += if caches { 0 } else { kv(halves) };
            fresh = if there { fresh } else { OVERHEAD_BYTES };
        }
        let offered = u64::from(offer.memory_free_mb) * MB;
        prop_assert!(needs + fresh <= offered, "{needs} of {offered}");
        prop_assert!(told.get(&node).is_none_or(|told| *told <= offered));
    }
    Ok(())
}

/// Every way over `count` others with whole layers, judged by the planner's own cost model.
fn exhaustive(task: &Task, world: &World, count: usize) -> Option<u64> {
    let candidates: Vec<_> = world
        .others
        .iter()
        .map(|(node, offer, belief)| Candidate {
            node: *node,
            offer,
            rtt_us: world.rtt_us,
            belief: *belief,
        })
        .collect();
    let roads = |_, _| world.rtt_us;
    let (now, me, refusals) = (NOW, world.me, &world.refusals);
    let scene = Scene { now, me, candidates: &candidates, roads: &roads, refusals };
    let (case, _) = Case::of(task, &scene).ok()?;
    let mut best = None;
    let fronts = (2..=case.sums.end()).step_by(2);
    for end in fronts {
        let front = Halves { start: 0, end };
        if case.sums.both(front) <= case.front_room() {
            onwards(&case, front, &mut Vec::new(), count, &mut best);
        }
    }
    best
}

fn onwards(
    case: &Case,
    front: Halves,
    stages: &mut Vec<(usize, Halves)>,
    count: usize,
    best: &mut Option<u64>,
) {
    let at = stages.last().map_or(front.end, |(_, halves)| halves.end);
    if count == 0 {
        if at == case.sums.end() {
            let score = case.route(front, stages.clone()).unwrap().score;
            *best = Some(best.map_or(score, |best: u64| best.min(score)));
        }
        return;
    }
    for i in 0..case.ables.len() {
        for end in (at + 2..=case.sums.end()).step_by(2) {
            let halves = Halves { start: at, end };
            let used = stages.iter().any(|(j, _)| case.ables[*j].node == case.ables[i].node);
            if !used && case.ables[i].takes(&case.sums, halves) {
                stages.push((i, halves));
                onwards(case, front, stages, count - 1, best);
                stages.pop();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_plan_covers_the_model_once_and_asks_nobody_for_more_than_is_offered(task in task(), world in world()) {
        match world.place(&task) {
            Ok(plan) => {
                check(&task, &world, &plan)?;
                prop_assert_eq!(world.place(&task).unwrap(), plan, "the same plan again");
            }
            Err(refused) => prop_assert!(!refused.to_string().is_empty()),
        }
    }

    #[test]
    fn a_refused_plan_is_never_made_again(task in task(), mut world in world(), picks in prop::collection::vec((0u8..3, any::<usize>()), 1..12)) {
        let mut refused: Vec<(NodeId, Halves)> = Vec::new();
        let mut routes: Vec<Vec<NodeId>> = Vec::new();
        let mut dead: Vec<NodeId> = Vec::new();
        for (kind, pick) in picks {
            let Ok(plan) = world.place(&task) else { break };
            check(&task, &world, &plan)?;
            let route: Vec<_> = plan.stages.iter().map(|stage| stage.node).collect();
            prop_assert!(!routes.contains(&route));
            for stage in &plan.stages {
                for node in [&[stage.node][..], &stage.twins, &stage.spares].concat() {
                    prop_assert!(!dead.contains(&node));
                    prop_assert!(!refused.contains(&(node, stage.halves)));
                }
            }
            let stage = plan.stages.get(pick % plan.stages.len().max(1));
            match (kind, stage) {
                (0, Some(stage)) => {
                    refused.push((stage.node, stage.halves));
                    world.refusals.range(stage.node, MODEL, stage.halves, Until::Time(NOW.plus(1)));
                }
                (1, Some(stage)) => {
                    dead.push(stage.node);
                    world.refusals.node(stage.node, Until::ProofOfLife);
                }
                _ => {
                    world.refusals.plan(&plan, NOW.plus(1));
                    routes.push(route);
                }
            }
        }
    }

    #[test]
    fn of_few_nodes_the_best_order_and_cuts_are_found(task in task(), world in world(), count in 1usize..3) {
        let task = Task { wish: Wish { cuts: Cuts::Layers, ..task.wish }, ..task };
        let others = world.others.into_iter().take(4).collect();
        let me = Me { whole: true, ..world.me };
        let few = World { others, me, ..world }.with_files();
        let task = Task { halves: task.halves.into_iter().take(12).collect(), ..task };
        let expected = exhaustive(&task, &few, count);
        let wish = Wish { stages_min: count as u32, ..task.wish };
        let plan = few.place(&Task { wish, ..task.clone() });
        let whole = |plan: &Plan| plan.stages.iter().all(|stage| stage.halves.count() % 2 == 0);
        if let Ok(plan) = plan && plan.stages.len() == count && whole(&plan) {
            let score = plan.times.score(task.wish.answer.max(1).into());
            let best = expected.expect("a plan was made");
            prop_assert!(score >= best);
            // The search of cuts knows no waits, which are no sums; so it may miss by one, and by what
            // rounding to whole microseconds makes.
            let weights = task.halves.iter().map(|work| work.memory).sum();
            let wait = Times { ready_us: Stock::Disk.ready_us(weights), ..Times::default() }.score(0);
            let rounding = 4 * (u64::from(task.wish.answer) + 2);
            prop_assert!(best == u64::MAX || score - best <= wait + rounding, "{score}, {best} can be had");
        } else if count == 2 {
            prop_assert_eq!(expected, None);
        }
    }
}
