//! What target and initiator have in common in DH-HMAC-CHAP: random numbers, and the exchange of
//! Diffie and Hellman in steps.

mod exchange;
mod random;
#[cfg(feature = "testing")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use exchange::{Exponent, Groups, Power};
pub(crate) use random::Random;
