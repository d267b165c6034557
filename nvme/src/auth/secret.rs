//! Secrets of DH-HMAC-CHAP as people write them: `DHHC-1:hh:base64:`.

use core::fmt;

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use super::digest::{Digest, Hash};

/// What comes behind the name in the code that makes a key of a secret.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
/// The bytes of a checksum.
const CHECKSUM: usize = 4;
/// The longest text of a secret, for 64 bytes.
const MOST_TEXT: usize = 92;

/// A secret (fabrics 8.13.5.8). It is wiped when it is dropped, and not shown.
#[derive(Clone)]
pub struct Secret {
    /// The hash function that makes a key of it; `None` if it is the key.
    hash: Option<Hash>,
    key: Digest,
}

/// Why a text is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// It is not of the form `DHHC-1:hh:base64:`.
    Form,
    /// Its hash function is none of 00 to 03.
    Hash,
    /// What should be base64 is not.
    Base64,
    /// It has not 32, 48 or 64 bytes.
    Length,
    /// Its checksum is wrong: something is mistyped.
    Checksum,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SecretError::Form => "a key is not of the form DHHC-1:hh:base64:",
            SecretError::Hash => "the hash function of a key is none of 00, 01, 02 and 03",
            SecretError::Base64 => "a key has characters that are not base64",
            SecretError::Length => "a key has not 32, 48 or 64 bytes",
            SecretError::Checksum => "the checksum of a key is wrong",
        })
    }
}

impl core::error::Error for SecretError {}

impl Secret {
    /// The secret that a text is.
    ///
    /// # Errors
    ///
    /// Why it is none. The error does not hold the text.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let rest = text.strip_prefix("DHHC-1:").ok_or(SecretError::Form)?;
        let rest = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let (hash, encoded) = rest.split_once(':').ok_or(SecretError::Form)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let mut room = Zeroizing::new([0; 3 * MOST_TEXT / 4]);
        if encoded.len() > MOST_TEXT {
            return Err(SecretError::Length);
        }
        let decoded = Base64::decode(encoded, &mut room[..]).map_err(|_| SecretError::Base64)?;
        let (key, sum) = decoded.split_last_chunk::<CHECKSUM>().ok_or(SecretError::Length)?;
        if !matches!(key.len(), 32 | 48 | 64) {
            return Err(SecretError::Length);
        }
        if crc32fast::hash(key) != u32::from_le_bytes(*sum) {
            return Err(SecretError::Checksum);
        }
        Ok(Secret { hash, key: Digest::new(key) })
    }

    /// The key that it stands for, on behalf of the host or the subsystem with this name.
    pub fn key(&self, nqn: &str) -> Digest {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.mac(self.key.bytes(), &[nqn.as_bytes(), PURPOSE]),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;

    /// Made by Python's base64, zlib, hmac and hashlib of the bytes 0, 1, 2, …
    const SECRETS: [&str; 4] = [
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
        "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7\
         PD0+P4zODhA=:",
    ];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_are_those_that_python_makes() {
        let keys = SECRETS.map(|text| Secret::parse(text).expect("a secret").key("nqn.2026-01.org.x:host"));
        for (key, expected) in keys.iter().zip(KEYS) {
            assert_eq!(hex(key.bytes()), expected);
        }
    }

    const KEYS: [&str; 4] = [
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "a83b2947b2d7ddb38fc07cacd68faa028866ad57d8425a31cc53d61b58002328",
        "6556ce94876b55b0ae45cb3e0f4ba745d9e769abe341d81f2a1e90a8a3c1c7abbd2d848c03801471d9db2efa71c497e1",
        "a38edd68c1e9f1a4a8da7551970548cf015dc0ec155dfaf6d8d8fe691af155f8\
         f275951d9199205b05432af3c5dde1364285ff8239bf17e36120051b19914218",
    ];

    #[test]
    fn texts_that_are_no_secret_say_why() {
        let good = SECRETS[0];
        assert_eq!(good.len(), 59);
        for (text, why) in [
            ("", SecretError::Form),
            ("DHHC-1:00:", SecretError::Form),
            (&good[1..], SecretError::Form),
            (&good[..58], SecretError::Form),
            (&good.replace(":00:", ":04:"), SecretError::Hash),
            (&good.replace(":00:", "::"), SecretError::Hash),
            (&good.replace("AAEC", "A*EC"), SecretError::Base64),
            (&good.replace("AAECA", "AAEC"), SecretError::Base64),
            ("DHHC-1:00::", SecretError::Length),
            ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODw==:", SecretError::Length),
            (&format!("DHHC-1:00:{}:", "A".repeat(108)), SecretError::Length),
            (&good.replace("AAECA", "AAECB"), SecretError::Checksum),
        ] {
            assert_eq!(Secret::parse(text).err(), Some(why), "{text}");
        }
    }

    #[test]
    fn neither_a_secret_nor_an_error_shows_the_text() {
        let secret = Secret::parse(SECRETS[3]).expect("a secret");
        assert_eq!(format!("{secret:?} {:?}", secret.key("x")), "Secret Digest(64 bytes)");
    }
}
