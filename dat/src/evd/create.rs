//! Creating, querying, resizing and freeing event dispatchers (dat_evd_create, dat_evd_query,
//! dat_evd_resize, dat_evd_free, dat_evd_post_se).

use alloc::vec::Vec;

use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::AtomicU32;
use privileged_api as it;

use super::{Control, Evd, EventCell, Streams};
use crate::attr::EvdParam;
use crate::error::{NO_MEMORY, as_argument, handle, parameter, state};
use crate::event::{Event, EventData, EventNumber};
use crate::flags::{CompletionFlags, EvdFlags, EvdState};
use crate::handle::{CnoHandle, EvdHandle};
use crate::ia::{Ia, Inner, MAX_SOFT_EVENTS};
use crate::ret::{Result, Subtype};

/// The streams of completions.
const COMPLETIONS: EvdFlags = EvdFlags::DTO.union(EvdFlags::RMR_BIND);
/// The streams of connection events.
const MESSAGES: EvdFlags = EvdFlags::CONNECTION.union(EvdFlags::IB_EXTENSION);

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
        let (top, streams) = inner.open_streams(min_qlen, flags)?;
        let made = inner.new_evd(top, streams, flags, min_qlen).and_then(|evd| {
            complete(&evd).inspect_err(|_| {
                inner.evds.remove(evd.handle);
            })?;
            Ok(evd.handle)
        });
        made.inspect_err(|_| inner.close_streams(top, &streams))
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
        // If one resize fails, the queues that were resized before get their former sizes back. A
        // queue for which that fails too keeps its new size, which does no harm.
        let mut resized = Vec::new();
        resized.try_reserve(8)?;
        for stream in evd.streams.all() {
            let before = self.it.evd_query(stream, it::EvdParamMask::QUEUE_SIZE)?.sevd_queue_size;
            if let Err(error) = inner.resize_stream(&evd, stream, evd_min_qlen) {
                for (stream, before) in resized {
                    let _ = inner.resize_stream(&evd, stream, before);
                }
                return Err(error);
            }
            resized.push((stream, before));
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
        inner.close_streams(evd.handle.inner(), &evd.streams);
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
        let stream = evd.streams.software.ok_or(handle(Subtype::InvalidHandle1))?;
        match event.event_data {
            EventData::Software(data) if event.event_number == EventNumber::SOFTWARE => {
                Ok(self.it.evd_post_se(stream, data)?)
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

impl Inner {
    fn open_streams(&self, qlen: usize, flags: EvdFlags) -> Result<(it::EvdHandle, Streams)> {
        use it::EventType as Type;
        let asynchronous = flags.contains(EvdFlags::ASYNC);
        let messages = flags.intersects(MESSAGES);
        let wanted = [
            (flags.intersects(COMPLETIONS), Type::DTO_EVENT_STREAM),
            (flags.intersects(EvdFlags::CR | EvdFlags::IB_EXTENSION), Type::CM_REQ_EVENT_STREAM),
            (messages, Type::CM_MSG_EVENT_STREAM),
            (messages, Type::SOFTWARE_EVENT_STREAM),
            (flags.contains(EvdFlags::SOFTWARE), Type::SOFTWARE_EVENT_STREAM),
            (asynchronous, Type::ASYNC_AFF_EVENT_STREAM),
            (asynchronous, Type::ASYNC_UNAFF_EVENT_STREAM),
        ];
        let several = wanted.iter().filter(|(wants, _)| *wants).count() > 1;
        let aggregate = match several {
            true => {
                let stream = Type::AEVD_NOTIFICATION_EVENT_STREAM;
                self.it.evd_create(stream, it::EvdFlags::empty(), 0, 0, it::EvdHandle::NULL)?
            }
            false => it::EvdHandle::NULL,
        };
        let mut made = [None; 7];
        for (place, (wants, stream)) in made.iter_mut().zip(wanted) {
            if !wants {
                continue;
            }
            let policy = it::EvdFlags::OVERFLOW_DEFAULT;
            match self.it.evd_create(stream, policy, qlen, 1, aggregate) {
                Ok(evd) => *place = Some(evd),
                Err(error) => {
                    self.close_streams(aggregate, &Streams::of(made));
                    return Err(as_argument(Subtype::InvalidArg2)(error));
                }
            }
        }
        let streams = Streams::of(made);
        let only = || streams.all().next().unwrap_or_default();
        Ok((if several { aggregate } else { only() }, streams))
    }

    /// Frees the IT-API event dispatchers of an event dispatcher that nothing uses.
    fn close_streams(&self, top: it::EvdHandle, streams: &Streams) {
        for stream in streams.all() {
            // Fails only if the IA has ended.
            let _ = self.it.evd_free(stream);
        }
        if !top.is_null() && streams.all().all(|stream| stream != top) {
            let _ = self.it.evd_free(top);
        }
    }

    fn new_evd(
        &self,
        top: it::EvdHandle,
        streams: Streams,
        flags: EvdFlags,
        qlen: usize,
    ) -> Result<alloc::sync::Arc<Evd>> {
        let handle = EvdHandle::of(top);
        let mut made = Vec::new();
        if streams.made.is_some() {
            made.try_reserve_exact(qlen.min(MAX_MADE))?;
            made.resize(qlen.min(MAX_MADE), EventCell::Free);
        }
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
            streams,
            changes: SleepLock::new(),
            control: Mutex::new(control),
            made: Mutex::new(made),
            agents: AtomicU32::new(0),
        })?;
        self.evds.insert(handle, evd.clone())?;
        Ok(evd)
    }

    /// The number of events that each of its queues holds.
    pub(super) fn capacity(&self, evd: &Evd) -> Result<usize> {
        let mut least = usize::MAX;
        for stream in evd.streams.all() {
            let size = self.it.evd_query(stream, it::EvdParamMask::QUEUE_SIZE)?.sevd_queue_size;
            least = least.min(size);
        }
        Ok(least)
    }

    fn resize_stream(&self, evd: &Evd, stream: it::EvdHandle, qlen: usize) -> Result<()> {
        // The threshold of a queue of completions is 0 or 1, so the queue may have any size.
        let (mask, size) = (it::EvdParamMask::QUEUE_SIZE, it::EvdParam::default());
        let resized = self.it.evd_modify(stream, mask, &it::EvdParam { sevd_queue_size: qlen, ..size });
        resized.map_err(|error| match error {
            it::Error::InvalidQueueSize => state(Subtype::None),
            other => other.into(),
        })?;
        if evd.streams.made == Some(stream) {
            let mut made = evd.made.lock();
            let more = qlen.min(MAX_MADE).saturating_sub(made.len());
            made.try_reserve_exact(more).map_err(|_| NO_MEMORY)?;
            let len = made.len() + more;
            made.resize(len, EventCell::Free);
        }
        Ok(())
    }
}

/// The most events of DAT's own that one event dispatcher holds before the consumer takes them.
const MAX_MADE: usize = 256;

impl Streams {
    fn of(
        [completions, requests, messages, made, software, affiliated, unaffiliated]: [Option<it::EvdHandle>;
            7],
    ) -> Streams {
        Streams { completions, requests, messages, made, software, affiliated, unaffiliated }
    }
}
