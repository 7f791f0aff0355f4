//! The definition, row by row.

use std::ops::Range;

use super::{Call, Group};
use crate::matrix::TILE;
use crate::numeric::matmul::sums;

pub fn group(call: &Call, tiles: Range<usize>, out: &mut [Group]) {
    let rows = tiles.start * TILE..(tiles.end * TILE).min(call.matrix.rows);
    for (at, r) in rows.enumerate() {
        let row = call.matrix.row(r);
        for (i, token) in call.tokens.clone().enumerate() {
            let sums = sums(&row, call.x, token);
            out[i][at] = call.units[i].settle(sums, row.exponent, row.min_exponent);
        }
    }
}
