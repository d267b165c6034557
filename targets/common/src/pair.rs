//! Endpoints and their connections: [`Side`], one endpoint, whose peer may be on another machine;
//! [`Pair`], two that are connected, each on its own IA.

use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use platform::Platform;
use privileged_api::{
    CnEstFlags, ConnQual, DtoCompletion, DtoStatus, EpAttributes, EpFlags, EpHandle, Error, EvdFlags,
    EvdHandle, Event, EventType, Ia, ListenFlags, ListenHandle, NetAddr, Path, PzHandle, RcAttributes,
};

use crate::{Failure, Trying};

/// The service at which one side listens.
const SERVICE: ConnQual = ConnQual::service_id(0x4645_5252_4f56_4941);
/// How long anything may take, microseconds.
const PATIENCE: u64 = 30_000_000;
/// How long after a failure the connection's end may be reported, microseconds.
const REASON: u64 = 1_000_000;
/// How long until a service that did not listen, or to which no path led, is asked again.
const AGAIN: Duration = Duration::from_millis(20);
const NO_PATH: &str = "no path leads to the other side";
/// Endpoints that may have requests outstanding at a time when they share event dispatchers.
const SHARED: usize = 64;
/// Requests that wait to be accepted.
const BACKLOG: usize = 64;

/// The sizes of a pair's queues and messages.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// The most outstanding requests, and the most receives.
    pub requests: usize,
    /// The most bytes of a message.
    pub message: usize,
}

/// One endpoint, its IA, and its event dispatchers.
pub struct Side {
    /// The IA.
    pub ia: Ia,
    /// The protection zone.
    pub pz: PzHandle,
    /// The endpoint.
    pub ep: EpHandle,
    /// Completions of its requests.
    pub requests: EvdHandle,
    /// Completions of its receives.
    pub receives: EvdHandle,
    /// Events of its connection.
    connection: EvdHandle,
}

impl Side {
    /// An endpoint on `ia` that is not connected.
    pub fn new(ia: Ia, sizes: Sizes) -> Result<Side, Failure> {
        Side::of_many(ia, sizes, 1)
    }

    /// The first of so many endpoints that share event dispatchers. Only a few may have requests
    /// outstanding at a time: the dispatchers have room for [`SHARED`].
    pub fn of_many(ia: Ia, sizes: Sizes, endpoints: usize) -> Result<Side, Failure> {
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).trying("it_evd_create")
        };
        let pz = ia.pz_create().trying("it_pz_create")?;
        let completions = (sizes.requests + 1) * endpoints.min(SHARED);
        let requests = evd(EventType::DTO_EVENT_STREAM, completions)?;
        let receives = evd(EventType::DTO_EVENT_STREAM, completions)?;
        let connection = evd(EventType::CM_MSG_EVENT_STREAM, 4 + endpoints)?;
        let mut side = Side { ia, pz, ep: EpHandle::NULL, requests, receives, connection };
        side.ep = side.another(sizes)?;
        Ok(side)
    }

    /// One more endpoint that is not connected, with the same event dispatchers.
    pub fn another(&self, sizes: Sizes) -> Result<EpHandle, Failure> {
        let Side { ia, pz, requests, receives, connection, .. } = self;
        let attributes = EpAttributes {
            max_dto_payload_size: sizes.message,
            max_request_dtos: sizes.requests,
            max_recv_dtos: sizes.requests,
            priv_ops_enable: true,
            rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
            ..EpAttributes::default()
        };
        ia.ep_rc_create(*pz, *requests, *receives, *connection, EpFlags::empty(), &attributes)
            .trying("it_ep_rc_create")
    }

    /// Waits for the next completion on `evd`, which must be a success.
    pub fn completion(&self, evd: EvdHandle) -> Result<DtoCompletion, Failure> {
        // A busy consumer finds events without waiting; only an idle one has to be woken by an
        // interrupt.
        let event = match self.ia.evd_dequeue(evd) {
            Err(Error::QueueEmpty) => {
                self.ia.evd_wait(evd, PATIENCE).map(|(event, _)| event).map_err(|failure| failure.error)
            }
            other => other,
        };
        match event.trying("waiting for a completion")? {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(done),
            Event::Dto(done) => {
                Err(Failure::new(format!("{:?} ended with {:?}", done.event_number, done.dto_status)))
            }
            other => Err(Failure::new(format!("unexpected event {:?}", other.event_number()))),
        }
    }

    /// Asks the service at `address` for a connection.
    pub fn request(&self, address: &NetAddr) -> Result<(), Failure> {
        self.request_for(self.ep, address)
    }

    /// Asks for a connection of one of the endpoints.
    pub fn request_for(&self, ep: EpHandle, address: &NetAddr) -> Result<(), Failure> {
        let path = self.path(address)?.ok_or_else(|| Failure::new(NO_PATH))?;
        self.request_by(ep, &path)
    }

    fn request_by(&self, ep: EpHandle, path: &Path) -> Result<(), Failure> {
        self.ia.ep_connect(ep, path, None, &SERVICE, CnEstFlags::TWO_WAY, &[]).trying("it_ep_connect")
    }

    /// The path to `address`. None while the port is down.
    fn path(&self, address: &NetAddr) -> Result<Option<Path>, Failure> {
        let info = self.ia.ia_query().trying("it_ia_query")?;
        let spigot = info.spigot_info.first().ok_or_else(|| Failure::new("the IA has no spigot"))?;
        let (paths, _) = self.ia.get_pathinfo(spigot.spigot_id, address, 1).trying("it_get_pathinfo")?;
        Ok(paths.first().copied())
    }

    /// Waits until the connection that was requested or accepted is established.
    pub fn established(&self) -> Result<(), Failure> {
        match self.connection_event()? {
            Event::ConnEstablished { .. } => Ok(()),
            other => Err(Failure::new(format!("connecting: {:?}", other.event_number()))),
        }
    }

    /// Connects to the service at `address`. The link may be about to come up, and the service to
    /// listen. Each attempt that fails loses the Receives that were posted.
    pub fn connect(&self, platform: &Arc<dyn Platform>, address: &NetAddr) -> Result<(), Failure> {
        let deadline = platform.now() + Duration::from_micros(PATIENCE);
        let is_late = || platform.now() >= deadline;
        loop {
            match self.path(address)? {
                Some(path) => {
                    self.request_by(self.ep, &path)?;
                    match self.connection_event()? {
                        Event::ConnEstablished { .. } => return Ok(()),
                        Event::ConnNonpeerReject { .. } if !is_late() => {
                            self.ia.ep_reset(self.ep).trying("it_ep_reset")?;
                        }
                        other => return Err(Failure::new(format!("connecting: {:?}", other.event_number()))),
                    }
                }
                None if is_late() => return Err(Failure::new(NO_PATH)),
                None => log::debug!("{NO_PATH} yet"),
            }
            platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + AGAIN));
        }
    }

    /// Disconnects, and waits until the peer knows.
    pub fn disconnect(&self) -> Result<(), Failure> {
        self.ia.ep_disconnect(self.ep, &[]).trying("it_ep_disconnect")?;
        self.disconnected()
    }

    /// Waits until the peer has disconnected.
    pub fn disconnected(&self) -> Result<(), Failure> {
        match self.connection_event()? {
            Event::ConnDisconnect { .. } => Ok(()),
            other => Err(Failure::new(format!("disconnecting: {:?}", other.event_number()))),
        }
    }

    /// After a failure: how the connection has ended, if it has.
    pub fn lost(&self) -> Option<&'static str> {
        match self.ia.evd_wait(self.connection, REASON) {
            Ok((Event::ConnBroken { .. }, _)) => Some("the connection broke"),
            Ok((Event::ConnDisconnect { .. }, _)) => Some("the peer disconnected"),
            _ => None,
        }
    }

    fn connection_event(&self) -> Result<Event, Failure> {
        let waited = self.ia.evd_wait(self.connection, PATIENCE).map_err(Error::from);
        Ok(waited.trying("waiting for an event of the connection")?.0)
    }
}

/// The service, while it listens for requests.
pub struct Listener<'a> {
    ia: &'a Ia,
    requests: EvdHandle,
    listen: ListenHandle,
}

impl Listener<'_> {
    /// Begins to listen.
    pub fn new(ia: &Ia) -> Result<Listener<'_>, Failure> {
        let requests = ia
            .evd_create(EventType::CM_REQ_EVENT_STREAM, EvdFlags::empty(), BACKLOG, 1, EvdHandle::NULL)
            .trying("it_evd_create")?;
        let info = ia.ia_query().trying("it_ia_query")?;
        let spigot = info.spigot_info.first().ok_or_else(|| Failure::new("the IA has no spigot"))?;
        let (listen, _) = ia
            .listen_create(spigot.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE))
            .trying("it_listen_create")?;
        Ok(Listener { ia, requests, listen })
    }

    /// Waits for a request and accepts it for an endpoint of the IA, which is not connected yet
    /// then.
    pub fn accept(&self, ep: EpHandle) -> Result<(), Failure> {
        let waited = self.ia.evd_wait(self.requests, PATIENCE).map_err(Error::from);
        match waited.trying("listening")?.0 {
            Event::ConnRequest(request) => {
                self.ia.ep_accept(ep, request.cn_est_id, &[]).trying("it_ep_accept")
            }
            other => Err(Failure::new(format!("listening: {:?}", other.event_number()))),
        }
    }

    /// Ends listening.
    pub fn free(self) -> Result<(), Failure> {
        self.ia.listen_free(self.listen).trying("it_listen_free")?;
        self.ia.evd_free(self.requests).trying("it_evd_free")
    }
}

/// Two connected endpoints.
pub struct Pair {
    /// The side that asked for the connection.
    pub a: Side,
    /// The side that accepted.
    pub b: Side,
}

impl Pair {
    /// Connects an endpoint of `a` to one of `b`; they may be the same IA.
    pub fn connect(a: Ia, b: Ia, sizes: Sizes) -> Result<Pair, Failure> {
        let (a, b) = (Side::new(a, sizes)?, Side::new(b, sizes)?);
        let listener = Listener::new(&b.ia)?;
        let info = b.ia.ia_query().trying("it_ia_query")?;
        let address = info.spigot_info.first().and_then(|spigot| spigot.net_addr.first());
        a.request(address.ok_or_else(|| Failure::new("the IA has no address"))?)?;
        listener.accept(b.ep)?;
        a.established()?;
        b.established()?;
        listener.free()?;
        Ok(Pair { a, b })
    }

    /// Frees both IAs and all their objects.
    pub fn free(self) -> Result<(), Failure> {
        self.a.ia.ia_free().trying("it_ia_free")?;
        match self.b.ia.ia_free() {
            // Both sides were on one IA.
            Err(Error::InvalidIa) => Ok(()),
            other => other.trying("it_ia_free"),
        }
    }
}
