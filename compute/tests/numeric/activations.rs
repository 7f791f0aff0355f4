//! 8-bit activations.

use compute::numeric::activation::Activations;
use compute::numeric::block::{self, BlockVec};
use compute::numeric::scalar::Factor;
use proptest::prelude::*;

use crate::given;

/// One vector, quantised over what another left behind.
pub fn quantised(x: &BlockVec, factor: Factor) -> Activations {
    let mut all = Activations::default();
    all.resize(1, x.m.len());
    all.q.fill(99);
    [&mut all.a, &mut all.sums, &mut all.half_sums, &mut all.t, &mut all.half_t]
        .into_iter()
        .for_each(|numbers| numbers.fill(-99));
    all.rows().quantise(0, x.view(), factor);
    all
}

proptest! {
    #[test]
    fn all_that_belongs_to_a_vector_fits_it(x in given::row(1..7), f in given::factor()) {
        let all = quantised(&x, f);
        prop_assert_eq!(all.width % 64, 0);
        let mut bound = 0;
        for (g, &a) in all.a.iter().enumerate() {
            let q = &all.q[32 * g..][..32];
            prop_assert!(a >= 0 && !q.contains(&i8::MIN));
            let sum = |q: &[i8]| q.iter().map(|&q| i16::from(q)).sum::<i16>();
            prop_assert_eq!(all.sums[g], sum(q));
            prop_assert_eq!(all.half_sums[2 * g], sum(&q[..16]));
            prop_assert_eq!(all.half_sums[2 * g + 1], sum(&q[16..]));
            bound += a as u64 * q.iter().map(|q| u64::from(q.unsigned_abs())).sum::<u64>();
        }
        let token = all.tokens[0];
        prop_assert_eq!(token.bound, bound);
        let size = |t: &[i16]| t.iter().map(|t| u64::from(t.unsigned_abs())).sum::<u64>();
        prop_assert_eq!(token.t_bound, size(&all.t));
        prop_assert_eq!(token.half_t_bound, size(&all.half_t));
        prop_assert!(!all.t.contains(&i16::MIN) && !all.half_t.contains(&i16::MIN));
        // Both hold a * sums, under exponents of their own.
        for (t, sums, gain, per) in [
            (&all.t, &all.sums, token.t_exponent - token.exponent, 1),
            (&all.half_t, &all.half_sums, token.half_t_exponent - token.exponent, 2),
        ] {
            for (i, &t) in t.iter().enumerate() {
                let real = i64::from(all.a[i / per]) * i64::from(sums[i]);
                prop_assert!((i64::from(t) * (1 << gain) - real).abs() <= 1 << gain);
            }
        }
    }

    #[test]
    fn numbers_keep_their_values(x in given::row(1..5), f in given::factor()) {
        let all = quantised(&x, f);
        let exponent = all.tokens[0].exponent;
        for i in 0..x.m.len() {
            let factor = f64::from(f.m) * 2f64.powi(f.e);
            let real = block::value(x.view(), i) * factor;
            let ours = f64::from(all.q[i]) * f64::from(all.a[i / 32]) * 2f64.powi(exponent) / 127.0;
            // Half a step of the block, and half a step of its scale for each of 127.
            let step = f64::from(all.a[i / 32]) / 127.0 * 0.51 + 1.0;
            prop_assert!((ours - real).abs() <= step * 2f64.powi(exponent), "{} {}", ours, real);
        }
    }

    #[test]
    fn blocks_do_not_hear_of_their_place(
        blocks in proptest::collection::vec(given::block(), 2..6),
        f in given::factor(),
    ) {
        let straight = quantised(&given::joined(&blocks), f);
        let turned: Vec<BlockVec> = blocks.iter().rev().cloned().collect();
        let turned = quantised(&given::joined(&turned), f);
        prop_assert_eq!(straight.tokens[0], turned.tokens[0]);
        for g in 0..blocks.len() {
            let mirror = blocks.len() - 1 - g;
            prop_assert_eq!(&straight.q[32 * g..][..32], &turned.q[32 * mirror..][..32]);
            prop_assert_eq!(straight.a[g], turned.a[mirror]);
            prop_assert_eq!(straight.t[g], turned.t[mirror]);
        }
    }
}
