//! The dispatcher thread of an agent: events, management datagrams, timers, the device's heartbeat,
//! and all upcalls.
//!
//! It sleeps on the driver's signal, which each interrupt raises, until the next timer and for
//! [`WATCH`] at most. It holds no lock of the agent while it works.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::cqe;
use nic_abi::eqe::{Eqe, EventType, NO_COMPLETION};
use nic_abi::ident;
use nic_hal::EventQueue;
use platform::Instant;

use crate::agent::Agent;
use crate::{AsyncEvent, Upcalls};

/// Time between two looks at the device's heartbeat.
const WATCH: Duration = Duration::from_millis(250);
/// How many events of one queue the thread handles before the other sources of work get their turn.
const BATCH: usize = 64;

/// What the dispatcher thread owns.
pub(crate) struct Dispatcher {
    pub(crate) asynchronous: EventQueue,
    pub(crate) completions: EventQueue,
}

impl Dispatcher {
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
            let mut worked = self.events(agent);
            worked |= agent.connections.receive_all();
            let timer = agent.connections.poll(now);
            // If a queue pair here broke, it did so before the peer's disconnect for it arrived. So
            // its event comes first, and is what consumers get.
            worked |= self.asynchronous_events(agent);
            worked |= agent.connections.dispatch();
            worked |= notices(agent);
            if worked {
                continue;
            }
            self.completions.arm();
            self.asynchronous.arm();
            agent.connections.arm();
            // Events that came before the arming raise no interrupt.
            if self.events(agent) | agent.connections.receive_all() {
                continue;
            }
            signal.wait(seen, Some(timer.map_or(next_watch, |at| at.min(next_watch))));
        }
    }

    fn events(&mut self, agent: &Arc<Agent>) -> bool {
        let completions = act(&mut self.completions, BATCH, agent);
        completions | self.asynchronous_events(agent)
    }

    fn asynchronous_events(&mut self, agent: &Arc<Agent>) -> bool {
        let mut any = false;
        for _ in 0..BATCH {
            let Some(event) = self.asynchronous.poll() else { break };
            any = true;
            // A CQ failed before its queue pairs broke. The event of its failure is in the other
            // queue, and has to come first.
            let all = self.completions.capacity();
            act(&mut self.completions, all, agent);
            on_event(agent, &event);
        }
        any
    }
}

/// Handles up to `most` events of a queue. Returns whether there were any.
fn act(queue: &mut EventQueue, most: usize, agent: &Arc<Agent>) -> bool {
    let mut any = false;
    for _ in 0..most {
        let Some(event) = queue.poll() else { break };
        any = true;
        on_event(agent, &event);
    }
    any
}

/// Makes an upcall that another thread asked for.
fn notices(agent: &Agent) -> bool {
    let Some((number, generation)) = agent.take_notice() else { return false };
    on_completion(agent, number, generation);
    true
}

fn on_completion(agent: &Agent, number: u32, generation: u32) {
    let Some(cq) = agent.cqs.get(number).filter(|cq| cq.generation() == generation) else { return };
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
    let event = AsyncEvent::Qp {
        context: qp.context(),
        qpn: qp.qpn(),
        event: kind,
        status: cqe::Status::from_byte(event.status).filter(|&status| status != cqe::Status::Success),
        completes: event.detail != NO_COMPLETION,
    };
    qp.client().upcall(|up| up.asynchronous(event));
    if fatal {
        agent.connections.broke(&qp);
    }
}
