//! Translates IT-API's events to DAT's.
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

use privileged_api as it;

use super::Evd;
use crate::event::*;
use crate::handle::{EpHandle, EvdHandle, Handle, RmrHandle, SrqHandle};
use crate::ia::Inner;

/// The ordinary operations, by the kind of IT-API's completion.
const ORDINARY: [u32; 16] = {
    let mut ordinary = [NOT_ORDINARY; 16];
    ordinary[it::EventType::DTO_SEND_CMPL.0 as usize] = Dto::SEND.0;
    ordinary[it::EventType::DTO_RDMA_WRITE_CMPL.0 as usize] = Dto::RDMA_WRITE.0;
    ordinary[it::EventType::DTO_RDMA_READ_CMPL.0 as usize] = Dto::RDMA_READ.0;
    ordinary[it::EventType::DTO_RC_RECV_CMPL.0 as usize] = Dto::RECEIVE.0;
    ordinary
};
const NOT_ORDINARY: u32 = u32::MAX;

/// The completion of an ordinary operation that succeeded; `None` for another operation.
#[inline(always)]
pub(super) fn ordinary(done: it::PlainCompletion) -> Option<DtoCompletion> {
    let operation = *ORDINARY.get(done.kind() as usize).filter(|operation| **operation != NOT_ORDINARY)?;
    Some(DtoCompletion {
        ep_handle: EpHandle::of(done.ep()),
        user_cookie: done.cookie(),
        status: DtoStatus::Success,
        transferred_length: done.transferred_length().into(),
        operation: Dto(operation),
    })
}

/// The operation of a Receive with immediate data, and its kind of data.
#[inline(always)]
fn arrival(immediate: it::Immediate) -> (Dto, IbExtType) {
    match immediate.written {
        Some(_) => (Dto::IB_RECV_IMMED, IbExtType::RdmaWriteImmedData),
        None => (Dto::IB_RECV_MSG_IMMED, IbExtType::RecvImmedData),
    }
}

#[inline(always)]
fn done_with(done: &it::DtoCompletion, status: DtoStatus, operation: Dto, length: u32) -> DtoCompletion {
    DtoCompletion {
        ep_handle: EpHandle::of(done.ep),
        user_cookie: done.cookie,
        status,
        transferred_length: length.into(),
        operation,
    }
}

/// What a completion means to the consumer. Smaller than the event.
pub(super) enum Completed {
    /// A completion of the base API.
    Ordinary(DtoCompletion),
    /// A completion of an extension, with its kind of data and the immediate data.
    Extended(DtoCompletion, IbExtType, u32),
    /// A completed bind.
    Bound(RmrBindCompletion),
    /// Nothing.
    Nothing,
}

impl Completed {
    fn event(self, evd: EvdHandle) -> Option<Event> {
        match self {
            Completed::Ordinary(completion) => Some(completion.event(evd)),
            Completed::Extended(completion, kind, immed) => Some(completion.extended(evd, kind, immed)),
            Completed::Bound(bound) => Some(bound.event(evd)),
            Completed::Nothing => None,
        }
    }
}

impl DtoCompletion {
    #[inline(always)]
    pub(super) fn event(self, evd: EvdHandle) -> Event {
        let (event_number, event_data) = (EventNumber::DTO_COMPLETION, EventData::Dto(self));
        Event { event_number, evd_handle: evd, event_data, extension: None }
    }

    /// The event of a Receive with immediate data.
    #[inline(always)]
    pub(super) fn arrived(self, evd: EvdHandle, immediate: it::Immediate) -> Event {
        let (operation, ext_type) = arrival(immediate);
        let transferred_length = immediate.written.map_or(self.transferred_length, u64::from);
        DtoCompletion { operation, transferred_length, ..self }.extended(evd, ext_type, immediate.data)
    }

    /// The event of an operation of the extensions.
    #[inline(always)]
    pub(super) fn extended(self, evd: EvdHandle, ext_type: IbExtType, immed: u32) -> Event {
        let status = if self.status == DtoStatus::Success { IbStatus::Success } else { IbStatus::Err };
        Event {
            event_number: EventNumber::IB_DTO,
            evd_handle: evd,
            event_data: EventData::Dto(self),
            extension: Some(IbExtensionEventData { ext_type, status, immed, remote_ah: IbAddrHandle::NONE }),
        }
    }
}

impl RmrBindCompletion {
    pub(super) fn event(self, evd: EvdHandle) -> Event {
        let (event_number, event_data) = (EventNumber::RMR_BIND_COMPLETION, EventData::RmrBind(self));
        Event { event_number, evd_handle: evd, event_data, extension: None }
    }
}

impl Inner {
    /// Translates the event, with its effects on DAT's objects. `None` if it means nothing to the
    /// consumer.
    #[inline(never)]
    pub(super) fn convert(&self, evd: &Evd, taken: &it::ExtendedEvent) -> Option<Event> {
        let event = |event_number, event_data| {
            Some(Event { event_number, evd_handle: evd.handle, event_data, extension: None })
        };
        match taken.event {
            it::Event::Dto(done) => self.completed(&done, taken.immediate, taken.posted).event(evd.handle),
            it::Event::ConnRequest(request) => self.requested(evd.handle, &request),
            it::Event::UdServiceRequest(request) => self.ud_requested(evd.handle, &request),
            it::Event::UdServiceReply(reply) => self.resolved(evd.handle, &reply),
            it::Event::Affiliated { event_number, cause, .. } => {
                let (number, error) = self.affiliated(event_number, cause)?;
                event(number, EventData::AsynchError(error))
            }
            it::Event::Unaffiliated { event_number, .. } => {
                let overflow = event_number == it::EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE;
                let (number, error) = match overflow {
                    true => (
                        EventNumber::ASYNC_ERROR_EVD_OVERFLOW,
                        AsynchError { dat_handle: evd.handle.into(), reason: AsyncReason::EvdOverflow },
                    ),
                    false => (
                        EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
                        AsynchError { dat_handle: self.handle.into(), reason: AsyncReason::Ia },
                    ),
                };
                event(number, EventData::AsynchError(error))
            }
            it::Event::Software { evd: own, data } if own.is_null() => {
                let made = evd.take_made(data)?;
                // The consumer may have freed the endpoint, and with it the address handle of the
                // event.
                self.eps.get(made.connection.ep_handle)?;
                Some(Event {
                    event_number: made.number,
                    evd_handle: evd.handle,
                    event_data: EventData::Connection(made.connection),
                    extension: made.extension,
                })
            }
            it::Event::Software { data, .. } => event(EventNumber::SOFTWARE, EventData::Software(data)),
            it::Event::AevdNotification { .. } => None,
            other => {
                let (number, connection) = self.connection_event(&other)?;
                event(number, EventData::Connection(connection))
            }
        }
    }

    /// What a completion means, with its effects on DAT's objects.
    #[inline(always)]
    pub(super) fn completed(
        &self,
        done: &it::DtoCompletion,
        immediate: Option<it::Immediate>,
        posted: it::Posted,
    ) -> Completed {
        use it::EventType as Type;
        let status = DtoStatus::of(done.dto_status);
        if posted.contains(it::Posted::MARKER) {
            return Completed::Nothing;
        }
        let ordinary =
            |operation| Completed::Ordinary(done_with(done, status, operation, done.transferred_length));
        let (operation, ext_type) = match (done.event_number, immediate) {
            (Type::DTO_RC_RECV_CMPL, Some(immediate)) => arrival(immediate),
            (Type::DTO_RC_RECV_CMPL, None) => return ordinary(Dto::RECEIVE),
            (Type::DTO_SEND_CMPL, _) if posted.contains(it::Posted::DATAGRAM) => {
                (Dto::IB_SEND_UD, IbExtType::UdSend)
            }
            // DAT has no call that posts a Send with immediate data on a connection.
            (Type::DTO_SEND_CMPL, _) => return ordinary(Dto::SEND),
            (Type::DTO_RDMA_WRITE_CMPL, _) if posted.contains(it::Posted::IMMEDIATE) => {
                (Dto::IB_RDMA_WRITE_IMMED, IbExtType::RdmaWriteImmed)
            }
            (Type::DTO_RDMA_WRITE_CMPL, _) => return ordinary(Dto::RDMA_WRITE),
            (Type::DTO_RDMA_READ_CMPL, _) => return ordinary(Dto::RDMA_READ),
            (Type::DTO_UD_RECV_CMPL, Some(_)) => (Dto::IB_RECV_UD_IMMED, IbExtType::RecvImmedData),
            (Type::DTO_UD_RECV_CMPL, None) => (Dto::IB_RECV_UD, IbExtType::UdRecv),
            (Type::DTO_FETCH_ADD_CMPL, _) => (Dto::IB_FETCH_ADD, IbExtType::FetchAndAdd),
            (Type::DTO_CMP_SWAP_CMPL, _) => (Dto::IB_CMP_SWAP, IbExtType::CmpAndSwap),
            (Type::RMR_LINK_CMPL, _) => return self.bound(done, status),
            _ => return Completed::Nothing,
        };
        let written = immediate.and_then(|immediate| immediate.written);
        let length = written.unwrap_or(done.transferred_length);
        let immed = immediate.map_or(0, |immediate| immediate.data);
        Completed::Extended(done_with(done, status, operation, length), ext_type, immed)
    }

    /// What the completion of a bind means to the consumer.
    #[inline(never)]
    fn bound(&self, done: &it::DtoCompletion, status: DtoStatus) -> Completed {
        let ep = self.eps.get(EpHandle::of(done.ep));
        let bind = ep.and_then(|ep| ep.take_bind());
        // The consumer wants no event of a successful bind.
        if status == DtoStatus::Success && bind.is_some_and(|bind| bind.suppressed) {
            return Completed::Nothing;
        }
        let exists = |rmr: &RmrHandle| self.it.get_handle_type(it::Handle::from_raw(rmr.as_raw())).is_ok();
        let rmr_handle = bind.map(|bind| bind.rmr).filter(exists).unwrap_or_default();
        Completed::Bound(RmrBindCompletion { rmr_handle, user_cookie: done.cookie, status })
    }

    /// An asynchronous event that concerns one object.
    fn affiliated(
        &self,
        number: it::EventType,
        cause: it::AffiliatedCause,
    ) -> Option<(EventNumber, AsynchError)> {
        let error = |dat_handle: Handle, reason| AsynchError { dat_handle, reason };
        Some(match cause {
            it::AffiliatedCause::Sevd(evd) => {
                // IT-API's event dispatcher for unwanted completions is none of the consumer's.
                let evd = self.evds.get(EvdHandle::of(evd))?;
                let error = error(evd.handle.into(), AsyncReason::EvdOverflow);
                (EventNumber::ASYNC_ERROR_EVD_OVERFLOW, error)
            }
            it::AffiliatedCause::Ep(ep) => {
                let reason = match number {
                    it::EventType::ASYNC_AFF_EP_FAILURE => AsyncReason::EpTransferToError,
                    _ => AsyncReason::EpOther,
                };
                let error = error(EpHandle::of(ep).into(), reason);
                (EventNumber::ASYNC_ERROR_EP_BROKEN, error)
            }
            it::AffiliatedCause::Srq(srq) => {
                let error = error(SrqHandle::of(srq).into(), AsyncReason::SrqLowWatermark);
                (EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, error)
            }
        })
    }
}
