//! The limits of regions, and operations on regions that are in use (pages it_lmr_create,
//! it_lmr_create_unlinked, it_lmr_query, it_lmr_modify, it_lmr_free).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::fixture::{CONFIG, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, pattern};
use crate::memory::iobl::scattered;
use crate::remote::link::{Link, unlinked};
use crate::remote::rmr::Link as RmrLink;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

static CONSTANTS: [u8; 300] = [0xa5; 300];

/// A pair whose active end has posted a Send for which the peer has no Receive. Requests posted
/// behind it have to wait.
fn stalled(f: &Fixture) -> Result<Pair, Failure> {
    Need::Waiting.of(&f.a)?;
    let pair = f.pair()?;
    f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
    Ok(pair)
}

/// Posts the Receive, so that the Send completes and the requests behind it start.
fn resume(f: &Fixture, pair: &Pair) -> Outcome {
    f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
    pair.b.recv_done(1, DtoStatus::Success)?;
    pair.a.done(1, DtoStatus::Success)
}

pub(crate) const TESTS: &[Test] = &[
    // A region of length zero is legal, one beyond the adapter's or the memory's length is refused.
    test("lmr_life::lengths", &["it_lmr_create V06 IT_ERR_RESOURCE_LMR_LENGTH", "it_status_t F92"], |f| {
        let pair = f.pair()?;
        let buffer = f.buffer(PAGE)?;
        let pages = [IoAddr(buffer.bus())];
        let list = Iobl::pages(&pages, PAGE as u64, 0);
        let limit = f.setup.b.agent.identity().max_region;
        let before = f.b.object_counts();
        for memory in [
            LmrMemory::buffer(&buffer),
            LmrMemory::Iobl { addr: 0, iobl: &list },
            LmrMemory::Static(&CONSTANTS),
        ] {
            let create = |length| {
                let (mode, privs) = (AddrMode::Absolute, MemPriv::LOCAL_READ);
                f.b.lmr_create(pair.b.pz, memory, length, mode, privs, LmrFlags::NONE, 0)
            };
            for length in [limit + 1, u64::MAX - 1, u64::MAX] {
                refused(create(length), Error::ResourceLmrLength)?;
            }
            // The length is within the adapter's limit, but the memory is shorter.
            let shorter = match memory {
                LmrMemory::Iobl { .. } => Error::InvalidLength,
                _ => Error::Fault,
            };
            refused(create(limit), shorter)?;
        }
        check_eq!(f.b.object_counts(), before);
        check_eq!(Error::ResourceLmrLength as u32, 91);
        // A region of length zero is legal and has no bytes.
        let (mode, memory) = (AddrMode::Absolute, LmrMemory::buffer(&buffer));
        let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, 0, mode, OPEN, LmrFlags::NONE, 0)?;
        let param = f.b.lmr_query(lmr, LmrParamMask::ALL)?;
        check_eq!((param.linked, param.length, param.actual_length), (true, 0, 0));
        let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        let region = Region { buffer, lmr, context };
        let (from, context) = (region.remote(0), region.context()?);
        f.a.post_rdma_read(pair.a.ep, &[own.segment(0, 1)], 1, SIGNALLED, from, context)?;
        pair.a.done(1, DtoStatus::RemoteAccess)
    }),
    // Memory that the consumer may not write to cannot become writable for the device.
    test(
        "lmr_life::constants",
        &["it_lmr_create B18 IT_ERR_ACCESS", "it_lmr_modify IT_ERR_ACCESS", "it_status_t F03"],
        |f| {
            let pair = f.pair()?;
            let memory = LmrMemory::Static(&CONSTANTS);
            let create = |privs, length| {
                f.b.lmr_create(pair.b.pz, memory, length, AddrMode::Absolute, privs, LmrFlags::NONE, 0)
            };
            for privs in [MemPriv::LOCAL, MemPriv::LOCAL | MemPriv::REMOTE_WRITE, OPEN, MemPriv::ALL] {
                refused(create(privs, 300), Error::Access)?;
            }
            refused(create(MemPriv::LOCAL_READ, 301), Error::Fault)?;
            check_eq!((f.b.object_counts().lmr, Error::Access as u32), (0, 2));
            let readable = MemPriv::LOCAL_READ | MemPriv::REMOTE_READ;
            // A region cannot be made writable by a modification either. The refused call frees the
            // region. A device need not reach memory of which the region has nothing.
            let writable = |lmr| {
                let params = LmrParam { privs: MemPriv::LOCAL, ..LmrParam::default() };
                refused(f.b.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &params), Error::Access)?;
                refused(f.b.lmr_free(lmr), Error::InvalidLmr)
            };
            writable(create(readable, 0)?.0)?;
            let (nothing, mode) = (LmrMemory::Static(&[]), AddrMode::Absolute);
            let of_nothing =
                |length| f.b.lmr_create(pair.b.pz, nothing, length, mode, readable, LmrFlags::NONE, 0);
            writable(of_nothing(0)?.0)?;
            refused(of_nothing(1), Error::Fault)?;
            // The machine may keep constants in memory that no device can reach.
            if f.platform().translate(CONSTANTS.as_ptr().addr()).is_none() {
                return refused(create(readable, 300), Error::Fault);
            }
            let (lmr, context) = create(readable, 300)?;
            let own = f.region(&f.a, pair.a.pz, 300, OPEN)?;
            let from = make_rdma_addr_absolute(CONSTANTS.as_ptr().addr());
            let context = crate::check::some(context, "a context")?;
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, from, context)?;
            pair.a.done(1, DtoStatus::Success)?;
            check!(own.all() == CONSTANTS);
            writable(lmr)
        },
    ),
    // Creating linkable regions fails with IT_ERR_RESOURCES at some point, and works again after
    // one is freed.
    test("lmr_life::unlinked_regions_run_out", &["it_lmr_create_unlinked IT_ERR_RESOURCES"], |f| {
        let pz = f.a.pz_create()?;
        let create = || f.a.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0);
        let mut regions = Vec::new();
        let refusal = loop {
            match create() {
                Ok(lmr) => regions.push(lmr),
                Err(error) => break error,
            }
            check!(regions.len() <= CONFIG.max_keys as usize, "{} regions", regions.len());
        };
        check_eq!((refusal, f.a.object_counts().lmr), (Error::Resources, regions.len()));
        f.a.lmr_free(regions[0])?;
        create()?;
        refused(create(), Error::Resources)
    }),
    // A query of a region that is not linked returns defined values, and a region that was created
    // for local use can get a context later.
    test("lmr_life::queries", &["it_lmr_query O01 V01", "A.it_lmr_create B03"], |f| {
        let pair = f.pair()?;
        let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
        // A query may ask for the list of a region that was created with its memory, but the
        // answer is undefined.
        f.b.lmr_query(region.lmr, LmrParamMask::IOBL_NUM_ELTS | LmrParamMask::IOBL_TYPE)?;
        // A region that is not linked has only the parameters of its creation.
        let lmr = f.b.lmr_create_unlinked(pair.b.pz, 3, LmrFlags::NON_SHAREABLE, 7)?;
        let param = f.b.lmr_query(lmr, LmrParamMask::ALL)?;
        let nothing = LmrParam {
            ia: f.b.handle(),
            pz: pair.b.pz,
            flags: LmrFlags::NON_SHAREABLE,
            shared_id: 7,
            iobl_num_elts: param.iobl_num_elts,
            ..LmrParam::default()
        };
        check_eq!(param, nothing);
        let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
        Link::pages(lmr, &memory.pieces).post(&pair.b, 1)?;
        f.b.lmr_unlink(lmr, pair.b.ep, 2, SIGNALLED)?;
        pair.b.done(1, DtoStatus::Success)?;
        pair.b.done(2, DtoStatus::Success)?;
        check_eq!(f.b.lmr_query(lmr, LmrParamMask::ALL)?, nothing);
        // A region for local use can be opened to peers later.
        let open = LmrParam { privs: OPEN, ..LmrParam::default() };
        f.b.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &open)?;
        let context = f.b.lmr_query(region.lmr, LmrParamMask::RMR_CONTEXT)?.rmr_context;
        let region = Region { context, ..region };
        let own = f.region(&f.a, pair.a.pz, 8, OPEN)?;
        f.a.post_rdma_write(pair.a.ep, &[own.whole()], 3, SIGNALLED, region.remote(0), region.context()?)?;
        pair.a.done(3, DtoStatus::Success)
    }),
    // A region to which an RMR is linked cannot be freed, and region and RMR still work after the
    // refusal.
    test("lmr_life::busy_with_a_window", &["it_lmr_free S02"], |f| {
        let pair = f.pair()?;
        let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        region.fill(4);
        let rmr = f.b.rmr_create(pair.b.pz, RmrType::Narrow)?;
        let window = RmrLink::of(rmr, &region).made(&pair.b)?;
        let all = |lmr| f.b.lmr_query(lmr, LmrParamMask::ALL);
        let before = (all(region.lmr)?, f.b.rmr_query(rmr, RmrParamMask::ALL)?);
        for _ in 0..3 {
            refused(f.b.lmr_free(region.lmr), Error::LmrBusy)?;
        }
        check_eq!((all(region.lmr)?, f.b.rmr_query(rmr, RmrParamMask::ALL)?), before);
        let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        for context in [window, region.context()?] {
            own.buffer.slice().fill(0);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, region.remote(0), context)?;
            pair.a.done(1, DtoStatus::Success)?;
            check!(own.all() == pattern(4, PAGE));
        }
        f.a.post_recv(pair.a.ep, &[own.whole()], 2, DtoFlags::COMPLETION)?;
        f.b.post_send(pair.b.ep, &[region.whole()], 3, SIGNALLED)?;
        pair.a.recv_done(2, DtoStatus::Success)?;
        pair.b.done(3, DtoStatus::Success)?;
        f.b.rmr_free(rmr)?;
        f.b.lmr_free(region.lmr)?;
        Ok(())
    }),
    // Requests that use a freed region complete with success or with an error, and the device does
    // not touch the memory any more.
    test("lmr_life::freed_with_requests_outstanding", &["it_lmr_free B04"], |f| {
        // A Receive is outstanding.
        let pair = f.pair()?;
        let region = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        f.b.post_recv(pair.b.ep, &[region.whole()], 1, DtoFlags::COMPLETION)?;
        f.b.lmr_free(region.lmr)?;
        let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        own.fill(1);
        f.a.post_send(pair.a.ep, &[own.whole()], 2, SIGNALLED)?;
        check_eq!(pair.b.reap_recv()?.cookie, 1);
        pair.a.reap()?;
        // The device does not write to the memory after the free has returned.
        region.untouched()?;
        // A Send, a link and an unlink, each of which is executed after the free.
        for what in 0..3 {
            let pair = stalled(f)?;
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let other = f.pair()?;
            let lmr = match what {
                0 => f.region(&f.a, pair.a.pz, 64, OPEN)?.lmr,
                _ => unlinked(&pair.a, 1)?,
            };
            match what {
                0 => f.a.post_send(pair.a.ep, &[LmrTriplet::new(lmr, 0, 0)], 2, SIGNALLED)?,
                1 => drop(Link::pages(lmr, &memory.pieces).post(&pair.a, 2)?),
                _ => f.a.lmr_unlink(lmr, pair.a.ep, 2, SIGNALLED)?,
            }
            f.a.lmr_free(lmr)?;
            resume(f, &pair)?;
            if what == 0 {
                f.b.post_recv(pair.b.ep, &[], 3, DtoFlags::COMPLETION)?;
            }
            check_eq!(pair.a.reap()?.cookie, 2);
            // Other connections still work.
            f.a.post_rdma_write(other.a.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            other.a.done(4, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // A request that uses a modified region is judged when it is executed (it_dto_status_t): by the
    // new privileges. If it fails, it has written nothing.
    test("lmr_life::modified_with_requests_outstanding", &["it_lmr_modify V01"], |f| {
        for privs in [MemPriv::LOCAL_READ, OPEN] {
            let pair = stalled(f)?;
            let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            let peer = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            peer.fill(2);
            let (from, context) = (peer.remote(0), peer.context()?);
            f.a.post_rdma_read(pair.a.ep, &[region.whole()], 2, SIGNALLED, from, context)?;
            let params = LmrParam { privs, ..LmrParam::default() };
            f.a.lmr_modify(region.lmr, LmrParamMask::MEM_PRIV, &params)?;
            resume(f, &pair)?;
            if privs == OPEN {
                pair.a.done(2, DtoStatus::Success)?;
                check!(region.all() == peer.all());
            } else {
                pair.a.done(2, DtoStatus::LocalProtection)?;
                region.untouched()?;
            }
            check_eq!(f.a.lmr_query(region.lmr, LmrParamMask::MEM_PRIV)?.privs, privs);
            f.a.lmr_free(region.lmr)?;
        }
        Ok(())
    }),
    // A list of addresses without memory behind them is refused, which the page of it_lmr_create
    // leaves to the implementation.
    test("lmr_life::memory_that_is_not_backed", &["it_lmr_create O04"], |f| {
        let pair = f.pair()?;
        let limit = f.setup.b.agent.identity().dma_limit;
        let before = f.b.object_counts().lmr;
        for base in [limit, limit - PAGE as u64, 1 << 46, u64::MAX - 0xfff] {
            let pages = [IoAddr(base & !0xfff), IoAddr((base & !0xfff).wrapping_add(PAGE as u64))];
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            let memory = LmrMemory::Iobl { addr: 0, iobl: &list };
            let (size, mode) = (2 * PAGE as u64, AddrMode::Relative);
            let created = f.b.lmr_create(pair.b.pz, memory, size, mode, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::Fault)?;
        }
        check_eq!(f.b.object_counts().lmr, before);
        // Other requests still work.
        f.a.post_rdma_write(pair.a.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
        pair.a.done(4, DtoStatus::Success)
    }),
    // If a consumer unmaps memory that its region still uses, other consumers must not be harmed.
    test("lmr_life::a_mapping_that_is_taken_away", &["it_lmr_create B30"], |f| {
        // One consumer unmaps the memory of its own region, which is its mistake. Another
        // consumer's connection must not suffer from it.
        let (pair, other) = (f.pair()?, f.pair()?);
        let source = f.region(&f.a, other.a.pz, PAGE, OPEN)?;
        let sink = f.region(&f.b, other.b.pz, PAGE, OPEN)?;
        let buffer = f.buffer(PAGE)?;
        let (io_addr, mapped) = f.b.mem_map(buffer.addr(), ASPACE_KERNEL, PAGE)?;
        check_eq!(mapped, PAGE);
        let pages = [io_addr];
        let list = Iobl::pages(&pages, PAGE as u64, 0);
        let memory = LmrMemory::Iobl { addr: 0, iobl: &list };
        let mode = AddrMode::Relative;
        let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, PAGE as u64, mode, OPEN, LmrFlags::NONE, 0)?;
        f.b.mem_unmap(io_addr, mapped)?;
        let context = crate::check::some(context, "a context")?;
        for seed in 0..10 {
            source.fill(seed);
            let from = make_rdma_addr_relative(0);
            f.a.post_rdma_read(pair.a.ep, &[], 1, SIGNALLED, from, context)?;
            let (to, open) = (sink.remote(0), sink.context()?);
            f.a.post_rdma_write(other.a.ep, &[source.whole()], 2, SIGNALLED, to, open)?;
            other.a.done(2, DtoStatus::Success)?;
            pair.a.reap()?;
            check!(f.arrives(|| sink.all() == pattern(seed, PAGE)));
        }
        f.b.lmr_free(lmr)?;
        Ok(())
    }),
];
