//! The RNIC as a library.
//!
//! A [`Fabric`] holds NICs and the links between them. It is single-threaded and has no locks, no
//! I/O and no clock: its owner passes the time to it and attaches each NIC to a machine by a
//! [`Frontend`].
//!
//! ```text
//! loop {
//!     while fabric.poll(now(), 256) == Progress::Worked {}
//!     // nothing to do: spin on poll for some 10 us, then
//!     if fabric.prepare_sleep() {
//!         // sleep until a kick (then also: fabric.kicked(nic)) or until fabric.next_deadline()
//!     }
//!     fabric.awake();
//! }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `fabric`, `schedule` | the loop; which queue pairs have work or wait |
//! | `node`, `nic` | one NIC with its queue pairs, and without them |
//! | `control`, `doorbell`, `report` | handshake and heartbeat; the doorbell FIFO; completions and events |
//! | `admin` | commands |
//! | `keys`, `lists`, `transfer` | translation and protection; the one copy |
//! | `cq`, `eq`, `srq` | completion, event and shared receive queues |
//! | `qp` | queue pairs: states, entries, requester, responder, datagrams, flushing |
//! | [`port`] | addresses, neighbours, and which frame belongs to whom |
//! | `wire`, `uplink` | what a port is plugged into, and both together |
//! | `streams`, `stream_traffic` | TCP streams by the driver's numbers; their packets and events |
//! | `traffic`, `packets`, `counters` | frames and the link; packets for queue pairs; what is counted of them |
//! | `test_commands` | fault injection and benchmarks |
//! | `testing` | with the feature `testing`: a miniature driver |
//!
//! It attaches itself to nothing: `qemu` attaches it to a guest, `host` and `sim` attach it to the
//! stack in the same process. It opens no socket: `links` carries the frames. It makes no
//! connections: the agents' connection managers do, and it carries their datagrams. Packets and the
//! rules of the transport are in `roce`.
//!
//! The device trusts nothing that the driver writes: it reads each word once, checks the value, and
//! uses the value that it checked. Whatever the driver does, the device does not panic, loops
//! within bounds, and accesses no memory outside of rings and regions.
#![no_std]

extern crate alloc;

mod admin;
mod config;
mod control;
mod counters;
mod cq;
mod doorbell;
mod eq;
mod error;
mod fabric;
mod frontend;
mod groups;
mod held;
mod ids;
mod keys;
mod limits;
mod lists;
mod memory;
mod nic;
mod node;
mod packets;
pub mod port;
mod qp;
mod records;
mod report;
mod schedule;
mod srq;
mod stream_traffic;
mod streams;
mod tables;
mod test_commands;
#[cfg(feature = "testing")]
pub mod testing;
mod traffic;
mod transfer;
mod uplink;
mod waiting;
mod wire;

pub use config::{NicConfig, Stats};
pub use counters::{Congestion, PacketCounters, PacketDropped, StreamEnds};
pub use error::{AddError, AttachError};
pub use fabric::{Fabric, Progress};
pub use frontend::Frontend;
pub use ids::NicId;
pub use memory::{DmaError, GuestMemory};
pub use wire::{NoWire, Wire};
