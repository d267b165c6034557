//! Which streams of completions may share an event dispatcher (dat_ep_create_with_srq), and which
//! completions notify.
//!
//! All streams of completions of an event dispatcher have the same completion flags. The flags
//! decide which completions wake a waiter or trigger the CNO:
//!
//! | flags of the streams | what notifies |
//! |---|---|
//! | `DEFAULT`, `EVD_THRESHOLD` | each completion; a waiter waits for as many as its threshold |
//! | `UNSIGNALLED` | each completion whose request was posted without `UNSIGNALLED` |
//! | `SOLICITED_WAIT` (Receives only) | each completion that the sender solicited |
//!
//! Failures always notify.

use privileged_api as it;

use super::{Control, Evd};
use crate::error::{handle, parameter};
use crate::flags::{CompletionFlags, EvdFlags};
use crate::ia::Inner;
use crate::ret::{Result, Subtype};

/// A stream of events that an object is about to feed to an event dispatcher.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Completions of an endpoint's requests, which have these flags.
    Requests(CompletionFlags),
    /// Completions of an endpoint's Receives.
    Receives(CompletionFlags),
    /// Connection events.
    Connections,
    /// Connection events of a datagram endpoint.
    Datagrams,
    /// Requests for connections.
    Arrivals,
    /// Requests for connections and for datagram endpoints.
    AllArrivals,
}

impl Stream {
    fn flags(self) -> Option<CompletionFlags> {
        match self {
            Stream::Requests(flags) | Stream::Receives(flags) => Some(flags),
            Stream::Connections | Stream::Datagrams | Stream::Arrivals | Stream::AllArrivals => None,
        }
    }
}

/// Whether the mode lets only some completions notify.
pub(super) fn selects(mode: CompletionFlags) -> bool {
    mode == CompletionFlags::UNSIGNALLED || mode == CompletionFlags::SOLICITED_WAIT
}

impl Control {
    /// Whether a stream with these flags can be added.
    fn admits(&self, evd: &Evd, stream: Stream) -> bool {
        let Some(flags) = stream.flags() else { return true };
        let alone = self.completion_streams == 0;
        // Solicited Receives share an event dispatcher only with other solicited Receives.
        if flags == CompletionFlags::SOLICITED_WAIT && evd.flags != EvdFlags::DTO {
            return false;
        }
        alone || self.mode == flags
    }
}

impl Inner {
    /// Registers a stream with an event dispatcher. Fails with `InvalidParameter` and the subtype
    /// `flags` if the streams of the event dispatcher have other completion flags, and with
    /// `invalid` if the event dispatcher is being freed or does not take such events.
    pub(crate) fn join(&self, evd: &Evd, stream: Stream, invalid: Subtype, flags: Subtype) -> Result<()> {
        let _changes = evd.changes.lock(self.platform());
        let changed = {
            let mut control = evd.control.lock();
            if control.gone || !evd.takes(stream) {
                return Err(handle(invalid));
            }
            if !control.admits(evd, stream) {
                return Err(parameter(flags));
            }
            control.users += 1;
            let before = control.mode;
            if let Some(mode) = stream.flags() {
                control.mode = mode;
                control.completion_streams += 1;
                control.request_streams += usize::from(matches!(stream, Stream::Requests(_)));
            }
            (selects(before) != selects(control.mode)).then_some(control.mode)
        };
        match changed {
            Some(mode) => self.set_mode(evd, mode).inspect_err(|_| {
                evd.leave(stream);
            }),
            None => Ok(()),
        }
    }

    /// Removes a stream from an event dispatcher.
    pub(crate) fn leave(&self, evd: &Evd, stream: Stream) {
        let _changes = evd.changes.lock(self.platform());
        if let Some(mode) = evd.leave(stream) {
            // Fails only if the IA has ended.
            let _ = self.set_mode(evd, mode);
        }
    }

    /// Sets which completions notify.
    fn set_mode(&self, evd: &Evd, mode: CompletionFlags) -> Result<()> {
        // With a threshold of 0, only completions that ask for a notification notify.
        let threshold = usize::from(!selects(mode));
        let param = it::EvdParam { sevd_threshold: threshold, ..it::EvdParam::default() };
        Ok(self.it.evd_modify(evd.handle.inner(), it::EvdParamMask::THRESHOLD, &param)?)
    }
}

impl Evd {
    /// Removes a stream. Returns the mode if that changes which completions notify.
    fn leave(&self, stream: Stream) -> Option<CompletionFlags> {
        let mut control = self.control.lock();
        control.users -= 1;
        stream.flags()?;
        control.completion_streams -= 1;
        control.request_streams -= usize::from(matches!(stream, Stream::Requests(_)));
        if control.completion_streams > 0 {
            return None;
        }
        let before = core::mem::replace(&mut control.mode, CompletionFlags::DEFAULT);
        selects(before).then_some(CompletionFlags::DEFAULT)
    }

    /// Whether the event dispatcher was created for such events.
    fn takes(&self, stream: Stream) -> bool {
        match stream {
            Stream::Requests(_) | Stream::Receives(_) => self.flags.contains(EvdFlags::DTO),
            Stream::Connections => self.flags.contains(EvdFlags::CONNECTION),
            Stream::Datagrams => self.flags.intersects(EvdFlags::CONNECTION | EvdFlags::IB_EXTENSION),
            Stream::Arrivals => self.flags.contains(EvdFlags::CR),
            Stream::AllArrivals => self.flags.intersects(EvdFlags::CR | EvdFlags::IB_EXTENSION),
        }
    }

    /// Whether the present mode lets only some completions notify.
    pub(super) fn selects(&self) -> bool {
        selects(self.control.lock().mode)
    }
}
