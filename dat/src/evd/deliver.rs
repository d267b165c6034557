//! How the events that software makes are queued.
//!
//! An entry that finds its stream's share of the queue full is lost. For some streams an
//! asynchronous event says so, once until an entry of the stream is taken.

use platform::sync::atomic::Ordering;
use rdma::events::Stream;

use crate::event::{AsyncReason, AsynchError, EventNumber};
use crate::handle::Handle;
use crate::ia::Inner;
use crate::objects::entry::{AFFILIATED, COMPLETION, COMPLETIONS_BIT, Entry, MESSAGE, Made, REQUEST};
use crate::objects::evd::{Evd, Origin};

/// The streams whose overflow an asynchronous event reports.
const REPORTED: u8 = COMPLETIONS_BIT | 1 << MESSAGE | 1 << AFFILIATED;

impl Inner {
    /// Queues the event of a call on a datagram endpoint, for which room is kept.
    pub(crate) fn fill_event(&self, evd: &Evd, made: Made) {
        evd.dispatcher.queue().fill(Entry::Datagrams(made));
        self.announce(evd, Origin::Call);
    }

    /// Queues an entry, and reports its loss.
    pub(crate) fn deliver(&self, evd: &Evd, entry: Entry, origin: Origin) {
        let stream = entry.stream();
        match evd.push(entry) {
            true => self.announce(evd, origin),
            false => self.overflow(evd, stream, origin),
        }
    }

    /// An entry that somebody queued, or could not queue.
    pub(crate) fn pushed(&self, evd: &Evd, queued: bool, stream: usize, origin: Origin) {
        match queued {
            true => self.announce(evd, origin),
            false => self.overflow(evd, stream, origin),
        }
    }

    /// An entry of a connection's was queued, or could not be.
    pub(crate) fn message_pushed(&self, evd: &Evd, queued: bool, origin: Origin) {
        self.pushed(evd, queued, MESSAGE, origin);
    }

    /// A request was queued, or could not be.
    pub(crate) fn request_pushed(&self, evd: &Evd, queued: bool, origin: Origin) {
        self.pushed(evd, queued, REQUEST, origin);
    }

    /// Completions of an event dispatcher were lost.
    pub(crate) fn completions_lost(&self, evd: &Evd, origin: Origin) {
        self.overflow(evd, COMPLETION, origin);
    }

    fn overflow(&self, evd: &Evd, stream: usize, origin: Origin) {
        let bit = 1 << stream;
        let first = evd.overflowed.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        // The event dispatcher for unwanted completions is none of the consumer's.
        if !first || REPORTED & bit == 0 || evd.hidden {
            return;
        }
        let error = AsynchError { dat_handle: evd.handle.into(), reason: AsyncReason::EvdOverflow };
        let number = EventNumber::ASYNC_ERROR_EVD_OVERFLOW;
        match stream {
            // The other stream of the same event dispatcher may have room.
            AFFILIATED => self.report(Entry::IaError(number, error), origin),
            _ => self.report(Entry::Error(number, error), origin),
        }
    }

    fn report(&self, entry: Entry, origin: Origin) {
        let evd = self.async_evd.get().and_then(|evd| self.evds.get(*evd));
        if let Some(evd) = evd {
            // The loss of an error about the IA is not reported: this ends after the second step.
            self.deliver(&evd, entry, origin);
        }
    }

    /// Reports an asynchronous error that concerns one object.
    pub(crate) fn report_error(
        &self,
        number: EventNumber,
        of: impl Into<Handle>,
        reason: AsyncReason,
        origin: Origin,
    ) {
        self.report(Entry::Error(number, AsynchError { dat_handle: of.into(), reason }), origin);
    }

    /// Reports an asynchronous error that concerns the IA.
    pub(crate) fn report_ia_error(&self, origin: Origin) {
        let error = AsynchError { dat_handle: self.handle.into(), reason: AsyncReason::Ia };
        self.report(Entry::IaError(EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, error), origin);
    }
}
