//! The notification object of a dispatcher: ready while the dispatcher is enabled and meets the
//! criteria of a notification. To look takes no event, so one loop can serve many dispatchers and
//! other sources.
//!
//! Wakers are called, cloned and dropped without locks, since all three run the consumer's code.

use core::task::Waker;

use super::dispatcher::{Dispatcher, Events, Refused};

#[derive(Default)]
pub(super) struct Notifier {
    /// The object was ready when the dispatcher was disabled, and remains ready until the criteria
    /// are absent.
    kept: bool,
    waker: Option<Waker>,
}

impl Notifier {
    /// Wakes the task that waits for an object that is no more.
    pub(super) fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

impl<Q, R, F> Dispatcher<Q, R, F> {
    /// Whether it has a notification object.
    pub fn has_notifier(&self) -> bool {
        self.control.lock().notifier.is_some()
    }

    /// Registers the waker of the task that waits for the notification object, in the place of the
    /// former one.
    pub fn set_task(&self, waker: Waker) {
        let former = match &mut self.control.lock().notifier {
            Some(notifier) => notifier.waker.replace(waker),
            None => None,
        };
        drop(former);
    }

    /// Wakes the task that waits for the notification object.
    pub fn wake_task(&self) {
        let waker = self.control.lock().notifier.as_mut().and_then(|notifier| notifier.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn keep_ready(&self, kept: bool) {
        if let Some(notifier) = &mut self.control.lock().notifier {
            notifier.kept = kept;
        }
    }

    /// Closes the notification object. Who waits for it looks once more.
    pub fn close_notifier(&self) -> Result<(), Refused> {
        let notifier = {
            let mut control = self.control.lock();
            if control.gone {
                return Err(Refused::Gone);
            }
            let notifier = control.notifier.take().ok_or(Refused::NoNotifier)?;
            self.set_linked(&control);
            notifier
        };
        self.wake();
        notifier.wake();
        Ok(())
    }
}

impl<Q: Events, R, F> Dispatcher<Q, R, F> {
    /// Whether the notification object is ready. If it is not, arms the queue, unless the
    /// dispatcher is disabled and the object can only cease to be ready.
    pub fn is_ready(&self) -> Result<bool, Refused> {
        let enabled = self.is_enabled();
        {
            let control = self.control.lock();
            if control.gone {
                return Err(Refused::Gone);
            }
            let notifier = control.notifier.as_ref().ok_or(Refused::NoNotifier)?;
            if !enabled && !notifier.kept {
                return Ok(false);
            }
        }
        let ready = self.watch();
        if !ready && !enabled {
            self.keep_ready(false);
        }
        Ok(ready)
    }

    /// Before the dispatcher is disabled: the object remains ready if it is ready now.
    pub fn keep_if_ready(&self) {
        self.keep_ready(self.notified());
    }
}
