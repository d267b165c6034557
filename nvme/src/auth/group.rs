//! The groups of DH-HMAC-CHAP: none, or a group of RFC 7919 whose generator is 2.

use core::fmt;

/// A DH group (fabrics 8.13.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// No Diffie-Hellman exchange.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

/// Bytes of a value of the largest group.
pub const LONGEST: usize = 1024;

impl Group {
    /// All groups, in the order of their numbers.
    pub const ALL: [Group; 6] = [
        Group::Null,
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
    ];

    /// The group with this number.
    pub fn from_number(number: u8) -> Option<Group> {
        Group::ALL.get(usize::from(number)).copied()
    }

    /// The group with this name, as RFC 7919 writes it, or `null`.
    pub fn from_name(name: &str) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Ffdhe2048 => "ffdhe2048",
            Group::Ffdhe3072 => "ffdhe3072",
            Group::Ffdhe4096 => "ffdhe4096",
            Group::Ffdhe6144 => "ffdhe6144",
            Group::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bytes of a value (DHVLEN); 0 without an exchange.
    pub const fn len(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => LONGEST,
        }
    }

    /// Whether there is no exchange.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Bytes of a secret exponent: twice the group's strength, as RFC 7919 (5.2) advises, rounded
    /// up to words.
    pub const fn exponent_len(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 32,
            Group::Ffdhe3072 => 40,
            Group::Ffdhe4096 => 48,
            Group::Ffdhe6144 => 48,
            Group::Ffdhe8192 => 56,
        }
    }

    /// Writes the prime into the first bytes of `into`, big-endian, and returns these bytes.
    ///
    /// A prime of `b` bits is 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1 (RFC 7919, A): 64
    /// ones, the digits of e with X - 1 added to them, and 64 ones.
    pub fn prime(self, into: &mut [u8; LONGEST]) -> &[u8] {
        let prime = &mut into[..self.len()];
        let Some(middle) = self.len().checked_sub(16) else { return prime };
        prime.fill(0xff);
        let digits = &mut prime[8..8 + middle];
        digits.copy_from_slice(&E[..middle]);
        let x: u32 = match self {
            Group::Null => 1,
            Group::Ffdhe2048 => 560_316,
            Group::Ffdhe3072 => 2_625_351,
            Group::Ffdhe4096 => 5_736_041,
            Group::Ffdhe6144 => 15_705_020,
            Group::Ffdhe8192 => 10_965_728,
        };
        let mut carry = x - 1;
        for digit in digits.iter_mut().rev() {
            carry += u32::from(*digit);
            *digit = carry as u8;
            carry >>= 8;
        }
        prime
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// floor(2^8062 e), big-endian.
const E: [u8; LONGEST - 16] =
    hex(b"adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
     f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
     e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
     1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
     8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
     de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
     b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
     1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
     ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
     6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
     4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
     917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
     b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
     94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
     62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
     3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
     fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
     29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
     51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
     a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
     2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d");

/// The bytes that hexadecimal digits stand for.
const fn hex<const N: usize>(text: &[u8]) -> [u8; N] {
    const fn digit(digit: u8) -> u8 {
        if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 }
    }
    assert!(text.len() == 2 * N);
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = digit(text[2 * at]) << 4 | digit(text[2 * at + 1]);
        at += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// The digests of the primes, which Python computed by RFC 7919's formula from e as a series;
    /// Miller-Rabin tests found p and (p - 1) / 2 to be primes.
    #[test]
    fn the_primes_are_those_of_rfc_7919() {
        for (group, digest) in [
            (Group::Ffdhe2048, "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966"),
            (Group::Ffdhe3072, "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17"),
            (Group::Ffdhe4096, "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e"),
            (Group::Ffdhe6144, "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7"),
            (Group::Ffdhe8192, "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833"),
        ] {
            let mut room = [0; LONGEST];
            let prime = group.prime(&mut room);
            assert_eq!(prime.len(), group.len());
            assert_eq!(Sha256::digest(prime)[..], hex::<32>(digest.as_bytes())[..], "{group}");
        }
        assert_eq!(Group::Null.prime(&mut [0; LONGEST]), []);
    }

    #[test]
    fn groups_have_numbers_and_names() {
        for (number, group) in (0..).zip(Group::ALL) {
            assert_eq!(group as u8, number);
            assert_eq!(Group::from_number(number), Some(group));
            assert_eq!(Group::from_name(group.name()), Some(group));
        }
        assert_eq!((Group::from_number(6), Group::from_name("ffdhe1024")), (None, None));
    }
}
