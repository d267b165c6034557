//! Completions, and what the calls that take them return.

use nic_abi::cqe;

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
    /// The outcome.
    pub status: cqe::Status,
    /// Further properties, [`cqe::CqeFlags::RECEIVE`] among them.
    pub flags: cqe::CqeFlags,
    /// A send-queue completion's `nic_abi::wqe::Opcode`, unchecked; 0 for receives.
    pub opcode: u8,
    /// Bytes transferred; never more than the request's segments hold. 0 for a receive that an RDMA
    /// Write took.
    pub length: u32,
    /// Immediate data or the invalidated key, if the flags say so.
    pub immediate: u32,
    /// Datagrams: the sender's queue pair. A receive that an RDMA Write took
    /// ([`cqe::CqeFlags::WRITE`]): the Write's length, as the device states it. Errors: the offset
    /// in the descriptor of the field at fault.
    pub detail: u32,
}

/// A work request that succeeded, and whose completion has nothing else to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The context given when the queue pair was created.
    pub context: u64,
    /// The cookie given when the request was posted.
    pub cookie: u64,
    /// The word given when the request was posted.
    pub data: u32,
    /// Bytes transferred; never more than the request's segments hold.
    pub length: u32,
}

/// The immediate data of a message, and what kind of message it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The number that the peer posted.
    pub data: u32,
    /// The length in bytes of the RDMA Write that took the Receive; `None` if a Send took it. The
    /// Write's data is not in the Receive's segments, so the length may exceed theirs. Over VIA it
    /// is 0, since the receiver is not told.
    pub written: Option<u32>,
}

/// What [`CqSlot::take`](super::CqSlot::take) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took<T = Done> {
    /// The oldest completion; it was taken.
    Done(T),
    /// The queue is empty.
    Nothing,
    /// The slow path is needed; nothing was taken.
    Other,
}

impl<T> Took<T> {
    #[inline(always)]
    pub(super) fn map<R>(self, of: impl FnOnce(T) -> R) -> Took<R> {
        match self {
            Took::Done(value) => Took::Done(of(value)),
            Took::Nothing => Took::Nothing,
            Took::Other => Took::Other,
        }
    }
}

/// What is waiting behind a completion that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// Another completion.
    Completion,
    /// An entry that may be of a queue pair that is gone, and so no completion.
    Suspect,
}

/// What [`CqSlot::take_any`](super::CqSlot::take_any) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TookAny<T> {
    /// The oldest completion; it was taken.
    Taken {
        /// What the caller made of it.
        value: T,
        /// What was waiting behind it.
        behind: Behind,
        /// Whether the slot is closed for one of the given reasons.
        closed: bool,
    },
    /// The queue is empty.
    Nothing,
    /// The slow path is needed; no completion was taken.
    Other,
}
