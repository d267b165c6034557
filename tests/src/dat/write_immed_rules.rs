//! RDMA Writes with immediate data (IB extensions 2.1.4): flags, states, refusals and failures.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use nic_abi::admin::Injection;
use privileged_api as it;

use super::world::*;
use super::write_immed::{got_message, notified, receives, write, written};
use crate::fixture::{self, PAGE, attributes as plain_attributes, path};
use crate::thread::{all_pass, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, refused, some, test};

/// A bad argument.
pub(crate) const BAD: Error = Error::new(ErrorType::InvalidParameter, Subtype::None);
/// A handle that names no endpoint.
pub(crate) const NO_EP: Error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
/// As many requests as the endpoint can have are outstanding.
pub(crate) const FULL: Error = Error::new(ErrorType::InsufficientResources, Subtype::ResourceTep);

/// Attributes of an endpoint whose requests may be unsignalled.
pub(crate) fn unsignalled() -> EpAttr {
    EpAttr { request_completion_flags: CompletionFlags::UNSIGNALLED, ..attributes() }
}

/// Waits until this many events are queued, none of which may end a wait.
#[track_caller]
pub(crate) fn silently(w: &World<'_>, ia: &Ia, evd: EvdHandle, count: usize) -> Outcome {
    let mut last = None;
    let queued = eventually(w.f.platform(), || match ia.evd_wait(evd, 0, 1) {
        Err(WaitError { error, nmore }) if error.kind() == ErrorType::TimeoutExpired => nmore == count,
        other => {
            last = Some(other);
            true
        }
    });
    check_eq!((queued, last), (true, None));
    Ok(())
}

/// The number of heap allocations during the work. Other threads may allocate at the same time, so
/// this is the lowest number of several attempts.
pub(crate) fn allocations(w: &World<'_>, mut work: impl FnMut() -> Outcome) -> Result<u64, Failure> {
    let mut fewest = u64::MAX;
    for _ in 0..5 {
        let before = (w.f.setup.usage)().requests;
        work()?;
        fewest = fewest.min((w.f.setup.usage)().requests - before);
    }
    Ok(fewest)
}

/// Endpoints of `a`, one in each state in which no request can be posted.
pub(crate) fn in_other_states(w: &World<'_>) -> Result<Vec<(EpHandle, EpState, Subtype)>, Failure> {
    let requests = evd(&w.a, EvdFlags::CR)?;
    let idle = w.end(&w.a, &attributes())?;
    // Reserved by a service point.
    let reserved = w.end(&w.a, &attributes())?;
    w.a.rsp_create(0x7101, reserved.ep, requests)?;
    // A request came to the service point, and is not answered.
    let pending = w.end(&w.a, &attributes())?;
    w.a.rsp_create(0x7102, pending.ep, requests)?;
    let caller = w.end(&w.b, &attributes())?;
    dial(&caller, address(&w.a)?, 0x7102, &[])?;
    request(&w.a, requests)?;
    // The endpoint's own request is not answered.
    let there = evd(&w.b, EvdFlags::CR)?;
    let (conn_qual, _) = w.b.psp_create_any(there, PspFlags::Consumer)?;
    let active = w.end(&w.a, &attributes())?;
    dial(&active, address(&w.b)?, conn_qual, &[])?;
    // The endpoint has accepted, and the peer's consumer, which has to confirm, does not.
    let accepted = w.end(&w.a, &attributes())?;
    let (conn_qual, _) = w.a.psp_create_any(requests, PspFlags::Consumer)?;
    let peer = w.f.end(&w.f.b, &plain_attributes())?;
    let to = some(fixture::spigot(&w.f.a)?.net_addr.first().copied(), "a network address")?;
    let (path, service) = (path(&peer.ia, &to)?, it::ConnQual::service_id(conn_qual));
    peer.ia.ep_connect(peer.ep, &path, None, &service, it::CnEstFlags::THREE_WAY, &[])?;
    w.a.cr_accept(request(&w.a, requests)?, accepted.ep, &[])?;
    let all = [
        (idle.ep, EpState::Unconnected, Subtype::InvalidStateEpUnconnected),
        (reserved.ep, EpState::Reserved, Subtype::InvalidStateEpReserved),
        (pending.ep, EpState::PassiveConnectionPending, Subtype::InvalidStateEpPassConnPending),
        (active.ep, EpState::ActiveConnectionPending, Subtype::InvalidStateEpActConnPending),
        (accepted.ep, EpState::CompletionPending, Subtype::InvalidStateEpComplPending),
    ];
    for (ep, state, _) in all {
        check_eq!(w.a.ep_get_status(ep)?.0, state);
    }
    Ok(all.into())
}

/// Handles that name no endpoint for connections of `a`: null, freed, of another IA, of another
/// type, of a datagram endpoint, of IT-API.
pub(crate) fn no_endpoints(w: &World<'_>, own: &End) -> Result<Vec<EpHandle>, Failure> {
    let (freed, foreign) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
    w.a.ep_free(freed.ep)?;
    let ud = w.end(&w.a, &datagrams())?;
    let other_face = w.f.end(&w.f.a, &plain_attributes())?.ep.as_raw();
    let words = [0, freed.ep.as_raw(), foreign.ep.as_raw(), own.pz.as_raw(), ud.ep.as_raw(), other_face];
    Ok(words.into_iter().map(EpHandle::from_raw).collect())
}

pub(crate) const TESTS: &[Test] = &[
    // A suppressed Write makes no event if it succeeds, and makes one if it fails. The peer gets
    // its event in either case.
    test(
        "dat_write_immed_rules::suppressed",
        &["dat_ib_post_rdma_write_with_immed F01", "DAT_IB_STATUS B01 F02"],
        |f| {
            world(f, |w| {
                check_eq!((CompletionFlags::SUPPRESS.bits(), IbStatus::Success as u32), (1, 0));
                check_eq!(IbStatus::Err as u32, 1);
                let (a, b, own, far) = w.open_pair()?;
                receives(&b, 0..3)?;
                let segment = [own.segment(0, 8)];
                write(&a, &segment, 0, far.remote(0, 8), 1, CompletionFlags::SUPPRESS)?;
                notified(&b, 0, 1, 8)?;
                write(&a, &segment, 1, far.remote(0, 8), 1, PLAIN)?;
                notified(&b, 1, 1, 8)?;
                written(&a, 1, DtoStatus::Success)?;
                nothing(&w.a, a.request)?;
                let nowhere = RmrTriplet { rmr_context: !far.remote(0, 8).rmr_context, ..far.remote(0, 8) };
                write(&a, &segment, 2, nowhere, 1, CompletionFlags::SUPPRESS)?;
                written(&a, 2, DtoStatus::RemoteAccess)
            })
        },
    ),
    // The completion of an unsignalled Write is queued and wakes no waiter; that of a signalled one
    // does. Without the flag in the endpoint's attributes, the post is refused.
    test("dat_write_immed_rules::unsignalled", &["dat_ib_post_rdma_write_with_immed B08 F03"], |f| {
        world(f, |w| {
            let flag = CompletionFlags::UNSIGNALLED;
            check_eq!(flag.bits(), 4);
            let (a, b) = w.pair_of(&unsignalled(), &attributes())?;
            let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
            receives(&b, 0..3)?;
            let (segment, to) = ([own.segment(0, 8)], far.remote(0, 8));
            write(&a, &segment, 0, to, 0, flag)?;
            write(&a, &segment, 1, to, 1, flag)?;
            silently(w, &w.a, a.request, 2)?;
            write(&a, &segment, 2, to, 2, PLAIN)?;
            for n in 0..3 {
                written(&a, n, DtoStatus::Success)?;
                notified(&b, n, n as u32, 8)?;
            }
            let (c, d) = w.pair()?;
            let to = w.region(&d, 64, OPEN)?.remote(0, 0);
            for flags in [flag, flag | CompletionFlags::SUPPRESS, flag | CompletionFlags::BARRIER_FENCE] {
                refused(write(&c, &[], 0, to, 0, flags), BAD)?;
            }
            check_eq!(w.a.ep_get_status(c.ep)?, (EpState::Connected, true, true));
            nothing(&w.a, c.request)
        })
    }),
    // On an event dispatcher of solicited Receives, only a solicited Write wakes the peer's waiter,
    // which then gets all events in order. A shared receive queue behaves the same.
    test("dat_write_immed_rules::solicited", &["dat_ib_post_rdma_write_with_immed F02"], |f| {
        world(f, |w| {
            let flag = CompletionFlags::SOLICITED_WAIT;
            check_eq!(flag.bits(), 2);
            let solicited = EpAttr { recv_completion_flags: flag, ..attributes() };
            for shared in [false, true] {
                let a = w.end(&w.a, &attributes())?;
                let b = if shared {
                    let pz = w.b.pz_create()?;
                    let srq = w.b.srq_create(pz, &SrqAttr::default())?;
                    (0..4).try_for_each(|cookie| w.b.srq_post_recv(srq, &[], cookie))?;
                    w.end_with_srq(&w.b, pz, srq, &solicited)?
                } else {
                    let b = w.end(&w.b, &solicited)?;
                    receives(&b, 0..4)?;
                    b
                };
                w.connect(&a, &b)?;
                let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                let (segment, to) = ([own.segment(0, 8)], far.remote(0, 8));
                write(&a, &segment, 0, to, 0, PLAIN)?;
                a.send(&[], 1)?;
                silently(w, &w.b, b.recv, 2)?;
                write(&a, &segment, 2, to, 2, flag)?;
                notified(&b, 0, 0, 8)?;
                got_message(&b, 1, 0)?;
                notified(&b, 2, 2, 8)?;
                write(&a, &segment, 3, to, 3, CompletionFlags::BARRIER_FENCE)?;
                silently(w, &w.b, b.recv, 1)?;
                check_eq!(w.b.evd_dequeue(b.recv)?.dto().map(|done| done.user_cookie), Some(3));
                written(&a, 0, DtoStatus::Success)?;
                a.done(1, DtoStatus::Success)?;
                (2..4).try_for_each(|n| written(&a, n, DtoStatus::Success))?;
            }
            Ok(())
        })
    }),
    // A fenced Write waits until an earlier Read has its data: the Read returns no byte of the
    // Write, and the Write sends what the Read returned. The answer to the Read is lost once.
    test("dat_write_immed_rules::fenced", &["dat_ib_post_rdma_write_with_immed F04"], |f| {
        world(f, |w| {
            check_eq!(CompletionFlags::BARRIER_FENCE.bits(), 8);
            let (a, b, own, far) = w.open_pair()?;
            let fence = CompletionFlags::BARRIER_FENCE;
            for round in 0..3 {
                far.fill(round);
                own.write(0, &[0; PAGE]);
                let before = far.bytes(0, PAGE);
                receives(&b, 0..2)?;
                f.inject(w.a.ep_qpn(a.ep)?, Injection::DropResponses, 1, 0)?;
                let half = PAGE / 2;
                a.ia.ep_post_rdma_read(a.ep, &[own.segment(0, half)], 1, &far.remote(0, half), PLAIN)?;
                write(&a, &[own.segment(half, half)], 2, far.remote(0, half), 2, fence)?;
                write(&a, &[own.segment(0, half)], 3, far.remote(half, half), 3, fence)?;
                a.done(1, DtoStatus::Success)?;
                written(&a, 2, DtoStatus::Success)?;
                written(&a, 3, DtoStatus::Success)?;
                notified(&b, 0, 2, half as u64)?;
                notified(&b, 1, 3, half as u64)?;
                check!(own.bytes(0, half) == before[..half], "the Read saw the Write");
                check!(far.bytes(half, half) == before[..half], "the Write did not wait for the Read");
                check!(far.bytes(0, half).iter().all(|byte| *byte == 0));
            }
            if !f.setup.packets {
                return not_shown("without packets a request begins when the one before is done");
            }
            Ok(())
        })
    }),
    // While the peer has no Receive, posts return at once, until as many requests as the endpoint
    // can have are outstanding. None of them is complete until the peer posts Receives; then each
    // completes once. Posts allocate nothing.
    test(
        "dat_write_immed_rules::posts_do_not_wait",
        &["dat_ib_post_rdma_write_with_immed A01 B12 DAT_INSUFFICIENT_RESOURCES"],
        |f| {
            world(f, |w| {
                const DEPTH: u64 = 16;
                let deep = EpAttr { max_request_dtos: DEPTH as usize, ..attributes() };
                let (a, b) = w.pair_of(&deep, &attributes())?;
                let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                let (segment, to) = ([own.segment(0, 8)], far.remote(0, 8));
                let allocated = allocations(w, || {
                    for n in 0..DEPTH {
                        write(&a, &segment, n, to, n as u32, PLAIN)?;
                    }
                    refused(write(&a, &segment, 99, to, 99, PLAIN), FULL)?;
                    refused(a.ia.evd_dequeue(a.request), Error::from(ErrorType::QueueEmpty))?;
                    receives(&b, 0..DEPTH)?;
                    for n in 0..DEPTH {
                        written(&a, n, DtoStatus::Success)?;
                        notified(&b, n, n as u32, 8)?;
                    }
                    Ok(())
                })?;
                check_eq!(allocated, 0);
                nothing(&w.a, a.request)?;
                nothing(&w.b, b.recv)
            })
        },
    ),
    // Threads post Writes and Receives to one endpoint at the same time, while the peer does the
    // same. Each request completes once, and those of one thread complete in their order.
    test("dat_write_immed_rules::several_threads", &["dat_ib_post_rdma_write_with_immed B13 O02"], |f| {
        world(f, |w| {
            const EACH: u64 = 60;
            let (_, _, provider) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
            check!(some(provider, "the provider's attributes")?.is_thread_safe);
            let deep = EpAttr { max_request_dtos: 128, max_recv_dtos: 128, ..attributes() };
            let (a, b) = w.pair_of(&deep, &deep)?;
            let mine = [w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?];
            let mut bodies: Vec<crate::thread::Body<Outcome>> = Vec::new();
            for (end, to) in [(&a, mine[1].remote(0, 8)), (&b, mine[0].remote(0, 8))] {
                for thread in 0..2 {
                    let (end, from): (_, [LmrTriplet; 0]) = (end.clone(), []);
                    bodies.push(Box::new(move || {
                        (0..EACH).try_for_each(|n| {
                            let cookie = thread * 1000 + n;
                            Ok(write(&end, &from, cookie, to, cookie as u32, PLAIN)?)
                        })
                    }));
                }
                let end = end.clone();
                bodies.push(Box::new(move || receives(&end, 0..2 * EACH)));
            }
            all_pass(f.platform(), bodies)?;
            for end in [&a, &b] {
                let (mut written, mut arrived) = ([0, 1000], [0, 1000]);
                for n in 0..2 * EACH {
                    let (done, _, _) = completion(&end.ia, end.request)?;
                    let place = &mut written[(done.user_cookie / 1000) as usize];
                    check_eq!((done.user_cookie, done.status), (*place, DtoStatus::Success));
                    *place += 1;
                    let (_, _, extension) = end.received(n, DtoStatus::Success)?;
                    let immediate = some(extension, "extension data")?.immed;
                    let place = &mut arrived[(immediate / 1000) as usize];
                    check_eq!(immediate, *place);
                    *place += 1;
                }
                check_eq!((written, arrived), ([EACH, 1000 + EACH], [EACH as u32, 1000 + EACH as u32]));
                nothing(&end.ia, end.request)?;
            }
            Ok(())
        })
    }),
    // A Write with immediate data can be posted only in CONNECTED and DISCONNECTED. In DISCONNECTED
    // it is flushed at once.
    test(
        "dat_write_immed_rules::states",
        &["dat_ib_post_rdma_write_with_immed B10 S01 DAT_INVALID_STATE"],
        |f| {
            world(f, |w| {
                let (a, b, own, far) = w.open_pair()?;
                let (segment, to) = ([own.segment(0, 8)], far.remote(0, 8));
                for (ep, state, subtype) in in_other_states(w)? {
                    let posted = w.a.ib_post_rdma_write_with_immed(ep, &segment, 1, &to, 1, PLAIN);
                    refused(posted, Error::new(ErrorType::InvalidState, subtype))?;
                    check_eq!(w.a.ep_get_status(ep)?, (state, true, true));
                }
                receives(&b, 0..1)?;
                a.disconnect()?;
                expect(&b.ia, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                b.received(0, DtoStatus::Flushed)?;
                own.fill(4);
                for cookie in 0..3 {
                    write(&a, &segment, cookie, to, 1, PLAIN)?;
                    written(&a, cookie, DtoStatus::Flushed)?;
                    write(&b, &[], cookie, own.remote(0, 8), 1, CompletionFlags::SUPPRESS)?;
                    written(&b, cookie, DtoStatus::Flushed)?;
                }
                far.untouched()
            })
        },
    ),
    // Too many segments, undefined flags, and handles that name no endpoint for connections are
    // refused, and nothing is posted.
    test(
        "dat_write_immed_rules::refusals",
        &["dat_ib_post_rdma_write_with_immed DAT_INVALID_HANDLE DAT_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let few = EpAttr { max_rdma_write_iov: 2, max_request_iov: 3, ..attributes() };
                let (a, b) = w.pair_of(&few, &attributes())?;
                let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                let (segments, to) = ([own.segment(0, 8); 4], far.remote(0, 16));
                receives(&b, 0..1)?;
                for count in [3, 4] {
                    refused(write(&a, &segments[..count], 1, to, 1, PLAIN), BAD)?;
                }
                for bits in (4..32).map(|bit| 1 << bit).chain([u32::MAX]) {
                    let flags = CompletionFlags::from_bits_retain(bits);
                    refused(write(&a, &segments[..1], 1, to, 1, flags), BAD)?;
                }
                for ep in no_endpoints(w, &a)? {
                    let posted = w.a.ib_post_rdma_write_with_immed(ep, &segments[..1], 1, &to, 1, PLAIN);
                    check_eq!(posted, Err(NO_EP), "{ep:?}");
                }
                check_eq!(w.a.ep_get_status(a.ep)?, (EpState::Connected, true, true));
                nothing(&w.a, a.request)?;
                far.untouched()?;
                write(&a, &segments[..2], 2, to, 3, PLAIN)?;
                written(&a, 2, DtoStatus::Success)?;
                notified(&b, 0, 3, 16)
            })
        },
    ),
    // A Write whose own memory cannot be read, or that the peer's memory does not allow, fails with
    // its own status. The peer's Receive does not succeed, and the connection breaks.
    test("dat_write_immed_rules::failures", &["dat_ib_post_rdma_write_with_immed B03 X01"], |f| {
        type Spoil = fn(&World<'_>, &End, &End, Bad) -> Result<Bad, Failure>;
        type Bad = (LmrTriplet, RmrTriplet);
        let (local, remote) = (DtoStatus::LocalProtection, DtoStatus::RemoteAccess);
        let cases: [(Spoil, DtoStatus); 9] = [
            (
                |w, a, _, (_, to)| {
                    let elsewhere = w.region_in(&a.ia, a.ia.pz_create()?, 64, OPEN)?;
                    Ok((elsewhere.segment(0, 8), to))
                },
                local,
            ),
            (
                |_, _, _, (from, to)| {
                    let at = from.virtual_address() + PAGE as u64 - 7;
                    Ok((LmrTriplet::new(from.lmr_context(), at, 8), to))
                },
                local,
            ),
            (|_, _, _, (_, to)| Ok((LmrTriplet::new(LmrContext::default(), 64, 8), to)), local),
            (
                |w, a, _, (_, to)| {
                    let freed = w.region(a, 64, OPEN)?;
                    a.ia.lmr_free(freed.lmr.lmr_handle)?;
                    Ok((freed.segment(0, 8), to))
                },
                local,
            ),
            (
                |w, _, b, (from, _)| {
                    let privs = OPEN.difference(MemPriv::REMOTE_WRITE);
                    Ok((from, w.region(b, 64, privs)?.remote(0, 8)))
                },
                remote,
            ),
            (
                |w, _, b, (from, _)| {
                    let elsewhere = w.region_in(&b.ia, b.ia.pz_create()?, 64, OPEN)?;
                    Ok((from, elsewhere.remote(0, 8)))
                },
                remote,
            ),
            (
                // The remote buffer is too small.
                |w, _, b, (from, _)| Ok((from, w.region(b, 7, OPEN)?.remote(0, 8))),
                remote,
            ),
            (
                |_, _, _, (from, to)| {
                    let target_address = to.target_address - 8;
                    Ok((from, RmrTriplet { target_address, ..to }))
                },
                remote,
            ),
            (|_, _, _, (from, to)| Ok((from, RmrTriplet { rmr_context: !to.rmr_context, ..to })), remote),
        ];
        for (number, (spoil, status)) in cases.into_iter().enumerate() {
            // Each case has its own world, since a failed endpoint needs new ones.
            world(f, |w| {
                let (a, b, own, far) = w.open_pair()?;
                own.fill(1);
                receives(&b, 0..2)?;
                write(&a, &[own.segment(0, 8)], 1, far.remote(64, 8), 1, PLAIN)?;
                let (from, to) = spoil(w, &a, &b, (own.segment(0, 8), far.remote(0, 8)))?;
                write(&a, &[from], 2, to, 2, PLAIN)?;
                write(&a, &[], 3, far.remote(0, 8), 3, PLAIN)?;
                written(&a, 1, DtoStatus::Success)?;
                let (done, event, extension) = completion(&w.a, a.request)?;
                check_eq!((done.user_cookie, done.status), (2, status), "case {number}");
                check_eq!((event, done.operation.as_raw()), (EventNumber::IB_DTO, 8));
                check_eq!(extension.map(|data| data.status), Some(IbStatus::Err));
                written(&a, 3, DtoStatus::Flushed)?;
                expect(&w.a, a.connect, EventNumber::CONNECTION_BROKEN)?;
                check_eq!(a.state()?, EpState::Disconnected);
                notified(&b, 0, 1, 8)?;
                b.received(1, DtoStatus::Flushed)?;
                next(&w.b, b.connect)?;
                check_eq!(b.state()?, EpState::Disconnected);
                check_eq!(far.bytes(0, 64), [0; 64]);
                Ok(())
            })?;
        }
        Ok(())
    }),
];
