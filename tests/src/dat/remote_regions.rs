//! Remote memory regions: creation, queries, frees, binds, and the memory that peers can access
//! through them.

use core::result::Result;

use dat::*;

use super::events::{invalid, parameter, state};
use super::srq::reconnect;
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const LOCAL: MemPriv = MemPriv::LOCAL_READ.union(MemPriv::LOCAL_WRITE);
const REMOTE: MemPriv = MemPriv::REMOTE_READ.union(MemPriv::REMOTE_WRITE);

/// Posts a bind of `len` bytes at `offset` of a region.
fn bind(
    end: &End,
    rmr: RmrHandle,
    region: &Region,
    (offset, len): (usize, usize),
    privs: MemPriv,
    flags: CompletionFlags,
) -> Result<RmrContext, Error> {
    let (lmr, piece) = (region.lmr.lmr_handle, region.segment(offset, len));
    end.ia.rmr_bind(rmr, lmr, &piece, privs, VaType::Va, end.ep, 40, flags)
}

/// Takes the completion of a bind, which must have this status and name this region.
#[track_caller]
fn bound(end: &End, rmr: RmrHandle, status: DtoStatus) -> Outcome {
    let event = expect(&end.ia, end.request, EventNumber::RMR_BIND_COMPLETION)?;
    let done = RmrBindCompletion { rmr_handle: rmr, user_cookie: 40, status };
    check_eq!((event.event_data, event.extension), (EventData::RmrBind(done), None));
    Ok(())
}

/// Binds, and takes the completion.
#[track_caller]
fn window(
    end: &End,
    rmr: RmrHandle,
    region: &Region,
    piece: (usize, usize),
    privs: MemPriv,
) -> Result<RmrTriplet, Failure> {
    let rmr_context = bind(end, rmr, region, piece, privs, PLAIN)?;
    bound(end, rmr, DtoStatus::Success)?;
    Ok(RmrTriplet { rmr_context, ..region.remote(piece.0, piece.1) })
}

/// The same context with another address.
fn at(window: &RmrTriplet, region: &Region, offset: usize) -> RmrTriplet {
    RmrTriplet { rmr_context: window.rmr_context, ..region.remote(offset, 8) }
}

/// Writes eight bytes, which must end with this status; then reconnects if the Write broke the
/// connection.
#[track_caller]
fn write(w: &World<'_>, (a, b): (&End, &End), own: &Region, to: &RmrTriplet, status: DtoStatus) -> Outcome {
    w.a.ep_post_rdma_write(a.ep, &[own.segment(0, 8)], 50, to, PLAIN)?;
    a.done(50, status)?;
    if status == DtoStatus::Success { Ok(()) } else { reconnect(w, a, b) }
}

/// Reads eight bytes, as [`write`] writes them.
#[track_caller]
fn read(w: &World<'_>, (a, b): (&End, &End), own: &Region, from: &RmrTriplet, status: DtoStatus) -> Outcome {
    w.a.ep_post_rdma_read(a.ep, &[own.segment(1024, 8)], 51, from, PLAIN)?;
    a.done(51, status)?;
    if status == DtoStatus::Success { Ok(()) } else { reconnect(w, a, b) }
}

pub(crate) const TESTS: &[Test] = &[
    // A query of a region before its first bind. Bad handles are refused.
    test("dat_rmr::creation_query_and_free", &[], |f| {
        world(f, |w| {
            let pz = w.a.pz_create()?;
            let rmr = w.a.rmr_create(pz)?;
            let param = w.a.rmr_query(rmr)?;
            let unbound = RmrParam {
                ia_handle: w.a.handle(),
                pz_handle: pz,
                lmr_handle: LmrHandle::NULL,
                lmr_triplet: None,
                mem_priv: MemPriv::NONE,
                rmr_context: param.rmr_context,
                rmr_scope: RmrScope::Pz,
                va_type: VaType::Va,
            };
            check_eq!(param, unbound);
            check_eq!(w.a.get_handle_type(rmr)?, HandleType::Rmr);
            w.a.rmr_free(rmr)?;
            let foreign = w.b.rmr_create(w.b.pz_create()?)?;
            for bad in [RmrHandle::NULL, rmr, foreign, RmrHandle::from_raw(pz.as_raw())] {
                refused(w.a.rmr_query(bad), invalid(Subtype::InvalidHandleRmr))?;
                refused(w.a.rmr_free(bad), invalid(Subtype::InvalidHandleRmr))?;
            }
            w.a.pz_free(pz)?;
            for bad in [PzHandle::NULL, pz, w.b.pz_create()?, PzHandle::from_raw(rmr.as_raw())] {
                refused(w.a.rmr_create(bad), invalid(Subtype::InvalidHandlePz))?;
            }
            let (windows, limits) = (privileged_api::Features::WINDOWS_WIDE, privileged_api::Limits::NONE);
            let features = privileged_api::Features::all() - windows;
            let ia = w.limited(privileged_api::Limits { features, ..limits })?;
            let made = ia.pz_create().and_then(|pz| ia.rmr_create(pz));
            refused(made, ErrorType::ModelNotSupported.into())?;
            w.close(&ia)
        })
    }),
    // Peers can access the bound part of a region, as the privileges allow. Another bind replaces
    // it, and one of no bytes ends it; then the former contexts give no access.
    test("dat_rmr::bind_rebind_unbind", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            let (ends, rmr) = ((&a, &b), w.b.rmr_create(b.pz)?);
            own.fill(5);
            let first = window(&b, rmr, &far, (256, 64), REMOTE)?;
            let expected = |piece: LmrTriplet, privs, context| RmrParam {
                ia_handle: w.b.handle(),
                pz_handle: b.pz,
                lmr_handle: far.lmr.lmr_handle,
                lmr_triplet: Some(piece),
                mem_priv: privs,
                rmr_context: context,
                rmr_scope: RmrScope::Pz,
                va_type: VaType::Va,
            };
            check_eq!(w.b.rmr_query(rmr)?, expected(far.segment(256, 64), REMOTE, first.rmr_context));
            let ok = DtoStatus::Success;
            for offset in [256, 312] {
                write(w, ends, &own, &at(&first, &far, offset), ok)?;
                check_eq!(far.bytes(offset, 8), own.bytes(0, 8));
                read(w, ends, &own, &at(&first, &far, offset), ok)?;
                check_eq!(own.bytes(1024, 8), own.bytes(0, 8));
            }
            let (outside, no) = ([255, 313, 320, 0], DtoStatus::RemoteAccess);
            for offset in outside {
                write(w, ends, &own, &at(&first, &far, offset), no)?;
            }
            // Binds another part, for Reads only.
            let second = window(&b, rmr, &far, (1024, 8), MemPriv::REMOTE_READ)?;
            let param = expected(far.segment(1024, 8), MemPriv::REMOTE_READ, second.rmr_context);
            check_eq!(w.b.rmr_query(rmr)?, param);
            check!(first.rmr_context != second.rmr_context);
            read(w, ends, &own, &second, ok)?;
            write(w, ends, &own, &second, no)?;
            read(w, ends, &own, &at(&first, &far, 256), no)?;
            read(w, ends, &own, &at(&second, &far, 256), no)?;
            // Binds a third part, for Writes only.
            let third = window(&b, rmr, &far, (2048, 8), MemPriv::REMOTE_WRITE)?;
            write(w, ends, &own, &third, ok)?;
            read(w, ends, &own, &third, no)?;
            check_eq!(far.bytes(2048, 8), own.bytes(0, 8));
            // While the remote region is bound, its local region cannot be freed.
            let in_use = state(Subtype::InvalidStateLmrInUse);
            refused(w.b.lmr_free(far.lmr.lmr_handle), in_use)?;
            check_eq!(bind(&b, rmr, &far, (0, 0), REMOTE, PLAIN)?, 0);
            bound(&b, rmr, ok)?;
            let param = w.b.rmr_query(rmr)?;
            check_eq!((param.lmr_handle, param.lmr_triplet), (LmrHandle::NULL, None));
            write(w, ends, &own, &third, no)?;
            // The region is bound once more, and freed while it is bound.
            let last = window(&b, rmr, &far, (0, 8), REMOTE)?;
            write(w, ends, &own, &last, ok)?;
            refused(w.b.lmr_free(far.lmr.lmr_handle), in_use)?;
            w.b.rmr_free(rmr)?;
            write(w, ends, &own, &last, no)?;
            Ok(w.b.lmr_free(far.lmr.lmr_handle)?)
        })
    }),
    // Through a remote region, peers of all endpoints of its zone can access a local region without
    // remote privileges.
    test("dat_rmr::all_endpoints_of_the_zone", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            let (own, local) = (w.region(&a, PAGE, LOCAL)?, w.region(&b, PAGE, LOCAL)?);
            check_eq!(local.lmr.rmr_context, None);
            own.fill(2);
            let (pz, rmr) = (b.pz, w.b.rmr_create(b.pz)?);
            let opened = window(&b, rmr, &local, (8, 8), REMOTE)?;
            write(w, (&a, &b), &own, &opened, DtoStatus::Success)?;
            check_eq!(local.bytes(8, 8), own.bytes(0, 8));
            // Another pair, of which one end is in the same zone.
            let dto = evd(&w.b, EvdFlags::DTO | EvdFlags::RMR_BIND)?;
            let connect = evd(&w.b, EvdFlags::CONNECTION)?;
            let ep = w.b.ep_create(pz, dto, dto, connect, Some(&attributes()))?;
            let second = End { ia: w.b.clone(), ep, pz, recv: dto, request: dto, connect };
            let other = w.end(&w.a, &attributes())?;
            w.connect(&other, &second)?;
            let source = w.region(&other, PAGE, LOCAL)?;
            write(w, (&other, &second), &source, &opened, DtoStatus::Success)?;
            check_eq!(local.bytes(8, 8), alloc::vec![0; 8]);
            // A pair of which one end is in another zone.
            let (far, apart) = w.pair()?;
            let source = w.region(&far, PAGE, LOCAL)?;
            write(w, (&far, &apart), &source, &opened, DtoStatus::RemoteAccess)
        })
    }),
    // A suppressed bind has no event if it succeeds, and has one if it fails.
    test("dat_rmr::suppressed_binds", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            own.fill(3);
            let (one, two) = (w.b.rmr_create(b.pz)?, w.b.rmr_create(b.pz)?);
            let quiet = CompletionFlags::SUPPRESS;
            let context = bind(&b, one, &far, (0, 8), REMOTE, quiet)?;
            bind(&b, two, &far, (8, 8), REMOTE, PLAIN)?;
            // The only event is the second bind's.
            bound(&b, two, DtoStatus::Success)?;
            let to = RmrTriplet { rmr_context: context, ..far.remote(0, 8) };
            write(w, (&a, &b), &own, &to, DtoStatus::Success)?;
            bind(&b, one, &far, (0, 0), REMOTE, quiet)?;
            // No event says when the bind is done.
            let is_free = || w.b.rmr_query(one).is_ok_and(|param| param.lmr_handle == LmrHandle::NULL);
            check!(eventually(w.f.platform(), is_free), "the bind to nothing was not carried out");
            nothing(&w.b, b.request)?;
            let foreign = w.b.rmr_create(w.b.pz_create()?)?;
            bind(&b, foreign, &far, (0, 8), REMOTE, quiet)?;
            bound(&b, foreign, DtoStatus::RmrOperationFailed)
        })
    }),
    // A bind that the device refuses fails and breaks the connection: with another zone, or a
    // privilege that the local region lacks. The former bind stays in force.
    test("dat_rmr::binds_that_fail", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            own.fill(4);
            let rmr = w.b.rmr_create(b.pz)?;
            let former = window(&b, rmr, &far, (0, 8), REMOTE)?;
            let before = w.b.rmr_query(rmr)?;
            let elsewhere = w.b.pz_create()?;
            let apart = w.region_in(&w.b, elsewhere, PAGE, OPEN)?;
            let read_only = w.region(&b, PAGE, MemPriv::LOCAL_READ)?;
            for (region, privs) in
                [(&apart, REMOTE), (&read_only, REMOTE), (&read_only, MemPriv::REMOTE_WRITE)]
            {
                bind(&b, rmr, region, (0, 8), privs, PLAIN)?;
                bound(&b, rmr, DtoStatus::RmrOperationFailed)?;
                reconnect(w, &a, &b)?;
                check_eq!(w.b.rmr_query(rmr)?, before);
                write(w, (&a, &b), &own, &former, DtoStatus::Success)?;
            }
            // A remote region in another zone.
            let foreign = w.b.rmr_create(elsewhere)?;
            bind(&b, foreign, &far, (0, 8), REMOTE, PLAIN)?;
            bound(&b, foreign, DtoStatus::RmrOperationFailed)?;
            check_eq!(w.b.rmr_query(foreign)?.lmr_handle, LmrHandle::NULL);
            read_only.untouched()?;
            apart.untouched()
        })
    }),
    // A bind that the call refuses binds nothing.
    test("dat_rmr::refused_binds", &[], |f| {
        world(f, |w| {
            let (_, b, _, far) = w.open_pair()?;
            let (rmr, lmr, piece) = (w.b.rmr_create(b.pz)?, far.lmr.lmr_handle, far.segment(0, 8));
            let before = w.b.rmr_query(rmr)?;
            let post = |rmr, lmr, piece: &LmrTriplet, privs, mode, ep, flags| {
                w.b.rmr_bind(rmr, lmr, piece, privs, mode, ep, 9, flags)
            };
            let va = VaType::Va;
            let freed = w.b.rmr_create(b.pz)?;
            w.b.rmr_free(freed)?;
            for bad in [RmrHandle::NULL, freed, w.a.rmr_create(w.a.pz_create()?)?] {
                let no_rmr = invalid(Subtype::InvalidHandleRmr);
                refused(post(bad, lmr, &piece, REMOTE, va, b.ep, PLAIN), no_rmr)?;
                refused(post(bad, lmr, &far.segment(0, 0), REMOTE, va, b.ep, PLAIN), no_rmr)?;
            }
            let gone = w.region(&b, PAGE, OPEN)?;
            w.b.lmr_free(gone.lmr.lmr_handle)?;
            let foreign = w.region_in(&w.a, w.a.pz_create()?, PAGE, OPEN)?;
            for bad in [LmrHandle::NULL, gone.lmr.lmr_handle, foreign.lmr.lmr_handle] {
                let no_lmr = invalid(Subtype::InvalidHandleLmr);
                refused(post(rmr, bad, &piece, REMOTE, va, b.ep, PLAIN), no_lmr)?;
            }
            let spare = w.end(&w.b, &attributes())?;
            let elsewhere = w.end(&w.a, &attributes())?;
            for bad in [EpHandle::NULL, elsewhere.ep, EpHandle::from_raw(rmr.as_raw())] {
                let no_ep = invalid(Subtype::InvalidHandleEp);
                refused(post(rmr, lmr, &piece, REMOTE, va, bad, PLAIN), no_ep)?;
                refused(post(rmr, lmr, &far.segment(0, 0), REMOTE, va, bad, PLAIN), no_ep)?;
            }
            // The part is outside the region, or of another region.
            let other = w.region(&b, PAGE, OPEN)?;
            let context = far.lmr.lmr_context;
            let (base, page) = (far.buffer.addr() as u64, PAGE as u64);
            let pieces = [
                LmrTriplet::new(context, base, page + 1),
                LmrTriplet::new(context, base - 1, 2),
                LmrTriplet::new(context, base + page, 1),
                LmrTriplet::new(context, base + 1, page),
                LmrTriplet::new(context, base + 8, u64::MAX),
                LmrTriplet::new(context, u64::MAX, 1),
                LmrTriplet::new(context, 0, 8),
                other.segment(0, 8),
                LmrTriplet::new(LmrContext::default(), base, 8),
            ];
            for piece in pieces {
                let outside = parameter(Subtype::InvalidArg3);
                refused(post(rmr, lmr, &piece, REMOTE, va, b.ep, PLAIN), outside)?;
            }
            let undefined = MemPriv::from_bits_retain(1 << 20) | REMOTE;
            let privileges = parameter(Subtype::InvalidArg4);
            refused(post(rmr, lmr, &piece, undefined, va, b.ep, PLAIN), privileges)?;
            let zero_based = post(rmr, lmr, &piece, REMOTE, VaType::Zb, b.ep, PLAIN);
            refused(zero_based, ErrorType::ModelNotSupported.into())?;
            let flags = [
                CompletionFlags::SOLICITED_WAIT,
                CompletionFlags::UNSIGNALLED,
                CompletionFlags::SUPPRESS | CompletionFlags::SOLICITED_WAIT,
                CompletionFlags::EVD_THRESHOLD,
                CompletionFlags::from_bits_retain(1 << 30),
            ];
            for bad in flags {
                let no_flags = parameter(Subtype::InvalidArg8);
                refused(post(rmr, lmr, &piece, REMOTE, va, b.ep, bad), no_flags)?;
            }
            let unconnected = state(Subtype::InvalidStateEpUnconnected);
            refused(post(rmr, lmr, &piece, REMOTE, va, spare.ep, PLAIN), unconnected)?;
            refused(post(rmr, lmr, &far.segment(0, 0), REMOTE, va, spare.ep, PLAIN), unconnected)?;
            check_eq!(w.b.rmr_query(rmr)?, before);
            nothing(&w.b, b.request)?;
            Ok(w.b.lmr_free(lmr)?)
        })
    }),
    // The event of a bind names the region, unless it was freed before the event was taken: then it
    // is null. A bind in DISCONNECTED is flushed, and binds nothing.
    test("dat_rmr::the_event_names_the_region", &[], |f| {
        world(f, |w| {
            let (a, b, _, far) = w.open_pair()?;
            let (freed, stays) = (w.b.rmr_create(b.pz)?, w.b.rmr_create(b.pz)?);
            a.receive(&[], 1)?;
            for rmr in [freed, stays, freed] {
                bind(&b, rmr, &far, (0, 8), REMOTE, PLAIN)?;
            }
            b.send(&[], 2)?;
            // The binds are complete when the message has arrived.
            a.received(1, DtoStatus::Success)?;
            w.b.rmr_free(freed)?;
            // The next region may get the same index.
            let next = w.b.rmr_create(b.pz)?;
            for rmr in [RmrHandle::NULL, stays, RmrHandle::NULL] {
                bound(&b, rmr, DtoStatus::Success)?;
            }
            b.done(2, DtoStatus::Success)?;
            b.disconnect()?;
            bind(&b, next, &far, (0, 8), REMOTE, PLAIN)?;
            bound(&b, next, DtoStatus::Flushed)?;
            bind(&b, next, &far, (0, 8), REMOTE, CompletionFlags::SUPPRESS)?;
            bound(&b, next, DtoStatus::Flushed)?;
            check_eq!(w.b.rmr_query(next)?.lmr_handle, LmrHandle::NULL);
            Ok(())
        })
    }),
];
