// Integers of 64 bits in two words of 32: x is the lower, y the upper, in two's complement.
// WGSL has no i64. Integer `+`, `-` and `*` wrap in WGSL, `>>` of an i32 copies the sign, and a
// shift must stay below 32, which every caller here sees to.

alias Wide = vec2<u32>;

fn from_i32(x: i32) -> Wide {
    return Wide(u32(x), u32(x >> 31u));
}

// 4 operations.
fn add(a: Wide, b: Wide) -> Wide {
    let low = a.x + b.x;
    return Wide(low, a.y + b.y + u32(low < a.x));
}

fn negated(x: Wide) -> Wide {
    return add(~x, Wide(1u, 0u));
}

// high * 2^shift + low, for 0 < shift < 32.
fn from_limbs(high: i32, low: i32, shift: u32) -> Wide {
    return add(Wide(u32(high) << shift, u32(high >> (32u - shift))), from_i32(low));
}

// x * 2^n, n < 64.
fn shift_up(x: Wide, n: u32) -> Wide {
    if n == 0u {
        return x;
    }
    if n < 32u {
        return Wide(x.x << n, (x.y << n) | (x.x >> (32u - n)));
    }
    return Wide(0u, x.x << (n - 32u));
}

// floor(x / 2^n), n < 64, with sign.
fn shift_down(x: Wide, n: u32) -> Wide {
    let upper = i32(x.y);
    if n == 0u {
        return x;
    }
    if n < 32u {
        return Wide((x.x >> n) | (x.y << (32u - n)), u32(upper >> n));
    }
    return Wide(u32(upper >> (n - 32u)), u32(upper >> 31u));
}

// `numeric::bits::round_shift`: to nearest, ties up, 0 from n = 63 on. About 12 operations.
fn round_shift(x: Wide, n: u32) -> Wide {
    if n == 0u {
        return x;
    }
    if n > 62u {
        return Wide(0u, 0u);
    }
    return shift_down(add(x, shift_up(Wide(1u, 0u), n - 1u)), n);
}

// The whole product of two words, from halves of 16 bits. 4 products and about 14 others; each
// sum below is at most (2^16 - 1)^2 + 2 (2^16 - 1) = 2^32 - 1.
fn mul_wide(a: u32, b: u32) -> Wide {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let p00 = a0 * b0;
    let p01 = a0 * b1 + (p00 >> 16u);
    let p10 = a1 * b0 + (p01 & 0xffffu);
    return Wide((p10 << 16u) | (p00 & 0xffffu), a1 * b1 + (p01 >> 16u) + (p10 >> 16u));
}

fn bit_length_32(x: u32) -> u32 {
    return 32u - countLeadingZeros(x);
}

fn bit_length(x: Wide) -> u32 {
    return select(bit_length_32(x.x), 32u + bit_length_32(x.y), x.y != 0u);
}
