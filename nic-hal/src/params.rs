//! What queues are created with, and what their creation returns.

use nic_abi::admin::{CqFlags, QpFlags, QpType};

use crate::{Lease, ReceiveQueue, SendQueue, ViQueue};

/// What a completion queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct CqParams {
    /// Entries as a power of two.
    pub log_entries: u32,
    /// The event queue.
    pub eq: u32,
    /// The device repeats it in events.
    pub generation: u32,
    /// Fixed properties.
    pub flags: CqFlags,
}

/// What a shared receive queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct SrqParams {
    /// Receives outstanding at most.
    pub max_requests: u32,
    /// Segments of a receive at most.
    pub max_segments: u32,
    /// The protection domain.
    pub pd: u32,
    /// The device repeats it in events.
    pub generation: u32,
    /// The device raises an event when fewer entries than this are left; 0 means never.
    pub limit: u32,
    /// The event queue.
    pub eq: u32,
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpParams {
    /// The type of service.
    pub qp_type: QpType,
    /// Fixed properties; the driver sets [`QpFlags::SRQ`] by `srq`.
    pub flags: QpFlags,
    /// The protection domain.
    pub pd: u32,
    /// The device repeats it in completions and events.
    pub generation: u32,
    /// CQ of the send queue.
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub receive_cq: u32,
    /// The shared receive queue that replaces the receive queue.
    pub srq: Option<u32>,
    /// Requests outstanding at most.
    pub max_send_requests: u32,
    /// Segments of a request at most.
    pub max_send_segments: u32,
    /// Receives outstanding at most.
    pub max_receive_requests: u32,
    /// Segments of a receive at most.
    pub max_receive_segments: u32,
    /// Event queue for the queue pair's events.
    pub eq: u32,
    /// Payload of one message at most.
    pub max_message: u64,
    /// The name under which it binds narrow windows; 0 for a name of its own.
    pub owner: u64,
}

/// A queue pair's rings.
pub struct QpRings {
    /// The send queue.
    pub send: SendQueue,
    /// The receive queue, unless the queue pair uses an SRQ.
    pub receive: Option<ReceiveQueue>,
    /// For how long the device uses the rings.
    pub lease: Lease,
}

/// What a virtual interface is created with. Of each pair, the first is the send queue's, the
/// second the receive queue's.
#[derive(Clone, Copy, Debug)]
pub struct ViParams {
    /// The protection domain.
    pub pd: u32,
    /// The device repeats it in completions and events.
    pub generation: u32,
    /// The CQs, if the queues are tied to such; with [`CqFlags::VI`].
    pub cqs: [Option<u32>; 2],
    /// Descriptors that can be on each queue.
    pub entries: [u32; 2],
    /// Event queue for completions on a queue without a CQ that is armed.
    pub completions_eq: u32,
    /// Event queue for the virtual interface's errors.
    pub errors_eq: u32,
    /// Payload of one message at most.
    pub max_message: u64,
}

/// A virtual interface's queues.
pub struct ViRings {
    /// The send queue and the receive queue.
    pub queues: [ViQueue; 2],
    /// For how long the device uses the rings.
    pub lease: Lease,
}
