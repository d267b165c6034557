//! What the storage target executes for a command: a round of its thread when the capsule has come,
//! and one when the response is sent.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use block::ram::RamDisk;
use block::{Data, Disk, Fault, Geometry, Piece, Request, Submit};
use host::Machine;
use kernel_agent::{Agent, Config};
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property, PropertySet};
use nvme::feature::{NumberOfQueues, SetFeatures, id};
use nvme::{Nqn, Status, private_data};
use rdma::Nic;
use storage::target::{self, Export, PORT, Target};
use storage::testing::RawQueue;
use zerocopy::IntoBytes;

use crate::calls::target_round;
use crate::samples::Recorder;

pub const ROWS: &[&str] = &["storage_read", "storage_read_16", "storage_read_pool", "storage_write_capsule"];

const NQN: &str = "nqn.2026-01.org.ferrovia:bench";
/// Commands of a burst.
const BURST: usize = 16;
/// Bytes and blocks of a command.
const LEN: usize = 4096;
const BLOCKS: u32 = 8;
/// Bursts before the ones that are counted, and those.
const WARM: usize = 3;
const COUNTED: usize = 5;

/// A RAM disk that does not lend its memory, so that commands take memory of the pool, as those of
/// disks behind virtio do.
struct Kept(RamDisk);

impl Disk for Kept {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        // The bytes are no part of what is counted: a device would bring them.
        match *request {
            Request::Read { block, into: Data { buffer, pieces: &[first, ..] } } => {
                let pieces = &[Piece { len: 512, ..first }];
                self.0.submit(&Request::Read { block, into: Data { buffer, pieces } }, token)
            }
            other => self.0.submit(&other, token),
        }
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        self.0.poll(most, into)
    }

    fn watch(&self, routine: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.0.watch(routine);
    }

    fn arm(&self) -> bool {
        self.0.arm()
    }
}

/// A target that works when it is told to, and an I/O queue of a host.
struct Pair {
    target: Target,
    io: RawQueue,
    _admin: RawQueue,
}

fn data(controller: u16) -> ConnectData {
    let [subsystem, host] = [NQN, "nqn.2026-01.org.ferrovia:host"].map(|name| Nqn::new(name.as_bytes()));
    ConnectData::new([7; 16], controller, subsystem.expect("a name"), host.expect("a name"))
}

/// Lets the target work until a thread is over.
fn until<T>(target: &mut Target, thread: thread::JoinHandle<T>) -> T {
    while !thread.is_finished() {
        target_round(target);
        thread::yield_now();
    }
    thread.join().expect("no panic")
}

impl Pair {
    fn new(machine: &'static Machine, disk: Arc<dyn Disk>, port: u16) -> Pair {
        let nic = |number| {
            let transport = machine.transport(number);
            let agent = Agent::open(machine.platform(), transport, number as u32, Config::default());
            Nic::open(&agent.expect("a NIC")).expect("an opening")
        };
        let disks = vec![Export::new(disk, [1; 16])];
        let config = target::Config {
            commands: 256,
            depth: 64,
            memory: 4 << 20,
            port,
            ..target::Config::new(NQN, disks)
        };
        let mut target = Target::new(&[nic(0)], machine.privileged(), config).expect("a target");
        let (address, nic) = (target.addresses()[0], nic(1));
        let host = thread::spawn(move || connect(&nic, (address, port)));
        let (admin, io) = until(&mut target, host);
        Pair { target, io, _admin: admin }
    }
}

/// Sends a command and waits for its success; returns the result.
fn ask(queue: &mut RawQueue, command: Command) -> u64 {
    queue.send(command.with_cid(1).as_bytes());
    let response = queue.response().expect("a response");
    assert_eq!(response.status(), Status::SUCCESS);
    response.result.get()
}

fn connect(nic: &Nic, place: (IpAddr, u16)) -> (RawQueue, RawQueue) {
    let open = |id, entries| {
        let request = private_data::Request::new(id, entries, entries - 1);
        RawQueue::connect(nic, place, request.as_bytes()).expect("a connection")
    };
    let join = |queue: &mut RawQueue, connect: Connect, controller| {
        queue.memory.write(0, data(controller).as_bytes()).expect("within");
        let sgl = queue.keyed(0, size_of::<ConnectData>());
        ask(queue, connect.command().with_sgl(sgl))
    };
    let mut admin = open(0, 32);
    let id = join(&mut admin, Connect::new(0, 31, 0), CNTLID_DYNAMIC) as u16;
    let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
    ask(&mut admin, enable.command());
    let queues = NumberOfQueues { submission: 1, completion: 1 };
    let set = SetFeatures { fid: id::NUMBER_OF_QUEUES, save: false, nsid: 0, value: queues.value() };
    ask(&mut admin, set.command());
    let mut io = open(1, 32);
    join(&mut io, Connect::new(1, 31, 0), id);
    (admin, io)
}

/// The command of a place, whose data in the host's memory are behind those of the former ones.
fn read(queue: &RawQueue, place: usize) -> Vec<u8> {
    let read = Command::blocks(opcode::io::READ, 1, place as u64 * u64::from(BLOCKS), BLOCKS);
    read.with_sgl(queue.keyed(place * LEN, LEN)).with_cid(place as u16).as_bytes().to_vec()
}

/// A Write whose data are in its capsule.
fn write(place: usize) -> Vec<u8> {
    let write = Command::blocks(opcode::io::WRITE, 1, place as u64 * u64::from(BLOCKS), BLOCKS);
    let sgl = nvme::sgl::Descriptor::offset(0, LEN as u32);
    let mut capsule = write.with_sgl(sgl).with_cid(place as u16).as_bytes().to_vec();
    capsule.resize(capsule.len() + LEN, 7);
    capsule
}

pub fn count(rows: &mut Recorder) {
    let machine: &'static Machine = Box::leak(Box::new(Machine::new(2)));
    let disk = || RamDisk::new(&machine.platform(), 512, 4096).expect("memory");
    let mut lending = Pair::new(machine, Arc::new(disk()), PORT);
    burst(machine, rows, "storage_read", &mut lending, 1, &read);
    burst(machine, rows, "storage_read_16", &mut lending, BURST, &read);
    burst(machine, rows, "storage_write_capsule", &mut lending, 1, &|_, place| write(place));
    let mut keeping = Pair::new(machine, Arc::new(Kept(disk())), PORT + 1);
    burst(machine, rows, "storage_read_pool", &mut keeping, 1, &read);
}

/// Counts the target's rounds for so many commands at once.
fn burst(
    machine: &Machine,
    rows: &mut Recorder,
    key: &str,
    pair: &mut Pair,
    commands: usize,
    capsule: &dyn Fn(&RawQueue, usize) -> Vec<u8>,
) {
    let Pair { target, io, .. } = pair;
    let mut device = machine.pause();
    for round in 0..WARM + COUNTED {
        for place in 0..commands {
            let capsule = capsule(io, place);
            io.send(&capsule);
        }
        device.step();
        let mut work = || {
            target_round(black_box(&mut *target));
            device.step();
            target_round(black_box(&mut *target));
        };
        if round < WARM {
            work()
        } else {
            rows.count(key, commands, work)
        }
        device.step();
        for _ in 0..commands {
            assert_eq!(io.response().expect("a response").status(), Status::SUCCESS);
        }
        // What is left of the burst.
        target_round(target);
        device.step();
    }
}
