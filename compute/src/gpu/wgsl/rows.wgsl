// Norms, and quantisation of whole rows: one workgroup a token, whose threads take every 256th block.
//
// Operations on a number: 3 for its square, 12 to multiply and encode (the product is formed
// twice), 9 to quantise and sum, 4 to unpack and pack: about 28. On a block: a division and about
// 120. On a row, by one thread: about 500, most of them the root.

// What comes in: rows of GROUPS blocks.
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
// A norm's weights: GROUPS blocks. Where there is no norm, averages of heads.
@group(0) @binding(1) var<storage, read> weights: array<u32>;
// Room for a row of blocks for each token.
@group(0) @binding(2) var<storage, read_write> spare: array<u32>;
// Vectors for products, or rows to which the result is added.
@group(0) @binding(3) var<storage, read_write> result: array<u32>;

const THREADS: u32 = 256u;
const TOKEN: u32 = 12u;
const STRIDE: u32 = TOKEN + 12u * PADDED;

var<workgroup> shared_wide: array<Wide, 256>;
var<workgroup> shared_max: array<i32, 256>;

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

// The exact sum of the squares of the block at `at`, below 2^35. Four squares fit a word:
// 4 * 32767^2 < 2^32.
fn square_sum(at: u32) -> Wide {
    var low = 0u;
    var high = 0u;
    for (var i = 0u; i < 16u; i += 2u) {
        let a = x[at + i];
        let b = x[at + i + 1u];
        let four = u32(low_half(a) * low_half(a)) + u32(high_half(a) * high_half(a))
            + u32(low_half(b) * low_half(b)) + u32(high_half(b) * high_half(b));
        low += four & 0xffffu;
        high += four >> 16u;
    }
    return add(Wide(low, 0u), shift_up(Wide(high, 0u), 16u));
}

// The factor that `numeric::norm::rms_norm` leaves open, for the row of blocks from `row` on.
fn factor_of(row: u32, thread: u32) -> Positive {
    var top = ZERO;
    for (var g = thread; g < GROUPS; g += THREADS) {
        top = max(top, i32(x[row + BLOCK * g + 16u]));
    }
    top = largest(top, thread);
    var sum = Wide(0u, 0u);
    for (var g = thread; g < GROUPS; g += THREADS) {
        let down = 2 * (top - i32(x[row + BLOCK * g + 16u]));
        if down < 40 {
            sum = add(sum, shift_down(square_sum(row + BLOCK * g), u32(down)));
        }
    }
    // 1,664 blocks of at most 2^35 each: below 2^46.
    sum = total(sum, thread);
    let epsilon = Positive(EPSILON_M, EPSILON_E);
    if top == ZERO {
        return inverse_square_root(epsilon);
    }
    let mean = times(positive(sum, 2 * top), Positive(PER_COUNT_M, PER_COUNT_E));
    return inverse_square_root(plus(mean, epsilon));
}

// Encodes z * 2^unit into the block at `at` of `spare`; returns its exponent.
fn put_spare(at: u32, z: ptr<function, array<i32, 32>>, unit: i32) -> i32 {
    var peak = 0u;
    for (var i = 0u; i < 32u; i++) {
        peak = max(peak, u32(abs((*z)[i])));
    }
    for (var i = 0u; i < 16u; i++) {
        spare[at + i] = pair(mantissa((*z)[2u * i], peak, unit), mantissa((*z)[2u * i + 1u], peak, unit));
    }
    let e = block_exponent(peak, unit);
    spare[at + 16u] = u32(e);
    return e;
}

// Block g of x * w, into `spare`; returns its exponent.
fn scale_block(row: u32, g: u32) -> i32 {
    let at = row + BLOCK * g;
    let w = BLOCK * g;
    var z: array<i32, 32>;
    for (var i = 0u; i < 16u; i++) {
        z[2u * i] = low_half(x[at + i]) * low_half(weights[w + i]);
        z[2u * i + 1u] = high_half(x[at + i]) * high_half(weights[w + i]);
    }
    return put_spare(at, &z, i32(x[at + 16u]) + i32(weights[w + 16u]));
}

// `numeric::activation::Rows::quantise` of the row of blocks from `row` on in `spare`, times a
// factor, into vector `token`.
fn quantise(row: u32, token: u32, thread: u32, factor: Positive) {
    let vector = STRIDE * token;
    let beside = vector + TOKEN;
    let q_at = beside + 4u * PADDED;
    var top = ZERO;
    for (var g = thread; g < GROUPS; g += THREADS) {
        top = max(top, i32(spare[row + BLOCK * g + 16u]));
    }
    top = largest(top, thread);
    var bound = Wide(0u, 0u);
    var peaks = vec2<i32>();
    for (var g = thread; g < PADDED; g += THREADS) {
        if g >= GROUPS {
            for (var i = 0u; i < 4u; i++) {
                result[beside + 4u * g + i] = 0u;
            }
            for (var i = 0u; i < 8u; i++) {
                result[q_at + 8u * g + i] = 0u;
            }
            continue;
        }
        let at = row + BLOCK * g;
        var peak = 0;
        for (var i = 0u; i < 16u; i++) {
            peak = max(peak, max(abs(low_half(spare[at + i])), abs(high_half(spare[at + i]))));
        }
        // A block of zeros keeps its zeros with any inverse.
        let inverse = (127 << 22u) / max(peak, 1);
        var half_sums = vec2<i32>();
        var size = 0;
        for (var w = 0u; w < 8u; w++) {
            let a = spare[at + 2u * w];
            let b = spare[at + 2u * w + 1u];
            // At most 127 * 2^22 in magnitude.
            let q = (vec4(low_half(a), high_half(a), low_half(b), high_half(b)) * inverse
                + vec4(1i << 21u)) >> vec4(22u);
            size += abs(q.x) + abs(q.y) + abs(q.z) + abs(q.w);
            half_sums[w / 4u] += q.x + q.y + q.z + q.w;
            result[q_at + 8u * g + w] = (u32(q.x) & 255u) | ((u32(q.y) & 255u) << 8u)
                | ((u32(q.z) & 255u) << 16u) | (u32(q.w) << 24u);
        }
        // At most 32767 * 2^16, so that half of 2^32 can be added; from 2^32 on nothing is left.
        let down = 16 + top - i32(spare[at + 16u]);
        let scale = u32(peak) * factor.m;
        let a = select(0u, (scale + (1u << u32(min(down, 32) - 1))) >> u32(min(down, 31)), down < 32);
        result[beside + 4u * g] = pair(i32(a), half_sums.x + half_sums.y);
        result[beside + 4u * g + 1u] = pair(half_sums.x, half_sums.y);
        peaks.x = max(peaks.x, abs(i32(a) * (half_sums.x + half_sums.y)));
        peaks.y = max(peaks.y, max(abs(i32(a) * half_sums.x), abs(i32(a) * half_sums.y)));
        // At most 32767 * 4064 < 2^27.
        bound = add(bound, Wide(a * u32(size), 0u));
    }
    bound = total(bound, thread);
    // `numeric::activation::weigh`, for whole blocks and for halves.
    let whole_down = max(bit_length_32(u32(largest(peaks.x, thread))), 15u) - 15u;
    let half_down = max(bit_length_32(u32(largest(peaks.y, thread))), 15u) - 15u;
    let whole_half = (1i << whole_down) >> 1u;
    let half_half = (1i << half_down) >> 1u;
    var whole_bound = 0u;
    var half_bound = 0u;
    for (var g = thread; g < GROUPS; g += THREADS) {
        let first = result[beside + 4u * g];
        let sums = result[beside + 4u * g + 1u];
        let a = low_half(first);
        let t = clamp((a * high_half(first) + whole_half) >> whole_down, -32767, 32767);
        let h0 = clamp((a * low_half(sums) + half_half) >> half_down, -32767, 32767);
        let h1 = clamp((a * high_half(sums) + half_half) >> half_down, -32767, 32767);
        result[beside + 4u * g + 2u] = pair(t, 0);
        result[beside + 4u * g + 3u] = pair(h0, h1);
        // At most 3,328 * 32767 < 2^27.
        whole_bound += u32(abs(t));
        half_bound += u32(abs(h0)) + u32(abs(h1));
    }
    whole_bound = total(Wide(whole_bound, 0u), thread).x;
    half_bound = total(Wide(half_bound, 0u), thread).x;
    if thread == 0u {
        let exponent = select(top + factor.e + 16, -400, top == ZERO);
        result[vector] = u32(exponent);
        result[vector + 1u] = u32(exponent + i32(whole_down));
        result[vector + 2u] = u32(exponent + i32(half_down));
        result[vector + 3u] = bound.x;
        result[vector + 4u] = bound.y;
        result[vector + 5u] = whole_bound;
        result[vector + 6u] = half_bound;
    }
}

const ONE: Positive = Positive(65536u, -16);

// Norm before a matrix.
@compute @workgroup_size(256)
fn norm_quantise(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = BLOCK * GROUPS * id.x;
    let factor = factor_of(row, thread);
    for (var g = thread; g < GROUPS; g += THREADS) {
        scale_block(row, g);
    }
    storageBarrier();
    quantise(row, id.x, thread, factor);
}

// A row as it is.
@compute @workgroup_size(256)
fn plain_quantise(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = BLOCK * GROUPS * id.x;
    for (var g = thread; g < GROUPS; g += THREADS) {
        for (var i = 0u; i < BLOCK; i++) {
            spare[row + BLOCK * g + i] = x[row + BLOCK * g + i];
        }
    }
    storageBarrier();
    quantise(row, id.x, thread, ONE);
}

// Averages of heads, HEAD numbers and a unit each, together as a row.
@compute @workgroup_size(256)
fn heads_quantise(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = BLOCK * GROUPS * id.x;
    let heads = (HEAD + 1u) * (32u * GROUPS / HEAD) * id.x;
    for (var g = thread; g < GROUPS; g += THREADS) {
        let first = 32u * g / HEAD;
        let last = (32u * g + 31u) / HEAD;
        var top = bitcast<i32>(weights[heads + (HEAD + 1u) * first + HEAD]);
        for (var h = first + 1u; h <= last; h++) {
            top = max(top, bitcast<i32>(weights[heads + (HEAD + 1u) * h + HEAD]));
        }
        var z: array<i32, 32>;
        for (var i = 0u; i < 32u; i++) {
            let n = 32u * g + i;
            let at = heads + (HEAD + 1u) * (n / HEAD);
            let down = u32(top - bitcast<i32>(weights[at + HEAD]));
            z[i] = round_shift_32(bitcast<i32>(weights[at + n % HEAD]), down);
        }
        put_spare(row + BLOCK * g, &z, top);
    }
    storageBarrier();
    quantise(row, id.x, thread, ONE);
}

// Norm after a matrix, added to the residual.
@compute @workgroup_size(256)
fn norm_add(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = BLOCK * GROUPS * id.x;
    let factor = factor_of(row, thread);
    for (var g = thread; g < GROUPS; g += THREADS) {
        let at = row + BLOCK * g;
        var e = scale_block(row, g);
        // `numeric::norm::apply`: 32767 * 2^16 is below 2^31.
        var z: array<i32, 32>;
        for (var i = 0u; i < 16u; i++) {
            z[2u * i] = (low_half(spare[at + i]) * i32(factor.m)) >> 1u;
            z[2u * i + 1u] = (high_half(spare[at + i]) * i32(factor.m)) >> 1u;
        }
        if e != ZERO {
            e = put_spare(at, &z, e + factor.e + 1);
        }
        let re = i32(result[at + 16u]);
        let top = max(e, re);
        var peak = 0u;
        for (var i = 0u; i < 16u; i++) {
            let r = result[at + i];
            let s = spare[at + i];
            z[2u * i] = aligned(low_half(r), top - re) + aligned(low_half(s), top - e);
            z[2u * i + 1u] = aligned(high_half(r), top - re) + aligned(high_half(s), top - e);
            peak = max(peak, u32(max(abs(z[2u * i]), abs(z[2u * i + 1u]))));
        }
        if top == ZERO {
            peak = 0u;
        }
        for (var i = 0u; i < 16u; i++) {
            result[at + i] = pair(mantissa(z[2u * i], peak, top - 14),
                mantissa(z[2u * i + 1u], peak, top - 14));
        }
        result[at + 16u] = u32(block_exponent(peak, top - 14));
    }
}
