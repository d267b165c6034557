//! Completion queues of virtual interfaces.

use core::convert::Infallible;

use crate::{Error, ViSide};

/// A completion queue of virtual interfaces.
pub struct ViCq {
    never: Infallible,
}

impl ViCq {
    /// The context given at creation.
    #[inline]
    pub fn context(&self) -> u64 {
        match self.never {}
    }

    /// Takes the oldest entry: the context of the virtual interface whose descriptor is complete,
    /// and the queue that the descriptor is on. Entries of virtual interfaces that are destroyed are
    /// dropped.
    #[inline]
    pub fn take(&self) -> Option<(u64, ViSide)> {
        match self.never {}
    }

    /// Arms the queue: one `Upcalls::completion` follows when the next entry arrives. Take once more
    /// afterwards.
    pub fn arm(&self) {
        match self.never {}
    }

    /// Changes the size to at least `entries`; entries that were not taken move along.
    pub fn resize(&self, _entries: u32) -> Result<(), Error> {
        match self.never {}
    }

    /// Destroys the queue; [`Error::Busy`] while a virtual interface uses it. Entries that were not
    /// taken are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        match self.never {}
    }
}
