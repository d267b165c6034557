//! What can go wrong on the host's side, each in one line that says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of the launcher; its text is one line (set-up errors may add lines with commands to run).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the host's operating system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried, in the infinitive.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file that was named on the command line can't be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that was named on the command line is not an ordinary file.
    #[error("{}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A value on the command line makes no sense, alone or beside the others.
    #[error("{0}")]
    Usage(String),
    /// A program is missing and can't be installed from here.
    #[error("{0}")]
    Missing(String),
    /// What `--qemu` names does not answer as a QEMU does.
    #[error("{}: not a QEMU: {why}", path.display())]
    NotQemu {
        /// The program that was tried.
        path: PathBuf,
        /// What it did instead.
        why: String,
    },
    /// QEMU is older than the oldest that works.
    #[error("{} is QEMU {found}, but {needed} or newer is needed", path.display())]
    OldQemu {
        /// The program that was tried.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest version that works.
        needed: &'static str,
    },
    /// A tool that has to be there is missing, or failed at its job.
    #[error("{0}")]
    Tool(String),
    /// The kernel image can't be built; the compiler's output has been printed.
    #[error("the image {0} does not build")]
    Build(String),
    /// A built image is not what QEMU can start.
    #[error("{}: {why}", path.display())]
    BadImage {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file does not fit into the guest.
    #[error("{0}")]
    TooLarge(String),
    /// QEMU ended by itself before the guest reported a status.
    #[error("QEMU ended early ({status}): {stderr}")]
    QemuDied {
        /// How it ended.
        status: String,
        /// The first line that it wrote to its standard error.
        stderr: String,
    },
    /// The guest stopped (a reset, a triple fault, a power-off) without writing its status.
    #[error("the guest ended without reporting a status")]
    NoStatus,
    /// The guest's heartbeat stopped.
    #[error("the guest's heartbeat stopped for {} s; QEMU was ended", .0.as_secs())]
    Stalled(Duration),
    /// `--timeout` passed.
    #[error("the guest was still running after {} s; QEMU was ended", .0.as_secs())]
    TimedOut(Duration),
    /// Ctrl-C, SIGTERM or SIGHUP.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// The catalogue of requirements, or what the tests say of it, contradicts itself.
    #[error("catalogue: {0}")]
    Catalogue(String),
}

impl Error {
    /// Wraps what the system said; `what` completes "cannot …".
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }

    /// The status that the process ends with.
    pub fn status(&self) -> u8 {
        match self {
            Error::Interrupted(signal) => 128u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
            Error::Usage(_) => 2,
            _ => 1,
        }
    }

    /// Whether the reader who would have read the rest of our output has gone away.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Error::System { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The result of what the launcher does.
pub type Result<T> = std::result::Result<T, Error>;
