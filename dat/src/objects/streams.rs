//! What comes to event dispatchers.

use crate::flags::CompletionFlags;

/// What comes to an event dispatcher.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Completions of requests, with the endpoint's flags.
    Requests(CompletionFlags),
    /// Completions of Receives, with the endpoint's flags.
    Receives(CompletionFlags),
    /// Events of connections.
    Connections,
    /// Events of datagram endpoints.
    Datagrams,
    /// Requests for connections.
    Arrivals,
    /// Requests for connections and for datagram endpoints.
    AllArrivals,
}

impl Stream {
    pub(crate) fn flags(self) -> Option<CompletionFlags> {
        match self {
            Stream::Requests(flags) | Stream::Receives(flags) => Some(flags),
            Stream::Connections | Stream::Datagrams | Stream::Arrivals | Stream::AllArrivals => None,
        }
    }
}

/// Whether only some completions notify.
pub(crate) fn selects(mode: CompletionFlags) -> bool {
    mode == CompletionFlags::UNSIGNALLED || mode == CompletionFlags::SOLICITED_WAIT
}
