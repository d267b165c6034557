//! Two connected endpoints of IT-API, each on its own IA, and memory on both sides.

use alloc::format;
use alloc::sync::Arc;

use platform::DmaBuffer;
use privileged_api::{
    AddrMode, CnEstFlags, ConnQual, DtoCompletion, DtoFlags, DtoStatus, EpAttributes, EpFlags, EpHandle,
    Error, EvdFlags, EvdHandle, Event, EventType, Ia, ListenFlags, LmrFlags, LmrHandle, LmrMemory,
    LmrTriplet, MemPriv, PzHandle, RcAttributes, RdmaAddr, RmrContext, SpigotInfo, make_rdma_addr_absolute,
};

use crate::{Failure, Node, Trying};

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
    /// An endpoint on `ia` that is not connected.
    fn new(ia: Ia, sizes: Sizes) -> Result<Side, Failure> {
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).trying("it_evd_create")
        };
        let pz = ia.pz_create().trying("it_pz_create")?;
        let requests = evd(EventType::DTO_EVENT_STREAM, sizes.requests + 1)?;
        let receives = evd(EventType::DTO_EVENT_STREAM, sizes.requests + 1)?;
        let connection = evd(EventType::CM_MSG_EVENT_STREAM, 5)?;
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

    fn spigot(&self) -> Result<SpigotInfo, Failure> {
        let spigots = self.ia.ia_query().trying("it_ia_query")?.spigot_info;
        spigots.into_iter().next().ok_or_else(|| Failure::new("the IA has no spigot"))
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

    /// Waits until the connection is established.
    fn established(&self) -> Result<(), Failure> {
        let waited = self.ia.evd_wait(self.connection, PATIENCE).map_err(Error::from);
        match waited.trying("connecting")?.0 {
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
        let (here, there) = (a.spigot()?, b.spigot()?);
        let requests =
            b.ia.evd_create(EventType::CM_REQ_EVENT_STREAM, EvdFlags::empty(), 1, 1, EvdHandle::NULL)
                .trying("it_evd_create")?;
        let (listen, _) =
            b.ia.listen_create(there.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE))
                .trying("it_listen_create")?;
        let address = there.net_addr.first().ok_or_else(|| Failure::new("the IA has no address"))?;
        let (paths, _) = a.ia.get_pathinfo(here.spigot_id, address, 1).trying("it_get_pathinfo")?;
        let path = paths.first().ok_or_else(|| Failure::new("no path leads to the other side"))?;
        a.ia.ep_connect(a.ep, path, None, &SERVICE, CnEstFlags::TWO_WAY, &[]).trying("it_ep_connect")?;
        match b.ia.evd_wait(requests, PATIENCE).map_err(Error::from).trying("listening")?.0 {
            Event::ConnRequest(request) => {
                b.ia.ep_accept(b.ep, request.cn_est_id, &[]).trying("it_ep_accept")?;
            }
            other => return Err(Failure::new(format!("listening: {:?}", other.event_number()))),
        }
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

/// Memory of A and of B, registered so that A can write from one to the other.
pub struct Target {
    length: usize,
    from: Arc<DmaBuffer>,
    into: Arc<DmaBuffer>,
    source: LmrHandle,
    sink: LmrHandle,
    context: RmrContext,
}

impl Target {
    /// Registers `length` bytes on each side.
    pub fn new(node: &Node, pair: &Pair, length: usize) -> Result<Target, Failure> {
        let memory = || {
            DmaBuffer::new(&node.platform, length, 4096)
                .map(Arc::new)
                .map_err(|_| "out of memory")
                .trying("memory")
        };
        let register = |side: &Side, buffer: &Arc<DmaBuffer>, privileges| {
            let memory = LmrMemory::Buffer { buffer, offset: 0 };
            side.ia
                .lmr_create(side.pz, memory, length as u64, AddrMode::Absolute, privileges, LmrFlags::NONE, 0)
                .trying("it_lmr_create")
        };
        let (from, into) = (memory()?, memory()?);
        let (source, _) = register(&pair.a, &from, MemPriv::LOCAL_READ)?;
        let (sink, context) = register(&pair.b, &into, MemPriv::LOCAL | MemPriv::REMOTE_WRITE)?;
        let context = context.ok_or_else(|| Failure::new("the sink has no RMR context"))?;
        Ok(Target { length, from, into, source, sink, context })
    }

    /// The operands of an RDMA Write of all bytes by A: the local segment, and where it goes.
    pub fn operands(&self) -> (LmrTriplet, RdmaAddr, RmrContext) {
        let segment = LmrTriplet::new(self.source, self.from.addr() as u64, self.length as u64);
        (segment, make_rdma_addr_absolute(self.into.addr()), self.context)
    }

    /// Posts an RDMA Write of all bytes by `a`.
    pub fn write(&self, a: &Side, cookie: u64, flags: DtoFlags) -> privileged_api::Result<()> {
        let (segment, to, context) = self.operands();
        a.ia.post_rdma_write(a.ep, &[segment], cookie, flags, to, context)
    }

    /// The bus addresses of source and sink.
    pub fn bus(&self) -> (u64, u64) {
        (self.from.bus(), self.into.bus())
    }

    /// The memory that A writes from.
    pub fn source(&self) -> &DmaBuffer {
        &self.from
    }

    /// The memory of B that A writes to.
    pub fn sink(&self) -> &DmaBuffer {
        &self.into
    }

    /// Deregisters.
    pub fn free(self, pair: &Pair) -> Result<(), Failure> {
        pair.a.ia.lmr_free(self.source).trying("it_lmr_free")?;
        pair.b.ia.lmr_free(self.sink).trying("it_lmr_free")
    }
}
