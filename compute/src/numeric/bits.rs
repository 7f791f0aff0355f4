//! Shifts and bit lengths, the only rounding that the class knows.

/// `x / 2^n`, rounded to nearest, ties towards plus infinity. `n` of 63 or more gives 0.
#[inline(always)]
pub fn round_shift(x: i64, n: u32) -> i64 {
    match n {
        0 => x,
        // |x| < 2^62 for every value that the class forms, so the sum cannot wrap.
        1..=62 => (x + (1 << (n - 1))) >> n,
        _ => 0,
    }
}

/// The same on 32 bits, for |x| <= 2^30. `n` of 31 or more gives 0.
#[inline(always)]
pub fn round_shift_32(x: i32, n: u32) -> i32 {
    match n {
        0 => x,
        1..=30 => (x + (1 << (n - 1))) >> n,
        _ => 0,
    }
}

/// Bits needed to write `x`: 0 for 0, 1 for 1, 15 for 32767.
#[inline(always)]
pub fn bit_length(x: u64) -> u32 {
    64 - x.leading_zeros()
}

/// The product of two signed fractions of 15 bits, rounded to 15 bits: `(x*y + 2^14) >> 15`.
///
/// This is what one `pmulhrsw` does to each lane.
#[inline(always)]
pub fn mul_q15(x: i16, y: i16) -> i16 {
    ((i32::from(x) * i32::from(y) + (1 << 14)) >> 15) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_rounds_towards_plus_infinity() {
        assert_eq!([3, -3, 5, -5].map(|x| round_shift(x, 1)), [2, -1, 3, -2]);
        assert_eq!([3, -3, 5, -5].map(|x| round_shift_32(x, 1)), [2, -1, 3, -2]);
    }

    #[test]
    fn a_shift_past_the_end_gives_zero() {
        assert_eq!(round_shift(i64::MAX >> 1, 63), 0);
        assert_eq!(round_shift_32(-(1 << 30), 31), 0);
    }

    #[test]
    fn bit_length_counts_what_is_needed() {
        assert_eq!([0, 1, 2, 32767, 32768].map(bit_length), [0, 1, 2, 15, 16]);
    }
}
