//! Links that were posted and have no effect (pages it_lmr_link, it_rmr_link, it_dto_status_t): the
//! linking in force stays valid "until the Unlink operation completes successfully", for all
//! requests of all endpoints. And requests are judged when they are processed, not when they are
//! posted.

use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{FRONT, address, datagrams, peer_in, two};
use crate::fixture::{
    End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, is_iwarp, pattern, write,
};
use crate::memory::iobl::{Scattered, scattered};
use crate::remote::link::{BASE, Link, PAGE_LEN, linked, unlinked};
use crate::remote::rmr::{Link as RmrLink, TYPES, param, reaches};
use crate::requests::srq::sharer_on;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const RECV: DtoFlags = DtoFlags::COMPLETION;

/// Why a posted link has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It failed, and its completion was taken or not.
    Failed { reaped: bool },
    /// It was flushed, and its completion was taken or not.
    Flushed { reaped: bool },
    /// It waits behind a Send without a Receive.
    Waits,
    /// It waited, and its endpoint was reset.
    Reset,
    /// It waited, and its endpoint was freed.
    Freed,
}

/// Those that the transport has: over iWARP no Send waits for a Receive.
fn ways(f: &Fixture) -> Result<&'static [Way], Failure> {
    Ok(if is_iwarp(&f.a)? { &WAYS[..4] } else { &WAYS })
}

const WAYS: [Way; 7] = [
    Way::Failed { reaped: false },
    Way::Failed { reaped: true },
    Way::Flushed { reaped: false },
    Way::Flushed { reaped: true },
    Way::Waits,
    Way::Reset,
    Way::Freed,
];

/// A connected pair whose active end is in this zone.
fn pair_in(f: &Fixture, pz: PzHandle) -> Result<Pair, Failure> {
    let pair = Pair { a: f.end_in(&f.a, pz, &attributes())?, b: f.end(&f.b, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// Posts a link that has no effect on the pair's active end. `fails` posts one that the device
/// refuses, `waits` one that it would accept.
fn without_effect(
    pair: &Pair,
    way: Way,
    fails: impl Fn(&End) -> Outcome,
    waits: impl Fn(&End) -> Outcome,
) -> Outcome {
    let end = &pair.a;
    match way {
        Way::Failed { reaped } => {
            fails(end)?;
            if reaped {
                let status = end.reap()?.dto_status;
                check!(status != DtoStatus::Success && status != DtoStatus::Flushed);
                end.broken()?;
            }
        }
        Way::Flushed { reaped } => {
            pair.b.ia.ep_disconnect(pair.b.ep, &[])?;
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            waits(end)?;
            if reaped {
                check_eq!(end.reap()?.dto_status, DtoStatus::Flushed);
            }
        }
        Way::Waits | Way::Reset | Way::Freed => {
            end.ia.post_send(end.ep, &[], 1, SIGNALLED)?;
            waits(end)?;
        }
    }
    match way {
        Way::Reset => {
            end.ia.ep_disconnect(end.ep, &[])?;
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            end.ia.ep_reset(end.ep)?;
        }
        Way::Freed => end.ia.ep_free(end.ep)?,
        _ => {}
    }
    Ok(())
}

/// Memory of one page with this content.
fn page(f: &Fixture, seed: u8) -> Result<Scattered, Failure> {
    let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
    write(&memory.buffer, 0, &pattern(seed, memory.buffer.len()));
    Ok(memory)
}

fn content(memory: &Scattered) -> alloc::vec::Vec<u8> {
    memory.content(PAGE, 0, PAGE)
}

/// A region of `a` that is linked through the pair to a page with this content.
fn linked_to(end: &End, memory: &Scattered) -> Result<(LmrHandle, RmrContext), Failure> {
    let lmr = unlinked(end, 1)?;
    let context = some(Link::pages(lmr, &memory.pieces).post(end, 2)?, "a context")?;
    end.done(2, DtoStatus::Success)?;
    Ok((lmr, context))
}

/// Checks that a region of the pair's active end is linked to this memory: for local and remote
/// requests of each kind.
fn in_force(f: &Fixture, pair: &Pair, lmr: LmrHandle, context: RmrContext, memory: &Scattered) -> Outcome {
    let Pair { a, b } = pair;
    let whole = [LmrTriplet::new(lmr, BASE as u64, PAGE_LEN)];
    let far = f.region(&f.b, b.pz, PAGE, OPEN)?;
    let expected = content(memory);
    // Send.
    f.b.post_recv(b.ep, &[far.whole()], 10, RECV)?;
    f.a.post_send(a.ep, &whole, 11, SIGNALLED)?;
    a.done(11, DtoStatus::Success)?;
    b.recv_done(10, DtoStatus::Success)?;
    check!(far.all() == expected, "what was sent");
    // RDMA Write and Read.
    far.buffer.slice().fill(0);
    f.a.post_rdma_write(a.ep, &whole, 12, SIGNALLED, far.remote(0), far.context()?)?;
    a.done(12, DtoStatus::Success)?;
    check!(f.arrives(|| far.all() == expected), "what was written");
    far.fill(77);
    f.a.post_rdma_read(a.ep, &whole, 13, SIGNALLED, far.remote(0), far.context()?)?;
    a.done(13, DtoStatus::Success)?;
    check!(content(memory) == far.all(), "what was read");
    // Receive.
    write(&memory.buffer, 0, &pattern(5, memory.buffer.len()));
    far.fill(78);
    f.a.post_recv(a.ep, &whole, 14, RECV)?;
    f.b.post_send(b.ep, &[far.whole()], 15, SIGNALLED)?;
    a.recv_done(14, DtoStatus::Success)?;
    b.done(15, DtoStatus::Success)?;
    check!(content(memory) == far.all(), "what was received");
    // The peer's access.
    f.b.post_rdma_read(b.ep, &[far.whole()], 16, SIGNALLED, make_rdma_addr_absolute(BASE), context)?;
    b.done(16, DtoStatus::Success)?;
    // RMRs of both types.
    for rmr_type in TYPES {
        let rmr = f.a.rmr_create(a.pz, rmr_type)?;
        let link = RmrLink {
            rmr,
            lmr,
            addr: BASE + 8,
            length: 64,
            mode: AddrMode::Absolute,
            privs: MemPriv::REMOTE_READ,
            flags: SIGNALLED,
        };
        let part = link.made(a)?;
        let at = make_rdma_addr_absolute(BASE + 8);
        f.b.post_rdma_read(b.ep, &[far.segment(0, 64)], 17, SIGNALLED, at, part)?;
        b.done(17, DtoStatus::Success)?;
        f.a.rmr_unlink(rmr, a.ep, 18, SIGNALLED)?;
        a.done(18, DtoStatus::Success)?;
        f.a.rmr_free(rmr)?;
    }
    f.b.lmr_free(far.lmr)?;
    Ok(())
}

/// A region of `a` that is linked through the pair, and to which `b` has a context.
fn rmr_in_force(
    f: &Fixture,
    pair: &Pair,
    rmr_type: RmrType,
) -> Result<(RmrHandle, Region, RmrContext), Failure> {
    let region = f.region(&f.a, pair.a.pz, 2 * PAGE, OPEN)?;
    let rmr = f.a.rmr_create(pair.a.pz, rmr_type)?;
    let context = RmrLink::of(rmr, &region).part(0, PAGE_LEN).made(&pair.a)?;
    Ok((rmr, region, context))
}

/// Links an RMR through one endpoint, and posts a link of it to another that has no effect, in each
/// way in which that can be. The link in force is that of the first endpoint, which can unlink it.
fn a_link_without_effect_leaves_the_rmr(f: &Fixture, rmr_type: RmrType) -> Outcome {
    for &way in ways(f)? {
        let pair = f.pair()?;
        let other = pair_in(f, pair.a.pz)?;
        let (rmr, region, context) = rmr_in_force(f, &pair, rmr_type)?;
        let before = param(&pair.a, rmr)?;
        // A region of another zone cannot have the RMR.
        let elsewhere = f.region(&f.a, f.a.pz_create()?, PAGE, OPEN)?;
        let fails = |end: &End| {
            RmrLink::of(rmr, &elsewhere).post(end, 3)?;
            Ok(())
        };
        let waits = |end: &End| {
            RmrLink::of(rmr, &region).part(PAGE, 64).post(end, 3)?;
            Ok(())
        };
        without_effect(&other, way, fails, waits)?;
        check_eq!(param(&pair.a, rmr)?, before, "{way:?}");
        for write in [false, true] {
            let reached = reaches(f, &pair.b, write, region.remote(0), context, PAGE)?;
            check_eq!(reached, DtoStatus::Success, "{way:?}, {rmr_type:?}");
        }
        for cookie in [4, 5] {
            f.a.rmr_unlink(rmr, pair.a.ep, cookie, SIGNALLED)?;
            pair.a.done(cookie, DtoStatus::Success)?;
            check!(!param(&pair.a, rmr)?.linked, "{way:?}, {rmr_type:?}");
        }
        let again = RmrLink::of(rmr, &region).made(&pair.a)?;
        let reached = reaches(f, &pair.b, false, region.remote(0), again, PAGE)?;
        check_eq!(reached, DtoStatus::Success, "{way:?}, {rmr_type:?}");
        f.a.rmr_free(rmr)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A region is linked through one endpoint, and a link of it that is posted to another has no
    // effect, in each way in which that can be. All requests of the first endpoint still use the
    // link in force, and it can be unlinked and linked again.
    test("link::a_link_without_effect_leaves_the_link_in_force", &["it_lmr_link B19 S03"], |f| {
        for &way in ways(f)? {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let memory = [page(f, 1)?, page(f, 2)?];
            let (lmr, context) = linked_to(&pair.a, &memory[0])?;
            let before = f.a.lmr_query(lmr, LmrParamMask::ALL)?;
            let link = |end: &End| {
                Link::pages(lmr, &memory[1].pieces).post(end, 3)?;
                Ok(())
            };
            without_effect(&other, way, link, link)?;
            check_eq!(f.a.lmr_query(lmr, LmrParamMask::ALL)?, before, "{way:?}");
            in_force(f, &pair, lmr, context, &memory[0])?;
            f.a.lmr_unlink(lmr, pair.a.ep, 4, SIGNALLED)?;
            pair.a.done(4, DtoStatus::Success)?;
            check!(!linked(&f.a, lmr)?, "{way:?}");
            let again = some(Link::pages(lmr, &memory[1].pieces).post(&pair.a, 5)?, "a context")?;
            pair.a.done(5, DtoStatus::Success)?;
            in_force(f, &pair, lmr, again, &memory[1])?;
            f.a.lmr_free(lmr)?;
        }
        Ok(())
    }),
    // The same holds for an unlink.
    test("link::an_unlink_without_effect_leaves_the_link_in_force", &["it_lmr_unlink A03 S03"], |f| {
        for &way in ways(f)? {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let memory = page(f, 1)?;
            let (lmr, context) = linked_to(&pair.a, &memory)?;
            // A region that has an RMR cannot be unlinked.
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
            let unlink = |end: &End| Ok(f.a.lmr_unlink(lmr, end.ep, 3, SIGNALLED)?);
            let bound = |end: &End| {
                let link = RmrLink {
                    rmr,
                    lmr,
                    addr: BASE,
                    length: 8,
                    mode: AddrMode::Absolute,
                    privs: MemPriv::REMOTE_READ,
                    flags: SIGNALLED,
                };
                link.made(&pair.a)?;
                unlink(end)
            };
            without_effect(&other, way, bound, unlink)?;
            check!(linked(&f.a, lmr)?, "{way:?}");
            in_force(f, &pair, lmr, context, &memory)?;
            f.a.rmr_free(rmr)?;
            f.a.lmr_free(lmr)?;
        }
        Ok(())
    }),
    // The same holds for RMRs. The endpoint that linked a narrow RMR can unlink it.
    test(
        "rmr::a_link_without_effect_leaves_a_narrow_link_in_force",
        &["it_rmr_link B19 B20", "it_rmr_unlink B03"],
        |f| a_link_without_effect_leaves_the_rmr(f, RmrType::Narrow),
    ),
    test(
        "rmr::a_link_without_effect_leaves_a_wide_link_in_force",
        &["it_rmr_link B19 B20", "it_rmr_unlink B03"],
        |f| a_link_without_effect_leaves_the_rmr(f, RmrType::Wide),
    ),
    // Links of an RMR on one endpoint that fail, one after the other, do not change what another
    // endpoint linked meanwhile.
    test("rmr::a_failure_that_is_taken_late_changes_nothing", &["it_rmr_link B18"], |f| {
        for rmr_type in TYPES {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let region = f.region(&f.a, pair.a.pz, 2 * PAGE, OPEN)?;
            let rmr = f.a.rmr_create(pair.a.pz, rmr_type)?;
            other.b.ia.ep_disconnect(other.b.ep, &[])?;
            other.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            RmrLink::of(rmr, &region).part(PAGE, 64).post(&other.a, 3)?;
            let context = RmrLink::of(rmr, &region).part(0, PAGE_LEN).made(&pair.a)?;
            RmrLink::of(rmr, &region).part(PAGE, 64).post(&other.a, 4)?;
            let before = param(&pair.a, rmr)?;
            for cookie in [3, 4] {
                other.a.done(cookie, DtoStatus::Flushed)?;
                check_eq!(param(&pair.a, rmr)?, before);
            }
            let reached = reaches(f, &pair.b, true, region.remote(0), context, PAGE)?;
            check_eq!(reached, DtoStatus::Success);
            f.a.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // A Receive is judged when the message comes: its region may be linked after it was posted.
    test("link::a_receive_uses_the_link_in_force", &["it_dto_status_t A02"], |f| {
        let memory = [page(f, 1)?, page(f, 2)?];
        for shared in [false, true] {
            let pz = f.a.pz_create()?;
            let srq = f.a.srq_create(pz, 1, 8)?;
            let a = match shared {
                false => f.end_in(&f.a, pz, &attributes())?,
                true => sharer_on(&f.a, pz, srq, &attributes())?,
            };
            let pair = Pair { a, b: f.end(&f.b, &attributes())? };
            f.connect(&pair.a, &pair.b)?;
            let linker = pair_in(f, pz)?;
            let Pair { a, b } = &pair;
            let lmr = unlinked(a, 1)?;
            let far = f.region(&f.b, b.pz, PAGE, OPEN)?;
            let receive = |cookie| {
                let whole = [LmrTriplet::new(lmr, BASE as u64, PAGE_LEN)];
                match shared {
                    true => f.a.post_recv(srq, &whole, cookie, RECV),
                    false => f.a.post_recv(a.ep, &whole, cookie, RECV),
                }
            };
            // Posted while the region is not linked, and before two links.
            receive(1)?;
            receive(2)?;
            receive(3)?;
            for (n, cookie) in [(0, 1), (1, 2)] {
                Link::pages(lmr, &memory[n].pieces).post(&linker.a, 20)?;
                linker.a.done(20, DtoStatus::Success)?;
                far.fill(30 + n as u8);
                let before = content(&memory[1 - n]);
                f.b.post_send(b.ep, &[far.whole()], 21, SIGNALLED)?;
                b.done(21, DtoStatus::Success)?;
                a.recv_done(cookie, DtoStatus::Success)?;
                check!(content(&memory[n]) == far.all(), "the message in the memory of the link in force");
                check!(content(&memory[1 - n]) == before);
                f.a.lmr_unlink(lmr, linker.a.ep, 22, SIGNALLED)?;
                linker.a.done(22, DtoStatus::Success)?;
            }
            // The region is not linked when the message comes.
            f.b.post_send(b.ep, &[far.whole()], 23, SIGNALLED)?;
            b.done(23, DtoStatus::RemoteResponder)?;
            a.recv_done(3, DtoStatus::LocalProtection)?;
            f.a.ep_free(a.ep)?;
            f.a.srq_free(srq)?;
        }
        Ok(())
    }),
    // So are requests that wait in a send queue.
    test("link::a_waiting_request_uses_the_link_in_force", &["it_dto_status_t A02"], |f| {
        Need::Waiting.of(&f.a)?;
        let pair = f.pair()?;
        let linker = pair_in(f, pair.a.pz)?;
        let memory = page(f, 3)?;
        let lmr = unlinked(&pair.a, 1)?;
        let far = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let whole = [LmrTriplet::new(lmr, BASE as u64, PAGE_LEN)];
        f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
        f.a.post_rdma_write(pair.a.ep, &whole, 2, SIGNALLED, far.remote(0), far.context()?)?;
        Link::pages(lmr, &memory.pieces).post(&linker.a, 3)?;
        linker.a.done(3, DtoStatus::Success)?;
        f.b.post_recv(pair.b.ep, &[], 4, RECV)?;
        pair.a.done(1, DtoStatus::Success)?;
        pair.a.done(2, DtoStatus::Success)?;
        check!(far.all() == content(&memory));
        // A stale handle names nothing, though a later region may have its place.
        f.a.post_send(pair.a.ep, &[], 5, SIGNALLED)?;
        f.a.post_rdma_write(pair.a.ep, &whole, 6, SIGNALLED, far.remote(0), far.context()?)?;
        f.a.lmr_free(lmr)?;
        for _ in 0..300 {
            let lmr = unlinked(&pair.a, 1)?;
            Link::pages(lmr, &memory.pieces).post(&linker.a, 7)?;
            linker.a.done(7, DtoStatus::Success)?;
            f.a.lmr_free(lmr)?;
        }
        let (_lmr, _) = linked_to(&linker.a, &memory)?;
        f.b.post_recv(pair.b.ep, &[], 8, RECV)?;
        pair.a.done(5, DtoStatus::Success)?;
        pair.a.done(6, DtoStatus::LocalProtection)
    }),
    // Datagrams use the link in force, too.
    test("link::datagrams_use_the_link_in_force", &["it_dto_status_t A02"], |f| {
        let two = two(f)?;
        let linker = f.pair()?;
        let (other, memory) = (pair_in(f, linker.a.pz)?, page(f, 4)?);
        // Datagram endpoints in the zone of the connected ones.
        let near = peer_in(&f.a, linker.a.pz, &datagrams())?;
        let back = address(&f.b, two.b.pz, &f.a)?;
        let lmr = unlinked(&linker.a, 1)?;
        let len = FRONT as u64 + 64;
        f.a.post_recvfrom(near.ep, &[LmrTriplet::new(lmr, BASE as u64, len)], 1, SIGNALLED)?;
        Link::pages(lmr, &memory.pieces).post(&linker.a, 2)?;
        linker.a.done(2, DtoStatus::Success)?;
        // A link that waits hides nothing.
        f.a.post_send(other.a.ep, &[], 3, SIGNALLED)?;
        Link::pages(lmr, &memory.pieces).post(&other.a, 4)?;
        let from = f.region(&f.b, two.b.pz, 64, OPEN)?;
        from.fill(9);
        let to = DgRemoteEpAddr::IbUd { addr: back, ep_info: near.info };
        two.b.delivers(f, &near, (5, 1), DtoStatus::Success, || {
            f.b.post_sendto(two.b.ep, &[from.whole()], 5, SIGNALLED, &to)
        })?;
        check!(content(&memory)[FRONT..FRONT + 64] == from.all()[..]);
        let forth = address(&f.a, near.pz, &f.b)?;
        let to = DgRemoteEpAddr::IbUd { addr: forth, ep_info: two.b.info };
        let sink = f.region(&f.b, two.b.pz, FRONT + 64, OPEN)?;
        f.b.post_recvfrom(two.b.ep, &[sink.whole()], 6, SIGNALLED)?;
        let part = LmrTriplet::new(lmr, (BASE + FRONT) as u64, 64);
        near.delivers(f, &two.b, (7, 6), DtoStatus::Success, || {
            f.a.post_sendto(near.ep, &[part], 7, SIGNALLED, &to)
        })?;
        check!(sink.bytes(FRONT, 64) == from.all());
        Ok(())
    }),
    // A narrow RMR is associated with the endpoint through which it was linked, also after the
    // endpoint was reset: the endpoint is busy, and once connected again it can unlink the RMR. No
    // other endpoint can.
    test(
        "rmr::a_reset_endpoint_keeps_its_narrow_rmrs",
        &["it_rmr_link B07", "it_ep_free IT_ERR_EP_BUSY", "it_rmr_unlink A05", "it_rmr_type_t B04"],
        |f| {
            let pair = f.pair()?;
            let (rmr, region, context) = rmr_in_force(f, &pair, RmrType::Narrow)?;
            for round in 0..2 {
                f.a.ep_disconnect(pair.a.ep, &[])?;
                pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                for end in [&pair.a, &pair.b] {
                    end.ia.ep_reset(end.ep)?;
                }
                refused(f.a.ep_free(pair.a.ep), Error::EpBusy)?;
                f.connect(&pair.a, &pair.b)?;
                let reached = reaches(f, &pair.b, false, region.remote(0), context, PAGE)?;
                check_eq!(reached, DtoStatus::Success, "round {round}");
                refused(f.a.ep_free(pair.a.ep), Error::EpBusy)?;
            }
            let other = pair_in(f, pair.a.pz)?;
            check_eq!(reaches(f, &other.b, false, region.remote(0), context, 8)?, DtoStatus::RemoteAccess);
            let other = pair_in(f, pair.a.pz)?;
            f.a.rmr_unlink(rmr, other.a.ep, 2, SIGNALLED)?;
            other.a.done(2, DtoStatus::RmrOperationFailed)?;
            refused(f.a.ep_free(pair.a.ep), Error::EpBusy)?;
            f.a.rmr_unlink(rmr, pair.a.ep, 3, SIGNALLED)?;
            pair.a.done(3, DtoStatus::Success)?;
            Ok(f.a.ep_free(pair.a.ep)?)
        },
    ),
    // An endpoint is busy only while a narrow RMR is linked through it, whatever else is linked.
    test("rmr::an_endpoint_is_busy_by_its_own_narrow_rmrs_only", &["it_ep_free B01"], |f| {
        let pair = f.pair()?;
        let other = pair_in(f, pair.a.pz)?;
        let (narrow, region, _) = rmr_in_force(f, &pair, RmrType::Narrow)?;
        let (_wide, ..) = rmr_in_force(f, &other, RmrType::Wide)?;
        let second = f.a.rmr_create(pair.a.pz, RmrType::Narrow)?;
        RmrLink::of(second, &region).made(&pair.a)?;
        f.a.ep_free(other.a.ep)?;
        refused(f.a.ep_free(pair.a.ep), Error::EpBusy)?;
        f.a.rmr_free(narrow)?;
        refused(f.a.ep_free(pair.a.ep), Error::EpBusy)?;
        // A Send of the peer unlinks the other one.
        let context = some(param(&pair.a, second)?.rmr_context, "a context")?;
        f.a.post_recv(pair.a.ep, &[], 1, RECV)?;
        f.b.post_send_and_unlink(pair.b.ep, &[], 2, SIGNALLED, context)?;
        pair.b.done(2, DtoStatus::Success)?;
        let received = pair.a.reap_recv()?;
        check_eq!(received.unlinked_mr_handle, Handle::from(second));
        Ok(f.a.ep_free(pair.a.ep)?)
    }),
    // Whether an RMR fits into a region that is linked by work requests is judged when its link is
    // processed, against the link in force.
    test("rmr::the_range_is_judged_by_the_link_in_force", &["it_rmr_link A03"], |f| {
        for rmr_type in TYPES {
            for (addr, length, fits) in [
                (BASE, PAGE_LEN, true),
                (BASE + PAGE, 1, false),
                (BASE - 1, 2, false),
                (BASE, PAGE_LEN + 1, false),
            ] {
                let pair = f.pair()?;
                let other = pair_in(f, pair.a.pz)?;
                let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
                let lmr = unlinked(&pair.a, 2)?;
                Link::pages(lmr, &memory.pieces[..1]).post(&pair.a, 1)?;
                pair.a.done(1, DtoStatus::Success)?;
                // A longer link that waits.
                f.a.post_send(other.a.ep, &[], 2, SIGNALLED)?;
                Link::pages(lmr, &memory.pieces).post(&other.a, 3)?;
                let rmr = f.a.rmr_create(pair.a.pz, rmr_type)?;
                let (mode, privs, flags) = (AddrMode::Absolute, MemPriv::REMOTE, SIGNALLED);
                RmrLink { rmr, lmr, addr, length, mode, privs, flags }.post(&pair.a, 4)?;
                let status = if fits { DtoStatus::Success } else { DtoStatus::RmrOperationFailed };
                pair.a.done(4, status)?;
                f.a.rmr_free(rmr)?;
            }
        }
        Ok(())
    }),
];
