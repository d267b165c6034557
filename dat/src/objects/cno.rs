//! A consumer notification object.
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

use super::evd::Evd;
use crate::error::handle;
use crate::flags::TIMEOUT_INFINITE;
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
    pub(crate) state: Mutex<State>,
    pub(crate) signal: Signal,
    pub(crate) ia: Weak<Inner>,
    pub(crate) context: Context,
}

pub(crate) struct State {
    /// The event dispatchers that triggered, oldest first. Its capacity is that of `evds`, so a
    /// trigger never allocates.
    pub(crate) triggered: VecDeque<EvdHandle>,
    /// The words of the event dispatchers that have this CNO, in order.
    pub(crate) evds: Vec<u64>,
    pub(crate) waiters: usize,
    pub(crate) agent: Option<Agent>,
    /// The error that every wait returns, once the CNO is freed, or its IA closed or disabled.
    pub(crate) ended: Option<Error>,
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

    pub(crate) fn wait(&self, timeout: u32) -> Result<EvdHandle> {
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
