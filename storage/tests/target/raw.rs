//! Queues of hosts that send any command.

use nvme::command::Command;
use nvme::completion::Completion;
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property, PropertySet};
use nvme::private_data::Request;
use nvme::{Nqn, Status};
use storage::testing::{End, RawQueue};
use zerocopy::IntoBytes;

use crate::machine::{Machine, NQN, Running};

/// The name of the host.
pub const HOST: &str = "nqn.2026-01.org.ferrovia:raw";

/// A queue, with the identifier for its next command.
pub struct Queue(pub RawQueue, u16);

impl Queue {
    /// Connects queue `id`, with which no command was exchanged yet.
    pub fn open(machine: &Machine, target: &Running, id: u16, entries: u16) -> Queue {
        let request = Request::new(id, entries, entries - 1);
        let queue = Queue::open_with(machine, target, request.as_bytes());
        assert!(queue.is_ok(), "{:?}", queue.err());
        queue.unwrap_or_else(|_| unreachable!())
    }

    /// The same with any private data; or how the attempt ended.
    pub fn open_with(machine: &Machine, target: &Running, private_data: &[u8]) -> Result<Queue, End> {
        Queue::open_with_receives(machine, target, private_data, 64)
    }

    /// The same with so many Receives.
    pub fn open_with_receives(
        machine: &Machine,
        target: &Running,
        private_data: &[u8],
        count: usize,
    ) -> Result<Queue, End> {
        let place = (target.address, storage::target::PORT);
        let mut queue = RawQueue::connect_with(&machine.nic(), place, private_data, count).unwrap();
        queue.end().map_or(Ok(Queue(queue, 0)), Err)
    }

    /// Sends a command with an identifier of its own; returns the response.
    pub fn ask(&mut self, command: Command) -> Completion {
        self.1 += 1;
        let command = command.with_cid(self.1);
        self.0.send(command.as_bytes());
        let response = self.0.response().expect("a response");
        assert_eq!(response.cid.get(), self.1);
        response
    }

    /// Sends a command; returns the status of its response.
    pub fn status(&mut self, command: Command) -> Status {
        self.ask(command).status()
    }

    /// Sends a Connect with this data.
    pub fn connect(&mut self, connect: Connect, data: &ConnectData) -> Completion {
        self.0.memory.write(0, data.as_bytes()).unwrap();
        let sgl = self.0.keyed(0, size_of::<ConnectData>());
        self.ask(connect.command().with_sgl(sgl))
    }

    /// Makes this the admin queue of an enabled controller; returns the controller's identifier.
    pub fn begin(&mut self) -> u16 {
        self.begin_as(&data(CNTLID_DYNAMIC, NQN))
    }

    /// The same with this data of the Connect.
    pub fn begin_as(&mut self, data: &ConnectData) -> u16 {
        let response = self.connect(Connect::new(0, 31, 0), data);
        assert_eq!(response.status(), Status::SUCCESS);
        self.enable();
        response.result.get() as u16
    }

    /// Enables the controller of this admin queue, which gets I/O queues.
    pub fn enable(&mut self) {
        let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
        assert_eq!(self.status(enable.command()), Status::SUCCESS);
        let queues = nvme::feature::NumberOfQueues { submission: 4, completion: 4 };
        let fid = nvme::feature::id::NUMBER_OF_QUEUES;
        let set = nvme::feature::SetFeatures { fid, save: false, nsid: 0, value: queues.value() };
        assert_eq!(self.status(set.command()), Status::SUCCESS);
    }
}

/// The data of a Connect.
pub fn data(controller: u16, subsystem: &str) -> ConnectData {
    let [subsystem, host] = [subsystem, HOST].map(|name| Nqn::new(name.as_bytes()).unwrap());
    ConnectData::new([7; 16], controller, subsystem, host)
}

/// An admin queue and an I/O queue of one controller.
pub fn controller(machine: &Machine, target: &Running) -> (Queue, Queue) {
    let mut admin = Queue::open(machine, target, 0, 32);
    let id = admin.begin();
    let mut io = Queue::open(machine, target, 1, 32);
    assert_eq!(io.connect(Connect::new(1, 31, 0), &data(id, NQN)).status(), Status::SUCCESS);
    (admin, io)
}

/// Checks that a proper host is served.
pub fn serves(machine: &Machine, target: &Running) {
    let mut host = machine.host(target);
    let region = machine.region(&host, 8192);
    region.buffer().write(0, &[0x5a; 4096]).unwrap();
    host.write(1, 0, 8, (&region, 0, 4096)).unwrap();
    host.read(1, 0, 8, (&region, 4096, 4096)).unwrap();
    let mut read = [0; 4096];
    region.buffer().read(4096, &mut read).unwrap();
    assert_eq!(read, [0x5a; 4096]);
    drop(region);
    host.disconnect();
}
