//! Block floats: what leaves a function is valid, one value has one encoding.

use compute::numeric::block::{
    self, BlockVec, GROUP, ZERO, add, check, encode, encode_floats, encode_wide, scale,
};
use compute::numeric::norm::{Epsilon, apply, rms_norm, rms_norm_head};
use compute::numeric::scalar::{Positive, inverse_square_root, reciprocal};
use proptest::prelude::*;

use crate::given;

fn encoded(z: &[i32; GROUP], unit: i32) -> BlockVec {
    let mut m = [0; GROUP];
    let e = encode(z, unit, &mut m);
    BlockVec { m: m.to_vec(), e: vec![e] }
}

fn sum(x: &BlockVec, y: &BlockVec) -> BlockVec {
    let mut out = BlockVec::zeros(x.m.len());
    add(x.view(), y.view(), &mut out.view_mut());
    out
}

fn numbers(x: &BlockVec) -> [i32; GROUP] {
    std::array::from_fn(|i| i32::from(x.m[i]))
}

proptest! {
    #[test]
    fn every_encoding_is_valid(z in given::wide(), unit in -400i32..=400) {
        prop_assert_eq!(check(encoded(&z, unit).view()), Ok(()));
    }

    #[test]
    fn an_encoding_is_within_half_a_step(z in given::wide(), unit in -50i32..=50) {
        let block = encoded(&z, unit);
        for (i, &z) in z.iter().enumerate() {
            let (real, step) = (f64::from(z) * 2f64.powi(unit), 2f64.powi(block.e[0].into()));
            // A largest number that would round up to 2^15 stays a step below.
            let slack = if block.m[i].unsigned_abs() == 32767 { 1.0 } else { 0.5 };
            prop_assert!((block::value(block.view(), i) - real).abs() <= slack * step);
        }
    }

    #[test]
    fn encoding_again_changes_nothing(x in given::block()) {
        prop_assert_eq!(encoded(&numbers(&x), x.e[0].into()), x);
    }

    #[test]
    fn one_value_has_one_encoding(x in given::block(), up in 0u32..=15) {
        let z = numbers(&x).map(|z| z << up);
        prop_assert_eq!(encoded(&z, i32::from(x.e[0]) - up as i32), x);
    }

    #[test]
    fn wide_numbers_encode_validly(
        z in proptest::collection::vec(-(1i64 << 61)..=1 << 61, GROUP),
        down in 0u32..62,
        unit in -400i32..=400,
    ) {
        let z: [i64; GROUP] = std::array::from_fn(|i| z[i] >> down);
        let mut m = [0; GROUP];
        let e = encode_wide(&z, unit, &mut m);
        prop_assert_eq!(check(BlockVec { m: m.to_vec(), e: vec![e] }.view()), Ok(()));
    }

    #[test]
    fn sums_are_valid_and_commute(x in given::row(1..4), other in given::row(4)) {
        let groups = x.e.len();
        let y = BlockVec { m: other.m[..x.m.len()].to_vec(), e: other.e[..groups].to_vec() };
        let out = sum(&x, &y);
        prop_assert_eq!(check(out.view()), Ok(()));
        prop_assert_eq!(sum(&y, &x), out);
    }

    #[test]
    fn zero_adds_nothing_and_a_number_less_itself_is_zero(x in given::block()) {
        let zero = BlockVec::zeros(GROUP);
        let less = BlockVec { m: x.m.iter().map(|m| -m).collect(), e: x.e.clone() };
        prop_assert_eq!(sum(&x, &less), zero.clone());
        prop_assert_eq!(sum(&x, &zero), x);
    }

    #[test]
    fn scalings_are_valid(x in given::row(2), c in given::constant(), f in given::factor()) {
        let mut out = BlockVec::zeros(x.m.len());
        scale(x.view(), c, &mut out.view_mut());
        prop_assert_eq!(check(out.view()), Ok(()));
        apply(x.view(), f, &mut out.view_mut());
        prop_assert_eq!(check(out.view()), Ok(()));
    }

    #[test]
    fn floats_become_valid_blocks_or_are_refused(bits in any::<[u32; GROUP]>(), near in any::<u8>()) {
        // Half of the time all of one size, so that more than the largest survives.
        let x = bits.map(|bits| {
            let near = u32::from(near) << 23 | bits & 0x807f_ffff;
            f32::from_bits(if bits & 1 == 0 { bits } else { near })
        });
        let mut m = [0; GROUP];
        match encode_floats(&x, &mut m) {
            Ok(e) => {
                prop_assert!(x.iter().all(|x| x.is_finite()));
                prop_assert_eq!(check(BlockVec { m: m.to_vec(), e: vec![e] }.view()), Ok(()));
            }
            Err(at) => prop_assert!(!x[at].is_finite() && x[..at].iter().all(|x| x.is_finite())),
        }
    }

    #[test]
    fn floats_keep_their_values_to_half_a_step(
        whole in proptest::collection::vec(-32767i32..=32767, GROUP),
        e in -60i32..=60,
    ) {
        let x: [f32; GROUP] = std::array::from_fn(|i| whole[i] as f32 * 2f32.powi(e));
        let mut m = [0; GROUP];
        let found = encode_floats(&x, &mut m).unwrap();
        let block = BlockVec { m: m.to_vec(), e: vec![found] };
        for (i, &x) in x.iter().enumerate() {
            // Numbers of 15 bits and a sign are exact.
            prop_assert_eq!(block::value(block.view(), i), f64::from(x));
        }
    }

    #[test]
    fn every_broken_rule_is_found(x in given::block(), at in 0..GROUP) {
        prop_assume!(x.e[0] != ZERO);
        let broken = |change: &dyn Fn(&mut BlockVec)| {
            let mut x = x.clone();
            change(&mut x);
            check(x.view()).is_err()
        };
        prop_assert!(broken(&|x| x.m[at] = i16::MIN));
        prop_assert!(broken(&|x| x.e[0] = 101));
        prop_assert!(broken(&|x| x.e[0] = -101));
        prop_assert!(broken(&|x| x.e[0] = ZERO));
        prop_assert!(broken(&|x| x.m.iter_mut().for_each(|m| *m /= 4)));
        prop_assert!(broken(&|x| x.m.fill(0)));
        prop_assert!(broken(&|x| x.m.truncate(31)));
        prop_assert!(broken(&|x| x.e.push(ZERO)));
    }

    #[test]
    fn long_numbers_stay_normal(x in given::positive(), y in given::positive()) {
        for z in [x.times(y), x.plus(y)] {
            prop_assert!(z == Positive::ZERO || z.m >= 1 << 31);
        }
        prop_assert_eq!(x.times(y), y.times(x));
        let f = inverse_square_root(x);
        prop_assert!((1 << 15..=1 << 16).contains(&f.m));
    }

    #[test]
    fn sums_of_long_numbers_commute(
        x in given::positive(),
        y in given::positive(),
    ) {
        prop_assert_eq!(x.plus(y), y.plus(x));
    }

    #[test]
    fn norms_are_valid_and_blind_to_order(
        pairs in proptest::collection::vec((given::block(), given::block()), 1..6),
        eps in 1e-12f64..=0.1,
    ) {
        let norm = |pairs: &[(BlockVec, BlockVec)]| {
            let (x, w): (Vec<_>, Vec<_>) = pairs.iter().cloned().unzip();
            let (x, w) = (given::joined(&x), given::joined(&w));
            let epsilon =
                Epsilon { per_count: reciprocal(x.m.len()), epsilon: Positive::from_f64(eps) };
            let mut out = BlockVec::zeros(x.m.len());
            let factor = rms_norm(x.view(), w.view(), epsilon, &mut out.view_mut());
            (out, factor)
        };
        let (out, factor) = norm(&pairs);
        prop_assert_eq!(check(out.view()), Ok(()));
        prop_assert!((1 << 15..=1 << 16).contains(&factor.m));
        let turned: Vec<_> = pairs.iter().rev().cloned().collect();
        prop_assert_eq!(norm(&turned).1, factor);
    }

    #[test]
    fn head_norms_are_total(
        x in proptest::collection::vec(-32767i32..=32767, 1..=512usize),
        e in -128i32..=100,
        w in given::row(16),
        eps in 1e-12f64..=0.1,
    ) {
        let mut x = x;
        let epsilon = Epsilon { per_count: reciprocal(x.len()), epsilon: Positive::from_f64(eps) };
        let (_, factor) = rms_norm_head(&mut x, e, w.view(), epsilon);
        prop_assert!((1 << 15..=1 << 16).contains(&factor.m));
        let peak = x.iter().map(|x| x.unsigned_abs()).max().unwrap();
        prop_assert!(peak == 0 || (1 << 14..1 << 15).contains(&peak));
    }
}
