//! Linking and unlinking regions (pages it_lmr_create_unlinked, it_lmr_link, it_lmr_unlink).

use alloc::vec;
use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, SIGNALLED, attributes, pattern, read, write};
use crate::iobl::{Scattered, map, scattered};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

pub(crate) const PAGE_LEN: u64 = PAGE as u64;
pub(crate) const BASE: usize = 0x7100_0000_0000;

/// What a link is made with; changed by the tests of what is wrong.
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
    pub(crate) fn pages(lmr: LmrHandle, pages: &'a [IoAddr]) -> Link<'a> {
        let length = pages.len() as u64 * PAGE_LEN;
        let iobl = Iobl::pages(pages, PAGE_LEN, 0);
        Link { lmr, addr: BASE, iobl, length, mode: AddrMode::Absolute, privs: OPEN, flags: SIGNALLED }
    }

    pub(crate) fn post(&self, end: &End, cookie: u64) -> Result<Option<RmrContext>, Error> {
        let Link { lmr, addr, iobl, length, mode, privs, flags } = self;
        end.ia.lmr_link(*lmr, *addr, iobl, *length, *mode, *privs, end.ep, cookie, *flags)
    }
}

pub(crate) fn linked(ia: &Ia, lmr: LmrHandle) -> Result<bool, Failure> {
    Ok(ia.lmr_query(lmr, LmrParamMask::LINKED)?.linked)
}

pub(crate) fn unlinked(end: &End, elements: usize) -> Result<LmrHandle, Failure> {
    Ok(end.ia.lmr_create_unlinked(end.pz, elements, LmrFlags::NONE, 0)?)
}

/// Reads the linked region of `b` from `a` and compares it.
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

/// Links a good region, lets `spoil` change what is linked, and checks that the completion fails and breaks the connection.
fn fails(f: &Fixture, spoil: impl Fn(&mut Link<'_>, &Scattered)) -> Outcome {
    let pair = f.pair()?;
    let memory = scattered(f, &f.a, 2, PAGE, 2 * PAGE)?;
    let lmr = unlinked(&pair.a, 2)?;
    let mut link = Link::pages(lmr, &memory.pieces);
    spoil(&mut link, &memory);
    fails_on(&pair, &link)
}

pub(crate) fn fails_on(pair: &Pair, link: &Link<'_>) -> Outcome {
    link.post(&pair.a, 44)?;
    let done = pair.a.reap()?;
    check_eq!((done.cookie, done.dto_status), (44, DtoStatus::LocalMmOperation));
    check_eq!((done.event_number, done.ep), (EventType::LMR_LINK_CMPL, pair.a.ep));
    pair.a.broken()
}

/// The flags that a link or unlink may never have.
fn illegal_flags(unlink: bool) -> impl Iterator<Item = DtoFlags> {
    (0..0x80).map(DtoFlags::from_bits_retain).filter(move |flags| {
        let mut never = DtoFlags::SOLICITED_WAIT | DtoFlags::UNLINK_LOCAL_SINK;
        if !unlink {
            never |= DtoFlags::UNLINK_FENCE;
        }
        flags.intersects(never) || flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION)
    })
}

pub(crate) const TESTS: &[Test] = &[
    test(
        "link::a_new_region_is_unlinked",
        &[
            "it_lmr_create_unlinked.S01",
            "it_lmr_create_unlinked.B01",
            "it_lmr_create_unlinked.L01",
            "it_lmr_create_unlinked.F01",
            "it_lmr_create_unlinked.F02",
            "it_lmr_create_unlinked.S02",
            "it_lmr_query.F13",
            "it_lmr_query.F14",
            "it_ia_info_t.F70",
            "1.B03",
            "it_dto_status_t.A02",
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
    test(
        "link::create_unlinked_refusals",
        &[
            "it_lmr_create_unlinked.V02",
            "it_lmr_create_unlinked.IT_ERR_INVALID_FLAGS",
            "it_lmr_create_unlinked.IT_ERR_INVALID_PZ",
            "it_lmr_create_unlinked.IT_ERR_RESOURCE_IOBL_LENGTH",
            "it_lmr_create_unlinked.V01",
        ],
        |f| {
            let pz = f.a.pz_create()?;
            // Nothing to share yet; it may become shared once it is linked.
            for bits in [LmrFlags::SHARED.bits(), 0x10, 0x8000_0000, u32::MAX] {
                let flags = LmrFlags::from_bits_retain(bits);
                refused(f.a.lmr_create_unlinked(pz, 1, flags, 0), Error::InvalidFlags)?;
            }
            let limit = f.setup.a.agent.identity().max_list_elements as usize;
            for elements in [limit + 1, usize::MAX] {
                let created = f.a.lmr_create_unlinked(pz, elements, LmrFlags::NONE, 0);
                refused(created, Error::ResourceIoblLength)?;
            }
            check!(Error::ResourceIoblLength as u32 > 106, "after the header's last value");
            let foreign = f.b.pz_create()?;
            f.a.pz_free(pz)?;
            for pz in [pz, foreign, PzHandle::NULL] {
                refused(f.a.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0), Error::InvalidPz)?;
            }
            check_eq!(f.a.object_counts().lmr, 0);
            Ok(())
        },
    ),
    test(
        "link::create_unlinked_needs_privilege",
        &["it_lmr_create_unlinked.IT_ERR_NO_PERMISSION", "4.10.B01"],
        |f| {
            let ia = f.unprivileged()?;
            let pz = ia.pz_create()?;
            refused(ia.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0), Error::NoPermission)?;
            check_eq!(ia.object_counts().lmr, 0);
            Ok(())
        },
    ),
    test(
        "link::pages",
        &[
            "A.it_lmr_create_unlinked.B01",
            "it_lmr_link.B02",
            "it_lmr_link.B03",
            "it_lmr_link.B10",
            "it_lmr_link.B12",
            "it_lmr_link.B13",
            "it_lmr_link.B14",
            "it_lmr_link.B16",
            "it_lmr_link.F01",
            "it_lmr_query.F15",
            "it_lmr_create_unlinked.B02",
            "it_event_t.F13",
            "it_dto_events.F09",
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
            // Sending from it works the same way: the second page, by its address.
            let sink = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            f.a.post_recv(pair.a.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
            let second = LmrTriplet::new(lmr, (BASE + PAGE) as u64, PAGE_LEN);
            f.b.post_send(pair.b.ep, &[second], 2, SIGNALLED)?;
            pair.a.recv_done(1, DtoStatus::Success)?;
            check!(sink.all() == content[PAGE..2 * PAGE]);
            Ok(())
        },
    ),
    test("link::first_byte_offsets", &["it_lmr_link.B04", "it_lmr_link.L02", "it_iobl_t.F11"], |f| {
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
    test("link::relative_addressing", &["it_lmr_link.F02", "it_lmr_link.B06", "it_lmr_triplet_t.F03"], |f| {
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
    test("link::blocks", &["it_iobl_t.F02", "it_lmr_query.F15"], |f| {
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
    test("link::variable_pages", &["it_iobl_t.F03", "it_lmr_query.F15"], |f| {
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
    test(
        "link::a_context_only_with_remote_privileges",
        &["it_lmr_link.V02", "it_lmr_link.B12", "it_lmr_link.B13"],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            for privs in [
                MemPriv::LOCAL_READ,
                MemPriv::LOCAL,
                MemPriv::LOCAL_READ | MemPriv::REMOTE_READ,
                MemPriv::LOCAL | MemPriv::REMOTE_WRITE,
                OPEN,
            ] {
                let link = Link { privs, ..Link::pages(lmr, &memory.pieces) };
                let context = link.post(&pair.a, 1)?;
                check_eq!(context.is_some(), privs.intersects(MemPriv::REMOTE), "with {privs:?}");
                pair.a.done(1, DtoStatus::Success)?;
                let param = f.a.lmr_query(lmr, LmrParamMask::RMR_CONTEXT | LmrParamMask::MEM_PRIV)?;
                check_eq!((param.rmr_context, param.privs), (context, privs));
                f.a.lmr_unlink(lmr, pair.a.ep, 2, SIGNALLED)?;
                pair.a.done(2, DtoStatus::Success)?;
            }
            Ok(())
        },
    ),
    test("link::privileges_of_the_link_hold", &["it_lmr_link.F01", "it_dto_status_t.A25"], |f| {
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
    test("link::fences_what_follows", &["it_lmr_link.B11", "it_lmr_link.B21", "it_lmr_link.F03"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(7, 2 * PAGE));
        let sink = f.region(&f.b, pair.b.pz, 2 * PAGE, OPEN)?;
        let content = memory.content(PAGE, 0, 2 * PAGE);
        let lmr = unlinked(&pair.a, 2)?;
        // Nothing is awaited between the link, what uses it, and the unlink.
        for round in 0..20 {
            sink.buffer.slice().fill(0);
            let quiet = Link { flags: DtoFlags::empty(), ..Link::pages(lmr, &memory.pieces) };
            quiet.post(&pair.a, 1)?;
            let whole = LmrTriplet::new(lmr, BASE as u64, 2 * PAGE_LEN);
            let (addr, context) = (sink.remote(0), sink.context()?);
            f.a.post_rdma_write(pair.a.ep, &[whole], 2, SIGNALLED, addr, context)?;
            pair.a.done(2, DtoStatus::Success)?;
            check!(linked(&f.a, lmr)?, "the write's completion implies the link's");
            check!(sink.all() == content, "round {round}");
            f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED | DtoFlags::UNLINK_FENCE)?;
            pair.a.done(3, DtoStatus::Success)?;
        }
        pair.a.idle()
    }),
    test(
        "link::unlink",
        &[
            "it_lmr_unlink.B01",
            "it_lmr_unlink.B04",
            "it_lmr_unlink.B05",
            "it_lmr_unlink.B06",
            "it_lmr_unlink.S02",
            "it_lmr_unlink.B07",
            "it_event_t.F13",
            "it_dto_status_t.A21",
        ],
        |f| {
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
        },
    ),
    test(
        "link::an_unlinked_region_is_no_local_segment",
        &["it_dto_status_t.A02", "it_lmr_unlink.S02"],
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
    test(
        "link::again_after_unlink",
        &["it_lmr_link.B19", "it_lmr_create_unlinked.S03", "it_lmr_link.S03"],
        |f| {
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
                check!(contexts.last() != Some(&context), "the same context twice running");
                contexts.push(context);
                f.b.lmr_unlink(lmr, pair.b.ep, round, SIGNALLED)?;
                pair.b.done(round, DtoStatus::Success)?;
            }
            Ok(())
        },
    ),
    test(
        "link::an_old_context_does_not_reach_a_new_link",
        &["it_lmr_unlink.B06", "A.it_rmr_link.V01"],
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
    test("link::freeing_a_linked_region_ends_access", &["it_lmr_link.S03", "it_lmr_free.S01"], |f| {
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
    test(
        "link::a_linked_region_cannot_be_linked",
        &["it_lmr_link.A07", "it_lmr_link.S02", "it_dto_status_t.A33", "it_dto_status_t.F15"],
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
            // The first link stands.
            check!(linked(&f.a, lmr)?);
            let param = f.a.lmr_query(lmr, LmrParamMask::RMR_CONTEXT)?;
            check_eq!(param.rmr_context, Some(context));
            Ok(())
        },
    ),
    test("link::the_direct_handle_cannot_be_linked", &["it_lmr_link.A08", "it_dto_status_t.A34"], |f| {
        fails(f, |link, _| link.lmr = LmrHandle::DIRECT)
    }),
    test("link::too_many_elements", &["it_lmr_link.A09", "it_dto_status_t.A35"], |f| {
        let pair = f.pair()?;
        let lmr = unlinked(&pair.a, 1)?;
        let capacity = f.a.lmr_query(lmr, LmrParamMask::IOBL_NUM_ELTS)?.iobl_num_elts;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let pages = vec![memory.pieces[0]; capacity + 1];
        fails_on(&pair, &Link::pages(lmr, &pages))
    }),
    test(
        "link::elements_of_unsupported_length",
        &["it_lmr_link.A10", "it_lmr_link.A12", "it_dto_status_t.A36", "it_dto_status_t.A38"],
        |f| {
            for elt_len in [0, 1, 2048, 4097, 3 * PAGE_LEN] {
                fails(f, |link, memory| {
                    // The list lives as long as the memory does.
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
        },
    ),
    test("link::first_byte_offset_outside", &["it_lmr_link.A11", "it_dto_status_t.A36"], |f| {
        for fbo in [PAGE_LEN, PAGE_LEN + 1, u64::MAX] {
            fails(f, |link, _| {
                link.iobl.fbo = fbo;
                (link.mode, link.length) = (AddrMode::Relative, 1);
            })?;
        }
        Ok(())
    }),
    test("link::misaligned_pages", &["it_lmr_link.A12", "it_dto_status_t.A38"], |f| {
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
    test(
        "link::an_address_that_disagrees_with_the_offset",
        &["it_lmr_link.A13", "it_lmr_link.B05", "it_dto_status_t.A39"],
        |f| {
            for (addr, fbo) in [(BASE + 1, 0), (BASE, 1), (BASE + 5, 4)] {
                fails(f, |link, _| {
                    (link.addr, link.iobl.fbo, link.length) = (addr, fbo, 64);
                })?;
            }
            Ok(())
        },
    ),
    test("link::lengths", &["it_lmr_link.L01", "it_dto_status_t.A37", "it_lmr_link.V01"], |f| {
        for length in [0, 2 * PAGE_LEN + 1, u64::MAX] {
            fails(f, |link, _| link.length = length)?;
        }
        fails(f, |link, _| {
            (link.addr, link.iobl.fbo, link.length) = (BASE + 100, 100, 2 * PAGE_LEN - 99);
        })
    }),
    test("link::another_zone", &["it_lmr_link.A05", "it_lmr_link.B07", "it_dto_status_t.A32"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let other = f.a.pz_create()?;
        let lmr = f.a.lmr_create_unlinked(other, 1, LmrFlags::NONE, 0)?;
        fails_on(&pair, &Link::pages(lmr, &memory.pieces))?;
        check!(!linked(&f.a, lmr)?);
        Ok(())
    }),
    test(
        "link::forbidden_privileges",
        &["it_lmr_link.A06", "it_lmr_link.B08", "it_lmr_link.B09", "it_dto_status_t.A32"],
        |f| {
            for privs in [MemPriv::empty(), MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE, MemPriv::REMOTE] {
                fails(f, |link, _| link.privs = privs)?;
            }
            Ok(())
        },
    ),
    test("link::undefined_privileges", &["it_lmr_link.IT_ERR_INVALID_PRIVS", "it_lmr_link.S05"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        let lmr = unlinked(&pair.a, 1)?;
        for bits in [0x20, 0x8000_0003, u32::MAX] {
            let link = Link { privs: MemPriv::from_bits_retain(bits), ..Link::pages(lmr, &memory.pieces) };
            refused(link.post(&pair.a, 1), Error::InvalidPrivs)?;
        }
        check!(!linked(&f.a, lmr)?);
        pair.a.idle()?;
        Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?;
        pair.a.done(2, DtoStatus::Success)
    }),
    test(
        "link::on_an_unprivileged_endpoint",
        &[
            "it_lmr_link.V05",
            "it_lmr_link.A14",
            "it_lmr_link.B01",
            "it_lmr_link.S01",
            "it_dto_status_t.A40",
            "4.10.B02",
            "4.10.B05",
        ],
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
    test(
        "link::a_failing_link_always_tells",
        &["it_lmr_link.B17", "it_lmr_link.B20", "it_lmr_link.A01", "it_lmr_link.A02", "it_lmr_link.S04"],
        |f| {
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
            // The peer never saw the Send.
            pair.b.recv_done(7, DtoStatus::Flushed)
        },
    ),
    test(
        "link::in_every_state",
        &[
            "it_lmr_unlink.S01",
            "it_lmr_link.S06",
            "it_lmr_link.A03",
            "it_lmr_link.IT_ERR_INVALID_EP_STATE",
            "it_lmr_unlink.S05",
            "it_lmr_unlink.A03",
            "it_lmr_unlink.IT_ERR_INVALID_EP_STATE",
            "it_ep_state_t.V04",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&end, 1)?;
            let link = Link::pages(lmr, &memory.pieces);
            refused(link.post(&end, 1), Error::InvalidEpState)?;
            refused(f.a.lmr_unlink(lmr, end.ep, 1, SIGNALLED), Error::InvalidEpState)?;
            let listener = f.listen(&f.b)?;
            f.dial(&end, &listener, CnEstFlags::TWO_WAY, &[])?;
            refused(link.post(&end, 1), Error::InvalidEpState)?;
            refused(f.a.lmr_unlink(lmr, end.ep, 1, SIGNALLED), Error::InvalidEpState)?;
            f.a.ep_disconnect(end.ep, &[])?;
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            link.post(&end, 2)?;
            f.a.lmr_unlink(lmr, end.ep, 3, SIGNALLED)?;
            end.done(2, DtoStatus::Flushed)?;
            end.done(3, DtoStatus::Flushed)?;
            check!(!linked(&f.a, lmr)?);
            Ok(())
        },
    ),
    test(
        "link::legal_flags",
        &[
            "it_lmr_link.F03",
            "it_lmr_unlink.F01",
            "it_dto_flags_t.B23",
            "it_dto_flags_t.B24",
            "it_dto_flags_t.B29",
            "it_ia_info_t.F76",
        ],
        |f| {
            check!(f.a.ia_query()?.unlink_fence_support);
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            let illegal_links: alloc::vec::Vec<_> = illegal_flags(false).collect();
            let illegal_unlinks: alloc::vec::Vec<_> = illegal_flags(true).collect();
            for flags in (0..0x80).map(DtoFlags::from_bits_retain) {
                let link = |flags| Link { flags, ..Link::pages(lmr, &memory.pieces) }.post(&pair.a, 1);
                if illegal_links.contains(&flags) {
                    refused(link(flags), Error::InvalidDtoFlags)?;
                    check!(!linked(&f.a, lmr)?);
                    link(DtoFlags::empty())?;
                } else {
                    link(flags)?;
                    if flags.contains(DtoFlags::COMPLETION) {
                        if flags.contains(DtoFlags::COALESCE) {
                            f.a.post_rdma_write(
                                pair.a.ep,
                                &[],
                                0,
                                DtoFlags::empty(),
                                RdmaAddr(0),
                                RmrContext(0),
                            )?;
                        }
                        pair.a.done(1, DtoStatus::Success)?;
                    }
                }
                if illegal_unlinks.contains(&flags) {
                    refused(f.a.lmr_unlink(lmr, pair.a.ep, 2, flags), Error::InvalidDtoFlags)?;
                } else {
                    f.a.lmr_unlink(lmr, pair.a.ep, 2, flags)?;
                    if flags.contains(DtoFlags::COMPLETION) {
                        if flags.contains(DtoFlags::COALESCE) {
                            f.a.post_rdma_write(
                                pair.a.ep,
                                &[],
                                0,
                                DtoFlags::empty(),
                                RdmaAddr(0),
                                RmrContext(0),
                            )?;
                        }
                        pair.a.done(2, DtoStatus::Success)?;
                    }
                }
                // A marker: all of it is done, and if the unlink was refused, here it is.
                if illegal_unlinks.contains(&flags) {
                    f.a.lmr_unlink(lmr, pair.a.ep, 3, SIGNALLED)?;
                } else {
                    f.a.post_rdma_write(pair.a.ep, &[], 3, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
                }
                pair.a.done(3, DtoStatus::Success)?;
                check!(!linked(&f.a, lmr)?, "after {flags:?}");
            }
            pair.a.idle()
        },
    ),
    test(
        "link::undefined_flags",
        &[
            "it_lmr_link.IT_ERR_INVALID_DTO_FLAGS",
            "it_lmr_unlink.IT_ERR_INVALID_DTO_FLAGS",
            "it_lmr_unlink.S04",
            "it_status_t.F32",
        ],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            for bits in [0x80, 0x101, 0x8000_0003] {
                let flags = DtoFlags::from_bits_retain(bits);
                let link = Link { flags, ..Link::pages(lmr, &memory.pieces) };
                refused(link.post(&pair.a, 1), Error::InvalidDtoFlags)?;
            }
            Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?;
            pair.a.done(2, DtoStatus::Success)?;
            for bits in [0x80, 0x101, 0x8000_0003] {
                let flags = DtoFlags::from_bits_retain(bits);
                refused(f.a.lmr_unlink(lmr, pair.a.ep, 3, flags), Error::InvalidDtoFlags)?;
            }
            check!(linked(&f.a, lmr)?);
            check_eq!(Error::InvalidDtoFlags as u32, 31);
            Ok(())
        },
    ),
    test(
        "link::bad_handles",
        &[
            "it_dto_status_t.A31",
            "it_dto_status_t.A41",
            "it_lmr_link.A04",
            "it_lmr_unlink.A04",
            "it_lmr_link.IT_ERR_INVALID_LMR",
            "it_lmr_link.IT_ERR_INVALID_EP",
            "it_lmr_unlink.IT_ERR_INVALID_LMR",
            "it_lmr_unlink.IT_ERR_INVALID_EP",
            "it_status_t.F47",
        ],
        |f| {
            let pair = f.pair()?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let good = unlinked(&pair.a, 1)?;
            let freed = unlinked(&pair.a, 1)?;
            f.a.lmr_free(freed)?;
            for lmr in [LmrHandle::NULL, freed, unlinked(&pair.b, 1)?, LmrHandle::from_raw(u64::MAX)] {
                refused(Link::pages(lmr, &memory.pieces).post(&pair.a, 1), Error::InvalidLmr)?;
                refused(f.a.lmr_unlink(lmr, pair.a.ep, 1, SIGNALLED), Error::InvalidLmr)?;
            }
            for ep in [EpHandle::NULL, pair.b.ep, EpHandle::from_raw(77)] {
                let end = End { ep, ..pair.a.clone() };
                refused(Link::pages(good, &memory.pieces).post(&end, 1), Error::InvalidEp)?;
                refused(f.a.lmr_unlink(good, ep, 1, SIGNALLED), Error::InvalidEp)?;
            }
            pair.a.idle()?;
            check_eq!(pair.a.state()?, EpStateRc::Connected);
            check_eq!(Error::InvalidLmr as u32, 46);
            Ok(())
        },
    ),
    test(
        "link::a_full_queue",
        &["it_lmr_link.IT_ERR_TOO_MANY_POSTS", "it_lmr_unlink.IT_ERR_TOO_MANY_POSTS"],
        |f| {
            let small = EpAttributes { max_request_dtos: 8, ..attributes() };
            let pair = f.pair_of(&small, &attributes())?;
            let room = f.a.ep_query(pair.a.ep, EpParamMask::MAX_REQ_DTO)?.attr.max_request_dtos;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let lmr = unlinked(&pair.a, 1)?;
            for cookie in 0..room as u64 {
                f.a.post_rdma_write(pair.a.ep, &[], cookie, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            }
            refused(Link::pages(lmr, &memory.pieces).post(&pair.a, 99), Error::TooManyPosts)?;
            refused(f.a.lmr_unlink(lmr, pair.a.ep, 99, SIGNALLED), Error::TooManyPosts)?;
            check!(!linked(&f.a, lmr)?);
            for cookie in 0..room as u64 {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            Link::pages(lmr, &memory.pieces).post(&pair.a, 100)?;
            pair.a.done(100, DtoStatus::Success)
        },
    ),
    test(
        "link::unlinking_what_is_not_linked",
        &["it_dto_status_t.A42", "it_lmr_unlink.V02", "it_lmr_unlink.A01", "it_lmr_unlink.A02"],
        |f| {
            let pair = f.pair()?;
            let lmr = unlinked(&pair.a, 1)?;
            f.a.lmr_unlink(lmr, pair.a.ep, 1, DtoFlags::empty())?;
            f.a.post_send(pair.a.ep, &[], 2, DtoFlags::empty())?;
            let done = pair.a.reap()?;
            check_eq!((done.cookie, done.dto_status), (1, DtoStatus::LocalMmOperation));
            check_eq!(done.event_number, EventType::LMR_LINK_CMPL);
            pair.a.done(2, DtoStatus::Flushed)?;
            pair.a.broken()
        },
    ),
    test("link::unlinking_the_direct_handle", &["it_lmr_unlink.A06", "it_dto_status_t.A43"], |f| {
        let pair = f.pair()?;
        f.a.lmr_unlink(LmrHandle::DIRECT, pair.a.ep, 1, SIGNALLED)?;
        pair.a.done(1, DtoStatus::LocalMmOperation)?;
        pair.a.broken()
    }),
    test(
        "link::unlinking_in_another_zone",
        &["it_lmr_unlink.A05", "it_lmr_unlink.B03", "it_lmr_unlink.S03", "it_dto_status_t.A44"],
        |f| {
            let (pair, other) = (f.pair()?, f.pair()?);
            let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
            write(&memory.buffer, 0, &pattern(3, PAGE));
            let lmr = unlinked(&pair.b, 1)?;
            let context = some(Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?, "a context")?;
            pair.b.done(1, DtoStatus::Success)?;
            f.b.lmr_unlink(lmr, other.b.ep, 2, SIGNALLED)?;
            other.b.done(2, DtoStatus::LocalMmOperation)?;
            other.b.broken()?;
            // The link and its context are as they were.
            let param = f.b.lmr_query(lmr, LmrParamMask::LINKED | LmrParamMask::RMR_CONTEXT)?;
            check_eq!((param.linked, param.rmr_context), (true, Some(context)));
            peer_reads(f, &pair, make_rdma_addr_absolute(BASE), context, &pattern(3, PAGE))
        },
    ),
    test("link::unlinking_needs_no_privilege", &["it_lmr_unlink.B02"], |f| {
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
    test("link::the_unlink_fence", &["it_dto_flags_t.F12", "it_dto_flags_t.F05", "it_lmr_unlink.F01"], |f| {
        let pair = f.pair()?;
        let memory = scattered(f, &f.a, 16, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(4, 16 * PAGE));
        let sink = f.region(&f.b, pair.b.pz, 16 * PAGE, OPEN)?;
        let lmr = unlinked(&pair.a, 16)?;
        let whole = LmrTriplet::new(lmr, BASE as u64, 16 * PAGE_LEN);
        for _ in 0..20 {
            Link::pages(lmr, &memory.pieces).post(&pair.a, 0)?;
            // Reads and writes that use the region, then the unlink behind them.
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
