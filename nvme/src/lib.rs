//! The formats of NVMe (base specification 1.4) as far as NVMe over Fabrics (1.1) uses them on
//! RDMA, without I/O and without state.
//!
//! Each structure is a `#[repr(C)]` zerocopy type with little-endian fields, in the layout of the
//! specification. A large one is made of zeros by [`zerocopy::FromZeros::new_zeroed`], or in place
//! by [`zerocopy::FromBytes::mut_from_bytes`]. What a peer sent is any bytes: nothing here panics
//! on them, and whatever the specification forbids is the [`Status`] that the specification names.
//!
//! - [`command`], [`sgl`], [`completion`], [`status`]: the capsules.
//! - [`fabrics`]: the commands of NVMe over Fabrics and the controller's properties;
//!   [`private_data`]: what the connection manager's messages carry; [`nqn`]: names.
//! - [`identify`], [`feature`], [`log`], [`async_event`]: what the admin commands transfer.
//! - [`auth`]: what the authentication of hosts and controllers transfers, and computes.
//! - [`dsm`], [`copy`]: what Dataset Management and Copy transfer; [`reservation`]: the commands of
//!   reservations.
//!
//! What a target or a host does with these formats is in `storage`, and disks are in `block`.
//!
//! "Base" in a reference is the NVM Express Base Specification 1.4, "fabrics" is NVM Express over
//! Fabrics 1.1.
#![no_std]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

mod ascii;
pub mod async_event;
pub mod auth;
pub mod command;
pub mod completion;
pub mod copy;
pub mod dsm;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod private_data;
pub mod reservation;
pub mod sgl;
pub mod status;

pub use ascii::set_ascii;
pub use command::Command;
pub use completion::Completion;
pub use nqn::Nqn;
pub use status::Status;

/// The NSID that stands for all namespaces (base 6.1).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// The port of NVMe over Fabrics on RDMA, both IANA's and RDMA_PS_TCP's (fabrics 7.3).
pub const RDMA_PORT: u16 = 4420;
