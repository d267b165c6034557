//! What queue pairs and virtual interfaces have in common: their state, the lock for commands that
//! change it, their connection, and for how long the device uses their rings.
//!
//! Locks: `control` (sleeps; commands to the device).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nic_abi::admin::{QpState, Status};
use nic_hal::Lease;
use platform::sleep_lock::SleepGuard;
use platform::{Platform, SleepLock};

use crate::Error;
use crate::cm::ConnectionId;
use crate::qp_state::PostState;

/// What broke with a queue pair.
pub(crate) struct Breach {
    /// The connection that it had, if any.
    pub connection: Option<ConnectionId>,
}

/// See the module's documentation.
pub(crate) struct Common {
    context: u64,
    pub(crate) state: PostState,
    /// The device reported that the queue pair is in ERROR. Only a reset clears it. Changed with
    /// `control` held, so that the mark cannot get into the queue pair's next life.
    broken: AtomicBool,
    pub(crate) lease: Lease,
    control: SleepLock,
    /// Its connection's id plus one; 0 for none.
    connection: AtomicU64,
}

impl Common {
    /// Of a new queue pair, which is in RESET.
    pub(crate) fn new(context: u64, lease: Lease) -> Common {
        Common {
            context,
            state: PostState::new(),
            broken: AtomicBool::new(false),
            lease,
            control: SleepLock::default(),
            connection: AtomicU64::new(0),
        }
    }

    /// The context given at creation.
    #[inline]
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// The state to which the agent last moved the queue pair, or that an event reported.
    pub(crate) fn state(&self) -> QpState {
        if self.broken.load(Ordering::Acquire) {
            return QpState::Error;
        }
        self.state.get().unwrap_or(QpState::Reset)
    }

    /// Whether the queue pair was destroyed or the device is dead.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.is_gone()
    }

    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        self.connection.load(Ordering::Acquire).checked_sub(1).map(ConnectionId)
    }

    pub(crate) fn set_connection(&self, connection: Option<ConnectionId>) {
        self.connection.store(connection.map_or(0, |id| id.0.wrapping_add(1)), Ordering::Release);
    }

    /// Keeps other threads from changing the queue pair, also one that is gone.
    pub(crate) fn lock<'a>(&'a self, platform: &'a Arc<dyn Platform>) -> SleepGuard<'a> {
        self.control.lock(platform)
    }

    /// Why the device refused to change the queue pair.
    pub(crate) fn refusal(&self, error: nic_hal::Error) -> Error {
        match error {
            nic_hal::Error::Command(command) if command.status == Status::BadState => {
                Error::QpState(self.state())
            }
            other => other.into(),
        }
    }

    /// Records that the queue pair went to ERROR by itself. Returns what broke: as soon as the
    /// caller lets go of `control`, a consumer may reset the queue pair and connect it again, and
    /// the next connection did not break.
    pub(crate) fn set_broken(&self, _control: &SleepGuard<'_>) -> Breach {
        self.broken.store(true, Ordering::Release);
        self.state.broke();
        Breach { connection: self.connection() }
    }

    /// Whether the device reported that the queue pair went to ERROR by itself.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Records that a reset ended what the events before it reported, with `control` held.
    pub(crate) fn mend(&self) {
        self.broken.store(false, Ordering::Release);
    }
}
