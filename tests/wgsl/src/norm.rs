//! Buffers of `norm.wgsl`: RMS normalisation and quantisation of one token.

use compute::numeric::activation::{Activations, Token};
use compute::numeric::block::{BlockVec, Blocks};
use compute::numeric::norm::Epsilon;
use compute::numeric::scalar::Factor;

use crate::{Gpu, Kernel, halves};

/// The compiled shader.
pub fn kernel(gpu: &Gpu) -> Kernel<'_> {
    gpu.kernel(include_str!("norm.wgsl"), &["norm"], 4)
}

/// The normed vector, the factor still to be applied to it, and both together quantised.
pub fn quantise(
    kernel: &Kernel,
    x: Blocks,
    w: Blocks,
    epsilon: Epsilon,
) -> (BlockVec, Factor, Activations) {
    let blocks = x.e.len();
    let mut out = Activations::default();
    out.resize(1, 32 * blocks);
    let padded = out.width / 32;
    let Epsilon { per_count, epsilon } = epsilon;
    let shape = [
        blocks as u32,
        padded as u32,
        per_count.m,
        per_count.e as u32,
        epsilon.m,
        epsilon.e as u32,
    ];
    let mantissas: Vec<u32> = halves(x.m).chain(halves(w.m)).collect();
    let exponents: Vec<u32> = x.e.iter().chain(w.e).map(|&e| i32::from(e) as u32).collect();
    let result = 33 * blocks + 15 * padded + 9;
    let all = kernel.run(&[[1, 1]], &[&shape, &mantissas, &exponents], result);
    let mut all = all.into_iter();
    let mut shorts = |n: usize| -> Vec<i16> {
        all.by_ref().take(n).map(|x| i16::try_from(x).expect("a number of 16 bits")).collect()
    };
    let m = shorts(32 * blocks);
    let e = shorts(blocks).iter().map(|&e| i8::try_from(e).expect("an exponent")).collect();
    out.q = all.by_ref().take(8 * padded).flat_map(|x| x.to_le_bytes().map(|b| b as i8)).collect();
    let mut shorts = |n: usize| -> Vec<i16> {
        all.by_ref().take(n).map(|x| i16::try_from(x).expect("a number of 16 bits")).collect()
    };
    out.a = shorts(padded);
    out.sums = shorts(padded);
    out.half_sums = shorts(2 * padded);
    out.t = shorts(padded);
    out.half_t = shorts(2 * padded);
    let row: Vec<i32> = all.collect();
    let word = |i: usize| u64::from(row[i] as u32);
    out.tokens[0] = Token {
        exponent: row[2],
        t_exponent: row[3],
        half_t_exponent: row[4],
        bound: word(5) | word(6) << 32,
        t_bound: word(7),
        half_t_bound: word(8),
    };
    (BlockVec { m, e }, Factor { m: row[0] as u32, e: row[1] }, out)
}
