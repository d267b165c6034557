//! Links that carry Ethernet frames between NICs.
//!
//! A [`Link`] is one end of a link. Its owner runs a loop: it passes the time, takes the frames
//! that have arrived until there are none, sends its own, flushes, and then sleeps on
//! [`Link::poll_fd`] until [`Wire::deadline`] at most. No call blocks.
//!
//! | kind | what carries the frames |
//! |---|---|
//! | [`Unplugged`] (`none`) | nothing: the link is down |
//! | [`pair()`] | memory of this process |
//! | [`Stream`] (`stream:PATH`, `stream-connect:PATH`) | a UNIX stream socket, in the framing of QEMU's netdev `stream` |
//! | [`Switch`] (`switch:PATH`) | such a socket for several peers at a time, which also reach each other |
//! | [`Shm`] (`shm:PATH`) | memory that processes of one machine share, each two of them; they meet in a folder |
//! | [`Udp`] (`udp:ADDRESS`) | the host's UDP port 4791: RoCEv2 only |
//!
//! [`LinkSpec`] names a kind of link on a command line and opens it. [`Captured`] writes the frames
//! that cross a link to a file, and [`Impaired`] loses, delays and changes frames. Both wrap any
//! link. `Impaired<Captured<L>>` captures what really crosses the wire: sent frames after the
//! impairment, and received ones before it.
//!
//! A link looks at no more of a frame than it needs to pass the frame on: a switch at the
//! addresses, the link over UDP at the headers, which it replaces. What frames mean is the port's
//! matter (`nic_model::port`).
//!
//! Peers are not trusted. Whatever a peer sends, and also if it takes no frames, memory is bounded,
//! the link drops frames and counts them by reason ([`Counters`]), and the owner does not wait.
#![deny(missing_docs)]

mod capture;
mod counters;
mod error;
mod frame;
mod impair;
mod memory;
mod none;
mod pair;
mod poller;
mod port;
mod queue;
mod shm;
mod spec;
mod stream;
mod switch;
mod udp;

pub use nic_model::Wire;
pub use roce::IpPrefix;
pub use rustix::event::PollFd;

pub use capture::{Capture, Captured, Missing};
pub use counters::{Counters, Dropped};
pub use error::{OpenError, SpecError};
pub use impair::{Chance, Fault, Impaired, Impairment, Rate};
pub use memory::{Mapping, sealed_file};
pub use none::Unplugged;
pub use pair::{PairEnd, pair};
pub use port::{local, numbered, port_at};
pub use shm::Shm;
pub use spec::LinkSpec;
pub use stream::Stream;
pub use switch::Switch;
pub use udp::Udp;

/// The most bytes of the path of a UNIX socket: its address has 108, with a zero at the end.
pub const MAX_SOCKET_PATH: usize = 107;

/// The size of the smallest frame: an Ethernet header.
pub const MIN_FRAME: usize = 14;
/// The size of the largest frame: an Ethernet header with the tag of a VLAN, and the largest IPv4
/// packet.
pub const MAX_FRAME: usize = MIN_FRAME + 4 + 65_535;

/// One end of a link: a wire for a port, and a descriptor on which its owner sleeps.
///
/// No call blocks, and none fails: a link counts errors, and recovers in later calls if it can. A
/// link takes frames of [`MIN_FRAME`] to [`MAX_FRAME`] bytes; it drops and counts others.
pub trait Link: Wire {
    /// The descriptor that the owner polls before it sleeps, if there is one: it is ready when the
    /// link has work. It can change, and a link may ask peers to wake the owner from now on, so ask
    /// for it each time.
    fn poll_fd(&self) -> Option<PollFd<'_>>;

    /// Counts of what the link carried and dropped.
    fn counters(&self) -> Counters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        (**self).poll_fd()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}
