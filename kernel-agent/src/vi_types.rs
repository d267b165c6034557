//! What the calls of a virtual interface take and return.

use nic_abi::wqe::LinkFlags;

use crate::{Error, Reliability};

/// One of the two work queues of a virtual interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViSide {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// What of a virtual interface can be changed while it is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViAttributes {
    /// The reliability level.
    pub reliability: Reliability,
    /// Payload of one message at most, bytes: from 1 to what the NIC allows.
    pub max_transfer: u64,
    /// Rights that the peer has at most: [`LinkFlags::REMOTE_WRITE`] and
    /// [`LinkFlags::REMOTE_READ`].
    pub access: LinkFlags,
}

impl ViAttributes {
    /// Fails unless they are possible on a NIC with messages of so many bytes at most.
    pub(crate) fn check(&self, max_message: u64) -> Result<(), Error> {
        if self.max_transfer == 0 || self.max_transfer > max_message {
            return Err(Error::OutOfRange("message size"));
        }
        if !(LinkFlags::REMOTE_WRITE | LinkFlags::REMOTE_READ).contains(self.access) {
            return Err(Error::OutOfRange("rights of the peer"));
        }
        Ok(())
    }
}

/// Why a descriptor was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViPostError {
    /// As many descriptors as the queue was created for are on it.
    #[error("the queue is full")]
    Full,
    /// The virtual interface is destroyed, or the device is dead.
    #[error("the virtual interface is gone")]
    Gone,
}

/// What [`Vi::take`](crate::Vi::take) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViTaken {
    /// The oldest descriptor, which is complete; it was taken off the queue.
    Done {
        /// Its virtual address.
        address: u64,
        /// The handle of its memory.
        handle: u32,
    },
    /// The device lost the oldest descriptor: [`Vi::take_lost`](crate::Vi::take_lost) takes it off.
    Lost,
    /// The oldest descriptor is not complete, or there is none.
    NotDone,
}

/// What [`Vi::find_error`](crate::Vi::find_error) found: the virtual interface is in ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundError {
    /// Its number there, by which events name it.
    pub number: u32,
    /// It broke. Otherwise the agent moved it there, because its connection ended or an attempt to
    /// connect failed.
    pub by_itself: bool,
}
