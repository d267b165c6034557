//! [`platform::Platform`] with memory from a [`DmaMemory`], and all else from an [`Os`].

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use platform::sync::atomic::AtomicU32;
use platform::{BusExtent, Instant, OutOfMemory, Platform, RawDma, Wake};

use crate::memory::DmaMemory;
use crate::wait::Waiters;
use crate::{Arena, heap};

/// Time, waiting and threads, as [`Platform`] describes them. A process on std and a simulation
/// differ in these.
pub trait Os: Send + Sync {
    /// [`Platform::now`].
    fn now(&self) -> Instant;
    /// [`Platform::wait`].
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake;
    /// [`Platform::wake`].
    fn wake(&self, word: &AtomicU32);
    /// [`Platform::spawn`].
    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory>;
    /// [`Platform::current_thread`].
    fn current_thread(&self) -> u64;
    /// [`Platform::entropy`].
    fn entropy(&self) -> Option<u64> {
        // The keys of a new state are the operating system's random numbers.
        Some(RandomState::new().build_hasher().finish())
    }
}

/// The platform of a machine in this process.
pub struct HostPlatform<M = Arena> {
    memory: Arc<M>,
    os: Box<dyn Os>,
}

impl<M: DmaMemory> HostPlatform<M> {
    /// A platform with this memory and this operating system.
    pub fn on(memory: Arc<M>, os: Box<dyn Os>) -> HostPlatform<M> {
        HostPlatform { memory, os }
    }

    /// The machine's DMA memory.
    pub fn memory(&self) -> &Arc<M> {
        &self.memory
    }
}

#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: the memory allocates each byte to one holder at a time, and it lives as long as the
// platform, and as long as a device that reaches it.
unsafe impl<M: DmaMemory> Platform for HostPlatform<M> {
    fn now(&self) -> Instant {
        self.os.now()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        WAITS.set(WAITS.get() + 1);
        self.os.wait(word, expected, deadline)
    }

    fn wake(&self, word: &AtomicU32) {
        self.os.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        heap::as_machine(0, || self.os.spawn(name, main)).ok_or(OutOfMemory)?
    }

    fn current_thread(&self) -> u64 {
        self.os.current_thread()
    }

    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory> {
        heap::as_machine(len, || self.memory.alloc(len, align)).ok_or(OutOfMemory)?
    }

    unsafe fn free_dma(&self, raw: RawDma) {
        heap::as_machine(0, || self.memory.release(&raw));
    }

    fn translate(&self, virt: usize) -> Option<BusExtent> {
        self.memory.translate(virt)
    }

    fn entropy(&self) -> Option<u64> {
        self.os.entropy()
    }
}

thread_local! {
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// How often the calling thread asked a platform of this process to wait.
pub fn waits_of_this_thread() -> u64 {
    WAITS.get()
}

thread_local! {
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// How many times slower than the clock a machine's time runs. Miri interprets, and deadlines
/// should not pass because of that.
pub const SLOWER: u32 = if cfg!(miri) { 200 } else { 1 };
/// No wait times out sooner than this. A thread that waits again every few microseconds until a
/// deadline of seconds would take Miri minutes, since its clock jumps while all threads wait.
const SHORTEST: Duration = if cfg!(miri) { Duration::from_millis(10) } else { Duration::ZERO };

/// Time, waiting and threads of std.
pub struct Std {
    waiters: Waiters,
    start: StdInstant,
}

impl Std {
    /// The operating system, whose time begins now.
    #[expect(clippy::new_without_default, reason = "the moment counts")]
    pub fn new() -> Std {
        platform::sync::set_yield(std::thread::yield_now);
        Std { waiters: Waiters::new(), start: StdInstant::now() }
    }
}

impl Os for Std {
    fn now(&self) -> Instant {
        Instant::from_nanos((self.start.elapsed() / SLOWER).as_nanos() as u64)
    }

    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
        let left = deadline.map(|deadline| deadline.since(self.now()));
        if left == Some(Duration::ZERO) {
            return Wake::TimedOut;
        }
        self.waiters.wait(word, expected, left.map(|left| left.max(SHORTEST) * SLOWER))
    }

    fn wake(&self, word: &AtomicU32) {
        self.waiters.wake(word);
    }

    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(main);
        thread.map(drop).map_err(|_| OutOfMemory)
    }

    fn current_thread(&self) -> u64 {
        THREAD.with(|&id| id)
    }
}
