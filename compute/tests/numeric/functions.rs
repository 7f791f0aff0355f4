//! Exponential, sine, sigmoid and gates.

use compute::kernels::{Kernels, Results};
use compute::numeric::block::{BlockVec, GROUP, check};
use compute::numeric::functions::{Gate, exp2_negative, gates, sigmoid, sine_cosine};
use proptest::prelude::*;

use crate::given;

#[test]
fn the_exponential_never_rises_by_more_than_two_steps() {
    // Each product in it is cut, so a number may lie two steps of 2^-16 above its left neighbour.
    let mut last = exp2_negative(0);
    for t in 0..26u32 << 16 {
        let (next, step) = (exp2_negative(t), (512 >> (t >> 16)) + 1);
        assert!(next <= last + step, "{t}");
        last = next;
    }
    assert_eq!(last, 0);
}

#[test]
fn nothing_is_larger_than_the_exponential_of_zero() {
    assert_eq!((0..1 << 20).map(exp2_negative).max(), Some(exp2_negative(0)));
    assert_eq!(exp2_negative(0), 65535 << 8);
}

#[test]
fn the_sigmoid_never_falls_by_more_than_two_steps() {
    let mut last = 0;
    for t in 0..1 << 21 {
        let s = sigmoid(false, t);
        assert!(s.m + 2 >= last && s.down == 0, "{t}");
        assert!((1 << 15..=1 << 16).contains(&s.m), "{t}");
        last = s.m;
    }
    assert_eq!(last, 1 << 16);
}

#[test]
fn sine_and_cosine_stay_within_15_bits() {
    for step in 0..1u32 << 18 {
        let (sine, cosine) = sine_cosine(step << 14);
        assert!(sine.abs() <= 32767 && cosine.abs() <= 32767, "{step}");
        // Turned by half a turn, both change their sign; what is below 2^14 does not count.
        assert_eq!(sine_cosine((step << 14) ^ (1 << 31)), (-sine, -cosine), "{step}");
        assert_eq!(sine_cosine(step << 14 | 0x3fff), (sine, cosine), "{step}");
    }
}

#[test]
fn gates_are_total_and_never_larger_than_their_argument() {
    for kind in [Gate::Silu, Gate::GeluTanh] {
        for e in -128..=100 {
            let ends = [-1, 0, 1, 32767].into_iter();
            let all: Vec<i16> = ends.chain((-32767..=32767).step_by(7)).collect();
            for some in all.chunks_exact(32) {
                let x: [i16; GROUP] = some.try_into().unwrap();
                for (y, x) in gates(kind, &x, e).into_iter().zip(x) {
                    // The unit is 2^(e - 16).
                    let most = u32::from(x.unsigned_abs()) << 16;
                    assert!(y.unsigned_abs() <= most, "{kind:?} {x} {e}");
                    assert!(y == 0 || (y < 0) == (x < 0), "{kind:?} {x} {e}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_follows_a_matrix_is_valid(
        g in given::wide(),
        u in given::wide(),
        units in (-400i32..=400, -400i32..=400),
        old in given::block(),
    ) {
        for kernels in [Some(Kernels::Reference), Kernels::avx2()].into_iter().flatten() {
            let (gate, up) = (Results { y: &g, unit: units.0 }, Results { y: &u, unit: units.1 });
            let mut m: [i16; GROUP] = old.m.clone().try_into().unwrap();
            let mut e = old.e[0];
            let valid = |m: &[i16; GROUP], e: i8| {
                check(BlockVec { m: m.to_vec(), e: vec![e] }.view())
            };
            kernels.add_block(gate, &mut m, &mut e);
            prop_assert_eq!(valid(&m, e), Ok(()));
            for kind in [Gate::Silu, Gate::GeluTanh] {
                kernels.gate_block(kind, gate, up, &mut m, &mut e);
                prop_assert_eq!(valid(&m, e), Ok(()));
            }
            kernels.encode_block(gate, &mut m, &mut e);
            prop_assert_eq!(valid(&m, e), Ok(()));
        }
    }
}
