//! The reasons why a queue slot is closed, one bit each. Bit 0 belongs to the agent.

/// The state of the endpoint takes no requests.
pub(crate) const STATE: u32 = 1 << 1;
/// The EVD has a callback: dequeues take the slow path, which notices that the queue is drained.
pub(crate) const CALLBACK: u32 = 1 << 2;
/// Completions of the EVD are in its stage.
pub(crate) const STAGED: u32 = 1 << 3;
/// The IA is disabled or freed.
pub(crate) const DISABLED: u32 = 1 << 4;
/// The EVD is freed.
pub(crate) const FREED: u32 = 1 << 5;
/// Only the EVD's aggregate takes its events.
pub(crate) const CAPTIVE: u32 = 1 << 6;
/// Events that software made are queued on the EVD.
pub(crate) const MADE: u32 = 1 << 8;
/// The EVD is reserved: the short way of [`Ia::evd_take`](crate::Ia::evd_take) takes nothing.
pub(crate) const RESERVED: u32 = 1 << 7;
