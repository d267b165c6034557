//! Regions and their links over iWARP (pages it_dto_status_t, it_lmr_link, it_rmr_link; appendix A,
//! it_lmr_query, it_ep_rc_create).

use core::result::Result;

use privileged_api::*;

use super::{Scene, open, page};
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, pattern};
use crate::memory::iobl::map;
use crate::remote::link::{BASE, Link, PAGE_LEN, fails_on, unlinked};
use crate::remote::rmr;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Links a page to a region without links, with what `spoil` changes, on an endpoint of `a`.
#[track_caller]
fn links(f: &Fixture, pair: &Pair, spoil: impl FnOnce(&mut Link<'_>)) -> Outcome {
    let buffer = f.buffer(PAGE)?;
    let pages = [map(&f.a, &buffer)?];
    let mut link = Link::pages(unlinked(&pair.a, 1)?, &pages);
    spoil(&mut link);
    fails_on(pair, &link)
}

/// What `change` makes of a link of a new RMR to a region of the pair's passive end fails.
#[track_caller]
fn refused_link(
    f: &Fixture,
    rmr_type: RmrType,
    change: impl FnOnce(rmr::Link, &End) -> Result<rmr::Link, Failure>,
) -> Outcome {
    let (pair, region, rmr) = rmr::ready(f, rmr_type)?;
    let link = change(rmr::Link::of(rmr, &region), &pair.b)?;
    link.fails(&pair.b, DtoStatus::RmrOperationFailed)
}

/// Memory that nobody may write.
static CONSTANTS: [u8; 64] = [7; 64];

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A link of an RMR that is refused for its region, its RMR, its zone or its bounds. Its rights
    // are refused only of constants (`rmrs_need_no_local_write`).
    test("iwarp_ia::links_of_rmrs_that_fail", &["it_dto_status_t F33"], |f| {
        let f = f.over_iwarp()?;
        for rmr_type in rmr::TYPES {
            // The call itself knows the bounds only of a region that was created linked.
            refused_link(&f, rmr_type, |link, end| {
                let buffer = f.buffer(PAGE)?;
                let pages = [map(&f.b, &buffer)?];
                let lmr = unlinked(end, 1)?;
                Link::pages(lmr, &pages).post(end, 43)?;
                end.done(43, DtoStatus::Success)?;
                Ok(rmr::Link { lmr, addr: BASE, length: PAGE_LEN + 1, ..link })
            })?;
            refused_link(&f, rmr_type, |link, _| {
                let other = f.region(&f.b, f.b.pz_create()?, PAGE, OPEN)?;
                Ok(rmr::Link::of(link.rmr, &other))
            })?;
            refused_link(&f, rmr_type, |link, _| {
                Ok(rmr::Link { rmr: f.b.rmr_create(f.b.pz_create()?, rmr_type)?, ..link })
            })?;
            refused_link(&f, rmr_type, |link, end| {
                Ok(rmr::Link { lmr: f.b.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?, ..link })
            })?;
        }
        Ok(())
    }),
    // What InfiniBand alone forbids: peers may write through an RMR whose LMR has no local write,
    // unless it is a constant, which nobody may write.
    test("iwarp_ia::rmrs_need_no_local_write", &[], |f| {
        let f = f.over_iwarp()?;
        for rmr_type in rmr::TYPES {
            let (pair, _, rmr) = rmr::ready(&f, rmr_type)?;
            let region = f.region(&f.b, pair.b.pz, 64, MemPriv::LOCAL_READ)?;
            let link = rmr::Link::of(rmr, &region);
            let context = rmr::Link { privs: MemPriv::REMOTE_WRITE, ..link }.made(&pair.b)?;
            check_eq!(rmr::reaches(&f, &pair.a, true, region.remote(0), context, 64)?, DtoStatus::Success);
            check_eq!(region.bytes(0, 64), pattern(3, 64));
            // The region itself is as closed as before, and stays so when its rights are modified.
            rmr::unlink(&pair.b, rmr)?;
            let privs =
                LmrParam { privs: MemPriv::LOCAL_READ, ..f.b.lmr_query(region.lmr, LmrParamMask::ALL)? };
            f.b.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &privs)?;
            rmr::Link { privs: MemPriv::REMOTE_WRITE, ..link }.made(&pair.b)?;
            rmr::unlink(&pair.b, rmr)?;
            f.b.post_recv(pair.b.ep, &[region.segment(0, 64)], 9, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[page(&f, &pair.a)?.segment(0, 1)], 8, DtoFlags::empty())?;
            pair.b.recv_done(9, DtoStatus::LocalProtection)?;
            // A region that was linked to a list.
            let (pair, _, rmr) = rmr::ready(&f, rmr_type)?;
            let buffer = f.buffer(PAGE)?;
            let pages = [map(&f.b, &buffer)?];
            let lmr = unlinked(&pair.b, 1)?;
            Link { privs: MemPriv::LOCAL_READ, ..Link::pages(lmr, &pages) }.post(&pair.b, 43)?;
            pair.b.done(43, DtoStatus::Success)?;
            let link = rmr::Link { rmr, lmr, addr: BASE, length: 64, ..link };
            rmr::Link { privs: MemPriv::REMOTE_WRITE, ..link }.made(&pair.b)?;
            f.b.rmr_free(rmr)?;
        }
        refused_link(&f, RmrType::Narrow, |link, end| {
            let (memory, mode) = (LmrMemory::Static(&CONSTANTS), AddrMode::Absolute);
            match f.b.lmr_create(end.pz, memory, 64, mode, MemPriv::LOCAL_READ, LmrFlags::NONE, 0) {
                // A device of the host reaches no constants.
                Err(Error::Fault) => {
                    let plain = f.region(&f.b, f.b.pz_create()?, PAGE, OPEN)?;
                    Ok(rmr::Link::of(link.rmr, &plain))
                }
                made => {
                    let addr = CONSTANTS.as_ptr().addr();
                    Ok(rmr::Link { lmr: made?.0, addr, length: 64, ..link })
                }
            }
        })
    }),
    // Nor is a link to no bytes one that fails later: the page says that the length must not be 0.
    test("iwarp_ia::rmrs_are_not_linked_to_nothing", &[], |f| {
        let f = f.over_iwarp()?;
        for rmr_type in rmr::TYPES {
            let (pair, region, rmr) = rmr::ready(&f, rmr_type)?;
            let link = rmr::Link::of(rmr, &region).part(8, 0);
            refused(link.post(&pair.b, 1), Error::InvalidLength)?;
            check!(!f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            rmr::Link { length: 1, ..link }.made(&pair.b)?;
            f.b.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // Of an LMR it is an error of memory management: a link of what is linked, of another zone, or
    // of the direct handle; an unlink of what is not linked, and of another zone.
    test("iwarp_ia::links_of_lmrs_that_fail", &["it_dto_status_t F37"], |f| {
        let f = f.over_iwarp()?;
        let pair = f.pair()?;
        let region = page(&f, &pair.a)?;
        links(&f, &pair, |link| link.lmr = region.lmr)?;
        let pair = f.pair()?;
        let other = f.a.lmr_create_unlinked(f.a.pz_create()?, 1, LmrFlags::NONE, 0)?;
        links(&f, &pair, |link| link.lmr = other)?;
        for zone in [false, true] {
            let pair = f.pair()?;
            let lmr = match zone {
                true => f.region(&f.a, f.a.pz_create()?, PAGE, OPEN)?.lmr,
                false => unlinked(&pair.a, 1)?,
            };
            f.a.lmr_unlink(lmr, pair.a.ep, 44, SIGNALLED)?;
            pair.a.done(44, DtoStatus::LocalMmOperation)?;
            pair.a.broken()?;
        }
        // A link that is valid succeeds.
        let pair = f.pair()?;
        let buffer = f.buffer(PAGE)?;
        let pages = [map(&f.a, &buffer)?];
        Link::pages(unlinked(&pair.a, 1)?, &pages).post(&pair.a, 45)?;
        pair.a.done(45, DtoStatus::Success)
    }),
    // A region that is linked has at least one byte, and no more than its list.
    test("iwarp_ia::lengths_of_links", &["it_lmr_link A15"], |f| {
        let f = f.over_iwarp()?;
        for length in [0, PAGE_LEN + 1, u64::MAX] {
            links(&f, &f.pair()?, |link| link.length = length)?;
        }
        Ok(())
    }),
    // The bounds of a region count by the byte, wherever it begins and ends.
    test("iwarp_ia::bounds_to_the_byte", &["A.it_lmr_query B03"], |f| {
        let f = f.over_iwarp()?;
        const AT: usize = 7;
        const LENGTH: usize = 100;
        for (offset, length, fits) in
            [(AT, LENGTH, true), (AT + LENGTH - 1, 1, true), (AT - 1, 2, false), (AT + LENGTH - 1, 2, false)]
        {
            for writes in [true, false] {
                let scene = Scene::new(&f)?;
                let end = &scene.pair.a;
                let buffer = f.buffer(PAGE)?;
                let memory = LmrMemory::Buffer { buffer: &buffer, offset: AT };
                let (mode, flags) = (AddrMode::Absolute, LmrFlags::NONE);
                let (lmr, context) =
                    f.b.lmr_create(scene.pair.b.pz, memory, LENGTH as u64, mode, OPEN, flags, 0)?;
                let asked = f.b.lmr_query(lmr, LmrParamMask::ALL)?;
                check_eq!((asked.actual_addr, asked.actual_length), (buffer.addr() + AT, LENGTH as u64));
                let region = Region { buffer, lmr, context };
                let (at, context) = (region.remote(offset), region.context()?);
                let segment = [scene.own.segment(0, length)];
                match writes {
                    true => f.a.post_rdma_write(end.ep, &segment, 3, SIGNALLED, at, context)?,
                    false => f.a.post_rdma_read(end.ep, &segment, 3, SIGNALLED, at, context)?,
                }
                match (writes, fits) {
                    (true, _) | (_, true) => end.done(3, DtoStatus::Success)?,
                    _ => end.done(3, DtoStatus::RemoteAccess)?,
                }
                if fits {
                    // An answer of the peer shows that the Write has arrived.
                    f.a.post_rdma_read(end.ep, &[scene.own.segment(200, length)], 4, SIGNALLED, at, context)?;
                    end.done(4, DtoStatus::Success)?;
                    check_eq!(scene.own.bytes(200, length), region.bytes(offset, length));
                    check_eq!(scene.own.bytes(0, length), region.bytes(offset, length));
                } else {
                    end.broken()?;
                    scene.pair.b.broken()?;
                    region.untouched()?;
                }
                scene.end()?;
            }
        }
        Ok(())
    }),
    // An endpoint links RMRs, whatever its attributes, for peers that then reach the region.
    test("iwarp_ia::each_endpoint_links_rmrs", &["A.it_ep_rc_create B02"], |f| {
        let f = f.over_iwarp()?;
        let bare = EpAttributes { priv_ops_enable: false, ..EpAttributes::default() };
        let enabled = EpAttributes { priv_ops_enable: false, ..open() };
        for rmr_type in rmr::TYPES {
            for attr in [&bare, &enabled] {
                let pair = f.pair_of(&open(), attr)?;
                let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
                region.fill(7);
                let rmr = f.b.rmr_create(pair.b.pz, rmr_type)?;
                let link = rmr::Link::of(rmr, &region);
                // An RMR grants no more than the endpoint does.
                let privs = if attr.rc.rdma_read_enable { MemPriv::REMOTE } else { MemPriv::empty() };
                let context = rmr::Link { privs, ..link }.made(&pair.b)?;
                if attr.rc.rdma_read_enable {
                    let status = rmr::reaches(&f, &pair.a, false, region.remote(0), context, 64)?;
                    check_eq!(status, DtoStatus::Success);
                }
                check!(f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            }
        }
        Ok(())
    }),
];
