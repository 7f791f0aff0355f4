// A matrix times one quantised vector: exact sums, settled to 30 bits, encoded as block floats.
//
// A workgroup computes 32 rows, which are one block of the result; eight threads share a row and
// take every eighth block of 32 columns.
//
// Bounds. Let b be the dot of one block and s its scale, |s| <= 32767.
//   Q4_0: |b| <= 8 * 127 * 32 = 32,512.   Q4_K: |b| <= 15 * 127 * 32 = 60,960.
//   Q8_0: |b| <= 128 * 127 * 32 = 520,192, so s * b needs 35 bits and is never formed:
//   b = 1024 * (b >> 10) + (b & 1023), and the two parts are summed apart,
//     |s * (b >> 10)|  <= 32767 * 508  = 16,645,636,
//     |s * (b & 1023)| <= 32767 * 1023 = 33,520,641.
// A thread empties both sums into 64 bits after FOLD = 32 blocks: 32 * 33,520,641 =
// 1,072,660,512 < 2^31. So i32 never wraps, whatever the number of columns; the 64-bit sum of
// K = 53,248 columns (1,664 blocks) is at most 1,664 * 32767 * 520,192 < 2^45.
// A minimum's product is |min * t| <= 32767^2 < 2^30; its lower 16 bits and its upper part (at
// most 2^14 in magnitude) are summed apart: 32 * 65,535 < 2^21, 32 * 2^14 = 2^19.
//
// Order does not matter anywhere: every sum is exact.
//
// Operations on 32 weights: Q8_0 8 dot4 + 8 adds, then 12 for scale and sums: 0.9 a weight.
// Q4_0 8 dot4 + 8 adds + 12 to split nibbles + 14: 1.3 a weight. Q4_K the same with 12 for
// sub-scales and minima: 1.7 a weight. Settling and encoding: about 100 a row, which is 0.02 a
// weight for K = 4,096.

struct Shape {
    blocks: u32,
    rows: u32,
    dot_shift: i32,
    min_shift: i32,
    exponent: i32,
}

// A block of the vector: scale, sum of q, what minima are multiplied by.
struct Block {
    a: i32,
    sum: i32,
    t: i32,
    unused: i32,
}

@group(0) @binding(0) var<storage, read_write> shape: Shape;
// Rows of the file's codes, four bytes a word.
@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
// d in the lower half of a word, the fraction of minima in the upper.
@group(0) @binding(2) var<storage, read_write> fractions: array<u32>;
// For each 32 columns a small integer scale and above it, from bit 8 on, a small minimum.
@group(0) @binding(3) var<storage, read_write> subs: array<u32>;
// A row's exponents: of scales, of minima.
@group(0) @binding(4) var<storage, read_write> exponents: array<vec2<i32>>;
@group(0) @binding(5) var<storage, read_write> q: array<u32>;
@group(0) @binding(6) var<storage, read_write> blocks: array<Block>;
// Results of 30 bits by row, then mantissas by row, then an exponent for each 32 rows.
@group(0) @binding(7) var<storage, read_write> result: array<i32>;

const ROWS: u32 = 32u;
const SHARE: u32 = 8u;
const FOLD: u32 = 32u;

var<workgroup> dots: array<Wide, 256>;
var<workgroup> mins: array<Wide, 256>;
var<workgroup> settled: array<i32, 32>;

// Running sums, in limbs that are emptied before they can wrap.
struct Sums {
    dot_high: i32,
    dot_low: i32,
    min_high: i32,
    min_low: i32,
    dot: Wide,
    min: Wide,
}

fn add_dot(sums: ptr<function, Sums>, scale: i32, dot: i32) {
    (*sums).dot_high += scale * (dot >> 10u);
    (*sums).dot_low += scale * (dot & 1023);
}

fn add_min(sums: ptr<function, Sums>, product: i32) {
    (*sums).min_high += product >> 16u;
    (*sums).min_low += product & 0xffff;
}

fn fold(sums: ptr<function, Sums>) {
    (*sums).dot = add((*sums).dot, from_limbs((*sums).dot_high, (*sums).dot_low, 10u));
    (*sums).min = add((*sums).min, from_limbs((*sums).min_high, (*sums).min_low, 16u));
    (*sums).dot_high = 0;
    (*sums).dot_low = 0;
    (*sums).min_high = 0;
    (*sums).min_low = 0;
}

// `numeric::bits::mul_q15`.
fn mul_q15(x: i32, y: i32) -> i32 {
    return (x * y + (1i << 14u)) >> 15u;
}

fn low_half(x: u32) -> i32 {
    return i32(x << 16u) >> 16u;
}

fn high_half(x: u32) -> i32 {
    return i32(x) >> 16u;
}

fn nibbles(word: u32, shift: u32) -> u32 {
    return (word >> shift) & 0x0f0f0f0fu;
}

fn q4_0_block(sums: ptr<function, Sums>, row: u32, b: u32) {
    let at = row * shape.blocks + b;
    var dot = -8 * blocks[b].sum;
    for (var w = 0u; w < 4u; w++) {
        let word = codes[4u * at + w];
        dot += dot4I8Packed(nibbles(word, 0u), q[8u * b + w]);
        dot += dot4I8Packed(nibbles(word, 4u), q[8u * b + 4u + w]);
    }
    add_dot(sums, mul_q15(low_half(fractions[at]), blocks[b].a), dot);
}

fn q8_0_block(sums: ptr<function, Sums>, row: u32, b: u32) {
    let at = row * shape.blocks + b;
    var dot = 0;
    for (var w = 0u; w < 8u; w++) {
        dot += dot4I8Packed(codes[8u * at + w], q[8u * b + w]);
    }
    add_dot(sums, mul_q15(low_half(fractions[at]), blocks[b].a), dot);
}

// Eight blocks make one of the file's: 32 bytes hold a block in their lower halves and the next
// in their upper ones.
fn q4_k_block(sums: ptr<function, Sums>, row: u32, b: u32) {
    let at = row * shape.blocks + b;
    let shift = 4u * (b & 1u);
    var dot = 0;
    for (var w = 0u; w < 8u; w++) {
        dot += dot4I8Packed(nibbles(codes[8u * (at >> 1u) + w], shift), q[8u * b + w]);
    }
    let fraction = fractions[at >> 3u];
    let sub = subs[at];
    // Six bits of sub-scale, brought to fifteen.
    let scale = mul_q15(low_half(fraction), i32(sub & 255u) << 9u);
    let min = mul_q15(high_half(fraction), i32(sub >> 8u) << 9u);
    add_dot(sums, mul_q15(scale, blocks[b].a), dot);
    add_min(sums, min * blocks[b].t);
}

// What all entry points do once their threads have summed: 32 rows become a block.
fn finish(sums: Sums, group: u32, thread: u32) {
    dots[thread] = sums.dot;
    mins[thread] = sums.min;
    workgroupBarrier();
    let row = group * ROWS + thread;
    if thread < ROWS {
        var dot = Wide(0u, 0u);
        var min = Wide(0u, 0u);
        for (var i = 0u; i < SHARE; i++) {
            dot = add(dot, dots[thread * SHARE + i]);
            min = add(min, mins[thread * SHARE + i]);
        }
        // `Unit::settle`. A shift that is negative (types without minima) is huge as u32 and
        // gives 0, as in the definition. The sum is at most 2^30 by the choice of the unit.
        let exponent = exponents[row];
        let z = round_shift(dot, u32(shape.dot_shift - exponent.x)).x
            + round_shift(min, u32(shape.min_shift - exponent.y)).x;
        settled[thread] = i32(z);
        result[row] = i32(z);
    }
    workgroupBarrier();
    if thread < ROWS {
        var peak = 0u;
        for (var i = 0u; i < ROWS; i++) {
            peak = max(peak, u32(abs(settled[i])));
        }
        result[shape.rows + row] = mantissa(settled[thread], peak, shape.exponent);
        if thread == 0u {
            result[2u * shape.rows + group] = block_exponent(peak, shape.exponent);
        }
    }
}

@compute @workgroup_size(256)
fn q4_0(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var sums = Sums();
    var since = 0u;
    for (var b = thread % SHARE; b < shape.blocks; b += SHARE) {
        q4_0_block(&sums, group.x * ROWS + thread / SHARE, b);
        since++;
        if since == FOLD {
            fold(&sums);
            since = 0u;
        }
    }
    fold(&sums);
    finish(sums, group.x, thread);
}

@compute @workgroup_size(256)
fn q8_0(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var sums = Sums();
    var since = 0u;
    for (var b = thread % SHARE; b < shape.blocks; b += SHARE) {
        q8_0_block(&sums, group.x * ROWS + thread / SHARE, b);
        since++;
        if since == FOLD {
            fold(&sums);
            since = 0u;
        }
    }
    fold(&sums);
    finish(sums, group.x, thread);
}

@compute @workgroup_size(256)
fn q4_k(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var sums = Sums();
    var since = 0u;
    for (var b = thread % SHARE; b < shape.blocks; b += SHARE) {
        q4_k_block(&sums, group.x * ROWS + thread / SHARE, b);
        since++;
        if since == FOLD {
            fold(&sums);
            since = 0u;
        }
    }
    fold(&sums);
    finish(sums, group.x, thread);
}
