//! Work on vectors between matrices. The definition's own functions are compiled a second time for
//! wider registers; there is nothing else to keep equal.

use super::{Group, Kernels};
use crate::numeric::activation::Rows;
use crate::numeric::attention::{HeadScale, Treatment, quantise_head};
use crate::numeric::block::{Blocks, BlocksMut, GROUP, ZERO, add, encode};
use crate::numeric::functions::{Gate, gates};
use crate::numeric::norm::{Epsilon, apply, rms_norm};
use crate::numeric::scalar::Factor;

macro_rules! twice_compiled {
    ($($(#[$doc:meta])* $name:ident = $body:ident($($arg:ident: $kind:ty),*);)*) => {
        impl Kernels {$(
            $(#[$doc])*
            pub fn $name(self, $($arg: $kind),*) {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2")]
                fn wide($($arg: $kind),*) {
                    $body($($arg),*)
                }
                match self {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the variant exists only where the processor has AVX2.
                    Self::Avx2(_) => unsafe { wide($($arg),*) },
                    _ => $body($($arg),*),
                }
            }
        )*}
    };
}

twice_compiled! {
    /// `quantise(x * factor)` into row `row`.
    quantise = quantise_row(x: Blocks, factor: Factor, rows: &mut Rows, row: usize);
    /// `quantise(norm(x) * w)` into row `row`; `spare` is as long as `x`.
    norm_quantise = norm_quantise_row(x: Blocks, norm: Norm, spare: &mut BlocksMut, rows: &mut Rows, row: usize);
    /// `x += norm(y) * w`; `spare` is as long as `x`.
    norm_add = norm_add_row(x: &mut BlocksMut, y: Blocks, norm: Norm, spare: &mut BlocksMut);
    /// One block of `gate(g) * u`, both given as results of a matrix; the exponent goes to `e`.
    gate_block = gate_times(kind: Gate, g: Results, u: Results, m: &mut [i16; GROUP], e: &mut i8);
    /// `x += y`, where `y` is one block of results of a matrix and `x` one block.
    add_block = add_results(y: Results, m: &mut [i16; GROUP], e: &mut i8);
    /// `numeric::attention::quantise_head`; the scale goes to `scale`.
    quantise_head = head_quantised(x: Blocks, start: usize, treatment: Option<Treatment>, q: &mut [i8], scale: &mut HeadScale);
    /// One block of results of a matrix as a block float.
    encode_block = encode_results(y: Results, m: &mut [i16; GROUP], e: &mut i8);
}

/// 32 results of a matrix and the exponent of their unit.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a> {
    /// The results.
    pub y: &'a Group,
    /// Exponent of their unit.
    pub unit: i32,
}

/// A norm's weights and constants.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Weights, as long as the vector.
    pub weights: Blocks<'a>,
    /// Constants.
    pub epsilon: Epsilon,
}

#[inline(always)]
fn quantise_row(x: Blocks, factor: Factor, rows: &mut Rows, row: usize) {
    rows.quantise(row, x, factor);
}

#[inline(always)]
fn norm_quantise_row(x: Blocks, norm: Norm, spare: &mut BlocksMut, rows: &mut Rows, row: usize) {
    let factor = rms_norm(x, norm.weights, norm.epsilon, spare);
    rows.quantise(row, Blocks { m: spare.m, e: spare.e }, factor);
}

#[inline(always)]
fn norm_add_row(x: &mut BlocksMut, y: Blocks, norm: Norm, spare: &mut BlocksMut) {
    let factor = rms_norm(y, norm.weights, norm.epsilon, spare);
    for g in 0..x.e.len() {
        let at = g * GROUP..(g + 1) * GROUP;
        let (mut m, mut e) = ([0; GROUP], [ZERO]);
        let normed = Blocks { m: &spare.m[at.clone()], e: &spare.e[g..=g] };
        apply(normed, factor, &mut BlocksMut { m: &mut m, e: &mut e });
        let mut sum = ([0; GROUP], [ZERO]);
        let old = Blocks { m: &x.m[at.clone()], e: &x.e[g..=g] };
        add(old, Blocks { m: &m, e: &e }, &mut BlocksMut { m: &mut sum.0, e: &mut sum.1 });
        x.m[at].copy_from_slice(&sum.0);
        x.e[g] = sum.1[0];
    }
}

#[inline(always)]
fn gate_times(kind: Gate, g: Results, u: Results, m: &mut [i16; GROUP], e: &mut i8) {
    let (mut gm, mut um) = ([0; GROUP], [0; GROUP]);
    let ge = encode(g.y, g.unit, &mut gm);
    let ue = encode(u.y, u.unit, &mut um);
    // 31 bits; half of it leaves the bit that the encoding needs.
    let mut z = gates(kind, &gm, i32::from(ge)).map(|z| z >> 1);
    let mut bent = [0; GROUP];
    let be = encode(&z, i32::from(ge) - 15, &mut bent);
    for ((z, &b), &u) in z.iter_mut().zip(&bent).zip(&um) {
        *z = i32::from(b) * i32::from(u);
    }
    *e = encode(&z, i32::from(be) + i32::from(ue), m);
}

#[inline(always)]
fn add_results(y: Results, m: &mut [i16; GROUP], e: &mut i8) {
    let (mut ym, mut sum, mut se) = ([0; GROUP], [0; GROUP], [ZERO]);
    let ye = [encode(y.y, y.unit, &mut ym)];
    let old = Blocks { m: &*m, e: &[*e] };
    add(old, Blocks { m: &ym, e: &ye }, &mut BlocksMut { m: &mut sum, e: &mut se });
    (*m, *e) = (sum, se[0]);
}

#[inline(always)]
fn head_quantised(
    x: Blocks,
    start: usize,
    treatment: Option<Treatment>,
    q: &mut [i8],
    scale: &mut HeadScale,
) {
    *scale = quantise_head(x, start, treatment, q);
}

#[inline(always)]
fn encode_results(y: Results, m: &mut [i16; GROUP], e: &mut i8) {
    *e = encode(y.y, y.unit, m);
}
