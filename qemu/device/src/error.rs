//! Why a device does not start, or cannot go on. Each text is one line.

use std::io;

/// An error of the device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the host's operating system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What failed, in the infinitive.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The model of a NIC does not take its configuration, or the thread has ended at once.
    #[error("{0}")]
    Model(String),
}

impl Error {
    /// An error of the operating system; `what` completes "cannot …".
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}

/// The result of what the device does.
pub type Result<T> = std::result::Result<T, Error>;
