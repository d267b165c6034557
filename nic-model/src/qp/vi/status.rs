//! How a descriptor's status describes the end of its request (10.2, page 71).

use nic_abi::cqe;
use nic_abi::vi::{Reliability, Status};
use nic_abi::wqe::Opcode;

use crate::qp::Work;
use crate::qp::message::PIECE;

/// How much of a message has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::qp) enum Left {
    #[default]
    Nothing,
    Part,
    All,
}

impl Left {
    /// How much of a work request has left that ends with this status by the short cut.
    pub fn by_short_cut(work: &Work, status: cqe::Status) -> Left {
        // The peer has got, or has not answered, the part that begins at `done`.
        let offered = is_remote(status);
        if offered && offers_end(work) {
            Left::All
        } else if offered || work.done > 0 {
            Left::Part
        } else {
            Left::Nothing
        }
    }
}

/// Whether the next part of a work request by the short cut is its last one.
pub(super) const fn offers_end(work: &Work) -> bool {
    work.total.saturating_sub(work.done) <= PIECE
}

/// Whether the peer, or the way to it, is at fault.
const fn is_remote(status: cqe::Status) -> bool {
    matches!(
        status,
        cqe::Status::RemoteInvalidRequest
            | cqe::Status::RemoteAccess
            | cqe::Status::RemoteOperation
            | cqe::Status::BadResponse
            | cqe::Status::RetryExceeded
            | cqe::Status::RnrRetryExceeded
    )
}

/// The error bits of a descriptor of the send queue; none for success.
///
/// On Reliable Delivery a Send or RDMA Write is complete when it has left, so its descriptor does
/// not show later failures. If it has not left, the connection ended before: it is flushed.
pub(super) fn of_request(level: Reliability, opcode: Opcode, status: cqe::Status, left: Left) -> Status {
    let bits = error_of_request(level, opcode, status, left);
    // What an RDMA Read sends has no parts.
    match left == Left::Part && !bits.is_empty() && !is_read(opcode) {
        true => bits | Status::PARTIAL_ERROR,
        false => bits,
    }
}

const fn is_read(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Read | Opcode::ReadInvalidate)
}

fn error_of_request(level: Reliability, opcode: Opcode, status: cqe::Status, left: Left) -> Status {
    let send = matches!(opcode, Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate);
    // Only these operations take a descriptor of the peer.
    let takes_receive = send || opcode == Opcode::WriteImmediate;
    let remote = match status {
        cqe::Status::Success => return Status::empty(),
        cqe::Status::LocalLength => return Status::LENGTH_ERROR,
        cqe::Status::LocalQpOperation => return Status::FORMAT_ERROR,
        cqe::Status::Flushed => return Status::DESC_FLUSHED_ERROR,
        cqe::Status::LocalProtection
        | cqe::Status::WindowBind
        | cqe::Status::LocalAccess
        | cqe::Status::MemoryManagement => return Status::PROTECTION_ERROR,
        cqe::Status::RemoteInvalidRequest | cqe::Status::RnrRetryExceeded if takes_receive => {
            Status::REMOTE_DESC_ERROR
        }
        // A Send names no memory of the peer.
        cqe::Status::RemoteAccess if send => Status::REMOTE_DESC_ERROR,
        cqe::Status::RemoteInvalidRequest | cqe::Status::RemoteAccess => Status::RDMA_PROT_ERROR,
        cqe::Status::BadResponse
        | cqe::Status::RemoteOperation
        | cqe::Status::RetryExceeded
        | cqe::Status::RnrRetryExceeded => Status::TRANSPORT_ERROR,
    };
    match level {
        Reliability::Reception => remote,
        _ if is_read(opcode) => remote,
        _ if left == Left::All => Status::empty(),
        _ => Status::DESC_FLUSHED_ERROR,
    }
}

/// The error bits of a descriptor of the receive queue.
pub(super) const fn of_receive(status: cqe::Status) -> Status {
    match status {
        cqe::Status::Success => Status::empty(),
        cqe::Status::LocalLength => Status::LENGTH_ERROR,
        cqe::Status::LocalQpOperation => Status::FORMAT_ERROR,
        cqe::Status::Flushed => Status::DESC_FLUSHED_ERROR,
        cqe::Status::BadResponse => Status::TRANSPORT_ERROR,
        _ => Status::PROTECTION_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: [cqe::Status; 6] = [
        cqe::Status::RemoteInvalidRequest,
        cqe::Status::RemoteAccess,
        cqe::Status::RemoteOperation,
        cqe::Status::RetryExceeded,
        cqe::Status::RnrRetryExceeded,
        cqe::Status::BadResponse,
    ];
    const OPCODES: [Opcode; 5] =
        [Opcode::Send, Opcode::SendImmediate, Opcode::Write, Opcode::WriteImmediate, Opcode::Read];

    #[test]
    fn each_bit_appears_where_the_page_allows_it() {
        for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
            for opcode in OPCODES {
                let read = opcode == Opcode::Read;
                let write = matches!(opcode, Opcode::Write | Opcode::WriteImmediate);
                for status in REMOTE {
                    let bits = of_request(level, opcode, status, Left::All);
                    let shows = level == Reliability::Reception || read;
                    assert_eq!(bits.is_empty(), !shows, "{level:?} {opcode:?} {status:?}");
                    if bits.contains(Status::RDMA_PROT_ERROR) {
                        assert!(read || write, "{opcode:?} {status:?}");
                    }
                    if bits.contains(Status::REMOTE_DESC_ERROR) {
                        assert!(opcode != Opcode::Write && !read && level == Reliability::Reception);
                    }
                }
                let of = |status| of_request(level, opcode, status, Left::Nothing);
                assert_eq!(of(cqe::Status::Flushed), Status::DESC_FLUSHED_ERROR);
                assert_eq!(of(cqe::Status::LocalLength), Status::LENGTH_ERROR);
            }
        }
    }

    #[test]
    fn what_the_peer_refuses_has_the_bit_of_its_kind() {
        let of = |opcode, status| of_request(Reliability::Reception, opcode, status, Left::All);
        for opcode in [Opcode::Send, Opcode::WriteImmediate] {
            assert_eq!(of(opcode, cqe::Status::RemoteInvalidRequest), Status::REMOTE_DESC_ERROR);
            assert_eq!(of(opcode, cqe::Status::RnrRetryExceeded), Status::REMOTE_DESC_ERROR);
        }
        for opcode in [Opcode::Write, Opcode::WriteImmediate, Opcode::Read] {
            assert_eq!(of(opcode, cqe::Status::RemoteAccess), Status::RDMA_PROT_ERROR);
            assert_eq!(of(opcode, cqe::Status::RetryExceeded), Status::TRANSPORT_ERROR);
            assert_eq!(of(opcode, cqe::Status::RemoteOperation), Status::TRANSPORT_ERROR);
        }
    }

    #[test]
    fn what_has_not_left_is_no_success_and_a_part_is_shown() {
        for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
            for opcode in OPCODES {
                for status in REMOTE.into_iter().chain([cqe::Status::Flushed, cqe::Status::LocalProtection]) {
                    let of = |left| of_request(level, opcode, status, left);
                    assert!(!of(Left::Nothing).is_empty(), "{level:?} {opcode:?} {status:?}");
                    let part = if opcode == Opcode::Read { Status::empty() } else { Status::PARTIAL_ERROR };
                    assert_eq!(of(Left::Part), of(Left::Nothing) | part, "{level:?} {opcode:?} {status:?}");
                    assert!(!of(Left::All).contains(Status::PARTIAL_ERROR));
                }
                assert_eq!(of_request(level, opcode, cqe::Status::Success, Left::All), Status::empty());
            }
        }
    }

    #[test]
    fn the_short_cut_offers_a_part_at_a_time() {
        let of = |done, total, status| Left::by_short_cut(&Work { done, total, ..Work::new() }, status);
        for (done, total, left, own) in [
            (0, 0, Left::All, Left::Nothing),
            (0, PIECE, Left::All, Left::Nothing),
            (0, PIECE + 1, Left::Part, Left::Nothing),
            (PIECE, 2 * PIECE, Left::All, Left::Part),
            (PIECE, 2 * PIECE + 1, Left::Part, Left::Part),
        ] {
            assert_eq!(of(done, total, cqe::Status::RetryExceeded), left);
            assert_eq!(of(done, total, cqe::Status::RemoteInvalidRequest), left);
            assert_eq!(of(done, total, cqe::Status::LocalProtection), own);
        }
    }
}
