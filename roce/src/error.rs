//! Errors of parsing: why bytes are not a valid packet.

use thiserror::Error;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes end before the header does, or before the length that the header announces.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// Which header or message.
        what: &'static str,
        /// How many bytes it has.
        need: usize,
        /// How many bytes there are.
        have: usize,
    },
    /// A field holds a value that the specification does not define or that this crate does not
    /// support.
    #[error("{field}: {value:#x} is not supported")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// The checksum in the packet is not the packet's.
    #[error("{what} is {found:#x}, computed {computed:#x}")]
    Checksum {
        /// Which checksum.
        what: &'static str,
        /// The one in the packet.
        found: u32,
        /// The one computed from the packet's bytes.
        computed: u32,
    },
}
