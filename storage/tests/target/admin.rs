//! Admin commands: what Identify, log pages and features say, and the statuses of wrong ones.

use nvme::command::{Command, opcode};
use nvme::fabrics::{Cc, Property, PropertyGet, PropertySet};
use nvme::feature::{
    AsyncEvents, Capabilities, GetFeatures, NumberOfQueues, Select, SetFeatures, id as features,
};
use nvme::identify::{self, Identify, cns};
use nvme::log::{ErrorEntry, GetLogPage, Smart, id as logs};
use nvme::{NSID_ALL, Status};
use storage::target::Config;
use zerocopy::{FromBytes, IntoBytes};

use crate::machine::Machine;
use crate::raw::{Queue, controller, serves};

/// A Get Log Page of so many bytes.
fn page(lid: u8, bytes: u32, offset: u64) -> GetLogPage {
    GetLogPage { nsid: NSID_ALL, lid, lsp: 0, rae: false, numd: bytes / 4 - 1, offset }
}

/// Sends a command that the target answers with `N` bytes.
fn bytes<const N: usize>(queue: &mut Queue, command: Command) -> [u8; N] {
    queue.0.memory.write(0, &[0xee; N]).unwrap();
    let sgl = queue.0.keyed(0, N);
    assert_eq!(queue.status(command.with_sgl(sgl)), Status::SUCCESS);
    let mut bytes = [0; N];
    queue.0.memory.read(0, &mut bytes).unwrap();
    bytes
}

fn set(fid: u8, value: u32) -> Command {
    SetFeatures { fid, save: false, nsid: 0, value }.command()
}

fn get(fid: u8, select: Select) -> Command {
    GetFeatures { fid, select, nsid: 0 }.command()
}

#[test]
fn log_pages_say_what_was_done_and_what_failed() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, mut io) = controller(&machine, &target);
    assert_eq!(bytes::<64>(&mut admin, page(logs::ERROR, 64, 0).command()), [0; 64]);
    let sgl = io.0.keyed(0, 4096);
    for _ in 0..3 {
        assert_eq!(io.status(Command::blocks(opcode::io::READ, 1, 0, 8).with_sgl(sgl)), Status::SUCCESS);
    }
    assert_eq!(io.status(Command::blocks(opcode::io::WRITE, 1, 8, 8).with_sgl(sgl)), Status::SUCCESS);
    let wrong = io.ask(Command::blocks(opcode::io::READ, 1, 1 << 30, 8).with_sgl(sgl));
    assert_eq!(wrong.status(), Status::LBA_OUT_OF_RANGE.dnr());
    let smart: [u8; 512] = bytes(&mut admin, page(logs::SMART, 512, 0).command());
    let smart = Smart::read_from_bytes(&smart).expect("512 bytes");
    assert_eq!((smart.host_read_commands.get(), smart.host_write_commands.get()), (3, 1));
    // In thousands of 512 bytes, rounded up.
    assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (1, 1));
    assert_eq!((smart.critical_warning, smart.error_log_entries.get()), (0, 1));
    let entry: [u8; 64] = bytes(&mut admin, page(logs::ERROR, 64, 0).command());
    let entry = ErrorEntry::read_from_bytes(&entry).expect("64 bytes");
    assert_eq!((entry.error_count.get(), entry.sqid.get(), entry.cid), (1, 1, wrong.cid));
    assert_eq!((entry.nsid.get(), entry.lba.get()), (1, 1 << 30));
    assert_eq!(Status::from_wire(entry.status.get()), Status::LBA_OUT_OF_RANGE.dnr());
    // One entry is kept, and nothing lies behind it.
    assert_eq!(bytes::<64>(&mut admin, page(logs::ERROR, 64, 64).command()), [0; 64]);
    let slots = bytes::<512>(&mut admin, page(logs::FIRMWARE_SLOT, 512, 0).command());
    assert_eq!((slots[0], slots[8..16].starts_with(env!("CARGO_PKG_VERSION").as_bytes())), (1, true));
    let sgl = admin.0.keyed(0, 512);
    for (page, status) in [
        (page(logs::DISCOVERY, 512, 0), Status::INVALID_LOG_PAGE),
        (page(6, 512, 0), Status::INVALID_LOG_PAGE),
        (page(0xff, 512, 0), Status::INVALID_LOG_PAGE),
        (page(logs::SMART, 512, 2), Status::INVALID_FIELD),
        // Behind the end of the page.
        (page(logs::SMART, 512, 516), Status::INVALID_FIELD),
        (page(logs::SMART, 512, u64::MAX - 3), Status::INVALID_FIELD),
        (page(logs::ERROR, 512, 68), Status::INVALID_FIELD),
        (page(logs::CHANGED_NAMESPACES, 512, 0x10000), Status::INVALID_FIELD),
        (GetLogPage { nsid: 1, ..page(logs::SMART, 512, 0) }, Status::INVALID_FIELD),
        (GetLogPage { numd: u32::MAX, ..page(logs::ERROR, 512, 0) }, Status::INVALID_FIELD),
        (page(logs::ERROR, 516, 0), Status::DATA_SGL_LENGTH_INVALID),
    ] {
        assert_eq!(admin.status(page.command().with_sgl(sgl)), status.dnr(), "{page:?}");
    }
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn features_keep_what_was_set_and_wrong_ones_are_refused() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let granted = NumberOfQueues { submission: 4, completion: 4 }.value();
    let changeable = Capabilities::CHANGEABLE.bits();
    let notices = AsyncEvents::NAMESPACE_ATTRIBUTE.bits();
    for command in
        [set(features::KEEP_ALIVE_TIMER, 60_000), set(features::ASYNC_EVENT_CONFIGURATION, notices)]
    {
        assert_eq!(admin.status(command), Status::SUCCESS);
    }
    for (fid, current, default, capabilities) in [
        (features::NUMBER_OF_QUEUES, granted, granted, changeable),
        (features::KEEP_ALIVE_TIMER, 60_000, 0, changeable),
        (features::ASYNC_EVENT_CONFIGURATION, notices, 0, changeable),
        (features::VOLATILE_WRITE_CACHE, 0, 0, 0),
    ] {
        for (select, value) in [
            (Select::Current, current),
            (Select::Default, default),
            (Select::Saved, default),
            (Select::SupportedCapabilities, capabilities),
        ] {
            let response = admin.ask(get(fid, select));
            let found = (response.status(), response.result.get());
            assert_eq!(found, (Status::SUCCESS, value.into()), "{fid} {select:?}");
        }
    }
    let mut reserved = get(features::KEEP_ALIVE_TIMER, Select::Current);
    reserved.cdw10 = (reserved.cdw10.get() | 4 << 8).into();
    for (command, status) in [
        (reserved, Status::INVALID_FIELD),
        (get(0, Select::Current), Status::INVALID_FIELD),
        (get(0xff, Select::Current), Status::INVALID_FIELD),
        (set(0, 0), Status::INVALID_FIELD),
        (set(0xff, 0), Status::INVALID_FIELD),
        (set(features::VOLATILE_WRITE_CACHE, 1), Status::FEATURE_NOT_CHANGEABLE),
        // There is an I/O queue.
        (set(features::NUMBER_OF_QUEUES, granted), Status::SEQUENCE_ERROR),
    ] {
        assert_eq!(admin.status(command), status.dnr(), "{command:?}");
    }
    let saved = SetFeatures { fid: features::KEEP_ALIVE_TIMER, save: true, nsid: 0, value: 0 };
    assert_eq!(admin.status(saved.command()), Status::FEATURE_NOT_SAVEABLE.dnr());
    let mut early = Queue::open(&machine, &target, 0, 32);
    early.begin();
    for value in [0xffff, 0xffff_0000, u32::MAX] {
        assert_eq!(early.status(set(features::NUMBER_OF_QUEUES, value)), Status::INVALID_FIELD.dnr());
    }
    for queue in [admin, io, early] {
        drop(queue);
    }
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn features_that_mean_nothing_here_are_kept_until_a_reset() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let all = |admin: &mut Queue| {
        let features = [
            features::ARBITRATION,
            features::POWER_MANAGEMENT,
            features::TEMPERATURE_THRESHOLD,
            features::ERROR_RECOVERY,
            features::WRITE_ATOMICITY,
        ];
        features.map(|fid| {
            let got = admin.ask(get(fid, Select::Current));
            assert_eq!(got.status(), Status::SUCCESS, "{fid}");
            got.result.get()
        })
    };
    let defaults = [0, 0, 0xffff, 0, 0];
    assert_eq!(all(&mut admin), defaults);
    for (fid, value) in [
        (features::ARBITRATION, 0x0302_0103),
        (features::POWER_MANAGEMENT, 0x20),
        (features::TEMPERATURE_THRESHOLD, 340),
        (features::TEMPERATURE_THRESHOLD, 1 << 20 | 0xf << 16 | 270),
        (features::ERROR_RECOVERY, 0x1234),
        (features::WRITE_ATOMICITY, 1),
    ] {
        assert_eq!(admin.status(set(fid, value)), Status::SUCCESS, "{fid} {value:#x}");
    }
    assert_eq!(all(&mut admin), [0x0302_0103, 0x20, 340, 0x1234, 1]);
    let mut below = get(features::TEMPERATURE_THRESHOLD, Select::Current);
    below.cdw11 = (1_u32 << 20).into();
    assert_eq!(admin.ask(below).result.get(), 270);
    for (fid, value) in [
        (features::POWER_MANAGEMENT, 1),
        (features::TEMPERATURE_THRESHOLD, 1 << 16 | 300),
        (features::TEMPERATURE_THRESHOLD, 2 << 20 | 300),
        (features::ERROR_RECOVERY, 1 << 16),
    ] {
        assert_eq!(admin.status(set(fid, value)), Status::INVALID_FIELD.dnr(), "{fid} {value:#x}");
    }
    for value in [150, 1, 70_001] {
        assert_eq!(admin.status(set(features::KEEP_ALIVE_TIMER, value)), Status::SUCCESS);
        let kept = admin.ask(get(features::KEEP_ALIVE_TIMER, Select::Current)).result.get();
        assert_eq!(kept, u64::from(value.div_ceil(100) * 100));
    }
    // A reset takes the values, and the Asynchronous Event Requests, whose identifiers are free.
    for cid in 0x900..0x904 {
        admin.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(cid).as_bytes());
    }
    for enabled in [false, true] {
        let cc = Cc::new().with_enabled(enabled);
        assert_eq!(admin.status(PropertySet::new(Property::Cc, cc.0.into()).command()), Status::SUCCESS);
        let csts = PropertyGet::new(Property::Csts).command();
        while (admin.ask(csts).result.get() & 1 == 1) != enabled {}
    }
    assert_eq!(all(&mut admin), defaults);
    for cid in 0x900..0x904 {
        admin.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(cid).as_bytes());
    }
    assert_eq!(admin.status(Command::new(opcode::admin::KEEP_ALIVE)), Status::SUCCESS);
    drop(admin);
    drop(io);
    machine.stop(target);
}

#[test]
fn hosts_are_granted_the_queues_that_are_left_and_the_next_one_finds_some() {
    let machine = Machine::new();
    // Entries for five admin queues, and 24 I/O queues.
    let config = Config {
        commands: 5 * 64 + 24 * 256,
        in_capsule: 512,
        ..machine.config(machine.ram_disks(&[1 << 20]))
    };
    let target = machine.target_with(config);
    let (many, mut hosts) = (NumberOfQueues { submission: 1000, completion: 1000 }, Vec::new());
    for expected in [13, 6, 3, 1] {
        let mut admin = Queue::open(&machine, &target, 0, 32);
        admin.begin();
        let granted = admin.ask(set(features::NUMBER_OF_QUEUES, many.value())).result.get() as u16 + 1;
        assert_eq!(granted, expected);
        hosts.push(admin);
    }
    hosts.into_iter().for_each(drop);
    target.wait_for(|counted| counted.connections == 0);
    machine.stop(target);
}

#[test]
fn a_disk_that_is_read_only_is_no_warning_and_a_failure_of_a_disk_is_counted() {
    let machine = Machine::new();
    let disk = crate::disks::disk(1);
    disk.fail(3..4, block::Fault::Media);
    let target = machine.target(vec![disk.clone()]);
    let (mut admin, mut io) = controller(&machine, &target);
    let sgl = io.0.keyed(0, 512);
    for (block, status) in [(3, Status::WRITE_FAULT), (4, Status::SUCCESS)] {
        assert_eq!(io.status(Command::blocks(opcode::io::WRITE, 1, block, 1).with_sgl(sgl)), status);
    }
    let smart: [u8; 512] = bytes(&mut admin, page(logs::SMART, 512, 0).command());
    let smart = Smart::read_from_bytes(&smart).expect("512 bytes");
    assert_eq!((smart.critical_warning, smart.media_errors.get()), (0, 1));
    drop(admin);
    drop(io);
    machine.stop(target);
    let geometry = block::Geometry { is_read_only: true, ..block::Disk::geometry(&*disk) };
    let disk = block::simulated::SimulatedDisk::new(geometry, 1);
    let target = machine.target(vec![std::sync::Arc::new(disk)]);
    let (mut admin, io) = controller(&machine, &target);
    let smart: [u8; 512] = bytes(&mut admin, page(logs::SMART, 512, 0).command());
    assert_eq!(smart[0], 0);
    drop(admin);
    drop(io);
    machine.stop(target);
}

#[test]
fn identify_and_abort_answer_or_say_what_is_wrong() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20, 2 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let identify = |cns, nsid| Identify { cns, cntid: 0, nsid }.command();
    let page = bytes::<4096>(&mut admin, identify(cns::NAMESPACE, 2));
    assert_eq!(page[..8], (2_u64 << 20 >> 9).to_le_bytes());
    let list = bytes::<4096>(&mut admin, identify(cns::ACTIVE_LIST, 1));
    assert_eq!((list[0], list[4..].iter().all(|byte| *byte == 0)), (2, true));
    let descriptors = bytes::<4096>(&mut admin, identify(cns::NAMESPACE_DESCRIPTORS, 1));
    assert_eq!(descriptors[..2], [3, 16], "a UUID");
    let sgl = admin.0.keyed(0, identify::LEN);
    for (cns, nsid, status) in [
        (cns::NAMESPACE, 0, Status::INVALID_NAMESPACE),
        (cns::NAMESPACE, 65, Status::INVALID_NAMESPACE),
        (cns::NAMESPACE, NSID_ALL, Status::INVALID_NAMESPACE),
        (cns::ACTIVE_LIST, NSID_ALL - 1, Status::INVALID_NAMESPACE),
        (cns::ACTIVE_LIST, NSID_ALL, Status::INVALID_NAMESPACE),
        (cns::NAMESPACE_DESCRIPTORS, 0, Status::INVALID_NAMESPACE),
        (cns::NAMESPACE_DESCRIPTORS, 3, Status::INVALID_NAMESPACE),
        (0x7f, 1, Status::INVALID_FIELD),
    ] {
        assert_eq!(admin.status(identify(cns, nsid).with_sgl(sgl)), status.dnr(), "{cns:#x} {nsid:#x}");
    }
    let sgl = admin.0.keyed(0, 512);
    let short = identify(cns::CONTROLLER, 0).with_sgl(sgl);
    assert_eq!(admin.status(short), Status::DATA_SGL_LENGTH_INVALID.dnr());
    // Commands that are not outstanding, and of a queue that is not: none is aborted.
    for (queue, command) in [(0, 0x900), (1, 5), (77, 5)] {
        let response = admin.ask(Command::abort(queue, command));
        assert_eq!((response.status(), response.result.get()), (Status::SUCCESS, 1));
    }
    admin.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x900).as_bytes());
    admin.0.send(Command::abort(0, 0x900).with_cid(0x901).as_bytes());
    for (cid, status) in [(0x900, Status::ABORT_REQUESTED), (0x901, Status::SUCCESS)] {
        let response = admin.0.response().expect("a response");
        assert_eq!((response.cid.get(), response.status(), response.result.get()), (cid, status, 0));
    }
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}
