//! What base 2.0 adds: what is supported says so where hosts look, and nothing else does.

use block::Fault;
use nvme::command::{Command, opcode};
use nvme::copy::Range;
use nvme::feature::{self, GetFeatures, Select, SetFeatures};
use nvme::identify::{self, Identify, IndependentNamespace, NvmController, Oncs, cns};
use nvme::log::{self, Effects, FeatureEffects, GetLogPage};
use nvme::{Status, fabrics};
use storage::target::Config;
use zerocopy::{FromBytes, IntoBytes};

use crate::disks;
use crate::machine::{Machine, pattern};
use crate::raw::{Queue, controller};

fn bytes<const N: usize>(queue: &mut Queue, command: Command) -> [u8; N] {
    let sgl = queue.0.keyed(0, N);
    assert_eq!(queue.status(command.with_sgl(sgl)), Status::SUCCESS);
    let mut bytes = [0; N];
    queue.0.memory.read(0, &mut bytes).unwrap();
    bytes
}

fn page(lid: u8, len: usize) -> Command {
    GetLogPage { nsid: 0, lid, lsp: 0, rae: true, numd: len as u32 / 4 - 1, offset: 0 }.command()
}

fn dword(bytes: &[u8], number: usize) -> u32 {
    u32::from_le_bytes(bytes[4 * number..4 * number + 4].try_into().unwrap())
}

#[test]
fn the_pages_of_what_is_supported_agree_with_what_is_answered() {
    agree(None, 10);
}

#[test]
fn a_target_that_shares_its_disks_has_no_reservations_and_says_so() {
    agree(Some(2), 9);
}

fn agree(path: Option<u16>, pages: u32) {
    let machine = Machine::new();
    // Its disk discards and writes zeros.
    let target = machine.target_with(Config { path, ..machine.config(vec![disks::disk(1)]) });
    let (mut admin, mut io) = controller(&machine, &target);
    let supported = bytes::<{ log::SUPPORTED_LEN }>(&mut admin, page(log::id::SUPPORTED, log::SUPPORTED_LEN));
    let mut count = 0;
    for lid in 0..=u8::MAX {
        let sgl = admin.0.keyed(0, 64);
        let is_missing = admin.status(page(lid, 64).with_sgl(sgl)) == Status::INVALID_LOG_PAGE.dnr();
        assert_eq!(dword(&supported, lid.into()) & 1 == 0, is_missing, "{lid:#x}");
        count += u32::from(!is_missing);
    }
    assert_eq!(count, pages);
    let effects = bytes::<{ log::EFFECTS_LEN }>(&mut admin, page(log::id::COMMAND_EFFECTS, log::EFFECTS_LEN));
    for code in 0..=u8::MAX {
        let status = io.status(Command { nsid: 1.into(), ..Command::new(code) });
        let listed = Effects::from_bits_retain(dword(&effects, 256 + usize::from(code)));
        assert_eq!(listed.is_empty(), status == Status::INVALID_OPCODE.dnr(), "{code:#x}: {status}");
    }
    let changes = |code: u8| {
        Effects::from_bits_retain(dword(&effects, 256 + usize::from(code))).contains(Effects::CHANGES_BLOCKS)
    };
    assert!(changes(opcode::io::WRITE) && changes(opcode::io::WRITE_ZEROES) && !changes(opcode::io::READ));
    for code in (0..=u8::MAX).filter(|&code| code != opcode::admin::ASYNC_EVENT_REQUEST) {
        let status = admin.status(Command::new(code));
        let is_listed = dword(&effects, code.into()) != 0;
        // A command of fabrics of no kind is no command.
        let is_there = status != Status::INVALID_OPCODE.dnr() || code == opcode::FABRICS;
        assert_eq!(is_listed, is_there, "{code:#x}: {status}");
    }
    let features =
        bytes::<{ log::SUPPORTED_LEN }>(&mut admin, page(log::id::FEATURE_EFFECTS, log::SUPPORTED_LEN));
    for fid in 0..=u8::MAX {
        let get = GetFeatures { fid, select: Select::SupportedCapabilities, nsid: 1 };
        let status = admin.status(get.command());
        let listed = FeatureEffects::from_bits_retain(dword(&features, fid.into()));
        assert_eq!(listed.contains(FeatureEffects::SUPPORTED), status.is_success(), "{fid:#x}: {status}");
    }
    let identify = |cns, nsid| Identify { cns, cntid: 0, nsid }.command();
    let whole = bytes::<{ identify::LEN }>(&mut admin, identify(cns::CONTROLLER, 0));
    let whole = identify::Controller::read_from_bytes(&whole).unwrap();
    let namespace = bytes::<{ identify::LEN }>(&mut admin, identify(cns::NAMESPACE, 1));
    let namespace = identify::Namespace::read_from_bytes(&namespace).unwrap();
    let has_reservations = Oncs::from_bits_retain(whole.oncs.get()).contains(Oncs::RESERVATIONS);
    assert_eq!((has_reservations, namespace.rescap != 0), (path.is_none(), path.is_none()));
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn identify_has_the_structures_of_the_command_set() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let version = admin.ask(fabrics::PropertyGet::new(fabrics::Property::Vs).command());
    assert_eq!(version.result.get(), 0x0002_0000);
    let identify = |cns, nsid| Identify { cns, cntid: 0, nsid }.command();
    let whole = bytes::<{ identify::LEN }>(&mut admin, identify(cns::CONTROLLER, 0));
    let whole = identify::Controller::read_from_bytes(&whole).unwrap();
    assert_eq!(whole.ver.get(), 0x0002_0000);
    let nvm = bytes::<{ identify::LEN }>(&mut admin, identify(cns::COMMAND_SET_CONTROLLER, 0));
    let nvm = NvmController::read_from_bytes(&nvm).unwrap();
    assert_eq!((nvm.vsl, nvm.wzsl), (whole.mdts, 0));
    let list = bytes::<{ identify::LEN }>(&mut admin, identify(cns::COMMAND_SET_ACTIVE_LIST, 0));
    assert_eq!((dword(&list, 0), dword(&list, 1)), (1, 0));
    assert_eq!(bytes::<{ identify::LEN }>(&mut admin, identify(cns::COMMAND_SET_NAMESPACE, 1)), [0; 4096]);
    let independent = identify(cns::COMMAND_SET_INDEPENDENT_NAMESPACE, 1);
    let independent = bytes::<{ identify::LEN }>(&mut admin, independent);
    let independent = IndependentNamespace::read_from_bytes(&independent).unwrap();
    assert_eq!((independent.nmic, independent.nstat, independent.nsattr), (1, 1, 0));
    assert_eq!(dword(&bytes::<{ identify::LEN }>(&mut admin, identify(cns::COMMAND_SETS, 0)), 0), 1);
    let descriptors = bytes::<{ identify::LEN }>(&mut admin, identify(cns::NAMESPACE_DESCRIPTORS, 1));
    assert_eq!(descriptors[20..26], [4, 1, 0, 0, 0, 0], "the NVM command set, and no more");
    let sgl = admin.0.keyed(0, identify::LEN);
    for (cns, nsid, command_set, status) in [
        (cns::COMMAND_SET_CONTROLLER, 0, 1, Status::INVALID_FIELD),
        (cns::COMMAND_SET_ACTIVE_LIST, 0, 2, Status::INVALID_FIELD),
        (cns::COMMAND_SET_ACTIVE_LIST, nvme::NSID_ALL, 0, Status::INVALID_NAMESPACE),
        (cns::COMMAND_SET_NAMESPACE, 1, 2, Status::INVALID_FIELD),
        (cns::COMMAND_SET_NAMESPACE, 2, 0, Status::INVALID_NAMESPACE),
        (cns::COMMAND_SET_INDEPENDENT_NAMESPACE, 2, 0, Status::INVALID_NAMESPACE),
    ] {
        let command = Command { cdw11: (command_set << 24_u32).into(), ..identify(cns, nsid) };
        assert_eq!(admin.status(command.with_sgl(sgl)), status.dnr(), "{cns:#x} {nsid} {command_set}");
    }
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn the_host_identifier_is_that_of_the_connect_command() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let fid = feature::id::HOST_IDENTIFIER;
    let get = GetFeatures { fid, select: Select::Current, nsid: 0 }.command();
    let long = Command { cdw11: 1.into(), ..get };
    assert_eq!(bytes::<16>(&mut admin, long), [7; 16]);
    let sgl = admin.0.keyed(0, 8);
    assert_eq!(admin.status(get.with_sgl(sgl)), Status::INVALID_FIELD.dnr(), "of 64 bits");
    assert_eq!(admin.status(long.with_sgl(sgl)), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let set = SetFeatures { fid, save: false, nsid: 0, value: 1 }.command();
    assert_eq!(admin.status(set), Status::SEQUENCE_ERROR.dnr());
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn a_verify_reads_and_sends_nothing() {
    let machine = Machine::new();
    let disk = disks::disk(1);
    disk.fail(7..8, Fault::Media);
    let target = machine.target(vec![disk]);
    let (admin, mut io) = controller(&machine, &target);
    for (block, blocks, status) in [
        (0, 1, Status::SUCCESS),
        (8, 2048, Status::SUCCESS),
        (7, 1, Status::UNRECOVERED_READ.dnr()),
        (0, 64, Status::UNRECOVERED_READ.dnr()),
        (4095, 2, Status::LBA_OUT_OF_RANGE.dnr()),
        (8, 2049, Status::INVALID_FIELD.dnr()),
    ] {
        assert_eq!(io.status(Command::blocks(opcode::io::VERIFY, 1, block, blocks)), status, "{block}");
    }
    assert_eq!(target.control.statistics().reads, 0);
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn a_copy_takes_many_ranges_and_wrong_ones_copy_nothing() {
    let machine = Machine::new();
    let disk = disks::disk(1);
    let target = machine.target(vec![disk.clone()]);
    let (admin, mut io) = controller(&machine, &target);
    let written = pattern(1, 64 * 512);
    io.0.memory.write(0, &written).unwrap();
    let write = Command::blocks(opcode::io::WRITE, 1, 100, 64).with_sgl(io.0.keyed(0, 64 * 512));
    assert_eq!(io.status(write), Status::SUCCESS);
    let mut copy = |to: u64, ranges: &[(u64, u32)]| {
        let bytes: Vec<u8> =
            ranges.iter().flat_map(|&(from, count)| Range::new(from, count).as_bytes().to_vec()).collect();
        io.0.memory.write(0, &bytes).unwrap();
        let sgl = io.0.keyed(0, bytes.len());
        io.status(nvme::copy::command(1, to, ranges.len()).with_sgl(sgl))
    };
    assert_eq!(copy(1000, &[(130, 3), (100, 40), (163, 1)]), Status::SUCCESS);
    let found: Vec<u8> = (1000..1044).flat_map(|block| disk.contents(block)).collect();
    let expected = [&written[30 * 512..33 * 512], &written[..40 * 512], &written[63 * 512..]].concat();
    assert!(found == expected);
    let many: Vec<_> = (0..256).map(|n| (100 + n % 64, 1)).collect();
    assert_eq!(copy(2000, &many), Status::SUCCESS);
    assert!((0..256).all(|n| disk.contents(2000 + n) == written[(n % 64) as usize * 512..][..512]));
    for (to, ranges, status) in [
        (3000, &[(100, 1), (4096, 1)][..], Status::LBA_OUT_OF_RANGE),
        (3000, &[(100, 1), (4095, 2)], Status::LBA_OUT_OF_RANGE),
        (3000, &[(u64::MAX, 1)], Status::LBA_OUT_OF_RANGE),
        (4095, &[(100, 1), (100, 1)], Status::LBA_OUT_OF_RANGE),
        (u64::MAX, &[(100, 1)], Status::LBA_OUT_OF_RANGE),
        (3000, &[(0, 2049)], Status::COMMAND_SIZE_LIMIT_EXCEEDED),
    ] {
        assert_eq!(copy(to, ranges), status.dnr(), "{to} {ranges:?}");
    }
    assert!((3000..3010).chain([4095]).all(|block| disk.contents(block) == [0; 512]), "nothing was copied");
    disk.fail(110..111, Fault::Media);
    assert_eq!(copy(3000, &[(100, 20)]), Status::UNRECOVERED_READ.dnr());
    disk.repair();
    disk.fail(3005..3006, Fault::Media);
    assert_eq!(copy(3000, &[(100, 20)]), Status::WRITE_FAULT);
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn an_abort_aborts_what_waits_and_nothing_else() {
    let machine = Machine::new();
    // Its queue has seven entries.
    let disk = disks::disk(1);
    let target = machine.target(vec![disk.clone()]);
    let (mut admin, mut io) = controller(&machine, &target);
    disk.stall();
    let sgl = io.0.keyed(0, 512);
    for cid in 0x100..0x10a {
        io.0.send(Command::blocks(opcode::io::READ, 1, 0, 1).with_sgl(sgl).with_cid(cid).as_bytes());
    }
    // When a later command is answered, these are where they wait.
    let flush = Command { nsid: 2.into(), ..Command::new(opcode::io::FLUSH) };
    assert_eq!(io.status(flush), Status::INVALID_NAMESPACE.dnr());
    let aborted = |admin: &mut Queue, queue, cid| {
        let response = admin.ask(Command::abort(queue, cid));
        assert_eq!(response.status(), Status::SUCCESS);
        response.result.get() == 0
    };
    assert!(!aborted(&mut admin, 1, 0x100), "the disk has it");
    assert!(!aborted(&mut admin, 1, 0x200) && !aborted(&mut admin, 2, 0x108), "there is none");
    for cid in [0x108, 0x107, 0x109] {
        assert!(aborted(&mut admin, 1, cid));
        let response = io.0.response().expect("a response");
        assert_eq!((response.cid.get(), response.status()), (cid, Status::ABORT_REQUESTED));
        assert!(!aborted(&mut admin, 1, cid), "it is gone");
    }
    disk.release();
    let mut done: Vec<u16> = (0..7).map(|_| io.0.response().expect("a response").cid.get()).collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(0x100..0x107));
    drop((admin, io));
    machine.stop(target);
}
