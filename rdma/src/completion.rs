//! A completion: which request ended, and how.

use core::fmt;

use kernel_agent::{CompletionFlags, CompletionStatus, Done};

use crate::datagram::Sender;
use crate::error::RequestError;

/// What a completed request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A message was sent.
    Send,
    /// A peer's memory was written.
    Write,
    /// A peer's memory was read.
    Read,
    /// An atomic operation.
    Atomic,
    /// A link of a [`FastRegion`](crate::FastRegion), or its end. Only a failure has a completion.
    Link,
    /// A Receive took a message or a datagram, or the immediate data of an RDMA Write
    /// ([`Completion::written`]).
    Receive,
}

/// The bits of the word that is posted with each request.
pub(crate) mod tag {
    /// Somebody waits for this very request.
    pub(crate) const STARTED: u32 = 1 << 31;
    /// A Receive of a shared queue.
    pub(crate) const SHARED: u32 = 1 << 30;
    /// The number of the pool, for such a Receive. For one of a datagram where its header is.
    pub(crate) const POOL: u32 = 0x3fff_fff8;
    pub(crate) const POOL_SHIFT: u32 = 3;
    pub(crate) const KIND: u32 = 7;
    pub(crate) const SEND: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const READ: u32 = 2;
    pub(crate) const ATOMIC: u32 = 3;
    pub(crate) const RECEIVE: u32 = 4;
    /// A Receive of a datagram.
    pub(crate) const DATAGRAM: u32 = 5;
    pub(crate) const LINK: u32 = 6;
}

/// A request that has ended.
#[derive(Clone, Copy)]
pub struct Completion {
    /// The number given with the request, or the operation's.
    pub(crate) id: u64,
    /// The endpoint's handle.
    pub(crate) endpoint: u64,
    length: u32,
    /// The immediate data or the invalidated key, if the flags say so. Else it is whatever was here
    /// before, as is the sender: who takes a plain completion does not write them.
    immediate: u32,
    pub(crate) tag: u32,
    status: CompletionStatus,
    flags: CompletionFlags,
    /// Of a datagram, if the flags say that it has a header.
    sender: Sender,
}

impl Completion {
    /// For places that [`Queue::poll`](crate::Queue::poll) fills.
    pub const EMPTY: Completion = Completion {
        id: 0,
        endpoint: 0,
        length: 0,
        immediate: 0,
        tag: 0,
        status: CompletionStatus::Flushed,
        flags: CompletionFlags::empty(),
        sender: Sender::NOBODY,
    };

    #[inline(always)]
    pub(crate) fn of(taken: &kernel_agent::Completion) -> Completion {
        let written = taken.flags.contains(CompletionFlags::WRITE);
        Completion {
            id: taken.cookie,
            endpoint: taken.context,
            length: if written { taken.detail } else { taken.length },
            immediate: taken.immediate,
            tag: taken.data,
            status: taken.status,
            // A sender is known only once the header was looked at.
            flags: taken.flags.difference(CompletionFlags::GRH),
            sender: Sender::NOBODY,
        }
    }

    /// Becomes that of a request that succeeded and has nothing else to report.
    #[inline(always)]
    pub(crate) fn put(&mut self, done: &Done) {
        self.id = done.cookie;
        self.endpoint = done.context;
        self.length = done.length;
        self.tag = done.data;
        (self.status, self.flags) = (CompletionStatus::Success, CompletionFlags::empty());
    }

    /// Whether the request was started: a [`Request`](crate::Request) gets its outcome, not a poll.
    #[inline(always)]
    pub(crate) fn was_started(&self) -> bool {
        self.tag & tag::STARTED != 0
    }

    /// Whether the Receive was of the pool with this number.
    pub(crate) fn is_of(&self, pool: u32) -> bool {
        self.tag & (tag::SHARED | tag::POOL) == tag::SHARED | pool
    }

    /// Where the header is, if this is of the Receive of a datagram.
    pub(crate) fn header(&self) -> Option<u32> {
        (self.tag & tag::KIND == tag::DATAGRAM).then_some((self.tag & tag::POOL) >> tag::POOL_SHIFT)
    }

    /// A datagram came, with this many bytes in front of it, from this sender, if the header names
    /// one.
    pub(crate) fn came_from(&mut self, header: u32, sender: Option<Sender>) {
        self.length = self.length.saturating_sub(header);
        if let Some(sender) = sender {
            (self.flags, self.sender) = (self.flags.union(CompletionFlags::GRH), sender);
        }
    }

    /// The number that the poster gave the request ([`Work::id`](crate::Work::id)).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The endpoint of the request: equal to its [`Endpoint::id`](crate::Endpoint::id).
    pub fn endpoint(&self) -> u64 {
        self.endpoint
    }

    /// What the request was.
    pub fn operation(&self) -> Operation {
        match self.tag & tag::KIND {
            tag::SEND => Operation::Send,
            tag::WRITE => Operation::Write,
            tag::READ => Operation::Read,
            tag::ATOMIC => Operation::Atomic,
            tag::LINK => Operation::Link,
            _ => Operation::Receive,
        }
    }

    /// How many bytes were transferred between local memory and the peer, or why the request
    /// failed: 0 for a Receive that an RDMA Write took ([`Completion::written`]).
    #[inline]
    pub fn result(&self) -> Result<usize, RequestError> {
        let length = if self.written().is_some() { 0 } else { self.length as usize };
        RequestError::of(self.status).map_or(Ok(length), Err)
    }

    /// Who sent the datagram that a Receive took; `None` for all other completions.
    pub fn sender(&self) -> Option<Sender> {
        self.flags.contains(CompletionFlags::GRH).then_some(self.sender)
    }

    /// The number that came with the message, if one did.
    pub fn immediate(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::IMMEDIATE).then_some(self.immediate)
    }

    /// The key that the peer's message has invalidated here, if it did: compare it by
    /// [`FastRegion::is_ended_by`](crate::FastRegion::is_ended_by).
    pub fn invalidated(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::INVALIDATED).then_some(self.immediate)
    }

    /// Whether the request has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.status != CompletionStatus::Success
    }

    /// A Receive that an RDMA Write with immediate data took: how many bytes the peer wrote. They
    /// are where the peer chose, not in the Receive's memory, and may be more than fit there.
    pub fn written(&self) -> Option<usize> {
        self.flags.contains(CompletionFlags::WRITE).then_some(self.length as usize)
    }
}

impl PartialEq for Completion {
    fn eq(&self, other: &Completion) -> bool {
        let plain = |it: &Completion| (it.id, it.endpoint, it.length, it.tag, it.status, it.flags);
        let more = |it: &Completion| (it.immediate(), it.invalidated(), it.sender());
        plain(self) == plain(other) && more(self) == more(other)
    }
}

impl Eq for Completion {}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id)
            .field("endpoint", &self.endpoint)
            .field("operation", &self.operation())
            .field("result", &self.result())
            .field("written", &self.written())
            .field("immediate", &self.immediate())
            .field("invalidated", &self.invalidated())
            .field("sender", &self.sender())
            .finish()
    }
}

impl Default for Completion {
    fn default() -> Completion {
        Completion::EMPTY
    }
}
