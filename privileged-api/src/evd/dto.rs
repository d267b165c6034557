//! The events of completions: what a completion of the NIC's queue means in IT-API (pages
//! it_dto_events, it_dto_status_t). The queue is [`rdma::events::Completions`].

use kernel_agent::descriptor::Status;
use kernel_agent::{Completion, CompletionFlags, CompletionStatus, Done};

use super::posted::tag;
use crate::event::{DtoCompletion, DtoStatus, EventType};
use crate::flags::DtoUdFlags;
use crate::handle::{EpHandle, EvdHandle, Handle};
use crate::via::status as via_status;
use rdma::Owners;

/// The event for a successful completion that needs no further fields.
#[inline(always)]
pub(crate) fn plain(done: Done, evd: EvdHandle) -> DtoCompletion {
    DtoCompletion {
        event_number: EventType(done.data & tag::EVENT),
        dto_status: DtoStatus::Success,
        evd,
        ep: EpHandle::from_raw(done.context),
        cookie: done.cookie,
        transferred_length: done.length,
        flags: DtoUdFlags::empty(),
        ud_ep_id: 0,
        unlinked_mr_handle: Handle::NULL,
    }
}

/// The event for a success that unlinked nothing.
#[inline(always)]
pub(crate) fn success(completion: &Completion, evd: EvdHandle) -> DtoCompletion {
    let event_number = EventType(completion.data & tag::EVENT);
    let datagram = event_number == EventType::DTO_UD_RECV_CMPL;
    let header = datagram && completion.flags.contains(CompletionFlags::GRH);
    DtoCompletion {
        event_number,
        dto_status: DtoStatus::Success,
        evd,
        ep: EpHandle::from_raw(completion.context),
        cookie: completion.cookie,
        transferred_length: completion.length,
        flags: if header { DtoUdFlags::IB_GRH_PRESENT } else { DtoUdFlags::empty() },
        ud_ep_id: if datagram { completion.detail } else { 0 },
        unlinked_mr_handle: Handle::NULL,
    }
}

/// The event for a completion.
#[inline(never)]
pub(crate) fn event(completion: &Completion, evd: EvdHandle, owners: &Owners) -> DtoCompletion {
    let event_number = EventType(completion.data & tag::EVENT);
    let dto_status = match completion.status {
        CompletionStatus::Success => DtoStatus::Success,
        _ if completion.data & tag::VIA != 0 => via_status::of(Status::from_bits_retain(completion.detail)),
        failed => failure(failed, event_number),
    };
    let mut flags = DtoUdFlags::empty();
    let mut ud_ep_id = 0;
    if event_number == EventType::DTO_UD_RECV_CMPL {
        ud_ep_id = completion.detail;
        if completion.flags.contains(CompletionFlags::GRH) {
            flags = DtoUdFlags::IB_GRH_PRESENT;
        }
    }
    let mut unlinked_mr_handle = Handle::NULL;
    if completion.flags.contains(CompletionFlags::INVALIDATED) {
        unlinked_mr_handle = owners.get(completion.immediate).map_or(Handle::NULL, Handle::from_raw);
    }
    DtoCompletion {
        event_number,
        dto_status,
        evd,
        ep: EpHandle::from_raw(completion.context),
        cookie: completion.cookie,
        transferred_length: completion.length,
        flags,
        ud_ep_id,
        unlinked_mr_handle,
    }
}

/// The event's status for a failure that the NIC reports (it_dto_status_t, table for InfiniBand).
///
/// A request that the peer refuses as invalid violates a length limit or a rule of the endpoint,
/// not memory protection; but see the atomics. A failed link is always a memory management error,
/// regardless of the status that the NIC reports.
#[cold]
fn failure(status: CompletionStatus, event: EventType) -> DtoStatus {
    match status {
        CompletionStatus::Success => DtoStatus::Success,
        CompletionStatus::Flushed => DtoStatus::Flushed,
        _ if event == EventType::LMR_LINK_CMPL => DtoStatus::LocalMmOperation,
        CompletionStatus::LocalLength => DtoStatus::LocalLength,
        CompletionStatus::LocalQpOperation => DtoStatus::LocalEp,
        CompletionStatus::LocalProtection | CompletionStatus::LocalAccess => DtoStatus::LocalProtection,
        CompletionStatus::WindowBind => DtoStatus::RmrOperationFailed,
        CompletionStatus::BadResponse => DtoStatus::BadResponse,
        // The only remote region that a Send accesses is the one that it unlinks
        // (it_post_send_and_unlink).
        CompletionStatus::RemoteAccess if event == EventType::DTO_SEND_CMPL => DtoStatus::RemoteResponder,
        CompletionStatus::RemoteAccess => DtoStatus::RemoteAccess,
        // The peer's memory is not aligned, or its endpoint is not enabled for atomics: both are
        // access violations to the page of it_post_atomic.
        CompletionStatus::RemoteInvalidRequest
            if event == EventType::DTO_FETCH_ADD_CMPL || event == EventType::DTO_CMP_SWAP_CMPL =>
        {
            DtoStatus::RemoteAccess
        }
        CompletionStatus::RemoteInvalidRequest | CompletionStatus::RemoteOperation => {
            DtoStatus::RemoteResponder
        }
        CompletionStatus::RetryExceeded => DtoStatus::Transport,
        CompletionStatus::RnrRetryExceeded => DtoStatus::ReceiverNotReady,
        CompletionStatus::MemoryManagement => DtoStatus::LocalMmOperation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_refused_as_invalid_is_an_access_error_of_an_atomic_only() {
        for (way, status) in [
            (EventType::DTO_RDMA_READ_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_RDMA_WRITE_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_SEND_CMPL, DtoStatus::RemoteResponder),
            (EventType::DTO_FETCH_ADD_CMPL, DtoStatus::RemoteAccess),
            (EventType::DTO_CMP_SWAP_CMPL, DtoStatus::RemoteAccess),
        ] {
            assert_eq!(failure(CompletionStatus::RemoteInvalidRequest, way), status);
        }
        assert_eq!(
            failure(CompletionStatus::RemoteAccess, EventType::DTO_RDMA_READ_CMPL),
            DtoStatus::RemoteAccess
        );
        assert_eq!(
            failure(CompletionStatus::RemoteAccess, EventType::DTO_SEND_CMPL),
            DtoStatus::RemoteResponder
        );
    }

    #[test]
    fn each_failure_of_a_write_has_the_status_of_the_table_for_infiniband() {
        for (failed, status) in [
            (CompletionStatus::Success, DtoStatus::Success),
            (CompletionStatus::Flushed, DtoStatus::Flushed),
            (CompletionStatus::LocalLength, DtoStatus::LocalLength),
            (CompletionStatus::LocalQpOperation, DtoStatus::LocalEp),
            (CompletionStatus::LocalProtection, DtoStatus::LocalProtection),
            (CompletionStatus::LocalAccess, DtoStatus::LocalProtection),
            (CompletionStatus::WindowBind, DtoStatus::RmrOperationFailed),
            (CompletionStatus::BadResponse, DtoStatus::BadResponse),
            (CompletionStatus::RemoteAccess, DtoStatus::RemoteAccess),
            (CompletionStatus::RemoteOperation, DtoStatus::RemoteResponder),
            (CompletionStatus::RetryExceeded, DtoStatus::Transport),
            (CompletionStatus::RnrRetryExceeded, DtoStatus::ReceiverNotReady),
            (CompletionStatus::MemoryManagement, DtoStatus::LocalMmOperation),
        ] {
            assert_eq!(failure(failed, EventType::DTO_RDMA_WRITE_CMPL), status, "{failed:?}");
        }
    }

    #[test]
    fn a_link_fails_as_memory_management_or_is_flushed() {
        let link = EventType::LMR_LINK_CMPL;
        assert_eq!(failure(CompletionStatus::LocalProtection, link), DtoStatus::LocalMmOperation);
        assert_eq!(failure(CompletionStatus::Flushed, link), DtoStatus::Flushed);
    }
}
