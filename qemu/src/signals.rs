//! Ctrl-C, SIGTERM, SIGHUP and Ctrl-Z as descriptors for poll(2).
//!
//! Before [`Signals::watch`] the signals end or stop the process at once. Afterwards the loop that
//! waits for guests receives them, and ends or stops QEMU first.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};

use crate::error::{Error, Result};

/// The signals that ask the launcher to end, and the one that asks it to stop for a while.
const ASKED: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGTSTP];

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To end the launcher; the signal's number.
    End(i32),
    /// To stop until the process is continued.
    Stop,
}

/// The watch on these signals. A process has one, which is never removed, so that no signal is lost
/// between two guests.
#[derive(Debug)]
pub struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

static SIGNALS: Mutex<Option<&'static Signals>> = Mutex::new(None);

impl Signals {
    /// Starts the watch, unless it has been started before.
    pub fn watch() -> Result<&'static Signals> {
        let mut signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = *signals {
            return Ok(signals);
        }
        let failed = |e| Error::system("watch for signals", e);
        let mut pipes = Vec::new();
        for signal in ASKED {
            let (ours, handlers) = UnixStream::pair().map_err(failed)?;
            ours.set_nonblocking(true).map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, handlers).map_err(failed)?;
            pipes.push((signal, ours));
        }
        Ok(signals.insert(Box::leak(Box::new(Signals { pipes }))))
    }

    /// The descriptors of which one becomes readable when a signal arrives.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// The request of the signal that arrived, if one did.
    pub fn arrived(&self) -> Option<Asked> {
        let signal = self.pipes.iter().find_map(|(signal, pipe)| {
            let mut reader: &UnixStream = pipe;
            matches!(reader.read(&mut [0]), Ok(1)).then_some(*signal)
        });
        signal.map(|signal| if signal == SIGTSTP { Asked::Stop } else { Asked::End(signal) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_reported_once() {
        let signals = Signals::watch().expect("watch");
        assert_eq!(signals.arrived(), None);
        signal_hook::low_level::raise(SIGHUP).expect("raise");
        assert_eq!(signals.arrived(), Some(Asked::End(SIGHUP)));
        signal_hook::low_level::raise(SIGTSTP).expect("raise");
        assert_eq!(signals.arrived(), Some(Asked::Stop));
        assert_eq!(signals.arrived(), None);
        assert_eq!(signals.descriptors().count(), ASKED.len());
    }
}
