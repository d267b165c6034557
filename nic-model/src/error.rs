//! Why a NIC cannot be added.

use crate::port::ConfigError;

/// Why a NIC was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The register file is not [`nic_abi::registers::SIZE`] bytes of aligned memory.
    #[error("the register file has the wrong size or alignment")]
    Registers,
    /// A field of the configuration is not allowed.
    #[error("the NIC's {0} is not allowed")]
    Config(&'static str),
    /// There is no memory for the NIC's streams.
    #[error("the streams of the NIC: {0}")]
    Streams(tcp::Error),
    /// The fabric has 65,536 NICs already.
    #[error("too many NICs")]
    TooMany,
}

/// Why a NIC cannot be attached to a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// There is no such NIC.
    #[error("there is no such NIC")]
    NoNic,
    /// Its driver has started it, and knows its addresses.
    #[error("the NIC runs already")]
    Started,
    /// The port's configuration is none.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// There is no memory for the port's streams.
    #[error("the streams of the port: {0}")]
    Streams(#[from] tcp::Error),
}
