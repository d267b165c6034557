//! Posting to a queue pair: from a request to the ring of a send or receive queue. Posts that need
//! the queue pair's slot only are in `send_slot`.
//!
//! Nothing here allocates. Each post takes one lock, that of its queue (a send queue's is its
//! slot's), and rings the doorbell.

use alloc::sync::Arc;

use nic_abi::wqe::{LinkFlags, Segment, SendFlags};
use nic_hal::{Operation, Request, SendQueue, Shadow};

use crate::key::Outstanding as OutstandingLink;
use crate::qp::Qp;
use crate::send_slot::Sender;
use crate::slot::OwnerGuard;
use crate::{Link, PostError, Region, Window};

/// A range of a region to which a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The region's local key.
    pub region: u32,
    /// Remote rights and addressing.
    pub flags: LinkFlags,
    /// The first address in the region's address space.
    pub addr: u64,
    /// Bytes; 0 unbinds a wide window.
    pub length: u64,
}

/// Segments of a request that has none.
const NONE: [Segment; 0] = [];

impl Qp {
    #[inline]
    fn may_send<'a>(&self, guard: &'a mut OwnerGuard<'_, Arc<Sender>>) -> Result<&'a SendQueue, PostError> {
        // Read under the queue's lock: a thread that closes the queue pair to posts and takes the
        // lock afterwards knows that no post is under way.
        if guard.is_taken() {
            return Err(PostError::Busy);
        }
        match guard.queue() {
            Some(sender) if self.common.state.takes_sends() => Ok(&sender.queue),
            _ => Err(self.why_not()),
        }
    }

    #[cold]
    #[inline(never)]
    fn why_not(&self) -> PostError {
        if self.common.is_gone() { PostError::Gone } else { PostError::State }
    }

    /// Why [`SendSlot::batch`](crate::SendSlot::batch) found the slot closed.
    pub fn why_no_batch(&self) -> PostError {
        let mut guard = self.send.lock();
        match guard.queue() {
            // It was taken, or has been opened only since.
            Some(_) if self.common.state.takes_sends() => PostError::Busy,
            _ => self.why_not(),
        }
    }

    /// Posts a request to the send queue; `segment` converts the caller's kind of segment, and
    /// may refuse it. Returns the request's tag.
    ///
    /// Inlined, since most callers have a constant operation.
    #[inline(always)]
    pub fn post<T, S: Into<Option<Segment>>>(
        &self,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<u32, PostError> {
        let datagram =
            matches!(request.operation, Operation::Datagram { .. } | Operation::DatagramImmediate { .. });
        if datagram && self.kind.is_connected() {
            return Err(PostError::Kind);
        }
        let mut guard = self.send.lock();
        let queue = self.may_send(&mut guard)?;
        let tag = queue.push(&self.sends, request, segments, segment)?;
        queue.ring();
        Ok(tag)
    }

    /// Posts a request that has no segments, as [`Qp::post`] does.
    #[inline(always)]
    pub fn post_plain(&self, request: &Request) -> Result<u32, PostError> {
        self.post(request, &NONE, |&none| none)
    }

    /// Posts a link (fast register) of an unlinked region; returns the remote key that the region
    /// has when the link is complete.
    ///
    /// The list is copied. The copy is in use until the request is known to have completed.
    pub fn post_link(
        &self,
        region: &Region,
        link: &Link<'_>,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), region.client()) {
            return Err(PostError::Gone);
        }
        let (key, base, length) = (region.key(), link.base, link.memory.length());
        region.link(link, |list| {
            let operation = Operation::FastRegister { key, flags: link.flags(), base, length, list };
            let tag = self.post_plain(&Request { operation, flags, shadow })?;
            Ok(OutstandingLink { slot: self.slot(), generation: self.generation(), tag })
        })
    }

    /// Posts a bind of a window; returns the remote key that the window has when the bind is
    /// complete.
    pub fn post_bind(
        &self,
        window: &Window,
        to: Bind,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        self.post_bind_as(window, Window::next_remote, to, flags, shadow)
    }

    /// Posts a bind of a window as [`Qp::post_bind`] does, with a remote key whose low eight bits
    /// the consumer has chosen: see [`Window::reserve_choice`]. A peer that kept a key of an
    /// earlier bind can use it again if the consumer chooses the same bits.
    pub fn post_bind_chosen(
        &self,
        window: &Window,
        low: u8,
        to: Bind,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        self.post_bind_as(window, |window| window.chosen(low), to, flags, shadow)
    }

    #[inline]
    fn post_bind_as(
        &self,
        window: &Window,
        remote: impl FnOnce(&Window) -> u32,
        to: Bind,
        flags: SendFlags,
        shadow: Shadow,
    ) -> Result<u32, PostError> {
        if !Arc::ptr_eq(self.client(), window.client()) {
            return Err(PostError::Gone);
        }
        let (key, remote) = (window.key(), remote(window));
        let Bind { region, flags: rights, addr, length } = to;
        let operation = Operation::BindWindow { key, remote, region, flags: rights, addr, length };
        self.post_plain(&Request { operation, flags, shadow })?;
        Ok(remote)
    }

    /// Posts a receive of one segment: the fast path of [`Qp::post_receive`]. `None`: nothing was
    /// posted, for a reason that [`Qp::post_receive`] finds. `segment` runs under the queue's lock,
    /// at the end.
    #[inline(always)]
    pub fn post_single_receive(
        &self,
        segment: impl FnOnce() -> Option<Segment>,
        shadow: Shadow,
    ) -> Option<()> {
        let mut queue = self.receive.as_ref()?.try_lock()?;
        if !self.common.state.takes_receives() {
            return None;
        }
        queue.post_single(&self.receives, segment, shadow).ok()
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive<T, S: Into<Option<Segment>>>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
        shadow: Shadow,
    ) -> Result<(), PostError> {
        let Some(receive) = &self.receive else { return Err(PostError::Kind) };
        let mut queue = receive.lock();
        if !self.common.state.takes_receives() {
            return Err(self.why_not());
        }
        queue.push(&self.receives, solicited, segments, segment, shadow)?;
        queue.ring();
        Ok(())
    }
}
