//! Consumer notification objects (dat_cno_create, dat_cno_modify_agent, dat_cno_wait,
//! dat_cno_query, dat_cno_free).
//!
//! An event dispatcher triggers its CNO when a notification event comes, and not again until the
//! consumer has taken all of its events. The CNO remembers each event dispatcher that triggered it
//! until a waiter takes the trigger, so waiters miss none.
//!
//! Locks: `state` (spins, leaf). The agent runs without it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::time::Duration;

use platform::Signal;
use platform::sync::Mutex;
use platform::sync::atomic::Ordering;
use rdma::{Context, wait};

use crate::attr::CnoParam;
use crate::error::{handle, state};
use crate::evd::Evd;
use crate::flags::{CnoProxyType, TIMEOUT_INFINITE};
use crate::handle::{CnoHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::ret::{Error, ErrorType, Result, Subtype};

/// An agent: a routine that runs once, when the CNO is triggered while no thread waits on it. Its
/// arguments are the IA and the event dispatcher. [`Ia::cno_modify_agent`] sets the agent for the
/// next trigger.
///
/// It runs in a thread of the stack, where calls that may wait fail with `InvalidState`. But if
/// events are queued when [`Ia::evd_wait`] ends or when [`Ia::evd_modify_cno`] sets the CNO, the
/// agent runs inside that call.
#[doc(alias = "DAT_AGENT_FUNC")]
#[doc(alias = "DAT_OS_WAIT_PROXY_AGENT")]
pub type Agent = Box<dyn FnOnce(&Ia, EvdHandle) + Send>;

pub(crate) struct Cno {
    pub(crate) handle: CnoHandle,
    state: Mutex<State>,
    signal: Signal,
    ia: Weak<Inner>,
    pub(crate) context: Context,
}

struct State {
    /// The event dispatchers that triggered, oldest first. Its capacity is that of `evds`, so a
    /// trigger never allocates.
    triggered: VecDeque<EvdHandle>,
    /// The words of the event dispatchers that have this CNO, in order.
    evds: Vec<u64>,
    waiters: usize,
    agent: Option<Agent>,
    /// The error that every wait returns, once the CNO is freed, or its IA closed or disabled.
    ended: Option<Error>,
}

impl State {
    fn leave(&mut self, evd: EvdHandle) {
        if let Ok(place) = self.evds.binary_search(&evd.as_raw()) {
            self.evds.remove(place);
        }
        self.triggered.retain(|triggered| *triggered != evd);
    }
}

/// The error of a wait during which the CNO was freed or its IA closed.
pub(crate) const FREED: Error = Error::new(ErrorType::InvalidState, Subtype::InvalidStateCnoDead);

impl Cno {
    /// Lets one more event dispatcher trigger the CNO. An event dispatcher whose CNO is replaced by
    /// the same CNO joins a second time before it leaves once.
    pub(crate) fn join(&self, evd: EvdHandle) -> Result<()> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return Err(handle(Subtype::InvalidHandleCno));
        }
        let members = state.evds.len() + 1;
        let more = members.saturating_sub(state.triggered.len());
        state.triggered.try_reserve(more)?;
        state.evds.try_reserve(1)?;
        let place = state.evds.partition_point(|word| *word < evd.as_raw());
        state.evds.insert(place, evd.as_raw());
        Ok(())
    }

    /// Undoes [`Cno::join`], and forgets a trigger of the event dispatcher.
    pub(crate) fn leave(&self, evd: EvdHandle) {
        self.state.lock().leave(evd);
    }

    /// Wakes a waiter for an event dispatcher, or runs the agent. Does nothing if the event
    /// dispatcher has left the CNO: its callback may have begun earlier.
    pub(crate) fn trigger(&self, evd: EvdHandle) {
        let inner = self.ia.upgrade();
        let found = inner.as_ref().and_then(|inner| inner.evds.get(evd));
        let agent = {
            let mut state = self.state.lock();
            if state.ended.is_some() || state.evds.binary_search(&evd.as_raw()).is_err() {
                return;
            }
            let agent = if state.waiters == 0 { state.agent.take() } else { None };
            match agent {
                None if state.triggered.contains(&evd) => return,
                None => {
                    state.triggered.push_back(evd);
                    None
                }
                agent => {
                    if let Some(found) = &found {
                        found.agents.fetch_add(1, Ordering::Relaxed);
                    }
                    agent
                }
            }
        };
        let Some(agent) = agent else { return self.signal.raise() };
        if let Some(ia) = inner.and_then(|inner| inner.ia()) {
            agent(&ia, evd);
        }
        if let Some(found) = found {
            found.agents.fetch_sub(1, Ordering::Release);
        }
    }

    /// If no agent runs for the event dispatcher, removes it from the CNO, so that no agent begins,
    /// and returns true.
    pub(crate) fn leave_unless_busy(&self, evd: &Evd) -> bool {
        let mut state = self.state.lock();
        let idle = evd.agents.load(Ordering::Acquire) == 0;
        if idle {
            state.leave(evd.handle);
        }
        idle
    }

    /// Ends all waits with this error.
    pub(crate) fn end(&self, error: Error) {
        let left = {
            let mut state = self.state.lock();
            state.ended = Some(error);
            state.triggered.clear();
            state.agent.take()
        };
        self.signal.raise();
        drop(left);
    }

    fn wait(&self, timeout: u32) -> Result<EvdHandle> {
        let length = (timeout != TIMEOUT_INFINITE).then(|| Duration::from_micros(timeout.into()));
        let deadline = wait::deadline(&**self.signal.platform(), length);
        self.state.lock().waiters += 1;
        let outcome = wait::until(&self.signal, deadline, || {
            let mut state = self.state.lock();
            state.ended.map(Err).or_else(|| state.triggered.pop_front().map(Ok))
        });
        self.state.lock().waiters -= 1;
        outcome.unwrap_or(Err(ErrorType::QueueEmpty.into()))
    }
}

impl Ia {
    /// Creates a CNO, with an agent or without.
    ///
    /// Errors: `InsufficientResources`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_cno_create.
    #[doc(alias = "dat_cno_create")]
    pub fn cno_create(&self, agent: Option<Agent>) -> Result<CnoHandle> {
        let inner = &self.inner;
        inner.live()?;
        let reservation = inner.cnos.reserve()?;
        let state = State { triggered: VecDeque::new(), evds: Vec::new(), waiters: 0, agent, ended: None };
        let cno = Inner::shared(Cno {
            handle: reservation.handle(),
            state: Mutex::new(state),
            signal: Signal::new(inner.platform().clone()),
            ia: inner.weak(),
            context: Context::new(),
        })?;
        Ok(reservation.fill(cno))
    }

    /// Replaces the agent; `None` for none.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls, of the CNO's own agent
    /// too. Thread-safe. dat_cno_modify_agent.
    #[doc(alias = "dat_cno_modify_agent")]
    pub fn cno_modify_agent(&self, cno: CnoHandle, agent: Option<Agent>) -> Result<()> {
        let cno = self.inner.cno(cno)?;
        let former = core::mem::replace(&mut cno.state.lock().agent, agent);
        drop(former);
        Ok(())
    }

    /// Waits until an event dispatcher triggers the CNO, and returns its handle. The handle is a
    /// hint: other threads may have taken the events already.
    ///
    /// The consumer then takes all events of that event dispatcher: only an event that comes after
    /// the queue was empty triggers the CNO again. `timeout` is in microseconds; 0 only checks
    /// once, [`TIMEOUT_INFINITE`](crate::TIMEOUT_INFINITE) sets no limit. A trigger wakes one of
    /// several waiters.
    ///
    /// Errors: `InvalidHandle`, `QueueEmpty` (nothing came in time), `InvalidState` (subtype
    /// `InvalidStateCnoDead`: the IA was closed meanwhile; in an upcall). Blocks. Not for upcalls.
    /// Thread-safe. dat_cno_wait.
    #[doc(alias = "dat_cno_wait")]
    pub fn cno_wait(&self, cno: CnoHandle, timeout: u32) -> Result<EvdHandle> {
        let cno = self.inner.cno(cno)?;
        self.inner.not_in_upcall()?;
        cno.wait(timeout)
    }

    /// Returns a CNO's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_cno_query.
    #[doc(alias = "dat_cno_query")]
    pub fn cno_query(&self, cno: CnoHandle) -> Result<CnoParam> {
        let cno = self.inner.cno(cno)?;
        let has_agent = cno.state.lock().agent.is_some();
        let proxy_type = if has_agent { CnoProxyType::Agent } else { CnoProxyType::None };
        Ok(CnoParam { ia_handle: self.handle(), proxy_type })
    }

    /// Frees a CNO.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateCnoInUse`: an event dispatcher
    /// has it, or a thread waits on it). Does not block. May be called in upcalls. Thread-safe: a
    /// call that races with it succeeds or finds the handle invalid. dat_cno_free.
    #[doc(alias = "dat_cno_free")]
    pub fn cno_free(&self, cno: CnoHandle) -> Result<()> {
        let cno = self.inner.cno(cno)?;
        let agent = {
            let mut locked = cno.state.lock();
            if locked.ended.is_some() {
                return Err(handle(Subtype::InvalidHandleCno));
            }
            if !locked.evds.is_empty() || locked.waiters > 0 {
                return Err(state(Subtype::InvalidStateCnoInUse));
            }
            locked.ended = Some(FREED);
            locked.agent.take()
        };
        self.inner.cnos.remove(cno.handle);
        drop(agent);
        Ok(())
    }
}

impl Inner {
    pub(crate) fn cno(&self, cno: CnoHandle) -> Result<alloc::sync::Arc<Cno>> {
        self.live()?;
        self.cnos.get(cno).ok_or(handle(Subtype::InvalidHandleCno))
    }
}
