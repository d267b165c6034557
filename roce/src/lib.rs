//! RoCEv2: packets and InfiniBand management datagrams, and the engines of the transport, without
//! I/O.
//!
//! Each header has a `Header` (or `Body`), a zerocopy view with the layout of the specification,
//! and a `Repr`, its decoded form, which is parsed from the view and emitted into it. Parsing never
//! panics: for invalid bytes it returns an [`Error`] that names the field. No unsafe code; only the
//! engines allocate, when they are created.
//!
//! - [`wire`]: the headers of a RoCEv2 packet from Ethernet down to the ICRC, and the whole
//!   [`wire::datagram`].
//! - [`transport`]: what a requester and a responder do, packet by packet.
//! - [`mad`] and [`cm`]: management datagrams and the connection manager's messages.
//! - [`gid`], [`prefix`], [`number`], [`service`], [`path`]: the names of ports, queue pairs,
//!   packets and services, and the path between two ports.
//!
//! It sends nothing, has no clock and reaches no memory: the device, `nic-model`, does all this,
//! and has the port with its neighbours. The state machine of the connection manager is in
//! `kernel-agent`; only its messages are here.
//!
//! References: InfiniBand Architecture Specification volume 1, chapters 9 (transport), 12
//! (communication management), 13 (management datagrams), annex A11 (IP CM service), annex A17
//! (RoCEv2).
#![no_std]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cm;
mod error;
pub mod gid;
pub mod mad;
pub mod number;
pub mod path;
pub mod prefix;
pub mod service;
pub mod transport;
pub mod wire;

pub use error::Error;
pub use gid::Gid;
pub use number::{PKey, Psn, QKey, Qpn, TimeoutCode};
pub use path::{Path, PathMtu};
pub use prefix::IpPrefix;
pub use service::ServiceId;

/// The UDP destination port of RoCEv2 (IBTA annex A17.3.1).
pub const UDP_PORT: u16 = 4791;
