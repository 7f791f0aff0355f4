// `numeric::norm::rms_norm`, then `numeric::activation::Rows::quantise`, for one token: one
// workgroup, whose threads take every 256th block of 32.
//
// Operations on a number: 3 for its square, 12 to multiply and encode (the product is formed
// twice), 9 to quantise and sum, 4 to unpack and pack: about 28. On a block: a division and about
// 120. On a row, by one thread: about 500, most of them the root.

struct Shape {
    // Blocks of the vector, and blocks of the result, which is padded.
    blocks: u32,
    padded: u32,
    per_count: Positive,
    epsilon: Positive,
}

@group(0) @binding(0) var<storage, read_write> shape: Shape;
// Mantissas of the vector, then those of the weights: two to a word, 16 words a block.
@group(0) @binding(1) var<storage, read_write> mantissas: array<u32>;
// Exponents of the vector, then those of the weights.
@group(0) @binding(2) var<storage, read_write> exponents: array<i32>;
// One after another: the normed vector's mantissas and exponents (of `blocks`), q (four to a
// word), a, sums, half_sums, t, half_t (of `padded`), and ten numbers of the row as a whole.
@group(0) @binding(3) var<storage, read_write> result: array<i32>;

const THREADS: u32 = 256u;

var<workgroup> shared_wide: array<Wide, 256>;
var<workgroup> shared_max: array<i32, 256>;

// `numeric::scalar::Positive`.
struct Positive {
    m: u32,
    e: i32,
}

fn positive(m: Wide, e: i32) -> Positive {
    let length = bit_length(m);
    if length == 0u {
        return Positive(0u, -1000);
    }
    let up = 64u - length;
    return Positive(shift_up(m, up).y, e + 32 - i32(up));
}

fn times(x: Positive, y: Positive) -> Positive {
    return positive(mul_wide(x.m, y.m), x.e + y.e);
}

fn plus(x: Positive, y: Positive) -> Positive {
    var big = x;
    var small = y;
    if x.e < y.e {
        big = y;
        small = x;
    }
    let down = big.e - small.e;
    let aligned = select(0u, small.m >> u32(min(down, 31)), down < 32);
    return positive(add(Wide(big.m, 0u), Wide(aligned, 0u)), big.e);
}

// The largest r with r^2 * a <= 2^62, a in [2^30, 2^32), bit by bit: 16 steps of one product of
// two words. Only a = 2^30 reaches r = 2^16, whose square does not fit a word; for every other a,
// r^2 * a is never 2^62 itself, since then both were powers of two.
fn root(a: u32) -> u32 {
    if a == 0x40000000u {
        return 65536u;
    }
    var r = 0u;
    for (var bit = 32768u; bit != 0u; bit >>= 1u) {
        let tried = r | bit;
        if mul_wide(tried * tried, a).y < 0x40000000u {
            r = tried;
        }
    }
    return r;
}

// `numeric::scalar::inverse_square_root`.
fn inverse_square_root(x: Positive) -> Positive {
    if x.m == 0u {
        return Positive(65536u, -16);
    }
    let odd = x.e & 1;
    return Positive(root(x.m >> u32(odd)), -(x.e + odd) / 2 - 31);
}

fn low_half(x: u32) -> i32 {
    return i32(x << 16u) >> 16u;
}

fn high_half(x: u32) -> i32 {
    return i32(x) >> 16u;
}

// The largest of all threads' numbers, for all threads.
fn largest(x: i32, thread: u32) -> i32 {
    workgroupBarrier();
    shared_max[thread] = x;
    workgroupBarrier();
    for (var step = THREADS / 2u; step != 0u; step >>= 1u) {
        if thread < step {
            shared_max[thread] = max(shared_max[thread], shared_max[thread + step]);
        }
        workgroupBarrier();
    }
    return shared_max[0];
}

// The exact sum of all threads' numbers, for all threads.
fn total(x: Wide, thread: u32) -> Wide {
    workgroupBarrier();
    shared_wide[thread] = x;
    workgroupBarrier();
    for (var step = THREADS / 2u; step != 0u; step >>= 1u) {
        if thread < step {
            shared_wide[thread] = add(shared_wide[thread], shared_wide[thread + step]);
        }
        workgroupBarrier();
    }
    return shared_wide[0];
}

// The exact sum of a block's squares, below 2^35. Four squares fit a word: 4 * 32767^2 < 2^32.
fn square_sum(g: u32) -> Wide {
    var low = 0u;
    var high = 0u;
    for (var i = 0u; i < 16u; i += 2u) {
        let x = mantissas[16u * g + i];
        let y = mantissas[16u * g + i + 1u];
        let four = u32(low_half(x) * low_half(x)) + u32(high_half(x) * high_half(x))
            + u32(low_half(y) * low_half(y)) + u32(high_half(y) * high_half(y));
        low += four & 0xffffu;
        high += four >> 16u;
    }
    return add(Wide(low, 0u), shift_up(Wide(high, 0u), 16u));
}

// `numeric::norm::mean_square`.
fn mean_square(thread: u32) -> Positive {
    var top = ZERO;
    for (var g = thread; g < shape.blocks; g += THREADS) {
        top = max(top, exponents[g]);
    }
    top = largest(top, thread);
    var sum = Wide(0u, 0u);
    for (var g = thread; g < shape.blocks; g += THREADS) {
        let down = 2 * (top - exponents[g]);
        if down < 40 {
            sum = add(sum, shift_down(square_sum(g), u32(down)));
        }
    }
    // 1,664 blocks of at most 2^35 each: below 2^46.
    sum = total(sum, thread);
    if top == ZERO {
        return shape.epsilon;
    }
    return plus(times(positive(sum, 2 * top), shape.per_count), shape.epsilon);
}

// x * w of two neighbours: 15 bits each, so at most 2^30.
fn products(word: u32) -> vec2<i32> {
    let x = mantissas[word];
    let w = mantissas[16u * shape.blocks + word];
    return vec2(low_half(x) * low_half(w), high_half(x) * high_half(w));
}

// Writes a block of x * w; returns its exponent.
fn scale_block(g: u32) -> i32 {
    var peak = 0u;
    for (var i = 0u; i < 16u; i++) {
        let z = vec2<u32>(abs(products(16u * g + i)));
        peak = max(peak, max(z.x, z.y));
    }
    let unit = exponents[g] + exponents[shape.blocks + g];
    for (var i = 0u; i < 16u; i++) {
        let z = products(16u * g + i);
        result[32u * g + 2u * i] = mantissa(z.x, peak, unit);
        result[32u * g + 2u * i + 1u] = mantissa(z.y, peak, unit);
    }
    let e = block_exponent(peak, unit);
    result[32u * shape.blocks + g] = e;
    return e;
}

// Where the parts of the result begin.
fn q_at() -> u32 {
    return 33u * shape.blocks;
}
fn a_at() -> u32 {
    return q_at() + 8u * shape.padded;
}
fn sums_at() -> u32 {
    return a_at() + shape.padded;
}
fn half_sums_at() -> u32 {
    return sums_at() + shape.padded;
}
fn t_at() -> u32 {
    return half_sums_at() + 2u * shape.padded;
}
fn half_t_at() -> u32 {
    return t_at() + shape.padded;
}
fn row_at() -> u32 {
    return half_t_at() + 2u * shape.padded;
}

// Quantises block g, whose exponent lies `below` the largest; returns a * sum of |q|, at most
// 32767 * 4064 < 2^27.
fn quantise_block(g: u32, below: i32, factor: u32) -> u32 {
    var peak = 0;
    for (var i = 0u; i < 32u; i++) {
        peak = max(peak, abs(result[32u * g + i]));
    }
    // A block of zeros keeps its zeros with any inverse.
    let inverse = (127 << 22u) / max(peak, 1);
    var half_sums = vec2<i32>();
    var size = 0;
    for (var w = 0u; w < 8u; w++) {
        var q = vec4<i32>();
        for (var i = 0u; i < 4u; i++) {
            // At most 127 * 2^22 in magnitude.
            q[i] = (result[32u * g + 4u * w + i] * inverse + (1i << 21u)) >> 22u;
            size += abs(q[i]);
        }
        half_sums[w / 4u] += q.x + q.y + q.z + q.w;
        result[q_at() + 8u * g + w] = i32(pack4xI8(q));
    }
    // At most 32767 * 2^16, so that half of 2^32 can be added; from 2^32 on nothing is left.
    let down = 16 + below;
    let scale = u32(peak) * factor;
    let a = select(0u, (scale + (1u << u32(min(down, 32) - 1))) >> u32(min(down, 31)), down < 32);
    result[a_at() + g] = i32(a);
    result[sums_at() + g] = half_sums.x + half_sums.y;
    result[half_sums_at() + 2u * g] = half_sums.x;
    result[half_sums_at() + 2u * g + 1u] = half_sums.y;
    return a * u32(size);
}

// `numeric::activation::weigh`: the numbers at `sums`, `per` to a block, times their block's a,
// are brought to 15 bits and written at `to`. Returns the bits taken and the sum of magnitudes,
// at most 3,328 * 32767 < 2^27.
fn weigh(sums: u32, per: u32, to: u32, thread: u32) -> vec2<u32> {
    let count = per * shape.padded;
    var peak = 0;
    for (var i = thread; i < count; i += THREADS) {
        peak = max(peak, abs(result[a_at() + i / per] * result[sums + i]));
    }
    let length = bit_length_32(u32(largest(peak, thread)));
    let down = max(length, 15u) - 15u;
    let half = (1i << down) >> 1u;
    var bound = 0u;
    for (var i = thread; i < count; i += THREADS) {
        let product = result[a_at() + i / per] * result[sums + i];
        let t = clamp((product + half) >> down, -32767, 32767);
        result[to + i] = t;
        bound += u32(abs(t));
    }
    return vec2(down, total(Wide(bound, 0u), thread).x);
}

@compute @workgroup_size(256)
fn norm(@builtin(local_invocation_index) thread: u32) {
    let factor = inverse_square_root(mean_square(thread));
    var top = ZERO;
    for (var g = thread; g < shape.blocks; g += THREADS) {
        top = max(top, scale_block(g));
    }
    top = largest(top, thread);
    var bound = Wide(0u, 0u);
    for (var g = thread; g < shape.blocks; g += THREADS) {
        let below = top - result[32u * shape.blocks + g];
        bound = add(bound, Wide(quantise_block(g, below, factor.m), 0u));
    }
    bound = total(bound, thread);
    // What is read below was written by other threads.
    storageBarrier();
    let whole = weigh(sums_at(), 1u, t_at(), thread);
    let halves = weigh(half_sums_at(), 2u, half_t_at(), thread);
    if thread == 0u {
        let exponent = select(top + factor.e + 16, -400, top == ZERO);
        let at = row_at();
        result[at] = i32(factor.m);
        result[at + 1u] = factor.e;
        result[at + 2u] = exponent;
        result[at + 3u] = exponent + i32(whole.x);
        result[at + 4u] = exponent + i32(halves.x);
        result[at + 5u] = i32(bound.x);
        result[at + 6u] = i32(bound.y);
        result[at + 7u] = i32(whole.y);
        result[at + 8u] = i32(halves.y);
    }
}
