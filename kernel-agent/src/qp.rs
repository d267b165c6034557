//! Queue pairs (VIA: VIs).

use alloc::sync::Arc;

use nic_abi::admin::{ModifyQp, QpInfo, QpState};
use nic_abi::wqe::{AddressVector, LinkFlags, Opcode, Segment, SendFlags};
use platform::Privileged;

use crate::{Cq, Error, Link, Pd, PostError, Region, Srq, Window};

pub use nic_abi::admin::QpType;
/// Where a datagram goes.
pub type DatagramAddress = AddressVector;

/// What a queue pair is created with.
pub struct QpAttributes<'a> {
    /// Its transport: RC or UD.
    pub qp_type: QpType,
    /// With it, the queue pair may use the reserved key and link regions.
    pub privileged: Option<Privileged>,
    /// Protection domain.
    pub pd: &'a Arc<Pd>,
    /// CQ of the send queue.
    pub send_cq: &'a Arc<Cq>,
    /// CQ of the receive queue.
    pub receive_cq: &'a Arc<Cq>,
    /// Where receives come from, instead of a receive queue.
    pub srq: Option<&'a Arc<Srq>>,
    /// Send-queue requests outstanding at most.
    pub max_send_requests: u32,
    /// Segments of a send-queue request at most.
    pub max_send_segments: u32,
    /// Receives outstanding at most.
    pub max_receive_requests: u32,
    /// Segments of a receive at most.
    pub max_receive_segments: u32,
    /// Payload of one message at most; 0 stands for what the NIC allows.
    pub max_message: u64,
    /// Comes back in completions and events.
    pub context: u64,
}

/// What the poster wants back in the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The consumer's.
    pub cookie: u64,
    /// The API's.
    pub data: u32,
}

/// A send-queue request but for its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Send…, Write…, Read….
    pub opcode: Opcode,
    /// Options.
    pub flags: SendFlags,
    /// Immediate data as it goes on the wire, or the receiver's key to invalidate.
    pub immediate: u32,
    /// The remote key.
    pub remote_key: u32,
    /// The remote address.
    pub remote_addr: u64,
}

/// A queue pair. All methods may be called by any thread at any time.
pub struct Qp {}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> u32 {
        todo!()
    }

    /// Its number's slot.
    pub fn slot(&self) -> u32 {
        todo!()
    }

    /// Its generation.
    pub fn generation(&self) -> u32 {
        todo!()
    }

    /// The context given at creation.
    pub fn context(&self) -> u64 {
        todo!()
    }

    /// The state that the driver last moved it to, or learnt of by an event.
    pub fn state(&self) -> QpState {
        todo!()
    }

    /// Posts a Send, RDMA Write or RDMA Read; `segment` turns the caller's own kind of segment into the device's.
    #[inline]
    pub fn post_send<T>(
        &self,
        request: &SendRequest,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let _ = (request, segments, segment, note);
        todo!()
    }

    /// Posts a Send of a datagram.
    pub fn post_datagram<T>(
        &self,
        request: &SendRequest,
        to: &DatagramAddress,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let _ = (request, to, segments, segment, note);
        todo!()
    }

    /// Posts a compare-and-swap (`compare_add` compared, `swap` stored) or fetch-and-add (`compare_add` added).
    pub fn post_atomic(
        &self,
        request: &SendRequest,
        sink: Segment,
        compare_add: u64,
        swap: u64,
        note: Note,
    ) -> Result<(), PostError> {
        let _ = (request, sink, compare_add, swap, note);
        todo!()
    }

    /// Posts a link (fast register) of an unlinked region; returns its key with `variant`.
    /// The list is copied; the copy is in use until the request is known to have completed.
    pub fn post_link(
        &self,
        region: &Region,
        link: &Link<'_>,
        variant: u8,
        flags: SendFlags,
        note: Note,
    ) -> Result<u32, PostError> {
        let _ = (region, link, variant, flags, note);
        todo!()
    }

    /// Posts an unlink (local invalidate) of a region's or window's key.
    pub fn post_invalidate(&self, key: u32, flags: SendFlags, note: Note) -> Result<(), PostError> {
        let _ = (key, flags, note);
        todo!()
    }

    /// Posts a bind of a window to `length` bytes at `addr` of the region with key `region_key`; returns the window's
    /// key with `variant`.
    #[expect(clippy::too_many_arguments, reason = "a bind names two keys and a range")]
    pub fn post_bind(
        &self,
        window: &Window,
        variant: u8,
        region_key: u32,
        rights: LinkFlags,
        addr: u64,
        length: u64,
        flags: SendFlags,
        note: Note,
    ) -> Result<u32, PostError> {
        let _ = (window, variant, region_key, rights, addr, length, flags, note);
        todo!()
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive<T>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let _ = (solicited, segments, segment, note);
        todo!()
    }

    /// Changes state and attributes: the mask and fields as `nic_abi::admin::ModifyQp` says.
    pub fn modify(&self, modify: &ModifyQp) -> Result<(), Error> {
        let _ = modify;
        todo!()
    }

    /// RESET to INIT, with the rights that the connected peer has at all (`LinkFlags::REMOTE_*`): receives may be posted.
    pub fn to_init(&self, access: LinkFlags) -> Result<(), Error> {
        let _ = access;
        todo!()
    }

    /// Any state to ERROR: all outstanding work is flushed.
    pub fn to_error(&self) -> Result<(), Error> {
        todo!()
    }

    /// Any state to RESET: outstanding work and completions that were not polled are forgotten.
    pub fn to_reset(&self) -> Result<(), Error> {
        todo!()
    }

    /// Asks the device.
    pub fn query(&self) -> Result<QpInfo, Error> {
        todo!()
    }

    /// Requests posted and not known to have completed: of the send queue and of the receive queue.
    pub fn outstanding(&self) -> (u32, u32) {
        todo!()
    }

    /// Destroys it, ending its connection if it has one. When it returns the device touches its memory no more, and no completion of it
    /// will be polled. Never fails for a living queue pair but by the device's death, and then it is gone all the same.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}
