//! Posting ordinary work requests (dat_ep_post_send, dat_ep_post_recv, dat_ep_post_rdma_write,
//! dat_ep_post_rdma_read).
//!
//! A DAT post is an IT-API post, with the flags translated by a table. Only a request with
//! `UNSIGNALLED` reads the endpoint's own flags first.

use privileged_api as it;

use super::{Configs, RECEIVES_SOLICITED, RECEIVES_UNSIGNALLED, REQUESTS_UNSIGNALLED, wrong};
use crate::error::{handle, of, parameter, state};
use crate::flags::CompletionFlags;
use crate::handle::EpHandle;
use crate::ia::{Ia, Inner};
use crate::ret::{Error, Result, Subtype};
use crate::segment::{LmrTriplet, RmrTriplet};

/// IT-API's flags of a request, indexed by DAT's.
const REQUEST: [it::DtoFlags; 16] = {
    let mut table = [it::DtoFlags::empty(); 16];
    let mut bits = 0;
    while bits < table.len() {
        let flags = CompletionFlags::from_bits_retain(bits as u32);
        let mut inner = it::DtoFlags::empty();
        if !flags.contains(CompletionFlags::SUPPRESS) {
            inner = inner.union(it::DtoFlags::COMPLETION);
            if !flags.contains(CompletionFlags::UNSIGNALLED) {
                inner = inner.union(it::DtoFlags::NOTIFY);
            }
        }
        if flags.contains(CompletionFlags::SOLICITED_WAIT) {
            inner = inner.union(it::DtoFlags::SOLICITED_WAIT);
        }
        if flags.contains(CompletionFlags::BARRIER_FENCE) {
            inner = inner.union(it::DtoFlags::BARRIER_FENCE);
        }
        table[bits] = inner;
        bits += 1;
    }
    table
};

impl Inner {
    /// IT-API's flags of a request. Fails for flags that no request has, and for `UNSIGNALLED`
    /// unless the endpoint's requests have it.
    #[inline(always)]
    pub(crate) fn request_flags(&self, ep: EpHandle, flags: CompletionFlags) -> Result<it::DtoFlags> {
        match REQUEST.get(flags.bits() as usize) {
            Some(inner) if !flags.contains(CompletionFlags::UNSIGNALLED) => Ok(*inner),
            _ => self.rare_flags(ep, flags),
        }
    }

    #[cold]
    #[inline(never)]
    fn rare_flags(&self, ep: EpHandle, flags: CompletionFlags) -> Result<it::DtoFlags> {
        self.ep(ep)?;
        match REQUEST.get(flags.bits() as usize) {
            Some(inner) if self.configs.get(ep) & REQUESTS_UNSIGNALLED != 0 => Ok(*inner),
            _ => Err(parameter(Subtype::None)),
        }
    }

    /// The error of a post.
    #[cold]
    #[inline(never)]
    pub(crate) fn not_posted(&self, ep: EpHandle, error: it::Error) -> Error {
        match (error, self.eps.get(ep)) {
            (it::Error::InvalidEpState, Some(ep)) => match self.ep_state(&ep) {
                Ok(now) => wrong(now),
                Err(error) => error,
            },
            // The endpoint takes its Receives from a shared receive queue.
            (it::Error::InvalidSrq, _) => state(Subtype::InvalidStateSrqInUse),
            (it::Error::InvalidEp | it::Error::InvalidEpType, _) => handle(Subtype::InvalidHandleEp),
            (other, _) => of(other),
        }
    }
}

impl Configs {
    /// IT-API's flags of a Receive.
    #[inline(always)]
    fn receive_flags(&self, ep: EpHandle, flags: CompletionFlags) -> Option<it::DtoFlags> {
        const NOTIFIED: it::DtoFlags = it::DtoFlags::COMPLETION.union(it::DtoFlags::NOTIFY);
        let config = self.get(ep);
        if flags.is_empty() {
            let solicited = config & RECEIVES_SOLICITED != 0;
            return Some(if solicited { it::DtoFlags::COMPLETION } else { NOTIFIED });
        }
        let allowed = flags == CompletionFlags::UNSIGNALLED && config & RECEIVES_UNSIGNALLED != 0;
        allowed.then_some(it::DtoFlags::COMPLETION)
    }
}

impl Ia {
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
        let flags = self.inner.request_flags(ep, completion_flags)?;
        let posted = self.it.post_send(ep.inner(), LmrTriplet::inner(local_iov), user_cookie, flags);
        posted.map_err(|error| self.inner.not_posted(ep, error))
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
        // IT-API's call also takes the handle of a shared receive queue.
        if ep.claims_a_shared_queue() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        let Some(flags) = self.inner.configs.receive_flags(ep, completion_flags) else {
            return Err(self.inner.no_such_receive(ep));
        };
        let segments = LmrTriplet::inner(local_iov);
        match self.it.post_recv(ep.inner(), segments, user_cookie, flags) {
            Ok(()) => Ok(()),
            Err(it::Error::InvalidEpType) => self.post_recv_of_datagram(ep, segments, user_cookie, flags),
            Err(error) => Err(self.inner.not_posted(ep, error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_recv_of_datagram(
        &self,
        ep: EpHandle,
        segments: &[it::LmrTriplet],
        user_cookie: u64,
        flags: it::DtoFlags,
    ) -> Result<()> {
        let posted = self.it.post_recvfrom(ep.inner(), segments, user_cookie, flags);
        posted.map_err(|error| self.inner.not_posted(ep, error))
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
        let flags = self.inner.request_flags(ep, completion_flags)?;
        let ((at, context), segments) = (remote_iov.inner(), LmrTriplet::inner(local_iov));
        let posted = self.it.post_rdma_write(ep.inner(), segments, user_cookie, flags, at, context);
        posted.map_err(|error| self.inner.not_posted(ep, error))
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
        let flags = self.inner.request_flags(ep, completion_flags)?;
        let ((at, context), segments) = (remote_iov.inner(), LmrTriplet::inner(local_iov));
        let posted = self.it.post_rdma_read(ep.inner(), segments, user_cookie, flags, at, context);
        posted.map_err(|error| self.inner.not_posted(ep, error))
    }
}

impl Inner {
    /// The error of a Receive with flags that are not allowed.
    #[cold]
    #[inline(never)]
    fn no_such_receive(&self, ep: EpHandle) -> Error {
        match self.ep(ep) {
            Ok(_) => parameter(Subtype::InvalidArg5),
            Err(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_becomes_the_other_faces() {
        use it::DtoFlags as To;
        let of = |flags: CompletionFlags| REQUEST[flags.bits() as usize];
        assert_eq!(of(CompletionFlags::DEFAULT), To::COMPLETION | To::NOTIFY);
        assert_eq!(of(CompletionFlags::SUPPRESS), To::empty());
        assert_eq!(of(CompletionFlags::UNSIGNALLED), To::COMPLETION);
        assert_eq!(of(CompletionFlags::UNSIGNALLED | CompletionFlags::SUPPRESS), To::empty());
        let both = CompletionFlags::SOLICITED_WAIT | CompletionFlags::BARRIER_FENCE;
        let all = To::COMPLETION | To::NOTIFY | To::SOLICITED_WAIT | To::BARRIER_FENCE;
        assert_eq!(
            (of(both), of(both | CompletionFlags::SUPPRESS)),
            (all, all ^ To::COMPLETION ^ To::NOTIFY)
        );
    }
}
