//! What the threads of a run share.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::storage::target::Control;
use block::simulated::SimulatedDisk;
use platform::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use platform::{Instant, Platform, Signal};

use super::history::History;
use super::plan::Plan;
use super::sharer::Common;
use crate::harness::Adapters;
use crate::harness::wrong::{Must, Step, Wrong};

/// How long anything may take: a stall of a disk, the end of a connection whose host has vanished,
/// and the end of the target come first.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that takes a while.
const PAUSE: Duration = Duration::from_millis(1);

/// A disk, and what goes wrong with it.
pub(super) struct Faulty {
    pub(super) disk: Arc<SimulatedDisk>,
    /// Requests for it may fail.
    fails: AtomicBool,
    /// How often that has ended.
    ended: AtomicU32,
    /// It was removed.
    pub(super) is_gone: AtomicBool,
}

impl Faulty {
    pub(super) fn new(disk: SimulatedDisk) -> Faulty {
        Faulty {
            disk: Arc::new(disk),
            fails: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Requests may fail from now on.
    pub(super) fn begin(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    /// No request fails that is sent from now on.
    pub(super) fn end(&self) {
        self.disk.repair();
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.fails.store(false, Ordering::SeqCst);
    }

    /// What [`Faulty::may_fail`] needs to know of the time when a request was sent.
    pub(super) fn now(&self) -> u32 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether a request may have failed that was sent at that time.
    pub(super) fn may_fail(&self, sent: u32) -> bool {
        self.fails.load(Ordering::SeqCst) || self.now() != sent
    }
}

/// What a host may see: a bit for each of the first namespaces, by its identifier, and bit 0 for
/// those that come later.
pub(super) type View = u64;

/// What hosts know of the disk that is a guest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guest {
    /// The identifier of its namespace, from the time when it had been added to the time when it is
    /// about to be removed.
    pub(super) nsid: Option<u32>,
    /// The last identifier that it had.
    pub(super) last: Option<u32>,
    /// It has been removed, or was never there: commands are refused.
    pub(super) is_gone: bool,
}

/// An address and a port.
pub(super) type Place = (IpAddr, u16);

/// What the threads of a run share.
pub(super) struct Shared {
    pub(super) adapters: Adapters,
    pub(super) plan: Plan,
    pub(super) disks: Vec<Faulty>,
    /// The namespace that some hosts share.
    pub(super) common: Option<Arc<Common>>,
    /// The blocks of each disk.
    pub(super) sizes: Vec<Mutex<History<u64>>>,
    /// What each host sees.
    pub(super) views: Mutex<History<Vec<View>>>,
    guest: Mutex<Guest>,
    /// The target ends: connections break, and none are made any more.
    is_closing: AtomicBool,
    /// The targets that run, and the addresses of all, by target and port.
    targets: Mutex<(Vec<Control>, Vec<Place>)>,
    /// The second port has died.
    port_is_dead: AtomicBool,
    /// How often hosts were silent for longer than their keep-alive timeouts.
    pub(super) silences: AtomicU32,
    /// Raised when a host's thread is over.
    pub(super) over: Arc<Signal>,
}

impl Shared {
    pub(super) fn new(
        adapters: Adapters,
        plan: Plan,
        disks: Vec<Faulty>,
        common: Option<Arc<Common>>,
    ) -> Shared {
        let over = Arc::new(Signal::new(adapters.platform.clone()));
        let now = adapters.platform.now();
        let sizes = plan.disks.iter().map(|disk| Mutex::new(History::new(now, disk.blocks))).collect();
        let views = Mutex::new(History::new(now, vec![View::MAX; plan.hosts.len()]));
        Shared {
            adapters,
            plan,
            disks,
            common,
            sizes,
            views,
            guest: Mutex::new(Guest { is_gone: true, ..Guest::default() }),
            is_closing: AtomicBool::new(false),
            targets: Mutex::new((Vec::new(), Vec::new())),
            port_is_dead: AtomicBool::new(false),
            silences: AtomicU32::new(0),
            over,
        }
    }

    /// These targets run.
    pub(super) fn open(&self, targets: Vec<Control>, places: Vec<Place>) {
        self.silences.store(0, Ordering::SeqCst);
        self.sizes.iter().for_each(|size| locked(size).forget());
        locked(&self.views).forget();
        self.set_guest(Guest { is_gone: true, ..Guest::default() });
        *locked(&self.targets) = (targets, places);
        self.is_closing.store(false, Ordering::SeqCst);
    }

    pub(super) fn guest(&self) -> Guest {
        *locked(&self.guest)
    }

    pub(super) fn set_guest(&self, guest: Guest) {
        *locked(&self.guest) = guest;
    }

    /// The target will end.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// An address by its number.
    pub(super) fn place(&self, number: usize) -> Step<Place> {
        locked(&self.targets).1.get(number).copied().ok_or(Wrong("there is no target".into()))
    }

    /// The second port dies.
    pub(super) fn port_dies(&self) {
        // Before its connections break.
        self.port_is_dead.store(true, Ordering::SeqCst);
        self.adapters.close(2);
    }

    /// Whether the port of an address has died.
    pub(super) fn is_dead(&self, number: usize) -> bool {
        number == 1 && self.port_is_dead.load(Ordering::SeqCst)
    }

    /// The queues that are connected to any target.
    pub(super) fn connections(&self) -> Step<u64> {
        let targets = locked(&self.targets).0.clone();
        Ok(targets.iter().map(|control| control.statistics().connections).sum())
    }

    pub(super) fn now(&self) -> Instant {
        self.adapters.platform.now()
    }

    /// Sleeps.
    pub(super) fn sleep(&self, time: Duration) {
        let platform = &self.adapters.platform;
        platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + time));
    }

    /// Waits until something holds. False if it does not in [`PATIENCE`].
    pub(super) fn wait_until(&self, mut holds: impl FnMut() -> Step<bool>) -> Step<bool> {
        let deadline = self.now() + PATIENCE;
        while !holds()? {
            if self.now() >= deadline {
                return Ok(false);
            }
            self.sleep(PAUSE);
        }
        Ok(true)
    }
}

/// What a lock guards. No call of the platform is made meanwhile: another thread could run.
pub(super) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread with a result.
pub(super) struct Running<T> {
    result: Arc<Mutex<Option<T>>>,
    ended: Arc<Signal>,
}

impl<T: Send + 'static> Running<T> {
    /// Runs `body` in a thread. Raises `over` at its end.
    pub(super) fn spawn(
        platform: &Arc<dyn Platform>,
        name: &str,
        over: &Arc<Signal>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Step<Running<T>> {
        let running =
            Running { result: Arc::new(Mutex::new(None)), ended: Arc::new(Signal::new(platform.clone())) };
        let (result, ended, over) = (running.result.clone(), running.ended.clone(), over.clone());
        let body = move || {
            let done = body();
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            drop(result);
            ended.raise();
            over.raise();
        };
        platform.spawn(name, Box::new(body)).must("a thread")?;
        Ok(running)
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.ended.value() != 0
    }

    /// Waits for its end.
    pub(super) fn join(self) -> Step<T> {
        while !self.is_over() {
            self.ended.wait(0, None);
        }
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.ok_or(Wrong("a thread has no result".into()))
    }
}
