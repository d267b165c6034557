//! Regions that share memory or translations, and how long memory is held (pages it_lmr_create,
//! it_lmr_create_unlinked, it_lmr_free; appendix A).

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use platform::DmaBuffer;
use privileged_api::*;

use crate::fixture::{Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, pattern};
use crate::remote::link::{Link, linked};
use crate::thread::Thread;
use crate::{Failure, Test, check, check_eq, test};

/// A region over the whole buffer.
fn over(
    ia: &Ia,
    pz: PzHandle,
    buffer: &Arc<DmaBuffer>,
    privs: MemPriv,
    flags: LmrFlags,
) -> Result<Region, Failure> {
    let (memory, mode) = (LmrMemory::buffer(buffer), AddrMode::Absolute);
    let (lmr, context) = ia.lmr_create(pz, memory, buffer.len() as u64, mode, privs, flags, 0)?;
    Ok(Region { buffer: buffer.clone(), lmr, context })
}

/// Whether a query says that the region is shared.
fn is_shared(ia: &Ia, lmr: LmrHandle) -> Result<bool, Failure> {
    Ok(ia.lmr_query(lmr, LmrParamMask::FLAG)?.flags.contains(LmrFlags::SHARED))
}

/// The status of the peer's write to a region of `b`.
fn write(f: &Fixture, pair: &Pair, region: &Region, seed: u8) -> Result<DtoStatus, Failure> {
    let own = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
    own.fill(seed);
    let (to, context) = (region.remote(0), region.context()?);
    f.a.post_rdma_write(pair.a.ep, &[own.whole()], 1, SIGNALLED, to, context)?;
    let status = pair.a.settled(pair.a.reap()?.dto_status)?;
    f.a.lmr_free(own.lmr)?;
    Ok(status)
}

/// A connected pair whose passive end is on `ia`.
fn pair_with(f: &Fixture, ia: &Ia) -> Result<Pair, Failure> {
    let attributes = crate::fixture::attributes();
    let pair = Pair { a: f.end(&f.a, &attributes)?, b: f.end(ia, &attributes)? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// A linked region over a page of its own.
fn linked_region(f: &Fixture, pair: &Pair, flags: LmrFlags) -> Result<Region, Failure> {
    let buffer = f.buffer(PAGE)?;
    let pages = [IoAddr(buffer.bus())];
    let lmr = f.b.lmr_create_unlinked(pair.b.pz, 1, flags, 0)?;
    let link = Link { addr: buffer.addr(), ..Link::pages(lmr, &pages) };
    let context = link.post(&pair.b, 1)?;
    pair.b.done(1, DtoStatus::Success)?;
    Ok(Region { buffer, lmr, context })
}

/// Number of references to the buffer besides the test's own.
fn held(buffer: &Arc<DmaBuffer>) -> usize {
    Arc::strong_count(buffer) - 1
}

pub(crate) const TESTS: &[Test] = &[
    // Regions with the same identifier share nothing if their memory differs.
    test("sharing::no_false_matches", &["it_lmr_create B21"], |f| {
        let pz = f.b.pz_create()?;
        let (buffer, other) = (f.buffer(2 * PAGE)?, f.buffer(2 * PAGE)?);
        let mut made = Vec::new();
        let mode = AddrMode::Absolute;
        for memory in [
            LmrMemory::buffer(&buffer),
            LmrMemory::buffer(&other),
            LmrMemory::Buffer { buffer: &buffer, offset: 1 },
            LmrMemory::Buffer { buffer: &buffer, offset: PAGE },
        ] {
            for length in [0, 1, 64, PAGE as u64] {
                for flags in [LmrFlags::SHARED, LmrFlags::SHARED | LmrFlags::NONCOHERENT] {
                    made.push(f.b.lmr_create(pz, memory, length, mode, OPEN, flags, 0)?.0);
                }
            }
        }
        for lmr in made {
            check!(!is_shared(&f.b, lmr)?, "unrelated memory, the same shared_id");
        }
        Ok(())
    }),
    // A linked region is found behind many that are not linked, and none is found among those.
    test("sharing::behind_many_unlinked_regions", &["it_lmr_create B21"], |f| {
        let pair = f.pair()?;
        for _ in 0..70 {
            f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONE, 0)?;
        }
        let alone = over(&f.b, pair.b.pz, &f.buffer(PAGE)?, OPEN, LmrFlags::SHARED)?;
        check!(!is_shared(&f.b, alone.lmr)?);
        let region = linked_region(f, &pair, LmrFlags::NONE)?;
        let late = over(&f.b, pair.b.pz, &region.buffer, OPEN, LmrFlags::SHARED)?;
        check!(is_shared(&f.b, region.lmr)? && is_shared(&f.b, late.lmr)?);
        check_eq!(write(f, &pair, &late, 4)?, DtoStatus::Success);
        check!(region.all() == pattern(4, PAGE));
        Ok(())
    }),
    // Shared regions keep their own zones, privileges and contexts, and each can be freed alone.
    test(
        "sharing::rights_are_each_regions_own",
        &["A.it_lmr_create O01", "A.it_lmr_free B02", "it_lmr_create B19"],
        |f| {
            let buffer = f.buffer(PAGE)?;
            // Two consumers whose regions have zones and privileges of their own.
            let other = f.another(Some(f.setup.privileged))?;
            let (mine, theirs) = (f.pair()?, pair_with(f, &other)?);
            let first = over(&f.b, mine.b.pz, &buffer, OPEN, LmrFlags::NONE)?;
            let (ia, pz) = match f.setup.a.name == f.setup.b.name {
                true => (&other, theirs.b.pz),
                // An IA shares only with regions of its own.
                false => (&f.b, mine.b.pz),
            };
            let readable = MemPriv::LOCAL | MemPriv::REMOTE_READ;
            let second = over(ia, pz, &buffer, readable, LmrFlags::SHARED)?;
            check!(first.lmr != second.lmr);
            check!(is_shared(&f.b, first.lmr)? && is_shared(ia, second.lmr)?);
            check_eq!(write(f, &mine, &first, 3)?, DtoStatus::Success);
            check!(second.all() == pattern(3, PAGE));
            let pair = pair_with(f, ia)?;
            let lmr = over(ia, pair.b.pz, &buffer, readable, LmrFlags::SHARED)?;
            check!(is_shared(ia, lmr.lmr)?);
            check_eq!(write(f, &pair, &lmr, 4)?, DtoStatus::RemoteAccess);
            check!(second.all() == pattern(3, PAGE));
            // Each region still works after the others are freed.
            ia.lmr_free(second.lmr)?;
            ia.lmr_free(lmr.lmr)?;
            check_eq!(write(f, &mine, &first, 5)?, DtoStatus::Success);
            check!(first.all() == pattern(5, PAGE));
            let third = over(&f.b, mine.b.pz, &buffer, OPEN, LmrFlags::SHARED)?;
            check!(is_shared(&f.b, third.lmr)?);
            f.b.lmr_free(first.lmr)?;
            check_eq!(write(f, &mine, &third, 6)?, DtoStatus::Success);
            check!(third.all() == pattern(6, PAGE));
            Ok(())
        },
    ),
    // A linked region may become shared unless it was declared non-shareable; then it cannot be
    // unlinked any more.
    test("sharing::linked_regions", &["it_lmr_create_unlinked F03 S04", "it_lmr_unlink A07"], |f| {
        // A region with NON_SHAREABLE is never shared.
        let pair = f.pair()?;
        let region = linked_region(f, &pair, LmrFlags::NON_SHAREABLE)?;
        let candidate = over(&f.b, pair.b.pz, &region.buffer, OPEN, LmrFlags::SHARED)?;
        check!(!is_shared(&f.b, region.lmr)? && !is_shared(&f.b, candidate.lmr)?);
        f.b.lmr_unlink(region.lmr, pair.b.ep, 2, SIGNALLED)?;
        pair.b.done(2, DtoStatus::Success)?;
        // A region that was unlinked matches no other region.
        let region = linked_region(f, &pair, LmrFlags::NONE)?;
        f.b.lmr_unlink(region.lmr, pair.b.ep, 2, SIGNALLED)?;
        pair.b.done(2, DtoStatus::Success)?;
        let late = over(&f.b, pair.b.pz, &region.buffer, OPEN, LmrFlags::SHARED)?;
        check!(!is_shared(&f.b, region.lmr)? && !is_shared(&f.b, late.lmr)?);
        // A region that was shared cannot be unlinked, either by its consumer or by the peer.
        for remotely in [false, true] {
            let pair = f.pair()?;
            let region = linked_region(f, &pair, LmrFlags::NONE)?;
            check!(!is_shared(&f.b, region.lmr)?);
            let other = over(&f.b, pair.b.pz, &region.buffer, OPEN, LmrFlags::SHARED)?;
            check!(is_shared(&f.b, region.lmr)? && is_shared(&f.b, other.lmr)?);
            // That holds also after its match was freed.
            f.b.lmr_free(other.lmr)?;
            if remotely {
                f.b.post_recv(pair.b.ep, &[], 5, DtoFlags::COMPLETION)?;
                f.a.post_send_and_unlink(pair.a.ep, &[], 3, SIGNALLED, region.context()?)?;
                pair.a.done(3, DtoStatus::RemoteResponder)?;
            } else {
                f.b.lmr_unlink(region.lmr, pair.b.ep, 4, DtoFlags::empty())?;
                let done = pair.b.reap()?;
                check_eq!((done.cookie, done.dto_status), (4, DtoStatus::LocalMmOperation));
                check_eq!(done.event_number, EventType::LMR_LINK_CMPL);
                pair.b.broken()?;
            }
            check!(linked(&f.b, region.lmr)?);
            f.b.lmr_free(region.lmr)?;
        }
        Ok(())
    }),
    // A shared region needs no list of its own: it can be created when the adapter has no room for
    // another list.
    test("sharing::takes_no_translations", &["A.it_lmr_create V01"], |f| {
        // Create lists of the largest size until the adapter has no room for another one.
        let pz = f.a.pz_create()?;
        let most = f.setup.a.agent.identity().max_list_elements as usize;
        let buffer = f.buffer(most)?;
        let blocks: Vec<IoAddr> = (0..most as u64).map(|i| IoAddr(buffer.bus() + i)).collect();
        let list = Iobl::blocks(&blocks, 1, 0);
        let create = |flags| {
            let memory = LmrMemory::Iobl { addr: buffer.addr(), iobl: &list };
            f.a.lmr_create(pz, memory, most as u64, AddrMode::Absolute, OPEN, flags, 0).map(|(lmr, _)| lmr)
        };
        let mut count = 0;
        let refusal = loop {
            match create(LmrFlags::NONE) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
            check!(count < 100, "no limit was reached");
        };
        check_eq!(refusal, Error::Resources);
        for _ in 0..4 {
            check!(is_shared(&f.a, create(LmrFlags::SHARED)?)?);
        }
        check_eq!(create(LmrFlags::NONE), Err(Error::Resources));
        Ok(())
    }),
    // Consumers that register the same memory at the same moment must not register it twice.
    test("sharing::at_once", &["A.it_lmr_create V02"], |f| {
        let buffer = f.buffer(PAGE)?;
        let ias = vec![f.a.clone(), f.another(None)?, f.another(None)?, f.another(None)?];
        let mut threads = Vec::new();
        for ia in &ias {
            let (ia, buffer) = (ia.clone(), buffer.clone());
            threads.push(Thread::spawn(f.platform(), "registers", move || -> Result<LmrHandle, Error> {
                let (pz, mode) = (ia.pz_create()?, AddrMode::Absolute);
                let memory = LmrMemory::buffer(&buffer);
                Ok(ia.lmr_create(pz, memory, PAGE as u64, mode, OPEN, LmrFlags::SHARED, 9)?.0)
            })?);
        }
        let mut regions = Vec::new();
        for thread in threads {
            regions.push(thread.join()??);
        }
        // Each region found a match, regardless of which one was created first.
        for (ia, lmr) in ias.iter().zip(&regions) {
            check!(is_shared(ia, *lmr)?);
        }
        check_eq!(held(&buffer), regions.len());
        for (ia, lmr) in ias.iter().zip(&regions) {
            ia.lmr_free(*lmr)?;
        }
        check_eq!(held(&buffer), 0);
        Ok(())
    }),
    // Several consumers can register the same memory, and each sees what the peers write.
    test("sharing::consumers_register_the_same_memory", &["it_lmr_create B35"], |f| {
        let buffer = f.buffer(PAGE)?;
        let other = f.another(None)?;
        let (mine, theirs) = (f.pair()?, {
            let plain = EpAttributes { priv_ops_enable: false, ..crate::fixture::attributes() };
            let pair = Pair { a: f.end(&f.a, &plain)?, b: f.end(&other, &plain)? };
            f.connect(&pair.a, &pair.b)?;
            pair
        });
        let first = over(&f.b, mine.b.pz, &buffer, OPEN, LmrFlags::NONE)?;
        let second = over(&other, theirs.b.pz, &buffer, OPEN, LmrFlags::NONE)?;
        for seed in 0..4 {
            check_eq!(write(f, &mine, &first, seed)?, DtoStatus::Success);
            check!(second.all() == pattern(seed, PAGE));
            check_eq!(write(f, &theirs, &second, seed + 8)?, DtoStatus::Success);
            check!(first.all() == pattern(seed + 8, PAGE));
        }
        Ok(())
    }),
    // The memory is released when the last region over any part of it is freed, and not before.
    test("sharing::memory_is_held_by_its_last_region", &["it_lmr_free B02 O01", "A.it_lmr_free B01"], |f| {
        // Here memory is locked by keeping it allocated.
        let buffer = f.buffer(2 * PAGE)?;
        let (pz, other) = (f.a.pz_create()?, f.another(None)?);
        let mode = AddrMode::Absolute;
        check_eq!(held(&buffer), 0);
        let alone = over(&f.a, pz, &buffer, OPEN, LmrFlags::NONE)?.lmr;
        check_eq!(held(&buffer), 1);
        f.a.lmr_free(alone)?;
        check_eq!(held(&buffer), 0);
        // Three overlapping regions of two consumers; two of them share.
        let pair = f.pair()?;
        let part = LmrMemory::Buffer { buffer: &buffer, offset: PAGE / 2 };
        let size = PAGE as u64;
        let first = f.b.lmr_create(pair.b.pz, part, size, mode, OPEN, LmrFlags::NONE, 0)?;
        let second = other.lmr_create(other.pz_create()?, part, size, mode, OPEN, LmrFlags::SHARED, 0)?;
        let third = over(&f.b, pair.b.pz, &buffer, OPEN, LmrFlags::NONE)?;
        check_eq!(held(&buffer), 4, "three regions and the fixture's");
        f.b.lmr_free(first.0)?;
        check_eq!(held(&buffer), 3);
        other.lmr_free(second.0)?;
        check_eq!(held(&buffer), 2);
        check_eq!(write(f, &pair, &third, 5)?, DtoStatus::Success);
        check!(third.bytes(0, PAGE) == pattern(5, PAGE));
        let Region { lmr, buffer: ours, .. } = third;
        drop(ours);
        f.b.lmr_free(lmr)?;
        check_eq!(held(&buffer), 0);
        Ok(())
    }),
];
