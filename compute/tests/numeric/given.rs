//! Valid inputs, with extremes more often than chance would have them.

use compute::gguf::TensorType;
use compute::numeric::attention::HeadScale;
use compute::numeric::block::{BlockVec, GROUP, ZERO};
use compute::numeric::scalar::{Factor, Positive};
use proptest::collection::vec;
use proptest::prelude::*;

/// Every type of weights.
pub const KINDS: [TensorType; 15] = {
    use TensorType::*;
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS]
};

pub fn kind() -> impl Strategy<Value = TensorType> {
    proptest::sample::select(&KINDS[..])
}

/// An exponent that a block, or the scale of a head, may have.
pub fn exponent() -> impl Strategy<Value = i8> {
    prop_oneof![Just(-100i8), Just(100i8), -30i8..=5, -100i8..=100]
}

fn mantissa() -> impl Strategy<Value = i16> {
    prop_oneof![Just(0), Just(32767), Just(-32767), -3i16..=3, -32767i16..=32767]
}

/// A mantissa that makes its block normal.
fn peak() -> impl Strategy<Value = i16> {
    let size = prop_oneof![Just(16384i16), Just(32767i16), 16384i16..=32767];
    (size, any::<bool>()).prop_map(|(size, negative)| if negative { -size } else { size })
}

/// Any valid block.
pub fn block() -> impl Strategy<Value = BlockVec> {
    let normal = (vec(mantissa(), GROUP), 0..GROUP, peak(), exponent());
    let normal = normal.prop_map(|(mut m, at, peak, e)| {
        m[at] = peak;
        BlockVec { m, e: vec![e] }
    });
    prop_oneof![1 => Just(BlockVec { m: vec![0; GROUP], e: vec![ZERO] }), 7 => normal]
}

/// Any valid row of so many blocks.
pub fn row(groups: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = BlockVec> {
    vec(block(), groups).prop_map(|blocks| joined(&blocks))
}

/// Blocks one after another.
pub fn joined(blocks: &[BlockVec]) -> BlockVec {
    let m = blocks.iter().flat_map(|block| block.m.clone()).collect();
    BlockVec { m, e: blocks.iter().map(|block| block.e[0]).collect() }
}

/// Numbers for one block, up to 2^30, of all sizes.
pub fn wide() -> impl Strategy<Value = [i32; GROUP]> {
    let number = prop_oneof![
        Just(0),
        Just(1 << 30),
        Just(-(1 << 30)),
        -(1i32 << 30)..=1 << 30,
        (-(1i32 << 30)..=1 << 30, 0..30).prop_map(|(z, down)| z >> down),
    ];
    (vec(number, GROUP), prop_oneof![Just(0), 0..31]).prop_map(|(z, down)| {
        let z: [i32; GROUP] = z.try_into().expect("a block has 32 numbers");
        z.map(|z| z >> down)
    })
}

/// A factor of a whole row, wider than any norm gives.
pub fn factor() -> impl Strategy<Value = Factor> {
    let m = prop_oneof![Just(1u32 << 15), Just(1u32 << 16), 1u32 << 15..=1 << 16];
    (m, -200i32..=200).prop_map(|(m, e)| Factor { m, e })
}

/// Any long number, zero included.
pub fn positive() -> impl Strategy<Value = Positive> {
    let normal = (1u32 << 31..=u32::MAX, -300i32..=300).prop_map(|(m, e)| Positive { m, e });
    prop_oneof![1 => Just(Positive::ZERO), 9 => normal]
}

/// A constant of 15 bits.
pub fn constant() -> impl Strategy<Value = (i16, i32)> {
    (16384i16..=32767, -120i32..=120)
}

/// A head as the cache holds it.
pub fn head(len: usize) -> impl Strategy<Value = (Vec<i8>, HeadScale)> {
    let number = prop_oneof![Just(127i8), Just(-127i8), -127i8..=127];
    let m = prop_oneof![Just(16384i16), Just(32767i16), 16384i16..=32767];
    let full = (vec(number, len), m, exponent()).prop_map(|(q, m, e)| (q, HeadScale { m, e }));
    let zero = Just((vec![0; len], HeadScale::default()));
    prop_oneof![1 => zero, 7 => full]
}

/// Bytes of a row of a file: any, or all alike.
pub fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), len),
        (any::<u8>(), any::<[u8; 2]>()).prop_map(move |(byte, half)| {
            let mut bytes = vec![byte; len];
            bytes[..2].copy_from_slice(&half);
            bytes
        }),
    ]
}
