//! Connections whose queue pair broke by itself.

use core::time::Duration;

use roce::TimeoutCode;

use super::state::ConnectionManager;
use crate::CmEventKind;
use crate::cm;
use crate::qp_common::Breach;

/// How long a connection that broke by a refusal stays at most for the peer to learn of that.
const LONGEST_REFUSAL: Duration = Duration::from_secs(2);

/// How long a requester with this ACK timeout takes at most to learn of a refusal of which two
/// copies get lost: it asks again after each timeout. One that asks never again learns at once or
/// not at all.
fn refusal_time(ack_timeout: TimeoutCode) -> Duration {
    match ack_timeout.get() {
        0 => Duration::ZERO,
        _ => (3 * ack_timeout.duration()).min(LONGEST_REFUSAL),
    }
}

impl ConnectionManager {
    /// A queue pair broke by itself: ends the connection that it had. If it may have `refused` a
    /// request of its peer, the peer's queue pair breaks as well, and the peer says so: the end
    /// waits for that, so that the peer's request is not flushed before it has the refusal. The
    /// connection may be over by now, and the queue pair have another one.
    pub(crate) fn broke(&self, breach: Breach, refused: bool) {
        let Some(id) = breach.connection else { return };
        let now = self.platform.now();
        let mut tables = self.tables.lock();
        if tables.cm.state(id) == cm::State::Established {
            let timeout = tables.ends.get(&id).filter(|_| refused).map(|end| end.setup.ack_timeout);
            let _ = tables.cm.break_off(now, id, timeout.map_or(Duration::ZERO, refusal_time));
            self.flush(&mut tables);
        }
        if tables.cm.state(id) == cm::State::DreqSent {
            return;
        }
        let end = self.give_up(&mut tables, id);
        drop(tables);
        if let Some(end) = end {
            end.report(id, CmEventKind::Disconnected { by_peer: false }, &[], &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_waited_for_as_long_as_the_peer_asks_three_times_and_for_two_seconds_at_most() {
        let code = |code| TimeoutCode::new(code).unwrap();
        assert_eq!(refusal_time(code(0)), Duration::ZERO, "it does not ask again");
        assert_eq!(refusal_time(code(1)), Duration::from_nanos(3 * 8192));
        assert_eq!(refusal_time(code(14)), 3 * code(14).duration());
        assert_eq!(refusal_time(code(31)), Duration::from_secs(2));
    }
}
