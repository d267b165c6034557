//! Atomic operations (page it_post_atomic).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::fixture::{
    Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, WAIT, atomic_attributes, attributes, sevd,
};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The privileges of a region that is the target of atomics.
const TARGET: MemPriv = OPEN.union(MemPriv::ATOMIC);

/// A connected pair, a sink on the active side and a target on the passive side.
fn ready(f: &Fixture) -> Result<(Pair, Region, Region), Failure> {
    Need::Atomics.of(&f.a)?;
    let pair = f.pair_of(&attributes(), &atomic_attributes())?;
    let sink = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
    let target = f.region(&f.b, pair.b.pz, PAGE, TARGET)?;
    Ok((pair, sink, target))
}

/// The word at this offset.
fn word(region: &Region, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&region.bytes(offset, 8));
    u64::from_ne_bytes(bytes)
}

/// Sets the word at this offset.
fn set(region: &Region, offset: usize, value: u64) {
    region.write(offset, &value.to_ne_bytes());
}

/// Adds 1 to the word at `at`, and returns the status of the completion.
fn add(
    f: &Fixture,
    pair: &Pair,
    sink: LmrTriplet,
    at: RdmaAddr,
    context: RmrContext,
) -> Result<DtoStatus, Failure> {
    let (op, flags) = (AtomicOp::FetchAndAdd, SIGNALLED);
    f.a.post_atomic(pair.a.ep, op, 1, 0, &sink, 5, flags, at, context)?;
    let done = pair.a.reap()?;
    check_eq!((done.event_number, done.cookie), (EventType::DTO_FETCH_ADD_CMPL, 5));
    Ok(done.dto_status)
}

/// Posts an add that the peer must refuse as an access violation, and checks the completion and the
/// connection.
fn violates(
    f: &Fixture,
    spoil: impl Fn(&Pair, &Region) -> Result<(RdmaAddr, RmrContext), Failure>,
) -> Outcome {
    let aff = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
    let (pair, sink, target) = ready(f)?;
    let (at, context) = spoil(&pair, &target)?;
    check_eq!(add(f, &pair, sink.segment(0, 8), at, context)?, DtoStatus::RemoteAccess);
    pair.a.broken()?;
    let (event, _) = f.b.evd_wait(aff, WAIT)?;
    let event_number = EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION;
    check_eq!(event, Event::Affiliated { event_number, evd: aff, cause: AffiliatedCause::Ep(pair.b.ep) });
    pair.b.broken()?;
    target.untouched()?;
    f.b.evd_free(aff)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // The old value is fetched and the sum stored, modulo 2^64, in the byte order of either host.
    test(
        "atomic::fetch_and_add",
        &[
            "it_post_atomic B01 B02 B08 B10-B12 B14 F02 F03",
            "it_event_t F11",
            "it_ia_info_t F69",
            "it_mem_priv_t F07",
        ],
        |f| {
            Need::Atomics.of(&f.a)?;
            check!(f.a.ia_query()?.atomic_support);
            check_eq!((EventType::DTO_FETCH_ADD_CMPL.as_raw(), AtomicOp::FetchAndAdd as u32), (7, 1));
            let (pair, sink, target) = ready(f)?;
            let context = target.context()?;
            f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
            for (cookie, (start, operand)) in [
                (0, 0),
                (1, 41),
                (u64::MAX, 1),
                (5, u64::MAX),
                (1 << 63, 1 << 63),
                (0x0102_0304_0506_0708, 0x1000_0000_0000_0001),
            ]
            .into_iter()
            .enumerate()
            {
                let (cookie, at) = (u64::MAX - cookie as u64, 8 * cookie);
                set(&target, at, start);
                set(&target, at + 8, 77);
                let mut result = sink.segment(at, 8);
                // A fetch-and-add ignores the operand for the comparison.
                let (op, to) = (AtomicOp::FetchAndAdd, target.remote(at));
                f.a.post_atomic(pair.a.ep, op, operand, 12345, &result, cookie, SIGNALLED, to, context)?;
                result = LmrTriplet::default();
                let done = pair.a.reap()?;
                check_eq!(
                    (done.event_number, done.dto_status),
                    (EventType::DTO_FETCH_ADD_CMPL, DtoStatus::Success)
                );
                check_eq!((done.cookie, done.ep, done.evd), (cookie, pair.a.ep, pair.a.request));
                check_eq!((word(&sink, at), word(&target, at)), (start, start.wrapping_add(operand)));
                check_eq!((word(&sink, at + 8), word(&target, at + 8)), (0, 77), "the words beside it");
                let _ = result;
            }
            // The peer's Receive was not consumed.
            pair.b.idle()
        },
    ),
    // The old value is fetched in any case, and the new one stored if the comparison holds.
    test("atomic::compare_and_swap", &["it_post_atomic F01 V02", "it_event_t F12"], |f| {
        Need::Atomics.of(&f.a)?;
        check_eq!((EventType::DTO_CMP_SWAP_CMPL.as_raw(), AtomicOp::CompareAndSwap as u32), (8, 0));
        let (pair, sink, target) = ready(f)?;
        let (context, op) = (target.context()?, AtomicOp::CompareAndSwap);
        for (start, compare, swap) in
            [(5, 5, 6), (5, 4, 6), (0, 0, u64::MAX), (u64::MAX, 0, 1), (1 << 40, 1 << 40, 0)]
        {
            set(&target, 16, start);
            let (result, to) = (sink.segment(0, 8), target.remote(16));
            f.a.post_atomic(pair.a.ep, op, swap, compare, &result, 3, SIGNALLED, to, context)?;
            let done = pair.a.reap()?;
            check_eq!(
                (done.event_number, done.dto_status),
                (EventType::DTO_CMP_SWAP_CMPL, DtoStatus::Success)
            );
            let after = if start == compare { swap } else { start };
            check_eq!((word(&sink, 0), word(&target, 16)), (start, after), "{start} {compare} {swap}");
        }
        Ok(())
    }),
    // With relative addressing the alignment of the memory counts, not that of the offset.
    test("atomic::to_offsets", &["it_post_atomic L02 V04"], |f| {
        // The region begins at an address that is not a multiple of 8. Alignment counts for the
        // memory, not for the offset.
        let (pair, sink, _) = ready(f)?;
        let buffer = f.buffer(PAGE)?;
        let memory = LmrMemory::Buffer { buffer: &buffer, offset: 4 };
        let (mode, flags) = (AddrMode::Relative, LmrFlags::NONE);
        let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, 64, mode, TARGET, flags, 0)?;
        let target = Region { buffer, lmr, context };
        set(&target, 8, 9);
        let at = make_rdma_addr_relative(4);
        check_eq!(add(f, &pair, sink.segment(0, 8), at, target.context()?)?, DtoStatus::Success);
        check_eq!((word(&sink, 0), word(&target, 8)), (9, 10));
        let at = make_rdma_addr_relative(8);
        check_eq!(add(f, &pair, sink.segment(0, 8), at, target.context()?)?, DtoStatus::RemoteAccess);
        check_eq!(word(&target, 8), 10);
        Ok(())
    }),
    // If atomics of two connections on one word overlapped, a value would be fetched twice.
    test(
        "atomic::one_after_the_other",
        &["it_post_atomic B03 B04 B15-B17", "it_dto_flags_t B22 V02 V03"],
        |f| {
            Need::Atomics.of(&f.a)?;
            let (pair, sink, target) = ready(f)?;
            let second = f.pair_of(&attributes(), &atomic_attributes())?;
            let other = f.region(&f.a, second.a.pz, PAGE, MemPriv::LOCAL)?;
            let there = f.region(&f.b, second.b.pz, PAGE, TARGET)?;
            // Two connections add to the same word, each through a region of its own zone.
            let memory = LmrMemory::buffer(&target.buffer);
            let (mode, flags) = (AddrMode::Absolute, LmrFlags::NONE);
            let (_, again) = f.b.lmr_create(second.b.pz, memory, 64, mode, TARGET, flags, 0)?;
            let contexts = [target.context, again];
            let rounds = 30;
            for round in 0..rounds {
                for (end, sink, context) in [(&pair.a, &sink, contexts[0]), (&second.a, &other, contexts[1])]
                {
                    let Some(context) = context else { return Err(Failure::new("a context")) };
                    let flags = if round % 2 == 0 { SIGNALLED } else { SIGNALLED | DtoFlags::BARRIER_FENCE };
                    let (op, at, result) =
                        (AtomicOp::FetchAndAdd, target.remote(0), sink.segment(8 * round, 8));
                    f.a.post_atomic(end.ep, op, 1, 0, &result, round as u64, flags, at, context)?;
                }
            }
            for end in [&pair.a, &second.a] {
                for round in 0..rounds as u64 {
                    end.done(round, DtoStatus::Success)?;
                }
            }
            check_eq!(word(&target, 0), 2 * rounds as u64);
            let mut seen: Vec<u64> =
                (0..rounds).flat_map(|i| [word(&sink, 8 * i), word(&other, 8 * i)]).collect();
            check!(
                (1..rounds).all(|i| word(&sink, 8 * i) > word(&sink, 8 * i - 8)),
                "the values of one connection are out of order"
            );
            seen.sort_unstable();
            check!(
                seen.iter().enumerate().all(|(i, value)| *value == i as u64),
                "a value was returned twice"
            );
            there.untouched()?;
            // All combinations of the legal flags, and all illegal ones.
            for flags in (0..0x100).map(DtoFlags::from_bits_retain) {
                let mut never = DtoFlags::SOLICITED_WAIT | DtoFlags::UNLINK_LOCAL_SINK;
                never |= DtoFlags::UNLINK_FENCE | DtoFlags::from_bits_retain(0x80);
                let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
                let (op, at, result) = (AtomicOp::FetchAndAdd, target.remote(8), sink.segment(0, 8));
                let posted = f.a.post_atomic(pair.a.ep, op, 1, 0, &result, 8, flags, at, target.context()?);
                if alone || flags.intersects(never) {
                    refused(posted, Error::InvalidDtoFlags)?;
                    continue;
                }
                posted?;
                f.b.post_recv(pair.b.ep, &[], 9, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[], 9, DtoFlags::empty())?;
                pair.b.recv_done(9, DtoStatus::Success)?;
                if flags.contains(DtoFlags::COMPLETION) {
                    pair.a.done(8, DtoStatus::Success)?;
                }
            }
            pair.a.idle()
        },
    ),
    // Each bad argument and each wrong state is refused with its own error.
    test(
        "atomic::refusals",
        &[
            "it_post_atomic A03 B09 S01 IT_ERR_INVALID_DTO_FLAGS IT_ERR_INVALID_EP",
            "it_post_atomic IT_ERR_INVALID_EP_STATE IT_ERR_TOO_MANY_POSTS",
            "it_ep_state_t S15",
        ],
        |f| {
            Need::Atomics.of(&f.a)?;
            let few = EpAttributes { max_request_dtos: 2, ..attributes() };
            let pair = f.pair_of(&few, &atomic_attributes())?;
            let sink = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
            let target = f.region(&f.b, pair.b.pz, PAGE, TARGET)?;
            let post = |ep, flags| {
                let (op, at, result) = (AtomicOp::FetchAndAdd, target.remote(0), sink.segment(0, 8));
                f.a.post_atomic(ep, op, 1, 0, &result, 5, flags, at, target.context.unwrap_or_default())
            };
            for bad in [EpHandle::NULL, pair.b.ep, EpHandle::from_raw(pair.a.pz.as_raw())] {
                refused(post(bad, SIGNALLED), Error::InvalidEp)?;
            }
            let idle = f.end(&f.a, &attributes())?;
            refused(post(idle.ep, SIGNALLED), Error::InvalidEpState)?;
            refused(post(pair.a.ep, DtoFlags::NOTIFY), Error::InvalidDtoFlags)?;
            target.untouched()?;
            post(pair.a.ep, SIGNALLED)?;
            post(pair.a.ep, SIGNALLED)?;
            refused(post(pair.a.ep, SIGNALLED), Error::TooManyPosts)?;
            pair.a.done(5, DtoStatus::Success)?;
            pair.a.done(5, DtoStatus::Success)?;
            check_eq!(word(&target, 0), 2);
            f.a.ep_disconnect(pair.a.ep, &[])?;
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            post(pair.a.ep, DtoFlags::empty())?;
            let done = pair.a.reap()?;
            check_eq!(
                (done.event_number, done.dto_status),
                (EventType::DTO_FETCH_ADD_CMPL, DtoStatus::Flushed)
            );
            check_eq!(word(&target, 0), 2);
            Ok(())
        },
    ),
    // Each violation at the peer fails the request and is reported to the peer's consumer.
    test(
        "atomic::remote_violations",
        &["it_ep_attributes_t F20 V02", "it_post_atomic A01 A04 A05 A07 A08 A10 A11 B06"],
        |f| {
            for privs in [
                OPEN,
                MemPriv::LOCAL | MemPriv::ATOMIC,
                MemPriv::LOCAL | MemPriv::ATOMIC | MemPriv::REMOTE_READ,
                MemPriv::LOCAL | MemPriv::ATOMIC | MemPriv::REMOTE_WRITE,
            ] {
                violates(f, |pair, _| {
                    let less = f.region(&f.b, pair.b.pz, 64, privs)?;
                    Ok((less.remote(0), less.context()?))
                })?;
            }
            // The region is in another zone.
            violates(f, |_, _| {
                let elsewhere = f.region(&f.b, f.b.pz_create()?, 64, TARGET)?;
                Ok((elsewhere.remote(0), elsewhere.context()?))
            })?;
            // The address is outside of the region, and the context is not valid.
            violates(f, |_, target| Ok((target.remote(PAGE), target.context()?)))?;
            violates(f, |_, target| {
                Ok((make_rdma_addr_absolute(target.buffer.addr() - 8), target.context()?))
            })?;
            violates(f, |_, target| Ok((target.remote(0), RmrContext(!target.context()?.0))))?;
            // The peer's endpoint allows no atomics.
            violates(f, |pair, target| {
                let none = attributes();
                f.b.ep_modify(pair.b.ep, EpParamMask::ATOMICS_ENABLE, &none)?;
                Ok((target.remote(0), target.context()?))
            })
        },
    ),
    // Atomics work through RMRs of both types, with the rules of each type.
    test(
        "atomic::through_windows",
        &["it_post_atomic A06 B18", "it_rmr_link V04", "it_mem_priv_t V02"],
        |f| {
            for rmr_type in [RmrType::Narrow, RmrType::Wide] {
                let (pair, sink, target) = ready(f)?;
                let rmr = f.b.rmr_create(pair.b.pz, rmr_type)?;
                let (addr, mode, ep) = (target.buffer.addr(), AddrMode::Absolute, pair.b.ep);
                let privs = MemPriv::REMOTE | MemPriv::ATOMIC;
                let context = f.b.rmr_link(rmr, target.lmr, addr, 64, mode, privs, ep, 1, SIGNALLED)?;
                pair.b.done(1, DtoStatus::Success)?;
                check_eq!(add(f, &pair, sink.segment(0, 8), target.remote(8), context)?, DtoStatus::Success);
                check_eq!(word(&target, 8), 1);
                // A narrow RMR can be used through its own endpoint only, even by an endpoint in
                // the same zone.
                let other = Pair {
                    a: f.end(&f.a, &attributes())?,
                    b: f.end_in(&f.b, pair.b.pz, &atomic_attributes())?,
                };
                f.connect(&other.a, &other.b)?;
                let own = f.region(&f.a, other.a.pz, 8, MemPriv::LOCAL)?;
                let wide = rmr_type == RmrType::Wide;
                let expected = if wide { DtoStatus::Success } else { DtoStatus::RemoteAccess };
                check_eq!(add(f, &other, own.whole(), target.remote(16), context)?, expected);
                // Behind an unlink, nothing is added.
                f.b.rmr_unlink(rmr, pair.b.ep, 2, SIGNALLED)?;
                pair.b.done(2, DtoStatus::Success)?;
                check_eq!(
                    add(f, &pair, sink.segment(0, 8), target.remote(8), context)?,
                    DtoStatus::RemoteAccess
                );
                check_eq!(word(&target, 8), 1);
            }
            // An atomic waits for a link that was posted before it on its own endpoint.
            let (pair, sink, target) = ready(f)?;
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
            let (addr, mode, ep) = (sink.buffer.addr(), AddrMode::Absolute, pair.a.ep);
            let privs = MemPriv::REMOTE_READ;
            f.a.rmr_link(rmr, sink.lmr, addr, 64, mode, privs, ep, 1, SIGNALLED)?;
            check_eq!(pair_add(f, &pair, &sink, &target)?, (1, 5));
            Ok(())
        },
    ),
    // A sink that cannot be written fails the request.
    test("atomic::local_violations", &["it_post_atomic A02 A12 A13 B07 L01"], |f| {
        Need::Atomics.of(&f.a)?;
        type Spoil = fn(&Fixture, &Pair, &Region) -> Result<LmrTriplet, Failure>;
        let cases: [(Spoil, DtoStatus); 5] = [
            (
                |f, pair, _| Ok(f.region(&f.a, pair.a.pz, 64, MemPriv::LOCAL_READ)?.segment(0, 8)),
                DtoStatus::LocalProtection,
            ),
            (
                |f, _, _| Ok(f.region(&f.a, f.a.pz_create()?, 64, OPEN)?.segment(0, 8)),
                DtoStatus::LocalProtection,
            ),
            (|_, _, sink| Ok(sink.segment(PAGE - 7, 8)), DtoStatus::LocalProtection),
            (
                |_, _, sink| Ok(LmrTriplet { lmr: LmrHandle::NULL, ..sink.segment(0, 8) }),
                DtoStatus::LocalProtection,
            ),
            (|_, _, sink| Ok(sink.segment(0, 7)), DtoStatus::LocalLength),
        ];
        for (spoil, status) in cases {
            let (pair, sink, target) = ready(f)?;
            let bad = spoil(f, &pair, &sink)?;
            let (op, at, context) = (AtomicOp::FetchAndAdd, target.remote(0), target.context()?);
            f.a.post_atomic(pair.a.ep, op, 1, 0, &bad, 5, DtoFlags::empty(), at, context)?;
            f.a.post_send(pair.a.ep, &[], 6, SIGNALLED)?;
            pair.a.done(5, status)?;
            pair.a.done(6, DtoStatus::Flushed)?;
            pair.a.broken()?;
            target.untouched()?;
            f.a.ep_free(pair.a.ep)?;
            f.b.ep_free(pair.b.ep)?;
        }
        // Only the first eight bytes of a longer sink are written.
        let (pair, sink, target) = ready(f)?;
        sink.fill(1);
        let rest = sink.bytes(8, 8);
        check_eq!(
            add(f, &pair, sink.segment(0, 16), target.remote(0), target.context()?)?,
            DtoStatus::Success
        );
        check_eq!(sink.bytes(8, 8), rest);
        Ok(())
    }),
    // A target that is not a multiple of 8 fails as an access error.
    test("atomic::misaligned", &["it_post_atomic A09"], |f| {
        for offset in [1, 4, 7] {
            let (pair, sink, target) = ready(f)?;
            let at = target.remote(offset);
            check_eq!(add(f, &pair, sink.segment(0, 8), at, target.context()?)?, DtoStatus::RemoteAccess);
            pair.a.broken()?;
            target.untouched()?;
        }
        Ok(())
    }),
    // A privileged endpoint may use the direct LMR handle for the result: only the pages of RDMA
    // Read forbid it. Without privilege it is a protection violation.
    test("atomic::the_direct_handle_as_sink", &["it_dto_status_t A08"], |f| {
        Need::Atomics.of(&f.a)?;
        for privileged in [true, false] {
            let plain = EpAttributes { priv_ops_enable: privileged, ..attributes() };
            let pair = f.pair_of(&plain, &atomic_attributes())?;
            let sink = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
            let target = f.region(&f.b, pair.b.pz, PAGE, TARGET)?;
            target.write(0, &40u64.to_ne_bytes());
            let (io, _) = f.a.mem_map(sink.buffer.addr(), ASPACE_KERNEL, PAGE)?;
            let (op, at, context) = (AtomicOp::FetchAndAdd, target.remote(0), target.context()?);
            let result = LmrTriplet::direct(io, 8);
            f.a.post_atomic(pair.a.ep, op, 2, 0, &result, 5, SIGNALLED, at, context)?;
            let status = if privileged { DtoStatus::Success } else { DtoStatus::LocalProtection };
            pair.a.done(5, status)?;
            let expected = if privileged { (40, 42) } else { (0, 40) };
            check_eq!((word(&sink, 0), word(&target, 0)), expected);
            f.a.mem_unmap(io, PAGE)?;
        }
        Ok(())
    }),
];

/// Posts an add behind the requests that are outstanding, and returns the cookies of two
/// completions in their order.
fn pair_add(f: &Fixture, pair: &Pair, sink: &Region, target: &Region) -> Result<(u64, u64), Failure> {
    let (op, at, result) = (AtomicOp::FetchAndAdd, target.remote(0), sink.segment(0, 8));
    f.a.post_atomic(pair.a.ep, op, 1, 0, &result, 5, SIGNALLED, at, target.context()?)?;
    let (first, second) = (pair.a.reap()?, pair.a.reap()?);
    check_eq!((first.dto_status, second.dto_status), (DtoStatus::Success, DtoStatus::Success));
    Ok((first.cookie, second.cookie))
}
