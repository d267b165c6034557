//! PCI: [`config`] finds functions, [`msix`] routes their interrupts, [`nic`] drives those that are NICs.

mod config;
mod msix;
mod nic;

pub(crate) use nic::attach;
pub use nic::nics;
