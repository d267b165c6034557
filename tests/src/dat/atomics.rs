//! Atomic operations (IB extensions 2.2).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::Ordering;

use dat::*;
use nic_abi::admin::Injection;
use nic_abi::registers::Features;
use privileged_api::Limits;

use super::world::*;
use super::write_immed::receives;
use crate::fixture::PAGE;
use crate::thread::{Body, Thread, all_pass, breathe};
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, refused, some, test};

/// Posts a fetch and add.
pub(crate) fn add(
    end: &End,
    value: u64,
    result: LmrTriplet,
    cookie: u64,
    to: RmrTriplet,
    flags: CompletionFlags,
) -> Result<(), Error> {
    end.ia.ib_post_fetch_and_add(end.ep, value, &result, cookie, &to, flags)
}

/// Posts a compare and swap with the value to compare and the new value.
pub(crate) fn swap(
    end: &End,
    (compare, value): (u64, u64),
    result: LmrTriplet,
    cookie: u64,
    to: RmrTriplet,
    flags: CompletionFlags,
) -> Result<(), Error> {
    end.ia.ib_post_cmp_and_swap(end.ep, compare, value, &result, cookie, &to, flags)
}

/// One of the two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Swap,
}

pub(crate) const BOTH: [Atomic; 2] = [Atomic::Add, Atomic::Swap];

impl Atomic {
    /// Posts the operation to this endpoint. It changes 0 to 1: it adds 1, or replaces 0 by 1.
    pub(crate) fn post_to(
        self,
        ia: &Ia,
        ep: EpHandle,
        result: LmrTriplet,
        cookie: u64,
        to: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), Error> {
        match self {
            Atomic::Add => ia.ib_post_fetch_and_add(ep, 1, &result, cookie, &to, flags),
            Atomic::Swap => ia.ib_post_cmp_and_swap(ep, 0, 1, &result, cookie, &to, flags),
        }
    }

    /// Posts the operation, as [`Atomic::post_to`] does, to the endpoint of `end`.
    pub(crate) fn post(
        self,
        end: &End,
        result: LmrTriplet,
        cookie: u64,
        to: RmrTriplet,
        flags: CompletionFlags,
    ) -> Result<(), Error> {
        self.post_to(&end.ia, end.ep, result, cookie, to, flags)
    }

    /// Takes the next completion of a request, which must be that of this operation.
    #[track_caller]
    pub(crate) fn done(self, end: &End, cookie: u64, status: DtoStatus) -> Outcome {
        let (done, number, extension) = end.done(cookie, status)?;
        let (operation, ext_type) = match self {
            Atomic::Add => (Dto::IB_FETCH_ADD, IbExtType::FetchAndAdd),
            Atomic::Swap => (Dto::IB_CMP_SWAP, IbExtType::CmpAndSwap),
        };
        check_eq!((number, done.operation), (EventNumber::IB_DTO, operation));
        let extension = some(extension, "extension data")?;
        let expected = if status == DtoStatus::Success { IbStatus::Success } else { IbStatus::Err };
        check_eq!((extension.ext_type, extension.status), (ext_type, expected));
        Ok(())
    }
}

/// Registers the memory of a region again, in an endpoint's zone.
pub(crate) fn again(end: &End, region: &Region) -> Result<Region, Failure> {
    let (memory, length) = (RegionDescription::buffer(&region.buffer), region.buffer.len() as u64);
    let lmr = end.ia.lmr_create(memory, length, end.pz, OPEN, VaType::Va)?;
    Ok(Region { buffer: region.buffer.clone(), lmr })
}

/// The names of the attributes of an IA's provider.
fn names(ia: &Ia) -> Result<Vec<&'static str>, Failure> {
    let (_, _, provider) = ia.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
    let provider = some(provider, "the provider's attributes")?;
    Ok(provider.provider_specific_attr.iter().map(|attr| attr.name).collect())
}

pub(crate) const TESTS: &[Test] = &[
    // A fetch and add stores the sum, with wrap-around, and returns the former value, each in the
    // byte order of its host; nothing beside the two words changes. The peer gets no event, and
    // keeps its Receives. Regions, addresses and contexts are those of RDMA Writes.
    test(
        "dat_atomics::fetch_and_add",
        &[
            "DAT_IB_DTOS F03",
            "DAT_IB_EXT_TYPE F01",
            "DAT_IB_STATUS F01",
            "dat-ib-2.2 B02-B04",
            "dat_ib_post_fetch_and_add A03 A04 B01-B03 B07 B08 B11",
        ],
        |f| {
            world(f, |w| {
                check_eq!((Dto::IB_FETCH_ADD.as_raw(), IbExtType::FetchAndAdd as u32), (10, 0));
                let (a, b, own, far) = w.open_pair()?;
                receives(&b, 0..1)?;
                for (at, (start, value)) in (8..).step_by(8).zip([
                    (0, 0),
                    (1, 41),
                    (u64::MAX, 1),
                    (5, u64::MAX),
                    (1 << 63, 1 << 63),
                    (0x0102_0304_0506_0708, 0x1000_0000_0000_0001),
                ]) {
                    let (place, cookie) = (far.remote(at, 8), 0xfeed_0000_0000_0001);
                    // An RDMA Write brings the start value to the operand.
                    own.set_word(0, start);
                    a.ia.ep_post_rdma_write(a.ep, &[own.segment(0, 8)], 1, &place, PLAIN)?;
                    a.done(1, DtoStatus::Success)?;
                    let mut result = own.segment(2000, 8);
                    own.write(1992, &[9; 24]);
                    add(&a, value, result, cookie, place, PLAIN)?;
                    result = LmrTriplet::default();
                    Atomic::Add.done(&a, cookie, DtoStatus::Success)?;
                    check_eq!((own.word(2000), far.word(at)), (start, start.wrapping_add(value)));
                    check_eq!((own.bytes(1992, 8), own.bytes(2008, 8)), ([9; 8].into(), [9; 8].into()));
                    check_eq!(far.word(at + 8), 0);
                    // An RDMA Read from there returns the same.
                    a.ia.ep_post_rdma_read(a.ep, &[own.segment(512, 8)], 2, &place, PLAIN)?;
                    a.done(2, DtoStatus::Success)?;
                    check_eq!(own.word(512), far.word(at));
                    check_eq!(result, LmrTriplet::default());
                }
                for evd in [b.recv, b.request, a.recv, a.request] {
                    let ia = if evd == b.recv || evd == b.request { &b.ia } else { &a.ia };
                    nothing(ia, evd)?;
                }
                check_eq!(b.ia.ep_recv_query(b.ep)?.0, 1);
                Ok(())
            })
        },
    ),
    // A compare and swap replaces the value if it is the one that is compared, and returns the
    // former value in any case. A longer local segment keeps its other bytes. The peer gets no
    // event.
    test(
        "dat_atomics::compare_and_swap",
        &["DAT_IB_DTOS A01 F04", "DAT_IB_EXT_TYPE F02", "dat_ib_post_cmp_and_swap B01-B04 B08 B10 B13"],
        |f| {
            world(f, |w| {
                check_eq!((Dto::IB_CMP_SWAP.as_raw(), IbExtType::CmpAndSwap as u32), (11, 1));
                let (a, b, own, far) = w.open_pair()?;
                receives(&b, 0..1)?;
                for (start, compare, value) in [
                    (5, 5, 6),
                    (5, 4, 6),
                    (0, 0, u64::MAX),
                    (u64::MAX, 0, 1),
                    (1 << 40, 1 << 40, 0),
                    (0x0102_0304_0506_0708, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718),
                    (0x0102_0304_0506_0708, 0x0807_0605_0403_0201, 3),
                    (7 << 32, 0, 1),
                ] {
                    far.set_word(16, start);
                    own.write(0, &[6; 24]);
                    swap(&a, (compare, value), own.segment(0, 16), 3, far.remote(16, 8), PLAIN)?;
                    Atomic::Swap.done(&a, 3, DtoStatus::Success)?;
                    let after = if start == compare { value } else { start };
                    check_eq!((own.word(0), far.word(16)), (start, after), "{compare} {value}");
                    check_eq!(own.bytes(8, 16), [6; 16]);
                    check_eq!((far.word(8), far.word(24)), (0, 0));
                }
                for (ia, evd) in [(&b.ia, b.recv), (&b.ia, b.request), (&a.ia, a.recv), (&a.ia, a.request)] {
                    nothing(ia, evd)?;
                }
                check_eq!(b.ia.ep_recv_query(b.ep)?.0, 1);
                Ok(())
            })
        },
    ),
    // Four connections add to one word, each from its own thread and through a region in its own
    // zone. No value is returned twice, and the sum is exact.
    test(
        "dat_atomics::many_endpoints_add_to_one_word",
        &["dat-ib-2.2 B01 B11", "dat_ib_post_fetch_and_add B06 O01"],
        |f| {
            world(f, |w| {
                const EACH: usize = 100;
                let (_, _, provider) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
                check!(some(provider, "the provider's attributes")?.is_thread_safe);
                let (first, there, _, target) = w.open_pair()?;
                let mut ends = Vec::from([(first, there)]);
                for _ in 0..3 {
                    ends.push(w.pair()?);
                }
                let (mut bodies, mut sinks): (Vec<Body<Outcome>>, Vec<Region>) = (Vec::new(), Vec::new());
                for (a, b) in &ends {
                    let (sink, place) = (w.region(a, PAGE, OPEN)?, again(b, &target)?.remote(128, 8));
                    sinks.push(Region { buffer: sink.buffer.clone(), lmr: sink.lmr });
                    let a = a.clone();
                    bodies.push(Box::new(move || {
                        let mut complete = 0;
                        for n in 0..EACH {
                            add(&a, 1, sink.segment(8 * n, 8), n as u64, place, PLAIN)?;
                            if n >= 32 {
                                Atomic::Add.done(&a, complete, DtoStatus::Success)?;
                                complete += 1;
                            }
                        }
                        (complete..EACH as u64)
                            .try_for_each(|n| Atomic::Add.done(&a, n, DtoStatus::Success))?;
                        nothing(&a.ia, a.request)
                    }));
                }
                all_pass(f.platform(), bodies)?;
                check_eq!(target.word(128), 4 * EACH as u64);
                let mut seen: Vec<u64> = Vec::new();
                for sink in &sinks {
                    let values: Vec<u64> = (0..EACH).map(|n| sink.word(8 * n)).collect();
                    check!(values.is_sorted(), "the values of one connection are out of order");
                    seen.extend(values);
                }
                seen.sort_unstable();
                check!(seen.iter().enumerate().all(|(n, value)| *value == n as u64));
                Ok(())
            })
        },
    ),
    // Threads swap on one word, each with an endpoint of its own. In each round exactly one of
    // them wins.
    test(
        "dat_atomics::one_winner_of_each_round",
        &["dat-ib-2.2 B11", "dat_ib_post_cmp_and_swap B07 O01"],
        |f| {
            world(f, |w| {
                const ROUNDS: u64 = 80;
                let (_, _, provider) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
                check!(some(provider, "the provider's attributes")?.is_thread_safe);
                let (first, there, _, target) = w.open_pair()?;
                let ends = [(first, there), w.pair()?, w.pair()?];
                let (mut bodies, mut sinks): (Vec<Body<Outcome>>, Vec<Region>) = (Vec::new(), Vec::new());
                for (a, b) in &ends {
                    let (sink, place) = (w.region(a, PAGE, OPEN)?, again(b, &target)?.remote(0, 8));
                    sinks.push(Region { buffer: sink.buffer.clone(), lmr: sink.lmr });
                    let a = a.clone();
                    bodies.push(Box::new(move || {
                        for round in 0..ROUNDS {
                            let result = sink.segment(8 * round as usize, 8);
                            swap(&a, (round, round + 1), result, round, place, PLAIN)?;
                            Atomic::Swap.done(&a, round, DtoStatus::Success)?;
                        }
                        Ok(())
                    }));
                }
                all_pass(f.platform(), bodies)?;
                // The threads end a round together: otherwise a loser would find the value of a
                // later round.
                for round in 0..ROUNDS {
                    let won = |sink: &&Region| sink.word(8 * round as usize) == round;
                    check_eq!(sinks.iter().filter(won).count(), 1, "round {round}");
                }
                check_eq!(target.word(0), ROUNDS);
                Ok(())
            })
        },
    ),
    // Additions of a peer and of this host's processors to one word never overwrite each other.
    test("dat_atomics::with_the_processors", &["dat-ib-2.2 O01"], |f| {
        world(f, |w| {
            const EACH: u64 = 2000;
            let (a, _, own, far) = w.open_pair()?;
            let (buffer, platform) = (far.buffer.clone(), f.platform().clone());
            let processor = Thread::spawn(f.platform(), "processor", move || -> Outcome {
                let slice = buffer.slice();
                let Ok(word) = slice.atomic_u64(64) else { return Err(Failure::new("a word")) };
                for _ in 0..EACH {
                    word.fetch_add(1, Ordering::SeqCst);
                    breathe(&platform);
                }
                Ok(())
            })?;
            let quiet = CompletionFlags::SUPPRESS;
            for round in 0..EACH / 20 {
                for _ in 0..19 {
                    add(&a, 1 << 32, own.segment(0, 8), 0, far.remote(64, 8), quiet)?;
                }
                add(&a, 1 << 32, own.segment(0, 8), round, far.remote(64, 8), PLAIN)?;
                Atomic::Add.done(&a, round, DtoStatus::Success)?;
            }
            processor.join()??;
            check_eq!(far.word(64), EACH << 32 | EACH);
            Ok(())
        })
    }),
    // At the peer, an atomic takes effect after the requests that were posted before it, and before
    // those posted after it.
    test("dat_atomics::in_the_order_of_requests", &["dat-ib-2.2 B08"], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            receives(&b, 0..20)?;
            let (to, quiet) = (far.remote(0, 8), CompletionFlags::SUPPRESS);
            for n in 0..20 {
                own.set_word(64, 1000 + n);
                own.set_word(72, 5000 + n);
                own.set_word(0, 0);
                a.ia.ep_post_rdma_write(a.ep, &[own.segment(64, 8)], 0, &to, quiet)?;
                add(&a, 100, own.segment(0, 8), 1, to, PLAIN)?;
                swap(&a, (1100 + n, 7), own.segment(8, 8), 2, to, PLAIN)?;
                let write =
                    a.ia.ib_post_rdma_write_with_immed(a.ep, &[own.segment(72, 8)], 3, &to, n as u32, PLAIN);
                write?;
                add(&a, 1, own.segment(16, 8), 4, to, PLAIN)?;
                Atomic::Add.done(&a, 1, DtoStatus::Success)?;
                Atomic::Swap.done(&a, 2, DtoStatus::Success)?;
                a.done(3, DtoStatus::Success)?;
                Atomic::Add.done(&a, 4, DtoStatus::Success)?;
                check_eq!([0, 8, 16].map(|at| own.word(at)), [1000 + n, 1100 + n, 5000 + n]);
                check_eq!(far.word(0), 5001 + n);
                b.received(n, DtoStatus::Success)?;
            }
            Ok(())
        })
    }),
    // A fenced atomic is not sent before an earlier Read has its data, even if the answer to the
    // Read is lost at first: the Read does not see the effect of the atomic.
    test(
        "dat_atomics::fenced",
        &["dat-ib-2.2 B06 B07", "dat_ib_post_cmp_and_swap F04", "dat_ib_post_fetch_and_add F03"],
        |f| {
            world(f, |w| {
                check_eq!(CompletionFlags::BARRIER_FENCE.bits(), 8);
                let (a, _, own, far) = w.open_pair()?;
                for round in 0..4 {
                    let atomic = BOTH[round % 2];
                    far.write(0, &[0; PAGE]);
                    own.fill(1);
                    f.inject(w.a.ep_qpn(a.ep)?, Injection::DropResponses, 1, 0)?;
                    let (whole, flags) = (far.remote(0, 2048), CompletionFlags::BARRIER_FENCE);
                    a.ia.ep_post_rdma_read(a.ep, &[own.segment(0, 2048)], 1, &whole, PLAIN)?;
                    atomic.post(&a, own.segment(2048, 8), 2, far.remote(2040, 8), flags)?;
                    a.done(1, DtoStatus::Success)?;
                    atomic.done(&a, 2, DtoStatus::Success)?;
                    check!(own.bytes(0, 2048).iter().all(|byte| *byte == 0), "the Read saw the atomic");
                    check_eq!((own.word(2048), far.word(2040)), (0, 1));
                }
                if !f.setup.packets {
                    return not_shown("without packets a request begins when the one before is done");
                }
                Ok(())
            })
        },
    ),
    // An atomic is complete only when the peer has answered. Without an answer it fails, and takes
    // effect at most once although it was sent several times.
    test("dat_atomics::without_an_answer", &["dat-ib-2.2 A03 B10"], |f| {
        world(f, |w| {
            for atomic in BOTH {
                let (a, b, own, far) = w.open_pair()?;
                let qpn = w.a.ep_qpn(a.ep)?;
                // One lost answer is repaired: the peer answers the repeated request, and does not
                // execute it again.
                f.inject(qpn, Injection::DropResponses, 1, 0)?;
                add(&a, 5, own.segment(0, 8), 1, far.remote(0, 8), PLAIN)?;
                Atomic::Add.done(&a, 1, DtoStatus::Success)?;
                check_eq!((own.word(0), far.word(0)), (0, 5));
                f.inject(qpn, Injection::DropResponses, 1000, 0)?;
                atomic.post(&a, own.segment(0, 8), 2, far.remote(8, 8), PLAIN)?;
                atomic.done(&a, 2, DtoStatus::Transport)?;
                expect(&w.a, a.connect, EventNumber::CONNECTION_BROKEN)?;
                check_eq!(far.word(8), 1);
                for end in [a, b] {
                    end.ia.ep_free(end.ep)?;
                }
            }
            Ok(())
        })
    }),
    // An interface without atomics names none in its attributes, and refuses both calls, and
    // regions for atomics; Writes with immediate data work. An interface without datagrams as well
    // offers no extension at all.
    test(
        "dat_atomics::limited_interfaces",
        &[
            "dat_ib_post_cmp_and_swap DAT_MODEL_NOT_SUPPORTED",
            "dat_ib_post_rdma_write_with_immed DAT_MODEL_NOT_SUPPORTED",
        ],
        |f| {
            world(f, |w| {
                let has = |ia: &Ia, name: &str| Ok::<_, Failure>(names(ia)?.contains(&name));
                check!(has(&w.a, "DAT_IB_FETCH_AND_ADD")? && has(&w.a, "DAT_IB_CMP_AND_SWAP")?);
                check!(has(&w.a, "DAT_IB_IMMED_DATA")?);
                let model = Error::new(ErrorType::ModelNotSupported, Subtype::None);
                for lacking in [Features::ATOMICS, Features::ATOMICS | Features::UD] {
                    let immediate = !lacking.contains(Features::UD);
                    let limits = Limits { features: Features::all() - lacking, ..Limits::NONE };
                    let ia = w.limited(limits)?;
                    let tried = || -> Outcome {
                        check!(!has(&ia, "DAT_IB_FETCH_AND_ADD")? && !has(&ia, "DAT_IB_CMP_AND_SWAP")?);
                        check_eq!(has(&ia, "DAT_IB_IMMED_DATA")?, immediate);
                        let (a, b) = (w.end(&ia, &attributes())?, w.end(&w.b, &attributes())?);
                        w.connect(&a, &b)?;
                        let atomic = MemPriv::ALL | MemPriv::IB_REMOTE_ATOMIC;
                        let buffer = f.buffer(64)?;
                        let memory = RegionDescription::buffer(&buffer);
                        refused(ia.lmr_create(memory, 64, a.pz, atomic, VaType::Va), model)?;
                        let (own, far) = (w.region(&a, PAGE, MemPriv::ALL)?, w.region(&b, PAGE, OPEN)?);
                        receives(&b, 0..1)?;
                        for atomic in BOTH {
                            let (result, to) = (own.segment(0, 8), far.remote(0, 8));
                            refused(atomic.post(&a, result, 1, to, PLAIN), model)?;
                        }
                        let (segment, to) = ([own.segment(0, 8)], far.remote(0, 8));
                        let posted = ia.ib_post_rdma_write_with_immed(a.ep, &segment, 1, &to, 1, PLAIN);
                        if !immediate {
                            refused(posted, model)?;
                            let write = IbArguments::RdmaWriteImmed {
                                local_iov: &segment,
                                user_cookie: 1,
                                remote_iov: &to,
                                immediate_data: 1,
                                completion_flags: PLAIN,
                            };
                            for op in [0, 2, 99] {
                                refused(ia.extension_op(a.ep.into(), IbOp(op), &write), model)?;
                            }
                            check_eq!(ia.ep_get_status(a.ep)?, (EpState::Connected, true, true));
                            nothing(&w.b, b.recv)?;
                            return far.untouched();
                        }
                        posted?;
                        a.done(1, DtoStatus::Success)?;
                        b.received(0, DtoStatus::Success)?;
                        Ok(())
                    };
                    let outcome = tried();
                    w.close(&ia)?;
                    outcome?;
                }
                Ok(())
            })
        },
    ),
];
