//! Atomic operations (IB extensions 2.2.5): flags, states, refusals and failures.

use core::result::Result;

use dat::*;

use super::atomics::{Atomic, BOTH, add, swap};
use super::world::*;
use super::write_immed::{notified, receives, write, written};
use super::write_immed_rules::{
    BAD, FULL, NO_EP, allocations, in_other_states, no_endpoints, silently, unsignalled,
};
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check_eq, refused, test};

/// A local segment that is too short for the result.
const SHORT: Error = Error::new(ErrorType::LengthError, Subtype::None);

pub(crate) const TESTS: &[Test] = &[
    // A suppressed atomic makes no event if it succeeds, and makes one if it fails.
    test(
        "dat_atomics_rules::suppressed",
        &["dat_ib_post_cmp_and_swap F01", "dat_ib_post_fetch_and_add F01", "DAT_IB_STATUS B01 F02"],
        |f| {
            world(f, |w| {
                for atomic in BOTH {
                    let (a, _, own, far) = w.open_pair()?;
                    let (result, flag) = (own.segment(0, 8), CompletionFlags::SUPPRESS);
                    atomic.post(&a, result, 1, far.remote(0, 8), flag)?;
                    atomic.post(&a, result, 2, far.remote(8, 8), PLAIN)?;
                    atomic.done(&a, 2, DtoStatus::Success)?;
                    nothing(&w.a, a.request)?;
                    check_eq!((far.word(0), far.word(8)), (1, 1));
                    atomic.post(&a, result, 3, far.remote(PAGE, 8), flag)?;
                    atomic.done(&a, 3, DtoStatus::RemoteAccess)?;
                }
                Ok(())
            })
        },
    ),
    // The completion of an unsignalled atomic is queued and wakes no waiter; that of a signalled
    // one does. Without the flag in the endpoint's attributes, the post is refused.
    test(
        "dat_atomics_rules::unsignalled",
        &["dat_ib_post_cmp_and_swap B09 F03", "dat_ib_post_fetch_and_add F02 DAT_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let flag = CompletionFlags::UNSIGNALLED;
                for atomic in BOTH {
                    let (a, b) = w.pair_of(&unsignalled(), &attributes())?;
                    let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                    atomic.post(&a, own.segment(0, 8), 1, far.remote(0, 8), flag)?;
                    silently(w, &w.a, a.request, 1)?;
                    atomic.post(&a, own.segment(0, 8), 2, far.remote(8, 8), PLAIN)?;
                    atomic.done(&a, 1, DtoStatus::Success)?;
                    atomic.done(&a, 2, DtoStatus::Success)?;
                    check_eq!((far.word(0), far.word(8)), (1, 1));
                    let (c, d) = w.pair()?;
                    let (own, far) = (w.region(&c, 64, OPEN)?, w.region(&d, 64, OPEN)?);
                    for flags in [flag, flag | CompletionFlags::SUPPRESS] {
                        refused(atomic.post(&c, own.segment(0, 8), 1, far.remote(0, 8), flags), BAD)?;
                    }
                    check_eq!(w.a.ep_get_status(c.ep)?, (EpState::Connected, true, true));
                    far.untouched()?;
                }
                Ok(())
            })
        },
    ),
    // A compare and swap may be solicited, without an effect: no waiter of the peer wakes. A fetch
    // and add may not be.
    test("dat_atomics_rules::solicited", &["dat_ib_post_cmp_and_swap A02 F02"], |f| {
        world(f, |w| {
            let flag = CompletionFlags::SOLICITED_WAIT;
            let solicited = EpAttr { recv_completion_flags: flag, ..attributes() };
            let (a, b) = w.pair_of(&attributes(), &solicited)?;
            let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
            receives(&b, 0..1)?;
            a.send(&[], 1)?;
            a.done(1, DtoStatus::Success)?;
            let result = own.segment(0, 8);
            for (flags, n) in [(flag, 0), (flag | CompletionFlags::BARRIER_FENCE, 1)] {
                swap(&a, (n, n + 1), result, 2, far.remote(0, 8), flags)?;
                Atomic::Swap.done(&a, 2, DtoStatus::Success)?;
                refused(add(&a, 1, result, 3, far.remote(0, 8), flags), BAD)?;
            }
            check_eq!(far.word(0), 2);
            silently(w, &w.b, b.recv, 1)?;
            nothing(&w.a, a.request)
        })
    }),
    // While the peer has no Receive for an earlier request, posts return at once, until as many
    // requests as the endpoint can have are outstanding. Then each completes once. Posts allocate
    // nothing.
    test(
        "dat_atomics_rules::posts_do_not_wait",
        &["dat_ib_post_cmp_and_swap A01 B05 DAT_INSUFFICIENT_RESOURCES", "dat_ib_post_fetch_and_add A01 B04"],
        |f| {
            world(f, |w| {
                const DEPTH: u64 = 16;
                let deep = EpAttr { max_request_dtos: DEPTH as usize, ..attributes() };
                for atomic in BOTH {
                    let (a, b) = w.pair_of(&deep, &attributes())?;
                    let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                    let (result, to) = (own.segment(0, 8), far.remote(0, 8));
                    let round = |look: bool| -> Outcome {
                        far.set_word(0, 0);
                        write(&a, &[], 0, to, 7, PLAIN)?;
                        for n in 1..DEPTH {
                            atomic.post(&a, result, n, to, PLAIN)?;
                        }
                        refused(atomic.post(&a, result, 99, to, PLAIN), FULL)?;
                        refused(w.a.evd_dequeue(a.request), Error::from(ErrorType::QueueEmpty))?;
                        if look {
                            check_eq!(far.word(0), 0);
                        }
                        receives(&b, 0..1)?;
                        written(&a, 0, DtoStatus::Success)?;
                        (1..DEPTH).try_for_each(|n| atomic.done(&a, n, DtoStatus::Success))?;
                        notified(&b, 0, 7, 0)
                    };
                    round(true)?;
                    check_eq!(allocations(w, || round(false))?, 0);
                    let adds = if atomic == Atomic::Add { DEPTH - 1 } else { 1 };
                    check_eq!(far.word(0), adds);
                    nothing(&w.a, a.request)?;
                }
                Ok(())
            })
        },
    ),
    // Atomics can be posted only in CONNECTED and DISCONNECTED. In DISCONNECTED they are flushed at
    // once.
    test(
        "dat_atomics_rules::states",
        &["dat_ib_post_cmp_and_swap B11 S01 DAT_INVALID_STATE", "dat_ib_post_fetch_and_add A02 B09 S01"],
        |f| {
            world(f, |w| {
                let (a, b, own, far) = w.open_pair()?;
                let (result, to) = (own.segment(0, 8), far.remote(0, 8));
                for (ep, state, subtype) in in_other_states(w)? {
                    for atomic in BOTH {
                        let posted = atomic.post_to(&w.a, ep, result, 1, to, PLAIN);
                        refused(posted, Error::new(ErrorType::InvalidState, subtype))?;
                    }
                    check_eq!(w.a.ep_get_status(ep)?, (state, true, true));
                }
                far.untouched()?;
                for (cookie, atomic) in (0..).zip(BOTH) {
                    atomic.post(&a, result, cookie, to, PLAIN)?;
                    atomic.done(&a, cookie, DtoStatus::Success)?;
                }
                check_eq!(far.word(0), 1);
                a.disconnect()?;
                expect(&b.ia, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                for flags in [PLAIN, CompletionFlags::SUPPRESS, CompletionFlags::BARRIER_FENCE] {
                    for (cookie, atomic) in (0..).zip(BOTH) {
                        atomic.post(&a, result, cookie, to, flags)?;
                        atomic.done(&a, cookie, DtoStatus::Flushed)?;
                        atomic.post(&b, far.segment(64, 8), cookie, own.remote(0, 8), flags)?;
                        atomic.done(&b, cookie, DtoStatus::Flushed)?;
                    }
                }
                check_eq!((far.word(0), far.word(64)), (1, 0));
                Ok(())
            })
        },
    ),
    // Both calls refuse the same arguments with the same errors: a result of fewer than eight
    // bytes, undefined flags, handles that name no endpoint for connections. Nothing is posted.
    test(
        "dat_atomics_rules::refusals",
        &[
            "dat_ib_post_cmp_and_swap A04 DAT_INVALID_HANDLE DAT_INVALID_PARAMETER",
            "dat_ib_post_cmp_and_swap DAT_LENGTH_ERROR",
            "dat_ib_post_fetch_and_add A02",
            "dat-ib-2.2 B03",
        ],
        |f| {
            world(f, |w| {
                let (a, _, own, far) = w.open_pair()?;
                let to = far.remote(0, 8);
                let none = no_endpoints(w, &a)?;
                for atomic in BOTH {
                    for length in [0, 1, 4, 7] {
                        refused(atomic.post(&a, own.segment(0, length), 1, to, PLAIN), SHORT)?;
                    }
                    for bits in (4..32).map(|bit| 1 << bit).chain([u32::MAX]) {
                        let flags = CompletionFlags::from_bits_retain(bits);
                        refused(atomic.post(&a, own.segment(0, 8), 1, to, flags), BAD)?;
                    }
                    for ep in &none {
                        let posted = atomic.post_to(&w.a, *ep, own.segment(0, 8), 1, to, PLAIN);
                        check_eq!(posted, Err(NO_EP), "{ep:?}");
                    }
                    let posted = atomic.post_to(&w.a, none[0], own.segment(0, 7), 1, to, PLAIN);
                    refused(posted, NO_EP)?;
                }
                check_eq!(w.a.ep_get_status(a.ep)?, (EpState::Connected, true, true));
                nothing(&w.a, a.request)?;
                far.untouched()?;
                own.untouched()?;
                for atomic in BOTH {
                    atomic.post(&a, own.segment(0, 8), 1, to, PLAIN)?;
                    atomic.done(&a, 1, DtoStatus::Success)?;
                }
                check_eq!(far.word(0), 1);
                Ok(())
            })
        },
    ),
    // An atomic fails with its own status if its result cannot be written, or if the peer's memory
    // lacks the privilege for atomics. So does an atomic with a misaligned remote address,
    // and one of an endpoint that allows no RDMA Reads. The connection breaks, and the memory keeps
    // its value.
    test(
        "dat_atomics_rules::failures",
        &["DAT_IB_MEM_PRIV_FLAGS F01", "dat-ib-2.2 A01 L01", "dat_ib_post_cmp_and_swap A03"],
        |f| {
            check_eq!((MemPriv::IB_REMOTE_ATOMIC.bits(), OPEN.bits()), (0x40, 0x73));
            type Bad = (LmrTriplet, RmrTriplet);
            type Spoil = fn(&World<'_>, &End, &End, Bad) -> Result<Bad, Failure>;
            let (local, remote) = (DtoStatus::LocalProtection, DtoStatus::RemoteAccess);
            let cases: [(Spoil, DtoStatus); 11] = [
                (|w, a, _, (_, to)| Ok((w.region(a, 64, MemPriv::LOCAL_READ)?.segment(0, 8), to)), local),
                (
                    |w, a, _, (_, to)| {
                        let elsewhere = w.region_in(&a.ia, a.ia.pz_create()?, 64, OPEN)?;
                        Ok((elsewhere.segment(0, 8), to))
                    },
                    local,
                ),
                (
                    |_, _, _, (result, to)| {
                        let at = result.virtual_address() + PAGE as u64 - 7;
                        Ok((LmrTriplet::new(result.lmr_context(), at, 8), to))
                    },
                    local,
                ),
                (|_, _, _, (_, to)| Ok((LmrTriplet::new(LmrContext::default(), 64, 8), to)), local),
                (|w, _, b, (result, _)| Ok((result, w.region(b, 64, MemPriv::ALL)?.remote(0, 8))), remote),
                (
                    |w, _, b, (result, _)| {
                        let elsewhere = w.region_in(&b.ia, b.ia.pz_create()?, 64, OPEN)?;
                        Ok((result, elsewhere.remote(0, 8)))
                    },
                    remote,
                ),
                (
                    |_, _, _, (result, to)| {
                        Ok((result, RmrTriplet { target_address: to.target_address - 8, ..to }))
                    },
                    remote,
                ),
                (
                    |_, _, _, (result, to)| Ok((result, RmrTriplet { rmr_context: !to.rmr_context, ..to })),
                    remote,
                ),
                (
                    |_, _, _, (result, to)| {
                        Ok((result, RmrTriplet { target_address: to.target_address + 1, ..to }))
                    },
                    remote,
                ),
                (
                    |_, _, _, (result, to)| {
                        Ok((result, RmrTriplet { target_address: to.target_address + 4, ..to }))
                    },
                    remote,
                ),
                (
                    |_, _, _, (result, to)| {
                        Ok((result, RmrTriplet { target_address: to.target_address + 7, ..to }))
                    },
                    remote,
                ),
            ];
            for (spoil, status) in cases {
                for atomic in BOTH {
                    // Each case has its own world, since a failed endpoint needs new ones.
                    world(f, |w| {
                        let (a, b, own, far) = w.open_pair()?;
                        receives(&b, 0..1)?;
                        let good = (own.segment(0, 8), far.remote(0, 8));
                        atomic.post(&a, good.0, 1, far.remote(64, 8), PLAIN)?;
                        let (result, to) = spoil(w, &a, &b, good)?;
                        atomic.post(&a, result, 2, to, PLAIN)?;
                        atomic.post(&a, good.0, 3, good.1, PLAIN)?;
                        atomic.done(&a, 1, DtoStatus::Success)?;
                        atomic.done(&a, 2, status)?;
                        atomic.done(&a, 3, DtoStatus::Flushed)?;
                        expect(&w.a, a.connect, EventNumber::CONNECTION_BROKEN)?;
                        b.received(0, DtoStatus::Flushed)?;
                        next(&w.b, b.connect)?;
                        let states = (a.state()?, b.state()?);
                        check_eq!(states, (EpState::Disconnected, EpState::Disconnected));
                        check_eq!((far.word(64), far.word(0), far.word(8)), (1, 0, 0));
                        Ok(())
                    })?;
                }
            }
            Ok(())
        },
    ),
    // The privilege for atomics is enough for them, on a region and on a window. It lets peers
    // neither read nor write the memory in other ways.
    test("dat_atomics_rules::the_privilege_alone", &["DAT_IB_MEM_PRIV_FLAGS F01"], |f| {
        let alone = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE | MemPriv::IB_REMOTE_ATOMIC;
        for reads in [false, true] {
            world(f, |w| {
                let (a, b) = w.pair()?;
                let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, 64, alone)?);
                check_eq!(w.b.lmr_query(far.lmr.lmr_handle)?.mem_priv, alone);
                let base = w.region(&b, 64, MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE)?;
                let (rmr, privs) = (w.b.rmr_create(b.pz)?, MemPriv::IB_REMOTE_ATOMIC);
                let (lmr, piece) = (base.lmr.lmr_handle, base.segment(0, 64));
                let rmr_context = w.b.rmr_bind(rmr, lmr, &piece, privs, VaType::Va, b.ep, 40, PLAIN)?;
                expect(&w.b, b.request, EventNumber::RMR_BIND_COMPLETION)?;
                check_eq!(w.b.rmr_query(rmr)?.mem_priv, privs);
                let window = |at| RmrTriplet { rmr_context, ..base.remote(at, 8) };
                for (at, atomic) in [0, 8].into_iter().zip(BOTH) {
                    for to in [far.remote(at, 8), window(at)] {
                        atomic.post(&a, own.segment(0, 8), 1, to, PLAIN)?;
                        atomic.done(&a, 1, DtoStatus::Success)?;
                    }
                    check_eq!((far.word(at), base.word(at)), (1, 1));
                }
                let (segment, to) = ([own.segment(0, 8)], if reads { far.remote(0, 8) } else { window(0) });
                match reads {
                    true => w.a.ep_post_rdma_read(a.ep, &segment, 2, &to, PLAIN)?,
                    false => w.a.ep_post_rdma_write(a.ep, &segment, 2, &to, PLAIN)?,
                }
                a.done(2, DtoStatus::RemoteAccess)?;
                check_eq!((far.word(0), base.word(0)), (1, 1));
                // A window keeps its region from being freed.
                Ok(w.b.rmr_free(rmr)?)
            })?;
        }
        Ok(())
    }),
    // Atomics count as RDMA Reads: an endpoint with a limit of zero cannot do them, and one with a
    // limit of one does many, one after the other.
    test("dat_atomics_rules::as_many_as_reads", &[], |f| {
        world(f, |w| {
            for atomic in BOTH {
                for (reads, status) in [(1, DtoStatus::Success), (0, DtoStatus::LocalEp)] {
                    let few = EpAttr { max_rdma_read_out: reads, ..attributes() };
                    let (a, b) = w.pair_of(&few, &attributes())?;
                    let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
                    for n in 0..10 {
                        atomic.post(&a, own.segment(0, 8), n, far.remote(8 * n as usize, 8), PLAIN)?;
                    }
                    atomic.done(&a, 0, status)?;
                    let later = if reads > 0 { status } else { DtoStatus::Flushed };
                    (1..10).try_for_each(|n| atomic.done(&a, n, later))?;
                    check_eq!(far.word(72), u64::from(reads));
                }
            }
            Ok(())
        })
    }),
];
