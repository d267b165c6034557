//! Why a call on the agent failed. A call that failed changed nothing, unless the device is dead.

use nic_abi::admin::QpState;
use nic_hal::{CommandError, Death};
use platform::use_count::NotClosed;
use thiserror::Error;

/// A resource that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Queue pairs.
    Qps,
    /// Completion queues.
    Cqs,
    /// Shared receive queues.
    Srqs,
    /// Protection domains.
    Pds,
    /// Memory keys (regions and windows).
    Keys,
    /// Connections.
    Connections,
    /// Listening points.
    Listens,
    /// Service resolutions.
    Resolutions,
    /// Streams, and listeners for them.
    Streams,
    /// Clients.
    Clients,
    /// A resource of the device.
    Device,
}

/// Why a control call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The device is dead: the IA is catastrophic.
    #[error("the device is dead: {0}")]
    DeviceDead(Death),
    /// A table is full, here or in the device.
    #[error("no more {0:?}")]
    NoResources(Resource),
    /// No memory.
    #[error("out of memory")]
    OutOfMemory,
    /// An argument exceeds what the NIC can do.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// Another object uses the object.
    #[error("the object is in use")]
    Busy,
    /// The object was destroyed before.
    #[error("the object is gone")]
    Gone,
    /// The region is not linked.
    #[error("the region is not linked")]
    NotLinked,
    /// The queue pair's state does not allow it.
    #[error("not allowed in state {0:?}")]
    QpState(QpState),
    /// There is no such connection, or its state does not allow the call.
    #[error("the connection does not allow it")]
    ConnectionState,
    /// The stream is not open in the direction of the call.
    #[error("the stream does not allow it")]
    StreamState,
    /// A listening point, or a listener for streams, has the service or port already.
    #[error("the service id is taken")]
    ServiceInUse,
    /// Private data does not fit into the message.
    #[error("private data is too long: at most {0} bytes")]
    PrivateData(usize),
    /// An object belongs to another client or agent.
    #[error("the object belongs to another client or agent")]
    Foreign,
    /// A memory list or address is wrong.
    #[error("bad memory list: {0}")]
    BadList(&'static str),
    /// The device cannot reach a part of the memory.
    #[error("memory cannot be reached by the device")]
    NotReachable,
    /// The memory is in more extents than a region's list can have elements.
    #[error("memory is in too many extents")]
    TooScattered,
    /// The device is not an RNIC that this driver can drive.
    #[error("the device cannot be driven: {0}")]
    Unusable(nic_hal::Error),
    /// The device refused a command for a reason that the agent rules out.
    #[error(transparent)]
    Command(CommandError),
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// As many requests as the queue was created for are outstanding.
    #[error("the queue is full")]
    QueueFull,
    /// The queue pair's state does not allow it.
    #[error("the queue pair's state does not allow it")]
    State,
    /// More segments than the queue was created for.
    #[error("too many segments")]
    Segments,
    /// The caller refused a segment.
    #[error("a segment was refused")]
    Segment,
    /// A poster has the queue for itself, for a batch.
    #[error("a batch has the queue for itself")]
    Busy,
    /// The queue pair has no such queue (it takes receives from an SRQ, or is of another type).
    #[error("no such queue")]
    Kind,
    /// The queue pair or SRQ is gone, or the device is dead.
    #[error("the queue is gone")]
    Gone,
    /// Outstanding links use all list buffers of the region.
    #[error("too many links of the region in flight")]
    LinksInFlight,
    /// The device cannot take the link's list.
    #[error("bad memory list: {0}")]
    BadList(ListFault),
}

/// What is wrong with the list of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListFault {
    /// It has more elements than the region was created for.
    #[error("more elements than the region was created for")]
    TooLong,
}

// A post returns it in a register.
const _: () = assert!(size_of::<Result<u32, PostError>>() == 8);

impl From<nic_hal::Error> for Error {
    fn from(error: nic_hal::Error) -> Error {
        use nic_abi::admin::Status;
        match error {
            nic_hal::Error::DeviceDead(death) => Error::DeviceDead(death),
            nic_hal::Error::OutOfMemory => Error::OutOfMemory,
            nic_hal::Error::OutOfRange(what) => Error::OutOfRange(what),
            nic_hal::Error::Command(command) => match command.status {
                Status::Busy => Error::Busy,
                Status::NoResources => Error::NoResources(Resource::Device),
                Status::Dma => Error::NotReachable,
                _ => Error::Command(command),
            },
            other => Error::Unusable(other),
        }
    }
}

impl From<NotClosed> for Error {
    fn from(reason: NotClosed) -> Error {
        match reason {
            NotClosed::InUse => Error::Busy,
            NotClosed::AlreadyClosed => Error::Gone,
        }
    }
}

impl From<platform::OutOfMemory> for Error {
    fn from(_: platform::OutOfMemory) -> Error {
        Error::OutOfMemory
    }
}
