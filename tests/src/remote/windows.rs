//! The relation of an RMR to the LMR below it (pages it_addr_mode_t, it_rmr_link, it_rmr_query,
//! it_rmr_free; appendix A).

use privileged_api::*;

use crate::fixture::{OPEN, PAGE, Region, SIGNALLED, is_iwarp};
use crate::memory::iobl::scattered;
use crate::remote::link::{BASE, Link as LmrLink, PAGE_LEN, unlinked};
use crate::remote::rmr::{Link, TYPES, param, reaches, ready, unlink};
use crate::thread::Thread;
use crate::transport::Need;
use crate::{Failure, Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // An RMR with offsets as addresses needs a region with absolute addresses.
    test("windows::relative_over_absolute", &["it_addr_mode_t B04"], |f| {
        let (pair, region, rmr) = ready(f, RmrType::Narrow)?;
        let link = Link { mode: AddrMode::Relative, ..Link::of(rmr, &region).part(40, 60) };
        let context = link.made(&pair.b)?;
        let own = f.region(&f.a, pair.a.pz, 60, OPEN)?;
        let from = make_rdma_addr_relative(0);
        f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, from, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        check!(own.all() == region.bytes(40, 60));
        f.b.rmr_free(rmr)?;
        // A region with relative addressing can have no RMR linked to it.
        for mode in [AddrMode::Relative, AddrMode::Absolute] {
            let (pair, _, rmr) = ready(f, RmrType::Narrow)?;
            let buffer = f.buffer(PAGE)?;
            let memory = LmrMemory::buffer(&buffer);
            let below = AddrMode::Relative;
            let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, 64, below, OPEN, LmrFlags::NONE, 0)?;
            let region = Region { buffer, lmr, context };
            let link = Link { mode, ..Link::of(rmr, &region).part(0, 64) };
            link.fails(&pair.b, DtoStatus::LocalMmOperation)?;
        }
        Ok(())
    }),
    // An RMR for remote reads needs a region that can be read locally.
    test("windows::over_memory_that_cannot_be_read", &["it_rmr_link A08"], |f| {
        // A region that was created with its memory is always locally readable; a linked region
        // need not be.
        for rmr_type in TYPES {
            for (privs, works) in
                [(MemPriv::REMOTE_READ, false), (MemPriv::REMOTE, false), (MemPriv::REMOTE_WRITE, true)]
            {
                let (pair, _, rmr) = ready(f, rmr_type)?;
                let memory = scattered(f, &f.b, 1, PAGE, PAGE)?;
                let lmr = unlinked(&pair.b, 1)?;
                LmrLink { privs: MemPriv::LOCAL_WRITE, ..LmrLink::pages(lmr, &memory.pieces) }
                    .post(&pair.b, 1)?;
                pair.b.done(1, DtoStatus::Success)?;
                let (mode, flags) = (AddrMode::Absolute, SIGNALLED);
                let link = Link { rmr, lmr, addr: BASE, length: PAGE_LEN, mode, privs, flags };
                if works {
                    link.made(&pair.b)?;
                    f.b.rmr_free(rmr)?;
                } else {
                    link.fails(&pair.b, DtoStatus::RmrOperationFailed)?;
                }
            }
        }
        Ok(())
    }),
    // A link without the completion flag causes no event, and a query shows it once a later
    // completion was taken.
    test("windows::links_without_a_completion", &["A.it_rmr_query B02 V01", "it_rmr_query O01"], |f| {
        Need::Waiting.of(&f.a)?;
        for rmr_type in TYPES {
            let (pair, region, rmr) = ready(f, rmr_type)?;
            // The link is posted behind a Send for which the peer has no Receive yet, so a
            // query returns either the old or the new state.
            f.b.post_send(pair.b.ep, &[], 1, SIGNALLED)?;
            let link = Link { flags: DtoFlags::empty(), ..Link::of(rmr, &region).part(8, 16) };
            let context = link.post(&pair.b, 2)?;
            let current = param(&pair.b, rmr)?;
            check!(!current.linked || current.rmr_context == Some(context));
            f.a.post_recv(pair.a.ep, &[], 3, DtoFlags::COMPLETION)?;
            f.b.post_rdma_write(pair.b.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            pair.b.done(1, DtoStatus::Success)?;
            // The link causes no event. A later request has completed, so the link has been
            // executed.
            pair.b.done(4, DtoStatus::Success)?;
            let current = param(&pair.b, rmr)?;
            check_eq!((current.linked, current.rmr_context, current.length), (true, Some(context), 16));
            check_eq!((current.lmr, current.addr), (region.lmr, region.buffer.addr() + 8));
            pair.b.idle()?;
            // The same holds for an unlink.
            f.b.rmr_unlink(rmr, pair.b.ep, 5, DtoFlags::empty())?;
            f.b.post_rdma_write(pair.b.ep, &[], 6, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            pair.b.done(6, DtoStatus::Success)?;
            check!(!param(&pair.b, rmr)?.linked);
            pair.b.idle()?;
        }
        Ok(())
    }),
    // Requests of the peer that use a freed RMR succeed or fail with an access error, and nothing
    // else happens. The page of it_rmr_free allows both for requests that meet the call.
    test("windows::freed_under_the_peers_requests", &["it_rmr_free B05"], |f| {
        for rmr_type in TYPES {
            for _ in 0..5 {
                let (pair, region, rmr) = ready(f, rmr_type)?;
                let context = Link::of(rmr, &region).made(&pair.b)?;
                let own = f.region(&f.a, pair.a.pz, 2 * PAGE, OPEN)?;
                let ia = f.b.clone();
                let thread = Thread::spawn(f.platform(), "frees", move || ia.rmr_free(rmr))?;
                let mut posted = 0;
                for cookie in 0..32 {
                    let from = region.remote(0);
                    match f.a.post_rdma_read(pair.a.ep, &[own.whole()], cookie, SIGNALLED, from, context) {
                        Ok(()) => posted += 1,
                        Err(Error::TooManyPosts) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                thread.join()??;
                let mut failed = false;
                for _ in 0..posted {
                    match pair.a.reap()?.dto_status {
                        DtoStatus::Success if !failed => {}
                        DtoStatus::RemoteAccess if !failed => failed = true,
                        // Over iWARP the region may go in the middle of an FPDU of the response.
                        // Then no Terminate can follow, and the stream is reset.
                        DtoStatus::Transport if !failed && is_iwarp(&f.a)? => failed = true,
                        // This request was posted behind the one that broke the connection.
                        DtoStatus::Flushed if failed => {}
                        other => {
                            return Err(Failure::new(alloc::format!("{other:?}, after failure: {failed}")));
                        }
                    }
                }
                f.b.lmr_free(region.lmr)?;
            }
        }
        Ok(())
    }),
    // No earlier context of an RMR ever becomes valid again by later links.
    test("windows::old_contexts", &["it_rmr_unlink B06", "it_rmr_link B17"], |f| {
        // An earlier context is invalid, even after the RMR was linked as often as its key has
        // variants.
        for rmr_type in TYPES {
            let (pair, region, rmr) = ready(f, rmr_type)?;
            let old = Link::of(rmr, &region).made(&pair.b)?;
            for _ in 0..100 {
                unlink(&pair.b, rmr)?;
                Link::of(rmr, &region).made(&pair.b)?;
            }
            check_eq!(reaches(f, &pair.a, true, region.remote(0), old, 8)?, DtoStatus::RemoteAccess);
            f.b.rmr_free(rmr)?;
            refused(f.b.rmr_free(rmr), Error::InvalidRmr)?;
        }
        Ok(())
    }),
];
