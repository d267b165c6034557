//! A port of the subsystem: a NIC by which hosts reach it, and all that is the NIC's.
//!
//! A NIC reaches memory of its own domain only. So each port has memory of its own, for capsules,
//! responses and data, and no memory of one port is given to commands that came by another one.
//!
//! A port ends when its device is dead or one of its completion queues has failed: its queues end,
//! and with them the controllers of their hosts, which go on by another port. A device that is dead
//! may still access memory, since nobody can make it stop. So what it may reach is never used for
//! anything else: the port's memory serves no other port, and memory that a disk has lent to a
//! request which the device has stays lent.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use platform::Privileged;
use rdma::{CreateError, Domain, Listener, Nic, Queue, Region, SharedReceives};

use super::capsule;
use super::config::Config;
use super::info::PortInfo;
use super::pool::{Pool, Sizes};
use crate::Error;
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
    /// Until the port ends.
    pub(crate) listener: Option<Listener>,
    /// Why it has ended, if it has.
    pub(crate) ended: Option<Error>,
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
        domain: &Domain,
        privileged: Privileged,
        config: &Config,
        attention: &Arc<Attention>,
    ) -> Result<Port, CreateError> {
        let queue = |entries: usize| {
            let queue = nic.queue(entries as u32)?;
            queue.watch(attention.waker());
            Ok::<_, CreateError>(queue)
        };
        // A command has two requests at most at a time: an RDMA Write and a Send.
        let requests = queue(2 * config.commands)?;
        let arrivals = queue(config.commands / 2)?;
        let receives = capsule::receives(domain, privileged, config.commands / 2, config.in_capsule)?;
        let responses = domain.direct(config.commands * RESPONSE, privileged)?;
        let sizes = Sizes { small: config.queues, large: ADMIN_LARGE };
        let admin_pool = Pool::new(domain, privileged, sizes)?;
        Ok(Port {
            id,
            nic: nic.clone(),
            domain: domain.clone(),
            requests,
            arrivals,
            listener: None,
            ended: None,
            receives,
            responses,
            admin_pool,
        })
    }

    /// Listens on all addresses of the NIC.
    pub(crate) fn listen(&mut self, service: u16, attention: &Arc<Attention>) -> Result<(), CreateError> {
        let listener = self.nic.listen(service)?;
        listener.watch(attention.connection_waker());
        self.listener = Some(listener);
        Ok(())
    }

    /// Why it cannot serve, if so.
    pub(super) fn state(&self) -> Result<(), Error> {
        match self.ended {
            Some(why) => Err(why),
            None if self.nic.is_dead() => Err(Error::DeviceDead),
            None if self.requests.has_failed() || self.arrivals.has_failed() => Err(Error::QueueFailed),
            None => Ok(()),
        }
    }

    /// What an operator sees of it.
    pub(crate) fn info(&self) -> PortInfo {
        PortInfo { id: self.id, addresses: self.addresses(), serves: self.ended.is_none() }
    }

    /// The NIC's IP addresses, IPv4 first.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.nic.addresses().map(|address| address.to_ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// Something that the discovery log lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// The subsystem of a name by a port, which has this place, at one of its addresses.
    Subsystem(Arc<str>, usize, IpAddr),
    /// Another discovery service.
    Referral(SocketAddr),
}

/// What was made in a domain; `None` if that could not be, since the NIC is dead.
pub(crate) fn unless_dead<T>(
    domain: &Domain,
    made: Result<T, CreateError>,
) -> Result<Option<T>, CreateError> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(_) if domain.nic().is_dead() => Ok(None),
        Err(error) => Err(error),
    }
}
