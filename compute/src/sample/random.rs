//! Chance without state: a number for each seed and position.

/// Philox 4x32 with 10 rounds (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3",
/// 2011): mixes a counter under a key.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xd251_1f53;
        let second = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// A number from 0 to 1, never 1, that is the same whenever it is asked for.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let halves = |n: u64| [n as u32, (n >> 32) as u32];
    let [low, high] = halves(position);
    let mixed = philox([low, high, 0, 0], halves(seed));
    let bits = u64::from(mixed[0]) << 32 | u64::from(mixed[1]);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_its_authors_answers() {
        let ones = u32::MAX;
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn chance_is_even() {
        let mut sums = [0; 16];
        for position in 0..16_000 {
            let x = uniform(7, position);
            assert!((0.0..1.0).contains(&x));
            sums[(x * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: above 37.7 once in a thousand.
        let chi: f64 = sums.iter().map(|n| f64::from((n - 1_000) * (n - 1_000)) / 1_000.0).sum();
        assert!(chi < 37.7, "{chi} {sums:?}");
    }
}
