//! What each CPU has to run: its run queue, and what other CPUs may read without the queue's lock.
#![expect(unsafe_code, reason = "queues are shared between CPUs")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use platform::Instant;

use super::object::{State, Thread, ThreadRef};
use super::queue::{Kind, Queue, Run, Timers};
use crate::cpu::{Cpu, MAX_CPUS};
use crate::lock::{IrqGuard, IrqLock};
use crate::{apic, clock};

/// What the scheduler keeps for a CPU.
pub(super) struct PerCpu {
    /// The current thread is to be preempted: an interrupt has woken a thread that runs at once, or
    /// the time slice is over.
    pub(super) reschedule: AtomicBool,
    /// The CPU's idle thread.
    pub(super) idler: AtomicPtr<Thread>,
    /// During a switch: the thread that leaves the CPU, unless it has ended. Only the CPU itself
    /// uses this field and `ended`.
    pub(super) leaving: AtomicPtr<Thread>,
    /// During a switch: the thread that leaves the CPU because it has ended.
    pub(super) ended: AtomicPtr<Thread>,
    /// The number of threads in `queue`.
    pub(super) waiting: AtomicU32,
    pub(super) queue: IrqLock<RunQueue>,
}

impl PerCpu {
    const fn new() -> PerCpu {
        PerCpu {
            reschedule: AtomicBool::new(false),
            idler: AtomicPtr::new(core::ptr::null_mut()),
            leaving: AtomicPtr::new(core::ptr::null_mut()),
            ended: AtomicPtr::new(core::ptr::null_mut()),
            waiting: AtomicU32::new(0),
            queue: IrqLock::new(RunQueue::new()),
        }
    }

    /// The CPU's idle thread, which runs when no other thread can.
    pub(super) fn idler(&self) -> ThreadRef {
        let idler = self.idler.load(Ordering::Relaxed);
        ThreadRef(NonNull::new(idler).expect("a CPU has its idler before it takes part"))
    }
}

static PER_CPU: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];

/// What the scheduler keeps for `cpu`.
pub(super) fn per_cpu(cpu: &Cpu) -> &'static PerCpu {
    &PER_CPU[cpu.id() as usize]
}

/// Whether a CPU runs its idler.
pub(super) fn is_idle(cpu: &Cpu) -> bool {
    cpu.current() == per_cpu(cpu).idler.load(Ordering::Relaxed).cast()
}

/// How long a thread runs while others are ready, in nanoseconds.
pub(super) const SLICE: u64 = 5_000_000;
/// Later than every deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// The threads that a CPU is to run.
pub(super) struct RunQueue {
    /// Threads that an interrupt woke. They run ahead of `ready`.
    pub(super) woken: Queue<Run>,
    pub(super) ready: Queue<Run>,
    pub(super) timers: Queue<Timers>,
    /// Whether the current thread was taken from `woken`.
    pub(super) ahead: bool,
    /// For how long threads from `woken` have delayed the current turn of `ready`, in nanoseconds.
    pub(super) held_up: u64,
    /// When the current thread's slice began and when it ends, in nanoseconds of the clock.
    slice_begin: u64,
    pub(super) slice_end: u64,
    /// When the timer's interrupt comes, in nanoseconds of the clock.
    pub(super) timer: u64,
}

// SAFETY: threads may be used by any CPU, and the queue's lock guards their links.
unsafe impl Send for RunQueue {}

pub(super) type Guard = IrqGuard<'static, RunQueue>;

impl RunQueue {
    const fn new() -> RunQueue {
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

    pub(super) fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.ready.is_empty()
    }

    /// Sets the timer to interrupt at `at`, unless it interrupts earlier anyway. On the queue's own
    /// CPU.
    pub(super) fn set_timer(&mut self, at: u64, now: u64) {
        if at < self.timer {
            self.timer = at;
            apic::set_timer(at.saturating_sub(now));
        }
    }

    /// Begins a slice of the current thread. On the queue's own CPU.
    pub(super) fn start_slice(&mut self, now: u64, length: u64) {
        self.slice_begin = now;
        self.slice_end = now + length;
        if !self.is_empty() {
            self.set_timer(self.slice_end, now);
        }
    }

    /// Records that the current thread leaves the CPU without being preempted by a woken one. If it
    /// was taken from `woken`, the time that it ran counts as a delay of the current turn;
    /// otherwise that turn is over.
    pub(super) fn end_slice(&mut self, now: u64) {
        self.held_up = if self.ahead && !self.ready.is_empty() {
            self.held_up + now.saturating_sub(self.slice_begin)
        } else {
            0
        };
    }

    /// Whether a woken thread preempts the current one.
    pub(super) fn gives_way(&self) -> bool {
        !self.ahead && self.held_up < SLICE
    }

    /// Sets the deadline of the thread that the queue's own CPU runs, which calls this.
    pub(super) fn set_deadline(&mut self, thread: ThreadRef, deadline: Instant) {
        let at = deadline.as_nanos();
        thread.deadline.set(at);
        self.timers.insert_after(thread, |other| other.deadline.get() <= at);
        self.set_timer(at, clock::now().as_nanos());
    }

    /// Makes a blocked thread ready. Returns false if it is not blocked.
    pub(super) fn rouse(&mut self, thread: ThreadRef) -> bool {
        if thread.state.get() != State::Blocked {
            return false;
        }
        if Timers::link(&thread).linked.get() {
            self.timers.remove(thread);
        }
        thread.state.set(State::Ready);
        true
    }

    /// Queues a ready thread. `self` is the queue of `cpu`.
    pub(super) fn push(&mut self, cpu: &Cpu, thread: ThreadRef, promptly: bool) {
        thread.slice.set(SLICE);
        if promptly {
            self.woken.push_back(thread);
        } else {
            self.ready.push_back(thread);
        }
        per_cpu(cpu).waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Puts the current thread, whose turn is not over, at the front. `self` is the queue of `cpu`.
    pub(super) fn put_back(&mut self, cpu: &Cpu, thread: ThreadRef, now: u64) {
        thread.slice.set(self.slice_end.saturating_sub(now));
        self.ready.push_front(thread);
        per_cpu(cpu).waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes the thread that runs next. `self` is the queue of `cpu`.
    pub(super) fn pop(&mut self, cpu: &Cpu) -> Option<ThreadRef> {
        if self.ready.is_empty() {
            self.held_up = 0;
        }
        self.ahead = self.held_up < SLICE && !self.woken.is_empty();
        let next = if self.ahead { self.woken.pop_front() } else { self.ready.pop_front() }?;
        per_cpu(cpu).waiting.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }

    /// Removes a thread for another CPU to run. `self` is the queue of `cpu`.
    pub(super) fn give(&mut self, cpu: &Cpu) -> Option<ThreadRef> {
        let away = |thread: ThreadRef| !thread.on_cpu.load(Ordering::SeqCst);
        for line in [&mut self.ready, &mut self.woken] {
            if let Some(thread) = line.find(away) {
                line.remove(thread);
                per_cpu(cpu).waiting.fetch_sub(1, Ordering::SeqCst);
                return Some(thread);
            }
        }
        None
    }

    /// Makes sure that the current thread is preempted when it should be. On the queue's own CPU.
    pub(super) fn review(&mut self, cpu: &Cpu, now: u64) {
        if self.is_empty() || is_idle(cpu) {
            return;
        }
        if !self.woken.is_empty() && self.gives_way() || now >= self.slice_end {
            per_cpu(cpu).reschedule.store(true, Ordering::Relaxed);
        } else {
            let slice_end = self.slice_end;
            self.set_timer(slice_end, now);
        }
    }
}
