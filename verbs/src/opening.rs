//! An opening of a NIC: what is behind a context of C. It has the objects by the handles that the
//! agent's events name.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::mem::offset_of;
use std::collections::HashMap;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use kernel_agent::{Agent, AsyncEvent, Client, CmEvent, Death, NicEvent, Qp, ResolutionEvent, Upcalls, key};
use rdma::handle::Tag;
use rdma::{Adapter, Face, Opening as Begun, Table, handles};

use crate::abi::{self, event};
use crate::channel::{AsyncQueue, Element};
use crate::errno::Errno;
use crate::origin::Origin;
use crate::stepped::Stepped;
use crate::{cq, gid, qp, srq};

handles! {
    /// A queue pair.
    QpHandle = Tag::new(0);
    /// A completion queue.
    CqHandle = Tag::new(1);
    /// A shared receive queue.
    SrqHandle = Tag::new(2);
}

/// Local keys by their slots: C names a region or window to be invalidated by its remote key. The
/// device compares the rest of that key when it invalidates.
#[derive(Default)]
pub(crate) struct KeyNames(HashMap<u32, u32>);

impl KeyNames {
    pub(crate) fn add(&mut self, local: u32) {
        self.0.insert(key::slot(local), local);
    }

    pub(crate) fn remove(&mut self, local: u32) {
        // The slot may have its next owner already.
        if self.0.get(&key::slot(local)) == Some(&local) {
            self.0.remove(&key::slot(local));
        }
    }

    /// The local key of the region or window of which this is a remote key, or was one.
    pub(crate) fn local(&self, remote: u32) -> Option<u32> {
        self.0.get(&key::slot(remote)).copied()
    }
}

/// Who hears of connections. An opening whose program moves its queue pairs itself has nobody.
pub(crate) trait Connections: Send + Sync {
    /// Something happened to a connection. In the dispatcher thread.
    fn connection(&self, event: &CmEvent<'_>);
    /// Something happened to a datagram service. In the dispatcher thread.
    fn resolution(&self, event: &ResolutionEvent<'_>);
    /// The program has destroyed the queue pair of this context.
    fn queue_pair_ended(&self, context: u64);
    /// The device is dead.
    fn device_died(&self);
}

pub(crate) struct Opening {
    adapter: Adapter<Opening>,
    pub(crate) origin: Origin,
    pub(crate) stepped: Option<Arc<dyn Stepped>>,
    /// The service level of datagrams that were received ([`gid::datagram_kind`]).
    pub(crate) datagram_kind: u8,
    pub(crate) qps: Table<QpHandle, qp::Events>,
    pub(crate) cqs: Table<CqHandle, cq::Events>,
    pub(crate) srqs: Table<SrqHandle, srq::Events>,
    keys: RwLock<KeyNames>,
    /// Queue pairs by their numbers, as programs name those that they move themselves.
    numbers: Mutex<HashMap<u32, Weak<Qp>>>,
    pub(crate) asynchronous: AsyncQueue,
    pub(crate) connections: OnceLock<Box<dyn Connections>>,
}

impl Opening {
    pub(crate) fn open(
        agent: &Arc<Agent>,
        stepped: &Option<Arc<dyn Stepped>>,
    ) -> Result<Arc<Opening>, Errno> {
        let asynchronous = AsyncQueue::new()?;
        let no_memory = |_| libc::ENOMEM;
        let begun = Begun::begin(agent.clone(), "verbs").map_err(no_memory)?;
        let (number, identity) = (begun.number(), agent.identity());
        let qps = Table::new(number, identity.max_qps, 0).map_err(no_memory)?;
        let cqs = Table::new(number, identity.max_cqs, 0).map_err(no_memory)?;
        let srqs = Table::new(number, identity.max_srqs, 0).map_err(no_memory)?;
        begun
            .open(u32::MAX, None, |adapter| Opening {
                adapter,
                origin: Origin::here(),
                stepped: stepped.clone(),
                datagram_kind: gid::datagram_kind(agent),
                qps,
                cqs,
                srqs,
                keys: RwLock::default(),
                numbers: Mutex::default(),
                asynchronous,
                connections: OnceLock::new(),
            })
            .map_err(no_memory)
    }

    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.adapter.agent()
    }

    pub(crate) fn client(&self) -> Result<&Arc<Client>, Errno> {
        self.origin.check()?;
        self.adapter.client().ok_or(libc::EIO)
    }

    pub(crate) fn keys(&self) -> RwLockReadGuard<'_, KeyNames> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keys_mut(&self) -> RwLockWriteGuard<'_, KeyNames> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queue pairs by their numbers. The lock is a leaf.
    pub(crate) fn numbers(&self) -> MutexGuard<'_, HashMap<u32, Weak<Qp>>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes it: objects that are left are destroyed.
    pub(crate) fn close(&self) {
        let _ = self.adapter.end(self, || Ok::<(), rdma::Ended>(()));
    }

    fn tell_of_qp(&self, context: u64, what: i32) {
        if let Some(qp) = self.qps.get(QpHandle::from_raw(context)) {
            self.asynchronous.push(Element::Qp(qp), what);
        }
    }
}

impl Upcalls for Opening {
    fn completion(&self, context: u64) {
        if let Some(cq) = self.cqs.get(CqHandle::from_raw(context)) {
            cq.announce();
        }
    }

    fn asynchronous(&self, what: AsyncEvent) {
        match what {
            AsyncEvent::Cq { context } => {
                if let Some(cq) = self.cqs.get(CqHandle::from_raw(context)) {
                    self.asynchronous.push(Element::Cq(cq), event::CQ_ERR);
                }
            }
            AsyncEvent::Srq { context, event: what } => {
                let what = match what {
                    NicEvent::SrqLimit => event::SRQ_LIMIT_REACHED,
                    NicEvent::SrqError => event::SRQ_ERR,
                    _ => return,
                };
                if let Some(srq) = self.srqs.get(SrqHandle::from_raw(context)) {
                    self.asynchronous.push(Element::Srq(srq), what);
                }
            }
            AsyncEvent::Qp { context, event: what, completes, .. } => {
                let what = match what {
                    NicEvent::CommunicationEstablished => event::COMM_EST,
                    NicEvent::SendQueueDrained => event::SQ_DRAINED,
                    NicEvent::LastWqeReached => event::QP_LAST_WQE_REACHED,
                    // Otherwise a completion tells of it.
                    NicEvent::QpFatal if !completes => event::QP_FATAL,
                    NicEvent::QpInvalidRequest => event::QP_REQ_ERR,
                    NicEvent::QpAccessError => event::QP_ACCESS_ERR,
                    _ => return,
                };
                self.tell_of_qp(context, what);
            }
            AsyncEvent::Port { up } => {
                let what = if up { event::PORT_ACTIVE } else { event::PORT_ERR };
                self.asynchronous.push(Element::Port, what);
            }
            // There are neither virtual interfaces nor streams here.
            AsyncEvent::StreamEnded { .. } | AsyncEvent::Vi { .. } => {}
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        if let Some(connections) = self.connections.get() {
            connections.connection(&event);
        }
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        if let Some(connections) = self.connections.get() {
            connections.resolution(&event);
        }
    }

    fn catastrophic(&self, _death: Death) {
        self.adapter.disable(self);
    }
}

impl Face for Opening {
    fn adapter(&self) -> &Adapter<Opening> {
        &self.adapter
    }

    /// The agent closes the queues of a device that is dead.
    fn close_queues(&self) {}

    /// A thread that waits for a completion is woken by the asynchronous event at most, as with
    /// rdma-core.
    fn wake_all(&self) {}

    fn device_died(&self) {
        self.asynchronous.push(Element::Port, event::DEVICE_FATAL);
        if let Some(connections) = self.connections.get() {
            connections.device_died();
        }
    }

    /// The agent destroys what is left when the opening detaches.
    fn destroy_objects(&self) {}
}

/// Pointers to functions in front of a context; the last word there is the size.
pub(crate) const SLOTS: usize = 39;

/// A context: `struct verbs_context`, whose last field is `struct ibv_context`, and what is behind.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) slots: [usize; SLOTS],
    pub(crate) size: usize,
    pub(crate) abi: abi::Context,
    pub(crate) opening: Arc<Opening>,
}

impl Context {
    /// `EIO` in a child of the process that opened it.
    ///
    /// # Safety
    ///
    /// As [`Context::opening`].
    pub(crate) unsafe fn check(context: *mut abi::Context) -> Result<(), Errno> {
        // SAFETY: the caller's.
        unsafe { Context::opening(context) }.origin.check()
    }

    /// # Safety
    ///
    /// The pointer is one that [`open_device`](crate::device::open_device) returned.
    pub(crate) unsafe fn opening<'a>(context: *mut abi::Context) -> &'a Arc<Opening> {
        // SAFETY: the caller's: `abi` lies so far behind the beginning.
        unsafe { &(*context.byte_sub(offset_of!(Context, abi)).cast::<Context>()).opening }
    }
}
