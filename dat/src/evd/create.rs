//! Creating, querying, resizing and freeing event dispatchers (dat_evd_create, dat_evd_query,
//! dat_evd_resize, dat_evd_free, dat_evd_post_se).

use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::AtomicU32;
use privileged_api as it;

use super::{COMPLETIONS, Control, Evd, EventCell, MESSAGES, REQUESTS};
use crate::attr::EvdParam;
use crate::error::{NO_MEMORY, as_argument, handle, parameter, state};
use crate::event::{Event, EventData, EventNumber};
use crate::flags::{CompletionFlags, EvdFlags, EvdState};
use crate::handle::{CnoHandle, EvdHandle};
use crate::ia::{Ia, Inner, MAX_SOFT_EVENTS};
use crate::ret::{Result, Subtype};

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
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let has_streams = EvdFlags::from_bits(flags.bits()).is_some() && !flags.is_empty();
        if !has_streams || flags.contains(EvdFlags::ASYNC) {
            return Err(parameter(Subtype::InvalidArg4));
        }
        let cno = if cno.is_null() { None } else { Some(inner.cno(cno)?) };
        self.create_evd(evd_min_qlen, flags, |evd| match cno {
            // Nothing is queued on a new event dispatcher.
            Some(cno) => inner.set_cno(evd, Some(cno)).map(drop),
            None => Ok(()),
        })
    }

    /// The event dispatcher of asynchronous events.
    pub(crate) fn create_async_evd(&self, min_qlen: usize) -> Result<EvdHandle> {
        self.create_evd(min_qlen, EvdFlags::ASYNC, |_| Ok(()))
    }

    fn create_evd(
        &self,
        min_qlen: usize,
        flags: EvdFlags,
        complete: impl FnOnce(&Evd) -> Result<()>,
    ) -> Result<EvdHandle> {
        let inner = &self.inner;
        let most = (self.it.identity().max_cqes as usize).min(MAX_SOFT_EVENTS);
        if min_qlen == 0 || min_qlen > most {
            return Err(parameter(Subtype::InvalidArg2));
        }
        let top = self.it.evd_create_for(streams(flags), min_qlen);
        let top = top.map_err(as_argument(Subtype::InvalidArg2))?;
        let made = inner.new_evd(EvdHandle::of(top), flags, min_qlen).and_then(|evd| {
            complete(&evd).inspect_err(|_| {
                inner.evds.remove(evd.handle);
            })?;
            Ok(evd.handle)
        });
        made.inspect_err(|_| {
            // Nothing uses it yet.
            let _ = self.it.evd_free(top);
        })
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
        let evd_qlen = inner.capacity(&evd)?;
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
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        let most = (self.it.identity().max_cqes as usize).min(MAX_SOFT_EVENTS);
        if evd_min_qlen == 0 || evd_min_qlen > most {
            return Err(parameter(Subtype::InvalidArg2));
        }
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
        // The threshold of a queue of completions is 0 or 1, so the queue may have any size.
        let (mask, size) = (it::EvdParamMask::QUEUE_SIZE, it::EvdParam::default());
        let param = it::EvdParam { sevd_queue_size: evd_min_qlen, ..size };
        self.it.evd_modify(evd.handle.inner(), mask, &param).map_err(|error| match error {
            it::Error::InvalidQueueSize => state(Subtype::None),
            other => other.into(),
        })?;
        // Without memory for more slots, fewer of DAT's own events than that are queued.
        if evd.flags.intersects(MESSAGES) {
            evd.add_slots(evd_min_qlen)?;
        }
        Ok(())
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
        let inner = &self.inner;
        inner.live()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        if evd.flags.contains(EvdFlags::ASYNC) {
            return Err(state(Subtype::InvalidStateEvdAsync));
        }
        let detached = {
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
            inner.detach_cno(&evd).inspect_err(|_| evd.control.lock().gone = false)
        };
        if let Err((error, due)) = detached {
            if let Some(cno) = due {
                cno.trigger(evd.handle);
            }
            return Err(error);
        }
        inner.evds.remove(evd.handle);
        Ok(())
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
                Ok(self.it.evd_post_se(evd.handle.inner(), data)?)
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
        let inner = &self.inner;
        inner.live()?;
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

/// IT-API's streams of an event dispatcher with these flags.
fn streams(flags: EvdFlags) -> it::EventStreams {
    use it::EventStreams as Streams;
    let when = |of, streams| if flags.intersects(of) { streams } else { Streams::empty() };
    when(COMPLETIONS, Streams::COMPLETIONS)
        | when(REQUESTS, Streams::REQUESTS)
        | when(MESSAGES, Streams::MESSAGES | Streams::OWN)
        | when(EvdFlags::SOFTWARE, Streams::SOFTWARE)
        | when(EvdFlags::ASYNC, Streams::AFFILIATED | Streams::UNAFFILIATED)
}

impl Inner {
    fn new_evd(&self, handle: EvdHandle, flags: EvdFlags, qlen: usize) -> Result<Arc<Evd>> {
        let control = Control {
            users: 0,
            mode: CompletionFlags::DEFAULT,
            completion_streams: 0,
            request_streams: 0,
            cno: None,
            waiter: false,
            gone: false,
        };
        let evd = Inner::shared(Evd {
            handle,
            flags,
            changes: SleepLock::new(),
            control: Mutex::new(control),
            made: Mutex::new(Vec::new()),
            agents: AtomicU32::new(0),
        })?;
        if flags.intersects(MESSAGES) {
            evd.add_slots(qlen)?;
        }
        self.evds.insert(handle, evd.clone())?;
        Ok(evd)
    }

    /// The number of events of each stream that its queue holds.
    pub(super) fn capacity(&self, evd: &Evd) -> Result<usize> {
        Ok(self.it.evd_query(evd.handle.inner(), it::EvdParamMask::QUEUE_SIZE)?.sevd_queue_size)
    }
}

impl Evd {
    /// Adds slots for DAT's own events, for a queue of this length.
    fn add_slots(&self, qlen: usize) -> Result<()> {
        let mut made = self.made.lock();
        let more = qlen.min(MAX_MADE).saturating_sub(made.len());
        made.try_reserve_exact(more).map_err(|_| NO_MEMORY)?;
        let len = made.len() + more;
        made.resize(len, EventCell::Free);
        Ok(())
    }
}

/// The most events of DAT's own that one event dispatcher holds before the consumer takes them.
const MAX_MADE: usize = 256;
