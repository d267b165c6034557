//! The reasons why a queue slot is closed, one bit each.

use rdma::events::closed::FIRST_OF_FACE;

/// The state of the endpoint takes no requests.
pub(crate) const STATE: u32 = FIRST_OF_FACE;
/// The EVD has a callback: dequeues take the slow path, which notices that the queue is drained.
pub(crate) const CALLBACK: u32 = FIRST_OF_FACE << 1;
/// The IA is disabled or freed.
pub(crate) const DISABLED: u32 = FIRST_OF_FACE << 2;
/// The EVD is freed.
pub(crate) const FREED: u32 = FIRST_OF_FACE << 3;
/// Only the EVD's aggregate takes its events.
pub(crate) const CAPTIVE: u32 = FIRST_OF_FACE << 4;
/// The EVD is reserved: the short way of [`Ia::evd_take`](crate::Ia::evd_take) takes nothing.
pub(crate) const RESERVED: u32 = FIRST_OF_FACE << 5;
/// The reasons for which completions are still taken from the EVD's queue, but not by its slot.
pub(crate) const BUT_FOR_THE_EVD: u32 = CALLBACK | CAPTIVE | RESERVED;
