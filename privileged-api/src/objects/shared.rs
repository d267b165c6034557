//! What all IAs of a provider share.

use alloc::sync::Arc;

use platform::Platform;
use rdma::InCallbacks;

use super::shareable::Shareable;
use crate::status::{Error, Result};

/// The state that all IAs of a provider share.
pub(crate) struct Shared {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) shareable: Shareable,
    pub(crate) callbacks: InCallbacks,
}

impl Shared {
    pub(crate) fn new(platform: Arc<dyn Platform>) -> Shared {
        let callbacks = InCallbacks::new(platform.clone());
        Shared { platform, shareable: Shareable::new(), callbacks }
    }

    /// Fails with `CallbackContext` if this thread runs a callback. For the calls that their pages
    /// exclude from callbacks.
    pub(crate) fn not_in_callback(&self) -> Result<()> {
        if self.callbacks.contains_this_thread() { Err(Error::CallbackContext) } else { Ok(()) }
    }
}
