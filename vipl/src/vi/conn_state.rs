//! The connection of a virtual interface, and the attempt to make one: what the calls and the
//! upcalls share.
//!
//! An attempt has a number. A call that makes a connection waits for the outcome of its own
//! attempt: a disconnect may end that attempt, and another call may begin the next one, before the
//! first call looks again.

use kernel_agent::ConnectionId;

use crate::attributes::{ViAttributes, ViState};
use crate::error::{Error, Result};

/// How an attempt to connect came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Established,
    /// The remote end rejected it.
    Rejected,
    /// The remote end does not answer, or gave up.
    Unreachable,
    /// The connection data of the remote end does not fit, or the connection broke at once.
    Broken,
}

/// The connection of a virtual interface.
pub(crate) struct ConnState {
    pub(super) state: ViState,
    /// The connection that is made, or is being made as far as it is known.
    pub(super) connection: Option<ConnectionId>,
    /// The latest connection that is over. Events of it, and of those before, may still come.
    over: Option<ConnectionId>,
    /// The number of the attempt to connect or of its connection. It changes when that ends, and
    /// when the next one begins.
    attempt: u64,
    /// Written by an upcall, taken by the call that waits for it.
    pub(super) outcome: Option<Attempt>,
    /// The attributes of the remote end, once it has accepted.
    pub(super) remote: Option<ViAttributes>,
    /// An error of the virtual interface while it was idle (5.1).
    pub(super) kept: bool,
    /// The virtual interface is destroyed.
    pub(super) ended: bool,
}

impl ConnState {
    pub(crate) fn new() -> ConnState {
        ConnState {
            state: ViState::Idle,
            connection: None,
            over: None,
            attempt: 0,
            outcome: None,
            remote: None,
            kept: false,
            ended: false,
        }
    }

    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Begins an attempt to connect. Fails, without a change, unless the virtual interface is idle;
    /// an error that was kept is returned now. Returns the attempt's number.
    pub(super) fn begin(&mut self) -> Result<u64> {
        if self.ended || self.state != ViState::Idle {
            return Err(Error::InvalidParameter);
        }
        if core::mem::take(&mut self.kept) {
            return Err(Error::ErrorResource);
        }
        (self.state, self.outcome, self.remote) = (ViState::ConnectPending, None, None);
        self.attempt += 1;
        Ok(self.attempt)
    }

    /// Fails if an attempt is over: `ErrorResource` after a disconnect, whatever has begun since.
    pub(super) fn check(&self, attempt: u64) -> Result<()> {
        match self.attempt == attempt {
            _ if self.ended => Err(Error::InvalidParameter),
            true => Ok(()),
            false => Err(Error::ErrorResource),
        }
    }

    /// Takes the outcome of an attempt, if it is there.
    pub(super) fn outcome_of(&mut self, attempt: u64) -> Result<Option<Attempt>> {
        self.check(attempt)?;
        Ok(self.outcome.take())
    }

    /// The attributes of the remote end of a connection that was made.
    pub(super) fn remote_of(&self, attempt: u64) -> Result<ViAttributes> {
        self.check(attempt)?;
        self.remote.ok_or(Error::ErrorResource)
    }

    /// Whether an event is one of the attempt or connection of now. The agent's ids grow, so a
    /// connection that is not known yet is later than those that are over.
    pub(super) fn is_of(&mut self, id: ConnectionId) -> bool {
        match self.connection {
            Some(connection) => connection == id,
            None if self.state == ViState::ConnectPending && self.over < Some(id) => {
                self.connection = Some(id);
                true
            }
            None => false,
        }
    }

    /// Forgets the attempt or the connection; its events are ignored from now on.
    pub(super) fn forget(&mut self) -> Option<ConnectionId> {
        let connection = self.connection.take();
        self.over = self.over.max(connection);
        self.outcome = None;
        self.attempt += 1;
        connection
    }

    /// Forgets the attempt or the connection: the virtual interface is idle.
    pub(super) fn finish(&mut self) -> Option<ConnectionId> {
        self.state = ViState::Idle;
        self.forget()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_former_connections_are_not_of_the_next_one() {
        let id = ConnectionId;
        let mut conn = ConnState::new();
        assert!(!conn.is_of(id(5)), "idle");
        conn.begin().unwrap();
        assert_eq!(conn.begin(), Err(Error::InvalidParameter), "pending");
        assert!(conn.is_of(id(5)) && conn.is_of(id(5)) && !conn.is_of(id(6)));
        assert_eq!((conn.finish(), conn.state), (Some(id(5)), ViState::Idle));
        conn.begin().unwrap();
        assert!(!conn.is_of(id(5)) && !conn.is_of(id(4)), "over");
        assert!(conn.is_of(id(6)));
    }

    #[test]
    fn an_error_of_an_idle_interface_is_returned_by_the_next_attempt_once() {
        let mut conn = ConnState::new();
        conn.kept = true;
        assert_eq!((conn.begin(), conn.state), (Err(Error::ErrorResource), ViState::Idle));
        assert!(conn.begin().is_ok());
        conn.finish();
        conn.end();
        assert_eq!(conn.begin(), Err(Error::InvalidParameter));
    }

    #[test]
    fn an_attempt_that_a_disconnect_ended_is_over_whatever_begins_next() {
        let mut conn = ConnState::new();
        let first = conn.begin().unwrap();
        assert_eq!(conn.outcome_of(first), Ok(None));
        conn.forget();
        assert_eq!(conn.outcome_of(first), Err(Error::ErrorResource), "the disconnect is under way");
        conn.finish();
        assert_eq!(conn.check(first), Err(Error::ErrorResource));
        let second = conn.begin().unwrap();
        conn.outcome = Some(Attempt::Established);
        assert_eq!(conn.outcome_of(first), Err(Error::ErrorResource), "the outcome is the second's");
        assert_eq!(conn.remote_of(first), Err(Error::ErrorResource));
        assert_eq!(conn.outcome_of(second), Ok(Some(Attempt::Established)));
        conn.end();
        assert_eq!(conn.check(second), Err(Error::InvalidParameter));
    }
}
