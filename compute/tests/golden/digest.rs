//! Numbers from a seed, and one number for many.

use compute::numeric::block::{BlockVec, GROUP};

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    /// 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A signed number of `bits` bits: the upper ones of the next 64.
    pub fn signed(&mut self, bits: u32) -> i64 {
        self.next() as i64 >> (64 - bits)
    }

    /// Numbers for one block, 30 bits each.
    pub fn wide(&mut self) -> [i32; GROUP] {
        std::array::from_fn(|_| self.signed(30) as i32)
    }

    /// A row of `groups` block floats: `wide`, encoded in unit `-20 + signed(spread)`.
    pub fn blocks(&mut self, groups: usize, spread: u32) -> BlockVec {
        let mut row = BlockVec::zeros(groups * GROUP);
        for g in 0..groups {
            let z = self.wide();
            let unit = -20 + self.signed(spread) as i32;
            row.view_mut().encode(g, &z, unit);
        }
        row
    }
}

/// FNV-1a of 64 bits over numbers, each as 8 bytes, lowest first.
pub struct Digest(u64);

impl Digest {
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn add(&mut self, x: impl Into<i64>) {
        for byte in x.into().to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub fn all<T: Copy + Into<i64>>(&mut self, xs: &[T]) {
        xs.iter().for_each(|&x| self.add(x));
    }

    pub fn row(&mut self, row: &BlockVec) {
        self.all(&row.m);
        self.all(&row.e);
    }

    /// 16 hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[test]
fn dice_and_digest_are_the_published_ones() {
    // SplitMix64's first number from seed 1234567, and FNV-1a of eight zero bytes.
    assert_eq!(Dice(1_234_567).next(), 6_457_827_717_110_365_317);
    let mut digest = Digest::new();
    digest.add(0i64);
    assert_eq!(digest.text(), "a8c7f832281a39c5");
}
