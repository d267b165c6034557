//! Consumer notification objects (dat_cno_create, dat_cno_modify_agent, dat_cno_wait,
//! dat_cno_query, dat_cno_free).
//!
//! An event dispatcher triggers its CNO when a notification event comes, and not again until the
//! consumer has taken all of its events. The CNO remembers each event dispatcher that triggered it
//! until a waiter takes the trigger, so waiters miss none.
//!
//! Locks: `state` (spins, leaf). The agent runs without it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use platform::Signal;
use platform::sync::Mutex;
use rdma::Context;

use crate::attr::CnoParam;
use crate::error::{handle, state};
use crate::flags::CnoProxyType;
use crate::handle::{CnoHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::objects::cno::{Agent, Cno, FREED, State};
use crate::ret::{Result, Subtype};

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
