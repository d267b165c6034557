//! The responses to challenges.

use super::digest::{Digest, Hash};

/// What both responses of an exchange are about (fabrics 8.13.5.4 and 8.13.5.5).
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'a> {
    /// The hash function.
    pub hash: Hash,
    /// The transaction's identifier (T_ID).
    pub id: u16,
    /// Secure channel concatenation (SC_C): 0.
    pub concatenation: u8,
    /// The host's name.
    pub host: &'a str,
    /// The subsystem's name.
    pub subsystem: &'a str,
}

impl Transaction<'_> {
    /// The host's response (R1) to a challenge, augmented if there was an exchange.
    pub fn of_host(&self, key: &Digest, challenge: &Digest, sequence: u32) -> Digest {
        let tail = (self.host, self.subsystem);
        self.response(key, challenge, sequence, self.concatenation, b"HostHost", tail)
    }

    /// The controller's response (R2) to a challenge, augmented if there was an exchange.
    pub fn of_controller(&self, key: &Digest, challenge: &Digest, sequence: u32) -> Digest {
        self.response(key, challenge, sequence, 0, b"Controller", (self.subsystem, self.host))
    }

    fn response(
        &self,
        key: &Digest,
        challenge: &Digest,
        sequence: u32,
        concatenation: u8,
        who: &[u8],
        (own, other): (&str, &str),
    ) -> Digest {
        let (sequence, id) = (sequence.to_le_bytes(), self.id.to_le_bytes());
        let parts = [
            challenge.bytes(),
            &sequence,
            &id,
            &[concatenation],
            who,
            own.as_bytes(),
            &[0],
            other.as_bytes(),
        ];
        self.hash.mac(key.bytes(), &parts)
    }
}

/// The challenge to which a response belongs: `challenge` itself, or, after an exchange, its code
/// under the digest of the value that both have computed. `shared` has the length of the group's
/// values.
pub fn augmented(hash: Hash, challenge: &[u8], shared: Option<&[u8]>) -> Digest {
    match shared {
        None => Digest::new(challenge),
        Some(shared) => hash.mac(hash.digest(shared).bytes(), &[challenge]),
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;

    fn hex(digest: &Digest) -> String {
        digest.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What Python's hmac and hashlib say: a key of bytes 0x11, a challenge of bytes 0x22, and a
    /// shared value of 256 bytes 0x33.
    #[test]
    fn responses_are_those_that_python_computes() {
        for (hash, plain, controller, augmented_) in RESPONSES {
            let transaction = Transaction {
                hash,
                id: 0x1234,
                concatenation: 0,
                host: "nqn.2026-01.org.x:host",
                subsystem: "nqn.2026-01.org.x:disks",
            };
            let (key, challenge) = (Digest::new(&[0x11; 32]), &[0x22; 64][..hash.len()]);
            let c = augmented(hash, challenge, None);
            assert_eq!(hex(&transaction.of_host(&key, &c, 0x0102_0304)), plain);
            assert_eq!(hex(&transaction.of_controller(&key, &c, 5)), controller);
            let c = augmented(hash, challenge, Some(&[0x33; 256]));
            assert_eq!(hex(&transaction.of_host(&key, &c, 0x0102_0304)), augmented_);
        }
    }

    const RESPONSES: [(Hash, &str, &str, &str); 3] = [
        (
            Hash::Sha256,
            "a16c1062687deba5afa61e7d19c714e30afc654c986572a308673a9fdb462a97",
            "492a4622654106a5929c135b5e8d37f7c1d54393fe8befb03f12ac67241240e4",
            "8420743c634056361fc1830c6ac5d08dd0ef04d568707831b9655b52f2c50e0c",
        ),
        (
            Hash::Sha384,
            "ef862c4d6b602fd24bcaa471f1c21ec5501f93f4ff03f26dd792f7b745c0577f\
             2d15858b6f16fe7536dc800017f1c7ac",
            "2815a0e2d81db7c2d68e1c881c07b9d03c0c49a39d184861b018ddf84bfeeb78\
             98ee7f4b1e80fb915b28ee3131c6a4ce",
            "603b715f2099a2a288be37204be866dbf1b218b52dd712e05b698703f088baf9\
             d159b232a091293025bc6d74f252a4f1",
        ),
        (
            Hash::Sha512,
            "2a4f1900e9236ba9a8a44acf2a2a944ce759a97df27fa37a9c0cf5fb96531159\
             67555988f36fdeee2d9130e72d70de3b25d3dd456d3fb9b387b7708a1a3282a2",
            "2b83dce335bf01a04b9331acd3903fb936afde5ce704ac57ad292d027b6643bc\
             107f12b5ef164c07f5db89df81a2edabdc8da1d146e7b9f727f573bcc6fb22ec",
            "00d4472f8ef9590fbf12fa8617909d62e87c1d7f34540d7395dfc03a6e2e399a\
             06ce3e5afb4be98782ac54ad643b1cce634bb0fa7f082645ac9139d693d41a82",
        ),
    ];
}
