//! The agent's upcalls to the IA. The agent's dispatcher thread makes them one at a time, and holds
//! no lock meanwhile.

use kernel_agent::{AsyncEvent, CmEvent, CmEventKind, Death, NicEvent, ResolutionEvent, Upcalls};

use crate::event::{AsyncReason, EventNumber};
use crate::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::ia::Inner;
use crate::objects::evd::Origin;

impl Upcalls for Inner {
    fn completion(&self, cq_context: u64) {
        if let Some(evd) = self.evds.get(EvdHandle::from_raw(cq_context)) {
            self.announce(&evd, Origin::Upcall);
        }
    }

    fn asynchronous(&self, event: AsyncEvent) {
        let origin = Origin::Upcall;
        match event {
            AsyncEvent::Qp { context, qpn, event, completes, .. } => {
                self.queue_pair(EpHandle::from_raw(context), qpn, event, completes);
            }
            AsyncEvent::Cq { context } => {
                if let Some(evd) = self.evds.get(EvdHandle::from_raw(context)) {
                    self.completions_lost(&evd, origin);
                    self.lose_endpoints(&evd, origin);
                    evd.dispatcher.wake();
                }
            }
            AsyncEvent::Srq { context, event: NicEvent::SrqLimit } => {
                let number = EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
                let srq = SrqHandle::from_raw(context);
                self.report_error(number, srq, AsyncReason::SrqLowWatermark, origin);
            }
            // The NIC could not access the queue's memory. Each endpoint that needs a Receive from
            // it fails in turn, and its own event reports that.
            AsyncEvent::Srq { context, .. } => {
                log::warn!("{:?} failed", SrqHandle::from_raw(context));
            }
            AsyncEvent::Port { .. } => self.report_ia_error(origin),
            // There are neither virtual interfaces nor streams.
            AsyncEvent::Vi { .. } | AsyncEvent::StreamEnded { .. } => {}
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        match event.kind {
            CmEventKind::Request { .. } => self.connection_requested(&event),
            _ => self.connection_event(&event),
        }
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        self.resolution_event(&event);
    }

    fn catastrophic(&self, _death: Death) {
        self.dead();
    }
}

impl Inner {
    /// The connection of an endpoint is over, and it takes no more Receives from its shared receive
    /// queue.
    fn last_receive(&self, ep: EpHandle, qpn: u32) {
        // The endpoint may have been reset or freed since then.
        if self.eps.with(ep, |ep| ep.qp.qpn() == qpn) == Some(true) {
            let number = EventNumber::ASYNC_ERROR_EP_BROKEN;
            self.report_error(number, ep, AsyncReason::EpTransferToError, Origin::Upcall);
        }
    }

    /// Handles an event of a queue pair. If a completion reports the failure (`completes`), no
    /// asynchronous event does.
    fn queue_pair(&self, ep: EpHandle, qpn: u32, event: NicEvent, completes: bool) {
        let reported = match event {
            NicEvent::SendQueueDrained => return self.drained(ep, qpn),
            NicEvent::LastWqeReached => return self.last_receive(ep, qpn),
            NicEvent::QpFatal | NicEvent::QpInvalidRequest if completes => None,
            NicEvent::QpFatal => Some(AsyncReason::EpTransferToError),
            NicEvent::QpInvalidRequest | NicEvent::QpAccessError => Some(AsyncReason::EpOther),
            _ => return,
        };
        // Change the endpoint's state before the event is queued, so that a consumer that takes the
        // event sees the new state.
        self.broken(ep, Some(qpn), Origin::Upcall);
        if let Some(reason) = reported {
            self.report_error(EventNumber::ASYNC_ERROR_EP_BROKEN, ep, reason, Origin::Upcall);
        }
    }
}
