//! What an endpoint is asked to do: one request, built step by step.

use kernel_agent::{Direction, Head, RemoteWords, SendFlags, Shadow, Transfer};

use crate::completion::tag;
use crate::memory::{RemoteMemory, Slice};

/// The local memory of a request: one slice, or several that are used one after the other.
#[derive(Clone, Copy)]
pub struct Slices<'a>(pub(crate) Local<'a>);

#[derive(Clone, Copy)]
pub(crate) enum Local<'a> {
    One(Slice<'a>),
    Many(&'a [Slice<'a>]),
}

impl<'a> Local<'a> {
    pub(crate) fn slices(&self) -> &[Slice<'a>] {
        match self {
            Local::One(slice) => core::slice::from_ref(slice),
            Local::Many(slices) => slices,
        }
    }
}

impl<'a> From<Slice<'a>> for Slices<'a> {
    #[inline(always)]
    fn from(slice: Slice<'a>) -> Slices<'a> {
        Slices(Local::One(slice))
    }
}

impl<'a> From<&'a [Slice<'a>]> for Slices<'a> {
    #[inline(always)]
    fn from(slices: &'a [Slice<'a>]) -> Slices<'a> {
        Slices(match slices {
            [only] => Local::One(*only),
            many => Local::Many(many),
        })
    }
}

impl<'a, const N: usize> From<&'a [Slice<'a>; N]> for Slices<'a> {
    #[inline(always)]
    fn from(slices: &'a [Slice<'a>; N]) -> Slices<'a> {
        Slices(Local::Many(slices))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Send,
    /// A Send that invalidates this key of the peer.
    SendInvalidate(u32),
    Write(RemoteMemory),
    Read(RemoteMemory),
    CompareSwap {
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        at: RemoteMemory,
        add: u64,
    },
}

impl Kind {
    /// Whether it is an atomic operation.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Kind::CompareSwap { .. } | Kind::FetchAdd { .. })
    }

    /// A request in the form in which the fast path takes it: not of an atomic operation. `more`:
    /// bits of the tag beside the kind.
    #[inline(always)]
    pub(crate) fn transfer(self, flags: SendFlags, id: u64, more: u32) -> Option<Transfer> {
        let (direction, kind, remote) = match self {
            Kind::Send => (Direction::Send, tag::SEND, RemoteMemory::new(0, 0, 0)),
            Kind::Write(to) => (Direction::Write, tag::WRITE, to),
            Kind::Read(from) => (Direction::Read, tag::READ, from),
            Kind::SendInvalidate(_) | Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => return None,
        };
        let remote = RemoteWords { key: u64::from(remote.key) << 32, addr: remote.addr };
        let shadow = Shadow { cookie: id, data: kind | more };
        Some(Transfer { head: Head::new(direction, flags), remote, shadow })
    }
}

/// A request to an endpoint's send queue. [`Endpoint::post`](crate::Endpoint::post) posts it for a
/// consumer that polls, [`Endpoint::start`](crate::Endpoint::start) for one that waits.
#[derive(Clone, Copy)]
#[must_use = "a request does nothing until it is posted or started"]
pub struct Work<'a> {
    pub(crate) kind: Kind,
    pub(crate) local: Local<'a>,
    pub(crate) immediate: Option<u32>,
    pub(crate) flags: SendFlags,
    pub(crate) id: u64,
}

impl<'a> Work<'a> {
    #[inline(always)]
    fn new(kind: Kind, local: Slices<'a>) -> Work<'a> {
        Work { kind, local: local.0, immediate: None, flags: SendFlags::SIGNALED, id: 0 }
    }

    /// Sends a message, which a Receive of the peer takes.
    #[inline(always)]
    pub fn send(message: impl Into<Slices<'a>>) -> Work<'a> {
        Work::new(Kind::Send, message.into())
    }

    /// Sends a message that also ends the link of a peer's memory, which is named by its key: the
    /// peer finds that in the completion that it polls
    /// ([`Completion::invalidated`](crate::Completion::invalidated)). A key that names no linked
    /// memory of the peer's domain ends the connection.
    #[doc(alias = "it_post_send_and_unlink")]
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[inline(always)]
    pub fn send_and_invalidate(message: impl Into<Slices<'a>>, key: u32) -> Work<'a> {
        Work::new(Kind::SendInvalidate(key), message.into())
    }

    /// Writes to a peer's memory, from its beginning.
    #[inline(always)]
    pub fn write(from: impl Into<Slices<'a>>, to: RemoteMemory) -> Work<'a> {
        Work::new(Kind::Write(to), from.into())
    }

    /// Reads a peer's memory, from its beginning.
    #[inline(always)]
    pub fn read(into: impl Into<Slices<'a>>, from: RemoteMemory) -> Work<'a> {
        Work::new(Kind::Read(from), into.into())
    }

    /// Replaces eight bytes of a peer's memory by `swap` if they are `compare`. Their former value
    /// goes to `former`, whose length has to be 8, in this CPU's byte order.
    #[inline(always)]
    pub fn compare_swap(former: Slice<'a>, at: RemoteMemory, compare: u64, swap: u64) -> Work<'a> {
        Work::new(Kind::CompareSwap { at, compare, swap }, former.into())
    }

    /// Adds to eight bytes of a peer's memory. Their former value goes to `former`, as with
    /// [`Work::compare_swap`].
    #[inline(always)]
    pub fn fetch_add(former: Slice<'a>, at: RemoteMemory, add: u64) -> Work<'a> {
        Work::new(Kind::FetchAdd { at, add }, former.into())
    }

    /// A number that comes back in the completion.
    #[inline(always)]
    pub fn id(self, id: u64) -> Work<'a> {
        Work { id, ..self }
    }

    /// Sends a number along, which the peer finds in the completion of its Receive. An RDMA Write
    /// then takes a Receive of the peer, too. Reads and atomic operations ignore it.
    #[inline(always)]
    pub fn immediate(self, data: u32) -> Work<'a> {
        Work { immediate: Some(data), ..self }
    }

    /// Has the request wait until all earlier RDMA Reads and atomic operations have ended.
    #[inline(always)]
    pub fn fenced(self) -> Work<'a> {
        Work { flags: self.flags.union(SendFlags::FENCE_READS), ..self }
    }

    /// Makes the peer's completion wake a waiter that asked for solicited ones only.
    #[inline(always)]
    pub fn solicited(self) -> Work<'a> {
        Work { flags: self.flags.union(SendFlags::SOLICITED), ..self }
    }

    /// Success makes no completion; that of a later request of the endpoint includes it. A failure
    /// always makes one. Post a request with a completion now and then: room is given back by it.
    #[inline(always)]
    pub fn unsignalled(self) -> Work<'a> {
        Work { flags: self.flags.difference(SendFlags::SIGNALED), ..self }
    }
}
