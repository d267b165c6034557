//! Which streams of completions may share an event dispatcher, and which completions notify, by the
//! completion flags of the endpoints (dat_ep_create_with_srq, page "Usage").

use core::result::Result;

use dat::*;

use super::srq::{Queue, message, queue};
use super::world::*;
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const DEFAULT: CompletionFlags = CompletionFlags::DEFAULT;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const THRESHOLD: CompletionFlags = CompletionFlags::EVD_THRESHOLD;

/// A stream of completions: Receives or requests, with their flags.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stream {
    Receives(CompletionFlags),
    Requests(CompletionFlags),
}

use Stream::{Receives, Requests};

/// All streams that an endpoint with a shared receive queue can have.
const STREAMS: [Stream; 6] = [
    Receives(DEFAULT),
    Receives(SOLICITED),
    Receives(THRESHOLD),
    Requests(DEFAULT),
    Requests(UNSIGNALLED),
    Requests(THRESHOLD),
];

impl Stream {
    fn flags(self) -> CompletionFlags {
        match self {
            Receives(flags) | Requests(flags) => flags,
        }
    }
}

/// Creates an endpoint on `b` whose stream feeds the event dispatcher.
fn feed(w: &World<'_>, q: &Queue, evd: EvdHandle, stream: Stream) -> Result<EpHandle, Error> {
    let none = EvdHandle::NULL;
    let (recv, request, attr) = match stream {
        Receives(flags) => (evd, none, EpAttr { recv_completion_flags: flags, ..attributes() }),
        Requests(flags) => (none, evd, EpAttr { request_completion_flags: flags, ..attributes() }),
    };
    w.b.ep_create_with_srq(q.pz, recv, request, none, q.srq, &attr)
}

/// The part of an event dispatcher's state that concerns notification.
fn config(ia: &Ia, evd: EvdHandle) -> Result<EvdState, Failure> {
    Ok(ia.evd_query(evd)?.evd_state & EvdState::CONFIG_THRESHOLD)
}

/// The state for these flags.
fn config_of(flags: CompletionFlags) -> u32 {
    match flags {
        UNSIGNALLED => 0x10,
        SOLICITED => 0x20,
        THRESHOLD => 0x30,
        _ => 0,
    }
}

/// A connected pair, of which the endpoint on `b` has these flags.
fn pair(
    w: &World<'_>,
    q: &Queue,
    recv: CompletionFlags,
    request: CompletionFlags,
) -> Result<(End, End), Failure> {
    let attr = EpAttr { recv_completion_flags: recv, request_completion_flags: request, ..attributes() };
    let (far, own) = (w.end(&w.a, &attributes())?, w.end_with_srq(&w.b, q.pz, q.srq, &attr)?);
    w.connect(&far, &own)?;
    Ok((far, own))
}

/// Waits until this many events are queued, none of which may notify.
#[track_caller]
fn quiet(w: &World<'_>, ia: &Ia, evd: EvdHandle, events: usize) -> Outcome {
    let mut last = None;
    let come = eventually(w.f.platform(), || {
        last = Some(ia.evd_wait(evd, 0, 1));
        matches!(last, Some(Err(WaitError { nmore, .. })) if nmore == events) || matches!(last, Some(Ok(_)))
    });
    let timeout = Error::from(ErrorType::TimeoutExpired);
    match (come, last) {
        (true, Some(Err(WaitError { error, .. }))) if error == timeout => {}
        (_, last) => return Err(Failure::new(alloc::format!("{events} quiet events: {last:?}"))),
    }
    // These events do not wake a wait that has begun, either.
    match ia.evd_wait(evd, SHORT, 1) {
        Err(WaitError { error, nmore }) if error == timeout && nmore == events => Ok(()),
        other => Err(Failure::new(alloc::format!("{events} quiet events: {other:?}"))),
    }
}

/// Starts a thread that waits for an event of `b`.
fn waiter(w: &World<'_>, evd: EvdHandle, threshold: usize) -> Result<Thread<Waited>, Failure> {
    let ia = w.b.clone();
    Thread::spawn(w.f.platform(), "waiter", move || ia.evd_wait(evd, LONG, threshold))
}

type Waited = Result<(Event, usize), WaitError>;

/// Sends an empty message with these flags and takes the completion.
fn solicit(from: &End, cookie: u64, flags: CompletionFlags) -> Outcome {
    from.ia.ep_post_send(from.ep, &[], cookie, flags)?;
    from.done(cookie, DtoStatus::Success)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // All streams of completions of an event dispatcher have the same completion flags. Others are
    // refused, as a bad combination, and change nothing. When the last stream is gone, the event
    // dispatcher takes any flags.
    test("dat_sharing::streams_have_the_same_flags", &["dat_ep_create_with_srq A04 B27 B28 B30 B31"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let evd = evd(&w.b, EvdFlags::DTO)?;
            // The IA creates what unwanted completions need only once.
            w.b.ep_free(feed(w, &q, evd, Requests(DEFAULT))?)?;
            let clash = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg7);
            let counts = || w.f.setup.b.agent.counts();
            for first in STREAMS {
                let one = feed(w, &q, evd, first)?;
                check_eq!(config(&w.b, evd)?.bits(), config_of(first.flags()));
                for second in STREAMS {
                    let before = (counts(), w.b.evd_query(evd)?);
                    match feed(w, &q, evd, second) {
                        Ok(ep) => {
                            check!(first.flags() == second.flags(), "{first:?} took {second:?}");
                            w.b.ep_free(ep)?;
                        }
                        Err(error) => {
                            check!(first.flags() != second.flags(), "{first:?} refused {second:?}");
                            check_eq!(error, clash);
                        }
                    }
                    check_eq!((counts(), w.b.evd_query(evd)?), before);
                }
                let used = Error::new(ErrorType::InvalidState, Subtype::InvalidStateEvdInUse);
                refused(w.b.evd_free(evd), used)?;
                w.b.ep_free(one)?;
                check_eq!(config(&w.b, evd)?.bits(), 0);
            }
            Ok(w.b.evd_free(evd)?)
        })
    }),
    // The rule holds for both streams of one endpoint, for endpoints without a shared receive
    // queue, and for changes of an endpoint.
    test("dat_sharing::one_endpoint_and_others", &["dat_ep_create_with_srq B27 B28 B31"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (evd, none) = (evd(&w.b, EvdFlags::DTO)?, EvdHandle::NULL);
            let of = |recv, request| EpAttr {
                recv_completion_flags: recv,
                request_completion_flags: request,
                ..attributes()
            };
            for recv in [DEFAULT, SOLICITED, THRESHOLD] {
                for request in [DEFAULT, UNSIGNALLED, THRESHOLD] {
                    let made = w.b.ep_create_with_srq(q.pz, evd, evd, none, q.srq, &of(recv, request));
                    match made {
                        Ok(ep) => {
                            check!(recv == request, "{recv:?} with {request:?}");
                            w.b.ep_free(ep)?;
                        }
                        Err(error) => {
                            check!(recv != request, "{recv:?} with {request:?}");
                            check_eq!(error.kind(), ErrorType::InvalidParameter);
                        }
                    }
                }
            }
            // An endpoint that does not use the shared queue.
            let plain = w.b.ep_create(q.pz, evd, evd, none, Some(&of(UNSIGNALLED, UNSIGNALLED)))?;
            let clash = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg7);
            for stream in STREAMS {
                match stream {
                    Requests(UNSIGNALLED) => w.b.ep_free(feed(w, &q, evd, stream)?)?,
                    _ => refused(feed(w, &q, evd, stream), clash)?,
                }
            }
            w.b.ep_free(plain)?;
            let one = feed(w, &q, evd, Receives(THRESHOLD))?;
            let clash = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg6);
            for other in [DEFAULT, UNSIGNALLED] {
                refused(w.b.ep_create(q.pz, none, evd, none, Some(&of(DEFAULT, other))), clash)?;
                refused(w.b.ep_create(q.pz, evd, none, none, Some(&of(other, DEFAULT))), clash)?;
            }
            // A change.
            let second = feed(w, &q, none, Requests(DEFAULT))?;
            let before = w.b.ep_query(second, EpParamMask::ALL)?;
            let mask = EpParamMask::REQUEST_EVD_HANDLE;
            let wanted = EpParam { request_evd_handle: evd, ep_attr: of(DEFAULT, THRESHOLD), ..before };
            let clash = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg3);
            refused(w.b.ep_modify(second, mask, &wanted), clash)?;
            check_eq!(w.b.ep_query(second, EpParamMask::ALL)?, before);
            let mask = mask | EpParamMask::EP_ATTR_REQUEST_COMPLETION_FLAGS;
            w.b.ep_modify(second, mask, &wanted)?;
            check_eq!(w.b.ep_query(second, EpParamMask::ALL)?, wanted);
            // An endpoint whose streams alone feed its event dispatcher can change its flags.
            w.b.ep_free(one)?;
            let mask = EpParamMask::EP_ATTR_REQUEST_COMPLETION_FLAGS;
            let wanted = EpParam { ep_attr: of(DEFAULT, UNSIGNALLED), ..wanted };
            w.b.ep_modify(second, mask, &wanted)?;
            check_eq!(config(&w.b, evd)?.bits(), 0x10);
            w.b.ep_free(second)?;
            Ok(w.b.evd_free(evd)?)
        })
    }),
    // Solicited Receives share an event dispatcher only with solicited Receives. Streams with
    // EVD_THRESHOLD may share it with streams that are not completions.
    test("dat_sharing::other_streams", &["dat_ep_create_with_srq B30 B32"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            for other in [EvdFlags::RMR_BIND, EvdFlags::CONNECTION, EvdFlags::CR, EvdFlags::SOFTWARE] {
                let evd = evd(&w.b, EvdFlags::DTO | other)?;
                let refusal = feed(w, &q, evd, Receives(SOLICITED)).map_err(Error::kind);
                refused(refusal, ErrorType::InvalidParameter)?;
                w.b.ep_free(feed(w, &q, evd, Receives(THRESHOLD))?)?;
                w.b.evd_free(evd)?;
            }
            let alone = evd(&w.b, EvdFlags::DTO)?;
            let solicited = feed(w, &q, alone, Receives(SOLICITED))?;
            let attr = EpAttr { recv_completion_flags: SOLICITED, ..attributes() };
            let (none, no_connections) = (EvdHandle::NULL, Subtype::InvalidHandleEvdConn);
            let refusal = w.b.ep_create_with_srq(q.pz, alone, none, alone, q.srq, &attr);
            refused(refusal, Error::new(ErrorType::InvalidHandle, no_connections))?;
            let refusal = w.b.psp_create_any(alone, PspFlags::Consumer);
            refused(refusal, Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEvdCr))?;
            refused(
                w.b.evd_post_se(alone, &Event::software(EvdHandle::NULL, 1)),
                Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle1),
            )?;
            w.b.ep_free(solicited)?;
            // Completions, connection events and software events together.
            let all = evd(&w.b, EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::SOFTWARE)?;
            let attr = EpAttr {
                recv_completion_flags: THRESHOLD,
                request_completion_flags: THRESHOLD,
                ..attributes()
            };
            let ep = w.b.ep_create_with_srq(q.pz, all, all, all, q.srq, &attr)?;
            let own = End { ia: w.b.clone(), ep, pz: q.pz, recv: all, request: all, connect: all };
            let far = w.end(&w.a, &attributes())?;
            w.connect(&far, &own)?;
            w.b.srq_post_recv(q.srq, &[], 1)?;
            message(&far, 2)?;
            own.received(1, DtoStatus::Success)?;
            w.b.evd_post_se(all, &Event::software(EvdHandle::NULL, 5))?;
            expect(&w.b, all, EventNumber::SOFTWARE)?;
            far.disconnect()?;
            expect(&w.b, all, EventNumber::CONNECTION_DISCONNECTED)?;
            Ok(())
        })
    }),
    // Each Receive of the queue completes with notification: it wakes a waiter and triggers the
    // CNO, whether or not the sender solicits that. The flag UNSIGNALLED is refused.
    test("dat_sharing::receives_notify", &["dat_ep_create_with_srq A03 B29"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let attr = EpAttr { recv_completion_flags: UNSIGNALLED, ..attributes() };
            let refusal =
                w.b.ep_create_with_srq(q.pz, EvdHandle::NULL, EvdHandle::NULL, EvdHandle::NULL, q.srq, &attr);
            refused(refusal, Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg7))?;
            for flags in [DEFAULT, THRESHOLD] {
                let (far, own) = pair(w, &q, flags, DEFAULT)?;
                for solicits in [DEFAULT, SOLICITED, DEFAULT] {
                    w.b.srq_post_recv(q.srq, &[], 7)?;
                    let waits = waiter(w, own.recv, 1)?;
                    solicit(&far, 1, solicits)?;
                    let (event, nmore) = waits.join()??;
                    check_eq!((event.dto().map(|done| done.user_cookie), nmore), (Some(7), 0));
                }
                let cno = w.b.cno_create(None)?;
                w.b.evd_modify_cno(own.recv, cno)?;
                for solicits in [DEFAULT, SOLICITED, DEFAULT] {
                    w.b.srq_post_recv(q.srq, &[], 8)?;
                    refused(w.b.cno_wait(cno, 0), ErrorType::QueueEmpty.into())?;
                    solicit(&far, 1, solicits)?;
                    check_eq!(w.b.cno_wait(cno, LONG)?, own.recv);
                    own.received(8, DtoStatus::Success)?;
                }
            }
            Ok(())
        })
    }),
    // With SOLICITED_WAIT the sender decides: only the Receive of a solicited message wakes a
    // waiter or triggers the CNO. A failed Receive always does. A wait with a threshold is refused.
    test("dat_sharing::solicited_receives", &["dat_ep_create_with_srq B33"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = pair(w, &q, SOLICITED, DEFAULT)?;
            for cookie in 0..8 {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
            }
            let threshold = w.b.evd_wait(own.recv, 0, 2).map_err(Error::from).map_err(Error::kind);
            refused(threshold, ErrorType::InvalidState)?;
            message(&far, 1)?;
            quiet(w, &w.b, own.recv, 1)?;
            let waits = waiter(w, own.recv, 1)?;
            message(&far, 1)?;
            check!(!waits.is_done());
            solicit(&far, 1, SOLICITED)?;
            let (event, nmore) = waits.join()??;
            check_eq!((event.dto().map(|done| done.user_cookie), nmore), (Some(0), 2));
            for cookie in 1..3 {
                check_eq!(w.b.evd_dequeue(own.recv)?.dto().map(|done| done.user_cookie), Some(cookie));
            }
            let cno = w.b.cno_create(None)?;
            w.b.evd_modify_cno(own.recv, cno)?;
            message(&far, 1)?;
            refused(w.b.cno_wait(cno, SHORT), ErrorType::QueueEmpty.into())?;
            solicit(&far, 1, SOLICITED)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, own.recv);
            for cookie in 3..5 {
                check_eq!(w.b.evd_dequeue(own.recv)?.dto().map(|done| done.user_cookie), Some(cookie));
            }
            refused(w.b.evd_dequeue(own.recv), ErrorType::QueueEmpty.into())?;
            // The Receive is shorter than the message.
            let memory = w.region(&far, 64, MemPriv::ALL)?;
            far.send(&[memory.segment(0, 8)], 1)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, own.recv);
            own.received(5, DtoStatus::LocalLength)?;
            Ok(())
        })
    }),
    // If requests have UNSIGNALLED, the poster decides for each request: only a signalled one wakes
    // a waiter or triggers the CNO. All completions come, in order. A failure always notifies. On
    // other endpoints an unsignalled request is refused.
    test("dat_sharing::unsignalled_requests", &["dat_ep_create_with_srq A05"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = pair(w, &q, DEFAULT, UNSIGNALLED)?;
            let refusal = w.a.ep_post_send(far.ep, &[], 1, UNSIGNALLED).map_err(Error::kind);
            refused(refusal, ErrorType::InvalidParameter)?;
            for cookie in 0..16 {
                far.receive(&[], cookie)?;
            }
            let post = |cookie, flags| w.b.ep_post_send(own.ep, &[], cookie, flags);
            post(0, UNSIGNALLED)?;
            post(1, UNSIGNALLED)?;
            quiet(w, &w.b, own.request, 2)?;
            let refusal = Error::new(ErrorType::InvalidState, Subtype::InvalidStateEvdConfigNotify);
            refused(w.b.evd_wait(own.request, 0, 2).map_err(Error::from), refusal)?;
            let waits = waiter(w, own.request, 1)?;
            post(2, UNSIGNALLED)?;
            far.received(0, DtoStatus::Success)?;
            check!(!waits.is_done());
            post(3, DEFAULT)?;
            let (event, nmore) = waits.join()??;
            check_eq!((event.dto().map(|done| done.user_cookie), nmore), (Some(0), 3));
            for cookie in 1..4 {
                check_eq!(w.b.evd_dequeue(own.request)?.dto().map(|done| done.user_cookie), Some(cookie));
            }
            let cno = w.b.cno_create(None)?;
            w.b.evd_modify_cno(own.request, cno)?;
            post(4, UNSIGNALLED)?;
            post(5, UNSIGNALLED | CompletionFlags::SUPPRESS)?;
            refused(w.b.cno_wait(cno, SHORT), ErrorType::QueueEmpty.into())?;
            post(6, DEFAULT)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, own.request);
            for cookie in [4, 6] {
                check_eq!(w.b.evd_dequeue(own.request)?.dto().map(|done| done.user_cookie), Some(cookie));
            }
            // A Receive of the same endpoint notifies.
            w.b.srq_post_recv(q.srq, &[], 7)?;
            message(&far, 1)?;
            own.received(7, DtoStatus::Success)?;
            // A failure.
            own.disconnect()?;
            post(8, UNSIGNALLED)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, own.request);
            own.done(8, DtoStatus::Flushed)?;
            Ok(())
        })
    }),
    // With EVD_THRESHOLD a waiter sleeps until as many events are queued as its threshold.
    test("dat_sharing::threshold_of_a_wait", &["dat_ep_create_with_srq B34"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = pair(w, &q, THRESHOLD, THRESHOLD)?;
            for cookie in 0..16 {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
            }
            let cookie = |event: Event| event.dto().map(|done| done.user_cookie);
            message(&far, 1)?;
            message(&far, 1)?;
            let (event, nmore) = w.b.evd_wait(own.recv, LONG, 2)?;
            check_eq!((cookie(event), nmore), (Some(0), 1));
            let timeout = WaitError { error: ErrorType::TimeoutExpired.into(), nmore: 1 };
            refused(w.b.evd_wait(own.recv, SHORT, 3), timeout)?;
            message(&far, 1)?;
            let waits = waiter(w, own.recv, 3)?;
            check!(!waits.is_done());
            message(&far, 1)?;
            let (event, nmore) = waits.join()??;
            check_eq!((cookie(event), nmore), (Some(1), 2));
            // The threshold is between one and what the queue holds.
            let most = w.b.evd_query(own.recv)?.evd_qlen;
            let bad = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg3);
            for threshold in [0, most + 1, usize::MAX] {
                refused(w.b.evd_wait(own.recv, 0, threshold).map_err(Error::from), bad)?;
            }
            let timeout = WaitError { error: ErrorType::TimeoutExpired.into(), nmore: 2 };
            refused(w.b.evd_wait(own.recv, 0, most), timeout)?;
            Ok(())
        })
    }),
];
