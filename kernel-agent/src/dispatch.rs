//! The dispatcher thread of an agent: events, management datagrams, timers, the device's heartbeat,
//! and all upcalls.
//!
//! It sleeps on the driver's signal, which each interrupt raises, until the next timer and for
//! [`WATCH`] at most. It holds no lock of the agent while it works.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::cqe;
use nic_abi::eqe::{Eqe, EventType, NO_COMPLETION, REFUSED, StreamFault};
use nic_abi::{ident, vi};
use nic_hal::{EventQueue, StreamEnding};
use platform::Instant;
use platform::planted::{Bug, planted};

use crate::agent::Agent;
use crate::event_room::EventRoom;
use crate::stream::Watch;
use crate::{AsyncEvent, QpType, Upcalls, ViError, ViSide};

/// Time between two looks at the device's heartbeat.
const WATCH: Duration = Duration::from_millis(250);
/// The bits of an operation in an event of a virtual interface.
const OPERATIONS: u8 = (vi::Status::OP_MASK.bits() >> vi::OP_SHIFT) as u8;
/// How many events the thread handles before the other sources of work get their turn.
const BATCH: usize = 64;

/// What the dispatcher thread owns.
pub(crate) struct Dispatcher {
    asynchronous: EventQueue,
    completions: Shared,
    /// The events of virtual interfaces, unless the agent has none.
    vis: Option<Shared>,
    /// The events of streams, unless the agent has none.
    streams: Option<Shared>,
    held: Option<Held>,
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

/// An event queue of whose room each object has a share.
struct Shared {
    queue: EventQueue,
    /// Shares that were left by objects that are destroyed.
    left: u32,
    /// At most so many events were in the queue when the shares were counted, and were not taken
    /// since.
    earlier: usize,
}

impl Shared {
    fn new(queue: EventQueue) -> Shared {
        Shared { queue, left: 0, earlier: 0 }
    }

    /// Takes the next event, and gives shares of the room back that were left by objects without
    /// events.
    fn poll(&mut self, room: &EventRoom) -> Option<Eqe> {
        if self.left == 0 {
            (self.left, self.earlier) = (room.left(), self.queue.capacity());
        }
        let event = self.queue.poll();
        self.earlier -= 1;
        if event.is_none() || self.earlier == 0 {
            room.emptied(core::mem::take(&mut self.left));
        }
        event
    }
}

impl Dispatcher {
    pub(crate) fn new(
        asynchronous: EventQueue,
        completions: EventQueue,
        vis: Option<EventQueue>,
        streams: Option<EventQueue>,
    ) -> Dispatcher {
        let (completions, vis) = (Shared::new(completions), vis.map(Shared::new));
        let streams = streams.map(Shared::new);
        Dispatcher { asynchronous, completions, vis, streams, held: None, waited: 0 }
    }

    /// Runs until the agent is closed or the device is dead.
    pub(crate) fn run(self, agent: &Arc<Agent>) {
        let rooms = [&agent.event_room, &agent.vi_room, &agent.streams.room];
        rooms.iter().for_each(|room| room.begin_to_empty());
        self.handle(agent);
        rooms.iter().for_each(|room| room.end_to_empty());
    }

    fn handle(mut self, agent: &Arc<Agent>) {
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
            let timers = [agent.connections.poll(now), agent.mpa.poll(now)];
            // If a queue pair here broke, it did so before the peer's disconnect for it arrived. So
            // its event comes first, and is what consumers get.
            let handled = self.events(agent);
            worked |= handled > 0;
            if handled < BATCH || self.waited == self.longest_wait() {
                self.waited = 0;
                worked |= agent.connections.dispatch();
                worked |= agent.mpa.dispatch();
            } else {
                self.waited += 1;
            }
            worked |= notices(agent);
            if worked {
                continue;
            }
            self.completions.queue.arm();
            self.asynchronous.arm();
            for shared in self.vis.iter().chain(&self.streams) {
                shared.queue.arm();
            }
            agent.connections.arm();
            // Events that came before the arming raise no interrupt.
            if self.events(agent) > 0 || agent.connections.receive() {
                continue;
            }
            let timer = timers.into_iter().flatten().fold(next_watch, Instant::min);
            signal.wait(seen, Some(timer));
        }
    }

    /// Rounds after which all events are handled that the queues had at the beginning.
    fn longest_wait(&self) -> usize {
        let both = self.asynchronous.capacity() + self.completions.queue.capacity();
        let others = self.vis.iter().chain(&self.streams).map(|shared| shared.queue.capacity());
        both.max(others.max().unwrap_or(0)) / BATCH + 1
    }

    /// Handles up to [`BATCH`] events of queue pairs and CQs, and as many of virtual interfaces and
    /// of streams; returns the greatest of these numbers.
    fn events(&mut self, agent: &Arc<Agent>) -> usize {
        let handle = |next: &mut dyn FnMut() -> Option<Eqe>| {
            let events = core::iter::from_fn(next).take(BATCH);
            events.inspect(|event| on_event(agent, event)).count()
        };
        let ours = handle(&mut || self.next(agent));
        let of_vis = self.vis.as_mut().map_or(0, |vis| handle(&mut || vis.poll(&agent.vi_room)));
        let room = &agent.streams.room;
        let of_streams = self.streams.as_mut().map_or(0, |streams| handle(&mut || streams.poll(room)));
        ours.max(of_vis).max(of_streams)
    }

    /// The next event of queue pairs and CQs.
    fn next(&mut self, agent: &Agent) -> Option<Eqe> {
        let all = self.completions.queue.capacity();
        if self.held.is_none() {
            self.held = self.asynchronous.poll().map(|event| Held { event, earlier: all });
        }
        if let Some(held) = self.held.take_if(|held| held.earlier == 0) {
            return Some(held.event);
        }
        let event = self.completions.poll(&agent.event_room);
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
    } else if let Some(cq) = agent.vi_cqs.get(number) {
        cq.client().upcall(|up| up.completion(cq.context()));
    }
    true
}

fn on_completion(agent: &Agent, number: u32, generation: u32) {
    if let Some(cq) = agent.cqs.get(number).filter(|cq| cq.generation() == generation) {
        cq.disarmed();
        cq.client().upcall(|up| up.completion(cq.context()));
    } else if let Some(cq) = agent.vi_cqs.get(number).filter(|cq| cq.generation() == generation) {
        cq.disarmed();
        cq.client().upcall(|up| up.completion(cq.context()));
    }
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
        EventType::Stream => on_stream_event(agent, event),
        EventType::StreamEnded => on_stream_ended(agent, event),
        EventType::ViError | EventType::ViCompletion => on_vi_event(agent, kind, event),
        EventType::CommunicationEstablished if agent.vis.get(ident::qpn_slot(event.number)).is_some() => {
            on_vi_event(agent, kind, event);
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

/// The queue pair that an event is about.
fn qp_of(agent: &Agent, event: &Eqe) -> Option<Arc<crate::Qp>> {
    let qp = agent.qps.get(ident::qpn_slot(event.number));
    qp.filter(|qp| qp.qpn() == event.number && qp.generation() == event.generation)
}

fn on_qp_event(agent: &Arc<Agent>, kind: EventType, event: &Eqe) {
    let Some(qp) = qp_of(agent, event) else { return };
    let fatal = matches!(kind, EventType::QpFatal | EventType::QpInvalidRequest | EventType::QpAccessError);
    let breach = if fatal { qp.broke() } else { None };
    if fatal && breach.is_none() {
        return;
    }
    if event.number == ident::QPN_GSI {
        if fatal {
            agent.gsi_broke();
        }
        return;
    }
    if kind == EventType::CommunicationEstablished {
        if qp.kind == QpType::Iwarp {
            // The event of the connection says it.
            return agent.mpa.communication_established(&qp.common);
        }
        agent.connections.communication_established(&qp.common);
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
    if let Some(breach) = breach {
        agent.connections.broke(breach, refused);
    }
}

fn on_stream_ended(agent: &Agent, event: &Eqe) {
    let Some(ending) = StreamEnding::of(event) else { return };
    let Some(qp) = qp_of(agent, event) else { return };
    let Some(breach) = qp.broke() else { return };
    let StreamEnding { fault, terminate, completes } = ending;
    let orderly = fault == StreamFault::InsideMessage && planted(Bug::FinTakenAsOrderly);
    let fault = if orderly { StreamFault::None } else { fault };
    // What the end means for the connection comes first: the fault alone does not say.
    if let Some(id) = breach.connection {
        agent.mpa.stream_ended(id, fault);
    }
    if fault != StreamFault::None {
        let (context, qpn) = (qp.context(), qp.qpn());
        let event = AsyncEvent::StreamEnded { context, qpn, fault, terminate, completes };
        qp.client().upcall(|up| up.asynchronous(event));
    }
}

fn on_stream_event(agent: &Agent, event: &Eqe) {
    let Some(endpoint) = agent.streams.find(event.number, event.generation) else { return };
    if endpoint.look().is_none() {
        return;
    }
    match endpoint.watch() {
        Watch::Client(context) => endpoint.home().tell(&mut |up| up.stream(context)),
        Watch::Listen(id) => agent.mpa.on_listener(id),
        Watch::Connection(id) => agent.mpa.on_stream(id),
    }
}

fn on_vi_event(agent: &Arc<Agent>, kind: EventType, event: &Eqe) {
    let vi = agent.vis.get(ident::qpn_slot(event.number));
    let Some(vi) = vi.filter(|vi| vi.generation() == event.generation) else { return };
    if kind == EventType::ViCompletion {
        // Of whatever connection: the descriptors of a former one stay on their queue.
        let side = match event.detail {
            0 => ViSide::Send,
            1 => ViSide::Receive,
            _ => return,
        };
        vi.disarmed(side);
        return vi.client().upcall(|up| up.vi_completion(vi.context(), side));
    }
    let number = event.number;
    if kind == EventType::CommunicationEstablished {
        if vi.qpn() == number {
            agent.connections.communication_established(vi.common());
        }
        return;
    }
    let Some(error) = ViError::from_byte(event.status) else { return };
    let operation = event.detail as u8 & OPERATIONS;
    if error == ViError::ConnectionLost {
        if let Some(breach) = vi.broke(number) {
            vi.report_lost(number);
            agent.connections.broke(breach, event.detail & REFUSED != 0);
        }
    } else if matches!(error, ViError::PostDescriptor | ViError::CompletionProtection) {
        vi.report_lost_descriptor(number, error, operation, event.address);
    } else if error.is_of_post() || vi.qpn() == number {
        vi.report(number, error, operation, event.address);
    }
}
