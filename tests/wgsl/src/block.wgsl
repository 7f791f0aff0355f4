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
