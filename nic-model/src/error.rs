//! Why a NIC cannot be added.

/// Why a NIC was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The register file is not [`nic_abi::registers::SIZE`] bytes of aligned memory.
    #[error("the register file has the wrong size or alignment")]
    Registers,
    /// A field of the configuration is not allowed.
    #[error("the NIC's {0} is not allowed")]
    Config(&'static str),
    /// The fabric has 65,536 NICs already.
    #[error("too many NICs")]
    TooMany,
}
