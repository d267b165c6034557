//! A host's queues: connections, each of which carries the commands and responses of one admin or
//! I/O queue.

use alloc::vec::Vec;
use core::net::IpAddr;

use nvme::status::Status;
use rdma::Endpoint;

use super::auth::Gate;
use super::commands::Index;
use super::identity::{ControllerId, HostNumber, Kind};
use super::metrics::Carried;
use super::silence::Silence;

/// What responses carry in place of the head if the host disabled flow control (fabrics 3.3).
const NO_HEAD: u16 = 0xffff;

/// What a queue has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its Connect command has not come yet.
    New,
    /// The admin queue of a controller of this kind.
    Admin(ControllerId, Kind),
    /// An I/O queue of a controller.
    Io(ControllerId),
}

impl Role {
    /// The controller that it serves, if it has one.
    pub(crate) fn controller(self) -> Option<(ControllerId, Kind)> {
        match self {
            Role::New => None,
            Role::Admin(id, kind) => Some((id, kind)),
            Role::Io(id) => Some((id, Kind::Io)),
        }
    }
}

/// What the command before the next one on a queue was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Before {
    /// None that concerns the next one.
    #[default]
    Other,
    /// The first of a pair, which waits for the second.
    First(Index),
    /// The first of a pair, which has failed like this.
    FailedFirst(Status),
}

/// A host's queue.
pub(crate) struct Queue {
    pub(crate) endpoint: Endpoint,
    /// The place of the port that the host came by.
    pub(crate) port: usize,
    /// The endpoint is connected.
    pub(crate) is_established: bool,
    /// The target has disconnected it, and waits for its end.
    pub(crate) is_ending: bool,
    pub(crate) role: Role,
    /// Whether the host has authenticated.
    pub(crate) gate: Gate,
    /// The host, once it has connected.
    pub(crate) owner: HostNumber,
    /// The number that the host gave it: 0 for an admin queue.
    pub(crate) id: u16,
    /// The commands for which the connection has room.
    pub(crate) size: u16,
    /// The entries of the queue, as the Connect command says.
    pub(crate) entries_of_host: u16,
    /// Responses tell the host the queue's head.
    pub(crate) has_flow_control: bool,
    /// The host's address.
    pub(crate) address: IpAddr,
    /// The commands that it has outstanding.
    pub(crate) outstanding: u16,
    /// The entries that its commands use. An entry is in use until the Send of its response is
    /// complete, when the host may have sent the next command already.
    pub(crate) entries: u16,
    /// Requests that the NIC was given for it, RDMA Reads and Sends, and how many are complete. A
    /// host that posts no Receives keeps its responses' Sends, and with them their memory.
    pub(crate) posted: u64,
    pub(crate) done: u64,
    /// How long the NIC has had some of these requests and completed none.
    silence: Silence,
    /// Its capsules that wait for an entry.
    pub(crate) postponed: u16,
    pub(crate) before: Before,
    /// The submission queue's head, which responses carry.
    pub(crate) head: u16,
    /// The host's identifiers that are in use, a bit each.
    identifiers: Vec<u64>,
    /// The number that the manager has given it, if it is a worker's; otherwise 0.
    pub(crate) placement: u64,
    /// What it has done.
    pub(crate) carried: Carried,
    /// When a new queue is given up, in nanoseconds of the platform's clock.
    pub(crate) deadline: u64,
}

impl Queue {
    /// A queue that has just been accepted.
    pub(crate) fn new(
        endpoint: Endpoint,
        port: usize,
        id: u16,
        size: u16,
        address: IpAddr,
        deadline: u64,
    ) -> Queue {
        Queue {
            endpoint,
            port,
            is_established: false,
            is_ending: false,
            role: Role::New,
            gate: Gate::default(),
            owner: HostNumber::default(),
            id,
            size,
            entries_of_host: size,
            has_flow_control: true,
            address,
            outstanding: 0,
            entries: 0,
            posted: 0,
            done: 0,
            silence: Silence::default(),
            postponed: 0,
            before: Before::Other,
            head: 0,
            identifiers: alloc::vec![0; 1 << 10],
            placement: 0,
            carried: Carried::default(),
            deadline,
        }
    }

    /// A command begins. False if its identifier is in use.
    pub(crate) fn begin(&mut self, identifier: u16) -> bool {
        let (word, bit) = (&mut self.identifiers[usize::from(identifier >> 6)], 1 << (identifier & 63));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.outstanding += 1;
        self.entries += 1;
        is_new
    }

    /// A command is answered. Its identifier is free again, unless another command has it.
    pub(crate) fn end(&mut self, identifier: u16, is_duplicate: bool) {
        if !is_duplicate {
            self.identifiers[usize::from(identifier >> 6)] &= !(1 << (identifier & 63));
        }
        self.outstanding -= 1;
    }

    /// How long the NIC has had requests of the queue and completed none, in nanoseconds. To be
    /// called at each tick of the timer.
    pub(crate) fn stuck_for(&mut self, now: u64) -> u64 {
        self.silence.lasts(self.posted != self.done, self.done, now)
    }

    /// The head for the next response.
    pub(crate) fn advance(&mut self) -> u16 {
        self.head = if self.head + 1 >= self.entries_of_host { 0 } else { self.head + 1 };
        if self.has_flow_control { self.head } else { NO_HEAD }
    }

    /// Whether it serves no I/O controller: it has no controller yet, or a discovery controller, or
    /// its host has not authenticated yet.
    pub(crate) fn is_stranger(&self) -> bool {
        !self.gate.is_open() || matches!(self.role, Role::New | Role::Admin(_, Kind::Discovery))
    }

    /// Whether it is a queue of a controller.
    pub(crate) fn is_of(&self, id: ControllerId, kind: Kind) -> bool {
        self.role.controller() == Some((id, kind))
    }

    /// The controller, if it has one.
    pub(crate) fn controller(&self) -> Option<ControllerId> {
        self.role.controller().map(|(id, _)| id)
    }
}

/// All queues, by number.
pub(crate) struct Queues {
    slots: Vec<Option<Queue>>,
    used: usize,
}

impl Queues {
    pub(crate) fn new(most: usize) -> Queues {
        Queues { slots: (0..most).map(|_| None).collect(), used: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The number that the next queue gets; `None` if there is no room.
    pub(crate) fn free(&self) -> Option<u32> {
        self.slots.iter().position(Option::is_none).map(|number| number as u32)
    }

    pub(crate) fn put(&mut self, number: u32, queue: Queue) {
        self.slots[number as usize] = Some(queue);
        self.used += 1;
    }

    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Queue> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Queue> {
        let queue = self.slots.get_mut(number as usize)?.take()?;
        self.used -= 1;
        Some(queue)
    }

    /// All queues, with their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Queue)> {
        (0..).zip(&mut self.slots).filter_map(|(number, queue)| Some((number, queue.as_mut()?)))
    }

    /// The same, to look at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        (0..).zip(&self.slots).filter_map(|(number, queue)| Some((number, queue.as_ref()?)))
    }
}
