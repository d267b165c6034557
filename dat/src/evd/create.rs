//! Creating, querying, resizing and freeing event dispatchers (dat_evd_create, dat_evd_query,
//! dat_evd_resize, dat_evd_free, dat_evd_post_se).

use alloc::sync::Arc;

use kernel_agent::SlotParams;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicU8, AtomicU32};
use platform::{SleepLock, heap};
use rdma::Context;
use rdma::events::{Completions, Dispatcher, EventQueue, Events, Made, NotResized, Remains, Source};

use crate::attr::EvdParam;
use crate::error::{EVENTS, NO_MEMORY, handle, parameter, state};
use crate::event::{Event, EventData, EventNumber};
use crate::flags::{CompletionFlags, EvdFlags, EvdState};
use crate::handle::{CnoHandle, EvdHandle};
use crate::ia::{Ia, Inner, MAX_SOFT_EVENTS};
use crate::objects::entry::{Entry, streams};
use crate::objects::evd::{COMPLETIONS, Control, Evd, Origin, Routine};
use crate::ret::{ErrorType, Result, Subtype};

impl Ia {
    /// Creates an event dispatcher for these streams, whose queue holds at least `evd_min_qlen`
    /// events (of each kind of stream), with a CNO or null.
    ///
    /// All streams can share an event dispatcher, except the asynchronous one, whose event
    /// dispatcher comes with the IA. Completions, also those of binds, need `DTO`. Endpoints need
    /// `CONNECTION` and service points `CR`; for datagram endpoints and their public service points
    /// `IB_EXTENSION` serves as well.
    ///
    /// Errors: `InvalidParameter` (no events, or more than the adapter's limit; no streams, an
    /// undefined one, or `ASYNC`), `InvalidHandle` (CNO), `InsufficientResources`, `InvalidState`
    /// (in an upcall). Blocks for the device. Not for upcalls. Thread-safe. dat_evd_create.
    #[doc(alias = "dat_evd_create")]
    pub fn evd_create(&self, evd_min_qlen: usize, cno: CnoHandle, flags: EvdFlags) -> Result<EvdHandle> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let has_streams = EvdFlags::from_bits(flags.bits()).is_some() && !flags.is_empty();
        if !has_streams || flags.contains(EvdFlags::ASYNC) {
            return Err(parameter(Subtype::InvalidArg4));
        }
        let cno = if cno.is_null() { None } else { Some(inner.cno(cno)?) };
        let evd = inner.create_evd(evd_min_qlen, flags)?;
        if cno.is_some() {
            // Nothing is queued on a new event dispatcher.
            let set = inner.set_cno(&evd, cno);
            set.inspect_err(|_| inner.end_evd(&evd))?;
        }
        Ok(evd.handle)
    }

    /// The event dispatcher of asynchronous events.
    pub(crate) fn create_async_evd(&self, min_qlen: usize) -> Result<EvdHandle> {
        let inner = self.call()?;
        Ok(inner.create_evd(min_qlen, EvdFlags::ASYNC)?.handle)
    }

    /// Returns an event dispatcher's parameters.
    ///
    /// The state contains `CONFIG_NOTIFY`, `CONFIG_SOLICITED` or `CONFIG_THRESHOLD` if the streams
    /// of completions have the flag `UNSIGNALLED`, `SOLICITED_WAIT` or `EVD_THRESHOLD`.
    ///
    /// Errors: `InvalidHandle`. Blocks only while another call changes the event dispatcher. May be
    /// called in upcalls. Thread-safe. dat_evd_query.
    #[doc(alias = "dat_evd_query")]
    pub fn evd_query(&self, evd: EvdHandle) -> Result<EvdParam> {
        let inner = &self.inner;
        inner.live()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        let evd_qlen = evd.capacity();
        let control = evd.control.lock();
        let config = match control.mode {
            CompletionFlags::UNSIGNALLED => EvdState::CONFIG_NOTIFY,
            CompletionFlags::SOLICITED_WAIT => EvdState::CONFIG_SOLICITED,
            CompletionFlags::EVD_THRESHOLD => EvdState::CONFIG_THRESHOLD,
            _ => EvdState::empty(),
        };
        Ok(EvdParam {
            ia_handle: self.handle(),
            evd_qlen,
            evd_state: EvdState::ENABLED | EvdState::WAITABLE | config,
            cno_handle: control.cno.as_ref().map_or(CnoHandle::NULL, |cno| cno.handle),
            evd_flags: evd.flags,
        })
    }

    /// Changes the queue so that it holds at least `evd_min_qlen` events. Queued events stay.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (no events, or more than the adapter's limit),
    /// `InvalidState` (more events are queued; subtype `InvalidStateEvdWaiter`: a thread waits; in
    /// an upcall), `InsufficientResources`. Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_evd_resize.
    #[doc(alias = "dat_evd_resize")]
    pub fn evd_resize(&self, evd: EvdHandle, evd_min_qlen: usize) -> Result<()> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        inner.check_length(evd_min_qlen)?;
        let _changes = evd.changes.lock(inner.platform());
        {
            let control = evd.control.lock();
            if control.gone {
                return Err(handle(Subtype::InvalidHandle1));
            }
            if control.waiter {
                return Err(state(Subtype::InvalidStateEvdWaiter));
            }
        }
        inner.resize(&evd, evd_min_qlen)
    }

    /// Frees an event dispatcher. Events that are queued are lost.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateEvdInUse`: an endpoint or a
    /// service point feeds it, or an agent runs for it, or, in an upcall, its callback has not
    /// returned yet; `InvalidStateEvdWaiter`: a thread waits; `InvalidStateEvdAsync`: the event
    /// dispatcher of asynchronous events ends with its IA). Blocks for the device, and until a
    /// callback that only wakes a waiter of the CNO has returned. May be called in an upcall for
    /// another event dispatcher. Thread-safe: a call that races with it succeeds or finds the
    /// handle invalid. dat_evd_free.
    #[doc(alias = "dat_evd_free")]
    pub fn evd_free(&self, evd: EvdHandle) -> Result<()> {
        let inner = self.call()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        if evd.flags.contains(EvdFlags::ASYNC) {
            return Err(state(Subtype::InvalidStateEvdAsync));
        }
        let closed = {
            let _changes = evd.changes.lock(inner.platform());
            {
                let mut control = evd.control.lock();
                if control.gone {
                    return Err(handle(Subtype::InvalidHandle1));
                }
                if control.waiter {
                    return Err(state(Subtype::InvalidStateEvdWaiter));
                }
                if control.users > 0 {
                    return Err(state(Subtype::InvalidStateEvdInUse));
                }
                control.gone = true;
            }
            inner.close_evd(&evd).inspect_err(|_| evd.control.lock().gone = false)
        };
        match closed {
            Ok(remains) => {
                inner.end_closed_evd(&evd, remains);
                Ok(())
            }
            Err(due) => {
                if let Some(cno) = due {
                    cno.trigger(evd.handle);
                }
                Err(state(Subtype::InvalidStateEvdInUse))
            }
        }
    }

    /// Posts a software event: `event` has to have the number [`EventNumber::SOFTWARE`] and
    /// [`EventData::Software`]; see [`Event::software`]. Its other members are ignored.
    ///
    /// Errors: `InvalidHandle` (also an event dispatcher without the stream `SOFTWARE`),
    /// `InvalidParameter` (another event), `QueueFull`. Does not block. May be called in upcalls.
    /// Thread-safe. dat_evd_post_se.
    #[doc(alias = "dat_evd_post_se")]
    pub fn evd_post_se(&self, evd: EvdHandle, event: &Event) -> Result<()> {
        let inner = &self.inner;
        inner.live()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        if !evd.flags.contains(EvdFlags::SOFTWARE) {
            return Err(handle(Subtype::InvalidHandle1));
        }
        match event.event_data {
            EventData::Software(data) if event.event_number == EventNumber::SOFTWARE => {
                if !evd.push(Entry::Software(data)) {
                    return Err(ErrorType::QueueFull.into());
                }
                inner.announce(&evd, Origin::Call);
                Ok(())
            }
            _ => Err(parameter(Subtype::InvalidArg2)),
        }
    }

    /// Replaces the CNO of an event dispatcher; null for none. Triggers the new CNO if events are
    /// queued. A trigger of this event dispatcher that a waiter has not taken from the former CNO
    /// is dropped.
    ///
    /// Errors: `InvalidHandle`, `InsufficientResources`. Blocks only while another call changes the
    /// event dispatcher. May be called in upcalls. Thread-safe. dat_evd_modify_cno.
    #[doc(alias = "dat_evd_modify_cno")]
    pub fn evd_modify_cno(&self, evd: EvdHandle, cno: CnoHandle) -> Result<()> {
        let inner = self.call()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        let cno = if cno.is_null() { None } else { Some(inner.cno(cno)?) };
        let due = {
            let _changes = evd.changes.lock(inner.platform());
            if evd.control.lock().gone {
                return Err(handle(Subtype::InvalidHandle1));
            }
            inner.set_cno(&evd, cno)?
        };
        if let Some(cno) = due {
            cno.trigger(evd.handle);
        }
        Ok(())
    }
}

/// What is left to drop of an event dispatcher that was closed.
pub(super) type Left = Remains<Routine, core::convert::Infallible>;

impl Inner {
    fn check_length(&self, min_qlen: usize) -> Result<()> {
        let most = (self.identity().max_cqes as usize).min(MAX_SOFT_EVENTS);
        if min_qlen == 0 || min_qlen > most { Err(parameter(Subtype::InvalidArg2)) } else { Ok(()) }
    }

    fn create_evd(&self, min_qlen: usize, flags: EvdFlags) -> Result<Arc<Evd>> {
        self.check_length(min_qlen)?;
        self.new_evd(min_qlen, flags, false)
    }

    /// Creates an event dispatcher for completions that the consumer does not want: an upcall takes
    /// and drops them. It has room for all outstanding completions of an endpoint.
    pub(crate) fn unwanted(&self, most: usize, argument: Subtype) -> Result<Arc<Evd>> {
        let made = self.new_evd(most.max(1), EvdFlags::DTO, true);
        let evd = made.map_err(|error| if error == EVENTS { parameter(argument) } else { error })?;
        // Cannot fail: nothing else knows it.
        let _ = evd.dispatcher.attach(Routine::Discard);
        self.after_taking(&evd, false);
        Ok(evd)
    }

    /// Enlarges an event dispatcher for unwanted completions.
    pub(crate) fn make_room_for(&self, unwanted: &Evd, most: usize) -> Result<()> {
        if unwanted.capacity() < most { self.resize(unwanted, most) } else { Ok(()) }
    }

    fn resize(&self, evd: &Evd, qlen: usize) -> Result<()> {
        evd.dispatcher.queue().resize(self.platform(), qlen).map_err(|why| match why {
            NotResized::Occupied => state(Subtype::None),
            NotResized::OutOfResources => EVENTS,
            NotResized::Dead => self.dead(),
        })?;
        evd.resized();
        // The new size may make the criteria of a notification present.
        self.announce(evd, Origin::Call);
        Ok(())
    }

    fn new_evd(&self, qlen: usize, flags: EvdFlags, hidden: bool) -> Result<Arc<Evd>> {
        let reservation = self.evds.reserve()?;
        let handle = reservation.handle();
        self.adapter.reserve_callbacks(rdma::handle::index(handle.as_raw()) as u32)?;
        let made = match streams(flags) {
            0 => None,
            streams => Some(Made::new(streams, qlen).map_err(|_| EVENTS)?),
        };
        let completions = match flags.intersects(COMPLETIONS) {
            true => Some(self.new_completions(qlen, handle)?),
            false => None,
        };
        let control = Control {
            users: 0,
            mode: CompletionFlags::DEFAULT,
            completion_streams: 0,
            cno: None,
            waiter: false,
            gone: false,
        };
        let evd = heap::arc(Evd {
            dispatcher: Dispatcher::new(
                self.platform().clone(),
                EventQueue::new(completions, made),
                1,
                false,
            ),
            handle,
            flags,
            hidden,
            overflowed: AtomicU8::new(0),
            changes: SleepLock::new(),
            control: Mutex::new(control),
            agents: AtomicU32::new(0),
            context: Context::new(),
        });
        let evd = evd.map_err(|evd| {
            evd.destroy_queue();
            NO_MEMORY
        })?;
        reservation.fill(evd.clone());
        self.adapter.created(|| evd.disable());
        Ok(evd)
    }

    fn new_completions(&self, qlen: usize, handle: EvdHandle) -> Result<Completions> {
        let entries = u32::try_from(qlen).map_err(|_| EVENTS)?;
        let word = handle.as_raw();
        let slot = self.evd_slots.get_or_create(word)?;
        let slot_params = SlotParams { slot, handle: word, closed: 0 };
        let created = self.client()?.create_cq_in(entries, word, slot_params);
        let cq = created.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => EVENTS,
            other => self.error(other),
        })?;
        Completions::new(Source::Entries(cq.clone()), slot.clone(), word).map_err(|_| {
            let _ = cq.destroy();
            EVENTS
        })
    }

    /// Frees an event dispatcher that nothing uses, whether or not an upcall runs.
    pub(crate) fn end_evd(&self, evd: &Evd) {
        let closed = evd.dispatcher.close(|_| Ok::<_, ()>(()), |_| ());
        if let Ok(remains) = closed {
            self.end_closed_evd(evd, remains);
        }
    }

    fn end_closed_evd(&self, evd: &Evd, remains: Left) {
        if let Some(cno) = evd.control.lock().cno.take() {
            cno.leave(evd.handle);
        }
        let removed = self.evds.invalidate(evd.handle).is_some();
        evd.dispatcher.end(remains);
        evd.destroy_queue();
        if let Some(made) = evd.dispatcher.queue().made() {
            // The events are lost, and with them the requests that they report.
            while let Some(entry) = made.pop() {
                if let Entry::Arrived(arrived) = entry {
                    self.lose_request(&arrived);
                }
            }
        }
        // The index can be reused only after the CQ was destroyed, which empties its slot.
        if removed {
            self.evds.release(evd.handle);
        }
    }
}

impl Evd {
    fn destroy_queue(&self) {
        if let Some(queue) = self.dispatcher.queue().completions() {
            // Nothing uses the CQ, so this fails only if the device is dead, and then the CQ is
            // destroyed with the device.
            let _ = queue.source().destroy();
        }
    }
}
