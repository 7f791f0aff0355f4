//! The definition, applied to one tile.

use super::{Call, Group};
use crate::matrix::TILE;
use crate::numeric::matmul::sums;

pub fn tile(call: &Call, tile: usize, out: &mut [Group], at: usize) {
    let rows = tile * TILE..(tile * TILE + TILE).min(call.matrix.rows);
    for (lane, r) in rows.enumerate() {
        let row = call.matrix.row(r);
        for (i, token) in call.tokens.clone().enumerate() {
            let sums = sums(&row, call.x, token);
            out[i][at + lane] = call.units[i].settle(sums, row.exponent, row.min_exponent);
        }
    }
}
