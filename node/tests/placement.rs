//! How long placement takes with many candidates: a figure, and a bound that a busy machine keeps.

use std::time::{Duration, Instant};

use cadencia::house::fitness::{Belief, Rates};
use cadencia::house::place::{Candidate, Cuts, Me, Refusals, Scene, Task, Wish, place};
use wire::{Health, Held, ManifestId, Millis, NodeId, Offer, PROTOCOL, Work};

/// Candidates: half of what a table of offers holds.
const CANDIDATES: u64 = 1000;
/// What is wanted of a release build is 50 ms; tests are built otherwise, on machines that do other
/// things, too.
const TIME_MAX: Duration = Duration::from_secs(2);
const MODEL: ManifestId = ManifestId([7; 32]);
const NOW: Millis = Millis(1_000_000);

fn id(n: u64) -> NodeId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&n.to_be_bytes());
    NodeId(id)
}

/// 80 layers of 500 MB: a model of 70 billion weights in 4 bits.
fn large(wish: Wish) -> Task {
    let half = |mb: u64| Work { memory: mb * 1_000_000, macs: 2 * mb * 1_000_000 };
    Task {
        manifest: MODEL,
        class: "int8x-v1".into(),
        protocol: PROTOCOL,
        halves: [half(100), half(400)].repeat(80),
        ends: half(1000),
        kv_bytes: 2200,
        wish,
    }
}

/// Nodes of all sizes, from phones to servers, drawn by a fixed rule.
fn offers(memory_mb_max: u64) -> Vec<Offer> {
    let drawn = |n: u64, of: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32) % of;
    let offer = |n: u64| Offer {
        sequence: NOW.0,
        life_ms: 60_000,
        protocol: PROTOCOL,
        class: "int8x-v1".into(),
        health: Some(Health {
            int8_gops: 100 + drawn(n + 1, 900) as u32,
            read_mb_s: 5_000 + drawn(n + 2, 60_000) as u32,
            stability_permille: drawn(n + 3, 1000) as u32,
            mains: !n.is_multiple_of(3),
            ..Health::default()
        }),
        held: n.is_multiple_of(20).then(|| held(drawn(n, 120) as usize)).into_iter().collect(),
        memory_free_mb: 500 + drawn(n + 4, memory_mb_max) as u32,
        seats_free: 4,
        ..Offer::default()
    };
    (0..CANDIDATES).map(offer).collect()
}

fn held(start: usize) -> Held {
    let halves = Some(wire::Halves::new(start, start + 20));
    Held { manifest: MODEL.0.to_vec(), halves, positions_free: 4096 }
}

#[test]
fn a_thousand_candidates_are_placed_at_once() {
    let rates = Rates { int8_gops: 400, read_mb_s: 20_000 };
    let me =
        Me { node: id(u64::MAX), memory_bytes: 8_000_000_000, rates, whole: true, front: None };
    let refusals = Refusals::default();
    let roads = |a: NodeId, b: NodeId| 1000 + u64::from(a.0[7] ^ b.0[7]) * 200;
    for (memory_mb_max, cuts) in [
        (64_000, Cuts::Layers),
        (20_000, Cuts::Layers),
        (8_000, Cuts::Layers),
        (4_000, Cuts::Halves),
        (1_500, Cuts::Halves),
        (64_000, Cuts::AlphaBeta),
    ] {
        let offers = offers(memory_mb_max);
        let each = offers.iter().zip(0..).map(|(offer, n)| Candidate {
            node: id(n),
            offer,
            rtt_us: 1000 + (n % 97) * 500,
            belief: Belief::default(),
        });
        let candidates: Vec<_> = each.collect();
        let (now, candidates) = (NOW, &candidates[..]);
        let scene = Scene { now, me, candidates, roads: &roads, refusals: &refusals };
        let task = large(Wish { cuts, replicas: 2, ..Wish::default() });
        let begun = Instant::now();
        let plan = place(&task, &scene);
        let taken = begun.elapsed();
        let what = plan.as_ref().map_or_else(ToString::to_string, |plan| plan.why.clone());
        println!(
            "{CANDIDATES} candidates of up to {memory_mb_max} MB, {cuts:?}: {taken:?}. {what}"
        );
        assert!(taken < TIME_MAX, "{taken:?}");
        assert!(plan.is_ok() || memory_mb_max < 2_000, "{what}");
    }
}
