//! Two connected endpoints, each on its own IA.

use alloc::format;

use privileged_api::{
    CnEstFlags, ConnQual, DtoCompletion, DtoStatus, EpAttributes, EpFlags, EpHandle, Error, EvdFlags,
    EvdHandle, Event, EventType, Ia, ListenFlags, PzHandle, RcAttributes,
};

use crate::{Failure, Trying};

/// The service at which one side listens.
const SERVICE: ConnQual = ConnQual::service_id(0x4645_5252_4f56_4941);
/// How long anything may take, microseconds.
const PATIENCE: u64 = 30_000_000;

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
    fn new(ia: Ia, sizes: Sizes) -> Result<Side, Failure> {
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).trying("it_evd_create")
        };
        let pz = ia.pz_create().trying("it_pz_create")?;
        let requests = evd(EventType::DTO_EVENT_STREAM, sizes.requests + 1)?;
        let receives = evd(EventType::DTO_EVENT_STREAM, sizes.requests + 1)?;
        let connection = evd(EventType::CM_MSG_EVENT_STREAM, 4)?;
        let attributes = EpAttributes {
            max_dto_payload_size: sizes.message,
            max_request_dtos: sizes.requests,
            max_recv_dtos: sizes.requests,
            priv_ops_enable: true,
            rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
            ..EpAttributes::default()
        };
        let ep = ia
            .ep_rc_create(pz, requests, receives, connection, EpFlags::empty(), &attributes)
            .trying("it_ep_rc_create")?;
        Ok(Side { ia, pz, ep, requests, receives, connection })
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

    fn established(&self) -> Result<(), Failure> {
        match self.ia.evd_wait(self.connection, PATIENCE).map_err(Error::from).trying("connecting")?.0 {
            Event::ConnEstablished { .. } => Ok(()),
            other => Err(Failure::new(format!("connecting: {:?}", other.event_number()))),
        }
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
        let requests =
            b.ia.evd_create(EventType::CM_REQ_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)
                .trying("it_evd_create")?;
        let info = b.ia.ia_query().trying("it_ia_query")?;
        let spigot = info.spigot_info.first().ok_or_else(|| Failure::new("the IA has no spigot"))?;
        let address = spigot.net_addr.first().ok_or_else(|| Failure::new("the spigot has no address"))?;
        let (listen, _) =
            b.ia.listen_create(spigot.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE))
                .trying("it_listen_create")?;

        let local = a.ia.ia_query().trying("it_ia_query")?;
        let local = local.spigot_info.first().ok_or_else(|| Failure::new("the IA has no spigot"))?;
        let (paths, _) = a.ia.get_pathinfo(local.spigot_id, address, 1).trying("it_get_pathinfo")?;
        let path = paths.first().ok_or_else(|| Failure::new("no path leads to the other side"))?;
        a.ia.ep_connect(a.ep, path, None, &SERVICE, CnEstFlags::TWO_WAY, &[]).trying("it_ep_connect")?;
        let request = match b.ia.evd_wait(requests, PATIENCE).map_err(Error::from).trying("listening")?.0 {
            Event::ConnRequest(request) => request,
            other => return Err(Failure::new(format!("listening: {:?}", other.event_number()))),
        };
        b.ia.ep_accept(b.ep, request.cn_est_id, &[]).trying("it_ep_accept")?;
        a.established()?;
        b.established()?;
        b.ia.listen_free(listen).trying("it_listen_free")?;
        b.ia.evd_free(requests).trying("it_evd_free")?;
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
