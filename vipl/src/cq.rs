//! Completion queues (pages VipCreateCQ, VipDestroyCQ, VipResizeCQ, VipCQDone, VipCQWait,
//! VipCQNotify).

use alloc::sync::Arc;

use kernel_agent::{ViCq, ViSide};
use platform::{Signal, heap};

use crate::error::{Error, Result};
use crate::handle::{CqHandle, ViHandle};
use crate::nic::{Core, Nic};
use crate::notices::Notices;
use crate::wait::{Deadline, wait};

/// What a completion queue's entry says: the virtual interface, and whether the descriptor is on
/// its receive queue.
type Entry = (ViHandle, bool);

/// A handler for an entry of a completion queue. It gets its context, the NIC, the virtual
/// interface, and whether the descriptor is on the receive queue.
pub type CqHandler = alloc::boxed::Box<dyn FnOnce(u64, &Nic, ViHandle, bool) + Send>;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) handle: CqHandle,
    pub(crate) cq: Arc<ViCq>,
    signal: Signal,
    notices: Notices<Entry>,
}

#[inline(always)]
fn entry((context, side): (u64, ViSide)) -> Entry {
    (ViHandle::from_raw(context), side == ViSide::Receive)
}

impl Cq {
    fn fill(&self) -> bool {
        self.notices.fill(|| self.cq.take().map(entry), || self.cq.arm())
    }

    /// Calls the first handler that is due; true if there are more. In the handler thread.
    pub(crate) fn run(&self, nic: &Nic) -> bool {
        self.fill() && self.notices.run(nic)
    }

    pub(crate) fn wake(&self) {
        self.signal.raise();
    }

    /// Drops the handlers and wakes the waiters of a queue that is destroyed.
    pub(crate) fn end(&self) {
        self.notices.clear();
        self.wake();
    }

    /// The queue was armed, and has an entry. In the dispatcher thread.
    pub(crate) fn announced(&self, core: &Core) {
        self.wake();
        if self.notices.any() {
            core.schedule_cq(self.handle.as_raw());
        }
    }
}

impl Core {
    /// The completion queue with this handle.
    pub(crate) fn cq(&self, handle: CqHandle) -> Result<Arc<Cq>> {
        self.cqs.get(handle).ok_or(Error::InvalidParameter)
    }
}

/// Fails if there were no entries. The agent refuses too many.
fn check_entries(entry_count: u32) -> Result<()> {
    if entry_count == 0 { Err(Error::InvalidParameter) } else { Ok(()) }
}

impl Nic {
    /// Creates a completion queue with room for `entry_count` entries. What does not fit is lost,
    /// without an error.
    ///
    /// Errors: `InvalidParameter` (0 entries, or the NIC is closed), `ErrorResource` (also for more
    /// entries than [`NicAttributes::max_cq_entries`](crate::NicAttributes::max_cq_entries)).
    /// Blocks for the device. May be called in handlers. Thread-safe. Page VipCreateCQ.
    #[doc(alias = "VipCreateCQ")]
    pub fn create_cq(&self, entry_count: u32) -> Result<CqHandle> {
        let core = self.call()?;
        check_entries(entry_count)?;
        let reservation = core.cqs.reserve()?;
        let word = reservation.handle().as_raw();
        core.cq_slots.reach(word)?;
        core.reserve_places(word)?;
        heap::room_for_arc::<Cq>()?;
        let cq = core.client()?.create_vi_cq(entry_count, word).map_err(|error| core.error(error))?;
        let handle = CqHandle::from_raw(word);
        let (signal, notices) = (Signal::new(core.adapter.platform().clone()), Notices::new());
        reservation.fill(Arc::new(Cq { handle, cq: cq.clone(), signal, notices }));
        core.cq_slots.open(word, &cq);
        core.adapter.created(|| core.cq_slots.close(word));
        Ok(handle)
    }

    /// Destroys a completion queue. Entries that were not taken are lost, handlers that wait are
    /// never called, and waiters return `InvalidParameter`.
    ///
    /// Errors: `InvalidParameter` (the handle), `ErrorResource` (a work queue is tied to it, or the
    /// NIC is dead). Blocks for the device. May be called in handlers. Thread-safe. Page
    /// VipDestroyCQ.
    #[doc(alias = "VipDestroyCQ")]
    pub fn destroy_cq(&self, cq: CqHandle) -> Result<()> {
        let core = self.call()?;
        let found = core.cq(cq)?;
        found.cq.destroy().map_err(|error| core.error(error))?;
        core.cq_slots.close(cq.as_raw());
        core.cqs.remove(cq);
        found.end();
        Ok(())
    }

    /// Changes the number of entries that a completion queue has room for. Entries that were not
    /// taken stay.
    ///
    /// Errors: `InvalidParameter` (the handle, or 0 entries), `ErrorResource` (also for fewer
    /// entries than are in the queue, and for more than
    /// [`NicAttributes::max_cq_entries`](crate::NicAttributes::max_cq_entries)). Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipResizeCQ.
    #[doc(alias = "VipResizeCQ")]
    pub fn resize_cq(&self, cq: CqHandle, entry_count: u32) -> Result<()> {
        let core = self.call()?;
        let found = core.cq(cq)?;
        check_entries(entry_count)?;
        // The ring of the NIC has a power of two, so the NIC would take some numbers that are too
        // small.
        if found.cq.queued(entry_count.saturating_add(1)) > entry_count {
            return Err(Error::ErrorResource);
        }
        found.cq.resize(entry_count).map_err(|error| core.error(error))
    }

    /// Takes an entry off a completion queue. Returns the virtual interface, and whether the
    /// descriptor is on its receive queue, from which [`Nic::recv_done`] or [`Nic::send_done`]
    /// takes it.
    ///
    /// Errors: `NotDone`, `InvalidParameter` (the handle). Neither blocks nor allocates. May be
    /// called in handlers. Thread-safe. Page VipCQDone.
    #[doc(alias = "VipCQDone")]
    #[inline]
    pub fn cq_done(&self, cq: CqHandle) -> Result<(ViHandle, bool)> {
        let core = self.core();
        match core.cq_slots.lock(cq.as_raw(), 0).as_ref().and_then(|open| open.object()) {
            Some(cq) => cq.take().map(entry).ok_or(Error::NotDone),
            None => Err(core.refused()),
        }
    }

    /// As [`Nic::cq_done`], but waits up to `timeout` milliseconds for an entry, or without end for
    /// [`INFINITE`](crate::INFINITE).
    ///
    /// Errors: `InvalidParameter` (the handle; also if the queue is destroyed meanwhile),
    /// `Timeout`, `ErrorResource` (the NIC is dead). May be called in handlers, which then hold up
    /// others. Thread-safe. Page VipCQWait.
    #[doc(alias = "VipCQWait")]
    pub fn cq_wait(&self, cq: CqHandle, timeout: u32) -> Result<(ViHandle, bool)> {
        match self.cq_done(cq) {
            Err(Error::NotDone) => {}
            other => return other,
        }
        let core = self.core();
        let Some(found) = core.cqs.get(cq) else { return Err(core.refused()) };
        let take = || match self.cq_done(cq) {
            Err(Error::NotDone) => Ok(None),
            other => other.map(Some),
        };
        wait(&found.signal, Deadline::after(core.adapter.platform(), timeout), take, || found.cq.arm())
    }

    /// Has a handler called once, with the next entry of a completion queue, which is taken off the
    /// queue. The descriptor stays on its work queue.
    ///
    /// The handler runs in the NIC's handler thread, never inside a call. Handlers are called in
    /// the order of these calls. As many handlers can wait as the queue has room for entries.
    ///
    /// Errors: `InvalidParameter` (the handle), `ErrorResource` (no memory, too many handlers wait,
    /// or the NIC is dead). Does not block. May be called in handlers. Thread-safe. Page
    /// VipCQNotify.
    #[doc(alias = "VipCQNotify")]
    pub fn cq_notify(&self, cq: CqHandle, context: u64, handler: CqHandler) -> Result<()> {
        let core = self.call()?;
        let found = core.cq(cq)?;
        let most = found.cq.entries();
        found.notices.add(most, move |nic, (vi, receive)| handler(context, nic, vi, receive))?;
        // A queue that was destroyed meanwhile may have dropped its handlers before.
        if core.cq(cq).is_err() {
            found.end();
            return Err(Error::InvalidParameter);
        }
        if found.fill() {
            core.schedule_cq(cq.as_raw());
        }
        Ok(())
    }
}
