//! The objects that feed an EVD: endpoints, listen points and UD service requests feed a simple
//! EVD, and simple EVDs feed an aggregate. An EVD cannot be freed while an object feeds it.

use super::EventStreams;
use super::aggregate::Reservation;
use crate::handle::EvdHandle;
use crate::ia::Core;
use crate::objects::evd::Feed;
use crate::status::{Error, Result};

impl Core {
    /// Begins to feed an aggregate, and reserves a seat in it.
    pub(super) fn feed_aggregate(&self, aevd: EvdHandle) -> Result<Reservation> {
        Reservation::of(self.evds.get(aevd).ok_or(Error::InvalidAevd)?)
    }

    /// Begins to feed an EVD. Fails with `InvalidEvdType` if it does not have this stream, and with
    /// `invalid` if the handle is not valid.
    pub(crate) fn feed(&self, evd: EvdHandle, stream: EventStreams, invalid: Error) -> Result<Feed> {
        let evd = self.evds.get(evd).ok_or(invalid)?;
        if !evd.streams.contains(stream) {
            return Err(Error::InvalidEvdType);
        }
        Feed::begin(evd).ok_or(invalid)
    }
}
