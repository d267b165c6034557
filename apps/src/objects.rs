//! The objects of one run of a program (endpoints, event dispatchers, memory), and what happened to
//! them.
//!
//! All events of a run come through one aggregate event dispatcher, so that a program that waits
//! for a message also learns that its peer has gone. [`Objects::step`] takes one event and notes it
//! in the [`Connection`] that it is about; the program waits until what it wants is noted.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use common::Trying;
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, CnEstFlags, ConnRequest, DtoCompletion, DtoFlags, DtoStatus, EpAttributes, EpFlags, EpHandle,
    Error, EvdFlags, EvdHandle, Event, EventType, ExtendedEvent, Ia, Immediate, LmrFlags, LmrHandle,
    LmrMemory, LmrTriplet, MemPriv, Path, PzHandle, RejectReason, RmrContext, UdServiceReply, WaitFor,
};

use crate::datagrams::Datagrams;
use crate::net::Service;
use crate::{Failure, Host, fail};

/// Events of connections that can wait.
const MESSAGES: usize = 8;

/// How long a program waits for its peer, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Patience(pub u64);

/// Registered memory.
#[derive(Clone)]
pub(crate) struct Region {
    pub buffer: Arc<DmaBuffer>,
    lmr: LmrHandle,
    /// How peers reach it, if they may.
    pub context: RmrContext,
}

impl Region {
    /// A part, as a request names it.
    pub fn part(&self, offset: usize, length: usize) -> LmrTriplet {
        LmrTriplet::new(self.lmr, (self.buffer.addr() + offset) as u64, length as u64)
    }

    /// The first `length` bytes, as a request names them; nothing if there are none.
    pub fn first(&self, length: usize) -> Vec<LmrTriplet> {
        if length == 0 { Vec::new() } else { Vec::from([self.part(0, length)]) }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer disconnected.
    Disconnected,
    /// The peer vanished, or its queue pair failed.
    Broken,
    /// The peer's program refused it.
    Refused,
    /// It could not be established.
    NotEstablished(RejectReason),
    /// A request of ours failed.
    Failed(EventType, DtoStatus),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Disconnected => f.write_str("the peer disconnected"),
            End::Broken => f.write_str("the connection broke"),
            End::Refused => f.write_str("the peer refused the connection"),
            End::NotEstablished(RejectReason::Timeout) => f.write_str("the peer does not answer"),
            End::NotEstablished(RejectReason::BadPath) => {
                f.write_str("the peer refuses the path; has its port a smaller MTU?")
            }
            End::NotEstablished(reason) => {
                write!(f, "the connection was rejected ({reason:?}); does a server listen at this port?")
            }
            End::Failed(event, status) => write!(f, "{event:?}: {status:?}"),
        }
    }
}

/// What the completion of a Receive says of the message that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub length: usize,
    pub immediate: Option<Immediate>,
}

/// An endpoint, and what happened to it.
pub(crate) struct Connection {
    pub ep: EpHandle,
    pub established: bool,
    /// The messages that arrived and that the program has not taken, oldest first. There are at
    /// most as many as Receives were posted.
    pub received: VecDeque<Message>,
    /// Sends, RDMA Reads and RDMA Writes that are done.
    pub sent: u64,
    pub read: u64,
    pub written: u64,
    pub end: Option<End>,
    pub datagrams: Datagrams,
}

/// The objects of one run, freed when it is dropped.
pub(crate) struct Objects<'a> {
    pub ia: &'a Ia,
    platform: Arc<dyn platform::Platform>,
    patience: Patience,
    pub pz: PzHandle,
    /// All events of the run.
    events: EvdHandle,
    /// Completions, and events of connections; both feed `events`.
    pub transfers: EvdHandle,
    pub messages: EvdHandle,
    pub connections: Vec<Connection>,
    regions: Vec<LmrHandle>,
}

impl<'a> Objects<'a> {
    /// Event dispatchers for `transfers` requests and Receives at a time, and for `connections`.
    pub fn new(
        host: &Host<'a>,
        transfers: usize,
        connections: usize,
        patience: Patience,
    ) -> Result<Objects<'a>, Failure> {
        let mut objects = Objects {
            ia: host.ia,
            platform: host.platform.clone(),
            patience,
            pz: PzHandle::NULL,
            events: EvdHandle::NULL,
            transfers: EvdHandle::NULL,
            messages: EvdHandle::NULL,
            connections: Vec::new(),
            regions: Vec::new(),
        };
        // When a step fails, the drop frees what there is.
        let evd = |stream, size, aevd| {
            host.ia.evd_create(stream, EvdFlags::empty(), size, 1, aevd).trying("it_evd_create")
        };
        objects.pz = host.ia.pz_create().trying("it_pz_create")?;
        objects.events = evd(EventType::AEVD_NOTIFICATION_EVENT_STREAM, 0, EvdHandle::NULL)?;
        objects.transfers = evd(EventType::DTO_EVENT_STREAM, transfers, objects.events)?;
        objects.messages = evd(EventType::CM_MSG_EVENT_STREAM, MESSAGES * connections, objects.events)?;
        Ok(objects)
    }

    /// Allocates and registers memory.
    pub fn memory(&mut self, length: usize, privileges: MemPriv) -> Result<Region, Failure> {
        let buffer = DmaBuffer::new(&self.platform, length, 64).map_err(|_| "out of memory");
        let buffer = Arc::new(buffer.trying("memory")?);
        let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
        let (lmr, context) = self
            .ia
            .lmr_create(self.pz, memory, length as u64, mode, privileges, LmrFlags::NONE, 0)
            .trying("it_lmr_create")?;
        self.regions.push(lmr);
        Ok(Region { buffer, lmr, context: context.unwrap_or_default() })
    }

    /// Adds an endpoint; returns its place among the connections.
    pub fn endpoint(&mut self, attributes: &EpAttributes) -> Result<usize, Failure> {
        let (transfers, flags) = (self.transfers, EpFlags::empty());
        let ep = self
            .ia
            .ep_rc_create(self.pz, transfers, transfers, self.messages, flags, attributes)
            .trying("it_ep_rc_create")?;
        Ok(self.add(ep))
    }

    /// Notes an endpoint; returns its place among the connections.
    pub(crate) fn add(&mut self, ep: EpHandle) -> usize {
        self.connections.push(Connection {
            ep,
            established: false,
            received: VecDeque::new(),
            sent: 0,
            read: 0,
            written: 0,
            end: None,
            datagrams: Datagrams::default(),
        });
        self.connections.len() - 1
    }

    /// Asks a server for a connection. [`Objects::established`] waits for it.
    pub fn connect(&self, n: usize, path: &Path, service: Service) -> Result<(), Failure> {
        let ep = self.connections[n].ep;
        let (service, handshake) = (service.qualifier(), CnEstFlags::TWO_WAY);
        self.ia.ep_connect(ep, path, None, &service, handshake, &[]).trying("it_ep_connect")
    }

    /// Accepts a client's request.
    pub fn accept(&self, n: usize, request: &ConnRequest) -> Result<(), Failure> {
        self.ia.ep_accept(self.connections[n].ep, request.cn_est_id, &[]).trying("it_ep_accept")
    }

    /// Posts a Receive of a whole region.
    pub fn post_receive(&self, n: usize, into: &Region) -> Result<(), Failure> {
        let segments = into.first(into.buffer.len());
        self.ia.post_recv(self.connections[n].ep, &segments, 0, DtoFlags::COMPLETION).trying("it_post_recv")
    }

    /// Posts a Send of the first `length` bytes of a region.
    pub fn post_send(&self, n: usize, from: &Region, length: usize) -> Result<(), Failure> {
        let segments = from.first(length);
        self.ia.post_send(self.connections[n].ep, &segments, 0, DtoFlags::COMPLETION).trying("it_post_send")
    }

    /// Waits until a connection is established.
    pub fn established(&mut self, n: usize) -> Result<(), Failure> {
        self.until(n, |connection| connection.established.then_some(()))
    }

    /// Waits for a message; returns its length.
    pub fn received(&mut self, n: usize) -> Result<usize, Failure> {
        self.message(n).map(|message| message.length)
    }

    /// Waits for a message.
    pub fn message(&mut self, n: usize) -> Result<Message, Failure> {
        self.until(n, |connection| connection.received.pop_front())
    }

    /// Waits until `done` finds what it looks for in a connection, or the connection has ended.
    pub fn until<T>(
        &mut self,
        n: usize,
        mut done: impl FnMut(&mut Connection) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            if let Some(found) = done(&mut self.connections[n]) {
                return Ok(found);
            }
            if let Some(end) = self.connections[n].end {
                return Err(Failure::new(end));
            }
            self.step()?;
        }
    }

    /// Waits for an event and notes it.
    pub fn step(&mut self) -> Result<(), Failure> {
        let Patience(most) = self.patience;
        let waited = self.ia.evd_wait_extended(self.events, WaitFor::Notification, most);
        let event = match waited.map_err(Error::from) {
            Ok((event, _)) => event,
            Err(Error::TimeoutExpired) => fail!("nothing came from the peer for {} s", most / 1_000_000),
            Err(error) => fail!("it_evd_wait: {error}"),
        };
        self.note(&event);
        // A connection's end does not wait for the completions before it, which say more.
        while matches!(event.event, Event::ConnBroken { .. } | Event::ConnDisconnect { .. })
            && let Ok(event) = self.ia.evd_dequeue_extended(self.events)
        {
            self.note(&event);
        }
        Ok(())
    }

    fn note(&mut self, extended: &ExtendedEvent) {
        let (ep, end) = match &extended.event {
            Event::Dto(done) => return self.completed(done, extended.immediate),
            Event::UdServiceReply(reply) => return self.replied(reply),
            Event::ConnEstablished { ep, .. } => (ep, None),
            Event::ConnDisconnect { ep, .. } => (ep, Some(End::Disconnected)),
            Event::ConnBroken { ep, .. } => (ep, Some(End::Broken)),
            Event::ConnPeerReject { ep, .. } => (ep, Some(End::Refused)),
            Event::ConnNonpeerReject { ep, reject_reason_code, .. } => {
                (ep, Some(End::NotEstablished(*reject_reason_code)))
            }
            _ => return,
        };
        if let Some(connection) = self.of(*ep) {
            connection.established |= end.is_none();
            connection.end = connection.end.or(end);
        }
    }

    fn replied(&mut self, reply: &UdServiceReply) {
        let asked = |connection: &&mut Connection| connection.datagrams.asked == Some(reply.ud_svc);
        if let Some(connection) = self.connections.iter_mut().find(asked) {
            connection.datagrams.reply = Some(*reply);
        }
    }

    fn completed(&mut self, done: &DtoCompletion, immediate: Option<Immediate>) {
        let message = Message { length: done.transferred_length as usize, immediate };
        let Some(connection) = self.of(done.ep) else { return };
        match (done.dto_status, done.event_number) {
            (DtoStatus::Success, EventType::DTO_RC_RECV_CMPL) => {
                connection.received.push_back(message);
            }
            (DtoStatus::Success, EventType::DTO_UD_RECV_CMPL) => {
                connection.datagrams.first.get_or_insert(*done);
                connection.received.push_back(message);
            }
            (DtoStatus::Success, EventType::DTO_SEND_CMPL) => connection.sent += 1,
            (DtoStatus::Success, EventType::DTO_RDMA_READ_CMPL) => connection.read += 1,
            (DtoStatus::Success, _) => connection.written += 1,
            // The event of the connection says why.
            (DtoStatus::Flushed, _) => {}
            (status, event) if matches!(connection.end, None | Some(End::Broken)) => {
                connection.end = Some(End::Failed(event, status));
            }
            _ => {}
        }
    }

    fn of(&mut self, ep: EpHandle) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.ep == ep)
    }
}

impl Drop for Objects<'_> {
    /// Frees everything; a connection that still exists ends, and its peer learns of it.
    fn drop(&mut self) {
        // A call fails only if the IA is dead, which has then freed the object, or if the object
        // was never made.
        for Connection { ep, datagrams, .. } in &self.connections {
            let _ = self.ia.ep_free(*ep);
            let _ = datagrams.asked.map(|asked| self.ia.ud_service_request_handle_free(asked));
            let _ = datagrams.address.map(|address| self.ia.address_handle_free(address));
        }
        for &region in &self.regions {
            let _ = self.ia.lmr_free(region);
        }
        for evd in [self.messages, self.transfers, self.events] {
            let _ = self.ia.evd_free(evd);
        }
        let _ = self.ia.pz_free(self.pz);
    }
}
