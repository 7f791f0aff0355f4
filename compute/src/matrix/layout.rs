//! Where things lie in a unit, by weight type.

use crate::gguf::TensorType;

/// How a block's dot product stays within 32 bits, which decides its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Codes of 4 bits: eight products of pairs fit 16 bits.
    Small,
    /// Codes of 5 bits around a centre: a block's dot fits 17 bits, times a scale 32.
    Centred,
    /// Codes of 5 bits without one: half a block's dot times a scale fits 32 bits.
    Split,
    /// Signed codes of 8 bits: a block's dot times a scale needs 35 bits.
    Signed,
    /// Scales for every 16 columns.
    Half,
    /// Codes of 16 bits, from floats.
    Wide,
}

/// The layout of one unit: eight rows times `columns`. Offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The file's type.
    pub kind: TensorType,
    /// Which kernel.
    pub family: Family,
    /// 64 or 256.
    pub columns: usize,
    /// Size of a unit.
    pub bytes: usize,
    /// What is subtracted from a code.
    pub centre: i32,
    /// Fractions `d`: for 64 columns two blocks' by row, `[8][2]`; for 256 columns `[8]`.
    pub d: usize,
    /// Fractions of minima, laid out like `d`; 0 where there are none.
    pub m: usize,
    /// Integer sub-scales, `[pair][8][2]` bytes; 0 where there are none.
    pub sub: usize,
    /// Integer sub-minima, laid out like `sub`; 0 where there are none of their own.
    pub sub_min: usize,
    /// Bits of a sub-scale.
    pub sub_bits: u32,
    /// Low bits of codes, in words of four by row.
    pub low: usize,
    /// High bits of codes; 0 where there are none.
    pub high: usize,
}

impl Layout {
    /// The layout for a weight type.
    pub const fn of(kind: TensorType) -> Self {
        use TensorType::*;
        match kind {
            F32 | F16 | BF16 => Self::pairs(kind, Family::Wide, 0, false, 0, 512),
            Q4_0 => Self::pairs(kind, Family::Small, 8, false, 0, 128),
            Q4_1 => Self::pairs(kind, Family::Small, 0, true, 0, 128),
            Q5_0 => Self::pairs(kind, Family::Centred, 16, false, 32, 128),
            Q5_1 => Self::pairs(kind, Family::Centred, 16, true, 32, 128),
            Q8_0 => Self::pairs(kind, Family::Signed, 0, false, 0, 256),
            IQ4_NL => Self::pairs(kind, Family::Signed, 0, false, 0, 128),
            IQ4_XS => Self::super_block(kind, Family::Signed, 0, (64, 0, 5), 0, 1024),
            Q4_K => Self::super_block(kind, Family::Small, 0, (64, 64, 6), 0, 1024),
            Q5_K => Self::super_block(kind, Family::Split, 0, (64, 64, 6), 256, 1024),
            Q6_K => Self::super_block(kind, Family::Half, 32, (128, 0, 7), 512, 1024),
            Q3_K => Self::super_block(kind, Family::Half, 4, (128, 0, 5), 256, 512),
            Q2_K => Self::super_block(kind, Family::Half, 0, (128, 0, 4), 0, 512),
        }
    }

    /// Two blocks of 32 columns, each with `high` and `low` bytes of codes.
    const fn pairs(
        kind: TensorType,
        family: Family,
        centre: i32,
        min: bool,
        high: usize,
        low: usize,
    ) -> Self {
        let head = if min { 64 } else { 32 };
        Self {
            kind,
            family,
            columns: 64,
            bytes: head + 2 * (high + low),
            centre,
            d: 0,
            m: if min { 32 } else { 0 },
            sub: 0,
            sub_min: 0,
            sub_bits: 0,
            low: head + 2 * high,
            high: if high != 0 { head } else { 0 },
        }
    }

    /// One K-quant block; `subs` are bytes of sub-scales and sub-minima, and bits of one.
    const fn super_block(
        kind: TensorType,
        family: Family,
        centre: i32,
        subs: (usize, usize, u32),
        high: usize,
        low: usize,
    ) -> Self {
        let min = subs.1 != 0 || matches!(kind, TensorType::Q2_K);
        let sub = if min { 32 } else { 16 };
        let head = sub + subs.0 + subs.1;
        Self {
            kind,
            family,
            columns: 256,
            bytes: head + high + low,
            centre,
            d: 0,
            m: if min { 16 } else { 0 },
            sub,
            sub_min: if subs.1 != 0 { sub + subs.0 } else { 0 },
            sub_bits: subs.2,
            low: head + high,
            high: if high != 0 { head } else { 0 },
        }
    }
}
