//! Rules of linking and unlinking regions (pages it_lmr_link, it_lmr_unlink): what may be unlinked
//! and through which endpoint, when a context becomes valid, and that each fault is reported once.

use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{datagrams, peer};
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, SIGNALLED, attributes, pattern, write};
use crate::memory::iobl::{Scattered, scattered};
use crate::remote::link::{BASE, Link, PAGE_LEN, linked, unlinked};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A linked region of `b`, and its context.
fn ready(f: &Fixture) -> Result<(Pair, Scattered, LmrHandle, RmrContext), Failure> {
    let pair = f.pair()?;
    let memory = scattered(f, &f.b, 2, PAGE, PAGE)?;
    write(&memory.buffer, 0, &pattern(6, 2 * PAGE));
    let lmr = unlinked(&pair.b, 2)?;
    let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
    pair.b.done(1, DtoStatus::Success)?;
    Ok((pair, memory, lmr, context))
}

/// The status of the peer's read of a byte at `offset`.
fn read(f: &Fixture, end: &End, offset: usize, context: RmrContext) -> Result<DtoStatus, Failure> {
    let own = f.region(&end.ia, end.pz, 8, OPEN)?;
    let from = make_rdma_addr_absolute(BASE + offset);
    end.ia.post_rdma_read(end.ep, &[own.segment(0, 1)], 90, SIGNALLED, from, context)?;
    let status = end.reap()?.dto_status;
    end.ia.lmr_free(own.lmr)?;
    Ok(status)
}

/// Posts an unlink, and checks that it completes in error and changes nothing.
fn stays_linked(end: &End, lmr: LmrHandle) -> Outcome {
    let before = end.ia.lmr_query(lmr, LmrParamMask::ALL)?;
    // A failure is reported even without the completion flag.
    end.ia.lmr_unlink(lmr, end.ep, 44, DtoFlags::empty())?;
    let done = end.reap()?;
    check_eq!((done.cookie, done.dto_status), (44, DtoStatus::LocalMmOperation));
    check_eq!((done.event_number, done.ep), (EventType::LMR_LINK_CMPL, end.ep));
    end.broken()?;
    check_eq!(end.ia.lmr_query(lmr, LmrParamMask::ALL)?, before);
    Ok(())
}

/// Makes one argument of a link invalid.
type Spoil = fn(&mut Link<'_>);

/// Every bad argument of a link, except the endpoint.
const FAULTS: &[(&str, Spoil)] = &[
    ("length 0", |link| link.length = 0),
    ("length + 1", |link| link.length += 1),
    ("length near overflow", |link| link.length = u64::MAX),
    ("no privileges", |link| link.privs = MemPriv::empty()),
    ("remote write without local write", |link| link.privs = MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE),
    ("undefined privileges", |link| link.privs = MemPriv::from_bits_retain(0x21)),
    ("a null handle", |link| link.lmr = LmrHandle::NULL),
    ("the direct handle", |link| link.lmr = LmrHandle::DIRECT),
    ("an address that disagrees with the offset", |link| link.addr += 1),
    ("an offset outside of the first element", |link| link.iobl.fbo = PAGE_LEN),
    ("an offset near overflow", |link| link.iobl.fbo = u64::MAX),
    ("an empty list", |link| link.iobl = Iobl::pages(&[], PAGE_LEN, 0)),
    ("undefined flags", |link| link.flags = DtoFlags::from_bits_retain(0x101)),
    ("flags of other calls", |link| link.flags = SIGNALLED | DtoFlags::UNLINK_FENCE),
    ("pages of size 0", |link| {
        if let IoblList::Pages { elements, .. } = link.iobl.list {
            link.iobl = Iobl::pages(elements, 0, 0);
        }
    }),
    ("pages of an odd size", |link| {
        if let IoblList::Pages { elements, .. } = link.iobl.list {
            link.iobl = Iobl::pages(elements, PAGE_LEN + 1, 0);
        }
    }),
    ("lists that overflow", |link| {
        if let IoblList::Pages { elements, .. } = link.iobl.list {
            link.iobl = Iobl::blocks(elements, u64::MAX, 0);
        }
    }),
];

pub(crate) const TESTS: &[Test] = &[
    // Each fault of a link is reported either by the call or by the completion, and never by both.
    test("link_rules::each_fault_is_reported_once", &["it_lmr_link V04"], |f| {
        for (what, spoil) in FAULTS {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 2, PAGE, 2 * PAGE)?;
            let lmr = unlinked(&pair.a, 2)?;
            let mut link = Link::pages(lmr, &memory.pieces);
            spoil(&mut link);
            match link.post(&pair.a, 9) {
                Err(_) => {
                    pair.a.idle()?;
                    check_eq!(pair.a.state()?, EpStateRc::Connected, "{what}");
                    // The region can be linked as if the failed link had not been posted.
                    Link::pages(lmr, &memory.pieces).post(&pair.a, 10)?;
                    pair.a.done(10, DtoStatus::Success)?;
                }
                Ok(_) => {
                    let done = pair.a.reap()?;
                    check_eq!((done.cookie, done.dto_status), (9, DtoStatus::LocalMmOperation), "{what}");
                    pair.a.broken()?;
                    pair.a.idle()?;
                    check!(!linked(&f.a, lmr)?, "{what}");
                }
            }
            f.a.lmr_free(lmr)?;
            for end in [&pair.a, &pair.b] {
                end.ia.ep_free(end.ep)?;
                end.ia.pz_free(end.pz)?;
            }
        }
        Ok(())
    }),
    // If one element of the list is bad, no part of the region can be used.
    test("link_rules::all_or_nothing", &["it_lmr_link B18"], |f| {
        // The first element is valid, but the device cannot reach the last one.
        let (pair, other) = (f.pair()?, f.pair()?);
        let memory = scattered(f, &f.b, 2, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 2)?;
        let beyond = f.setup.b.agent.identity().dma_limit.next_multiple_of(PAGE_LEN);
        let pages = [memory.pieces[0], IoAddr(beyond)];
        let context = some(Link::pages(lmr, &pages).post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::LocalMmOperation)?;
        pair.b.broken()?;
        check!(!linked(&f.b, lmr)?);
        // Neither a local request nor a peer in the same zone can use any part of the region.
        let local = f.end_in(&f.b, pair.b.pz, &attributes())?;
        let far = f.end(&f.a, &attributes())?;
        f.connect(&far, &local)?;
        check_eq!(read(f, &far, 0, context)?, DtoStatus::RemoteAccess);
        f.b.post_send(other.b.ep, &[LmrTriplet::new(lmr, BASE as u64, 1)], 2, SIGNALLED)?;
        other.b.done(2, DtoStatus::LocalProtection)
    }),
    // The context is known when the call returns, but gives no access before the link is executed.
    test("link_rules::a_context_before_its_link", &["it_lmr_link B15"], |f| {
        Need::Waiting.of(&f.a)?;
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 1)?;
        // The link waits behind a Send for which the peer has no Receive yet.
        f.b.post_send(pair.b.ep, &[], 1, SIGNALLED)?;
        let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 2)?, "a context")?;
        let local = f.end_in(&f.b, pair.b.pz, &attributes())?;
        let early = f.end(&f.a, &attributes())?;
        f.connect(&early, &local)?;
        // A read before the link is executed fails and breaks its own connection.
        check_eq!(read(f, &early, 0, context)?, DtoStatus::RemoteAccess);
        early.broken()?;
        f.a.post_recv(pair.a.ep, &[], 3, DtoFlags::COMPLETION)?;
        pair.b.done(1, DtoStatus::Success)?;
        pair.b.done(2, DtoStatus::Success)?;
        check_eq!(f.b.lmr_query(lmr, LmrParamMask::RMR_CONTEXT)?.rmr_context, Some(context));
        check_eq!(read(f, &pair.a, 0, context)?, DtoStatus::Success);
        Ok(())
    }),
    // Links and unlinks of one region may be outstanding together until the adapter has no room for
    // another list.
    test("link_rules::links_of_one_region_in_flight", &["it_lmr_link IT_ERR_RESOURCES"], |f| {
        Need::Waiting.of(&f.a)?;
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 1)?;
        f.b.post_send(pair.b.ep, &[], 0, SIGNALLED)?;
        let link = Link { flags: DtoFlags::empty(), ..Link::pages(lmr, &memory.pieces) };
        let mut posted = 0;
        let refusal = loop {
            match link.post(&pair.b, 1) {
                Ok(_) => posted += 1,
                Err(error) => break error,
            }
            f.b.lmr_unlink(lmr, pair.b.ep, 2, DtoFlags::UNLINK_FENCE)?;
            check!(posted < 16, "no limit was reached");
        };
        check_eq!(refusal, Error::Resources);
        check!(posted >= 4);
        f.a.post_recv(pair.a.ep, &[], 3, DtoFlags::COMPLETION)?;
        pair.b.done(0, DtoStatus::Success)?;
        f.b.post_rdma_write(pair.b.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
        pair.b.done(4, DtoStatus::Success)?;
        check!(!linked(&f.b, lmr)?);
        Link::pages(lmr, &memory.pieces).post(&pair.b, 5)?;
        pair.b.done(5, DtoStatus::Success)
    }),
    // A link or an unlink that is flushed has no effect.
    test("link_rules::links_that_are_flushed", &["it_lmr_link S06", "it_lmr_unlink S02"], |f| {
        // Requests that were flushed do not change the link in force, neither for local use nor for
        // peers.
        let (pair, memory, lmr, context) = ready(f)?;
        let local = f.end_in(&f.b, pair.b.pz, &attributes())?;
        let far = f.end(&f.a, &attributes())?;
        f.connect(&far, &local)?;
        f.b.ep_disconnect(pair.b.ep, &[])?;
        let before = f.b.lmr_query(lmr, LmrParamMask::ALL)?;
        for cookie in 0..6 {
            f.b.lmr_unlink(lmr, pair.b.ep, cookie, SIGNALLED)?;
            // Four links of a region may be outstanding.
            match Link::pages(lmr, &memory.pieces[..1]).post(&pair.b, cookie) {
                Ok(_) => check!(cookie < 4),
                refusal => {
                    check!(cookie >= 4);
                    refused(refusal, Error::Resources)?;
                }
            }
        }
        for cookie in [0, 0, 1, 1, 2, 2, 3, 3, 4, 5] {
            pair.b.done(cookie, DtoStatus::Flushed)?;
        }
        pair.b.idle()?;
        check_eq!(f.b.lmr_query(lmr, LmrParamMask::ALL)?, before);
        check_eq!(read(f, &far, PAGE, context)?, DtoStatus::Success);
        f.a.post_recv(far.ep, &[], 1, DtoFlags::COMPLETION)?;
        let own = f.region(&f.a, far.pz, PAGE, OPEN)?;
        f.a.post_recv(far.ep, &[own.whole()], 2, DtoFlags::COMPLETION)?;
        f.b.post_send(local.ep, &[], 3, SIGNALLED)?;
        f.b.post_send(local.ep, &[LmrTriplet::new(lmr, BASE as u64, PAGE_LEN)], 4, SIGNALLED)?;
        local.done(3, DtoStatus::Success)?;
        local.done(4, DtoStatus::Success)?;
        f.b.lmr_unlink(lmr, local.ep, 5, SIGNALLED)?;
        local.done(5, DtoStatus::Success)?;
        check!(!linked(&f.b, lmr)?);
        Ok(())
    }),
    // Regions cannot be linked through datagram endpoints.
    test("link_rules::datagrams", &["it_lmr_link IT_ERR_INVALID_EP_TYPE"], |f| {
        let peer = peer(&f.b, &datagrams())?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = f.b.lmr_create_unlinked(peer.pz, 1, LmrFlags::NONE, 0)?;
        let Link { addr, iobl, length, mode, privs, flags, .. } = Link::pages(lmr, &memory.pieces);
        let link = f.b.lmr_link(lmr, addr, &iobl, length, mode, privs, peer.ep, 1, flags);
        refused(link, Error::InvalidEpType)?;
        refused(f.b.lmr_unlink(lmr, peer.ep, 1, SIGNALLED), Error::InvalidEpType)?;
        check!(!linked(&f.b, lmr)?);
        refused(f.b.evd_dequeue(peer.request), Error::QueueEmpty)
    }),
    // The same list can be registered and linked, with the same result.
    test("link_rules::one_list_for_both_calls", &["it_iobl_t B03"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 2, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(3, 2 * PAGE));
        let list = Iobl::pages(&memory.pieces, PAGE_LEN, 9);
        let (length, mode) = (2 * PAGE_LEN - 9, AddrMode::Relative);
        let by_list = LmrMemory::Iobl { addr: 0, iobl: &list };
        let made = f.b.lmr_create(pair.b.pz, by_list, length, mode, OPEN, LmrFlags::NONE, 0)?;
        let lmr = unlinked(&pair.b, 2)?;
        let context = f.b.lmr_link(lmr, 0, &list, length, mode, OPEN, pair.b.ep, 1, SIGNALLED)?;
        pair.b.done(1, DtoStatus::Success)?;
        for context in [made.1, context] {
            let own = f.region(&f.a, pair.a.pz, length as usize, OPEN)?;
            let (from, context) = (make_rdma_addr_relative(0), some(context, "a context")?);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 2, SIGNALLED, from, context)?;
            pair.a.done(2, DtoStatus::Success)?;
            check!(own.all() == memory.content(PAGE, 9, length as usize));
        }
        Ok(())
    }),
    // A region that was created with its memory cannot be unlinked; one that was created for links
    // can.
    test(
        "link_rules::regions_created_with_their_memory",
        &["it_lmr_unlink A09 O02", "it_lmr_link O02", "it_dto_status_t A47"],
        |f| {
            let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
            let list = Iobl::pages(&memory.pieces, PAGE_LEN, 0);
            for by_list in [false, true] {
                let pair = f.pair()?;
                let lmr = match by_list {
                    false => f.region(&f.b, pair.b.pz, PAGE, OPEN)?.lmr,
                    true => {
                        let (memory, mode) = (LmrMemory::Iobl { addr: 0, iobl: &list }, AddrMode::Relative);
                        f.b.lmr_create(pair.b.pz, memory, PAGE_LEN, mode, OPEN, LmrFlags::NONE, 0)?.0
                    }
                };
                stays_linked(&pair.b, lmr)?;
                f.b.lmr_free(lmr)?;
            }
            // A region that was created for links can always be unlinked.
            let (pair, _, lmr, _) = ready(f)?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)
        },
    ),
    // A region to which an RMR is linked cannot be unlinked until the RMR is.
    test("link_rules::a_region_with_an_rmr_linked", &["it_lmr_unlink A08", "A.it_lmr_link B01"], |f| {
        for rmr_type in [RmrType::Narrow, RmrType::Wide] {
            let (pair, memory, lmr, _) = ready(f)?;
            let rmr = f.b.rmr_create(pair.b.pz, rmr_type)?;
            let (mode, privs) = (AddrMode::Absolute, MemPriv::REMOTE);
            let (addr, length) = (BASE + 100, PAGE_LEN);
            let context = f.b.rmr_link(rmr, lmr, addr, length, mode, privs, pair.b.ep, 3, SIGNALLED)?;
            pair.b.done(3, DtoStatus::Success)?;
            let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            let from = make_rdma_addr_absolute(addr);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 4, SIGNALLED, from, context)?;
            pair.a.done(4, DtoStatus::Success)?;
            check!(own.all() == memory.content(PAGE, 100, PAGE));
            stays_linked(&pair.b, lmr)?;
            f.b.rmr_free(rmr)?;
        }
        Ok(())
    }),
    // A region that was unlinked through an unprivileged endpoint cannot be linked again through
    // it, but can be freed.
    test("link_rules::unlinked_without_privilege", &["it_lmr_unlink S06"], |f| {
        let (pair, memory, lmr, _) = ready(f)?;
        // An endpoint of the same zone, without privilege.
        let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
        let mut end = f.end(&f.b, &plain)?;
        f.b.ep_free(end.ep)?;
        end.ep = f.b.ep_rc_create(pair.b.pz, end.request, end.recv, end.conn, EpFlags::empty(), &plain)?;
        f.connect(&end, &f.end(&f.a, &attributes())?)?;
        f.b.lmr_unlink(lmr, end.ep, 2, SIGNALLED)?;
        end.done(2, DtoStatus::Success)?;
        check!(!linked(&f.b, lmr)?);
        Link::pages(lmr, &memory.pieces).post(&end, 3)?;
        end.done(3, DtoStatus::LocalMmOperation)?;
        end.broken()?;
        check!(!linked(&f.b, lmr)?);
        f.b.lmr_free(lmr)?;
        refused(f.b.lmr_free(lmr), Error::InvalidLmr)
    }),
    // A request behind an unlink may start before it (it_lmr_unlink). This NIC executes requests in
    // order, so one that uses the region fails.
    test("link_rules::what_follows_an_unlink", &["it_lmr_unlink B08 V01"], |f| {
        for fence in [DtoFlags::empty(), DtoFlags::UNLINK_FENCE] {
            let (pair, _, lmr, _) = ready(f)?;
            f.a.post_recv(pair.a.ep, &[], 0, DtoFlags::COMPLETION)?;
            let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            f.a.post_recv(pair.a.ep, &[own.whole()], 1, DtoFlags::COMPLETION)?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED | fence)?;
            // The unlink fence is a flag of unlinks only.
            let marked = f.b.post_send(pair.b.ep, &[], 3, SIGNALLED | DtoFlags::UNLINK_FENCE);
            refused(marked, Error::InvalidDtoFlags)?;
            f.b.post_send(pair.b.ep, &[], 4, SIGNALLED)?;
            f.b.post_send(pair.b.ep, &[LmrTriplet::new(lmr, BASE as u64, PAGE_LEN)], 5, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)?;
            pair.b.done(4, DtoStatus::Success)?;
            pair.b.done(5, DtoStatus::LocalProtection)?;
            check!(!linked(&f.b, lmr)?);
        }
        Ok(())
    }),
];
