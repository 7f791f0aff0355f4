//! Rows of matrices from any bytes.

use compute::numeric::block::{BlockVec, check};
use compute::numeric::embedding::embed;
use compute::numeric::weights::{row, shape};
use proptest::prelude::*;

use crate::given;

fn some_bytes() -> impl Strategy<Value = (compute::gguf::TensorType, Vec<u8>)> {
    (given::kind(), 1..4usize).prop_flat_map(|(kind, blocks)| {
        let cols = blocks * kind.block_len().max(32);
        let bytes = given::bytes(cols / kind.block_len() * kind.block_bytes());
        (Just(kind), bytes)
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_row_within_bounds_or_are_refused((kind, bytes) in some_bytes()) {
        let Ok(row) = row(kind, &bytes) else { return Ok(()) };
        let shape = shape(kind);
        let cols = bytes.len() / kind.block_bytes() * kind.block_len();
        prop_assert_eq!((row.q.len(), row.span), (cols, shape.span));
        prop_assert_eq!(row.scales.len(), cols / shape.span);
        prop_assert_eq!(row.mins.len(), if shape.has_min { cols / shape.span } else { 0 });
        prop_assert!(row.q.iter().all(|q| u32::from(q.unsigned_abs()) <= shape.q_max));
        prop_assert!(!row.scales.contains(&i16::MIN) && !row.mins.contains(&i16::MIN));
        let mut blocks = BlockVec::zeros(cols);
        embed(&row, &mut blocks.view_mut());
        prop_assert_eq!(check(blocks.view()), Ok(()));
    }
}
