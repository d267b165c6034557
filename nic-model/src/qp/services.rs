//! The engines of a connected queue pair, by its service: each call goes to the engine of the
//! reliable or of the unreliable connection. For the features of the reliable connection only
//! (answers, timers, RDMA Reads) the unreliable one never has work.

use nic_abi::admin::QpType;
use platform::Instant;
use roce::transport::requester::PostError;
use roce::transport::{
    self, Answer, Config, Event, Executed, Execution, Limits, Message, Piece, Reason, Received, Response,
    Service, Transmit, Verdict, uc,
};
use roce::{PathMtu, Psn};

/// The transport service of a connected queue pair's packets.
pub(super) const fn service(kind: QpType) -> Service {
    match kind {
        QpType::Uc => Service::Uc,
        _ => Service::Rc,
    }
}

/// The same call of the engine of either service.
macro_rules! by_service {
    ($engines:expr, $engine:ident => $call:expr) => {
        match $engines {
            Self::Reliable($engine) => $call,
            Self::Unreliable($engine) => $call,
        }
    };
}

/// What receives messages.
pub(crate) enum ResponderEngine {
    Reliable(transport::Responder),
    Unreliable(uc::Responder),
}

impl ResponderEngine {
    /// The engine of a queue pair of this type; `resources` is its `max_dest_rd_atomic`.
    pub fn new(kind: QpType, psn: Psn, mtu: PathMtu, resources: u8) -> ResponderEngine {
        match service(kind) {
            Service::Rc => ResponderEngine::Reliable(transport::Responder::new(psn, mtu, resources)),
            Service::Uc => ResponderEngine::Unreliable(uc::Responder::new(psn, mtu)),
        }
    }

    pub fn set_resources(&mut self, resources: u8) {
        if let ResponderEngine::Reliable(engine) = self {
            engine.set_resources(resources);
        }
    }

    pub const fn expected(&self) -> Psn {
        by_service!(self, engine => engine.expected())
    }

    pub fn receive(&mut self, piece: &Piece) -> Verdict {
        by_service!(self, engine => engine.receive(piece))
    }

    /// How many messages of an unreliable connection were begun and dropped.
    pub const fn incomplete(&self) -> u64 {
        match self {
            ResponderEngine::Reliable(_) => 0,
            ResponderEngine::Unreliable(engine) => engine.incomplete(),
        }
    }

    /// A packet with an undefined operation code. A reliable connection refuses it; an unreliable
    /// one treats it as lost.
    pub fn receive_unknown(&mut self, psn: Psn) -> Verdict {
        match self {
            ResponderEngine::Reliable(engine) => engine.receive_unknown(psn),
            ResponderEngine::Unreliable(_) => Verdict::Nothing(Reason::UnsupportedRequest),
        }
    }

    pub fn executed(&mut self, execution: Execution, outcome: Executed) {
        by_service!(self, engine => engine.executed(execution, outcome))
    }

    pub fn unreadable(&mut self, answer: &Answer, reason: Reason) -> bool {
        match self {
            ResponderEngine::Reliable(engine) => engine.unreadable(answer, reason),
            ResponderEngine::Unreliable(_) => false,
        }
    }

    pub fn respond(&mut self, max_packets: u32) -> Option<Response> {
        match self {
            ResponderEngine::Reliable(engine) => engine.respond(max_packets, None),
            ResponderEngine::Unreliable(_) => None,
        }
    }
}

/// The engine that sends messages by the port.
#[expect(clippy::large_enum_variant, reason = "its owner is in a box, and most are reliable")]
pub(super) enum RequesterEngine {
    Reliable(transport::Requester),
    Unreliable(uc::Requester),
}

impl RequesterEngine {
    /// The engine of a queue pair of this type.
    pub fn new(kind: QpType, config: &Config) -> RequesterEngine {
        match service(kind) {
            Service::Rc => RequesterEngine::Reliable(transport::Requester::new(config)),
            Service::Uc => {
                RequesterEngine::Unreliable(uc::Requester::new(config.psn, config.mtu, config.depth))
            }
        }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        if let RequesterEngine::Reliable(engine) = self {
            engine.set_limits(limits);
        }
    }

    pub fn post(&mut self, message: Message) -> Result<(), PostError> {
        by_service!(self, engine => engine.post(message))
    }

    pub fn post_local(&mut self, id: u32, fence: bool) -> Result<(), PostError> {
        match self {
            RequesterEngine::Reliable(engine) => engine.post_local(id, fence),
            RequesterEngine::Unreliable(engine) => engine.post_local(id),
        }
    }

    pub fn has_room(&self) -> bool {
        by_service!(self, engine => engine.has_room())
    }

    pub fn is_empty(&self) -> bool {
        by_service!(self, engine => engine.is_empty())
    }

    pub fn next_psn(&self) -> Psn {
        by_service!(self, engine => engine.next_psn())
    }

    pub fn drain(&mut self, draining: bool) {
        by_service!(self, engine => engine.drain(draining))
    }

    pub fn is_drained(&self) -> bool {
        by_service!(self, engine => engine.is_drained())
    }

    /// The work request that begins with the next packet, if earlier ones may still be in progress.
    /// On an unreliable connection all earlier ones are complete.
    pub fn begins(&self) -> Option<u32> {
        match self {
            RequesterEngine::Reliable(engine) => engine.begins(),
            RequesterEngine::Unreliable(_) => None,
        }
    }

    pub fn transmit(&mut self, now: Instant, max_packets: u32) -> Option<Transmit> {
        match self {
            RequesterEngine::Reliable(engine) => engine.transmit(now, max_packets),
            RequesterEngine::Unreliable(engine) => engine.transmit(max_packets),
        }
    }

    /// The last piece that the engine returned could not be sent: the engine returns it again.
    pub fn not_sent(&mut self, piece: &Piece) {
        match self {
            RequesterEngine::Reliable(engine) => engine.restart(),
            RequesterEngine::Unreliable(engine) => engine.take_back(piece),
        }
    }

    /// Sends again what is not acknowledged. An unreliable connection sends nothing again.
    pub fn restart(&mut self) {
        if let RequesterEngine::Reliable(engine) = self {
            engine.restart();
        }
    }

    pub fn receive(&mut self, answer: &Answer, now: Instant) -> Received {
        match self {
            RequesterEngine::Reliable(engine) => engine.receive(answer, now),
            RequesterEngine::Unreliable(_) => Received::Dropped(Reason::AnswerNeverAskedFor),
        }
    }

    /// The peer says that queues on the way to it are long. An unreliable connection, which has no
    /// window, sends as before: then it returns false.
    pub fn notified(&mut self) -> bool {
        match self {
            RequesterEngine::Reliable(engine) => engine.notified(),
            RequesterEngine::Unreliable(_) => return false,
        }
        true
    }

    pub fn timer(&self) -> Option<Instant> {
        match self {
            RequesterEngine::Reliable(engine) => engine.timer(),
            RequesterEngine::Unreliable(_) => None,
        }
    }

    pub fn expired(&mut self, now: Instant) -> Option<Reason> {
        match self {
            RequesterEngine::Reliable(engine) => engine.expired(now),
            RequesterEngine::Unreliable(_) => None,
        }
    }

    pub fn poll(&mut self) -> Option<Event> {
        by_service!(self, engine => engine.poll())
    }

    pub fn abort(&mut self, id: u32) {
        by_service!(self, engine => engine.abort(id))
    }

    /// Continues after a failure that the connection survives.
    pub fn resume(&mut self) {
        if let RequesterEngine::Unreliable(engine) = self {
            engine.resume();
        }
    }

    pub fn flush(&mut self) -> Option<u32> {
        by_service!(self, engine => engine.flush())
    }
}
