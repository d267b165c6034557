//! DH-HMAC-CHAP, the authentication of hosts and controllers (fabrics 8.13.5): messages, secrets,
//! responses, and the groups' primes. Who says what and when is in `storage`.
//!
//! The host proposes hash functions and groups ([`message::Negotiate`]), the controller chooses and
//! asks ([`message::Challenge`]), the host answers, and may ask the controller in turn
//! ([`message::Reply`]), the controller says that the answer was right, and answers
//! ([`message::Success1`]), and a host that has asked says the same ([`message::Success2`]). Either
//! ends that by [`message::Failed`].
//!
//! Keys, digests and secrets are wiped when they are dropped, and no `Debug` shows them.
//! Comparisons with what a peer sent take the same time whatever it is ([`Digest::is`]).

mod digest;
mod group;
pub mod hosts;
pub mod message;
mod response;
mod secret;

pub use digest::{Digest, Hash};
pub use group::{Group, LONGEST as LONGEST_VALUE};
pub use message::Reason;
pub use response::{Transaction, augmented};
pub use secret::{Secret, SecretError};

/// The Security Protocol (SECP) and SP Specific 0 and 1 of the commands Authentication Send and
/// Receive.
pub const PROTOCOL: [u8; 3] = [0xe9, 1, 1];

/// The identifier of DH-HMAC-CHAP among the protocols that a host proposes (AUTHID).
pub const DH_HMAC_CHAP: u8 = 1;

/// Bytes that the longest message of this protocol needs.
pub const LONGEST_MESSAGE: usize = 16 + 2 * Digest::LONGEST + LONGEST_VALUE;
