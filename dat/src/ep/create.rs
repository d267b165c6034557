//! Creating endpoints (dat_ep_create, dat_ep_create_with_srq).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use platform::SleepLock;
use platform::sync::Mutex;
use privileged_api as it;

use super::{Control, Datagrams, Ep};
use crate::attr::EpAttr;
use crate::error::{MODEL, handle, of, parameter};
use crate::flags::{CompletionFlags, Qos, ServiceType, WATERMARK_INFINITE};
use crate::handle::{EpHandle, EvdHandle, PzHandle, SrqHandle};
use crate::ia::{Ia, Inner, SPIGOT};
use crate::ret::{Result, Subtype};

/// The key of datagram endpoints: the one that Linux's rdma_cm uses (`RDMA_UDP_QKEY`), so that
/// datagrams pass between both.
pub(crate) const UD_QKEY: u32 = 0x0123_4567;

/// The handles that an endpoint is created with.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) pz: PzHandle,
    pub(super) recv: EvdHandle,
    pub(super) request: EvdHandle,
    pub(super) connect: EvdHandle,
    pub(super) srq: Option<SrqHandle>,
}

impl Ia {
    /// Creates an endpoint in UNCONNECTED, for connections or ([`ServiceType::IB_UD`]) for
    /// datagrams.
    ///
    /// A null event dispatcher means that the consumer wants no such events. A null zone and a null
    /// event dispatcher of connection events can be replaced with [`Ia::ep_modify`], and have to be
    /// before the endpoint connects. Without attributes the endpoint gets [`EpAttr::default`],
    /// otherwise exactly the requested ones; but the longest message of a datagram endpoint is at
    /// most the port's MTU. All streams of completions of one event dispatcher need the same
    /// completion flags, and solicited Receives share an event dispatcher with no other stream.
    ///
    /// Errors: `InvalidHandle` (subtypes PZ, EVD_RECV, EVD_REQUEST, EVD_CONN: also one without the
    /// stream), `InvalidParameter` (attributes beyond the adapter's limits, undefined or not
    /// allowed flags, flags that clash on an event dispatcher), `ModelNotSupported` (datagrams, if
    /// the adapter lacks them; another quality of service than best effort),
    /// `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not for
    /// upcalls. Thread-safe. dat_ep_create.
    #[doc(alias = "dat_ep_create")]
    pub fn ep_create(
        &self,
        pz: PzHandle,
        recv_evd: EvdHandle,
        request_evd: EvdHandle,
        connect_evd: EvdHandle,
        attributes: Option<&EpAttr>,
    ) -> Result<EpHandle> {
        let attr = attributes.copied().unwrap_or_default();
        let parts = Parts { pz, recv: recv_evd, request: request_evd, connect: connect_evd, srq: None };
        self.create_ep(&parts, attr)
    }

    /// Creates an endpoint, for connections, that takes its Receives from a shared receive queue.
    ///
    /// As [`Ia::ep_create`], with these differences. The zone of the endpoint may differ from the
    /// zone of the queue, which applies to the memory of Receives. `max_recv_iov` is ignored, and
    /// `max_recv_dtos`, up to what an endpoint can have, limits nothing: the Receives are the
    /// queue's. The consumer cannot post Receives to the endpoint itself. Receives complete with
    /// notification, or, with `SOLICITED_WAIT`, as the sender wants. `UNSIGNALLED` is refused,
    /// since the Receives of a shared queue have no flags.
    ///
    /// Errors: as [`Ia::ep_create`], `InvalidHandle` (subtype SRQ), `InvalidParameter` (a datagram
    /// endpoint; `srq_soft_hw` other than [`WATERMARK_INFINITE`]), `ModelNotSupported` (the adapter
    /// lacks shared receive queues). Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_ep_create_with_srq.
    #[doc(alias = "dat_ep_create_with_srq")]
    pub fn ep_create_with_srq(
        &self,
        pz: PzHandle,
        recv_evd: EvdHandle,
        request_evd: EvdHandle,
        connect_evd: EvdHandle,
        srq: SrqHandle,
        attributes: &EpAttr,
    ) -> Result<EpHandle> {
        self.inner.live()?;
        if !self.inner.offers.srq() {
            return Err(MODEL);
        }
        let parts = Parts { pz, recv: recv_evd, request: request_evd, connect: connect_evd, srq: Some(srq) };
        self.create_ep(&parts, *attributes)
    }

    fn create_ep(&self, parts: &Parts, attr: EpAttr) -> Result<EpHandle> {
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let attr = inner.checked(attr, parts.srq.is_some())?;
        let wanted = &super::Control::unmade(attr, parts).streams();
        inner.join_all(wanted, argument(parts.srq.is_some()))?;
        let made = inner.make_ep(parts, attr);
        if made.is_err() {
            inner.leave_all(wanted);
        }
        made
    }
}

impl Control {
    pub(super) fn unmade(attr: EpAttr, parts: &Parts) -> Control {
        Control {
            attr,
            pz: parts.pz,
            recv: parts.recv,
            request: parts.request,
            connect: parts.connect,
            srq: parts.srq.unwrap_or_default(),
            unwanted: None,
            reserved: None,
            pending: None,
            passive: false,
            draining: false,
            remote: None,
            local_port: 0,
            datagrams: Datagrams::default(),
            gone: false,
        }
    }
}

/// The completion flags that an endpoint's requests and its Receives can have.
const OF_REQUESTS: [CompletionFlags; 3] =
    [CompletionFlags::DEFAULT, CompletionFlags::UNSIGNALLED, CompletionFlags::EVD_THRESHOLD];
const OF_RECEIVES: [CompletionFlags; 4] = [
    CompletionFlags::DEFAULT,
    CompletionFlags::UNSIGNALLED,
    CompletionFlags::SOLICITED_WAIT,
    CompletionFlags::EVD_THRESHOLD,
];

/// The most that an endpoint's attributes can be, as a query of the IA returns them.
pub(crate) struct Limits {
    pub(crate) message: u64,
    pub(crate) dtos: usize,
    pub(crate) segments: usize,
    pub(crate) reads: u32,
}

/// Whether an attribute is beyond the adapter's limits. An endpoint reports what it was created
/// with, so this looks also at attributes that its kind has no use for; but `max_recv_iov` is
/// ignored with a shared receive queue (dat_ep_create_with_srq).
fn beyond(attr: &EpAttr, most: &Limits, srq: bool) -> bool {
    let recv_iov = if srq { 0 } else { attr.max_recv_iov };
    let segments = [attr.max_request_iov, attr.max_rdma_read_iov, attr.max_rdma_write_iov, recv_iov];
    attr.max_message_size.max(attr.max_rdma_size) > most.message
        || attr.max_recv_dtos.max(attr.max_request_dtos) > most.dtos
        || segments.into_iter().any(|count| count > most.segments)
        || attr.max_rdma_read_in.max(attr.max_rdma_read_out) > most.reads
}

impl Inner {
    /// The attributes that the endpoint gets; fails for attributes that it cannot have.
    pub(super) fn checked(&self, mut attr: EpAttr, srq: bool) -> Result<EpAttr> {
        let bad = parameter(argument(srq));
        if attr.qos != Qos::BEST_EFFORT {
            return Err(if Qos::from_bits(attr.qos.bits()).is_some() { MODEL } else { bad });
        }
        let receives = OF_RECEIVES.contains(&attr.recv_completion_flags);
        let unsignalled = srq && attr.recv_completion_flags == CompletionFlags::UNSIGNALLED;
        if !receives || unsignalled || !OF_REQUESTS.contains(&attr.request_completion_flags) {
            return Err(bad);
        }
        if srq && attr.srq_soft_hw != WATERMARK_INFINITE {
            return Err(bad);
        }
        match attr.service_type {
            ServiceType::RC => {}
            ServiceType::IB_UD if srq => return Err(bad),
            ServiceType::IB_UD if self.offers.datagrams() => {
                attr.max_message_size = attr.max_message_size.min(self.it.identity().mtu.into());
            }
            ServiceType::IB_UD => return Err(MODEL),
            _ => return Err(bad),
        }
        if beyond(&attr, &self.limits(), srq) {
            return Err(bad);
        }
        Ok(attr)
    }

    /// The most that an endpoint's attributes can be.
    pub(crate) fn limits(&self) -> Limits {
        let id = self.it.identity();
        // The block of a request with one segment.
        let requests = id.max_sq_blocks as usize / 2;
        Limits {
            message: id.max_message,
            dtos: requests.min(id.max_rq_entries as usize),
            segments: id.max_sges as usize,
            reads: id.max_rd_atomic.min(255),
        }
    }

    /// The attributes, as IT-API takes them.
    pub(super) fn inner_attributes(&self, attr: &EpAttr, srq: Option<SrqHandle>) -> it::EpAttributes {
        let datagrams = attr.service_type == ServiceType::IB_UD;
        let longest =
            if datagrams { attr.max_message_size } else { attr.max_message_size.max(attr.max_rdma_size) };
        it::EpAttributes {
            max_dto_payload_size: usize::try_from(longest).unwrap_or(usize::MAX),
            max_request_dtos: attr.max_request_dtos,
            max_recv_dtos: if srq.is_some() { 0 } else { attr.max_recv_dtos },
            max_send_segments: attr.max_request_iov,
            max_recv_segments: if srq.is_some() { 0 } else { attr.max_recv_iov },
            rc: it::RcAttributes {
                // Memory regions and windows limit what peers may do, not the endpoint.
                rdma_read_enable: true,
                rdma_write_enable: true,
                atomics_enable: self.offers.atomics(),
                max_rdma_read_segments: attr.max_rdma_read_iov,
                max_rdma_write_segments: attr.max_rdma_write_iov,
                rdma_read_ird: attr.max_rdma_read_in,
                rdma_read_ord: attr.max_rdma_read_out,
                srq: srq.map_or(it::SrqHandle::NULL, SrqHandle::inner),
                soft_hi_watermark: 0,
                hard_hi_watermark: 0,
            },
            ud: it::UdAttributes { ep_info: it::RemoteEpInfo { ud_ep_id: 0, ud_ep_key: UD_QKEY } },
            priv_ops_enable: false,
        }
    }

    /// The zone and the IT-API event dispatchers, in the order of it_ep_rc_create; then the event
    /// dispatcher that was made for completions that the consumer does not want.
    pub(super) fn inner_parts(
        &self,
        parts: &Parts,
        attr: &EpAttr,
    ) -> Result<(it::PzHandle, [it::EvdHandle; 3], Option<it::EvdHandle>)> {
        let pz = if parts.pz.is_null() { self.hidden_zone()? } else { parts.pz.inner() };
        let connect = match self.evds.get(parts.connect) {
            Some(evd) => evd.messages().ok_or(handle(Subtype::InvalidHandleEvdConn))?,
            None => self.hidden_messages()?,
        };
        let unwanted = match parts.recv.is_null() || parts.request.is_null() {
            true => Some(self.unwanted(self.most_completions(attr, parts.srq)?)?),
            false => None,
        };
        let named = self.completions_of(parts.request, unwanted).and_then(|request| {
            let recv = self.completions_of(parts.recv, unwanted)?;
            Ok((pz, [request, recv, connect], unwanted))
        });
        named.inspect_err(|_| self.free_unwanted(unwanted))
    }

    /// The most completions of an endpoint that can be queued at a time. One endpoint may take all
    /// Receives of a shared receive queue.
    fn most_completions(&self, attr: &EpAttr, srq: Option<SrqHandle>) -> Result<usize> {
        let receives = match srq {
            Some(srq) => self.it.srq_query(srq.inner(), it::SrqParamMask::MAX_RECV_DTO)?.max_recv_dtos,
            None => attr.max_recv_dtos,
        };
        Ok(receives.saturating_add(attr.max_request_dtos))
    }

    /// Before a shared receive queue grows to `receives`: enlarges the event dispatchers that drop
    /// unwanted completions of its endpoints.
    pub(crate) fn make_room(&self, srq: SrqHandle, receives: usize) -> Result<()> {
        for ep in self.eps.all() {
            let (unwanted, requests) = {
                let control = ep.control.lock();
                let of_srq = control.srq == srq;
                (control.unwanted.filter(|_| of_srq), control.attr.max_request_dtos)
            };
            let Some(evd) = unwanted else { continue };
            let room = receives.saturating_add(requests);
            if self.it.evd_query(evd, it::EvdParamMask::QUEUE_SIZE)?.sevd_queue_size < room {
                let size = it::EvdParam { sevd_queue_size: room, ..it::EvdParam::default() };
                self.it.evd_modify(evd, it::EvdParamMask::QUEUE_SIZE, &size)?;
            }
        }
        Ok(())
    }

    pub(super) fn free_unwanted(&self, unwanted: Option<it::EvdHandle>) {
        if let Some(unwanted) = unwanted {
            let _ = self.it.evd_callback_detach(unwanted);
            let _ = self.it.evd_free(unwanted);
        }
    }

    /// Creates an event dispatcher for completions that the consumer does not want: a callback
    /// takes and drops them. It has room for all outstanding completions of an endpoint.
    fn unwanted(&self, most: usize) -> Result<it::EvdHandle> {
        let (stream, policy) = (it::EventType::DTO_EVENT_STREAM, it::EvdFlags::OVERFLOW_DEFAULT);
        let made = self.it.evd_create(stream, policy, most.max(1), 1, it::EvdHandle::NULL);
        let evd = made.map_err(|error| match error {
            it::Error::ResourceQueueSize => parameter(Subtype::InvalidArg6),
            other => other.into(),
        })?;
        let me = self.weak();
        platform::heap::room(64)?;
        let drop_all = Box::new(move |ia: &it::Ia, evd| {
            for _ in 0..MOST_AT_ONCE {
                let Ok(taken) = ia.evd_dequeue_extended(evd) else { return };
                if let (Some(inner), it::Event::Dto(done)) = (me.upgrade(), taken.event) {
                    inner.not_wanted(&done);
                }
            }
        });
        self.it.evd_callback_attach(evd, drop_all).map_err(of).inspect_err(|_| {
            let _ = self.it.evd_free(evd);
        })?;
        Ok(evd)
    }

    /// The effects of a completion that the consumer does not want.
    fn not_wanted(&self, done: &it::DtoCompletion) {
        if done.event_number == it::EventType::RMR_LINK_CMPL
            && let Some(ep) = self.eps.get(EpHandle::of(done.ep))
        {
            ep.take_bind();
        }
    }

    fn make_ep(&self, parts: &Parts, attr: EpAttr) -> Result<EpHandle> {
        let (pz, [request, recv, connect], unwanted) = self.inner_parts(parts, &attr)?;
        let inner_attr = self.inner_attributes(&attr, parts.srq);
        let created = match attr.service_type {
            ServiceType::IB_UD => self.it.ep_ud_create(pz, request, recv, &inner_attr, SPIGOT),
            _ => {
                let flags = if parts.srq.is_some() { it::EpFlags::SRQ } else { it::EpFlags::empty() };
                self.it.ep_rc_create(pz, request, recv, connect, flags, &inner_attr)
            }
        };
        let created = created.map_err(|error| refused(error, argument(parts.srq.is_some())));
        let ep = created.inspect_err(|_| self.free_unwanted(unwanted))?;
        let handle = EpHandle::of(ep);
        let control = Control { unwanted, ..Control::unmade(attr, parts) };
        let made = Inner::shared(Ep {
            handle,
            turn: SleepLock::new(),
            control: Mutex::new(control),
            binds: Mutex::new(VecDeque::new()),
        });
        let recorded = made.and_then(|made| {
            self.configs.reach(handle)?;
            self.configs.set(handle, &made.control.lock());
            self.eps.insert(handle, made)
        });
        if let Err(error) = recorded {
            let _ = self.it.ep_free(ep);
            self.free_unwanted(unwanted);
            return Err(error);
        }
        Ok(handle)
    }
}

/// The subtype that names the attributes by their place among the arguments.
const fn argument(srq: bool) -> Subtype {
    if srq { Subtype::InvalidArg7 } else { Subtype::InvalidArg6 }
}

/// The most completions that a callback drops at once. The callback runs again only after the queue
/// was empty, so this has to exceed the length of every queue.
const MOST_AT_ONCE: usize = 1 << 20;

/// The error of a failed creation: attributes that are too much together are a bad argument.
pub(super) fn refused(error: it::Error, argument: Subtype) -> crate::ret::Error {
    use it::Error as It;
    match error {
        It::PayloadSize
        | It::ResourceReqDto
        | It::ResourceRecvDto
        | It::ResourceSseg
        | It::ResourceRseg
        | It::ResourceRrseg
        | It::ResourceRwseg
        | It::ResourceIrd
        | It::ResourceOrd => parameter(argument),
        other => other.into(),
    }
}
