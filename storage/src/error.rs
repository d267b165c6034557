//! Why a target or an initiator could not be set up.

use core::fmt;

use rdma::{ConnectError, CreateError, PostError};

/// Why a target or an initiator could not be set up, or cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An object of the NIC could not be made.
    Create(CreateError),
    /// A connection could not be asked for.
    Connect(ConnectError),
    /// A request could not be posted.
    Post(PostError),
    /// The configuration cannot be served: what is wrong with it.
    Config(&'static str),
    /// There is no memory for the queues or the buffers.
    OutOfMemory,
    /// The device is dead.
    DeviceDead,
    /// A completion queue has failed in the device.
    QueueFailed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Create(error) => error.fmt(f),
            Error::Connect(error) => error.fmt(f),
            Error::Post(error) => error.fmt(f),
            Error::Config(what) => f.write_str(what),
            Error::OutOfMemory => f.write_str("out of memory for queues and buffers"),
            Error::QueueFailed => f.write_str("a completion queue has failed in the device"),
            Error::DeviceDead => CreateError::DeviceDead.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl From<CreateError> for Error {
    fn from(error: CreateError) -> Error {
        match error {
            CreateError::OutOfMemory => Error::OutOfMemory,
            CreateError::DeviceDead => Error::DeviceDead,
            other => Error::Create(other),
        }
    }
}
