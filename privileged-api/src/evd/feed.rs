//! What feeds a dispatcher: endpoints, listen points, service requests, and simple dispatchers an aggregate. While anything does, it
//! cannot be freed.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use super::Evd;
use super::aggregate::Promise;
use crate::event::EventType;
use crate::handle::EvdHandle;
use crate::ia::Core;
use crate::status::{Error, Result};

/// A dispatcher that an object feeds, until it ends that or is dropped.
pub(crate) struct Feed {
    evd: Arc<Evd>,
    feeds: AtomicBool,
}

impl Feed {
    /// Begins to feed; `None` if the dispatcher is going.
    pub(crate) fn begin(evd: Arc<Evd>) -> Option<Feed> {
        evd.feeds.acquire().then(|| Feed { evd, feeds: AtomicBool::new(true) })
    }

    /// Feeds it no more, though somebody may still hold the object for a moment.
    pub(crate) fn end(&self) {
        if self.feeds.swap(false, Ordering::AcqRel) {
            self.evd.feeds.release();
        }
    }

    pub(crate) fn evd(&self) -> &Evd {
        &self.evd
    }

    /// The same, for who goes on with it after the feed.
    pub(super) fn shared(&self) -> Arc<Evd> {
        self.evd.clone()
    }

    pub(crate) fn handle(&self) -> EvdHandle {
        self.evd.handle
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end();
    }
}

impl Core {
    /// Begins to feed an aggregate, which promises a seat.
    pub(super) fn feed_aggregate(&self, aevd: EvdHandle) -> Result<Promise> {
        Promise::of(self.evds.get(aevd.as_raw()).ok_or(Error::InvalidAevd)?)
    }

    /// Begins to feed a dispatcher, which must be of this stream.
    pub(crate) fn feed(&self, evd: EvdHandle, stream: EventType, invalid: Error) -> Result<Feed> {
        let evd = self.evds.get(evd.as_raw()).ok_or(invalid)?;
        if evd.stream != stream {
            return Err(Error::InvalidEvdType);
        }
        Feed::begin(evd).ok_or(invalid)
    }
}
