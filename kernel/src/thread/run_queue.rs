//! What each CPU has to run: its run queue, and what others may read of it without the queue's lock.
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
    /// An interrupt has made a thread ready that should run at once, or the time slice is over.
    pub(super) reschedule: AtomicBool,
    /// The thread that runs when no other does.
    pub(super) idler: AtomicPtr<Thread>,
    /// During a switch: the thread that makes way. Only the CPU itself uses it, and `ended`.
    pub(super) leaving: AtomicPtr<Thread>,
    /// During a switch: the thread that makes way for good.
    pub(super) ended: AtomicPtr<Thread>,
    /// How many threads are in `queue`.
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

    /// The thread that the CPU runs when there is no other.
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

/// What is to run on a CPU.
pub(super) struct RunQueue {
    /// Threads that an interrupt woke: they run ahead of the others.
    pub(super) woken: Queue<Run>,
    pub(super) ready: Queue<Run>,
    pub(super) timers: Queue<Timers>,
    /// Whether the current thread runs ahead of those that are ready.
    pub(super) ahead: bool,
    /// For how long those that ran ahead have held up the present turn, in nanoseconds.
    pub(super) held_up: u64,
    /// When the current thread's slice began and when it ends, in nanoseconds of the clock.
    slice_begin: u64,
    pub(super) slice_end: u64,
    /// When the timer's interrupt comes.
    pub(super) timer: u64,
}

// SAFETY: threads are made for sharing, and their links are guarded by the queue's lock.
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

    /// Has the timer come at `at`, unless it comes earlier. On the queue's own CPU.
    pub(super) fn set_timer(&mut self, at: u64, now: u64) {
        if at < self.timer {
            self.timer = at;
            apic::set_timer(at.saturating_sub(now));
        }
    }

    /// On the queue's own CPU.
    pub(super) fn start_slice(&mut self, now: u64, length: u64) {
        self.slice_begin = now;
        self.slice_end = now + length;
        if !self.is_empty() {
            self.set_timer(self.slice_end, now);
        }
    }

    /// The current thread makes way, and not because it was interrupted: its turn is over, or what it held up another's.
    pub(super) fn end_slice(&mut self, now: u64) {
        self.held_up = if self.ahead && !self.ready.is_empty() {
            self.held_up + now.saturating_sub(self.slice_begin)
        } else {
            0
        };
    }

    /// Whether a thread that is woken goes before the current one.
    pub(super) fn gives_way(&self) -> bool {
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

    /// Puts a ready thread in `cpu`'s line, which this is.
    pub(super) fn push(&mut self, cpu: &Cpu, thread: ThreadRef, promptly: bool) {
        thread.slice.set(SLICE);
        if promptly {
            self.woken.push_back(thread);
        } else {
            self.ready.push_back(thread);
        }
        per_cpu(cpu).waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Puts the current thread, whose turn is not over, in front of `cpu`'s line, which this is.
    pub(super) fn put_back(&mut self, cpu: &Cpu, thread: ThreadRef, now: u64) {
        thread.slice.set(self.slice_end.saturating_sub(now));
        self.ready.push_front(thread);
        per_cpu(cpu).waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the next thread from `cpu`'s line, which this is.
    pub(super) fn pop(&mut self, cpu: &Cpu) -> Option<ThreadRef> {
        if self.ready.is_empty() {
            self.held_up = 0;
        }
        self.ahead = self.held_up < SLICE && !self.woken.is_empty();
        let next = if self.ahead { self.woken.pop_front() } else { self.ready.pop_front() }?;
        per_cpu(cpu).waiting.fetch_sub(1, Ordering::SeqCst);
        Some(next)
    }

    /// Takes a thread from `cpu`'s line, which this is, for another CPU to run.
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

    /// Sees to it that the CPU's current thread makes way when it should. On the queue's own CPU.
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
