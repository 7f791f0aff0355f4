// Matrices times quantised vectors: exact sums, settled to 30 bits.
//
// A workgroup computes 32 rows (four tiles of eight) for COLS tokens. In a tile of 64 threads eight
// share a row and take every eighth block of 32 columns; eight neighbours hold the same block of the
// tile's eight rows, whose words lie side by side.
//
// Bounds. A block's dot times its scale may need 35 bits (types of 8 bits), so the dot is split:
// dot = 1024 h + l with 0 <= l < 1024, |scale h| <= 32767 * 508 = 16,645,636 and
// |scale l| <= 32767 * 1023 = 33,520,641. Both sums, and those of minima (products below 2^30, in
// halves of 16 bits), are emptied into 64 bits after 32 blocks, which are at most 64 spans:
// 64 * 33,520,641 < 2^31. Floats have dots of 27 bits and are added in 64 bits at once.

struct Step {
    tokens: u32,
    unused_1: u32,
    unused_2: u32,
    unused_3: u32,
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> acts: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
// For each matrix a head of INFO words, then exponents of rows and biases.
@group(0) @binding(3) var<storage, read> info: array<u32>;

const INFO: u32 = 12u;
const ROWS: u32 = 0u;
const UNITS: u32 = 1u;
const BLOCKS: u32 = 2u;
const ACT_BLOCKS: u32 = 3u;
const TOP: u32 = 4u;
const MIN_TOP: u32 = 5u;
const EXPONENTS: u32 = 6u;
const BIAS: u32 = 7u;
const GROUPS: u32 = 8u;
const OUT_GROUP: u32 = 9u;
const OUT_GROUPS: u32 = 10u;

// A vector: its own words, then for each block a and sums, half sums, t, half t; then q.
const TOKEN: u32 = 12u;
const BESIDE: u32 = 4u;
const T_EXPONENT: u32 = 1u;
const HALF_T_EXPONENT: u32 = 2u;
const BOUND: u32 = 3u;
const T_BOUND: u32 = 5u;
const HALF_T_BOUND: u32 = 6u;

const SHARE: u32 = 8u;
const FOLD: u32 = 32u;

// Running sums, in limbs that are emptied before they can wrap.
struct Sums {
    dot_high: i32,
    dot_low: i32,
    min_high: i32,
    min_low: i32,
    dot: Wide,
    min: Wide,
}

var<private> sums: array<Sums, COLS>;
var<workgroup> dots: array<Wide, 256>;
var<workgroup> mins: array<Wide, 256>;
// Results by token and row.
var<workgroup> settled: array<i32, 256>;
// For each token the unit's exponent, and the shifts of dots and minima.
var<workgroup> units: array<vec3<i32>, 8>;

fn clear() {
    for (var c = 0u; c < COLS; c++) {
        sums[c] = Sums();
    }
}

fn add_dot(c: u32, scale: i32, dot: i32) {
    sums[c].dot_high += scale * (dot >> 10u);
    sums[c].dot_low += scale * (dot & 1023);
}

fn add_wide_dot(c: u32, scale: i32, dot: i32) {
    let product = mul_wide(u32(abs(scale)), u32(abs(dot)));
    if (scale < 0) != (dot < 0) {
        sums[c].dot = add(sums[c].dot, negated(product));
    } else {
        sums[c].dot = add(sums[c].dot, product);
    }
}

fn add_min(c: u32, product: i32) {
    sums[c].min_high += product >> 16u;
    sums[c].min_low += product & 0xffff;
}

fn fold() {
    for (var c = 0u; c < COLS; c++) {
        let s = sums[c];
        sums[c].dot = add(s.dot, from_limbs(s.dot_high, s.dot_low, 10u));
        sums[c].min = add(s.min, from_limbs(s.min_high, s.min_low, 16u));
        sums[c].dot_high = 0;
        sums[c].dot_low = 0;
        sums[c].min_high = 0;
        sums[c].min_low = 0;
    }
}

fn spare(bound: Wide, times: u32) -> i32 {
    let product = add(mul_wide(bound.x, times), Wide(0u, bound.y * times));
    return max(i32(bit_length(product)) - 29, 0);
}

// `numeric::matmul::Unit::new` for token `at` of the vectors.
fn unit_of(head: u32, at: u32, q_max: u32, has_min: bool, by_halves: bool) -> vec3<i32> {
    let exponent = i32(acts[at]) + 15;
    let bound = Wide(acts[at + BOUND], acts[at + BOUND + 1u]);
    let t_exponent = i32(acts[at + select(T_EXPONENT, HALF_T_EXPONENT, by_halves)]);
    var unit = exponent + i32(info[head + TOP]) + spare(bound, q_max);
    if has_min {
        let t_bound = acts[at + select(T_BOUND, HALF_T_BOUND, by_halves)];
        let min_up = spare(Wide(t_bound, 0u), 32767u);
        unit = max(unit, t_exponent + i32(info[head + MIN_TOP]) + min_up);
    }
    return vec3(unit, unit - exponent, unit - t_exponent);
}

// The sums of all threads of a row, settled: `settled` holds 32 rows of each token.
fn settle(head: u32, group: u32, thread: u32) {
    for (var c = 0u; c < COLS; c++) {
        workgroupBarrier();
        dots[thread] = sums[c].dot;
        mins[thread] = sums[c].min;
        workgroupBarrier();
        if thread < 32u {
            var dot = Wide(0u, 0u);
            var min = Wide(0u, 0u);
            for (var i = 0u; i < SHARE; i++) {
                let at = (thread / 8u) * 64u + 8u * i + thread % 8u;
                dot = add(dot, dots[at]);
                min = add(min, mins[at]);
            }
            let row = 32u * group + thread;
            var z = 0i;
            if row < info[head + ROWS] {
                let exponents = info[head + EXPONENTS] + 2u * row;
                // A shift that is negative (types without minima) is huge as u32 and gives 0, as in
                // the definition. The sum is at most 2^30 by the choice of the unit.
                z = i32(round_shift(dot, u32(units[c].y - i32(info[exponents]))).x
                    + round_shift(min, u32(units[c].z - i32(info[exponents + 1u]))).x);
            }
            settled[32u * c + thread] = z;
        }
    }
    workgroupBarrier();
}

fn peak_of(c: u32) -> u32 {
    var peak = 0u;
    for (var i = 0u; i < 32u; i++) {
        peak = max(peak, u32(abs(settled[32u * c + i])));
    }
    return peak;
}

// Writes block `at` of `out`: thread `i` of 32 brings one mantissa. All threads come here.
var<workgroup> mantissas: array<i32, 256>;
fn write_block(at: u32, c: u32, i: u32, m: i32, e: i32, is_there: bool) {
    workgroupBarrier();
    mantissas[32u * c + i] = m;
    workgroupBarrier();
    if is_there {
        if i < 16u {
            out[BLOCK * at + i] = pair(mantissas[32u * c + 2u * i], mantissas[32u * c + 2u * i + 1u]);
        }
        if i == 16u {
            out[BLOCK * at + 16u] = u32(e);
        }
    }
}
