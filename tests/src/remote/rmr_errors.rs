//! Links and unlinks of RMRs that complete in error, and those that are refused at once (pages
//! it_rmr_create, it_rmr_link, it_rmr_unlink).

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{datagrams, peer};
use crate::fixture::{End, Fixture, OPEN, PAGE, Region, SIGNALLED, attributes, is_iwarp};
use crate::remote::rmr::{Link, TYPES, failed, neighbour, param, reaches, readable, ready};
use crate::{Outcome, Test, check, check_eq, refused, test};

/// Checks the failures that are common to both types of RMR.
fn links_fail(f: &Fixture, rmr_type: RmrType) -> Outcome {
    let failed = DtoStatus::RmrOperationFailed;
    // The region lacks the privileges that the link asks for; iWARP does not ask for them.
    for wants in [MemPriv::REMOTE_WRITE, MemPriv::REMOTE, MemPriv::REMOTE | MemPriv::ATOMIC] {
        if is_iwarp(&f.b)? {
            break;
        }
        let (pair, _, rmr) = ready(f, rmr_type)?;
        let region = f.region(&f.b, pair.b.pz, 64, MemPriv::LOCAL_READ)?;
        Link { privs: wants, ..Link::of(rmr, &region) }.fails(&pair.b, failed)?;
    }
    // One of the three has another zone: the region, the RMR, or the endpoint.
    let elsewhere = f.b.pz_create()?;
    let (pair, _, rmr) = ready(f, rmr_type)?;
    let region = f.region(&f.b, elsewhere, 64, MemPriv::LOCAL)?;
    Link::of(rmr, &region).fails(&pair.b, failed)?;
    let (pair, region, _) = ready(f, rmr_type)?;
    let rmr = f.b.rmr_create(elsewhere, rmr_type)?;
    Link::of(rmr, &region).fails(&pair.b, failed)?;
    let (_, region, rmr) = ready(f, rmr_type)?;
    let stranger = f.pair()?;
    Link::of(rmr, &region).fails(&stranger.b, failed)?;
    // The region has relative addressing.
    let (pair, _, rmr) = ready(f, rmr_type)?;
    let buffer = f.buffer(PAGE)?;
    let memory = LmrMemory::buffer(&buffer);
    let (mode, privs) = (AddrMode::Relative, MemPriv::LOCAL);
    let (lmr, _) = f.b.lmr_create(pair.b.pz, memory, 64, mode, privs, LmrFlags::NONE, 0)?;
    let region = Region { buffer, lmr, context: None };
    // With addresses of the memory, and with offsets: neither call refuses.
    Link::of(rmr, &region).part(0, 64).fails(&pair.b, DtoStatus::LocalMmOperation)?;
    let (again, _, rmr) = ready(f, rmr_type)?;
    let memory = LmrMemory::buffer(&region.buffer);
    let (lmr, _) = f.b.lmr_create(again.b.pz, memory, 64, mode, privs, LmrFlags::NONE, 0)?;
    let region = Region { lmr, ..region };
    Link { addr: 0, length: 64, ..Link::of(rmr, &region) }.fails(&again.b, DtoStatus::LocalMmOperation)?;
    // The region is not linked.
    let (pair, _, rmr) = ready(f, rmr_type)?;
    let lmr = f.b.lmr_create_unlinked(pair.b.pz, 1, LmrFlags::NONE, 0)?;
    let region = Region { buffer: f.buffer(PAGE)?, lmr, context: None };
    Link::of(rmr, &region).fails(&pair.b, failed)
}

pub(crate) const TESTS: &[Test] = &[
    // Each fault of a wide RMR's link completes with its own status and leaves an earlier link in
    // force.
    test(
        "rmr::wide_links_that_fail",
        &[
            "it_dto_status_t A13 A16 A29",
            "it_lmr_create B32",
            "it_pz_create A02",
            "it_rmr_link A01 A05 A07 A09 B19 B20 B22 S01 V01 V06",
        ],
        |f| links_fail(f, RmrType::Wide),
    ),
    // Each fault of a narrow RMR's link completes with its own status and leaves an earlier link in
    // force.
    test(
        "rmr::narrow_links_that_fail",
        &["it_dto_status_t A14 A16 A29 A30 F15", "it_rmr_link A05-A07 A09 A10 B19"],
        |f| {
            links_fail(f, RmrType::Narrow)?;
            // A narrow RMR that is linked cannot be linked again; its link stays in force.
            let (pair, region, rmr) = ready(f, RmrType::Narrow)?;
            let context = Link::of(rmr, &region).part(8, 64).made(&pair.b)?;
            let other = neighbour(f, &pair)?;
            Link::of(rmr, &region).fails(&other.b, DtoStatus::RmrOperationFailed)?;
            check_eq!(reaches(f, &pair.a, false, region.remote(8), context, 64)?, DtoStatus::Success);
            f.b.rmr_free(rmr)?;
            // The link covers no bytes, which the call finds on iWARP.
            let (pair, region, rmr) = ready(f, RmrType::Narrow)?;
            let link = Link::of(rmr, &region).part(8, 0);
            match is_iwarp(&f.b)? {
                true => refused(link.post(&pair.b, 1), Error::InvalidLength),
                false => link.fails(&pair.b, DtoStatus::LocalMmOperation),
            }
        },
    ),
    // An unlink through an endpoint of another zone fails and leaves the link in force.
    test("rmr::unlink_in_another_zone", &["it_rmr_unlink A04", "it_dto_status_t A19"], |f| {
        for rmr_type in TYPES {
            let (pair, region, rmr) = ready(f, rmr_type)?;
            let context = Link::of(rmr, &region).made(&pair.b)?;
            let stranger = f.pair()?;
            f.b.rmr_unlink(rmr, stranger.b.ep, 3, SIGNALLED)?;
            failed(&stranger.b, 3, DtoStatus::RmrOperationFailed)?;
            check!(param(&pair.b, rmr)?.linked && readable(f, &pair, &region, context)?);
            f.b.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // Each bad argument is refused with its own error and leaves an earlier link in force.
    test(
        "rmr::link_refusals",
        &[
            "it_rmr_link B21 V02 V05 IT_ERR_ADDRESS IT_ERR_INVALID_ADDR_MODE",
            "it_rmr_link IT_ERR_INVALID_DTO_FLAGS IT_ERR_INVALID_EP IT_ERR_INVALID_LENGTH",
            "it_rmr_link IT_ERR_INVALID_LMR IT_ERR_INVALID_PRIVS IT_ERR_INVALID_RMR",
            "it_rmr_unlink B09 V03 IT_ERR_INVALID_DTO_FLAGS IT_ERR_INVALID_EP IT_ERR_INVALID_RMR",
            "it_dto_flags_t B09 B20 B21",
        ],
        |f| {
            for rmr_type in TYPES {
                let (pair, region, rmr) = ready(f, rmr_type)?;
                let link = Link::of(rmr, &region);
                let context = link.made(&pair.b)?;
                let before = param(&pair.b, rmr)?;
                let foreign = f.a.pz_create()?;
                let (their_rmr, their_lmr) =
                    (f.a.rmr_create(foreign, rmr_type)?, f.region(&f.a, foreign, 64, OPEN)?.lmr);
                let freed = f.b.rmr_create(pair.b.pz, rmr_type)?;
                f.b.rmr_free(freed)?;
                for bad in [RmrHandle::NULL, their_rmr, freed, RmrHandle::from_raw(region.lmr.as_raw())] {
                    refused(Link { rmr: bad, ..link }.post(&pair.b, 1), Error::InvalidRmr)?;
                    refused(f.b.rmr_unlink(bad, pair.b.ep, 1, SIGNALLED), Error::InvalidRmr)?;
                }
                for bad in [LmrHandle::NULL, LmrHandle::DIRECT, their_lmr, LmrHandle::from_raw(rmr.as_raw())]
                {
                    refused(Link { lmr: bad, ..link }.post(&pair.b, 1), Error::InvalidLmr)?;
                }
                for bad in [EpHandle::NULL, pair.a.ep, EpHandle::from_raw(rmr.as_raw())] {
                    let end = End { ep: bad, ..pair.b.clone() };
                    refused(link.post(&end, 1), Error::InvalidEp)?;
                    refused(f.b.rmr_unlink(rmr, bad, 1, SIGNALLED), Error::InvalidEp)?;
                }
                for bits in [0x20, 0x8000_0000, u32::MAX] {
                    let privs = MemPriv::from_bits_retain(bits);
                    refused(Link { privs, ..link }.post(&pair.b, 1), Error::InvalidPrivs)?;
                }
                let (addr, end) = (region.buffer.addr(), region.buffer.addr() + region.buffer.len());
                for addr in [0, addr - 1, end, end + 1, usize::MAX] {
                    refused(Link { addr, length: 1, ..link }.post(&pair.b, 1), Error::Address)?;
                }
                for length in [link.length + 1, u64::MAX, u64::MAX - addr as u64] {
                    refused(Link { length, ..link }.post(&pair.b, 1), Error::InvalidLength)?;
                }
                if rmr_type == RmrType::Wide {
                    refused(Link { length: 0, ..link }.post(&pair.b, 1), Error::InvalidLength)?;
                    let mode = AddrMode::Relative;
                    refused(Link { mode, ..link }.post(&pair.b, 1), Error::InvalidAddrMode)?;
                }
                for flags in (0..0x100).map(DtoFlags::from_bits_retain) {
                    let mut never = DtoFlags::SOLICITED_WAIT | DtoFlags::UNLINK_LOCAL_SINK;
                    never |= DtoFlags::from_bits_retain(0x80);
                    let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
                    if alone || flags.intersects(never | DtoFlags::UNLINK_FENCE) {
                        refused(Link { flags, ..link }.post(&pair.b, 1), Error::InvalidDtoFlags)?;
                    }
                    // Wide RMRs cannot be unlinked with the fence on InfiniBand alone.
                    let unfenced = rmr_type == RmrType::Wide && !is_iwarp(&f.b)?;
                    let fence = unfenced && flags.contains(DtoFlags::UNLINK_FENCE);
                    if alone || fence || flags.intersects(never) {
                        refused(f.b.rmr_unlink(rmr, pair.b.ep, 1, flags), Error::InvalidDtoFlags)?;
                    }
                }
                check_eq!(param(&pair.b, rmr)?, before);
                check!(readable(f, &pair, &region, context)?);
                pair.b.idle()?;
                // All legal flags at once.
                let all =
                    DtoFlags::COMPLETION | DtoFlags::NOTIFY | DtoFlags::BARRIER_FENCE | DtoFlags::COALESCE;
                f.b.rmr_unlink(rmr, pair.b.ep, 1, all)?;
                pair.b.done(1, DtoStatus::Success)?;
                Link { flags: all, ..link }.post(&pair.b, 2)?;
                f.b.post_send(pair.b.ep, &[], 3, DtoFlags::empty())?;
                pair.b.done(2, DtoStatus::Success)?;
                f.b.rmr_free(rmr)?;
            }
            Ok(())
        },
    ),
    // RMRs cannot be linked through datagram endpoints.
    test(
        "rmr::not_for_datagrams",
        &[
            "it_rmr_link IT_ERR_INVALID_EP_TYPE",
            "it_rmr_unlink IT_ERR_INVALID_EP_TYPE",
            "it_post_atomic IT_ERR_INVALID_EP_TYPE",
            "it_post_send_and_unlink IT_ERR_INVALID_EP_TYPE",
        ],
        |f| {
            let peer = peer(&f.b, &datagrams())?;
            let region = f.region(&f.b, peer.pz, 64, OPEN)?;
            let rmr = f.b.rmr_create(peer.pz, RmrType::Narrow)?;
            let (addr, mode, privs, ep) =
                (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE, peer.ep);
            let link = f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, ep, 1, SIGNALLED);
            refused(link, Error::InvalidEpType)?;
            refused(f.b.rmr_unlink(rmr, ep, 1, SIGNALLED), Error::InvalidEpType)?;
            let (to, context) = (region.remote(0), region.context()?);
            let (op, result) = (AtomicOp::FetchAndAdd, region.segment(0, 8));
            let atomic = f.b.post_atomic(ep, op, 1, 0, &result, 1, SIGNALLED, to, context);
            refused(atomic, Error::InvalidEpType)?;
            let sent = f.b.post_send_and_unlink(ep, &[], 1, SIGNALLED, context);
            refused(sent, Error::InvalidEpType)?;
            check!(!f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            region.untouched()?;
            refused(f.b.evd_dequeue(peer.request), Error::QueueEmpty)
        },
    ),
    // Links and unlinks are refused unless the endpoint is connected or nonoperational, where they
    // are flushed.
    test(
        "rmr::states",
        &[
            "it_rmr_link A02 B06 IT_ERR_INVALID_EP_STATE",
            "it_rmr_unlink A02 B02 IT_ERR_INVALID_EP_STATE",
            "it_ep_state_t V05",
        ],
        |f| {
            for rmr_type in TYPES {
                let (pair, region, rmr) = ready(f, rmr_type)?;
                let idle = f.end_in(&f.b, pair.b.pz, &attributes())?;
                let link = Link::of(rmr, &region);
                refused(link.post(&idle, 1), Error::InvalidEpState)?;
                refused(f.b.rmr_unlink(rmr, idle.ep, 1, SIGNALLED), Error::InvalidEpState)?;
                let wide = rmr_type == RmrType::Wide;
                let context = if wide { Some(link.made(&pair.b)?) } else { None };
                f.b.ep_disconnect(pair.b.ep, &[])?;
                pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                link.post(&pair.b, 2)?;
                f.b.rmr_unlink(rmr, pair.b.ep, 3, SIGNALLED)?;
                for cookie in [2, 3] {
                    let done = pair.b.reap()?;
                    check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Flushed));
                    check_eq!(done.event_number, EventType::RMR_LINK_CMPL);
                }
                let after = param(&pair.b, rmr)?;
                check_eq!((after.linked, after.rmr_context), (wide, context));
            }
            Ok(())
        },
    ),
    // A link that finds the send queue full is refused and changes nothing.
    test(
        "rmr::the_send_queue_overflows",
        &["it_rmr_link IT_ERR_TOO_MANY_POSTS", "it_rmr_unlink IT_ERR_TOO_MANY_POSTS"],
        |f| {
            let depth = 4;
            let few = EpAttributes { max_request_dtos: depth, ..attributes() };
            let pair = f.pair_of(&attributes(), &few)?;
            let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
            let rmr = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
            let link = Link::of(rmr, &region);
            for cookie in 0..depth as u64 {
                link.post(&pair.b, cookie)?;
            }
            refused(link.post(&pair.b, 9), Error::TooManyPosts)?;
            refused(f.b.rmr_unlink(rmr, pair.b.ep, 9, SIGNALLED), Error::TooManyPosts)?;
            for cookie in 0..depth as u64 {
                pair.b.done(cookie, DtoStatus::Success)?;
            }
            let last = param(&pair.b, rmr)?;
            check!(last.linked && last.lmr == region.lmr);
            check!(readable(f, &pair, &region, some(last.rmr_context, "a context")?)?);
            Ok(())
        },
    ),
    // Creating RMRs fails with IT_ERR_RESOURCES at some point.
    test("rmr::resources_end", &["it_rmr_create IT_ERR_RESOURCES"], |f| {
        let pz = f.b.pz_create()?;
        let mut made = 0;
        let refusal = loop {
            match f.b.rmr_create(pz, RmrType::Narrow) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
            check!(made <= 1 << 16, "no limit was reached");
        };
        check_eq!((refusal, f.b.object_counts().rmr), (Error::Resources, made));
        Ok(())
    }),
];
