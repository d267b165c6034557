//! Posts by a call for each request and its data, and one that posts all of them: `struct
//! ibv_qp_ex`.
//!
//! A program begins, adds requests, and posts all or gives all up; meanwhile other threads that
//! begin, or post by `ibv_post_send`, wait. Each request is a [`SendWr`], and is posted as such.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::{mem, ptr, slice};

use crate::abi::{
    self, DataBuf, MwBindInfo, QpEx, QpInitAttr, QpInitAttrEx, SendWr, Sge, WrAtomic, WrBind, WrRdma, WrUd,
    init_attr, qpt, send_flags, send_ops, wr,
};
use crate::errno::{Errno, pointer};
use crate::post;
use crate::qp::{self, Qp};
use crate::turn::Turn;

/// The requests that a queue pair of this type can have.
fn known(kind: c_int) -> u64 {
    let datagrams = send_ops::SEND | send_ops::SEND_WITH_IMM;
    let unreliable = datagrams | send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM | send_ops::BIND_MW;
    match kind {
        qpt::UD => datagrams,
        qpt::UC => unreliable | send_ops::SEND_WITH_INV | send_ops::LOCAL_INV,
        _ => (1 << 10) - 1,
    }
}

/// What a queue pair has whose program posts so.
pub(crate) struct Batch {
    pub(crate) turn: Turn,
    /// The requests that the program may make, by their opcodes.
    operations: u64,
    /// Changed by the thread whose turn it is.
    requests: UnsafeCell<Requests>,
}

// SAFETY: `requests` is that of the thread that has the turn.
unsafe impl Send for Batch {}
// SAFETY: as above.
unsafe impl Sync for Batch {}

/// The requests since the program began. The room is kept for the next ones.
#[derive(Default)]
struct Requests {
    requests: Vec<Added>,
    segments: Vec<Sge>,
    bytes: Vec<u8>,
    /// The first thing that was wrong.
    error: Option<Errno>,
}

/// A request, whose data is that of the segments, or of the bytes, from here to where the next
/// request's begins.
struct Added {
    request: SendWr,
    segments: usize,
    bytes: usize,
}

impl Requests {
    fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
        self.bytes.clear();
        self.error = None;
    }

    fn fail(&mut self, error: Errno) {
        self.error = self.error.or(Some(error));
    }
}

/// The slot `create_qp_ex`: with a protection domain, and maybe with these calls. `EOPNOTSUPP` for
/// all else, and for requests that the queue pair cannot have.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_qp_ex(_context: *mut abi::Context, init: *mut QpInitAttrEx) -> *mut abi::Qp {
    // SAFETY: see the crate: the structure reaches as far as its mask says.
    pointer(unsafe {
        let has_pd = (*init).comp_mask & init_attr::PD != 0;
        create(init, if has_pd { (*init).pd } else { ptr::null_mut() })
    })
}

/// The part of the attributes that those of a queue pair without more calls have, too.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn plain(init: *const QpInitAttrEx) -> QpInitAttr {
    // SAFETY: see the crate; these fields are there whatever the mask says.
    unsafe {
        QpInitAttr {
            qp_context: (*init).qp_context,
            send_cq: (*init).send_cq,
            recv_cq: (*init).recv_cq,
            srq: (*init).srq,
            cap: (*init).cap,
            qp_type: (*init).qp_type,
            sq_sig_all: (*init).sq_sig_all,
        }
    }
}

/// Creates a queue pair in this protection domain.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn create(init: *mut QpInitAttrEx, pd: *mut abi::Pd) -> Result<*mut abi::Qp, Errno> {
    const KNOWN: u32 = init_attr::PD | init_attr::CREATE_FLAGS | init_attr::SEND_OPS_FLAGS;
    // SAFETY: see the crate: the structure reaches as far as its mask says.
    unsafe {
        let mask = (*init).comp_mask;
        if mask & !KNOWN != 0 || mask & init_attr::CREATE_FLAGS != 0 && (*init).create_flags != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if pd.is_null() {
            return Err(libc::EINVAL);
        }
        let operations = (mask & init_attr::SEND_OPS_FLAGS != 0).then(|| (*init).send_ops_flags);
        if operations.is_some_and(|operations| operations & !known((*init).qp_type) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let batch = operations.map(|operations| Batch {
            turn: Turn::default(),
            operations,
            requests: UnsafeCell::default(),
        });
        let mut plain = plain(init);
        let made = qp::make(pd, &mut plain, batch)?;
        (*init).cap = plain.cap;
        Ok(made)
    }
}

/// The calls of a new queue pair.
pub(crate) fn fill(of: &mut QpEx) {
    of.wr_atomic_cmp_swp = wr_atomic_cmp_swp as *const () as usize;
    of.wr_atomic_fetch_add = wr_atomic_fetch_add as *const () as usize;
    of.wr_bind_mw = wr_bind_mw as *const () as usize;
    of.wr_local_inv = wr_local_inv as *const () as usize;
    of.wr_rdma_read = wr_rdma_read as *const () as usize;
    of.wr_rdma_write = wr_rdma_write as *const () as usize;
    of.wr_rdma_write_imm = wr_rdma_write_imm as *const () as usize;
    of.wr_send = wr_send as *const () as usize;
    of.wr_send_imm = wr_send_imm as *const () as usize;
    of.wr_send_inv = wr_send_inv as *const () as usize;
    of.wr_set_ud_addr = wr_set_ud_addr as *const () as usize;
    of.wr_set_inline_data = wr_set_inline_data as *const () as usize;
    of.wr_set_inline_data_list = wr_set_inline_data_list as *const () as usize;
    of.wr_set_sge = wr_set_sge as *const () as usize;
    of.wr_set_sge_list = wr_set_sge_list as *const () as usize;
    of.wr_start = wr_start as *const () as usize;
    of.wr_complete = wr_complete as *const () as usize;
    of.wr_abort = wr_abort as *const () as usize;
    for missing in [&mut of.wr_send_tso, &mut of.wr_set_xrc_srqn, &mut of.wr_atomic_write, &mut of.wr_flush] {
        *missing = wr_missing as *const () as usize;
    }
}

/// `ibv_qp_to_qp_ex`: null for a queue pair that was created without these calls.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn qp_to_qp_ex(this: *mut abi::Qp) -> *mut QpEx {
    // SAFETY: see the crate.
    match unsafe { &qp::of(this).batch } {
        Some(_) => this.cast(),
        None => ptr::null_mut(),
    }
}

/// The queue pair, and the requests of the thread that has its turn; `None` for a queue pair
/// without these calls.
///
/// # Safety
///
/// See the crate. The result is not used beside another one.
unsafe fn open<'a>(this: *mut QpEx) -> Option<(&'a Qp, &'a Batch, &'a mut Requests)> {
    // SAFETY: see the crate.
    let qp = unsafe { qp::of(this.cast()) };
    let batch = qp.batch.as_ref().filter(|_| qp.opening().origin.check().is_ok())?;
    // SAFETY: the caller's: this thread has the turn.
    Some((qp, batch, unsafe { &mut *batch.requests.get() }))
}

unsafe extern "C" fn wr_start(this: *mut QpEx) {
    // SAFETY: see the crate.
    let qp = unsafe { qp::of(this.cast()) };
    if let Some(batch) = &qp.batch
        && qp.opening().origin.check().is_ok()
    {
        batch.turn.take();
        // SAFETY: this thread has the turn.
        unsafe { &mut *batch.requests.get() }.clear();
    }
}

/// Posts all requests since the beginning. If one of them is wrong, or there is no room for all,
/// none is posted.
unsafe extern "C" fn wr_complete(this: *mut QpEx) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { qp::of(this.cast()) }.opening().origin.check() {
        return error;
    }
    // SAFETY: see the crate.
    let Some((qp, batch, added)) = (unsafe { open(this) }) else { return libc::EINVAL };
    // SAFETY: the requests are the program's, and their data is theirs.
    let posted = unsafe { post_all(qp, added) };
    batch.turn.end();
    posted.err().unwrap_or(0)
}

/// # Safety
///
/// What the requests name is there.
unsafe fn post_all(qp: &Qp, added: &mut Requests) -> Result<(), Errno> {
    if let Some(error) = added.error {
        return Err(error);
    }
    let (outstanding, _) = qp.inner.outstanding();
    if u64::from(outstanding) + added.requests.len() as u64 > u64::from(qp.cap().max_send_wr) {
        return Err(libc::ENOMEM);
    }
    let Requests { requests, segments, bytes, .. } = added;
    let mut ends = (segments.len(), bytes.len());
    // From the last one, since the end of a request's data is the beginning of the next one's.
    for Added { request, segments: first, bytes: from } in requests.iter_mut().rev() {
        let of_bytes = request.send_flags & send_flags::INLINE != 0;
        if of_bytes {
            // The segment that was kept for it.
            segments[*first] =
                Sge { addr: bytes[*from..].as_ptr() as u64, length: (ends.1 - *from) as u32, lkey: 0 };
        }
        request.num_sge = (ends.0 - *first) as c_int;
        request.sg_list = segments[*first..].as_mut_ptr();
        ends = (*first, *from);
    }
    if !requests.iter().all(|Added { request, .. }| is_whole(qp, request)) {
        return Err(libc::EINVAL);
    }
    for Added { request, .. } in &*requests {
        // The first fails if the queue pair takes no requests; then nothing is posted.
        // SAFETY: the caller's.
        unsafe { post::post_one(qp, request) }?;
    }
    Ok(())
}

/// Whether a request has what its kind needs, so that a post refuses it for the queue's state only.
fn is_whole(qp: &Qp, request: &SendWr) -> bool {
    match request.opcode {
        // SAFETY: the member of the union is the opcode's; all of it is zeros before it is set.
        _ if qp.is_datagram() => !unsafe { request.wr.ud }.ah.is_null(),
        wr::ATOMIC_CMP_AND_SWP | wr::ATOMIC_FETCH_AND_ADD => request.num_sge == 1,
        // SAFETY: it is a bind.
        wr::BIND_MW => unsafe { post::posted_bind(request) }.is_ok(),
        wr::LOCAL_INV => qp.opening().keys().local(request.imm_data).is_some(),
        _ => true,
    }
}

unsafe extern "C" fn wr_abort(this: *mut QpEx) {
    // SAFETY: see the crate.
    if let Some((_, batch, _)) = unsafe { open(this) } {
        batch.turn.end();
    }
}

/// Adds a request; `with` fills what it has of its own.
///
/// # Safety
///
/// See the crate; the program has begun.
unsafe fn add(this: *mut QpEx, opcode: c_int, with: impl FnOnce(&mut SendWr)) {
    // SAFETY: see the crate.
    let Some((qp, batch, added)) = (unsafe { open(this) }) else { return };
    if batch.operations >> opcode & 1 == 0 {
        return added.fail(libc::EINVAL);
    }
    if added.requests.len() >= qp.cap().max_send_wr as usize {
        return added.fail(libc::ENOMEM);
    }
    // SAFETY: zeros are null pointers and numbers.
    let mut request: SendWr = unsafe { mem::zeroed() };
    // SAFETY: see the crate: the program has written the two fields.
    let (wr_id, flags) = unsafe { ((*this).wr_id, (*this).wr_flags) };
    (request.wr_id, request.opcode) = (wr_id, opcode);
    // The data says itself whether it is inline.
    request.send_flags = flags & !send_flags::INLINE;
    with(&mut request);
    let (segments, bytes) = (added.segments.len(), added.bytes.len());
    added.requests.push(Added { request, segments, bytes });
}

/// Gives the last request its data.
///
/// # Safety
///
/// See the crate; the program has begun.
unsafe fn set(this: *mut QpEx, with: impl FnOnce(&Qp, &mut Requests) -> Result<(), Errno>) {
    // SAFETY: see the crate.
    let Some((qp, _, added)) = (unsafe { open(this) }) else { return };
    // Once for each request.
    let fresh = added
        .requests
        .last()
        .is_some_and(|last| last.segments == added.segments.len() && last.bytes == added.bytes.len());
    let done = if fresh { with(qp, added) } else { Err(libc::EINVAL) };
    if let Err(error) = done {
        added.fail(error);
    }
}

fn set_segments(qp: &Qp, added: &mut Requests, list: &[Sge]) -> Result<(), Errno> {
    if list.len() > qp.cap().max_send_sge as usize {
        return Err(libc::EINVAL);
    }
    added.segments.extend_from_slice(list);
    Ok(())
}

/// # Safety
///
/// The buffers' bytes are there.
unsafe fn set_bytes(qp: &Qp, added: &mut Requests, list: &[DataBuf]) -> Result<(), Errno> {
    const OF_BYTES: [c_int; 5] =
        [wr::SEND, wr::SEND_WITH_IMM, wr::SEND_WITH_INV, wr::RDMA_WRITE, wr::RDMA_WRITE_WITH_IMM];
    if !added.requests.last().is_some_and(|last| OF_BYTES.contains(&last.request.opcode)) {
        return Err(libc::EINVAL);
    }
    let total = list.iter().try_fold(0usize, |total, buffer| total.checked_add(buffer.length));
    if total.is_none_or(|total| total > qp.cap().max_inline_data as usize) {
        return Err(libc::EINVAL);
    }
    for buffer in list.iter().filter(|buffer| buffer.length > 0) {
        // SAFETY: the caller's.
        added
            .bytes
            .extend_from_slice(unsafe { slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) });
    }
    // Its place: the bytes may move until the requests are posted.
    added.segments.push(Sge::default());
    if let Some(last) = added.requests.last_mut() {
        last.request.send_flags |= send_flags::INLINE;
    }
    Ok(())
}

/// # Safety
///
/// The list has so many elements.
unsafe fn list<'a, T>(at: *const T, number: usize) -> &'a [T] {
    // SAFETY: the caller's.
    if number == 0 { &[] } else { unsafe { slice::from_raw_parts(at, number) } }
}

unsafe extern "C" fn wr_set_sge(this: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: see the crate.
    unsafe { set(this, |qp, added| set_segments(qp, added, &[Sge { addr, length, lkey }])) }
}

unsafe extern "C" fn wr_set_sge_list(this: *mut QpEx, number: usize, at: *const Sge) {
    // SAFETY: see the crate.
    unsafe { set(this, |qp, added| set_segments(qp, added, list(at, number))) }
}

unsafe extern "C" fn wr_set_inline_data(this: *mut QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: see the crate.
    unsafe { set(this, |qp, added| set_bytes(qp, added, &[DataBuf { addr, length }])) }
}

unsafe extern "C" fn wr_set_inline_data_list(this: *mut QpEx, number: usize, at: *const DataBuf) {
    // SAFETY: see the crate.
    unsafe { set(this, |qp, added| set_bytes(qp, added, list(at, number))) }
}

unsafe extern "C" fn wr_set_ud_addr(this: *mut QpEx, ah: *mut abi::Ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: see the crate.
    let Some((qp, _, added)) = (unsafe { open(this) }) else { return };
    match added.requests.last_mut() {
        Some(last) if qp.is_datagram() => last.request.wr.ud = WrUd { ah, remote_qpn, remote_qkey },
        _ => added.fail(libc::EINVAL),
    }
}

unsafe extern "C" fn wr_send(this: *mut QpEx) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::SEND, |_| {}) }
}

unsafe extern "C" fn wr_send_imm(this: *mut QpEx, immediate: u32) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::SEND_WITH_IMM, |request| request.imm_data = immediate) }
}

unsafe extern "C" fn wr_send_inv(this: *mut QpEx, key: u32) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::SEND_WITH_INV, |request| request.imm_data = key) }
}

unsafe extern "C" fn wr_local_inv(this: *mut QpEx, key: u32) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::LOCAL_INV, |request| request.imm_data = key) }
}

unsafe extern "C" fn wr_rdma_read(this: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::RDMA_READ, |request| request.wr.rdma = WrRdma { remote_addr, rkey }) }
}

unsafe extern "C" fn wr_rdma_write(this: *mut QpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::RDMA_WRITE, |request| request.wr.rdma = WrRdma { remote_addr, rkey }) }
}

unsafe extern "C" fn wr_rdma_write_imm(this: *mut QpEx, rkey: u32, remote_addr: u64, immediate: u32) {
    // SAFETY: see the crate.
    unsafe {
        add(this, wr::RDMA_WRITE_WITH_IMM, |request| {
            request.wr.rdma = WrRdma { remote_addr, rkey };
            request.imm_data = immediate;
        });
    }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    this: *mut QpEx,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = WrAtomic { remote_addr, compare_add, swap, rkey };
    // SAFETY: see the crate.
    unsafe { add(this, wr::ATOMIC_CMP_AND_SWP, |request| request.wr.atomic = atomic) }
}

unsafe extern "C" fn wr_atomic_fetch_add(this: *mut QpEx, rkey: u32, remote_addr: u64, compare_add: u64) {
    let atomic = WrAtomic { remote_addr, compare_add, swap: 0, rkey };
    // SAFETY: see the crate.
    unsafe { add(this, wr::ATOMIC_FETCH_AND_ADD, |request| request.wr.atomic = atomic) }
}

unsafe extern "C" fn wr_bind_mw(this: *mut QpEx, mw: *mut abi::Mw, rkey: u32, info: *const MwBindInfo) {
    // SAFETY: see the crate.
    unsafe { add(this, wr::BIND_MW, |request| request.bind_mw = WrBind { mw, rkey, info: *info }) }
}

/// A request or an address that no queue pair here has: nothing is posted.
unsafe extern "C" fn wr_missing(this: *mut QpEx) {
    // SAFETY: see the crate.
    if let Some((_, _, added)) = unsafe { open(this) } {
        added.fail(libc::EOPNOTSUPP);
    }
}
