//! The dispatcher thread of an agent: events, management datagrams, timers, the device's heartbeat,
//! and all upcalls.
//!
//! It sleeps on the driver's signal, which each interrupt raises, until the next timer and for
//! [`WATCH`] at most. It holds no lock of the agent while it works.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::cqe;
use nic_abi::eqe::{Eqe, EventType, NO_COMPLETION, REFUSED};
use nic_abi::ident;
use nic_hal::EventQueue;
use platform::Instant;

use crate::agent::Agent;
use crate::cq::Cq;
use crate::{AsyncEvent, Upcalls};

/// Time between two looks at the device's heartbeat.
const WATCH: Duration = Duration::from_millis(250);
/// How many events the thread handles before the other sources of work get their turn.
const BATCH: usize = 64;

/// What the dispatcher thread owns.
pub(crate) struct Dispatcher {
    asynchronous: EventQueue,
    completions: EventQueue,
    held: Option<Held>,
    former: Former,
    /// Rounds in a row in which the connections' events had to wait.
    waited: usize,
}

/// An asynchronous event that was taken, and has to wait for the other queue's earlier events. A CQ
/// failed before its queue pairs broke, and the event of its failure has to come first.
struct Held {
    event: Eqe,
    /// At most so many of the other queue's events are earlier.
    earlier: usize,
}

/// Shares of the event queue of completions that were left by CQs that are destroyed.
struct Former {
    shares: u32,
    /// At most so many events were in the queue when the shares were counted, and were not taken
    /// since.
    earlier: usize,
}

impl Dispatcher {
    pub(crate) fn new(asynchronous: EventQueue, completions: EventQueue) -> Dispatcher {
        let former = Former { shares: 0, earlier: 0 };
        Dispatcher { asynchronous, completions, held: None, former, waited: 0 }
    }

    /// Runs until the agent is closed or the device is dead.
    pub(crate) fn run(mut self, agent: &Arc<Agent>) {
        let signal = agent.nic().signal().clone();
        let mut next_watch = Instant::ZERO;
        loop {
            let seen = signal.value();
            if agent.stopping.load(Ordering::Acquire) {
                break;
            }
            let now = agent.platform().now();
            if now >= next_watch {
                agent.nic().watch(now);
                next_watch = now + WATCH;
            }
            if let Some(death) = agent.nic().death() {
                agent.device_died(death);
                break;
            }
            let mut worked = self.events(agent) > 0;
            worked |= agent.connections.receive();
            let timer = agent.connections.poll(now);
            // If a queue pair here broke, it did so before the peer's disconnect for it arrived. So
            // its event comes first, and is what consumers get.
            let handled = self.events(agent);
            worked |= handled > 0;
            if handled < BATCH || self.waited == self.longest_wait() {
                self.waited = 0;
                worked |= agent.connections.dispatch();
            } else {
                self.waited += 1;
            }
            worked |= notices(agent);
            if worked {
                continue;
            }
            self.completions.arm();
            self.asynchronous.arm();
            agent.connections.arm();
            // Events that came before the arming raise no interrupt.
            if (self.events(agent) > 0) | agent.connections.receive() {
                continue;
            }
            signal.wait(seen, Some(timer.map_or(next_watch, |at| at.min(next_watch))));
        }
    }

    /// Rounds after which all events are handled that both queues had at the beginning.
    fn longest_wait(&self) -> usize {
        (self.asynchronous.capacity() + self.completions.capacity()) / BATCH + 1
    }

    /// Handles up to [`BATCH`] events of both queues; returns how many.
    fn events(&mut self, agent: &Arc<Agent>) -> usize {
        for handled in 0..BATCH {
            let Some(event) = self.next(agent) else { return handled };
            on_event(agent, &event);
        }
        BATCH
    }

    /// The next event of both queues.
    fn next(&mut self, agent: &Agent) -> Option<Eqe> {
        let all = self.completions.capacity();
        if self.held.is_none() {
            self.held = self.asynchronous.poll().map(|event| Held { event, earlier: all });
        }
        if let Some(held) = self.held.take_if(|held| held.earlier == 0) {
            return Some(held.event);
        }
        if self.former.shares == 0 {
            self.former = Former { shares: agent.event_room.left(), earlier: all };
        }
        let event = self.completions.poll();
        self.former.earlier -= 1;
        if event.is_none() || self.former.earlier == 0 {
            agent.event_room.emptied(core::mem::take(&mut self.former.shares));
        }
        match (event, &mut self.held) {
            (Some(event), Some(held)) => {
                held.earlier -= 1;
                Some(event)
            }
            (None, _) => self.held.take().map(|held| held.event),
            (event, None) => event,
        }
    }
}

/// Makes an upcall that another thread asked for.
fn notices(agent: &Agent) -> bool {
    let Some(number) = agent.notices.take() else { return false };
    if let Some(cq) = agent.cqs.get(number) {
        cq.client().upcall(|up| up.completion(cq.context()));
    }
    true
}

fn on_completion(agent: &Agent, number: u32, generation: u32) {
    if let Some(cq) = agent.cqs.get(number).filter(|cq| cq.generation() == generation) {
        completion(&cq);
    }
}

fn completion(cq: &Cq) {
    cq.disarmed();
    cq.client().upcall(|up| up.completion(cq.context()));
}

/// Handles an event. The device wrote it, so each field is checked.
fn on_event(agent: &Arc<Agent>, event: &Eqe) {
    let Some(kind) = EventType::from_byte(event.event) else {
        log::warn!("agent {}: event of unknown type {:#x}", agent.number(), event.event);
        return;
    };
    match kind {
        EventType::Completion => on_completion(agent, event.number, event.generation),
        // The interrupt has woken the thread that waits for the answer.
        EventType::Admin => {}
        EventType::CqError => {
            let cq = agent.cqs.get(event.number).filter(|cq| cq.generation() == event.generation);
            if let Some(cq) = cq {
                cq.fail();
                agent.cq_failed(&cq);
                let context = cq.context();
                cq.client().upcall(|up| up.asynchronous(AsyncEvent::Cq { context }));
            }
        }
        EventType::SrqLimit | EventType::SrqError => {
            let srq = agent.srqs.get(event.number).filter(|srq| srq.generation() == event.generation);
            if let Some(srq) = srq {
                let event = AsyncEvent::Srq { context: srq.context(), event: kind };
                srq.client().upcall(|up| up.asynchronous(event));
            }
        }
        EventType::PortUp | EventType::PortDown => {
            let up = kind == EventType::PortUp;
            agent.for_each_client(|client| {
                client.upcall(|calls: &dyn Upcalls| {
                    calls.asynchronous(AsyncEvent::Port { up });
                })
            });
        }
        // The agent makes no virtual interface yet.
        EventType::ViError | EventType::ViCompletion => {}
        EventType::CommunicationEstablished
        | EventType::SendQueueDrained
        | EventType::LastWqeReached
        | EventType::QpFatal
        | EventType::QpInvalidRequest
        | EventType::QpAccessError
        | EventType::ReceiveWatermark => on_qp_event(agent, kind, event),
    }
}

fn on_qp_event(agent: &Arc<Agent>, kind: EventType, event: &Eqe) {
    let qp = agent.qps.get(ident::qpn_slot(event.number));
    let ours = |qp: &Arc<crate::Qp>| qp.qpn() == event.number && qp.generation() == event.generation;
    let Some(qp) = qp.filter(ours) else { return };
    let fatal = matches!(kind, EventType::QpFatal | EventType::QpInvalidRequest | EventType::QpAccessError);
    if fatal && !qp.broke() {
        return;
    }
    if event.number == ident::QPN_GSI {
        if fatal {
            agent.gsi_broke();
        }
        return;
    }
    if kind == EventType::CommunicationEstablished {
        agent.connections.communication_established(&qp);
    }
    let refused = event.detail & REFUSED != 0;
    let event = AsyncEvent::Qp {
        context: qp.context(),
        qpn: qp.qpn(),
        event: kind,
        status: cqe::Status::from_byte(event.status).filter(|&status| status != cqe::Status::Success),
        completes: event.detail & NO_COMPLETION == 0,
    };
    qp.client().upcall(|up| up.asynchronous(event));
    if fatal {
        agent.connections.broke(&qp, refused);
    }
}
