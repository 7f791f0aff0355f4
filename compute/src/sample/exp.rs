//! e^x by arithmetic that is the same everywhere: the system's own differs between machines.

/// e^x to 2 units in the last place, for x from minus infinity to 0.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    // Below this the result is under 2^-125, and next to e^0 = 1 that is nothing.
    const LEAST: f32 = -86.6;
    // Added and taken off, rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few bits, so that its multiples are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let bounded = if x > LEAST { x } else { LEAST };
    let halvings = (bounded * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = bounded - halvings * LN2_HIGH - halvings * LN2_LOW;
    // Taylor, as far as f32 sees for |r| <= ln 2 / 2.
    let mut sum = 1.0 / 5_040.0;
    for divisor in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        sum = sum * r + 1.0 / divisor;
    }
    let scale = f32::from_bits(((halvings as i32 + 127) as u32) << 23);
    if x > LEAST { sum * scale } else { 0.0 }
}

/// The sum of e^(x - best) over all `values`, none of which is above `best`; in their order.
pub(super) fn exp_sum(values: impl Iterator<Item = f32>, best: f32) -> f64 {
    values.map(|value| f64::from(exp(value - best))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e_to_the_x_is_right_to_two_units() {
        let mut x = -90.0f32;
        while x <= 0.0 {
            let (found, right) = (f64::from(exp(x)), f64::from(x).exp());
            let unit = right * f64::from(f32::EPSILON);
            assert!((found - right).abs() <= 2.0 * unit || x < -86.5, "{x}: {found} {right}");
            x += 0.000_7;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::NAN), 0.0);
    }
}
