//! RoPE frequencies as integers that are the same on every machine.
//!
//! `powf`, `exp` and `ln` differ between C libraries, so none is used: base-2 logarithm and power
//! are series over f64 additions, multiplications and divisions, which IEEE 754 defines to the
//! last bit and which Rust neither reorders nor contracts.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2, TAU};

/// `round(base^(-2 pair / dims) / divisor / 2 pi * 2^32) mod 2^32`. Whole turns are dropped, which
/// changes nothing at whole positions. For `1 <= base <= 10^12` and `2^-20 <= divisor` the value
/// before rounding is within 10^-14 of its exact value, relatively.
pub(super) fn increment(base: f64, pair: usize, dims: usize, divisor: f64) -> u32 {
    let exponent = (2 * pair) as f64 / dims as f64;
    let frequency = exp2(-log2(base) * exponent);
    let turns = frequency / divisor / TAU;
    // Below 2^18 turns, hence below 2^50: the sum with one half and its floor are exact enough,
    // and the cast keeps every bit. `as u32` then drops whole turns.
    (turns * 4_294_967_296.0 + 0.5).floor() as u64 as u32
}

/// Base-2 logarithm of a positive normal number; relative error below 10^-15.
fn log2(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    let bits = x.to_bits();
    let mut power = ((bits >> 52) as i64 - 1023) as f64;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        power += 1.0;
    }
    // ln m = 2 atanh(s) with |s| < 0.1716, so that the term in s^25 is below 10^-20.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in (1..=23).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    power + 2.0 * s * sum * LOG2_E
}

/// 2 to the power `y`, for `|y| < 1000`; relative error below `10^-15 + |y| 10^-16`.
fn exp2(y: f64) -> f64 {
    debug_assert!(y.abs() < 1000.0);
    let whole = (y + 0.5).floor();
    // |t| < 0.347, so that the term in t^15 is below 10^-19.
    let t = (y - whole) * LN_2;
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = 1.0 + t * sum / f64::from(n);
    }
    sum * f64::from_bits(((whole as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_exact() {
        for n in -30..=30 {
            assert_eq!(exp2(f64::from(n)), 2f64.powi(n));
            assert_eq!(log2(2f64.powi(n)), f64::from(n));
        }
    }

    #[test]
    fn logarithm_and_power_undo_each_other() {
        for i in 1..2000 {
            let x = f64::from(i) * 517.3;
            let back = exp2(log2(x));
            assert!(((back - x) / x).abs() < 2e-14, "{x} came back as {back}");
        }
    }

    #[test]
    fn logarithm_matches_known_digits() {
        // From an arbitrary-precision calculation.
        let known = [
            (10_000.0, 13.287_712_379_549_45),
            (100_000.0, 16.609_640_474_436_812),
            (500_000.0, 18.931_568_569_324_174),
            (1_000_000.0, 19.931_568_569_324_174),
            (1.5, 0.584_962_500_721_156_2),
        ];
        for (x, digits) in known {
            let error: f64 = (log2(x) - digits) / digits;
            assert!(error.abs() < 1e-15, "log2({x}) is off by {error}");
        }
    }
}
