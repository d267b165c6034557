//! Lists of threads, linked through the threads themselves, so that queuing a thread allocates
//! nothing.

use super::object::{Link, Thread, ThreadRef};

/// A kind of list: which link of a thread it uses.
pub(super) trait Kind {
    fn link(thread: &Thread) -> &Link;
}

/// Run queues.
pub(super) struct Run;
/// Threads with a deadline, in order of deadlines.
pub(super) struct Timers;
/// Threads that wait on words of one bucket.
pub(super) struct Bucket;

impl Kind for Run {
    fn link(thread: &Thread) -> &Link {
        &thread.in_run_queue
    }
}

impl Kind for Timers {
    fn link(thread: &Thread) -> &Link {
        &thread.in_timers
    }
}

impl Kind for Bucket {
    fn link(thread: &Thread) -> &Link {
        &thread.in_bucket
    }
}

/// A list of threads.
pub(super) struct Queue<K> {
    first: Option<ThreadRef>,
    last: Option<ThreadRef>,
    kind: core::marker::PhantomData<K>,
}

impl<K: Kind> Queue<K> {
    pub(super) const fn new() -> Queue<K> {
        Queue { first: None, last: None, kind: core::marker::PhantomData }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn first(&self) -> Option<ThreadRef> {
        self.first
    }

    pub(super) fn after(&self, thread: ThreadRef) -> Option<ThreadRef> {
        K::link(&thread).after.get()
    }

    /// The first thread for which `wanted` holds.
    pub(super) fn find(&self, wanted: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        let mut at = self.first;
        while let Some(thread) = at
            && !wanted(thread)
        {
            at = self.after(thread);
        }
        at
    }

    /// Puts a thread behind `before`, or at the front.
    fn insert(&mut self, thread: ThreadRef, before: Option<ThreadRef>) {
        let link = K::link(&thread);
        debug_assert!(!link.linked.get());
        let after = before.map_or(self.first, |before| K::link(&before).after.get());
        link.linked.set(true);
        link.before.set(before);
        link.after.set(after);
        match before {
            Some(before) => K::link(&before).after.set(Some(thread)),
            None => self.first = Some(thread),
        }
        match after {
            Some(after) => K::link(&after).before.set(Some(thread)),
            None => self.last = Some(thread),
        }
    }

    pub(super) fn push_front(&mut self, thread: ThreadRef) {
        self.insert(thread, None);
    }

    pub(super) fn push_back(&mut self, thread: ThreadRef) {
        self.insert(thread, self.last);
    }

    /// Puts a thread behind the last one for which `goes_before` holds.
    pub(super) fn insert_after(&mut self, thread: ThreadRef, goes_before: impl Fn(&Thread) -> bool) {
        let mut before = self.last;
        while let Some(candidate) = before
            && !goes_before(&candidate)
        {
            before = K::link(&candidate).before.get();
        }
        self.insert(thread, before);
    }

    /// Removes a thread from this list, in which it must be.
    pub(super) fn remove(&mut self, thread: ThreadRef) {
        let link = K::link(&thread);
        debug_assert!(link.linked.get());
        let (before, after) = (link.before.take(), link.after.take());
        link.linked.set(false);
        match before {
            Some(before) => K::link(&before).after.set(after),
            None => self.first = after,
        }
        match after {
            Some(after) => K::link(&after).before.set(before),
            None => self.last = before,
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<ThreadRef> {
        let first = self.first?;
        self.remove(first);
        Some(first)
    }
}
