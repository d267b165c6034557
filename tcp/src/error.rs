//! Why calls fail.

use thiserror::Error as ThisError;

/// Why a call of a consumer fails. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Error {
    /// There is no such stream or listener: it has ended and was given back.
    #[error("there is no such stream or listener")]
    NoSuch,
    /// The bound on streams, listeners or names of connections is reached.
    #[error("there are too many streams or listeners")]
    TooMany,
    /// The memory of the machine, or that of all rings, is used up.
    #[error("there is no memory for another stream")]
    NoMemory,
    /// Another listener or connection has these addresses and ports, or had them shortly before.
    #[error("the address is in use")]
    InUse,
    /// All ports of the range for connections to this peer's port are in use.
    #[error("no port is free")]
    NoPort,
    /// The address names no single node, the port is zero, or the families differ.
    #[error("this is no address of one end of a connection")]
    BadAddress,
    /// The stream is not connected yet.
    #[error("the stream is not connected yet")]
    NotConnected,
    /// The peer, or the stream's owner, has closed this direction, or the stream has ended. What
    /// arrived before has been taken.
    #[error("no more bytes pass in this direction")]
    Closed,
    /// A value of the configuration is out of range.
    #[error("the configuration's {0} is out of range")]
    Config(&'static str),
}
