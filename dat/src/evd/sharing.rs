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

use crate::error::{handle, parameter};
use crate::flags::{CompletionFlags, EvdFlags};
use crate::ia::Inner;
use crate::objects::evd::{Control, Evd, MESSAGES, Origin, REQUESTS};
use crate::objects::streams::{Stream, selects};
use crate::ret::{Result, Subtype};

impl Control {
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
    /// A stream begins to come to an event dispatcher. Fails with `invalid` if it does not take it,
    /// and with `flags` if its flags clash with those of others.
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
            }
            (selects(before) != selects(control.mode)).then_some(control.mode)
        };
        if let Some(mode) = changed {
            self.set_mode(evd, mode);
        }
        Ok(())
    }

    /// Ends what [`Inner::join`] began.
    pub(crate) fn leave(&self, evd: &Evd, stream: Stream) {
        let _changes = evd.changes.lock(self.platform());
        if let Some(mode) = evd.leave(stream) {
            self.set_mode(evd, mode);
        }
    }

    fn set_mode(&self, evd: &Evd, mode: CompletionFlags) {
        // With a threshold of 0, only completions that ask for a notification notify.
        evd.dispatcher.set_threshold(usize::from(!selects(mode)));
        self.announce(evd, Origin::Call);
    }
}

impl Evd {
    /// Returns the new mode if it changes what notifies.
    fn leave(&self, stream: Stream) -> Option<CompletionFlags> {
        let mut control = self.control.lock();
        control.users -= 1;
        stream.flags()?;
        control.completion_streams -= 1;
        if control.completion_streams > 0 {
            return None;
        }
        let before = core::mem::replace(&mut control.mode, CompletionFlags::DEFAULT);
        selects(before).then_some(CompletionFlags::DEFAULT)
    }

    /// Whether the event dispatcher is for such a stream.
    pub(crate) fn takes(&self, stream: Stream) -> bool {
        match stream {
            Stream::Requests(_) | Stream::Receives(_) => self.flags.contains(EvdFlags::DTO),
            Stream::Connections => self.flags.contains(EvdFlags::CONNECTION),
            Stream::Datagrams => self.flags.intersects(MESSAGES),
            Stream::Arrivals => self.flags.contains(EvdFlags::CR),
            Stream::AllArrivals => self.flags.intersects(REQUESTS),
        }
    }

    pub(super) fn selects(&self) -> bool {
        selects(self.control.lock().mode)
    }
}
