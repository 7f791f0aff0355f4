//! From block floats to 8-bit activations.

use compute::numeric::activation::{Activations, Token, quantise_block};
use compute::numeric::block::BlockVec;
use compute::numeric::scalar::Factor;
use serde_json::{Value, json};

use crate::blocks::shown;
use crate::digest::{Dice, Digest};
use crate::record::Record;

/// One vector, quantised.
pub fn quantised(x: &BlockVec, factor: Factor) -> Activations {
    let mut all = Activations::default();
    all.resize(1, x.m.len());
    all.rows().quantise(0, x.view(), factor);
    all
}

/// What belongs to a vector as a whole.
pub fn token(t: &Token) -> Value {
    json!({
        "exponent": t.exponent,
        "t_exponent": t.t_exponent,
        "half_t_exponent": t.half_t_exponent,
        "bound": t.bound,
        "t_bound": t.t_bound,
        "half_t_bound": t.half_t_bound,
    })
}

fn whole(x: &Activations) -> Value {
    json!({
        "q": x.q, "a": x.a, "sums": x.sums, "half_sums": x.half_sums, "t": x.t,
        "half_t": x.half_t, "token": token(&x.tokens[0]),
    })
}

/// Adds all numbers of some quantised vectors to a digest.
fn add_all(digest: &mut Digest, x: &Activations) {
    digest.all(&x.q);
    for numbers in [&x.a, &x.sums, &x.half_sums, &x.t, &x.half_t] {
        digest.all(numbers);
    }
    for t in &x.tokens {
        digest.all(&[t.exponent, t.t_exponent, t.half_t_exponent]);
        digest.all(&[t.bound, t.t_bound, t.half_t_bound].map(|bound| bound as i64));
    }
}

#[test]
fn activations() {
    let mut record = Record::new("activations");
    let mut dice = Dice(7);
    for peak in [16384i16, 16385, 20000, 23170, 32766, 32767] {
        let m: Vec<i16> = (0..32).map(|i| (i32::from(peak) * (31 - 2 * i) / 31) as i16).collect();
        let mut q = [0; 32];
        let found = quantise_block(&m, &mut q);
        record.case("quantise_block", json!({ "m": m }), json!({ "q": q, "peak": found }));
    }
    let mut case = |x: BlockVec, f: Factor| {
        let of = json!({ "x": shown(&x), "factor": { "m": f.m, "e": f.e } });
        record.case("quantise", of, whole(&quantised(&x, f)));
    };
    case(dice.blocks(2, 3), Factor::ONE);
    // An odd number of blocks is padded to an even one.
    case(dice.blocks(3, 2), Factor { m: 50_000, e: -20 });
    case(BlockVec::zeros(64), Factor { m: 1 << 15, e: 3 });
    case(BlockVec { m: vec![32767; 64], e: vec![100, 100] }, Factor { m: 1 << 16, e: 100 });
    let mut far = dice.blocks(4, 2);
    (far.e[0], far.e[1], far.e[2], far.e[3]) = (100, 85, 84, -100);
    case(far, Factor { m: 1 << 15, e: 0 });
    for (groups, spread) in [(18, 3), (64, 5), (1664, 4)] {
        let mut digest = Digest::new();
        for _ in 0..8 {
            let x = dice.blocks(groups, spread);
            let f = Factor { m: 32_768 + (dice.next() % 32_769) as u32, e: -16 };
            add_all(&mut digest, &quantised(&x, f));
        }
        let of = json!({ "dice": "goes on", "groups": groups, "spread": spread });
        record.case("quantise, 8 rows", of, digest.text());
    }
    record.check();
}
