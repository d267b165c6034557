//! Flags of work requests over iWARP (page it_dto_flags_t, table for iWARP).

use iwarp::rdmap::{Opcode, read};
use privileged_api::*;

use super::played::Meeting;
use super::{Scene, open};
use crate::fixture::{MOMENT, PAGE, Pair, SIGNALLED, WAIT, sevd};
use crate::remote::rmr;
use crate::{Test, check, check_eq, test};

const HELD: DtoFlags = SIGNALLED.union(DtoFlags::COALESCE);
const NONE: DtoFlags = DtoFlags::empty();

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Without the completion flag a request that succeeds has no event, and the event of the next
    // one says that it has; one that fails has an event.
    test("iwarp_ia::completions_that_are_not_signalled", &["it_dto_flags_t F18"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let (end, own, peer) = (&scene.pair.a, &scene.own, &scene.peer);
        let (at, context) = (peer.remote(0), peer.context()?);
        for round in 0..3 {
            f.b.post_recv(scene.pair.b.ep, &[], 9, DtoFlags::COMPLETION)?;
            f.a.post_rdma_write(end.ep, &[own.whole()], 1, NONE, at, context)?;
            f.a.post_send(end.ep, &[], 2, NONE)?;
            f.a.post_rdma_read(end.ep, &[own.segment(0, 8)], 3, NONE, at, context)?;
            f.a.post_rdma_read(end.ep, &[own.segment(0, 8)], 4, SIGNALLED, at, context)?;
            end.done(4, DtoStatus::Success)?;
            check_eq!(peer.all(), own.all(), "round {round}");
            scene.pair.b.recv_done(9, DtoStatus::Success)?;
            end.idle()?;
        }
        f.a.post_rdma_read(end.ep, &[own.whole()], 5, NONE, peer.remote(1), context)?;
        end.done(5, DtoStatus::RemoteAccess)
    }),
    // The NIC does not know the notify flag: the library keeps it.
    test("iwarp_ia::notification", &["it_dto_flags_t F19"], |f| {
        let f = f.over_iwarp()?;
        // The threshold is never reached, so the flag alone decides.
        let evd = || sevd(&f.a, EventType::DTO_EVENT_STREAM, 16, 0);
        let (request, recv) = (evd()?, evd()?);
        let end = f.end_on(&f.a, &EpAttributes { max_request_dtos: 8, ..open() }, request, recv)?;
        f.connect(&end, &f.end(&f.b, &open())?)?;
        let write =
            |cookie, flags| f.a.post_rdma_write(end.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0));
        write(1, DtoFlags::COMPLETION)?;
        check!(f.a.evd_wait(request, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
        write(2, SIGNALLED)?;
        for cookie in [1, 2] {
            let (event, _) = f.a.evd_wait(request, WAIT)?;
            check_eq!(event.dto().map(|done| done.cookie), Some(cookie));
        }
        Ok(())
    }),
    // A Send with the flag notifies the Receive's consumer, whatever the Receive says.
    test("iwarp_ia::solicited", &["it_dto_flags_t F20"], |f| {
        let f = f.over_iwarp()?;
        let evd = || sevd(&f.b, EventType::DTO_EVENT_STREAM, 16, 0);
        let (request, recv) = (evd()?, evd()?);
        let attr = EpAttributes { max_recv_dtos: 8, ..open() };
        let pair = Pair { a: f.end(&f.a, &open())?, b: f.end_on(&f.b, &attr, request, recv)? };
        f.connect(&pair.a, &pair.b)?;
        for cookie in [1, 2] {
            f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
        }
        f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
        pair.a.done(1, DtoStatus::Success)?;
        check!(f.b.evd_wait(recv, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
        f.a.post_send(pair.a.ep, &[], 2, SIGNALLED | DtoFlags::SOLICITED_WAIT)?;
        for cookie in [1, 2] {
            let (event, _) = f.b.evd_wait(recv, WAIT)?;
            check_eq!(event.dto().map(|done| done.cookie), Some(cookie));
        }
        // On the stream it is the Send with Solicited Event.
        let meeting = Meeting::new(&f)?;
        for (flags, opcode) in
            [(SIGNALLED, Opcode::Send), (SIGNALLED | DtoFlags::SOLICITED_WAIT, Opcode::SendSolicited)]
        {
            f.b.post_send(meeting.end.ep, &[], 3, flags)?;
            meeting.end.done(3, DtoStatus::Success)?;
            meeting.peer.hear_of(opcode)?;
        }
        Ok(())
    }),
    // With the barrier fence a request does not start before earlier RDMA Reads are complete:
    // what it sends is what they have read. Without, it overtakes them.
    test("iwarp_ia::the_barrier_fence", &["it_dto_flags_t F21"], |f| {
        let f = f.over_iwarp()?;
        let meeting = Meeting::new(&f)?;
        let (end, own) = (&meeting.end, &meeting.own);
        let old = own.bytes(0, 8);
        for (cookie, flags) in [(10, SIGNALLED), (20, SIGNALLED | DtoFlags::BARRIER_FENCE)] {
            own.write(0, &old);
            let request = meeting.reads(cookie, 8)?;
            f.b.post_send(end.ep, &[own.segment(0, 8)], cookie + 1, flags)?;
            if flags.contains(DtoFlags::BARRIER_FENCE) {
                meeting.peer.hears_nothing()?;
            } else {
                check_eq!(meeting.peer.hear_of(Opcode::Send)?.1, old);
            }
            meeting.peer.respond(&request, &[0x5a; 8])?;
            end.done(cookie, DtoStatus::Success)?;
            end.done(cookie + 1, DtoStatus::Success)?;
        }
        check_eq!(meeting.peer.hear_of(Opcode::Send)?.1, [0x5a; 8]);
        Ok(())
    }),
    // With the unlink fence an RMR of either type stays linked until the requests before are
    // complete: the answer to a Read finds it. (The NIC lets each unlink wait for earlier Reads.)
    test("iwarp_ia::the_unlink_fence", &["it_dto_flags_t F22"], |f| {
        let f = f.over_iwarp()?;
        check!(f.b.ia_query()?.unlink_fence_support);
        for rmr_type in rmr::TYPES {
            let meeting = Meeting::new(&f)?;
            let (end, own) = (&meeting.end, &meeting.own);
            let rmr = f.b.rmr_create(end.pz, rmr_type)?;
            rmr::Link::of(rmr, own).made(end)?;
            let piece = RmrTriplet { rmr, addr: own.buffer.addr() as u64, length: 8 };
            let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
            f.b.post_rdma_read_to_rmr(end.ep, &[piece], 3, SIGNALLED, at, context)?;
            f.b.rmr_unlink(rmr, end.ep, 4, SIGNALLED | DtoFlags::UNLINK_FENCE)?;
            f.b.post_send(end.ep, &[], 5, SIGNALLED)?;
            let request = meeting.peer.hear_of(Opcode::ReadRequest)?;
            meeting.peer.hears_nothing()?;
            meeting.peer.respond(&request, &[0x5a; 8])?;
            for cookie in [3, 4, 5] {
                end.done(cookie, DtoStatus::Success)?;
            }
            meeting.peer.hear_of(Opcode::Send)?;
            check_eq!(own.bytes(0, 8), [0x5a; 8]);
            check!(!f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
        }
        Ok(())
    }),
    // Requests that are coalesced are executed with the next one that is not, in their order.
    test("iwarp_ia::coalesced", &["it_dto_flags_t F24"], |f| {
        let f = f.over_iwarp()?;
        let meeting = Meeting::new(&f)?;
        let (end, own) = (&meeting.end, &meeting.own);
        for round in 1..=3_u32 {
            let (at, context) = (make_rdma_addr_absolute(PAGE), RmrContext(7));
            f.b.post_rdma_write(end.ep, &[own.segment(0, 8)], 1, HELD, at, context)?;
            f.b.post_rdma_read(end.ep, &[own.segment(8, 8)], 2, HELD, at, context)?;
            f.b.post_send(end.ep, &[own.segment(0, 4)], 3, SIGNALLED)?;
            check_eq!(meeting.peer.hear_of(Opcode::Write)?.1, own.bytes(0, 8));
            let request = meeting.peer.hear_of(Opcode::ReadRequest)?;
            check_eq!(request.1.len(), read::Repr::LEN);
            check_eq!(meeting.peer.hear_of(Opcode::Send)?.1, own.bytes(0, 4));
            meeting.peer.respond(&request, &[round as u8; 8])?;
            for cookie in 1..=3 {
                end.done(cookie, DtoStatus::Success)?;
            }
        }
        end.idle()
    }),
];
