//! Positive numbers of 32 bits under an exponent, for what happens once a row: means, roots,
//! reciprocals and the constants that a model brings.

/// `m * 2^e` with `m` in `[2^31, 2^32)`, or zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positive {
    /// Mantissa.
    pub m: u32,
    /// Exponent.
    pub e: i32,
}

impl Positive {
    /// Zero.
    pub const ZERO: Self = Self { m: 0, e: -1000 };

    /// `m * 2^e`, cut to 32 bits.
    #[inline(always)]
    pub fn new(m: u64, e: i32) -> Self {
        if m == 0 {
            return Self::ZERO;
        }
        let up = m.leading_zeros();
        Self { m: ((m << up) >> 32) as u32, e: e + 32 - up as i32 }
    }

    /// A finite, positive float, cut to 32 bits; anything else becomes zero.
    pub fn from_f64(x: f64) -> Self {
        if !(x.is_finite() && x > 0.0) {
            return Self::ZERO;
        }
        let bits = x.to_bits();
        let field = (bits >> 52) as i32;
        let fraction = bits & ((1 << 52) - 1);
        let mantissa = if field == 0 { fraction } else { fraction | (1 << 52) };
        Self::new(mantissa, field.max(1) - 1075)
    }

    /// `self * other`, cut.
    #[inline(always)]
    pub fn times(self, other: Self) -> Self {
        Self::new(u64::from(self.m) * u64::from(other.m), self.e + other.e)
    }

    /// `self + other`: the smaller is aligned to the larger by cutting, then added.
    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        let (big, small) = if self.e >= other.e { (self, other) } else { (other, self) };
        let down = (big.e - small.e).min(32) as u32;
        Self::new(u64::from(big.m) + (u64::from(small.m) >> down), big.e)
    }

    /// The mantissa cut to 15 bits, in `[2^14, 2^15)`, and its exponent.
    pub fn short(self) -> (i16, i32) {
        ((self.m >> 17) as i16, self.e + 17)
    }
}

/// A factor that a whole row shares: `m * 2^e`, `m` in `[2^15, 2^16]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    /// Mantissa.
    pub m: u32,
    /// Exponent.
    pub e: i32,
}

impl Factor {
    /// One.
    pub const ONE: Self = Self { m: 1 << 16, e: -16 };
}

/// `1 / sqrt(x)`; for zero, [`Factor::ONE`].
///
/// With `x = a * 4^h` and `a` in `[2^30, 2^32)`, the mantissa is the largest `r` with
/// `r^2 * a <= 2^62`.
#[inline(always)]
pub fn inverse_square_root(x: Positive) -> Factor {
    if x.m == 0 {
        return Factor::ONE;
    }
    let odd = x.e & 1;
    let a = u64::from(x.m >> odd);
    let half = (x.e + odd) / 2;
    // The float is a guess that the two loops put right, so its rounding does not matter.
    let mut r = ((1u64 << 62) as f64 / a as f64).sqrt() as u64;
    while u128::from(r * r) * u128::from(a) > 1 << 62 {
        r -= 1;
    }
    while u128::from((r + 1) * (r + 1)) * u128::from(a) <= 1 << 62 {
        r += 1;
    }
    Factor { m: r as u32, e: -half - 31 }
}

/// The reciprocal of a count, for means.
pub fn reciprocal(n: usize) -> Positive {
    let n = n as u64;
    // 2^63 / n keeps 32 bits and more for n < 2^31.
    Positive::new((1u64 << 63) / n, -63)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(x: Positive) -> f64 {
        f64::from(x.m) * 2f64.powi(x.e)
    }

    #[test]
    fn arithmetic_is_near_the_real_one() {
        let x = Positive::from_f64(3.25e-7);
        let y = Positive::from_f64(912.5);
        assert!((real(x.times(y)) / (3.25e-7 * 912.5) - 1.0).abs() < 1e-9);
        assert!((real(x.plus(y)) / (3.25e-7 + 912.5) - 1.0).abs() < 1e-9);
        assert!((real(reciprocal(576)) * 576.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_root_is_the_largest_that_fits() {
        for i in 0..100_000u64 {
            let a = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) | (1 << 31);
            for e in [-7, -6, 0, 1] {
                let x = Positive { m: a as u32, e };
                let r = inverse_square_root(x);
                assert!((1 << 15..=1 << 16).contains(&r.m));
                let error = f64::from(r.m) * 2f64.powi(r.e) * real(x).sqrt() - 1.0;
                assert!(error <= 1e-9 && error > -3.1e-5, "{error}");
            }
        }
    }
}
