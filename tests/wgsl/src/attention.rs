//! Buffers of `attention.wgsl`: one query head over some positions.

use compute::numeric::attention::{HeadScale, QueryFactor};

use crate::{Gpu, Kernel, bytes};

/// Quantised heads of some positions.
#[derive(Debug, Clone, Default)]
pub struct Heads {
    /// `[positions, head]`.
    pub q: Vec<i8>,
    /// One for each position.
    pub scales: Vec<HeadScale>,
}

/// The compiled shader.
pub fn kernel(gpu: &Gpu) -> Kernel<'_> {
    gpu.kernel(include_str!("attention.wgsl"), &["score", "weigh", "sum", "average"], 8)
}

/// The average of `values` under `q`, and the exponent of its unit. Like `numeric::attention::attend`.
pub fn attend(
    kernel: &Kernel,
    q: &[i8],
    query: QueryFactor,
    keys: &Heads,
    values: &Heads,
) -> (Vec<i32>, i32) {
    let (positions, head) = (keys.scales.len(), q.len());
    let shape = [positions as u32, head as u32 / 4, i32::from(query.m) as u32, query.e as u32];
    let parts = |s: &HeadScale| [i32::from(s.m) as u32, i32::from(s.e) as u32];
    let scales: Vec<u32> = keys
        .scales
        .iter()
        .zip(&values.scales)
        .flat_map(|(k, v)| [parts(k), parts(v)])
        .flatten()
        .collect();
    // Both maxima start below everything: no value's exponent lies below -100.
    let mut state = vec![0u32; 6 + 3 * head];
    (state[0], state[1]) = (i32::MIN as u32, -100i32 as u32);
    let inputs: [&[u32]; 7] = [
        &shape,
        &bytes(q),
        &bytes(&keys.q),
        &by_fours(&values.q, head),
        &scales,
        &vec![0; positions.next_multiple_of(4)],
        &state,
    ];
    let dims = head.div_ceil(64) as u32;
    let workgroups = [
        [positions.div_ceil(64) as u32, 1],
        [positions.div_ceil(256) as u32, 1],
        [dims, positions.div_ceil(256) as u32],
        [dims, 1],
    ];
    let mut out = kernel.run(&workgroups, &inputs, head + 1);
    let exponent = out.pop().expect("the exponent follows the head");
    (out, exponent)
}

/// Values number by number, four positions to a word; positions past the end are 0.
fn by_fours(q: &[i8], head: usize) -> Vec<u32> {
    let mut words = vec![];
    for four in q.chunks(4 * head) {
        let at = |j: usize, d: usize| four.get(j * head + d).map_or(0, |&q| q as u8);
        words.extend((0..head).map(|d| u32::from_le_bytes([0, 1, 2, 3].map(|j| at(j, d)))));
    }
    words
}
