//! The agent's upcalls to the IA. The agent's dispatcher thread makes them one at a time, and holds
//! no lock meanwhile.

use alloc::sync::Arc;

use kernel_agent::{AsyncEvent, CmEvent, Death, NicEvent, ResolutionEvent, Upcalls, ViError};

use crate::evd::EventStreams;
use crate::evd::callback::Origin;
use crate::event::{AffiliatedCause, EventType};
use crate::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::ia::{Core, Ia};
use crate::objects::ep::Ep;
use crate::{iwarp, via};

impl Upcalls for Core {
    fn completion(&self, cq_context: u64) {
        let Some(evd) = self.evds.get(EvdHandle::from_raw(cq_context)) else { return };
        let Some(ia) = self.ia() else { return };
        self.announce(&evd, Origin::Upcall(&ia));
    }

    fn asynchronous(&self, event: AsyncEvent) {
        let Some(ia) = self.ia() else { return };
        let origin = Origin::Upcall(&ia);
        match event {
            AsyncEvent::Qp { context, qpn, event, completes, .. } => {
                self.queue_pair(EpHandle::from_raw(context), qpn, event, completes, &ia);
            }
            AsyncEvent::Cq { context } => {
                if let Some(evd) = self.evds.get(EvdHandle::from_raw(context)) {
                    self.overflow(&evd, EventStreams::COMPLETIONS, origin);
                    self.lose_endpoints(&evd, origin);
                    evd.wake();
                }
            }
            AsyncEvent::Srq { context, event: NicEvent::SrqLimit } => {
                let cause = AffiliatedCause::Srq(SrqHandle::from_raw(context));
                self.report_affiliated(EventType::ASYNC_AFF_SRQ_LOW_WATERMARK, cause, origin);
            }
            // The NIC could not access the SRQ's memory. Each endpoint that needs a Receive from
            // the SRQ fails in turn, and its own event reports that.
            AsyncEvent::Srq { context, .. } => {
                log::warn!("{:?} failed", SrqHandle::from_raw(context));
            }
            AsyncEvent::Vi { context, number, error, .. } => {
                self.virtual_interface(EpHandle::from_raw(context), number, error, &ia);
            }
            AsyncEvent::StreamEnded { context, qpn, fault, terminate, completes } => {
                let event = iwarp::events::event(fault, terminate).filter(|_| !completes);
                self.failed(EpHandle::from_raw(context), qpn, event, &ia);
            }
            AsyncEvent::Port { .. } if !self.facts().port_events => {}
            AsyncEvent::Port { up: true } => {
                self.report_unaffiliated(EventType::ASYNC_UNAFF_SPIGOT_ONLINE, origin)
            }
            AsyncEvent::Port { up: false } => {
                self.report_unaffiliated(EventType::ASYNC_UNAFF_SPIGOT_OFFLINE, origin);
            }
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        if let Some(ia) = self.ia() {
            self.connection_event(&event, &ia);
        }
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        if let Some(ia) = self.ia() {
            self.resolution_event(&event, &ia);
        }
    }

    fn catastrophic(&self, _death: Death) {
        self.disable();
    }
}

impl Core {
    /// Handles an event of a queue pair. If a completion reports the failure (`completes`), no
    /// asynchronous event does. Any other failure is reported by an affiliated event
    /// (it_affiliated_event_t, table for InfiniBand). So is an access by the peer for which it has
    /// no right.
    fn queue_pair(&self, ep: EpHandle, qpn: u32, event: NicEvent, completes: bool, ia: &Ia) {
        let reported = match event {
            NicEvent::QpFatal | NicEvent::QpInvalidRequest if completes => None,
            NicEvent::QpFatal => Some(EventType::ASYNC_AFF_EP_FAILURE),
            NicEvent::QpInvalidRequest => Some(EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE),
            NicEvent::QpAccessError => Some(EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION),
            _ => return,
        };
        self.failed(ep, qpn, reported, ia);
    }

    /// A queue pair has failed, which this event reports if there is one.
    fn failed(&self, ep: EpHandle, qpn: u32, reported: Option<EventType>, ia: &Ia) {
        let origin = Origin::Upcall(ia);
        // Change the endpoint's state before the event is queued, so that a consumer that takes the
        // event sees the new state.
        self.broken(ep, Some(qpn), origin);
        if let Some(event_number) = reported {
            self.report_affiliated(event_number, AffiliatedCause::Ep(ep), origin);
        }
    }

    /// Handles an error of a virtual interface that no descriptor reports, and that breaks its
    /// connection. The loss of a connection itself is no such error: an event of the connection
    /// follows, which says whether the peer's consumer ended it.
    fn virtual_interface(&self, ep: EpHandle, number: u32, error: ViError, ia: &Ia) {
        let origin = Origin::Upcall(ia);
        let same = |ep: Arc<Ep>| self.as_it_is(&ep).is_ok_and(|ep| ep.pair.number() == number);
        let Some(event_number) = via::status::event(error) else { return };
        if self.eps.get(ep).is_some_and(same) {
            // The state first, as above.
            self.broken(ep, Some(number), origin);
            self.report_affiliated(event_number, AffiliatedCause::Ep(ep), origin);
        }
    }
}
