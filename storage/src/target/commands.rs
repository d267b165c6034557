//! The commands that hosts have sent and the target has not answered, of all queues.
//!
//! The number of an entry is the cookie of its work requests and the token of its disk requests. An
//! entry is free again when neither the NIC nor the disk can name it any more.

use alloc::vec::Vec;

use block::Lease;
use nvme::command::Command;
use nvme::status::Status;

use super::capsule::Capsule;
use super::identity::HostNumber;
use super::pool::Buffer;
use super::task::Task;

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Index(pub(crate) u32);

/// What the target waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The entry is free.
    Free,
    /// Memory of the pool.
    Memory,
    /// The RDMA Read of the command's data.
    Data,
    /// Requests that an earlier connection of the host left to disks.
    Earlier,
    /// Reservation commands before it, the state disk, or requests that a disk had before.
    Reservation,
    /// The other command of a pair, or what the disk had before the pair.
    Partner,
    /// The turn of its pair, whose first command it is.
    Turn,
    /// A pair that holds its blocks.
    Held,
    /// Room in the disk's queue.
    Room,
    /// The disk.
    Disk,
    /// The manager's answer to a worker's Connect.
    Manager,
    /// An event to report (Asynchronous Event Request).
    Event,
    /// The message of an Authentication Receive, which is being computed.
    Authentication,
    /// The connection, which the host believes to be established already, to fetch the data.
    ConnectionToFetch,
    /// The connection, to send the response.
    ConnectionToAnswer,
    /// The Send of the response.
    Response,
}

/// How a command is refused, or answered at once: its status and its result.
pub(super) type Answer = (Status, u64);

/// Where the host's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostData {
    /// In the host's memory.
    Memory {
        /// Its address there.
        address: u64,
        /// The key of the region.
        key: u32,
        /// Bytes.
        len: u32,
        /// The response invalidates the key.
        invalidate: bool,
    },
    /// In the capsule.
    Capsule {
        /// Where, behind the command.
        offset: u32,
        /// Bytes.
        len: u32,
    },
}

impl HostData {
    /// Bytes.
    pub(crate) fn len(&self) -> u32 {
        match *self {
            HostData::Memory { len, .. } | HostData::Capsule { len, .. } => len,
        }
    }
}

/// The other command of a fused pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partner {
    pub(crate) index: Index,
    /// The entry that has this partner is the first command, which has not ended.
    pub(crate) is_first: bool,
    /// The data of the entry are here.
    pub(crate) has_data: bool,
}

impl Partner {
    pub(crate) fn new(index: Index, is_first: bool) -> Partner {
        Partner { index, is_first, has_data: false }
    }
}

/// An entry.
pub(crate) struct Entry {
    pub(crate) stage: Stage,
    /// The queue that the command came by; `None` once that has ended.
    pub(crate) queue: Option<u32>,
    /// The place of the port that it came by.
    pub(crate) port: usize,
    /// The host that has sent it.
    pub(crate) owner: HostNumber,
    pub(crate) command: Command,
    pub(crate) host: HostData,
    /// The capsule whose data is still needed.
    pub(crate) capsule: Option<Capsule>,
    /// The memory of the command's data, and in a Compare that of the disk's.
    pub(crate) buffer: Buffer,
    pub(crate) second: Buffer,
    /// The disk's memory, in place of the first.
    pub(crate) lease: Option<Lease>,
    /// By whose share its memory is counted.
    pub(crate) owner_of_memory: u32,
    /// The next command of the owner that waits.
    pub(crate) next: Option<Index>,
    /// The other command of its pair, if it is one of a pair.
    pub(crate) partner: Option<Partner>,
    /// Another command of the queue has the same identifier.
    pub(crate) is_duplicate: bool,
    /// When the capsule was taken, in nanoseconds of the platform's clock.
    pub(crate) begun: u64,
    /// When the disk got its request, in nanoseconds of the platform's clock.
    pub(crate) since: u64,
    /// Among which requests of the disk it is counted.
    pub(crate) age: u8,
    /// It is counted among the [`Leftovers`](super::leftovers::Leftovers).
    pub(crate) is_left: bool,
    /// What the command asks for.
    pub(crate) task: Task,
    /// How the command ended so far.
    pub(crate) status: Status,
    pub(crate) result: u64,
}

impl Entry {
    fn empty() -> Entry {
        Entry {
            stage: Stage::Free,
            queue: None,
            port: 0,
            owner: HostNumber::default(),
            command: zerocopy::FromZeros::new_zeroed(),
            host: HostData::Capsule { offset: 0, len: 0 },
            capsule: None,
            buffer: Buffer::default(),
            second: Buffer::default(),
            lease: None,
            owner_of_memory: 0,
            next: None,
            partner: None,
            is_duplicate: false,
            begun: 0,
            since: 0,
            age: 0,
            is_left: false,
            task: Task::Nothing,
            status: Status::SUCCESS,
            result: 0,
        }
    }
}

/// All entries.
pub(crate) struct Commands {
    entries: Vec<Entry>,
    free: Vec<Index>,
    /// How many are in [`Stage::Data`].
    fetching: usize,
    /// How many are in use, and their queue has ended.
    orphans: usize,
}

impl Commands {
    pub(crate) fn new(count: usize) -> Commands {
        Commands {
            entries: (0..count).map(|_| Entry::empty()).collect(),
            free: (0..count as u32).rev().map(Index).collect(),
            fetching: 0,
            orphans: 0,
        }
    }

    /// How many entries there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Entries that are in use.
    pub(crate) fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Entries that wait for the RDMA Read of their data.
    pub(crate) fn fetching(&self) -> usize {
        self.fetching
    }

    /// Entries whose queue has ended, and which a disk or a waiting list still names.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans
    }

    /// Notes that the queue of an entry has ended.
    pub(crate) fn orphan(&mut self, index: Index) {
        self.orphans += usize::from(self[index].queue.take().is_some());
    }

    /// Notes that the data of an entry are being fetched, or are so no longer.
    pub(crate) fn fetch(&mut self, index: Index, begins: bool) {
        let was = self[index].stage == Stage::Data;
        self[index].stage = if begins { Stage::Data } else { Stage::Response };
        self.fetching = self.fetching + usize::from(begins) - usize::from(was);
    }

    /// Takes an entry for a command of a queue.
    pub(crate) fn take(
        &mut self,
        queue: u32,
        owner: HostNumber,
        command: Command,
        host: HostData,
    ) -> Option<Index> {
        let index = self.free.pop()?;
        let entry = &mut self[index];
        (entry.queue, entry.owner, entry.command, entry.host) = (Some(queue), owner, command, host);
        entry.stage = Stage::Response;
        (entry.task, entry.status, entry.result) = (Task::Nothing, Status::SUCCESS, 0);
        Some(index)
    }

    /// Gives an entry back. The caller has taken its memory and its capsule.
    pub(crate) fn give(&mut self, index: Index) {
        self.fetch(index, false);
        self.orphans -= usize::from(self[index].queue.is_none());
        let entry = &mut self[index];
        (entry.stage, entry.queue) = (Stage::Free, None);
        self.free.push(index);
    }

    /// The entry that a cookie or a token names.
    pub(crate) fn named(&self, number: u64) -> Option<Index> {
        let index = u32::try_from(number).ok().map(Index)?;
        let entry = self.entries.get(index.0 as usize)?;
        (entry.stage != Stage::Free).then_some(index)
    }

    /// Whether there are commands about a namespace.
    pub(crate) fn are_about(&self, place: usize) -> bool {
        let mut used = self.entries.iter().filter(|entry| entry.stage != Stage::Free);
        used.any(|entry| entry.task.names(place))
    }

    /// The entries of commands on the disk of a namespace.
    pub(crate) fn on_disk(&self, place: usize) -> impl Iterator<Item = Index> + '_ {
        let on_disk = (0..).zip(&self.entries).filter(|(_, entry)| entry.stage == Stage::Disk);
        on_disk.filter(move |(_, entry)| entry.task.namespace() == Some(place)).map(|(index, _)| Index(index))
    }

    /// The entries of a host's commands.
    pub(crate) fn of_host(&self, host: HostNumber) -> impl Iterator<Item = Index> + '_ {
        let used = (0..).zip(&self.entries).filter(|(_, entry)| entry.stage != Stage::Free);
        used.filter(move |(_, entry)| entry.owner == host).map(|(index, _)| Index(index))
    }

    /// The entries of a queue.
    pub(crate) fn of_queue(&self, queue: u32) -> impl Iterator<Item = Index> + '_ {
        let used = (0..).zip(&self.entries).filter(|(_, entry)| entry.stage != Stage::Free);
        used.filter(move |(_, entry)| entry.queue == Some(queue)).map(|(index, _)| Index(index))
    }
}

impl core::ops::Index<Index> for Commands {
    type Output = Entry;

    fn index(&self, index: Index) -> &Entry {
        &self.entries[index.0 as usize]
    }
}

impl core::ops::IndexMut<Index> for Commands {
    fn index_mut(&mut self, index: Index) -> &mut Entry {
        &mut self.entries[index.0 as usize]
    }
}
