//! What cmatose and udaddy exchange: messages over several connections, in both directions.

use crate::objects::Patience;
use crate::{Failure, Words};

/// The most connections of a run, and the most messages of a connection.
const MOST: usize = 1024;

/// Both sides must be given the same numbers, but for `patience`.
pub(crate) struct Exchange {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    /// Messages of each connection, in each direction.
    pub(crate) count: usize,
    /// Bytes of a message.
    pub(crate) size: usize,
    pub(crate) patience: Patience,
}

impl Exchange {
    /// Takes the options of a program whose server has this port unless the user names another, and
    /// whose messages have at most so many bytes.
    pub(crate) fn take(words: &mut Words<'_>, port: u16, longest: usize) -> Result<Exchange, Failure> {
        let size = words.number("size", 100, 0..=longest)?;
        let count = words.number("count", 10, 0..=MOST)?;
        Ok(Exchange {
            port: words.number("port", port, 1..=u16::MAX)?,
            connections: words.number("connections", 1, 1..=MOST)?,
            // Without bytes there are no messages.
            count: if size == 0 { 0 } else { count },
            size,
            patience: words.patience()?,
        })
    }
}
