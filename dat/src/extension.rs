//! The InfiniBand extensions' work requests, and the common entry point of all of them.

use kernel_agent::{Operation, Request, Segment, SendFlags, Shadow};

use crate::completion::{self, COMBINATIONS, data, send_flags};
use crate::error::{MODEL, handle, parameter};
use crate::event::IbAddrHandle;
use crate::flags::{CompletionFlags, EpState};
use crate::handle::{EpHandle, Handle};
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Ep, wrong};
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
        let inner = &self.inner;
        inner.extended()?;
        inner.post_to(ep, |ep| {
            ep.for_connections()?;
            ep.check_flags(completion_flags, completion::OF_REQUESTS)?;
            let (to, immediate) = (remote_iov.words().remote(), Some(immediate_data));
            let operation = Operation::Write { to, immediate };
            let request =
                request(operation, completion::Operation::WriteImmediate, user_cookie, completion_flags);
            ep.post(inner, &request, local_iov, ep.segments.write)
        })
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
        // An atomic takes no Receive of the peer, so nothing can be solicited.
        let flags = completion_flags.difference(CompletionFlags::SOLICITED_WAIT);
        let remote = remote_iov.words().remote();
        let operation = |sink| Operation::CompareSwap { remote, sink, compare: cmp_value, swap: swap_value };
        self.atomic(ep, operation, completion::Operation::CompareSwap, local_iov, user_cookie, flags)
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
        let remote = remote_iov.words().remote();
        let operation = |sink| Operation::FetchAdd { remote, sink, add: add_value };
        self.atomic(ep, operation, completion::Operation::FetchAdd, local_iov, user_cookie, completion_flags)
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
        inner.post_to(ep, |ep| {
            if !ep.sends_datagram(total(local_iov)) {
                return Err(cannot_send(inner, ep));
            }
            // A datagram has no RDMA Reads before it.
            const ALLOWED: CompletionFlags =
                completion::OF_REQUESTS.difference(CompletionFlags::BARRIER_FENCE);
            ep.check_flags(completion_flags, ALLOWED)?;
            let vector = inner.addresses.with(ah.ah, |address| address.to(ah.qpn, ah.qkey, ep.zone()));
            if local_iov.len() > ep.segments.send as usize {
                return Err(parameter(Subtype::None));
            }
            let to = vector.flatten().ok_or(handle(Subtype::InvalidHandle2))?;
            let operation = Operation::Datagram { to };
            let of = completion::Operation::SendDatagram;
            let request = request(operation, of, cookie, completion_flags);
            match ep.qp.post(&request, local_iov, |piece| inner.segment(piece)) {
                Ok(_) => Ok(()),
                Err(error) => Err(ep.not_posted(error)),
            }
        })
    }

    /// Posts an atomic operation, whose result goes to `local_iov`.
    #[inline(always)]
    fn atomic(
        &self,
        ep: EpHandle,
        operation: impl FnOnce(Segment) -> Operation,
        of: completion::Operation,
        local_iov: &LmrTriplet,
        cookie: u64,
        flags: CompletionFlags,
    ) -> Result<()> {
        let inner = &self.inner;
        if !inner.offers.atomics() {
            return Err(MODEL);
        }
        inner.post_to(ep, |ep| {
            const ALLOWED: CompletionFlags =
                completion::OF_REQUESTS.difference(CompletionFlags::SOLICITED_WAIT);
            ep.check_flags(flags, ALLOWED)?;
            if local_iov.segment_length() < BYTES {
                return Err(Error::new(ErrorType::LengthError, Subtype::None));
            }
            ep.for_connections()?;
            ep.takes_requests()?;
            // The device uses the first eight bytes of a longer buffer.
            let sink = Segment { length: BYTES as u32, ..inner.segment(local_iov) };
            let request = request(operation(sink), of, cookie, flags);
            match ep.qp.post_plain(&request) {
                Ok(_) => Ok(()),
                Err(error) => Err(ep.not_posted(error)),
            }
        })
    }
}

/// The bytes of an atomic operation.
const BYTES: u64 = 8;

/// What the flags of a call become, by their bits.
const SEND_FLAGS: [SendFlags; COMBINATIONS] = {
    let mut table = [SendFlags::empty(); COMBINATIONS];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = send_flags(CompletionFlags::from_bits_retain(bits as u32));
        bits += 1;
    }
    table
};

/// A request with flags that were checked.
#[inline(always)]
fn request(operation: Operation, of: completion::Operation, cookie: u64, flags: CompletionFlags) -> Request {
    let data = data(of, flags);
    let flags = SEND_FLAGS.get(flags.bits() as usize).copied().unwrap_or(SendFlags::empty());
    Request { operation, flags, shadow: Shadow { cookie, data } }
}

impl Ep {
    /// Fails for a datagram endpoint.
    fn for_connections(&self) -> Result<()> {
        if self.is_ud() { Err(handle(Subtype::InvalidHandleEp)) } else { Ok(()) }
    }
}

/// Why an endpoint cannot send a datagram.
#[cold]
#[inline(never)]
fn cannot_send(inner: &Inner, ep: &Ep) -> Error {
    if !inner.offers.datagrams() {
        return MODEL;
    }
    if !ep.is_ud() {
        return handle(Subtype::InvalidHandleEp);
    }
    match inner.ep_state(ep) {
        EpState::Connected => Error::new(ErrorType::LengthError, Subtype::None),
        now => wrong(now),
    }
}
