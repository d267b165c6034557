//! Why a link cannot be opened, or its description cannot be understood.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::MAX_SOCKET_PATH;

/// Why a link cannot be opened. The text is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process listens on the path.
    #[error("{}: another process listens here; end it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The path names something that is not a socket.
    #[error("{}: this is not a socket; remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path does not fit into a socket's address.
    #[error(
        "{}: the path of a socket has {MAX_SOCKET_PATH} bytes at most; choose a shorter one",
        .0.display()
    )]
    TooLong(PathBuf),
    /// Another process has the UDP port of RoCEv2 on the address.
    #[error(
        "{0}: another process has UDP port 4791 of this address; end it, or choose another address, \
             such as 127.0.0.2"
    )]
    PortInUse(IpAddr),
    /// The address is not one of this machine.
    #[error("{0}: this is no address of this machine; choose one, such as 127.0.0.2")]
    NotOurs(IpAddr),
    /// Another process of a network in memory has the MAC, or an address, of the port.
    #[error(
        "{}: another process has {name} here; end it, or choose another address by --ip",
        .folder.display()
    )]
    Taken {
        /// Where the processes meet.
        folder: PathBuf,
        /// What the other process has.
        name: String,
    },
    /// The folder in which processes of a user meet is not that user's alone.
    #[error(
        "{}: this folder is not yours alone, so others could join; remove it, or choose another one by \
             --link shm:PATH",
        .0.display()
    )]
    NotOwn(PathBuf),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What failed, in the infinitive.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> OpenError {
        OpenError::System { what: what.into(), source: source.into() }
    }
}

/// A description on the command line that cannot be understood: one line that says what is wrong
/// and how it is written correctly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(pub(crate) String);
