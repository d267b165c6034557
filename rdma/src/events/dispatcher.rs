//! An event dispatcher: a queue of events, and who learns that it notifies. That is one of these:
//!
//! - threads that wait, and take the events themselves;
//! - a callback routine (`callback`);
//! - a notification object, which a task or a thread watches (`notifier`), or what the dispatcher
//!   feeds, such as an aggregate of IT-API. These two learn of it only while the dispatcher is
//!   enabled.
//!
//! [`Dispatcher::announce`] runs after an event was queued. After an event was taken only the phase
//! of the callback changes ([`Dispatcher::drained`]).
//!
//! Locks, outermost first: `control` (spins), then those of the queue. No code of the consumer runs
//! under them.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use platform::sync::Mutex;
use platform::{Instant, Platform, Signal};

use super::callback::Attached;
use super::notifier::Notifier;
use super::{Completions, closed};
use crate::error::TimedOut;
use crate::wait;

/// What a dispatcher takes events from.
pub trait Events {
    /// The queue of completions, if it has one of its own.
    fn completions(&self) -> Option<&Completions>;

    /// Whether the criteria of a notification are present: an entry that software made is queued,
    /// or a completion that notifies, or `threshold` completions (0: never by count).
    fn notified(&self, threshold: usize) -> bool;

    /// Whether no event is queued.
    fn is_empty(&self) -> bool;

    /// Has the next event announced. False if each event is announced anyway.
    fn arm(&self) -> bool;
}

/// Why a call does not do what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The dispatcher is closed.
    Gone,
    /// The dispatcher was closed while the thread waited.
    Closed,
    /// A callback routine is attached.
    Callback,
    /// The dispatcher notifies what it feeds, or its notification object.
    Elsewhere,
    /// Threads wait.
    Waiters,
    /// There is no notification object.
    NoNotifier,
    /// The time is over.
    TimedOut,
}

/// See the module's documentation. `Q` is where the events come from, `R` the callback routine, and
/// `F` what the dispatcher may feed.
pub struct Dispatcher<Q, R, F> {
    queue: Q,
    /// How many completions notify.
    threshold: AtomicUsize,
    enabled: AtomicBool,
    pub(super) control: Mutex<Control<R, F>>,
    callback_attached: AtomicBool,
    /// It feeds something or has a notification object.
    linked: AtomicBool,
    /// Only what it feeds may take the events.
    captive: AtomicBool,
    /// Raised when waiters should look again.
    signal: Signal,
}

pub(super) struct Control<R, F> {
    waiters: usize,
    /// The waiter, if there is one, waits for several events; no other may wait meanwhile.
    waits_for_several: bool,
    pub(super) callback: Option<Attached<R>>,
    /// A callback routine runs now. It may have been detached since it began.
    pub(super) running: bool,
    /// The serial number of the latest callback routine.
    serials: u64,
    feed: Option<F>,
    pub(super) notifier: Option<Notifier>,
    pub(super) gone: bool,
}

/// What is left to drop after a dispatcher was closed, for [`Dispatcher::end`].
pub struct Remains<R, F> {
    callback: Option<Attached<R>>,
    feed: Option<F>,
    notifier: Option<Notifier>,
}

/// Counts a thread among those that wait until it is dropped.
pub struct Waiter<'a, Q, R, F>(&'a Dispatcher<Q, R, F>);

impl<Q, R, F> Dispatcher<Q, R, F> {
    /// A dispatcher that is enabled, with a notification object or without.
    pub fn new(
        platform: Arc<dyn Platform>,
        queue: Q,
        threshold: usize,
        has_notifier: bool,
    ) -> Dispatcher<Q, R, F> {
        Dispatcher {
            queue,
            threshold: AtomicUsize::new(threshold),
            enabled: AtomicBool::new(true),
            control: Mutex::new(Control {
                waiters: 0,
                waits_for_several: false,
                callback: None,
                running: false,
                serials: 0,
                feed: None,
                notifier: has_notifier.then(Notifier::default),
                gone: false,
            }),
            callback_attached: AtomicBool::new(false),
            linked: AtomicBool::new(has_notifier),
            captive: AtomicBool::new(false),
            signal: Signal::new(platform),
        }
    }

    /// Where the events come from.
    #[inline(always)]
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// How many completions notify; 0: never by count.
    #[inline(always)]
    pub fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Acquire)
    }

    /// Changes [`Dispatcher::threshold`]. The caller then announces.
    pub fn set_threshold(&self, threshold: usize) {
        self.threshold.store(threshold, Ordering::Release);
    }

    /// Whether it runs its callback, and notifies what it feeds and its notification object.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Enables or disables it. The caller then announces.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Release);
    }

    /// Whether a callback is attached.
    #[inline(always)]
    pub fn has_callback(&self) -> bool {
        self.callback_attached.load(Ordering::Acquire)
    }

    /// Whether it feeds something or has a notification object.
    pub fn is_linked(&self) -> bool {
        self.linked.load(Ordering::Acquire)
    }

    pub(super) fn set_linked(&self, control: &Control<R, F>) {
        self.linked.store(control.feed.is_some() || control.notifier.is_some(), Ordering::Release);
    }

    /// Whether only what it feeds may take the events.
    pub fn is_captive(&self) -> bool {
        self.captive.load(Ordering::Acquire)
    }

    /// The number of threads that wait.
    pub fn waiters(&self) -> usize {
        self.control.lock().waiters
    }

    /// The result of `of` for what the dispatcher feeds.
    pub fn feed<T>(&self, of: impl FnOnce(&F) -> T) -> Option<T> {
        self.control.lock().feed.as_ref().map(of)
    }

    /// The signal that is raised when waiters should look again.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Wakes the threads that wait.
    pub fn wake(&self) {
        self.signal.raise();
    }

    /// Whether it notifies something, so that no thread may wait.
    fn notifies_elsewhere(&self, control: &Control<R, F>) -> bool {
        self.is_captive() || self.is_enabled() && (control.feed.is_some() || control.notifier.is_some())
    }

    /// Begins a wait, for `several` events or for one. Several threads may wait if each waits for
    /// one, and if one event ends a wait for the criteria (`criteria_share`).
    #[inline(always)]
    pub fn enter(
        &self,
        several: bool,
        criteria_share: impl FnOnce() -> bool,
    ) -> Result<Waiter<'_, Q, R, F>, Refused> {
        let mut control = self.control.lock();
        if control.gone {
            return Err(Refused::Gone);
        }
        if control.callback.is_some() {
            return Err(Refused::Callback);
        }
        if self.notifies_elsewhere(&control) {
            return Err(Refused::Elsewhere);
        }
        if control.waiters > 0 && (several || control.waits_for_several || !criteria_share()) {
            return Err(Refused::Waiters);
        }
        control.waiters += 1;
        control.waits_for_several = several;
        Ok(Waiter(self))
    }

    /// Why the waiters must return, if they must.
    fn waits_no_more(&self) -> Option<Refused> {
        let control = self.control.lock();
        match control.gone {
            true => Some(Refused::Closed),
            false => self.notifies_elsewhere(&control).then_some(Refused::Elsewhere),
        }
    }

    /// Ends a dispatcher that was closed: its waiters return. The caller holds no lock.
    pub fn end(&self, remains: Remains<R, F>) {
        drop((remains.callback, remains.feed));
        self.wake();
        if let Some(notifier) = remains.notifier {
            notifier.wake();
        }
    }
}

impl<Q: Events, R, F> Dispatcher<Q, R, F> {
    /// Adds or removes one of the reasons for which the CQ's slot is closed, if there is a CQ.
    pub fn set_closed(&self, reason: u32, closed: impl FnOnce() -> bool) {
        if let Some(queue) = self.queue.completions() {
            queue.set_closed(reason, closed);
        }
    }

    /// Whether the criteria of a notification are present.
    pub fn notified(&self) -> bool {
        self.queue.notified(self.threshold())
    }

    /// The same; arms the queue if they are not.
    pub fn watch(&self) -> bool {
        // An event that arrived before the queue was armed is not announced.
        self.notified() || self.queue.arm() && self.notified()
    }

    /// Called after an event was queued, and after a change that may make the criteria present:
    /// wakes the waiters, calls `run` if the callback is due, and wakes the task that watches the
    /// notification object. True if the caller has to notify what the dispatcher feeds.
    pub fn announce(&self, run: impl FnOnce()) -> bool {
        self.wake();
        if self.has_callback() && self.check_callback() {
            run();
        }
        let notifies = self.is_linked() && self.is_enabled() && self.watch();
        if notifies {
            self.wake_task();
        }
        notifies
    }

    /// Attaches a callback routine. The caller then calls [`Dispatcher::drained`].
    pub fn attach(&self, routine: R) -> Result<(), Refused> {
        let mut control = self.control.lock();
        if control.gone {
            return Err(Refused::Gone);
        }
        if control.callback.is_some() {
            return Err(Refused::Callback);
        }
        if control.waiters > 0 {
            return Err(Refused::Waiters);
        }
        if control.feed.is_some() || control.notifier.is_some() {
            return Err(Refused::Elsewhere);
        }
        control.serials += 1;
        control.callback = Some(Attached::new(routine, control.serials));
        self.set_callback(true);
        Ok(())
    }

    /// Detaches the callback routine, which may run on. False if there is none.
    pub fn detach(&self) -> bool {
        let former = {
            let mut control = self.control.lock();
            self.set_callback(false);
            control.callback.take()
        };
        former.is_some()
    }

    /// While a callback is attached, the CQ's slot is closed: dequeues take the slow path, which
    /// notices that the queue is drained. The caller holds the control lock.
    fn set_callback(&self, attached: bool) {
        self.callback_attached.store(attached, Ordering::Release);
        self.set_closed(closed::CALLBACK, || attached);
    }

    /// Replaces what the dispatcher feeds by what `change` returns for the former: the new one, and
    /// whether it alone may take the events. Fails if the dispatcher is closed. The caller drops
    /// the former, which is returned. `change` runs under the control lock.
    pub fn link(&self, change: impl FnOnce(Option<&F>) -> Option<(F, bool)>) -> Result<Option<F>, Refused> {
        let mut control = self.control.lock();
        if control.gone {
            return Err(Refused::Gone);
        }
        let new = change(control.feed.as_ref());
        Ok(self.set_feed(&mut control, new))
    }

    fn set_feed(&self, control: &mut Control<R, F>, new: Option<(F, bool)>) -> Option<F> {
        let captive = new.as_ref().is_some_and(|(_, captive)| *captive);
        let former = core::mem::replace(&mut control.feed, new.map(|(feed, _)| feed));
        self.set_linked(control);
        if self.captive.swap(captive, Ordering::AcqRel) != captive {
            self.set_closed(closed::CAPTIVE, || captive);
        }
        former
    }

    /// Closes the dispatcher: from now on no callback begins, and nothing can be attached. `may` is
    /// asked before, with whether a callback runs; `leave` is called with what the dispatcher
    /// feeds. Both run under the control lock, so a callback that has not begun cannot begin
    /// afterwards, and a close that fails changes nothing. The caller then calls
    /// [`Dispatcher::end`].
    pub fn close<E>(
        &self,
        may: impl FnOnce(bool) -> Result<(), E>,
        leave: impl FnOnce(&F),
    ) -> Result<Remains<R, F>, E> {
        let mut control = self.control.lock();
        may(control.running)?;
        control.gone = true;
        self.set_closed(closed::FREED, || true);
        control.feed.as_ref().map(leave);
        let (callback, notifier) = (control.callback.take(), control.notifier.take());
        self.callback_attached.store(false, Ordering::Release);
        Ok(Remains { callback, notifier, feed: self.set_feed(&mut control, None) })
    }
}

impl<Q: Events, R, F> Waiter<'_, Q, R, F> {
    /// Waits until `look` returns something, or the time is over. `look` is told whether the thread
    /// has slept. The queue is armed before the thread sleeps; before it sleeps again only if
    /// `arms_again`. The times are when the call began, and the deadline.
    pub fn wait<T, E: From<Refused>>(
        &self,
        times: (Instant, Option<Instant>),
        arms_again: bool,
        mut look: impl FnMut(bool) -> Option<Result<T, E>>,
    ) -> Result<T, E> {
        let dispatcher = self.0;
        let look = |slept| look(slept).or_else(|| Some(Err(dispatcher.waits_no_more()?.into())));
        let arm = |slept: bool| {
            if arms_again || !slept {
                dispatcher.queue.arm();
            }
        };
        wait::for_queue(&dispatcher.signal, times, look, arm)
            .unwrap_or_else(|TimedOut| Err(Refused::TimedOut.into()))
    }
}

impl<Q, R, F> Drop for Waiter<'_, Q, R, F> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.control.lock().waiters -= 1;
    }
}
