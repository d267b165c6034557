//! Taking events (page it_evd_dequeue): a single event, or many completions at once; and the
//! effects of a failed completion.

use kernel_agent::{Behind, Completion, Took, TookAny};

use super::callback::Origin;
use super::dto;
use super::take::Taken;
use crate::closed;
use crate::evd::forms::Form;
use crate::event::{DtoCompletion, DtoStatus, Event};
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Core, Ia};
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

/// The most completions that are taken while the lock is held once.
const CHUNK: usize = 64;

impl Ia {
    /// Takes the oldest event. An aggregate with
    /// [`EvdFlags::DEQUEUE_NOTIFICATIONS`](crate::EvdFlags::DEQUEUE_NOTIFICATIONS) returns a
    /// notification that names an event dispatcher that meets the notification criteria. An
    /// aggregate without it returns an event of one of its event dispatchers. The event dispatchers
    /// of an aggregate take turns, so that none starves.
    ///
    /// When a completion of an endpoint is returned, all earlier requests of the same queue are
    /// complete.
    ///
    /// Errors: `QueueEmpty`, `InvalidEvd`, `InvalidEvdState` (its events can be taken only from its
    /// aggregate), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_evd_dequeue.
    #[doc(alias = "it_evd_dequeue")]
    #[inline]
    pub fn evd_dequeue(&self, evd: EvdHandle) -> Result<Event> {
        let core = self.core();
        match core.evd_slots.get(evd.as_raw()).map(|slot| slot.take(evd.as_raw())) {
            Some(Took::Done(done)) => Ok(Event::Dto(dto::plain(done, evd))),
            Some(Took::Nothing) => Err(Error::QueueEmpty),
            Some(Took::Other) | None => dequeue_other(evd, core),
        }
    }

    /// Takes as many completions at once as `into` has room for, oldest first. Returns how many it
    /// took, at least one. An extension of the API.
    ///
    /// Errors: `QueueEmpty`; `InvalidEvd`; `InvalidEvdState` (its events can be taken only from its
    /// aggregate); `InvalidEvdType` (the event dispatcher is not for completions); `InvalidIa`;
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe.
    #[inline]
    pub fn evd_dequeue_n(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> Result<usize> {
        match self.core().take_plain(evd, into) {
            (0, false) => Err(Error::QueueEmpty),
            (taken, other) if !other || taken == into.len() && taken > 0 => Ok(taken),
            (taken, _) => self.dequeue_any_n(evd, into, taken),
        }
    }

    /// The slow path, after the fast path took `taken` completions: takes completions of any kind,
    /// or determines the error.
    #[inline(never)]
    fn dequeue_any_n(&self, evd: EvdHandle, into: &mut [DtoCompletion], mut taken: usize) -> Result<usize> {
        let found = self.live().and_then(|core| Ok((core, core.evd(evd)?)));
        let (core, evd) = match found {
            Ok((_, evd)) if taken == 0 && evd.is_captive() => return Err(Error::InvalidEvdState),
            Ok((_, evd)) if evd.is_captive() => return Ok(taken),
            Ok(found) => found,
            Err(_) if taken > 0 => return Ok(taken),
            Err(error) => return Err(error),
        };
        let Some(queue) = evd.completions() else { return Err(Error::InvalidEvdType) };
        while taken < into.len() {
            let end = into.len().min(taken + CHUNK);
            let (came, other) = queue.take_successes(into.get_mut(taken..end).unwrap_or_default(), |taken| {
                dto::success(taken, evd.handle)
            });
            taken += came;
            match (came, other) {
                (_, false) => break,
                (0, true) => {}
                _ => continue,
            }
            let (Some(completion), Some(place)) = (queue.take(), into.get_mut(taken)) else { break };
            *place = dto::event(&completion, evd.handle, &core.owners);
            taken += 1;
            // Apply the effects of a failure before later completions are taken.
            core.break_by(&completion);
        }
        // If `into` is not full, the queue was empty.
        core.after_taking(&evd, taken < into.len());
        if taken == 0 { Err(Error::QueueEmpty) } else { Ok(taken) }
    }
}

/// Takes the oldest event if it is not a plain success. Marked cold so that the code of the fast
/// path is not interrupted. The fast path has the arguments in the registers of this order. Not
/// generic, so that it is compiled in this crate, with the functions that it calls.
#[cold]
#[inline(never)]
fn dequeue_other(evd: EvdHandle, core: &Core) -> Result<Event> {
    dequeue_in(evd, core)
}

/// Takes the oldest event. A completion that is a success takes the short way.
#[inline(always)]
pub(super) fn dequeue_in<F: Form>(evd: EvdHandle, core: &Core) -> Result<F> {
    match take_from_slot::<F>(evd, core, closed::CALLBACK | closed::RESERVED) {
        Some((done, beside)) => Ok(F::completed(done, beside)),
        None => core.dequeue_any(evd),
    }
}

/// Takes the oldest completion if it is a success, plain or not, from an EVD whose slot is closed
/// for none but the reasons `but`. Everything else takes the slow path.
#[inline(always)]
pub(super) fn take_from_slot<F: Form>(
    evd: EvdHandle,
    core: &Core,
    but: u32,
) -> Option<(DtoCompletion, F::Beside)> {
    let make = |taken: &Completion| (dto::success(taken, evd), F::beside(taken));
    match core.evd_slots.get(evd.as_raw())?.take_any(evd.as_raw(), but, make) {
        TookAny::Taken { value, behind, closed } => {
            // The callback is armed when the last event was taken.
            if closed && behind != Behind::Completion {
                core.after_last(evd);
            }
            Some(value)
        }
        _ => None,
    }
}

impl Core {
    /// The slow path: takes the oldest event of any kind, or determines the error.
    #[inline(never)]
    fn dequeue_any<F: Form>(&self, evd: EvdHandle) -> Result<F> {
        self.still_live()?;
        let evd = self.evd(evd)?;
        if evd.is_captive() {
            return Err(Error::InvalidEvdState);
        }
        if let Some(aggregate) = evd.aggregate() {
            let mut event = Err(Error::QueueEmpty);
            if aggregate.take_success::<F>(|done, beside| event = Ok(F::completed(done, beside))) {
                self.after_taking(&evd, false);
                return event;
            }
        }
        self.dequeue_slow(&evd)
    }

    /// Takes the oldest event of any kind.
    #[inline(never)]
    fn dequeue_slow<F: Form>(&self, evd: &Evd) -> Result<F> {
        let mut soft = None;
        let taken = evd.take(&mut soft);
        self.after_taking(evd, taken.is_none());
        match taken {
            Some(taken) => self.event(evd, &taken, soft).ok_or(Error::QueueEmpty),
            None => Err(Error::QueueEmpty),
        }
    }

    /// The fast path: takes at most a chunk of plain completions with
    /// [`CqSlot::take_n`](kernel_agent::CqSlot::take_n). Not inlined, since its loop needs all
    /// registers.
    #[inline(never)]
    fn take_plain(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> (usize, bool) {
        let at_once = into.len().min(CHUNK);
        match (self.evd_slots.get(evd.as_raw()), into.get_mut(..at_once)) {
            (Some(slot), Some(chunk)) => slot.take_n(evd.as_raw(), chunk, |done| dto::plain(done, evd)),
            _ => (0, true),
        }
    }

    /// Updates the callback after a consumer took what may be the last event.
    #[inline(never)]
    fn after_last(&self, evd: EvdHandle) {
        if let Some(evd) = self.evds.get(evd) {
            self.after_taking(&evd, false);
        }
    }

    /// Updates the callback after a consumer took events. `empty` says that the consumer found the
    /// queue empty.
    pub(super) fn after_taking(&self, evd: &Evd, empty: bool) {
        if evd.drained(empty) {
            self.run_or_schedule(evd, Origin::Call);
        }
    }

    /// Breaks the connection of a request that failed. Does nothing for a success.
    pub(crate) fn break_by(&self, completion: &Completion) {
        if rdma::events::breaks_endpoint(completion) {
            let ep = EpHandle::from_raw(completion.context);
            self.broken(ep, Some(completion.qpn), Origin::Call);
        }
    }
}

impl Core {
    /// Makes the event that was taken from `evd`, and applies the effects of a failed completion.
    /// `None` only if `soft` is missing. The caller holds no lock.
    #[inline(always)]
    pub(super) fn event<F: Form>(&self, evd: &Evd, taken: &Taken, soft: Option<Event>) -> Option<F> {
        match taken {
            Taken::Soft => soft.map(F::other),
            Taken::Name(sevd) => Some(F::other(Event::AevdNotification { aevd: evd.handle, sevd: *sevd })),
            Taken::Completion(sevd, completion) => {
                let event = dto::event(completion, *sevd, &self.owners);
                if event.dto_status != DtoStatus::Success {
                    self.break_by(completion);
                }
                Some(F::completed(event, F::beside(completion)))
            }
        }
    }
}
