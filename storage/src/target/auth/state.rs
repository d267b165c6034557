//! What a queue knows of its host while that authenticates.

use alloc::boxed::Box;

use super::responder::Responder;
use crate::target::commands::Index;

/// What a queue knows of its host.
#[derive(Default)]
pub(crate) struct Gate {
    /// The host has to authenticate.
    pub(super) is_required: bool,
    /// It has done so.
    pub(super) is_passed: bool,
    /// It had done so once: what comes on this queue has come from the host.
    pub(super) was_passed: bool,
    /// It has failed to: its connection will end.
    pub(super) has_failed: bool,
    /// A transaction.
    pub(super) responder: Option<Box<Responder>>,
    /// The sequence number of the next one, once there was one.
    pub(super) sequence: Option<u32>,
    /// An Authentication Receive that waits for a message that is being computed.
    pub(super) receive: Option<Index>,
    /// When the host is given up, in nanoseconds of the platform's clock, if something is asked of
    /// it.
    pub(super) deadline: Option<u64>,
}

impl Gate {
    /// Whether commands other than those of authentication pass.
    pub(crate) fn is_open(&self) -> bool {
        self.is_passed || !self.is_required
    }

    /// The host has until then for its next message, unless it has failed: its time runs out then.
    pub(super) fn extend(&mut self, deadline: u64) {
        if !self.has_failed {
            self.deadline = Some(deadline);
        }
    }

    /// The host has until then at the latest.
    pub(super) fn shorten(&mut self, deadline: u64) {
        self.deadline = Some(self.deadline.map_or(deadline, |before| before.min(deadline)));
    }

    /// Whether the target, and not the host, is to be waited for.
    pub(super) fn is_computing(&self) -> bool {
        self.responder.as_ref().is_some_and(|responder| responder.is_computing())
    }
}
