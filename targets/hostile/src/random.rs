//! Random numbers that a seed decides.

/// A pseudo-random sequence (splitmix64).
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// A number below `bound`, which is not 0.
    pub const fn small(&mut self, bound: u32) -> u32 {
        self.below(bound as u64) as u32
    }

    /// True once in `often`.
    pub const fn rarely(&mut self, often: u64) -> bool {
        self.below(often) == 0
    }
}
