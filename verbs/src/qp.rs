//! Queue pairs and their states.
//!
//! The device checks which attributes a change of state needs, and their values; here are the
//! attributes that only verbs have (the partition key, the port), and the translation.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel_agent::{
    Agent, LinkFlags, ModifyQp, QpAttributes, QpMask, QpState, QpType, SegmentLimits, SendSlot, SlotParams,
};

use crate::abi::{self, QpAttr, QpCap, QpInitAttr, access, attr_mask as mask, qps, qpt};
use crate::errno::{self, Errno, pointer, status};
use crate::gid::{device_gid, gid_bytes};
use crate::gone;
use crate::object::Object;
use crate::opening::{Context, Opening, QpHandle};
use crate::origin::Origin;
use crate::post::Inline;
use crate::qp_ex::{self, Batch};
use crate::{cq, memory, srq};

/// Bytes of inline data of a request at most.
const MAX_INLINE: u32 = 1024;

/// How many send requests a queue pair, and completions a completion queue, has room for at least.
/// Hardware rounds up, and programs count on it: perftest's latencies with events (`-e`) ask for
/// one of each, take any event of the channel for that of the request, and post the next one.
pub(crate) const LEAST_ROOM: u32 = 16;

/// What the agent's events need of a queue pair.
pub(crate) type Events = Object<abi::Qp, QpHandle>;

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    /// Its first field is `struct ibv_qp`, and the rest of it for those with a [`Batch`] only.
    abi: abi::QpEx,
    pub(crate) inner: Arc<kernel_agent::Qp>,
    pub(crate) events: Arc<Events>,
    /// What the fast path needs: the slot of the send queue, where none of datagrams is, its
    /// handle, and the process.
    pub(crate) slot: Arc<SendSlot>,
    pub(crate) handle: u64,
    pub(crate) origin: Origin,
    /// Each send request has a completion.
    pub(crate) signals_all: bool,
    pub(crate) inline: Option<Inline>,
    /// What posts by calls for each request need, if the program makes such.
    pub(crate) batch: Option<Batch>,
    init: QpInitAttr,
    /// The attributes that were set.
    attr: Mutex<QpAttr>,
    /// The multicast groups that it has joined.
    groups: Mutex<Vec<[u8; 16]>>,
}

impl Qp {
    /// Whether it is of datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.abi.base.qp_type == qpt::UD
    }

    /// Its sizes.
    pub(crate) fn cap(&self) -> &QpCap {
        &self.init.cap
    }

    /// The opening of its context.
    pub(crate) fn opening(&self) -> &Opening {
        &self.events.opening
    }

    fn groups(&self) -> MutexGuard<'_, Vec<[u8; 16]>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attr(&self) -> MutexGuard<'_, QpAttr> {
        self.attr.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue pair of a pointer.
///
/// # Safety
///
/// The pointer is one that [`create_qp`] returned.
pub(crate) unsafe fn of<'a>(qp: *mut abi::Qp) -> &'a Qp {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*qp.cast::<Qp>() }
}

/// `ibv_create_qp`. Writes the sizes that the queue pair has.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_qp(pd: *mut abi::Pd, init: *mut QpInitAttr) -> *mut abi::Qp {
    // SAFETY: see the crate.
    pointer(unsafe { make(pd, &mut *init, None) })
}

/// Creates a queue pair, with the calls for each request if it has a batch.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn make(
    pd: *mut abi::Pd,
    init: &mut QpInitAttr,
    batch: Option<Batch>,
) -> Result<*mut abi::Qp, Errno> {
    // SAFETY: see the crate.
    let context = unsafe { (*pd).context };
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    // SAFETY: see the crate.
    let (inner, events, slot, inline, cap) = unsafe { create(opening, pd, init)? };
    init.cap = cap;
    // SAFETY: zeros are numbers and null pointers.
    let mut abi: abi::QpEx = unsafe { core::mem::zeroed() };
    abi.base = abi::Qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: inner.slot(),
        qp_num: inner.qpn(),
        state: qps::RESET,
        qp_type: init.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    };
    if batch.is_some() {
        qp_ex::fill(&mut abi);
    }
    let attr = Mutex::new(QpAttr { cap, ..QpAttr::default() });
    let signals_all = init.sq_sig_all != 0;
    let qp = Qp {
        abi,
        inner,
        events: events.clone(),
        slot,
        handle: events.handle.as_raw(),
        origin: opening.origin,
        signals_all,
        inline,
        batch,
        init: *init,
        attr,
        groups: Mutex::default(),
    };
    let made = Box::into_raw(Box::new(qp));
    events.is_at(made.cast());
    Ok(made.cast())
}

type Made = (Arc<kernel_agent::Qp>, Arc<Events>, Arc<SendSlot>, Option<Inline>, QpCap);

/// # Safety
///
/// The objects in `init` are there.
unsafe fn create(opening: &Arc<Opening>, pd: *mut abi::Pd, init: &QpInitAttr) -> Result<Made, Errno> {
    opening.origin.check()?;
    let (qp_type, kind) = match init.qp_type {
        qpt::RC => (QpType::Rc, init.qp_type),
        qpt::UC => (QpType::Uc, init.qp_type),
        qpt::UD => (QpType::Ud, init.qp_type),
        _ => return Err(libc::EOPNOTSUPP),
    };
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    if !init.srq.is_null() && kind == qpt::UC {
        return Err(libc::EOPNOTSUPP);
    }
    let asked = init.cap;
    let most = opening.agent().identity().max_sges;
    if asked.max_send_sge > most || asked.max_recv_sge > most || asked.max_inline_data > MAX_INLINE {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's.
    let (domain, send_cq, receive_cq) =
        unsafe { (memory::pd(pd), cq::of(init.send_cq), cq::of(init.recv_cq)) };
    // SAFETY: the caller's.
    let shared = (!init.srq.is_null()).then(|| unsafe { srq::of(init.srq) });
    let cap = QpCap {
        max_send_wr: asked.max_send_wr.max(LEAST_ROOM),
        max_recv_wr: if shared.is_some() { 0 } else { asked.max_recv_wr.max(1) },
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: if shared.is_some() { 0 } else { asked.max_recv_sge.max(1) },
        max_inline_data: asked.max_inline_data,
    };
    let reserved = opening.qps.reserve().map_err(|_| libc::ENOMEM)?;
    let handle = reserved.handle();
    let slot = Arc::default();
    let params = SlotParams { slot: &slot, handle: handle.as_raw(), closed: 0 };
    let most = cap.max_send_sge;
    let limits = SegmentLimits { send: most, write: most, read: most };
    let attributes = QpAttributes {
        // A datagram needs more than the slot.
        slot: (kind != qpt::UD).then_some((params, limits)),
        receive_cq: &receive_cq.inner,
        srq: shared.map(|srq| &srq.inner),
        max_send_segments: cap.max_send_sge,
        max_receive_requests: cap.max_recv_wr.max(1),
        max_receive_segments: cap.max_recv_sge.max(1),
        context: handle.as_raw(),
        ..QpAttributes::new(qp_type, &domain.inner, &send_cq.inner, cap.max_send_wr)
    };
    let client = opening.client()?;
    let inline = match cap.max_inline_data {
        0 => None,
        bytes => Some(Inline::new(client, &domain.inner, cap.max_send_wr, bytes)?),
    };
    let inner = match client.create_qp(&attributes) {
        Ok(inner) => inner,
        Err(error) => {
            if let Some(inline) = inline {
                inline.end();
            }
            return Err(errno::of(error));
        }
    };
    let events = Arc::new(Events::new(opening, handle));
    reserved.fill(events.clone());
    opening.numbers().insert(inner.qpn(), Arc::downgrade(&inner));
    Ok((inner, events, slot, inline, cap))
}

/// `ibv_attach_mcast`: `EINVAL` for a GID of no group and for a queue pair of no datagrams,
/// `ENOMEM` if the device has no room. A group that the queue pair has joined already is no error.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn attach_mcast(this: *mut abi::Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (qp, gid) = unsafe { (of(this), *gid) };
    let mut groups = qp.groups();
    if groups.contains(&gid) {
        return 0;
    }
    status(qp.inner.join(gid).map(|()| groups.push(gid)).map_err(errno::of))
}

/// `ibv_detach_mcast`: `EINVAL` if the queue pair has not joined the group.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn detach_mcast(this: *mut abi::Qp, gid: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (qp, gid) = unsafe { (of(this), *gid) };
    let mut groups = qp.groups();
    let Some(place) = groups.iter().position(|joined| *joined == gid) else { return libc::EINVAL };
    status(qp.inner.leave(gid).map(|()| _ = groups.swap_remove(place)).map_err(errno::of))
}

/// `ibv_destroy_qp`: `EBUSY` while it has joined a multicast group. Waits until the program has
/// acknowledged the events that it has taken.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_qp(this: *mut abi::Qp) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let qp = unsafe { of(this) };
    if !qp.groups().is_empty() && !qp.opening().agent().is_dead() {
        return libc::EBUSY;
    }
    if let Err(error) = qp.inner.destroy()
        && !qp.opening().agent().is_dead()
    {
        return errno::of(error);
    }
    let events = &qp.events;
    events.opening.qps.remove(events.handle);
    events.opening.numbers().remove(&qp.inner.qpn());
    if let Some(connections) = events.opening.connections.get() {
        connections.queue_pair_ended(qp.inner.context());
    }
    events.end();
    if let Some(inline) = &qp.inline {
        inline.end();
    }
    // SAFETY: it came from `create_qp`, and no event names it any more. A thread that posts to it
    // finds the agent's queue pair gone.
    unsafe { gone::keep(this.cast::<Qp>()) };
    0
}

/// `ibv_modify_qp`: all of it, or nothing.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn modify_qp(this: *mut abi::Qp, attr: *mut QpAttr, attr_mask: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (qp, attr) = unsafe { (of(this), &*attr) };
    let mut held = qp.attr();
    status(modify(qp, attr, attr_mask, &mut held).map(|state| {
        // SAFETY: see the crate; the program reads it.
        unsafe { (*this).state = state };
    }))
}

/// The state of a queue pair by the agent, as verbs number it.
fn state_of(qp: &Qp) -> c_int {
    qp.inner.state() as c_int
}

fn modify(qp: &Qp, attr: &QpAttr, given: c_int, held: &mut QpAttr) -> Result<c_int, Errno> {
    const KNOWN: c_int = (mask::DEST_QPN << 1) - 1;
    const MISSING: c_int = mask::ALT_PATH | mask::PATH_MIG_STATE | mask::CAP | mask::RATE_LIMIT;
    if given & MISSING != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if given & !KNOWN != 0 {
        return Err(libc::EINVAL);
    }
    let from = state_of(qp);
    if given & mask::CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let to = if given & mask::STATE != 0 { attr.qp_state } else { from };
    let datagram = qp.is_datagram();
    if (from, to) == (qps::RESET, qps::INIT) {
        let right = if datagram { mask::QKEY } else { mask::ACCESS_FLAGS };
        let needed = mask::PKEY_INDEX | mask::PORT | right;
        if given & needed != needed {
            return Err(libc::EINVAL);
        }
    }
    if datagram && (from, to) == (qps::RTR, qps::RTS) && given & mask::SQ_PSN == 0 {
        return Err(libc::EINVAL);
    }
    if given & mask::PKEY_INDEX != 0 && attr.pkey_index != 0 || given & mask::PORT != 0 && attr.port_num != 1
    {
        return Err(libc::EINVAL);
    }
    let change = translate(qp.opening().agent(), datagram, attr, given)?;
    if change.mask != 0 {
        qp.inner.modify(&change).map_err(errno::of)?;
    }
    if to == qps::RESET {
        *held = QpAttr { cap: held.cap, ..QpAttr::default() };
    }
    keep(held, attr, given);
    Ok(to)
}

/// The agent's form of a change.
fn translate(agent: &Agent, datagram: bool, attr: &QpAttr, given: c_int) -> Result<ModifyQp, Errno> {
    let mut to = QpMask::empty();
    for (bit, flag) in [
        (mask::STATE, QpMask::STATE),
        (mask::ACCESS_FLAGS, QpMask::ACCESS),
        (mask::QKEY, QpMask::QKEY),
        (mask::AV, QpMask::PATH),
        (mask::DEST_QPN, QpMask::REMOTE_QPN),
        (mask::PATH_MTU, QpMask::MTU),
        (mask::SQ_PSN, QpMask::SEND_PSN),
        (mask::RQ_PSN, QpMask::RECEIVE_PSN),
        (mask::TIMEOUT, QpMask::TIMEOUT),
        (mask::RETRY_CNT, QpMask::RETRY_COUNT),
        (mask::RNR_RETRY, QpMask::RNR_RETRY),
        (mask::MIN_RNR_TIMER, QpMask::MIN_RNR_TIMER),
        (mask::MAX_QP_RD_ATOMIC, QpMask::MAX_RD_ATOMIC),
        (mask::MAX_DEST_RD_ATOMIC, QpMask::MAX_DEST_RD_ATOMIC),
    ] {
        to.set(flag, given & bit != 0);
    }
    if datagram {
        // A datagram's number is the sender's matter alone, and the device chooses it.
        to.remove(QpMask::SEND_PSN);
    }
    let mut change = ModifyQp {
        mask: to.bits(),
        access: rights(attr.qp_access_flags).bits(),
        qkey: attr.qkey,
        remote_qpn: attr.dest_qp_num,
        send_psn: attr.sq_psn & 0xff_ffff,
        receive_psn: attr.rq_psn & 0xff_ffff,
        timeout: attr.timeout,
        retry_count: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        min_rnr_timer: attr.min_rnr_timer,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        ..ModifyQp::default()
    };
    if given & mask::STATE != 0 {
        let state = u32::try_from(attr.qp_state).ok().and_then(QpState::from_word);
        change.state = state.ok_or(libc::EINVAL)? as u32;
    }
    if given & mask::PATH_MTU != 0 {
        if !(1..=5).contains(&attr.path_mtu) {
            return Err(libc::EINVAL);
        }
        change.mtu = 128 << attr.path_mtu;
    }
    if given & mask::AV != 0 {
        let route = &attr.ah_attr;
        // The port is an Ethernet's: its addresses are GIDs.
        if route.is_global == 0 {
            return Err(libc::EINVAL);
        }
        change.remote_gid = gid_bytes(route.dgid);
        change.source_gid = device_gid(agent, route.sgid_index)?;
        change.flow_label = route.flow_label & 0xf_ffff;
        change.hop_limit = route.hop_limit;
        change.traffic_class = route.traffic_class;
    }
    Ok(change)
}

fn rights(flags: c_uint) -> LinkFlags {
    let mut rights = LinkFlags::empty();
    rights.set(LinkFlags::REMOTE_WRITE, flags & access::REMOTE_WRITE != 0);
    rights.set(LinkFlags::REMOTE_READ, flags & access::REMOTE_READ != 0);
    rights.set(LinkFlags::REMOTE_ATOMIC, flags & access::REMOTE_ATOMIC != 0);
    rights
}

/// Keeps the attributes that were set, for queries.
fn keep(held: &mut QpAttr, from: &QpAttr, given: c_int) {
    macro_rules! keep {
        ($($bit:ident: $($field:ident),+;)+) => {
            $(if given & mask::$bit != 0 { $(held.$field = from.$field;)+ })+
        };
    }
    keep! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        DEST_QPN: dest_qp_num;
    }
}

/// `ibv_query_qp`: all attributes, whatever the mask asks for. The state is the device's.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_qp(
    this: *mut abi::Qp,
    attr: *mut QpAttr,
    _attr_mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let qp = unsafe { of(this) };
    status(qp.inner.query().map_err(errno::of).map(|info| {
        let state = info.state as c_int;
        let mut answer = *qp.attr();
        (answer.qp_state, answer.cur_qp_state) = (state, state);
        // That of datagrams is what the program has set: see `translate`.
        if !qp.is_datagram() {
            (answer.sq_psn, answer.rq_psn) = (info.send_psn, info.receive_psn);
        }
        // SAFETY: see the crate.
        unsafe {
            *attr = answer;
            *init = qp.init;
            (*this).state = state;
        }
    }))
}
