// From rows of queries, keys and values to heads of 8 bits: `numeric::attention::quantise_head`.
// One workgroup for a head of a token. Queries go into a buffer, keys and values into the cache.

// Rows of queries, keys and values: QKV_GROUPS blocks.
@group(0) @binding(0) var<storage, read> qkv: array<u32>;
// For each token its position and where its pages begin in the same buffer; then pages.
@group(0) @binding(1) var<storage, read> places: array<u32>;
// Phase increments.
@group(0) @binding(2) var<storage, read> increments: array<u32>;
// Norms of query and key heads: WEIGHT_GROUPS blocks each.
@group(0) @binding(3) var<storage, read> norms: array<u32>;
// For each query head of each token its numbers, four to a word, then mantissa and exponent.
@group(0) @binding(4) var<storage, read_write> queries: array<u32>;
// The layer's keys and values, page by page as `kv` lays them out.
@group(0) @binding(5) var<storage, read_write> cache: array<atomic<u32>>;

const THREADS: u32 = 64u;
const PAGE: u32 = 32u;
const WEIGHT_GROUPS: u32 = (HEAD + 31u) / 32u;

var<workgroup> head: array<i32, HEAD>;
var<workgroup> reduced: atomic<u32>;
var<workgroup> low_squares: atomic<u32>;
var<workgroup> high_squares: atomic<u32>;
var<workgroup> top_of: atomic<i32>;

fn peak_of(thread: u32) -> u32 {
    workgroupBarrier();
    if thread == 0u {
        atomicStore(&reduced, 0u);
    }
    workgroupBarrier();
    for (var i = thread; i < HEAD; i += THREADS) {
        atomicMax(&reduced, u32(abs(head[i])));
    }
    workgroupBarrier();
    return atomicLoad(&reduced);
}

// `numeric::norm::settle`: brings the head to 15 bits; returns the exponent taken out.
fn settle(thread: u32) -> i32 {
    let peak = peak_of(thread);
    if peak == 0u {
        return 0;
    }
    let n = i32(bit_length_32(peak)) - 15;
    for (var i = thread; i < HEAD; i += THREADS) {
        if n > 0 {
            head[i] = clamp(round_shift_32(head[i], u32(n)), -32767, 32767);
        } else {
            head[i] = head[i] << u32(-n);
        }
    }
    workgroupBarrier();
    return n;
}

fn high(x: u32, y: u32) -> u32 {
    return (x * y) >> 16u;
}

fn quarter_sine(x: u32) -> i32 {
    let square = high(x, x);
    var t = 5208u - high(square, 285u);
    t = 42330u - high(square, t);
    t = 37407u - high(square, t);
    let sine = x + high(x, t);
    return i32(min((sine + 1u) >> 1u, 32767u));
}

fn sine_cosine(phase: u32) -> vec2<i32> {
    let x = (phase >> 14u) & 0xffffu;
    let rising = quarter_sine(x);
    let falling = quarter_sine(min(65536u - x, 65535u));
    switch phase >> 30u {
        case 0u: { return vec2(rising, falling); }
        case 1u: { return vec2(falling, -rising); }
        case 2u: { return vec2(-rising, -falling); }
        default: { return vec2(-falling, rising); }
    }
}

fn byte_of(i: u32, inverse: i32, is_zero: bool) -> u32 {
    let q = (head[i] * inverse + (1i << 21u)) >> 22u;
    return select(u32(q) & 255u, 0u, is_zero);
}

// Puts `bits` in the place of those under `mask`; others write other bits of the word.
fn put(at: u32, mask: u32, bits: u32) {
    atomicAnd(&cache[at], ~mask);
    atomicOr(&cache[at], bits & mask);
}

@compute @workgroup_size(64)
fn heads(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let h = id.x;
    let token = id.y;
    let position = places[2u * token];
    var kind = 0u;
    var start = h * HEAD;
    var own = h;
    if h >= HEADS + KV_HEADS {
        kind = 2u;
        own = h - HEADS - KV_HEADS;
        start = VALUE_START + own * HEAD;
    } else if h >= HEADS {
        kind = 1u;
        own = h - HEADS;
        start = KEY_START + own * HEAD;
    }
    // Gather.
    let row = BLOCK * QKV_GROUPS * token;
    var top = ZERO;
    for (var g = start / 32u; g < (start + HEAD + 31u) / 32u; g++) {
        top = max(top, i32(qkv[row + BLOCK * g + 16u]));
    }
    for (var i = thread; i < HEAD; i += THREADS) {
        let n = start + i;
        let at = row + BLOCK * (n / 32u);
        let word = qkv[at + (n % 32u) / 2u];
        let m = select(low_half(word), high_half(word), n % 2u == 1u);
        head[i] = round_shift_32(m, u32(top - i32(qkv[at + 16u])));
    }
    workgroupBarrier();
    var e = top;
    var factor = Positive(65536u, -16);
    if kind < 2u {
        if HAS_NORMS {
            if thread == 0u {
                atomicStore(&low_squares, 0u);
                atomicStore(&high_squares, 0u);
            }
            workgroupBarrier();
            for (var i = thread; i < HEAD; i += THREADS) {
                let square = u32(head[i] * head[i]);
                atomicAdd(&low_squares, square & 0xffffu);
                atomicAdd(&high_squares, square >> 16u);
            }
            workgroupBarrier();
            let sum = add(Wide(atomicLoad(&low_squares), 0u),
                shift_up(Wide(atomicLoad(&high_squares), 0u), 16u));
            let mean = times(positive(sum, 2 * e), Positive(PER_COUNT_M, PER_COUNT_E));
            factor = inverse_square_root(plus(mean, Positive(EPSILON_M, EPSILON_E)));
            let weights = kind * WEIGHT_GROUPS * BLOCK;
            var weight_top = ZERO;
            for (var g = 0u; g < WEIGHT_GROUPS; g++) {
                weight_top = max(weight_top, i32(norms[weights + BLOCK * g + 16u]));
            }
            workgroupBarrier();
            for (var i = thread; i < HEAD; i += THREADS) {
                let at = weights + BLOCK * (i / 32u);
                let word = norms[at + (i % 32u) / 2u];
                let w = select(low_half(word), high_half(word), i % 2u == 1u);
                head[i] = round_shift_32(head[i] * w, u32(weight_top - i32(norms[at + 16u])));
            }
            e += weight_top;
            e += settle(thread);
        }
        // Rotation.
        workgroupBarrier();
        for (var i = thread; i < PAIRS; i += THREADS) {
            let sc = sine_cosine(increments[i] * position);
            var u = 2u * i;
            var v = 2u * i + 1u;
            if PAIRED_BY_HALVES {
                u = i;
                v = i + PAIRS;
            }
            let x = head[u];
            let y = head[v];
            head[u] = (x * sc.y - y * sc.x + (1i << 14u)) >> 15u;
            head[v] = (x * sc.x + y * sc.y + (1i << 14u)) >> 15u;
        }
        workgroupBarrier();
        // Hadamard.
        for (var step = 1u; step < HADAMARD; step <<= 1u) {
            for (var i = thread; i < HEAD / 2u; i += THREADS) {
                let a = (i / step) * 2u * step + i % step;
                let x = head[a];
                let y = head[a + step];
                head[a] = x + y;
                head[a + step] = x - y;
            }
            workgroupBarrier();
        }
    }
    e += settle(thread);
    let peak = peak_of(thread);
    // `head_scale`.
    var m = 0u;
    var scale_e = 0;
    if peak != 0u {
        // At most 32767 * 2^16.
        let product = peak * factor.m;
        let down = i32(bit_length_32(product)) - 15;
        m = product >> u32(down);
        scale_e = e + factor.e + down;
        if scale_e > 100 {
            m = 32767u;
            scale_e = 100;
        } else if scale_e < -100 {
            m = 0u;
            scale_e = 0;
        }
    }
    let inverse = (127 << 22u) / i32(max(peak, 1u));
    let is_zero = m == 0u;
    if kind == 0u {
        let at = (token * HEADS + own) * (HEAD / 4u + 2u);
        for (var w = thread; w < HEAD / 4u; w += THREADS) {
            queries[at + w] = byte_of(4u * w, inverse, is_zero)
                | (byte_of(4u * w + 1u, inverse, is_zero) << 8u)
                | (byte_of(4u * w + 2u, inverse, is_zero) << 16u)
                | (byte_of(4u * w + 3u, inverse, is_zero) << 24u);
        }
        if thread == 0u {
            // `QueryFactor::new`.
            let product = m * SCORE_M;
            var qm = 0u;
            var qe = 0;
            if product != 0u {
                let down = bit_length_32(product) - 15u;
                qm = product >> down;
                qe = scale_e + SCORE_E + i32(down);
            }
            queries[at + HEAD / 4u] = qm;
            queries[at + HEAD / 4u + 1u] = u32(qe);
        }
        return;
    }
    let page = places[places[2u * token + 1u] + position / PAGE];
    let part = (page * KV_HEADS + own) * (16u * HEAD + 48u);
    let at = position % PAGE;
    let scales = part + 16u * HEAD;
    if kind == 1u {
        let keys = part + ((at - at % 8u) * HEAD) / 4u + at % 8u;
        for (var w = thread; w < HEAD / 4u; w += THREADS) {
            let word = byte_of(4u * w, inverse, is_zero)
                | (byte_of(4u * w + 1u, inverse, is_zero) << 8u)
                | (byte_of(4u * w + 2u, inverse, is_zero) << 16u)
                | (byte_of(4u * w + 3u, inverse, is_zero) << 24u);
            atomicStore(&cache[keys + 8u * w], word);
        }
    } else {
        let values = part + 8u * HEAD + (at / 2u) * (HEAD / 2u);
        let up = 8u * (at % 2u);
        for (var w = thread; w < HEAD / 2u; w += THREADS) {
            let word = (byte_of(2u * w, inverse, is_zero)
                | (byte_of(2u * w + 1u, inverse, is_zero) << 16u)) << up;
            put(values + w, 0x00ff00ffu << up, word);
        }
    }
    if thread == 0u {
        let of_values = kind - 1u;
        put(scales + 16u * of_values + at / 2u, 0xffffu << (16u * (at % 2u)), m << (16u * (at % 2u)));
        put(scales + 32u + 8u * of_values + at / 4u, 255u << (8u * (at % 4u)),
            (u32(scale_e) & 255u) << (8u * (at % 4u)));
    }
}
