//! Threads that query, modify, link and free the same regions at the same time (chapter 4.2). No
//! query sees a half-made change, and the outcome is that of some order of the calls.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicBool, Ordering};

use platform::sync::Mutex;
use privileged_api::*;

use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED};
use crate::memory::iobl::scattered;
use crate::remote::link::{Link, unlinked};
use crate::remote::rmr::Link as RmrLink;
use crate::thread::{Body, all_pass, together};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The parameters of a region that change together.
fn look(ia: &Ia, lmr: LmrHandle) -> Result<(PzHandle, MemPriv, Option<RmrContext>), Error> {
    let mask = LmrParamMask::PZ | LmrParamMask::MEM_PRIV | LmrParamMask::RMR_CONTEXT;
    let LmrParam { pz, privs, rmr_context, .. } = ia.lmr_query(lmr, mask)?;
    Ok((pz, privs, rmr_context))
}

/// The results of two calls that begin at the same moment.
fn both(
    f: &Fixture,
    first: impl FnOnce() -> Result<(), Error> + Send + 'static,
    second: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<Vec<Result<(), Error>>, Failure> {
    together(f.platform(), Vec::from([Box::new(first) as Body<Result<(), Error>>, Box::new(second)]))
}

pub(crate) const TESTS: &[Test] = &[
    // A query of a region never sees half of a modification.
    test("threads::regions_are_seen_whole", &["4.2 B04 B12"], |f| {
        let zones = [f.a.pz_create()?, f.a.pz_create()?];
        let region = f.region(&f.a, zones[0], PAGE, OPEN)?;
        let (lmr, changing) = (region.lmr, Arc::new(AtomicBool::new(true)));
        // Each change brings another context, so a query that mixes two states returns something
        // that never was.
        let was = Arc::new(Mutex::new(Vec::from([look(&f.a, lmr)?])));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ia, there, changing_now) = (f.a.clone(), was.clone(), changing.clone());
        let mut bodies: Vec<Body<Outcome>> = Vec::from([Box::new(move || {
            let changed = (0..200_usize).try_for_each(|n| {
                let privs = if n % 2 == 0 { OPEN.difference(MemPriv::REMOTE_WRITE) } else { OPEN };
                let params = LmrParam { pz: zones[(n + 1) % 2], privs, ..LmrParam::default() };
                ia.lmr_modify(lmr, LmrParamMask::PZ | LmrParamMask::MEM_PRIV, &params)?;
                there.lock().push(look(&ia, lmr)?);
                Ok::<_, Error>(())
            });
            changing_now.store(false, Ordering::Release);
            Ok(changed?)
        }) as Body<Outcome>]);
        for _ in 0..2 {
            let (ia, seen, changing) = (f.a.clone(), seen.clone(), changing.clone());
            bodies.push(Box::new(move || {
                while changing.load(Ordering::Acquire) {
                    let now = look(&ia, lmr)?;
                    let mut seen = seen.lock();
                    if seen.last() != Some(&now) {
                        seen.push(now);
                    }
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        let was = was.lock();
        for now in seen.lock().iter() {
            check!(was.contains(now), "{now:?} was never the region's state");
        }
        Ok(())
    }),
    // Of two calls that free a region, one succeeds.
    test("threads::a_region_is_freed_once", &["4.2 B04"], |f| {
        let pair = f.pair()?;
        for _ in 0..60 {
            let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            let (freer, modifier, lmr) = (f.a.clone(), f.a.clone(), region.lmr);
            // This refused modification frees the region as well.
            let bad = LmrParam { pz: PzHandle::NULL, ..LmrParam::default() };
            let got = both(
                f,
                move || freer.lmr_free(lmr),
                move || modifier.lmr_modify(lmr, LmrParamMask::PZ, &bad),
            )?;
            let an_order =
                [[Ok(()), Err(Error::InvalidLmr)], [Err(Error::InvalidLmr), Err(Error::InvalidPz)]];
            check!(an_order.iter().any(|order| got == order), "{got:?}");
            refused(f.a.lmr_free(lmr), Error::InvalidLmr)?;
        }
        check_eq!(f.a.object_counts().lmr, 0);
        Ok(())
    })
    .limit(120),
    // Two frees of a region to which an RMR is linked are both refused, and the region can be freed
    // afterwards.
    test("threads::a_region_in_use_is_not_freed", &["4.2 B04", "it_lmr_free S02"], |f| {
        let pair = f.pair()?;
        let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
        RmrLink::of(rmr, &region).made(&pair.a)?;
        for _ in 0..30 {
            let free = |ia: Ia| move || ia.lmr_free(region.lmr);
            let got = both(f, free(f.a.clone()), free(f.a.clone()))?;
            check_eq!(got, [Err(Error::LmrBusy), Err(Error::LmrBusy)]);
        }
        f.a.rmr_free(rmr)?;
        Ok(f.a.lmr_free(region.lmr)?)
    }),
    // A link and an unlink of one region by two threads are executed in the order of posting, so an
    // unlink behind the link succeeds.
    test("threads::an_unlink_names_the_link_before_it", &["4.2 B04"], |f| {
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        for _ in 0..100 {
            let pair = f.pair()?;
            let lmr = unlinked(&pair.a, 1)?;
            let mut bodies: Vec<Body<Result<(), Error>>> = Vec::new();
            let (ia, ep) = (f.a.clone(), pair.a.ep);
            let (linker, pieces) = (pair.a.clone(), memory.pieces.clone());
            bodies.push(Box::new(move || Link::pages(lmr, &pieces).post(&linker, 1).map(drop)));
            bodies.push(Box::new(move || ia.lmr_unlink(lmr, ep, 2, SIGNALLED)));
            for _ in 0..2 {
                // Other threads keep the endpoint busy.
                let (ia, ep) = (f.a.clone(), pair.a.ep);
                bodies.push(Box::new(move || {
                    (0..20).try_for_each(|_| {
                        ia.post_rdma_write(ep, &[], 3, DtoFlags::empty(), RdmaAddr(0), RmrContext(0))
                    })
                }));
            }
            for posted in together(f.platform(), bodies)? {
                posted?;
            }
            // The requests complete in the order of posting. The unlink of a region that is not
            // linked fails, and the requests behind it are flushed.
            let link = loop {
                let done = pair.a.reap()?;
                match done.cookie {
                    1 => break done.dto_status,
                    2 => break DtoStatus::Flushed,
                    _ => {}
                }
            };
            if link == DtoStatus::Success {
                pair.a.done(2, DtoStatus::Success)?;
            }
            for end in [&pair.a, &pair.b] {
                end.ia.ep_free(end.ep)?;
                for evd in [end.request, end.recv, end.conn] {
                    end.ia.evd_free(evd)?;
                }
            }
            f.a.lmr_free(lmr)?;
            for end in [&pair.a, &pair.b] {
                end.ia.pz_free(end.pz)?;
            }
        }
        Ok(())
    })
    .limit(120),
];
