//! Virtual interfaces (VI Architecture 1.0).

use alloc::sync::Arc;
use core::convert::Infallible;

use nic_abi::admin::QpState;
use nic_abi::wqe::LinkFlags;
use thiserror::Error;

use crate::region::Pd;
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

/// Why a descriptor was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ViPostError {
    /// As many descriptors as the queue was created for are on it.
    #[error("the queue is full")]
    Full,
    /// The virtual interface is destroyed, or the device is dead.
    #[error("the virtual interface is gone")]
    Gone,
}

/// What [`Vi::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViTaken {
    /// The oldest descriptor, which is complete; it was taken off the queue.
    Done {
        /// Its virtual address.
        address: u64,
        /// The handle of its memory.
        handle: u32,
    },
    /// The oldest descriptor is not complete, or there is none.
    NotDone,
}

/// A virtual interface. All methods may be called by any thread at any time.
pub struct Vi {
    never: Infallible,
}

impl Vi {
    /// The context given at creation.
    #[inline]
    pub fn context(&self) -> u64 {
        match self.never {}
    }

    /// The state to which the agent last moved the virtual interface, or that an event reported:
    /// RESET is VIA's Idle.
    pub fn state(&self) -> QpState {
        match self.never {}
    }

    /// Posts a descriptor: writes its address and the handle of its memory into the ring, and rings
    /// the doorbell.
    ///
    /// `link` is called with address and handle of the descriptor before it, if that is still on the
    /// queue, under the queue's lock and before the device learns of the post.
    #[inline(always)]
    pub fn post(
        &self,
        _side: ViSide,
        _address: u64,
        _handle: u32,
        _link: impl FnOnce(u64, u32),
    ) -> Result<(), ViPostError> {
        match self.never {}
    }

    /// Takes the oldest descriptor off the queue if it is complete.
    ///
    /// `is_done` reads whether the descriptor's status has the bit `DONE`, from address and handle.
    /// It is called, under the queue's lock, only while the device is writing the status.
    #[inline(always)]
    pub fn take(&self, _side: ViSide, _is_done: impl FnOnce(u64, u32) -> bool) -> ViTaken {
        match self.never {}
    }

    /// Arms a queue that is not tied to a completion queue: one `Upcalls::vi_completion` follows
    /// when the device completes the next descriptor. Look at the queue once more afterwards.
    pub fn arm(&self, _side: ViSide) {
        match self.never {}
    }

    /// How many descriptors are on a queue: posted and not taken off.
    pub fn queued(&self, _side: ViSide) -> u32 {
        match self.never {}
    }

    /// Gives the virtual interface another protection domain, other attributes, or both. It must not
    /// be connected.
    pub fn set(&self, _pd: Option<&Arc<Pd>>, _attributes: Option<&ViAttributes>) -> Result<(), Error> {
        match self.never {}
    }

    /// Ends the connection, or gives up one that is being made, without an event. All descriptors on
    /// both queues are complete when this returns, those that were under way as flushed. The virtual
    /// interface is in RESET, and can be connected again at once.
    pub fn disconnect(&self) -> Result<(), Error> {
        match self.never {}
    }

    /// Destroys the virtual interface, and abandons its connection.
    pub fn destroy(&self) -> Result<(), Error> {
        match self.never {}
    }
}
