//! Heads, scores and averages.

use compute::numeric::attention::{
    Average, HeadScale, Pairing, QueryFactor, Rotation, Treatment, attend, hadamard, hadamard_len,
    logit, quantise_head, score_constant, score_scale, value_weight,
};
use compute::numeric::block::{BlockVec, GROUP};
use compute::numeric::norm::Epsilon;
use compute::numeric::scalar::{Positive, reciprocal};
use serde_json::{Value, json};

use crate::blocks::shown;
use crate::digest::{Dice, Digest};
use crate::record::Record;

const PAIRINGS: [(Pairing, &str); 2] =
    [(Pairing::Adjacent, "adjacent"), (Pairing::Halves, "halves")];

/// A row whose blocks are all one number over and over is shown by its first.
fn brief(x: &BlockVec) -> Value {
    let same = x.m.iter().all(|m| *m == x.m[0]) && x.e.iter().all(|e| *e == x.e[0]);
    if same { json!({ "every m": x.m[0], "every e": x.e[0] }) } else { shown(x) }
}

fn head_scale(s: HeadScale) -> Value {
    json!({ "m": s.m, "e": s.e })
}

#[test]
fn rotations() {
    let mut record = Record::new("rotations");
    let mut dice = Dice(10);
    for (pairing, name) in PAIRINGS {
        for position in [0, 1, 4097, 1 << 23] {
            let increments: Vec<u32> = (0..4).map(|i| 683_565_276 >> (5 * i)).collect();
            let mut rotation = Rotation::default();
            rotation.at(position, &increments);
            let x = [32767, -32767, 16384, -1, 0, 32767, 32767, 32767, 7, -7];
            let mut turned = x;
            rotation.apply(pairing, &mut turned);
            let of = json!({ "x": x, "position": position, "increments": increments });
            record.case(name, of, json!({ "pairs": rotation.pairs, "turned": turned }));
        }
    }
    for len in [2, 6, 32, 64, 80, 96, 128, 256, 512] {
        record.case("hadamard_len", json!(len), hadamard_len(len));
    }
    for len in [2, 8, 12, 32] {
        let x: Vec<i32> = (0..len).map(|_| dice.signed(16) as i32).collect();
        let mut turned = x.clone();
        hadamard(&mut turned);
        record.case("hadamard", json!(x), turned);
    }
    record.check();
}

#[test]
fn heads() {
    let mut record = Record::new("heads");
    let mut dice = Dice(11);
    for (head, start, spread) in [(32, 0, 2), (64, 64, 3), (80, 80, 6)] {
        let x = dice.blocks(5, spread);
        let w = dice.blocks(3, 2);
        let epsilon = Epsilon { per_count: reciprocal(head), epsilon: Positive::from_f64(1e-6) };
        let increments: Vec<u32> = (0..head / 2).map(|i| 683_565_276 >> (i / 2)).collect();
        let mut rotation = Rotation::default();
        rotation.at(77, &increments);
        let mut case = |x: &BlockVec, treatment: Option<Treatment>, how: &str| {
            let mut q = vec![0; head];
            let scale = quantise_head(x.view(), start, treatment, &mut q);
            let mut of = json!({ "x": brief(x), "start": start, "head": head });
            if let Some(treatment) = treatment {
                of["increments"] = json!(increments);
                of["position"] = json!(77);
                if treatment.norm.is_some() {
                    of["norm"] = json!({ "w": shown(&w), "epsilon": 1e-6 });
                }
            }
            record.case(how, of, json!({ "q": q, "scale": head_scale(scale) }));
        };
        case(&x, None, "value");
        for (pairing, name) in PAIRINGS {
            let plain = Treatment { norm: None, rotation: &rotation, pairing };
            case(&x, Some(plain), &format!("key, {name}"));
            let normed = Treatment { norm: Some((w.view(), epsilon)), ..plain };
            case(&x, Some(normed), &format!("key, norm, {name}"));
        }
        let plain = Treatment { norm: None, rotation: &rotation, pairing: Pairing::Halves };
        let normed = Treatment { norm: Some((w.view(), epsilon)), ..plain };
        let zeros = BlockVec::zeros(160);
        for (x, what) in [
            (zeros, "of zeros"),
            (BlockVec { m: vec![32767; 160], e: vec![100; 5] }, "at the top"),
            (BlockVec { m: vec![-16384; 160], e: vec![-100; 5] }, "at the bottom"),
        ] {
            case(&x, None, &format!("value {what}"));
            case(&x, Some(plain), &format!("key {what}"));
            case(&x, Some(normed), &format!("key, norm, {what}"));
        }
    }
    record.check();
}

#[test]
fn scores() {
    let mut record = Record::new("scores");
    for (scale, head) in [(0.125, 64), (1.0 / 128f64.sqrt(), 128), (0.0625, 256), (0.3, 80)] {
        let (m, e) = score_constant(scale, head);
        let of = json!({ "attention_scale": scale, "head": head });
        record.case("score_constant", of, json!({ "m": m, "e": e }));
    }
    let constant = score_constant(0.125, 64);
    let heads = [(0, 0), (16384, -20), (32767, -100), (32767, 100), (20000, -3)];
    let heads = heads.map(|(m, e)| HeadScale { m, e });
    for query in heads {
        let factor = QueryFactor::new(query, constant);
        let of = json!({ "query": head_scale(query), "m": constant.0, "e": constant.1 });
        record.case("QueryFactor", of, json!({ "m": factor.m, "e": factor.e }));
        for key in heads {
            let (m, e) = score_scale(factor, key);
            let both = json!({ "m": factor.m, "e": factor.e, "key": head_scale(key) });
            record.case("score_scale", both.clone(), json!({ "m": m, "e": e }));
            for dot in [0, 1, -1, 100_000, -100_000, 512 * 127 * 127, -512 * 127 * 127] {
                let of = json!({ "dot": dot, "query": both });
                record.case("logit", of, logit(dot, factor, key));
            }
        }
    }
    for p in [0, 1, 255, 1 << 23, 65535 << 8] {
        for (scale, top) in [(heads[1], -20), (heads[1], 11), (heads[1], 12), (heads[3], 100)] {
            let of = json!({ "p": p, "scale": head_scale(scale), "top": top });
            record.case("value_weight", of, value_weight(p, scale, top));
        }
    }
    for total in [1 << 23, 65535 << 8, (65535 << 8) + 1, 3 << 40, (1 << 48) - 1] {
        let average = Average::new(total);
        for sum in [0, 1, -1, 12_345_678, -12_345_678, 127 * total as i64, -127 * total as i64] {
            record.case("Average", json!({ "total": total, "sum": sum }), average.of(sum));
        }
    }
    record.check();
}

/// Keys and values of one head.
struct Cache {
    keys: Vec<(Vec<i8>, HeadScale)>,
    values: Vec<(Vec<i8>, HeadScale)>,
}

fn random_head(dice: &mut Dice, head: usize, e: i8) -> (Vec<i8>, HeadScale) {
    let q = (0..head).map(|_| dice.signed(8).max(-127) as i8).collect();
    (q, HeadScale { m: 16384 + (dice.next() % 16384) as i16, e: e + dice.signed(3) as i8 })
}

impl Cache {
    fn random(dice: &mut Dice, head: usize, positions: usize) -> Self {
        let mut heads = |e| (0..positions).map(|_| random_head(dice, head, e)).collect();
        Self { keys: heads(-14), values: heads(-20) }
    }

    fn attend(&self, q: &[i8], factor: QueryFactor, first: usize) -> (Vec<i32>, i32) {
        let mut out = vec![0; q.len()];
        let read = |from: &Vec<(Vec<i8>, HeadScale)>, j: usize, to: &mut [i8]| {
            to.copy_from_slice(&from[j].0);
            from[j].1
        };
        let unit = attend(
            q,
            factor,
            first..self.keys.len(),
            &mut |j, to| read(&self.keys, j, to),
            &mut |j, to| read(&self.values, j, to),
            &mut out,
        );
        (out, unit)
    }
}

fn shown_heads(heads: &[(Vec<i8>, HeadScale)]) -> Value {
    heads.iter().map(|(q, scale)| json!({ "q": q, "scale": head_scale(*scale) })).collect()
}

#[test]
fn averages() {
    let mut record = Record::new("averages");
    let mut dice = Dice(12);
    for (positions, first) in [(1, 0), (5, 0), (5, 2)] {
        let cache = Cache::random(&mut dice, GROUP, positions);
        let (q, scale) = random_head(&mut dice, GROUP, -14);
        let factor = QueryFactor::new(scale, score_constant(0.125, GROUP));
        let (average, unit) = cache.attend(&q, factor, first);
        let of = json!({
            "q": q, "m": factor.m, "e": factor.e, "first": first,
            "keys": shown_heads(&cache.keys), "values": shown_heads(&cache.values),
        });
        record.case("attend", of, json!({ "average": average, "unit": unit }));
    }
    for (head, positions) in [(64, 300), (128, 1000), (80, 4097)] {
        let mut digest = Digest::new();
        let cache = Cache::random(&mut dice, head, positions);
        for _ in 0..4 {
            let (q, scale) = random_head(&mut dice, head, -14);
            let factor = QueryFactor::new(scale, score_constant(0.125, head));
            let (average, unit) = cache.attend(&q, factor, 0);
            digest.all(&average);
            digest.add(unit);
        }
        let of = json!({ "dice": "goes on", "head": head, "positions": positions });
        record.case("attend, 4 queries", of, digest.text());
    }
    record.check();
}
