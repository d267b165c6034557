//! How a descriptor's status describes the end of its request (10.2, page 71).

use nic_abi::cqe;
use nic_abi::vi::{Reliability, Status};
use nic_abi::wqe::Opcode;

/// Instead of the offset of a field to blame: a part of the message has left.
pub(in crate::qp) const PARTIAL: u32 = u32::MAX - 1;

/// The error bits of a descriptor of the send queue; none for success.
///
/// On Reliable Delivery a Send or RDMA Write is complete when it has left, so its descriptor does
/// not show later failures.
pub(super) fn of_request(level: Reliability, opcode: Opcode, status: cqe::Status) -> Status {
    let read = matches!(opcode, Opcode::Read | Opcode::ReadInvalidate);
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
        _ if read => remote,
        _ => Status::empty(),
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
                    let bits = of_request(level, opcode, status);
                    let shows = level == Reliability::Reception || read;
                    assert_eq!(bits.is_empty(), !shows, "{level:?} {opcode:?} {status:?}");
                    if bits.contains(Status::RDMA_PROT_ERROR) {
                        assert!(read || write, "{opcode:?} {status:?}");
                    }
                    if bits.contains(Status::REMOTE_DESC_ERROR) {
                        assert!(opcode != Opcode::Write && !read && level == Reliability::Reception);
                    }
                }
                assert_eq!(of_request(level, opcode, cqe::Status::Flushed), Status::DESC_FLUSHED_ERROR);
                assert_eq!(of_request(level, opcode, cqe::Status::LocalLength), Status::LENGTH_ERROR);
            }
        }
    }

    #[test]
    fn what_the_peer_refuses_has_the_bit_of_its_kind() {
        let of = |opcode, status| of_request(Reliability::Reception, opcode, status);
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
}
