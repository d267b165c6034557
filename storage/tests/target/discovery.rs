//! The discovery service: what it lists, and how hosts hear that it lists something else.

use nvme::Status;
use nvme::async_event::Event;
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, Property, PropertySet};
use nvme::feature::AsyncEvents;
use nvme::identify::{self, Identify, Oaes, cns};
use nvme::log::{self, DiscoveryEntry, DiscoveryHeader, EntryFlags, subsystem};
use nvme::nqn;
use storage::target::{Config, Host};
use zerocopy::FromBytes;

use crate::listening::Listening;
use crate::machine::{Machine, Running};
use crate::raw::{HOST, Queue, data};

/// The admin queue of a discovery controller, which listens to events of changes.
pub fn service(machine: &Machine, target: &Running) -> Listening {
    let mut admin = Queue::open(machine, target, 0, 32);
    let connected = admin.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, nqn::DISCOVERY.as_str()));
    assert_eq!(connected.status(), Status::SUCCESS);
    let enable = PropertySet::new(Property::Cc, Cc::new().with_enabled(true).0.into());
    assert_eq!(admin.status(enable.command()), Status::SUCCESS);
    Listening::new(admin, AsyncEvents::DISCOVERY_LOG_CHANGE)
}

/// What the discovery log lists.
pub struct Listed {
    /// The Generation Counter.
    pub generation: u64,
    pub entries: Vec<DiscoveryEntry>,
}

impl Listed {
    /// The ports of the subsystem, with their addresses.
    pub fn ports(&self) -> Vec<(u16, String)> {
        let own = self.entries.iter().filter(|entry| entry.subtype == subsystem::NVM);
        own.map(|entry| (entry.portid.get(), entry.address().unwrap().to_owned())).collect()
    }
}

/// Reads the discovery log.
pub fn list(service: &mut Listening, rae: bool) -> Listed {
    let page = service.log(log::id::DISCOVERY, 0, rae, 0, 8192);
    let (header, mut rest) = DiscoveryHeader::read_from_prefix(&page).unwrap();
    let entry = || {
        let (entry, left) = DiscoveryEntry::read_from_prefix(rest).unwrap();
        rest = left;
        entry
    };
    let entries = std::iter::repeat_with(entry).take(header.numrec.get() as usize).collect();
    Listed { generation: header.genctr.get(), entries }
}

#[test]
fn referrals_are_listed_for_all_hosts() {
    let machine = Machine::new();
    let config = machine.config(machine.ram_disks(&[1 << 20]));
    let referrals = ["10.9.9.9:4420", "[fd00::9]:8009"].map(|place| place.parse().unwrap());
    let allowed = Some(vec!["nqn.2026-01.org.ferrovia:other".into()]);
    for (allowed, own) in [(None, 1), (allowed, 0)] {
        let target = machine.target_with(Config { referrals: referrals.to_vec(), allowed, ..config.clone() });
        let mut service = service(&machine, &target);
        let listed = list(&mut service, false);
        assert_eq!((listed.ports().len(), listed.entries.len()), (own, own + 2));
        for (entry, place) in listed.entries[own..].iter().zip(referrals) {
            assert_eq!(
                (entry.subtype, entry.eflags.get()),
                (subsystem::REFERRAL, EntryFlags::PERSISTENT.bits())
            );
            let (address, port) = (place.ip().to_string(), place.port().to_string());
            assert_eq!((entry.address(), entry.service()), (Some(&*address), Some(&*port)));
            assert!(entry.subnqn.starts_with(nqn::DISCOVERY.as_bytes()));
        }
        drop(service);
        machine.stop(target);
    }
    let many = vec![referrals[0]; 17];
    assert!(machine.refuses(Config { referrals: many, ..config }));
}

#[test]
fn a_host_hears_when_something_else_is_listed_for_it() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut service = service(&machine, &target);
    let page = service.read(Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 }.command(), identify::LEN);
    let page = identify::Controller::read_from_bytes(&page).unwrap();
    assert_eq!(page.oaes.get(), Oaes::DISCOVERY_LOG_CHANGE.bits());
    let first = list(&mut service, false);
    assert_eq!(first.ports().len(), 1);
    assert!(!service.has_event());

    // It may not use the subsystem any more, and then it may again.
    let hosts = |name: &str| target.control.set_hosts(vec![Host::new(name)]).unwrap();
    hosts("nqn.2026-01.org.ferrovia:other");
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    let second = list(&mut service, true);
    assert!(second.generation > first.generation && second.entries.is_empty());
    hosts(HOST);
    assert!(!service.has_event(), "the host has not read the page");
    let third = list(&mut service, false);
    assert!(third.generation > second.generation && third.ports() == first.ports());
    assert_eq!(service.event(), Event::DISCOVERY_LOG_CHANGE);
    list(&mut service, false);
    // Others may use it, too, which is nothing to this host.
    target.control.set_hosts(vec![Host::new(HOST), Host::new("nqn.2026-01.org.ferrovia:other")]).unwrap();
    assert!(!service.has_event());
    drop(service);
    machine.stop(target);
}
