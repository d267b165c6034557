//! A machine with one NIC, whose IA has both ends of everything.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use host::{Machine, Paused};
use kernel_agent::{Agent, Config};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, CnEstFlags, ConnQual, DtoFlags, EpAttributes, EpFlags, EpHandle, EvdFlags, EvdHandle, Event,
    EventType, Ia, ListenFlags, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv, Path, Provider,
    PzHandle, RcAttributes, RmrContext, make_rdma_addr_absolute,
};

use crate::calls::{self, Arguments};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of the registered memory.
pub const PAGES: usize = 16;
/// The longest time of any wait, in microseconds.
const PATIENCE: u64 = 60_000_000;
const SERVICE: ConnQual = ConnQual::service_id(0x4645_5252_4f56_4942);

/// The machine, and what all rows share. It lives until the process ends.
pub struct World {
    pub machine: &'static Machine,
    pub ia: Ia,
    pub pz: PzHandle,
    pub memory: Arc<DmaBuffer>,
    pub region: LmrHandle,
    pub context: RmrContext,
    pub path: Path,
    pub spigot: usize,
    /// Events of all connections, and requests for them.
    connections: EvdHandle,
    requests: EvdHandle,
    pub provider: Provider,
}

/// An endpoint and its EVDs.
#[derive(Clone, Copy)]
pub struct End {
    pub ep: EpHandle,
    pub requests: EvdHandle,
    pub receives: EvdHandle,
}

impl World {
    pub fn new() -> World {
        let machine: &'static Machine = Box::leak(Box::new(Machine::new(1)));
        let platform = machine.platform();
        let agent = Agent::open(platform.clone(), machine.transport(0), 0, Config::default()).expect("a NIC");
        let provider = Provider::new(platform.clone());
        provider.add("rnic0", agent).expect("an interface");
        let ia = provider.ia_create("rnic0", 2, 1, Some(machine.privileged())).expect("an IA");
        let pz = ia.pz_create().expect("a zone");
        let memory = DmaBuffer::new(&platform, PAGES * PAGE, PAGE).map(Arc::new).expect("memory");
        let buffer = LmrMemory::Buffer { buffer: &memory, offset: 0 };
        let (region, context) = ia
            .lmr_create(pz, buffer, memory.len() as u64, AddrMode::Absolute, ALL, LmrFlags::NONE, 0)
            .expect("a region");
        let info = ia.ia_query().expect("a query");
        let spigot = info.spigot_info.first().expect("a spigot");
        let address = *spigot.net_addr.first().expect("an address");
        let (paths, _) = ia.get_pathinfo(spigot.spigot_id, &address, 1).expect("a path");
        let evd = |stream| ia.evd_create(stream, EvdFlags::empty(), 64, 1, EvdHandle::NULL).expect("an EVD");
        let connections = evd(EventType::CM_MSG_EVENT_STREAM);
        let requests = evd(EventType::CM_REQ_EVENT_STREAM);
        ia.listen_create(spigot.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE))
            .expect("a listen point");
        World {
            machine,
            pz,
            region,
            context: context.expect("an RMR context"),
            path: *paths.first().expect("a path"),
            spigot: spigot.spigot_id,
            connections,
            requests,
            memory,
            ia,
            provider,
        }
    }

    /// An EVD for completions.
    pub fn evd(&self, entries: usize) -> EvdHandle {
        self.evd_of(entries, EvdHandle::NULL)
    }

    /// An EVD for completions that feeds an aggregate.
    pub fn evd_of(&self, entries: usize, aggregate: EvdHandle) -> EvdHandle {
        let stream = EventType::DTO_EVENT_STREAM;
        self.ia.evd_create(stream, EvdFlags::empty(), entries, 1, aggregate).expect("an EVD")
    }

    /// An unconnected endpoint for `depth` requests of each kind.
    pub fn end(&self, requests: EvdHandle, receives: EvdHandle, depth: usize) -> End {
        self.end_with(requests, receives, EpFlags::empty(), &attributes(depth))
    }

    pub fn end_with(
        &self,
        requests: EvdHandle,
        receives: EvdHandle,
        flags: EpFlags,
        attr: &EpAttributes,
    ) -> End {
        let ep = self.ia.ep_rc_create(self.pz, requests, receives, self.connections, flags, attr);
        End { ep: ep.expect("an endpoint"), requests, receives }
    }

    /// Two connected endpoints with EVDs of their own.
    pub fn pair(&self, depth: usize) -> (End, End) {
        let end = || self.end(self.evd(2 * depth), self.evd(2 * depth), depth);
        let (a, b) = (end(), end());
        self.connect(a.ep, b.ep);
        (a, b)
    }

    /// Connects two endpoints.
    pub fn connect(&self, a: EpHandle, b: EpHandle) {
        self.ia.ep_connect(a, &self.path, None, &SERVICE, CnEstFlags::TWO_WAY, &[]).expect("connecting");
        let request = match self.ia.evd_wait(self.requests, PATIENCE).expect("a request").0 {
            Event::ConnRequest(request) => request,
            other => panic!("{other:?}"),
        };
        self.ia.ep_accept(b, request.cn_est_id, &[]).expect("accepting");
        for _ in 0..2 {
            match self.ia.evd_wait(self.connections, PATIENCE).expect("a connection").0 {
                Event::ConnEstablished { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Arguments with `count` segments of 64 bytes and the flag COMPLETION.
    pub fn arguments(&self, count: usize) -> Arguments {
        let segment = |n| LmrTriplet::new(self.region, (self.memory.addr() + n * PAGE) as u64, 64);
        black_box(Arguments {
            segments: (0..count).map(segment).collect(),
            cookie: 7,
            flags: DtoFlags::COMPLETION,
            to: make_rdma_addr_absolute(self.memory.addr() + (PAGES - 1) * PAGE),
            context: self.context,
        })
    }

    /// Takes an event, which must be there.
    pub fn reap(&self, evd: EvdHandle) {
        assert!(calls::dequeue(&self.ia, evd));
    }

    /// Runs `f` while the device's thread is stopped.
    pub fn paused<R>(&self, f: impl FnOnce(&mut Paused<'static>) -> R) -> R {
        let mut device = self.machine.pause();
        f(&mut device)
    }

    /// Waits until the dispatcher thread and the callback thread are idle.
    pub fn settle(&self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All rights.
pub const ALL: MemPriv = MemPriv::LOCAL.union(MemPriv::REMOTE);

/// Attributes of an endpoint for `depth` requests of each kind, with up to four segments.
pub fn attributes(depth: usize) -> EpAttributes {
    EpAttributes {
        max_request_dtos: depth,
        max_recv_dtos: depth,
        priv_ops_enable: true,
        rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
        ..EpAttributes::default()
    }
}
