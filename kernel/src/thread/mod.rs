//! Threads: preemptive, each on a stack of its own with a guard below, on all CPUs.
//!
//! `scheduler` says who runs where, `wait` how they sleep and are woken, `queue` how they stand in line.
//! While threads run, one of them gives a heartbeat each second, from which the launcher knows that the guest
//! is alive: without scheduling, or with a CPU that takes no interrupts any more, it falls silent.
#![expect(unsafe_code, reason = "makes threads' first stack frames, and owns threads by pointer")]

mod queue;
mod scheduler;
mod wait;

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::cell::{Cell, UnsafeCell};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use platform::{OutOfMemory, Wake};
use x86_64::instructions::interrupts;

use crate::cpu::{self, Cpu};
use crate::interrupts::apic;
use crate::lock::{IrqLock, IrqOff};
use crate::memory::Stack;
use crate::{clock, outside};
use queue::Link;

pub use cpu::current_id as current_cpu;
pub use scheduler::yield_now;
pub(crate) use scheduler::{RunQueue, after_interrupt, idle, look, tick};
pub(crate) use wait::{wait, wake};

/// What a thread begins with.
type Main = Box<dyn FnOnce() + Send>;

/// What a thread is doing. Guarded by its home's run queue; an idler is always [`State::Running`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    on_cpu: AtomicBool,
    /// Gone with the thread; idlers have none of this kind.
    stack: Option<Stack>,
    main: IrqLock<Option<Main>>,
    /// Where its registers are saved while it is not on a CPU; belongs to whichever CPU is its home.
    stack_pointer: UnsafeCell<u64>,
    // Guarded by its home's run queue.
    state: Cell<State>,
    deadline: Cell<u64>,
    /// In line: how long its next turn is, in nanoseconds.
    slice: Cell<u64>,
    in_run_queue: Link,
    in_timers: Link,
    // Guarded by the bucket of the word it waits on.
    waits_on: Cell<usize>,
    in_bucket: Link,
}

// SAFETY: each cell is guarded by a lock, as said above.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Gives back what an ended thread had.
    fn free(self: Box<Thread>) {
        let counted = self.stack.is_some();
        drop(self);
        if counted {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn home(&self) -> &'static Cpu {
        // SAFETY: only references to CPUs are stored there, which live for ever.
        unsafe { &*self.home.load(Ordering::Relaxed) }
    }

    fn set_home(&self, cpu: &'static Cpu) {
        self.home.store((&raw const *cpu).cast_mut(), Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// A thread by address. Valid until the thread has ended and another runs: whoever holds one holds it in a
/// queue, where an ended thread never is, or is the thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ThreadRef(NonNull<Thread>);

impl ThreadRef {
    /// The thread that `cpu` runs when there is no other.
    fn idler(cpu: &Cpu) -> ThreadRef {
        let idler = cpu.idler.load(Ordering::Relaxed);
        ThreadRef(NonNull::new(idler).expect("a CPU has its idler before it takes part"))
    }
}

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
    unsafe { cpu::current().as_ref() }
}

fn current() -> ThreadRef {
    ThreadRef(NonNull::new(cpu::current()).expect("threads exist once boot has made its own"))
}

/// The number of the thread that runs. No two living threads share one, and 0 is never one.
pub fn current_id() -> u64 {
    current().id
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// How many threads there are, apart from idlers.
static ALIVE: AtomicU32 = AtomicU32::new(0);

/// How many threads there are, the kernel's own among them. One that has ended counts until all that it had
/// is given back.
pub fn alive() -> u32 {
    ALIVE.load(Ordering::Relaxed)
}

fn make(name: &str, stack: Option<Stack>, main: Option<Main>) -> Box<Thread> {
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

/// Makes what runs first on `cpu` its idler: it goes on to [`idle`].
pub(crate) fn adopt_idler(cpu: &'static Cpu) {
    let idler = Box::leak(make("idle", None, None));
    idler.set_home(cpu);
    cpu.idler.store(idler, Ordering::Relaxed);
    cpu.current.store(idler, Ordering::Relaxed);
}

/// Starts a thread.
pub fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> Result<(), OutOfMemory> {
    spawn_boxed(name, Box::new(main))
}

pub(crate) fn spawn_boxed(name: &str, main: Main) -> Result<(), OutOfMemory> {
    let stack = Stack::new()?;
    let top = stack.top();
    // What `scheduler::switch` pops, r15 up to rbp, then where it returns to; two more, so that the stack
    // is aligned as it must be where a function is called.
    let frame: [u64; 9] = [0, 0, 0, 0, 0, 0, enter as *const () as u64, 0, 0];
    let start = top - size_of_val(&frame) as u64;
    // SAFETY: the top of a fresh stack.
    unsafe { *(start as *mut [u64; 9]) = frame };
    let thread = make(name, Some(stack), Some(main));
    // SAFETY: nobody else knows the thread yet.
    unsafe { *thread.stack_pointer.get() = start };
    ALIVE.fetch_add(1, Ordering::Relaxed);
    scheduler::admit(ThreadRef(NonNull::from(Box::leak(thread))));
    Ok(())
}

/// Where a thread's life begins: `switch` returns here.
#[unsafe(naked)]
extern "C" fn enter() -> ! {
    naked_asm!("xor ebp, ebp", "call {}", "ud2", sym run)
}

extern "C" fn run() -> ! {
    scheduler::after_switch();
    interrupts::enable();
    let main = current().main.lock().take();
    if let Some(main) = main {
        main();
    }
    scheduler::end()
}

/// Sleeps for a time.
pub fn sleep(time: Duration) {
    let word = AtomicU32::new(0);
    let deadline = clock::now() + time;
    while wait(&word, 0, Some(deadline)) == Wake::Woken {}
}

/// Shows that the first thread runs, and from now on that threads do, on all CPUs.
pub(crate) fn start_heartbeat() -> Result<(), OutOfMemory> {
    outside::beat(b'S');
    spawn("heartbeat", || {
        loop {
            sleep(HEARTBEAT_PERIOD);
            if round() {
                outside::beat(b'.');
            }
        }
    })
}

/// The launcher gives up on a guest after ten times this.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(1);

/// The heartbeat's present round.
static ROUND: AtomicU32 = AtomicU32::new(0);

/// Begins a round, in which each CPU is to take an interrupt, if all have taken that of the last. Otherwise
/// false.
fn round() -> bool {
    let _off = IrqOff::new();
    let last = ROUND.load(Ordering::Relaxed);
    let complete = cpu::online().all(|cpu| cpu.round.load(Ordering::Relaxed) == last);
    if complete {
        ROUND.store(last.wrapping_add(1), Ordering::Relaxed);
    }
    answer_round();
    for other in cpu::online().filter(|other| !core::ptr::eq(*other, cpu::this())) {
        apic::send_reschedule(other);
    }
    complete
}

/// Shows the heartbeat that the calling CPU takes interrupts.
pub(crate) fn answer_round() {
    cpu::this().round.store(ROUND.load(Ordering::Relaxed), Ordering::Relaxed);
}
