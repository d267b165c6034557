//! Taking events: one, or many completions at once (page it_evd_dequeue), and what a taken failure entails.

use kernel_agent::{Completion, Took};
use nic_abi::cqe::Status;

use super::callback::Origin;
use super::{Evd, Queue, dto};
use crate::event::{DtoCompletion, Event, EventType};
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

/// Completions that are taken under one hold of the locks.
const CHUNK: usize = 16;

impl Ia {
    /// Takes the oldest event. From an aggregate: a notification that names a dispatcher that is in the notification criteria, or an event of
    /// any of its dispatchers, as it was created; one after the other, so that none starves.
    ///
    /// When a completion of an endpoint is returned, all that was posted before it to the same queue is complete, too.
    ///
    /// Errors: `QueueEmpty`, `InvalidEvd`, `InvalidEvdState` (its events are its aggregate's), `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe.
    /// Page it_evd_dequeue.
    #[doc(alias = "it_evd_dequeue")]
    #[inline]
    pub fn evd_dequeue(&self, evd: EvdHandle) -> Result<Event> {
        let core = self.core();
        match core.evd_slots.get(evd.as_raw()).map(|slot| slot.take(evd.as_raw())) {
            Some(Took::Done(done)) => Ok(Event::Dto(dto::plain(done, evd))),
            Some(Took::Nothing) => Err(Error::QueueEmpty),
            Some(Took::Other) | None => self.dequeue_any(evd),
        }
    }

    /// Takes many completions at once, oldest first; returns how many, at least one. An extension.
    ///
    /// Errors: `QueueEmpty`; `InvalidEvd`; `InvalidEvdState` (its events are its aggregate's); `InvalidEvdType` if it is no dispatcher of completions; `InvalidIa`; `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe.
    #[inline]
    pub fn evd_dequeue_n(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> Result<usize> {
        match self.core().take_plain(evd, into) {
            (0, false) => Err(Error::QueueEmpty),
            (taken, other) if !other || taken == into.len() && taken > 0 => Ok(taken),
            (taken, _) => self.dequeue_any_n(evd, into, taken),
        }
    }

    /// Takes the oldest event, whatever it is; and says what is wrong.
    #[inline(never)]
    fn dequeue_any(&self, evd: EvdHandle) -> Result<Event> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if evd.is_captive() {
            return Err(Error::InvalidEvdState);
        }
        let event = evd.take().map(|taken| core.event(&evd, taken));
        core.taken(&evd, event.is_none());
        event.ok_or(Error::QueueEmpty)
    }

    /// Takes completions, whatever they are, after the first `taken`; and says what is wrong.
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
        let Queue::Dto(queue) = &evd.queue else { return Err(Error::InvalidEvdType) };
        while taken < into.len() {
            let (came, other) = core.take_plain(evd.handle, into.get_mut(taken..).unwrap_or_default());
            taken += came;
            match (came, other) {
                (_, false) => break,
                (0, true) => {}
                _ => continue,
            }
            let (Some(completion), Some(place)) = (queue.take(), into.get_mut(taken)) else { break };
            *place = queue.event(&completion);
            taken += 1;
            // What failed is dealt with before what comes after it is taken.
            core.failed(&completion);
        }
        // There is room left only where the queue was found empty.
        core.taken(&evd, taken < into.len());
        if taken == 0 { Err(Error::QueueEmpty) } else { Ok(taken) }
    }
}

impl Core {
    /// Takes a chunk of the completions with which there is nothing more to do, as [`CqSlot::take_n`](kernel_agent::CqSlot::take_n) does. A function of its own, for the
    /// loop needs all registers.
    #[inline(never)]
    fn take_plain(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> (usize, bool) {
        let at_once = into.len().min(CHUNK);
        match (self.evd_slots.get(evd.as_raw()), into.get_mut(..at_once)) {
            (Some(slot), Some(chunk)) => slot.take_n(evd.as_raw(), chunk, |done| dto::plain(done, evd)),
            _ => (0, true),
        }
    }

    /// What there is to do after a consumer took events, or found none (`empty`).
    pub(super) fn taken(&self, evd: &Evd, empty: bool) {
        if evd.has_callback() && evd.drained(empty) {
            self.due(evd, Origin::Call);
        }
    }

    /// A completion was taken. If it failed, its connection breaks and its link never was.
    pub(crate) fn failed(&self, completion: &Completion) {
        if completion.status == Status::Success {
            return;
        }
        match EventType(completion.data & dto::note::EVENT) {
            EventType::LMR_LINK_CMPL => self.link_failed(completion.qpn, completion.data),
            EventType::RMR_LINK_CMPL => self.rmr_link_failed(completion.qpn, completion.data),
            _ => {}
        }
        // What was flushed says that the endpoint is non-operational already, for a reason that is told elsewhere.
        if completion.status != Status::Flushed {
            let ep = EpHandle::from_raw(completion.context);
            self.broken(ep, Some(completion.qpn), Origin::Call);
        }
    }
}
