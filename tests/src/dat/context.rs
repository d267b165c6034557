//! Consumer contexts and types of handles of each kind.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::events::{MERGED, invalid};
use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check_eq, refused, test};

/// The error of each call for a bad handle.
const BAD: Error = invalid(Subtype::InvalidHandle1);

/// An object of each kind on `b`, with its type. The last one is a connection request.
#[track_caller]
fn one_of_each(w: &World<'_>) -> Result<(Vec<(Handle, HandleType)>, End), Failure> {
    let end = w.end(&w.b, &attributes())?;
    let region = w.region(&end, PAGE, OPEN)?;
    let (requests, many) = (evd(&w.b, EvdFlags::CR)?, evd(&w.b, MERGED)?);
    let (conn_qual, psp) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
    let reserved = w.end(&w.b, &attributes())?;
    // A qualifier of this test's own.
    let (free, probe) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
    w.b.psp_free(probe)?;
    let rsp = w.b.rsp_create(free, reserved.ep, requests)?;
    let ((_, _), (_, address)) = w.resolved()?;
    let dialer = w.end(&w.a, &attributes())?;
    dial(&dialer, super::world::address(&w.b)?, conn_qual, &[])?;
    let cr = request(&w.b, requests)?;
    let objects = Vec::from([
        (w.b.handle().into(), HandleType::Ia),
        (end.pz.into(), HandleType::Pz),
        (end.ep.into(), HandleType::Ep),
        (end.recv.into(), HandleType::Evd),
        (many.into(), HandleType::Evd),
        (w.asynchronous[1].into(), HandleType::Evd),
        (region.lmr.lmr_handle.into(), HandleType::Lmr),
        (w.b.rmr_create(end.pz)?.into(), HandleType::Rmr),
        (w.b.srq_create(end.pz, &SrqAttr::default())?.into(), HandleType::Srq),
        (w.b.cno_create(None)?.into(), HandleType::Cno),
        (psp.into(), HandleType::Psp),
        (rsp.into(), HandleType::Rsp),
        (address.ah.into(), HandleType::IbExt),
        (cr.into(), HandleType::Cr),
    ]);
    Ok((objects, end))
}

/// Checks that each of the calls refuses a handle.
#[track_caller]
fn is_bad(ia: &Ia, handle: Handle) -> Outcome {
    refused(ia.get_handle_type(handle), BAD)?;
    refused(ia.get_consumer_context(handle), BAD)?;
    refused(ia.set_consumer_context(handle, 5), BAD)?;
    refused(ia.set_consumer_context(handle, None), BAD)
}

pub(crate) const TESTS: &[Test] = &[
    // Each object has a type and a context of its own: no context at first, then the last one set,
    // and none after its removal.
    test("dat_context::each_kind_of_handle", &[], |f| {
        world(f, |w| {
            let (objects, _) = one_of_each(w)?;
            for (handle, kind) in &objects {
                check_eq!(w.b.get_handle_type(*handle)?, *kind);
                check_eq!(w.b.get_consumer_context(*handle)?, None, "{handle:?}");
            }
            for (n, (handle, _)) in objects.iter().enumerate() {
                w.b.set_consumer_context(*handle, u64::MAX - n as u64)?;
            }
            for (n, (handle, _)) in objects.iter().enumerate() {
                check_eq!(w.b.get_consumer_context(*handle)?, Some(u64::MAX - n as u64), "{handle:?}");
                // Zero is a valid context.
                w.b.set_consumer_context(*handle, 0)?;
                check_eq!(w.b.get_consumer_context(*handle)?, Some(0), "{handle:?}");
            }
            for (handle, _) in &objects {
                w.b.set_consumer_context(*handle, None)?;
                check_eq!(w.b.get_consumer_context(*handle)?, None, "{handle:?}");
                w.b.set_consumer_context(*handle, None)?;
            }
            Ok(())
        })
    }),
    // Refused handles: of another IA, of IT-API, with a wrong word, null.
    test("dat_context::bad_handles", &[], |f| {
        world(f, |w| {
            let (objects, _) = one_of_each(w)?;
            for (n, (handle, _)) in objects.iter().enumerate() {
                w.b.set_consumer_context(*handle, n as u64)?;
                is_bad(&w.a, *handle)?;
                for bit in [23, 28, 39, 40, 63] {
                    is_bad(&w.b, Handle::from_raw(handle.as_raw() ^ 1 << bit))?;
                }
            }
            let other_face = w.f.b.pz_create()?;
            let of_other_face = [w.f.b.handle().as_raw(), other_face.as_raw()].map(Handle::from_raw);
            for bad in [Handle::NULL, Handle::from_raw(u64::MAX)].into_iter().chain(of_other_face) {
                is_bad(&w.b, bad)?;
            }
            // The refused calls have changed no context.
            for (n, (handle, _)) in objects.iter().enumerate() {
                check_eq!(w.b.get_consumer_context(*handle)?, Some(n as u64), "{handle:?}");
            }
            Ok(w.f.b.pz_free(other_face)?)
        })
    }),
    // A freed handle is refused, also when another object has its index. That object has no
    // context.
    test("dat_context::freed_handles", &[], |f| {
        world(f, |w| {
            let ia = &w.b;
            let end = w.end(ia, &attributes())?;
            let requests = evd(ia, EvdFlags::CR)?;
            type Make<'a> = &'a dyn Fn() -> Result<Handle, Failure>;
            type Free<'a> = &'a dyn Fn(u64) -> Result<(), Error>;
            let buffer = w.f.buffer(PAGE)?;
            let memory = RegionDescription::buffer(&buffer);
            let kinds: [(Make<'_>, Free<'_>); 8] = [
                (&|| Ok(ia.pz_create()?.into()), &|word| ia.pz_free(PzHandle::from_raw(word))),
                (&|| Ok(evd(ia, EvdFlags::DTO)?.into()), &|word| ia.evd_free(EvdHandle::from_raw(word))),
                (&|| Ok(evd(ia, MERGED)?.into()), &|word| ia.evd_free(EvdHandle::from_raw(word))),
                (&|| Ok(ia.lmr_create(memory, 64, end.pz, OPEN, VaType::Va)?.lmr_handle.into()), &|word| {
                    ia.lmr_free(LmrHandle::from_raw(word))
                }),
                (&|| Ok(ia.rmr_create(end.pz)?.into()), &|word| ia.rmr_free(RmrHandle::from_raw(word))),
                (&|| Ok(ia.srq_create(end.pz, &SrqAttr::default())?.into()), &|word| {
                    ia.srq_free(SrqHandle::from_raw(word))
                }),
                (&|| Ok(ia.cno_create(None)?.into()), &|word| ia.cno_free(CnoHandle::from_raw(word))),
                (&|| Ok(ia.psp_create_any(requests, PspFlags::Consumer)?.1.into()), &|word| {
                    ia.psp_free(PspHandle::from_raw(word))
                }),
            ];
            for (make, free) in kinds {
                let old = make()?;
                ia.set_consumer_context(old, 77)?;
                free(old.as_raw())?;
                is_bad(ia, old)?;
                let new = make()?;
                check_eq!(ia.get_consumer_context(new)?, None, "{new:?} after {old:?}");
                is_bad(ia, old)?;
                free(new.as_raw())?;
            }
            let ep = end.ep;
            ia.set_consumer_context(ep, 78)?;
            ia.ep_free(ep)?;
            is_bad(ia, ep.into())
        })
    }),
    // An endpoint without a zone is in one of the IA's own, of which the consumer has no handle.
    test("dat_context::a_zone_of_the_ia", &[], |f| {
        world(f, |w| {
            let none = EvdHandle::NULL;
            w.b.ep_create(PzHandle::NULL, none, none, none, Some(&attributes()))?;
            let own = w.b.pz_create()?;
            check_eq!(w.b.get_handle_type(own)?, HandleType::Pz);
            w.b.set_consumer_context(own, 5)?;
            check_eq!(w.b.get_consumer_context(own)?, Some(5));
            // Handles of other indexes.
            for other in 1..16 {
                is_bad(&w.b, Handle::from_raw(own.as_raw() ^ other))?;
            }
            Ok(())
        })
    }),
    // A request keeps its context until it is answered.
    test("dat_context::an_answered_request", &[], |f| {
        world(f, |w| {
            let (objects, end) = one_of_each(w)?;
            let Some((handle, HandleType::Cr)) = objects.last().copied() else {
                return Err(Failure::new("the last object is not a request"));
            };
            let cr = CrHandle::from_raw(handle.as_raw());
            w.b.set_consumer_context(cr, 9)?;
            check_eq!(w.b.get_consumer_context(cr)?, Some(9));
            w.b.cr_accept(cr, end.ep, &[])?;
            is_bad(&w.b, handle)?;
            expect(&w.b, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            Ok(())
        })
    }),
    // After a close the calls refuse even the IA's own handle.
    test("dat_context::after_a_close", &[], |f| {
        world(f, |w| {
            let (objects, _) = one_of_each(w)?;
            w.close(&w.b)?;
            let closed = invalid(Subtype::InvalidHandleIa);
            for (handle, _) in objects {
                refused(w.b.get_handle_type(handle), closed)?;
                refused(w.b.get_consumer_context(handle), closed)?;
                refused(w.b.set_consumer_context(handle, 1), closed)?;
            }
            Ok(())
        })
    }),
];
