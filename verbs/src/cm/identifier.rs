//! Identifiers: what C has as `struct rdma_cm_id`, from their creation to their end, and their
//! addresses.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel_agent::wire::ReadDepths;
use kernel_agent::{ConnectionId, ResolutionId, ResolutionRequestId};

use super::abi::{CmId, EventChannel, IbAddr, Route, event, ps};
use super::address::{self, Port};
use super::channel::{self, Details, Event, Queue};
use super::devices::{self, Device};
use super::listening::Point;
use super::multicast::{self, Joined};
use crate::abi::{QpInitAttr, qpt};
use crate::channel::Reported;
use crate::errno::{Errno, minus_one};
use crate::gid::gid_words;
use crate::origin::Origin;

/// The only partition key, in network byte order.
const PKEY: u16 = 0xffff;

/// How far an identifier is.
pub(crate) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    /// On each device.
    Listening(Vec<Point>),
    /// A peer asks for a connection.
    Requested(ConnectionId),
    /// A peer asks for a datagram service.
    Asked(ResolutionRequestId),
    /// This end asks for a connection.
    Connecting(ConnectionId),
    /// The program has accepted.
    Accepted(ConnectionId),
    Connected(ConnectionId),
    /// This end asks for a datagram service.
    Asking(ResolutionId),
    /// The connection, or what was asked for, is over; or datagrams can be sent.
    Over,
}

/// What the program has set by options.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) traffic_class: u8,
    pub(crate) shares_port: bool,
    pub(crate) ack_timeout: Option<u8>,
}

/// What changes of an identifier.
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// It has a channel of its own, and its calls wait.
    pub(crate) synchronous: bool,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) options: Options,
    /// The peer of the connection.
    pub(crate) peer: Option<IpAddr>,
    /// The handle of the queue pair that is being connected.
    pub(crate) qp: Option<u64>,
    /// The program moves the queue pair itself.
    pub(crate) program_moves: bool,
    /// Read depths: those that this end asked for, or, of a request, those that fit the peer's.
    pub(crate) depths: ReadDepths,
    /// What the peer sent along with its answer.
    pub(crate) reply: Option<(ReadDepths, Vec<u8>)>,
    /// The multicast groups that were joined.
    pub(crate) groups: Vec<Joined>,
    port: Option<Port>,
}

/// What events need of an identifier.
pub(crate) struct Inner {
    pub(crate) number: u64,
    pub(crate) origin: Origin,
    at: AtomicPtr<CmId>,
    /// Where its events go. Held while one is added.
    queue: Mutex<Arc<Queue>>,
    reported: Reported,
    /// Requests that the program has not taken, and how many there may be.
    waiting: AtomicU32,
    pub(crate) backlog: AtomicU32,
    state: Mutex<State>,
}

impl Inner {
    pub(crate) fn at(&self) -> *mut CmId {
        self.at.load(Ordering::Acquire)
    }

    pub(crate) fn reported(&self) -> &Reported {
        &self.reported
    }

    /// The lock is held across calls of the agent, and never while this end waits for a peer.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Arc<Queue>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_no_events(&self) -> bool {
        self.queue().is_empty()
    }

    /// Adds an event.
    pub(crate) fn push(self: &Arc<Inner>, kind: c_int, status: c_int, details: Details, data: &[u8]) {
        let event = Event { of: self.clone(), request: None, kind, status, details, data: data.to_vec() };
        self.queue().push(event, Some(&self.reported), usize::MAX);
    }

    /// Adds a request's event, unless this identifier is being destroyed; then the request is
    /// rejected.
    pub(crate) fn push_request(self: &Arc<Inner>, new: Unclaimed, details: Details, data: &[u8]) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (of, data) = (self.clone(), data.to_vec());
        let event = Event { of, request: Some(new), kind: event::CONNECT_REQUEST, status: 0, details, data };
        self.queue().push(event, Some(&self.reported), usize::MAX);
    }

    /// Whether there is room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < self.backlog.load(Ordering::Relaxed)
    }

    pub(crate) fn request_taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An identifier.
#[repr(C)]
pub(crate) struct Identifier {
    abi: CmId,
    pub(crate) inner: Arc<Inner>,
    /// What the queue pairs of requests are made with, and what is sent with a request: of
    /// `rdma_create_ep`.
    pub(crate) qp_init: Option<QpInitAttr>,
    pub(crate) connect_data: Vec<u8>,
}

/// The identifier of a pointer.
///
/// # Safety
///
/// The pointer is one that [`make`] returned.
pub(crate) unsafe fn of<'a>(id: *mut CmId) -> &'a Arc<Inner> {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &(*id.cast::<Identifier>()).inner }
}

/// What `rdma_create_ep` has set.
///
/// # Safety
///
/// As [`of`]. No other reference is held meanwhile.
pub(crate) unsafe fn whole<'a>(id: *mut CmId) -> &'a mut Identifier {
    // SAFETY: the caller's.
    unsafe { &mut *id.cast::<Identifier>() }
}

/// A new identifier that no program has yet: one that nobody takes rejects its request and ends.
pub(crate) struct Unclaimed(*mut CmId);

// SAFETY: any thread may make all calls.
unsafe impl Send for Unclaimed {}

impl Unclaimed {
    pub(crate) fn new(id: *mut CmId) -> Unclaimed {
        Unclaimed(id)
    }

    pub(crate) fn claim(self) -> *mut CmId {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        // SAFETY: the program does not know it.
        unsafe { end(self.0) };
    }
}

/// A number that nothing else has in [`Names`](devices::Names).
pub(crate) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Makes an identifier. Without a channel it has one of its own, and its calls wait.
///
/// # Safety
///
/// The channel is null, or one that was made and is not destroyed before the identifier.
pub(crate) unsafe fn make(
    channel: *mut EventChannel,
    context: *mut c_void,
    space: c_int,
) -> Result<*mut CmId, Errno> {
    let synchronous = channel.is_null();
    let channel = if synchronous { channel::create()? } else { channel };
    // SAFETY: the caller's, or it was just made.
    let queue = unsafe { channel::queue(channel) }.clone();
    queue.origin().check()?;
    let inner = Arc::new(Inner {
        number: next_number(),
        origin: Origin::here(),
        at: AtomicPtr::new(ptr::null_mut()),
        queue: Mutex::new(queue),
        reported: Reported::default(),
        waiting: AtomicU32::new(0),
        backlog: AtomicU32::new(0),
        state: Mutex::new(State {
            phase: Phase::Idle,
            synchronous,
            device: None,
            options: Options::default(),
            peer: None,
            qp: None,
            program_moves: false,
            depths: ReadDepths::default(),
            reply: None,
            groups: Vec::new(),
            port: None,
        }),
    });
    let route = Route {
        src: [0; 16],
        dst: [0; 16],
        ib: IbAddr { sgid: [0; 2], dgid: [0; 2], pkey: 0 },
        path_rec: ptr::null_mut(),
        num_paths: 0,
    };
    let abi = CmId {
        verbs: ptr::null_mut(),
        channel,
        context,
        qp: ptr::null_mut(),
        route,
        ps: space,
        port_num: 0,
        event: ptr::null_mut(),
        send_cq_channel: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq_channel: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        pd: ptr::null_mut(),
        qp_type: if space == ps::UDP { qpt::UD } else { qpt::RC },
    };
    let made = Identifier { abi, inner: inner.clone(), qp_init: None, connect_data: Vec::new() };
    let id = Box::into_raw(Box::new(made)).cast();
    inner.at.store(id, Ordering::Release);
    Ok(id)
}

/// `rdma_create_id`: of the port spaces of TCP and UDP.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_id(
    channel: *mut EventChannel,
    to: *mut *mut CmId,
    context: *mut c_void,
    space: c_int,
) -> c_int {
    let made = match space {
        // SAFETY: see the crate.
        ps::TCP | ps::UDP => devices::all().and_then(|_| unsafe { make(channel, context, space) }),
        _ => Err(libc::EOPNOTSUPP),
    };
    minus_one(made.map(|id| {
        // SAFETY: see the crate.
        unsafe { *to = id };
    }))
}

/// `rdma_destroy_id`: ends what it does; a connection too. Waits until the program has
/// acknowledged the events that it has taken.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    unsafe { end(id) };
    0
}

/// # Safety
///
/// The pointer is one that [`make`] returned, and nothing uses it afterwards.
unsafe fn end(id: *mut CmId) {
    // SAFETY: the caller's.
    let inner = unsafe { of(id) };
    // SAFETY: the caller's.
    unsafe { multicast::leave_all(id) };
    stop(inner);
    inner.reported.end();
    // Dropped without a lock: requests among them are rejected.
    let forgotten = {
        let queue = inner.queue().clone();
        queue.remove(|event| Arc::ptr_eq(&event.of, inner))
    };
    drop(forgotten);
    // SAFETY: the caller's.
    unsafe { channel::drop_event(id) };
    inner.reported.wait();
    // SAFETY: the caller's.
    let gone = unsafe { Box::from_raw(id.cast::<Identifier>()) };
    if gone.inner.state().synchronous {
        // SAFETY: it is the identifier's own.
        unsafe { channel::destroy_event_channel(gone.abi.channel) };
    }
}

/// Ends what an identifier does. Its connection ends as if the program had disconnected.
fn stop(inner: &Arc<Inner>) {
    let mut state = inner.state();
    let phase = std::mem::replace(&mut state.phase, Phase::Over);
    state.port = None;
    let (device, qp) = (state.device.clone(), state.qp.take());
    drop(state);
    if let Phase::Listening(points) = phase {
        return points.into_iter().for_each(Point::end);
    }
    let Some(device) = device else { return };
    {
        let mut names = device.names();
        names.numbers.remove(&inner.number);
        if let Phase::Requested(connection) = phase {
            names.requests.remove(&connection);
        }
        // Another identifier may have the queue pair by now.
        if let Some(qp) = qp
            && names.qps.get(&qp).is_some_and(|of| Arc::ptr_eq(of, inner))
        {
            names.qps.remove(&qp);
        }
    }
    // Each fails if the peer, or the end of the queue pair, was first.
    let Ok(client) = device.client() else { return };
    match phase {
        Phase::Requested(connection) => _ = client.reject(connection, &[]),
        Phase::Connecting(connection) | Phase::Accepted(connection) | Phase::Connected(connection) => {
            _ = client.disconnect(connection, &[]);
        }
        Phase::Asking(resolution) => _ = client.close_resolution(resolution),
        Phase::Asked(request) => client.disregard_resolution(request),
        _ => {}
    }
}

/// `rdma_migrate_id`: its events go to another channel from now on, also those that wait. Without
/// a channel it gets one of its own, and its calls wait. Waits until the program has acknowledged
/// the events that it has taken.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { migrate(id, channel) })
}

/// # Safety
///
/// See the crate.
pub(crate) unsafe fn migrate(id: *mut CmId, to: *mut EventChannel) -> Result<(), Errno> {
    // SAFETY: see the crate.
    let inner = unsafe { of(id) };
    let synchronous = to.is_null();
    let to = if synchronous { channel::create()? } else { to };
    // SAFETY: see the crate.
    unsafe {
        let next = channel::queue(to).clone();
        {
            let mut queue = inner.queue();
            for event in queue.remove(|event| Arc::ptr_eq(&event.of, inner)) {
                next.push(event, Some(&inner.reported), usize::MAX);
            }
            *queue = next;
        }
        let former = std::mem::replace(&mut (*id).channel, to);
        let was_synchronous = std::mem::replace(&mut inner.state().synchronous, synchronous);
        if was_synchronous {
            channel::drop_event(id);
            channel::destroy_event_channel(former);
        }
    }
    inner.reported.wait();
    Ok(())
}

/// Binds an identifier that is not bound.
fn bind(id: &mut CmId, state: &mut State, to: SocketAddr) -> Result<(), Errno> {
    if !matches!(state.phase, Phase::Idle) {
        return Err(libc::EINVAL);
    }
    let mut ip = to.ip();
    let mut device = None;
    if !ip.is_unspecified() {
        device = devices::all()?.into_iter().find(|device| device.has(ip));
        if device.is_none() {
            // With Linux an address of loopback is any. libfabric binds to `localhost`.
            if !ip.is_loopback() {
                return Err(libc::ENODEV);
            }
            ip = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        }
    }
    let port = Port::take(id.ps, SocketAddr::new(ip, to.port()), state.options.shares_port)?;
    id.route.src = address::storage(SocketAddr::new(ip, port.number()));
    if let Some(device) = device {
        settle(id, state, &device, ip);
    }
    state.port = Some(port);
    state.phase = Phase::Bound;
    Ok(())
}

/// Gives an identifier its device, and its own address.
pub(crate) fn settle(id: &mut CmId, state: &mut State, device: &Arc<Device>, own: IpAddr) {
    id.verbs = device.context();
    id.port_num = 1;
    id.route.ib.sgid = gid_words(devices::gid(own).0);
    id.route.ib.pkey = PKEY;
    let port = address::of_storage(&id.route.src).map_or(0, |address| address.port());
    id.route.src = address::storage(SocketAddr::new(own, port));
    state.device = Some(device.clone());
}

/// `rdma_bind_addr`: to an address of a device, or to any. An address of loopback that no device
/// has is any, too; another one is `ENODEV`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn bind_addr(id: *mut CmId, to: *mut libc::sockaddr) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe {
        let inner = of(id);
        address::read(to).and_then(|to| bind(&mut *id, &mut inner.state(), to))
    })
}

/// Binds an identifier that is not bound to any address and any port.
pub(crate) fn bind_to_any(id: &mut CmId, state: &mut State) -> Result<(), Errno> {
    match state.phase {
        Phase::Idle => bind(id, state, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)),
        _ => Ok(()),
    }
}

/// `rdma_resolve_addr`: chooses the device. The event follows at once, as no peer is asked.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe {
        let inner = of(id);
        resolve_address(id, inner, src, dst).and_then(|synchronous| channel::complete(id, synchronous))
    })
}

/// # Safety
///
/// See the crate.
unsafe fn resolve_address(
    at: *mut CmId,
    inner: &Arc<Inner>,
    src: *const libc::sockaddr,
    dst: *const libc::sockaddr,
) -> Result<bool, Errno> {
    // SAFETY: see the crate.
    let (id, to) = unsafe { (&mut *at, address::read(dst)?) };
    let mut state = inner.state();
    if matches!(state.phase, Phase::Idle) {
        let own = match src.is_null() {
            true => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            // SAFETY: see the crate.
            false => unsafe { address::read(src) }?,
        };
        bind(id, &mut state, own)?;
    }
    if !matches!(state.phase, Phase::Bound) {
        return Err(libc::EINVAL);
    }
    let own = address::of_storage(&id.route.src).map(|own| own.ip()).filter(|own| !own.is_unspecified());
    let candidates = match &state.device {
        Some(device) => vec![device.clone()],
        None => devices::all()?,
    };
    let same_kind = |own: &IpAddr| own.to_canonical().is_ipv4() == to.ip().to_canonical().is_ipv4();
    let found = candidates.into_iter().find_map(|device| {
        let ends = device.ends(own, to.ip())?;
        own.as_ref().is_none_or(same_kind).then_some((device, ends))
    });
    let synchronous = state.synchronous;
    let Some((device, (local, remote))) = found else {
        drop(state);
        inner.push(event::ADDR_ERROR, -libc::ENETUNREACH, Details::Nothing, &[]);
        return Ok(synchronous);
    };
    settle(id, &mut state, &device, local.to_ip());
    id.route.dst = address::storage(to);
    id.route.ib.dgid = gid_words(remote.0);
    state.phase = Phase::AddressResolved;
    drop(state);
    inner.push(event::ADDR_RESOLVED, 0, Details::Nothing, &[]);
    Ok(synchronous)
}

/// `rdma_resolve_route`. The event follows at once, as the route is the address.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn resolve_route(id: *mut CmId, _timeout_ms: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    let inner = unsafe { of(id) };
    let mut state = inner.state();
    if !matches!(state.phase, Phase::AddressResolved) {
        return minus_one(Err(libc::EINVAL));
    }
    state.phase = Phase::RouteResolved;
    let synchronous = state.synchronous;
    drop(state);
    inner.push(event::ROUTE_RESOLVED, 0, Details::Nothing, &[]);
    // SAFETY: see the crate.
    minus_one(unsafe { channel::complete(id, synchronous) })
}

/// `rdma_set_option`: the type of service, the sharing of a port, and the time until an
/// acknowledgement is missed. `ENOSYS` for others.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn set_option(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    const OF_IDENTIFIERS: c_int = 0;
    const TOS: c_int = 0;
    const REUSEADDR: c_int = 1;
    const AFONLY: c_int = 2;
    const ACK_TIMEOUT: c_int = 3;
    // SAFETY: see the crate.
    let inner = unsafe { of(id) };
    let mut state = inner.state();
    // SAFETY: see the crate: the value has this size.
    minus_one(unsafe {
        match (level, name, size) {
            (OF_IDENTIFIERS, TOS, 1) => {
                state.options.traffic_class = value.cast::<u8>().read();
                Ok(())
            }
            (OF_IDENTIFIERS, ACK_TIMEOUT, 1) => {
                state.options.ack_timeout = Some(value.cast::<u8>().read() & 0x1f);
                Ok(())
            }
            (OF_IDENTIFIERS, REUSEADDR, 4) if matches!(state.phase, Phase::Idle) => {
                state.options.shares_port = value.cast::<c_int>().read_unaligned() != 0;
                Ok(())
            }
            (OF_IDENTIFIERS, AFONLY, 4) if matches!(state.phase, Phase::Idle) => Ok(()),
            (OF_IDENTIFIERS, TOS..=ACK_TIMEOUT, _) => Err(libc::EINVAL),
            _ => Err(libc::ENOSYS),
        }
    })
}

fn port(storage: &super::abi::Storage) -> u16 {
    address::of_storage(storage).map_or(0, |address| address.port().to_be())
}

/// `rdma_get_src_port`, in network byte order.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: see the crate.
    port(unsafe { &(*id).route.src })
}

/// `rdma_get_dst_port`, in network byte order.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: see the crate.
    port(unsafe { &(*id).route.dst })
}
