//! The flags of requests on endpoints over VIA (page it_dto_flags_t, table for VIA).

use kernel_agent::ViControl;
use privileged_api::*;

use super::{open, open_pair, page};
use crate::events::callback::{count, settle};
use crate::fixture::{MOMENT, Pair, SIGNALLED, WAIT, sevd};
use crate::{Test, check, check_eq, refused, test};

const NONE: DtoFlags = DtoFlags::empty();

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A request without the flag of completion has no event if it succeeds, and frees its place.
    // The next one that has the flag shows that those before are complete.
    test("via_ia_flags::silent_requests", &["it_dto_flags_t F15"], |f| {
        let f = f.over_via()?;
        let (pair, own, peer) = open_pair(&f)?;
        let most = open().max_request_dtos as u64;
        let write = |cookie, flags| {
            f.a.post_rdma_write(
                pair.a.ep,
                &[own.segment(0, 8)],
                cookie,
                flags,
                peer.remote(0),
                peer.context().unwrap_or_default(),
            )
        };
        for round in 0..5 {
            for cookie in 1..most {
                write(cookie, NONE)?;
            }
            write(1000 + round, SIGNALLED)?;
            pair.a.done(1000 + round, DtoStatus::Success)?;
            pair.a.idle()?;
            check_eq!(f.a.ep_outstanding(pair.a.ep)?, (0, 0));
        }
        // One that fails has an event, and those behind it are flushed with events.
        let beyond = own.segment(4096, 8);
        f.a.post_rdma_write(pair.a.ep, &[beyond], 1, NONE, peer.remote(0), peer.context()?)?;
        write(2, NONE)?;
        pair.a.done(1, DtoStatus::LocalProtection)?;
        pair.a.done(2, DtoStatus::Flushed)
    }),
    // A queue of completions that asks for few events has room for all that its endpoints can
    // cause, silent or not: none is lost.
    test("via_ia_flags::completions_are_never_lost", &[], |f| {
        let f = f.over_via()?;
        let one = sevd(&f.a, EventType::DTO_EVENT_STREAM, 1, 1)?;
        let pair = Pair { a: f.end_on(&f.a, &open(), one, one)?, b: f.end(&f.b, &open())? };
        f.connect(&pair.a, &pair.b)?;
        let (own, peer) = (page(&f, &pair.a)?, page(&f, &pair.b)?);
        let most = open().max_request_dtos as u64;
        for cookie in 0..most {
            let flags = if cookie % 3 == 0 { SIGNALLED } else { NONE };
            let (to, context) = (peer.remote(0), peer.context()?);
            f.a.post_recv(pair.a.ep, &[own.segment(0, 8)], 1000 + cookie, DtoFlags::COMPLETION)?;
            f.a.post_rdma_write(pair.a.ep, &[own.segment(0, 8)], cookie, flags, to, context)?;
        }
        let full = f.a.post_send(pair.a.ep, &[], 1, SIGNALLED);
        // Those that are silent and complete free their places only when the queue is looked at.
        check!(full == Err(Error::TooManyPosts), "{full:?}");
        for cookie in (0..most).filter(|cookie| cookie % 3 == 0) {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        f.a.ep_disconnect(pair.a.ep, &[])?;
        for cookie in 0..most {
            pair.a.recv_done(1000 + cookie, DtoStatus::Flushed)?;
        }
        pair.a.idle()
    }),
    // Of requests on an EVD without a threshold only those with the flag of notification call the
    // callback and end a wait.
    test("via_ia_flags::notification", &["it_dto_flags_t F16"], |f| {
        let f = f.over_via()?;
        let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, THRESHOLD_DISABLE)?;
        let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let pair = Pair { a: f.end_on(&f.a, &open(), request, recv)?, b: f.end(&f.b, &open())? };
        f.connect(&pair.a, &pair.b)?;
        let (own, peer) = (page(&f, &pair.a)?, page(&f, &pair.b)?);
        let write = |cookie, flags| {
            f.a.post_rdma_write(
                pair.a.ep,
                &[own.segment(0, 8)],
                cookie,
                flags,
                peer.remote(0),
                peer.context().unwrap_or_default(),
            )
        };
        write(1, DtoFlags::COMPLETION)?;
        let waited = f.a.evd_wait(request, MOMENT);
        check!(waited.is_err_and(|error| error.error == Error::TimeoutExpired), "not notified");
        write(2, SIGNALLED)?;
        let (event, more) = f.a.evd_wait(request, WAIT)?;
        check!(matches!(event, Event::Dto(DtoCompletion { cookie: 1, .. })), "{event:?}");
        check_eq!(more, 1);
        pair.a.done(2, DtoStatus::Success)?;
        let called = count(&f, request)?;
        write(3, DtoFlags::COMPLETION)?;
        check!(crate::thread::eventually(f.platform(), || f.a.evd_queued(request) == Ok(1)));
        settle(&f)?;
        check_eq!(called.count(), 0);
        write(4, SIGNALLED)?;
        called.wait(1)?;
        for cookie in [3, 4] {
            let event = f.a.evd_dequeue(request)?;
            check!(matches!(event, Event::Dto(completion) if completion.cookie == cookie), "{event:?}");
        }
        refused(f.a.evd_dequeue(request), Error::QueueEmpty)?;
        write(5, SIGNALLED)?;
        called.wait(2)?;
        f.a.evd_dequeue(request)?;
        refused(f.a.evd_dequeue(request), Error::QueueEmpty)?;
        f.a.evd_callback_detach(request)?;
        Ok(())
    }),
    // The barrier fence is the queue fence of the descriptor. No other flag changes the descriptor.
    test("via_ia_flags::descriptors", &["it_dto_flags_t B32 F17"], |f| {
        let f = f.over_via()?;
        let (pair, own, peer) = open_pair(&f)?;
        let (ep, segment) = (pair.a.ep, own.segment(0, 8));
        let (to, context) = (peer.remote(0), peer.context()?);
        let fence = DtoFlags::BARRIER_FENCE;
        let others = [NONE, DtoFlags::COALESCE, SIGNALLED, DtoFlags::SOLICITED_WAIT];
        for flags in others.into_iter().flat_map(|other| [other, other | fence]) {
            let expected = |operation: ViControl| {
                let queue_fence =
                    if flags.contains(fence) { ViControl::QUEUE_FENCE } else { ViControl::empty() };
                (operation | queue_fence).bits()
            };
            let flags = flags | DtoFlags::COMPLETION;
            f.b.post_recv(pair.b.ep, &[peer.segment(100, 8)], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(ep, &[segment], 1, flags)?;
            check_eq!(f.a.ep_last_control(ep)?, expected(ViControl::empty()), "{flags:?}");
            pair.a.done(1, DtoStatus::Success)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            if flags.contains(DtoFlags::SOLICITED_WAIT) {
                continue;
            }
            f.a.post_rdma_write(ep, &[segment], 2, flags, to, context)?;
            check_eq!(f.a.ep_last_control(ep)?, expected(ViControl::RDMA_WRITE), "{flags:?}");
            pair.a.done(2, DtoStatus::Success)?;
            f.a.post_rdma_read(ep, &[segment], 3, flags, to, context)?;
            check_eq!(f.a.ep_last_control(ep)?, expected(ViControl::RDMA_READ), "{flags:?}");
            pair.a.done(3, DtoStatus::Success)?;
        }
        let unconnected = f.end(&f.a, &open())?;
        check_eq!(f.a.ep_last_control(unconnected.ep)?, 0);
        Ok(())
    }),
    // The descriptors of an endpoint are used in turn: each request and each Receive counts as long
    // as its completion was not taken, and the latest request is known after the last descriptor,
    // too.
    test("via_ia_flags::descriptors_in_turn", &[], |f| {
        let f = f.over_via()?;
        let few = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..open() };
        let pair = f.pair_of(&few, &few)?;
        let (own, peer) = (page(&f, &pair.a)?, page(&f, &pair.b)?);
        let (ep, segment, to, context) = (pair.a.ep, own.segment(0, 8), peer.remote(0), peer.context()?);
        for cookie in 0..3 {
            f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
        }
        check_eq!(f.b.ep_outstanding(pair.b.ep)?, (0, 3));
        for round in 0..20 {
            let control = match round % 2 {
                0 => {
                    f.a.post_rdma_read(ep, &[segment], round, SIGNALLED, to, context)?;
                    ViControl::RDMA_READ
                }
                _ => {
                    f.a.post_rdma_write(ep, &[segment], round, SIGNALLED, to, context)?;
                    ViControl::RDMA_WRITE
                }
            };
            check_eq!(f.a.ep_last_control(ep)?, control.bits(), "round {round}");
            check_eq!(f.a.ep_outstanding(ep)?, (1, 0));
            pair.a.done(round, DtoStatus::Success)?;
            check_eq!(f.a.ep_outstanding(ep)?, (0, 0));
        }
        Ok(())
    }),
    // Flags without a counterpart in VIA: a solicited Send wakes a waiter for notification events,
    // since each Receive notifies; the unlink fence is refused, as there is no unlink; coalescing
    // has no effect.
    test("via_ia_flags::without_a_counterpart", &["it_dto_flags_t V04"], |f| {
        let f = f.over_via()?;
        let recv = sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, THRESHOLD_DISABLE)?;
        let request = sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let pair = Pair { a: f.end(&f.a, &open())?, b: f.end_on(&f.b, &open(), request, recv)? };
        f.connect(&pair.a, &pair.b)?;
        let (own, peer) = (page(&f, &pair.a)?, page(&f, &pair.b)?);
        for flags in [DtoFlags::SOLICITED_WAIT, NONE, DtoFlags::COALESCE] {
            f.b.post_recv(pair.b.ep, &[peer.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[own.segment(0, 8)], 2, flags | DtoFlags::COMPLETION)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
        }
        let (to, context, segment) = (peer.remote(0), peer.context()?, own.segment(0, 8));
        for flags in [DtoFlags::UNLINK_FENCE, DtoFlags::UNLINK_FENCE | SIGNALLED, DtoFlags::NOTIFY] {
            refused(f.a.post_send(pair.a.ep, &[segment], 3, flags), Error::InvalidDtoFlags)?;
            refused(
                f.a.post_rdma_write(pair.a.ep, &[segment], 3, flags, to, context),
                Error::InvalidDtoFlags,
            )?;
            refused(
                f.a.post_rdma_read(pair.a.ep, &[segment], 3, flags, to, context),
                Error::InvalidDtoFlags,
            )?;
            refused(f.a.post_recv(pair.a.ep, &[segment], 3, flags), Error::InvalidDtoFlags)?;
        }
        let solicited = DtoFlags::SOLICITED_WAIT | SIGNALLED;
        let write = f.a.post_rdma_write(pair.a.ep, &[segment], 3, solicited, to, context);
        refused(write, Error::InvalidDtoFlags)?;
        pair.a.idle()
    }),
];
