//! The storage target, with one host that sends any bytes, and one that follows the protocol.
//!
//! What must hold: the target serves the honest host all the time, ends after `Control::stop`, and
//! leaves no object and no thread behind.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::simulated::SimulatedDisk;
use block::{Disk, Fault, Geometry};
use nvme::command::{Command, opcode};
use nvme::dsm::Attributes;
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property, PropertyGet, PropertySet};
use nvme::feature::{self, NumberOfQueues, SetFeatures};
use nvme::private_data::Request;
use nvme::sgl::Descriptor;
use nvme::{Nqn, nqn};
use platform::Platform;
use platform::sync::atomic::AtomicU32;
use sim::World;
use storage::initiator::{Initiator, Options, Region};
use storage::target::{Config, Export, PORT, Target};
use storage::testing::{MEMORY, RawQueue};
use zerocopy::{FromBytes, IntoBytes};

use crate::Input;

const STEPS: usize = 64;
const NQN: &str = "nqn.2026-01.org.ferrovia:fuzz";
/// The most connections of the attacker at a time.
const QUEUES: usize = 4;
/// The disk of the attacker's namespace. The honest host has its own disk.
const GEOMETRY: Geometry = Geometry {
    block_size: 512,
    blocks: 1 << 12,
    is_read_only: false,
    has_volatile_cache: true,
    discard: true,
    write_zeroes: true,
    most_bytes: 1 << 20,
    most_pieces: 8,
    queue_depth: 8,
};
/// How long the target may take to end, in milliseconds.
const ENDING: u32 = 20_000;

pub(crate) fn run(bytes: &[u8]) {
    let outcome = sim::run(1, 2, |world| {
        let node = common::Node::start(world.platform(), world.privileged(), world.transports());
        let node = node.expect("two NICs of our own");
        scene(world, &node, &mut Input::new(bytes));
        node.agents.iter().for_each(|agent| agent.close());
    });
    assert_eq!(outcome.left, Vec::<String>::new(), "threads that did not end");
}

fn scene(world: &World, node: &common::Node, input: &mut Input<'_>) {
    let platform = world.platform();
    let disks = [1, 2].map(|seed| Arc::new(SimulatedDisk::new(GEOMETRY, seed)));
    let export = |disk: &Arc<SimulatedDisk>| Export::new(disk.clone() as Arc<dyn Disk>, [1; 16]);
    let mut exports: Vec<Export> = disks.iter().map(export).collect();
    exports[1].uuid = [2; 16];
    let config = Config {
        depth: 32,
        io_queues: 4,
        controllers: 4,
        queues: 8,
        commands: 512,
        memory: 4 << 20,
        ..Config::new(NQN, exports)
    };
    let nic = node.nic(0).expect("an opening");
    let target = Target::new(std::slice::from_ref(&nic), node.privileged, config).expect("a target");
    let (control, address) = (target.control(), target.addresses()[0]);
    let ended = Arc::new(Mutex::new(None));
    let slot = ended.clone();
    let body = move || {
        let result = target.run();
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    };
    platform.spawn("target", Box::new(body)).expect("a thread");

    let options = Options { keep_alive: Duration::ZERO, depth: 8, ..Options::new(address, NQN) };
    let host = Initiator::connect(&node.nic(1).expect("an opening"), node.privileged, options);
    let mut honest = Honest::new(host.expect("a controller"), &platform);
    let mut attacker = Attacker { node, address, queues: Vec::new(), controller: 0 };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(16) {
            0 => attacker.begin(),
            1 => attacker.open(input),
            2 => attacker.connect(input),
            3 => attacker.enable(input),
            4..10 => attacker.send(input),
            10 => attacker.vanish(input),
            11 => match input.below(5) {
                0 => disks[0].release(),
                1 => disks[0].stall(),
                2 => disks[0].fail(input.number()..u64::MAX, Fault::Media),
                3 => disks[0].fail_flushes(Some(Fault::Media)),
                _ => disks[0].repair(),
            },
            12 => honest.check(input.byte()),
            _ => world.settle(),
        }
    }
    disks[0].release();
    honest.check(0x5a);
    drop(attacker);
    honest.host.disconnect();
    control.stop();
    let result = (0..ENDING).find_map(|_| {
        platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + Duration::from_millis(1)));
        *ended.lock().unwrap_or_else(PoisonError::into_inner)
    });
    assert_eq!(result, Some(Ok(())), "how the target ended");
    assert!(nic.is_alone(), "objects of the target are left");
}

/// A host that follows the protocol.
struct Honest {
    host: Initiator,
    region: Region,
}

impl Honest {
    fn new(host: Initiator, platform: &Arc<dyn Platform>) -> Honest {
        let buffer = platform::DmaBuffer::new(platform, 8192, 4096).expect("memory");
        let region = host.register(Arc::new(buffer));
        Honest { host, region }
    }

    /// Checks that what it writes is what it reads.
    fn check(&mut self, byte: u8) {
        let Honest { host, region } = self;
        region.buffer().write(0, &[byte; 4096]).expect("inside");
        host.write(2, 8, 8, (region, 0, 4096)).expect("a write");
        host.read(2, 8, 8, (region, 4096, 4096)).expect("a read");
        let mut read = [0; 4096];
        region.buffer().read(4096, &mut read).expect("inside");
        assert_eq!(read, [byte; 4096], "the honest host's block");
    }
}

/// A host that does not follow the protocol.
struct Attacker<'a> {
    node: &'a common::Node,
    address: std::net::IpAddr,
    /// Its queues, each with the identifier of its last command.
    queues: Vec<(RawQueue, u16)>,
    /// The controller of its last Connect.
    controller: u16,
}

impl Attacker<'_> {
    fn pick(&mut self, input: &mut Input<'_>) -> Option<&mut (RawQueue, u16)> {
        let count = self.queues.len();
        (count > 0).then(|| &mut self.queues[input.below(count)])
    }

    /// Creates a controller and an I/O queue, as the protocol asks.
    fn begin(&mut self) {
        let admin = self.queues.len() as u8;
        // An input without bytes makes every choice the one that follows the protocol.
        self.open(&mut Input::new(&[0]));
        self.connect(&mut Input::new(&[admin, 0]));
        self.enable(&mut Input::new(&[admin]));
        self.open(&mut Input::new(&[1]));
        self.connect(&mut Input::new(&[admin + 1, 1]));
    }

    /// Asks for a connection.
    fn open(&mut self, input: &mut Input<'_>) {
        if self.queues.len() == QUEUES {
            return;
        }
        let id = input.below(4) as u16;
        let request = Request::new(id, 32, 31);
        let mut private_data = request.as_bytes().to_vec();
        if input.rarely(4) {
            spoil(&mut private_data, input);
        }
        let nic = self.node.nic(1).expect("an opening");
        let queue = RawQueue::connect(&nic, (self.address, PORT), &private_data);
        let mut queue = queue.expect("resources");
        if queue.end().is_none() {
            self.queues.push((queue, 0));
        }
    }

    /// Sends a Connect, with data that are right or nearly right.
    fn connect(&mut self, input: &mut Input<'_>) {
        let controller = self.controller;
        let Some((queue, cid)) = self.pick(input) else { return };
        let (id, is_discovery) = (input.below(4) as u16, input.rarely(8));
        let controller = if id == 0 { CNTLID_DYNAMIC } else { controller };
        let [subsystem, host] =
            [NQN, "nqn.2026-01.org.ferrovia:raw"].map(|name| Nqn::new(name.as_bytes()).expect("a name"));
        let subsystem = if is_discovery { nqn::DISCOVERY } else { subsystem };
        let mut data = ConnectData::new([7; 16], controller, subsystem, host).as_bytes().to_vec();
        if input.rarely(4) {
            spoil(&mut data, input);
        }
        let keep_alive = if input.rarely(4) { input.number() as u32 } else { 0 };
        let entries = if input.rarely(4) { input.number() as u16 } else { 31 };
        *cid = cid.wrapping_add(1);
        let command = Connect::new(id, entries, keep_alive).command().with_cid(*cid);
        if input.rarely(2) {
            let command = command.with_sgl(Descriptor::offset(0, data.len() as u32));
            queue.send(&[command.as_bytes(), &data].concat());
        } else {
            queue.memory.write(0, &data).expect("inside");
            queue.send(command.with_sgl(queue.keyed(0, data.len())).as_bytes());
        }
        if let Ok(response) = queue.response()
            && id == 0
        {
            self.controller = response.result.get() as u16;
        }
    }

    /// Enables the controller of an admin queue, and asks for I/O queues.
    fn enable(&mut self, input: &mut Input<'_>) {
        let Some((queue, cid)) = self.pick(input) else { return };
        let enabled = Cc::new().with_enabled(!input.rarely(4));
        let queues = NumberOfQueues { submission: 3, completion: 3 };
        let fid = feature::id::NUMBER_OF_QUEUES;
        for command in [
            PropertySet::new(Property::Cc, enabled.0.into()).command(),
            SetFeatures { fid, save: false, nsid: 0, value: queues.value() }.command(),
        ] {
            *cid = cid.wrapping_add(1);
            queue.send(command.with_cid(*cid).as_bytes());
        }
    }

    /// Sends a capsule: a command that makes sense, spoiled or not, or any bytes.
    fn send(&mut self, input: &mut Input<'_>) {
        let Some((queue, cid)) = self.pick(input) else { return };
        if input.rarely(16) {
            let len = input.below(256);
            queue.send(input.bytes(len));
            return;
        }
        let data = 512 * input.below(24);
        let mut command = command(input);
        let mut behind = 0;
        command.sgl = match input.below(8) {
            0..4 => queue.keyed(input.below(64) * 4096, data),
            4 | 5 => {
                behind = data.min(8 << 10);
                Descriptor::offset(if input.rarely(4) { input.number() } else { 0 }, behind as u32)
            }
            6 => Descriptor::keyed(input.number(), data as u32, input.number() as u32, input.rarely(2)),
            _ => {
                let mut any = [0; size_of::<Descriptor>()];
                any.iter_mut().for_each(|byte| *byte = input.byte());
                Descriptor::read_from_bytes(&any).expect("its size")
            }
        };
        if !input.rarely(16) {
            *cid = cid.wrapping_add(1);
        }
        let mut capsule = command.with_cid(*cid).as_bytes().to_vec();
        if input.rarely(4) {
            spoil(&mut capsule, input);
        }
        capsule.resize(capsule.len() + behind, input.byte());
        if input.rarely(16) {
            let len = usize::from(input.byte()) * 64;
            capsule.resize(len, 0);
        }
        // Data of a Dataset Management and the like.
        let at = input.below(64) * 4096;
        let _ = queue.memory.write(at.min(MEMORY - 64), input.bytes(16));
        queue.send(&capsule);
    }

    /// Ends a connection, whatever is in progress on it.
    fn vanish(&mut self, input: &mut Input<'_>) {
        if !self.queues.is_empty() {
            let place = input.below(self.queues.len());
            drop(self.queues.swap_remove(place));
        }
    }
}

/// A command without an identifier, and without an address for its data.
fn command(input: &mut Input<'_>) -> Command {
    let nsid = if input.rarely(8) { input.number() as u32 } else { 1 };
    let (block, blocks) = (input.number(), 1 + u32::from(input.byte()));
    let on_blocks = |opcode| Command::blocks(opcode, nsid, block, blocks);
    match input.below(16) {
        0 | 1 => on_blocks(opcode::io::READ),
        2 | 3 => on_blocks(opcode::io::WRITE),
        4 => on_blocks(opcode::io::WRITE).with_fua(),
        5 => on_blocks(opcode::io::COMPARE),
        6 => on_blocks(opcode::io::WRITE_ZEROES),
        7 => Command::flush(nsid),
        8 => Command::dataset_management(nsid, 1 + input.below(256), Attributes::DEALLOCATE),
        9 => Command::abort(input.byte().into(), input.byte().into()),
        10 => PropertyGet::new(Property::Csts).command(),
        // Identify, log pages, features, Asynchronous Event Request, Keep Alive.
        11..14 => {
            let mut command = Command::new([0x06, 0x02, 0x09, 0x0a, 0x0c, 0x18][input.below(6)]);
            (command.nsid, command.cdw10) = (nsid.into(), (input.number() as u32).into());
            (command.cdw11, command.cdw12) = ((input.number() as u32).into(), (block as u32).into());
            command
        }
        _ => Command::new(input.byte()),
    }
}

/// Changes some bytes.
fn spoil(bytes: &mut [u8], input: &mut Input<'_>) {
    for _ in 0..=input.below(3) {
        let at = usize::from(u16::from_le_bytes([input.byte(), input.byte()])) % bytes.len();
        bytes[at] = input.byte();
    }
}
