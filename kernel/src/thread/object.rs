//! A thread as an object: what it is, what guards each part, and how one is reached.
#![expect(unsafe_code, reason = "threads are reached by pointer")]

use alloc::boxed::Box;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::cpu::{self, Cpu};
use crate::lock::IrqLock;
use crate::memory::Stack;

/// What a thread begins with.
pub(super) type Main = Box<dyn FnOnce() + Send>;

/// What a thread is doing. Guarded by its home's run queue; an idler is always [`State::Running`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is the CPU's current thread.
    Running,
    /// It stands in the run queue.
    Ready,
    /// It waits to be woken, or for its deadline.
    Blocked,
    /// It has ended; whoever runs next frees it.
    Ended,
}

/// A thread.
pub(crate) struct Thread {
    id: u64,
    name: Box<str>,
    /// The CPU that runs it, in whose line it stands, or where it blocked (see `scheduler`).
    home: AtomicPtr<Cpu>,
    /// Its stack is in use: it runs, or makes way and its registers are not saved yet.
    pub(super) on_cpu: AtomicBool,
    /// Gone with the thread; idlers have none of this kind.
    stack: Option<Stack>,
    pub(super) main: IrqLock<Option<Main>>,
    /// Where its registers are saved while it is not on a CPU; belongs to whichever CPU is its home.
    pub(super) stack_pointer: UnsafeCell<u64>,
    // Guarded by its home's run queue.
    pub(super) state: Cell<State>,
    pub(super) deadline: Cell<u64>,
    /// In line: how long its next turn is, in nanoseconds.
    pub(super) slice: Cell<u64>,
    pub(super) in_run_queue: Link,
    pub(super) in_timers: Link,
    // Guarded by the bucket of the word it waits on.
    pub(super) waits_on: Cell<usize>,
    pub(super) in_bucket: Link,
}

// SAFETY: each cell is guarded by a lock, as said above.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Gives back what an ended thread had.
    pub(super) fn free(self: Box<Thread>) {
        let counted = self.stack.is_some();
        drop(self);
        if counted {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn home(&self) -> &'static Cpu {
        // SAFETY: only references to CPUs are stored there, which live for ever.
        unsafe { &*self.home.load(Ordering::Relaxed) }
    }

    pub(super) fn set_home(&self, cpu: &'static Cpu) {
        self.home.store((&raw const *cpu).cast_mut(), Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// A thread's place in one kind of line.
pub(super) struct Link {
    pub(super) before: Cell<Option<ThreadRef>>,
    pub(super) after: Cell<Option<ThreadRef>>,
    /// Whether it stands in a line at all.
    pub(super) linked: Cell<bool>,
}

impl Link {
    pub(super) const fn new() -> Link {
        Link { before: Cell::new(None), after: Cell::new(None), linked: Cell::new(false) }
    }
}

/// A thread by address. Valid until the thread has ended and another runs: whoever holds one holds it in a
/// queue, where an ended thread never is, or is the thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadRef(pub(super) NonNull<Thread>);

impl Deref for ThreadRef {
    type Target = Thread;

    fn deref(&self) -> &Thread {
        // SAFETY: see above.
        unsafe { self.0.as_ref() }
    }
}

/// The thread that runs, if there are threads yet.
pub(crate) fn running() -> Option<&'static Thread> {
    // SAFETY: the thread that asks is the one that runs, so it is there as long as it can look.
    unsafe { cpu::current().cast::<Thread>().as_ref() }
}

pub(super) fn current() -> ThreadRef {
    ThreadRef(NonNull::new(cpu::current().cast()).expect("threads exist once boot has made its own"))
}

/// The number of the thread that runs. No two living threads share one, and 0 is never one.
pub fn current_id() -> u64 {
    current().id
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// How many threads there are, apart from idlers.
pub(super) static ALIVE: AtomicU32 = AtomicU32::new(0);

/// How many threads there are, the kernel's own among them. One that has ended counts until all that it had
/// is given back.
pub fn alive() -> u32 {
    ALIVE.load(Ordering::Relaxed)
}

pub(super) fn make(name: &str, stack: Option<Stack>, main: Option<Main>) -> Box<Thread> {
    Box::new(Thread {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        name: name.into(),
        home: AtomicPtr::new(core::ptr::null_mut()),
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
