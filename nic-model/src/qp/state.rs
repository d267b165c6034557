//! The states of a queue pair and what each transition needs (IBTA 10.3.1, table 91 of release
//! 1.2.1).

use nic_abi::admin::{QpMask, QpState};

/// A legal transition: the attributes that it requires and those that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub required: QpMask,
    pub optional: QpMask,
}

/// Attributes that may change in RTR, RTS and SQD.
const ANY_TIME: QpMask = QpMask::ACCESS
    .union(QpMask::QKEY)
    .union(QpMask::MIN_RNR_TIMER)
    .union(QpMask::MAX_RD_ATOMIC)
    .union(QpMask::MAX_DEST_RD_ATOMIC)
    .union(QpMask::WATERMARKS)
    .union(QpMask::MAX_MESSAGE);

/// Attributes that may be set before there is a connection.
const EARLY: QpMask = QpMask::ACCESS.union(QpMask::QKEY).union(QpMask::WATERMARKS).union(QpMask::MAX_MESSAGE);

/// What a receiver needs for a connection.
const CONNECT_RECEIVER: QpMask = QpMask::PATH
    .union(QpMask::REMOTE_QPN)
    .union(QpMask::MTU)
    .union(QpMask::RECEIVE_PSN)
    .union(QpMask::MAX_DEST_RD_ATOMIC)
    .union(QpMask::MIN_RNR_TIMER);

/// What a sender needs in addition.
const CONNECT_SENDER: QpMask = QpMask::SEND_PSN
    .union(QpMask::TIMEOUT)
    .union(QpMask::RETRY_COUNT)
    .union(QpMask::RNR_RETRY)
    .union(QpMask::MAX_RD_ATOMIC);

/// Attributes that may change while nothing is sent.
const REPATH: QpMask =
    ANY_TIME.union(QpMask::PATH).union(QpMask::TIMEOUT).union(QpMask::RETRY_COUNT).union(QpMask::RNR_RETRY);

/// The transition from one state to another; `None` if there is none.
pub(crate) fn transition(connected: bool, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
    let none = QpMask::empty();
    // A datagram queue pair has no peer.
    let on_rc = |mask: QpMask| if connected { mask } else { none };
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, EARLY),
        (Error, Error) => (none, EARLY),
        (_, Error) => (none, none),
        (Reset | Init, Init) => (none, EARLY),
        (Init, Rtr) => (on_rc(CONNECT_RECEIVER), EARLY | on_rc(CONNECT_SENDER)),
        (Rtr, Rtr) => (none, ANY_TIME),
        (Rtr, Rts) => (on_rc(CONNECT_SENDER), ANY_TIME),
        (Rts, Rts | Sqd) => (none, ANY_TIME),
        (Sqd, Sqd | Rts) => (none, if connected { REPATH } else { ANY_TIME }),
        _ => return None,
    };
    Some(Transition { required, optional: optional | required | QpMask::STATE })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 6] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Error];

    #[test]
    fn only_the_transitions_of_the_table_exist() {
        for connected in [true, false] {
            let legal: usize = ALL
                .iter()
                .flat_map(|from| ALL.iter().map(move |to| transition(connected, *from, *to)))
                .flatten()
                .count();
            // 6 to RESET, 6 to ERROR, 2 to INIT, 2 to RTR, 3 to RTS, 2 to SQD.
            assert_eq!(legal, 21);
            assert_eq!(transition(connected, QpState::Reset, QpState::Rtr), None);
            assert_eq!(transition(connected, QpState::Error, QpState::Init), None);
            assert_eq!(transition(connected, QpState::Rtr, QpState::Sqd), None);
        }
    }

    #[test]
    fn connected_ones_need_a_peer_and_datagrams_none() {
        let rtr = transition(true, QpState::Init, QpState::Rtr).unwrap();
        assert!(rtr.required.contains(QpMask::REMOTE_QPN | QpMask::PATH));
        let rts = transition(true, QpState::Rtr, QpState::Rts).unwrap();
        assert!(rts.required.contains(QpMask::SEND_PSN | QpMask::RETRY_COUNT));
        assert!(transition(false, QpState::Init, QpState::Rtr).unwrap().required.is_empty());
        assert!(!rts.optional.contains(QpMask::REMOTE_QPN));
    }
}
