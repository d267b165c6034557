//! Event channels, and the events that programs take from them.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;
use core::mem;
use std::ptr;
use std::sync::Arc;

use super::abi::{self, CmEvent, ConnParam, EventChannel, Param, UdParam, event};
use super::devices;
use super::identifier::{self, Inner, Unclaimed};
use crate::abi::AhAttr;
use crate::channel::EventQueue;
use crate::errno::{Errno, minus_one, pointer};

/// The events of a channel.
pub(crate) type Queue = EventQueue<Event>;

/// What an event says beside its kind and status.
pub(crate) enum Details {
    Nothing,
    /// Of a connection: as the program's own end would have them.
    Connection {
        responder_resources: u8,
        initiator_depth: u8,
        rnr_retry_count: u8,
    },
    /// Of a datagram service.
    Datagrams {
        to: AhAttr,
        qpn: u32,
        qkey: u32,
    },
    /// Of a multicast group: how to send to it, and what the program gave when it joined, as an
    /// address.
    Group {
        to: AhAttr,
        qpn: u32,
        qkey: u32,
        context: usize,
    },
}

/// An event that waits.
pub(crate) struct Event {
    /// Whose it is; of a request that of the listening identifier.
    pub(crate) of: Arc<Inner>,
    /// The new identifier of a request.
    pub(crate) request: Option<Unclaimed>,
    pub(crate) kind: c_int,
    pub(crate) status: c_int,
    pub(crate) details: Details,
    pub(crate) data: Vec<u8>,
}

/// An event that the program has taken, until it acknowledges it.
#[repr(C)]
struct Taken {
    abi: CmEvent,
    of: Arc<Inner>,
    /// The private data, to which `abi` points.
    data: Vec<u8>,
}

/// An event channel.
#[repr(C)]
struct Channel {
    abi: EventChannel,
    queue: Arc<Queue>,
}

/// The queue of a channel.
///
/// # Safety
///
/// The pointer is one that [`create`] returned.
pub(crate) unsafe fn queue<'a>(channel: *mut EventChannel) -> &'a Arc<Queue> {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &(*channel.cast::<Channel>()).queue }
}

/// Makes a channel.
pub(crate) fn create() -> Result<*mut EventChannel, Errno> {
    let queue = Queue::new()?;
    let abi = EventChannel { fd: queue.fd() };
    Ok(Box::into_raw(Box::new(Channel { abi, queue: Arc::new(queue) })).cast())
}

/// `rdma_create_event_channel`: `ENODEV` if there is no device.
pub extern "C" fn create_event_channel() -> *mut EventChannel {
    pointer(devices::all().and_then(|_| create()))
}

/// `rdma_destroy_event_channel`. A thread that waits for an event of the channel goes on waiting,
/// as with rdma-core.
///
/// # Safety
///
/// See the crate. No identifier uses the channel.
pub unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: it came from `create`.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
}

/// Takes the oldest event of a channel, as its descriptor's flags say: waits for it, or fails.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn take(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    // A clone: the channel may be destroyed while this waits.
    // SAFETY: the caller's.
    let queue = unsafe { queue(channel) }.clone();
    let Event { of, request, kind, status, details, data } =
        queue.take(|event: &Event| event.of.reported().taken())?;
    let (id, listen_id) = match request {
        None => (of.at(), ptr::null_mut()),
        Some(new) => {
            of.request_taken();
            let (new, listener) = (new.claim(), of.at());
            // SAFETY: the new identifier is this thread's; the listening one is not destroyed
            // before its events are acknowledged.
            unsafe {
                (*new).context = (*listener).context;
                // The listening one may have moved since the request came.
                if (*new).channel != channel && !identifier::of(new).state().synchronous {
                    identifier::migrate(new, channel)?;
                }
            }
            (new, listener)
        }
    };
    let param = match details {
        // Zeros, also where a datagram's parameters lie.
        // SAFETY: zeros are numbers, and a null pointer.
        Details::Nothing => unsafe { mem::zeroed() },
        Details::Connection { responder_resources, initiator_depth, rnr_retry_count } => Param {
            conn: ConnParam {
                private_data: ptr::null(),
                private_data_len: 0,
                responder_resources,
                initiator_depth,
                flow_control: 0,
                retry_count: 7,
                rnr_retry_count,
                srq: 0,
                qp_num: 0,
            },
        },
        Details::Group { to, qpn, qkey, context } => Param {
            ud: UdParam {
                private_data: ptr::with_exposed_provenance(context),
                private_data_len: 0,
                ah_attr: to,
                qp_num: qpn,
                qkey,
            },
        },
        Details::Datagrams { to, qpn, qkey } => Param {
            ud: UdParam { private_data: ptr::null(), private_data_len: 0, ah_attr: to, qp_num: qpn, qkey },
        },
    };
    let abi = CmEvent { id, listen_id, event: kind, status, param };
    let mut taken = Box::new(Taken { abi, of, data });
    if !taken.data.is_empty() {
        // The first two fields of both parameters are these.
        taken.abi.param.conn.private_data = taken.data.as_ptr().cast();
        taken.abi.param.conn.private_data_len = taken.data.len().min(255) as u8;
    }
    Ok(Box::into_raw(taken).cast())
}

/// `rdma_get_cm_event`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_cm_event(channel: *mut EventChannel, to: *mut *mut CmEvent) -> c_int {
    // SAFETY: see the crate.
    minus_one(unsafe { take(channel) }.map(|event| {
        // SAFETY: see the crate.
        unsafe { *to = event };
    }))
}

/// `rdma_ack_cm_event`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    if event.is_null() {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: it came from `take`.
    let taken = unsafe { Box::from_raw(event.cast::<Taken>()) };
    if taken.of.origin.check().is_ok() {
        taken.of.reported().acknowledge(1);
    }
    0
}

/// `rdma_event_str`.
pub extern "C" fn event_str(kind: c_int) -> *const core::ffi::c_char {
    match kind {
        event::ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        event::ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        event::ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        event::ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        event::CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        event::CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        event::CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        event::UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        event::REJECTED => c"RDMA_CM_EVENT_REJECTED",
        event::ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        event::DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        event::DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        event::MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        event::MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        event::ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        event::TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    }
    .as_ptr()
}

/// Waits for the outcome of a call of a synchronous identifier, whose last event it keeps; other
/// identifiers have it as an event.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn complete(id: *mut abi::CmId, synchronous: bool) -> Result<(), Errno> {
    if !synchronous {
        return Ok(());
    }
    // SAFETY: see the crate.
    unsafe {
        drop_event(id);
        let taken = take((*id).channel)?;
        (*id).event = taken;
        match ((*taken).event, (*taken).status) {
            (_, 0) => Ok(()),
            (event::REJECTED, _) => Err(libc::ECONNREFUSED),
            (_, status) => Err(status.abs()),
        }
    }
}

/// Acknowledges the last event of a synchronous identifier.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn drop_event(id: *mut abi::CmId) {
    // SAFETY: see the crate.
    unsafe {
        let last = mem::replace(&mut (*id).event, ptr::null_mut());
        if !last.is_null() {
            ack_cm_event(last);
        }
    }
}
