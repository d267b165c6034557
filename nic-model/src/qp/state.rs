//! The states of a queue pair and what each transition needs (IBTA 10.3.1, table 91 of release
//! 1.2.1).

use nic_abi::admin::{QpMask, QpState, QpType};

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

/// Attributes that may be set before the queue pair has a connection.
const EARLY: QpMask = QpMask::ACCESS.union(QpMask::QKEY).union(QpMask::WATERMARKS).union(QpMask::MAX_MESSAGE);

/// The attributes that a receiver needs for a connection.
const RECEIVER: QpMask = QpMask::PATH.union(QpMask::REMOTE_QPN).union(QpMask::MTU).union(QpMask::RECEIVE_PSN);

/// The attributes that a receiver needs for a reliable connection. An unreliable one does not use
/// the rest.
const RELIABLE_RECEIVER: QpMask = RECEIVER.union(QpMask::MAX_DEST_RD_ATOMIC).union(QpMask::MIN_RNR_TIMER);

/// The attributes that a sender needs in addition.
const SENDER: QpMask = QpMask::SEND_PSN;

/// The attributes that a sender needs for a reliable connection.
const RELIABLE_SENDER: QpMask = SENDER
    .union(QpMask::TIMEOUT)
    .union(QpMask::RETRY_COUNT)
    .union(QpMask::RNR_RETRY)
    .union(QpMask::MAX_RD_ATOMIC);

/// The attributes that an iWARP queue pair needs for a connection. The stream knows its peer.
const STREAM: QpMask = QpMask::STREAM.union(QpMask::MAX_RD_ATOMIC).union(QpMask::MAX_DEST_RD_ATOMIC);

/// Attributes that may change while the queue pair sends nothing.
const REPATH: QpMask =
    ANY_TIME.union(QpMask::PATH).union(QpMask::TIMEOUT).union(QpMask::RETRY_COUNT).union(QpMask::RNR_RETRY);

/// The transition from one state to another; `None` if there is none.
pub(crate) fn transition(kind: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
    let none = QpMask::empty();
    let reliable = matches!(kind, QpType::Rc | QpType::Uc);
    let (receiver, sender) = match kind {
        QpType::Rc => (RELIABLE_RECEIVER, RELIABLE_SENDER),
        QpType::Uc => (RECEIVER, SENDER),
        QpType::Iwarp => (STREAM, none),
        // A datagram queue pair has no peer.
        QpType::Ud | QpType::Gsi => (none, none),
    };
    let (of_reliable, anytime, repath) = match kind {
        QpType::Rc | QpType::Uc => (RELIABLE_RECEIVER.union(RELIABLE_SENDER), ANY_TIME, REPATH),
        // Of what both ends have agreed on, the peer does not notice another ORD.
        QpType::Iwarp => (none, EARLY.union(QpMask::MAX_RD_ATOMIC), EARLY.union(QpMask::MAX_RD_ATOMIC)),
        QpType::Ud | QpType::Gsi => (none, ANY_TIME, ANY_TIME),
    };
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, EARLY),
        (Error, Error) => (none, EARLY),
        (_, Error) => (none, none),
        (Reset | Init, Init) => (none, EARLY),
        (Init, Rtr) => (receiver, EARLY.union(of_reliable)),
        (Rtr, Rtr) | (Rts, Rts | Sqd) => (none, anytime),
        (Rtr, Rts) => (sender, if reliable { anytime.union(RELIABLE_SENDER) } else { anytime }),
        (Sqd, Sqd | Rts) => (none, repath),
        _ => return None,
    };
    Some(Transition { required, optional: optional.union(required).union(QpMask::STATE) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 6] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Error];

    #[test]
    fn only_the_transitions_of_the_table_exist() {
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::Iwarp] {
            let legal: usize = ALL
                .iter()
                .flat_map(|from| ALL.iter().map(move |to| transition(kind, *from, *to)))
                .flatten()
                .count();
            // 6 to RESET, 6 to ERROR, 2 to INIT, 2 to RTR, 3 to RTS, 2 to SQD.
            assert_eq!(legal, 21);
            assert_eq!(transition(kind, QpState::Reset, QpState::Rtr), None);
            assert_eq!(transition(kind, QpState::Error, QpState::Init), None);
            assert_eq!(transition(kind, QpState::Rtr, QpState::Sqd), None);
        }
    }

    #[test]
    fn connected_ones_need_a_peer_and_datagrams_none() {
        let rtr = |kind| transition(kind, QpState::Init, QpState::Rtr).unwrap();
        let rts = |kind| transition(kind, QpState::Rtr, QpState::Rts).unwrap();
        for kind in [QpType::Rc, QpType::Uc] {
            assert!(rtr(kind).required.contains(QpMask::REMOTE_QPN | QpMask::PATH));
            assert!(rts(kind).required.contains(QpMask::SEND_PSN));
            assert!(rts(kind).optional.contains(QpMask::RETRY_COUNT));
            assert!(!rts(kind).optional.contains(QpMask::REMOTE_QPN));
        }
        assert!(rtr(QpType::Ud).required.is_empty());
        assert!(!rtr(QpType::Ud).optional.contains(QpMask::PATH));
    }

    #[test]
    fn an_iwarp_one_needs_a_stream_and_changes_only_its_ord_afterwards() {
        let at = |from, to| transition(QpType::Iwarp, from, to).unwrap();
        let rtr = at(QpState::Init, QpState::Rtr);
        assert_eq!(rtr.required, QpMask::STREAM | QpMask::MAX_RD_ATOMIC | QpMask::MAX_DEST_RD_ATOMIC);
        assert!(!rtr.optional.intersects(QpMask::REMOTE_QPN | QpMask::RECEIVE_PSN));
        for (from, to) in [(QpState::Rtr, QpState::Rts), (QpState::Rts, QpState::Rts)] {
            let later = at(from, to);
            assert!(later.required.is_empty());
            assert_eq!(later.optional & rtr.required, QpMask::MAX_RD_ATOMIC);
        }
    }

    #[test]
    fn only_reliable_ones_need_what_retries_and_reads_need() {
        let needs = |kind, mask| {
            let rtr = transition(kind, QpState::Init, QpState::Rtr).unwrap();
            let rts = transition(kind, QpState::Rtr, QpState::Rts).unwrap();
            (rtr.required | rts.required).contains(mask)
        };
        for mask in [
            QpMask::TIMEOUT,
            QpMask::RETRY_COUNT,
            QpMask::RNR_RETRY,
            QpMask::MIN_RNR_TIMER,
            QpMask::MAX_RD_ATOMIC,
            QpMask::MAX_DEST_RD_ATOMIC,
        ] {
            assert!(needs(QpType::Rc, mask) && !needs(QpType::Uc, mask), "{mask:?}");
        }
    }
}
