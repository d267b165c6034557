//! How large an agent's tables and the event queues of its NIC are.

use core::time::Duration;

use nic_abi::ident;
use nic_abi::registers::{Features, Identity};

/// The event queue of asynchronous events and answered commands.
pub(crate) const EQ_ASYNC: u32 = 0;
/// The event queue of completions.
pub(crate) const EQ_COMPLETIONS: u32 = 1;
/// The event queue of virtual interfaces: errors, and completions on queues that are armed. It is
/// theirs alone, since its room has to be theirs alone: a consumer and its peers cause these events
/// as they like.
pub(crate) const EQ_VIS: u32 = 2;
/// The event queue of streams and listeners, which is theirs alone for the same reason.
pub(crate) const EQ_STREAMS: u32 = 3;
/// Events of one stream or listener that can be in its event queue at the same time.
pub(crate) const EVENTS_PER_STREAM: u32 = 1;
/// Events of one virtual interface that can be in its event queue at the same time: one of each
/// error, a completion on each of its two queues, and the first message of a connection.
pub(crate) const EVENTS_PER_VI: u32 = nic_abi::vi::ERRORS as u32 + 3;
/// Events of one CQ that can be in its event queue at the same time: the one for which it was
/// armed, and its error.
pub(crate) const EVENTS_PER_CQ: u32 = 2;
/// Room for the events of this many CQs, and of this many virtual interfaces, that were destroyed
/// before the dispatcher thread took their events; less if the device's event queues are small.
const FORMER: u32 = 256;
/// The most room for asynchronous events. Room for every queue pair would only be needed if all of
/// them broke while the dispatcher thread is held up.
pub(super) const ASYNC_EVENTS: u32 = 1 << 14;
/// The fewest entries of an event queue.
pub(super) const MIN_EVENTS: u32 = 16;
/// The default number of CQs. The event queue has room for each, whether the CQ exists or not.
const USUAL_CQS: u32 = 1 << 12;
/// The default number of virtual interfaces, as above.
const USUAL_VIS: u32 = 5 << 10;
/// The default number of streams. With those that are destroyed they are as many as the device has
/// numbers for.
const USUAL_STREAMS: u32 = ident::MAX_STREAMS - FORMER;

/// How large the agent's tables may become; 0 stands for the device's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Queue pairs and virtual interfaces, not counting the agent's own.
    pub max_qps: u32,
    /// Virtual interfaces among them; here 0 stands for 5120, or for as many as the device's event
    /// queues have room for if those are fewer. There are never more than protection domains (VIA
    /// 3.2.2.1).
    pub max_vis: u32,
    /// Completion queues, not counting the agent's own; here 0 stands for 4096, or the device's
    /// limit if that is lower.
    pub max_cqs: u32,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Protection domains, not counting the agent's own.
    pub max_pds: u32,
    /// Regions and windows together.
    pub max_keys: u32,
    /// Streams and listeners for them; here 0 stands for 3840, or for as many as the device's event
    /// queues have room for if those are fewer.
    pub max_streams: u32,
    /// Connections of each protocol, counting those in time-wait.
    pub max_connections: u32,
    /// Listening points of each protocol.
    pub max_listens: u32,
    /// iWARP's connections have no CRCs, unless the peer asks for them.
    pub without_crc: bool,
    /// How long the device's heartbeat may stand still before the device is taken for dead. A
    /// device whose process is stopped for less goes on. 0 stands for
    /// [`nic_abi::registers::HEARTBEAT_DEAD_MS`].
    pub silence: Duration,
}

impl Config {
    /// The sizes that are in force with this device.
    pub(super) fn within(self, identity: &Identity) -> Config {
        let least = |asked: u32, most: u32| if asked == 0 { most } else { asked.min(most) };
        // Queue pairs 0 and 1, one CQ, and protection domains 0 and 1 belong to no client.
        let cqs = if self.max_cqs == 0 { USUAL_CQS } else { self.max_cqs };
        let max_qps = least(self.max_qps, identity.max_qps - 2);
        let max_pds = least(self.max_pds, identity.max_pds - 2);
        let room = |events| shares(identity, events) - former(identity, events);
        let vis = if self.max_vis == 0 { USUAL_VIS } else { self.max_vis };
        let offered = Features::from_bits_truncate(identity.features).contains(Features::VI);
        let has_vis = offered && identity.max_eqs > EQ_VIS;
        let streams = if self.max_streams == 0 { USUAL_STREAMS } else { self.max_streams };
        let offered = Features::from_bits_truncate(identity.features).contains(Features::STREAMS);
        let has_streams = offered && identity.max_eqs > EQ_STREAMS;
        Config {
            max_qps,
            max_vis: if has_vis { vis.min(max_qps).min(max_pds).min(room(EVENTS_PER_VI)) } else { 0 },
            max_cqs: cqs.min(identity.max_cqs - 1).min(room(EVENTS_PER_CQ) - 1),
            max_srqs: least(self.max_srqs, identity.max_srqs),
            max_pds,
            max_keys: least(self.max_keys, identity.max_keys - 1),
            max_streams: if has_streams {
                streams.min(ident::MAX_STREAMS).min(room(EVENTS_PER_STREAM))
            } else {
                0
            },
            max_connections: least(self.max_connections, 1 << 16),
            max_listens: least(self.max_listens, 1 << 12),
            without_crc: self.without_crc,
            silence: self.silence,
        }
    }
}

/// The most entries of an event queue: a power of two.
pub(super) fn longest_eq(identity: &Identity) -> u32 {
    1 << identity.max_eqes.max(MIN_EVENTS).ilog2()
}

/// For how many objects with so many events each the longest event queue has room.
fn shares(identity: &Identity, events: u32) -> u32 {
    longest_eq(identity) / events
}

/// How many such objects that were destroyed can have events that were not taken.
pub(super) fn former(identity: &Identity, events: u32) -> u32 {
    FORMER.min(shares(identity, events) / 4)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn sizes_that_are_not_given_are_the_devices_less_what_no_client_has() {
        let identity = Identity {
            max_qps: 100,
            max_cqs: 50,
            max_srqs: 30,
            max_pds: 20,
            max_keys: 10,
            max_eqes: 1 << 16,
            ..Identity::new_zeroed()
        };
        let within = Config::default().within(&identity);
        assert_eq!((within.max_qps, within.max_cqs, within.max_srqs), (98, 49, 30));
        assert_eq!((within.max_pds, within.max_keys), (18, 9));
        let asked = Config { max_qps: 99, max_pds: 3, ..Config::default() }.within(&identity);
        assert_eq!((asked.max_qps, asked.max_pds), (98, 3));
        // Event queues of 4096 entries have room for 2048 CQs: 256 that are gone, and the agent's.
        let few = Identity { max_cqs: 1 << 16, max_eqes: 1 << 12, ..identity };
        assert_eq!(Config { max_cqs: 1 << 16, ..Config::default() }.within(&few).max_cqs, 1791);
    }

    #[test]
    fn virtual_interfaces_are_as_many_as_have_room_for_their_events() {
        let identity = Identity {
            features: Features::VI.bits(),
            max_qps: 1 << 14,
            max_cqs: 50,
            max_pds: 1 << 15,
            max_keys: 10,
            max_eqs: 3,
            max_eqes: 1 << 16,
            max_vi_segments: 252,
            max_vi_entries: 16,
            ..Identity::new_zeroed()
        };
        let vis = |identity: &Identity, max_vis, max_qps| {
            Config { max_vis, max_qps, ..Config::default() }.within(identity).max_vis
        };
        assert_eq!((vis(&identity, 0, 0), vis(&identity, 7, 0), vis(&identity, 7, 5)), (5120, 7, 5));
        // 65,536 entries are 5,461 shares of 12, of which 256 are for those that are gone.
        assert_eq!(vis(&identity, 1 << 14, 0), 5205);
        assert_eq!(vis(&Identity { max_eqes: 16, ..identity }, 0, 0), 1);
        assert_eq!(vis(&Identity { max_eqs: 2, ..identity }, 0, 0), 0);
        assert_eq!(vis(&Identity { features: 0, ..identity }, 0, 0), 0);
    }
}
