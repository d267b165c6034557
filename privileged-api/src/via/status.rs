//! What the status of a descriptor and an asynchronous error of a virtual interface mean in IT-API
//! (it_dto_status_t and it_affiliated_event_t, tables for VIA).

use kernel_agent::ViError;
use kernel_agent::descriptor::Status;

use crate::event::{DtoStatus, EventType};

/// The status of a completion.
///
/// A descriptor can have several error bits. A message of which a part is missing counts as such
/// only if nothing else is wrong: the bit stands beside another one if a part had left, and a
/// message that is too long for its Receive is [`DtoStatus::LocalLength`].
///
/// The bit of a missing or bad Receive of the peer is not in the table. It is
/// [`DtoStatus::Transport`]: the statuses of InfiniBand for it are none of VIA's.
pub(crate) fn of(status: Status) -> DtoStatus {
    let table = [
        (Status::FORMAT_ERROR, DtoStatus::LocalEp),
        (Status::PROTECTION_ERROR, DtoStatus::LocalProtection),
        (Status::LENGTH_ERROR, DtoStatus::LocalLength),
        (Status::RDMA_PROT_ERROR, DtoStatus::RemoteAccess),
        (Status::REMOTE_DESC_ERROR, DtoStatus::Transport),
        (Status::TRANSPORT_ERROR, DtoStatus::Transport),
        (Status::PARTIAL_ERROR, DtoStatus::PartialPacket),
        (Status::DESC_FLUSHED_ERROR, DtoStatus::Flushed),
    ];
    let found = table.iter().find(|(bit, _)| status.contains(*bit));
    found.map_or(DtoStatus::Success, |(_, means)| *means)
}

/// The event of an asynchronous error, if the error has one. That the connection is lost is an
/// event of the connection.
///
/// The table has no event for errors of posting. They cannot happen, as the IA formats all
/// descriptors; if they do, the endpoint has failed.
pub(crate) fn event(error: ViError) -> Option<EventType> {
    Some(match error {
        ViError::ConnectionLost => return None,
        ViError::CompletionProtection | ViError::PostDescriptor | ViError::Overrun => {
            EventType::ASYNC_AFF_EP_FAILURE
        }
        ViError::WriteAbort => EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE,
        ViError::ReceiveQueueEmpty => EventType::ASYNC_AFF_EP_REQ_DROPPED,
        ViError::WriteProtection => EventType::ASYNC_AFF_EP_RDMAW_ACCESS_VIOLATION,
        ViError::WriteData => EventType::ASYNC_AFF_EP_RDMAW_CORRUPT_DATA,
        ViError::ReadProtection => EventType::ASYNC_AFF_EP_RDMAR_ACCESS_VIOLATION,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_has_the_status_of_the_table_and_the_graver_one_counts() {
        assert_eq!(of(Status::DONE | Status::OP_RDMA_READ | Status::IMMEDIATE), DtoStatus::Success);
        for (bits, status) in [
            (Status::LENGTH_ERROR, DtoStatus::LocalLength),
            (Status::LENGTH_ERROR | Status::PARTIAL_ERROR, DtoStatus::LocalLength),
            (Status::FORMAT_ERROR, DtoStatus::LocalEp),
            (Status::PROTECTION_ERROR | Status::PARTIAL_ERROR, DtoStatus::LocalProtection),
            (Status::DESC_FLUSHED_ERROR, DtoStatus::Flushed),
            (Status::RDMA_PROT_ERROR, DtoStatus::RemoteAccess),
            (Status::TRANSPORT_ERROR, DtoStatus::Transport),
            (Status::REMOTE_DESC_ERROR, DtoStatus::Transport),
            (Status::PARTIAL_ERROR, DtoStatus::PartialPacket),
        ] {
            assert_eq!(of(Status::DONE | bits), status, "{bits:?}");
        }
    }

    #[test]
    fn no_other_status_comes_of_a_descriptor() {
        let never = [
            DtoStatus::BadResponse,
            DtoStatus::RemoteResponder,
            DtoStatus::ReceiverNotReady,
            DtoStatus::LocalMmOperation,
        ];
        for bits in 0..=Status::ERROR_MASK.bits() {
            assert!(!never.contains(&of(Status::from_bits_retain(bits))), "{bits:#x}");
        }
    }
}
