//! The events that software makes. Each stream of them has a share of the queue of its own.

use platform::sync::atomic::Ordering;
use rdma::events::{EventQueue, Stream};

use super::evd::{Evd, MESSAGES, REQUESTS};
use super::points::Arrived;
use super::resolutions::Answer;
use crate::event::{AsynchError, Connection, EventNumber, IbExtensionEventData};
use crate::flags::EvdFlags;

/// An event of a connection or of a datagram endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) number: EventNumber,
    pub(crate) connection: Connection,
    pub(crate) extension: Option<IbExtensionEventData>,
}

/// An entry of software's.
pub(crate) enum Entry {
    /// A peer asks for a connection or for a datagram endpoint.
    Arrived(Arrived),
    /// Something happened to a connection.
    Connection(Made),
    /// A peer has answered, or has not.
    Resolved(Answer),
    /// A call of the consumer did something to a datagram endpoint.
    Datagrams(Made),
    /// An asynchronous error that concerns one object.
    Error(EventNumber, AsynchError),
    /// An asynchronous error that concerns the IA.
    IaError(EventNumber, AsynchError),
    /// A software event.
    Software(usize),
}

pub(crate) const REQUEST: usize = 0;
pub(crate) const MESSAGE: usize = 1;
pub(crate) const OWN: usize = 2;
pub(crate) const AFFILIATED: usize = 3;
pub(crate) const UNAFFILIATED: usize = 4;
pub(crate) const SOFTWARE: usize = 5;
/// Stands for the NIC's queue.
pub(crate) const COMPLETION: usize = 6;

pub(crate) const COMPLETIONS_BIT: u8 = 1 << COMPLETION;

impl Stream for Entry {
    const STREAMS: usize = 6;

    fn stream(&self) -> usize {
        match self {
            Entry::Arrived(_) => REQUEST,
            Entry::Connection(_) | Entry::Resolved(_) => MESSAGE,
            Entry::Datagrams(_) => OWN,
            Entry::Error(..) => AFFILIATED,
            Entry::IaError(..) => UNAFFILIATED,
            Entry::Software(_) => SOFTWARE,
        }
    }
}

/// The number of streams of software's that these flags have.
pub(crate) fn streams(flags: EvdFlags) -> usize {
    let has = |of| usize::from(flags.intersects(of));
    // Two for messages, OWN among them, and two for asynchronous errors.
    has(REQUESTS) + 2 * has(MESSAGES) + has(EvdFlags::SOFTWARE) + 2 * has(EvdFlags::ASYNC)
}

impl Evd {
    fn entries(&self) -> &EventQueue<Entry> {
        self.dispatcher.queue()
    }

    /// Queues an entry; false if its stream's share of the queue is full.
    pub(crate) fn push(&self, entry: Entry) -> bool {
        self.entries().push(entry)
    }

    /// Keeps room for the event of a call on a datagram endpoint.
    pub(crate) fn reserve_event(&self) -> bool {
        self.entries().made().is_some_and(|made| made.reserve(OWN))
    }

    /// Gives the room back.
    pub(crate) fn cancel_event(&self) {
        if let Some(made) = self.entries().made() {
            made.give_back(OWN);
        }
    }

    /// An entry of a stream was taken: the next loss is reported again.
    pub(crate) fn took(&self, stream: usize) {
        let bit = 1 << stream;
        if self.overflowed.load(Ordering::Acquire) & bit != 0 {
            self.overflowed.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// The queue has another size: the next loss is reported again.
    pub(crate) fn resized(&self) {
        self.overflowed.fetch_and(COMPLETIONS_BIT, Ordering::AcqRel);
    }
}
