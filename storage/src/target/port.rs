//! A port of the subsystem: a NIC by which hosts reach it, and all that is the NIC's.
//!
//! A NIC reaches memory of its own domain only. So each port has memory of its own, for capsules,
//! responses and data, and no memory of one port is given to commands that came by another one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use platform::Privileged;
use rdma::{CreateError, Domain, Listener, Nic, Queue, Region, SharedReceives};

use super::capsule;
use super::config::Config;
use super::info::PortInfo;
use super::pool::{Pool, Sizes};
use crate::attention::Attention;

/// Large chunks for the data of commands about no namespace. There is a small one for each queue.
const ADMIN_LARGE: usize = 16;

/// The bytes of a response.
pub(super) const RESPONSE: usize = size_of::<nvme::completion::Completion>();

/// A port.
pub(crate) struct Port {
    /// Its identifier in the subsystem.
    pub(crate) id: u16,
    pub(crate) nic: Nic,
    pub(crate) domain: Domain,
    /// Where Sends and RDMA operations end.
    pub(crate) requests: Queue,
    /// Where Receives end.
    pub(crate) arrivals: Queue,
    pub(crate) listener: Option<Listener>,
    pub(crate) receives: SharedReceives,
    /// A response for each command.
    pub(crate) responses: Region,
    /// Memory for the data of commands about no namespace.
    pub(crate) admin_pool: Pool,
}

impl Port {
    /// A port that does not listen yet.
    pub(crate) fn new(
        id: u16,
        nic: &Nic,
        privileged: Privileged,
        config: &Config,
        attention: &Arc<Attention>,
    ) -> Result<Port, CreateError> {
        let queue = |entries: usize| {
            let queue = nic.queue(entries as u32)?;
            queue.watch(attention.waker());
            Ok::<_, CreateError>(queue)
        };
        let domain = nic.domain()?;
        // A command has two requests at most at a time: an RDMA Write and a Send.
        let requests = queue(2 * config.commands)?;
        let arrivals = queue(config.commands / 2)?;
        let receives = capsule::receives(&domain, privileged, config.commands / 2, config.in_capsule)?;
        let responses = domain.direct(config.commands * RESPONSE, privileged)?;
        let sizes = Sizes { small: config.queues, large: ADMIN_LARGE };
        let admin_pool = Pool::new(&domain, privileged, sizes)?;
        let nic = nic.clone();
        Ok(Port { id, nic, domain, requests, arrivals, listener: None, receives, responses, admin_pool })
    }

    /// Listens on all addresses of the NIC.
    pub(crate) fn listen(&mut self, service: u16, attention: &Arc<Attention>) -> Result<(), CreateError> {
        let listener = self.nic.listen(service)?;
        listener.watch(attention.connection_waker());
        self.listener = Some(listener);
        Ok(())
    }

    /// What an operator sees of it.
    pub(crate) fn info(&self) -> PortInfo {
        PortInfo { id: self.id, addresses: self.addresses() }
    }

    /// The NIC's IP addresses, IPv4 first.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.nic.addresses().map(|address| address.to_ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}
