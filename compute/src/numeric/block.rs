//! Block floats: 32 numbers of 16 bits under one exponent. Every vector between two kernels, and
//! every row that crosses a cut, is made of them.
//!
//! A number is `m * 2^e`. **Invariant:** one encoding a value: in a block the largest |m| lies in
//! `[2^14, 2^15)`, or all are 0 and the exponent is [`ZERO`]; -32768 never occurs; any other
//! exponent lies in `[EXPONENT_MIN, EXPONENT_MAX]`.

use super::bits::{bit_length, round_shift};

/// Numbers under one exponent.
pub const GROUP: usize = 32;
/// The exponent of a block of zeros.
pub const ZERO: i8 = -128;
/// The smallest exponent of a block that is not zero; what is smaller becomes zero.
pub const EXPONENT_MIN: i32 = -100;
/// The largest exponent; what is larger saturates.
pub const EXPONENT_MAX: i32 = 100;

/// A vector of block floats that is only read; `m.len() == 32 * e.len()`.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'a> {
    /// Mantissas.
    pub m: &'a [i16],
    /// Exponents, one for each 32 mantissas.
    pub e: &'a [i8],
}

/// A vector of block floats that can be written.
#[derive(Debug)]
pub struct BlocksMut<'a> {
    /// Mantissas.
    pub m: &'a mut [i16],
    /// Exponents, one for each 32 mantissas.
    pub e: &'a mut [i8],
}

impl<'a> Blocks<'a> {
    /// Block `g`.
    #[inline(always)]
    pub fn block(&self, g: usize) -> (&'a [i16; GROUP], i8) {
        let m = self.m[g * GROUP..][..GROUP].try_into().expect("a slice of 32 is an array of 32");
        (m, self.e[g])
    }

    /// Writes it behind what `all` holds.
    pub fn append_to(&self, all: &mut BlockVec) {
        all.m.extend_from_slice(self.m);
        all.e.extend_from_slice(self.e);
    }
}

impl BlocksMut<'_> {
    /// Encodes `z * 2^unit` into block `g`.
    #[inline(always)]
    pub fn encode(&mut self, g: usize, z: &[i32; GROUP], unit: i32) {
        let m = &mut self.m[g * GROUP..][..GROUP];
        self.e[g] = encode(z, unit, m.try_into().expect("a slice of 32 is an array of 32"));
    }
}

/// The largest magnitude among `z`.
#[inline(always)]
pub fn peak(z: &[i32]) -> u32 {
    z.iter().fold(0, |peak, &x| peak.max(x.unsigned_abs()))
}

/// Brings `z`, whose largest magnitude is `peak <= 2^30` and not 0, to 15 bits: returns the
/// exponent that was taken out.
#[inline(always)]
pub fn normalise(z: &[i32], peak: u32, out: &mut [i16]) -> i32 {
    let n = bit_length(u64::from(peak)) as i32 - 15;
    if n > 0 {
        let half = 1i32 << (n - 1);
        for (m, &x) in out.iter_mut().zip(z) {
            // Rounding can carry the largest value to 2^15, which is written as 32767.
            *m = ((x + half) >> n).clamp(-32767, 32767) as i16;
        }
    } else {
        for (m, &x) in out.iter_mut().zip(z) {
            *m = (x << -n) as i16;
        }
    }
    n
}

/// Encodes `z * 2^unit`, |z| <= 2^30, and returns the block's exponent.
#[inline(always)]
pub fn encode(z: &[i32; GROUP], unit: i32, out: &mut [i16; GROUP]) -> i8 {
    let peak = peak(z);
    if peak == 0 {
        out.fill(0);
        return ZERO;
    }
    let exponent = unit + normalise(z, peak, out);
    if exponent > EXPONENT_MAX {
        let up = (exponent - EXPONENT_MAX).min(16) as u32;
        for m in out.iter_mut() {
            *m = (i64::from(*m) << up).clamp(-32767, 32767) as i16;
        }
        return EXPONENT_MAX as i8;
    }
    if exponent < EXPONENT_MIN {
        out.fill(0);
        return ZERO;
    }
    exponent as i8
}

/// A vector of block floats that owns its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockVec {
    /// Mantissas.
    pub m: Vec<i16>,
    /// Exponents, one for each 32 mantissas.
    pub e: Vec<i8>,
}

impl BlockVec {
    /// `len` zeros, rounded up to whole blocks.
    pub fn zeros(len: usize) -> Self {
        let groups = len.div_ceil(GROUP);
        Self { m: vec![0; groups * GROUP], e: vec![ZERO; groups] }
    }

    /// From a model file's floats; a last block that is not full is padded with zeros.
    ///
    /// # Errors
    /// The index of the first number that is not finite.
    pub fn from_floats(x: &[f32]) -> Result<Self, usize> {
        let mut all = Self::zeros(x.len());
        for (g, x) in x.chunks(GROUP).enumerate() {
            let mut padded = [0.0; GROUP];
            padded[..x.len()].copy_from_slice(x);
            let m = &mut all.m[g * GROUP..][..GROUP];
            let m = m.try_into().expect("a slice of 32 is an array of 32");
            all.e[g] = encode_floats(&padded, m).map_err(|at| g * GROUP + at)?;
        }
        Ok(all)
    }

    /// The whole, to be read.
    pub fn view(&self) -> Blocks<'_> {
        Blocks { m: &self.m, e: &self.e }
    }

    /// The whole, to be written.
    pub fn view_mut(&mut self) -> BlocksMut<'_> {
        BlocksMut { m: &mut self.m, e: &mut self.e }
    }
}

/// `x + y`, block by block. Both are aligned to the larger exponent with 14 bits to spare and
/// rounded once there, and once more when the sum is encoded.
#[inline(always)]
pub fn add(x: Blocks, y: Blocks, out: &mut BlocksMut) {
    for g in 0..x.e.len() {
        let ((xm, xe), (ym, ye)) = (x.block(g), y.block(g));
        let top = i32::from(xe.max(ye));
        if top == i32::from(ZERO) {
            out.m[g * GROUP..][..GROUP].fill(0);
            out.e[g] = ZERO;
            continue;
        }
        let (dx, dy) = ((top - i32::from(xe)) as u32, (top - i32::from(ye)) as u32);
        let mut z = [0; GROUP];
        align_add(&mut z, xm, dx);
        align_add(&mut z, ym, dy);
        out.encode(g, &z, top - 14);
    }
}

/// Adds `(m * 2^14) / 2^down`, rounded, to each of `z`.
#[inline(always)]
fn align_add(z: &mut [i32; GROUP], m: &[i16; GROUP], down: u32) {
    if down > 29 {
        return;
    }
    let half = if down == 0 { 0 } else { 1i32 << (down - 1) };
    for (z, &m) in z.iter_mut().zip(m) {
        *z += ((i32::from(m) << 14) + half) >> down;
    }
}

/// Encodes `z * 2^unit` for any `z` below 2^62: cut to 30 bits first, with rounding.
#[inline(always)]
pub fn encode_wide(z: &[i64; GROUP], unit: i32, out: &mut [i16; GROUP]) -> i8 {
    let peak = z.iter().fold(0, |p, z| p.max(z.unsigned_abs()));
    let down = bit_length(peak).saturating_sub(30);
    encode(&z.map(|z| round_shift(z, down) as i32), unit + down as i32, out)
}

/// `x * c`, where `c` is a positive constant given as (mantissa of 15 bits, exponent).
#[inline(always)]
pub fn scale(x: Blocks, c: (i16, i32), out: &mut BlocksMut) {
    for g in 0..x.e.len() {
        let (m, e) = x.block(g);
        let z = m.map(|m| i32::from(m) * i32::from(c.0));
        out.encode(g, &z, i32::from(e) + c.1);
    }
}

/// The first rule that an encoding breaks, if any: what a peer sends is checked with this.
///
/// # Errors
/// The rule.
pub fn check(x: Blocks) -> Result<(), &'static str> {
    if x.m.len() != x.e.len() * GROUP {
        return Err("mantissas and exponents do not match in number");
    }
    // Sound rows, which nearly all are, cost one look without branches.
    let (blocks, _) = x.m.as_chunks::<GROUP>();
    if blocks.iter().zip(x.e).fold(true, |sound, (m, &e)| sound & is_sound(m, e)) {
        return Ok(());
    }
    blocks.iter().zip(x.e).find_map(|(m, &e)| fault((m, e))).map_or(Ok(()), Err)
}

/// Whether a block keeps all rules, by whole registers.
#[inline(always)]
fn is_sound(m: &[i16; GROUP], e: i8) -> bool {
    let (mut high, mut low) = (0, 0);
    for &m in m {
        high = m.max(high);
        low = m.min(low);
    }
    let zeros = (high == 0) & (low == 0) & (e == ZERO);
    let normal = (high >= 1 << 14) | (low <= -(1 << 14));
    let in_range = (i32::from(e) >= EXPONENT_MIN) & (i32::from(e) <= EXPONENT_MAX);
    zeros | (normal & in_range & (low != i16::MIN))
}

/// The first rule that a block breaks, if any.
pub fn fault((m, e): (&[i16; GROUP], i8)) -> Option<&'static str> {
    if m.contains(&i16::MIN) {
        return Some("a mantissa is -32768");
    }
    let peak = m.iter().fold(0, |p, m| p.max(m.unsigned_abs()));
    match (peak, i32::from(e)) {
        (0, -128) => None,
        (0, _) => Some("a block of zeros has an exponent"),
        (..=16383, _) => Some("a block is not normalised"),
        (_, EXPONENT_MIN..=EXPONENT_MAX) => None,
        _ => Some("an exponent is out of range"),
    }
}

/// One number as f64, exactly; for tests and for people.
pub fn value(x: Blocks, i: usize) -> f64 {
    f64::from(x.m[i]) * 2f64.powi(i32::from(x.e[i / GROUP]))
}

/// Encodes floats that a model file holds (norm weights, biases, whole matrices). Each becomes an
/// integer multiple of its block's unit, rounded half away from zero.
///
/// # Errors
/// The index of the first number that is not finite.
pub fn encode_floats(x: &[f32; GROUP], out: &mut [i16; GROUP]) -> Result<i8, usize> {
    if let Some(bad) = x.iter().position(|x| !x.is_finite()) {
        return Err(bad);
    }
    // Blocks that reach 2^115 leave the range of exponents above, those below 2^-86 below.
    let parts = x.map(|x| {
        let bits = x.to_bits();
        let (field, fraction) = ((bits >> 23) & 0xff, bits & 0x7f_ffff);
        let mantissa = if field == 0 { fraction } else { fraction | 0x80_0000 };
        (bits >> 31 == 1, mantissa, field.max(1) as i32 - 150)
    });
    let top = parts.iter().filter(|p| p.1 != 0).map(|p| bit_length(p.1.into()) as i32 + p.2).max();
    let Some(top) = top else {
        out.fill(0);
        return Ok(ZERO);
    };
    let unit = top - 15;
    for (m, (negative, mantissa, exponent)) in out.iter_mut().zip(parts) {
        let shift = unit - exponent;
        let magnitude = match shift {
            ..=0 => mantissa << -shift,
            1..=31 => ((u64::from(mantissa) + (1 << (shift - 1))) >> shift) as u32,
            _ => 0,
        };
        let magnitude = magnitude.min(32767) as i16;
        *m = if negative { -magnitude } else { magnitude };
    }
    if unit > EXPONENT_MAX {
        out.iter_mut().for_each(|m| *m = m.signum() * 32767);
        return Ok(EXPONENT_MAX as i8);
    }
    if unit < EXPONENT_MIN {
        out.fill(0);
        return Ok(ZERO);
    }
    Ok(unit as i8)
}
