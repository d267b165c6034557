//! The reasons why a queue slot is closed, a bit each. Bit 0 is the agent's.

/// An endpoint: its state takes no requests.
pub(crate) const STATE: u32 = 1 << 1;
/// An event dispatcher: it has a callback, which has to learn when the queue is drained.
pub(crate) const CALLBACK: u32 = 1 << 2;
/// An event dispatcher: completions wait in the stage.
pub(crate) const STAGED: u32 = 1 << 3;
/// The IA is disabled or freed.
pub(crate) const DISABLED: u32 = 1 << 4;
/// An event dispatcher: it is freed.
pub(crate) const FREED: u32 = 1 << 5;
/// An event dispatcher: only its aggregate takes its events.
pub(crate) const CAPTIVE: u32 = 1 << 6;
