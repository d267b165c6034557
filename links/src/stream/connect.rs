//! The connecting side.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use platform::Instant;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::OpenError;

/// The first wait before another attempt. Each failure doubles it, up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Connects, and connects again after each failure.
#[derive(Debug)]
pub(super) struct Dialer {
    address: SocketAddrUnix,
    /// The time of the next attempt.
    at: Instant,
    wait: Duration,
}

impl Dialer {
    pub fn new(path: &Path) -> Result<Dialer, OpenError> {
        Ok(Dialer { address: address(path)?, at: Instant::ZERO, wait: SHORTEST })
    }

    /// Connects if the time of the next attempt has come.
    pub fn dial(&mut self, now: Instant) -> Option<UnixStream> {
        if now < self.at {
            return None;
        }
        let socket = try_connect(&self.address).ok();
        if socket.is_none() {
            self.left(now);
        }
        socket
    }

    /// An attempt was made, or a peer left: the next attempt has to wait.
    pub fn left(&mut self, now: Instant) {
        self.at = now + self.wait;
        self.wait = (self.wait * 2).min(LONGEST);
    }

    /// The peer has sent a frame: after it leaves, the first attempt comes early again. An accepted
    /// connection is not enough: a peer might accept and leave all the time.
    pub fn succeeded(&mut self) {
        self.wait = SHORTEST;
    }

    pub fn deadline(&self) -> Instant {
        self.at
    }
}

/// The address of a socket in the file system.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, OpenError> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => OpenError::TooLong(path.into()),
        _ => OpenError::system(format!("use {} as the path of a socket", path.display()), error),
    })
}

/// Connects a socket that does not block.
pub(super) fn try_connect(address: &SocketAddrUnix) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket.into())
}
