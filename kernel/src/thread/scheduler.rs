//! Who runs: per CPU, threads that an interrupt has just woken, then the others in turn, each for a slice.
//!
//! There is no idle thread: when nothing is ready, the CPU halts on the stack of the thread that ran last
//! ([`Cpu::idle`]), and if that one is woken, it goes on without any switch. The timer is set for the
//! earliest deadline or end of slice, and moved only forward: an interrupt too many is cheaper than a
//! register write at every wait. With nothing to wait for there are no ticks.
//!
//! Locks: a run queue is taken after a waiting bucket, never two run queues at once.
#![expect(unsafe_code, reason = "switches stacks, and frees threads that have ended")]

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::ptr;
use core::sync::atomic::Ordering;

use platform::Instant;
use x86_64::instructions::interrupts;

use super::queue::{Kind, Queue, Run, Timers};
use super::{State, Thread, ThreadRef, current};
use crate::clock;
use crate::cpu::{self, Cpu};
use crate::interrupts::apic;
use crate::lock::{IrqGuard, IrqOff};

/// How long a thread runs while others are ready, in nanoseconds.
const SLICE: u64 = 5_000_000;
/// Later than every deadline.
const NEVER: u64 = u64::MAX;

/// What is to run on a CPU.
pub(crate) struct RunQueue {
    /// Threads that an interrupt woke: they run before the others and preempt.
    woken: Queue<Run>,
    ready: Queue<Run>,
    timers: Queue<Timers>,
    /// When the current thread's slice ends, in nanoseconds of the clock.
    slice_end: u64,
    /// When the timer's interrupt comes.
    timer: u64,
    /// A thread that has ended and on whose stack nobody is any more once another runs.
    ended: Option<ThreadRef>,
}

// SAFETY: threads are made for sharing, and their links are guarded by the queue's lock.
unsafe impl Send for RunQueue {}

impl RunQueue {
    pub(crate) const fn new() -> RunQueue {
        RunQueue {
            woken: Queue::new(),
            ready: Queue::new(),
            timers: Queue::new(),
            slice_end: 0,
            timer: NEVER,
            ended: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.ready.is_empty()
    }

    /// Has the timer come at `at`, unless it comes earlier. On the queue's own CPU.
    fn set_timer(&mut self, at: u64, now: u64) {
        if at < self.timer {
            self.timer = at;
            apic::set_timer(clock::apic_ticks(at.saturating_sub(now)));
        }
    }

    fn start_slice(&mut self, now: u64) {
        self.slice_end = now + SLICE;
        if !self.is_empty() {
            self.set_timer(self.slice_end, now);
        }
    }

    pub(super) fn set_deadline(&mut self, thread: ThreadRef, deadline: Instant) {
        let at = deadline.as_nanos();
        thread.deadline.set(at);
        self.timers.insert_after(thread, |other| other.deadline.get() <= at);
        self.set_timer(at, clock::now().as_nanos());
    }

    /// Puts a thread in line.
    fn push(&mut self, thread: ThreadRef, promptly: bool) {
        let cpu = thread.cpu;
        let here = ptr::eq(cpu, cpu::this());
        let was_empty = self.is_empty();
        thread.state.set(State::Ready);
        if promptly {
            self.woken.push_back(thread);
            cpu.reschedule.store(true, Ordering::Relaxed);
        } else {
            self.ready.push_back(thread);
        }
        if !here {
            apic::send_reschedule(cpu);
        } else if was_empty && !cpu.idle.load(Ordering::Relaxed) {
            // The current thread had no competitor so far, and no end of slice.
            self.start_slice(clock::now().as_nanos());
        }
    }

    /// Makes a blocked thread ready; one that is ready already stays so.
    pub(super) fn unblock(&mut self, thread: ThreadRef, promptly: bool) {
        if thread.state.get() != State::Blocked {
            return;
        }
        if Timers::link(&thread).linked.get() {
            self.timers.remove(thread);
        }
        self.push(thread, promptly);
    }
}

/// Whether an interrupt handler asks.
pub(super) fn in_interrupt() -> bool {
    cpu::this().interrupts.load(Ordering::Relaxed) > 0
}

/// Puts a new thread in line.
pub(super) fn admit(thread: ThreadRef) {
    thread.cpu.queue.lock().push(thread, false);
}

/// Lets the next thread run if there is one, and comes back in turn.
pub fn yield_now() {
    let _off = IrqOff::new();
    let cpu = cpu::this();
    if cpu.current.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut queue = cpu.queue.lock();
    if queue.is_empty() {
        return;
    }
    let current = current();
    current.state.set(State::Ready);
    queue.ready.push_back(current);
    switch_away(cpu, queue);
}

/// Stops the current thread, whose state has been set to blocked in `queue`, until it is unblocked.
/// Interrupts are off.
pub(super) fn block(queue: IrqGuard<'static, RunQueue>) {
    switch_away(cpu::this(), queue);
}

/// Ends the current thread.
pub(super) fn end() -> ! {
    let _off = IrqOff::new();
    let cpu = cpu::this();
    let mut queue = cpu.queue.lock();
    let current = current();
    current.state.set(State::Ended);
    queue.ended = Some(current);
    switch_away(cpu, queue);
    unreachable!("an ended thread does not run")
}

/// Leaves the boot stack for ever.
pub(crate) fn leave_boot() -> ! {
    end()
}

/// Runs what is next. The current thread is in line, blocked or ended, as its state says. Interrupts are off.
fn switch_away(cpu: &'static Cpu, mut queue: IrqGuard<'static, RunQueue>) {
    let previous = current();
    let next = loop {
        if let Some(next) = queue.woken.pop_front().or_else(|| queue.ready.pop_front()) {
            break next;
        }
        cpu.idle.store(true, Ordering::Relaxed);
        drop(queue);
        interrupts::enable_and_hlt();
        interrupts::disable();
        queue = cpu.queue.lock();
        cpu.idle.store(false, Ordering::Relaxed);
    };
    cpu.reschedule.store(false, Ordering::Relaxed);
    next.state.set(State::Running);
    queue.start_slice(clock::now().as_nanos());
    if next == previous {
        return;
    }
    cpu.current.store(next.0.as_ptr(), Ordering::Relaxed);
    // From here on another CPU may put `previous` into this CPU's line, but only this CPU runs it.
    drop(queue);
    // SAFETY: both threads belong to this CPU and interrupts are off; `next` was saved by the same function
    // or made by `spawn`.
    unsafe { switch(previous.stack_pointer.get(), *next.stack_pointer.get()) };
    after_switch();
}

/// Frees the thread that has made way, if it has ended. Runs first thing on the next thread's stack.
pub(super) fn after_switch() {
    let ended = cpu::this().queue.lock().ended.take();
    if let Some(ended) = ended {
        let thread: *mut Thread = ended.0.as_ptr();
        // SAFETY: `spawn` or `init` leaked it, it is in no line, and its stack is no longer in use.
        unsafe { Box::from_raw(thread) }.free();
    }
}

/// Saves the registers that a function must preserve, and the stack pointer in `*save`; takes up `next`.
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

/// The timer's interrupt: deadlines that have passed, a slice that is over.
pub(crate) fn tick() {
    let cpu = cpu::this();
    let mut queue = cpu.queue.lock();
    queue.timer = NEVER;
    let now = clock::now().as_nanos();
    while let Some(first) = queue.timers.first()
        && first.deadline.get() <= now
    {
        queue.unblock(first, true);
    }
    if let Some(first) = queue.timers.first() {
        queue.set_timer(first.deadline.get(), now);
    }
    if !queue.is_empty() && !cpu.idle.load(Ordering::Relaxed) {
        if now >= queue.slice_end {
            cpu.reschedule.store(true, Ordering::Relaxed);
        } else {
            let slice_end = queue.slice_end;
            queue.set_timer(slice_end, now);
        }
    }
}

/// At the end of an interrupt: changes over to another thread if one should run at once.
pub(crate) fn after_interrupt(cpu: &'static Cpu) {
    if !cpu.reschedule.load(Ordering::Relaxed)
        || cpu.idle.load(Ordering::Relaxed)
        || cpu.current.load(Ordering::Relaxed).is_null()
        || in_interrupt()
    {
        return;
    }
    let mut queue = cpu.queue.lock();
    cpu.reschedule.store(false, Ordering::Relaxed);
    if queue.is_empty() {
        return;
    }
    let current = current();
    current.state.set(State::Ready);
    if clock::now().as_nanos() >= queue.slice_end {
        queue.ready.push_back(current);
    } else {
        // It was interrupted in the middle of its slice: it is next after those that were woken.
        queue.ready.push_front(current);
    }
    switch_away(cpu, queue);
}
