//! Rows as bytes: one form a value, and nothing else is taken in.

use std::time::Instant;

use compute::numeric::block::{self, BlockVec, GROUP};
use compute::numeric::rows::{RowError, row_bytes, rows_from_bytes, rows_to_bytes};
use proptest::prelude::*;

use crate::given;

fn to_bytes(rows: &BlockVec, width: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    rows_to_bytes(rows.view(), width, &mut bytes);
    bytes
}

fn of_blocks(blocks: &[BlockVec]) -> BlockVec {
    let mut all = BlockVec::default();
    blocks.iter().for_each(|block| block.view().append_to(&mut all));
    all
}

#[test]
fn bytes_are_exponents_then_mantissas_row_by_row() {
    let mut rows = BlockVec::zeros(2 * 64);
    rows.e[0] = -3;
    rows.m[0] = 0x4001;
    rows.m[1] = -2;
    rows.e[3] = 100;
    rows.m[127] = -0x7fff;
    let mut golden = vec![0; 2 * 130];
    golden[..6].copy_from_slice(&[0xfd, 0x80, 0x01, 0x40, 0xfe, 0xff]);
    golden[130..132].copy_from_slice(&[0x80, 0x64]);
    golden[258..].copy_from_slice(&[0x01, 0x80]);
    assert_eq!(to_bytes(&rows, 64), golden);
    let mut found = BlockVec::default();
    assert_eq!(rows_from_bytes(&golden, 64, &mut found), Ok(()));
    assert_eq!(found, rows);
    // They are written behind what is there already.
    let mut after = vec![7];
    rows_to_bytes(rows.view(), 64, &mut after);
    assert_eq!((after[0], &after[1..]), (7, &golden[..]));
}

proptest! {
    #[test]
    fn rows_come_back_as_they_were(blocks in proptest::collection::vec(given::block(), 6)) {
        let rows = of_blocks(&blocks);
        for width in [32, 64, 96, 192] {
            let bytes = to_bytes(&rows, width);
            prop_assert_eq!(bytes.len(), 6 * GROUP / width * row_bytes(width));
            let mut found = BlockVec::zeros(999);
            prop_assert_eq!(rows_from_bytes(&bytes, width, &mut found), Ok(()));
            prop_assert_eq!(&found, &rows);
        }
    }

    /// The fast look at a block takes and refuses what the rules, one by one, do.
    #[test]
    fn bytes_of_any_kind_are_valid_or_refused_by_name(
        blocks in proptest::collection::vec(given::block(), 4),
        at in 0usize..260,
        byte in any::<u8>(),
    ) {
        let mut bytes = to_bytes(&of_blocks(&blocks), 64);
        bytes[at] = byte;
        let mut found = BlockVec::default();
        match rows_from_bytes(&bytes, 64, &mut found) {
            Ok(()) => {
                prop_assert_eq!(block::check(found.view()), Ok(()));
                prop_assert!((0..4).all(|g| block::fault(found.view().block(g)).is_none()));
                prop_assert_eq!(to_bytes(&found, 64), bytes);
            }
            Err(RowError::Block { row, block, .. }) => {
                prop_assert!(row == at / 130 && block < 2, "{row} {block} {at}");
                prop_assert!(found.m.is_empty() && found.e.is_empty());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn broken_blocks_and_lengths_are_refused() {
    let sound = of_blocks(&[BlockVec::zeros(32), BlockVec::zeros(32)]);
    let refused = |change: &dyn Fn(&mut BlockVec)| {
        let mut rows = sound.clone();
        change(&mut rows);
        rows_from_bytes(&to_bytes(&rows, 32), 32, &mut BlockVec::default()).unwrap_err()
    };
    let at_second = |rule| RowError::Block { row: 1, block: 0, rule };
    let set = |m: i16, e: i8| move |rows: &mut BlockVec| (rows.m[40], rows.e[1]) = (m, e);
    assert_eq!(refused(&set(i16::MIN, 3)), at_second("a mantissa is -32768"));
    assert_eq!(refused(&set(16383, 3)), at_second("a block is not normalised"));
    assert_eq!(refused(&set(-16383, 3)), at_second("a block is not normalised"));
    assert_eq!(refused(&set(0, 3)), at_second("a block of zeros has an exponent"));
    for e in [101, 127, -101, -127, -128] {
        assert_eq!(refused(&set(-16384, e)), at_second("an exponent is out of range"));
    }
    for e in [100, -100, 0] {
        let mut rows = sound.clone();
        set(-16384, e)(&mut rows);
        assert_eq!(rows_from_bytes(&to_bytes(&rows, 32), 32, &mut BlockVec::default()), Ok(()));
    }
    let short = rows_from_bytes(&[0; 131], 64, &mut BlockVec::default());
    assert_eq!(short, Err(RowError::Length { bytes: 131, row: 130 }));
    assert_eq!(rows_from_bytes(&[], 64, &mut BlockVec::default()), Ok(()));
}

/// Not a claim about any machine: it prints what this one does, and holds that nothing is lost.
#[test]
fn the_speed_of_rows_and_bytes_is_told() {
    let (width, count) = (2048, 512);
    let mut rows = BlockVec::zeros(width * count);
    for g in 0..rows.e.len() {
        let z = std::array::from_fn(|i| ((g * 37 + i * 1001) % 60_000) as i32 - 30_000);
        rows.view_mut().encode(g, &z, -14);
    }
    let (mut bytes, mut back) = (Vec::new(), BlockVec::default());
    for _ in 0..3 {
        bytes.clear();
        let start = Instant::now();
        rows_to_bytes(rows.view(), width, &mut bytes);
        let out = start.elapsed();
        let start = Instant::now();
        rows_from_bytes(&bytes, width, &mut back).unwrap();
        let taken = start.elapsed();
        let speed = |time: std::time::Duration| bytes.len() as f64 / time.as_nanos() as f64;
        println!("to bytes {:.2} GB/s, from bytes {:.2} GB/s", speed(out), speed(taken));
    }
    assert!(back == rows);
}
