//! A target with two NICs: two ports of one subsystem, which hosts use as paths.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use block::Disk;
use nvme::Status;
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Connect, invalid_parameter};
use nvme::feature::AsyncEvents;
use nvme::identify::{self, Cmic, Identify, cns};
use nvme::reservation::{Acquire, AcquireAction, AcquireKeys, ChangePersistence};
use nvme::reservation::{Register, RegisterAction, RegisterKeys, Type};
use platform::DmaBuffer;
use storage::initiator::{Failure, Initiator, Options};
use storage::target::{AnaState, Config, Export, Refusal};
use zerocopy::{FromBytes, IntoBytes};

use crate::discovery::{list, service};
use crate::disks::disk;
use crate::listening::Listening;
use crate::machine::{Machine, NQN, Running, pattern};
use crate::raw::{Queue, controller, data, serves};

/// A host that writes and reads what the disk lends, until it is ended or something fails.
struct Load {
    shared: Arc<(AtomicBool, AtomicU64)>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Load {
    /// Uses an extent of namespace 2, by the port at an address.
    fn begin(machine: &Machine, address: IpAddr, port: u16) -> Load {
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let (nic, privileged, seen) = (machine.nic(), machine.privileged(), shared.clone());
        let platform = machine.platform();
        let thread = std::thread::spawn(move || {
            let mut host = Initiator::connect(&nic, privileged, Options::new(address, NQN))?;
            let memory = host.register(Arc::new(DmaBuffer::new(&platform, 2 * EXTENT, 4096).unwrap()));
            let (block, blocks) = (u64::from(port) * 256, (EXTENT / 512) as u32);
            for turn in 0.. {
                if seen.0.load(Ordering::Relaxed) {
                    break;
                }
                memory.buffer().write(0, &pattern(turn, EXTENT)).unwrap();
                host.write(2, block, blocks, (&memory, 0, EXTENT))?;
                host.read(2, block, blocks, (&memory, EXTENT, EXTENT))?;
                let mut read = vec![0; EXTENT];
                memory.buffer().read(EXTENT, &mut read).unwrap();
                assert!(read == pattern(turn, EXTENT), "what was written is read");
                seen.1.fetch_add(1, Ordering::Relaxed);
            }
            host.disconnect();
            Ok(())
        });
        Load { shared, thread }
    }

    /// Waits until it has done something more.
    fn goes_on(&self) {
        let before = self.shared.1.load(Ordering::Relaxed);
        while self.shared.1.load(Ordering::Relaxed) <= before + 1 {
            assert!(!self.thread.is_finished(), "it has failed");
            std::thread::yield_now();
        }
    }

    fn end(self) -> Result<(), Failure> {
        self.shared.0.store(true, Ordering::Relaxed);
        self.thread.join().expect("what it reads is right")
    }
}

fn two_ports(machine: &Machine) -> Running {
    let disks: Vec<Arc<dyn Disk>> = vec![disk(1), disk(2)];
    machine.target_with(Config { grows: true, ..machine.config(disks) })
}

/// An extent of a RAM disk, which it lends as a whole.
const EXTENT: usize = 128 << 10;

/// Writes a block of these bytes, and returns the status.
fn write(io: &mut Queue, block: u64, byte: u8) -> Status {
    io.0.memory.write(0, &[byte; 512]).unwrap();
    let sgl = io.0.keyed(0, 512);
    io.status(Command::blocks(opcode::io::WRITE, 1, block, 1).with_sgl(sgl))
}

/// The bytes of a block, if they are equal.
fn read(io: &mut Queue, block: u64) -> Option<u8> {
    let sgl = io.0.keyed(512, 512);
    assert_eq!(io.status(Command::blocks(opcode::io::READ, 1, block, 1).with_sgl(sgl)), Status::SUCCESS);
    let mut read = [0; 512];
    io.0.memory.read(512, &mut read).unwrap();
    read.iter().all(|byte| *byte == read[0]).then_some(read[0])
}

#[test]
fn both_ports_serve_one_subsystem() {
    let machine = Machine::with_ports(2);
    let mut target = two_ports(&machine);
    let overview = target.control.overview().unwrap();
    assert_eq!(
        overview.ports.iter().map(|port| (port.id, port.serves)).collect::<Vec<_>>(),
        [(1, true), (2, true)]
    );
    let (one, mut io_one) = controller(&machine, target.by(1));
    let (two, mut io_two) = controller(&machine, target.by(2));
    assert_eq!(write(&mut io_one, 8, 1), Status::SUCCESS);
    assert_eq!((read(&mut io_two, 8), write(&mut io_two, 8, 2)), (Some(1), Status::SUCCESS));
    assert_eq!(read(&mut io_one, 8), Some(2));
    let controllers = target.control.overview().unwrap().controllers;
    let mut ids: Vec<u16> = controllers.iter().map(|one| one.id).collect();
    ids.dedup();
    assert_eq!((ids.len(), controllers[0].port, controllers[1].port), (2, 1, 2));
    for admin in [one, two] {
        let mut host = Listening::new(admin, AsyncEvents::empty());
        let whole = host.read(Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 }.command(), identify::LEN);
        let whole = identify::Controller::read_from_bytes(&whole).unwrap();
        assert!(Cmic::from_bits_retain(whole.cmic).contains(Cmic::PORTS | Cmic::CONTROLLERS | Cmic::ANA));
    }
    // Each port names both, whatever the family of their addresses.
    let addresses = overview.ports.iter().map(|port| (port.id, port.addresses[0].to_string()));
    let addresses: Vec<_> = addresses.collect();
    for port in [1, 2] {
        let mut service = service(&machine, target.by(port));
        assert_eq!(list(&mut service, false).ports(), addresses);
    }
    drop((io_one, io_two));
    for port in [1, 2] {
        serves(&machine, target.by(port));
    }
    machine.stop(target);
}

#[test]
fn all_queues_of_a_controller_are_at_one_port() {
    let machine = Machine::with_ports(2);
    let mut target = two_ports(&machine);
    let mut admin = Queue::open(&machine, target.by(1), 0, 32);
    let id = admin.begin();
    let mut io = Queue::open(&machine, target.by(2), 1, 32);
    let refused = io.connect(Connect::new(1, 31, 0), &data(id, NQN));
    assert_eq!(refused.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert_eq!(refused.result.get(), u64::from(invalid_parameter::CNTLID));
    let mut io = Queue::open(&machine, target.by(1), 1, 32);
    assert_eq!(io.connect(Connect::new(1, 31, 0), &data(id, NQN)).status(), Status::SUCCESS);
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn states_are_those_of_a_port() {
    let machine = Machine::with_ports(2);
    let mut target = two_ports(&machine);
    let control = target.control.clone();
    let (admin, mut io_one) = controller(&machine, target.by(1));
    let mut one = Listening::new(admin, AsyncEvents::ANA_CHANGE);
    let (admin, mut io_two) = controller(&machine, target.by(2));
    let mut two = Listening::new(admin, AsyncEvents::ANA_CHANGE);

    control.set_ana_state(Some(2), Some(1), AnaState::Inaccessible).unwrap();
    assert!(!one.has_event(), "its port has the same states");
    assert_eq!(two.event(), Event::ANA_CHANGE);
    assert_eq!((one.states(), two.states()), (vec![1, 1], vec![3, 1]));
    assert_eq!(write(&mut io_one, 8, 1), Status::SUCCESS);
    assert_eq!(write(&mut io_two, 8, 2), Status::ANA_INACCESSIBLE);
    assert_eq!(read(&mut io_one, 8), Some(1));
    let namespace = |host: &mut Listening| {
        let page = host.read(Identify { cns: cns::NAMESPACE, cntid: 0, nsid: 1 }.command(), identify::LEN);
        identify::Namespace::read_from_bytes(&page).unwrap().nuse.get()
    };
    assert_eq!((namespace(&mut one), namespace(&mut two)), (4096, 0));
    let states = control.overview().unwrap().namespaces.remove(0).ana_states;
    assert_eq!(states, [AnaState::Optimized, AnaState::Inaccessible]);

    // Without a port it is the state of all, and a namespace that comes has that of its port.
    control.set_ana_state(None, None, AnaState::NonOptimized).unwrap();
    assert_eq!((one.event(), one.states()), (Event::ANA_CHANGE, vec![2, 2]));
    assert_eq!((two.event(), two.states()), (Event::ANA_CHANGE, vec![2, 2]));
    control.set_ana_state(Some(1), None, AnaState::Optimized).unwrap();
    assert_eq!(one.event(), Event::ANA_CHANGE);
    assert_eq!(control.add(Export::new(disk(3), [9; 16])), Ok(3));
    assert_eq!((one.states(), two.states()), (vec![1, 1, 1], vec![2, 2, 2]));
    for port in [0, 3, 9] {
        assert_eq!(control.set_ana_state(Some(port), None, AnaState::Change), Err(Refusal::NoPort));
    }
    drop((one, two, io_one, io_two));
    machine.stop(target);
}

#[test]
fn a_reservation_holds_over_both_ports() {
    let machine = Machine::with_ports(2);
    let mut target = two_ports(&machine);
    // A host by both ports, and another one by the second.
    let (one, mut io_one) = controller(&machine, target.by(1));
    let (two, mut io_two) = controller(&machine, target.by(2));
    let mut other = Queue::open(&machine, &target, 0, 32);
    let named = |controller| {
        let mut data = data(controller, NQN);
        data.hostid = [8; 16];
        data
    };
    let id = other.begin_as(&named(CNTLID_DYNAMIC));
    let mut io_other = Queue::open(&machine, &target, 1, 32);
    assert_eq!(io_other.connect(Connect::new(1, 31, 0), &named(id)).status(), Status::SUCCESS);

    let register = Register {
        action: RegisterAction::Register,
        ignores_key: false,
        persistence: ChangePersistence::Keep,
    };
    let keys = RegisterKeys { current: 0.into(), new: 7.into() };
    io_one.0.memory.write(0, keys.as_bytes()).unwrap();
    let sgl = io_one.0.keyed(0, size_of::<RegisterKeys>());
    assert_eq!(io_one.status(register.command(1).with_sgl(sgl)), Status::SUCCESS);
    let acquire = Acquire { action: AcquireAction::Acquire, kind: Type::WriteExclusive };
    let keys = AcquireKeys { current: 7.into(), preempted: 0.into() };
    io_one.0.memory.write(0, keys.as_bytes()).unwrap();
    let sgl = io_one.0.keyed(0, size_of::<AcquireKeys>());
    assert_eq!(io_one.status(acquire.command(1).with_sgl(sgl)), Status::SUCCESS);

    assert_eq!(write(&mut io_other, 8, 1), Status::RESERVATION_CONFLICT.dnr());
    assert_eq!(write(&mut io_two, 8, 2), Status::SUCCESS);
    assert_eq!(read(&mut io_other, 8), Some(2));
    drop((one, two, other, io_one, io_two, io_other));
    machine.stop(target);
}

#[test]
fn a_port_whose_device_dies_leaves_the_other_one_serving() {
    let machine = Machine::with_ports(2);
    let slow = disk(1);
    let mut disks: Vec<Arc<dyn Disk>> = vec![slow.clone()];
    // One that lends its memory.
    disks.extend(machine.ram_disks(&[1 << 20]));
    let mut target = machine.target_with(Config { grows: true, ..machine.config(disks) });
    let (admin_one, mut io_one) = controller(&machine, target.by(1));
    let (admin_two, mut io_two) = controller(&machine, target.by(2));
    let mut loads = Vec::new();
    for port in [1, 2] {
        let address = target.by(port).address;
        loads.push(Load::begin(&machine, address, port));
    }
    loads.iter().for_each(Load::goes_on);

    // The disk has a write of the port whose device dies.
    slow.stall();
    io_one.0.memory.write(0, &[1; 512]).unwrap();
    let sgl = io_one.0.keyed(0, 512);
    io_one.0.send(Command::blocks(opcode::io::WRITE, 1, 8, 1).with_sgl(sgl).with_cid(7).as_bytes());
    while slow.under_way() == 0 {
        std::thread::yield_now();
    }
    let mut service = service(&machine, target.by(2));
    let before = list(&mut service, false);
    machine.power_off(1);
    while target.control.overview().unwrap().ports[0].serves {
        std::thread::yield_now();
    }
    let overview = target.control.overview().unwrap();
    assert!(overview.ports[1].serves && overview.controllers.iter().all(|one| one.port == 2));
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    let after = list(&mut service, false);
    assert!(after.generation > before.generation && before.ports().len() == 2);
    assert_eq!(after.ports(), [(2, target.address.to_string())]);
    drop(service);

    // What the host writes next by the other port follows what the disk still has.
    io_two.0.memory.write(0, &[2; 512]).unwrap();
    let sgl = io_two.0.keyed(0, 512);
    io_two.0.send(Command::blocks(opcode::io::WRITE, 1, 8, 1).with_sgl(sgl).with_cid(8).as_bytes());
    let flush = Command { nsid: 9.into(), ..Command::new(opcode::io::FLUSH) }.with_cid(9);
    io_two.0.send(flush.as_bytes());
    assert_eq!(io_two.0.response().expect("a response").cid.get(), 9);
    assert_eq!(slow.under_way(), 1);
    slow.release();
    let response = io_two.0.response().expect("a response");
    assert_eq!((response.cid.get(), response.status()), (8, Status::SUCCESS));
    assert_eq!((read(&mut io_two, 8), slow.contents(8)), (Some(2), vec![2; 512]));

    // Its load goes on, and the other one has ended.
    let second = loads.remove(1);
    second.goes_on();
    assert_eq!(second.end(), Ok(()));
    assert!(loads.remove(0).end().is_err());

    // The operator's commands and new hosts go on by what is left.
    target.control.set_ana_state(None, None, AnaState::NonOptimized).unwrap();
    assert_eq!(target.control.add(Export::new(disk(5), [9; 16])), Ok(3));
    let more = machine.ram_disks(&[1 << 20]).remove(0);
    assert_eq!(target.control.add(Export::new(more, [10; 16])), Ok(4));
    for nsid in [3, 4] {
        let sgl = io_two.0.keyed(0, 512);
        let write = Command::blocks(opcode::io::WRITE, nsid, 0, 1).with_sgl(sgl);
        assert_eq!(io_two.status(write), Status::SUCCESS);
    }

    // The target's thread sleeps, although the dead device's queues report something for ever.
    let sleeps = || target.control.metrics().unwrap().sleeps;
    let slept = sleeps();
    while sleeps() == slept {
        std::thread::yield_now();
    }
    drop((admin_one, admin_two, io_one, io_two));
    serves(&machine, &target);
    machine.stop(target);
}
