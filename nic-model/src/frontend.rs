//! What attaches a NIC of the model to a machine.

use platform::SharedSlice;

use crate::memory::GuestMemory;

/// One NIC's connection to its machine: its register file, the machine's memory, and its interrupts.
///
/// A front-end also sleeps and wakes the device, by way of the [`crate::Fabric`] that it drives.
pub trait Frontend {
    /// The machine's memory.
    type Memory: GuestMemory;

    /// The register file: [`nic_abi::registers::SIZE`] bytes, page-aligned, always the same memory.
    fn registers(&self) -> SharedSlice<'_>;

    /// The machine's memory.
    fn memory(&self) -> &Self::Memory;

    /// Raises an interrupt vector (always less than [`crate::NicConfig::vectors`]).
    fn raise(&self, vector: u16);
}
