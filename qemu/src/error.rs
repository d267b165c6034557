//! Errors on the host's side. Each text is one line that says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of the launcher. Its text is one line; set-up errors may add lines with commands to
/// run.
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
    /// A file that was named on the command line can't be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that was named on the command line is not an ordinary file.
    #[error("{}: not a regular file; only regular files can be moved", .0.display())]
    NotAFile(PathBuf),
    /// A file that was named on the command line cannot be a disk.
    #[error("{}: {why}", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file had fewer bytes when it was read than when it was opened.
    #[error("{}: it had {bytes} bytes when it was opened, and only {found} could be read; run it again when \
             nothing changes the file", path.display())]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        bytes: u64,
        /// How many of them were read.
        found: u64,
    },
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A link or a capture file can't be opened.
    #[error("{0}")]
    Link(#[from] links::OpenError),
    /// The device does not start.
    #[error("{0}")]
    Device(#[from] device::Error),
    /// A program is missing and can't be installed from here.
    #[error("{0}")]
    Missing(String),
    /// The program that `--qemu` names does not answer as QEMU does.
    #[error("{}: not a QEMU: {why}", path.display())]
    NotQemu {
        /// The program that was tried.
        path: PathBuf,
        /// How it answered instead.
        why: String,
    },
    /// QEMU is older than the oldest supported version.
    #[error("{} is QEMU {found}, but {needed} or newer is needed", path.display())]
    OldQemu {
        /// The program that was tried.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest supported version.
        needed: &'static str,
    },
    /// A required tool is missing, or failed.
    #[error("{0}")]
    Tool(String),
    /// The kernel image can't be built; the compiler's output has been printed.
    #[error("{0} does not build")]
    Build(String),
    /// A built image is not a file that QEMU can start.
    #[error("{}: {why}", path.display())]
    BadImage {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// QEMU ended by itself before the guest reported a status.
    #[error("QEMU ended early ({status}): {stderr}")]
    QemuDied {
        /// How it ended.
        status: String,
        /// The first line that it wrote to its standard error.
        stderr: String,
    },
    /// One of two guests failed.
    #[error("machine {name}: {error}")]
    Machine {
        /// The machine's name.
        name: &'static str,
        /// How its guest failed.
        error: Box<Error>,
    },
    /// The guest stopped (a reset, a triple fault, a power-off) without writing its status.
    #[error("the guest ended without reporting a status; --log debug may show why")]
    NoStatus,
    /// The guest's heartbeat stopped.
    #[error("the guest's heartbeat stopped for {} s; QEMU was ended", .0.as_secs())]
    Stalled(Duration),
    /// `--timeout` passed.
    #[error("the guest was still running after {} s; QEMU was ended", .0.as_secs())]
    TimedOut(Duration),
    /// Ctrl-C, SIGTERM or SIGHUP asked the launcher to end.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// The catalogue of requirements contradicts itself or the tests.
    #[error("catalogue: {0}")]
    Catalogue(String),
}

impl Error {
    /// An error of the operating system; `what` completes "cannot …".
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }

    /// The status that the process ends with.
    pub fn status(&self) -> u8 {
        match self {
            Error::Interrupted(signal) => 128u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
            Error::Usage(_) => 2,
            Error::Machine { error, .. } => error.status(),
            _ => 1,
        }
    }

    /// Whether the reader of our output has closed it.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Error::System { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The result of what the launcher does.
pub type Result<T> = std::result::Result<T, Error>;
