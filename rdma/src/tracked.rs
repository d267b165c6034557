//! Which connection an endpoint has now.
//!
//! The agent's upcalls name connections, and may come before the call that asked for the connection
//! has returned, or after another call has ended it. The face's upcall asks here first, under
//! the endpoint's lock, whether the connection is the present one.

use kernel_agent::ConnectionId;

/// The present connection of an endpoint, established or being established, and the last one that
/// is over, whose events are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracked {
    present: Option<ConnectionId>,
    past: Option<ConnectionId>,
}

impl Tracked {
    /// Whether this is the present connection. While the endpoint is `pending` and has none yet, a
    /// connection that is not past becomes the present one: its event was faster than the call that
    /// asked for it.
    pub fn concerns(&mut self, connection: ConnectionId, pending: bool) -> bool {
        if self.is_past(connection) {
            return false;
        }
        if self.present.is_none() && pending {
            self.present = Some(connection);
        }
        self.is(connection)
    }

    /// Whether this is the present connection.
    pub fn is(&self, connection: ConnectionId) -> bool {
        self.present == Some(connection)
    }

    fn is_past(&self, connection: ConnectionId) -> bool {
        self.past.is_some_and(|past| connection <= past)
    }

    /// The endpoint accepts this connection.
    pub fn begin(&mut self, connection: ConnectionId) {
        self.present = Some(connection);
    }

    /// The call that asked for a connection got this one, which may be over by now.
    pub fn asked(&mut self, connection: ConnectionId) {
        if !self.is_past(connection) {
            self.begin(connection);
        }
    }

    /// The connection was not made: it counts neither as present nor as past.
    pub fn undo(&mut self) {
        self.present = None;
    }

    /// Ends the connection; from now on events about it do not concern the endpoint.
    pub fn part(&mut self) -> Option<ConnectionId> {
        let connection = self.present.take();
        self.past = self.past.max(connection);
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_connection_that_is_over_concern_nobody() {
        let (first, second) = (ConnectionId(3), ConnectionId(4));
        let mut tracked = Tracked::default();
        assert!(!tracked.concerns(first, false), "nothing is pending");
        assert!(tracked.concerns(first, true) && tracked.is(first));
        assert!(!tracked.concerns(second, true), "there is another one");
        assert_eq!((tracked.part(), tracked.part()), (Some(first), None));
        assert!(!tracked.concerns(first, true));
        tracked.asked(first);
        assert!(!tracked.is(first), "the call that asked returned late");
        tracked.asked(second);
        assert!(tracked.concerns(second, false));
        tracked.undo();
        assert!(tracked.concerns(second, true), "it is not past");
    }
}
