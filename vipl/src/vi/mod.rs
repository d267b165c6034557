//! Virtual interfaces: creation, attributes, end (pages VipCreateVi, VipDestroyVi,
//! VipSetViAttributes, VipQueryVi).
//!
//! Locks, outermost first: `control` (sleeps); `conn` (spins); the attributes (spin, leaf).

mod conn_state;
pub(crate) mod connect;
pub(crate) mod queue;

use alloc::sync::Arc;

use kernel_agent::{Vi as AgentVi, ViSide};
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicU32};
use platform::{Signal, SleepLock, heap};

use crate::attributes::{ViAttributes, ViState};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::handle::{CqHandle, ViHandle};
use crate::nic::{Core, DESCRIPTORS_PER_QUEUE, Nic};
use crate::notices::Notices;
use conn_state::ConnState;

/// The two work queues, in the order of their indices.
pub(crate) const SIDES: [ViSide; 2] = [ViSide::Send, ViSide::Receive];

/// What this face keeps of a work queue.
pub(crate) struct Queue {
    /// The completion queue that it is tied to, or null.
    tied: CqHandle,
    /// Descriptors that it has room for.
    entries: u32,
    pub(crate) signal: Signal,
    pub(crate) notices: Notices<u64>,
    /// A descriptor was posted to the full queue, and that was not reported yet: its address, and
    /// the number that the agent's virtual interface had.
    overrun: Mutex<Option<(u64, u32)>>,
}

/// A virtual interface.
pub(crate) struct Vi {
    pub(crate) handle: ViHandle,
    pub(crate) vi: Arc<AgentVi>,
    attributes: Mutex<ViAttributes>,
    /// Serializes calls that change the virtual interface or its connection.
    control: SleepLock,
    conn: Mutex<ConnState>,
    /// Raised when the connection has changed.
    changed: Signal,
    pub(crate) queues: [Queue; 2],
    waiting_errors: AtomicU32,
    /// It is destroyed, so its errors are not reported. Set under the lock of the errors' queue.
    pub(crate) is_silent: AtomicBool,
}

impl Vi {
    /// How many of its errors wait for delivery.
    pub(crate) fn waiting_errors(&self) -> &AtomicU32 {
        &self.waiting_errors
    }

    pub(crate) fn wake_all(&self) {
        self.changed.raise();
        self.queues.iter().for_each(|queue| queue.signal.raise());
    }

    /// Drops the handlers and wakes the waiters of a virtual interface that is destroyed.
    pub(crate) fn end(&self) {
        self.conn.lock().end();
        self.queues.iter().for_each(|queue| queue.notices.clear());
        self.wake_all();
    }
}

impl Core {
    /// The virtual interface with this handle.
    pub(crate) fn vi(&self, handle: ViHandle) -> Result<Arc<Vi>> {
        self.vis.get(handle).ok_or(Error::InvalidParameter)
    }

    /// Checks attributes, but for the protection tag.
    fn check_attributes(&self, attributes: &ViAttributes) -> Result<()> {
        attributes.check(self.features, self.max_transfer_size())
    }

    fn tied(&self, cq: CqHandle) -> Result<Option<Arc<Cq>>> {
        if cq.is_null() { Ok(None) } else { self.cq(cq).map(Some) }
    }
}

impl Nic {
    /// Creates a virtual interface, [`Idle`](ViState::Idle). A completion queue that is not null is
    /// tied to the work queue.
    ///
    /// Each work queue has room for
    /// [`max_descriptors_per_queue`](crate::NicAttributes::max_descriptors_per_queue) descriptors.
    ///
    /// Errors, in this order: `InvalidParameter` (a completion queue), `InvalidReliabilityLevel`
    /// (the interface has no reliable levels), `InvalidMtu`, `InvalidQos`, `InvalidPtag`,
    /// `InvalidRdmaRead` (with the level Unreliable Delivery), `ErrorResource`. Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipCreateVi.
    #[doc(alias = "VipCreateVi")]
    pub fn create_vi(
        &self,
        attributes: &ViAttributes,
        send_cq: CqHandle,
        recv_cq: CqHandle,
    ) -> Result<ViHandle> {
        self.create_vi_sized(attributes, send_cq, recv_cq, [DESCRIPTORS_PER_QUEUE; 2])
    }

    /// As [`Nic::create_vi`], with room for so many descriptors on the send queue and on the
    /// receive queue: from 1 to 16,384 on this NIC. An extension.
    ///
    /// Errors: those of [`Nic::create_vi`]; `ErrorResource` for more descriptors than the NIC
    /// allows, `InvalidParameter` for none.
    pub fn create_vi_sized(
        &self,
        attributes: &ViAttributes,
        send_cq: CqHandle,
        recv_cq: CqHandle,
        entries: [u32; 2],
    ) -> Result<ViHandle> {
        let core = self.call()?;
        let tied = [core.tied(send_cq)?, core.tied(recv_cq)?];
        if entries.contains(&0) {
            return Err(Error::InvalidParameter);
        }
        core.check_attributes(attributes)?;
        let ptag = core.ptag(attributes.ptag)?;
        attributes.check_read()?;
        let most = core.agent().identity().max_vi_entries;
        if entries.iter().any(|&entries| entries > most) {
            return Err(Error::ErrorResource);
        }
        let reservation = core.vis.reserve()?;
        let word = reservation.handle().as_raw();
        core.vi_slots.reach(word)?;
        core.reserve_places(word)?;
        heap::room_for_arc::<Vi>()?;
        let cqs = tied.each_ref().map(|cq| cq.as_ref().map(|cq| &cq.cq));
        let created = core.client()?.create_vi(&ptag.pd, &attributes.agent(), cqs, entries, word);
        // A completion queue may have been destroyed meanwhile, too.
        let vi = created.map_err(|error| core.ptag_or_object(error, attributes.ptag))?;
        let handle = ViHandle::from_raw(word);
        let queue = |index: usize, tied: CqHandle| Queue {
            tied,
            entries: entries[index],
            signal: Signal::new(core.adapter.platform().clone()),
            notices: Notices::new(),
            overrun: Mutex::new(None),
        };
        reservation.fill(Arc::new(Vi {
            handle,
            vi: vi.clone(),
            attributes: Mutex::new(*attributes),
            control: SleepLock::new(),
            conn: Mutex::new(ConnState::new()),
            changed: Signal::new(core.adapter.platform().clone()),
            queues: [queue(0, send_cq), queue(1, recv_cq)],
            waiting_errors: AtomicU32::new(0),
            is_silent: AtomicBool::new(false),
        }));
        core.vi_slots.open(word, &vi);
        core.adapter.created(|| core.vi_slots.close(word));
        Ok(handle)
    }

    /// Destroys a virtual interface that is [`Idle`](ViState::Idle) and whose queues are empty.
    /// Handlers that wait for its queues are never called, its asynchronous errors are not reported
    /// any more, and waiters return `InvalidParameter`.
    ///
    /// Errors: `InvalidParameter` (the handle), `ErrorResource` (it is not idle, or descriptors are
    /// on its queues, complete or not; or the NIC is dead). Blocks for the device. May be called in
    /// handlers. Thread-safe. Page VipDestroyVi.
    #[doc(alias = "VipDestroyVi")]
    pub fn destroy_vi(&self, vi: ViHandle) -> Result<()> {
        let core = self.call()?;
        let (found, word) = (core.vi(vi)?, vi.as_raw());
        let _control = found.control.lock(core.adapter.platform());
        // Another call may have destroyed it meanwhile.
        core.vi(vi)?;
        found.idle().map_err(|_| Error::ErrorResource)?;
        // Those that the NIC has lost are on no queue.
        core.report_all_lost(&found, found.vi.qpn());
        // No post comes in between.
        let is_empty = |vi: &AgentVi| SIDES.iter().all(|&side| vi.queued(side) == 0);
        if !core.vi_slots.close_if(word, is_empty) {
            return Err(Error::ErrorResource);
        }
        if let Err(error) = found.vi.destroy() {
            core.vi_slots.open(word, &found.vi);
            core.adapter.created(|| core.vi_slots.close(word));
            return Err(core.error(error));
        }
        core.vis.remove(found.handle);
        core.errors.forget(&found);
        found.end();
        Ok(())
    }

    /// Changes the attributes of a virtual interface that is [`Idle`](ViState::Idle). Receives stay
    /// posted. With another protection tag, those in memory of the former tag fail when their turn
    /// comes ([`PostDesc`](crate::ErrorCode::PostDesc)).
    ///
    /// Errors, in this order: `InvalidParameter` (the handle), `InvalidReliabilityLevel`,
    /// `InvalidMtu`, `InvalidQos`, `InvalidPtag`, `InvalidRdmaRead` (as [`Nic::create_vi`]),
    /// `InvalidParameter` (it is not idle), `ErrorResource` (the NIC is dead). Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipSetViAttributes.
    #[doc(alias = "VipSetViAttributes")]
    pub fn set_vi_attributes(&self, vi: ViHandle, attributes: &ViAttributes) -> Result<()> {
        let core = self.call()?;
        let found = core.vi(vi)?;
        core.check_attributes(attributes)?;
        let ptag = core.ptag(attributes.ptag)?;
        attributes.check_read()?;
        let _control = found.control.lock(core.adapter.platform());
        found.idle()?;
        let set = found.vi.set(Some(&ptag.pd), Some(&attributes.agent()));
        set.map_err(|error| core.ptag_or_object(error, attributes.ptag))?;
        *found.attributes.lock() = *attributes;
        Ok(())
    }

    /// The state and the attributes of a virtual interface. Those of a connected one are what was
    /// granted, since both ends have to ask for the same.
    ///
    /// A connection that broke is in [`Error`](ViState::Error) as soon as anything shows it: the
    /// NIC is asked. When the NIC is dead, virtual interfaces that were connected, or about to be,
    /// are in [`Error`](ViState::Error).
    ///
    /// Errors: `InvalidParameter` (the handle). Blocks for the device. May be called in handlers.
    /// Thread-safe. Page VipQueryVi.
    #[doc(alias = "VipQueryVi")]
    pub fn query_vi(&self, vi: ViHandle) -> Result<(ViState, ViAttributes)> {
        let core = self.core();
        if core.adapter.is_freed() {
            return Err(Error::InvalidParameter);
        }
        let found = core.vi(vi)?;
        let attributes = *found.attributes.lock();
        // A hardware error moves these two states to Error (5.2, 5.3).
        let state = match found.state() {
            ViState::Connected | ViState::ConnectPending if core.agent().is_dead() => ViState::Error,
            state => state,
        };
        Ok((state, attributes))
    }

    /// The number of the queue pair that a virtual interface is, for fault injection and
    /// diagnostics. It changes when a connection ends. An extension.
    ///
    /// Errors: `InvalidParameter` (the handle), `ErrorResource` (the NIC is dead). Does not block.
    /// May be called in handlers. Thread-safe.
    pub fn vi_qpn(&self, vi: ViHandle) -> Result<u32> {
        let core = self.live()?;
        core.vi(vi).map(|vi| vi.vi.qpn())
    }
}
