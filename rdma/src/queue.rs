//! Completion queues: where requests of one endpoint or of many end.
//!
//! Each request ends in one of two ways, as its poster chose. A request that was *posted* has its
//! completion taken by [`Queue::poll`]. A request that was *started* has somebody who waits for it
//! ([`crate::Request`]): whoever takes its completion passes the outcome on.
//!
//! A thread that waits for a started request takes all completions that come before it. It stages
//! those of posted requests here, where a poll finds them. The stage is as large as the queue; when
//! it is full nothing is taken from the queue until somebody polls.
//!
//! The fast path of a poll looks at one thing, whether the queue's slot in the agent is open. The
//! slot is closed while completions are staged, which come before those in the queue, and while a
//! region waits for requests that end here.
//!
//! Locks: `stage` (spins), then the queue's slot in the agent. Tasks are woken without a lock.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::cell::Cell;
use core::future::poll_fn;
use core::hint::cold_path;
use core::task::Poll;
use core::time::Duration;

use kernel_agent::{Arm, Cq, CqSlot, SlotParams, Took};
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicUsize, Ordering};
use platform::{Instant, heap};

use crate::completion::{Completion, tag};
use crate::error::{CreateError, TimedOut};
use crate::nic::{Inner as NicInner, Nic, QueueHandle};
use crate::wait;
use crate::waiters::Waiters;
use crate::watch::Watch;

/// Why the slot is closed: completions are staged.
const STAGED: u32 = 1 << 1;
/// A region that ends waits for requests that end here.
const AWAITED: u32 = 1 << 2;

pub(crate) struct Inner {
    pub(crate) nic: Arc<NicInner>,
    handle: u64,
    cq: Arc<Cq>,
    slot: Arc<CqSlot>,
    stage: Mutex<VecDeque<Completion>>,
    /// How many completions are staged. Changes under the lock of the stage.
    staged: AtomicUsize,
    /// How many waits there are of regions that end, for requests that end here.
    awaited: AtomicUsize,
    /// The threads that wait until completions may have come, or outcomes were passed on, and the
    /// tasks that wait for completions of posted requests.
    waiters: Waiters,
    /// Threads that may sleep.
    threads: AtomicUsize,
    /// Tasks that wait, for either kind of request.
    tasks: AtomicUsize,
    pub(crate) watch: Watch,
}

/// A completion queue. A clone is the same queue. An endpoint that was built without one has one of
/// its own.
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<Owned>);

/// The consumer's part of a queue.
pub(crate) struct Owned {
    inner: Arc<Inner>,
    pub(crate) nic: Nic,
}

impl Owned {
    pub(crate) fn end(&self) -> Result<(), kernel_agent::Error> {
        self.inner.nic.queues.remove(QueueHandle::from_raw(self.inner.handle));
        self.inner.cq.destroy()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // No endpoint uses it: this fails only if the device is dead, or if it was closed before.
        let _ = self.end();
    }
}

impl Inner {
    fn new(nic: &Arc<NicInner>, entries: u32) -> Result<Arc<Inner>, CreateError> {
        let place = nic.queues.reserve()?;
        let handle = place.handle().as_raw();
        let slot: Arc<CqSlot> = Arc::default();
        let params = SlotParams { slot: &slot, handle, closed: 0 };
        let cq = nic.client()?.create_cq_in(entries.max(2), handle, params)?;
        let mut stage = VecDeque::new();
        let room = stage.try_reserve_exact(cq.entries() as usize).map_err(CreateError::from);
        if let Err(error) = room.and_then(|()| Ok(heap::room_for_arc::<(Inner, Weak<Inner>, Owned)>()?)) {
            let _ = cq.destroy();
            return Err(error);
        }
        let queue = Arc::new(Inner {
            nic: nic.clone(),
            handle,
            cq,
            slot,
            stage: Mutex::new(stage),
            staged: AtomicUsize::new(0),
            awaited: AtomicUsize::new(0),
            waiters: Waiters::new(nic.agent().platform()),
            threads: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            watch: Watch::new(),
        });
        place.fill(Arc::new(Arc::downgrade(&queue)));
        Ok(queue)
    }

    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Takes what has completed: passes outcomes on, and stages the other completions. May be
    /// called by any thread that holds no lock.
    pub(crate) fn drain(&self) {
        // The device may write as fast as this loop reads, so the loop is bounded.
        let mut came = false;
        for _ in 0..self.cq.entries() {
            let Some(started) = self.stage_until_started(&mut came) else { break };
            // Wakes a task, which is code of the executor's.
            self.nic.pass(&started);
            self.wake_threads();
        }
        if came {
            self.nic.dropped.wake_closers();
        }
        if self.staged.load(Ordering::Acquire) > 0 {
            self.wake_poller();
        }
    }

    /// Stages completions up to the next one of a started request, which is returned. Notes
    /// whether there were any.
    fn stage_until_started(&self, came: &mut bool) -> Option<Completion> {
        let mut stage = self.stage.lock();
        let mut started = None;
        // With a full stage nothing is taken until somebody polls.
        while stage.len() < self.cq.entries() as usize {
            let mut polling = self.cq.polling();
            let Some(taken) = polling.next() else { break };
            *came = true;
            let mut completion = Completion::of(&taken);
            if !completion.was_started() {
                // Under the slot's lock: no poll takes a newer completion before this one is
                // staged.
                polling.close(STAGED);
            }
            drop(polling);
            if completion.has_failed()
                && let Some(endpoint) = self.nic.endpoint(completion.endpoint)
            {
                endpoint.has_failed.store(true, Ordering::Release);
            }
            if let Some(header) = completion.header() {
                self.nic.take_header(&mut completion, (header, taken.detail));
            }
            if completion.was_started() {
                started = Some(completion);
                break;
            }
            stage.push_back(completion);
        }
        self.staged.store(stage.len(), Ordering::Release);
        started
    }

    /// A region begins to wait for requests that end here, or waits no more. When this returns, no
    /// poll takes completions without a look at the regions that wait.
    pub(crate) fn awaited(&self, begins: bool) {
        if begins {
            self.awaited.fetch_add(1, Ordering::SeqCst);
        } else {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        self.slot.set_closed(self.handle, AWAITED, || self.awaited.load(Ordering::SeqCst) > 0);
    }

    /// Completions may have come. In the dispatcher thread.
    ///
    /// A thread that was woken arms the queue again before it sleeps. A task does so only if it is
    /// woken, and what came may be of others: so the queue is armed for it here.
    pub(crate) fn announced(&self) {
        let is_watched = self.watch.wake();
        let waits = |count: &AtomicUsize| count.load(Ordering::SeqCst) > 0;
        if is_watched && !waits(&self.threads) && !waits(&self.tasks) {
            // Who watches polls, and what it takes needs no stage; who closes a region takes some,
            // too.
            self.nic.dropped.wake_closers();
            return;
        }
        self.drain();
        self.wake_threads();
        // Another thread may have taken what came.
        self.nic.dropped.wake_closers();
        if self.tasks.load(Ordering::SeqCst) > 0 {
            self.arm();
            // What came before the queue was armed is not announced.
            self.drain();
        }
    }

    /// A task begins to wait. To be called before the queue is armed for it.
    pub(crate) fn task_waits(&self) {
        self.tasks.fetch_add(1, Ordering::SeqCst);
    }

    /// A task waits no more.
    pub(crate) fn task_is_woken(&self) {
        self.tasks.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all who wait.
    pub(crate) fn wake_all(&self) {
        self.waiters.signal().raise();
        self.wake_poller();
        self.watch.wake();
    }

    pub(crate) fn wake_threads(&self) {
        if self.threads.load(Ordering::SeqCst) > 0 {
            self.waiters.signal().raise();
        }
    }

    fn wake_poller(&self) {
        self.waiters.wake_tasks(|woken| _ = self.tasks.fetch_sub(woken, Ordering::SeqCst));
    }

    /// Has the next completion announced.
    pub(crate) fn arm(&self) {
        self.cq.arm(Arm::Next);
    }

    /// Waits until `look` returns something, which it looks for after each change of the queue.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let signal = self.waiters.signal();
        let begun = signal.platform().now();
        self.threads.fetch_add(1, Ordering::SeqCst);
        let outcome = wait::for_queue(signal, (begun, deadline), |_| look(), |_| self.arm());
        self.threads.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// Whether a poll would find something.
    fn has_completion(&self) -> bool {
        self.drain();
        self.staged.load(Ordering::Acquire) > 0 || self.nic.is_dead() || self.has_failed()
    }

    /// The same, without taking anything from the queue.
    pub(crate) fn holds_something(&self) -> bool {
        let is_staged = self.staged.load(Ordering::Acquire) > 0;
        is_staged || self.cq.has_completion() || self.nic.is_dead() || self.has_failed()
    }

    /// Waits until the failures are noted whose completions were taken before.
    pub(crate) fn settle(&self) {
        drop(self.stage.lock());
    }

    /// Whether it overflowed or failed in the device: nothing completes there any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.cq.failed()
    }

    /// As [`Queue::poll`], for other than one completion.
    #[inline(never)]
    fn poll_several(&self, into: &mut [Completion]) -> usize {
        let tags = Cell::new(0);
        let put = |place: &mut Completion, done| {
            place.put(&done);
            tags.set(tags.get() | place.tag);
        };
        let (count, more) = self.slot.take_n_without_immediate(self.handle, into, put);
        // Who polls without places wants what else a poll does.
        let is_last = !more || count > 0 && count == into.len();
        if is_last && tags.get() & tag::STARTED == 0 { count } else { self.poll_on(into, count) }
    }

    /// Goes on after the first `count` completions were taken by the fast path. What that leaves is
    /// taken here, but for failures and datagrams.
    #[cold]
    #[inline(never)]
    fn poll_on(&self, into: &mut [Completion], count: usize) -> usize {
        let mut kept = self.sort(&mut into[..count]);
        let (came, more) = self.slot.take_successes(self.handle, &mut into[kept..], Completion::of);
        kept += self.sort(&mut into[kept..kept + came]);
        let goes_on = more && (kept < into.len() || into.is_empty());
        if goes_on { kept + self.poll_slowly(&mut into[kept..]) } else { kept }
    }

    /// Takes staged completions first, then those of the queue.
    #[cold]
    #[inline(never)]
    fn poll_slowly(&self, into: &mut [Completion]) -> usize {
        self.drain();
        let (count, was_full) = {
            let mut stage = self.stage.lock();
            let was_full = stage.len() >= self.cq.entries() as usize;
            let count = stage.len().min(into.len());
            for (place, completion) in into.iter_mut().zip(stage.drain(..count)) {
                *place = completion;
            }
            self.staged.store(stage.len(), Ordering::Release);
            if count > 0 && stage.is_empty() {
                self.slot.set_closed(self.handle, STAGED, || false);
            }
            (count, was_full)
        };
        if was_full {
            // Completions of started requests may wait behind those that filled it.
            self.drain();
        }
        if !self.nic.dropped.is_empty() {
            self.nic.dropped.sweep(self.nic.agent());
        }
        count
    }

    /// Passes the outcomes of started requests on, and moves the other completions together.
    fn sort(&self, taken: &mut [Completion]) -> usize {
        let (mut kept, mut passed) = (0, false);
        for at in 0..taken.len() {
            let completion = taken[at];
            if completion.was_started() {
                self.nic.pass(&completion);
                passed = true;
            } else {
                taken[kept] = completion;
                kept += 1;
            }
        }
        if passed {
            self.wake_threads();
        }
        kept
    }
}

impl Queue {
    /// Takes the oldest completions of posted requests, as many as have come and `into` has room
    /// for; returns how many. Gives the memory of dropped regions back whose last requests have
    /// ended here, for which it asks the device; else it does not block.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> usize {
        let queue = &**self.inner();
        let [place] = into else { return queue.poll_several(into) };
        let put = |done| {
            place.put(&done);
            place.was_started()
        };
        match queue.slot.take_plain(queue.handle, put) {
            Took::Nothing => 0,
            Took::Done(false) => 1,
            Took::Done(true) => {
                cold_path();
                queue.poll_on(into, 1)
            }
            Took::Other => queue.poll_on(into, 0),
        }
    }

    /// Blocks until a poll would find a completion, the queue has failed, the device is dead, or
    /// the time is over.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), TimedOut> {
        let queue = self.inner();
        let deadline = queue.nic.deadline(timeout);
        queue.wait_for(deadline, || queue.has_completion().then_some(()))
    }

    /// Waits until a poll would find a completion, the queue has failed, or the device is dead.
    pub async fn ready(&self) {
        let queue = self.inner();
        poll_fn(|context| {
            if queue.has_completion() {
                return Poll::Ready(());
            }
            queue.task_waits();
            if !queue.waiters.add(context.waker().clone()) {
                queue.task_is_woken();
            }
            queue.arm();
            // What came before the queue was armed is not announced.
            if queue.has_completion() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(crate) fn create(nic: &Nic, entries: u32) -> Result<Queue, CreateError> {
        let inner = Inner::new(nic.inner(), entries)?;
        Ok(Queue(Arc::new(Owned { inner, nic: nic.clone() })))
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// The opening of the NIC.
    pub fn nic(&self) -> &Nic {
        &self.0.nic
    }

    /// Whether the queue has overflowed, or failed in the device: its endpoints are disconnected,
    /// and nothing completes there any more.
    pub fn has_failed(&self) -> bool {
        self.inner().has_failed()
    }
}
