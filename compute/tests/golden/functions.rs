//! Exponential, sine, sigmoid and the gates; and how results of matrices pass through them.

use compute::kernels::{Kernels, Norm, Results};
use compute::numeric::block::{BlockVec, GROUP, ZERO};
use compute::numeric::functions::{
    Gate, exp2_fraction, exp2_negative, gate, gates as gates_of, sigmoid, sine_cosine,
};
use compute::numeric::norm::Epsilon;
use compute::numeric::scalar::{Positive, reciprocal};
use serde_json::json;

use crate::blocks::shown;
use crate::digest::{Dice, Digest};
use crate::record::Record;

const GATES: [(Gate, &str); 2] = [(Gate::Silu, "silu"), (Gate::GeluTanh, "gelu_tanh")];

#[test]
fn functions() {
    let mut record = Record::new("functions");
    for f in [0, 1, 2, 255, 256, 16384, 32768, 49152, 65535] {
        record.case("exp2_fraction", json!(f), exp2_fraction(f));
    }
    let mut digest = Digest::new();
    (0..65536).for_each(|f| digest.add(exp2_fraction(f)));
    record.case("exp2_fraction, all 65536", json!(null), digest.text());
    for t in [0, 1, 65535, 65536, 65537, 24 << 16, (25 << 16) - 1, 25 << 16, 1 << 31, u32::MAX] {
        record.case("exp2_negative", json!(t), exp2_negative(t));
    }
    let quarters = [0, 1 << 30, 2 << 30, 3 << 30];
    for phase in quarters.into_iter().flat_map(|q| [q, q + (1 << 14), q + (1 << 29), q + (5 << 26)])
    {
        let (sine, cosine) = sine_cosine(phase);
        record.case("sine_cosine", json!(phase), json!([sine, cosine]));
    }
    for phase in [16383, (1 << 30) - 1, (1 << 30) - (1 << 14), (1 << 30) - (1 << 14) - 1, u32::MAX]
    {
        let (sine, cosine) = sine_cosine(phase);
        record.case("sine_cosine", json!(phase), json!([sine, cosine]));
    }
    let mut digest = Digest::new();
    for step in 0..1 << 18 {
        let (sine, cosine) = sine_cosine(step << 14);
        digest.all(&[sine, cosine]);
    }
    record.case("sine_cosine, all 2^18 steps of 2^14", json!(null), digest.text());
    for t in [0, 1, 65535, 65536, 1 << 20, (1 << 21) - 1] {
        for negative in [false, true] {
            let s = sigmoid(negative, t);
            let of = json!({ "negative": negative, "t": t });
            record.case("sigmoid", of, json!({ "m": s.m, "down": s.down }));
        }
    }
    for negative in [false, true] {
        let mut digest = Digest::new();
        for t in 0..1 << 21 {
            let s = sigmoid(negative, t);
            digest.all(&[s.m, s.down]);
        }
        record.case("sigmoid, all 2^21", json!({ "negative": negative }), digest.text());
    }
    record.check();
}

#[test]
fn gates() {
    let mut record = Record::new("gates");
    for (kind, name) in GATES {
        for e in [-128, -100, -31, -20, -14, -10, -1, 0, 3, 15, 100] {
            for x in [1, -1, 16384, -16384, 23170, -32767, 32767] {
                record.case(name, json!({ "x": x, "e": e }), gate(kind, x, e));
            }
        }
        for e in -48..=20 {
            let mut digest = Digest::new();
            let all: Vec<i16> = (-32767..=32767).collect();
            for some in all.chunks(32) {
                let mut x = [0; GROUP];
                x[..some.len()].copy_from_slice(some);
                digest.all(&gates_of(kind, &x, e)[..some.len()]);
            }
            record.case(&format!("{name}, all x"), json!({ "e": e }), digest.text());
        }
    }
    record.check();
}

#[test]
fn what_follows_a_matrix() {
    let mut record = Record::new("results");
    let kernels = Kernels::Reference;
    let mut dice = Dice(6);
    let (mut m, mut e) = ([0; GROUP], ZERO);
    for (kind, name) in GATES {
        for (down, units) in [(0, (-28, -30)), (8, (-18, -20)), (20, (-7, 90)), (29, (-99, -99))] {
            let (g, u) = (dice.wide().map(|z| z >> down), dice.wide());
            let (gate, up) = (Results { y: &g, unit: units.0 }, Results { y: &u, unit: units.1 });
            kernels.gate_block(kind, gate, up, &mut m, &mut e);
            let of = json!({ "gate": g, "gate_unit": units.0, "up": u, "up_unit": units.1 });
            record.case(&format!("{name} times"), of, json!({ "m": m, "e": e }));
        }
        let mut digest = Digest::new();
        for _ in 0..5000 {
            let (g, u) = (dice.wide(), dice.wide());
            let (gate, up) = (-28 + dice.signed(5) as i32, -28 + dice.signed(5) as i32);
            let (gate, up) = (Results { y: &g, unit: gate }, Results { y: &u, unit: up });
            kernels.gate_block(kind, gate, up, &mut m, &mut e);
            digest.all(&m);
            digest.add(e);
        }
        let of = json!({ "dice": "after the four above" });
        record.case(&format!("{name} times, 5000 blocks"), of, digest.text());
    }
    for unit in [-30, -20, 80] {
        let y = dice.wide();
        let old = dice.blocks(1, 3);
        (m, e) = (old.m.clone().try_into().unwrap(), old.e[0]);
        kernels.add_block(Results { y: &y, unit }, &mut m, &mut e);
        let of = json!({ "residual": shown(&old), "y": y, "unit": unit });
        record.case("joins the residual", of, json!({ "m": m, "e": e }));
    }
    for spread in [2, 5] {
        let (mut x, y, w) = (dice.blocks(2, spread), dice.blocks(2, spread), dice.blocks(2, 2));
        let epsilon = Epsilon { per_count: reciprocal(64), epsilon: Positive::from_f64(1e-6) };
        let of = json!({ "residual": shown(&x), "y": shown(&y), "w": shown(&w) });
        let mut spare = BlockVec::zeros(64);
        let norm = Norm { weights: w.view(), epsilon };
        kernels.norm_add(&mut x.view_mut(), y.view(), norm, &mut spare.view_mut());
        record.case("joins through a norm", of, shown(&x));
    }
    record.check();
}
