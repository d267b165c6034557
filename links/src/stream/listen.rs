//! The listening side: a socket in the file system.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use platform::Instant;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::connect::{address, try_connect};
use crate::{OpenError, PollFd};

/// How long the listener pauses after the system could not accept, for example for lack of
/// descriptors.
const REST: Duration = Duration::from_millis(100);

/// A listening socket in the file system.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// The device and inode numbers of the socket's file.
    file: Option<(u64, u64)>,
    rests_until: Option<Instant>,
}

impl Listener {
    pub fn bind(path: &Path) -> Result<Listener, OpenError> {
        address(path)?;
        let failed = |e| OpenError::system(format!("listen at {}", path.display()), e);
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                UnixListener::bind(path).map_err(|error| match error.kind() {
                    // Another process has just bound its socket there.
                    ErrorKind::AddrInUse => OpenError::InUse(path.into()),
                    _ => failed(error),
                })?
            }
            other => other.map_err(failed)?,
        };
        let listener = Listener { socket, path: path.into(), file: identity(path).ok(), rests_until: None };
        listener.socket.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    /// Accepts the next peer that has connected.
    pub fn accept(&mut self, now: Instant) -> Option<UnixStream> {
        if self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rests_until = None;
        let accepted = self.socket.accept().and_then(|(socket, _)| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match accepted {
            Ok(socket) => return Some(socket),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.rest(now),
        }
        None
    }

    /// Accepts no peer for a while, since the system lacks the resources for another one.
    pub fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }

    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self.rests_until {
            None => Some(PollFd::new(&self.socket, PollFlags::IN)),
            Some(_) => None,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.rests_until
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have put its own socket there in the meantime.
        if self.file.is_some() && identity(&self.path).ok() == self.file {
            // A failure does no harm: the next listener finds the socket stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Removes the socket of a process that has ended. Fails if a process still listens on it.
fn remove_stale(path: &Path) -> Result<(), OpenError> {
    let failed = |e: io::Error| OpenError::system(format!("listen at {}", path.display()), e);
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        // It is gone.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !file.file_type().is_socket() {
        return Err(OpenError::NotASocket(path.into()));
    }
    match try_connect(&address(path)?) {
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error @ (Errno::ACCESS | Errno::PERM)) => Err(failed(error.into())),
        // A process listens, perhaps with a full queue; or it is a socket of another type, in use.
        _ => Err(OpenError::InUse(path.into())),
    }
}
