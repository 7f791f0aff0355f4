//! Query heads over a cache, by kernel.

use std::ops::Range;

use crate::kernels::Kernels;
use crate::kv::HeadCache;
use crate::numeric::attention::{QueryFactor, attend as defined};

/// What some query heads look at.
#[derive(Debug, Clone)]
pub struct Seen<'a> {
    /// The key-value head that they share.
    pub cache: HeadCache<'a>,
    /// The positions that they may see.
    pub positions: Range<usize>,
}

/// Memory that attention reuses.
#[derive(Debug, Default)]
pub struct Scratch {}

/// All query heads of one key-value head for one token: `out` receives their averages, `units` the
/// exponents.
pub fn attend(
    _kernels: Kernels,
    seen: Seen,
    (queries, factors): (&[i8], &[QueryFactor]),
    (out, units): (&mut [i32], &mut [i32]),
    _scratch: &mut Scratch,
) {
    let head = seen.cache.head;
    for (h, &factor) in factors.iter().enumerate() {
        units[h] = defined(
            &queries[h * head..(h + 1) * head],
            factor,
            seen.positions.clone(),
            &mut |j, q| seen.cache.key(j, q),
            &mut |j, q| seen.cache.value(j, q),
            &mut out[h * head..(h + 1) * head],
        );
    }
}
