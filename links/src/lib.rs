//! Links that carry Ethernet frames between NICs.
//!
//! A [`Link`] is one end of a link. Its owner runs a loop: it passes the time, takes the frames
//! that have arrived until there are none, sends its own, flushes, and then sleeps on
//! [`Link::poll_fd`] until [`Link::deadline`] at most. No call blocks.
//!
//! | kind | what carries the frames |
//! |---|---|
//! | [`Unplugged`] (`none`) | nothing: the link is down |
//! | [`pair()`] | memory of this process |
//! | [`Stream`] (`stream:PATH`, `stream-connect:PATH`) | a UNIX stream socket, in the framing of QEMU's netdev `stream` |
//! | [`Udp`] (`udp:ADDRESS`) | the host's UDP port 4791: RoCEv2 only |
//!
//! [`LinkSpec`] names a kind on a command line and opens it. [`Captured`] writes what crosses
//! a link to a file, and [`Impaired`] loses, delays and changes frames. Both wrap any link.
//! `Impaired<Captured<L>>` captures what really crosses the wire: what was sent after the
//! impairment, and what was received before it.
//!
//! A peer is not trusted: whatever it sends, or if it sends and takes nothing, memory is bounded,
//! the link drops frames and counts them by reason ([`Counters`]), and the owner does not wait.
#![deny(missing_docs)]

mod capture;
mod counters;
mod error;
mod impair;
mod none;
mod pair;
mod queue;
mod spec;
mod stream;
mod udp;

use platform::Instant;
pub use roce::IpPrefix;
pub use rustix::event::PollFd;

pub use capture::{Capture, Captured};
pub use counters::{Counters, Dropped};
pub use error::{OpenError, SpecError};
pub use impair::{Chance, Impaired, Impairment, Rate};
pub use none::Unplugged;
pub use pair::{PairEnd, pair};
pub use spec::LinkSpec;
pub use stream::Stream;
pub use udp::Udp;

/// The size of the smallest frame: an Ethernet header.
pub const MIN_FRAME: usize = 14;
/// The size of the largest frame: an Ethernet header and the largest IPv4 packet.
pub const MAX_FRAME: usize = MIN_FRAME + 65_535;

/// One end of a link that carries Ethernet frames, without preamble and check sequence.
///
/// No call blocks, and none fails: what goes wrong is counted, and a link that can recover does so
/// in later calls. Times are points of one clock, which does not run backwards.
pub trait Link {
    /// Sends a frame of [`MIN_FRAME`] to [`MAX_FRAME`] bytes, or drops and counts it. The link may
    /// keep it until [`Link::flush`].
    fn send(&mut self, frame: &[u8], now: Instant);

    /// Whether the link takes a frame of any size now. A sender that waits for room loses no frame
    /// to a peer that is slow.
    fn has_room(&self) -> bool;

    /// Copies the next frame that has arrived to the start of `into`, and returns its length. A
    /// frame that `into` is too short for is dropped and counted.
    ///
    /// `None` means that none is there now, or that the link has done its share of work: the owner
    /// looks again after it has polled.
    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize>;

    /// Passes on what was sent. The owner calls it when it has nothing more to send for now, when
    /// [`Link::poll_fd`] is ready and at the [`Link::deadline`].
    fn flush(&mut self, now: Instant);

    /// Whether there is a peer. When a peer is replaced by another, the link is down after the
    /// [`Link::receive`] that returned `None`, until the next one.
    fn up(&self) -> bool;

    /// What the owner polls before it sleeps, if there is something: it is ready when the link has
    /// something to do. It changes; ask for it each time.
    fn poll_fd(&self) -> Option<PollFd<'_>>;

    /// When [`Link::receive`] and [`Link::flush`] must run again at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// What the link carried and dropped.
    fn counters(&self) -> Counters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(&mut self, frame: &[u8], now: Instant) {
        (**self).send(frame, now);
    }

    fn has_room(&self) -> bool {
        (**self).has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        (**self).receive(into, now)
    }

    fn flush(&mut self, now: Instant) {
        (**self).flush(now);
    }

    fn up(&self) -> bool {
        (**self).up()
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        (**self).poll_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}

/// A NIC's port can be plugged into any link.
impl nic_model::Wire for Box<dyn Link + Send> {
    fn send(&mut self, frame: &[u8], now: Instant) {
        (**self).send(frame, now);
    }

    fn has_room(&self) -> bool {
        (**self).has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        (**self).receive(into, now)
    }

    fn flush(&mut self, now: Instant) {
        (**self).flush(now);
    }

    fn up(&self) -> bool {
        (**self).up()
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }
}
