//! How a NIC is attached to a QEMU that knows nothing of it.
//!
//! An attachment has two sides. [`Attachment`] is QEMU's: the arguments that make the PCI function appear and
//! the descriptors behind them; the guest holds it while QEMU runs. [`Port`] is the device's: the register file,
//! the machine's memory, the doorbell and the interrupts; the device's thread owns it. ivshmem-doorbell works with
//! every QEMU from 7.2 on; vfio-user, with a PCI identity of our own, can follow behind the same traits.

pub mod ivshmem;

use std::os::fd::{OwnedFd, RawFd};

use crate::error::Result;
use crate::memory::GuestRam;

/// A way to attach NICs.
pub trait Frontend {
    /// The device's side.
    type Port: Port;

    /// Makes NIC number `index` of a guest whose memory is `ram`.
    fn attach(&self, index: usize, ram: &GuestRam) -> Result<(Box<dyn Attachment>, Self::Port)>;
}

/// QEMU's side of an attached NIC.
pub trait Attachment: Send {
    /// What QEMU has to be told.
    fn arguments(&self) -> Vec<String>;

    /// What QEMU must inherit for that.
    fn inherited(&self) -> Vec<RawFd>;

    /// QEMU was started and has its own copies of what it inherited.
    fn started(&mut self);
}

/// The device's side of an attached NIC: what the model needs, and something to sleep on.
pub trait Port: nic_model::Frontend + Send + 'static {
    /// An eventfd, not blocking, that becomes readable when the guest kicks.
    fn kick(&self) -> Result<OwnedFd>;
}
