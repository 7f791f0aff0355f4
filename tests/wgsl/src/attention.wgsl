// One query head over n positions: `numeric::attention::attend`, in four passes. Between threads
// there are only maxima and exact integer sums, so positions may be split and ordered at will; all
// of them meet by atomics here, in whatever order they come.
//
// A weight has 24 bits, a value 8. Their sum of products is taken by dot4U8Packed, four positions at
// once: the weights' three bytes apart, and 128 added to each value, so that both are unsigned:
//   sum of w * v = sum of w * (v + 128) - 128 * sum of w.
// For this the values of four positions lie in one word, number by number.
//
// Operations: a position costs about 45 for its logit and 35 for its weight, and for each number of
// the head 0.5 for the key (one dot4 and an add for four) and 1.75 for the value (three dot4, three
// adds, one to flip the sign bits, for four). With a head of 64 that is 3.5 a number of K and V
// together, with 256 it is 2.6. The average costs about 45 a number once a head, and two divisions
// once a head.

struct Shape {
    positions: u32,
    // Four numbers of a head to a word.
    words: u32,
    query_m: i32,
    query_e: i32,
}

// Scales of a position's key and value: m * 2^e.
struct Scales {
    key_m: i32,
    key_e: i32,
    value_m: i32,
    value_e: i32,
}

@group(0) @binding(0) var<storage, read_write> shape: Shape;
@group(0) @binding(1) var<storage, read_write> query: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
// [positions / 4][head]: each word holds one number of four positions.
@group(0) @binding(3) var<storage, read_write> values: array<u32>;
@group(0) @binding(4) var<storage, read_write> scales: array<Scales>;
// Logits, four for each four positions; later the weights of the four: a word of their lowest
// bytes, one of the middle and one of the upper ones. Positions past the end weigh nothing.
@group(0) @binding(5) var<storage, read_write> weights: array<u32>;
// The largest logit, the largest exponent of a value; two limbs of the sum of probabilities and
// of that of weights; three limbs of each number's sum.
@group(0) @binding(6) var<storage, read_write> state: array<atomic<i32>>;
// The average, and after it the exponent of its unit.
@group(0) @binding(7) var<storage, read_write> result: array<i32>;

const LARGEST: u32 = 0u;
const TOP: u32 = 1u;
const TOTAL: u32 = 2u;
const WEIGHT: u32 = 4u;
const SUMS: u32 = 6u;
const LOGIT_MAX: i32 = 1073741824;
// Fours of positions that one thread adds up before it meets the others.
const CHUNK: u32 = 64u;

// `numeric::attention::logit`: floor(dot * m * 2^e), cut to 30 bits. |dot| <= 127 * 127 * 512 <
// 2^23 and |m| < 2^15, so their product of 38 bits is formed in two parts of 12 bits of dot.
fn logit(dot: i32, scale: Scales) -> i32 {
    let m = (shape.query_m * scale.key_m + (1i << 14u)) >> 15u;
    let e = clamp(shape.query_e + scale.key_e + 31, -60, 24);
    let product = from_limbs((dot >> 12u) * m, (dot & 4095) * m, 12u);
    var x: Wide;
    if e < 0 {
        x = shift_down(product, u32(-e));
    } else {
        // Below 2^62.
        x = shift_up(product, u32(e));
    }
    // Within 32 bits if the upper word only repeats the sign.
    let upper = i32(x.y);
    if upper != (i32(x.x) >> 31u) {
        return select(LOGIT_MAX, -LOGIT_MAX, upper < 0);
    }
    return clamp(i32(x.x), -LOGIT_MAX, LOGIT_MAX);
}

@compute @workgroup_size(64)
fn score(@builtin(global_invocation_id) id: vec3<u32>) {
    let j = id.x;
    if j >= shape.positions {
        return;
    }
    var dot = 0;
    for (var w = 0u; w < shape.words; w++) {
        dot += dot4I8Packed(query[w], keys[j * shape.words + w]);
    }
    let l = logit(dot, scales[j]);
    weights[j] = u32(l);
    atomicMax(&state[LARGEST], l);
    if scales[j].value_m != 0 {
        atomicMax(&state[TOP], scales[j].value_e);
    }
}

fn high(x: u32, y: u32) -> u32 {
    return (x * y) >> 16u;
}

// `numeric::functions::exp2_negative`, t in units of 2^-16.
fn exp2_negative(t: u32) -> u32 {
    let whole = t >> 16u;
    if whole > 24u {
        return 0u;
    }
    let f = t & 0xffffu;
    var y = 3443u - high(f, 428u);
    y = 15658u - high(f, y);
    y = 45410u - high(f, y);
    y = 65535u - high(f, y);
    return (y << 8u) >> whole;
}

// `numeric::attention::value_weight`: floor(p * m / 2^15), p below 2^24, by the rule
// floor((h * 2^12 + l) / 2^15) = floor((h + floor(l / 2^12)) / 2^3).
fn value_weight(p: u32, scale: Scales, top: i32) -> u32 {
    if scale.value_m == 0 {
        return 0u;
    }
    let part = p >> u32(min(top - scale.value_e, 31));
    let m = u32(scale.value_m);
    return ((part >> 12u) * m + (((part & 4095u) * m) >> 12u)) >> 3u;
}

// A sum of numbers below 2^24 in two limbs of 12 bits: exact for up to 2^20 positions.
fn add_to_total(at: u32, x: u32) {
    atomicAdd(&state[at], i32(x & 4095u));
    atomicAdd(&state[at + 1u], i32(x >> 12u));
}

// One thread weighs four positions.
@compute @workgroup_size(64)
fn weigh(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = 4u * id.x;
    if first >= shape.positions {
        return;
    }
    let largest = atomicLoad(&state[LARGEST]);
    let top = atomicLoad(&state[TOP]);
    var bytes = vec3<u32>();
    for (var i = 0u; i < min(4u, shape.positions - first); i++) {
        // At most 2^31, which fits unsigned.
        let p = exp2_negative(u32(largest - i32(weights[first + i])));
        let w = value_weight(p, scales[first + i], top);
        add_to_total(TOTAL, p);
        add_to_total(WEIGHT, w);
        bytes |= ((vec3(w) >> vec3(0u, 8u, 16u)) & vec3(255u)) << vec3(8u * i);
    }
    weights[first] = bytes.x;
    weights[first + 1u] = bytes.y;
    weights[first + 2u] = bytes.z;
}

// One thread adds up one number of 4 * CHUNK positions: 256 * 255 * 255 < 2^24 a byte.
@compute @workgroup_size(64)
fn sum(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = 4u * shape.words;
    let d = id.x;
    if d >= head {
        return;
    }
    var sums = vec3<u32>();
    let fours = (shape.positions + 3u) / 4u;
    let first = id.y * CHUNK;
    for (var f = first; f < min(first + CHUNK, fours); f++) {
        let v = values[f * head + d] ^ 0x80808080u;
        sums.x += dot4U8Packed(weights[4u * f], v);
        sums.y += dot4U8Packed(weights[4u * f + 1u], v);
        sums.z += dot4U8Packed(weights[4u * f + 2u], v);
    }
    let s = add(
        Wide(sums.x, 0u),
        add(shift_up(Wide(sums.y, 0u), 8u), shift_up(Wide(sums.z, 0u), 16u)),
    );
    // Limbs of 16 bits: exact for up to 2^16 chunks.
    let at = SUMS + 3u * d;
    atomicAdd(&state[at], i32(s.x & 0xffffu));
    atomicAdd(&state[at + 1u], i32(s.x >> 16u));
    atomicAdd(&state[at + 2u], i32(s.y));
}

fn loaded(at: u32) -> u32 {
    return u32(atomicLoad(&state[at]));
}

fn loaded_total(at: u32) -> Wide {
    return add(Wide(loaded(at), 0u), shift_up(Wide(loaded(at + 1u), 0u), 12u));
}

// `numeric::attention::Average`.
@compute @workgroup_size(64)
fn average(@builtin(global_invocation_id) id: vec3<u32>) {
    let d = id.x;
    if d >= 4u * shape.words {
        return;
    }
    let total = loaded_total(TOTAL);
    let down = bit_length(total) - 16u;
    // floor(2^37 / divisor) by two divisions of one word: the divisor lies below 2^23, so the
    // rest of the first fits again when it is moved up by 6.
    let divisor = 127u * shift_down(total, down).x;
    let inverse = ((0x80000000u / divisor) << 6u) + ((0x80000000u % divisor) << 6u) / divisor;
    let at = SUMS + 3u * d;
    let middle = loaded(at + 1u);
    let raised = add(Wide(loaded(at), loaded(at + 2u)), Wide(middle << 16u, middle >> 16u));
    let sum = add(raised, negated(shift_up(loaded_total(WEIGHT), 7u)));
    // Below 2^30; the inverse is at most 33,026. Floor of the product's upper part, as above.
    let x = i32(round_shift(sum, down - 7u).x);
    result[d] = (x >> 16u) * i32(inverse) + i32(((u32(x) & 0xffffu) * inverse) >> 16u);
    if d == 0u {
        result[4u * shape.words] = atomicLoad(&state[TOP]) - 13;
    }
}
