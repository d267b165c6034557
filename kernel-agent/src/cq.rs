//! Completion queues: polled by any thread, resolved to the work requests' cookies.

use nic_abi::cqe;

use crate::Error;

/// What an armed CQ tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next entry.
    Next,
    /// The next entry that is solicited or is an error.
    Solicited,
}

/// One completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The context given when the queue pair was created.
    pub context: u64,
    /// The cookie given when the request was posted.
    pub cookie: u64,
    /// The word given when the request was posted.
    pub data: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// How it ended.
    pub status: cqe::Status,
    /// What else it says, [`cqe::CqeFlags::RECEIVE`] among it.
    pub flags: cqe::CqeFlags,
    /// A send-queue completion's `nic_abi::wqe::Opcode`, unchecked; 0 for receives.
    pub opcode: u8,
    /// Bytes transferred.
    pub length: u32,
    /// Immediate data or the invalidated key, where the flags say so.
    pub immediate: u32,
    /// Datagrams: the sender's queue pair. On an error: offset of the field to blame in the entry.
    pub source_or_field: u32,
}

/// A completion queue.
pub struct Cq {}

impl Cq {
    /// The context given at creation.
    pub fn context(&self) -> u64 {
        todo!()
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// The entries it has room for.
    pub fn entries(&self) -> u32 {
        todo!()
    }

    /// Entries that were dropped: of queue pairs that are gone, or senseless.
    pub fn dropped(&self) -> u64 {
        todo!()
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll_one(&self) -> Option<Completion> {
        todo!()
    }

    /// Takes up to `max` completions, oldest first; returns how many. `sink` runs under the CQ's lock: it must not call
    /// the agent.
    #[inline]
    pub fn poll(&self, max: usize, sink: impl FnMut(Completion)) -> usize {
        let _ = (max, sink);
        todo!()
    }

    /// How many entries wait, counted up to `limit`. Some may turn out to be dropped when polled.
    pub fn pending(&self, limit: u32) -> u32 {
        let _ = limit;
        todo!()
    }

    /// Asks for one `Upcalls::completion` when the next entry arrives. Poll once more after it: what arrived
    /// before is not told.
    #[inline]
    pub fn arm(&self, arm: Arm) {
        let _ = arm;
        todo!()
    }

    /// Changes the room to at least `entries`; entries that wait move along.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let _ = entries;
        todo!()
    }

    /// Whether it overflowed or failed.
    pub fn failed(&self) -> bool {
        todo!()
    }

    /// Destroys it; [`Error::Busy`] while a queue pair uses it. Entries that wait are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}
