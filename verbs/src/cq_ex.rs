//! Completion queues whose completions a program reads field by field: `struct ibv_cq_ex`.
//!
//! A program begins to poll, goes from completion to completion, and ends; meanwhile other threads
//! that begin to poll wait. The present completion is a [`Wc`](crate::abi::Wc) with times.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_uint};

use crate::abi::{self, CqEx, CqInitAttrEx, PollCqAttr, ValuesEx, wc_ex};
use crate::cq::{self, Cq};
use crate::errno::{Errno, pointer};
use crate::present::{Extended, Present, Stamps};

/// The kHz of the clock of completions: they are stamped with nanoseconds.
pub(crate) const CLOCK_KHZ: u64 = 1_000_000;
/// The bit of [`CqInitAttrEx::comp_mask`] for `flags`.
const HAS_FLAGS: u32 = 1;
/// A flag of [`CqInitAttrEx::flags`]: one thread only polls. It gets what all get.
const SINGLE_THREADED: u32 = 1;
/// The bit of [`ValuesEx::comp_mask`].
const RAW_CLOCK: u32 = 1;

/// A clock's time in nanoseconds.
fn time(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is there.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let libc::timespec { tv_sec, tv_nsec } = time(clock);
    (tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(tv_nsec as u64)
}

/// The slot `create_cq_ex`. `EOPNOTSUPP` for fields of completions that this device does not have.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_cq_ex(context: *mut abi::Context, init: *mut CqInitAttrEx) -> *mut CqEx {
    // SAFETY: see the crate.
    let init = unsafe { &*init };
    const TIMES: u64 = wc_ex::COMPLETION_TIMESTAMP | wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK;
    let flags = if init.comp_mask & HAS_FLAGS != 0 { init.flags } else { 0 };
    let unknown = init.comp_mask & !HAS_FLAGS != 0 || flags & !SINGLE_THREADED != 0;
    if unknown || init.wc_flags & !(wc_ex::STANDARD | TIMES) != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    let (Ok(cqe), Ok(vector)) = (c_int::try_from(init.cqe), c_int::try_from(init.comp_vector)) else {
        return pointer(Err(libc::EINVAL));
    };
    let stamps = Stamps {
        clock: init.wc_flags & wc_ex::COMPLETION_TIMESTAMP != 0,
        wall: init.wc_flags & wc_ex::COMPLETION_TIMESTAMP_WALLCLOCK != 0,
    };
    let extended = Extended { stamps, ..Extended::default() };
    // SAFETY: see the crate.
    pointer(unsafe { cq::make(context, cqe, init.cq_context, init.channel, vector, extended) }.map(|made| {
        let made = made.cast::<CqEx>();
        // SAFETY: it was just made, and nobody has it.
        unsafe { fill(&mut *made, stamps) };
        made
    }))
}

/// The calls. Those of fields that were not asked for are there as well, but for times.
fn fill(of: &mut CqEx, stamps: Stamps) {
    of.start_poll = start_poll as *const () as usize;
    of.next_poll = next_poll as *const () as usize;
    of.end_poll = end_poll as *const () as usize;
    of.read_opcode = read_opcode as *const () as usize;
    of.read_vendor_err = read_vendor_err as *const () as usize;
    of.read_byte_len = read_byte_len as *const () as usize;
    of.read_imm_data = read_imm_data as *const () as usize;
    of.read_qp_num = read_qp_num as *const () as usize;
    of.read_src_qp = read_src_qp as *const () as usize;
    of.read_wc_flags = read_wc_flags as *const () as usize;
    of.read_slid = read_slid as *const () as usize;
    of.read_sl = read_sl as *const () as usize;
    of.read_dlid_path_bits = read_dlid_path_bits as *const () as usize;
    if stamps.clock {
        of.read_completion_ts = read_completion_ts as *const () as usize;
    }
    if stamps.wall {
        of.read_completion_wallclock_ns = read_completion_wallclock_ns as *const () as usize;
    }
}

/// What an extended completion queue has.
///
/// # Safety
///
/// The pointer is one that [`create_cq_ex`] returned.
unsafe fn extended<'a>(this: *mut CqEx) -> (&'a Cq, &'a Extended) {
    // SAFETY: the caller's.
    let cq = unsafe { cq::of(this.cast()) };
    (cq, &cq.extended)
}

/// `EIO` in a child of the process that made it.
///
/// # Safety
///
/// As [`extended`].
unsafe fn check(this: *mut CqEx) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { extended(this) }.0.events.object.opening.origin.check()
}

/// Takes the next completion, for the thread that has the turn.
///
/// # Safety
///
/// As [`extended`].
unsafe fn advance(this: *mut CqEx) -> Result<(), Errno> {
    // SAFETY: the caller's.
    let (cq, extended) = unsafe { extended(this) };
    let wc = cq.next()?;
    let Stamps { clock, wall } = extended.stamps;
    let at = |wanted, clock| if wanted { nanoseconds(clock) } else { 0 };
    let present =
        Present { wc, clock: at(clock, libc::CLOCK_MONOTONIC), wall: at(wall, libc::CLOCK_REALTIME) };
    // SAFETY: this thread has the turn; the program reads the two fields of C.
    unsafe {
        *extended.present.get() = present;
        (*this).status = wc.status;
        (*this).wr_id = wc.wr_id;
    }
    Ok(())
}

unsafe extern "C" fn start_poll(this: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    // SAFETY: see the crate.
    let (turn, known) = unsafe { (&extended(this).1.turn, (*attr).comp_mask == 0) };
    if !known {
        return libc::EINVAL;
    }
    // SAFETY: see the crate.
    if let Err(error) = unsafe { check(this) } {
        return error;
    }
    turn.take();
    // SAFETY: see the crate.
    match unsafe { advance(this) } {
        Ok(()) => 0,
        Err(error) => {
            // The program does not end what it has not begun.
            turn.end();
            error
        }
    }
}

unsafe extern "C" fn next_poll(this: *mut CqEx) -> c_int {
    // SAFETY: see the crate.
    unsafe { check(this).and_then(|()| advance(this)) }.err().unwrap_or(0)
}

unsafe extern "C" fn end_poll(this: *mut CqEx) {
    // SAFETY: see the crate.
    unsafe {
        if check(this).is_ok() {
            extended(this).1.turn.end();
        }
    }
}

/// The present completion.
///
/// # Safety
///
/// As [`extended`]; the calling thread has the turn.
unsafe fn present(this: *mut CqEx) -> Present {
    // SAFETY: the caller's.
    unsafe { *extended(this).1.present.get() }
}

macro_rules! read {
    ($($name:ident: $kind:ty = $of:expr;)*) => {$(
        unsafe extern "C" fn $name(this: *mut CqEx) -> $kind {
            let of: fn(&Present) -> $kind = $of;
            // SAFETY: see the crate: the program has begun to poll.
            of(&unsafe { present(this) })
        }
    )*};
}

read! {
    read_opcode: c_int = |of| of.wc.opcode;
    read_vendor_err: u32 = |of| of.wc.vendor_err;
    read_byte_len: u32 = |of| of.wc.byte_len;
    read_imm_data: u32 = |of| of.wc.imm_data;
    read_qp_num: u32 = |of| of.wc.qp_num;
    read_src_qp: u32 = |of| of.wc.src_qp;
    read_wc_flags: c_uint = |of| of.wc.wc_flags;
    read_slid: u32 = |of| of.wc.slid.into();
    read_sl: u8 = |of| of.wc.sl;
    read_dlid_path_bits: u8 = |of| of.wc.dlid_path_bits;
    read_completion_ts: u64 = |of| of.clock;
    read_completion_wallclock_ns: u64 = |of| of.wall;
}

/// The slot `query_rt_values`: the clock of completions, now.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn query_rt_values(_context: *mut abi::Context, values: *mut ValuesEx) -> c_int {
    // SAFETY: see the crate.
    let values = unsafe { &mut *values };
    if values.comp_mask & !RAW_CLOCK != 0 {
        return libc::EINVAL;
    }
    if values.comp_mask & RAW_CLOCK != 0 {
        values.raw_clock = time(libc::CLOCK_MONOTONIC);
    }
    0
}
