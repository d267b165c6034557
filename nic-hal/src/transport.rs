//! How a device is reached.
//!
//! The driver ([`crate::Nic`]) is the same on every machine. What differs is where the register
//! file lies, which access wakes the device, and how its interrupts arrive: PCI in our kernel, a
//! function call in one process, a socket for a device in another process. Each way is one
//! implementation of [`Transport`].
//!
//! Memory for rings does not come from the transport but from `platform::Platform`: it belongs to
//! the machine, and one buffer may be registered with several devices.

use alloc::boxed::Box;

use platform::SharedSlice;

/// The handler of an interrupt vector.
///
/// A kernel calls it in interrupt context, so it only touches atomics and calls
/// `platform::Platform::wake`.
pub type InterruptHandler = Box<dyn Fn() + Send + Sync>;

/// The way to one device: its register file, its kick and its interrupts.
pub trait Transport: Send + Sync {
    /// The register file: memory that driver and device share (`nic_abi::registers`).
    fn registers(&self) -> SharedSlice<'_>;

    /// Wakes a device that announced that it sleeps. Under a hypervisor this is the only access
    /// that traps.
    fn kick(&self);

    /// How many interrupt vectors the device has.
    fn vectors(&self) -> u16;

    /// Routes a vector to `handler` and replaces the handler before it; `None` masks the vector.
    ///
    /// When the call returns, the replaced handler does not run any more. Returns false if there is
    /// no such vector.
    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool;
}
