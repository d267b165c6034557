//! Errors of parsing: why bytes are not a valid frame or segment.

use thiserror::Error;

/// What is wrong with bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes end before the header does.
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
    /// The checksum of an FPDU is not that of its bytes.
    #[error("the CRC is {found:#x}, computed {computed:#x}")]
    Checksum {
        /// The one in the FPDU.
        found: u32,
        /// The one computed from its bytes.
        computed: u32,
    },
    /// There is no memory to hold the part of an FPDU that has come.
    #[error("no memory for an FPDU that comes in parts")]
    NoMemory,
}
