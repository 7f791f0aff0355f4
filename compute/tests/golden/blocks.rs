//! Rounding, block floats, long positive numbers and norms.

use compute::numeric::bits::{bit_length, mul_q15, round_shift, round_shift_32};
use compute::numeric::block::{
    BlockVec, EXPONENT_MAX, EXPONENT_MIN, GROUP, ZERO, add, check, encode, encode_floats,
    encode_wide, scale,
};
use compute::numeric::norm::{Epsilon, apply, rms_norm};
use compute::numeric::scalar::{Factor, Positive, inverse_square_root, reciprocal};
use serde_json::{Value, json};

use crate::digest::{Dice, Digest};
use crate::record::Record;

/// A row as the files show it.
pub fn shown(row: &BlockVec) -> Value {
    json!({ "m": row.m, "e": row.e })
}

fn factor(f: Factor) -> Value {
    json!({ "m": f.m, "e": f.e })
}

fn positive(x: Positive) -> Value {
    json!({ "m": x.m, "e": x.e })
}

/// 32 numbers that begin with `first` and are 0 from there on.
fn begun<T: Copy + Default>(first: &[T]) -> [T; GROUP] {
    let mut z = [T::default(); GROUP];
    z[..first.len()].copy_from_slice(first);
    z
}

/// One block as a row.
fn one(first: &[i16], e: i8) -> BlockVec {
    BlockVec { m: begun(first).to_vec(), e: vec![e] }
}

fn encoded(z: &[i32; GROUP], unit: i32) -> BlockVec {
    let mut m = [0; GROUP];
    let e = encode(z, unit, &mut m);
    BlockVec { m: m.to_vec(), e: vec![e] }
}

#[test]
fn rounding() {
    let mut record = Record::new("rounding");
    for x in [0, 1, -1, 2, -2, 3, -3, 5, -5, 1023, -1024, (1 << 62) - 1, 1 - (1 << 62)] {
        for n in [0, 1, 2, 10, 31, 61, 62, 63, 64, 1000, u32::MAX] {
            record.case("round_shift", json!({ "x": x, "n": n }), round_shift(x, n));
        }
    }
    for x in [0, 1, -1, 3, -3, 32767, -32767, 1 << 30, -(1 << 30)] {
        for n in [0, 1, 2, 14, 29, 30, 31, 32, 1000] {
            record.case("round_shift_32", json!({ "x": x, "n": n }), round_shift_32(x, n));
        }
    }
    for x in [0, 1, 2, 3, 32767, 32768, u64::MAX] {
        record.case("bit_length", json!(x), bit_length(x));
    }
    for x in [0, 1, -1, 3, -3, 16384, -16384, 32767, -32767, -32768] {
        for y in [0, 1, -1, 16384, -16384, 32767, -32767] {
            record.case("mul_q15", json!({ "x": x, "y": y }), mul_q15(x, y));
        }
    }
    record.check();
}

#[test]
fn encoding() {
    let mut record = Record::new("encoding");
    let mut case = |z: [i32; GROUP], unit: i32| {
        record.case("encode", json!({ "z": z, "unit": unit }), shown(&encoded(&z, unit)));
    };
    case(begun(&[]), 7);
    case(begun(&[1]), 0);
    case(begun(&[-1, 1]), -14);
    case(begun(&[16384, 16383, -16384]), 3);
    case(begun(&[32767, -32767, 1]), 3);
    // Ties, and a largest number that rounds up to 2^15.
    case(begun(&[32769, 1, -1, 3, -3, 5, -5]), 0);
    case(begun(&[65535, -65535, 65533, -65534]), 0);
    case(begun(&[-65535, 65534]), 0);
    case(begun(&[1 << 30, -(1 << 30), (1 << 30) - 1, 1, -1]), -30);
    case(begun(&[(1 << 30) - 1, 1 - (1 << 30)]), -30);
    // Both ends of the exponent.
    for unit in [99, 100, 101, 105, 114, 115, 116, 117, 300] {
        case(begun(&[16384, -16384, 1, -1, 3, -9000]), unit);
    }
    for unit in [-99, -100, -101, -300] {
        case(begun(&[16384, -16384, 1]), unit);
    }
    let mut dice = Dice(1);
    for unit in [-20, 0, 50] {
        case(dice.wide(), unit);
    }
    let mut digest = Digest::new();
    for _ in 0..20_000 {
        let z = dice.wide();
        let (down, unit) = (dice.next() % 31, dice.signed(8) as i32);
        digest.row(&encoded(&z.map(|z| z >> down), unit));
    }
    record.case("encode, 20000 blocks", json!({ "dice": "after the three above" }), digest.text());
    for (first, unit) in [
        (vec![1i64 << 61, -(1 << 61), 1, (1 << 31) + 1], -60),
        (vec![(1 << 30) + 1, 3, -3], 0),
        (vec![5, -5], 0),
        (vec![i64::from(i32::MAX), 1 << 16], -99),
    ] {
        let z: [i64; GROUP] = begun(&first);
        let mut m = [0; GROUP];
        let e = encode_wide(&z, unit, &mut m);
        record.case("encode_wide", json!({ "z": z, "unit": unit }), json!({ "m": m, "e": e }));
    }
    record.check();
}

#[test]
fn floats() {
    let mut record = Record::new("floats");
    let mut case = |first: &[u32]| {
        let bits: [u32; GROUP] = begun(first);
        let mut m = [0; GROUP];
        let out = match encode_floats(&bits.map(f32::from_bits), &mut m) {
            Ok(e) => json!({ "m": m, "e": e }),
            Err(at) => json!({ "refused": at }),
        };
        record.case("encode_floats", json!({ "bits": bits }), out);
    };
    let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    case(&bits(&[]));
    case(&bits(&[-0.0, 0.0]));
    case(&bits(&[1.0, -1.0, 0.5, 1.5, 0.1, -0.3, 1e-4, -1e-6, 3e-5]));
    case(&bits(&[0.999_999_94, -0.999_999_94, 0.5]));
    // Ties round away from zero: units of 2^-14 and halves of them.
    case(&bits(&[1.0, 0.5 / 16384.0, -0.5 / 16384.0, 1.5 / 16384.0, -1.5 / 16384.0]));
    // Subnormal, and both ends of the exponent.
    case(&[1, 0x8000_0001, 0x007f_ffff]);
    case(&bits(&[2f32.powi(-86), -2f32.powi(-87), 2f32.powi(-100)]));
    case(&bits(&[2f32.powi(-87), -2f32.powi(-88)]));
    case(&bits(&[2f32.powi(114), 1.0, -2f32.powi(100)]));
    case(&bits(&[f32::MAX, -f32::MAX, 2f32.powi(114), 2f32.powi(113), 1.0]));
    case(&bits(&[1.0, f32::INFINITY]));
    case(&bits(&[f32::NAN, 1.0]));
    let mut dice = Dice(2);
    let mut digest = Digest::new();
    for _ in 0..20_000 {
        // Exponents within 2^6 of each other, at any place.
        let middle = dice.next() as u32 % 190;
        let x: [f32; GROUP] = std::array::from_fn(|_| {
            let x = dice.next();
            let field = middle + (x >> 58) as u32;
            f32::from_bits((x as u32 & 0x807f_ffff) | field << 23)
        });
        let mut m = [0; GROUP];
        let e = encode_floats(&x, &mut m).unwrap();
        digest.row(&BlockVec { m: m.to_vec(), e: vec![e] });
    }
    record.case("encode_floats, 20000 blocks", json!({ "dice": 2 }), digest.text());
    record.check();
}

#[test]
fn arithmetic_of_blocks() {
    let mut record = Record::new("blocks");
    let mut dice = Dice(3);
    let full = |e: i8| one(&[32767, -32767, 16384, -16384, 1, -1, 3, -3, 0, 20000], e);
    let mut sum = |x: BlockVec, y: BlockVec| {
        let mut out = BlockVec::zeros(GROUP);
        add(x.view(), y.view(), &mut out.view_mut());
        record.case("add", json!({ "x": shown(&x), "y": shown(&y) }), shown(&out));
    };
    sum(one(&[], ZERO), one(&[], ZERO));
    sum(full(5), one(&[], ZERO));
    sum(one(&[], ZERO), full(-100));
    for below in [0, 1, 2, 13, 14, 15, 28, 29, 30, 100, 200] {
        sum(full(100), full((100 - below) as i8));
        sum(full((100 - below) as i8), full(100));
    }
    sum(full(7), one(&[-32767, 32767, -16384, 16384, -1, 1, -3, 3, 0, -20000], 7));
    sum(full(-100), one(&[-32766, 32767, -16384, 16384], -100));
    sum(dice.blocks(1, 3), dice.blocks(1, 3));
    let mut digest = Digest::new();
    for _ in 0..20_000 {
        let (x, y) = (dice.blocks(1, 7), dice.blocks(1, 7));
        let mut out = BlockVec::zeros(GROUP);
        add(x.view(), y.view(), &mut out.view_mut());
        digest.row(&out);
    }
    record.case("add, 20000 pairs", json!({ "dice": "after the pair above" }), digest.text());
    for (x, c) in [
        (full(0), (16384, -14)),
        (full(0), (32767, -15)),
        (full(90), (20000, 3)),
        (full(-90), (20000, -40)),
        (one(&[], ZERO), (20000, 100)),
        (dice.blocks(1, 3), Positive::from_f64(25.298_221).short()),
    ] {
        let mut out = BlockVec::zeros(GROUP);
        scale(x.view(), c, &mut out.view_mut());
        record.case("scale", json!({ "x": shown(&x), "m": c.0, "e": c.1 }), shown(&out));
    }
    for (x, f) in [
        (full(0), Factor::ONE),
        (full(0), Factor { m: 1 << 15, e: -15 }),
        (full(50), Factor { m: 50_000, e: 60 }),
        (full(-50), Factor { m: 50_000, e: -90 }),
        (one(&[], ZERO), Factor::ONE),
        (dice.blocks(1, 3), Factor { m: 40_503, e: -9 }),
    ] {
        let mut out = BlockVec::zeros(GROUP);
        apply(x.view(), f, &mut out.view_mut());
        record.case("apply", json!({ "x": shown(&x), "factor": factor(f) }), shown(&out));
    }
    validity(&mut record);
    record.check();
}

/// What is a valid encoding, and what is not.
fn validity(record: &mut Record) {
    let (low, high) = (EXPONENT_MIN as i8, EXPONENT_MAX as i8);
    let mut uneven = one(&[16384], 0);
    uneven.m.pop();
    for row in [
        one(&[], ZERO),
        one(&[16384], low),
        one(&[0, -32767], high),
        one(&[], 0),
        one(&[1], ZERO),
        one(&[16383, -16383], 0),
        one(&[16384], low - 1),
        one(&[16384], high + 1),
        one(&[-32768, 32767], 0),
        uneven,
    ] {
        record.case("check", shown(&row), check(row.view()).is_ok());
    }
}

#[test]
fn long_numbers() {
    let mut record = Record::new("scalars");
    for (m, e) in [(0, 5), (1, 0), (3, -7), (1 << 31, 0), (u64::MAX, -63), (0x1_0000_0001, 2)] {
        record.case("Positive::new", json!({ "m": m, "e": e }), positive(Positive::new(m, e)));
    }
    for x in [0.0, -1.0, f64::NAN, f64::INFINITY, 1.0, 1e-6, 1e-5, f64::MIN_POSITIVE / 8.0, 0.1] {
        let out = positive(Positive::from_f64(x));
        record.case("Positive::from_f64", json!({ "bits": x.to_bits() }), out);
    }
    let numbers = [0.0, 1.0, 3.25e-7, 912.5, 1e30, 0.999_999_999_9].map(Positive::from_f64);
    for x in numbers {
        for y in numbers {
            let both = json!({ "x": positive(x), "y": positive(y) });
            record.case("times", both.clone(), positive(x.times(y)));
            record.case("plus", both, positive(x.plus(y)));
        }
        record.case("short", positive(x), json!({ "m": x.short().0, "e": x.short().1 }));
        record.case("inverse_square_root", positive(x), factor(inverse_square_root(x)));
    }
    for (m, e) in [
        (1 << 31, 0),
        (1 << 31, 1),
        (1 << 31, -1),
        (u32::MAX, 0),
        (u32::MAX, 1),
        (u32::MAX, -31),
        ((1 << 31) + 1, 200),
        (3_000_000_000, -201),
    ] {
        let x = Positive { m, e };
        record.case("inverse_square_root", positive(x), factor(inverse_square_root(x)));
    }
    let mut dice = Dice(4);
    let mut digest = Digest::new();
    for _ in 0..200_000 {
        let m = (dice.next() >> 33) as u32 | 1 << 31;
        let f = inverse_square_root(Positive { m, e: dice.signed(9) as i32 });
        digest.add(f.m);
        digest.add(f.e);
    }
    record.case("inverse_square_root, 200000", json!({ "dice": 4 }), digest.text());
    for n in [1, 3, 64, 128, 576, 640, 2048, 53_248] {
        record.case("reciprocal", json!(n), positive(reciprocal(n)));
    }
    record.check();
}

#[test]
fn norms() {
    let mut record = Record::new("norms");
    let mut dice = Dice(5);
    let mut case = |x: BlockVec, w: BlockVec, eps: f64| {
        let epsilon =
            Epsilon { per_count: reciprocal(x.m.len()), epsilon: Positive::from_f64(eps) };
        let mut out = BlockVec::zeros(x.m.len());
        let f = rms_norm(x.view(), w.view(), epsilon, &mut out.view_mut());
        record.case(
            "rms_norm",
            json!({ "x": shown(&x), "w": shown(&w), "epsilon": positive(epsilon.epsilon) }),
            json!({ "product": shown(&out), "factor": factor(f) }),
        );
    };
    let (x, w) = (dice.blocks(2, 3), dice.blocks(2, 2));
    case(x, w.clone(), 1e-5);
    case(BlockVec::zeros(64), w.clone(), 1e-6);
    let mut far = dice.blocks(2, 2);
    // The second block's squares are cut to nothing 40 bits below the first's.
    (far.e[0], far.e[1]) = (10, -10);
    case(far.clone(), w.clone(), 1e-6);
    far.e[1] = -9;
    case(far, w.clone(), 1e-6);
    let loud = BlockVec { m: vec![32767; 64], e: vec![100; 2] };
    case(loud.clone(), loud.clone(), 1e-6);
    let quiet = BlockVec { m: vec![-16384; 64], e: vec![-100; 2] };
    case(quiet.clone(), loud, 1e-12);
    case(quiet, BlockVec::zeros(64), 0.1);
    record.check();
}
