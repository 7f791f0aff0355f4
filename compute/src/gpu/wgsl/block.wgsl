// `numeric::block::encode`, one number at a time: the caller brings the block's largest magnitude.
// About 8 operations a number and, once a block, about 12.

const ZERO: i32 = -128;
const EXPONENT_MIN: i32 = -100;
const EXPONENT_MAX: i32 = 100;

fn block_exponent(peak: u32, unit: i32) -> i32 {
    let exponent = unit + i32(bit_length_32(peak)) - 15;
    if peak == 0u || exponent < EXPONENT_MIN {
        return ZERO;
    }
    return min(exponent, EXPONENT_MAX);
}

// The mantissa of z * 2^unit, |z| <= peak <= 2^30.
fn mantissa(z: i32, peak: u32, unit: i32) -> i32 {
    let n = i32(bit_length_32(peak)) - 15;
    let exponent = unit + n;
    if peak == 0u || exponent < EXPONENT_MIN {
        return 0;
    }
    var m: i32;
    if n > 0 {
        m = clamp((z + (1i << u32(n - 1))) >> u32(n), -32767, 32767);
    } else {
        m = z << u32(-n);
    }
    if exponent > EXPONENT_MAX {
        // 32767 * 2^16 is below 2^31.
        m = clamp(m << u32(min(exponent - EXPONENT_MAX, 16)), -32767, 32767);
    }
    return m;
}

// How block floats lie in buffers: 16 words of two mantissas each, then the exponent.
const BLOCK: u32 = 17u;

fn low_half(x: u32) -> i32 {
    return i32(x << 16u) >> 16u;
}

fn high_half(x: u32) -> i32 {
    return i32(x) >> 16u;
}

fn pair(low: i32, high: i32) -> u32 {
    return (u32(low) & 0xffffu) | (u32(high) << 16u);
}

// Signed byte `i` of a word.
fn byte(x: u32, i: u32) -> i32 {
    return i32(x << (24u - 8u * i)) >> 24u;
}

// `numeric::bits::round_shift_32`.
fn round_shift_32(x: i32, n: u32) -> i32 {
    if n == 0u {
        return x;
    }
    if n > 30u {
        return 0;
    }
    return (x + (1i << (n - 1u))) >> n;
}

// `numeric::bits::mul_q15`.
fn mul_q15(x: i32, y: i32) -> i32 {
    return (x * y + (1i << 14u)) >> 15u;
}

// (m * 2^14) / 2^down, rounded: one side of `numeric::block::add`.
fn aligned(m: i32, down: i32) -> i32 {
    if down > 29 {
        return 0;
    }
    return round_shift_32(m << 14u, u32(down));
}
