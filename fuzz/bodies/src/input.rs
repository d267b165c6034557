//! Bytes as a source of choices. When they are used up, every choice is the first one, so each
//! prefix of an input is an input too.

/// The unused rest of an input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    pub const fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Whether all bytes are used.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Up to `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        let taken = self.bytes(8);
        let mut word = [0; 8];
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// True once in `often`.
    pub fn rarely(&mut self, often: usize) -> bool {
        self.below(often) == often - 1
    }

    /// A number that is likely to be interesting: mostly small, or at the edge of a field's range.
    pub fn number(&mut self) -> u64 {
        let tag = self.byte();
        let low = u32::from(tag & 63);
        match tag {
            0..0xa0 => u64::from(tag),
            0xa0..0xc0 => u64::from(u16::from_le_bytes([self.byte(), self.byte()])),
            0xc0..0xe0 => 1 << (low * 2),
            0xe0..0xf8 => (1_u64 << ((low - 32) * 2 + 8)).wrapping_sub(u64::from(self.byte() & 3)),
            0xf8 => u64::MAX - u64::from(self.byte()),
            _ => self.word(),
        }
    }

    /// One of these; `None` if there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { from.get(self.below(from.len().min(256))).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_up_input_gives_zeros() {
        let mut input = Input::new(&[7, 0xff, 1]);
        assert_eq!((input.byte(), input.number()), (7, 1));
        assert!(input.is_empty());
        assert_eq!((input.byte(), input.word(), input.number(), input.below(5)), (0, 0, 0, 0));
        assert_eq!(input.pick::<u8>(&[]), None);
    }

    #[test]
    fn every_tag_of_a_number_is_fine() {
        for tag in 0..=u8::MAX {
            Input::new(&[tag, 3, 0xff, 0xff]).number();
        }
    }
}
