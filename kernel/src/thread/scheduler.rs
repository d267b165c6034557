//! Who runs: on each CPU, threads that an interrupt has just woken, then the others in turn, each for a slice.
//!
//! Nobody is kept waiting for ever. Those that an interrupt woke run ahead of the others and interrupt a turn, but
//! hold up each turn by one slice in all: after that it takes its course. A turn that was interrupted goes on with
//! what is left of its slice. Those that were woken wait for each other, and one that has used up the slice stands
//! in line for a turn like everybody. So a turn comes after two slices at most for each that stands before it,
//! however many are woken; and a thread that is woken waits for no turn as long as all such together need no more
//! than half of the time.
//!
//! A thread's home is the CPU that runs it, in whose line it stands, or where it blocked. It changes homes
//! while it waits, never while it runs: a new thread goes to the CPU with the least to do; one that a thread
//! wakes to a CPU with nothing to do if there is one; one that an interrupt wakes stays where the interrupt
//! is, and runs as soon as the handler returns; and a CPU with nothing to do takes from the others' lines.
//!
//! With nothing to run a CPU halts in its idler, a thread that never stands in line. The timer is set for the
//! earliest deadline or end of slice, and moved only forward: an interrupt too many is cheaper than a register
//! write at every wait. With nothing to wait for there are no ticks.
//!
//! Nobody is left in line while a CPU halts. A CPU first says in [`IDLE`] that it is idle, then looks into
//! all lines, then halts; whoever puts a thread in line does so first, then looks at [`IDLE`], and sends an
//! interrupt to the one that it claims by taking back its bit. Interrupts are off from the look to the halt,
//! so one that is sent in between ends the halt at once.
//!
//! A thread that makes way is in line, perhaps, before its registers are saved: [`Thread::on_cpu`] says so,
//! and only its home takes such a thread up.
//!
//! Locks: a run queue is taken after a waiting bucket, never two run queues at once. A thread's home is
//! changed under its old home's lock, or while nobody else can reach it.
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

/// The CPUs that have nothing to run and that nobody has woken since, as bits.
static IDLE: AtomicU32 = AtomicU32::new(0);

/// Makes sure that an idle CPU is woken by only one of those who would: true for that one.
fn claim(cpu: &Cpu) -> bool {
    IDLE.load(Ordering::SeqCst) & cpu.bit() != 0
        && IDLE.fetch_and(!cpu.bit(), Ordering::SeqCst) & cpu.bit() != 0
}

/// An idle CPU other than this one, if there is one.
fn idle_other() -> Option<&'static Cpu> {
    let idle = IDLE.load(Ordering::SeqCst) & !cpu::this().bit();
    (idle != 0).then(|| cpu::get(idle.trailing_zeros() as usize))
}

/// Has an idle CPU, if there is one, look for something to take over. Interrupts are off.
fn call_idle() {
    if let Some(cpu) = idle_other()
        && claim(cpu)
    {
        apic::send_reschedule(cpu);
    }
}

/// Puts a ready thread, whose home is `target` already, in line there. Interrupts are off.
fn enqueue(target: &'static Cpu, mut queue: Guard, thread: ThreadRef, promptly: bool) {
    let here = ptr::eq(target, cpu::this());
    let was_empty = queue.is_empty();
    queue.push(target, thread, promptly);
    if here && promptly {
        queue.review(target, clock::now().as_nanos());
    } else if here && was_empty && !is_idle(target) {
        // The current thread had no competitor so far, and no end of slice.
        queue.start_slice(clock::now().as_nanos(), SLICE);
    }
    drop(queue);
    let was_idle = claim(target);
    if !here && (was_idle || promptly || was_empty) {
        apic::send_reschedule(target);
    }
    // Whoever makes way for a thread that runs at once is offered to the idle by `after_switch`.
    if !(was_idle || here && promptly) {
        call_idle();
    }
}

/// Puts a new thread in line.
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

/// Makes a blocked thread ready; one that is ready already stays so. The caller holds the lock of the bucket
/// in which the thread stood.
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
    // From here on it is nobody else's.
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

/// Lets the next thread run if there is one, and comes back in turn.
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

/// Stops the current thread, whose state has been set to blocked in `queue`, until it is unblocked.
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

/// What a CPU does for ever that has nothing to run: halts, and takes up what comes. In its idler.
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

/// Takes a thread from another CPU's line.
fn take_over(cpu: &'static Cpu) -> Option<ThreadRef> {
    let others = cpu::online().filter(|other| !ptr::eq(*other, cpu));
    others.filter(|other| per_cpu(other).waiting.load(Ordering::SeqCst) > 0).find_map(|other| {
        let mut queue = per_cpu(other).queue.lock();
        let thread = queue.give(other)?;
        thread.set_home(cpu);
        Some(thread)
    })
}

/// Runs what is next. The current thread is in line, blocked or ended, as its state says. Interrupts are off.
fn switch_away(cpu: &'static Cpu, mut queue: Guard, now: u64) {
    let next = queue.pop(cpu).unwrap_or_else(|| per_cpu(cpu).idler());
    switch_to(cpu, queue, next, now);
}

/// Runs `next`, whose home is `cpu`, this CPU, and which is in no line. Interrupts are off.
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
    // From here on another CPU may put `previous` in line, but only in this one's, as `on_cpu` says.
    drop(queue);
    // SAFETY: interrupts are off; `next` is ours alone, and was saved by the same function or made by `spawn`.
    unsafe { switch(previous.stack_pointer.get(), *next.stack_pointer.get()) };
    after_switch();
}

/// Lets go of the thread that has made way: for good, if it has ended. Runs first thing on the next thread's
/// stack. Interrupts are off.
pub(super) fn after_switch() {
    let cpu = cpu::this();
    let leaving = per_cpu(cpu).leaving.load(Ordering::Relaxed);
    // SAFETY: it has not ended, and nobody else can run it before this store.
    if let Some(leaving) = unsafe { leaving.as_ref() } {
        leaving.on_cpu.store(false, Ordering::SeqCst);
    }
    if per_cpu(cpu).waiting.load(Ordering::Relaxed) > 0 {
        call_idle();
    }
    let ended = per_cpu(cpu).ended.load(Ordering::Relaxed);
    if !ended.is_null() {
        // SAFETY: `spawn` leaked it, it is in no line, and its stack is no longer in use.
        unsafe { Box::from_raw(ended) }.free();
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
    let mut queue = per_cpu(cpu).queue.lock();
    queue.timer = NEVER;
    let now = clock::now().as_nanos();
    while let Some(first) = queue.timers.first()
        && first.deadline.get() <= now
    {
        // What stands among the timers is blocked, and this is its home.
        if queue.rouse(first) {
            queue.push(cpu, first, true);
        }
    }
    if let Some(first) = queue.timers.first() {
        queue.set_timer(first.deadline.get(), now);
    }
    queue.review(cpu, now);
}

/// Another CPU's interrupt: there may be something new in line.
pub(crate) fn look() {
    let cpu = cpu::this();
    per_cpu(cpu).queue.lock().review(cpu, clock::now().as_nanos());
}

/// At the end of an interrupt: changes over to another thread if one should run at once.
pub(crate) fn after_interrupt(cpu: &'static Cpu) {
    // An idler looks by itself.
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
