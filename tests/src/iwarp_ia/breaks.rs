//! What breaks a connection, as a peer does it that the test plays: errors of the stream and of
//! its messages, and Terminates (pages it_affiliated_event_t, it_dto_status_t, and the asynchronous
//! errors of the posting pages).

use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use iwarp::ddp::{Header, Place, queue};
use iwarp::rdmap::terminate::Code;
use iwarp::rdmap::{Control, Opcode, read};
use privileged_api::*;

use super::open;
use super::played::{Meeting, first_send, fpdu, header, nothing, read_request, terminate};
use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, sevd};
use crate::remote::rmr;
use crate::requests::errors::affiliated;
use crate::{Failure, Outcome, Test, check, check_eq, test};

const LLP: EventType = EventType::ASYNC_AFF_EP_L_LLP_ERROR;
const OPCODE: EventType = EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE;
const TRANSPORT: EventType = EventType::ASYNC_AFF_EP_L_TRANSPORT_ERROR;
const READ_SOURCE: EventType = EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION;

/// An EVD for the affiliated events of `b`.
#[track_caller]
fn events(f: &Fixture) -> Result<EvdHandle, Failure> {
    sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)
}

/// The bytes with one bit changed, which the CRC covers.
fn spoilt(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(byte) = bytes.get_mut(3) {
        *byte ^= 0x10;
    }
    bytes
}

/// The request of an RDMA Read of the endpoint's page, cut to `length` bytes.
#[track_caller]
fn asks_to_read(meeting: &Meeting, place: Place, last: bool, length: usize) -> Result<Vec<u8>, Failure> {
    let Place::Tagged { stag: source_stag, to: source_to } = meeting.place(0)? else {
        return Err(Failure::new("not tagged"));
    };
    let request = read::Repr { sink_stag: 1, sink_to: 0, size: 8, source_stag, source_to };
    let mut payload = [0; read::Repr::LEN];
    request.emit(&mut payload).map_err(super::played::failure)?;
    let header = Header { last, ..header(Opcode::ReadRequest, place) };
    fpdu(header, payload.get(..length).unwrap_or_default())
}

impl Meeting {
    /// The connection breaks, with this event if there is one, and the peer gets this Terminate.
    #[track_caller]
    fn breaks(&self, evd: EvdHandle, number: Option<EventType>) -> Outcome {
        let end = &self.end;
        if let Some(number) = number {
            affiliated(&end.ia, evd, number, end.ep)?;
        }
        end.broken()?;
        check!(end.ia.evd_dequeue(evd) == Err(Error::QueueEmpty), "one event is enough");
        Ok(())
    }

    /// What the peer said breaks the connection: it gets this Terminate, and there is this event.
    #[track_caller]
    fn refuses(&self, evd: EvdHandle, number: EventType, code: Code) -> Outcome {
        check_eq!(self.peer.terminated()?, code);
        self.breaks(evd, Some(number))
    }

    /// Posts an operation that moves bytes to the peer, and takes its success.
    #[track_caller]
    fn sends(&self, way: Way) -> Outcome {
        let (ia, ep, segment) = (&self.end.ia, self.end.ep, [self.own.segment(0, 64)]);
        let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
        match way {
            Way::Send => ia.post_send(ep, &segment, 3, SIGNALLED)?,
            Way::SendAndUnlink => ia.post_send_and_unlink(ep, &segment, 3, SIGNALLED, context)?,
            Way::Write => ia.post_rdma_write(ep, &segment, 3, SIGNALLED, at, context)?,
        }
        self.end.done(3, DtoStatus::Success)
    }
}

/// An operation that moves bytes to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    SendAndUnlink,
    Write,
}

impl Way {
    /// The first half of such an operation of the peer, and the second half, spoilt.
    #[track_caller]
    fn halves(self, meeting: &Meeting) -> Result<[Vec<u8>; 2], Failure> {
        let bytes = [9; 8];
        let half = |last, place| {
            let opcode = match self {
                Way::Send => Opcode::Send,
                Way::SendAndUnlink => Opcode::SendInvalidate,
                Way::Write => Opcode::Write,
            };
            fpdu(Header { last, ..header(opcode, place) }, &bytes)
        };
        let stag = meeting.stag()?;
        let send = |mo| match first_send(mo) {
            Place::Untagged { queue, msn, mo, .. } if self == Way::SendAndUnlink => {
                Place::Untagged { invalidate: stag, queue, msn, mo }
            }
            other => other,
        };
        let [first, second] = match self {
            Way::Write => [meeting.place(0)?, meeting.place(8)?],
            _ => [send(0), send(8)],
        };
        Ok([half(false, first)?, spoilt(half(true, second)?)])
    }
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A message of an operation that does not exist, or that nobody asked for.
    test("iwarp_ia::an_unexpected_opcode", &["it_affiliated_event_t F31"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        for case in 0..4 {
            let meeting = Meeting::new(&f)?;
            let bytes = match case {
                0 => fpdu(Header::new(true, 0x49, first_send(0)), &[])?,
                1 => fpdu(header(Opcode::ReadResponse, meeting.place(0)?), &[1; 8])?,
                2 => fpdu(header(Opcode::Send, meeting.place(0)?), &[1; 8])?,
                _ => fpdu(header(Opcode::Write, first_send(0)), &[1; 8])?,
            };
            meeting.peer.say(&bytes)?;
            meeting.refuses(evd, OPCODE, Code::OPCODE)?;
        }
        Ok(())
    }),
    // Messages whose segments are not those that may come: another queue, a request of an RDMA Read
    // that is none, or that is not its message's last segment.
    test("iwarp_ia::what_is_wrong_with_a_message", &["it_affiliated_event_t F16 F35"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        for (case, code) in [Code::DDP_QUEUE, Code::DDP_QUEUE, Code::STREAM, Code::DDP_TOO_LONG, Code::DDP_MO]
            .into_iter()
            .enumerate()
        {
            let meeting = Meeting::new(&f)?;
            f.b.post_recv(meeting.end.ep, &[meeting.own.whole()], 6, DtoFlags::COMPLETION)?;
            let untagged = |queue, mo| Place::Untagged { invalidate: 0, queue, msn: 1, mo };
            let whole = read::Repr::LEN;
            let bytes = match case {
                0 => fpdu(header(Opcode::Send, untagged(5, 0)), &[])?,
                1 => asks_to_read(&meeting, untagged(queue::SEND, 0), true, whole)?,
                2 => asks_to_read(&meeting, read_request(1), true, whole - 1)?,
                3 => asks_to_read(&meeting, read_request(1), false, whole)?,
                _ => fpdu(header(Opcode::Send, first_send(4)), &[])?,
            };
            meeting.peer.say(&bytes)?;
            meeting.refuses(evd, TRANSPORT, code)?;
            meeting.end.recv_done(6, DtoStatus::Flushed)?;
        }
        Ok(())
    }),
    // A request of an RDMA Read out of order, or more of them than there may be at a time, is an
    // error of the incoming reads.
    test("iwarp_ia::the_order_of_requests_to_read", &["it_affiliated_event_t F34"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        for msn in [0, 2, u32::MAX] {
            let meeting = Meeting::new(&f)?;
            meeting.peer.say(&asks_to_read(&meeting, read_request(msn), true, read::Repr::LEN)?)?;
            meeting.refuses(evd, READ_SOURCE, Code::DDP_MSN)?;
        }
        Ok(())
    }),
    // The stream itself fails: a wrong CRC, an FPDU that is too short, one that is cut, a reset.
    test(
        "iwarp_ia::the_stream_fails",
        &["it_affiliated_event_t F17 F36", "it_post_rdma_read V02", "it_post_rdma_read_to_rmr V02"],
        |f| {
            check_eq!(LLP.as_raw(), 0x4024);
            let f = f.over_iwarp()?;
            let evd = events(&f)?;
            for code in [Code::MPA_CRC, Code::MPA_LENGTH] {
                let meeting = Meeting::new(&f)?;
                let bytes = match code {
                    Code::MPA_CRC => spoilt(nothing()?),
                    _ => {
                        let mut bytes = vec![0; iwarp::mpa::fpdu::length(8)];
                        iwarp::mpa::fpdu::emit(&[0x41; 8], true, &mut bytes)
                            .map_err(super::played::failure)?;
                        bytes
                    }
                };
                meeting.peer.say(&bytes)?;
                meeting.refuses(evd, LLP, code)?;
            }
            let meeting = Meeting::new(&f)?;
            let whole = fpdu(header(Opcode::Write, meeting.place(0)?), &[5; 100])?;
            meeting.peer.say(&whole[..50])?;
            meeting.peer.finish()?;
            meeting.breaks(evd, Some(LLP))?;
            let Meeting { end, peer, .. } = Meeting::new(&f)?;
            peer.reset();
            affiliated(&f.b, evd, LLP, end.ep)?;
            end.broken()
        },
    ),
    // A Terminate that says neither that memory is protected nor what is wrong with a Send.
    test("iwarp_ia::a_terminate_of_the_peer", &["it_affiliated_event_t F18 F37"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        for code in [Code::LOCAL, Code::OPCODE, Code::STREAM, Code::MPA_CRC, Code::DDP_QUEUE] {
            let meeting = Meeting::new(&f)?;
            f.b.post_recv(meeting.end.ep, &[], 6, DtoFlags::COMPLETION)?;
            meeting.peer.say(&terminate(code, None)?)?;
            meeting.breaks(evd, Some(EventType::ASYNC_AFF_EP_R_ERROR))?;
            meeting.end.recv_done(6, DtoStatus::Flushed)?;
        }
        Ok(())
    }),
    // A stream that fails under a Send or a Write. The receiver of half a Send has that Receive in
    // error, that of half a Write an event. The sender, which has completed, has an event.
    test(
        "iwarp_ia::a_stream_that_fails_under_a_message",
        &["it_post_rdma_write A15", "it_post_send A12", "it_post_recv A12", "it_post_send_and_unlink A11"],
        |f| {
            let f = f.over_iwarp()?;
            let evd = events(&f)?;
            for way in [Way::Send, Way::SendAndUnlink, Way::Write] {
                let meeting = Meeting::new(&f)?;
                let sink = f.region(&f.b, meeting.end.pz, PAGE, OPEN)?;
                f.b.post_recv(meeting.end.ep, &[sink.whole()], 6, DtoFlags::COMPLETION)?;
                for half in way.halves(&meeting)? {
                    meeting.peer.say(&half)?;
                }
                check_eq!(meeting.peer.terminated()?, Code::MPA_CRC);
                if way == Way::Write {
                    meeting.breaks(evd, Some(LLP))?;
                    meeting.end.recv_done(6, DtoStatus::Flushed)?;
                } else {
                    meeting.end.recv_done(6, DtoStatus::Transport)?;
                    meeting.breaks(evd, None)?;
                }
                check!(f.b.lmr_query(meeting.own.lmr, LmrParamMask::LINKED)?.linked, "{way:?}");
                let meeting = Meeting::new(&f)?;
                meeting.sends(way)?;
                let (_, payload) = meeting.peer.hear_segment()?;
                check_eq!(payload, meeting.own.bytes(0, 64));
                meeting.peer.say(&terminate(Code::MPA_CRC, None)?)?;
                meeting.breaks(evd, Some(EventType::ASYNC_AFF_EP_R_ERROR))?;
            }
            Ok(())
        },
    ),
    // A stream that fails under an RDMA Read fails the Read, of regions and of RMRs.
    test(
        "iwarp_ia::a_stream_that_fails_under_a_read",
        &["it_dto_status_t F36", "it_post_rdma_read A23", "it_post_rdma_read_to_rmr A24"],
        |f| {
            let f = f.over_iwarp()?;
            let evd = events(&f)?;
            for to_rmr in [false, true] {
                for case in 0..3 {
                    let Meeting { end, peer, own } = Meeting::new(&f)?;
                    if to_rmr {
                        let rmr = f.b.rmr_create(end.pz, RmrType::Narrow)?;
                        rmr::Link::of(rmr, &own).made(&end)?;
                        let piece = RmrTriplet { rmr, addr: own.buffer.addr() as u64, length: 64 };
                        let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
                        f.b.post_rdma_read_to_rmr(end.ep, &[piece], 3, SIGNALLED, at, context)?;
                    } else {
                        let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
                        f.b.post_rdma_read(end.ep, &[own.segment(0, 64)], 3, SIGNALLED, at, context)?;
                    }
                    let (_, request) = peer.hear_of(Opcode::ReadRequest)?;
                    let (request, _) = read::Repr::parse(&request).map_err(super::played::failure)?;
                    let place = Place::Tagged { stag: request.sink_stag, to: request.sink_to };
                    let answer = fpdu(header(Opcode::ReadResponse, place), &[5; 64])?;
                    match case {
                        0 => peer.say(&spoilt(answer))?,
                        1 => {
                            peer.say(&answer[..40])?;
                            peer.finish()?;
                        }
                        _ => peer.reset(),
                    }
                    end.done(3, DtoStatus::Transport)?;
                    end.broken()?;
                    check!(f.b.evd_dequeue(evd) == Err(Error::QueueEmpty), "the completion is enough");
                }
            }
            Ok(())
        },
    ),
    // The Terminate says why the peer does not carry out an RDMA Read: its memory is protected, or
    // something else. The Read that it quotes completes so, and the next one is flushed.
    test(
        "iwarp_ia::a_terminate_about_a_read",
        &[
            "it_dto_status_t F35 V01",
            "A.it_dto_cmpl_event_t V01",
            "it_post_rdma_read O01",
            "it_post_rdma_read_to_rmr O02",
        ],
        |f| {
            let f = f.over_iwarp()?;
            let evd = events(&f)?;
            for (code, status) in [
                (Code::READ_STAG, DtoStatus::RemoteAccess),
                (Code::READ_BOUNDS, DtoStatus::RemoteAccess),
                (Code::RIGHT, DtoStatus::RemoteAccess),
                (Code::READ_ASSOCIATION, DtoStatus::RemoteAccess),
                (Code::LOCAL, DtoStatus::RemoteResponder),
                (Code::OPCODE, DtoStatus::RemoteResponder),
                (Code::DDP_MSN, DtoStatus::RemoteResponder),
            ] {
                let meeting = Meeting::new(&f)?;
                let first = meeting.reads(3, 64)?;
                meeting.reads(4, 64)?;
                meeting.peer.say(&terminate(code, Some(&first))?)?;
                meeting.end.done(3, status)?;
                meeting.end.done(4, DtoStatus::Flushed)?;
                meeting.breaks(evd, None)?;
            }
            Ok(())
        },
    ),
    // Errors of this end's part of an RDMA Read, and of the peer's answer to it, show as completion
    // errors where they concern the Read alone.
    test("iwarp_ia::an_rnic_with_advanced_read_errors", &["A.it_post_rdma_read O01"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        // An answer for a sink that is gone by then.
        let meeting = Meeting::new(&f)?;
        let request = meeting.reads(3, 64)?;
        f.b.lmr_free(meeting.own.lmr)?;
        meeting.peer.respond(&request, &[5; 64])?;
        meeting.end.done(3, DtoStatus::LocalProtection)?;
        meeting.breaks(evd, None)?;
        // A Terminate about the Read.
        let meeting = Meeting::new(&f)?;
        let request = meeting.reads(3, 64)?;
        meeting.peer.say(&terminate(Code::READ_STAG, Some(&request))?)?;
        meeting.end.done(3, DtoStatus::RemoteAccess)?;
        meeting.breaks(evd, None)
    }),
    // What is a bad response, a peer that is not ready, or a part of a packet elsewhere, has
    // another status, or none, on iWARP.
    test("iwarp_ia::statuses_that_never_occur", &["it_dto_status_t B03"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        // The answer to a Read is one to another.
        for case in 0..3 {
            let meeting = Meeting::new(&f)?;
            let (_, request) = meeting.reads(3, 64)?;
            let (request, _) = read::Repr::parse(&request).map_err(super::played::failure)?;
            let (stag, to) = (request.sink_stag, request.sink_to);
            let (place, length) = match case {
                0 => (Place::Tagged { stag: stag ^ 1, to }, 64),
                1 => (Place::Tagged { stag, to: to + 4 }, 64),
                // It is too short.
                _ => (Place::Tagged { stag, to }, 63),
            };
            meeting.peer.say(&fpdu(header(Opcode::ReadResponse, place), &[5; 64][..length])?)?;
            meeting.end.done(3, DtoStatus::Flushed)?;
            meeting.breaks(evd, Some(TRANSPORT))?;
        }
        // The peer has no Receive.
        let meeting = Meeting::new(&f)?;
        meeting.sends(Way::Send)?;
        meeting.peer.hear_of(Opcode::Send)?;
        meeting.peer.say(&terminate(Code::DDP_NO_BUFFER, None)?)?;
        meeting.breaks(evd, Some(EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION))?;
        // A part of a message, and then the end of the stream.
        let meeting = Meeting::new(&f)?;
        f.b.post_recv(meeting.end.ep, &[meeting.own.whole()], 6, DtoFlags::COMPLETION)?;
        let part = Header { last: false, ..header(Opcode::Send, first_send(0)) };
        meeting.peer.say(&fpdu(part, &[5; 8])?)?;
        meeting.peer.finish()?;
        meeting.end.recv_done(6, DtoStatus::Transport)?;
        meeting.breaks(evd, None)
    }),
    // An event about an endpoint breaks its connection also under a Read to an RMR, which is
    // flushed.
    test("iwarp_ia::an_event_under_a_read_to_an_rmr", &["it_post_rdma_read_to_rmr A02"], |f| {
        let f = f.over_iwarp()?;
        let evd = events(&f)?;
        let meeting = Meeting::new(&f)?;
        let (end, own) = (&meeting.end, &meeting.own);
        let rmr = f.b.rmr_create(end.pz, RmrType::Narrow)?;
        rmr::Link::of(rmr, own).made(end)?;
        let piece = RmrTriplet { rmr, addr: own.buffer.addr() as u64, length: 64 };
        let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
        f.b.post_rdma_read_to_rmr(end.ep, &[piece], 3, SIGNALLED, at, context)?;
        meeting.peer.hear_of(Opcode::ReadRequest)?;
        check_eq!(end.state()?, EpStateRc::Connected);
        meeting.peer.say(&fpdu(
            Header::new(true, Control { version: 1, opcode: 12 }.to_byte(), first_send(0)),
            &[],
        )?)?;
        end.done(3, DtoStatus::Flushed)?;
        meeting.breaks(evd, Some(OPCODE))
    }),
    // A lower ORD is possible at any time, and limits the Reads that are under way.
    test("iwarp_ia::a_lower_ord_limits_reads", &["it_ia_info_t B04"], |f| {
        let f = f.over_iwarp()?;
        let meeting = Meeting::new(&f)?;
        let lower = |ord| {
            let mut attr = open();
            attr.rc.rdma_read_ord = ord;
            attr
        };
        // The peer serves two at a time.
        let requests = |first: u64, at_once: usize| {
            for cookie in first..first + 3 {
                meeting.post_read(cookie, 8)?;
            }
            let mut heard = Vec::new();
            for nth in 0..3 {
                while heard.len() < 3.min(nth + at_once) {
                    heard.push(meeting.peer.hear_of(Opcode::ReadRequest)?);
                }
                if heard.len() < 3 {
                    meeting.peer.hears_nothing()?;
                }
                meeting.peer.respond(&heard[nth], &[nth as u8; 8])?;
                meeting.end.done(first + nth as u64, DtoStatus::Success)?;
            }
            Ok::<_, Failure>(())
        };
        requests(10, 2)?;
        f.b.ep_modify(meeting.end.ep, EpParamMask::MAX_ORD, &lower(1))?;
        requests(20, 1)?;
        f.b.ep_modify(meeting.end.ep, EpParamMask::MAX_ORD, &lower(0))?;
        f.b.ep_modify(meeting.end.ep, EpParamMask::MAX_ORD, &lower(1))?;
        requests(30, 1)
    }),
];
