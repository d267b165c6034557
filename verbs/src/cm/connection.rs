//! Connections and datagram services: the calls that ask, answer and end, and what the agent tells
//! of them.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_void};
use core::mem;
use core::time::Duration;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernel_agent::wire::{Gid, PathMtu, ReadDepths, Reason, TimeoutCode, sidr};
use kernel_agent::{
    AcceptParams, CmEvent, CmEventKind, ConnectParams, Handshake, Moves, Qp, ResolutionAnswer,
    ResolutionEvent, ResolutionEventKind, ResolveParams, gid_index,
};

use super::abi::{CmId, ConnParam, MAX_DEPTH, UDP_QKEY, event, ps};
use super::address;
use super::channel::{self, Details};
use super::devices::{self, Device};
use super::identifier::{self, Inner, Phase, State, Unclaimed};
use super::listening::{Point, service};
use crate::abi::{self, AhAttr, QpAttr};
use crate::errno::{self, Errno, minus_one};
use crate::gid::{gid_words, program_gid};
use crate::opening::Connections;
use crate::qp;

/// Requests that wait at a listening identifier at most, and if the program does not say how many.
const BACKLOG: u32 = 1024;
/// How long a queue pair waits for an acknowledgement, if the program does not say: half a second.
/// Processes share CPUs, and a device's thread may have to wait for one.
const ACK_TIMEOUT: u8 = 17;
/// How long a peer has for each of how many answers about a datagram service.
const ROUND: Duration = Duration::from_secs(1);
const REPETITIONS: u8 = 9;

/// The bytes of C's private data.
///
/// # Safety
///
/// The pointer is to as many bytes.
unsafe fn bytes(at: *const c_void, len: u8) -> Vec<u8> {
    if at.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), usize::from(len)) }.to_vec()
}

/// `rdma_listen`. Requests beyond the backlog are dropped, and the peers repeat them.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn listen(id: *mut CmId, backlog: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { begin_to_listen(&mut *id, of(id), backlog) })
}

/// # Safety
///
/// See the crate.
unsafe fn of<'a>(id: *mut CmId) -> &'a Arc<Inner> {
    // SAFETY: the caller's.
    unsafe { identifier::of(id) }
}

fn begin_to_listen(id: &mut CmId, inner: &Arc<Inner>, backlog: c_int) -> Result<(), Errno> {
    let mut state = inner.state();
    identifier::bind_to_any(id, &mut state)?;
    if !matches!(state.phase, Phase::Bound) {
        return Err(libc::EINVAL);
    }
    let backlog = u32::try_from(backlog).ok().filter(|&most| most > 0 && most < BACKLOG).unwrap_or(BACKLOG);
    inner.backlog.store(backlog, std::sync::atomic::Ordering::Relaxed);
    let port = address::of_storage(&id.route.src).map_or(0, |own| own.port());
    let on = match &state.device {
        Some(device) => vec![device.clone()],
        None => devices::all()?,
    };
    let mut points = Vec::new();
    for device in on {
        match Point::begin(device, port, id.ps == ps::UDP, inner) {
            Ok(point) => points.push(point),
            Err(error) => {
                points.into_iter().for_each(Point::end);
                return Err(error);
            }
        }
    }
    state.phase = Phase::Listening(points);
    Ok(())
}

/// The queue pair that is to be connected: the identifier's own, or the one that the program moves
/// itself and names by its number.
///
/// # Safety
///
/// See the crate.
unsafe fn queue_pair(
    id: &CmId,
    device: &Device,
    param: Option<&ConnParam>,
) -> Result<(Arc<Qp>, Moves), Errno> {
    if id.qp.is_null() {
        let named = param.and_then(|param| device.queue_pair(param.qp_num));
        return Ok((named.ok_or(libc::EINVAL)?, Moves::None));
    }
    // SAFETY: see the crate.
    Ok((unsafe { qp::of(id.qp) }.inner.clone(), Moves::UntilThePeerDisconnects))
}

/// The read depths that the program asks for, or as many as `most` allows.
fn depths(device: &Device, param: Option<&ConnParam>, most: ReadDepths) -> Result<ReadDepths, Errno> {
    let limit = u8::try_from(device.agent().identity().max_rd_atomic).unwrap_or(u8::MAX - 1);
    let of = |asked: Option<u8>, most: u8| match asked {
        None | Some(MAX_DEPTH) => Ok(most.min(limit)),
        Some(asked) if asked <= limit => Ok(asked),
        Some(_) => Err(libc::EINVAL),
    };
    Ok(ReadDepths {
        responder_resources: of(param.map(|param| param.responder_resources), most.responder_resources)?,
        initiator_depth: of(param.map(|param| param.initiator_depth), most.initiator_depth)?,
    })
}

/// `rdma_connect`. Of an identifier for datagrams it asks for the service.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe {
        let begun = if (*id).ps == ps::UDP { ask(id, param) } else { begin_to_connect(id, param) };
        begun.and_then(|synchronous| channel::complete(id, synchronous))
    })
}

/// The private data of a request: the program's, or those of `rdma_create_ep`.
///
/// # Safety
///
/// See the crate.
unsafe fn request_data(id: *mut CmId, param: Option<&ConnParam>) -> Vec<u8> {
    // SAFETY: see the crate.
    unsafe {
        let given = param.map(|param| bytes(param.private_data, param.private_data_len));
        given.filter(|data| !data.is_empty()).unwrap_or_else(|| identifier::whole(id).connect_data.clone())
    }
}

/// # Safety
///
/// See the crate.
unsafe fn begin_to_connect(at: *mut CmId, param: *const ConnParam) -> Result<bool, Errno> {
    const ALL: ReadDepths = ReadDepths { responder_resources: MAX_DEPTH, initiator_depth: MAX_DEPTH };
    // SAFETY: see the crate.
    let (inner, id, data) = unsafe { (of(at), &*at, request_data(at, param.as_ref())) };
    let mut state = inner.state();
    if !matches!(state.phase, Phase::RouteResolved) {
        return Err(libc::EINVAL);
    }
    // SAFETY: see the crate.
    let given = unsafe { param.as_ref() };
    let (device, from, to) = ends(id, &state)?;
    // SAFETY: see the crate.
    let (qp, moves) = unsafe { queue_pair(id, &device, given)? };
    let depths = depths(&device, given, ALL)?;
    let path = device.path(Some(from.ip()), to.ip()).ok_or(libc::ENETUNREACH)?;
    let path = kernel_agent::wire::Path { traffic_class: state.options.traffic_class, ..path };
    let params = ConnectParams {
        path_mtu: PathMtu::B4096,
        ip_source_port: from.port(),
        depths,
        retry_count: given.map_or(7, |param| param.retry_count.min(7)),
        rnr_retry_count: given.map_or(7, |param| param.rnr_retry_count.min(7)),
        local_ack_timeout: TimeoutCode::from_low_bits(state.options.ack_timeout.unwrap_or(ACK_TIMEOUT)),
        moves,
        ..ConnectParams::new(path, service(false, to.port()))
    };
    let handle = qp.context();
    // An event may come at once; its upcall waits for the lock of the state.
    device.names().qps.insert(handle, inner.clone());
    state.qp = Some(handle);
    state.program_moves = moves == Moves::None;
    state.peer = Some(to.ip());
    state.depths = depths;
    let connected = device
        .client()
        .and_then(|client| client.connect(&qp, &params, Handshake::ThreeWay, &data).map_err(errno::of));
    match connected {
        Ok(connection) => {
            state.phase = Phase::Connecting(connection);
            Ok(state.synchronous)
        }
        Err(error) => {
            device.names().qps.remove(&handle);
            state.qp = None;
            Err(error)
        }
    }
}

/// The device of an identifier, its address and the peer's.
fn ends(id: &CmId, state: &State) -> Result<(Arc<Device>, SocketAddr, SocketAddr), Errno> {
    let device = state.device.clone().ok_or(libc::EINVAL)?;
    let address = |storage| address::of_storage(storage).ok_or(libc::EINVAL);
    Ok((device, address(&id.route.src)?, address(&id.route.dst)?))
}

/// Asks for a datagram service.
///
/// # Safety
///
/// See the crate.
unsafe fn ask(at: *mut CmId, param: *const ConnParam) -> Result<bool, Errno> {
    // SAFETY: see the crate.
    let (inner, id, data) = unsafe { (of(at), &*at, request_data(at, param.as_ref())) };
    let mut state = inner.state();
    if !matches!(state.phase, Phase::RouteResolved) {
        return Err(libc::EINVAL);
    }
    let (device, from, to) = ends(id, &state)?;
    let path = device.path(Some(from.ip()), to.ip()).ok_or(libc::ENETUNREACH)?;
    let params = ResolveParams {
        service: service(true, to.port()),
        local_gid: path.local_gid,
        remote_gid: path.remote_gid,
        ip_source_port: from.port(),
        response_timeout: TimeoutCode::at_least(ROUND),
        retries: REPETITIONS,
        private_data: &data,
    };
    let client = device.client()?;
    device.names().numbers.insert(inner.number, inner.clone());
    let asked = client.open_resolution(&params, inner.number).and_then(|(resolution, _)| {
        client.resolve(resolution).inspect_err(|_| _ = client.close_resolution(resolution))?;
        Ok(resolution)
    });
    match asked {
        Ok(resolution) => {
            state.phase = Phase::Asking(resolution);
            Ok(state.synchronous)
        }
        Err(error) => {
            device.names().numbers.remove(&inner.number);
            Err(errno::of(error))
        }
    }
}

/// `rdma_accept`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { answer(id, param).and_then(|synchronous| channel::complete(id, synchronous)) })
}

/// # Safety
///
/// See the crate.
unsafe fn answer(at: *mut CmId, param: *const ConnParam) -> Result<bool, Errno> {
    // SAFETY: see the crate.
    let (inner, id, given) = unsafe { (of(at), &*at, param.as_ref()) };
    // SAFETY: see the crate.
    let data = given.map_or(Vec::new(), |param| unsafe { bytes(param.private_data, param.private_data_len) });
    let mut state = inner.state();
    let device = state.device.clone().ok_or(libc::EINVAL)?;
    let client = device.client()?;
    match state.phase {
        Phase::Requested(connection) => {
            // SAFETY: see the crate.
            let (qp, moves) = unsafe { queue_pair(id, &device, given) }?;
            let params = AcceptParams {
                depths: depths(&device, given, state.depths)?,
                rnr_retry_count: given.map_or(7, |param| param.rnr_retry_count.min(7)),
                moves,
                ..AcceptParams::default()
            };
            let handle = qp.context();
            // As in `begin_to_connect`.
            device.names().qps.insert(handle, inner.clone());
            if let Err(error) = client.accept(connection, &qp, &params, &data) {
                device.names().qps.remove(&handle);
                return Err(errno::of(error));
            }
            device.names().requests.remove(&connection);
            state.qp = Some(handle);
            state.phase = Phase::Accepted(connection);
            Ok(state.synchronous)
        }
        Phase::Asked(request) => {
            let qpn = match (id.qp.is_null(), given) {
                // SAFETY: see the crate.
                (false, _) => unsafe { (*id.qp).qp_num },
                (true, Some(param)) => param.qp_num,
                (true, None) => return Err(libc::EINVAL),
            };
            let status = sidr::Status::Valid;
            let answer = ResolutionAnswer { status, qpn, qkey: UDP_QKEY, private_data: &data };
            client.answer_resolution(request, &answer).map_err(errno::of)?;
            state.phase = Phase::Over;
            // No event follows.
            Ok(false)
        }
        _ => Err(libc::EINVAL),
    }
}

/// `rdma_establish`: confirms the peer's reply, of which `RDMA_CM_EVENT_CONNECT_RESPONSE` has told.
/// For a queue pair that the program moves itself, and that is ready. No event follows.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn establish(id: *mut CmId) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    let inner = unsafe { of(id) };
    let state = inner.state();
    let confirmed = match (&state.phase, &state.device) {
        (&Phase::Connecting(connection), Some(device)) if state.program_moves => {
            let depth = state.depths.initiator_depth;
            device.client().and_then(|client| client.establish(connection, depth, &[]).map_err(errno::of))
        }
        _ => Err(libc::EINVAL),
    };
    minus_one(confirmed)
}

/// `rdma_reject`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn reject(id: *mut CmId, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { refuse(of(id), &bytes(private_data, len)) })
}

/// `rdma_reject_ece`: as [`reject`], since there is no vendor's extension of connections.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn reject_ece(id: *mut CmId, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: see the crate.
    unsafe { reject(id, private_data, len) }
}

fn refuse(inner: &Arc<Inner>, data: &[u8]) -> Result<(), Errno> {
    let mut state = inner.state();
    let device = state.device.clone().ok_or(libc::EINVAL)?;
    let client = device.client()?;
    match state.phase {
        Phase::Requested(connection) => {
            client.reject(connection, data).map_err(errno::of)?;
            device.names().requests.remove(&connection);
        }
        Phase::Asked(request) => {
            let status = sidr::Status::Rejected;
            let answer = ResolutionAnswer { status, qpn: 0, qkey: 0, private_data: data };
            client.answer_resolution(request, &answer).map_err(errno::of)?;
        }
        _ => return Err(libc::EINVAL),
    }
    state.phase = Phase::Over;
    Ok(())
}

/// `rdma_disconnect`: the identifier's queue pair goes to ERROR, also if the peer was first. There
/// is nothing else to do for a connection that is over.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    minus_one(unsafe { leave(of(id), (*id).qp).and_then(|synchronous| channel::complete(id, synchronous)) })
}

/// Returns whether the call has to wait for an event.
///
/// # Safety
///
/// The queue pair is null, or there.
unsafe fn leave(inner: &Arc<Inner>, qp: *mut abi::Qp) -> Result<bool, Errno> {
    let mut state = inner.state();
    if !matches!(state.phase, Phase::Connecting(_) | Phase::Accepted(_) | Phase::Connected(_) | Phase::Over) {
        return Err(libc::EINVAL);
    }
    // The agent does not move it when the peer disconnects, which may be now.
    if !qp.is_null() {
        let mut attr = QpAttr { qp_state: abi::qps::ERR, ..QpAttr::default() };
        // SAFETY: the caller's.
        match unsafe { qp::modify_qp(qp, &mut attr, abi::attr_mask::STATE) } {
            0 => {}
            error => return Err(error),
        }
    }
    let follows = match state.phase {
        Phase::Connecting(connection) | Phase::Accepted(connection) | Phase::Connected(connection) => {
            let device = state.device.clone().ok_or(libc::EINVAL)?;
            // Fails if the peer was first: its event is on the way.
            let _ = device.client()?.disconnect(connection, &[]);
            let established = matches!(state.phase, Phase::Connected(_));
            if !established {
                state.phase = Phase::Over;
            }
            established
        }
        Phase::Over => !inner.has_no_events(),
        _ => return Err(libc::EINVAL),
    };
    Ok(state.synchronous && follows)
}

/// The addresses of the peers of all connections that are established.
pub fn peers() -> BTreeSet<IpAddr> {
    each_connected().into_iter().map(|(_, _, peer)| peer).collect()
}

/// Nobody is at a peer's address any more: its connections end now, as if it had disconnected.
pub fn lost(peer: IpAddr) {
    for (device, inner, _) in each_connected().into_iter().filter(|(_, _, of)| *of == peer) {
        let mut state = inner.state();
        let Phase::Connected(connection) = state.phase else { continue };
        state.phase = Phase::Over;
        // What the agent tells of it later is for nobody.
        if let Some(qp) = state.qp.take() {
            device.names().qps.remove(&qp);
        }
        let _ = device.client().map(|client| client.disconnect(connection, &[]));
        inner.push(event::DISCONNECTED, 0, Details::Nothing, &[]);
    }
}

/// The established connections with a queue pair: the peer's address of each.
fn each_connected() -> Vec<(Arc<Device>, Arc<Inner>, IpAddr)> {
    let mut found = Vec::new();
    for device in devices::opened() {
        let all: Vec<Arc<Inner>> = device.names().qps.values().cloned().collect();
        for inner in all {
            let state = inner.state();
            if let (Phase::Connected(_), Some(peer)) = (&state.phase, state.peer) {
                drop(state);
                found.push((device.clone(), inner, peer));
            }
        }
    }
    found
}

/// `rdma_notify`: a program tells of an event of its queue pair. The agent knows it.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn notify(_id: *mut CmId, what: c_int) -> c_int {
    minus_one(if what == abi::event::COMM_EST { Ok(()) } else { Err(libc::EINVAL) })
}

/// A peer's depths, as this end would have its own.
fn turned(depths: ReadDepths) -> ReadDepths {
    ReadDepths { responder_resources: depths.initiator_depth, initiator_depth: depths.responder_resources }
}

fn of_connection(depths: ReadDepths) -> Details {
    let ReadDepths { responder_resources, initiator_depth } = depths;
    Details::Connection { responder_resources, initiator_depth, rnr_retry_count: 7 }
}

impl Device {
    /// A new identifier for what a peer asks a listening one for.
    fn new_identifier(
        self: &Arc<Device>,
        listener: &Arc<Inner>,
        own: Gid,
        peer: SocketAddr,
    ) -> Result<(Arc<Inner>, Unclaimed), Errno> {
        // Held meanwhile: the end of the listening identifier changes the phase first.
        let state = listener.state();
        if !matches!(state.phase, Phase::Listening(_)) {
            return Err(libc::EINVAL);
        }
        let synchronous = state.synchronous;
        // SAFETY: the listening identifier is there as long as it listens. Only the dispatcher
        // thread knows the new one.
        unsafe {
            let at = listener.at();
            let channel = if synchronous { std::ptr::null_mut() } else { (*at).channel };
            let id = identifier::make(channel, (*at).context, (*at).ps)?;
            let new = of(id).clone();
            let port = address::of_storage(&(*at).route.src).map_or(0, |own| own.port());
            (*id).route.src = address::storage(SocketAddr::new(own.to_ip(), port));
            (*id).route.dst = address::storage(peer);
            (*id).route.ib.dgid = gid_words(devices::gid(peer.ip()).0);
            identifier::settle(&mut *id, &mut new.state(), self, own.to_ip());
            Ok((new, Unclaimed::new(id)))
        }
    }

    /// A peer asks for a connection.
    fn requested(
        self: &Arc<Device>,
        event: &CmEvent<'_>,
        path: kernel_agent::wire::Path,
        port: u16,
        peers: ReadDepths,
    ) {
        let Ok(client) = self.client() else { return };
        let listener = self.names().numbers.get(&event.context).cloned();
        let new = listener.filter(|listener| listener.has_room()).and_then(|listener| {
            let peer = SocketAddr::new(path.remote_gid.to_ip(), port);
            let (new, unclaimed) = self.new_identifier(&listener, path.local_gid, peer).ok()?;
            Some((listener, new, unclaimed))
        });
        let Some((listener, new, unclaimed)) = new else {
            let _ = match self.nobody_listens(event.context) {
                true => client.reject_because(event.connection, Reason::INVALID_SERVICE_ID, &[], &[]),
                // As if it had not come: the peer repeats it.
                false => client.discard(event.connection),
            };
            return;
        };
        let depths = turned(peers);
        {
            let mut state = new.state();
            state.phase = Phase::Requested(event.connection);
            state.peer = Some(path.remote_gid.to_ip());
            state.depths = depths;
        }
        self.names().requests.insert(event.connection, new);
        listener.push_request(unclaimed, of_connection(depths), event.private_data);
    }

    /// The peer accepts: this end confirms, with no more RDMA Reads than the peer serves. A program
    /// that moves its queue pair itself confirms by [`establish`].
    fn accepted(&self, inner: &Arc<Inner>, event: &CmEvent<'_>, peers: ReadDepths) {
        let Ok(client) = self.client() else { return };
        let mut state = inner.state();
        if state.program_moves {
            drop(state);
            let details = of_connection(turned(peers));
            return inner.push(event::CONNECT_RESPONSE, 0, details, event.private_data);
        }
        state.reply = Some((peers, event.private_data.to_vec()));
        let depth = state.depths.initiator_depth.min(peers.responder_resources);
        if let Err(error) = client.establish(event.connection, depth, &[]) {
            let _ = client.reject(event.connection, &[]);
            state.phase = Phase::Over;
            drop(state);
            inner.push(event::CONNECT_ERROR, -errno::of(error), Details::Nothing, &[]);
        }
    }
}

/// How an identifier's connection has ended, or was not made. Of several ends at once the program
/// learns of one.
fn over(inner: &Arc<Inner>, kind: c_int, status: c_int, data: &[u8]) {
    let former = mem::replace(&mut inner.state().phase, Phase::Over);
    if !matches!(former, Phase::Over) {
        inner.push(kind, status, Details::Nothing, data);
    }
}

impl Connections for Arc<Device> {
    fn connection(&self, event: &CmEvent<'_>) {
        let inner = match event.kind {
            CmEventKind::Request { path, depths, source_port, .. } => {
                return self.requested(event, path, source_port, depths);
            }
            CmEventKind::Withdrawn => self.names().requests.remove(&event.connection),
            _ => self.names().qps.get(&event.context).cloned(),
        };
        let Some(inner) = inner else { return };
        match event.kind {
            CmEventKind::Request { .. } | CmEventKind::TransitionRequested => {}
            CmEventKind::Withdrawn => {
                over(&inner, event::REJECTED, c_int::from(WITHDRAWN), event.private_data);
            }
            CmEventKind::AcceptArrived { depths } => self.accepted(&inner, event, depths),
            CmEventKind::Established { depths } => {
                let mut state = inner.state();
                let (peers, data) = state.reply.take().unwrap_or((depths, Vec::new()));
                let confirmed = state.program_moves && matches!(state.phase, Phase::Connecting(_));
                state.phase = Phase::Connected(event.connection);
                drop(state);
                if confirmed {
                    // By the program, which knows it.
                    return;
                }
                inner.push(event::ESTABLISHED, 0, of_connection(turned(peers)), &data);
            }
            CmEventKind::Rejected { reason } => {
                over(&inner, event::REJECTED, c_int::from(reason.0), event.private_data);
            }
            CmEventKind::Unreachable | CmEventKind::AcceptTimedOut => {
                over(&inner, event::UNREACHABLE, -libc::ETIMEDOUT, &[]);
            }
            CmEventKind::Disconnected { .. } => over(&inner, event::DISCONNECTED, 0, event.private_data),
        }
    }

    /// The agent has ended the connection or the attempt without an event. The program gets one, as
    /// it may wait for it: it may destroy the queue pair right after `rdma_disconnect`.
    fn queue_pair_ended(&self, context: u64) {
        let Some(inner) = self.names().qps.remove(&context) else { return };
        let mut state = inner.state();
        state.qp = None;
        let (kind, status) = match state.phase {
            Phase::Connected(_) => (event::DISCONNECTED, 0),
            Phase::Connecting(_) | Phase::Accepted(_) => (event::CONNECT_ERROR, -libc::ECONNRESET),
            _ => return,
        };
        drop(state);
        over(&inner, kind, status, &[]);
    }

    fn resolution(&self, event: &ResolutionEvent<'_>) {
        let inner = self.names().numbers.get(&event.context).cloned();
        let Ok(client) = self.client() else { return };
        match event.kind {
            ResolutionEventKind::Request { request, remote_gid, source_gid, source_port, .. } => {
                let gids = &self.agent().identity().gids;
                let own = Gid(gids.get(usize::from(source_gid)).copied().unwrap_or_default());
                let peer = SocketAddr::new(Gid(remote_gid).to_ip(), source_port);
                let new = inner.filter(|listener| listener.has_room()).and_then(|listener| {
                    let (new, unclaimed) = self.new_identifier(&listener, own, peer).ok()?;
                    Some((listener, new, unclaimed))
                });
                match new {
                    Some((listener, new, unclaimed)) => {
                        new.state().phase = Phase::Asked(request);
                        let nothing = AhAttr::default();
                        let details = Details::Datagrams { to: nothing, qpn: 0, qkey: 0 };
                        listener.push_request(unclaimed, details, event.private_data);
                    }
                    None if self.nobody_listens(event.context) => {
                        let status = sidr::Status::ServiceIdNotSupported;
                        let answer = ResolutionAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
                        let _ = client.answer_resolution(request, &answer);
                    }
                    // The peer asks again.
                    None => client.disregard_resolution(request),
                }
            }
            ResolutionEventKind::Reply { resolution, status, qpn, qkey, .. } => {
                let Some(inner) = inner else { return };
                let _ = client.close_resolution(resolution);
                match status {
                    sidr::Status::Valid => {
                        let Some(to) = self.way_to(&inner) else { return };
                        let details = Details::Datagrams { to, qpn, qkey };
                        inner.push(event::ESTABLISHED, 0, details, event.private_data);
                    }
                    _ => over(&inner, event::UNREACHABLE, status as c_int, event.private_data),
                }
            }
            ResolutionEventKind::TimedOut { resolution } => {
                let Some(inner) = inner else { return };
                let _ = client.close_resolution(resolution);
                over(&inner, event::UNREACHABLE, -libc::ETIMEDOUT, &[]);
            }
        }
    }

    fn device_died(&self) {
        let mut all: Vec<Arc<Inner>> = Vec::new();
        {
            let names = self.names();
            let found = names.qps.values().chain(names.numbers.values()).chain(names.requests.values());
            for inner in found {
                if !all.iter().any(|other| Arc::ptr_eq(other, inner)) {
                    all.push(inner.clone());
                }
            }
        }
        for inner in all {
            inner.push(event::DEVICE_REMOVAL, 0, Details::Nothing, &[]);
        }
    }
}

/// The reason of a peer that gave a request up: nobody answered in time.
const WITHDRAWN: u16 = Reason::TIMEOUT.0;

impl Device {
    /// The address handle of the peer of an identifier that asks for a datagram service, and has
    /// its answer; none if it does not ask any more.
    fn way_to(&self, inner: &Arc<Inner>) -> Option<AhAttr> {
        // Held meanwhile: the end of the identifier changes the phase first.
        let mut state = inner.state();
        if !matches!(state.phase, Phase::Asking(_)) {
            return None;
        }
        state.phase = Phase::Over;
        // SAFETY: the identifier is there as long as it asks.
        let (from, to) = unsafe { ((*inner.at()).route.src, (*inner.at()).route.dst) };
        let ip = |storage| address::of_storage(storage).map(|address| devices::gid(address.ip()));
        let (from, to) = (ip(&from)?, ip(&to)?);
        let agent = self.agent();
        let own = gid_index(agent.identity(), from).unwrap_or(0);
        Some(AhAttr {
            dgid: gid_words(to.0),
            sgid_index: program_gid(agent, own),
            hop_limit: 64,
            traffic_class: state.options.traffic_class,
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        })
    }
}
