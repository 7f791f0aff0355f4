// A query head over the positions that it may see: `numeric::attention::attend`. One workgroup for a
// head of a token. The largest logit first, then weights and sums; logits are computed twice, so that
// nothing has to be kept for long contexts.
//
// Bounds. A weight has 24 bits, a value 8: it is split in two limbs of 12 bits, 127 * 4095 * TILE = 128
// < 2^27 each, emptied into 64 bits after each tile.

@group(0) @binding(0) var<storage, read> queries: array<u32>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read> cache: array<u32>;
// For each query head of each token HEAD numbers and the exponent of their unit.
@group(0) @binding(3) var<storage, read_write> averages: array<i32>;

const TILE: u32 = 128u;
const PAGE: u32 = 32u;
const LOGIT_MAX: i32 = 1073741824;
const PAIRS_EACH: u32 = (HEAD / 2u + TILE - 1u) / TILE;

var<workgroup> query: array<u32, HEAD_WORDS>;
var<workgroup> weights: array<u32, 128>;
var<workgroup> parts: array<u32, 128>;
var<workgroup> largest: atomic<i32>;
var<workgroup> top: atomic<i32>;
var<workgroup> totals: array<Wide, 128>;

fn part_of(table: u32, position: u32, kv_head: u32) -> u32 {
    return (places[table + position / PAGE] * KV_HEADS + kv_head) * (16u * HEAD + 48u);
}

fn scale_m(part: u32, at: u32, of_values: u32) -> i32 {
    let word = cache[part + 16u * HEAD + 16u * of_values + at / 2u];
    return select(low_half(word), high_half(word), at % 2u == 1u);
}

fn scale_e(part: u32, at: u32, of_values: u32) -> i32 {
    return byte(cache[part + 16u * HEAD + 32u + 8u * of_values + at / 4u], at % 4u);
}

// floor(dot * m * 2^e), cut to 30 bits. |dot| < 2^23 and |m| < 2^15, so their product of 38 bits is
// formed in two parts of 12 bits of dot.
fn logit(part: u32, at: u32, query_m: i32, query_e: i32) -> i32 {
    let keys = part + ((at - at % 8u) * HEAD) / 4u + at % 8u;
    var dot = 0;
    for (var w = 0u; w < HEAD / 4u; w++) {
        dot += dot4I8Packed(query[w], cache[keys + 8u * w]);
    }
    let m = mul_q15(query_m, scale_m(part, at, 0u));
    let e = clamp(query_e + scale_e(part, at, 0u) + 31, -60, 24);
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

// floor(p * m / 2^15), p below 2^24, by the rule
// floor((h * 2^12 + l) / 2^15) = floor((h + floor(l / 2^12)) / 2^3).
fn value_weight(p: u32, m: i32, down: i32) -> u32 {
    if m == 0 {
        return 0u;
    }
    let part = p >> u32(min(down, 31));
    return ((part >> 12u) * u32(m) + (((part & 4095u) * u32(m)) >> 12u)) >> 3u;
}

@compute @workgroup_size(128)
fn attend(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let h = id.x;
    let token = id.y;
    let kv_head = h / (HEADS / KV_HEADS);
    let own = (token * HEADS + h) * (HEAD / 4u + 2u);
    let end = places[2u * token] + 1u;
    let table = places[2u * token + 1u];
    var first = 0u;
    if WINDOW != 0u && end > WINDOW {
        first = end - WINDOW;
    }
    for (var w = thread; w < HEAD / 4u; w += TILE) {
        query[w] = queries[own + w];
    }
    let query_m = i32(queries[own + HEAD / 4u]);
    let query_e = i32(queries[own + HEAD / 4u + 1u]);
    if thread == 0u {
        atomicStore(&largest, -LOGIT_MAX);
        // No value's exponent lies below.
        atomicStore(&top, -100);
    }
    workgroupBarrier();
    for (var j = first + thread; j < end; j += TILE) {
        let part = part_of(table, j, kv_head);
        atomicMax(&largest, logit(part, j % PAGE, query_m, query_e));
        if scale_m(part, j % PAGE, 1u) != 0 {
            atomicMax(&top, scale_e(part, j % PAGE, 1u));
        }
    }
    workgroupBarrier();
    let most = atomicLoad(&largest);
    let upper = atomicLoad(&top);
    var total = Wide(0u, 0u);
    var sums: array<Wide, 2u * PAIRS_EACH>;
    for (var start = first; start < end; start += TILE) {
        let j = start + thread;
        workgroupBarrier();
        if j < end {
            let part = part_of(table, j, kv_head);
            // At most 2^31, which fits unsigned.
            let p = exp2_negative(u32(most - logit(part, j % PAGE, query_m, query_e)));
            total = add(total, Wide(p, 0u));
            weights[thread] = value_weight(p, scale_m(part, j % PAGE, 1u),
                upper - scale_e(part, j % PAGE, 1u));
            parts[thread] = part;
        }
        workgroupBarrier();
        let count = min(TILE, end - start);
        for (var n = 0u; n < PAIRS_EACH; n++) {
            let w = thread + TILE * n;
            if w >= HEAD / 2u {
                continue;
            }
            var low = vec2<i32>();
            var upper_limb = vec2<i32>();
            for (var i = 0u; i < count; i++) {
                let at = (start + i) % PAGE;
                let word = cache[parts[i] + 8u * HEAD + (at / 2u) * (HEAD / 2u) + w];
                let v = vec2(byte(word, at % 2u), byte(word, 2u + at % 2u));
                low += i32(weights[i] & 4095u) * v;
                upper_limb += i32(weights[i] >> 12u) * v;
            }
            sums[2u * n] = add(sums[2u * n], from_limbs(upper_limb.x, low.x, 12u));
            sums[2u * n + 1u] = add(sums[2u * n + 1u], from_limbs(upper_limb.y, low.y, 12u));
        }
    }
    workgroupBarrier();
    totals[thread] = total;
    workgroupBarrier();
    for (var step = TILE / 2u; step != 0u; step >>= 1u) {
        if thread < step {
            totals[thread] = add(totals[thread], totals[thread + step]);
        }
        workgroupBarrier();
    }
    // `numeric::attention::Average`: floor(2^37 / divisor) by two divisions of one word: the divisor
    // lies below 2^23, so the rest of the first fits again when it is moved up by 6.
    let down = bit_length(totals[0]) - 16u;
    let divisor = 127u * shift_down(totals[0], down).x;
    let inverse = ((0x80000000u / divisor) << 6u) + ((0x80000000u % divisor) << 6u) / divisor;
    let to = (token * HEADS + h) * (HEAD + 1u);
    for (var n = 0u; n < PAIRS_EACH; n++) {
        let w = thread + TILE * n;
        if w >= HEAD / 2u {
            continue;
        }
        for (var i = 0u; i < 2u; i++) {
            // Below 2^30; the inverse is at most 33,026. Floor of the product's upper part, as above.
            let x = i32(round_shift(sums[2u * n + i], down - 7u).x);
            averages[to + 2u * w + i] = (x >> 16u) * i32(inverse) + i32(((u32(x) & 0xffffu) * inverse) >> 16u);
        }
    }
    if thread == 0u {
        averages[to + HEAD] = upper - 13;
    }
}
