
// Gate and up, bent and multiplied: `numeric::functions::gates` and the product of both.

var<workgroup> gates: array<i32, 256>;
var<workgroup> gate_units: array<i32, 8>;

fn high(x: u32, y: u32) -> u32 {
    return (x * y) >> 16u;
}

fn exp2_fraction(f: u32) -> u32 {
    var y = 3443u - high(f, 428u);
    y = 15658u - high(f, y);
    y = 45410u - high(f, y);
    return 65535u - high(f, y);
}

// x * 2^n, cut towards zero, at most `most`.
fn shifted(x: u32, n: i32, most: u32) -> u32 {
    if n <= 0 {
        return min(x >> u32(min(-n, 31)), most);
    }
    let up = u32(min(n, 31));
    return select(x << up, most, x > (most >> up));
}

const ARGUMENT_MAX: u32 = 2097151u;

fn argument(x: u32, e: i32) -> u32 {
    if GELU {
        let t = shifted(x, e + 12, 32767u);
        let square = (t * t) >> 12u;
        let slope = 9430u + ((3373u * square) >> 15u);
        return min((t * slope) >> 8u, ARGUMENT_MAX);
    }
    return shifted(x * 47274u, e + 1, ARGUMENT_MAX);
}

// The gate of x * 2^e, in units of 2^(e - 16).
fn gate(x: i32, e: i32) -> i32 {
    let size = u32(abs(x));
    let t = argument(size, e);
    let whole = t >> 16u;
    let part = exp2_fraction(t & 0xffffu);
    let denominator = ((1u << 24u) + ((part << 8u) >> whole)) >> 9u;
    let reciprocal = 0x80000000u / denominator;
    if x < 0 {
        return -i32((size * ((part * reciprocal) >> 16u)) >> whole);
    }
    return i32(size * reciprocal);
}

@compute @workgroup_size(256)
fn gated(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = COLS * id.y;
    let count = min(COLS, step.tokens - first);
    let group = id.x;
    product_0(group, thread, first, count);
    gates[thread] = settled[thread];
    if thread < COLS {
        gate_units[thread] = units[thread].x;
    }
    product_1(group, thread, first, count);
    let c = thread / 32u;
    let i = thread % 32u;
    let own = c < count && c < COLS;
    let slot = select(0u, c, own);
    let up_peak = peak_of(slot);
    let um = mantissa(settled[32u * slot + i], up_peak, units[slot].x);
    let ue = block_exponent(up_peak, units[slot].x);
    var gate_peak = 0u;
    for (var j = 0u; j < 32u; j++) {
        gate_peak = max(gate_peak, u32(abs(gates[32u * slot + j])));
    }
    let gm = mantissa(gates[32u * slot + i], gate_peak, gate_units[slot]);
    let ge = block_exponent(gate_peak, gate_units[slot]);
    workgroupBarrier();
    if own {
        settled[32u * slot + i] = gate(gm, ge) >> 1u;
    }
    workgroupBarrier();
    let bent_peak = peak_of(slot);
    let bm = mantissa(settled[32u * slot + i], bent_peak, ge - 15);
    let be = block_exponent(bent_peak, ge - 15);
    workgroupBarrier();
    if own {
        settled[32u * slot + i] = bm * um;
    }
    workgroupBarrier();
    let peak = peak_of(slot);
    let at = (first + slot) * info[OUT_GROUPS] + group;
    write_block(at, slot, i, mantissa(settled[32u * slot + i], peak, be + ue),
        block_exponent(peak, be + ue), own);
}
