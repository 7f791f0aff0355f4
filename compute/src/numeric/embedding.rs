//! From a matrix row to block floats.

use super::bits::round_shift;
use super::block::{BlocksMut, GROUP, encode_wide};
use super::weights::{ROW_ZERO, Row};

/// Bits kept below the larger of a row's two exponents.
const SPARE: i32 = 10;

/// The row's numbers as block floats.
pub fn embed(row: &Row, out: &mut BlocksMut) {
    let top = row.exponent.max(row.min_exponent);
    for g in 0..row.q.len() / GROUP {
        let z: [i64; GROUP] = std::array::from_fn(|i| {
            let at = g * GROUP + i;
            let part = |x: i64, e: i32| round_shift((127 * x) << SPARE, (top - e) as u32);
            let dot = i64::from(row.scales[at / row.span]) * i64::from(row.q[at]);
            let min = row.mins.get(at / row.span).map_or(0, |&m| i64::from(m));
            part(dot, row.exponent) + part(min, row.min_exponent)
        });
        let m = (&mut out.m[g * GROUP..][..GROUP]).try_into().expect("a block has 32 numbers");
        out.e[g] = if top == ROW_ZERO {
            encode_wide(&[0; GROUP], 0, m)
        } else {
            encode_wide(&z, top - SPARE, m)
        };
    }
}
