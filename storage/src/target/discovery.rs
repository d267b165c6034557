//! The discovery service: what it lists for a host, and how hosts hear of changes.
//!
//! It lists each subsystem at each address of a port, for hosts that may use it, and referrals to
//! other discovery services, for all. The list changes when a port ends, when a subsystem comes or
//! goes, and when other hosts may use one. Each change has another generation, and an event for
//! those hosts for which something has changed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use nvme::log::{self, DiscoveryEntry, DiscoveryHeader, EntryFlags};
use nvme::{Nqn, nqn};
use rdma::Transport;
use zerocopy::IntoBytes;

use super::identity::ControllerId;
use super::port::{Listed, Port};
use super::reply::{copy, copy_at};
use super::server::Target;

/// The bytes of a record of the discovery log, and of its header.
const RECORD: usize = size_of::<DiscoveryEntry>();

impl Target {
    /// What the discovery log lists: the subsystems that the host may use, at the addresses of the
    /// family by which it came, and all referrals.
    pub(super) fn listed(&mut self, id: ControllerId) -> Vec<Listed> {
        let Some(controller) = self.discovery.get(id) else { return Vec::new() };
        let (by_ipv4, host) = (controller.by_ipv4, controller.host.nqn.clone());
        let is_named = |address: &IpAddr| match address {
            IpAddr::V4(v4) => by_ipv4 && !v4.is_unspecified(),
            // A link-local address says nothing without the host's interface.
            IpAddr::V6(v6) => !by_ipv4 && !v6.is_unspecified() && !v6.is_unicast_link_local(),
        };
        let serving = self.ports.iter().enumerate().filter(|(_, port)| port.ended.is_none());
        let of_port = |(place, port): (usize, &Port)| {
            let addresses = port.addresses().into_iter().filter(is_named);
            addresses.map(move |address| (place, address)).collect::<Vec<_>>()
        };
        let places: Vec<(usize, IpAddr)> = serving.flat_map(of_port).collect();
        let mut listed = Vec::new();
        for (number, named) in self.subsystem.numbered() {
            if self.subsystem.allows(number, &host) {
                let name = Arc::from(named.nqn.as_str());
                let at = |&(place, address): &(usize, IpAddr)| {
                    Listed::Subsystem(Arc::clone(&name), place, address)
                };
                listed.extend(places.iter().map(at));
            }
        }
        listed.extend(self.config.referrals.iter().copied().map(Listed::Referral));
        listed
    }

    /// The bytes of the discovery log for a host.
    pub(super) fn discovery_size(&mut self, id: ControllerId) -> u64 {
        ((1 + self.listed(id).len()) * RECORD) as u64
    }

    /// A piece of the discovery log for a host.
    pub(super) fn discovery_log(&mut self, id: ControllerId, offset: u64, piece: &mut [u8]) {
        let listed = self.listed(id);
        let header = DiscoveryHeader::new(self.generation, listed.len() as u64);
        copy(header.as_bytes(), offset, piece);
        for (n, one) in (1..).zip(listed) {
            if let Some(entry) = self.discovery_entry(one) {
                copy_at(entry.as_bytes(), n * RECORD as u64, offset, piece);
            }
        }
    }

    fn discovery_entry(&self, listed: Listed) -> Option<DiscoveryEntry> {
        let provider = |port: &Port| match port.nic.transport() {
            Transport::InfiniBand => log::provider::ROCE_V2,
            Transport::Iwarp => log::provider::IWARP,
        };
        match listed {
            Listed::Subsystem(nqn, port, address) => {
                let (port, name) = (&self.ports[port], Nqn::new(nqn.as_bytes()).ok()?);
                let place = (address, self.config.port);
                let mut entry = DiscoveryEntry::rdma(log::subsystem::NVM, name, provider(port), place);
                entry.portid = port.id.into();
                Some(entry)
            }
            Listed::Referral(place) => {
                let (provider, place) = (provider(self.ports.first()?), (place.ip(), place.port()));
                let mut entry =
                    DiscoveryEntry::rdma(log::subsystem::REFERRAL, nqn::DISCOVERY, provider, place);
                entry.eflags = EntryFlags::PERSISTENT.bits().into();
                Some(entry)
            }
        }
    }

    /// Notes that the discovery log may be another one now, for hosts that have a discovery
    /// controller.
    pub(super) fn discovery_has_changed(&mut self) {
        self.generation += 1;
        let ids: Vec<ControllerId> = self.discovery.iter_mut().map(|(id, _)| id).collect();
        for id in ids {
            let listed = self.listed(id);
            let Some(controller) = self.discovery.get(id) else { continue };
            if core::mem::replace(&mut controller.listed, listed.clone()) != listed {
                controller.listing.happen();
            }
        }
        self.report_events();
    }
}
