//! How a NIC is attached to a QEMU that has no model of it.
//!
//! An attachment has two sides. [`Attachment`] is QEMU's side: the arguments that create the PCI
//! function, and the descriptors that they name; whoever runs QEMU holds it while QEMU runs.
//! [`Port`] is the device's side: the register file, the guest's memory, the doorbell and the
//! interrupts; the device's thread owns it. ivshmem-doorbell works with every QEMU from 7.2 on.
//! vfio-user, with a PCI identity of Ferrovia's own, can be added behind the same traits.

pub mod ivshmem;

use std::os::fd::{OwnedFd, RawFd};

use crate::error::Result;
use crate::memory::GuestRam;
use crate::thread::{Device, Plugs, Wire};

/// A way to attach NICs.
pub trait Frontend {
    /// The device's side.
    type Port: Port;

    /// Creates NIC number `index` of a guest with the memory `ram`.
    fn attach(&self, index: usize, ram: &GuestRam) -> Result<(Box<dyn Attachment>, Self::Port)>;

    /// Starts a device with a NIC behind each port.
    fn start(&self, ports: Vec<Self::Port>, plugs: Plugs) -> Result<Device>;
}

/// QEMU's side of an attached NIC.
pub trait Attachment: Send {
    /// QEMU's arguments for this NIC.
    fn arguments(&self) -> Vec<String>;

    /// The descriptors that these arguments name, which QEMU must inherit.
    fn inherited(&self) -> Vec<RawFd>;

    /// QEMU has started, and has its own copies of the descriptors.
    fn started(&mut self);
}

/// The device's side of an attached NIC: what the model needs, and a descriptor to sleep on.
pub trait Port: nic_model::Frontend<Wire = Wire> + Send + 'static {
    /// A non-blocking eventfd that becomes readable when the guest kicks.
    fn kick(&self) -> Result<OwnedFd>;

    /// The first bus address that the NIC cannot reach.
    fn dma_limit(&self) -> u64;
}
