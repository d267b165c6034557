//! The discovery service: what it lists for a host, and how hosts hear of changes.
//!
//! It lists the subsystem at each address of a port, for hosts that may use it, and referrals to
//! other discovery services, for all. The list changes when a port ends and when other hosts may
//! use the subsystem. Each change has another generation, and an event for those hosts for which
//! something has changed.

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
    /// What the discovery log lists: the addresses of the family by which the host came, if the
    /// host may use the subsystem, and all referrals.
    pub(super) fn listed(&mut self, id: ControllerId) -> Vec<Listed> {
        let Some(controller) = self.discovery.get(id) else { return Vec::new() };
        let (by_ipv4, allowed) = (controller.by_ipv4, self.subsystem.allows(&controller.host.nqn));
        let is_named = |address: &IpAddr| match address {
            IpAddr::V4(v4) => by_ipv4 && !v4.is_unspecified(),
            // A link-local address says nothing without the host's interface.
            IpAddr::V6(v6) => !by_ipv4 && !v6.is_unspecified() && !v6.is_unicast_link_local(),
        };
        let of_port = |(number, port): (usize, &Port)| {
            let addresses = port.addresses().into_iter().filter(is_named);
            addresses.map(move |address| Listed::Subsystem(number, address)).collect::<Vec<_>>()
        };
        let serving = self.ports.iter().enumerate().filter(|(_, port)| allowed && port.ended.is_none());
        let referrals = self.config.referrals.iter().copied().map(Listed::Referral);
        serving.flat_map(of_port).chain(referrals).collect()
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
            Listed::Subsystem(port, address) => {
                let (port, name) = (&self.ports[port], Nqn::new(self.subsystem.nqn.as_bytes()).ok()?);
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
