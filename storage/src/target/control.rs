//! What other threads may do with a target while it runs.
//!
//! The target's thread owns all, so it is asked: a caller queues what is to be done, and sleeps
//! until the thread has done it between two rounds. Few calls may wait, and each is short.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use nvme::log::AnaState;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, Ordering};
use platform::{Platform, Signal};

use super::auth::Host;
use super::config::{Export, SubsystemConfig};
use super::info::Overview;
use super::metrics::Metrics;
use super::server::Target;
use super::statistics::{Snapshot, Statistics};
use crate::Error;
use crate::attention::Attention;

/// Calls that may wait for the target's thread.
const MOST_CALLS: usize = 16;

/// Why a target does not do what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The target has ended.
    Ended,
    /// Too many threads ask for something at once.
    Busy,
    /// There is no such namespace.
    NoNamespace,
    /// All namespaces that there may be exist, or all subsystems.
    NoPlace,
    /// A namespace has this UUID.
    UuidInUse,
    /// The disk cannot be exported: why.
    Disk(Error),
    /// Hosts were told that no disk has a volatile cache ([`Config::grows`](super::Config::grows)).
    Cache,
    /// The disk takes less at once than hosts were told.
    Transfer,
    /// No host of this name is connected.
    NoHost,
    /// The CPU makes no random numbers fit for keys, so that no host can authenticate.
    NoRandom,
    /// The target has no such port.
    NoPort,
    /// The target has no such subsystem.
    NoSubsystem,
    /// A subsystem has this name.
    NqnInUse,
    /// The subsystem has namespaces, or is the first one.
    SubsystemInUse,
    /// What the subsystem is to be is wrong: why.
    Subsystem(Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Ended => "the target has ended",
            Refusal::Busy => "too many calls at once",
            Refusal::NoNamespace => "there is no such namespace",
            Refusal::NoPlace => "there are as many already as there may be",
            Refusal::UuidInUse => "another namespace has this UUID",
            Refusal::Disk(error) | Refusal::Subsystem(error) => return error.fmt(f),
            Refusal::Cache => "the disk has a volatile cache, and hosts were told that no disk has one",
            Refusal::Transfer => "the disk takes less at once than hosts were told",
            Refusal::NoHost => "no such host is connected",
            Refusal::NoRandom => "the CPU makes no random numbers fit for keys",
            Refusal::NoPort => "the target has no such port",
            Refusal::NoSubsystem => "the target has no such subsystem",
            Refusal::NqnInUse => "another subsystem has this name",
            Refusal::SubsystemInUse => "the subsystem has namespaces, or is the first one, which stays",
        })
    }
}

impl core::error::Error for Refusal {}

/// Something for the target's thread to do.
pub(super) type Call = Box<dyn FnOnce(&mut Target) + Send>;

/// What other threads share with the target's.
pub(super) struct Shared {
    pub(super) attention: Arc<Attention>,
    stops: AtomicBool,
    pub(super) statistics: Statistics,
    /// There may be messages or calls.
    has_calls: AtomicBool,
    /// What other threads of the target have sent; `None` once this one has ended.
    messages: Mutex<Option<VecDeque<Call>>>,
    /// What waits; `None` once the target has ended.
    calls: Mutex<Option<VecDeque<Call>>>,
}

impl Shared {
    pub(super) fn new(attention: Arc<Attention>) -> Shared {
        Shared {
            attention,
            stops: AtomicBool::new(false),
            statistics: Statistics::default(),
            has_calls: AtomicBool::new(false),
            messages: Mutex::new(Some(VecDeque::new())),
            calls: Mutex::new(Some(VecDeque::with_capacity(MOST_CALLS))),
        }
    }

    pub(super) fn is_to_stop(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Makes the thread end.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.attention.signal.raise();
    }

    /// Leaves a message for the thread. False if that has ended.
    pub(super) fn send(&self, message: Call) -> bool {
        // One that is not taken is dropped behind the lock, since that wakes its sender.
        let refused = match &mut *self.messages.lock() {
            Some(messages) => {
                messages.push_back(message);
                None
            }
            None => Some(message),
        };
        if refused.is_some() {
            return false;
        }
        self.has_calls.store(true, Ordering::Release);
        self.attention.signal.raise();
        true
    }

    /// The next message.
    pub(super) fn take_message(&self) -> Option<Call> {
        self.messages.lock().as_mut().and_then(VecDeque::pop_front)
    }

    /// Whether the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.messages.lock().is_none()
    }

    /// Takes no messages from now on.
    fn end(&self) {
        // Outside of the lock, since it wakes the senders.
        let messages = self.messages.lock().take();
        drop(messages);
    }

    pub(super) fn has_calls(&self) -> bool {
        self.has_calls.load(Ordering::Acquire)
    }

    /// The next call.
    pub(super) fn take_call(&self) -> Option<Call> {
        let mut calls = self.calls.lock();
        let call = calls.as_mut().and_then(VecDeque::pop_front);
        if call.is_none() {
            self.has_calls.store(false, Ordering::Release);
        }
        call
    }

    /// No call is carried out from now on.
    pub(super) fn close(&self) {
        // Outside of the lock, since it wakes the callers.
        let calls = self.calls.lock().take();
        drop(calls);
    }
}

/// Closes what is shared at the end of a thread, also of one that never ran: its callers would wait
/// for ever. The manager's end is that of the workers.
pub(super) struct Closing {
    pub(super) own: Arc<Shared>,
    pub(super) workers: Vec<Arc<Shared>>,
    /// A worker's manager, which waits for its end.
    pub(super) manager: Option<Arc<Shared>>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.own.close();
        self.own.end();
        self.workers.iter().for_each(|worker| worker.stop());
        self.manager.iter().for_each(|manager| manager.attention.signal.raise());
    }
}

/// Where the target's thread puts what a caller waits for.
struct Slot<T> {
    answer: Mutex<Option<Result<T, Refusal>>>,
    signal: Signal,
}

/// Answers the caller when it is dropped at the latest.
struct Answerer<T>(Arc<Slot<T>>);

impl<T> Answerer<T> {
    fn put(&self, answer: Result<T, Refusal>) {
        self.0.answer.lock().get_or_insert(answer);
        self.0.signal.raise();
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        self.put(Err(Refusal::Ended));
    }
}

/// Looks at a target from another thread, changes what it serves, and stops it.
///
/// The calls that return a [`Refusal`] block until the target's thread has carried them out, which
/// it does between two commands; the thread of [`Target::run`] must not make them.
#[derive(Clone)]
pub struct Control {
    pub(super) shared: Arc<Shared>,
    /// What all threads share, the one that is called first.
    pub(super) all: Arc<[Arc<Shared>]>,
    pub(super) platform: Arc<dyn Platform>,
}

impl Control {
    /// Makes [`Target::run`] disconnect all hosts, after the commands that they have outstanding,
    /// and return. That takes 5 seconds at most, whatever hosts and disks do.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// The target's counters.
    pub fn statistics(&self) -> Snapshot {
        let of_threads = self.all.iter().map(|thread| thread.statistics.snapshot());
        of_threads.fold(Snapshot::default(), |sum, one| sum.plus(&one))
    }

    /// Replaces [`Config::hosts`](super::Config::hosts). Hosts that are connected stay so, and see
    /// what they saw; they need their new keys when they authenticate again. Hosts that are neither
    /// among these nor in [`Config::allowed`](super::Config::allowed) are refused from then on, even
    /// if there are none here.
    ///
    /// Fails with [`Refusal::NoRandom`] if one has a key and the target makes no random numbers fit
    /// for keys, and changes nothing.
    pub fn set_hosts(&self, hosts: Vec<Host>) -> Result<(), Refusal> {
        self.call(move |target| target.set_hosts(hosts))
    }

    /// What the target does, its namespaces and its hosts.
    pub fn overview(&self) -> Result<Overview, Refusal> {
        self.call(|target| Ok(target.overview()))
    }

    /// All figures.
    pub fn metrics(&self) -> Result<Metrics, Refusal> {
        self.call(|target| Ok(target.metrics()))
    }

    /// Exports one more disk, and tells the hosts. Returns the namespace's identifier: one that no
    /// namespace has had, while there is such a one.
    ///
    /// The calling thread makes the namespace's memory ([`Config::memory`](super::Config::memory)).
    pub fn add(&self, export: Export) -> Result<u32, Refusal> {
        let (domains, privileged, config) =
            self.call(|target| Ok((target.domains(), target.privileged, target.config.clone())))?;
        let made = super::manage::namespaces(&domains, privileged, &config, &export, self.all.len());
        let (namespaces, transfer) = made.map_err(Refusal::Disk)?;
        let subsystem = export.subsystem;
        self.call(move |target| target.add(namespaces, transfer, subsystem.as_deref()))
    }

    /// Adds a subsystem without namespaces, and tells the hosts of the discovery service that may
    /// use it.
    pub fn add_subsystem(&self, subsystem: SubsystemConfig) -> Result<(), Refusal> {
        subsystem.check().map_err(Refusal::Subsystem)?;
        self.call(move |target| target.add_subsystem(&subsystem))
    }

    /// Removes a subsystem that has no namespaces any more, and disconnects its hosts. The first
    /// one stays.
    pub fn remove_subsystem(&self, nqn: impl Into<String>) -> Result<(), Refusal> {
        let nqn = nqn.into();
        self.call(move |target| target.remove_subsystem(&nqn))
    }

    /// From now on only these hosts may use a subsystem other than the first one, or those that may
    /// use that one. Hosts that are connected stay so.
    pub fn set_subsystem_hosts(
        &self,
        nqn: impl Into<String>,
        hosts: Option<Vec<String>>,
    ) -> Result<(), Refusal> {
        let nqn = nqn.into();
        self.call(move |target| target.set_subsystem_hosts(&nqn, hosts))
    }

    /// Removes a namespace, and tells the hosts. It takes no commands from now on. Its disk and its
    /// memory are released when the last command that it has ends: until then
    /// [`Control::overview`] shows it as leaving.
    pub fn remove(&self, nsid: u32) -> Result<(), Refusal> {
        self.call(move |target| target.remove(nsid))
    }

    /// Sets how well hosts reach a namespace by a port of this target, or by all of them; without
    /// `nsid`, all namespaces and those that come later. Hosts hear of it by an event. Commands
    /// that a host may not send by this path get a status by which it tries another one; when this
    /// returns, no such command goes to a disk any more. Commands that a disk has are carried out.
    pub fn set_ana_state(
        &self,
        port: Option<u16>,
        nsid: Option<u32>,
        state: AnaState,
    ) -> Result<(), Refusal> {
        self.call(move |target| target.set_ana_state(port, nsid, state))
    }

    /// Disconnects a host: all its controllers. Returns how many there were. The host may come
    /// again.
    pub fn disconnect(&self, nqn: impl Into<String>) -> Result<usize, Refusal> {
        let nqn = nqn.into();
        self.call(move |target| target.disconnect_host(&nqn))
    }

    /// Takes no more connections and no more commands, and disconnects all hosts after the commands
    /// that they have outstanding, or after 2 seconds.
    pub fn drain(&self) -> Result<(), Refusal> {
        self.call(|target| {
            target.begin_drain();
            Ok(())
        })
    }

    /// Takes connections again after [`Control::drain`].
    pub fn resume(&self) -> Result<(), Refusal> {
        self.call(|target| {
            target.end_drain();
            Ok(())
        })
    }

    /// Has the target's thread do something.
    fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Target) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let slot = Arc::new(Slot { answer: Mutex::new(None), signal: Signal::new(self.platform.clone()) });
        let answerer = Answerer(slot.clone());
        let call: Call = Box::new(move |target| answerer.put(act(target)));
        {
            let mut calls = self.shared.calls.lock();
            let calls = calls.as_mut().ok_or(Refusal::Ended)?;
            if calls.len() >= MOST_CALLS {
                return Err(Refusal::Busy);
            }
            calls.push_back(call);
        }
        self.shared.has_calls.store(true, Ordering::Release);
        self.shared.attention.signal.raise();
        loop {
            let seen = slot.signal.value();
            if let Some(answer) = slot.answer.lock().take() {
                return answer;
            }
            slot.signal.wait(seen, None);
        }
    }
}
