//! Hosts that share a namespace by reservations, and a state disk that keeps them.

use std::sync::Arc;
use std::time::Duration;

use block::simulated::SimulatedDisk;
use block::{Disk, Fault, Geometry};
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData};
use nvme::feature::{GetFeatures, Select, SetFeatures, id as fid};
use nvme::identify::{Identify, LEN, cns};
use nvme::log::{self, GetLogPage};
use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, ChangePersistence, Mask, Notice, NoticePage, Register,
    RegisterAction, RegisterKeys, Registrant, Release, ReleaseAction, Report, ReportHeader, Rescap, Type,
};
use nvme::sgl::Descriptor;
use nvme::{Nqn, Status};
use storage::Error;
use storage::target::{Config, Target};
use zerocopy::{FromBytes, IntoBytes};

use crate::disks;
use crate::machine::{Machine, NQN, Running};
use crate::raw::Queue;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

/// A host: its admin queue and an I/O queue.
pub struct Host {
    admin: Queue,
    pub io: Queue,
}

fn data(number: u8, controller: u16) -> ConnectData {
    let name = format!("nqn.2026-01.org.ferrovia:host-{number}");
    let [subsystem, host] = [NQN, &name].map(|name| Nqn::new(name.as_bytes()).unwrap());
    ConnectData::new([number; 16], controller, subsystem, host)
}

impl Host {
    pub fn new(machine: &Machine, target: &Running, number: u8) -> Host {
        let mut admin = Queue::open(machine, target, 0, 32);
        let id = admin.begin_as(&data(number, CNTLID_DYNAMIC));
        let mut io = Queue::open(machine, target, 1, 32);
        let connected = io.connect(Connect::new(1, 31, 0), &data(number, id));
        assert_eq!(connected.status(), Status::SUCCESS);
        Host { admin, io }
    }

    /// A command with these bytes as data.
    fn with(&mut self, command: Command, bytes: &[u8]) -> Command {
        self.io.0.memory.write(0, bytes).unwrap();
        command.with_sgl(self.io.0.keyed(0, bytes.len()))
    }

    fn register_command(&mut self, key: u64, persistence: ChangePersistence) -> Command {
        let register = Register { action: RegisterAction::Register, ignores_key: false, persistence };
        let keys = RegisterKeys { current: 0.into(), new: key.into() };
        self.with(register.command(1), keys.as_bytes())
    }

    pub fn register(&mut self, key: u64, persistence: ChangePersistence) -> Status {
        let command = self.register_command(key, persistence);
        self.io.status(command)
    }

    pub fn acquire_command(
        &mut self,
        kind: Type,
        action: AcquireAction,
        key: u64,
        preempted: u64,
    ) -> Command {
        let keys = AcquireKeys { current: key.into(), preempted: preempted.into() };
        self.with(Acquire { action, kind }.command(1), keys.as_bytes())
    }

    pub fn acquire(&mut self, kind: Type, key: u64) -> Status {
        let command = self.acquire_command(kind, AcquireAction::Acquire, key, 0);
        self.io.status(command)
    }

    /// As Linux sends it: with 16 bytes.
    pub fn release(&mut self, action: ReleaseAction, kind: Type, key: u64) -> Status {
        let keys = AcquireKeys { current: key.into(), preempted: 0.into() };
        let command = self.with(Release { action, kind: kind as u8 }.command(1), keys.as_bytes());
        self.io.status(command)
    }

    fn report(&mut self, bytes: usize) -> (ReportHeader, Vec<Registrant>) {
        let report = Report { bytes: bytes as u64, is_extended: true };
        let sgl = self.io.0.keyed(0, bytes);
        assert_eq!(self.io.status(report.command(1).with_sgl(sgl)), Status::SUCCESS);
        let mut read = vec![0; bytes.max(64)];
        self.io.0.memory.read(0, &mut read[..bytes]).unwrap();
        let (header, rest) = ReportHeader::read_from_prefix(&read).unwrap();
        let count = usize::from(header.registrants.get()).min(rest.len() / 64);
        let entry = |n: usize| Registrant::read_from_bytes(&rest[n * 64..][..64]).unwrap();
        (header, (0..count).map(entry).collect())
    }

    /// The command on block 0, with data if it has some.
    fn on_block(&mut self, opcode: u8) -> Command {
        let has_data = matches!(opcode, opcode::io::READ | opcode::io::WRITE | opcode::io::COMPARE);
        let command = Command::blocks(opcode, 1, 0, 1);
        if has_data { command.with_sgl(self.io.0.keyed(4096, 512)) } else { command }
    }

    fn try_on_block(&mut self, opcode: u8) -> Status {
        let command = self.on_block(opcode);
        self.io.status(command)
    }

    /// Sends a Write of block 0 to a disk, which does not carry it out from now on.
    fn leaves_a_write_to(&mut self, disk: &SimulatedDisk) {
        disk.stall();
        let write = self.on_block(opcode::io::WRITE).with_cid(0x600);
        self.io.0.send(write.as_bytes());
        while disk.under_way() == 0 {
            std::thread::yield_now();
        }
    }

    /// The oldest notification.
    fn notice(&mut self) -> NoticePage {
        let page = GetLogPage {
            nsid: 0,
            lid: log::id::RESERVATION_NOTIFICATION,
            lsp: 0,
            rae: false,
            numd: 15,
            offset: 0,
        };
        let sgl = self.admin.0.keyed(0, 64);
        assert_eq!(self.admin.status(page.command().with_sgl(sgl)), Status::SUCCESS);
        let mut read = [0; 64];
        self.admin.0.memory.read(0, &mut read).unwrap();
        NoticePage::read_from_bytes(&read).unwrap()
    }

    fn wait_for_event(&mut self, cid: u16) {
        self.admin.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(cid).as_bytes());
    }

    /// The event that an Asynchronous Event Request reports.
    fn event(&mut self, cid: u16) -> Event {
        let response = self.admin.0.response().expect("an event");
        assert_eq!((response.cid.get(), response.status()), (cid, Status::SUCCESS));
        Event::parse(response.result.get() as u32)
    }
}

const KEEP: ChangePersistence = ChangePersistence::Keep;

#[test]
fn only_those_whom_a_reservation_allows_read_and_write() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let [mut one, mut two, mut other] = [1, 2, 3].map(|number| Host::new(&machine, &target, number));
    assert_eq!(one.acquire(Type::WriteExclusive, 7), CONFLICT, "it is not registered");
    assert_eq!(one.register(7, KEEP), Status::SUCCESS);
    assert_eq!(two.register(8, KEEP), Status::SUCCESS);
    let reads = [opcode::io::READ];
    let writes = [opcode::io::WRITE, opcode::io::WRITE_ZEROES, opcode::io::FLUSH];
    for kind in Type::ALL {
        assert_eq!(one.acquire(kind, 7), Status::SUCCESS);
        let second = if kind.is_of_all() { Status::SUCCESS } else { CONFLICT };
        assert_eq!(two.acquire(kind, 8), second);
        let allowed = |is: bool| if is { Status::SUCCESS } else { CONFLICT };
        for (opcodes, is_write) in [(&reads[..], false), (&writes[..], true)] {
            for &opcode in opcodes {
                let all_may = !is_write && !kind.is_exclusive_access();
                assert_eq!(one.try_on_block(opcode), Status::SUCCESS);
                assert_eq!(
                    two.try_on_block(opcode),
                    allowed(all_may || kind.is_for_registrants()),
                    "{kind:?}"
                );
                assert_eq!(other.try_on_block(opcode), allowed(all_may), "{kind:?} {opcode}");
            }
        }
        let (header, registrants) = two.report(4096);
        assert_eq!((header.kind, header.registrants.get(), header.persists), (kind as u8, 2, 0));
        let expected = [Registrant::new(true, 7, [1; 16]), Registrant::new(kind.is_of_all(), 8, [2; 16])];
        assert_eq!(registrants, expected);
        assert_eq!(
            one.release(ReleaseAction::Release, Type::ALL[kind as usize % 6], 7),
            Status::INVALID_FIELD.dnr()
        );
        assert_eq!(one.release(ReleaseAction::Release, kind, 7), Status::SUCCESS);
        assert_eq!(other.try_on_block(opcode::io::WRITE), Status::SUCCESS);
    }
    // A short report has the number of all.
    assert_eq!(one.report(64).0.registrants.get(), 2);
    assert_eq!(one.report(4).0.generation.get(), 2);
    drop([one, two, other]);
    machine.stop(target);
}

#[test]
fn hosts_hear_what_becomes_of_their_registration_unless_they_do_not_want_to() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20, 1 << 20]));
    let [mut one, mut two] = [1, 2].map(|number| Host::new(&machine, &target, number));
    assert_eq!(one.register(7, KEEP), Status::SUCCESS);
    assert_eq!(two.register(8, KEEP), Status::SUCCESS);
    assert_eq!(two.notice(), NoticePage::read_from_bytes(&[0; 64]).unwrap(), "there is none");
    two.wait_for_event(0x900);
    assert_eq!(one.acquire(Type::WriteExclusiveRegistrants, 7), Status::SUCCESS);
    assert_eq!(one.release(ReleaseAction::Release, Type::WriteExclusiveRegistrants, 7), Status::SUCCESS);
    assert_eq!(two.event(0x900), Event::RESERVATION_NOTICE);
    // Nothing more is reported before the page is read.
    two.wait_for_event(0x901);
    assert_eq!(one.release(ReleaseAction::Clear, Type::WriteExclusive, 7), Status::SUCCESS);
    assert_eq!(two.notice(), NoticePage::new(1, Notice::ReservationReleased, 1, 1));
    assert_eq!(two.event(0x901), Event::RESERVATION_NOTICE);
    assert_eq!(two.notice(), NoticePage::new(2, Notice::ReservationPreempted, 0, 1));
    // One that is preempted is told, unless it masks that.
    let mask =
        |nsid, mask: Mask| SetFeatures { fid: fid::RESERVATION_MASK, save: false, nsid, value: mask.bits() };
    for (masked, expected) in [(Mask::REGISTRATION_PREEMPTED, 0), (Mask::empty(), 1)] {
        assert_eq!(two.admin.status(mask(1, masked).command()), Status::SUCCESS);
        let get = |nsid| GetFeatures { fid: fid::RESERVATION_MASK, select: Select::Current, nsid }.command();
        assert_eq!(two.admin.ask(get(1)).result.get(), u64::from(masked.bits()));
        assert_eq!(two.admin.ask(get(2)).result.get(), 0);
        assert_eq!(two.admin.status(get(3)), Status::INVALID_NAMESPACE.dnr());
        // The first time one is registered as well.
        let _ = one.register(7, KEEP);
        assert_eq!(two.register(8, KEEP), Status::SUCCESS);
        let preempt = one.acquire_command(Type::ExclusiveAccess, AcquireAction::Preempt, 7, 8);
        assert_eq!(one.io.status(preempt), Status::SUCCESS);
        assert_eq!(two.notice().kind, expected);
    }
    assert_eq!(two.admin.status(mask(3, Mask::empty()).command()), Status::INVALID_NAMESPACE.dnr());
    drop([one, two]);
    machine.stop(target);
}

#[test]
fn wrong_commands_of_reservations_get_their_status() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut host = Host::new(&machine, &target, 1);
    let invalid = Status::INVALID_FIELD.dnr();
    let report = Report { bytes: 4096, is_extended: false }.command(1).with_sgl(host.io.0.keyed(0, 4096));
    assert_eq!(host.io.status(report), Status::HOST_IDENTIFIER_INCONSISTENT.dnr());
    let short = Report { bytes: 4096, is_extended: true }.command(1).with_sgl(host.io.0.keyed(0, 64));
    assert_eq!(host.io.status(short), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let other = Report { bytes: 64, is_extended: true }.command(2).with_sgl(host.io.0.keyed(0, 64));
    assert_eq!(host.io.status(other), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(host.register(0, KEEP), invalid);
    let register = host.register_command(7, KEEP);
    for (word, len, status) in [
        (3, 16, invalid),
        (1 << 30, 16, invalid),
        (0, 8, Status::DATA_SGL_LENGTH_INVALID.dnr()),
        (0, 8192, Status::DATA_SGL_LENGTH_INVALID.dnr()),
    ] {
        let sgl = host.io.0.keyed(0, len);
        let wrong = Command { cdw10: word.into(), ..register }.with_sgl(sgl);
        assert_eq!(host.io.status(wrong), status, "{word:#x} {len}");
    }
    assert_eq!(host.register(7, ChangePersistence::Set), Status::SUCCESS);
    assert_eq!(host.report(64).0.persists, 0, "there is no place for it");
    let acquire = host.acquire_command(Type::WriteExclusive, AcquireAction::Acquire, 7, 0);
    for word in [0x103, 0x108, 0, 0x700] {
        assert_eq!(host.io.status(Command { cdw10: word.into(), ..acquire }), invalid, "{word:#x}");
    }
    drop(host);
    machine.stop(target);
}

/// A disk for the state, with a cache that a loss of power takes.
fn state_disk(seed: u64) -> Arc<SimulatedDisk> {
    Arc::new(SimulatedDisk::new(
        Geometry {
            block_size: 512,
            blocks: 1024,
            is_read_only: false,
            has_volatile_cache: true,
            discard: false,
            write_zeroes: false,
            most_bytes: 32 << 10,
            most_pieces: 1,
            queue_depth: 4,
        },
        seed,
    ))
}

fn config(machine: &Machine, state: &Arc<SimulatedDisk>) -> Config {
    let disks: [Arc<dyn Disk>; 2] = [disks::disk(1), machine.ram_disks(&[1 << 20])[0].clone()];
    Config { state: Some(state.clone()), ..machine.config(disks.to_vec()) }
}

#[test]
fn what_persists_survives_losses_of_power_and_nothing_else_does() {
    let machine = Machine::new();
    let state = state_disk(5);
    for round in 0..6 {
        let target = machine.target_with(config(&machine, &state));
        let [mut one, mut two] = [1, 2].map(|number| Host::new(&machine, &target, number));
        let mut page = [0; LEN];
        for (nsid, persists) in [(1, true), (2, false)] {
            let identify = Identify { cns: cns::NAMESPACE, cntid: 0, nsid }.command();
            let sgl = one.admin.0.keyed(0, LEN);
            assert_eq!(one.admin.status(identify.with_sgl(sgl)), Status::SUCCESS);
            one.admin.0.memory.read(0, &mut page).unwrap();
            let rescap =
                Rescap::from_bits_retain(nvme::identify::Namespace::read_from_bytes(&page).unwrap().rescap);
            assert_eq!(rescap.contains(Rescap::PERSISTS), persists);
        }
        let (header, registrants) = two.report(4096);
        if round == 0 {
            assert_eq!((header.kind, registrants.len()), (0, 0));
            assert_eq!(one.register(7, ChangePersistence::Set), Status::SUCCESS);
            assert_eq!(two.register(8, KEEP), Status::SUCCESS);
            assert_eq!(one.acquire(Type::ExclusiveAccess, 7), Status::SUCCESS);
        } else {
            let kind = if round % 2 == 1 { Type::ExclusiveAccess } else { Type::WriteExclusive };
            assert_eq!((header.kind, header.persists), (kind as u8, 1), "round {round}");
            let expected = [Registrant::new(true, 7, [1; 16]), Registrant::new(false, 8, [2; 16])];
            assert_eq!(registrants, expected);
            assert_eq!(two.try_on_block(opcode::io::WRITE), CONFLICT);
            let next = if round % 2 == 1 { Type::WriteExclusive } else { Type::ExclusiveAccess };
            let preempt = one.acquire_command(next, AcquireAction::Preempt, 7, 7);
            assert_eq!(one.io.status(preempt), Status::SUCCESS);
        }
        drop([one, two]);
        machine.stop(target);
        state.power_loss(round);
    }
    // Once it is not to persist any more, nothing is left.
    let target = machine.target_with(config(&machine, &state));
    let mut one = Host::new(&machine, &target, 1);
    let persistence = SetFeatures { fid: fid::RESERVATION_PERSISTENCE, save: false, nsid: 1, value: 0 };
    let get = GetFeatures { fid: fid::RESERVATION_PERSISTENCE, select: Select::Current, nsid: 1 };
    assert_eq!(one.admin.ask(get.command()).result.get(), 1);
    assert_eq!(one.admin.status(persistence.command()), Status::SUCCESS);
    assert_eq!(one.admin.ask(get.command()).result.get(), 0);
    assert_eq!(one.report(64).0.registrants.get(), 2, "so far they are registered");
    drop(one);
    machine.stop(target);
    state.power_loss(9);
    let target = machine.target_with(config(&machine, &state));
    let mut one = Host::new(&machine, &target, 1);
    assert_eq!(one.report(64).0.registrants.get(), 0);
    drop(one);
    machine.stop(target);
}

#[test]
fn no_response_comes_before_the_state_is_durable_and_a_failure_changes_nothing() {
    let machine = Machine::new();
    let state = state_disk(6);
    let target = machine.target_with(config(&machine, &state));
    let mut one = Host::new(&machine, &target, 1);
    state.stall();
    let register = one.register_command(7, ChangePersistence::Set).with_cid(0x500);
    one.io.0.send(register.as_bytes());
    while state.under_way() == 0 {
        std::thread::yield_now();
    }
    // Another one waits behind it, and is not in force before it either.
    let mut two = Host::new(&machine, &target, 2);
    let register = two.register_command(8, KEEP).with_cid(0x500);
    two.io.0.send(register.as_bytes());
    let mut other = Host::new(&machine, &target, 3);
    assert_eq!(other.report(64).0.registrants.get(), 0);
    drop(other);
    assert!(!one.io.0.has_response() && !two.io.0.has_response());
    state.release();
    for host in [&mut one, &mut two] {
        assert_eq!(host.io.0.response().expect("a response").status(), Status::SUCCESS);
    }
    state.fail(0..1024, Fault::Media);
    assert_eq!(one.acquire(Type::WriteExclusive, 7), Status::INTERNAL_ERROR);
    assert_eq!(two.try_on_block(opcode::io::WRITE), Status::SUCCESS, "nothing is reserved");
    state.repair();
    assert_eq!(one.acquire(Type::WriteExclusive, 7), Status::SUCCESS);
    assert_eq!(two.try_on_block(opcode::io::WRITE), CONFLICT);
    // A host that goes while its change is written takes nothing with it.
    state.stall();
    let clear = AcquireKeys { current: 8.into(), preempted: 0.into() };
    let clear = two.with(Release { action: ReleaseAction::Clear, kind: 0 }.command(1), clear.as_bytes());
    two.io.0.send(clear.with_cid(0x501).as_bytes());
    while state.under_way() == 0 {
        std::thread::yield_now();
    }
    drop(two);
    target.wait_for(|counted| counted.controllers == 1);
    state.release();
    while one.report(64).0.registrants.get() > 0 {}
    drop(one);
    machine.stop(target);
}

#[test]
fn a_state_disk_that_holds_something_else_or_is_too_small_is_refused() {
    let machine = Machine::new();
    let refused = |state: Arc<dyn Disk>| {
        let config = Config { state: Some(state), ..machine.config(machine.ram_disks(&[1 << 20])) };
        Target::new(&[machine.nic()], machine.privileged(), config).err()
    };
    let foreign = machine.ram_disks(&[512 << 10])[0].clone();
    let memory = Arc::new(platform::DmaBuffer::new(&machine.platform(), 512, 512).unwrap());
    memory.write(3, b"something").unwrap();
    let pieces = [block::Piece { offset: 0, len: 512 }];
    let from = block::Data { buffer: &memory, pieces: &pieces };
    foreign.submit(&block::Request::Write { block: 512, from, fua: false }, 0).unwrap();
    foreign.poll(1, &mut |_, result| assert_eq!(result, Ok(())));
    assert!(matches!(refused(foreign), Some(Error::Config(why)) if why.contains("something else")));
    let small = machine.ram_disks(&[256 << 10])[0].clone();
    assert!(matches!(refused(small), Some(Error::Config(why)) if why.contains("512 KiB")));
    let failing = state_disk(1);
    failing.fail(0..1024, Fault::Media);
    assert!(matches!(refused(failing), Some(Error::Config(why)) if why.contains("cannot be read")));
}

#[test]
fn an_acquire_is_answered_when_no_write_of_another_host_can_follow() {
    let machine = Machine::new();
    let disk = disks::disk(3);
    let target = machine.target(vec![disk.clone() as Arc<dyn Disk>]);
    let [mut one, mut two] = [1, 2].map(|number| Host::new(&machine, &target, number));
    assert_eq!(one.register(7, KEEP), Status::SUCCESS);
    two.leaves_a_write_to(&disk);
    let acquire = one.acquire_command(Type::WriteExclusive, AcquireAction::Acquire, 7, 0).with_cid(0x600);
    one.io.0.send(acquire.as_bytes());
    // It is in force for what comes now.
    while two.report(64).0.kind == 0 {}
    assert_eq!(two.try_on_block(opcode::io::WRITE), CONFLICT);
    assert!(!one.io.0.has_response(), "the other host's write is under way");
    disk.release();
    assert_eq!(one.io.0.response().expect("a response").status(), Status::SUCCESS);
    assert_eq!(two.io.0.response().expect("a response").status(), Status::SUCCESS);
    drop([one, two]);
    machine.stop(target);
}

#[test]
fn an_acquire_whose_disk_does_not_answer_is_answered_when_the_disk_is_given_up() {
    let machine = Machine::new();
    let disk = disks::disk(3);
    let config = machine.config(vec![disk.clone() as Arc<dyn Disk>]);
    let target = machine.target_with(Config { disk_timeout: Duration::from_secs(1), ..config });
    let [mut one, mut two, mut three] = [1, 2, 3].map(|number| Host::new(&machine, &target, number));
    assert_eq!((one.register(7, KEEP), three.register(8, KEEP)), (Status::SUCCESS, Status::SUCCESS));
    two.leaves_a_write_to(&disk);
    // The second one preempts the first one's reservation, and waits behind it.
    // Threads of their own serve the two: the first one's keys come with its command, so its thread
    // has passed that on when it answers the next command.
    let acquire = Acquire { action: AcquireAction::Acquire, kind: Type::WriteExclusive }.command(1);
    let keys = AcquireKeys { current: 7.into(), preempted: 0.into() };
    let sgl = Descriptor::offset(0, size_of::<AcquireKeys>() as u32);
    one.io.0.send(&[acquire.with_sgl(sgl).with_cid(0x600).as_bytes(), keys.as_bytes()].concat());
    let flush = Command { nsid: 2.into(), ..Command::new(opcode::io::FLUSH) };
    assert_eq!(one.io.status(flush), Status::INVALID_NAMESPACE.dnr());
    let action = AcquireAction::PreemptAndAbort;
    let preempt = three.acquire_command(Type::WriteExclusive, action, 8, 7).with_cid(0x600);
    three.io.0.send(preempt.as_bytes());
    for host in [&mut one, &mut three] {
        let response = host.io.0.response().expect("a response");
        assert_eq!((response.cid.get(), response.status()), (0x600, Status::NS_NOT_READY));
    }
    assert_eq!(disk.under_way(), 1);
    assert!(two.io.0.ended().is_some());
    disk.release();
    // When the disk answers again, a host finds what is in force, and that nothing follows it.
    let mut status = Status::NS_NOT_READY;
    while status == Status::NS_NOT_READY {
        status = three.acquire(Type::WriteExclusive, 8);
    }
    assert_eq!((status, disk.under_way()), (Status::SUCCESS, 0));
    let mut two = Host::new(&machine, &target, 2);
    assert_eq!(two.try_on_block(opcode::io::WRITE), CONFLICT);
    drop([one, two, three]);
    machine.stop(target);
}
