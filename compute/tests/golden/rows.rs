//! Rows of matrices, from a file's bytes.

use compute::gguf::TensorType;
use compute::numeric::block::BlockVec;
use compute::numeric::embedding::embed;
use compute::numeric::weights::{Row, row, shape};
use serde_json::{Value, json};

use crate::blocks::shown;
use crate::digest::{Dice, Digest};
use crate::record::Record;

/// Every type of weights.
pub const KINDS: [TensorType; 15] = {
    use TensorType::*;
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS]
};

/// Where a block of the file has its halves (f16), or the upper half of a float.
fn halves(kind: TensorType) -> &'static [usize] {
    use TensorType::*;
    match kind {
        F16 | BF16 | Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        F32 => &[2],
    }
}

/// A row of the file from dice: any bytes, but bit 14 of every half is 0, so that all are finite
/// and below 2.
pub fn file_row(kind: TensorType, cols: usize, dice: &mut Dice) -> Vec<u8> {
    let size = kind.block_bytes();
    let mut bytes: Vec<u8> =
        (0..cols / kind.block_len() * size).map(|_| dice.next() as u8).collect();
    for block in bytes.chunks_exact_mut(size) {
        halves(kind).iter().for_each(|at| block[at + 1] &= 0xbf);
    }
    bytes
}

/// A row whose every byte is `byte` and whose every half is `half`.
pub fn extreme_row(kind: TensorType, cols: usize, byte: u8, half: u16) -> Vec<u8> {
    let size = kind.block_bytes();
    let mut bytes = vec![byte; cols / kind.block_len() * size];
    for block in bytes.chunks_exact_mut(size) {
        halves(kind).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&half.to_le_bytes()));
    }
    bytes
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn whole(row: &Row) -> Value {
    json!({
        "span": row.span, "exponent": row.exponent, "scales": row.scales,
        "min_exponent": row.min_exponent, "mins": row.mins, "q": row.q,
    })
}

/// A row as the residual that it would begin.
fn embedded(row: &Row) -> BlockVec {
    let mut blocks = BlockVec::zeros(row.q.len());
    embed(row, &mut blocks.view_mut());
    blocks
}

/// Adds all numbers of a row to a digest.
fn add_all(digest: &mut Digest, row: &Row) {
    digest.all(&[row.exponent, row.min_exponent]);
    for numbers in [&row.scales, &row.mins, &row.q] {
        digest.all(numbers);
    }
}

#[test]
fn rows() {
    let mut record = Record::new("rows");
    for kind in KINDS {
        let name = format!("{kind:?}");
        let s = shape(kind);
        let of = json!({ "span": s.span, "q_max": s.q_max, "has_min": s.has_min });
        record.case(&format!("{name} shape"), json!(null), of);
        let mut dice = Dice(8);
        let cols = kind.block_len().max(64);
        let bytes = file_row(kind, cols, &mut dice);
        let unpacked = row(kind, &bytes).unwrap();
        let out = json!({ "row": whole(&unpacked), "embedded": shown(&embedded(&unpacked)) });
        record.case(&name, json!({ "bytes": hex(&bytes) }), out);
        for (byte, half) in
            [(0xff, 0x7bff), (0, 0xfbff), (0x5a, 0x0001), (0x5a, 0), (0x5a, 0x7c00), (0x5a, 0x7fff)]
        {
            let out = row(kind, &extreme_row(kind, cols, byte, half)).map_or_else(
                |fault| json!({ "refused": fault.block }),
                |row| {
                    let mut digest = Digest::new();
                    add_all(&mut digest, &row);
                    json!({ "exponents": [row.exponent, row.min_exponent], "all": digest.text() })
                },
            );
            let of = json!({ "every byte": byte, "every half": format!("{half:04x}") });
            record.case(&name, of, out);
        }
        let mut digest = Digest::new();
        for _ in 0..64 {
            let row = row(kind, &file_row(kind, 1024, &mut dice)).unwrap();
            add_all(&mut digest, &row);
            digest.row(&embedded(&row));
        }
        let of = json!({ "dice": "8, after the row above" });
        record.case(&format!("{name}, 64 rows of 1024"), of, digest.text());
    }
    record.check();
}
