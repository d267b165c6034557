//! What the agent says of connections and of queue pairs, and the events that follow from it.

use alloc::sync::Arc;

use kernel_agent::wire::Reason;
use kernel_agent::{CmEvent, CmEventKind, ConnectionId};
use platform::sync::atomic::Ordering;

use crate::PrivateData;
use crate::cm::received;
use crate::event::{Connection, EventNumber};
use crate::handle::EpHandle;
use crate::ia::Inner;
use crate::objects::entry::{Entry, Made};
use crate::objects::ep::{Ep, Phase};
use crate::objects::evd::{Evd, Origin};

/// Whether an event was queued; `None`: the endpoint has no event dispatcher for it.
#[must_use]
struct Queued(Option<bool>);

impl Ep {
    /// Queues an event under the control's lock, so that events come in the order of the changes.
    fn queue(&self, number: EventNumber, private_data: Option<PrivateData>) -> Queued {
        let connection = Connection { ep_handle: self.handle, private_data };
        let entry = Entry::Connection(Made { number, connection, extension: None });
        Queued(self.connect.as_ref().map(|evd| evd.push(entry)))
    }
}

impl Inner {
    fn queued(&self, ep: &Ep, queued: Queued, origin: Origin) {
        if let (Some(evd), Some(queued)) = (&ep.connect, queued.0) {
            self.message_pushed(evd, queued, origin);
        }
    }

    /// Queues an event, unless the endpoint was freed meanwhile.
    pub(super) fn tell(&self, ep: &Ep, number: EventNumber, origin: Origin) {
        let queued = self.eps.with(ep.handle, |_| ep.queue(number, None));
        if let Some(queued) = queued {
            self.queued(ep, queued, origin);
        }
    }

    /// The agent's upcall about the connection of an endpoint. In the dispatcher thread.
    pub(crate) fn connection_event(&self, event: &CmEvent<'_>) {
        let Some(ep) = self.eps.get(EpHandle::from_raw(event.context)) else { return };
        let (connection, origin) = (event.connection, Origin::Upcall);
        let not_made = |number, data| self.not_established(&ep, connection, number, data, origin);
        let failed = |number| match ep.control.lock().passive {
            true => EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR,
            false => number,
        };
        match event.kind {
            CmEventKind::Established { .. } => {
                let queued = {
                    let mut control = ep.control.lock();
                    let pending = control.phase.is_pending();
                    if !control.connection.concerns(connection, pending) || !pending {
                        return;
                    }
                    ep.set_phase(&mut control, Phase::Connected);
                    ep.queue(EventNumber::CONNECTION_ESTABLISHED, received(event.private_data))
                };
                self.queued(&ep, queued, origin);
            }
            CmEventKind::Rejected { reason: Reason::CONSUMER_DEFINED } => {
                not_made(EventNumber::CONNECTION_PEER_REJECTED, received(event.private_data));
            }
            CmEventKind::Rejected { .. } => {
                not_made(failed(EventNumber::CONNECTION_NON_PEER_REJECTED), None);
            }
            CmEventKind::Unreachable | CmEventKind::AcceptTimedOut => {
                not_made(failed(EventNumber::CONNECTION_TIMED_OUT), None);
            }
            CmEventKind::Disconnected { by_peer } => self.disconnected(&ep, event, by_peer),
            // Connections are made in two ways, and without streams; requests are the service
            // points'. The agent refuses an answer to a request that was withdrawn.
            CmEventKind::Request { .. }
            | CmEventKind::Withdrawn
            | CmEventKind::AcceptArrived { .. }
            | CmEventKind::TransitionRequested => {}
        }
    }

    /// A connection was not made.
    pub(super) fn not_established(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        number: EventNumber,
        private_data: Option<PrivateData>,
        origin: Origin,
    ) {
        let concerns = || {
            let mut control = ep.control.lock();
            let pending = control.phase.is_pending();
            (control.connection.concerns(connection, pending) && pending).then_some(control)
        };
        if concerns().is_none() {
            return;
        }
        // Before the event: a consumer that takes the event finds the requests flushed.
        let _ = ep.qp.to_error();
        let queued = {
            let Some(mut control) = concerns() else { return };
            ep.set_phase(&mut control, Phase::Ended);
            control.connection.part();
            ep.queue(number, private_data)
        };
        self.queued(ep, queued, origin);
    }

    fn disconnected(&self, ep: &Ep, event: &CmEvent<'_>, by_peer: bool) {
        let queued = {
            let mut control = ep.control.lock();
            let pending = control.phase.is_pending();
            if !control.connection.concerns(event.connection, pending) {
                return;
            }
            control.connection.part();
            if !pending && control.phase != Phase::Connected {
                return;
            }
            ep.set_phase(&mut control, Phase::Ended);
            match by_peer {
                true => ep.queue(EventNumber::CONNECTION_DISCONNECTED, received(event.private_data)),
                false => ep.queue(EventNumber::CONNECTION_BROKEN, None),
            }
        };
        self.queued(ep, queued, Origin::Upcall);
    }

    /// An endpoint has failed: its present queue pair, or, with a number, the one of that number.
    pub(crate) fn broken(&self, ep: EpHandle, qpn: Option<u32>, origin: Origin) {
        let Some(ep) = self.eps.get(ep) else { return };
        let queued = {
            let mut control = ep.control.lock();
            // Checked under the lock: before, another call may have reset the endpoint, which may
            // have another connection by now.
            let failed = |now: Arc<Ep>| qpn.is_none_or(|qpn| qpn == now.qp.qpn());
            if !self.eps.get(ep.handle).is_some_and(failed) {
                return;
            }
            if ep.is_ud() {
                // The change of state has no event; the event of the failure itself reports it.
                control.failed = true;
                ep.set_longest_datagram(&control);
                return;
            }
            let number = match control.phase {
                Phase::Connected => EventNumber::CONNECTION_BROKEN,
                Phase::Active => EventNumber::CONNECTION_NON_PEER_REJECTED,
                Phase::Passive => EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR,
                Phase::Unconnected | Phase::Ended => return,
            };
            ep.set_phase(&mut control, Phase::Ended);
            ep.queue(number, None)
        };
        self.queued(&ep, queued, origin);
    }

    /// Breaks the endpoints whose completions come to an event dispatcher that lost some.
    pub(crate) fn lose_endpoints(&self, evd: &Evd, origin: Origin) {
        for ep in self.eps.all() {
            if core::ptr::eq(&*ep.request, evd) || core::ptr::eq(&*ep.recv, evd) {
                ep.lost.store(true, Ordering::Release);
                self.broken(ep.handle, None, origin);
            }
        }
    }
}
