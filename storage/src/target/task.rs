//! What a command asks for: of the target itself, or of a disk.

use super::identity::{ControllerId, Kind};
use super::reservations::order::Order;

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Nothing: it is answered already.
    Nothing,
    /// An Asynchronous Event Request: the controller keeps it.
    Held,
    /// A reply of so many bytes from the target itself.
    Reply {
        /// What.
        reply: Reply,
        /// Bytes.
        len: usize,
    },
    /// To connect a queue. Its data say to what.
    Connect,
    /// To take a message that authenticates the host.
    AuthenticationSend,
    /// To give the host the next such message.
    AuthenticationReceive,
    /// To change registrations or a reservation. Its data are keys.
    Reserve {
        /// The namespace's place.
        namespace: usize,
        /// How.
        order: Order,
    },
    /// To read blocks.
    Read {
        /// The namespace's place.
        namespace: usize,
        /// The first block.
        block: u64,
    },
    /// To write blocks.
    Write {
        /// The namespace's place.
        namespace: usize,
        /// The first block.
        block: u64,
        /// The data have to be durable.
        fua: bool,
    },
    /// To compare blocks with data.
    Compare {
        /// The namespace's place.
        namespace: usize,
        /// The first block.
        block: u64,
    },
    /// To read blocks, and send nothing.
    Verify {
        /// The namespace's place.
        namespace: usize,
        /// The first block.
        block: u64,
        /// Bytes.
        len: usize,
    },
    /// Something without data.
    Plain {
        /// The namespace's place.
        namespace: usize,
        /// What.
        operation: Operation,
    },
    /// To copy ranges of blocks, which are the command's data.
    Copy {
        /// The namespace's place.
        namespace: usize,
        /// How many ranges there are.
        ranges: usize,
        /// How far it has come.
        progress: Progress,
    },
    /// To deallocate ranges of blocks, which are the command's data.
    Deallocate {
        /// The namespace's place.
        namespace: usize,
        /// How many ranges there are.
        ranges: usize,
        /// The range that comes next.
        next: usize,
    },
}

impl Task {
    /// Whether it needs the namespace at a place to stay, for its blocks or for its reservation.
    pub(crate) fn names(&self, place: usize) -> bool {
        match *self {
            Task::Reserve { namespace, .. } => namespace == place,
            Task::Reply { reply: Reply::Reservation(of), .. } => of == place,
            _ => self.namespace() == Some(place),
        }
    }

    /// The place of the namespace whose blocks it is about; `None` if it is about none.
    pub(crate) fn namespace(&self) -> Option<usize> {
        match *self {
            Task::Nothing | Task::Held | Task::Reply { .. } | Task::Connect | Task::Reserve { .. } => None,
            Task::AuthenticationSend | Task::AuthenticationReceive => None,
            Task::Read { namespace, .. }
            | Task::Write { namespace, .. }
            | Task::Compare { namespace, .. }
            | Task::Verify { namespace, .. }
            | Task::Copy { namespace, .. }
            | Task::Plain { namespace, .. }
            | Task::Deallocate { namespace, .. } => Some(namespace),
        }
    }

    /// Whether its disk has to read; otherwise it has to change something.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Task::Read { .. } | Task::Compare { .. } | Task::Verify { .. })
    }

    /// Whether it changes blocks.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Task::Plain { operation, .. } => *operation != Operation::Flush,
            Task::Write { .. } | Task::Copy { .. } | Task::Deallocate { .. } => true,
            _ => false,
        }
    }

    /// Whether it takes data from the host.
    pub(crate) fn takes_data(&self) -> bool {
        match self {
            Task::Connect
            | Task::AuthenticationSend
            | Task::Write { .. }
            | Task::Compare { .. }
            | Task::Copy { .. }
            | Task::Deallocate { .. } => true,
            Task::Reserve { order, .. } => !matches!(order, Order::Persist(_)),
            _ => false,
        }
    }
}

/// How far a Copy has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The range, how many of its blocks are copied, and how many of all ranges.
    pub(crate) range: u16,
    pub(crate) done: u32,
    pub(crate) total: u32,
    /// The blocks on their way are read, and are to be written.
    pub(crate) is_read: bool,
}

/// What the target itself answers with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Identify: the controller.
    Controller(ControllerId, Kind),
    /// Identify: a namespace.
    Namespace(u32),
    /// Identify: the namespaces behind this one that a controller's host sees.
    Active(ControllerId, u32),
    /// Identify: a namespace, independent of its command set.
    IndependentNamespace(u32),
    /// Identify: what the NVM command set says about the controller.
    NvmController,
    /// Identify: a structure in which all is zero.
    Nothing,
    /// Identify: the command sets.
    CommandSets,
    /// Get Features: the identifier of the controller's host.
    HostIdentifier(ControllerId),
    /// Identify: a namespace's identifiers.
    Descriptors(u32),
    /// A Reservation Report of the namespace at this place.
    Reservation(usize),
    /// A log page, from an offset on.
    Log {
        /// Whose.
        controller: ControllerId,
        /// What kind of controller.
        kind: Kind,
        /// Which.
        page: u8,
        /// The Log Specific Field.
        specific: u8,
        /// The offset.
        offset: u64,
        /// Reading it allows the next event.
        clears: bool,
    },
}

/// What a disk is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read { block: u64 },
    Write { block: u64, fua: bool },
    Flush,
    Discard { block: u64, blocks: u64 },
    WriteZeroes { block: u64, blocks: u64, may_discard: bool },
}
