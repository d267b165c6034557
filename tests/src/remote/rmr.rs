//! Remote memory regions (pages it_rmr_create, it_rmr_link, it_rmr_query, it_rmr_unlink,
//! it_rmr_free, it_rmr_type_t).

use core::result::Result;

use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, pattern};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Both types of RMR.
pub(crate) const TYPES: [RmrType; 2] = [RmrType::Narrow, RmrType::Wide];

/// The arguments of a link. Tests of bad arguments change one of them.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) rmr: RmrHandle,
    pub(crate) lmr: LmrHandle,
    pub(crate) addr: usize,
    pub(crate) length: u64,
    pub(crate) mode: AddrMode,
    pub(crate) privs: MemPriv,
    pub(crate) flags: DtoFlags,
}

impl Link {
    /// A link to a whole region, for remote reads and writes.
    pub(crate) fn of(rmr: RmrHandle, region: &Region) -> Link {
        let (addr, length) = (region.buffer.addr(), region.buffer.len() as u64);
        let (mode, privs) = (AddrMode::Absolute, MemPriv::REMOTE);
        Link { rmr, lmr: region.lmr, addr, length, mode, privs, flags: SIGNALLED }
    }

    /// A link to `length` bytes of the same region.
    pub(crate) fn part(self, offset: usize, length: u64) -> Link {
        Link { addr: self.addr + offset, length, ..self }
    }

    /// Posts the link on this endpoint.
    pub(crate) fn post(&self, end: &End, cookie: u64) -> Result<RmrContext, Error> {
        let Link { rmr, lmr, addr, length, mode, privs, flags } = *self;
        end.ia.rmr_link(rmr, lmr, addr, length, mode, privs, end.ep, cookie, flags)
    }

    /// Posts the link and checks that it succeeds.
    #[track_caller]
    pub(crate) fn made(&self, end: &End) -> Result<RmrContext, Failure> {
        let context = self.post(end, 500)?;
        let done = end.reap()?;
        match (done.event_number, done.cookie, done.dto_status) {
            (EventType::RMR_LINK_CMPL, 500, DtoStatus::Success) => Ok(context),
            _ => Err(Failure::new(alloc::format!("a valid link failed: {done:?}"))),
        }
    }

    /// Posts the link, and checks that it completes with this status, breaks the connection and
    /// changes nothing else.
    pub(crate) fn fails(&self, end: &End, status: DtoStatus) -> Outcome {
        let before = param(end, self.rmr)?;
        // A failure is reported even without the completion flag.
        Link { flags: DtoFlags::empty(), ..*self }.post(end, 44)?;
        failed(end, 44, status)?;
        check_eq!(param(end, self.rmr)?, before, "the parameters after the failed link");
        Ok(())
    }
}

/// Takes the completion of a link or unlink, which must have this status, and checks that the
/// connection broke.
pub(crate) fn failed(end: &End, cookie: u64, status: DtoStatus) -> Outcome {
    let done = end.reap()?;
    check_eq!((done.cookie, done.dto_status), (cookie, status));
    check_eq!((done.event_number, done.ep, done.evd), (EventType::RMR_LINK_CMPL, end.ep, end.request));
    end.broken()
}

/// All parameters of the RMR.
pub(crate) fn param(end: &End, rmr: RmrHandle) -> Result<RmrParam, Failure> {
    Ok(end.ia.rmr_query(rmr, RmrParamMask::ALL)?)
}

/// The same parameters without a link.
fn unlinked(param: RmrParam) -> RmrParam {
    RmrParam { ia: param.ia, pz: param.pz, rmr_type: param.rmr_type, ..RmrParam::default() }
}

/// Unlinks the RMR and takes the completion, which must be a success.
#[track_caller]
pub(crate) fn unlink(end: &End, rmr: RmrHandle) -> Outcome {
    end.ia.rmr_unlink(rmr, end.ep, 501, SIGNALLED)?;
    let done = end.reap()?;
    match (done.event_number, done.cookie, done.dto_status) {
        (EventType::RMR_LINK_CMPL, 501, DtoStatus::Success) => Ok(()),
        _ => Err(Failure::new(alloc::format!("a valid unlink failed: {done:?}"))),
    }
}

/// A connected pair, and on the passive side a region of two pages and an RMR in the same zone.
pub(crate) fn ready(f: &Fixture, rmr_type: RmrType) -> Result<(Pair, Region, RmrHandle), Failure> {
    let pair = f.pair()?;
    let region = f.region(&f.b, pair.b.pz, 2 * PAGE, MemPriv::LOCAL)?;
    region.fill(7);
    let rmr = f.b.rmr_create(pair.b.pz, rmr_type)?;
    Ok((pair, region, rmr))
}

/// Another connected pair, whose passive end is in the same zone as the first one's.
pub(crate) fn neighbour(f: &Fixture, of: &Pair) -> Result<Pair, Failure> {
    let a = f.end(&f.a, &attributes())?;
    let b = f.end_in(&f.b, of.b.pz, &attributes())?;
    f.connect(&a, &b)?;
    Ok(Pair { a, b })
}

/// The status of a read or a write of `len` bytes by `end`.
pub(crate) fn reaches(
    f: &Fixture,
    end: &End,
    write: bool,
    at: RdmaAddr,
    context: RmrContext,
    len: usize,
) -> Result<DtoStatus, Failure> {
    let own = f.region(&end.ia, end.pz, len.max(1), OPEN)?;
    own.fill(3);
    let segment = [own.segment(0, len)];
    match write {
        true => end.ia.post_rdma_write(end.ep, &segment, 77, SIGNALLED, at, context)?,
        false => end.ia.post_rdma_read(end.ep, &segment, 77, SIGNALLED, at, context)?,
    }
    let done = end.reap()?;
    check_eq!(done.cookie, 77);
    let status = if write { end.settled(done.dto_status)? } else { done.dto_status };
    end.ia.lmr_free(own.lmr)?;
    Ok(status)
}

/// Whether the peer may read through the context.
pub(crate) fn readable(
    f: &Fixture,
    pair: &Pair,
    region: &Region,
    context: RmrContext,
) -> Result<bool, Failure> {
    Ok(reaches(f, &pair.a, false, region.remote(0), context, 8)? == DtoStatus::Success)
}

pub(crate) const TESTS: &[Test] = &[
    // A new RMR is not linked, has the type that was asked for, and is invalid after the free.
    test(
        "rmr::create_query_free",
        &[
            "it_rmr_create B01 B02 B08 O01 S01 IT_ERR_INVALID_PZ",
            "it_rmr_query B01 F01-F03 F10 IT_ERR_INVALID_MASK IT_ERR_INVALID_RMR",
            "it_rmr_free B01 IT_ERR_INVALID_RMR",
            "it_rmr_type_t B08 B09 F01-F03 O01",
            "it_handle_t F08",
            "it_status_t F65",
        ],
        |f| {
            let info = f.b.ia_query()?;
            check_eq!(info.rmr_types_supported, RmrTypes::NARROW | RmrTypes::WIDE);
            check!(info.narrow_rmr_unlink_support && info.wide_rmr_unlink_support);
            check_eq!((RmrType::Default as u32, RmrType::Narrow as u32, RmrType::Wide as u32), (0, 1, 2));
            let pz = f.b.pz_create()?;
            for (wanted, got) in [
                (RmrType::Default, RmrType::Wide),
                (RmrType::Narrow, RmrType::Narrow),
                (RmrType::Wide, RmrType::Wide),
            ] {
                let rmr = f.b.rmr_create(pz, wanted)?;
                let expected = RmrParam { ia: f.b.handle(), pz, rmr_type: got, ..RmrParam::default() };
                check_eq!(f.b.rmr_query(rmr, RmrParamMask::ALL)?, expected);
                check_eq!(f.b.get_handle_type(rmr)?, HandleType::Rmr);
                f.b.set_consumer_context(rmr, 5)?;
                check_eq!(f.b.get_consumer_context(rmr)?, 5);
                check_eq!(f.b.object_counts().rmr, 1);
                refused(f.b.pz_free(pz), Error::PzBusy)?;
                // A query fills in only the fields that the mask names.
                let some = f.b.rmr_query(rmr, RmrParamMask::PZ)?;
                check_eq!(some, RmrParam { pz, ..RmrParam::default() });
                for bits in [0x800, 0x8000_0000, u32::MAX] {
                    refused(f.b.rmr_query(rmr, RmrParamMask::from_bits_retain(bits)), Error::InvalidMask)?;
                }
                f.b.rmr_free(rmr)?;
                refused(f.b.rmr_free(rmr), Error::InvalidRmr)?;
                refused(f.b.rmr_query(rmr, RmrParamMask::ALL), Error::InvalidRmr)?;
                refused(f.b.get_handle_type(rmr), Error::InvalidHandle)?;
            }
            check_eq!(f.b.object_counts().rmr, 0);
            let masks = [
                (RmrParamMask::ALL, 1),
                (RmrParamMask::IA, 2),
                (RmrParamMask::PZ, 4),
                (RmrParamMask::LINKED, 8),
                (RmrParamMask::LMR, 0x10),
                (RmrParamMask::ADDR, 0x20),
                (RmrParamMask::LENGTH, 0x40),
                (RmrParamMask::MEM_PRIV, 0x80),
                (RmrParamMask::RMR_CONTEXT, 0x100),
                (RmrParamMask::TYPE, 0x200),
                (RmrParamMask::ADDR_MODE, 0x400),
            ];
            check!(masks.iter().all(|(mask, bits)| mask.bits() == *bits));
            let foreign = f.a.pz_create()?;
            refused(f.b.rmr_create(PzHandle::NULL, RmrType::Wide), Error::InvalidPz)?;
            refused(f.b.rmr_create(foreign, RmrType::Wide), Error::InvalidPz)?;
            let rmr = f.a.rmr_create(foreign, RmrType::Wide)?;
            for bad in [RmrHandle::NULL, rmr, RmrHandle::from_raw(pz.as_raw())] {
                refused(f.b.rmr_free(bad), Error::InvalidRmr)?;
                refused(f.b.rmr_query(bad, RmrParamMask::ALL), Error::InvalidRmr)?;
            }
            f.b.pz_free(pz)?;
            refused(f.b.rmr_create(pz, RmrType::Wide), Error::InvalidPz)
        },
    ),
    // A linked RMR gives the peer access to exactly its bytes, and to no others of the region.
    test(
        "rmr::link_and_use",
        &[
            "it_lmr_create V01",
            "A.it_lmr_create B02",
            "A.it_rmr_query B01 O01",
            "it_addr_mode_t B02",
            "it_rmr_link B01-B04 B09 B12 B13 B15 B23",
            "it_rmr_create B03 B06",
            "it_rmr_query B02 F04-F09 F11",
            "it_rmr_type_t B01 B02 B05",
            "it_event_t F10",
            "it_mem_priv_t B03",
            "A.it_rmr_link B01 B02 B04",
        ],
        |f| {
            check_eq!(EventType::RMR_LINK_CMPL.as_raw(), 6);
            for rmr_type in TYPES {
                // The region itself is not open to peers.
                let (pair, region, rmr) = ready(f, rmr_type)?;
                let link = Link::of(rmr, &region).part(100, 50);
                let context = link.post(&pair.b, u64::MAX)?;
                let done = pair.b.reap()?;
                let expected = DtoCompletion {
                    event_number: EventType::RMR_LINK_CMPL,
                    evd: pair.b.request,
                    ep: pair.b.ep,
                    cookie: u64::MAX,
                    ..DtoCompletion::default()
                };
                check_eq!(done, expected);
                let expected = RmrParam {
                    ia: f.b.handle(),
                    pz: pair.b.pz,
                    linked: true,
                    lmr: region.lmr,
                    addr: region.buffer.addr() + 100,
                    length: 50,
                    privs: MemPriv::REMOTE,
                    rmr_context: Some(context),
                    rmr_type,
                    addr_mode: AddrMode::Absolute,
                };
                check_eq!(param(&pair.b, rmr)?, expected);
                let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
                let from = region.remote(100);
                f.a.post_rdma_read(pair.a.ep, &[own.segment(0, 50)], 1, SIGNALLED, from, context)?;
                pair.a.done(1, DtoStatus::Success)?;
                check!(own.bytes(0, 50) == region.bytes(100, 50));
                own.fill(99);
                f.a.post_rdma_write(
                    pair.a.ep,
                    &[own.segment(0, 1)],
                    2,
                    SIGNALLED,
                    region.remote(149),
                    context,
                )?;
                pair.a.done(2, DtoStatus::Success)?;
                check!(f.arrives(|| region.bytes(149, 1) == own.bytes(0, 1)));
                check!(region.bytes(150, 1) == pattern(7, 151)[150..]);
                // An RMR is no LMR and gives no local access.
                let segment = LmrTriplet::new(LmrHandle::from_raw(rmr.as_raw()), from.to_host(), 8);
                f.b.post_send(pair.b.ep, &[segment], 3, SIGNALLED)?;
                pair.b.done(3, DtoStatus::LocalProtection)?;
                f.b.rmr_free(rmr)?;
            }
            // Ranges that begin one byte before the window or end one byte behind it.
            for rmr_type in TYPES {
                for (at, len) in [(99, 8), (149, 2), (150, 1), (100, 51)] {
                    let (pair, region, rmr) = ready(f, rmr_type)?;
                    let context = Link::of(rmr, &region).part(100, 50).made(&pair.b)?;
                    let status = reaches(f, &pair.a, false, region.remote(at), context, len)?;
                    check_eq!(status, DtoStatus::RemoteAccess, "{at}, {len}");
                    f.b.rmr_free(rmr)?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                }
            }
            Ok(())
        },
    ),
    // An RMR permits exactly the remote operations of its link.
    test("rmr::only_what_was_granted", &["it_rmr_link B10 B11 V03"], |f| {
        for rmr_type in TYPES {
            for (privs, reads, writes) in [
                (MemPriv::REMOTE_READ, true, false),
                (MemPriv::REMOTE_WRITE, false, true),
                (MemPriv::REMOTE_WRITE | MemPriv::LOCAL, false, true),
                (MemPriv::empty(), false, false),
            ] {
                for (write, granted) in [(false, reads), (true, writes)] {
                    let (pair, region, rmr) = ready(f, rmr_type)?;
                    let context = Link { privs, ..Link::of(rmr, &region) }.made(&pair.b)?;
                    check_eq!(param(&pair.b, rmr)?.privs, privs & MemPriv::REMOTE);
                    let status = reaches(f, &pair.a, write, region.remote(0), context, 8)?;
                    let expected = if granted { DtoStatus::Success } else { DtoStatus::RemoteAccess };
                    check_eq!(status, expected, "{privs:?}, write {write}");
                    f.b.rmr_free(rmr)?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                }
            }
        }
        Ok(())
    }),
    // A narrow RMR can be linked with offsets as addresses, a wide one cannot.
    test("rmr::relative_addressing", &["it_addr_mode_t B05 O02", "it_rmr_link B05 O01 O02"], |f| {
        check!(f.b.ia_query()?.addr_mode_relative_support);
        let (pair, region, rmr) = ready(f, RmrType::Narrow)?;
        let link = Link { mode: AddrMode::Relative, ..Link::of(rmr, &region).part(33, 100) };
        let context = link.made(&pair.b)?;
        let received = param(&pair.b, rmr)?;
        check_eq!((received.addr, received.addr_mode), (region.buffer.addr() + 33, AddrMode::Relative));
        let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let from = make_rdma_addr_relative(5);
        f.a.post_rdma_read(pair.a.ep, &[own.segment(0, 95)], 1, SIGNALLED, from, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        check!(own.bytes(0, 95) == region.bytes(38, 95));
        let wide = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
        refused(Link { rmr: wide, ..link }.post(&pair.b, 1), Error::InvalidAddrMode)?;
        check_eq!(
            reaches(f, &pair.a, false, make_rdma_addr_relative(6), context, 95)?,
            DtoStatus::RemoteAccess
        );
        f.b.rmr_free(rmr)?;
        Ok(())
    }),
    // A wide RMR works through every endpoint of its zone, also for links and unlinks.
    test(
        "rmr::wide_through_all_endpoints",
        &[
            "it_rmr_create B04",
            "it_rmr_link B08 B17 B18",
            "it_rmr_type_t B06 B07",
            "A.it_rmr_link V01",
            "A.it_rmr_unlink B01",
        ],
        |f| {
            let (first, region, rmr) = ready(f, RmrType::Wide)?;
            let second = neighbour(f, &first)?;
            let link = Link::of(rmr, &region);
            let old = link.made(&first.b)?;
            check!(readable(f, &first, &region, old)? && readable(f, &second, &region, old)?);
            // Link it again, while it is linked, through another endpoint.
            let new = link.part(0, 64).made(&second.b)?;
            check!(new != old);
            check_eq!(param(&second.b, rmr)?.length, 64);
            check!(readable(f, &first, &region, new)? && readable(f, &second, &region, new)?);
            check!(readable(f, &first, &region, new)?, "the context is valid until the next link");
            check!(!readable(f, &first, &region, old)?, "the old context");
            // It can be unlinked through any endpoint.
            unlink(&second.b, rmr)?;
            check_eq!(param(&second.b, rmr)?, unlinked(param(&second.b, rmr)?));
            check!(!readable(f, &second, &region, new)?);
            Ok(())
        },
    ),
    // A narrow RMR works through the endpoint of its link only, and keeps that endpoint from being
    // freed.
    test(
        "rmr::narrow_through_its_endpoint",
        &[
            "it_post_rdma_read A08",
            "it_rmr_create B05",
            "it_rmr_link B07",
            "it_rmr_type_t B03 B04",
            "it_rmr_unlink A01 A05 B07 B08 B13 S01",
            "it_dto_status_t A20 A23",
            "it_ep_free IT_ERR_EP_BUSY",
        ],
        |f| {
            let (first, region, rmr) = ready(f, RmrType::Narrow)?;
            let second = neighbour(f, &first)?;
            let third = neighbour(f, &first)?;
            let context = Link::of(rmr, &region).made(&first.b)?;
            check!(readable(f, &first, &region, context)?);
            check_eq!(reaches(f, &second.a, false, region.remote(0), context, 8)?, DtoStatus::RemoteAccess);
            let before = param(&first.b, rmr)?;
            f.b.rmr_unlink(rmr, third.b.ep, 9, DtoFlags::empty())?;
            f.b.post_send(third.b.ep, &[], 10, SIGNALLED)?;
            failed(&third.b, 9, DtoStatus::RmrOperationFailed)?;
            third.b.done(10, DtoStatus::Flushed)?;
            check_eq!(param(&first.b, rmr)?, before);
            check!(readable(f, &first, &region, context)?, "the context of the link in force");
            refused(f.b.ep_free(first.b.ep), Error::EpBusy)?;
            check_eq!(first.b.state()?, EpStateRc::Connected);
            unlink(&first.b, rmr)?;
            f.b.ep_free(first.b.ep)?;
            Ok(())
        },
    ),
    // After an unlink the context is invalid and the region is free of the RMR.
    test(
        "rmr::unlink",
        &["it_rmr_unlink B01 B03-B06 B11 B12", "it_lmr_free IT_ERR_LMR_BUSY", "1 B02"],
        |f| {
            for rmr_type in TYPES {
                let (pair, region, rmr) = ready(f, rmr_type)?;
                unlink(&pair.b, rmr)?;
                for round in 0..3 {
                    let context = Link::of(rmr, &region).made(&pair.b)?;
                    check!(readable(f, &pair, &region, context)?);
                    refused(f.b.lmr_free(region.lmr), Error::LmrBusy)?;
                    let fence = if rmr_type == RmrType::Narrow {
                        DtoFlags::UNLINK_FENCE
                    } else {
                        DtoFlags::BARRIER_FENCE
                    };
                    f.b.rmr_unlink(rmr, pair.b.ep, round, SIGNALLED | fence)?;
                    let done = pair.b.reap()?;
                    check_eq!((done.event_number, done.cookie), (EventType::RMR_LINK_CMPL, round));
                    check_eq!(done.dto_status, DtoStatus::Success);
                    check!(!param(&pair.b, rmr)?.linked);
                    // An RMR that is not linked can be unlinked again.
                    unlink(&pair.b, rmr)?;
                }
                let context = Link::of(rmr, &region).made(&pair.b)?;
                unlink(&pair.b, rmr)?;
                check!(!readable(f, &pair, &region, context)?);
                f.b.lmr_free(region.lmr)?;
            }
            Ok(())
        },
    ),
    // Freeing a linked RMR invalidates its context, and works without the endpoint of the link.
    test("rmr::free_while_linked", &["it_rmr_free B02-B04", "it_rmr_unlink V01"], |f| {
        for rmr_type in TYPES {
            let (pair, region, rmr) = ready(f, rmr_type)?;
            let other = f.b.rmr_create(pair.b.pz, rmr_type)?;
            let gone = Link::of(rmr, &region).made(&pair.b)?;
            let stays = Link::of(other, &region).part(0, 64).made(&pair.b)?;
            f.b.rmr_free(rmr)?;
            check!(readable(f, &pair, &region, stays)?);
            check!(!readable(f, &pair, &region, gone)?);
            pair.b.broken()?;
            // The endpoint of the link cannot be used any more.
            refused(f.b.lmr_free(region.lmr), Error::LmrBusy)?;
            f.b.rmr_free(other)?;
            f.b.lmr_free(region.lmr)?;
        }
        Ok(())
    }),
    // A Send behind a link can carry the new context; behind a failed link it is not sent.
    test("rmr::a_link_fences_what_follows", &["it_rmr_link B14 B16 B24-B26", "it_rmr_unlink B10"], |f| {
        for rmr_type in TYPES {
            let (pair, region, rmr) = ready(f, rmr_type)?;
            let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            // The context is sent to the peer behind the link. Only the Send asks for a
            // completion.
            let link = Link { flags: DtoFlags::empty(), ..Link::of(rmr, &region) };
            for round in 0..10 {
                f.a.post_recv(pair.a.ep, &[own.whole()], round, DtoFlags::COMPLETION)?;
                let context = link.post(&pair.b, 1)?;
                region.write(PAGE, &context.0.to_ne_bytes());
                f.b.post_send(pair.b.ep, &[region.segment(PAGE, 4)], 2, SIGNALLED)?;
                pair.a.recv_done(round, DtoStatus::Success)?;
                let received = own.bytes(0, 4);
                check_eq!(received, context.0.to_ne_bytes());
                check!(readable(f, &pair, &region, context)?);
                pair.b.done(2, DtoStatus::Success)?;
                f.b.rmr_unlink(rmr, pair.b.ep, 3, DtoFlags::empty())?;
                f.a.post_recv(pair.a.ep, &[], round, DtoFlags::COMPLETION)?;
                f.b.post_send(pair.b.ep, &[], 4, SIGNALLED)?;
                pair.a.recv_done(round, DtoStatus::Success)?;
                pair.b.done(4, DtoStatus::Success)?;
                check!(!param(&pair.b, rmr)?.linked);
            }
            pair.b.idle()?;
            // Behind a link that fails, the context is not sent.
            let elsewhere = f.region(&f.b, f.b.pz_create()?, 64, MemPriv::LOCAL)?;
            let bad = Link { flags: DtoFlags::empty(), ..Link::of(rmr, &elsewhere) };
            bad.post(&pair.b, 5)?;
            f.b.post_send(pair.b.ep, &[], 6, SIGNALLED)?;
            failed(&pair.b, 5, DtoStatus::RmrOperationFailed)?;
            pair.b.done(6, DtoStatus::Flushed)?;
            pair.a.idle()?;
        }
        Ok(())
    }),
    // No link gets a context that was used shortly before.
    test("rmr::many_links_new_contexts", &["it_rmr_free V01", "A.it_rmr_link B03"], |f| {
        let (pair, region, rmr) = ready(f, RmrType::Wide)?;
        let mut seen = alloc::collections::BTreeSet::new();
        for _ in 0..200 {
            let context = Link::of(rmr, &region).made(&pair.b)?;
            check!(seen.insert(context.0), "the link got a context that was used before");
            check_eq!(param(&pair.b, rmr)?.rmr_context, Some(context));
        }
        for _ in 0..300 {
            Link::of(rmr, &region).made(&pair.b)?;
        }
        Ok(())
    }),
];
