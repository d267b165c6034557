//! rping: the client exposes a text, the server reads it by RDMA Read and writes it back by RDMA
//! Write, and so on.
//!
//! One ping, with what goes over the connection:
//!
//! | who | does |
//! |---|---|
//! | client | sends an `Advert` of the memory with the text |
//! | server | reads the text by RDMA Read, then sends 16 bytes, the go-ahead |
//! | client | sends an `Advert` of the memory for the echo |
//! | server | writes the text there by RDMA Write, up to its first zero byte, then sends the go-ahead |
//!
//! The client sends first, and ends the connection by disconnecting after its last ping. The peer's
//! port is 7174, in rdma_cm's TCP port space; there is no private data.

mod client;
mod server;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::vec::Vec;

pub use client::client;
use rdma::{CreateError, Domain, Endpoint};
pub use server::server;

/// The port unless the user names another.
const PORT: u16 = 7174;
/// The longest text. Linux's programs take texts of 26 to 65535 bytes.
const LONGEST: usize = 65536;

/// The text of a ping: `rdma-ping-N: `, then the characters from `A` to `z` again and again, which
/// begin one further with each ping, and a zero byte at the end.
fn text(ping: u64, size: usize) -> Vec<u8> {
    let head = format!("rdma-ping-{ping}: ");
    let letters = (b'A'..=b'z').cycle().skip((ping % u64::from(b'z' - b'A' + 1)) as usize);
    let mut text: Vec<u8> = head.into_bytes();
    text.truncate(size - 1);
    text.extend(letters.take(size - 1 - text.len()));
    text.push(0);
    text
}

/// The text in a buffer without what follows it, for people.
fn readable(bytes: &[u8]) -> alloc::string::String {
    alloc::string::String::from_utf8_lossy(&bytes[..length(bytes)]).into_owned()
}

/// The bytes in front of the first zero byte.
fn length(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())
}

/// An endpoint of either side. It has one RDMA Read at a time, as Linux's programs have it.
fn endpoint(domain: &Domain) -> Result<Endpoint, CreateError> {
    domain.endpoint().sends(4).receives(2).reads(1).build()
}
