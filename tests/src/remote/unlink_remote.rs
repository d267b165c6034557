//! Sends that unlink a region of the peer, and the call that only iWARP has (pages
//! it_post_send_and_unlink, it_post_rdma_read_to_rmr).

use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, WAIT, attributes, sevd};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

/// A region of this end that is linked to a page with these privileges.
pub(crate) fn linked(f: &Fixture, end: &End, privs: MemPriv) -> Result<Region, Failure> {
    let buffer = f.buffer(PAGE)?;
    let lmr = end.ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
    let pages = [IoAddr(buffer.bus())];
    let iobl = Iobl::pages(&pages, PAGE as u64, 0);
    let (addr, mode) = (buffer.addr(), AddrMode::Absolute);
    let context = end.ia.lmr_link(lmr, addr, &iobl, PAGE as u64, mode, privs, end.ep, 700, SIGNALLED)?;
    end.done(700, DtoStatus::Success)?;
    Ok(Region { buffer, lmr, context })
}

/// An RMR of the passive side, linked through `end` to a region of its own.
fn linked_rmr(f: &Fixture, end: &End, rmr_type: RmrType) -> Result<(RmrHandle, Region), Failure> {
    let region = f.region(&end.ia, end.pz, PAGE, MemPriv::LOCAL)?;
    let rmr = end.ia.rmr_create(end.pz, rmr_type)?;
    let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
    let length = PAGE as u64;
    let context = end.ia.rmr_link(rmr, region.lmr, addr, length, mode, privs, end.ep, 700, SIGNALLED)?;
    end.done(700, DtoStatus::Success)?;
    Ok((rmr, Region { context: Some(context), ..region }))
}

/// Whether the region is linked.
pub(crate) fn is_linked(ia: &Ia, lmr: LmrHandle) -> Result<bool, Failure> {
    Ok(ia.lmr_query(lmr, LmrParamMask::LINKED)?.linked)
}

/// A connected pair with a filled source, and a Receive with cookie 8 into a sink.
fn ready(f: &Fixture) -> Result<(Pair, Region, Region), Failure> {
    let pair = f.pair()?;
    let source = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
    let sink = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
    source.fill(5);
    f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
    Ok((pair, source, sink))
}

/// Sends with a context that cannot be unlinked: the Send and the Receive fail, and the connection
/// breaks.
fn fails(f: &Fixture, pair: &Pair, context: RmrContext) -> Outcome {
    f.a.post_send_and_unlink(pair.a.ep, &[], 1, f.if_refused(), context)?;
    f.a.post_send(pair.a.ep, &[], 2, SIGNALLED)?;
    let received = pair.b.reap_recv()?;
    check_eq!((received.cookie, received.dto_status), (8, DtoStatus::LocalProtection));
    check!(received.unlinked_mr_handle.is_null());
    pair.a.done(1, DtoStatus::RemoteResponder)?;
    pair.a.done_behind(2)?;
    pair.a.broken()?;
    pair.b.broken()
}

pub(crate) const TESTS: &[Test] = &[
    // The Send arrives, the named region or narrow RMR is unlinked, and the Receive's completion
    // names it.
    test(
        "unlink_remote::regions_and_windows",
        &["it_post_send_and_unlink B01-B05 B08-B10 B12-B14 B21 O01 V04"],
        |f| {
            check!(f.a.ia_query()?.post_send_unlink_remote_support);
            let (pair, source, sink) = ready(f)?;
            let region = linked(f, &pair.b, OPEN)?;
            let (rmr, behind) = linked_rmr(f, &pair.b, RmrType::Narrow)?;
            let cases: [(Handle, RmrContext); 2] =
                [(region.lmr.into(), region.context()?), (rmr.into(), behind.context()?)];
            for (handle, context) in cases {
                let mut segments = [source.segment(3, 100), source.segment(200, 0), source.segment(7, 50)];
                f.a.post_send_and_unlink(pair.a.ep, &segments, u64::MAX, SIGNALLED, context)?;
                segments[0] = LmrTriplet::default();
                let got = pair.b.reap_recv()?;
                let expected = DtoCompletion {
                    event_number: EventType::DTO_RC_RECV_CMPL,
                    evd: pair.b.recv,
                    ep: pair.b.ep,
                    cookie: 8,
                    transferred_length: 150,
                    unlinked_mr_handle: handle,
                    ..DtoCompletion::default()
                };
                check_eq!(got, expected);
                check!(
                    sink.bytes(0, 100) == source.bytes(3, 100) && sink.bytes(100, 50) == source.bytes(7, 50)
                );
                let sent = pair.a.reap()?;
                check_eq!((sent.event_number, sent.cookie), (EventType::DTO_SEND_CMPL, u64::MAX));
                check_eq!(
                    (sent.dto_status, sent.evd, sent.ep),
                    (DtoStatus::Success, pair.a.request, pair.a.ep)
                );
                check!(sent.unlinked_mr_handle.is_null());
                f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
                let _ = segments;
            }
            check!(!is_linked(&f.b, region.lmr)? && !f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            // Both can be linked again. A Send of no bytes consumes a Receive and nothing else.
            let (addr, mode, privs) = (behind.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
            let context = f.b.rmr_link(rmr, behind.lmr, addr, 64, mode, privs, pair.b.ep, 1, SIGNALLED)?;
            pair.b.done(1, DtoStatus::Success)?;
            f.a.post_send_and_unlink(pair.a.ep, &[], 2, SIGNALLED, context)?;
            let got = pair.b.reap_recv()?;
            check_eq!((got.transferred_length, got.unlinked_mr_handle), (0, rmr.into()));
            pair.a.done(2, DtoStatus::Success)?;
            // A plain Send unlinks nothing.
            f.b.post_recv(pair.b.ep, &[], 9, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], 3, SIGNALLED)?;
            check!(pair.b.reap_recv()?.unlinked_mr_handle.is_null());
            // The old context is invalid.
            let own = f.region(&f.a, pair.a.pz, 8, OPEN)?;
            pair.a.done(3, DtoStatus::Success)?;
            let from = region.remote(0);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 4, SIGNALLED, from, region.context()?)?;
            pair.a.done(4, DtoStatus::RemoteAccess)
        },
    ),
    // Sends that unlink complete in order with other requests, and earlier writes have arrived.
    test("unlink_remote::in_order", &["it_post_send_and_unlink B15 B16 B19"], |f| {
        let (pair, source, sink) = ready(f)?;
        for round in 0..10u64 {
            let region = linked(f, &pair.b, OPEN)?;
            let context = region.context()?;
            source.fill(round as u8);
            f.a.post_rdma_write(
                pair.a.ep,
                &[source.whole()],
                1,
                DtoFlags::empty(),
                region.remote(0),
                context,
            )?;
            let flags = SIGNALLED | DtoFlags::BARRIER_FENCE | DtoFlags::SOLICITED_WAIT;
            f.a.post_send_and_unlink(pair.a.ep, &[], round, flags, context)?;
            check_eq!(pair.b.reap_recv()?.unlinked_mr_handle, region.lmr.into());
            check!(region.all() == source.all(), "the earlier write has arrived");
            pair.a.done(round, DtoStatus::Success)?;
            f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
            f.b.lmr_free(region.lmr)?;
        }
        Ok(())
    }),
    // Each context that may not be unlinked fails the Receive, breaks the connection and stays
    // linked.
    test(
        "unlink_remote::what_cannot_be_unlinked",
        &["it_dto_status_t A10 A11", "it_post_send_and_unlink A02 A13-A19 B20 S01 S02"],
        |f| {
            // Context 0, and the context of the direct LMR handle.
            for context in [RmrContext(0), RmrContext(u32::MAX)] {
                let (pair, ..) = ready(f)?;
                fails(f, &pair, context)?;
            }
            // The region is in another zone.
            let (pair, ..) = ready(f)?;
            let stranger = f.pair()?;
            let region = linked(f, &stranger.b, OPEN)?;
            fails(f, &pair, region.context()?)?;
            check!(is_linked(&f.b, region.lmr)?);
            let (pair, ..) = ready(f)?;
            let (rmr, behind) = linked_rmr(f, &stranger.b, RmrType::Narrow)?;
            fails(f, &pair, behind.context()?)?;
            check!(f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            f.b.rmr_free(rmr)?;
            // A wide RMR.
            let (pair, ..) = ready(f)?;
            let (rmr, behind) = linked_rmr(f, &pair.b, RmrType::Wide)?;
            fails(f, &pair, behind.context()?)?;
            check!(f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            // A narrow RMR of another endpoint in the same zone.
            let (pair, ..) = ready(f)?;
            let other = neighbour(f, &pair)?;
            let (rmr, behind) = linked_rmr(f, &other, RmrType::Narrow)?;
            fails(f, &pair, behind.context()?)?;
            check!(f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            f.b.rmr_free(rmr)?;
            // A region to which an RMR is linked.
            let (pair, ..) = ready(f)?;
            let region = linked(f, &pair.b, OPEN)?;
            let rmr = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
            let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
            f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, pair.b.ep, 1, SIGNALLED)?;
            pair.b.done(1, DtoStatus::Success)?;
            fails(f, &pair, region.context()?)?;
            check!(is_linked(&f.b, region.lmr)?);
            // A region that is not linked any more.
            let (pair, ..) = ready(f)?;
            let region = linked(f, &pair.b, OPEN)?;
            f.b.lmr_unlink(region.lmr, pair.b.ep, 1, SIGNALLED)?;
            pair.b.done(1, DtoStatus::Success)?;
            fails(f, &pair, region.context()?)?;
            // A region that was created with its memory, shared or not. InfiniBand allows this for
            // linkable regions only.
            let (pair, _, sink) = ready(f)?;
            let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            fails(f, &pair, region.context()?)?;
            check!(is_linked(&f.b, region.lmr)?);
            sink.untouched()?;
            let (pair, ..) = ready(f)?;
            let memory = LmrMemory::buffer(&region.buffer);
            let (mode, flags) = (AddrMode::Absolute, LmrFlags::SHARED);
            let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, PAGE as u64, mode, OPEN, flags, 0)?;
            check!(f.b.lmr_query(lmr, LmrParamMask::FLAG)?.flags.contains(LmrFlags::SHARED));
            fails(f, &pair, some(context, "a context")?)?;
            check!(is_linked(&f.b, lmr)?);
            Ok(())
        },
    ),
    // A region without remote access cannot be unlinked by a peer that guesses its key.
    test("unlink_remote::no_remote_access", &["it_dto_status_t A11", "it_post_send_and_unlink A17"], |f| {
        // A region without remote access has no context. The test takes the context of an earlier
        // link and changes its variant.
        let (pair, ..) = ready(f)?;
        let region = linked(f, &pair.b, OPEN)?;
        f.b.lmr_unlink(region.lmr, pair.b.ep, 1, SIGNALLED)?;
        pair.b.done(1, DtoStatus::Success)?;
        let pages = [IoAddr(region.buffer.bus())];
        let (iobl, addr, mode) =
            (Iobl::pages(&pages, PAGE as u64, 0), region.buffer.addr(), AddrMode::Absolute);
        let context_of_link = f.b.lmr_link(
            region.lmr,
            addr,
            &iobl,
            PAGE as u64,
            mode,
            MemPriv::LOCAL,
            pair.b.ep,
            2,
            SIGNALLED,
        )?;
        pair.b.done(2, DtoStatus::Success)?;
        check_eq!(context_of_link, None);
        let guessed = RmrContext((u32::from_be(region.context()?.0) + 1).to_be());
        fails(f, &pair, guessed)?;
        check!(is_linked(&f.b, region.lmr)?);
        Ok(())
    }),
    // A Send that unlinks fails like any other Send, and then unlinks nothing.
    test("unlink_remote::as_a_send", &["it_post_send_and_unlink A01 A03 A07 A08 B20"], |f| {
        let (pair, source, _) = ready(f)?;
        let region = linked(f, &pair.b, OPEN)?;
        let closed = f.region(&f.a, f.a.pz_create()?, 64, OPEN)?;
        f.a.post_send_and_unlink(pair.a.ep, &[closed.whole()], 1, DtoFlags::empty(), region.context()?)?;
        pair.a.done(1, DtoStatus::LocalProtection)?;
        pair.a.broken()?;
        f.a.post_send_and_unlink(pair.a.ep, &[source.whole()], 2, DtoFlags::empty(), region.context()?)?;
        pair.a.done(2, DtoStatus::Flushed)?;
        check!(is_linked(&f.b, region.lmr)?);
        // The message is longer than the Receive.
        let pair = f.pair()?;
        let source = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
        let sink = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
        let region = linked(f, &pair.b, OPEN)?;
        f.b.post_recv(pair.b.ep, &[sink.segment(0, 9)], 8, DtoFlags::COMPLETION)?;
        f.a.post_send_and_unlink(pair.a.ep, &[source.segment(0, 10)], 1, f.if_refused(), region.context()?)?;
        pair.b.recv_done(8, DtoStatus::LocalLength)?;
        pair.a.done(1, DtoStatus::RemoteResponder)?;
        check!(is_linked(&f.b, region.lmr)?);
        Ok(())
    }),
    // Each bad argument and each wrong state is refused with its own error.
    test(
        "unlink_remote::refusals",
        &[
            "it_post_send_and_unlink IT_ERR_INVALID_DTO_FLAGS IT_ERR_INVALID_EP",
            "it_post_send_and_unlink IT_ERR_INVALID_EP_STATE IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_send_and_unlink IT_ERR_TOO_MANY_POSTS",
            "it_dto_flags_t B13",
        ],
        |f| {
            let few = EpAttributes { max_request_dtos: 2, max_send_segments: 3, ..attributes() };
            let pair = f.pair_of(&few, &attributes())?;
            let source = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
            let regions = [linked(f, &pair.b, OPEN)?, linked(f, &pair.b, OPEN)?];
            let context = regions[0].context()?;
            let post = |ep, segments: &[LmrTriplet], flags| {
                f.a.post_send_and_unlink(ep, segments, 1, flags, context)
            };
            for bad in [EpHandle::NULL, pair.b.ep, EpHandle::from_raw(pair.a.pz.as_raw())] {
                refused(post(bad, &[], SIGNALLED), Error::InvalidEp)?;
            }
            let idle = f.end(&f.a, &attributes())?;
            refused(post(idle.ep, &[], SIGNALLED), Error::InvalidEpState)?;
            refused(post(pair.a.ep, &[source.segment(0, 1); 4], SIGNALLED), Error::InvalidNumSegments)?;
            for flags in (0..0x100).map(DtoFlags::from_bits_retain) {
                let mut never = DtoFlags::UNLINK_FENCE | DtoFlags::UNLINK_LOCAL_SINK;
                never |= DtoFlags::from_bits_retain(0x80);
                let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
                if alone || flags.intersects(never) {
                    refused(post(pair.a.ep, &[], flags), Error::InvalidDtoFlags)?;
                }
            }
            check!(is_linked(&f.b, regions[0].lmr)?);
            let all = SIGNALLED | DtoFlags::SOLICITED_WAIT | DtoFlags::BARRIER_FENCE | DtoFlags::COALESCE;
            for (cookie, region) in regions.iter().enumerate() {
                f.b.post_recv(pair.b.ep, &[], cookie as u64, DtoFlags::COMPLETION)?;
                f.a.post_send_and_unlink(pair.a.ep, &[], cookie as u64, all, region.context()?)?;
            }
            refused(post(pair.a.ep, &[], SIGNALLED), Error::TooManyPosts)?;
            pair.a.done(0, DtoStatus::Success)?;
            pair.a.done(1, DtoStatus::Success)?;
            let unlinked = || is_linked(&f.b, regions[1].lmr).is_ok_and(|is| !is);
            check!(f.arrives(unlinked));
            Ok(())
        },
    ),
    // The calls and flags for iWARP's extensions are refused on InfiniBand.
    test(
        "unlink_remote::only_iwarp_reads_to_rmrs",
        &[
            "it_post_rdma_read_to_rmr O01 IT_ERR_OP_NOT_SUPPORTED",
            "it_ia_info_t F66",
            "it_dto_flags_t F06 O02",
            "A.it_post_rdma_read_to_rmr B01",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            check!(!f.a.ia_query()?.rdma_read_local_extensions);
            check_eq!(DtoFlags::UNLINK_LOCAL_SINK.bits(), 0x20);
            let pair = f.pair()?;
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let there = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            there.fill(1);
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
            let (addr, mode, privs) = (own.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
            f.a.rmr_link(rmr, own.lmr, addr, 64, mode, privs, pair.a.ep, 1, SIGNALLED)?;
            pair.a.done(1, DtoStatus::Success)?;
            let sink = [RmrTriplet { rmr, addr: addr as u64, length: 64 }];
            let (at, context) = (there.remote(0), there.context()?);
            let to_rmr = |flags| f.a.post_rdma_read_to_rmr(pair.a.ep, &sink, 1, flags, at, context);
            refused(to_rmr(SIGNALLED), Error::OpNotSupported)?;
            refused(to_rmr(SIGNALLED | DtoFlags::UNLINK_LOCAL_SINK), Error::OpNotSupported)?;
            let flags = SIGNALLED | DtoFlags::UNLINK_LOCAL_SINK;
            let read = f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, flags, at, context);
            refused(read, Error::InvalidDtoFlags)?;
            own.untouched()?;
            check!(f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            pair.a.idle()
        },
    ),
    // A failed unlink causes an asynchronous event for the endpoint of the peer.
    test("unlink_remote::the_peer_gets_an_asynchronous_event", &["it_post_send_and_unlink S02"], |f| {
        let aff = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
        let (pair, ..) = ready(f)?;
        fails(f, &pair, RmrContext(1))?;
        if f.setup.transport == Transport::Iwarp {
            // The page names no event for iWARP.
            return refused(f.b.evd_dequeue(aff), Error::QueueEmpty);
        }
        let (event, _) = f.b.evd_wait(aff, WAIT)?;
        let event_number = EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION;
        check_eq!(event, Event::Affiliated { event_number, evd: aff, cause: AffiliatedCause::Ep(pair.b.ep) });
        Ok(())
    }),
];

/// The passive end of another connection, in the same zone as the first one's.
fn neighbour(f: &Fixture, of: &Pair) -> Result<End, Failure> {
    let request = sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?;
    let recv = sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?;
    let conn = sevd(&f.b, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
    let ep = f.b.ep_rc_create(of.b.pz, request, recv, conn, EpFlags::empty(), &attributes())?;
    let end = End { ia: f.b.clone(), pz: of.b.pz, request, recv, conn, ep };
    f.connect(&f.end(&f.a, &attributes())?, &end)?;
    Ok(end)
}
