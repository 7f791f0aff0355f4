//! Exact sums and their results.

use compute::gguf::TensorType;
use compute::numeric::block::BlockVec;
use compute::numeric::matmul::{Sums, Unit, sums};
use compute::numeric::scalar::Factor;
use compute::numeric::weights::{Row, row, shape};
use proptest::prelude::*;

use crate::activations::quantised;
use crate::given;

/// One block of each of three rows of a type, and what of the vector meets it.
type Column = (Vec<Vec<u8>>, BlockVec);

/// Rows and a vector in pieces that can be put in any order.
fn columns() -> impl Strategy<Value = (TensorType, Vec<Column>, Factor)> {
    given::kind().prop_flat_map(|kind| {
        let cols = kind.block_len().max(32);
        let bytes = given::bytes(cols / kind.block_len() * kind.block_bytes());
        let column = (proptest::collection::vec(bytes, 3), given::row(cols / 32));
        (Just(kind), proptest::collection::vec(column, 1..5), given::factor())
    })
}

/// The unit and each row's sums and result; `None` where a row is refused.
fn answers(kind: TensorType, columns: &[Column], f: Factor) -> Option<(Unit, Vec<(Sums, i32)>)> {
    let x: Vec<BlockVec> = columns.iter().map(|(_, x)| x.clone()).collect();
    let m = x.iter().flat_map(|x| x.m.clone()).collect();
    let x = quantised(&BlockVec { m, e: x.iter().flat_map(|x| x.e.clone()).collect() }, f);
    let rows: Option<Vec<Row>> = (0..3)
        .map(|r| {
            let bytes: Vec<u8> = columns.iter().flat_map(|(rows, _)| rows[r].clone()).collect();
            row(kind, &bytes).ok()
        })
        .collect();
    let rows = rows?;
    let top = rows.iter().map(|row| row.exponent).max()?;
    let min_top = rows.iter().map(|row| row.min_exponent).max()?;
    let unit = Unit::new(shape(kind), top, min_top, &x.tokens[0]);
    let settle = |row: &Row| {
        let sums = sums(row, &x, 0);
        (sums, unit.settle(sums, row.exponent, row.min_exponent))
    };
    Some((unit, rows.iter().map(settle).collect()))
}

proptest! {
    #[test]
    fn sums_do_not_depend_on_the_order_of_blocks((kind, columns, f) in columns()) {
        let straight = answers(kind, &columns, f);
        let turned: Vec<Column> = columns.iter().rev().cloned().collect();
        prop_assert_eq!(answers(kind, &turned, f), straight);
    }

    #[test]
    fn results_stay_within_30_bits((kind, columns, f) in columns()) {
        let Some((_, rows)) = answers(kind, &columns, f) else { return Ok(()) };
        for (sums, y) in rows {
            prop_assert!(sums.dot.unsigned_abs() < 1 << 53);
            prop_assert!(sums.min.unsigned_abs() < 1 << 43);
            prop_assert!(y.unsigned_abs() <= 1 << 30, "{:?} {}", kind, y);
        }
    }
}
