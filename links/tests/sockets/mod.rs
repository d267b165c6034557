//! What the tests of links over UNIX sockets share.

use std::path::PathBuf;
use std::time::Duration;

use links::Link;
use platform::Instant;
use tempfile::TempDir;

/// A folder for a socket, which is removed at the end.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// The socket's path.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("link")
    }
}

/// So many milliseconds after the start.
pub fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// The frame with its length.
#[allow(dead_code, reason = "links in memory have no such framing")]
pub fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// Whether the link has something to do.
pub fn is_ready(link: &impl Link) -> bool {
    let Some(fd) = link.poll_fd() else { return false };
    let mut fds = [fd];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}
