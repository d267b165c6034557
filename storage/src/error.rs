//! Why a target or an initiator could not be set up.

use core::fmt;

/// Why a target or an initiator could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A call of IT-API failed: the call, and its error.
    Api(&'static str, privileged_api::Error),
    /// The configuration cannot be served: what is wrong with it.
    Config(&'static str),
    /// There is no memory for the queues or the buffers.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Api(call, error) => write!(f, "{call}: {error}"),
            Error::Config(what) => f.write_str(what),
            Error::OutOfMemory => f.write_str("out of memory for queues and buffers"),
        }
    }
}

impl core::error::Error for Error {}

/// Names the call that failed.
pub(crate) trait Calling<T> {
    /// The value, or the failure of `call`.
    fn calling(self, call: &'static str) -> Result<T, Error>;
}

impl<T> Calling<T> for Result<T, privileged_api::Error> {
    fn calling(self, call: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Api(call, error))
    }
}
