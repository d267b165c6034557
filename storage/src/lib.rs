//! NVMe over Fabrics on RDMA: [`target`] exports disks to hosts on other machines, [`initiator`] is
//! such a host, and [`workload`] what it can do all day.
//!
//! It is a consumer of the Rust API (the crate `rdma`, `ferrovia::rdma`) as a unikernel would write
//! one, and uses what that offers to privileged consumers: data goes between the disk's memory and
//! the wire by bus addresses, capsules arrive in shared receives, completions come by wakers when
//! the target is idle and by polling when it is busy.
//!
//! It has no disks (`block`, `kernel`) and no formats (`nvme`). It speaks to other machines by RDMA
//! only, not by TCP. docs/storage.md says what else is missing.
//!
//! The crate is `no_std` and has no unsafe code. It runs wherever `rdma` does: in our kernel
//! (`targets/storage`), on an ordinary OS, and in the simulation. Disks are
//! [`block::Disk`]s.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod attention;
mod auth;
mod error;
pub mod initiator;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod workload;

pub use error::Error;
