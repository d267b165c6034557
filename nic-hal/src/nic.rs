//! What the layers above ask of a NIC, apart from its rings.

use alloc::sync::Arc;

use nic_abi::admin::{
    AllocateRegion, AllocateWindow, Bench, Injection, KeyInfo, ModifyQp, ModifyRegion, QpFlags, QpInfo,
    QpType, RegisterRegion, ShareRegion, SrqInfo,
};
use nic_abi::registers::Identity;
use platform::{DmaBuffer, Instant, Signal};

use crate::memory::{DeviceMemory, Lease};
use crate::{
    CompletionQueue, CompletionRing, Death, Error, EventQueue, ReceiveQueue, SendQueue, SharedReceiveQueue,
    SharedRing,
};

/// What a completion queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct CqParams {
    /// Entries as a power of two.
    pub log_entries: u32,
    /// The event queue.
    pub eq: u32,
    /// Comes back in events.
    pub generation: u32,
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
    /// Comes back in events.
    pub generation: u32,
    /// An event when fewer entries are left; 0 never.
    pub limit: u32,
    /// The event queue.
    pub eq: u32,
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpParams {
    /// The transport.
    pub qp_type: QpType,
    /// Fixed properties; [`QpFlags::SRQ`] follows from `srq`.
    pub flags: QpFlags,
    /// The protection domain.
    pub pd: u32,
    /// Comes back in completions and events.
    pub generation: u32,
    /// CQ of the send queue.
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub receive_cq: u32,
    /// Where receives come from instead of a receive queue.
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
}

/// A queue pair's rings.
pub struct QpRings {
    /// The send queue.
    pub send: SendQueue,
    /// The receive queue, unless there is an SRQ.
    pub receive: Option<ReceiveQueue>,
    /// For how long the device uses them.
    pub lease: Lease,
}

/// A NIC's control path. Numbers (of queues, domains, keys) are the caller's choice, within the identity's limits.
///
/// All methods may be called by any thread, not in an interrupt handler; those that talk to the device block for a
/// bounded time and fail with [`Error::DeviceDead`] from the moment of its death on.
pub trait Nic: Send + Sync {
    /// Who the device is and what it can do; judged once, at discovery.
    fn identity(&self) -> &Identity;

    /// Whether and why the device is dead.
    fn death(&self) -> Option<Death>;

    /// The word that changes with each interrupt.
    fn signal(&self) -> &Arc<Signal>;

    /// Looks at the heartbeat and the state; to be called a few times a second. A device that shows no life
    /// for `HEARTBEAT_DEAD_MS` is dead from then on.
    fn watch(&self, now: Instant);

    /// Whether the port is up.
    fn port_up(&self) -> bool;

    /// Creates an event queue; number 0 is told of answered commands.
    fn create_eq(&self, number: u32, log_entries: u32, vector: u16) -> Result<EventQueue, Error>;

    /// Destroys an event queue that no CQ uses.
    fn destroy_eq(&self, eq: &EventQueue) -> Result<(), Error>;

    /// Creates a protection domain.
    fn create_pd(&self, pd: u32) -> Result<(), Error>;

    /// Destroys a protection domain that nothing uses.
    fn destroy_pd(&self, pd: u32) -> Result<(), Error>;

    /// Registers a region. The list's memory is the caller's; the device has read it when this returns.
    fn register_region(&self, key: u32, region: &RegisterRegion) -> Result<(), Error>;

    /// Allocates an unlinked region.
    fn allocate_region(&self, key: u32, region: &AllocateRegion) -> Result<(), Error>;

    /// Destroys a region to which no window is bound.
    fn destroy_region(&self, key: u32) -> Result<(), Error>;

    /// Allocates a window.
    fn allocate_window(&self, key: u32, window: &AllocateWindow) -> Result<(), Error>;

    /// Destroys a window.
    fn destroy_window(&self, key: u32) -> Result<(), Error>;

    /// Gives a region without windows another domain, other rights, and `key` with its variant.
    fn modify_region(&self, key: u32, region: &ModifyRegion) -> Result<(), Error>;

    /// Registers a region over the memory of another.
    fn share_region(&self, key: u32, region: &ShareRegion) -> Result<(), Error>;

    /// Tells of a key.
    fn query_key(&self, key: u32) -> Result<KeyInfo, Error>;

    /// Creates a completion queue.
    fn create_cq(&self, number: u32, params: &CqParams) -> Result<CompletionQueue, Error>;

    /// Moves a completion queue to a new ring, which is returned: hand it to [`CompletionQueue::move_to`].
    fn resize_cq(&self, number: u32, log_entries: u32) -> Result<CompletionRing, Error>;

    /// Destroys a completion queue that no queue pair uses; its lease ends.
    fn destroy_cq(&self, number: u32, lease: &Lease) -> Result<(), Error>;

    /// Creates a shared receive queue.
    fn create_srq(&self, number: u32, params: &SrqParams) -> Result<SharedReceiveQueue, Error>;

    /// Memory for a shared receive queue of another size. To move one there: [`SharedReceiveQueue::begin_move`],
    /// [`SharedReceiveQueue::copy_some`] to the end, [`Nic::resize_srq`], [`SharedReceiveQueue::end_move`].
    fn shared_ring(&self, max_requests: u32, max_segments: u32) -> Result<SharedRing, Error>;

    /// Has the device go on in another ring, and sets the limit unless it is 0.
    fn resize_srq(&self, number: u32, ring: &SharedRing, limit: u32) -> Result<(), Error>;

    /// Sets a shared receive queue's limit.
    fn modify_srq(&self, number: u32, limit: u32) -> Result<(), Error>;

    /// Tells of a shared receive queue.
    fn query_srq(&self, number: u32) -> Result<SrqInfo, Error>;

    /// Destroys a shared receive queue that no queue pair uses; its lease ends.
    fn destroy_srq(&self, number: u32, lease: &Lease) -> Result<(), Error>;

    /// Creates a queue pair.
    fn create_qp(&self, qpn: u32, params: &QpParams) -> Result<QpRings, Error>;

    /// Changes a queue pair.
    fn modify_qp(&self, qpn: u32, modify: &ModifyQp) -> Result<(), Error>;

    /// Tells of a queue pair.
    fn query_qp(&self, qpn: u32) -> Result<QpInfo, Error>;

    /// Destroys a queue pair; its lease ends.
    fn destroy_qp(&self, qpn: u32, lease: &Lease) -> Result<(), Error>;

    /// Makes the device misbehave.
    fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Result<(), Error>;

    /// Runs a baseline; returns the first word of the result.
    fn bench(&self, bench: &Bench) -> Result<u64, Error>;

    /// Allocates memory for the device to use, at least `len` bytes. Start its lease before telling the device of it.
    fn allocate(&self, len: usize, align: usize) -> Result<DeviceMemory, Error>;

    /// Takes the device for dead, as one that broke the protocol: for what only the layers above can find out.
    fn condemn(&self);

    /// Wakes the device, for benchmarks: the rings kick by themselves.
    fn kick(&self);

    /// Ends all use of the device: masks interrupts and resets it. The device is dead from then on. True if it confirmed the
    /// reset; only then does memory that it was using go back to the platform.
    fn close(&self) -> bool;

    /// Keeps a buffer alive until a reset is confirmed: the device was told of it and did not confirm that it is done with it.
    fn keep(&self, buffer: Arc<DmaBuffer>);

    /// Buffers that wait for a confirmed reset.
    fn quarantined(&self) -> usize;
}
