//! Posts: chains of requests, of which the first that is refused ends the call.
#![expect(unsafe_code, reason = "requests of C are chains of pointers")]

use core::ffi::{c_int, c_uint};
use core::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel_agent::{
    Bind, Client, DatagramAddress, Direction, Head, MemoryList, Operation, Pd, Region, Remote, RemoteWords,
    Request, Segment, SendFlags, Shadow, Transfer,
};
use platform::DmaBuffer;

use crate::abi::{self, MwBind, MwBindInfo, RecvWr, SendWr, Sge, WrBind, send_flags, wc_opcode, wr};
use crate::errno::{self, Errno};
use crate::memory::Mw;
use crate::opening::Context;
use crate::qp::{self, Qp};
use crate::{ah, memory, srq};

/// Where the bytes of inline requests are until they have been sent.
pub(crate) struct Inline {
    client: Arc<Client>,
    region: Arc<Region>,
    each: u32,
    places: u32,
    /// None when the queue pair is destroyed.
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    bytes: Arc<DmaBuffer>,
    /// The place of the next request. There is one place more than requests can be outstanding, so
    /// the request that had the next place before is complete, whether or not there is room for
    /// another request.
    next: u32,
}

impl Inline {
    pub(crate) fn new(client: &Arc<Client>, pd: &Arc<Pd>, requests: u32, each: u32) -> Result<Inline, Errno> {
        let agent = client.agent();
        let places = requests.saturating_add(1);
        let length = places as usize * each as usize;
        let bytes = Arc::new(DmaBuffer::new(agent.platform(), length, 64).map_err(|_| libc::ENOMEM)?);
        let rights = kernel_agent::LinkFlags::LOCAL_READ;
        let memory = MemoryList::Contiguous { bus: bytes.bus(), length: length as u64 };
        let region = agent.registering(&bytes, || client.register(pd, rights, 0, &memory));
        let region = region.map_err(errno::of)?;
        let kept = Mutex::new(Some(Kept { bytes, next: 0 }));
        Ok(Inline { client: client.clone(), region, each, places, kept })
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it, after its queue pair.
    pub(crate) fn end(&self) {
        let Some(Kept { bytes, .. }) = self.kept().take() else { return };
        let destroyed = self.region.destroy();
        self.client.agent().release(bytes, destroyed);
    }

    /// Copies the bytes of a request, and posts it by `post` with the segment that they are.
    ///
    /// # Safety
    ///
    /// The segments' addresses are of bytes that can be read.
    unsafe fn post<R>(
        &self,
        segments: &[Sge],
        post: impl FnOnce(&[Sge]) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let total: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        if total > u64::from(self.each) {
            return Err(libc::EINVAL);
        }
        let mut kept = self.kept();
        let Some(Kept { bytes, next }) = &mut *kept else { return Err(libc::EIO) };
        let at = *next as usize * self.each as usize;
        let mut copied = at;
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let length = segment.length as usize;
            // SAFETY: the caller's.
            let from = unsafe { slice::from_raw_parts(segment.addr as *const u8, length) };
            // It fits: the place has room for all.
            bytes.slice().write(copied, from).map_err(|_| libc::EINVAL)?;
            copied += length;
        }
        let whole = Sge { addr: at as u64, length: total as u32, lkey: self.region.key() };
        let posted = post(if total == 0 { &[] } else { slice::from_ref(&whole) })?;
        *next = (*next + 1) % self.places;
        Ok(posted)
    }
}

#[inline]
fn segment(of: &Sge) -> Segment {
    Segment { addr: of.addr, length: of.length, key: of.lkey }
}

/// # Safety
///
/// The list has so many elements, or the number is wrong.
#[inline]
unsafe fn segments<'a>(list: *mut Sge, number: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(number) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's.
        Ok(number) => Ok(unsafe { slice::from_raw_parts(list, number) }),
        Err(_) => Err(libc::EINVAL),
    }
}

/// `ibv_post_send`. `bad_wr` is the first request that was not posted.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn post_send(
    this: *mut abi::Qp,
    first: *mut SendWr,
    bad_wr: *mut *mut SendWr,
) -> c_int {
    // SAFETY: see the crate.
    let qp = unsafe { qp::of(this) };
    if let Err(error) = qp.origin.check() {
        // SAFETY: see the crate.
        unsafe { *bad_wr = first };
        return error;
    }
    // SAFETY: see the crate.
    let post_chain = || unsafe { post_chain(qp, first, bad_wr) };
    match &qp.batch {
        None => post_chain(),
        // All requests of another thread's batch are posted, or none.
        Some(batch) => {
            batch.turn.take();
            let result = post_chain();
            batch.turn.end();
            result
        }
    }
}

/// # Safety
///
/// See the crate.
#[inline]
unsafe fn post_chain(qp: &Qp, first: *mut SendWr, bad_wr: *mut *mut SendWr) -> c_int {
    let mut next = first;
    // SAFETY: see the crate: the chain ends with null.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: see the crate.
        if let Err(error) = unsafe { post_one(qp, request) } {
            // SAFETY: see the crate.
            unsafe { *bad_wr = next };
            return error;
        }
        next = request.next;
    }
    0
}

#[inline]
fn flags(qp: &Qp, given: c_uint) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, qp.signals_all || given & send_flags::SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, given & send_flags::SOLICITED != 0);
    flags.set(SendFlags::FENCE_READS, given & send_flags::FENCE != 0);
    flags
}

/// # Safety
///
/// See the crate.
#[inline]
pub(crate) unsafe fn post_one(qp: &Qp, request: &SendWr) -> Result<(), Errno> {
    if request.num_sge == 1 && request.send_flags & send_flags::INLINE == 0 {
        // SAFETY: see the crate: there is one element.
        let make = || Some((transfer(qp, request)?, segment(unsafe { &*request.sg_list })));
        if qp.slot.post_single(qp.handle, |limits| limits.send > 0, make).is_some() {
            return Ok(());
        }
    }
    // SAFETY: the caller's.
    unsafe { post_slowly(qp, request) }
}

/// A request in the form in which the fast path takes it: a Send, Write or Read without anything
/// else. Not for datagrams.
#[inline(always)]
fn transfer(qp: &Qp, request: &SendWr) -> Option<Transfer> {
    let (direction, opcode) = match request.opcode {
        wr::SEND => (Direction::Send, wc_opcode::SEND),
        wr::RDMA_WRITE => (Direction::Write, wc_opcode::RDMA_WRITE),
        wr::RDMA_READ => (Direction::Read, wc_opcode::RDMA_READ),
        _ => return None,
    };
    let remote = match direction {
        Direction::Send => RemoteWords::default(),
        Direction::Write | Direction::Read => {
            // SAFETY: the member of the union is the opcode's.
            let rdma = unsafe { request.wr.rdma };
            RemoteWords { key: u64::from(rdma.rkey) << 32, addr: rdma.remote_addr }
        }
    };
    let shadow = Shadow { cookie: request.wr_id, data: opcode as u32 };
    Some(Transfer { head: Head::new(direction, flags(qp, request.send_flags)), remote, shadow })
}

/// Posts any request, or finds the reason why it cannot be posted.
///
/// # Safety
///
/// See the crate.
#[inline(never)]
unsafe fn post_slowly(qp: &Qp, request: &SendWr) -> Result<(), Errno> {
    // SAFETY: see the crate.
    let list = unsafe { segments(request.sg_list, request.num_sge)? };
    if request.opcode == wr::BIND_MW {
        // SAFETY: see the crate.
        return unsafe { post_bind(qp, request) };
    }
    // SAFETY: see the crate: the member of the union is the opcode's.
    let (operation, opcode, list) = unsafe { operation(qp, request, list)? };
    let flags = flags(qp, request.send_flags);
    let shadow = Shadow { cookie: request.wr_id, data: opcode as u32 };
    let request_of = Request { operation, flags, shadow };
    let post = |list: &[Sge]| qp.inner.post(&request_of, list, segment).map_err(errno::of_post);
    let inlined = request.send_flags & send_flags::INLINE != 0;
    let posted = match (&qp.inline, inlined && opcode <= wc_opcode::RDMA_WRITE) {
        // SAFETY: see the crate: inline bytes are the program's.
        (Some(inline), true) => unsafe { inline.post(list, post) },
        (None, true) if list.iter().any(|segment| segment.length > 0) => Err(libc::EINVAL),
        _ => post(list),
    };
    posted.map(drop)
}

/// The operation of a request, the opcode of its completion, and its segments.
///
/// # Safety
///
/// The member of the union is the opcode's.
#[inline]
unsafe fn operation<'a>(
    qp: &Qp,
    request: &SendWr,
    list: &'a [Sge],
) -> Result<(Operation, c_int, &'a [Sge]), Errno> {
    let immediate = u32::from_be(request.imm_data);
    if qp.is_datagram() {
        // SAFETY: the caller's.
        let ud = unsafe { request.wr.ud };
        // SAFETY: see the crate.
        let known = unsafe { ah::of(ud.ah) }.to;
        let to = DatagramAddress { qpn: ud.remote_qpn, qkey: ud.remote_qkey, ..known };
        let operation = match request.opcode {
            wr::SEND => Operation::Datagram { to },
            wr::SEND_WITH_IMM => Operation::DatagramImmediate { to, immediate },
            _ => return Err(libc::EINVAL),
        };
        return Ok((operation, wc_opcode::SEND, list));
    }
    let remote = || {
        // SAFETY: the caller's.
        let rdma = unsafe { request.wr.rdma };
        Remote { addr: rdma.remote_addr, key: rdma.rkey }
    };
    let local = || qp.opening().keys().local(request.imm_data).ok_or(libc::EINVAL);
    let invalidated = || local().map(|key| Operation::LocalInvalidate { key, remote: request.imm_data });
    Ok(match request.opcode {
        wr::SEND => (Operation::Send { immediate: None }, wc_opcode::SEND, list),
        wr::SEND_WITH_IMM => (Operation::Send { immediate: Some(immediate) }, wc_opcode::SEND, list),
        wr::SEND_WITH_INV => (Operation::SendInvalidate { key: request.imm_data }, wc_opcode::SEND, list),
        wr::RDMA_WRITE => (Operation::Write { to: remote(), immediate: None }, wc_opcode::RDMA_WRITE, list),
        wr::RDMA_WRITE_WITH_IMM => {
            (Operation::Write { to: remote(), immediate: Some(immediate) }, wc_opcode::RDMA_WRITE, list)
        }
        wr::RDMA_READ => (Operation::Read { from: remote() }, wc_opcode::RDMA_READ, list),
        wr::LOCAL_INV => (invalidated()?, wc_opcode::LOCAL_INV, &[]),
        wr::ATOMIC_CMP_AND_SWP | wr::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the caller's.
            let atomic = unsafe { request.wr.atomic };
            let remote = Remote { addr: atomic.remote_addr, key: atomic.rkey };
            let [sink] = list else { return Err(libc::EINVAL) };
            let sink = segment(sink);
            match request.opcode == wr::ATOMIC_CMP_AND_SWP {
                true => {
                    let (compare, swap) = (atomic.compare_add, atomic.swap);
                    (Operation::CompareSwap { remote, sink, compare, swap }, wc_opcode::COMP_SWAP, &[])
                }
                false => {
                    (Operation::FetchAdd { remote, sink, add: atomic.compare_add }, wc_opcode::FETCH_ADD, &[])
                }
            }
        }
        _ => return Err(libc::EINVAL),
    })
}

/// What a bind makes of a window.
///
/// # Safety
///
/// See the crate.
unsafe fn bind(window: &Mw, info: &MwBindInfo) -> Result<Bind, Errno> {
    // SAFETY: see the crate.
    match unsafe { info.mr.as_ref() } {
        Some(mr) => Ok(Bind {
            region: mr.lkey,
            flags: memory::bind_rights(info.access)?,
            addr: info.addr,
            length: info.length,
        }),
        // A length of 0 unbinds a window of type 1, whatever the region.
        None if info.length == 0 && !window.is_narrow() => {
            Ok(Bind { region: 0, flags: memory::bind_rights(0)?, addr: 0, length: 0 })
        }
        None => Err(libc::EINVAL),
    }
}

/// The window of a posted request, and what the request makes of it: only windows of type 2 are
/// bound by requests.
///
/// # Safety
///
/// The request is a bind.
pub(crate) unsafe fn posted_bind<'a>(request: &SendWr) -> Result<(&'a Mw, Bind), Errno> {
    let WrBind { mw, ref info, .. } = request.bind_mw;
    // SAFETY: see the crate.
    let window = unsafe { memory::mw(mw) };
    if !window.is_narrow() {
        return Err(libc::EINVAL);
    }
    // SAFETY: see the crate.
    Ok((window, unsafe { bind(window, info)? }))
}

fn bind_shadow(wr_id: u64) -> Shadow {
    Shadow { cookie: wr_id, data: wc_opcode::BIND_MW as u32 }
}

/// Posts the bind of a window of type 2. Of the remote key the last byte counts; the others are the
/// window's.
///
/// # Safety
///
/// The request is a bind.
unsafe fn post_bind(qp: &Qp, request: &SendWr) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let (window, to) = unsafe { posted_bind(request)? };
    let (low, flags) = (request.bind_mw.rkey as u8, flags(qp, request.send_flags));
    let shadow = bind_shadow(request.wr_id);
    qp.inner.post_bind_chosen(&window.inner, low, to, flags, shadow).map(drop).map_err(errno::of_post)
}

/// `ibv_bind_mw`: posts the bind of a window of type 1, whose key is new at once. A window of type
/// 2 is `EINVAL`: it is bound by a request.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn bind_mw(this: *mut abi::Qp, window: *mut abi::Mw, with: *mut MwBind) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let (qp, with, of) = unsafe { (qp::of(this), &*with, memory::mw(window)) };
    if of.is_narrow() {
        return libc::EINVAL;
    }
    // SAFETY: see the crate.
    let bound = unsafe { bind(of, &with.info) }.and_then(|to| {
        let flags = flags(qp, with.send_flags);
        qp.inner.post_bind(&of.inner, to, flags, bind_shadow(with.wr_id)).map_err(errno::of_post)
    });
    match bound {
        Ok(rkey) => {
            // SAFETY: see the crate.
            unsafe { (*window).rkey = rkey };
            0
        }
        Err(error) => error,
    }
}

/// # Safety
///
/// See the crate.
#[inline]
unsafe fn post_receives(
    first: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
    post: impl Fn(&[Sge], Shadow) -> Result<(), kernel_agent::PostError>,
) -> c_int {
    let mut next = first;
    // SAFETY: see the crate: the chain ends with null.
    while let Some(request) = unsafe { next.as_ref() } {
        let shadow = Shadow { cookie: request.wr_id, data: wc_opcode::RECV as u32 };
        // SAFETY: see the crate.
        let list = unsafe { segments(request.sg_list, request.num_sge) };
        if let Err(error) = list.and_then(|list| post(list, shadow).map_err(errno::of_post)) {
            // SAFETY: see the crate.
            unsafe { *bad_wr = next };
            return error;
        }
        next = request.next;
    }
    0
}

/// `ibv_post_recv`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn post_recv(
    this: *mut abi::Qp,
    first: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: see the crate.
    let qp = unsafe { qp::of(this) };
    if let Err(error) = qp.origin.check() {
        // SAFETY: see the crate.
        unsafe { *bad_wr = first };
        return error;
    }
    // SAFETY: see the crate.
    unsafe {
        post_receives(first, bad_wr, |list, shadow| {
            if let [one] = list
                && qp.inner.post_single_receive(|| Some(segment(one)), shadow).is_some()
            {
                return Ok(());
            }
            qp.inner.post_receive(false, list, segment, shadow)
        })
    }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn post_srq_recv(
    this: *mut abi::Srq,
    first: *mut RecvWr,
    bad_wr: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        // SAFETY: see the crate.
        unsafe { *bad_wr = first };
        return error;
    }
    // SAFETY: see the crate.
    let srq = unsafe { srq::of(this) };
    // SAFETY: see the crate.
    unsafe {
        post_receives(first, bad_wr, |list, shadow| srq.inner.post_receive(false, list, segment, shadow))
    }
}
