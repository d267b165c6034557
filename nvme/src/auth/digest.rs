//! The hash functions of DH-HMAC-CHAP, and message authentication codes by them.

use core::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A hash function (fabrics 8.13.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All hash functions, in the order of their numbers.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// The hash function with this number.
    pub fn from_number(number: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|&hash| hash as u8 == number)
    }

    /// The hash function with this name: `sha256`, `sha384` or `sha512`.
    pub fn from_name(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        }
    }

    /// Bytes of a digest.
    pub const fn len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Whether a digest is empty, which none is.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The digest of some bytes.
    pub fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Hash::Sha256 => Digest::new(&Sha256::digest(bytes)),
            Hash::Sha384 => Digest::new(&Sha384::digest(bytes)),
            Hash::Sha512 => Digest::new(&Sha512::digest(bytes)),
        }
    }

    /// The message authentication code (HMAC) of a message in parts.
    pub fn mac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        macro_rules! by {
            ($hash:ty) => {
                match Hmac::<$hash>::new_from_slice(key) {
                    Ok(mut mac) => {
                        parts.iter().for_each(|part| mac.update(part));
                        Digest::new(&mac.finalize().into_bytes())
                    }
                    // HMAC takes keys of any length.
                    Err(_) => Digest::default(),
                }
            };
        }
        match self {
            Hash::Sha256 => by!(Sha256),
            Hash::Sha384 => by!(Sha384),
            Hash::Sha512 => by!(Sha512),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Up to 64 bytes: a digest, a code or a key. They are wiped when it is dropped, and not shown.
#[derive(Clone, Default)]
pub struct Digest {
    bytes: Wiped,
    len: u8,
}

#[derive(Clone)]
struct Wiped([u8; Digest::LONGEST]);

impl Default for Wiped {
    fn default() -> Wiped {
        Wiped([0; Digest::LONGEST])
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Digest {
    /// The most bytes.
    pub const LONGEST: usize = 64;

    /// These bytes.
    ///
    /// # Panics
    ///
    /// If they are more than [`Digest::LONGEST`].
    pub fn new(bytes: &[u8]) -> Digest {
        let mut digest = Digest { len: bytes.len() as u8, ..Digest::default() };
        digest.bytes.0[..bytes.len()].copy_from_slice(bytes);
        digest
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.0[..usize::from(self.len)]
    }

    /// Whether it has these bytes. The time that this takes does not depend on them.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.bytes().ct_eq(bytes).into()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn digests_have_the_length_of_their_hash_function_and_are_not_shown() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_number(hash as u8), Some(hash));
            assert_eq!(Hash::from_name(hash.name()), Some(hash));
            assert_eq!(hash.digest(b"").bytes().len(), hash.len());
            assert_eq!(hash.mac(b"key", &[b"a", b"b"]).bytes(), hash.mac(b"key", &[b"ab"]).bytes());
            assert_eq!(format!("{:?}", hash.digest(b"")), format!("Digest({} bytes)", hash.len()));
        }
        assert_eq!((Hash::from_number(0), Hash::from_number(4), Hash::from_name("md5")), (None, None, None));
        let digest = Digest::new(b"abc");
        assert!(digest.is(b"abc") && !digest.is(b"abd") && !digest.is(b"ab") && !digest.is(b"abc\0"));
    }
}
