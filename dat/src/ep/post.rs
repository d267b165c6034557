//! Posting ordinary work requests (dat_ep_post_send, dat_ep_post_recv, dat_ep_post_rdma_write,
//! dat_ep_post_rdma_read).
//!
//! Nothing here allocates, waits or formats.
//!
//! Sends, Writes and Reads take the fast path: the slot of the endpoint's send queue, under the
//! slot's lock. If the slot is closed or its lock is held, if a request has `UNSIGNALLED`, or if
//! anything is wrong, they take the slow path: it holds the endpoint's table entry during the post,
//! and finds the error. A bad segment is a completion error.

use core::hint::cold_path;

use kernel_agent::{Direction, Head, PostError, RemoteWords, Request, SegmentLimits, Shadow, Transfer};
use rdma::events::NOTIFY;

use crate::completion::{self, COMBINATIONS, data, send_flags};
use crate::error::{parameter, state};
use crate::flags::CompletionFlags;
use crate::handle::EpHandle;
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Ep, INVALID, wrong};
use crate::ret::{Error, Result, Subtype};
use crate::segment::{LmrTriplet, RmrTriplet};

/// A kind of transfer. A type for each, so that each kind has code of its own, in which nothing of
/// the choice is left.
trait Kind {
    /// What the device does.
    const DIRECTION: Direction;
    /// What the flags of a call become, by their bits.
    const FLAGS: [Encoded; COMBINATIONS];

    /// The endpoint's limit of segments.
    #[inline(always)]
    fn limit(limits: &SegmentLimits) -> u32 {
        limits.of(Self::DIRECTION)
    }
}

/// The flags of a request in the forms in which they go on, looked up in a table instead of moved
/// bit by bit.
#[derive(Clone, Copy)]
struct Encoded {
    /// The word that is posted, or [`REFUSED`].
    data: u32,
    head: Head,
}

/// The kind cannot have these flags.
const REFUSED: u32 = !0;

/// The table of a kind; `solicits`: whether the peer's completion can be solicited.
const fn encoded(direction: Direction, of: completion::Operation, solicits: bool) -> [Encoded; COMBINATIONS] {
    let refused = Encoded { data: REFUSED, head: Head::new(direction, send_flags(CompletionFlags::DEFAULT)) };
    let mut table = [refused; COMBINATIONS];
    let mut bits = 0;
    while bits < table.len() {
        let flags = CompletionFlags::from_bits_retain(bits as u32);
        if solicits || !flags.contains(CompletionFlags::SOLICITED_WAIT) {
            table[bits] = Encoded { data: data(of, flags), head: Head::new(direction, send_flags(flags)) };
        }
        bits += 1;
    }
    table
}

/// The entry of a table, unless the flags need a look at the endpoint or are refused.
#[inline(always)]
fn usual(flags: CompletionFlags, table: &[Encoded; COMBINATIONS]) -> Option<Encoded> {
    match table.get(flags.bits() as usize) {
        Some(encoded) if encoded.data != REFUSED && !flags.contains(CompletionFlags::UNSIGNALLED) => {
            Some(*encoded)
        }
        _ => {
            cold_path();
            None
        }
    }
}

enum Send {}
impl Kind for Send {
    const DIRECTION: Direction = Direction::Send;
    const FLAGS: [Encoded; COMBINATIONS] = encoded(Self::DIRECTION, completion::Operation::Send, true);
}

enum Write {}
impl Kind for Write {
    const DIRECTION: Direction = Direction::Write;
    const FLAGS: [Encoded; COMBINATIONS] = encoded(Self::DIRECTION, completion::Operation::Write, false);
}

enum Read {}
impl Kind for Read {
    const DIRECTION: Direction = Direction::Read;
    const FLAGS: [Encoded; COMBINATIONS] = encoded(Self::DIRECTION, completion::Operation::Read, false);
}

impl Ep {
    /// Fails for flags other than these, and for `UNSIGNALLED` unless the endpoint's requests have
    /// it.
    #[inline(always)]
    pub(crate) fn check_flags(&self, flags: CompletionFlags, allowed: CompletionFlags) -> Result<()> {
        let unsignalled = flags.contains(CompletionFlags::UNSIGNALLED);
        let bad = flags.bits() & !allowed.bits() != 0 || unsignalled && !self.requests_may_be_unsignalled();
        if bad { Err(parameter(Subtype::None)) } else { Ok(()) }
    }

    /// Posts a request of at most so many segments.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        inner: &Inner,
        request: &Request,
        segments: &[LmrTriplet],
        most: u32,
    ) -> Result<()> {
        if segments.len() > most as usize {
            return Err(parameter(Subtype::None));
        }
        self.takes_requests()?;
        match self.qp.post(request, segments, |piece| inner.segment(piece)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.not_posted(error)),
        }
    }

    /// The error of a request that was not posted although the endpoint is there.
    #[cold]
    pub(crate) fn not_posted(&self, error: PostError) -> Error {
        match error {
            PostError::State | PostError::Gone => wrong(self.control.lock().state()),
            other => crate::error::of_post(other),
        }
    }

    /// The word that is posted with a Receive with these flags.
    #[inline(always)]
    fn receive_word(&self, flags: CompletionFlags) -> Option<u32> {
        if flags.is_empty() {
            // The sender decides about the notification of solicited ones.
            let solicited = self.receives == CompletionFlags::SOLICITED_WAIT;
            return Some(if solicited { self.receive } else { self.receive | NOTIFY });
        }
        let unsignalled = CompletionFlags::UNSIGNALLED;
        (flags == unsignalled && self.receives == unsignalled).then_some(self.receive)
    }

    fn post_recv(&self, inner: &Inner, segments: &[LmrTriplet], shadow: Shadow) -> Result<()> {
        // A datagram comes behind a header, for which there has to be room.
        let too_few = segments.is_empty() && self.is_ud();
        if too_few || segments.len() > self.receive_segments {
            return Err(parameter(Subtype::None));
        }
        let posted = self.qp.post_receive(false, segments, |piece| inner.segment(piece), shadow);
        posted.map_err(|error| match error {
            // The endpoint takes its Receives from a shared receive queue.
            PostError::Kind => state(Subtype::InvalidStateSrqInUse),
            other => self.not_posted(other),
        })
    }
}

impl Inner {
    /// The error of a request that was not posted, by a call that does not hold the endpoint's
    /// table entry.
    #[cold]
    pub(crate) fn not_posted_to(&self, ep: EpHandle, error: PostError) -> Error {
        let error = match self.eps.get(ep) {
            Some(ep) => ep.not_posted(error),
            None => INVALID,
        };
        self.unless_dead(error)
    }

    /// The error of a call that failed, unless the device is dead. The caller holds no lock.
    #[cold]
    pub(crate) fn unless_dead(&self, error: Error) -> Error {
        if self.agent().is_dead() { self.dead() } else { error }
    }

    /// Posts to an endpoint with its table entry held.
    #[inline(always)]
    pub(crate) fn post_to(&self, ep: EpHandle, post: impl FnOnce(&Ep) -> Result<()>) -> Result<()> {
        self.live()?;
        let posted = match self.eps.lock(ep).as_ref().and_then(|entry| entry.object()) {
            Some(ep) => post(ep),
            None => Err(INVALID),
        };
        posted.map_err(|error| self.unless_dead(error))
    }
}

impl Ia {
    #[inline(always)]
    fn post<K: Kind>(
        &self,
        ep: EpHandle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
        remote: RemoteWords,
    ) -> Result<()> {
        let (inner, handle) = (&self.inner, ep.as_raw());
        let transfer = || {
            let Encoded { data, head } = usual(flags, &K::FLAGS)?;
            Some(Transfer { head, remote, shadow: Shadow { cookie, data } })
        };
        let slot = inner.ep_slots.get(handle);
        let posted = match (slot, segments) {
            // Two calls: in the first one the number of segments is known and takes no register.
            (Some(slot), [one]) => slot.post_single(
                handle,
                |limits| K::limit(limits) > 0,
                || {
                    // The segment first: its look-up takes more registers.
                    let segment = inner.keys.segment(one)?;
                    Some((transfer()?, segment))
                },
            ),
            (Some(slot), several) => transfer().and_then(|transfer| {
                slot.post_many(handle, K::limit, &transfer, several, |piece| inner.keys.segment(piece))
            }),
            (None, _) => None,
        };
        match posted {
            Some(()) => Ok(()),
            None => self.post_slowly::<K>(ep, segments, cookie, flags, remote),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_slowly<K: Kind>(
        &self,
        ep: EpHandle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
        remote: RemoteWords,
    ) -> Result<()> {
        let inner = &self.inner;
        inner.post_to(ep, |ep| {
            if ep.is_ud() {
                return Err(INVALID);
            }
            ep.check_flags(flags, completion::OF_REQUESTS)?;
            let encoded = K::FLAGS.get(flags.bits() as usize).filter(|encoded| encoded.data != REFUSED);
            let Encoded { data, head } = *encoded.ok_or(parameter(Subtype::None))?;
            let transfer = Transfer { head, remote, shadow: Shadow { cookie, data } };
            ep.post(inner, &transfer.request(K::DIRECTION), segments, K::limit(&ep.segments))
        })
    }

    /// Posts a Send of all segments, in order, as one message; no segments make an empty one.
    ///
    /// In DISCONNECTED the request is flushed. A bad segment is a completion error. Flags: see
    /// [`CompletionFlags`]; `UNSIGNALLED` only if the endpoint's requests have it.
    ///
    /// Errors: `InvalidHandle` (also a datagram endpoint), `InvalidParameter` (more segments than
    /// the endpoint's `max_request_iov`, flags), `InvalidState` (neither CONNECTED nor
    /// DISCONNECTED), `InsufficientResources` (as many requests as the endpoint can have are
    /// outstanding). Does not block. May be called in upcalls. Thread-safe. dat_ep_post_send.
    #[doc(alias = "dat_ep_post_send")]
    #[inline]
    pub fn ep_post_send(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        user_cookie: u64,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        self.post::<Send>(ep, local_iov, user_cookie, completion_flags, RemoteWords::default())
    }

    /// Posts a Receive: the segments take one message. Allowed in every state, but not on an
    /// endpoint that takes its Receives from a shared receive queue. In DISCONNECTED the Receive is
    /// flushed, except on a datagram endpoint that the consumer disconnected: a disconnect only
    /// ends its relation to the remote endpoints.
    ///
    /// On a datagram endpoint 40 bytes with the datagram's header precede the message, so the
    /// segments need 40 bytes more than the longest message.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (more segments than `max_recv_iov`; flags: only
    /// `UNSIGNALLED` is allowed, if the endpoint's Receives have it), `InvalidState` (subtype
    /// `InvalidStateSrqInUse`: it has a shared receive queue), `InsufficientResources`. Does not
    /// block. May be called in upcalls. Thread-safe. dat_ep_post_recv.
    #[doc(alias = "dat_ep_post_recv")]
    #[inline]
    pub fn ep_post_recv(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        user_cookie: u64,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        if let [one] = local_iov
            && self.post_single_recv(ep, one, user_cookie, completion_flags).is_some()
        {
            return Ok(());
        }
        self.post_recv_slowly(ep, local_iov, user_cookie, completion_flags)
    }

    /// Posts a Receive of one segment. `None`: nothing was posted.
    #[inline(always)]
    fn post_single_recv(
        &self,
        ep: EpHandle,
        segment: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> Option<()> {
        let inner = &self.inner;
        inner.adapter.check().ok()?;
        let entry = inner.eps.try_lock(ep)?;
        let ep = entry.object()?;
        let shadow = Shadow { cookie, data: ep.receive_word(flags)? };
        ep.qp.post_single_receive(|| inner.keys.segment(segment), shadow)
    }

    #[inline(never)]
    fn post_recv_slowly(
        &self,
        ep: EpHandle,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<()> {
        let inner = &self.inner;
        inner.post_to(ep, |ep| {
            let data = ep.receive_word(flags).ok_or(parameter(Subtype::InvalidArg5))?;
            ep.post_recv(inner, segments, Shadow { cookie, data })
        })
    }

    /// Posts an RDMA Write of all segments, in order, to the peer's memory.
    ///
    /// In DISCONNECTED the request is flushed. A bad segment or remote address is a completion
    /// error.
    ///
    /// Errors: as [`Ia::ep_post_send`], with `max_rdma_write_iov` segments. Does not block. May be
    /// called in upcalls. Thread-safe. dat_ep_post_rdma_write.
    #[doc(alias = "dat_ep_post_rdma_write")]
    #[inline]
    pub fn ep_post_rdma_write(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        user_cookie: u64,
        remote_iov: &RmrTriplet,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        self.post::<Write>(ep, local_iov, user_cookie, completion_flags, remote_iov.words())
    }

    /// Posts an RDMA Read from the peer's memory to all segments, in order.
    ///
    /// In DISCONNECTED the request is flushed. A bad segment or remote address is a completion
    /// error; so is a Read of an endpoint whose `max_rdma_read_out` is 0.
    ///
    /// Errors: as [`Ia::ep_post_send`], with `max_rdma_read_iov` segments. Does not block. May be
    /// called in upcalls. Thread-safe. dat_ep_post_rdma_read.
    #[doc(alias = "dat_ep_post_rdma_read")]
    #[inline]
    pub fn ep_post_rdma_read(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        user_cookie: u64,
        remote_iov: &RmrTriplet,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        self.post::<Read>(ep, local_iov, user_cookie, completion_flags, remote_iov.words())
    }
}
