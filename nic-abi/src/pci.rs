//! How the function looks on PCI.
//!
//! Behind ivshmem-doorbell the PCI identity is QEMU's and fixed; the identity page in the register
//! file (see [`crate::registers`]) shows that the function is an RNIC.

/// PCI vendor of the ivshmem attachment (Red Hat).
pub const IVSHMEM_VENDOR: u16 = 0x1af4;
/// PCI device of the ivshmem attachment.
pub const IVSHMEM_DEVICE: u16 = 0x1110;
/// The BAR with ivshmem's own registers.
pub const IVSHMEM_BAR: u8 = 0;
/// Offset of ivshmem's doorbell register; writing [`IVSHMEM_KICK`] there wakes the device.
pub const IVSHMEM_DOORBELL: usize = 12;
/// Peer 0 (the device), vector 0.
pub const IVSHMEM_KICK: u32 = 0;
/// The BAR with the MSI-X table.
pub const MSIX_BAR: u8 = 1;
/// The BAR with the register file.
pub const REGISTER_BAR: u8 = 2;
/// Interrupt vectors of the function.
pub const VECTORS: u16 = 8;
