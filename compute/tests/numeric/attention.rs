//! Heads, scores, and averages of values.

use compute::numeric::attention::{
    Average, HeadScale, Pairing, QueryFactor, Rotation, Treatment, attend, hadamard, hadamard_len,
    logit, quantise_head, score_constant, value_weight,
};
use compute::numeric::norm::Epsilon;
use compute::numeric::scalar::{Positive, reciprocal};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::given;

/// A head of the cache.
type Head = (Vec<i8>, HeadScale);

fn run(query: &Head, cache: &[(Head, Head)]) -> (Vec<i32>, i32) {
    let len = query.0.len();
    let factor = QueryFactor::new(query.1, score_constant(0.125, len));
    let copy = |from: &Head, to: &mut [i8]| {
        to.copy_from_slice(&from.0);
        from.1
    };
    let mut out = vec![0; len];
    let unit = attend(
        &query.0,
        factor,
        0..cache.len(),
        &mut |j, to| copy(&cache[j].0, to),
        &mut |j, to| copy(&cache[j].1, to),
        &mut out,
    );
    (out, unit)
}

fn heads() -> impl Strategy<Value = (Head, Vec<(Head, Head)>)> {
    proptest::sample::select(&[2usize, 32, 80][..])
        .prop_flat_map(|len| (given::head(len), vec((given::head(len), given::head(len)), 1..20)))
}

/// A head of two equal numbers.
fn pair(q: i8, m: i16, e: i8) -> Head {
    (vec![q; 2], HeadScale { m, e })
}

#[test]
fn scores_at_both_ends_of_their_range_are_compared() {
    // The largest logit less the smallest is 2^31, one more than an i32 holds.
    let query = pair(127, 32767, 100);
    let cache =
        [(pair(127, 32767, 100), pair(1, 16384, 0)), (pair(-127, 32767, 100), pair(127, 16384, 0))];
    // Nothing is left of the second.
    assert_eq!(run(&query, &cache), run(&query, &cache[..1]));
}

#[test]
fn a_value_of_zeros_among_small_ones_weighs_nothing() {
    let query = pair(0, 0, 0);
    let zero = (pair(0, 0, 0), pair(0, 0, 0));
    let small = (pair(0, 0, 0), pair(100, 20000, -60));
    // Equal scores, so the average is half of the one that is not zero.
    let (alone, unit) = run(&query, std::slice::from_ref(&small));
    let (halved, same) = run(&query, &[zero, small]);
    assert_eq!(unit, same);
    assert!((alone[0] - 2 * halved[0]).abs() <= 1 << 14, "{} {}", alone[0], halved[0]);
}

proptest! {
    #[test]
    fn averages_are_total_and_bounded((query, cache) in heads()) {
        let (out, unit) = run(&query, &cache);
        prop_assert!((-113..=87).contains(&unit));
        prop_assert!(out.iter().all(|x| x.unsigned_abs() <= (1 << 28) + (1 << 13)));
    }

    #[test]
    fn averages_do_not_depend_on_the_order_of_positions((query, cache) in heads()) {
        let turned: Vec<(Head, Head)> = cache.iter().rev().cloned().collect();
        prop_assert_eq!(run(&query, &turned), run(&query, &cache));
    }

    #[test]
    fn an_average_lies_among_the_values(
        query in given::head(32),
        keys in vec(given::head(32), 1..20),
        value in given::head(32),
    ) {
        // All values alike, so whatever the scores are the average is that value.
        prop_assume!(value.1.m != 0);
        let cache: Vec<_> = keys.into_iter().map(|key| (key, value.clone())).collect();
        let (out, unit) = run(&query, &cache);
        for (&x, &q) in out.iter().zip(&value.0) {
            let ours = f64::from(x) * 2f64.powi(unit);
            let scale = f64::from(value.1.m) * 2f64.powi(value.1.e.into()) / 127.0;
            prop_assert!((ours / scale - f64::from(q)).abs() < 0.02, "{} {}", ours / scale, q);
        }
    }

    #[test]
    fn a_larger_product_is_never_a_smaller_logit(
        dots in (-8_258_048i32..=8_258_048, -8_258_048i32..=8_258_048),
        query in given::head(2),
        key in given::head(2),
    ) {
        let query = QueryFactor::new(query.1, score_constant(0.125, 64));
        let (low, high) = (dots.0.min(dots.1), dots.0.max(dots.1));
        prop_assert!(logit(low, query, key.1) <= logit(high, query, key.1));
        prop_assert!(logit(high, query, key.1).unsigned_abs() <= 1 << 30);
    }

    #[test]
    fn a_weight_is_never_larger_than_its_probability(
        p in 0u32..=65535 << 8,
        value in given::head(2),
        above in 0i32..=200,
    ) {
        prop_assume!(value.1.m != 0);
        let top = (i32::from(value.1.e) + above).min(100) as i8;
        prop_assert!(value_weight(p, value.1, top) <= p);
    }

    #[test]
    fn averages_are_bounded_for_any_total(total in 1u64 << 23..1 << 48, part in -127i64..=127) {
        let x = Average::new(total).of(part * total as i64);
        prop_assert!(x.unsigned_abs() <= (1 << 28) + (1 << 13));
        let real = part as f64 / 127.0 * f64::from(1 << 28);
        // The total keeps 16 bits and its reciprocal 15.
        prop_assert!((f64::from(x) - real).abs() <= 7e-5 * real.abs() + 1.0, "{} {}", x, real);
    }

    #[test]
    fn heads_are_valid_whatever_they_come_from(
        x in given::row(5),
        w in given::row(5),
        (start, len) in proptest::sample::select(&[(0usize, 2usize), (6, 14), (32, 32), (0, 64), (80, 80), (0, 160)][..]),
        position in any::<u32>(),
        increments in vec(any::<u32>(), 80),
        halves in any::<bool>(),
        eps in 1e-12f64..=0.1,
    ) {
        let mut rotation = Rotation::default();
        rotation.at(position, &increments[..len / 2]);
        let pairing = if halves { Pairing::Halves } else { Pairing::Adjacent };
        let epsilon = Epsilon { per_count: reciprocal(len), epsilon: Positive::from_f64(eps) };
        let plain = Treatment { norm: None, rotation: &rotation, pairing };
        let normed = Treatment { norm: Some((w.view(), epsilon)), ..plain };
        for treatment in [None, Some(plain), Some(normed)] {
            let mut q = vec![99i8; len];
            let scale = quantise_head(x.view(), start, treatment, &mut q);
            if scale.m == 0 {
                prop_assert_eq!(scale, HeadScale::default());
                prop_assert!(q.iter().all(|&q| q == 0));
            } else {
                prop_assert!(scale.m >= 1 << 14 && (-100..=100).contains(&scale.e));
                let peak = q.iter().map(|q| q.unsigned_abs()).max();
                prop_assert_eq!(peak, Some(127));
            }
        }
    }

    #[test]
    fn a_rotation_keeps_lengths(
        x in vec(-32767i32..=32767, 2),
        phase in any::<u32>(),
    ) {
        let mut rotation = Rotation::default();
        rotation.at(1, &[phase]);
        let mut turned = x.clone();
        rotation.apply(Pairing::Adjacent, &mut turned);
        let length = |x: &[i32]| f64::hypot(x[0].into(), x[1].into());
        prop_assert!((length(&turned) - length(&x)).abs() < 6.0);
    }

    #[test]
    fn hadamard_twice_is_a_multiple(
        x in vec(-46_340i32..=46_340, 1..=512usize),
    ) {
        let len = hadamard_len(x.len());
        let mut twice = x.clone();
        hadamard(&mut twice);
        prop_assert!(twice.iter().all(|x| x.unsigned_abs() < 1 << 24));
        hadamard(&mut twice);
        let multiple: Vec<i32> = x.iter().map(|x| x * len as i32).collect();
        prop_assert_eq!(twice, multiple);
    }
}
