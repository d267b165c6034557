//! The admin queue of a host: how a controller is made, asked, and shut down.

use nvme::command::Command;
use nvme::completion::Completion;
use nvme::fabrics::{Cap, Cc, Connect, ConnectData, Csts, Property, PropertyGet, PropertySet};
use nvme::feature::{self, NumberOfQueues, SetFeatures};
use nvme::identify::{self, ActiveList, Identify, Oncs, Sgls, Vwc, cns};
use nvme::private_data::{Reject, Request};
use nvme::{Nqn, fabrics};
use rdma::{ConnectError, Region};
use zerocopy::{FromBytes, IntoBytes};

use super::queue::HostQueue;
use super::requests::NotSent;
use super::{Failure, Initiator, NamespaceInfo};
use crate::Error;

/// The entries of the admin queue.
const ENTRIES: u16 = 32;
/// The token of a Keep Alive, and of a command that is waited for.
pub(super) const KEEP_ALIVE: u64 = 1;
const WAITED_FOR: u64 = 2;
/// Namespaces that a host looks at.
const MOST_NAMESPACES: usize = 1024;

impl Initiator {
    /// Makes the controller and its queues, and looks at its namespaces.
    pub(super) fn set_up(&mut self) -> Result<(), Failure> {
        let page = &self.common.domain.direct(identify::LEN, self.common.privileged)?;
        self.connect_queue(0, ENTRIES, page)?;
        let capabilities = Cap(self.property(Property::Cap)?);
        self.set_property(Property::Cc, Cc::new().with_enabled(true).0.into())?;
        let deadline = self.platform.now() + self.options.patience;
        loop {
            let status = Csts(self.property(Property::Csts)? as u32);
            if status.is_fatal() {
                return Err(Failure::Protocol("the controller failed when it was enabled"));
            }
            if status.is_ready() {
                break;
            }
            if self.platform.now() >= deadline {
                return Err(Failure::Silent);
            }
        }
        self.identify(cns::CONTROLLER, 0, page)?;
        self.learn(page)?;
        let wanted = self.options.io_queues;
        let value = NumberOfQueues { submission: wanted, completion: wanted }.value();
        let set = SetFeatures { fid: feature::id::NUMBER_OF_QUEUES, save: false, nsid: 0, value };
        let granted = self.ask("Set Features", set.command(), None, false)?;
        let granted = NumberOfQueues::parse(granted as u32)
            .map_err(|_| Failure::Protocol("the number of queues cannot be"))?;
        let depth = self.options.depth.min(capabilities.mqes().saturating_add(1));
        for id in 1..=wanted.min(granted.submission).min(granted.completion) {
            self.connect_queue(id, depth, page)?;
        }
        self.find_namespaces(page)
    }

    /// Connects a queue and makes it the controller's.
    fn connect_queue(&mut self, id: u16, entries: u16, page: &Region) -> Result<(), Failure> {
        let queue = HostQueue::new(&self.common, entries)?;
        let said = Request::new(id, entries, entries - 1);
        let address = self.options.address.into();
        queue.endpoint.connect_with(address, self.options.port, said.as_bytes()).begun()?;
        self.established(&queue)?;
        self.queues.push(queue);
        let place = self.queues.len() - 1;
        let (Ok(subsystem), Ok(host)) =
            (Nqn::new(self.options.subsystem.as_bytes()), Nqn::new(self.options.host.as_bytes()))
        else {
            return Err(Failure::Local(Error::Config("a name is no NQN")));
        };
        let data = ConnectData::new(self.options.id, self.controller, subsystem, host);
        page.slice(..).write(data.as_bytes());
        let keep_alive = if id == 0 { self.options.keep_alive.as_millis() as u32 } else { 0 };
        let command = Connect::new(id, entries - 1, keep_alive).command();
        let result =
            self.ask_by(place, "Connect", command, Some((page, 0, size_of::<ConnectData>())), false)?;
        if result & fabrics::AUTHENTICATION_REQUIRED != 0 {
            self.authenticate(place, page)?;
        }
        if id == 0 {
            self.controller = result as u16;
            self.next_keep_alive = self.platform.now() + self.options.keep_alive / 2;
        }
        Ok(())
    }

    /// Waits until a queue's connection is established.
    fn established(&self, queue: &HostQueue) -> Result<(), Failure> {
        let deadline = self.platform.now() + self.options.patience;
        loop {
            let seen = self.seen();
            match queue.endpoint.outcome() {
                Some(Ok(_)) => return Ok(()),
                Some(Err(ConnectError::Rejected)) => {
                    let code = queue.endpoint.rejection().and_then(|data| Reject::parse(data.bytes()));
                    return Err(Failure::Refused(code.map_or(0, |code| code as u16)));
                }
                Some(Err(error)) => return Err(error.into()),
                None if self.is_disconnected() => return Err(Failure::Disconnected),
                None if self.platform.now() >= deadline => return Err(Failure::Silent),
                None => _ = self.attention.signal.wait(seen, Some(deadline)),
            }
        }
    }

    /// Reads a property.
    fn property(&mut self, property: Property) -> Result<u64, Failure> {
        self.ask("Property Get", PropertyGet::new(property).command(), None, false)
    }

    /// Writes a property.
    fn set_property(&mut self, property: Property, value: u64) -> Result<(), Failure> {
        self.ask("Property Set", PropertySet::new(property, value).command(), None, false).map(drop)
    }

    /// Gets a structure of Identify into a page.
    fn identify(&mut self, cns: u8, nsid: u32, page: &Region) -> Result<(), Failure> {
        let command = Identify { cns, cntid: 0, nsid }.command();
        self.ask("Identify", command, Some((page, 0, identify::LEN)), true).map(drop)
    }

    /// Carries out a command of the admin queue; returns its result.
    fn ask(
        &mut self,
        what: &'static str,
        command: Command,
        data: Option<(&Region, usize, usize)>,
        is_read: bool,
    ) -> Result<u64, Failure> {
        self.ask_by(0, what, command, data, is_read)
    }

    /// Carries out a command; returns its result.
    pub(super) fn ask_by(
        &mut self,
        place: usize,
        what: &'static str,
        command: Command,
        data: Option<(&Region, usize, usize)>,
        is_read: bool,
    ) -> Result<u64, Failure> {
        self.send(place, command, data, is_read, WAITED_FOR).map_err(|error| match error {
            NotSent::Lost(failure) => failure,
            NotSent::Full | NotSent::Invalid => {
                Failure::Protocol("a command of the host's own cannot be sent")
            }
        })?;
        self.answer = None;
        let deadline = self.platform.now() + self.options.patience;
        loop {
            let seen = self.seen();
            let mut answer = None;
            let count = self.poll(&mut |token, status, result| {
                if token == WAITED_FOR {
                    answer = Some((status, result));
                }
            })?;
            match answer.or(self.answer.take()) {
                Some((status, result)) if status.is_success() => return Ok(result),
                Some((status, result)) => return Err(Failure::Command(what, status, result)),
                None if self.platform.now() >= deadline => return Err(Failure::Silent),
                None if count == 0 => self.wait(seen, deadline),
                None => {}
            }
        }
    }

    /// A command of the admin queue is answered.
    pub(super) fn answered(&mut self, token: u64, response: &Completion) {
        match token {
            KEEP_ALIVE => self.keep_alive = false,
            _ => self.answer = Some((response.status(), response.result.get())),
        }
    }

    /// Takes what the controller says of itself.
    fn learn(&mut self, page: &Region) -> Result<(), Failure> {
        let controller: identify::Controller = read(page);
        let sgls = Sgls::from_bits_truncate(controller.sgls.get());
        if !sgls.contains(Sgls::KEYED) || controller.icdoff.get() != 0 {
            return Err(Failure::Protocol(
                "the controller takes no keyed SGLs, or has an offset in its capsules",
            ));
        }
        let limits = &mut self.limits;
        limits.transfer = match controller.mdts {
            0 => 1 << 20,
            power => 4096_usize.checked_shl(power.into()).unwrap_or(1 << 20).min(1 << 20),
        };
        let capsule =
            (controller.ioccsz.get() as usize).saturating_mul(16).saturating_sub(size_of::<Command>());
        limits.in_capsule = if sgls.contains(Sgls::OFFSET) { capsule.min(limits.transfer) } else { 0 };
        let commands = Oncs::from_bits_truncate(controller.oncs.get());
        limits.compare = commands.contains(Oncs::COMPARE);
        limits.deallocate = commands.contains(Oncs::DATASET_MANAGEMENT);
        limits.write_zeroes = commands.contains(Oncs::WRITE_ZEROES);
        limits.has_volatile_cache = Vwc::from_bits_truncate(controller.vwc).contains(Vwc::PRESENT);
        Ok(())
    }

    /// Looks at all active namespaces.
    fn find_namespaces(&mut self, page: &Region) -> Result<(), Failure> {
        let mut last = 0;
        while self.namespaces.len() < MOST_NAMESPACES {
            self.identify(cns::ACTIVE_LIST, last, page)?;
            let list: ActiveList = read(page);
            let first = last;
            for id in list.iter() {
                if id <= last {
                    return Err(Failure::Protocol("the list of namespaces does not ascend"));
                }
                last = id;
                self.identify(cns::NAMESPACE, id, page)?;
                let namespace: identify::Namespace = read(page);
                // It has gone since the list was made.
                if namespace.nsze.get() == 0 {
                    continue;
                }
                let block_size = namespace.block_size();
                let block_size = block_size.ok_or(Failure::Protocol("a block size cannot be"))?;
                self.namespaces.push(NamespaceInfo {
                    id,
                    block_size,
                    blocks: namespace.nsze.get(),
                    is_read_only: namespace.nsattr & 1 != 0,
                });
                if self.namespaces.len() >= MOST_NAMESPACES {
                    break;
                }
            }
            // A list that is not full is the last one.
            if last == first || list.iter().count() < list.nsids.len() {
                break;
            }
        }
        Ok(())
    }

    /// Shuts the controller down.
    pub(super) fn shut_down(&mut self) -> Result<(), Failure> {
        self.set_property(Property::Cc, Cc::new().with_enabled(true).with_shutdown(1).0.into())?;
        let deadline = self.platform.now() + self.options.patience;
        while Csts(self.property(Property::Csts)? as u32).shutdown() != Some(fabrics::Shst::Complete) {
            if self.platform.now() >= deadline {
                return Err(Failure::Silent);
            }
        }
        Ok(())
    }
}

/// A structure at the beginning of a page.
fn read<T: FromBytes + IntoBytes>(page: &Region) -> T {
    let mut structure = T::new_zeroed();
    page.slice(..).read(structure.as_mut_bytes());
    structure
}
