//! Decides which thread runs on which CPU.
//!
//! On each CPU, threads that an interrupt has just woken (*woken* threads) run first; the others
//! (*ready* threads) take turns of one slice each.
//!
//! No thread waits for ever. Woken threads preempt a turn and run ahead of ready threads, but delay
//! each turn by one slice in all; after that the turn runs undisturbed. A preempted turn goes on
//! with the rest of its slice. Woken threads do not preempt each other, and one that has used up
//! the slice queues for a turn like a ready thread. So a thread gets its turn after at most two
//! slices for each thread queued before it, however many are woken; and a woken thread waits for no
//! turn as long as all woken threads together need at most half of the time.
//!
//! A thread's home is the CPU that runs it, has it in its run queue, or ran it when it blocked. It
//! changes while the thread waits, never while it runs. A new thread goes to the CPU with the least
//! to do. A thread that another thread wakes goes to an idle CPU if there is one. A thread that an
//! interrupt wakes goes to the CPU that took the interrupt, and runs as soon as the handler
//! returns. An idle CPU takes threads from the run queues of others.
//!
//! A CPU with nothing to run halts in its idle thread, which is never queued. The timer is set for
//! the earliest deadline or end of slice, and only ever moved forward: an interrupt too many costs
//! less than a register write at every wait. Without a deadline there are no timer interrupts.
//!
//! No thread stays queued while a CPU halts. A CPU first sets its bit in [`IDLE`], then reads all
//! run queues, then halts. A CPU that queues a thread does so first, then reads [`IDLE`], and sends
//! an interrupt to the CPU that it claims by clearing that CPU's bit. The idle CPU has interrupts
//! off from its read to its halt, so an interrupt sent in between ends the halt at once.
//!
//! A thread that leaves a CPU may be queued before its registers are saved.
//! [`Thread::on_cpu`](super::object::Thread::on_cpu) says so, and only the thread's home runs such
//! a thread.
//!
//! Locks: a run queue is taken after a bucket of waiting threads, and never two run queues at once.
//! A thread's home changes under the lock of the old home's run queue, or while no other CPU can
//! reach the thread.
#![expect(unsafe_code, reason = "switches stacks, and frees threads that have ended")]

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use x86_64::instructions::interrupts;

use super::object::{State, ThreadRef, current};
use super::run_queue::{Guard, NEVER, SLICE, is_idle, per_cpu};
use crate::cpu::{self, Cpu, in_interrupt};
use crate::lock::IrqOff;
use crate::{apic, clock};

/// The CPUs that are idle and have not been claimed since, as bits.
static IDLE: AtomicU32 = AtomicU32::new(0);

/// Claims an idle CPU, so that only one CPU sends it an interrupt. Returns whether the caller
/// claimed it.
fn claim(cpu: &Cpu) -> bool {
    IDLE.load(Ordering::SeqCst) & cpu.bit() != 0
        && IDLE.fetch_and(!cpu.bit(), Ordering::SeqCst) & cpu.bit() != 0
}

/// An idle CPU other than the calling one.
fn idle_other() -> Option<&'static Cpu> {
    let idle = IDLE.load(Ordering::SeqCst) & !cpu::this().bit();
    (idle != 0).then(|| cpu::get(idle.trailing_zeros() as usize))
}

/// Makes an idle CPU, if there is one, look for a thread to run. Interrupts are off.
fn call_idle() {
    if let Some(cpu) = idle_other()
        && claim(cpu)
    {
        apic::send_reschedule(cpu);
    }
}

/// Queues a ready thread, whose home is `target` already, on `target`. Interrupts are off.
fn enqueue(target: &'static Cpu, mut queue: Guard, thread: ThreadRef, promptly: bool) {
    let here = ptr::eq(target, cpu::this());
    let was_empty = queue.is_empty();
    queue.push(target, thread, promptly);
    if here && promptly {
        queue.review(target, clock::now().as_nanos());
    } else if here && was_empty && !is_idle(target) {
        // The current thread was alone so far, so its slice had no end.
        queue.start_slice(clock::now().as_nanos(), SLICE);
    }
    drop(queue);
    let was_idle = claim(target);
    if !here && (was_idle || promptly || was_empty) {
        apic::send_reschedule(target);
    }
    // When the woken thread runs here at once, `after_switch` offers the preempted one to idle
    // CPUs.
    if !(was_idle || here && promptly) {
        call_idle();
    }
}

/// Queues a new thread.
pub(super) fn admit(thread: ThreadRef) {
    let _off = IrqOff::new();
    let here = cpu::this();
    let load = |cpu: &&Cpu| {
        let elsewhere = !ptr::eq(*cpu, here);
        (per_cpu(cpu).waiting.load(Ordering::Relaxed) + u32::from(!is_idle(cpu)), elsewhere)
    };
    let target = cpu::online().min_by_key(load).unwrap_or(here);
    thread.set_home(target);
    thread.state.set(State::Ready);
    enqueue(target, per_cpu(target).queue.lock(), thread, false);
}

/// Makes a blocked thread ready; a thread that is not blocked is left as it is. The caller holds
/// the lock of the bucket that the thread was in.
pub(super) fn unblock(thread: ThreadRef) {
    let promptly = in_interrupt();
    let (home, mut queue) = loop {
        let home = thread.home();
        let queue = per_cpu(home).queue.lock();
        if ptr::eq(home, thread.home()) {
            break (home, queue);
        }
    };
    if !queue.rouse(thread) {
        return;
    }
    // The thread is no longer blocked, so no other CPU acts on it.
    let target = if thread.on_cpu.load(Ordering::SeqCst) {
        home
    } else if promptly {
        cpu::this()
    } else if IDLE.load(Ordering::SeqCst) & home.bit() != 0 {
        home
    } else {
        idle_other().unwrap_or(home)
    };
    if !ptr::eq(target, home) {
        thread.set_home(target);
        drop(queue);
        queue = per_cpu(target).queue.lock();
    }
    enqueue(target, queue, thread, promptly);
}

/// Lets the next queued thread run, and queues the caller for its next turn. Returns at once if no
/// thread is queued.
pub fn yield_now() {
    let _off = IrqOff::new();
    let cpu = cpu::this();
    if cpu.current().is_null() {
        return;
    }
    let mut queue = per_cpu(cpu).queue.lock();
    if queue.is_empty() {
        return;
    }
    let current = current();
    current.state.set(State::Ready);
    let now = clock::now().as_nanos();
    queue.end_slice(now);
    queue.push(cpu, current, false);
    switch_away(cpu, queue, now);
}

/// Runs another thread until the current one, whose state is blocked in `queue`, is unblocked.
/// Interrupts are off.
pub(super) fn block(mut queue: Guard) {
    let now = clock::now().as_nanos();
    queue.end_slice(now);
    switch_away(cpu::this(), queue, now);
}

/// Ends the current thread.
pub(super) fn end() -> ! {
    let _off = IrqOff::new();
    let cpu = cpu::this();
    let mut queue = per_cpu(cpu).queue.lock();
    current().state.set(State::Ended);
    let now = clock::now().as_nanos();
    queue.end_slice(now);
    switch_away(cpu, queue, now);
    unreachable!("an ended thread does not run")
}

/// The idle thread of a CPU: halts, and runs threads that appear in the run queues.
pub(crate) fn idle() -> ! {
    interrupts::disable();
    let cpu = cpu::this();
    loop {
        IDLE.fetch_or(cpu.bit(), Ordering::SeqCst);
        let mut queue = per_cpu(cpu).queue.lock();
        if let Some(next) = queue.pop(cpu) {
            switch_to(cpu, queue, next, clock::now().as_nanos());
            continue;
        }
        drop(queue);
        if let Some(next) = take_over(cpu) {
            switch_to(cpu, per_cpu(cpu).queue.lock(), next, clock::now().as_nanos());
            continue;
        }
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
}

/// Takes a thread from another CPU's run queue.
fn take_over(cpu: &'static Cpu) -> Option<ThreadRef> {
    let others = cpu::online().filter(|other| !ptr::eq(*other, cpu));
    others.filter(|other| per_cpu(other).waiting.load(Ordering::SeqCst) > 0).find_map(|other| {
        let mut queue = per_cpu(other).queue.lock();
        let thread = queue.give(other)?;
        thread.set_home(cpu);
        Some(thread)
    })
}

/// Runs the next thread. The current thread is queued, blocked or ended, as its state says.
/// Interrupts are off.
fn switch_away(cpu: &'static Cpu, mut queue: Guard, now: u64) {
    let next = queue.pop(cpu).unwrap_or_else(|| per_cpu(cpu).idler());
    switch_to(cpu, queue, next, now);
}

/// Runs `next`, whose home is `cpu`, the calling CPU, and which is in no run queue. Interrupts are
/// off.
fn switch_to(cpu: &'static Cpu, mut queue: Guard, next: ThreadRef, now: u64) {
    let previous = current();
    per_cpu(cpu).reschedule.store(false, Ordering::Relaxed);
    if next != per_cpu(cpu).idler() {
        next.state.set(State::Running);
        let length = if queue.ahead { SLICE - queue.held_up } else { next.slice.get() };
        queue.start_slice(now, length);
    }
    if next == previous {
        return;
    }
    if previous == per_cpu(cpu).idler() {
        IDLE.fetch_and(!cpu.bit(), Ordering::SeqCst);
    }
    let ended = previous.state.get() == State::Ended;
    let previous_or_null = |want: bool| if want { previous.0.as_ptr() } else { ptr::null_mut() };
    per_cpu(cpu).leaving.store(previous_or_null(!ended), Ordering::Relaxed);
    per_cpu(cpu).ended.store(previous_or_null(ended), Ordering::Relaxed);
    next.on_cpu.store(true, Ordering::Relaxed);
    cpu.set_current(next.0.as_ptr().cast());
    // From here on another CPU may queue `previous`, but only on this CPU, since `on_cpu` is set.
    drop(queue);
    // SAFETY: interrupts are off. Only this CPU uses `next`, whose registers `switch` has saved or
    // whose first frame `spawn` has made.
    unsafe { switch(previous.stack_pointer.get(), *next.stack_pointer.get()) };
    after_switch();
}

/// Ends the switch for the thread that has left the CPU, and frees it if it has ended. Runs first
/// on the next thread's stack. Interrupts are off.
pub(super) fn after_switch() {
    let cpu = cpu::this();
    let leaving = per_cpu(cpu).leaving.load(Ordering::Relaxed);
    // SAFETY: it has not ended, and no other CPU can run it before this store.
    if let Some(leaving) = unsafe { leaving.as_ref() } {
        leaving.on_cpu.store(false, Ordering::SeqCst);
    }
    if per_cpu(cpu).waiting.load(Ordering::Relaxed) > 0 {
        call_idle();
    }
    let ended = per_cpu(cpu).ended.load(Ordering::Relaxed);
    if !ended.is_null() {
        // SAFETY: `spawn` leaked it, it is in no queue, and its stack is no longer in use.
        unsafe { Box::from_raw(ended) }.free();
    }
}

/// Saves the registers that a function must preserve on the stack, and the stack pointer in
/// `*save`. Then restores those that are saved under the stack pointer `next`.
#[unsafe(naked)]
unsafe extern "C" fn switch(save: *mut u64, next: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Handles the timer's interrupt: deadlines that have passed, a slice that is over.
pub(crate) fn tick() {
    let cpu = cpu::this();
    let mut queue = per_cpu(cpu).queue.lock();
    queue.timer = NEVER;
    let now = clock::now().as_nanos();
    while let Some(first) = queue.timers.first()
        && first.deadline.get() <= now
    {
        // Threads in `timers` are blocked, and this CPU is their home.
        if queue.rouse(first) {
            queue.push(cpu, first, true);
        }
    }
    if let Some(first) = queue.timers.first() {
        queue.set_timer(first.deadline.get(), now);
    }
    queue.review(cpu, now);
}

/// Handles the interrupt of another CPU that may have queued a thread here.
pub(crate) fn look() {
    let cpu = cpu::this();
    per_cpu(cpu).queue.lock().review(cpu, clock::now().as_nanos());
}

/// Ends an interrupt: runs another thread if the current one is to be preempted.
pub(crate) fn after_interrupt(cpu: &'static Cpu) {
    // The idle thread looks by itself.
    if !per_cpu(cpu).reschedule.load(Ordering::Relaxed) || in_interrupt() || is_idle(cpu) {
        return;
    }
    let mut queue = per_cpu(cpu).queue.lock();
    per_cpu(cpu).reschedule.store(false, Ordering::Relaxed);
    if queue.is_empty() {
        return;
    }
    let current = current();
    current.state.set(State::Ready);
    let now = clock::now().as_nanos();
    if now >= queue.slice_end {
        queue.end_slice(now);
        queue.push(cpu, current, false);
    } else {
        queue.put_back(cpu, current, now);
    }
    switch_away(cpu, queue, now);
}
