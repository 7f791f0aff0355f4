//! Rows times vectors: exact sums, the unit of the results, and the results.

use compute::numeric::activation::Activations;
use compute::numeric::matmul::{Sums, Unit, sums};
use compute::numeric::scalar::Factor;
use compute::numeric::weights::{Row, row, shape};
use serde_json::{Value, json};

use crate::activations::{quantised, token};
use crate::blocks::shown;
use crate::digest::{Dice, Digest};
use crate::record::Record;
use crate::rows::{KINDS, extreme_row, file_row, hex};

fn unit_of(kind: compute::gguf::TensorType, rows: &[Row], x: &Activations) -> Unit {
    let top = rows.iter().map(|row| row.exponent).max().unwrap();
    let min_top = rows.iter().map(|row| row.min_exponent).max().unwrap();
    Unit::new(shape(kind), top, min_top, &x.tokens[0])
}

fn answers(rows: &[Row], x: &Activations, unit: Unit) -> (Vec<Sums>, Vec<i32>) {
    let all: Vec<Sums> = rows.iter().map(|row| sums(row, x, 0)).collect();
    let settle = |(row, &s): (&Row, &Sums)| unit.settle(s, row.exponent, row.min_exponent);
    let settled = rows.iter().zip(&all).map(settle).collect();
    (all, settled)
}

fn shown_answers(rows: &[Row], x: &Activations, unit: Unit) -> Value {
    let (all, settled) = answers(rows, x, unit);
    json!({
        "token": token(&x.tokens[0]), "unit": unit.exponent,
        "dots": all.iter().map(|s| s.dot).collect::<Vec<_>>(),
        "mins": all.iter().map(|s| s.min).collect::<Vec<_>>(),
        "settled": settled,
    })
}

#[test]
fn matrices() {
    let mut record = Record::new("matrices");
    for kind in KINDS {
        let name = format!("{kind:?}");
        let mut dice = Dice(9);
        let cols = kind.block_len().max(64);
        let vector = dice.blocks(cols / 32, 3);
        let x = quantised(&vector, Factor { m: 45_000, e: -15 });
        let bytes: Vec<Vec<u8>> = (0..3).map(|_| file_row(kind, cols, &mut dice)).collect();
        let rows: Vec<Row> = bytes.iter().map(|bytes| row(kind, bytes).unwrap()).collect();
        let of = json!({
            "rows": bytes.iter().map(|bytes| hex(bytes)).collect::<Vec<_>>(),
            "x": shown(&vector), "factor": { "m": 45_000, "e": -15 },
        });
        record.case(&name, of, shown_answers(&rows, &x, unit_of(kind, &rows, &x)));
        at_the_bounds(&mut record, kind);
        let mut digest = Digest::new();
        for _ in 0..16 {
            let x = quantised(&dice.blocks(32, 4), Factor::ONE);
            let rows: Vec<Row> =
                (0..8).map(|_| row(kind, &file_row(kind, 1024, &mut dice)).unwrap()).collect();
            let unit = unit_of(kind, &rows, &x);
            let (all, settled) = answers(&rows, &x, unit);
            digest.add(unit.exponent);
            all.iter().for_each(|s| digest.all(&[s.dot, s.min]));
            digest.all(&settled);
        }
        let of = json!({ "dice": "9, goes on" });
        record.case(&format!("{name}, 16 vectors with 8 rows of 1024"), of, digest.text());
    }
    record.check();
}

/// The longest row that a model may have, with the largest numbers of either sign.
fn at_the_bounds(record: &mut Record, kind: compute::gguf::TensorType) {
    let cols = 53_248;
    for sign in [1, -1] {
        let vector = compute::numeric::block::BlockVec {
            m: vec![sign * 32_767; cols],
            e: vec![0; cols / 32],
        };
        let x = quantised(&vector, Factor::ONE);
        let rows: Vec<Row> = [(0xff, 0x7bff), (0, 0xfbff), (0x7f, 0x7bff), (0x80, 0x7bff)]
            .map(|(byte, half)| row(kind, &extreme_row(kind, cols, byte, half)).unwrap())
            .into();
        let of = json!({ "every number of the vector": sign * 32_767 });
        let out = shown_answers(&rows, &x, unit_of(kind, &rows, &x));
        record.case(&format!("{kind:?}, 4 extreme rows of {cols}"), of, out);
    }
}
