//! Errors by operation: what can go wrong when an object is made, a peer is connected, a request
//! is posted, or a posted request ends.

use kernel_agent::{CompletionStatus, Death, Resource};
use thiserror::Error;

use crate::address::Address;

/// Why an object of a NIC was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// There is no memory, or no more room for objects of this kind.
    #[error("out of memory, or too many objects: free others, or make smaller ones")]
    OutOfMemory,
    /// The NIC or the agent has no more of this resource.
    #[error("no more {0:?}: free other objects of this kind, or raise the agent's limits")]
    NoResources(Resource),
    /// A size exceeds what the NIC can do.
    #[error("{0} is out of range: the agent's identity has the limits")]
    OutOfRange(&'static str),
    /// The transport of the opening, or the NIC, does not have this.
    #[error("there is no such thing here: {0}")]
    Unsupported(&'static str),
    /// Objects of two NICs were used together.
    #[error("the objects belong to different openings of a NIC: make all of them of one")]
    Foreign,
    /// Another listener of the machine has the service.
    #[error("another listener has this service: drop it, or choose another port")]
    ServiceInUse,
    /// The device is dead.
    #[error("the device is dead: open the NIC again when it has been reset")]
    DeviceDead,
    /// The agent of the NIC was closed.
    #[error("the agent of the NIC was closed: open another one")]
    Closed,
    /// The device refused the command.
    #[error("the device refused: {0}")]
    Refused(kernel_agent::Error),
}

impl From<kernel_agent::Error> for CreateError {
    fn from(error: kernel_agent::Error) -> CreateError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::OutOfMemory => CreateError::OutOfMemory,
            Agent::NoResources(resource) => CreateError::NoResources(resource),
            Agent::OutOfRange(what) => CreateError::OutOfRange(what),
            Agent::Foreign => CreateError::Foreign,
            Agent::ServiceInUse => CreateError::ServiceInUse,
            Agent::DeviceDead(death) => death.into(),
            Agent::Gone => CreateError::Closed,
            other => CreateError::Refused(other),
        }
    }
}

impl From<crate::OutOfResources> for CreateError {
    fn from(_: crate::OutOfResources) -> CreateError {
        CreateError::OutOfMemory
    }
}

impl From<platform::OutOfMemory> for CreateError {
    fn from(_: platform::OutOfMemory) -> CreateError {
        CreateError::OutOfMemory
    }
}

impl From<alloc::collections::TryReserveError> for CreateError {
    fn from(_: alloc::collections::TryReserveError) -> CreateError {
        CreateError::OutOfMemory
    }
}

/// Why an endpoint is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The port has no address from which it reaches the peer's, or is down.
    #[error("no path leads to this address: is the link up, and has the port such an address?")]
    NoPath,
    /// Nobody listens at the peer's service.
    #[error("nobody listens there: start the peer's listener first")]
    NoListener,
    /// The peer's consumer rejected the request.
    #[error("the peer rejected the request")]
    Rejected,
    /// The peer's agent rejected the request, for this reason (IBTA vol. 1 table 109).
    #[error("the peer's agent rejected the request: reason {0}")]
    RejectedByAgent(u16),
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer gave up before it was answered.
    #[error("the peer gave up meanwhile")]
    Withdrawn,
    /// The endpoint was connected before. An endpoint has one connection in its life.
    #[error("the endpoint was used before: make another one")]
    Used,
    /// The private data is longer than a message carries: at most so many bytes.
    #[error("the private data is too long: at most {0} bytes")]
    PrivateData(usize),
    /// The endpoint, or the agent of the NIC, was closed meanwhile, or the connection has ended
    /// already.
    #[error("the endpoint or the NIC was closed meanwhile")]
    Closed,
    /// The NIC has no room for another connection.
    #[error("no more connections: close others first")]
    NoResources,
    /// The request and the endpoint are of different openings of a NIC.
    #[error("the request and the endpoint are of different openings of a NIC")]
    Foreign,
    /// What was asked for is not possible with this NIC, or this endpoint.
    #[error("this is out of range, or not possible here: {0}")]
    OutOfRange(&'static str),
    /// There is no memory.
    #[error("out of memory")]
    OutOfMemory,
    /// The device is dead.
    #[error("the device is dead")]
    DeviceDead,
}

impl From<kernel_agent::Error> for ConnectError {
    fn from(error: kernel_agent::Error) -> ConnectError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::PrivateData(most) => ConnectError::PrivateData(most),
            Agent::DeviceDead(death) => death.into(),
            Agent::QpState(_) | Agent::Busy => ConnectError::Used,
            Agent::ConnectionState | Agent::StreamState => ConnectError::Withdrawn,
            Agent::Gone => ConnectError::Closed,
            Agent::Foreign => ConnectError::Foreign,
            Agent::OutOfRange(what) => ConnectError::OutOfRange(what),
            Agent::OutOfMemory => ConnectError::OutOfMemory,
            _ => ConnectError::NoResources,
        }
    }
}

/// What an explicit end has to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseError {
    /// Something that was made of it is left. It ends when that does.
    #[error("something that was made of it is left: it ends when that does")]
    InUse,
    /// The device is dead. Memory that it may still access is kept until it confirms a reset.
    #[error("the device is dead: memory that it may access is kept until it is reset")]
    DeviceDead,
    /// The agent of the NIC was closed before.
    #[error("the agent of the NIC was closed before")]
    Closed,
    /// There was no memory for the list of the requests that name the region: it ends as if it had
    /// been dropped.
    #[error("out of memory: the region ends as if it had been dropped")]
    OutOfMemory,
    /// The device refused the command.
    #[error("the device refused: {0}")]
    Refused(kernel_agent::Error),
}

impl From<kernel_agent::Error> for CloseError {
    fn from(error: kernel_agent::Error) -> CloseError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::DeviceDead(death) => death.into(),
            Agent::Gone | Agent::ConnectionState => CloseError::Closed,
            Agent::Busy => CloseError::InUse,
            other => CloseError::Refused(other),
        }
    }
}

/// Why a destination of datagrams is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ResolveError {
    /// The port has no address from which it reaches the peer's, or is down.
    #[error("no path leads to this address: is the link up, and has the port such an address?")]
    NoPath,
    /// The transport of the opening has no datagrams.
    #[error("the transport has no datagrams")]
    Unsupported,
    /// Nobody offers the service there.
    #[error("nobody offers the service there: start the peer's endpoint first")]
    NoService,
    /// The service has no endpoint at this moment.
    #[error("the service has no endpoint for datagrams at this moment")]
    NoEndpoint,
    /// The peer's consumer, or its agent, rejected the request.
    #[error("the peer rejected the request")]
    Rejected,
    /// The service is at another port.
    #[error("the service is at {0}: ask there")]
    Redirected(Address),
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// No endpoint has this number: they have 24 bits.
    #[error("no endpoint has this number")]
    BadNumber,
    /// The private data is longer than a message carries: at most so many bytes.
    #[error("the private data is too long: at most {0} bytes")]
    PrivateData(usize),
    /// The NIC has no room for another request.
    #[error("too many requests at a time: wait for others first")]
    NoResources,
    /// There is no memory.
    #[error("out of memory")]
    OutOfMemory,
    /// The device is dead.
    #[error("the device is dead")]
    DeviceDead,
    /// The agent of the NIC was closed.
    #[error("the agent of the NIC was closed")]
    Closed,
}

impl From<kernel_agent::Error> for ResolveError {
    fn from(error: kernel_agent::Error) -> ResolveError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::PrivateData(most) => ResolveError::PrivateData(most),
            Agent::DeviceDead(death) => death.into(),
            Agent::Gone => ResolveError::Closed,
            Agent::OutOfMemory => ResolveError::OutOfMemory,
            _ => ResolveError::NoResources,
        }
    }
}

/// Why a peer was not told the endpoint that it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// Too many other requests have come meanwhile: the peer asks again if it still waits.
    #[error("the request has been given up: the peer asks again if it still waits")]
    Withdrawn,
    /// The endpoint is of another opening of a NIC.
    #[error("the request and the endpoint are of different openings of a NIC")]
    Foreign,
    /// The private data is longer than a message carries: at most so many bytes.
    #[error("the private data is too long: at most {0} bytes")]
    PrivateData(usize),
    /// The NIC has no room for another message: the peer asks again.
    #[error("no room for another message: the peer asks again")]
    NoResources,
    /// The device is dead.
    #[error("the device is dead")]
    DeviceDead,
    /// The agent of the NIC was closed.
    #[error("the agent of the NIC was closed")]
    Closed,
}

impl From<kernel_agent::Error> for AnswerError {
    fn from(error: kernel_agent::Error) -> AnswerError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::PrivateData(most) => AnswerError::PrivateData(most),
            Agent::DeviceDead(death) => death.into(),
            Agent::Gone => AnswerError::Closed,
            Agent::ConnectionState => AnswerError::Withdrawn,
            _ => AnswerError::NoResources,
        }
    }
}

/// Why a request was not posted. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// As many requests as the endpoint was built for are outstanding.
    #[error("the queue is full: take completions first, or build the endpoint with more room")]
    Full,
    /// The endpoint was not connected yet. Once its connection has ended it takes requests, which
    /// end with [`RequestError::Flushed`].
    #[error("the endpoint is not connected yet")]
    NotConnected,
    /// More slices than the endpoint was built for.
    #[error("too many slices for one request: build the endpoint with more segments")]
    TooManySlices,
    /// A slice is longer than 4 GiB - 1, or belongs to a domain that is not the endpoint's.
    #[error("a slice is too long, or of another domain")]
    BadSlice,
    /// A datagram is longer than a packet carries: at most so many bytes.
    #[error("the datagram is too long: at most {0} bytes")]
    TooLong(usize),
    /// The destination was resolved by another opening of a NIC.
    #[error("the destination is of another opening of a NIC: resolve it by the endpoint's")]
    BadDestination,
    /// A batch takes Sends, RDMA Writes and RDMA Reads, without immediate data.
    #[error("a batch has no such requests: post it alone")]
    NotInBatch,
    /// The transport has no atomic operations and no immediate data.
    #[error("the transport has no atomic operations and no immediate data")]
    Unsupported,
    /// The endpoint takes its receives from a shared queue.
    #[error("the endpoint has no receive queue of its own")]
    NoReceives,
    /// The endpoint was built for requests that are posted, or its receives end in a queue of their
    /// own, so that they are posted and polled.
    #[error("the endpoint's requests, or its receives, are posted and polled, not started")]
    NotStarted,
    /// Another thread posts a batch.
    #[error("another thread posts a batch at this moment: try again")]
    Busy,
    /// The endpoint was closed, or the device is dead.
    #[error("the endpoint is closed")]
    Closed,
}

impl From<kernel_agent::PostError> for PostError {
    fn from(error: kernel_agent::PostError) -> PostError {
        use kernel_agent::PostError as Agent;
        match error {
            Agent::QueueFull | Agent::LinksInFlight => PostError::Full,
            Agent::State => PostError::NotConnected,
            Agent::Segments => PostError::TooManySlices,
            Agent::Segment | Agent::BadList(_) => PostError::BadSlice,
            Agent::Busy => PostError::Busy,
            Agent::Kind => PostError::NoReceives,
            Agent::Gone => PostError::Closed,
        }
    }
}

/// Why bytes were not sent by a stream, or none received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The peer has reset the stream, or acknowledges nothing any more.
    #[error("the stream is broken: the peer has reset it, or does not answer")]
    Broken,
    /// This end has finished its direction before.
    #[error("this end sends no more: the stream's direction is finished")]
    Finished,
    /// There is no memory.
    #[error("out of memory")]
    OutOfMemory,
    /// The device is dead.
    #[error("the device is dead")]
    DeviceDead,
    /// The agent of the NIC was closed.
    #[error("the agent of the NIC was closed")]
    Closed,
}

impl From<kernel_agent::Error> for StreamError {
    fn from(error: kernel_agent::Error) -> StreamError {
        use kernel_agent::Error as Agent;
        match error {
            Agent::DeviceDead(death) => death.into(),
            Agent::Gone => StreamError::Closed,
            Agent::OutOfMemory => StreamError::OutOfMemory,
            _ => StreamError::Broken,
        }
    }
}

/// Why a posted request has failed. A failure of a request that is not
/// [`RequestError::Flushed`] ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The connection ended, or the endpoint was dropped, before the request was known to be
    /// carried out.
    #[error("the connection ended before the request was known to be carried out")]
    Flushed,
    /// A message was longer than the memory that was to take it.
    #[error("a message was longer than the memory for it")]
    TooLong,
    /// The peer allows no such access: wrong key, range or right.
    #[error("the peer allows no such access: wrong key, range or right")]
    RemoteAccess,
    /// The peer could not carry the request out.
    #[error("the peer could not carry the request out")]
    RemoteOperation,
    /// The peer refused the request: a message that is too long for its Receive, for example.
    #[error("the peer refused the request: is a message longer than its receive?")]
    RemoteInvalidRequest,
    /// The peer did not answer.
    #[error("the peer did not answer")]
    RetryExceeded,
    /// The peer had no Receive for the message.
    #[error("the peer had no receive for the message")]
    ReceiverNotReady,
    /// The device is dead. It may or may not have carried the request out.
    #[error("the device is dead")]
    DeviceDead,
    /// The agent of the NIC was closed. The device may or may not have carried the request out.
    #[error("the agent of the NIC was closed")]
    Closed,
    /// Another failure, as the NIC reports it.
    #[error("the NIC reports {0:?}")]
    Other(CompletionStatus),
}

impl RequestError {
    /// The failure that a status reports; `None` for success.
    pub(crate) fn of(status: CompletionStatus) -> Option<RequestError> {
        Some(match status {
            CompletionStatus::Success => return None,
            CompletionStatus::Flushed => RequestError::Flushed,
            CompletionStatus::LocalLength => RequestError::TooLong,
            CompletionStatus::RemoteAccess => RequestError::RemoteAccess,
            CompletionStatus::RemoteOperation => RequestError::RemoteOperation,
            CompletionStatus::RemoteInvalidRequest => RequestError::RemoteInvalidRequest,
            CompletionStatus::RetryExceeded => RequestError::RetryExceeded,
            CompletionStatus::RnrRetryExceeded => RequestError::ReceiverNotReady,
            other => RequestError::Other(other),
        })
    }
}

/// What the death of the device is to an operation.
macro_rules! from_death {
    ($($error:ty),*) => {$(
        impl From<Death> for $error {
            fn from(death: Death) -> $error {
                if death == Death::Closed { <$error>::Closed } else { <$error>::DeviceDead }
            }
        }
    )*};
}
from_death!(AnswerError, CloseError, CreateError, ConnectError, ResolveError, RequestError, StreamError);

/// An operation did not end within the time that its waiter gave it. It goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the time is over; the operation goes on")]
pub struct TimedOut;
