//! Asymmetric Namespace Access: what hosts are told of a path, and what they may do by it.

use std::sync::Arc;

use block::Disk;
use nvme::Status;
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{Cc, Property, PropertySet};
use nvme::feature::AsyncEvents;
use nvme::identify::{self, Anacap, Cmic, Identify, IndependentNamespace, Oaes, cns};
use nvme::log::{self, GROUPS_ONLY, GetLogPage};
use storage::target::{AnaState, Config, Export, Host, Refusal, Visible};
use zerocopy::{FromBytes, IntoBytes};

use crate::disks::disk;
use crate::listening::Listening;
use crate::machine::{Machine, Running};
use crate::raw::{HOST, Queue, controller, serves};

/// The page's head, and for each group its identifier, Change Count, state and namespaces.
type Page = ((u64, u16), Vec<(u32, u64, u8, Vec<u32>)>);

impl Listening {
    /// What the log page says.
    fn page(&mut self, lsp: u8) -> Page {
        let bytes = self.log(log::id::ANA, lsp, false, 0, 4096);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (groups, mut at, mut all) = (word(8) as u16, 16, Vec::new());
        for _ in 0..groups {
            let nsids = word(at + 4) as usize;
            let listed = (0..nsids).map(|n| word(at + 32 + 4 * n)).collect();
            all.push((word(at), long(at + 8), bytes[at + 16], listed));
            at += 32 + 4 * nsids;
        }
        assert!(bytes[at..].iter().all(|&byte| byte == 0), "nothing follows");
        ((long(0), groups), all)
    }

    /// The states of all groups.
    pub fn states(&mut self) -> Vec<u8> {
        self.page(0).1.iter().map(|(_, _, state, _)| *state).collect()
    }
}

fn target(machine: &Machine, disks: usize) -> Running {
    let disks = (1..).take(disks).map(|seed| disk(seed) as Arc<dyn Disk>).collect();
    machine.target_with(Config { grows: true, ..machine.config(disks) })
}

fn set(target: &Running, nsid: impl Into<Option<u32>>, state: AnaState) {
    target.control.set_ana_state(None, nsid.into(), state).unwrap();
}

#[test]
fn identify_says_that_paths_are_reported() {
    let machine = Machine::new();
    let target = target(&machine, 3);
    let (admin, io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::empty());
    let identify = |cns, nsid| Identify { cns, cntid: 0, nsid }.command();
    let whole = host.read(identify(cns::CONTROLLER, 0), identify::LEN);
    let whole = identify::Controller::read_from_bytes(&whole).unwrap();
    assert!(Cmic::from_bits_retain(whole.cmic).contains(Cmic::ANA | Cmic::CONTROLLERS));
    assert!(Oaes::from_bits_retain(whole.oaes.get()).contains(Oaes::ANA_CHANGE));
    assert_eq!(whole.anacap, (Anacap::ALL_STATES | Anacap::GROUPS_STAY).bits());
    assert!(whole.anatt > 0);
    // Linux reads all of the page at once, and takes groups up to the greatest number.
    let (most, page) = (whole.nanagrpid.get(), 16 + 32 * whole.nanagrpid.get() + 4 * whole.mnan.get());
    assert!(most == whole.anagrpmax.get() && most == 64 && page <= 4096 << whole.mdts);
    for nsid in 1..=3 {
        let namespace = host.read(identify(cns::NAMESPACE, nsid), identify::LEN);
        let namespace = identify::Namespace::read_from_bytes(&namespace).unwrap();
        assert_eq!((namespace.anagrpid.get(), namespace.nmic), (nsid, 1));
        assert_eq!((namespace.nsze.get(), namespace.nuse.get()), (4096, 4096));
        let independent = host.read(identify(cns::COMMAND_SET_INDEPENDENT_NAMESPACE, nsid), identify::LEN);
        let independent = IndependentNamespace::read_from_bytes(&independent).unwrap();
        assert_eq!(independent.anagrpid.get(), nsid);
    }
    set(&target, 2, AnaState::Inaccessible);
    let namespace = host.read(identify(cns::NAMESPACE, 2), identify::LEN);
    let namespace = identify::Namespace::read_from_bytes(&namespace).unwrap();
    // Linux takes a capacity of 0 for a namespace that is not there.
    assert_eq!((namespace.nsze.get(), namespace.ncap.get(), namespace.nuse.get()), (4096, 4096, 0));
    drop((host, io));
    machine.stop(target);
}

#[test]
fn the_log_page_has_a_group_for_each_namespace_and_counts_changes() {
    let machine = Machine::new();
    let target = target(&machine, 3);
    let (admin, io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::empty());
    let groups = |counts: [u64; 3], states: [u8; 3]| {
        let group = |n: usize| (n as u32 + 1, counts[n], states[n], vec![n as u32 + 1]);
        (0..3).map(group).collect::<Vec<_>>()
    };
    assert_eq!(host.page(0), ((0, 3), groups([1, 1, 1], [1, 1, 1])));
    set(&target, 2, AnaState::Inaccessible);
    set(&target, 3, AnaState::NonOptimized);
    set(&target, 3, AnaState::NonOptimized);
    assert_eq!(host.page(0), ((2, 3), groups([1, 2, 3], [1, 3, 2])));
    let only: Vec<_> = groups([1, 2, 3], [1, 3, 2])
        .into_iter()
        .map(|mut group| {
            group.3.clear();
            group
        })
        .collect();
    assert_eq!(host.page(GROUPS_ONLY), ((2, 3), only));
    // In pieces it is the same, and it may be read from its end, but not from behind it.
    for (lsp, len) in [(0, 16 + 3 * 36), (GROUPS_ONLY, 16 + 3 * 32)] {
        let whole = host.log(log::id::ANA, lsp, true, 0, len);
        let pieces: Vec<u8> =
            (0..len).step_by(4).flat_map(|at| host.log(log::id::ANA, lsp, true, at as u64, 4)).collect();
        assert_eq!(pieces, whole);
        assert_eq!(host.log(log::id::ANA, lsp, true, len as u64, 8), [0; 8]);
        let sgl = host.0.0.keyed(0, 4);
        for (offset, status) in [(len + 4, Status::INVALID_FIELD.dnr()), (2, Status::INVALID_FIELD.dnr())] {
            let behind =
                GetLogPage { nsid: 0, lid: log::id::ANA, lsp, rae: true, numd: 0, offset: offset as u64 };
            assert_eq!(host.0.status(behind.command().with_sgl(sgl)), status, "{offset}");
        }
    }
    // A reset begins to count anew, and another controller has its own count.
    let (other, io2) = controller(&machine, &target);
    assert_eq!(Listening::new(other, AsyncEvents::empty()).page(0), ((0, 3), groups([1, 1, 1], [1, 3, 2])));
    drop((io, io2));
    let configure =
        |enabled| PropertySet::new(Property::Cc, Cc::new().with_enabled(enabled).0.into()).command();
    let mut admin = host.0;
    assert_eq!(admin.status(configure(false)), Status::SUCCESS);
    let status = || nvme::fabrics::PropertyGet::new(Property::Csts).command();
    while admin.ask(status()).result.get() & 1 != 0 {}
    assert_eq!(admin.status(configure(true)), Status::SUCCESS);
    let mut host = Listening::new(admin, AsyncEvents::empty());
    assert_eq!(host.page(0), ((0, 3), groups([1, 1, 1], [1, 3, 2])));
    set(&target, 1, AnaState::Change);
    assert_eq!(host.page(0), ((1, 3), groups([2, 1, 1], [15, 3, 2])));
    drop(host);
    machine.stop(target);
}

#[test]
fn commands_by_a_path_that_is_closed_get_a_status_by_which_hosts_try_another() {
    let machine = Machine::new();
    let target = target(&machine, 2);
    let (mut admin, mut io) = controller(&machine, &target);
    let block = io.0.keyed(0, 512);
    let ranges = io.0.keyed(0, 16);
    let keys = io.0.keyed(0, 8);
    let plain = |code: u8, nsid: u32| Command { nsid: nsid.into(), ..Command::new(code) };
    let commands = |nsid| {
        [
            Command::blocks(opcode::io::READ, nsid, 0, 1).with_sgl(block),
            Command::blocks(opcode::io::WRITE, nsid, 0, 1).with_sgl(block),
            Command::blocks(opcode::io::COMPARE, nsid, 0, 1).with_sgl(block),
            Command::blocks(opcode::io::VERIFY, nsid, 0, 1),
            Command::blocks(opcode::io::WRITE_ZEROES, nsid, 0, 1),
            plain(opcode::io::FLUSH, nsid),
            Command { cdw11: 4.into(), ..plain(opcode::io::DATASET_MANAGEMENT, nsid) }.with_sgl(ranges),
            nvme::copy::command(nsid, 8, 1).with_sgl(ranges),
            plain(opcode::io::RESERVATION_REGISTER, nsid).with_sgl(ranges),
            plain(opcode::io::RESERVATION_ACQUIRE, nsid).with_sgl(ranges),
            plain(opcode::io::RESERVATION_RELEASE, nsid).with_sgl(keys),
            Command { cdw11: 1.into(), cdw10: 127.into(), ..plain(opcode::io::RESERVATION_REPORT, nsid) }
                .with_sgl(block),
        ]
    };
    let is_path = |status: Status| status.sct() == nvme::status::sct::PATH;
    for (state, expected) in [
        (AnaState::Inaccessible, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::PersistentLoss, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Some(Status::ANA_TRANSITION)),
        (AnaState::NonOptimized, None),
        (AnaState::Optimized, None),
    ] {
        set(&target, 2, state);
        for command in commands(2) {
            let status = io.status(command);
            // Exactly: with Do Not Retry a host would give up.
            match expected {
                Some(expected) => assert_eq!(status, expected, "{:#x}", command.opcode),
                None => assert!(!is_path(status), "{:#x}: {status}", command.opcode),
            }
        }
        for command in commands(1) {
            assert!(!is_path(io.status(command)), "the other namespace");
        }
        // What is wrong with a command has precedence if it has no namespace.
        assert_eq!(io.status(plain(opcode::io::FLUSH, 3)), Status::INVALID_NAMESPACE.dnr());
        // Commands of the admin queue do not need the path.
        let page = admin.0.keyed(0, identify::LEN);
        for command in [
            Identify { cns: cns::NAMESPACE, cntid: 0, nsid: 2 }.command().with_sgl(page),
            Identify { cns: cns::NAMESPACE_DESCRIPTORS, cntid: 0, nsid: 2 }.command().with_sgl(page),
            Command::new(opcode::admin::KEEP_ALIVE),
        ] {
            assert_eq!(admin.status(command), Status::SUCCESS);
        }
    }
    drop((admin, io));
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn commands_that_wait_are_answered_and_those_that_the_disk_has_are_carried_out() {
    let machine = Machine::new();
    // Its queue has seven entries, of which each of several threads leaves one to each other one.
    let slow = disk(1);
    let room = 7 - (crate::WORKERS - 1);
    let target = machine.target(vec![slow.clone()]);
    let (admin, mut io) = controller(&machine, &target);
    let [given, waiting] = [0x100..0x100 + room as u16, 0x100 + room as u16..0x10c];
    slow.stall();
    let sgl = io.0.keyed(0, 512);
    for cid in given.start..waiting.end {
        io.0.send(Command::blocks(opcode::io::WRITE, 1, 0, 1).with_sgl(sgl).with_cid(cid).as_bytes());
    }
    while slow.under_way() < room {
        std::thread::yield_now();
    }
    // When a later command is answered, these are where they wait.
    let flush = Command { nsid: 2.into(), ..Command::new(opcode::io::FLUSH) };
    assert_eq!(io.status(flush), Status::INVALID_NAMESPACE.dnr());
    set(&target, None, AnaState::Inaccessible);
    let response = |io: &mut Queue| {
        let response = io.0.response().expect("a response");
        (response.cid.get(), response.status())
    };
    let refused: Vec<_> = waiting.clone().map(|_| response(&mut io)).collect();
    assert_eq!(refused, waiting.map(|cid| (cid, Status::ANA_INACCESSIBLE)).collect::<Vec<_>>());
    assert_eq!(slow.under_way(), room);
    slow.release();
    let mut done: Vec<_> = given.clone().map(|_| response(&mut io)).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(done, given.map(|cid| (cid, Status::SUCCESS)).collect::<Vec<_>>());
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn hosts_hear_of_a_path_that_changes_if_they_want_to_and_see_its_namespace() {
    let machine = Machine::new();
    let disks: Vec<Arc<dyn Disk>> = vec![disk(1), disk(2)];
    let mut config = Config { grows: true, ..machine.config(disks) };
    config.hosts.push(Host { namespaces: Visible::some([(2, 64)]), ..Host::new(HOST) });
    let target = machine.target_with(config);
    let (admin, io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::ANA_CHANGE | AsyncEvents::NAMESPACE_ATTRIBUTE);
    let (admin, io2) = controller(&machine, &target);
    let mut deaf = Listening::new(admin, AsyncEvents::NAMESPACE_ATTRIBUTE);
    assert_eq!(host.page(0).1, [(2, 1, 1, vec![2])]);

    set(&target, 1, AnaState::Inaccessible);
    assert!(!host.has_event(), "the host does not see that namespace");
    set(&target, 2, AnaState::NonOptimized);
    assert_eq!((host.event(), host.states()), (Event::ANA_CHANGE, vec![2]));
    set(&target, 2, AnaState::NonOptimized);
    assert!(!host.has_event(), "nothing has changed");

    // No second event before the host has read the page; a page that is read with RAE is not read.
    for state in [AnaState::Inaccessible, AnaState::Change, AnaState::Optimized] {
        set(&target, 2, state);
    }
    assert_eq!(host.event(), Event::ANA_CHANGE);
    host.log(log::id::ANA, 0, true, 0, 64);
    assert!(!host.has_event());
    // That does not hold up an event of another kind.
    let export = Export::new(disk(3), [9; 16]);
    assert_eq!(target.control.add(export), Ok(3));
    assert_eq!(host.event(), Event::NAMESPACE_ATTRIBUTE_CHANGED);
    host.log(log::id::CHANGED_NAMESPACES, 0, false, 0, 4096);
    assert_eq!(host.states(), [1, 1]);
    assert_eq!(host.event(), Event::ANA_CHANGE);
    assert_eq!(host.states(), [1, 1]);
    assert!(!host.has_event());

    // A namespace that comes has the state that all have got, and its event is not this one.
    set(&target, None, AnaState::NonOptimized);
    assert_eq!((host.event(), host.states()), (Event::ANA_CHANGE, vec![2, 2]));
    let export = Export::new(disk(4), [10; 16]);
    assert_eq!(target.control.add(export), Ok(4));
    assert_eq!(host.event(), Event::NAMESPACE_ATTRIBUTE_CHANGED);
    assert_eq!(host.states(), [2, 2, 2]);
    target.control.remove(4).unwrap();
    assert_eq!(host.states(), [2, 2]);
    assert!(!host.has_event(), "it is the event that was reported before");

    assert_eq!(deaf.event(), Event::NAMESPACE_ATTRIBUTE_CHANGED);
    assert!(!deaf.has_event(), "it does not want to hear of paths");
    drop((host, deaf, io, io2));
    machine.stop(target);
}

#[test]
fn a_state_of_a_path_that_is_not_there_is_refused() {
    let machine = Machine::new();
    let target = target(&machine, 1);
    let control = target.control.clone();
    let (admin, io) = controller(&machine, &target);
    let mut host = Listening::new(admin, AsyncEvents::ANA_CHANGE);
    let state = AnaState::Inaccessible;
    for nsid in [0, 2, 64, 65, u32::MAX] {
        assert_eq!(control.set_ana_state(None, Some(nsid), state), Err(Refusal::NoNamespace), "{nsid}");
    }
    assert_eq!(control.set_ana_state(Some(7), None, state), Err(Refusal::NoPort));
    assert_eq!(control.set_ana_state(Some(7), Some(1), state), Err(Refusal::NoPort));
    assert!(!host.has_event());
    let overview = control.overview().unwrap();
    assert_eq!((overview.ports[0].id, &*overview.namespaces[0].ana_states), (1, &[AnaState::Optimized][..]));
    assert_eq!(control.set_ana_state(Some(1), Some(1), state), Ok(()));
    assert_eq!(control.overview().unwrap().namespaces[0].ana_states, [state]);
    drop((host, io));
    machine.stop(target);
    assert_eq!(control.set_ana_state(None, None, state), Err(Refusal::Ended));
}

#[test]
fn targets_of_one_subsystem_have_equal_namespaces_and_controllers_of_their_own() {
    let machine = Machine::new();
    let shared = disk(1);
    let config = machine.config(vec![shared.clone()]);
    let mut ends = Vec::new();
    // A host finds what it wrote by the other path. Each target listens at a port of its own.
    for (path, ids) in [(1, 1..=8189), (2, 8190..=16378), (8, 57324..=65512)] {
        let target = machine.target_with(Config { path: Some(path), ..config.clone() });
        let (admin, io) = controller(&machine, &target);
        let overview = target.control.overview().unwrap();
        assert_eq!((overview.ports[0].id, overview.namespaces[0].uuid), (path, [1; 16]));
        assert!(ids.contains(&overview.controllers[0].id), "{overview:?}");
        let mut host = Listening::new(admin, AsyncEvents::empty());
        let identify = Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 }.command();
        let whole = host.read(identify, identify::LEN);
        let whole = identify::Controller::read_from_bytes(&whole).unwrap();
        assert!(Cmic::from_bits_retain(whole.cmic).contains(Cmic::PORTS | Cmic::CONTROLLERS | Cmic::ANA));
        ends.push((whole.sn, whole.subnqn));
        assert_eq!(target.control.set_ana_state(Some(0), None, AnaState::Change), Err(Refusal::NoPort));
        assert_eq!(target.control.set_ana_state(Some(path), None, AnaState::NonOptimized), Ok(()));
        assert_eq!(host.page(0).1, [(1, 2, 2, vec![1])]);
        drop((host, io));
        machine.stop(target);
    }
    assert!(ends.iter().all(|one| *one == ends[0]));
    for (path, state) in [(Some(0), None), (Some(9), None), (Some(1), Some(disk(2) as Arc<dyn Disk>))] {
        assert!(machine.refuses(Config { path, state, ..config.clone() }), "{path:?}");
    }
}
