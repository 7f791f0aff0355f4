//! Exponential, sine and sigmoid in integers.
//!
//! Each is a short polynomial with constants of 16 bits, evaluated by Horner's rule where every
//! product is cut to its upper half, so that a GPU, a vector unit and this file agree by
//! construction. Constants were fitted to the cut form, not to the real one.

/// `mulhi`: the upper half of a product of two numbers of 16 bits.
#[inline(always)]
fn high(x: u32, y: u32) -> u32 {
    (x * y) >> 16
}

/// `2^(-f / 65536)` in units of 2^-16, for `f < 65536`; the result lies in `[32768, 65535]` and is
/// largest for 0.
///
/// Relative error at most 4.9e-5. Because of the cuts it may rise by two steps from one argument to
/// the next; nothing relies on its falling.
#[inline(always)]
pub fn exp2_fraction(f: u32) -> u32 {
    let t = 3443 - high(f, 428);
    let t = 15658 - high(f, t);
    let t = 45410 - high(f, t);
    65535 - high(f, t)
}

/// `2^(-t / 65536)` in units of 2^-24, for any `t`: 24 bits below the decimal point, cut.
#[inline(always)]
pub fn exp2_negative(t: u32) -> u32 {
    let whole = t >> 16;
    if whole > 24 { 0 } else { (exp2_fraction(t & 0xffff) << 8) >> whole }
}

/// Sine and cosine of `phase / 2^32` turns, in units of 2^-15, within `[-32767, 32767]`.
///
/// Absolute error at most 5e-5.
#[inline(always)]
pub fn sine_cosine(phase: u32) -> (i32, i32) {
    let x = (phase >> 14) & 0xffff;
    let rising = quarter_sine(x);
    let falling = quarter_sine((65536 - x).min(65535));
    match phase >> 30 {
        0 => (rising, falling),
        1 => (falling, -rising),
        2 => (-rising, -falling),
        _ => (-falling, rising),
    }
}

/// `sin(x / 65536 * pi / 2)` in units of 2^-15.
#[inline(always)]
fn quarter_sine(x: u32) -> i32 {
    let square = high(x, x);
    let t = 5208 - high(square, 285);
    let t = 42330 - high(square, t);
    let t = 37407 - high(square, t);
    let sine = x + high(x, t);
    ((sine + 1) >> 1).min(32767) as i32
}

/// `1 / (1 + 2^(-t / 65536))` for a number and its mirror image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sigmoid {
    /// Mantissa in units of 2^-16, at most 65536.
    pub m: u32,
    /// Further bits to shift down, at most 31.
    pub down: u32,
}

/// The logistic function of `±t * 2^-16 * ln 2`, `t < 2^21`.
///
/// For a negative argument the result keeps 15 good bits however small it is.
#[inline(always)]
pub fn sigmoid(negative: bool, t: u32) -> Sigmoid {
    let (whole, part) = (t >> 16, exp2_fraction(t & 0xffff));
    let below_one = (part << 8) >> whole;
    // In [2^15, 2^16].
    let denominator = ((1 << 24) + below_one) >> 9;
    let reciprocal = reciprocal(denominator);
    if negative {
        Sigmoid { m: (part * reciprocal) >> 16, down: whole }
    } else {
        Sigmoid { m: reciprocal, down: 0 }
    }
}

/// `floor(2^31 / d)` for `d` in `[2^15, 2^16]`: a guess in floats, put right in integers, because
/// vector units have no integer division. However the guess is rounded, the result is the quotient.
#[inline(always)]
fn reciprocal(d: u32) -> u32 {
    let guess = 2_147_483_648.0 / d as f32;
    // SAFETY: the guess is a number between 2^14 and 2^17.
    let guess = unsafe { guess.to_int_unchecked::<i32>() } as u32;
    let rest = (1u32 << 31).wrapping_sub(guess.wrapping_mul(d)) as i32;
    let guess = if rest < 0 { guess - 1 } else { guess };
    if rest >= d as i32 { guess + 1 } else { guess }
}

/// How the gate of a feed-forward layer is bent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))`, the tanh form of GELU.
    GeluTanh,
}

/// Largest argument of [`sigmoid`].
const ARGUMENT_MAX: u32 = (1 << 21) - 1;

/// The gate's values for a block `x * 2^e`, |x| <= 32767: numbers of 31 bits whose unit is
/// `2^(e - 16)`.
#[inline(always)]
pub fn gates(kind: Gate, x: &[i16; 32], e: i32) -> [i32; 32] {
    let mut t = [0u32; 32];
    match kind {
        Gate::Silu => silu_arguments(x, e, &mut t),
        Gate::GeluTanh => gelu_arguments(x, e, &mut t),
    }
    let mut out = [0; 32];
    for i in 0..32 {
        let s = sigmoid(x[i] < 0, t[i]);
        let magnitude = ((u32::from(x[i].unsigned_abs()) * s.m) >> s.down) as i32;
        out[i] = if x[i] < 0 { -magnitude } else { magnitude };
    }
    out
}

/// The gate's value for one number `x * 2^e`; see [`gates`].
pub fn gate(kind: Gate, x: i16, e: i32) -> i32 {
    gates(kind, &[x; 32], e)[0]
}

/// `|x| * log2(e)` in units of 2^-16.
#[inline(always)]
fn silu_arguments(x: &[i16; 32], e: i32, t: &mut [u32; 32]) {
    for (t, x) in t.iter_mut().zip(x) {
        // log2(e) = 47274 / 2^15, so the product's unit is 2^(e - 15).
        *t = u32::from(x.unsigned_abs()) * 47274;
    }
    shift(t, e + 1, ARGUMENT_MAX);
}

/// `2 sqrt(2/pi) log2(e) (|x| + 0.044715 |x|^3)` in units of 2^-16. From |x| = 8 on the sigmoid is
/// 0 or 1 to all bits kept, so |x| is cut there.
#[inline(always)]
fn gelu_arguments(x: &[i16; 32], e: i32, t: &mut [u32; 32]) {
    for (t, x) in t.iter_mut().zip(x) {
        *t = u32::from(x.unsigned_abs());
    }
    shift(t, e + 12, 32767);
    for t in t {
        let square = (*t * *t) >> 12;
        // 3373 / 2^15 and 9430 / 2^12 are the two coefficients.
        let slope = 9430 + ((3373 * square) >> 15);
        *t = ((*t * slope) >> 8).min(ARGUMENT_MAX);
    }
}

/// `x * 2^n`, cut towards zero, at most `max < 2^31`.
#[inline(always)]
fn shift(x: &mut [u32; 32], n: i32, max: u32) {
    if n <= 0 {
        let n = (-n).min(31);
        x.iter_mut().for_each(|x| *x = (*x >> n).min(max));
    } else {
        // What would pass `max` is cut before it is shifted, so nothing is lost above.
        let n = n.min(31);
        let top = max >> n;
        x.iter_mut().for_each(|x| *x = if *x > top { max } else { *x << n });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_is_near_the_real_one_everywhere() {
        for f in 0..65536u32 {
            let real = 2f64.powf(-f64::from(f) / 65536.0) * 65536.0;
            let error = (f64::from(exp2_fraction(f)) - real).abs() / real;
            assert!(error < 4.9e-5, "f = {f}: {error}");
        }
        assert_eq!(exp2_negative(25 << 16), 0);
        assert_eq!(exp2_negative(u32::MAX), 0);
    }

    #[test]
    fn sine_is_near_the_real_one() {
        for step in 0..100_000u32 {
            let phase = step.wrapping_mul(2_654_435_761);
            let angle = f64::from(phase) / 4_294_967_296.0 * std::f64::consts::TAU;
            let (s, c) = sine_cosine(phase);
            assert!((f64::from(s) / 32768.0 - angle.sin()).abs() < 7e-5, "{phase}");
            assert!((f64::from(c) / 32768.0 - angle.cos()).abs() < 7e-5, "{phase}");
        }
    }

    #[test]
    fn gates_are_near_the_real_ones() {
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let gelu = |x: f64| {
            let z = 1.595_769_121_605_731 * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-z).exp())
        };
        for e in -30..6 {
            for x in (-32767..32768).step_by(61) {
                let real = f64::from(x) * 2f64.powi(e);
                let ours = |kind| f64::from(gate(kind, x as i16, e)) * 2f64.powi(e - 16);
                // Near zero only the absolute error counts: the block's own unit.
                let slack = 2f64.powi(e) * 1.5 + 1e-6;
                let near = |a: f64, b: f64| (a - b).abs() <= slack + 2e-4 * b.abs();
                assert!(near(ours(Gate::Silu), silu(real)), "silu({real})");
                let gelu_near = (ours(Gate::GeluTanh) - gelu(real)).abs();
                assert!(gelu_near <= slack + 4e-4 * real.abs().min(8.0), "gelu({real})");
            }
        }
    }

    #[test]
    fn reciprocals_are_quotients() {
        for d in 1 << 15..=1 << 16 {
            assert_eq!(reciprocal(d), (1 << 31) / d, "{d}");
        }
    }

    #[test]
    fn gates_are_total() {
        for e in -100..=100 {
            for x in [-32767, -1, 0, 1, 32767] {
                gate(Gate::Silu, x, e);
                gate(Gate::GeluTanh, x, e);
            }
        }
    }
}
