//! Numbers that an outsider cannot guess: a keyed hash of things that need not be secret.
//!
//! Identifiers that a peer sees, and by which messages prove that they belong to a connection, are
//! made of it. A peer that has seen many of them learns nothing about the next.

use alloc::sync::Arc;

use crate::Platform;

/// A key of 128 bits, for SipHash-2-4 (Aumasson and Bernstein, 2012). The default key is no secret.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret with this key: as good as the key is.
    pub const fn new(key: [u64; 2]) -> Secret {
        Secret(key)
    }

    /// A secret of the platform's entropy.
    ///
    /// Where the platform has none, the time to the nanosecond, the place of the platform in the
    /// heap and `salt` have to do. An outsider that knows the machine can guess when it started and
    /// what its heap looks like, so this keeps out only outsiders that cannot try some millions of
    /// keys.
    pub fn gather(platform: &Arc<dyn Platform>, salt: u64) -> Secret {
        let place = Arc::as_ptr(platform).addr() as u64;
        let weak = Secret([platform.now().as_nanos(), place]);
        let word = |n| platform.entropy().unwrap_or_else(|| weak.hash([salt, n]));
        Secret([word(0), word(1)])
    }

    /// A secret that is made of this one for a purpose: it shows nothing about others.
    pub const fn derive(&self, purpose: u64) -> Secret {
        Secret([self.hash([purpose, 0]), self.hash([purpose, 1])])
    }

    /// The hash of two words under this key.
    pub const fn hash(&self, message: [u64; 2]) -> u64 {
        let [k0, k1] = self.0;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        // The last block of SipHash holds the length in its upper byte: 16.
        let blocks = [message[0], message[1], 16 << 56];
        let mut at = 0;
        while at < blocks.len() {
            v[3] ^= blocks[at];
            v = round(round(v));
            v[0] ^= blocks[at];
            at += 1;
        }
        v[2] ^= 0xff;
        v = round(round(round(round(v))));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

/// SipRound.
const fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_reference_implementation() {
        // The key 00 01 .. 0f and the message 00 01 .. 0f.
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(Secret::new(words).hash(words), 0x3f2a_cc7f_57c2_9bdb);
    }
}
