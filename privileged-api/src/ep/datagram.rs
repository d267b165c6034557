//! Posting datagrams (pages it_post_sendto, it_post_recvfrom, it_dg_remote_ep_addr_t).
//!
//! As in `post`, nothing here allocates, waits or formats. A post holds the table entries of the
//! endpoint and of the address handle shared.

use kernel_agent::{DatagramAddress, Direction, Operation, Request, Shadow};

use super::post::{Encoded, FLAG_BITS, RECV_FLAGS, check_recv_flags, data, encoded, with};
use crate::address::{DgRemoteEpAddr, RemoteEpInfo};
use crate::evd::posted::Posted;
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::objects::ep::Ep;
use crate::status::{Error, Result};

/// What the flags of a datagram become.
const SENDTO: [Encoded; 1 << FLAG_BITS] =
    encoded(Direction::Send, EventType::DTO_SEND_CMPL, RECV_FLAGS.union(DtoFlags::SOLICITED_WAIT));

impl Ep {
    #[inline(always)]
    fn post_sendto(
        &self,
        core: &Core,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: &DgRemoteEpAddr,
        operation: impl FnOnce(DatagramAddress) -> Operation,
    ) -> Result<()> {
        let Encoded { data, head } = Encoded::of(flags, &SENDTO)?;
        if !self.is_ud() {
            return Err(Error::InvalidEpType);
        }
        if segments.len() > self.limits.segments.send as usize {
            return Err(Error::InvalidNumSegments);
        }
        let DgRemoteEpAddr::IbUd { addr, ep_info: RemoteEpInfo { ud_ep_id, ud_ep_key } } = *remote;
        let vector = core
            .addrs
            .with(addr, |address| address.is_in(&self.zone).then(|| address.to(ud_ep_id, ud_ep_key)));
        let to = vector.flatten().ok_or(Error::InvalidAh)?;
        let shadow = Shadow { cookie, data: data | with(Posted::DATAGRAM) };
        let request = Request { operation: operation(to), flags: head.flags(), shadow };
        match self.qp()?.post(&request, segments, |triplet| core.segment(triplet)) {
            Ok(_) => Ok(()),
            Err(error) => Err(core.not_posted(error)),
        }
    }

    fn post_recvfrom(
        &self,
        core: &Core,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
    ) -> Result<()> {
        check_recv_flags(flags)?;
        if !self.is_ud() {
            return Err(Error::InvalidEpType);
        }
        if segments.is_empty() || segments.len() > self.limits.receive_segments {
            return Err(Error::InvalidNumSegments);
        }
        let shadow = Shadow { cookie, data: data(flags, EventType::DTO_UD_RECV_CMPL) };
        match self.qp()?.post_receive(false, segments, |triplet| core.segment(triplet), shadow) {
            Ok(()) => Ok(()),
            Err(error) => Err(core.not_posted(error)),
        }
    }
}

impl Ia {
    /// Posts a Send of all segments, in order, as one datagram to a remote endpoint; no segments
    /// make an empty datagram.
    ///
    /// Completes as `IT_DTO_SEND_CMPL_EVENT` on the endpoint's request EVD once the datagram is
    /// sent; nothing reports whether it arrives. A bad segment, a message that is too long, and an
    /// endpoint ID of more than 24 bits are completion errors. The address handle must be of the
    /// endpoint's protection zone. A `ud_ep_key` with the top bit set stands for the endpoint's own
    /// key (InfiniBand's rule). In NONOPERATIONAL the request is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpType`, `InvalidNumSegments`, `InvalidAh`
    /// (also one of another protection zone), `TooManyPosts`, `InvalidLmr` (the direct LMR handle
    /// on an IA that lacks it), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe. Page it_post_sendto.
    #[doc(alias = "it_post_sendto")]
    #[inline(always)]
    pub fn post_sendto(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        remote_ep_addr: &DgRemoteEpAddr,
    ) -> Result<()> {
        let core = self.live()?;
        let operation = |to| Operation::Datagram { to };
        // Not by `post_to`: compilers make a routine of a closure that two callers pass.
        let posted = match core.eps.lock(ep).as_ref().and_then(|entry| entry.object()) {
            Some(ep) => ep.post_sendto(core, local_segments, cookie, dto_flags, remote_ep_addr, operation),
            None => Err(Error::InvalidEp),
        };
        core.posted(posted)
    }

    /// Posts a Send as [`Ia::post_sendto`] does, with 32 bits of immediate data, which are on the
    /// wire in network byte order. An extension of the API: the receiver's completion is the same
    /// as without immediate data, and [`Ia::evd_dequeue_extended`] returns the number there.
    ///
    /// Errors: as [`Ia::post_sendto`]. Does not block. May be called in callbacks. Thread-safe.
    pub fn post_sendto_immediate(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        remote_ep_addr: &DgRemoteEpAddr,
        immediate: u32,
    ) -> Result<()> {
        let core = self.live()?;
        core.post_to(ep, |ep| {
            let operation = |to| Operation::DatagramImmediate { to, immediate };
            ep.post_sendto(core, local_segments, cookie, dto_flags, remote_ep_addr, operation)
        })
    }

    /// Posts a Receive for one datagram. 40 bytes with the datagram's header precede the message
    /// ([`DtoUdFlags::IB_GRH_PRESENT`](crate::DtoUdFlags::IB_GRH_PRESENT)); `transferred_length`
    /// counts them.
    ///
    /// Needs [`DtoFlags::COMPLETION`]. Completes as `IT_DTO_UD_RECV_CMPL_EVENT` on the endpoint's
    /// receive EVD. A datagram that does not fit, or is longer than the endpoint's payload size, is
    /// lost, as is one for which no Receive is posted, and nothing reports it: the Receive waits
    /// for the next. In NONOPERATIONAL the Receive is flushed.
    ///
    /// Errors: `InvalidDtoFlags`, `InvalidEp`, `InvalidEpType`, `InvalidNumSegments` (also none),
    /// `TooManyPosts`, `InvalidLmr` (the direct LMR handle on an IA that lacks it), `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_post_recvfrom.
    #[doc(alias = "it_post_recvfrom")]
    #[inline]
    pub fn post_recvfrom(
        &self,
        ep: EpHandle,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        let core = self.live()?;
        core.post_to(ep, |ep| ep.post_recvfrom(core, local_segments, cookie, dto_flags))
    }
}
