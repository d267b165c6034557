//! Ctrl-C, SIGTERM and SIGHUP as something that poll(2) can wait for.
//!
//! Before [`Signals::watch`] the signals end the process as they always do; afterwards the guest's loop sees
//! them and ends QEMU first.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{Error, Result};

/// The signals that ask us to end.
const ASKED: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A watch on the signals that ask us to end; the default behaviour is not restored when it is dropped.
#[derive(Debug)]
pub struct Signals {
    pipes: Vec<(i32, UnixStream, SigId)>,
}

impl Signals {
    /// Starts watching.
    pub fn watch() -> Result<Signals> {
        let failed = |e| Error::system("watch for signals", e);
        let mut pipes = Vec::new();
        for signal in ASKED {
            let (ours, handlers) = UnixStream::pair().map_err(failed)?;
            ours.set_nonblocking(true).map_err(failed)?;
            let id = signal_hook::low_level::pipe::register(signal, handlers).map_err(failed)?;
            pipes.push((signal, ours, id));
        }
        Ok(Signals { pipes })
    }

    /// What becomes readable when a signal arrives.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe, _)| pipe.as_fd())
    }

    /// The signal that arrived, if one did.
    pub fn arrived(&self) -> Option<i32> {
        self.pipes.iter().find_map(|(signal, pipe, _)| {
            let mut reader: &UnixStream = pipe;
            matches!(reader.read(&mut [0]), Ok(1)).then_some(*signal)
        })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, _, id) in &self.pipes {
            signal_hook::low_level::unregister(*id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_seen_once() {
        let signals = Signals::watch().expect("watch");
        assert_eq!(signals.arrived(), None);
        signal_hook::low_level::raise(SIGHUP).expect("raise");
        assert_eq!(signals.arrived(), Some(SIGHUP));
        assert_eq!(signals.arrived(), None);
        assert_eq!(signals.descriptors().count(), ASKED.len());
    }
}
