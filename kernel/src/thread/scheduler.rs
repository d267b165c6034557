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

use platform::Instant;
use x86_64::instructions::interrupts;

use super::queue::{Kind, Queue, Run, Timers};
use super::{State, ThreadRef, current};
use crate::clock;
use crate::cpu::{self, Cpu, in_interrupt};
use crate::interrupts::apic;
use crate::lock::{IrqGuard, IrqOff};

/// How long a thread runs while others are ready, in nanoseconds.
const SLICE: u64 = 5_000_000;
/// Later than every deadline.
const NEVER: u64 = u64::MAX;

/// The CPUs that have nothing to run and that nobody has woken since, as bits.
static IDLE: AtomicU32 = AtomicU32::new(0);

/// What is to run on a CPU.
pub(crate) struct RunQueue {
    /// Threads that an interrupt woke: they run ahead of the others.
    woken: Queue<Run>,
    ready: Queue<Run>,
    timers: Queue<Timers>,
    /// Whether the current thread runs ahead of those that are ready.
    ahead: bool,
    /// For how long those that ran ahead have held up the present turn, in nanoseconds.
    held_up: u64,
    /// When the current thread's slice began and when it ends, in nanoseconds of the clock.
    slice_begin: u64,
    slice_end: u64,
    /// When the timer's interrupt comes.
    timer: u64,
}

// SAFETY: threads are made for sharing, and their links are guarded by the queue's lock.
unsafe impl Send for RunQueue {}

type Guard = IrqGuard<'static, RunQueue>;

impl RunQueue {
    pub(crate) const fn new() -> RunQueue {
        RunQueue {
            woken: Queue::new(),
            ready: Queue::new(),
            timers: Queue::new(),
            ahead: false,
            held_up: 0,
            slice_begin: 0,
            slice_end: 0,
            timer: NEVER,
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

    /// On the queue's own CPU.
    fn start_slice(&mut self, now: u64, length: u64) {
        self.slice_begin = now;
        self.slice_end = now + length;
        if !self.is_empty() {
            self.set_timer(self.slice_end, now);
        }
    }

    /// The current thread makes way, and not because it was interrupted: its turn is over, or what it held up another's.
    fn end_slice(&mut self, now: u64) {
        self.held_up = if self.ahead && !self.ready.is_empty() {
            self.held_up + now.saturating_sub(self.slice_begin)
        } else {
            0
        };
    }

    /// Whether a thread that is woken goes before the current one.
    fn gives_way(&self) -> bool {
        !self.ahead && self.held_up < SLICE
    }

    /// On the queue's own CPU, for the thread that it runs.
    pub(super) fn set_deadline(&mut self, thread: ThreadRef, deadline: Instant) {
        let at = deadline.as_nanos();
        thread.deadline.set(at);
        self.timers.insert_after(thread, |other| other.deadline.get() <= at);
        self.set_timer(at, clock::now().as_nanos());
    }

    /// Ends a thread's waiting. False if it does not wait any more.
    fn rouse(&mut self, thread: ThreadRef) -> bool {
        if thread.state.get() != State::Blocked {
            return false;
        }
        if Timers::link(&thread).linked.get() {
            self.timers.remove(thread);
        }
        thread.state.set(State::Ready);
        true
    }

    /// Puts a ready thread in `cpu`'s line, which this is.
    fn push(&mut self, cpu: &Cpu, thread: ThreadRef, promptly: bool) {
        thread.slice.set(SLICE);
        if promptly {
            self.woken.push_back(thread);
        } else {
            self.ready.push_back(thread);
        }
        cpu.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Puts the current thread, whose turn is not over, in front of `cpu`'s line, which this is.
    fn put_back(&mut self, cpu: &Cpu, thread: ThreadRef, now: u64) {
        thread.slice.set(self.slice_end.saturating_sub(now));
        self.ready.push_front(thread);
        cpu.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the next thread from `cpu`'s line, which this is.
    fn pop(&mut self, cpu: &Cpu) -> Option<ThreadRef> {
        if self.ready.is_empty() {
            self.held_up = 0;
        }
        self.ahead = self.held_up < SLICE && !self.woken.is_empty();
        let next = if self.ahead { self.woken.pop_front() } else { self.ready.pop_front() }?;
        cpu.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }

    /// Takes a thread from `cpu`'s line, which this is, for another CPU to run.
    fn give(&mut self, cpu: &Cpu) -> Option<ThreadRef> {
        let away = |thread: ThreadRef| !thread.on_cpu.load(Ordering::SeqCst);
        for line in [&mut self.ready, &mut self.woken] {
            if let Some(thread) = line.find(away) {
                line.remove(thread);
                cpu.waiting.fetch_sub(1, Ordering::SeqCst);
                return Some(thread);
            }
        }
        None
    }

    /// Sees to it that the CPU's current thread makes way when it should. On the queue's own CPU.
    fn review(&mut self, cpu: &Cpu, now: u64) {
        if self.is_empty() || cpu.is_idle() {
            return;
        }
        if !self.woken.is_empty() && self.gives_way() || now >= self.slice_end {
            cpu.reschedule.store(true, Ordering::Relaxed);
        } else {
            let slice_end = self.slice_end;
            self.set_timer(slice_end, now);
        }
    }
}

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
    } else if here && was_empty && !target.is_idle() {
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
        (cpu.waiting.load(Ordering::Relaxed) + u32::from(!cpu.is_idle()), elsewhere)
    };
    let target = cpu::online().min_by_key(load).unwrap_or(here);
    thread.set_home(target);
    thread.state.set(State::Ready);
    enqueue(target, target.queue.lock(), thread, false);
}

/// Makes a blocked thread ready; one that is ready already stays so. The caller holds the lock of the bucket
/// in which the thread stood.
pub(super) fn unblock(thread: ThreadRef) {
    let promptly = in_interrupt();
    let (home, mut queue) = loop {
        let home = thread.home();
        let queue = home.queue.lock();
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
        queue = target.queue.lock();
    }
    enqueue(target, queue, thread, promptly);
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
    let mut queue = cpu.queue.lock();
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
        let mut queue = cpu.queue.lock();
        if let Some(next) = queue.pop(cpu) {
            switch_to(cpu, queue, next, clock::now().as_nanos());
            continue;
        }
        drop(queue);
        if let Some(next) = take_over(cpu) {
            switch_to(cpu, cpu.queue.lock(), next, clock::now().as_nanos());
            continue;
        }
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
}

/// Takes a thread from another CPU's line.
fn take_over(cpu: &'static Cpu) -> Option<ThreadRef> {
    let others = cpu::online().filter(|other| !ptr::eq(*other, cpu));
    others.filter(|other| other.waiting.load(Ordering::SeqCst) > 0).find_map(|other| {
        let mut queue = other.queue.lock();
        let thread = queue.give(other)?;
        thread.set_home(cpu);
        Some(thread)
    })
}

/// Runs what is next. The current thread is in line, blocked or ended, as its state says. Interrupts are off.
fn switch_away(cpu: &'static Cpu, mut queue: Guard, now: u64) {
    let next = queue.pop(cpu).unwrap_or_else(|| ThreadRef::idler(cpu));
    switch_to(cpu, queue, next, now);
}

/// Runs `next`, whose home is `cpu`, this CPU, and which is in no line. Interrupts are off.
fn switch_to(cpu: &'static Cpu, mut queue: Guard, next: ThreadRef, now: u64) {
    let previous = current();
    cpu.reschedule.store(false, Ordering::Relaxed);
    if next != ThreadRef::idler(cpu) {
        next.state.set(State::Running);
        let length = if queue.ahead { SLICE - queue.held_up } else { next.slice.get() };
        queue.start_slice(now, length);
    }
    if next == previous {
        return;
    }
    if previous == ThreadRef::idler(cpu) {
        IDLE.fetch_and(!cpu.bit(), Ordering::SeqCst);
    }
    let ended = previous.state.get() == State::Ended;
    let previous_or_null = |want: bool| if want { previous.0.as_ptr() } else { ptr::null_mut() };
    cpu.leaving.store(previous_or_null(!ended), Ordering::Relaxed);
    cpu.ended.store(previous_or_null(ended), Ordering::Relaxed);
    next.on_cpu.store(true, Ordering::Relaxed);
    cpu.current.store(next.0.as_ptr(), Ordering::Relaxed);
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
    let leaving = cpu.leaving.load(Ordering::Relaxed);
    // SAFETY: it has not ended, and nobody else can run it before this store.
    if let Some(leaving) = unsafe { leaving.as_ref() } {
        leaving.on_cpu.store(false, Ordering::SeqCst);
    }
    if cpu.waiting.load(Ordering::Relaxed) > 0 {
        call_idle();
    }
    let ended = cpu.ended.load(Ordering::Relaxed);
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
    let mut queue = cpu.queue.lock();
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
    cpu.queue.lock().review(cpu, clock::now().as_nanos());
}

/// At the end of an interrupt: changes over to another thread if one should run at once.
pub(crate) fn after_interrupt(cpu: &'static Cpu) {
    // An idler looks by itself.
    if !cpu.reschedule.load(Ordering::Relaxed) || in_interrupt() || cpu.is_idle() {
        return;
    }
    let mut queue = cpu.queue.lock();
    cpu.reschedule.store(false, Ordering::Relaxed);
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
