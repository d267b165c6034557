//! Segments that go from one engine to another in the same process, without a stream.
//!
//! The device that has both ends asks one for its next segment ([`Engine::pass`]), gives it to the
//! other ([`Engine::take`]), and reports what that has taken ([`Engine::passed`]). There are no
//! FPDUs, so no CRC is computed and no byte is copied on the way: the taker's device moves payload
//! from the sender's memory to its place ([`Direct`]). All rules are those of segments that come in
//! a stream, since the same code judges them.
//!
//! A segment may be longer than one of a stream, up to what the device says. If the device moves a
//! part of its payload only, the segment was one of that length, and the next one goes on there.
//!
//! The order of the stream has to be kept: before the first segment is passed, the taker has
//! received all that was transmitted ([`Engine::is_between`], [`Engine::may_take`]).

use crate::ddp::Header;

use super::Engine;
use super::memory::{Denied, Direct, Sink, Source};
use super::receive::Payload;
use super::transmit::{Body, Next, What};

/// A segment, whose payload is in the memory of its sender.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub(super) header: Header,
    /// What the engine has written itself.
    pub(super) body: Body,
    pub(super) length: u32,
    pub(super) source: Source,
    pub(super) what: What,
}

impl Segment {
    /// Bytes of payload that are moved.
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Where they are. It was checked.
    pub const fn source(&self) -> Source {
        self.source
    }
}

/// What [`Engine::pass`] has.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Pass {
    /// Nothing.
    Nothing,
    /// Carry out this local work request, and report it to [`Engine::carried_out`].
    Local(u32),
    /// Give this segment to the peer's engine, and report it to [`Engine::passed`].
    Segment(Segment),
}

/// Payload that the taker's device moves from the sender's memory.
#[derive(Clone, Copy)]
struct Elsewhere<'a> {
    body: &'a [u8],
    length: u32,
}

impl<M: Direct> Payload<M> for Elsewhere<'_> {
    fn length(&self) -> u32 {
        // A body has fewer than 2^16 bytes.
        self.body.len() as u32 + self.length
    }

    fn body(&self) -> &[u8] {
        self.body
    }

    fn write(self, memory: &mut M, stag: u32, to: u64) -> Result<u32, Denied> {
        memory.write_from_peer(stag, to, self.length)
    }

    fn place(self, memory: &mut M, sink: Sink) -> Result<u32, Denied> {
        memory.place_from_peer(sink, self.length)
    }
}

impl Engine {
    /// Whether no FPDU is written in part, so that the next segment need not go into the stream.
    pub const fn is_between(&self) -> bool {
        self.current.is_none()
    }

    /// Whether no FPDU has come in part, so that the next segment need not come in the stream.
    pub const fn may_take(&self) -> bool {
        !self.receiver.is_inside()
    }

    /// Whether FPDUs have CRCs. If the ends differ, no segment may be passed: one in the stream
    /// would be refused.
    pub const fn has_crc(&self) -> bool {
        self.config.crc
    }

    /// The next segment, with at most `most` bytes of payload. `check` is as
    /// [`Memory::check`](super::Memory::check).
    pub fn pass(&mut self, most: u32, mut check: impl FnMut(Source, u32) -> Result<(), Denied>) -> Pass {
        while self.current.is_none() {
            match self.plan(Some(most), &mut check) {
                Next::Local(id) => return Pass::Local(id),
                Next::Segment(segment) => return Pass::Segment(segment),
                // What cannot be sent ends the stream with a Terminate.
                Next::Nothing if self.terminate.is_some() => {}
                Next::Nothing => break,
            }
        }
        Pass::Nothing
    }

    /// The peer has taken so many bytes of a segment. `None`: its memory cannot be reached any
    /// more, though it was checked.
    pub fn passed(&mut self, segment: &Segment, taken: Option<u32>) {
        match taken {
            Some(taken) => {
                self.account(segment, taken);
                if taken == segment.length {
                    self.sent(segment.what);
                }
            }
            None => self.cut_off(segment.what),
        }
    }

    /// Takes a segment of the peer, and returns how many bytes of its payload; all of them if it is
    /// refused, or if the stream has ended. The events are to be taken then.
    pub fn take<M: Direct>(&mut self, segment: &Segment, memory: &mut M) -> u32 {
        if self.end.is_some() {
            return segment.length;
        }
        let payload = Elsewhere { body: segment.body.bytes(), length: segment.length };
        // A body is taken whole, and is none of the bytes that are moved.
        self.arrived(segment.header, payload, memory).min(segment.length)
    }
}
