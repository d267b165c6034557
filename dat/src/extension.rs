//! The InfiniBand extensions' work requests, and the common entry point of all of them.

use privileged_api as it;

use crate::ep::{too_long, wrong};
use crate::error::{MODEL, handle, parameter};
use crate::event::IbAddrHandle;
use crate::flags::{CompletionFlags, EpState};
use crate::handle::{EpHandle, Handle};
use crate::ia::{Ia, Inner};
use crate::ret::{Error, ErrorType, Result, Subtype};
use crate::segment::{LmrTriplet, RmrTriplet, total};

/// An operation of the extensions.
#[doc(alias = "DAT_IB_OP")]
#[doc(alias = "DAT_EXTENDED_OP")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbOp(pub u32);

impl IbOp {
    /// [`Ia::ib_post_fetch_and_add`].
    #[doc(alias = "DAT_IB_FETCH_AND_ADD_OP")]
    pub const FETCH_AND_ADD: IbOp = IbOp(0);
    /// [`Ia::ib_post_cmp_and_swap`].
    #[doc(alias = "DAT_IB_CMP_AND_SWAP_OP")]
    pub const CMP_AND_SWAP: IbOp = IbOp(1);
    /// [`Ia::ib_post_rdma_write_with_immed`].
    #[doc(alias = "DAT_IB_RDMA_WRITE_IMMED_OP")]
    pub const RDMA_WRITE_IMMED: IbOp = IbOp(2);
    /// [`Ia::ib_post_send_ud`].
    #[doc(alias = "DAT_IB_UD_SEND_OP")]
    pub const UD_SEND: IbOp = IbOp(3);
}

/// The arguments of an operation of the extensions, beside the handle.
#[derive(Clone, Copy, Debug)]
pub enum IbArguments<'a> {
    /// Of [`IbOp::FETCH_AND_ADD`].
    FetchAndAdd {
        /// What is added.
        add_value: u64,
        /// Where the former value goes.
        local_iov: &'a LmrTriplet,
        /// The completion's cookie.
        user_cookie: u64,
        /// The remote value.
        remote_iov: &'a RmrTriplet,
        /// Flags.
        completion_flags: CompletionFlags,
    },
    /// Of [`IbOp::CMP_AND_SWAP`].
    CmpAndSwap {
        /// The value that the remote value is compared with.
        cmp_value: u64,
        /// What replaces it if it is equal.
        swap_value: u64,
        /// Where the former value goes.
        local_iov: &'a LmrTriplet,
        /// The completion's cookie.
        user_cookie: u64,
        /// The remote value.
        remote_iov: &'a RmrTriplet,
        /// Flags.
        completion_flags: CompletionFlags,
    },
    /// Of [`IbOp::RDMA_WRITE_IMMED`].
    RdmaWriteImmed {
        /// What is written.
        local_iov: &'a [LmrTriplet],
        /// The completion's cookie.
        user_cookie: u64,
        /// Where it is written.
        remote_iov: &'a RmrTriplet,
        /// The immediate data.
        immediate_data: u32,
        /// Flags.
        completion_flags: CompletionFlags,
    },
    /// Of [`IbOp::UD_SEND`].
    UdSend {
        /// The datagram.
        local_iov: &'a [LmrTriplet],
        /// The remote endpoint.
        ah: &'a IbAddrHandle,
        /// The completion's cookie.
        cookie: u64,
        /// Flags.
        completion_flags: CompletionFlags,
    },
}

impl Ia {
    /// Performs an operation of the extensions: makes the call `ib_post_…` that it names.
    ///
    /// Errors: `ModelNotSupported` (the interface offers no extensions), `NotImplemented` (an
    /// operation that this provider does not know), `InvalidParameter` (the arguments of another
    /// operation), and those of the operation. Does not block. May be called in upcalls.
    /// Thread-safe. dat_extension_op.
    #[doc(alias = "dat_extension_op")]
    #[doc(alias = "DAT_EXTENSION_FUNC")]
    pub fn extension_op(&self, on: Handle, op: IbOp, arguments: &IbArguments<'_>) -> Result<()> {
        self.inner.extended()?;
        let ep = EpHandle::from_raw(on.as_raw());
        match (op, *arguments) {
            (
                IbOp::FETCH_AND_ADD,
                IbArguments::FetchAndAdd { add_value, local_iov, user_cookie, remote_iov, completion_flags },
            ) => self.ib_post_fetch_and_add(
                ep,
                add_value,
                local_iov,
                user_cookie,
                remote_iov,
                completion_flags,
            ),
            (
                IbOp::CMP_AND_SWAP,
                IbArguments::CmpAndSwap {
                    cmp_value,
                    swap_value,
                    local_iov,
                    user_cookie,
                    remote_iov,
                    completion_flags,
                },
            ) => self.ib_post_cmp_and_swap(
                ep,
                cmp_value,
                swap_value,
                local_iov,
                user_cookie,
                remote_iov,
                completion_flags,
            ),
            (
                IbOp::RDMA_WRITE_IMMED,
                IbArguments::RdmaWriteImmed {
                    local_iov,
                    user_cookie,
                    remote_iov,
                    immediate_data,
                    completion_flags,
                },
            ) => self.ib_post_rdma_write_with_immed(
                ep,
                local_iov,
                user_cookie,
                remote_iov,
                immediate_data,
                completion_flags,
            ),
            (IbOp::UD_SEND, IbArguments::UdSend { local_iov, ah, cookie, completion_flags }) => {
                self.ib_post_send_ud(ep, local_iov, ah, cookie, completion_flags)
            }
            (IbOp(0..=3), _) => Err(parameter(Subtype::InvalidArg3)),
            _ => Err(ErrorType::NotImplemented.into()),
        }
    }

    /// Posts an RDMA Write of all segments, in order, with 32 bits of immediate data. The Write
    /// takes one of the peer's Receives, whose segments it does not use, and completes that Receive
    /// when the data is in the peer's memory. The peer reads the number that is given here,
    /// whatever the byte orders of the hosts.
    ///
    /// Completes as [`IB_DTO`](crate::EventNumber::IB_DTO) with
    /// [`IB_RDMA_WRITE_IMMED`](crate::Dto::IB_RDMA_WRITE_IMMED), at the peer with
    /// [`IB_RECV_IMMED`](crate::Dto::IB_RECV_IMMED). In DISCONNECTED it is flushed. A bad segment
    /// or remote address is a completion error, which breaks the connection; the peer's Receive
    /// then does not complete as received.
    ///
    /// Errors: `ModelNotSupported` (the interface offers no extensions), `InvalidHandle` (also a
    /// datagram endpoint), `InvalidParameter` (more segments than `max_rdma_write_iov`; flags:
    /// `UNSIGNALLED` only if the endpoint's requests have it), `InvalidState` (neither CONNECTED
    /// nor DISCONNECTED), `InsufficientResources`. Does not block. May be called in upcalls.
    /// Thread-safe. IB extensions 2.1.4.
    #[doc(alias = "dat_ib_post_rdma_write_with_immed")]
    #[doc(alias = "dat_ib_post_rdma_write_immed")]
    #[inline]
    pub fn ib_post_rdma_write_with_immed(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        user_cookie: u64,
        remote_iov: &RmrTriplet,
        immediate_data: u32,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        self.inner.extended()?;
        let flags = self.inner.request_flags(ep, completion_flags)?;
        let ((at, context), segments) = (remote_iov.inner(), LmrTriplet::inner(local_iov));
        let inner = ep.inner();
        let posted = self.it.post_rdma_write_immediate(
            inner,
            segments,
            user_cookie,
            flags,
            at,
            context,
            immediate_data,
        );
        posted.map_err(|error| self.inner.not_posted(ep, error))
    }

    /// Posts an atomic compare and swap: if the remote value is `cmp_value`, `swap_value` replaces
    /// it. In both cases the former value goes to the first eight bytes of `local_iov`.
    ///
    /// Values are in host byte order on both sides. The remote operand is eight bytes on an eight
    /// byte boundary, in a region that allows remote reads, writes and atomics. The operation is
    /// atomic with respect to all other atomics of that adapter, and to those of its host's
    /// processors. Completes as [`IB_DTO`](crate::EventNumber::IB_DTO) with
    /// [`IB_CMP_SWAP`](crate::Dto::IB_CMP_SWAP); the peer gets no event. In DISCONNECTED it is
    /// flushed. `SOLICITED_WAIT` has no effect. A bad segment, a bad or misaligned remote address,
    /// and an endpoint whose `max_rdma_read_out` is 0 are completion errors.
    ///
    /// Errors: `ModelNotSupported` (the interface lacks atomics), `InvalidHandle` (also a datagram
    /// endpoint), `LengthError` (a local segment of fewer than eight bytes), `InvalidParameter`
    /// (flags), `InvalidState` (neither CONNECTED nor DISCONNECTED), `InsufficientResources`. Does
    /// not block. May be called in upcalls. Thread-safe. IB extensions 2.2.5.1.
    #[doc(alias = "dat_ib_post_cmp_and_swap")]
    #[expect(clippy::too_many_arguments, reason = "those of dat_ib_post_cmp_and_swap")]
    #[inline]
    pub fn ib_post_cmp_and_swap(
        &self,
        ep: EpHandle,
        cmp_value: u64,
        swap_value: u64,
        local_iov: &LmrTriplet,
        user_cookie: u64,
        remote_iov: &RmrTriplet,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        let swap = (it::AtomicOp::CompareAndSwap, swap_value, cmp_value);
        // An atomic takes no Receive of the peer, so nothing can be solicited.
        let flags = completion_flags.difference(CompletionFlags::SOLICITED_WAIT);
        self.atomic(ep, swap, local_iov, user_cookie, remote_iov, flags)
    }

    /// Posts an atomic fetch and add: `add_value` is added to the remote value, with wrap-around,
    /// and the former value goes to the first eight bytes of `local_iov`.
    ///
    /// Otherwise as [`Ia::ib_post_cmp_and_swap`], but it completes with
    /// [`IB_FETCH_ADD`](crate::Dto::IB_FETCH_ADD), and `SOLICITED_WAIT` is refused.
    ///
    /// Errors: as [`Ia::ib_post_cmp_and_swap`]. Does not block. May be called in upcalls.
    /// Thread-safe. IB extensions 2.2.5.2.
    #[doc(alias = "dat_ib_post_fetch_and_add")]
    #[inline]
    pub fn ib_post_fetch_and_add(
        &self,
        ep: EpHandle,
        add_value: u64,
        local_iov: &LmrTriplet,
        user_cookie: u64,
        remote_iov: &RmrTriplet,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        let add = (it::AtomicOp::FetchAndAdd, add_value, 0);
        self.atomic(ep, add, local_iov, user_cookie, remote_iov, completion_flags)
    }

    /// Posts a Send of all segments, in order, as one datagram to a remote endpoint that was
    /// resolved ([`Ia::ep_connect`], [`Ia::cr_accept`]).
    ///
    /// Completes as [`IB_DTO`](crate::EventNumber::IB_DTO) with
    /// [`IB_SEND_UD`](crate::Dto::IB_SEND_UD) once the datagram is sent; the sender does not find
    /// out whether it arrives. The address handle has to be of the endpoint's zone. A bad segment
    /// is a completion error, after which the endpoint is in DISCONNECTED.
    ///
    /// Errors: `ModelNotSupported` (the interface lacks datagrams), `InvalidHandle` (EP: also an
    /// endpoint for connections; the address handle), `InvalidParameter` (more segments than
    /// `max_request_iov`; flags: no fence, and `UNSIGNALLED` only if the endpoint's requests have
    /// it), `InvalidState` (not CONNECTED: no remote endpoint is resolved, or it is disconnected),
    /// `LengthError` (longer than the endpoint's `max_message_size`, which is at most the port's
    /// MTU), `InsufficientResources`. Does not block. May be called in upcalls. Thread-safe. IB
    /// extensions 2.3.4.
    #[doc(alias = "dat_ib_post_send_ud")]
    #[inline]
    pub fn ib_post_send_ud(
        &self,
        ep: EpHandle,
        local_iov: &[LmrTriplet],
        ah: &IbAddrHandle,
        cookie: u64,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        let inner = &self.inner;
        if total(local_iov) >= too_long(inner.configs.get(ep)) {
            return Err(inner.cannot_send(ep));
        }
        let flags = inner.request_flags(ep, completion_flags)?;
        let ep_info = it::RemoteEpInfo { ud_ep_id: ah.qpn, ud_ep_key: ah.qkey };
        let to = it::DgRemoteEpAddr::IbUd { addr: ah.ah.inner(), ep_info };
        let posted = self.it.post_sendto(ep.inner(), LmrTriplet::inner(local_iov), cookie, flags, &to);
        posted.map_err(|error| match error {
            it::Error::InvalidAh => handle(Subtype::InvalidHandle2),
            other => inner.not_posted(ep, other),
        })
    }

    #[inline(always)]
    fn atomic(
        &self,
        ep: EpHandle,
        (op, value, compare): (it::AtomicOp, u64, u64),
        local_iov: &LmrTriplet,
        cookie: u64,
        remote_iov: &RmrTriplet,
        completion_flags: CompletionFlags,
    ) -> Result<()> {
        if !self.inner.offers.atomics() {
            return Err(MODEL);
        }
        let flags = self.inner.request_flags(ep, completion_flags)?;
        if local_iov.segment_length() < 8 {
            self.inner.ep(ep)?;
            return Err(Error::new(ErrorType::LengthError, Subtype::None));
        }
        let (at, context) = remote_iov.inner();
        let result = &LmrTriplet::inner(core::slice::from_ref(local_iov))[0];
        let posted = self.it.post_atomic(ep.inner(), op, value, compare, result, cookie, flags, at, context);
        posted.map_err(|error| self.inner.not_posted(ep, error))
    }
}

impl Inner {
    /// Why an endpoint cannot send a datagram.
    #[cold]
    #[inline(never)]
    fn cannot_send(&self, ep: EpHandle) -> Error {
        if !self.offers.datagrams() {
            return MODEL;
        }
        let found = match self.ep(ep) {
            Ok(found) => found,
            Err(error) => return error,
        };
        if !found.is_ud() {
            return handle(Subtype::InvalidHandleEp);
        }
        match self.ep_state(&found) {
            Ok(EpState::Connected) => Error::new(ErrorType::LengthError, Subtype::None),
            Ok(now) => wrong(now),
            Err(error) => error,
        }
    }
}
