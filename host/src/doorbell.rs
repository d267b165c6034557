//! Requests to the device's thread, and its wake-up.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the device is asked to do.
#[derive(Default)]
pub(crate) struct Requests {
    /// The NICs that were kicked since the device last checked.
    pub(crate) kicked: Vec<bool>,
    pub(crate) stop: bool,
    pub(crate) paused: bool,
    /// The device does not poll, because of `paused`.
    pub(crate) parked: bool,
}

/// Wakes a sleeping device.
#[derive(Default)]
pub(crate) struct Doorbell {
    requests: Mutex<Requests>,
    /// Notified after each change of the requests.
    pub(crate) changed: Condvar,
}

impl Doorbell {
    pub(crate) fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Requests)) {
        change(&mut self.requests());
        self.changed.notify_all();
    }

    pub(crate) fn ring(&self, nic: usize) {
        self.change(|requests| {
            if let Some(kicked) = requests.kicked.get_mut(nic) {
                *kicked = true;
            }
        });
    }
}
