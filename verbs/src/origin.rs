//! The process that an object is of.
//!
//! A child of a fork has the memory, the descriptors and the shared mappings of its parent, and
//! none of its threads; a lock that another thread held at the fork is held for ever. So a call on
//! an object of the parent fails, before it takes a lock or touches what both processes have.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::errno::Errno;

/// Forks from the first process to this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Origin {
        Origin(FORKS.load(Ordering::Relaxed))
    }

    /// `EIO` in a child of the process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Errno> {
        if self.0 == FORKS.load(Ordering::Relaxed) { Ok(()) } else { Err(libc::EIO) }
    }
}

/// This process is the child of a fork.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
