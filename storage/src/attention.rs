//! What a thread that serves queues and connections sleeps on: everything that happens raises one
//! signal.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::task::Waker;

use platform::sync::atomic::{AtomicBool, Ordering};
use platform::{Platform, Signal};

/// The signal, and a mark for what happens to connections.
pub(crate) struct Attention {
    pub(crate) signal: Signal,
    /// A connection has changed, or a peer asks for one: who serves connections looks at them only
    /// then.
    connections: AtomicBool,
}

impl Attention {
    pub(crate) fn new(platform: &Arc<dyn Platform>) -> Arc<Attention> {
        Arc::new(Attention { signal: Signal::new(platform.clone()), connections: AtomicBool::new(true) })
    }

    /// For completions.
    pub(crate) fn waker(self: &Arc<Attention>) -> Waker {
        Waker::from(self.clone())
    }

    /// For connections.
    pub(crate) fn connection_waker(self: &Arc<Attention>) -> Waker {
        Waker::from(Arc::new(Marking(self.clone())))
    }

    /// Notes that there is something to look at among the connections.
    pub(crate) fn mark_connections(&self) {
        self.connections.store(true, Ordering::Release);
    }

    /// Whether there was something to look at among the connections. What comes after this call is
    /// for the next one.
    pub(crate) fn take_connections(&self) -> bool {
        self.connections.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Attention {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.signal.raise();
    }
}

struct Marking(Arc<Attention>);

impl Wake for Marking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the signal, so that the thread finds the mark when it wakes.
        self.0.mark_connections();
        self.0.signal.raise();
    }
}
