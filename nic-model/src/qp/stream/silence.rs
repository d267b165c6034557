//! What an end does whose peer sends nothing after the set-up.
//!
//! A responder's end waits for the first FPDU of the initiator, whose consumer may be waiting for
//! the responder's: in the end it sends nevertheless, if its driver wants that.
//!
//! An initiator's end announces itself by an empty RDMA Write. Linux's siw sends the Reply before
//! it looks for FPDUs: what arrives meanwhile stays in its socket until something else arrives. So
//! the announcement is repeated.

use core::time::Duration;

use nic_abi::admin::StreamFlags;

use super::Stream;
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::schedule::Schedule;
use crate::streams::Streams;

/// How long an initiator that has the Reply is silent at least until a responder's end may send.
/// An initiator that finds bytes behind the Reply when it reads it may give up (siw does): this is
/// much longer than it takes to read the Reply.
const PATIENCE: Duration = Duration::from_millis(125);
/// How often an announcement is repeated.
const REPEATED: u8 = 4;
/// The time until it is repeated for the first time; each further time takes four times as long.
const FIRST: Duration = Duration::from_millis(20);

/// What an end does whose peer sends nothing.
#[derive(Clone, Copy)]
pub(super) enum Silence {
    /// A responder's end may send in the end.
    Speak {
        /// The initiator had the Reply when that was looked at last.
        acknowledged: bool,
    },
    /// An initiator's end announces itself again, so many times more.
    Announce { left: u8 },
}

impl Silence {
    pub fn of(flags: StreamFlags) -> Option<Silence> {
        match flags {
            _ if flags.contains(StreamFlags::UNASKED) => Some(Silence::Speak { acknowledged: false }),
            _ if flags.contains(StreamFlags::ANNOUNCE) => Some(Silence::Announce { left: REPEATED }),
            _ => None,
        }
    }

    /// How long the peer may be silent from now on.
    fn time(self) -> Duration {
        match self {
            Silence::Speak { .. } => PATIENCE,
            Silence::Announce { left } => FIRST * 4_u32.pow(u32::from(REPEATED.saturating_sub(left))),
        }
    }
}

impl Stream {
    /// The time is over. Returns what is done if the peer still sends nothing.
    fn stays_silent(&mut self, streams: &Streams, silence: Silence) -> Option<Silence> {
        match silence {
            _ if self.engine.has_heard() || self.engine.ended().is_some() => None,
            Silence::Speak { acknowledged: before } => {
                // If nothing reaches the peer any more, the stream says so.
                let info = streams.tcp.info(self.id);
                let acknowledged = info.map_or(true, |info| info.unacknowledged == 0);
                if before && acknowledged {
                    self.engine.speak();
                    return None;
                }
                Some(Silence::Speak { acknowledged })
            }
            Silence::Announce { left } => {
                self.engine.announce();
                let left = left.saturating_sub(1);
                (left > 0).then_some(Silence::Announce { left })
            }
        }
    }
}

impl Qp {
    /// Starts the timer for a peer that sends nothing, if something is done then.
    pub(crate) fn watch_silence(&mut self, schedule: &mut Schedule) {
        if let Some(silence) = self.stream.as_ref().and_then(|stream| stream.silence) {
            let at = schedule.now + silence.time();
            schedule.start_timer(self, at);
        }
    }

    /// The timer has fired.
    pub(super) fn peer_stays_silent<F: Frontend>(&mut self, nic: &Nic<F>, schedule: &mut Schedule) {
        let (Some(stream), Some(streams)) = (&mut self.stream, &nic.streams) else { return };
        let Some(silence) = stream.silence else { return };
        stream.silence = stream.stays_silent(streams, silence);
        self.watch_silence(schedule);
        schedule.activate(self);
    }
}
