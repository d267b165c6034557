//! The affiliated event of an endpoint whose stream has ended for an error
//! (it_affiliated_event_t, table for iWARP).

use kernel_agent::{StreamFault, Terminate};

use crate::event::EventType;

/// The event, if a completion does not show the error.
///
/// The table has no event for two errors, since a completion shows them where their pages say so:
/// a Send that is too long for its Receive, and a request of this end that failed. If no completion
/// does, the endpoint has failed. Neither has it one for a Send that names a region which the peer
/// may not unlink (it_post_send_and_unlink); that is a protection error of what the peer sent.
pub(crate) fn event(fault: StreamFault, terminate: Option<Terminate>) -> Option<EventType> {
    Some(match fault {
        StreamFault::None => return None,
        StreamFault::Write | StreamFault::ReadSink | StreamFault::Invalidate => {
            EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION
        }
        StreamFault::ReadSource => EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION,
        StreamFault::Receive => EventType::ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION,
        StreamFault::ReceiveLength | StreamFault::Local => EventType::ASYNC_AFF_EP_FAILURE,
        StreamFault::Transport => EventType::ASYNC_AFF_EP_L_TRANSPORT_ERROR,
        StreamFault::Opcode => EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE,
        StreamFault::Llp | StreamFault::InsideMessage | StreamFault::Lost => {
            EventType::ASYNC_AFF_EP_L_LLP_ERROR
        }
        StreamFault::Terminated => refused(terminate),
    })
}

/// The event of a Terminate that the peer sent, by its layer and type, and its code (RFC 5040,
/// 4.8).
fn refused(terminate: Option<Terminate>) -> EventType {
    /// RDMAP, remote protection; DDP, tagged buffer.
    const PROTECTION: [u16; 2] = [0x01, 0x11];
    /// DDP, untagged buffer: no buffer, number of the message out of range.
    const NO_RECEIVE: [u16; 2] = [0x1202, 0x1203];
    /// DDP, untagged buffer: message too long.
    const TOO_LONG: u16 = 0x1205;
    match terminate.map(|terminate| terminate.code) {
        Some(code) if PROTECTION.contains(&(code >> 8)) => EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION,
        Some(code) if NO_RECEIVE.contains(&code) => EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION,
        Some(TOO_LONG) => EventType::ASYNC_AFF_EP_R_RECV_LENGTH_ERROR,
        _ => EventType::ASYNC_AFF_EP_R_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_the_event_of_the_table() {
        for (fault, expected) in [
            (StreamFault::Write, EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION),
            (StreamFault::ReadSink, EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION),
            (StreamFault::Invalidate, EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION),
            (StreamFault::ReadSource, EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION),
            (StreamFault::Receive, EventType::ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION),
            (StreamFault::ReceiveLength, EventType::ASYNC_AFF_EP_FAILURE),
            (StreamFault::Local, EventType::ASYNC_AFF_EP_FAILURE),
            (StreamFault::Transport, EventType::ASYNC_AFF_EP_L_TRANSPORT_ERROR),
            (StreamFault::Opcode, EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE),
            (StreamFault::Llp, EventType::ASYNC_AFF_EP_L_LLP_ERROR),
            (StreamFault::InsideMessage, EventType::ASYNC_AFF_EP_L_LLP_ERROR),
            (StreamFault::Lost, EventType::ASYNC_AFF_EP_L_LLP_ERROR),
            (StreamFault::Terminated, EventType::ASYNC_AFF_EP_R_ERROR),
        ] {
            assert_eq!(event(fault, None), Some(expected), "{fault:?}");
        }
        assert_eq!(event(StreamFault::None, None), None);
    }

    #[test]
    fn a_terminate_is_read_by_its_code() {
        let of = |code| event(StreamFault::Terminated, Some(Terminate { code, sent: false }));
        for (code, expected) in [
            (0x0100, EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION),
            (0x0102, EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION),
            (0x1101, EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION),
            (0x1202, EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION),
            (0x1203, EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION),
            (0x1205, EventType::ASYNC_AFF_EP_R_RECV_LENGTH_ERROR),
            (0x1201, EventType::ASYNC_AFF_EP_R_ERROR),
            (0x1204, EventType::ASYNC_AFF_EP_R_ERROR),
            (0x0206, EventType::ASYNC_AFF_EP_R_ERROR),
            (0x2002, EventType::ASYNC_AFF_EP_R_ERROR),
        ] {
            assert_eq!(of(code), Some(expected), "{code:#x}");
        }
    }
}
