//! Random numbers that a seed decides: for tests and simulations, and where numbers only have to
//! differ. They are no secrets.

/// A pseudo-random sequence (splitmix64).
#[derive(Clone, Debug)]
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

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_the_sequence_of_splitmix64() {
        // The first numbers of the reference implementation (Vigna, 2015).
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.word(), random.word(), random.word()], expected);
    }

    #[test]
    fn numbers_are_below_their_bound_and_take_each_value() {
        let mut random = Random::new(5);
        let mut seen = [0; 3];
        for _ in 0..300 {
            seen[random.small(3) as usize] += 1;
            assert!(random.below(7) < 7);
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        let rare = (0..1000).filter(|_| random.rarely(10)).count();
        assert!((50..200).contains(&rare), "{rare}");
        assert!(random.rarely(1));
    }
}
