//! Links and unlinks that complete in error (pages it_lmr_link, it_lmr_unlink, it_dto_status_t).

use alloc::vec;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, attributes, pattern, write};
use crate::memory::iobl::{Scattered, scattered};
use crate::remote::link::{BASE, Link, PAGE_LEN, fails_on, linked, peer_reads, unlinked};
use crate::{Outcome, Test, check, check_eq, test};

/// Posts a link of a valid region that `spoil` made invalid, and checks that it completes in error
/// and breaks the connection.
fn fails(f: &Fixture, spoil: impl Fn(&mut Link<'_>, &Scattered)) -> Outcome {
    let pair = f.pair()?;
    let memory = scattered(f, &f.a, 2, PAGE, 2 * PAGE)?;
    let lmr = unlinked(&pair.a, 2)?;
    let mut link = Link::pages(lmr, &memory.pieces);
    spoil(&mut link, &memory);
    fails_on(&pair, &link)
}

pub(crate) const TESTS: &[Test] = &[
    // A second link fails and leaves the first one in force.
    test(
        "link::a_linked_region_cannot_be_linked",
        &["it_lmr_link A07 S02", "it_dto_status_t A33 F15"],
        |f| {
            check_eq!(DtoStatus::LocalMmOperation.as_raw(), 12);
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
            write(&memory.buffer, 0, &pattern(1, 2 * PAGE));
            let lmr = unlinked(&pair.a, 2)?;
            let first = Link::pages(lmr, &memory.pieces[..1]);
            let context = some(first.post(&pair.a, 1)?, "a context")?;
            pair.a.done(1, DtoStatus::Success)?;
            fails_on(&pair, &Link::pages(lmr, &memory.pieces[1..]))?;
            // The first link is still in force.
            check!(linked(&f.a, lmr)?);
            let param = f.a.lmr_query(lmr, LmrParamMask::RMR_CONTEXT)?;
            check_eq!(param.rmr_context, Some(context));
            Ok(())
        },
    ),
    // A link of the direct handle fails.
    test("link::the_direct_handle_cannot_be_linked", &["it_lmr_link A08", "it_dto_status_t A34"], |f| {
        fails(f, |link, _| link.lmr = LmrHandle::DIRECT)
    }),
    // A list with more elements than the region was created for fails.
    test("link::too_many_elements", &["it_lmr_link A09", "it_dto_status_t A35"], |f| {
        let pair = f.pair()?;
        let lmr = unlinked(&pair.a, 1)?;
        let capacity = f.a.lmr_query(lmr, LmrParamMask::IOBL_NUM_ELTS)?.iobl_num_elts;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let pages = vec![memory.pieces[0]; capacity + 1];
        fails_on(&pair, &Link::pages(lmr, &pages))
    }),
    // A page size or block size that is not supported fails.
    test("link::elements_of_unsupported_length", &["it_lmr_link A10 A12", "it_dto_status_t A36 A38"], |f| {
        for elt_len in [0, 1, 2048, 4097, 3 * PAGE_LEN] {
            fails(f, |link, memory| {
                // The list lives as long as the memory.
                let IoblList::Pages { elements, .. } = link.iobl.list else { return };
                link.iobl = Iobl::pages(elements, elt_len, 0);
                link.length = 1;
                let _ = memory;
            })?;
        }
        fails(f, |link, _| {
            let IoblList::Pages { elements, .. } = link.iobl.list else { return };
            link.iobl = Iobl::blocks(elements, 0, 0);
            link.length = 1;
        })
    }),
    // An offset outside of the first element fails.
    test("link::first_byte_offset_outside", &["it_lmr_link A11", "it_dto_status_t A36"], |f| {
        for fbo in [PAGE_LEN, PAGE_LEN + 1, u64::MAX] {
            fails(f, |link, _| {
                link.iobl.fbo = fbo;
                (link.mode, link.length) = (AddrMode::Relative, 1);
            })?;
        }
        Ok(())
    }),
    // A page that is not aligned fails.
    test("link::misaligned_pages", &["it_lmr_link A12", "it_dto_status_t A38"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 2, PAGE, 2 * PAGE)?;
        let pages = [memory.pieces[0], IoAddr(memory.pieces[1].0 + 8)];
        let lmr = unlinked(&pair.a, 2)?;
        fails_on(&pair, &Link::pages(lmr, &pages))?;
        let pair = f.pair()?;
        let elements = pages.map(|io_addr| IoblVeElt { io_addr, elt_len: PAGE_LEN });
        let lmr = unlinked(&pair.a, 2)?;
        fails_on(&pair, &Link { iobl: Iobl::ve_pages(&elements, 0), ..Link::pages(lmr, &pages) })
    }),
    // A page list whose address has another offset within the page fails.
    test(
        "link::an_address_that_disagrees_with_the_offset",
        &["it_lmr_link A13 B05", "it_dto_status_t A39"],
        |f| {
            for (addr, fbo) in [(BASE + 1, 0), (BASE, 1), (BASE + 5, 4)] {
                fails(f, |link, _| {
                    (link.addr, link.iobl.fbo, link.length) = (addr, fbo, 64);
                })?;
            }
            Ok(())
        },
    ),
    // A length of zero and one beyond the list fail.
    test("link::lengths", &["it_lmr_link L01 V01", "it_dto_status_t A37"], |f| {
        for length in [0, 2 * PAGE_LEN + 1, u64::MAX] {
            fails(f, |link, _| link.length = length)?;
        }
        fails(f, |link, _| {
            (link.addr, link.iobl.fbo, link.length) = (BASE + 100, 100, 2 * PAGE_LEN - 99);
        })
    }),
    // A region and an endpoint of different zones cannot be linked.
    test("link::another_zone", &["it_lmr_link A05 B07", "it_dto_status_t A32"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let other = f.a.pz_create()?;
        let lmr = f.a.lmr_create_unlinked(other, 1, LmrFlags::NONE, 0)?;
        fails_on(&pair, &Link::pages(lmr, &memory.pieces))?;
        check!(!linked(&f.a, lmr)?);
        Ok(())
    }),
    // Combinations of privileges that InfiniBand forbids fail.
    test("link::forbidden_privileges", &["it_lmr_link A06 B08 B09", "it_dto_status_t A32"], |f| {
        for privs in [MemPriv::empty(), MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE, MemPriv::REMOTE] {
            fails(f, |link, _| link.privs = privs)?;
        }
        Ok(())
    }),
    // A link on an unprivileged endpoint fails.
    test(
        "link::on_an_unprivileged_endpoint",
        &["it_lmr_link A14 B01 S01 V05", "it_dto_status_t A40", "4.10 B02 B05"],
        |f| {
            let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
            let pair = f.pair_of(&plain, &attributes())?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            fails_on(&pair, &Link::pages(lmr, &memory.pieces))?;
            check!(!linked(&f.a, lmr)?);
            Ok(())
        },
    ),
    // A failed link is reported without the completion flag, and the requests behind it do not
    // reach the peer.
    test("link::a_failing_link_is_always_reported", &["it_lmr_link A01 A02 B17 B20 S04"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let sink = f.region(&f.b, pair.b.pz, 64, OPEN)?;
        f.b.post_recv(pair.b.ep, &[sink.whole()], 7, DtoFlags::COMPLETION)?;
        let lmr = unlinked(&pair.a, 1)?;
        let mut bad = Link { flags: DtoFlags::empty(), ..Link::pages(lmr, &memory.pieces) };
        bad.addr += 1;
        bad.post(&pair.a, 1)?;
        f.a.post_send(pair.a.ep, &[], 2, DtoFlags::empty())?;
        pair.a.done(1, DtoStatus::LocalMmOperation)?;
        pair.a.done(2, DtoStatus::Flushed)?;
        pair.a.broken()?;
        // The Send behind the failed link did not reach the peer.
        pair.b.recv_done(7, DtoStatus::Flushed)
    }),
    // An unlink of a region without memory fails.
    test("link::unlinking_what_is_not_linked", &["it_dto_status_t A42", "it_lmr_unlink A01 A02 V02"], |f| {
        let pair = f.pair()?;
        let lmr = unlinked(&pair.a, 1)?;
        f.a.lmr_unlink(lmr, pair.a.ep, 1, DtoFlags::empty())?;
        f.a.post_send(pair.a.ep, &[], 2, DtoFlags::empty())?;
        let done = pair.a.reap()?;
        check_eq!((done.cookie, done.dto_status), (1, DtoStatus::LocalMmOperation));
        check_eq!(done.event_number, EventType::LMR_LINK_CMPL);
        pair.a.done(2, DtoStatus::Flushed)?;
        pair.a.broken()
    }),
    // An unlink of the direct handle fails.
    test("link::unlinking_the_direct_handle", &["it_lmr_unlink A06", "it_dto_status_t A43"], |f| {
        let pair = f.pair()?;
        f.a.lmr_unlink(LmrHandle::DIRECT, pair.a.ep, 1, SIGNALLED)?;
        pair.a.done(1, DtoStatus::LocalMmOperation)?;
        pair.a.broken()
    }),
    // An unlink through an endpoint of another zone fails and leaves the link in force.
    test("link::unlinking_in_another_zone", &["it_lmr_unlink A05 B03 S03", "it_dto_status_t A44"], |f| {
        let (pair, other) = (f.pair()?, f.pair()?);
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(3, PAGE));
        let lmr = unlinked(&pair.b, 1)?;
        let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::Success)?;
        f.b.lmr_unlink(lmr, other.b.ep, 2, SIGNALLED)?;
        other.b.done(2, DtoStatus::LocalMmOperation)?;
        other.b.broken()?;
        // The link and its context are unchanged.
        let param = f.b.lmr_query(lmr, LmrParamMask::LINKED | LmrParamMask::RMR_CONTEXT)?;
        check_eq!((param.linked, param.rmr_context), (true, Some(context)));
        peer_reads(f, &pair, make_rdma_addr_absolute(BASE), context, &pattern(3, PAGE))
    }),
];
