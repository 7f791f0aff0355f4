// Long positive numbers and what norms make of them: `numeric::scalar`.

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
    let moved = select(0u, small.m >> u32(min(down, 31)), down < 32);
    return positive(add(Wide(big.m, 0u), Wide(moved, 0u)), big.e);
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
