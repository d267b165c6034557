//! Why bytes are not the packet they claim to be.

use thiserror::Error;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes end before the header, or what it announces, does.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// Which header or message.
        what: &'static str,
        /// How many bytes it takes.
        need: usize,
        /// How many there are.
        have: usize,
    },
    /// A field holds a value that the specification does not define, or that this crate does not speak.
    #[error("{field}: {value:#x} is not supported")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A checksum over the packet differs from the one in it.
    #[error("{what} is {found:#x}, computed {computed:#x}")]
    Checksum {
        /// Which checksum.
        what: &'static str,
        /// The one in the packet.
        found: u32,
        /// The one of the packet's bytes.
        computed: u32,
    },
}
