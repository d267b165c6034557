//! Regions in non-coherent mode (pages it_lmr_flush_to_mem, it_lmr_refresh_from_mem,
//! it_lmr_create).

use alloc::vec;
use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, pattern};
use crate::remote::link::{BASE, Link};
use crate::remote::rmr::Link as RmrLink;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A region of `b` over a page of its own, with these flags.
fn region(f: &Fixture, pz: PzHandle, flags: LmrFlags) -> Result<Region, Failure> {
    let buffer = f.buffer(PAGE)?;
    let (memory, mode) = (LmrMemory::buffer(&buffer), AddrMode::Absolute);
    let (lmr, context) = f.b.lmr_create(pz, memory, PAGE as u64, mode, OPEN, flags, 0)?;
    Ok(Region { buffer, lmr, context })
}

/// Checks that the peer reads from the region what its memory holds.
fn peer_reads(f: &Fixture, pair: &Pair, region: &Region, context: RmrContext) -> Outcome {
    let sink = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
    f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 1, SIGNALLED, region.remote(0), context)?;
    pair.a.done(1, DtoStatus::Success)?;
    check!(sink.all() == region.all(), "the peer did not read what the memory holds");
    f.a.lmr_free(sink.lmr)?;
    Ok(())
}

/// The peer writes a pattern to the region at `offset` and follows it with a Send. Returns after
/// the Send was received.
fn peer_writes(
    f: &Fixture,
    pair: &Pair,
    region: &Region,
    context: RmrContext,
    seed: u8,
    (offset, len): (usize, usize),
) -> Outcome {
    let source = f.region(&f.a, pair.a.pz, len, OPEN)?;
    source.fill(seed);
    f.b.post_recv(pair.b.ep, &[], 3, DtoFlags::COMPLETION)?;
    let to = region.remote(offset);
    f.a.post_rdma_write(pair.a.ep, &[source.whole()], 1, DtoFlags::empty(), to, context)?;
    f.a.post_send(pair.a.ep, &[], 2, SIGNALLED)?;
    pair.b.recv_done(3, DtoStatus::Success)?;
    pair.a.done(2, DtoStatus::Success)?;
    f.a.lmr_free(source.lmr)?;
    Ok(())
}

type Call = fn(&Ia, &[LmrTriplet]) -> Result<(), Error>;

const CALLS: [Call; 2] = [Ia::lmr_flush_to_mem, Ia::lmr_refresh_from_mem];

pub(crate) const TESTS: &[Test] = &[
    // A region is coherent unless it was created with IT_LMR_FLAG_NONCOHERENT, and a query reports
    // the mode.
    test("coherency::modes", &["it_lmr_create F05"], |f| {
        check_eq!(LmrFlags::NONCOHERENT.bits(), 4);
        let pz = f.b.pz_create()?;
        for flags in [LmrFlags::NONE, LmrFlags::NONCOHERENT] {
            let wanted = flags.contains(LmrFlags::NONCOHERENT);
            let lmr = region(f, pz, flags)?.lmr;
            let linkable = f.b.lmr_create_unlinked(pz, 1, flags, 0)?;
            for lmr in [lmr, linkable] {
                let flags_now = f.b.lmr_query(lmr, LmrParamMask::FLAG)?.flags;
                check_eq!(flags_now.contains(LmrFlags::NONCOHERENT), wanted);
            }
        }
        Ok(())
    }),
    // After a flush, the peer reads what the consumer wrote to a non-coherent region. A coherent
    // region needs no flush.
    test("coherency::flush", &["it_lmr_flush_to_mem B01-B03"], |f| {
        let pair = f.pair()?;
        let normal = region(f, pair.b.pz, LmrFlags::NONE)?;
        let other = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
        for seed in 0..20 {
            normal.fill(seed);
            peer_reads(f, &pair, &normal, normal.context()?)?;
            other.fill(seed);
            f.b.lmr_flush_to_mem(&[other.whole()])?;
            peer_reads(f, &pair, &other, other.context()?)?;
            f.b.lmr_flush_to_mem(&[normal.whole(), normal.segment(5, 1)])?;
            check!(normal.all() == pattern(seed, PAGE) && other.all() == pattern(seed, PAGE));
        }
        Ok(())
    }),
    // After a refresh, the consumer sees what the peer wrote to a non-coherent region. A coherent
    // region needs no refresh.
    test("coherency::refresh", &["it_lmr_refresh_from_mem B01-B05"], |f| {
        let pair = f.pair()?;
        let normal = region(f, pair.b.pz, LmrFlags::NONE)?;
        let other = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
        for seed in 0..10 {
            peer_writes(f, &pair, &normal, normal.context()?, seed, (0, PAGE))?;
            check!(normal.all() == pattern(seed, PAGE));
            f.b.lmr_refresh_from_mem(&[normal.whole()])?;
            check!(normal.all() == pattern(seed, PAGE));
            // The consumer writes first, then the peer in three parts, then the consumer again.
            other.fill(99);
            f.b.lmr_refresh_from_mem(&[other.whole()])?;
            let parts = [(0, 100), (1000, 7), (PAGE - 1, 1)];
            let context = other.context()?;
            for (offset, len) in parts {
                peer_writes(f, &pair, &other, context, seed, (offset, len))?;
            }
            f.b.lmr_refresh_from_mem(&parts.map(|(offset, len)| other.segment(offset, len)))?;
            let mut expected = pattern(99, PAGE);
            for (offset, len) in parts {
                expected[offset..offset + len].copy_from_slice(&pattern(seed, len));
            }
            check!(other.all() == expected);
            other.write(0, &[0xee; 50]);
            expected[..50].fill(0xee);
            check!(other.all() == expected);
        }
        Ok(())
    }),
    // An RMR has the mode of the region to which it is linked.
    test("coherency::through_windows", &["it_lmr_create B22", "it_lmr_create_unlinked B03"], |f| {
        let pair = f.pair()?;
        // One region of each mode and an RMR on each. An RMR has the mode of its LMR.
        let made = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
        let buffer = f.buffer(PAGE)?;
        let pages = [crate::memory::iobl::map(&f.b, &buffer)?];
        let lmr = f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONCOHERENT, 0)?;
        let link = Link { addr: buffer.addr(), ..Link::pages(lmr, &pages) };
        link.post(&pair.b, 1)?;
        pair.b.done(1, DtoStatus::Success)?;
        let linked = Region { buffer, lmr, context: None };
        for region in [made, linked] {
            let rmr = f.b.rmr_create(pair.b.pz, RmrType::Narrow)?;
            let context = RmrLink::of(rmr, &region).made(&pair.b)?;
            for seed in 0..5 {
                region.fill(seed);
                f.b.lmr_flush_to_mem(&[region.whole()])?;
                peer_reads(f, &pair, &region, context)?;
                peer_writes(f, &pair, &region, context, seed + 50, (0, PAGE))?;
                f.b.lmr_refresh_from_mem(&[region.whole()])?;
                check!(region.all() == pattern(seed + 50, PAGE));
            }
            f.b.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // One call may name regions of several zones and both modes, and checks the bounds of
    // non-coherent regions only.
    test(
        "coherency::mixed_lists",
        &["it_lmr_flush_to_mem B04-B07", "it_lmr_refresh_from_mem B06-B08"],
        |f| {
            let (first, second) = (f.pair()?, f.pair()?);
            let normal = region(f, first.b.pz, LmrFlags::NONE)?;
            let (one, two) = (
                region(f, first.b.pz, LmrFlags::NONCOHERENT)?,
                region(f, second.b.pz, LmrFlags::NONCOHERENT | LmrFlags::NON_SHAREABLE)?,
            );
            // These segments are far outside of the coherent region.
            let outside = [
                LmrTriplet::new(normal.lmr, 0, u64::MAX),
                LmrTriplet::new(normal.lmr, u64::MAX, u64::MAX),
                normal.segment(1, PAGE),
            ];
            let mut list = vec![normal.whole(), one.segment(0, 10), two.whole(), one.segment(PAGE, 0)];
            list.extend(outside);
            for call in CALLS {
                for region in [&normal, &one, &two] {
                    region.fill(7);
                }
                call(&f.b, &list)?;
                call(&f.b, &outside)?;
                check!([&normal, &one, &two].iter().all(|region| region.all() == pattern(7, PAGE)));
                peer_reads(f, &first, &one, one.context()?)?;
                peer_reads(f, &second, &two, two.context()?)?;
                peer_reads(f, &first, &normal, normal.context()?)?;
            }
            Ok(())
        },
    ),
    // A segment outside of a non-coherent region is refused, with every kind of overflow.
    test(
        "coherency::bounds",
        &["it_lmr_flush_to_mem IT_ERR_RANGE", "it_lmr_refresh_from_mem IT_ERR_RANGE", "it_status_t F89"],
        |f| {
            check_eq!(Error::Range as u32, 88);
            let pair = f.pair()?;
            let region = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
            region.fill(3);
            let (begin, size) = (region.buffer.addr() as u64, PAGE as u64);
            let relative = {
                let (memory, mode) = (LmrMemory::buffer(&region.buffer), AddrMode::Relative);
                f.b.lmr_create(pair.b.pz, memory, size, mode, OPEN, LmrFlags::NONCOHERENT, 0)?.0
            };
            let unlinked = f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONCOHERENT, 0)?;
            let linked = f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONCOHERENT, 0)?;
            let pages = [crate::memory::iobl::map(&f.b, &region.buffer)?];
            Link { addr: region.buffer.addr(), ..Link::pages(linked, &pages) }.post(&pair.b, 1)?;
            pair.b.done(1, DtoStatus::Success)?;
            for call in CALLS {
                for (offset, length) in [(0, size), (0, 0), (size, 0), (1, size - 1), (size - 1, 1)] {
                    call(&f.b, &[LmrTriplet::new(region.lmr, begin + offset, length)])?;
                    call(&f.b, &[LmrTriplet::new(relative, offset, length)])?;
                }
                for (offset, length) in
                    [(0, size + 1), (1, size), (size, 1), (size + 1, 0), (0, u64::MAX), (1, u64::MAX - begin)]
                {
                    let outside = LmrTriplet::new(region.lmr, begin + offset, length);
                    refused(call(&f.b, &[outside]), Error::Range)?;
                    refused(call(&f.b, &[region.whole(), outside]), Error::Range)?;
                    refused(call(&f.b, &[LmrTriplet::new(relative, offset, length)]), Error::Range)?;
                }
                for addr in [0, begin - 1, u64::MAX] {
                    refused(call(&f.b, &[LmrTriplet::new(region.lmr, addr, 1)]), Error::Range)?;
                }
                // A linked region has those of its link.
                call(
                    &f.b,
                    &[LmrTriplet::new(linked, begin, size), LmrTriplet::new(linked, begin + size, 0)],
                )?;
                for (addr, length) in [(begin - 1, 1), (begin, size + 1), (begin + size, 1)] {
                    refused(call(&f.b, &[LmrTriplet::new(linked, addr, length)]), Error::Range)?;
                }
                // A region that is not linked has no bytes.
                refused(call(&f.b, &[LmrTriplet::new(unlinked, 0, 1)]), Error::Range)?;
            }
            check!(region.all() == pattern(3, PAGE));
            peer_reads(f, &pair, &region, region.context()?)
        },
    ),
    // The page has no error for a segment that names no region of this IA, so such a segment is
    // ignored; an empty list is legal.
    test(
        "coherency::segments_of_no_region",
        &["it_lmr_flush_to_mem V01", "it_lmr_refresh_from_mem V01"],
        |f| {
            let pair = f.pair()?;
            let good = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
            let freed = region(f, pair.b.pz, LmrFlags::NONCOHERENT)?;
            f.b.lmr_free(freed.lmr)?;
            let theirs = f.region(&f.a, pair.a.pz, 64, OPEN)?.lmr;
            let before = f.b.lmr_query(good.lmr, LmrParamMask::ALL)?;
            let wrong_type = LmrHandle::from_raw(pair.b.pz.as_raw());
            let junk = [LmrHandle::NULL, LmrHandle::DIRECT, freed.lmr, theirs, wrong_type];
            let segments = junk.map(|lmr| LmrTriplet::new(lmr, BASE as u64, u64::MAX));
            for call in CALLS {
                call(&f.b, &[])?;
                call(&f.b, &segments)?;
                call(&f.b, &[segments[1], good.whole(), segments[2]])?;
            }
            check_eq!(f.b.lmr_query(good.lmr, LmrParamMask::ALL)?, before);
            good.fill(1);
            peer_reads(f, &pair, &good, some(good.context, "a context")?)
        },
    ),
];
