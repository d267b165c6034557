//! Two connected endpoints on a machine in this process.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use host::Machine;
use kernel_agent::{Agent, Config};
use platform::DmaBuffer;
use privileged_api::*;

/// Longer than any event of these tests takes.
pub const PATIENCE: u64 = 20_000_000;

pub struct World {
    pub machine: Machine,
    pub agents: Vec<Arc<Agent>>,
    pub provider: Provider,
}

impl World {
    pub fn new(nics: u8) -> World {
        let machine = Machine::new(nics);
        let provider = Provider::new(machine.platform());
        let mut agents = Vec::new();
        for (number, device) in machine.transports().into_iter().enumerate() {
            // Some tests wait until a device that was killed is taken for dead.
            let config = Config { silence: Duration::from_secs(1), ..Config::default() };
            let agent = Agent::open(machine.platform(), device, number as u32, config).expect("an agent");
            provider.add(&format!("rnic{number}"), agent.clone()).expect("a name");
            agents.push(agent);
        }
        World { machine, agents, provider }
    }

    pub fn ia(&self, nic: usize) -> Ia {
        let privileged = Some(self.machine.privileged());
        self.provider.ia_create(&format!("rnic{nic}"), 2, 1, privileged).expect("an IA")
    }

    pub fn unprivileged(&self, nic: usize) -> Ia {
        self.provider.ia_create(&format!("rnic{nic}"), 2, 0, None).expect("an IA")
    }

    pub fn buffer(&self, len: usize) -> Arc<DmaBuffer> {
        Arc::new(DmaBuffer::new(&self.machine.platform(), len, 4096).expect("memory"))
    }
}

pub struct Side {
    pub ia: Ia,
    pub pz: PzHandle,
    pub requests: EvdHandle,
    pub receives: EvdHandle,
    pub connection: EvdHandle,
    pub ep: EpHandle,
}

pub fn evd(ia: &Ia, stream: EventType) -> EvdHandle {
    ia.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 64, 1, EvdHandle::NULL).expect("an event dispatcher")
}

impl Side {
    pub fn new(ia: Ia, attr: EpAttributes) -> Side {
        let pz = ia.pz_create().unwrap();
        let requests = evd(&ia, EventType::DTO_EVENT_STREAM);
        let receives = evd(&ia, EventType::DTO_EVENT_STREAM);
        let connection = evd(&ia, EventType::CM_MSG_EVENT_STREAM);
        let ep = ia.ep_rc_create(pz, requests, receives, connection, EpFlags::empty(), &attr).unwrap();
        Side { ia, pz, requests, receives, connection, ep }
    }

    pub fn state(&self) -> EpState {
        self.ia.ep_query(self.ep, EpParamMask::STATE).unwrap().ep_state
    }

    pub fn lmr(&self, buffer: &Arc<DmaBuffer>, privs: MemPriv) -> (LmrHandle, Option<RmrContext>) {
        let length = buffer.len() as u64;
        let memory = LmrMemory::buffer(buffer);
        self.ia.lmr_create(self.pz, memory, length, AddrMode::Absolute, privs, LmrFlags::empty(), 0).unwrap()
    }

    pub fn wait(&self, evd: EvdHandle) -> Event {
        self.ia.evd_wait(evd, PATIENCE).expect("an event").0
    }

    pub fn completion(&self, evd: EvdHandle) -> DtoCompletion {
        match self.wait(evd) {
            Event::Dto(completion) => completion,
            other => panic!("{other:?}"),
        }
    }

    pub fn success(&self, evd: EvdHandle) -> DtoCompletion {
        let completion = self.completion(evd);
        assert_eq!(completion.dto_status, DtoStatus::Success, "{completion:?}");
        completion
    }
}

pub fn attributes() -> EpAttributes {
    EpAttributes {
        priv_ops_enable: true,
        rc: RcAttributes {
            rdma_read_enable: true,
            rdma_write_enable: true,
            atomics_enable: true,
            ..RcAttributes::default()
        },
        ..EpAttributes::default()
    }
}

pub const SERVICE: ConnQual = ConnQual::port(4711);

pub fn path(from: &Ia, to: &Ia) -> Path {
    let address = to.ia_query().unwrap().spigot_info[0].net_addr[0];
    let (paths, total) = from.get_pathinfo(1, &address, 1).unwrap();
    assert_eq!(total, 1);
    paths[0]
}

/// Listens at `b`, connects from `a`, and returns the request.
pub fn request(a: &Side, b: &Side, flags: CnEstFlags, private_data: &[u8]) -> ConnRequest {
    let requests = evd(&b.ia, EventType::CM_REQ_EVENT_STREAM);
    let (listen, _) = b.ia.listen_create(1, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE)).unwrap();
    a.ia.ep_connect(a.ep, &path(&a.ia, &b.ia), None, &SERVICE, flags, private_data).unwrap();
    let event = b.ia.evd_wait(requests, PATIENCE).expect("a request").0;
    b.ia.listen_free(listen).unwrap();
    b.ia.evd_free(requests).unwrap();
    match event {
        Event::ConnRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

pub fn connect(a: &Side, b: &Side) {
    let request = request(a, b, CnEstFlags::TWO_WAY, b"hello");
    b.ia.ep_accept(b.ep, request.cn_est_id, b"welcome").unwrap();
    for side in [a, b] {
        let event = side.wait(side.connection);
        assert!(matches!(event, Event::ConnEstablished { .. }), "{event:?}");
        assert_eq!(side.state(), EpState::Rc(EpStateRc::Connected));
    }
}

pub fn pair(world: &World, nics: [usize; 2]) -> (Side, Side) {
    let a = Side::new(world.ia(nics[0]), attributes());
    let b = Side::new(world.ia(nics[1]), attributes());
    connect(&a, &b);
    (a, b)
}

/// Frees the IAs and checks that no object is left.
pub fn done(world: &World, sides: &[&Side]) {
    for side in sides {
        loop {
            match side.ia.ia_free() {
                Ok(()) | Err(Error::InvalidIa) => break,
                // A callback routine has reported to the test, but may not have returned yet.
                Err(Error::InvalidEvdState) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(side.ia.object_counts().is_empty(), "{:?}", side.ia.object_counts());
    }
    for agent in &world.agents {
        let counts = agent.counts();
        assert_eq!(
            (counts.clients, counts.qps, counts.cqs, counts.pds, counts.regions, counts.listens),
            (0, 0, 0, 0, 0, 0),
            "{counts:?}"
        );
    }
}

pub const SIGNALED: DtoFlags = DtoFlags::COMPLETION;
