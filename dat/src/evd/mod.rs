//! Event dispatchers (EVDs).
//!
//! - `create`: creation, query, resizing, freeing.
//! - `deliver`: how the events that software makes are queued.
//! - `sharing`: which streams of completions may share an event dispatcher.
//! - `take`: dequeues and waits.
//! - `notify`: upcalls, which trigger the CNO.
//!
//! An event dispatcher is a [`rdma::events::Dispatcher`] with one queue for all its streams, and
//! what DAT adds: a CNO, one waiter at a time, and which completions notify.

mod create;
mod deliver;
mod notify;
mod sharing;
mod take;

use alloc::sync::Arc;

use crate::error::handle;
use crate::handle::EvdHandle;
use crate::ia::Inner;
use crate::objects::evd::Evd;
use crate::ret::{Result, Subtype};

pub use take::WaitError;

impl Inner {
    /// An event dispatcher that the consumer knows.
    pub(crate) fn evd(&self, evd: EvdHandle, invalid: Subtype) -> Result<Arc<Evd>> {
        self.evds.get(evd).filter(|evd| !evd.hidden).ok_or(handle(invalid))
    }
}
