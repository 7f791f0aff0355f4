//! The shaders give the bits that the definition gives, on random inputs and on the extremes.

use compute::gguf::TensorType;
use compute::numeric::activation::Activations;
use compute::numeric::attention::{self, HeadScale, QueryFactor};
use compute::numeric::block::{BlockVec, Blocks, encode};
use compute::numeric::matmul::{Unit, sums};
use compute::numeric::norm::{Epsilon, rms_norm};
use compute::numeric::scalar::{Factor, Positive, inverse_square_root, reciprocal};
use compute::numeric::weights::shape;
use wgsl_spike::attention::Heads;
use wgsl_spike::gemv::{Matrix, Product, ROWS};
use wgsl_spike::{Gpu, Kernel, gemv, norm};

/// The longest row that the class promises to sum exactly.
const LONGEST: usize = 53_248;

/// xorshift64*: the same inputs everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn within(&mut self, low: i32, high: i32) -> i32 {
        low + ((self.next() >> 33) % (high - low + 1) as u64) as i32
    }

    /// A valid vector: each block's exponent within the range, zero blocks and extreme ones among
    /// them.
    fn blocks(&mut self, len: usize, exponents: (i32, i32)) -> BlockVec {
        let mut all = BlockVec::zeros(len);
        for g in 0..len / 32 {
            let m = &mut all.m[32 * g..][..32];
            let e = self.within(exponents.0, exponents.1);
            match self.within(0, 15) {
                0 => continue,
                1 => m.fill(32767),
                2 => m
                    .iter_mut()
                    .for_each(|m| *m = if self.next() >> 63 == 0 { 32767 } else { -32767 }),
                3 => m[self.within(0, 31) as usize] = -16384,
                _ => {
                    m.iter_mut().for_each(|m| *m = self.within(-32767, 32767) as i16);
                    m[0] = self.within(16384, 32767) as i16;
                }
            }
            all.e[g] = e as i8;
        }
        all
    }
}

fn quantised(x: Blocks, factor: Factor) -> Activations {
    let mut out = Activations::default();
    out.resize(1, x.m.len());
    out.rows().quantise(0, x, factor);
    out
}

/// A vector whose numbers all are 127 times `sign(i)`, every scale 32767.
fn extreme(width: usize, sign: impl Fn(usize) -> i16) -> Activations {
    let m = (0..width).map(|i| 32767 * sign(i)).collect();
    let x = BlockVec { m, e: vec![0; width / 32] };
    let x = quantised(x.view(), Factor::ONE);
    assert!(x.q.iter().all(|q| q.abs() == 127) && x.a.iter().all(|&a| a == 32767));
    x
}

fn unit(matrix: &Matrix, x: &Activations) -> Unit {
    let top = matrix.rows.iter().map(|r| r.exponent).max().unwrap();
    let min_top = matrix.rows.iter().map(|r| r.min_exponent).max().unwrap();
    Unit::new(shape(matrix.kind), top, min_top, &x.tokens[0])
}

fn check_gemv(kernel: &Kernel, matrix: &Matrix, x: &Activations) -> Product {
    let unit = unit(matrix, x);
    let settled: Vec<i32> = matrix
        .rows
        .iter()
        .map(|row| unit.settle(sums(row, x, 0), row.exponent, row.min_exponent))
        .collect();
    let (mut m, mut e) = (vec![], vec![]);
    for z in settled.chunks_exact(ROWS) {
        let mut block = [0; 32];
        e.push(i32::from(encode(z.try_into().unwrap(), unit.exponent, &mut block)));
        m.extend(block.map(i32::from));
    }
    let expected = Product { settled, m, e };
    let got = gemv::multiply(kernel, matrix, x, &unit);
    assert!(got == expected, "{:?}, {} columns: {got:?} is not {expected:?}", matrix.kind, x.width);
    got
}

/// Random rows of a file whose scales are finite and spread over many magnitudes.
fn random_matrix(random: &mut Random, kind: TensorType, rows: usize, cols: usize) -> Matrix {
    let blocks = cols / kind.block_len();
    let row = |random: &mut Random| {
        let spread = random.within(0, 14);
        let mut row = vec![0u8; blocks * kind.block_bytes()];
        for block in row.chunks_exact_mut(kind.block_bytes()) {
            block.iter_mut().for_each(|b| *b = random.next() as u8);
            for half in block[..if kind == TensorType::Q4_K { 4 } else { 2 }].chunks_exact_mut(2) {
                // Sign, an exponent field that is not the last, any fraction.
                let exponent = random.within(15 - spread, 15) as u16;
                let bits = (random.next() as u16 & 0x83ff) | exponent << 10;
                half.copy_from_slice(&bits.to_le_bytes());
            }
        }
        row
    };
    let mut rows: Vec<_> = (0..rows).map(|_| row(random)).collect();
    // A row whose scales all are zero has an exponent far below the others.
    rows[3].fill(0);
    Matrix::new(kind, &rows)
}

/// Rows whose every byte of codes and sub-scales is `byte`, with fractions at the limit.
fn extreme_matrix(kind: TensorType, cols: usize, byte: u8, d: i16, m: i16) -> Matrix {
    let mut block = vec![byte; kind.block_bytes()];
    let halves = if kind == TensorType::Q4_K { 4 } else { 2 };
    block[..halves].iter_mut().for_each(|b| *b = 0x3c);
    let row = block.repeat(cols / kind.block_len());
    let mut matrix = Matrix::new(kind, &vec![row; ROWS]);
    matrix.set_fractions(d, m);
    matrix
}

fn check_products(kind: TensorType) {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = gemv::kernel(&gpu, kind);
    let mut random = Random(0x5eed_0000 + kind as u64);
    for round in 0..40 {
        let cols = [256, 512, 768, 2048, 4096][round % 5];
        let matrix = random_matrix(&mut random, kind, [32, 64][round % 2], cols);
        let span = [(-3, 3), (-20, 5), (-100, 100)][round % 3];
        let x = quantised(random.blocks(cols, span).view(), Factor { m: 47_000, e: -17 });
        check_gemv(&kernel, &matrix, &x);
    }
    let long = random_matrix(&mut random, kind, 32, LONGEST);
    check_gemv(&kernel, &long, &quantised(random.blocks(LONGEST, (-2, 2)).view(), Factor::ONE));
}

fn check_extremes(kind: TensorType, bytes: &[u8]) {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = gemv::kernel(&gpu, kind);
    let vectors = [
        extreme(LONGEST, |_| 1),
        extreme(LONGEST, |_| -1),
        extreme(LONGEST, |i| if i % 2 == 0 { 1 } else { -1 }),
        extreme(LONGEST, |i| if i / 32 % 2 == 0 { 1 } else { -1 }),
    ];
    let mut largest = 0;
    for &byte in bytes {
        for (d, m) in [(32767, 32767), (-32767, -32767), (32767, -32767)] {
            let matrix = extreme_matrix(kind, LONGEST, byte, d, m);
            for x in &vectors {
                let settled = check_gemv(&kernel, &matrix, x).settled;
                largest = settled.iter().fold(largest, |l, z| l.max(z.unsigned_abs()));
            }
        }
    }
    // The bound of 2^30 is meant to be nearly reached.
    assert!(largest > 1 << 27, "the extremes reached only {largest}");
}

#[test]
fn products_of_q4_0_are_equal() {
    check_products(TensorType::Q4_0);
}

#[test]
fn products_of_q8_0_are_equal() {
    check_products(TensorType::Q8_0);
}

#[test]
fn products_of_q4_k_are_equal() {
    check_products(TensorType::Q4_K);
}

#[test]
fn extremes_of_q4_0_are_equal() {
    check_extremes(TensorType::Q4_0, &[0x00, 0xff, 0x0f]);
}

#[test]
fn extremes_of_q8_0_are_equal() {
    check_extremes(TensorType::Q8_0, &[0x80, 0x7f, 0x81]);
}

#[test]
fn extremes_of_q4_k_are_equal() {
    check_extremes(TensorType::Q4_K, &[0xff, 0x00, 0xf0]);
}

fn check_attention(kernel: &Kernel, q: &[i8], query: QueryFactor, keys: &Heads, values: &Heads) {
    let head = q.len();
    let copy = |heads: &Heads, j: usize, out: &mut [i8]| {
        out.copy_from_slice(&heads.q[j * head..][..head]);
        heads.scales[j]
    };
    let mut expected = vec![0; head];
    let exponent = attention::attend(
        q,
        query,
        0..keys.scales.len(),
        &mut |j, out| copy(keys, j, out),
        &mut |j, out| copy(values, j, out),
        &mut expected,
    );
    let got = wgsl_spike::attention::attend(kernel, q, query, keys, values);
    assert!(got == (expected, exponent), "{} positions, head {head}", keys.scales.len());
}

fn random_heads(random: &mut Random, n: usize, head: usize, exponents: (i32, i32)) -> Heads {
    let mut heads = Heads::default();
    for _ in 0..n {
        if random.within(0, 19) == 0 {
            heads.q.extend(vec![0; head]);
            heads.scales.push(HeadScale::default());
        } else {
            heads.q.extend((0..head).map(|_| random.within(-127, 127) as i8));
            let e = random.within(exponents.0, exponents.1) as i8;
            heads.scales.push(HeadScale { m: random.within(16384, 32767) as i16, e });
        }
    }
    heads
}

#[test]
fn attention_is_equal() {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = wgsl_spike::attention::kernel(&gpu);
    let mut random = Random(0xa77e);
    for head in [64, 256] {
        for n in [1, 7, 512, 5000] {
            // Logits of a few doublings, of thousands, cut ones; and exponents of all kinds.
            for (e, spread) in
                [(-44, (-2, 2)), (-34, (-3, 3)), (-20, (-30, 30)), (-90, (-100, 100))]
            {
                let q: Vec<i8> = (0..head).map(|_| random.within(-127, 127) as i8).collect();
                let query = QueryFactor { m: random.within(16384, 32767) as i16, e };
                let keys = random_heads(&mut random, n, head, spread);
                let values = random_heads(&mut random, n, head, spread);
                check_attention(&kernel, &q, query, &keys, &values);
            }
        }
    }
}

#[test]
fn attention_at_the_extremes_is_equal() {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = wgsl_spike::attention::kernel(&gpu);
    let all = |n: usize, head: usize, q: i8, m: i16, e: i8| Heads {
        q: vec![q; n * head],
        scales: vec![HeadScale { m, e }; n],
    };
    for head in [64, 256] {
        for n in [1, 5000] {
            for sign in [1, -1] {
                // Every probability is 1 and every value the largest: the largest sums.
                let (q, query) = (vec![127; head], QueryFactor { m: 32767, e: -40 });
                let keys = all(n, head, 127 * sign, 32767, 0);
                let mut values = all(n, head, 127 * sign, 32767, 100);
                check_attention(&kernel, &q, query, &keys, &values);
                // One value far above the rest, and none at all.
                values.scales.iter_mut().skip(1).for_each(|s| s.e = -100);
                check_attention(&kernel, &q, query, &keys, &values);
                values.scales.fill(HeadScale::default());
                check_attention(&kernel, &q, query, &keys, &values);
                // Logits of both signs that are cut, so that their distance is 2^31.
                let mut keys = all(n, head, 127, 32767, 100);
                keys.q[..head].fill(-127);
                let values = all(n, head, -127, 32767, 0);
                for e in [-150, -100, 0, 24, 100] {
                    check_attention(&kernel, &q, QueryFactor { m: 32767, e }, &keys, &values);
                }
                check_attention(&kernel, &q, QueryFactor { m: 0, e: 0 }, &keys, &values);
            }
        }
    }
}

fn check_norm(kernel: &Kernel, x: &BlockVec, w: &BlockVec, epsilon: Positive) {
    let epsilon = Epsilon { per_count: reciprocal(x.m.len()), epsilon };
    let mut normed = BlockVec::zeros(x.m.len());
    let factor = rms_norm(x.view(), w.view(), epsilon, &mut normed.view_mut());
    let expected = quantised(normed.view(), factor);
    let (got_normed, got_factor, got) = norm::quantise(kernel, x.view(), w.view(), epsilon);
    assert_eq!((got_factor, got_normed == normed), (factor, true));
    assert_eq!(got.tokens, expected.tokens);
    assert!(got.q == expected.q && got.a == expected.a);
    assert!(got.sums == expected.sums && got.half_sums == expected.half_sums);
    assert!(got.t == expected.t && got.half_t == expected.half_t);
}

#[test]
fn norms_are_equal() {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = norm::kernel(&gpu);
    let mut random = Random(0x0707);
    // 96 is not a whole number of 64, so its result is padded.
    for width in [96, 576, 640, 4096, LONGEST] {
        for span in [(-14, -8), (-30, 10), (-100, 100), (90, 100), (-100, -95)] {
            for round in 0..if width == LONGEST { 1 } else { 6 } {
                let x = random.blocks(width, span);
                let w = random.blocks(width, [(-15, -13), (-60, 60)][round % 2]);
                let epsilon = Positive::from_f64([1e-5, 1e-6, 0.0][round % 3]);
                check_norm(&kernel, &x, &w, epsilon);
            }
        }
    }
}

#[test]
fn norms_at_the_extremes_are_equal() {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = norm::kernel(&gpu);
    for width in [576, LONGEST] {
        let full = |m: i16, e: i8| BlockVec { m: vec![m; width], e: vec![e; width / 32] };
        let epsilon = Positive::from_f64(1e-6);
        for e in [-100, -99, 0, 1, 100] {
            check_norm(&kernel, &full(-32767, e), &full(32767, e), epsilon);
            check_norm(&kernel, &full(16384, e), &full(-16384, 0), Positive::ZERO);
            check_norm(&kernel, &BlockVec::zeros(width), &full(32767, e), epsilon);
            check_norm(&kernel, &full(32767, e), &BlockVec::zeros(width), epsilon);
        }
        check_norm(&kernel, &BlockVec::zeros(width), &full(32767, 0), Positive::ZERO);
    }
}

/// With a vector of zeros the mean is epsilon, so epsilon alone feeds the root.
#[test]
fn roots_are_equal_at_their_edges() {
    let Some(gpu) = Gpu::open() else { return };
    let kernel = norm::kernel(&gpu);
    let zeros = BlockVec::zeros(32);
    let mut random = Random(0x2007);
    let mut mantissas = vec![1 << 31, (1 << 31) + 1, u32::MAX, u32::MAX - 1, 3 << 30];
    // Where r^2 * a first passes 2^62 for some r: the edge and its neighbours.
    for _ in 0..150 {
        let r = random.within(46_341, 65_536) as u64;
        let edge = (1u64 << 62) / (r * r);
        let near = [edge - 1, edge, edge + 1].map(|a| a as u32);
        mantissas.extend(near.into_iter().filter(|a| a >> 31 == 1));
        mantissas.push(random.next() as u32 | 1 << 31);
    }
    for m in mantissas {
        for e in [-41, -40] {
            let epsilon = Positive { m, e };
            let want = inverse_square_root(epsilon);
            let per_count = reciprocal(32);
            let epsilon = Epsilon { per_count, epsilon };
            let (_, factor, _) = norm::quantise(&kernel, zeros.view(), zeros.view(), epsilon);
            assert_eq!(factor, want, "1 / sqrt({m} * 2^{e})");
        }
    }
}
