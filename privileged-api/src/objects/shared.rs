//! What all IAs of a provider share.

use alloc::sync::Arc;

use platform::Platform;
use rdma::Interfaces;

use super::shareable::Shareable;
use crate::status::{Error, Result};

/// The state that all IAs of a provider share.
pub(crate) struct Shared {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) shareable: Shareable,
    pub(crate) interfaces: Arc<Interfaces>,
}

impl Shared {
    pub(crate) fn new(interfaces: Arc<Interfaces>) -> Shared {
        let platform = interfaces.platform().clone();
        Shared { platform, shareable: Shareable::new(), interfaces }
    }

    /// Fails with `CallbackContext` if this thread runs a callback. For the calls that their pages
    /// exclude from callbacks.
    pub(crate) fn not_in_callback(&self) -> Result<()> {
        if self.interfaces.callbacks().contains_this_thread() { Err(Error::CallbackContext) } else { Ok(()) }
    }
}
