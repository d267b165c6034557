//! Threads that run the consumer's callbacks: which threads are inside one now, and an adapter's
//! own callback thread.
//!
//! Callbacks run in two kinds of threads: in the agent's dispatcher thread, where an event of the
//! NIC made the callback due, and in the adapter's callback thread, where a consumer's call did;
//! never inside a consumer's call.
//!
//! Locks: each is taken alone, for a few instructions.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use platform::{OutOfMemory, Platform, Signal};

/// The threads that are inside a callback now, for calls that callbacks must not make.
pub struct InCallbacks {
    platform: Arc<dyn Platform>,
    running: AtomicUsize,
    threads: Mutex<Vec<u64>>,
}

impl InCallbacks {
    /// No thread is inside a callback.
    pub fn new(platform: Arc<dyn Platform>) -> InCallbacks {
        InCallbacks { platform, running: AtomicUsize::new(0), threads: Mutex::new(Vec::new()) }
    }

    /// Records that this thread runs a callback until the guard is dropped.
    pub fn enter(&self) -> InCallback<'_> {
        let thread = self.platform.current_thread();
        self.threads.lock().push(thread);
        self.running.fetch_add(1, Ordering::AcqRel);
        InCallback { all: self, thread }
    }

    /// Whether this thread runs a callback.
    pub fn contains_this_thread(&self) -> bool {
        if self.running.load(Ordering::Acquire) == 0 {
            return false;
        }
        let thread = self.platform.current_thread();
        self.threads.lock().contains(&thread)
    }
}

/// This thread runs a callback.
pub struct InCallback<'a> {
    all: &'a InCallbacks,
    thread: u64,
}

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        let mut threads = self.all.threads.lock();
        if let Some(at) = threads.iter().position(|thread| *thread == self.thread) {
            threads.swap_remove(at);
        }
        self.all.running.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Due {
    /// Handles of the objects whose callbacks are due.
    handles: Mutex<VecDeque<u64>>,
    /// Raised for each handle, and at the end.
    signal: Signal,
    stopped: AtomicBool,
}

/// An adapter's thread that runs the callbacks that consumers' calls made due.
pub struct CallbackThread(Arc<Due>);

impl CallbackThread {
    /// Not started yet.
    pub fn new(platform: Arc<dyn Platform>) -> CallbackThread {
        CallbackThread(Arc::new(Due {
            handles: Mutex::new(VecDeque::new()),
            signal: Signal::new(platform),
            stopped: AtomicBool::new(false),
        }))
    }

    /// Starts the thread, which passes each scheduled handle to `run`. It ends after
    /// [`CallbackThread::stop`], or when `run` returns false because the adapter no longer exists.
    pub fn start(&self, name: &str, run: impl Fn(u64) -> bool + Send + 'static) -> Result<(), OutOfMemory> {
        let due = self.0.clone();
        let main = Box::new(move || due.run(run));
        self.0.signal.platform().spawn(name, main)
    }

    /// Passes a handle to the thread.
    pub fn schedule(&self, handle: u64) {
        self.0.handles.lock().push_back(handle);
        self.0.signal.raise();
    }

    /// Ends the thread once it has run what is scheduled. Does not wait for it.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.signal.raise();
    }
}

impl Drop for CallbackThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Due {
    fn run(&self, run: impl Fn(u64) -> bool) {
        loop {
            let seen = self.signal.value();
            // Read before the queue: what was scheduled before the stop is found then.
            let stopped = self.stopped.load(Ordering::Acquire);
            loop {
                let next = self.handles.lock().pop_front();
                let Some(handle) = next else { break };
                if !run(handle) {
                    return;
                }
            }
            if stopped {
                return;
            }
            self.signal.wait(seen, None);
        }
    }
}
