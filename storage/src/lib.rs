//! NVMe over Fabrics on RDMA: [`target`] exports disks to hosts on other machines, [`initiator`] is
//! such a host, and [`workload`] what it can do all day.
//!
//! It is a consumer of IT-API as a unikernel would write one, and uses what the API offers to
//! privileged consumers: data goes between the disk's memory and the wire through the direct LMR
//! handle, capsules arrive in a shared receive queue, completions come by callbacks when the target
//! is idle and by polling when it is busy.
//!
//! It has no disks (`block`, `kernel`) and no formats (`nvme`). It speaks to other machines by RDMA
//! only, not by TCP. docs/storage.md says what else is missing.
//!
//! The crate is `no_std` and has no unsafe code. It runs wherever IT-API does: in our kernel
//! (`targets/storage`), on an ordinary OS, and in the simulation. Disks are
//! [`block::Disk`]s.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod error;
mod events;
pub mod initiator;
mod mapped;
mod net;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod workload;

pub use error::Error;
