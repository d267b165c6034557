//! Links that are outstanding when their endpoint or their region is freed (pages it_lmr_link,
//! it_lmr_unlink, it_rmr_link, it_rmr_unlink, it_ep_free, it_ep_reset): a link that has not been
//! executed has no effect, and an earlier link stays in force.

use core::result::Result;

use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes};
use crate::memory::iobl::scattered;
use crate::remote::link::{BASE, Link, linked, unlinked};
use crate::remote::rmr::Link as RmrLink;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, test};

/// A connected pair whose active end is in this zone.
fn pair_in(f: &Fixture, pz: PzHandle) -> Result<Pair, Failure> {
    let pair = Pair { a: f.end_in(&f.a, pz, &attributes())?, b: f.end(&f.b, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// Posts a Send for which there is no Receive, so that requests posted behind it are not executed.
fn stall(end: &End) -> Outcome {
    Need::Waiting.of(&end.ia)?;
    Ok(end.ia.post_send(end.ep, &[], 1, SIGNALLED)?)
}

/// Posts three links of a new RMR to a new region, with cookies from 2 on. They are not executed.
fn stalled_links(f: &Fixture, pair: &Pair) -> Result<(RmrHandle, Region), Failure> {
    let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
    let rmr = f.a.rmr_create(pair.a.pz, RmrType::Narrow)?;
    stall(&pair.a)?;
    for cookie in 2..5 {
        RmrLink::of(rmr, &region).post(&pair.a, cookie)?;
    }
    Ok((rmr, region))
}

/// Frees or resets the endpoint. For `way` above 0 it is disconnected first, so that the
/// outstanding requests are flushed; their completions are not dequeued.
fn end(f: &Fixture, pair: &Pair, way: u32) -> Outcome {
    if way > 0 {
        f.a.ep_disconnect(pair.a.ep, &[])?;
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
    }
    match way {
        2 => f.a.ep_reset(pair.a.ep)?,
        _ => f.a.ep_free(pair.a.ep)?,
    }
    Ok(())
}

/// Sends `len` bytes from `BASE` in the region, and compares what arrives.
fn sends(f: &Fixture, pair: &Pair, lmr: LmrHandle, content: &[u8]) -> Outcome {
    let sink = f.region(&f.b, pair.b.pz, content.len(), OPEN)?;
    f.b.post_recv(pair.b.ep, &[sink.whole()], 70, DtoFlags::COMPLETION)?;
    let segment = LmrTriplet::new(lmr, BASE as u64, content.len() as u64);
    f.a.post_send(pair.a.ep, &[segment], 71, SIGNALLED)?;
    pair.a.done(71, DtoStatus::Success)?;
    pair.b.recv_done(70, DtoStatus::Success)?;
    check!(sink.all() == content, "the region's bytes");
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // An unlink that was not executed before its endpoint was freed or reset has no effect.
    test("link::a_freed_endpoint_leaves_the_link_in_force", &["it_lmr_link B19", "it_ep_reset B03"], |f| {
        for way in 0..3 {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let memory = [scattered(f, &f.a, 1, PAGE, PAGE)?, scattered(f, &f.a, 1, PAGE, PAGE)?];
            for (seed, memory) in (1..).zip(&memory) {
                crate::fixture::write(&memory.buffer, 0, &crate::fixture::pattern(seed, PAGE));
            }
            let content = |n: usize| crate::fixture::read(&memory[n].buffer, 0, PAGE);
            let lmr = unlinked(&pair.a, 1)?;
            Link::pages(lmr, &memory[0].pieces).post(&pair.a, 2)?;
            pair.a.done(2, DtoStatus::Success)?;
            let before = f.a.lmr_query(lmr, LmrParamMask::ALL)?;
            stall(&pair.a)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED)?;
            Link::pages(lmr, &memory[1].pieces).post(&pair.a, 4)?;
            end(f, &pair, way)?;
            check_eq!(f.a.lmr_query(lmr, LmrParamMask::ALL)?, before, "way {way}");
            sends(f, &other, lmr, &content(0))?;
            f.a.lmr_unlink(lmr, other.a.ep, 5, SIGNALLED)?;
            other.a.done(5, DtoStatus::Success)?;
            check!(!linked(&f.a, lmr)?);
            Link::pages(lmr, &memory[1].pieces).post(&other.a, 6)?;
            other.a.done(6, DtoStatus::Success)?;
            sends(f, &other, lmr, &content(1))?;
            f.a.lmr_free(lmr)?;
        }
        Ok(())
    }),
    // A link that was executed stays in force when its endpoint is freed or reset, even if its
    // completion was never taken.
    test("link::a_freed_endpoint_leaves_an_executed_link", &["it_lmr_link B19"], |f| {
        for way in 0..3 {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let (first, second) = (unlinked(&pair.a, 1)?, unlinked(&pair.a, 1)?);
            for lmr in [first, second] {
                Link { flags: DtoFlags::empty(), ..Link::pages(lmr, &memory.pieces) }.post(&pair.a, 2)?;
            }
            f.a.lmr_unlink(second, pair.a.ep, 3, SIGNALLED)?;
            pair.a.done(3, DtoStatus::Success)?;
            stall(&pair.a)?;
            end(f, &pair, way)?;
            check!(linked(&f.a, first)? && !linked(&f.a, second)?, "way {way}");
            sends(f, &other, first, &[0; 100])?;
            Link::pages(second, &memory.pieces).post(&other.a, 4)?;
            other.a.done(4, DtoStatus::Success)?;
            f.a.lmr_unlink(first, other.a.ep, 5, SIGNALLED)?;
            other.a.done(5, DtoStatus::Success)?;
            f.a.lmr_free(first)?;
            f.a.lmr_free(second)?;
        }
        Ok(())
    }),
    // The failure of a link is still reported when its region does not exist any more, and concerns
    // no other region.
    test("link::a_failure_is_reported_after_its_region_was_freed", &["it_lmr_free B04"], |f| {
        Need::Waiting.of(&f.a)?;
        let pair = f.pair()?;
        let other = pair_in(f, pair.a.pz)?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        stall(&pair.a)?;
        let lmr = unlinked(&pair.a, 1)?;
        Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?;
        f.a.ep_disconnect(pair.a.ep, &[])?;
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        f.a.lmr_free(lmr)?;
        // A new region may get the index of the freed one.
        let lmr = unlinked(&pair.a, 1)?;
        Link::pages(lmr, &memory.pieces).post(&other.a, 3)?;
        other.a.done(3, DtoStatus::Success)?;
        pair.a.done(1, DtoStatus::Flushed)?;
        pair.a.done(2, DtoStatus::Flushed)?;
        sends(f, &other, lmr, &[0; 100])?;
        f.a.lmr_unlink(lmr, other.a.ep, 4, SIGNALLED)?;
        other.a.done(4, DtoStatus::Success)
    }),
    // Links of an RMR that were not executed before their endpoint was freed or reset have no
    // effect, and the RMR can be linked through another endpoint.
    test("rmr::a_freed_endpoint_drops_links_not_executed", &["it_rmr_link B06", "it_rmr_unlink B03"], |f| {
        for way in 0..3 {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let (rmr, region) = stalled_links(f, &pair)?;
            end(f, &pair, way)?;
            check!(!f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            // An RMR can be unlinked even if it is not linked.
            f.a.rmr_unlink(rmr, other.a.ep, 5, SIGNALLED)?;
            other.a.done(5, DtoStatus::Success)?;
            RmrLink::of(rmr, &region).made(&other.a)?;
            f.a.rmr_unlink(rmr, other.a.ep, 6, SIGNALLED)?;
            other.a.done(6, DtoStatus::Success)?;
            f.a.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // If several links of one RMR fail in a row, the RMR has the state from before all of them.
    // Here that is not linked, so another endpoint may unlink it.
    test(
        "rmr::failures_in_a_row_restore_the_earlier_state",
        &["it_rmr_link B06", "it_rmr_unlink B03"],
        |f| {
            let pair = f.pair()?;
            let other = pair_in(f, pair.a.pz)?;
            let (rmr, _region) = stalled_links(f, &pair)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for cookie in 1..5 {
                pair.a.done(cookie, DtoStatus::Flushed)?;
            }
            f.a.rmr_unlink(rmr, other.a.ep, 5, SIGNALLED)?;
            other.a.done(5, DtoStatus::Success)
        },
    ),
];
