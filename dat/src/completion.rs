//! What is posted with a request, and what its completion means in DAT.
//!
//! | completion | event and operation | extension data |
//! |---|---|---|
//! | Send, RDMA Write, RDMA Read, Receive | `DTO_COMPLETION` | none |
//! | RDMA Write with immediate data | `IB_DTO`, `IB_RDMA_WRITE_IMMED` | `RdmaWriteImmed` |
//! | Receive that such a Write took | `IB_DTO`, `IB_RECV_IMMED` | `RdmaWriteImmedData`, the number |
//! | Receive of a Send with immediate data | `IB_DTO`, `IB_RECV_MSG_IMMED` | `RecvImmedData`, the number |
//! | fetch and add, compare and swap | `IB_DTO`, `IB_FETCH_ADD`, `IB_CMP_SWAP` | `FetchAndAdd`, `CmpAndSwap` |
//! | Send of a datagram | `IB_DTO`, `IB_SEND_UD` | `UdSend` |
//! | Receive of a datagram | `IB_DTO`, `IB_RECV_UD` | `UdRecv` |
//! | Receive of a datagram with immediate data | `IB_DTO`, `IB_RECV_UD_IMMED` | `RecvImmedData`, the number |

use kernel_agent::{Completion, CompletionFlags as Flags, CompletionStatus, Done, Immediate, SendFlags};
use rdma::events::NOTIFY;

use crate::event::*;
use crate::flags::CompletionFlags;
use crate::handle::{EpHandle, EvdHandle};

/// What a request does: bits 0 to 3 of the word that is posted with it and returned in its
/// completion. The numbers are DAT's. Bit 4 says that the completion notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Operation {
    Send = Dto::SEND.0,
    Write = Dto::RDMA_WRITE.0,
    Read = Dto::RDMA_READ.0,
    Receive = Dto::RECEIVE.0,
    Bind = Dto::BIND_MW.0,
    /// A Write of no bytes that says when all requests before it are complete. The consumer does
    /// not see it.
    Marker = 7,
    WriteImmediate = Dto::IB_RDMA_WRITE_IMMED.0,
    FetchAdd = Dto::IB_FETCH_ADD.0,
    CompareSwap = Dto::IB_CMP_SWAP.0,
    SendDatagram = Dto::IB_SEND_UD.0,
    ReceiveDatagram = Dto::IB_RECV_UD.0,
}

const OPERATION: u32 = 0xf;
/// The base API's operations have numbers up to this one.
const LAST_ORDINARY: u32 = Dto::RECEIVE.0;

/// The flags that a request can have. `UNSIGNALLED` needs an endpoint whose requests have it.
pub(crate) const OF_REQUESTS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE);

/// The number of combinations of the flags that a request can have.
pub(crate) const COMBINATIONS: usize = OF_REQUESTS.bits() as usize + 1;

/// The word that is posted with a request.
#[inline(always)]
pub(crate) const fn data(operation: Operation, flags: CompletionFlags) -> u32 {
    const SILENT: u32 = CompletionFlags::SUPPRESS.bits() | CompletionFlags::UNSIGNALLED.bits();
    let notifies = flags.bits() & SILENT == 0;
    operation as u32 | if notifies { NOTIFY } else { 0 }
}

/// The device's flags of a request.
#[inline(always)]
pub(crate) const fn send_flags(flags: CompletionFlags) -> SendFlags {
    const fn moved(there: bool, to: SendFlags) -> u8 {
        there as u8 * to.bits()
    }
    const fn has(flags: CompletionFlags, flag: CompletionFlags) -> bool {
        flags.bits() & flag.bits() != 0
    }
    SendFlags::from_bits_retain(
        moved(!has(flags, CompletionFlags::SUPPRESS), SendFlags::SIGNALED)
            | moved(has(flags, CompletionFlags::SOLICITED_WAIT), SendFlags::SOLICITED)
            | moved(has(flags, CompletionFlags::BARRIER_FENCE), SendFlags::FENCE_READS),
    )
}

/// The completion of an operation of the base API that succeeded without immediate data; `None` for
/// another operation.
#[inline(always)]
pub(crate) fn ordinary(done: Done) -> Option<DtoCompletion> {
    let operation = done.data & OPERATION;
    (operation <= LAST_ORDINARY).then_some(DtoCompletion {
        ep_handle: EpHandle::from_raw(done.context),
        user_cookie: done.cookie,
        status: DtoStatus::Success,
        transferred_length: done.length.into(),
        operation: Dto(operation),
    })
}

/// A completion as the consumer's event has it.
#[derive(Clone, Copy)]
pub(crate) enum Completed {
    /// Of the base API.
    Ordinary(DtoCompletion),
    /// Of an extension, with its kind of data and the immediate data.
    Extended(DtoCompletion, IbExtType, u32),
    /// Of a bind, with what was posted.
    Bound { ep: EpHandle, cookie: u64, status: DtoStatus },
    /// Of no interest to the consumer.
    Nothing,
}

impl Completed {
    /// What a completion means.
    #[inline(always)]
    pub(crate) fn of(completion: &Completion) -> Completed {
        let status = status(completion.status, completion.data & OPERATION);
        let immediate = immediate(completion).filter(|_| status == DtoStatus::Success);
        let done = Done {
            context: completion.context,
            cookie: completion.cookie,
            data: completion.data,
            length: completion.length,
        };
        Completed::done(done, status, immediate)
    }

    /// What a completion with these words means.
    #[inline(always)]
    pub(crate) fn done(done: Done, status: DtoStatus, immediate: Option<Immediate>) -> Completed {
        let ep = EpHandle::from_raw(done.context);
        let with = |operation, length: u32| DtoCompletion {
            ep_handle: ep,
            user_cookie: done.cookie,
            status,
            transferred_length: length.into(),
            operation,
        };
        let operation = Dto(done.data & OPERATION);
        let (operation, ext_type) = match (operation, immediate) {
            (Dto::RECEIVE, Some(immediate)) => arrival(immediate),
            (Dto::SEND | Dto::RDMA_WRITE | Dto::RDMA_READ | Dto::RECEIVE, _) => {
                return Completed::Ordinary(with(operation, done.length));
            }
            (Dto::IB_RDMA_WRITE_IMMED, _) => (operation, IbExtType::RdmaWriteImmed),
            (Dto::IB_SEND_UD, _) => (operation, IbExtType::UdSend),
            (Dto::IB_RECV_UD, Some(_)) => (Dto::IB_RECV_UD_IMMED, IbExtType::RecvImmedData),
            (Dto::IB_RECV_UD, None) => (operation, IbExtType::UdRecv),
            (Dto::IB_FETCH_ADD, _) => (operation, IbExtType::FetchAndAdd),
            (Dto::IB_CMP_SWAP, _) => (operation, IbExtType::CmpAndSwap),
            (Dto::BIND_MW, _) => return Completed::Bound { ep, cookie: done.cookie, status },
            _ => return Completed::Nothing,
        };
        let (written, immed) = immediate.map_or((None, 0), |immediate| (immediate.written, immediate.data));
        Completed::Extended(with(operation, written.unwrap_or(done.length)), ext_type, immed)
    }
}

/// The operation of a Receive with immediate data, and its kind of data.
#[inline(always)]
fn arrival(immediate: Immediate) -> (Dto, IbExtType) {
    match immediate.written {
        Some(_) => (Dto::IB_RECV_IMMED, IbExtType::RdmaWriteImmedData),
        None => (Dto::IB_RECV_MSG_IMMED, IbExtType::RecvImmedData),
    }
}

/// The immediate data of the message that a Receive took.
fn immediate(completion: &Completion) -> Option<Immediate> {
    completion.flags.contains(Flags::RECEIVE.union(Flags::IMMEDIATE)).then(|| Immediate {
        data: completion.immediate,
        written: completion.flags.contains(Flags::WRITE).then_some(completion.detail),
    })
}

/// The status of a completion that the NIC reports.
///
/// A request that the peer refuses as invalid violates a length limit or a rule of the endpoint,
/// not memory protection; but an atomic is refused so for its alignment, which is one.
#[inline(always)]
fn status(status: CompletionStatus, operation: u32) -> DtoStatus {
    match status {
        CompletionStatus::Success => DtoStatus::Success,
        failed => failure(failed, Dto(operation)),
    }
}

#[cold]
fn failure(status: CompletionStatus, operation: Dto) -> DtoStatus {
    let atomic = matches!(operation, Dto::IB_FETCH_ADD | Dto::IB_CMP_SWAP);
    match status {
        CompletionStatus::Success => DtoStatus::Success,
        CompletionStatus::Flushed => DtoStatus::Flushed,
        CompletionStatus::LocalLength => DtoStatus::LocalLength,
        CompletionStatus::LocalQpOperation => DtoStatus::LocalEp,
        CompletionStatus::LocalProtection | CompletionStatus::LocalAccess => DtoStatus::LocalProtection,
        CompletionStatus::WindowBind => DtoStatus::RmrOperationFailed,
        CompletionStatus::BadResponse => DtoStatus::BadResponse,
        CompletionStatus::RemoteAccess if operation == Dto::SEND => DtoStatus::RemoteResponder,
        CompletionStatus::RemoteAccess => DtoStatus::RemoteAccess,
        CompletionStatus::RemoteInvalidRequest if atomic => DtoStatus::RemoteAccess,
        CompletionStatus::RemoteInvalidRequest | CompletionStatus::RemoteOperation => {
            DtoStatus::RemoteResponder
        }
        CompletionStatus::RetryExceeded => DtoStatus::Transport,
        CompletionStatus::RnrRetryExceeded => DtoStatus::ReceiverNotReady,
        CompletionStatus::MemoryManagement => DtoStatus::LocalMmError,
    }
}

impl DtoCompletion {
    #[inline(always)]
    pub(crate) fn event(self, evd: EvdHandle) -> Event {
        let (event_number, event_data) = (EventNumber::DTO_COMPLETION, EventData::Dto(self));
        Event { event_number, evd_handle: evd, event_data, extension: None }
    }

    /// The event of a Receive whose message brought immediate data.
    #[inline(always)]
    pub(crate) fn arrived(self, evd: EvdHandle, immediate: Immediate) -> Event {
        let (operation, ext_type) = arrival(immediate);
        let transferred_length = immediate.written.map_or(self.transferred_length, u64::from);
        DtoCompletion { operation, transferred_length, ..self }.extended(evd, ext_type, immediate.data)
    }

    /// The event of an operation of the extensions.
    #[inline(always)]
    pub(crate) fn extended(self, evd: EvdHandle, ext_type: IbExtType, immed: u32) -> Event {
        let status = if self.status == DtoStatus::Success { IbStatus::Success } else { IbStatus::Err };
        Event {
            event_number: EventNumber::IB_DTO,
            evd_handle: evd,
            event_data: EventData::Dto(self),
            extension: Some(IbExtensionEventData { ext_type, status, immed, remote_ah: IbAddrHandle::NONE }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_reaches_the_device_or_the_completion() {
        let posted = |flags| (data(Operation::Write, flags), send_flags(flags));
        let write = Operation::Write as u32;
        assert_eq!(posted(CompletionFlags::DEFAULT), (write | NOTIFY, SendFlags::SIGNALED));
        assert_eq!(posted(CompletionFlags::UNSIGNALLED), (write, SendFlags::SIGNALED));
        assert_eq!(posted(CompletionFlags::SUPPRESS), (write, SendFlags::empty()));
        let both = CompletionFlags::SOLICITED_WAIT | CompletionFlags::BARRIER_FENCE;
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED | SendFlags::FENCE_READS;
        assert_eq!(posted(both), (write | NOTIFY, flags));
    }

    #[test]
    fn each_failure_has_its_status() {
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
            (CompletionStatus::RemoteInvalidRequest, DtoStatus::RemoteResponder),
            (CompletionStatus::RemoteOperation, DtoStatus::RemoteResponder),
            (CompletionStatus::RetryExceeded, DtoStatus::Transport),
            (CompletionStatus::RnrRetryExceeded, DtoStatus::ReceiverNotReady),
            (CompletionStatus::MemoryManagement, DtoStatus::LocalMmError),
        ] {
            assert_eq!(failure(failed, Dto::RDMA_WRITE), status, "{failed:?}");
        }
        let invalid = CompletionStatus::RemoteInvalidRequest;
        assert_eq!(failure(invalid, Dto::IB_CMP_SWAP), DtoStatus::RemoteAccess);
        assert_eq!(failure(CompletionStatus::RemoteAccess, Dto::SEND), DtoStatus::RemoteResponder);
    }

    #[test]
    fn an_ordinary_completion_is_told_by_the_word_that_was_posted() {
        let done = |data| Done { context: 7, cookie: 8, data, length: 9 };
        for (operation, dto) in [
            (Operation::Send, Dto::SEND),
            (Operation::Write, Dto::RDMA_WRITE),
            (Operation::Read, Dto::RDMA_READ),
            (Operation::Receive, Dto::RECEIVE),
        ] {
            for data in [operation as u32, operation as u32 | NOTIFY] {
                let completion = ordinary(done(data)).unwrap();
                assert_eq!((completion.operation, completion.status), (dto, DtoStatus::Success));
                assert_eq!((completion.ep_handle, completion.user_cookie), (EpHandle::from_raw(7), 8));
                assert_eq!(completion.transferred_length, 9);
            }
        }
        for other in [Operation::Bind, Operation::Marker, Operation::FetchAdd, Operation::ReceiveDatagram] {
            assert_eq!(ordinary(done(other as u32)), None);
        }
    }
}
