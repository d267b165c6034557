//! Linking and unlinking regions (pages it_lmr_create_unlinked, it_lmr_link, it_lmr_unlink).

use alloc::vec;
use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, SIGNALLED, attributes, pattern, read, write};
use crate::memory::iobl::{map, scattered};
use crate::{Failure, Outcome, Test, check, check_eq, test};

pub(crate) const PAGE_LEN: u64 = PAGE as u64;
/// The address at which these tests link regions. It is that of no memory.
pub(crate) const BASE: usize = 0x7100_0000_0000;

/// The arguments of a link. Tests of bad arguments change one of them.
#[derive(Clone, Copy)]
pub(crate) struct Link<'a> {
    pub(crate) lmr: LmrHandle,
    pub(crate) addr: usize,
    pub(crate) iobl: Iobl<'a>,
    pub(crate) length: u64,
    pub(crate) mode: AddrMode,
    pub(crate) privs: MemPriv,
    pub(crate) flags: DtoFlags,
}

impl<'a> Link<'a> {
    /// A valid link to a list of whole pages.
    pub(crate) fn pages(lmr: LmrHandle, pages: &'a [IoAddr]) -> Link<'a> {
        let length = pages.len() as u64 * PAGE_LEN;
        let iobl = Iobl::pages(pages, PAGE_LEN, 0);
        Link { lmr, addr: BASE, iobl, length, mode: AddrMode::Absolute, privs: OPEN, flags: SIGNALLED }
    }

    /// Posts the link on this endpoint.
    pub(crate) fn post(&self, end: &End, cookie: u64) -> Result<Option<RmrContext>, Error> {
        let Link { lmr, addr, iobl, length, mode, privs, flags } = self;
        end.ia.lmr_link(*lmr, *addr, iobl, *length, *mode, *privs, end.ep, cookie, *flags)
    }
}

/// Whether the region is linked.
pub(crate) fn linked(ia: &Ia, lmr: LmrHandle) -> Result<bool, Failure> {
    Ok(ia.lmr_query(lmr, LmrParamMask::LINKED)?.linked)
}

/// A new region in the zone of the endpoint, for lists of this many elements.
pub(crate) fn unlinked(end: &End, elements: usize) -> Result<LmrHandle, Failure> {
    Ok(end.ia.lmr_create_unlinked(end.pz, elements, LmrFlags::NONE, 0)?)
}

/// Checks the content of a linked region of `b` by reading it from `a`.
pub(crate) fn peer_reads(
    f: &Fixture,
    pair: &Pair,
    from: RdmaAddr,
    context: RmrContext,
    content: &[u8],
) -> Outcome {
    let sink = f.region(&f.a, pair.a.pz, content.len(), OPEN)?;
    f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 900, SIGNALLED, from, context)?;
    pair.a.done(900, DtoStatus::Success)?;
    check!(sink.all() == content, "the linked region's bytes");
    f.a.lmr_free(sink.lmr)?;
    Ok(())
}

/// Checks that the link completes in error on the active side and breaks the connection.
pub(crate) fn fails_on(pair: &Pair, link: &Link<'_>) -> Outcome {
    link.post(&pair.a, 44)?;
    let done = pair.a.reap()?;
    check_eq!((done.cookie, done.dto_status), (44, DtoStatus::LocalMmOperation));
    check_eq!((done.event_number, done.ep), (EventType::LMR_LINK_CMPL, pair.a.ep));
    pair.a.broken()
}

pub(crate) const TESTS: &[Test] = &[
    // A new linkable region is not linked, and a request that names it fails.
    test(
        "link::a_new_region_is_unlinked",
        &[
            "it_lmr_create_unlinked B01 F01 F02 L01 S01 S02",
            "it_lmr_query F13 F14",
            "it_ia_info_t F70",
            "1 B03",
            "it_dto_status_t A02",
        ],
        |f| {
            check!(f.a.ia_query()?.lmr_link_support);
            let pair = f.pair()?;
            for (elements, flags) in [
                (1, LmrFlags::empty()),
                (7, LmrFlags::NONE),
                (64, LmrFlags::NONCOHERENT),
                (2, LmrFlags::NON_SHAREABLE | LmrFlags::NONE),
            ] {
                let lmr = f.a.lmr_create_unlinked(pair.a.pz, elements, flags, 5)?;
                let param = f.a.lmr_query(lmr, LmrParamMask::ALL)?;
                check_eq!((param.ia, param.pz, param.shared_id), (f.a.handle(), pair.a.pz, 5));
                check!(!param.linked && !param.flags.contains(LmrFlags::SHARED));
                check!(param.iobl_num_elts >= elements);
                f.a.lmr_free(lmr)?;
            }
            let lmr = unlinked(&pair.a, 1)?;
            f.a.post_send(pair.a.ep, &[LmrTriplet::new(lmr, BASE as u64, 1)], 1, SIGNALLED)?;
            pair.a.done(1, DtoStatus::LocalProtection)
        },
    ),
    // A linked list of pages can be read by the peer and sent from, and the link completes with its
    // own event.
    test(
        "link::pages",
        &[
            "A.it_lmr_create_unlinked B01",
            "it_lmr_link B02 B03 B10 B12-B14 B16 F01",
            "it_lmr_query F15",
            "it_lmr_create_unlinked B02",
            "it_event_t F13",
            "it_dto_events F09",
        ],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.b, 4, PAGE, PAGE)?;
            write(&memory.buffer, 0, &pattern(1, 4 * PAGE));
            let lmr = unlinked(&pair.b, 4)?;
            let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 0xfeed)?, "a context")?;
            let done = pair.b.reap()?;
            check_eq!((done.event_number, done.dto_status), (EventType::LMR_LINK_CMPL, DtoStatus::Success));
            check_eq!(EventType::LMR_LINK_CMPL.as_raw(), 9);
            check_eq!((done.cookie, done.ep, done.evd), (0xfeed, pair.b.ep, pair.b.request));
            let param = f.b.lmr_query(lmr, LmrParamMask::ALL)?;
            check!(param.linked);
            check_eq!((param.addr, param.length), (BASE, 4 * PAGE_LEN));
            check_eq!((param.privs, param.addr_mode), (OPEN, AddrMode::Absolute));
            check_eq!(param.iobl_type, IoblTypes::PAGE_LIST);
            check_eq!(param.rmr_context, Some(context));
            let content = memory.content(PAGE, 0, 4 * PAGE);
            peer_reads(f, &pair, make_rdma_addr_absolute(BASE), context, &content)?;
            // The region can also be the source of a Send; this one sends its second page.
            let sink = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            f.a.post_recv(pair.a.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
            let second = LmrTriplet::new(lmr, (BASE + PAGE) as u64, PAGE_LEN);
            f.b.post_send(pair.b.ep, &[second], 2, SIGNALLED)?;
            pair.a.recv_done(1, DtoStatus::Success)?;
            check!(sink.all() == content[PAGE..2 * PAGE]);
            Ok(())
        },
    ),
    // A linked region begins at its offset in the first element.
    test("link::first_byte_offsets", &["it_lmr_link B04 L02", "it_iobl_t F11"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 3, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(2, 3 * PAGE));
        let lmr = unlinked(&pair.b, 3)?;
        for (fbo, length) in [(0, 3 * PAGE), (1, 3 * PAGE - 1), (4095, 2 * PAGE + 1), (500, 1), (4095, 1)] {
            let mut link = Link::pages(lmr, &memory.pieces);
            link.iobl.fbo = fbo as u64;
            (link.addr, link.length) = (BASE + fbo, length as u64);
            let context = some(link.post(&pair.b, 1)?, "a context")?;
            pair.b.done(1, DtoStatus::Success)?;
            let content = memory.content(PAGE, fbo, length);
            peer_reads(f, &pair, make_rdma_addr_absolute(BASE + fbo), context, &content)?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A region can be linked with offsets as addresses.
    test("link::relative_addressing", &["it_lmr_link B06 F02", "it_lmr_triplet_t F03"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 3, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(3, 3 * PAGE));
        let lmr = unlinked(&pair.b, 3)?;
        for (addr, fbo) in [(0, 0), (12345, 0), (0, 77), (usize::MAX, 4095)] {
            let mut link = Link::pages(lmr, &memory.pieces);
            (link.mode, link.addr, link.length) = (AddrMode::Relative, addr, 6000);
            link.iobl.fbo = fbo as u64;
            let context = some(link.post(&pair.b, 1)?, "a context")?;
            pair.b.done(1, DtoStatus::Success)?;
            let content = memory.content(PAGE, fbo, 6000);
            peer_reads(f, &pair, make_rdma_addr_relative(0), context, &content)?;
            peer_reads(f, &pair, make_rdma_addr_relative(5000), context, &content[5000..])?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A list of blocks can be linked.
    test("link::blocks", &["it_iobl_t F02", "it_lmr_query F15"], |f| {
        let pair = f.pair()?;
        let lmr = unlinked(&pair.b, 9)?;
        for (len, stride, fbo) in [(512, 512, 0), (500, 777, 499), (1, 2, 0), (4097, 5000, 40)] {
            let memory = scattered(f, &f.b, 9, len, stride)?;
            write(&memory.buffer, 0, &pattern(4, 9 * stride));
            let mut link = Link::pages(lmr, &memory.pieces);
            link.iobl = Iobl::blocks(&memory.pieces, len as u64, fbo as u64);
            (link.addr, link.length) = (BASE + 3, (9 * len - fbo) as u64);
            let context = some(link.post(&pair.b, 1)?, "a context")?;
            pair.b.done(1, DtoStatus::Success)?;
            check_eq!(f.b.lmr_query(lmr, LmrParamMask::IOBL_TYPE)?.iobl_type, IoblTypes::BLOCK_LIST);
            let content = memory.content(len, fbo, 9 * len - fbo);
            peer_reads(f, &pair, make_rdma_addr_absolute(BASE + 3), context, &content)?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A list of pages of different lengths can be linked.
    test("link::variable_pages", &["it_iobl_t F03", "it_lmr_query F15"], |f| {
        let pair = f.pair()?;
        let buffer = f.buffer(8 * PAGE)?;
        let base = map(&f.b, &buffer)?;
        let filled = pattern(5, 8 * PAGE);
        write(&buffer, 0, &filled);
        let skip = (base.0.next_multiple_of(2 * PAGE_LEN) - base.0) as usize;
        let parts = [(skip + 2 * PAGE, 2 * PAGE), (skip + PAGE, PAGE), (skip + 4 * PAGE, PAGE)];
        let elements =
            parts.map(|(at, len)| IoblVeElt { io_addr: IoAddr(base.0 + at as u64), elt_len: len as u64 });
        let all = parts.map(|(at, len)| filled[at..at + len].to_vec()).concat();
        let lmr = unlinked(&pair.b, 3)?;
        for fbo in [0, 2 * PAGE - 1] {
            let mut link = Link::pages(lmr, &[]);
            link.iobl = Iobl::ve_pages(&elements, fbo as u64);
            (link.addr, link.length) = (BASE + fbo, (4 * PAGE - fbo) as u64);
            let context = some(link.post(&pair.b, 1)?, "a context")?;
            pair.b.done(1, DtoStatus::Success)?;
            check_eq!(f.b.lmr_query(lmr, LmrParamMask::IOBL_TYPE)?.iobl_type, IoblTypes::VE_PAGE_LIST);
            peer_reads(f, &pair, make_rdma_addr_absolute(BASE + fbo), context, &all[fbo..])?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
            pair.b.done(2, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A link gives a context exactly if it grants remote privileges.
    test("link::a_context_only_with_remote_privileges", &["it_lmr_link B12 B13 V02"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.a, 1)?;
        for privs in [
            MemPriv::LOCAL_READ,
            MemPriv::LOCAL,
            MemPriv::LOCAL_READ | MemPriv::REMOTE_READ,
            MemPriv::LOCAL | MemPriv::REMOTE_WRITE,
            OPEN,
            // The page names two privileges. The third one is for peers, too.
            MemPriv::LOCAL | MemPriv::ATOMIC,
        ] {
            let link = Link { privs, ..Link::pages(lmr, &memory.pieces) };
            let context = link.post(&pair.a, 1)?;
            check_eq!(context.is_some(), !MemPriv::LOCAL.contains(privs), "context with {privs:?}");
            pair.a.done(1, DtoStatus::Success)?;
            let param = f.a.lmr_query(lmr, LmrParamMask::RMR_CONTEXT | LmrParamMask::MEM_PRIV)?;
            check_eq!((param.rmr_context, param.privs), (context, privs));
            f.a.lmr_unlink(lmr, pair.a.ep, 2, SIGNALLED)?;
            pair.a.done(2, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A link for remote reads does not permit writes.
    test("link::privileges_of_the_link_hold", &["it_lmr_link F01", "it_dto_status_t A25"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 1)?;
        let privs = MemPriv::LOCAL | MemPriv::REMOTE_READ;
        let link = Link { privs, ..Link::pages(lmr, &memory.pieces) };
        let context = some(link.post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::Success)?;
        let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        source.fill(1);
        let target = make_rdma_addr_absolute(BASE);
        f.a.post_rdma_read(pair.a.ep, &[source.whole()], 2, SIGNALLED, target, context)?;
        pair.a.done(2, DtoStatus::Success)?;
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 3, SIGNALLED, target, context)?;
        pair.a.done(3, DtoStatus::RemoteAccess)?;
        check!(read(&memory.buffer, 0, PAGE).iter().all(|&byte| byte == 0));
        Ok(())
    }),
    // Requests behind a link start after it, so they can use the region.
    test("link::fences_what_follows", &["it_lmr_link B11 B21 F03"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(7, 2 * PAGE));
        let sink = f.region(&f.b, pair.b.pz, 2 * PAGE, OPEN)?;
        let content = memory.content(PAGE, 0, 2 * PAGE);
        let lmr = unlinked(&pair.a, 2)?;
        // The link, the request that uses it and the unlink are posted without waiting in between.
        for round in 0..20 {
            sink.buffer.slice().fill(0);
            let quiet = Link { flags: DtoFlags::empty(), ..Link::pages(lmr, &memory.pieces) };
            quiet.post(&pair.a, 1)?;
            let whole = LmrTriplet::new(lmr, BASE as u64, 2 * PAGE_LEN);
            let (addr, context) = (sink.remote(0), sink.context()?);
            f.a.post_rdma_write(pair.a.ep, &[whole], 2, SIGNALLED, addr, context)?;
            pair.a.done(2, DtoStatus::Success)?;
            check!(linked(&f.a, lmr)?, "the write completed before the link");
            check!(f.arrives(|| sink.all() == content), "round {round}");
            f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED | DtoFlags::UNLINK_FENCE)?;
            pair.a.done(3, DtoStatus::Success)?;
        }
        pair.a.idle()
    }),
    // After an unlink the context is invalid and the region has no memory.
    test("link::unlink", &["it_lmr_unlink B01 B04-B07 S02", "it_event_t F13", "it_dto_status_t A21"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 2, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 2)?;
        let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::Success)?;
        f.b.lmr_unlink(lmr, pair.b.ep, 0xabcd, SIGNALLED)?;
        let done = pair.b.reap()?;
        check_eq!((done.event_number, done.dto_status), (EventType::LMR_LINK_CMPL, DtoStatus::Success));
        check_eq!((done.cookie, done.ep), (0xabcd, pair.b.ep));
        check!(!linked(&f.b, lmr)?);
        let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        source.fill(9);
        for addr in [BASE, BASE + PAGE] {
            let pair = if addr == BASE { pair.clone() } else { f.pair()? };
            let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            source.fill(9);
            let target = make_rdma_addr_absolute(addr);
            f.a.post_rdma_write(pair.a.ep, &[source.whole()], 2, SIGNALLED, target, context)?;
            pair.a.done(2, DtoStatus::RemoteAccess)?;
        }
        check!(read(&memory.buffer, 0, 2 * PAGE).iter().all(|&byte| byte == 0));
        Ok(())
    }),
    // A request that names a region without memory fails.
    test(
        "link::an_unlinked_region_is_no_local_segment",
        &["it_dto_status_t A02", "it_lmr_unlink S02"],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            Link::pages(lmr, &memory.pieces).post(&pair.a, 1)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 2, SIGNALLED)?;
            pair.a.done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            f.a.post_send(pair.a.ep, &[LmrTriplet::new(lmr, BASE as u64, 8)], 3, SIGNALLED)?;
            pair.a.done(3, DtoStatus::LocalProtection)?;
            pair.a.broken()
        },
    ),
    // A region can be linked and unlinked many times, each time with another context than the time
    // before.
    test("link::again_after_unlink", &["it_lmr_link B19 S03", "it_lmr_create_unlinked S03"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 2, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(8, 2 * PAGE));
        let lmr = unlinked(&pair.b, 2)?;
        let mut contexts = vec![];
        for round in 0..300_u64 {
            let page = &memory.pieces[round as usize % 2..][..1];
            let context = some(Link::pages(lmr, page).post(&pair.b, round)?, "a context")?;
            pair.b.done(round, DtoStatus::Success)?;
            if round % 50 == 0 {
                let at = memory.offsets[round as usize % 2];
                let content = read(&memory.buffer, at, PAGE);
                peer_reads(f, &pair, make_rdma_addr_absolute(BASE), context, &content)?;
            }
            check!(contexts.last() != Some(&context), "two links in a row got the same context");
            contexts.push(context);
            f.b.lmr_unlink(lmr, pair.b.ep, round, SIGNALLED)?;
            pair.b.done(round, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // If a link reused the key of the last one unchanged, a stale context would reach the new
    // memory.
    test(
        "link::an_old_context_does_not_reach_a_new_link",
        &["it_lmr_unlink B06", "A.it_rmr_link V01"],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.b, 1)?;
            let old = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
            f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED | DtoFlags::UNLINK_FENCE)?;
            let new = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 3)?, "a context")?;
            for cookie in 1..=3 {
                pair.b.done(cookie, DtoStatus::Success)?;
            }
            check!(old != new);
            let sink = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let from = make_rdma_addr_absolute(BASE);
            f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 4, SIGNALLED, from, new)?;
            pair.a.done(4, DtoStatus::Success)?;
            f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 5, SIGNALLED, from, old)?;
            pair.a.done(5, DtoStatus::RemoteAccess)
        },
    ),
    // A write through the context of a freed region fails and changes nothing.
    test("link::freeing_a_linked_region_ends_access", &["it_lmr_link S03", "it_lmr_free S01"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.b, 1)?;
        let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
        pair.b.done(1, DtoStatus::Success)?;
        f.b.lmr_free(lmr)?;
        let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        source.fill(1);
        let target = make_rdma_addr_absolute(BASE);
        f.a.post_rdma_write(pair.a.ep, &[source.whole()], 2, SIGNALLED, target, context)?;
        pair.a.done(2, DtoStatus::RemoteAccess)?;
        check!(read(&memory.buffer, 0, PAGE).iter().all(|&byte| byte == 0));
        Ok(())
    }),
    // An unprivileged endpoint may unlink.
    test("link::unlinking_needs_no_privilege", &["it_lmr_unlink B02"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.a, 1)?;
        Link::pages(lmr, &memory.pieces).post(&pair.a, 1)?;
        pair.a.done(1, DtoStatus::Success)?;
        // Another endpoint of the same zone, without privilege.
        let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
        let mut end = f.end(&f.a, &plain)?;
        f.a.ep_free(end.ep)?;
        end.ep = f.a.ep_rc_create(pair.a.pz, end.request, end.recv, end.conn, EpFlags::empty(), &plain)?;
        f.connect(&end, &f.end(&f.b, &attributes())?)?;
        f.a.lmr_unlink(lmr, end.ep, 2, SIGNALLED)?;
        end.done(2, DtoStatus::Success)?;
        check!(!linked(&f.a, lmr)?);
        Ok(())
    }),
    // Without the fence the unlink could take the memory away from earlier requests.
    test("link::the_unlink_fence", &["it_dto_flags_t F05 F12", "it_lmr_unlink F01"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 16, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(4, 16 * PAGE));
        let sink = f.region(&f.b, pair.b.pz, 16 * PAGE, OPEN)?;
        let lmr = unlinked(&pair.a, 16)?;
        let whole = LmrTriplet::new(lmr, BASE as u64, 16 * PAGE_LEN);
        for _ in 0..20 {
            Link::pages(lmr, &memory.pieces).post(&pair.a, 0)?;
            // Reads and writes use the region, and the unlink is posted behind them.
            let (addr, context) = (sink.remote(0), sink.context()?);
            f.a.post_rdma_write(pair.a.ep, &[whole], 1, SIGNALLED, addr, context)?;
            f.a.post_rdma_read(pair.a.ep, &[whole], 2, SIGNALLED, addr, context)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED | DtoFlags::UNLINK_FENCE)?;
            for cookie in 0..=3 {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
        }
        check!(sink.all() == memory.content(PAGE, 0, 16 * PAGE));
        Ok(())
    }),
];
