//! The states of an RC endpoint and the transitions between them (page it_ep_state_t).
//!
//! The state changes before the event that reports the change is queued. A call that fails at once
//! does not change the state.

use core::fmt;

use crate::attributes::{EpStateRc, EpStateUd};
use crate::status::Error;

/// The cause of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// it_ep_connect was called.
    Connect,
    /// it_ep_accept was called on the passive side.
    Accept,
    /// it_socket_convert was called by the Conversion Initiator, which waits for the peer's
    /// Request.
    Convert,
    /// That Request came.
    Transition,
    /// The accept of the passive side arrived, in a three-way handshake.
    AcceptArrival,
    /// The connection is established.
    Established,
    /// it_ep_disconnect was called.
    Disconnect,
    /// A local or remote error, a rejection, or a remote disconnect.
    End,
    /// it_ep_reset was called.
    Reset,
}

/// A transition that the page does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IllegalTransition {
    pub(crate) from: EpStateRc,
    pub(crate) trigger: Trigger,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IllegalTransition { from, trigger } = self;
        write!(
            f,
            "{trigger:?} would move the endpoint to {:?}, which is not possible from {from:?}",
            target(*trigger)
        )
    }
}

impl From<IllegalTransition> for Error {
    fn from(illegal: IllegalTransition) -> Error {
        log::debug!("{illegal}");
        Error::InvalidEpState
    }
}

/// The state to which a trigger leads.
const fn target(trigger: Trigger) -> EpStateRc {
    match trigger {
        Trigger::Connect => EpStateRc::Active1ConnectionPending,
        Trigger::Accept | Trigger::Transition => EpStateRc::PassiveConnectionPending,
        Trigger::Convert => EpStateRc::PassiveWaitRdmaTransReq,
        Trigger::AcceptArrival => EpStateRc::Active2ConnectionPending,
        Trigger::Established => EpStateRc::Connected,
        Trigger::Disconnect | Trigger::End => EpStateRc::Nonoperational,
        Trigger::Reset => EpStateRc::Unconnected,
    }
}

/// The state after a trigger.
pub(crate) const fn next(from: EpStateRc, trigger: Trigger) -> Result<EpStateRc, IllegalTransition> {
    use EpStateRc as S;
    let legal = matches!(
        (from, trigger),
        (S::Unconnected, Trigger::Connect | Trigger::Accept | Trigger::Convert)
            | (S::PassiveWaitRdmaTransReq, Trigger::Transition)
            | (S::Active1ConnectionPending, Trigger::AcceptArrival)
            | (
                S::Active1ConnectionPending | S::Active2ConnectionPending | S::PassiveConnectionPending,
                Trigger::Established,
            )
            | (
                S::Active1ConnectionPending
                    | S::Active2ConnectionPending
                    | S::PassiveConnectionPending
                    | S::PassiveWaitRdmaTransReq
                    | S::Connected,
                Trigger::Disconnect | Trigger::End,
            )
            | (S::Nonoperational, Trigger::Reset)
    );
    if legal { Ok(target(trigger)) } else { Err(IllegalTransition { from, trigger }) }
}

/// Whether a connection is being established.
pub(crate) const fn is_pending(state: EpStateRc) -> bool {
    matches!(
        state,
        EpStateRc::Active1ConnectionPending
            | EpStateRc::Active2ConnectionPending
            | EpStateRc::PassiveConnectionPending
            | EpStateRc::PassiveWaitRdmaTransReq
    )
}

/// The state with this value.
pub(crate) const fn from_raw(raw: u8) -> EpStateRc {
    match raw {
        0 => EpStateRc::Unconnected,
        1 => EpStateRc::Active1ConnectionPending,
        2 => EpStateRc::Active2ConnectionPending,
        3 => EpStateRc::PassiveConnectionPending,
        4 => EpStateRc::Connected,
        6 => EpStateRc::PassiveWaitRdmaTransReq,
        _ => EpStateRc::Nonoperational,
    }
}

/// Whether a state takes requests for the send queue: only CONNECTED and NONOPERATIONAL do. Their
/// values differ in the lowest bit alone, so the test is one comparison.
#[inline(always)]
pub(crate) const fn takes_requests(raw: u8) -> bool {
    matches!(raw, CONNECTED | NONOPERATIONAL)
}

const CONNECTED: u8 = EpStateRc::Connected as u8;
const NONOPERATIONAL: u8 = EpStateRc::Nonoperational as u8;

/// A datagram endpoint that works. The values differ from those of all RC states.
pub(crate) const UD_OPERATIONAL: u8 = 8;
/// A datagram endpoint that can only be freed.
pub(crate) const UD_NONOPERATIONAL: u8 = 9;

/// Whether the endpoint with this state is a datagram endpoint.
#[inline(always)]
pub(crate) const fn is_ud(raw: u8) -> bool {
    raw >= UD_OPERATIONAL
}

/// The state with this value, of a datagram endpoint.
pub(crate) const fn ud_from_raw(raw: u8) -> Option<EpStateUd> {
    match raw {
        UD_OPERATIONAL => Some(EpStateUd::Operational),
        UD_NONOPERATIONAL => Some(EpStateUd::Nonoperational),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [EpStateRc; 7] = [
        EpStateRc::Unconnected,
        EpStateRc::Active1ConnectionPending,
        EpStateRc::Active2ConnectionPending,
        EpStateRc::PassiveConnectionPending,
        EpStateRc::Connected,
        EpStateRc::Nonoperational,
        EpStateRc::PassiveWaitRdmaTransReq,
    ];
    const TRIGGERS: [Trigger; 7] = [
        Trigger::Connect,
        Trigger::Accept,
        Trigger::AcceptArrival,
        Trigger::Established,
        Trigger::Disconnect,
        Trigger::End,
        Trigger::Reset,
    ];

    #[test]
    fn only_the_transitions_of_the_page_exist() {
        let pairs = STATES.iter().flat_map(|s| TRIGGERS.iter().map(move |t| next(*s, *t)));
        // 2 from UNCONNECTED, 4 + 3 + 3 from the pending states, 2 + 2 + 1 from the others.
        assert_eq!(pairs.filter(Result::is_ok).count(), 17);
    }

    #[test]
    fn an_error_names_both_states() {
        extern crate std;
        use std::string::ToString;
        let text = next(EpStateRc::Connected, Trigger::Connect).unwrap_err().to_string();
        assert!(text.contains("Active1ConnectionPending") && text.contains("Connected"), "{text}");
    }

    #[test]
    fn every_state_is_restored_from_its_number() {
        for state in STATES {
            assert_eq!(from_raw(state as u8), state);
            assert!(!is_ud(state as u8) && ud_from_raw(state as u8).is_none());
            let takes = matches!(state, EpStateRc::Connected | EpStateRc::Nonoperational);
            assert_eq!(takes_requests(state as u8), takes);
        }
        for raw in [UD_OPERATIONAL, UD_NONOPERATIONAL] {
            assert!(is_ud(raw) && ud_from_raw(raw).is_some() && !takes_requests(raw));
        }
    }
}
