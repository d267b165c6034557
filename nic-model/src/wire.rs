//! What a port is plugged into.

use alloc::boxed::Box;
use core::net::IpAddr;

use platform::Instant;

/// One end of a link that carries Ethernet frames, without preamble and check sequence.
///
/// The fabric calls it in the turns of its NIC ([`crate::Fabric::attach`]). No call blocks, and
/// none fails: what goes wrong is the wire's to count, and a wire that can recover does so in later
/// calls. Times are points of one clock, which does not run backwards.
pub trait Wire {
    /// Sends a frame, or drops and counts it. The wire may keep it until [`Wire::flush`].
    fn send(&mut self, frame: &[u8], now: Instant);

    /// Whether the wire takes a frame of any size now. A sender that waits for room loses no frame
    /// to a peer that is slow.
    fn has_room(&self) -> bool;

    /// Copies the next frame that has arrived to the start of `into`, and returns its length. A
    /// frame that `into` is too short for is dropped and counted.
    ///
    /// `None` means that none is there now, or that the wire has done its share of work: then
    /// either [`Wire::deadline`] has come, or what the owner of the fabric polls before it sleeps
    /// is ready.
    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize>;

    /// Passes on what was sent. The fabric calls it at the beginning and at the end of each turn.
    fn flush(&mut self, now: Instant);

    /// Whether there is a peer. When a peer is replaced by another, the wire is down after the
    /// [`Wire::receive`] that returned `None`, until the next one.
    fn up(&self) -> bool;

    /// When [`Wire::receive`] and [`Wire::flush`] must run again at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// Frames to this multicast group are wanted from now on. A wire that carries all frames to
    /// groups, as most do, has nothing to do.
    fn join(&mut self, _group: IpAddr) {}

    /// Frames to this group are not wanted any more.
    fn leave(&mut self, _group: IpAddr) {}
}

impl<W: Wire + ?Sized> Wire for Box<W> {
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

    fn join(&mut self, group: IpAddr) {
        (**self).join(group);
    }

    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
    }
}

/// The wire of NICs that are never attached to one. There is no value of it.
#[derive(Clone, Copy, Debug)]
pub enum NoWire {}

impl Wire for NoWire {
    fn send(&mut self, _: &[u8], _: Instant) {
        match *self {}
    }

    fn has_room(&self) -> bool {
        match *self {}
    }

    fn receive(&mut self, _: &mut [u8], _: Instant) -> Option<usize> {
        match *self {}
    }

    fn flush(&mut self, _: Instant) {
        match *self {}
    }

    fn up(&self) -> bool {
        match *self {}
    }

    fn deadline(&self) -> Option<Instant> {
        match *self {}
    }
}
