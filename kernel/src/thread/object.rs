//! A thread as an object: its parts, and which lock guards each.
#![expect(unsafe_code, reason = "threads are reached by pointer")]

use alloc::boxed::Box;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::cpu::{self, Cpu};
use crate::lock::IrqLock;
use crate::memory::Stack;

/// A thread's main function.
pub(super) type Main = Box<dyn FnOnce() + Send>;

/// What a thread is doing. Guarded by the run queue of its home; an idle thread is always
/// [`State::Running`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is the CPU's current thread.
    Running,
    /// It is in the run queue.
    Ready,
    /// It waits for a wake or for its deadline.
    Blocked,
    /// It has ended; the thread that runs next frees it.
    Ended,
}

/// A thread.
pub(crate) struct Thread {
    id: u64,
    name: Box<str>,
    /// The number of the CPU that runs it, has it in its run queue, or ran it when it blocked (see
    /// `scheduler`).
    home: AtomicU32,
    /// Its stack is in use: it runs, or it leaves the CPU and its registers are not saved yet.
    pub(super) on_cpu: AtomicBool,
    /// Freed with the thread; idle threads have none of this kind.
    stack: Option<Stack>,
    pub(super) main: IrqLock<Option<Main>>,
    /// The stack pointer under which its registers are saved while it does not run. Only the CPU
    /// that is its home uses it.
    pub(super) stack_pointer: UnsafeCell<u64>,
    // The following are guarded by the run queue of its home.
    pub(super) state: Cell<State>,
    pub(super) deadline: Cell<u64>,
    /// While it is queued: how long its next turn is, in nanoseconds.
    pub(super) slice: Cell<u64>,
    pub(super) in_run_queue: Link,
    pub(super) in_timers: Link,
    // The following are guarded by the bucket of the word that it waits on.
    pub(super) waits_on: Cell<usize>,
    pub(super) in_bucket: Link,
}

// SAFETY: the comments at the fields say which lock guards each cell, or that only its home uses
// it.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Frees an ended thread.
    pub(super) fn free(self: Box<Thread>) {
        let counted = self.stack.is_some();
        drop(self);
        if counted {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn home(&self) -> &'static Cpu {
        cpu::get(self.home.load(Ordering::Relaxed) as usize)
    }

    pub(super) fn set_home(&self, cpu: &Cpu) {
        self.home.store(cpu.id(), Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// A thread's place in one kind of list.
pub(super) struct Link {
    pub(super) before: Cell<Option<ThreadRef>>,
    pub(super) after: Cell<Option<ThreadRef>>,
    /// Whether it is in a list.
    pub(super) linked: Cell<bool>,
}

impl Link {
    pub(super) const fn new() -> Link {
        Link { before: Cell::new(None), after: Cell::new(None), linked: Cell::new(false) }
    }
}

/// A thread by address. Valid until the thread has ended and another one runs. A holder keeps it in
/// a queue, where an ended thread never is, or is the thread itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadRef(pub(super) NonNull<Thread>);

impl Deref for ThreadRef {
    type Target = Thread;

    fn deref(&self) -> &Thread {
        // SAFETY: the type's documentation says why the thread is there.
        unsafe { self.0.as_ref() }
    }
}

/// The calling thread, if there are threads yet.
pub(crate) fn running() -> Option<&'static Thread> {
    // SAFETY: the calling thread exists as long as it uses the reference.
    unsafe { cpu::current().cast::<Thread>().as_ref() }
}

pub(super) fn current() -> ThreadRef {
    ThreadRef(NonNull::new(cpu::current().cast()).expect("threads exist once boot has made its own"))
}

/// The number of the calling thread. No two living threads share one, and 0 is never one.
pub fn current_id() -> u64 {
    current().id
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// The number of threads, without idle threads.
pub(super) static ALIVE: AtomicU32 = AtomicU32::new(0);

/// The number of threads, the kernel's own among them. A thread that has ended counts until all its
/// memory is released.
pub fn alive() -> u32 {
    ALIVE.load(Ordering::Relaxed)
}

pub(super) fn make(name: &str, stack: Option<Stack>, main: Option<Main>) -> Box<Thread> {
    Box::new(Thread {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        name: name.into(),
        home: AtomicU32::new(0),
        on_cpu: AtomicBool::new(false),
        stack,
        main: IrqLock::new(main),
        stack_pointer: UnsafeCell::new(0),
        state: Cell::new(State::Running),
        deadline: Cell::new(0),
        slice: Cell::new(0),
        in_run_queue: Link::new(),
        in_timers: Link::new(),
        waits_on: Cell::new(0),
        in_bucket: Link::new(),
    })
}
