//! Shared receive queues.

use nic_abi::wqe::Segment;

use crate::{Error, Note, PostError};

/// A shared receive queue.
pub struct Srq {}

impl Srq {
    /// The context given at creation.
    pub fn context(&self) -> u64 {
        todo!()
    }

    /// Posts a receive.
    pub fn post_receive<T>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        let _ = (solicited, segments, segment, note);
        todo!()
    }

    /// Sets the limit and arms its event once; 0 disarms.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let _ = limit;
        todo!()
    }

    /// Receives posted and not completed.
    pub fn outstanding(&self) -> u32 {
        todo!()
    }

    /// Destroys it; [`Error::Busy`] while a queue pair uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}
