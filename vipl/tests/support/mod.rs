//! NICs on a machine in this process, and virtual interfaces with a page of memory each.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use host::Machine;
use kernel_agent::{Agent, Config};
use platform::DmaBuffer;
use vipl::*;

/// Longer than anything that these tests wait for takes, in milliseconds.
pub const PATIENCE: u32 = 20_000;

pub struct World {
    pub machine: Machine,
    pub agents: Vec<Arc<Agent>>,
    pub provider: Provider,
}

impl World {
    pub fn new(nics: u8) -> World {
        let machine = Machine::new(nics);
        let interfaces = Arc::new(rdma::Interfaces::new(machine.platform()));
        let mut agents = Vec::new();
        for (number, device) in machine.transports().into_iter().enumerate() {
            // Some tests wait until a device that was killed is taken for dead.
            let config = Config { silence: Duration::from_secs(1), ..Config::default() };
            let agent = Agent::open(machine.platform(), device, number as u32, config).expect("an agent");
            let (none, pairs) = (rdma::Limits::NONE, rdma::Endpoints::QueuePairs);
            interfaces.add(&format!("nic{number}"), agent.clone(), none, pairs).expect("a name");
            agents.push(agent);
        }
        World { machine, agents, provider: Provider::new(&interfaces) }
    }

    pub fn open(&self, nic: usize) -> Nic {
        self.provider.open_nic(&format!("nic{nic}")).expect("a NIC")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for agent in &self.agents {
            agent.close();
        }
    }
}

/// A virtual interface with a page of registered memory: descriptors in the first half, data in the
/// second.
pub struct Side {
    pub nic: Nic,
    pub ptag: PtagHandle,
    pub buffer: Arc<DmaBuffer>,
    pub memory: MemHandle,
    pub vi: ViHandle,
}

/// Where the data is in a side's page.
pub const DATA: usize = 2048;
/// Bytes from one descriptor to the next.
pub const STEP: usize = 128;

impl Side {
    pub fn new(world: &World, nic: usize, level: ReliabilityLevel, cqs: [CqHandle; 2]) -> Side {
        Side::on(world, world.open(nic), level, cqs)
    }

    pub fn on(world: &World, nic: Nic, level: ReliabilityLevel, [send, receive]: [CqHandle; 2]) -> Side {
        let ptag = nic.create_ptag().expect("a tag");
        let reliable = level != ReliabilityLevel::Unreliable;
        let attributes = ViAttributes {
            reliability_level: level,
            enable_rdma_write: true,
            enable_rdma_read: reliable,
            ..ViAttributes::new(ptag)
        };
        let vi = nic.create_vi(&attributes, send, receive).expect("a virtual interface");
        let buffer = Arc::new(DmaBuffer::new(&world.machine.platform(), 4096, 4096).expect("memory"));
        let shared = MemAttributes { ptag, enable_rdma_write: true, enable_rdma_read: true };
        let memory = nic.register_mem(Memory::buffer(&buffer), 4096, &shared).expect("a region");
        Side { nic, ptag, buffer, memory, vi }
    }

    /// The descriptor with this number.
    pub fn descriptor(&self, number: usize) -> Descriptor<'_> {
        Descriptor::at(&self.buffer, number * STEP, 6).expect("within the page")
    }

    /// A data segment of this side's memory.
    pub fn data(&self, at: usize, length: u32) -> DataSegment {
        let address = (self.buffer.addr() + DATA + at) as u64;
        DataSegment { address, handle: self.memory.as_raw(), length }
    }

    /// What a peer names this side's memory by.
    pub fn remote(&self, at: usize) -> AddressSegment {
        let DataSegment { address, handle, .. } = self.data(at, 0);
        AddressSegment { address, handle, reserved: 0 }
    }

    pub fn post_send(&self, number: usize) {
        self.nic.post_send(self.vi, self.descriptor(number).address(), self.memory).expect("a handle");
    }

    pub fn post_recv(&self, number: usize) {
        self.nic.post_recv(self.vi, self.descriptor(number).address(), self.memory).expect("a handle");
    }

    pub fn state(&self) -> ViState {
        self.nic.query_vi(self.vi).expect("a handle").0
    }

    /// Waits for the send at the head, which has this number, and returns its status.
    pub fn sent(&self, number: usize) -> Status {
        let address = self.nic.send_wait(self.vi, PATIENCE).expect("a descriptor");
        assert_eq!(address, self.descriptor(number).address());
        self.descriptor(number).status()
    }

    /// Waits for the receive at the head, which has this number, and returns its status.
    pub fn received(&self, number: usize) -> Status {
        let address = self.nic.recv_wait(self.vi, PATIENCE).expect("a descriptor");
        assert_eq!(address, self.descriptor(number).address());
        self.descriptor(number).status()
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(DATA + at, &mut bytes).expect("within the page");
        bytes
    }
}

/// Connects `a` to `b`, which waits for this discriminator.
pub fn connect(a: &Side, b: &Side, discriminator: &[u8]) {
    let server = b.nic.address(discriminator).expect("short enough");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let request = b.nic.connect_wait(&server, None, PATIENCE).expect("a request");
            b.nic.connect_accept(request.conn, b.vi).expect("the client waits");
        });
        let own = a.nic.address(b"client").expect("short enough");
        a.nic.connect_request(a.vi, &own, &server, PATIENCE).expect("a server");
    });
    assert_eq!((a.state(), b.state()), (ViState::Connected, ViState::Connected));
}

/// A connected pair, on the same NIC or on two.
pub fn pair(world: &World, nics: [usize; 2], level: ReliabilityLevel) -> (Side, Side) {
    let none = [CqHandle::NULL; 2];
    let (a, b) = (Side::new(world, nics[0], level, none), Side::new(world, nics[1], level, none));
    connect(&a, &b, b"server");
    (a, b)
}

/// Closes the NICs and checks that nothing is left.
pub fn done(world: &World, sides: &[&Side]) {
    for side in sides {
        match side.nic.close_nic() {
            Ok(()) | Err(Error::InvalidParameter) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(side.nic.opening_counts(), OpeningCounts::default());
    }
    for agent in &world.agents {
        let counts = agent.counts();
        assert_eq!(counts, kernel_agent::Counts::default(), "{counts:?}");
    }
}
