//! How a NIC of the model is attached to a machine.

use platform::SharedSlice;

use crate::memory::GuestMemory;
use crate::wire::Wire;

/// One NIC's connection to its machine: its register file, the machine's memory, and its
/// interrupts.
///
/// The program that implements it also runs the [`crate::Fabric`], and sleeps while the device has
/// nothing to do.
pub trait Frontend {
    /// The machine's memory.
    type Memory: GuestMemory;

    /// What the NIC's port may be plugged into ([`crate::Fabric::attach`]); [`crate::NoWire`] if
    /// nothing.
    type Wire: Wire;

    /// The register file: [`nic_abi::registers::SIZE`] bytes, page-aligned, always the same memory.
    fn registers(&self) -> SharedSlice<'_>;

    /// The machine's memory.
    fn memory(&self) -> &Self::Memory;

    /// Raises an interrupt vector (always less than [`crate::NicConfig::vectors`]).
    fn raise(&self, vector: u16);
}
