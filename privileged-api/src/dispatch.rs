//! Threads that run callbacks: who is inside one now, and the IA's own dispatcher thread.
//!
//! Locks: each is taken alone, for a few instructions.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use platform::Platform;
use platform::sync::Mutex;

use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::lmr::sharing::Shareable;
use crate::signal::Signal;
use crate::status::{Error, Result};

/// What all IAs of a provider share.
pub(crate) struct Shared {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) shareable: Shareable,
    running: AtomicUsize,
    threads: Mutex<Vec<u64>>,
}

impl Shared {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Shared {
        Shared {
            platform,
            shareable: Shareable::new(),
            running: AtomicUsize::new(0),
            threads: Mutex::new(Vec::new()),
        }
    }

    /// Notes that this thread runs a callback until the guard is dropped.
    pub(crate) fn enter_callback(&self) -> InCallback<'_> {
        let thread = self.platform.current_thread();
        self.threads.lock().push(thread);
        self.running.fetch_add(1, Ordering::AcqRel);
        InCallback { shared: self, thread }
    }

    /// Refuses a call that the page excludes from callbacks, if this thread runs one.
    pub(crate) fn not_in_callback(&self) -> Result<()> {
        if self.running.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let thread = self.platform.current_thread();
        if self.threads.lock().contains(&thread) { Err(Error::CallbackContext) } else { Ok(()) }
    }
}

/// This thread runs a callback.
pub(crate) struct InCallback<'a> {
    shared: &'a Shared,
    thread: u64,
}

impl Drop for InCallback<'_> {
    fn drop(&mut self) {
        let mut threads = self.shared.threads.lock();
        if let Some(place) = threads.iter().position(|thread| *thread == self.thread) {
            threads.swap_remove(place);
        }
        self.shared.running.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Due {
    handles: Mutex<VecDeque<EvdHandle>>,
    /// Changes with each handle, and at the end.
    signal: Signal,
    stopped: AtomicBool,
}

/// Runs the callbacks that calls of consumers made due.
pub(crate) struct Dispatcher(Arc<Due>);

impl Dispatcher {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Dispatcher {
        Dispatcher(Arc::new(Due {
            handles: Mutex::new(VecDeque::new()),
            signal: Signal::new(platform),
            stopped: AtomicBool::new(false),
        }))
    }

    /// Starts the thread; it ends with [`Dispatcher::stop`].
    pub(crate) fn start(&self, name: &str, core: Weak<Core>) -> Result<()> {
        let due = self.0.clone();
        let main = Box::new(move || run(&due, &core));
        self.0.signal.platform().spawn(name, main).map_err(|_| Error::Resources)
    }

    /// Has the dispatcher's callback run, if it is scheduled.
    pub(crate) fn schedule(&self, evd: EvdHandle) {
        self.0.handles.lock().push_back(evd);
        self.0.signal.raise();
    }

    /// Ends the thread, after what is scheduled. Does not wait for it.
    pub(crate) fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.signal.raise();
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(due: &Due, core: &Weak<Core>) {
    loop {
        let seen = due.signal.value();
        loop {
            let next = due.handles.lock().pop_front();
            let Some(evd) = next else { break };
            let Some(core) = core.upgrade() else { return };
            let ia = Ia::of(core);
            if let Some(evd) = ia.core().evds.get(evd.as_raw()) {
                evd.run_callback(&ia);
            }
        }
        if due.stopped.load(Ordering::Acquire) {
            return;
        }
        due.signal.wait(seen, None);
    }
}
