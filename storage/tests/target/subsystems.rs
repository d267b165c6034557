//! A target with several subsystems: each has its name, its namespaces, its hosts and its
//! controllers.

use std::sync::Arc;

use block::Disk;
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData, invalid_parameter};
use nvme::feature::AsyncEvents;
use nvme::identify::{self, Identify, cns};
use nvme::log::subsystem;
use nvme::{Nqn, Status};
use storage::target::{Config, Export, Refusal, SubsystemConfig};
use zerocopy::FromBytes;

use crate::discovery::{list, service};
use crate::disks::disk;
use crate::listening::Listening;
use crate::machine::{Machine, NQN, Running};
use crate::raw::{HOST, Queue, data};

const OTHER: &str = "nqn.2026-01.org.ferrovia:other";
const CLOSED: &str = "nqn.2026-01.org.ferrovia:closed";
const FRIEND: &str = "nqn.2026-01.org.ferrovia:friend";

fn named(nqn: &str, hosts: Option<&[&str]>) -> SubsystemConfig {
    let hosts = hosts.map(|hosts| hosts.iter().map(|host| host.to_string()).collect());
    SubsystemConfig { nqn: nqn.into(), serial: format!("S-{}", &nqn[25..]), hosts }
}

fn of(nqn: &str, number: u8) -> Export {
    let export = Export::new(disk(number.into()) as Arc<dyn Disk>, [number; 16]);
    Export { subsystem: Some(nqn.into()), ..export }
}

/// Namespaces 1 of the first subsystem, 2 of the second, and 3 of one for another host alone.
fn config(machine: &Machine) -> Config {
    let config = machine.config(vec![disk(1) as Arc<dyn Disk>]);
    let disks = [config.disks.clone(), vec![of(OTHER, 2), of(CLOSED, 3)]].concat();
    let subsystems = vec![named(OTHER, None), named(CLOSED, Some(&[FRIEND]))];
    Config { disks, subsystems, grows: true, ..config }
}

/// Who connects to what.
fn who(host: &str, subsystem: &str, controller: u16) -> ConnectData {
    let [subsystem, host] = [subsystem, host].map(|name| Nqn::new(name.as_bytes()).unwrap());
    ConnectData::new([7; 16], controller, subsystem, host)
}

/// The queues of a host at a subsystem.
fn host(machine: &Machine, target: &Running, host: &str, subsystem: &str) -> (Listening, Queue) {
    let mut admin = Queue::open(machine, target, 0, 32);
    let id = admin.begin_as(&who(host, subsystem, CNTLID_DYNAMIC));
    let mut io = Queue::open(machine, target, 1, 32);
    assert_eq!(io.connect(Connect::new(1, 31, 0), &who(host, subsystem, id)).status(), Status::SUCCESS);
    (Listening::new(admin, AsyncEvents::NAMESPACE_ATTRIBUTE), io)
}

fn active(admin: &mut Listening) -> Vec<u32> {
    let page = admin.read(Identify { cns: cns::ACTIVE_LIST, cntid: 0, nsid: 0 }.command(), identify::LEN);
    let words = page.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    words.take_while(|&nsid| nsid != 0).collect()
}

fn read(io: &mut Queue, nsid: u32) -> Status {
    let sgl = io.0.keyed(0, 512);
    io.status(Command::blocks(opcode::io::READ, nsid, 0, 1).with_sgl(sgl))
}

#[test]
fn each_subsystem_has_its_name_its_namespaces_and_its_controllers() {
    let machine = Machine::new();
    let target = machine.target_with(config(&machine));
    let (mut one, mut io_one) = host(&machine, &target, HOST, NQN);
    let (mut two, mut io_two) = host(&machine, &target, HOST, OTHER);
    let (mut three, mut io_three) = host(&machine, &target, FRIEND, CLOSED);
    let invalid = Status::INVALID_NAMESPACE.dnr();
    let mut ids = Vec::new();
    for (admin, io, nsid, nqn, serial) in [
        (&mut one, &mut io_one, 1, NQN, "ferrovia"),
        (&mut two, &mut io_two, 2, OTHER, "S-other"),
        (&mut three, &mut io_three, 3, CLOSED, "S-closed"),
    ] {
        assert_eq!(active(admin), [nsid]);
        for other in 1..=4 {
            assert_eq!(read(io, other), if other == nsid { Status::SUCCESS } else { invalid });
        }
        let page = admin.read(Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 }.command(), identify::LEN);
        let page = identify::Controller::read_from_bytes(&page).unwrap();
        assert!(page.subnqn.starts_with(nqn.as_bytes()) && page.subnqn[nqn.len()] == 0);
        assert_eq!(str::from_utf8(&page.sn).unwrap().trim_end(), serial);
        ids.push(page.cntlid.get());
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "identifiers are unique");
    // A queue names its controller's subsystem.
    let mut io = Queue::open(&machine, &target, 2, 32);
    let id = target.control.overview().unwrap().controllers[0].id;
    let refused = io.connect(Connect::new(2, 31, 0), &who(HOST, OTHER, id));
    assert_eq!(refused.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert_eq!(refused.result.get(), u64::from(invalid_parameter::CNTLID));
    // Hosts of others hear nothing of a namespace that comes.
    let Export { disk, uuid, .. } = of(OTHER, 4);
    assert_eq!(
        target.control.add(Export { subsystem: Some(OTHER.into()), ..Export::new(disk, uuid) }),
        Ok(4)
    );
    assert_eq!(two.event(), Event::NAMESPACE_ATTRIBUTE_CHANGED);
    assert!(!one.has_event() && !three.has_event());
    assert_eq!((active(&mut one), active(&mut two), active(&mut three)), (vec![1], vec![2, 4], vec![3]));
    let overview = target.control.overview().unwrap();
    let seen: Vec<_> = overview.namespaces.iter().map(|one| (one.nsid, &*one.subsystem)).collect();
    assert_eq!(seen, [(1, NQN), (2, OTHER), (3, CLOSED), (4, OTHER)]);
    let seen: Vec<_> = overview.controllers.iter().map(|one| &*one.subsystem).collect();
    assert_eq!(seen, [NQN, OTHER, CLOSED]);
    drop((one, two, three, io, io_one, io_two, io_three));
    machine.stop(target);
}

#[test]
fn a_host_finds_and_uses_the_subsystems_that_it_may_use() {
    let machine = Machine::new();
    let target = machine.target_with(config(&machine));
    let names = |service: &mut Listening| {
        let listed = list(service, false);
        let of_name = |entry: &nvme::log::DiscoveryEntry| {
            let end = entry.subnqn.iter().position(|&byte| byte == 0).unwrap();
            str::from_utf8(&entry.subnqn[..end]).unwrap().to_owned()
        };
        let entries = listed.entries.iter().filter(|entry| entry.subtype == subsystem::NVM);
        (listed.generation, entries.map(of_name).collect::<Vec<_>>())
    };
    let mut service = service(&machine, &target);
    let (first, found) = names(&mut service);
    assert_eq!(found, [NQN, OTHER]);
    let mut admin = Queue::open(&machine, &target, 0, 32);
    let mut refused = |nqn: &str| {
        let response = admin.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, nqn));
        (response.status(), response.result.get())
    };
    let not_allowed = (Status::CONNECT_INVALID_HOST.dnr(), u64::from(invalid_parameter::HOSTNQN));
    assert_eq!(refused(CLOSED), not_allowed);
    let control = &target.control;
    // It may, and it may not any more.
    control.set_subsystem_hosts(CLOSED, Some(vec![FRIEND.into(), HOST.into()])).unwrap();
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    assert_eq!(names(&mut service), (first + 1, vec![NQN.into(), OTHER.into(), CLOSED.into()]));
    let (closed, _closed_io) = host(&machine, &target, HOST, CLOSED);
    control.set_subsystem_hosts(OTHER, Some(vec![FRIEND.into()])).unwrap();
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    assert_eq!(names(&mut service).1, [NQN, CLOSED]);
    assert_eq!(refused(OTHER), not_allowed);

    // One comes, gets a namespace, and goes with its hosts.
    const NEW: &str = "nqn.2026-01.org.ferrovia:new";
    assert_eq!(control.add_subsystem(named(CLOSED, None)), Err(Refusal::NqnInUse));
    assert!(matches!(
        control.add_subsystem(SubsystemConfig { nqn: "x".into(), serial: "1".into(), hosts: None }),
        Err(Refusal::Subsystem(_))
    ));
    control.add_subsystem(named(NEW, None)).unwrap();
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    assert!(names(&mut service).1.contains(&NEW.to_owned()));
    assert_eq!(control.add(of("nqn.2026-01.org.ferrovia:nowhere", 9)), Err(Refusal::NoSubsystem));
    let nsid = control.add(of(NEW, 9)).unwrap();
    let (mut new, mut new_io) = host(&machine, &target, HOST, NEW);
    assert_eq!((active(&mut new), read(&mut new_io, nsid)), (vec![nsid], Status::SUCCESS));
    for nqn in [NQN, NEW] {
        assert_eq!(control.remove_subsystem(nqn), Err(Refusal::SubsystemInUse));
    }
    control.remove(nsid).unwrap();
    while control.remove_subsystem(NEW) == Err(Refusal::SubsystemInUse) {}
    assert!(new_io.0.ended().is_some());
    assert_eq!(control.remove_subsystem(NEW), Err(Refusal::NoSubsystem));
    assert_eq!(refused(NEW).0, Status::CONNECT_INVALID_PARAMETERS.dnr());
    let mut added = 0;
    let number = |n: usize| format!("nqn.2026-01.org.ferrovia:n{n:02}");
    while control.add_subsystem(named(&number(added), None)).is_ok() {
        added += 1;
    }
    assert_eq!(control.add_subsystem(named(&number(added), None)), Err(Refusal::NoPlace));
    assert_eq!(control.overview().unwrap().subsystems.len(), 16);
    drop((service, admin, closed, _closed_io, new, new_io));
    machine.stop(target);
}

#[test]
fn what_is_no_set_of_subsystems_is_refused() {
    let machine = Machine::new();
    let right = || config(&machine);
    assert!(!machine.refuses(right()));
    let with = |subsystems| Config { subsystems, ..right() };
    let (other, closed) = (named(OTHER, None), named(CLOSED, Some(&[FRIEND])));
    assert!(machine.refuses(with(vec![other.clone()])), "a disk is of none");
    assert!(machine.refuses(with(vec![other.clone(), closed.clone(), other.clone()])));
    assert!(machine.refuses(with(vec![other.clone(), closed.clone(), named(NQN, None)])));
    let serial = SubsystemConfig { serial: String::new(), ..other.clone() };
    assert!(machine.refuses(with(vec![serial, closed.clone()])));
    let wrong = SubsystemConfig { nqn: "x".into(), ..other.clone() };
    assert!(machine.refuses(with(vec![other.clone(), closed.clone(), wrong])));
    let more = (0..14).map(|n| named(&format!("nqn.2026-01.org.ferrovia:n{n:02}"), None));
    assert!(machine.refuses(with([other, closed].into_iter().chain(more).collect())));
    let mut config = right();
    config.disks[2].hosts = Some(vec![HOST.into()]);
    assert!(machine.refuses(config), "the disk's host may not use its subsystem");
}
