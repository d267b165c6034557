//! Completion queues.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel_agent::{Arm, Completion, CompletionFlags, CompletionStatus, CqSlot, Done, SlotParams, Took};

use crate::abi::{self, Wc, wc_flags, wc_opcode};
use crate::channel::{self, Completions, Reported};
use crate::errno::{self, Errno, pointer, status};
use crate::gone;
use crate::object::Object;
use crate::opening::{Context, CqHandle, Opening};
use crate::origin::Origin;
use crate::present::Extended;
use crate::qp::LEAST_ROOM;

/// Polls of a thread that find nothing, one after another, before it lets others run: the device is
/// a thread of this process, and there may be few CPUs.
const PATIENCE: u32 = 64;

/// What the agent's events need of a completion queue.
pub(crate) struct Events {
    pub(crate) object: Object<abi::Cq, CqHandle>,
    /// None if there is none, or the completion queue is destroyed: what stays of it ([`gone`])
    /// keeps no descriptor. The lock is a leaf.
    channel: Mutex<Option<Arc<Completions>>>,
    /// Its events of the channel.
    pub(crate) completions: Reported,
}

impl Events {
    fn channel(&self) -> MutexGuard<'_, Option<Arc<Completions>>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The completion queue was armed, and has an entry.
    pub(crate) fn announce(self: &Arc<Events>) {
        let channel = self.channel().clone();
        if let Some(channel) = channel {
            channel.announce(self);
        }
    }
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    /// Its first field is `struct ibv_cq`, and the rest of it for extended ones only.
    abi: abi::CqEx,
    pub(crate) inner: Arc<kernel_agent::Cq>,
    pub(crate) events: Arc<Events>,
    /// What the fast path needs: the slot of `inner`, its handle, and the process.
    slot: Arc<CqSlot>,
    handle: u64,
    origin: Origin,
    /// How many polls in a row found nothing.
    idle: AtomicU32,
    pub(crate) extended: Extended,
}

impl Cq {
    /// Takes the oldest completion. `ENOENT` if there is none, `EIO` if the queue is gone.
    pub(crate) fn next(&self) -> Result<Wc, Errno> {
        let mut taken = None;
        self.poll(1, |wc| taken = Some(wc));
        taken.ok_or_else(|| if self.inner.is_gone() { libc::EIO } else { libc::ENOENT })
    }

    /// Takes completions, at most `most`; returns how many. If there is none, does a piece of the
    /// device's work and looks once more. `None` if there has been none for a while and the queue
    /// is gone: each look at that would cost a poll that finds nothing.
    #[inline]
    fn poll(&self, most: usize, mut each: impl FnMut(Wc)) -> Option<usize> {
        let mut look = || self.take(most, &mut each);
        let mut found = look();
        if found == 0 {
            found = if self.steps() { look() } else { 0 };
            if found == 0 {
                let briefly = self.idle.load(Ordering::Relaxed) < PATIENCE;
                return (briefly || !self.inner.is_gone()).then_some(0);
            }
        }
        self.idle.store(0, Ordering::Relaxed);
        Some(found)
    }

    /// The kind of the headers in front of datagrams.
    fn kind(&self) -> u8 {
        self.events.object.opening.datagram_kind
    }

    #[inline]
    fn take(&self, most: usize, each: &mut impl FnMut(Wc)) -> usize {
        let mut found = 0;
        while found < most {
            match self.slot.take_plain_of(self.handle, |done, qpn| each(plain_wc(&done, qpn))) {
                Took::Done(()) => found += 1,
                Took::Nothing => break,
                // What is not plain, or another thread polls.
                Took::Other => match self.inner.poll(1, |completion| each(to_wc(&completion, self.kind()))) {
                    0 => break,
                    more => found += more,
                },
            }
        }
        found
    }

    /// A poll has found nothing: does a piece of the device's work. If polls have found nothing for
    /// a while, lets others run. Returns whether there was work.
    fn steps(&self) -> bool {
        let idle = self.idle.fetch_add(1, Ordering::Relaxed);
        let stepped = &self.events.object.opening.stepped;
        let worked = stepped.as_ref().is_some_and(|device| device.step());
        if !worked && idle >= PATIENCE {
            std::thread::yield_now();
        }
        worked
    }
}

/// The completion queue of a pointer.
///
/// # Safety
///
/// The pointer is one that [`create_cq`] returned.
pub(crate) unsafe fn of<'a>(cq: *mut abi::Cq) -> &'a Cq {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*cq.cast::<Cq>() }
}

/// `ibv_create_cq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
) -> *mut abi::Cq {
    // SAFETY: see the crate.
    pointer(unsafe { make(context, cqe, cq_context, channel, comp_vector, Extended::default()) })
}

/// Makes a completion queue. The calls of an extended one are null yet.
///
/// # Safety
///
/// See the crate.
pub(crate) unsafe fn make(
    context: *mut abi::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::CompChannel,
    comp_vector: c_int,
    extended: Extended,
) -> Result<*mut abi::Cq, Errno> {
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    // SAFETY: see the crate.
    let events = (!channel.is_null()).then(|| unsafe { channel::channel(channel) }.events.clone());
    create(opening, cqe, comp_vector, events).map(|(inner, events, slot)| {
        // SAFETY: zeros are numbers and null pointers.
        let mut abi: abi::CqEx = unsafe { core::mem::zeroed() };
        abi.base.context = context;
        abi.base.channel = channel;
        abi.base.cq_context = cq_context;
        abi.base.handle = inner.number();
        abi.base.cqe = inner.entries() as c_int;
        let handle = events.object.handle.as_raw();
        let cq = Cq {
            abi,
            inner,
            events: events.clone(),
            slot,
            handle,
            origin: opening.origin,
            idle: AtomicU32::new(0),
            extended,
        };
        let made = Box::into_raw(Box::new(cq));
        events.object.is_at(made.cast());
        if !channel.is_null() {
            // SAFETY: see the crate.
            unsafe { channel::channel(channel) }.users.fetch_add(1, Ordering::AcqRel);
        }
        made.cast()
    })
}

/// The number of entries that a program asks for, as far as a queue can have so many.
fn entries(opening: &Opening, asked: c_int) -> Result<u32, Errno> {
    let most = opening.agent().identity().max_cqes - 1;
    u32::try_from(asked).ok().filter(|asked| (1..=most).contains(asked)).ok_or(libc::EINVAL)
}

type Made = (Arc<kernel_agent::Cq>, Arc<Events>, Arc<CqSlot>);

fn create(
    opening: &Arc<Opening>,
    cqe: c_int,
    comp_vector: c_int,
    channel: Option<Arc<Completions>>,
) -> Result<Made, Errno> {
    opening.origin.check()?;
    let entries = entries(opening, cqe)?.max(LEAST_ROOM);
    if comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    let reserved = opening.cqs.reserve().map_err(|_| libc::ENOMEM)?;
    let handle = reserved.handle();
    let slot = Arc::default();
    let params = SlotParams { slot: &slot, handle: handle.as_raw(), closed: 0 };
    let inner = opening.client()?.create_cq_in(entries, handle.as_raw(), params).map_err(errno::of)?;
    let events = Arc::new(Events {
        object: Object::new(opening, handle),
        channel: Mutex::new(channel),
        completions: Reported::default(),
    });
    reserved.fill(events.clone());
    Ok((inner, events, slot))
}

/// `ibv_destroy_cq`: `EBUSY` while a queue pair uses it. Waits until the program has acknowledged
/// the events that it has taken.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_cq(this: *mut abi::Cq) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let cq = unsafe { of(this) };
    if let Err(error) = cq.inner.destroy().map_err(errno::of) {
        return error;
    }
    let events = &cq.events;
    events.object.opening.cqs.remove(events.object.handle);
    events.completions.end();
    let channel = events.channel().take();
    if let Some(channel) = channel {
        channel.forget_cq(events);
    }
    events.object.end();
    events.completions.wait();
    if !cq.abi.base.channel.is_null() {
        // SAFETY: a channel is not destroyed while a completion queue uses it.
        unsafe { channel::channel(cq.abi.base.channel) }.users.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: it came from `create_cq`, and no event names it any more. A thread that polls it
    // finds the agent's queue gone.
    unsafe { gone::keep(this.cast::<Cq>()) };
    0
}

/// `ibv_resize_cq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn resize_cq(this: *mut abi::Cq, cqe: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    // SAFETY: see the crate.
    let cq = unsafe { of(this) };
    status(entries(&cq.events.object.opening, cqe).and_then(|entries| {
        cq.inner.resize(entries).map_err(errno::of)?;
        // SAFETY: see the crate.
        unsafe { (*this).cqe = cq.inner.entries() as c_int };
        Ok(())
    }))
}

/// `ibv_req_notify_cq`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn req_notify_cq(this: *mut abi::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { Context::check((*this).context) } {
        return error;
    }
    let arm = if solicited_only == 0 { Arm::Next } else { Arm::Solicited };
    // SAFETY: see the crate.
    let cq = unsafe { of(this) };
    cq.inner.arm(arm);
    if let Some(device) = &cq.events.object.opening.stepped {
        device.leave();
    }
    0
}

/// `ibv_poll_cq`: -1 if another thread destroys the queue meanwhile, or has closed its context,
/// after some polls that find nothing.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn poll_cq(this: *mut abi::Cq, num_entries: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: see the crate.
    let cq = unsafe { of(this) };
    if cq.origin.check().is_err() {
        return -1;
    }
    let Ok(most) = usize::try_from(num_entries) else { return -1 };
    let mut taken = 0;
    let found = cq.poll(most, |completion| {
        // SAFETY: the caller's array has `num_entries` elements, and `poll` takes no more.
        unsafe { wc.add(taken).write(completion) };
        taken += 1;
    });
    match found {
        Some(_) => taken as c_int,
        None => -1,
    }
}

/// A success without anything else to say, as C has it. What a post put into the completion's
/// `data` is its opcode.
#[inline]
fn plain_wc(done: &Done, qpn: u32) -> Wc {
    Wc { wr_id: done.cookie, opcode: done.data as c_int, byte_len: done.length, qp_num: qpn, ..Wc::default() }
}

/// A completion as C has it. What a post put into the completion's `data` is its opcode. `kind` is
/// that of the headers in front of datagrams.
#[inline]
fn to_wc(completion: &Completion, kind: u8) -> Wc {
    let flags = completion.flags;
    let receive = flags.contains(CompletionFlags::RECEIVE);
    let written = flags.contains(CompletionFlags::WRITE);
    let mut wc = Wc {
        wr_id: completion.cookie,
        status: wc_status(completion.status),
        opcode: match (receive, written) {
            (true, true) => wc_opcode::RECV_RDMA_WITH_IMM,
            (true, false) => wc_opcode::RECV,
            (false, _) => completion.data as c_int,
        },
        byte_len: if written { completion.detail } else { completion.length },
        qp_num: completion.qpn,
        ..Wc::default()
    };
    if completion.status != CompletionStatus::Success {
        return wc;
    }
    if flags.contains(CompletionFlags::IMMEDIATE) {
        wc.wc_flags |= wc_flags::WITH_IMM;
        wc.imm_data = completion.immediate.to_be();
    }
    if flags.contains(CompletionFlags::INVALIDATED) {
        wc.wc_flags |= wc_flags::WITH_INV;
        wc.imm_data = completion.detail;
    }
    if flags.contains(CompletionFlags::GRH) {
        wc.wc_flags |= wc_flags::GRH;
        wc.src_qp = completion.detail;
        wc.sl = kind;
    }
    wc
}

/// The number of a status: verbs have one for errors of EE contexts' queue pairs between ours.
const fn wc_status(of: CompletionStatus) -> c_int {
    match of {
        CompletionStatus::Success => 0,
        CompletionStatus::LocalLength => 1,
        CompletionStatus::LocalQpOperation => 2,
        CompletionStatus::LocalProtection => 4,
        CompletionStatus::Flushed => 5,
        CompletionStatus::WindowBind | CompletionStatus::MemoryManagement => 6,
        CompletionStatus::BadResponse => 7,
        CompletionStatus::LocalAccess => 8,
        CompletionStatus::RemoteInvalidRequest => 9,
        CompletionStatus::RemoteAccess => 10,
        CompletionStatus::RemoteOperation => 11,
        CompletionStatus::RetryExceeded => 12,
        CompletionStatus::RnrRetryExceeded => 13,
    }
}
