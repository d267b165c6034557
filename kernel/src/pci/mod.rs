//! PCI: `config` finds functions, `msix` routes their interrupts, `nic` hands over those that are
//! NICs.

mod config;
mod msix;
mod nic;

pub use msix::entry_writes;
pub(crate) use nic::attach;
pub use nic::nics;
