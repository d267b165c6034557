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
use platform::{OutOfMemory, Platform, Signal, heap};

use crate::OutOfResources;

/// The threads that are inside a callback now, for calls that callbacks must not make.
pub struct InCallbacks {
    platform: Arc<dyn Platform>,
    running: AtomicUsize,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    /// Those that are inside a callback. There is room for as many as there may be.
    inside: Vec<u64>,
    /// How many there may be.
    most: usize,
}

impl InCallbacks {
    /// No thread is inside a callback.
    pub fn new(platform: Arc<dyn Platform>) -> InCallbacks {
        InCallbacks { platform, running: AtomicUsize::new(0), threads: Mutex::default() }
    }

    /// Makes room for `more` threads that run callbacks at the same time.
    pub fn expect(&self, more: usize) -> Result<(), OutOfResources> {
        let mut threads = self.threads.lock();
        let most = threads.most + more;
        let inside = threads.inside.len();
        threads.inside.try_reserve(most - inside)?;
        threads.most = most;
        Ok(())
    }

    /// Takes an [`InCallbacks::expect`] back.
    pub fn expect_no_more(&self, fewer: usize) {
        self.threads.lock().most -= fewer;
    }

    /// Records that this thread runs a callback until the guard is dropped.
    pub fn enter(&self) -> InCallback<'_> {
        let thread = self.platform.current_thread();
        // Does not allocate: see `expect`.
        self.threads.lock().inside.push(thread);
        self.running.fetch_add(1, Ordering::AcqRel);
        InCallback { all: self, thread }
    }

    /// Whether this thread runs a callback.
    pub fn contains_this_thread(&self) -> bool {
        if self.running.load(Ordering::Acquire) == 0 {
            return false;
        }
        let thread = self.platform.current_thread();
        self.threads.lock().inside.contains(&thread)
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
        if let Some(at) = threads.inside.iter().position(|thread| *thread == self.thread) {
            threads.inside.swap_remove(at);
        }
        self.all.running.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Due {
    places: Mutex<Places>,
    /// Raised for each place, and at the end.
    signal: Signal,
    stopped: AtomicBool,
}

/// The places (indices in a table) of the objects whose callbacks are due. Each is queued once at
/// most, so the queue is no longer than the table, however often callbacks become due while the
/// thread is inside one.
#[derive(Default)]
struct Places {
    queue: VecDeque<u32>,
    /// By place: whether it is queued.
    queued: Vec<bool>,
}

impl Places {
    /// Makes room for places below `count`.
    fn reserve(&mut self, count: usize) -> Result<(), OutOfResources> {
        let (known, queued) = (self.queued.len(), self.queue.len());
        if known < count {
            self.queued.try_reserve(count - known)?;
            self.queue.try_reserve(count - queued)?;
            self.queued.resize(count, false);
        }
        Ok(())
    }

    /// Queues a place. Does nothing, and returns false, if it is queued already or has no room.
    fn add(&mut self, place: u32) -> bool {
        match self.queued.get_mut(place as usize) {
            Some(queued) if !*queued => *queued = true,
            _ => return false,
        }
        self.queue.push_back(place);
        true
    }

    /// Takes the place that was queued first.
    fn take(&mut self) -> Option<u32> {
        let place = self.queue.pop_front()?;
        if let Some(queued) = self.queued.get_mut(place as usize) {
            *queued = false;
        }
        Some(place)
    }
}

/// An adapter's thread that runs the callbacks that consumers' calls made due.
pub struct CallbackThread(Arc<Due>);

impl CallbackThread {
    /// Not started yet.
    pub fn new(platform: Arc<dyn Platform>) -> Result<CallbackThread, OutOfResources> {
        let due =
            Due { places: Mutex::default(), signal: Signal::new(platform), stopped: AtomicBool::new(false) };
        heap::arc(due).map(CallbackThread).map_err(|_| OutOfResources)
    }

    /// Starts the thread, which passes each scheduled place to `run`. It ends after
    /// [`CallbackThread::stop`], or when `run` returns false because the adapter no longer exists.
    pub fn start(&self, name: &str, run: impl Fn(u32) -> bool + Send + 'static) -> Result<(), OutOfMemory> {
        let due = self.0.clone();
        let main = move || due.run(run);
        heap::room(size_of_val(&main))?;
        let main = Box::new(main);
        self.0.signal.platform().spawn(name, main)
    }

    /// Makes room for a place, where an object is being created.
    pub fn reserve(&self, place: u32) -> Result<(), OutOfResources> {
        self.0.places.lock().reserve(place as usize + 1)
    }

    /// Passes a place, for which [`CallbackThread::reserve`] made room, to the thread.
    pub fn schedule(&self, place: u32) {
        if self.0.places.lock().add(place) {
            self.0.signal.raise();
        }
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
    fn run(&self, run: impl Fn(u32) -> bool) {
        loop {
            let seen = self.signal.value();
            // Read before the queue: what was scheduled before the stop is found then.
            let stopped = self.stopped.load(Ordering::Acquire);
            loop {
                let next = self.places.lock().take();
                let Some(place) = next else { break };
                if !run(place) {
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

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_queued_once_however_often_it_is_scheduled() {
        let places = Mutex::new(Places::default());
        let due = |place| places.lock().add(place);
        assert!(!due(3), "no room was made for it");
        places.lock().reserve(4).unwrap();
        let capacity = places.lock().queue.capacity();
        for _ in 0..1000 {
            due(3);
            due(0);
        }
        assert_eq!(places.lock().queue, [3, 0]);
        assert_eq!(places.lock().take(), Some(3));
        assert!(due(3) && !due(0));
        assert_eq!([(); 3].map(|()| places.lock().take()), [Some(0), Some(3), None]);
        assert_eq!(places.lock().queue.capacity(), capacity, "nothing is allocated");
    }
}
