//! Handles, their types and the consumer's contexts (pages it_handle_t, it_get_handle_type,
//! it_context_t, it_get_consumer_context, it_set_consumer_context).

use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::datagrams::ud::address;
use crate::fixture::{End, Fixture, OPEN, Region, SIGNALLED, attributes, path, sevd};
use crate::thread::Thread;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// One object of each type, and its handle.
fn one_of_each(f: &Fixture) -> Result<Vec<(HandleType, Handle)>, Failure> {
    let end = f.end(&f.a, &attributes())?;
    let region = f.region(&f.a, end.pz, 64, OPEN)?;
    let listener = f.listen(&f.a)?;
    let rmr = f.a.rmr_create(end.pz, RmrType::Default)?;
    let srq = f.a.srq_create(end.pz, 1, 4)?;
    let addr = address(&f.a, end.pz, &f.b)?;
    let theirs = f.listen(&f.b)?;
    let (evd, way) = (sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?, path(&f.a, &theirs.address)?);
    let asked = f.a.ud_service_request_handle_create(&theirs.conn_qual, evd, &way, &[])?;
    Ok(vec![
        (HandleType::Ia, f.a.handle().into()),
        (HandleType::Pz, end.pz.into()),
        (HandleType::Evd, end.conn.into()),
        (HandleType::Ep, end.ep.into()),
        (HandleType::Lmr, region.lmr.into()),
        (HandleType::Listen, listener.listen.into()),
        (HandleType::Rmr, rmr.into()),
        (HandleType::Srq, srq.into()),
        (HandleType::Addr, addr.into()),
        (HandleType::UdSvcReq, asked.into()),
    ])
}

/// An object of each type that requests use.
struct Stale {
    end: End,
    region: Region,
    rmr: RmrHandle,
    srq: SrqHandle,
    addr: AddrHandle,
}

impl Stale {
    fn new(f: &Fixture, ia: &Ia) -> Result<Stale, Failure> {
        let end = f.end(ia, &attributes())?;
        Ok(Stale {
            region: f.region(ia, end.pz, 64, OPEN)?,
            rmr: ia.rmr_create(end.pz, RmrType::Default)?,
            srq: ia.srq_create(end.pz, 1, 4)?,
            addr: address(ia, end.pz, &f.b)?,
            end,
        })
    }

    fn free(&self, ia: &Ia) -> Outcome {
        ia.address_handle_free(self.addr)?;
        ia.srq_free(self.srq)?;
        ia.rmr_free(self.rmr)?;
        ia.lmr_free(self.region.lmr)?;
        ia.ep_free(self.end.ep)?;
        for evd in [self.end.request, self.end.recv, self.end.conn] {
            ia.evd_free(evd)?;
        }
        Ok(ia.pz_free(self.end.pz)?)
    }
}

pub(crate) const TESTS: &[Test] = &[
    // An object of each type takes a context and returns exactly that one; a new context replaces
    // the old one.
    test(
        "context::set_and_get",
        &["it_set_consumer_context B01-B03", "it_get_consumer_context B01 B03", "it_context_t F01 F02"],
        |f| {
            let objects = one_of_each(f)?;
            for (place, &(_, handle)) in objects.iter().enumerate() {
                f.a.set_consumer_context(handle, 0x1_0000_0000 + place as u64)?;
            }
            for (place, &(kind, handle)) in objects.iter().enumerate() {
                let context = f.a.get_consumer_context(handle)?;
                check_eq!(context, 0x1_0000_0000 + place as u64, "context of {kind:?}");
                // A context is as wide as an address.
                let address = core::ptr::from_ref(&objects).addr() as u64;
                f.a.set_consumer_context(handle, address)?;
                check_eq!(f.a.get_consumer_context(handle)?, address, "context of {kind:?}");
                for value in [u64::MAX, 1, 0xdead_beef_dead_beef] {
                    f.a.set_consumer_context(handle, value)?;
                    check_eq!(f.a.get_consumer_context(handle)?, value, "context of {kind:?}");
                }
            }
            Ok(())
        },
    ),
    // An object without a context returns IT_ERR_NO_CONTEXT.
    test("context::never_set", &["it_get_consumer_context IT_ERR_NO_CONTEXT", "it_status_t F81"], |f| {
        for (_, handle) in one_of_each(f)? {
            refused(f.a.get_consumer_context(handle), Error::NoContext)?;
        }
        check_eq!(Error::NoContext as u32, 80);
        Ok(())
    }),
    // A context of 0 is a context, unlike one that was never set (erratum SUN3).
    test("context::zero_is_a_context", &["it_get_consumer_context V01"], |f| {
        for (_, handle) in one_of_each(f)? {
            refused(f.a.get_consumer_context(handle), Error::NoContext)?;
            f.a.set_consumer_context(handle, 0)?;
            check_eq!(f.a.get_consumer_context(handle)?, 0);
        }
        Ok(())
    }),
    // Threads may set the context of one object without synchronisation.
    test("context::set_by_many_threads", &["it_set_consumer_context B05"], |f| {
        // Four threads set and get contexts at the same time. A get must never return a mix of two
        // values.
        let pz = f.a.pz_create()?;
        f.a.set_consumer_context(pz, 0)?;
        let mut threads = Vec::new();
        for number in 1..5_u64 {
            let ia = f.a.clone();
            let value = number << 32 | number;
            threads.push(Thread::spawn(f.platform(), "sets", move || -> Result<bool, Error> {
                let mut whole = true;
                for _ in 0..1000 {
                    ia.set_consumer_context(pz, value)?;
                    let seen = ia.get_consumer_context(pz)?;
                    whole &= seen >> 32 == seen & 0xffff_ffff;
                }
                Ok(whole)
            })?);
        }
        for thread in threads {
            check!(thread.join()??, "a mix of two contexts");
        }
        Ok(())
    }),
    // Setting no context removes the association.
    test("context::removed", &["it_set_consumer_context B04"], |f| {
        for (_, handle) in one_of_each(f)? {
            f.a.set_consumer_context(handle, 5)?;
            f.a.set_consumer_context(handle, None)?;
            refused(f.a.get_consumer_context(handle), Error::NoContext)?;
        }
        Ok(())
    }),
    // Freed, foreign, null and made-up handles are refused.
    test(
        "context::bad_handles",
        &[
            "it_get_consumer_context IT_ERR_INVALID_HANDLE",
            "it_set_consumer_context IT_ERR_INVALID_HANDLE",
            "it_get_handle_type V01",
            "it_handle_t F11",
            "it_status_t F42",
        ],
        |f| {
            let pz = f.a.pz_create()?;
            f.a.set_consumer_context(pz, 9)?;
            f.a.pz_free(pz)?;
            let foreign: Handle = f.b.pz_create()?.into();
            let junk = [0, 1, u64::MAX, 0x0000_0000_ffff_ffff, 0xffff_ffff_0000_0000].map(Handle::from_raw);
            for handle in junk.into_iter().chain([pz.into(), foreign, Handle::NULL]) {
                refused(f.a.get_consumer_context(handle), Error::InvalidHandle)?;
                refused(f.a.set_consumer_context(handle, 1), Error::InvalidHandle)?;
                refused(f.a.get_handle_type(handle), Error::InvalidHandle)?;
            }
            refused(f.b.get_consumer_context(foreign), Error::NoContext)?;
            check_eq!(Error::InvalidHandle as u32, 41);
            Ok(())
        },
    ),
    // An object that reuses the place of a freed one does not inherit its context.
    test("context::a_new_object_has_none", &["it_get_consumer_context IT_ERR_NO_CONTEXT"], |f| {
        let old = f.a.pz_create()?;
        f.a.set_consumer_context(old, 77)?;
        f.a.pz_free(old)?;
        for _ in 0..8 {
            let pz = f.a.pz_create()?;
            refused(f.a.get_consumer_context(pz), Error::NoContext)?;
            f.a.pz_free(pz)?;
        }
        Ok(())
    }),
    // Each handle converts to the general handle and back, and its type has the header's number.
    test(
        "context::handle_types",
        &["it_get_handle_type B01", "it_handle_t B01 F02-F07", "A.it_handle_t B01", "G.1 F08"],
        |f| {
            let numbers = [
                (HandleType::Ep, 1),
                (HandleType::Evd, 2),
                (HandleType::Ia, 3),
                (HandleType::Listen, 4),
                (HandleType::Lmr, 5),
                (HandleType::Pz, 6),
            ];
            for (kind, number) in numbers {
                check_eq!(kind as u32, number);
            }
            for (kind, handle) in one_of_each(f)? {
                check_eq!(f.a.get_handle_type(handle)?, kind);
                check_eq!(Handle::from_raw(handle.as_raw()), handle, "a handle from its raw value");
            }
            let pz = f.a.pz_create()?;
            check_eq!(PzHandle::try_from(Handle::from(pz))?, pz);
            refused(EpHandle::try_from(Handle::from(pz)), Error::InvalidHandle)?;
            Ok(())
        },
    ),
    // A freed handle is invalid for ever, even if its index is reused.
    test("context::freed_handles_stay_invalid", &["it_pz_free B01"], |f| {
        let mut freed = Vec::new();
        for _ in 0..100 {
            let pz = f.a.pz_create()?;
            check!(!freed.contains(&pz), "a handle was given out twice");
            f.a.pz_free(pz)?;
            freed.push(pz);
        }
        let living = f.a.pz_create()?;
        for pz in freed {
            refused(f.a.pz_query(pz, PzParamMask::ALL), Error::InvalidPz)?;
        }
        check_eq!(f.a.pz_query(living, PzParamMask::ALL)?.ia, f.a.handle());
        Ok(())
    }),
    // A freed handle of each type is refused by the calls that use the object, while an object that
    // was made after the free has its index. A region that was freed is out of reach for requests.
    test("context::stale_handles_are_found_out", &["4.8 V01"], |f| {
        let (own, peer) = (Stale::new(f, &f.a)?, f.pair()?);
        own.free(&f.a)?;
        let living = Stale::new(f, &f.a)?;
        let (ia, ep) = (&f.a, own.end.ep);
        let segment = [living.region.segment(0, 8)];
        let (at, context) = (RdmaAddr(0), RmrContext(0));
        for refusal in [
            ia.post_send(ep, &segment, 1, SIGNALLED),
            ia.post_recv(ep, &segment, 1, SIGNALLED),
            ia.post_rdma_write(ep, &segment, 1, SIGNALLED, at, context),
            ia.post_rdma_read(ep, &segment, 1, SIGNALLED, at, context),
            ia.ep_reset(ep),
            ia.ep_disconnect(ep, &[]),
            ia.ep_free(ep),
        ] {
            refused(refusal, Error::InvalidEp)?;
        }
        refused(ia.post_recv(own.srq, &segment, 1, SIGNALLED), Error::InvalidSrq)?;
        refused(ia.srq_free(own.srq), Error::InvalidSrq)?;
        for evd in [own.end.request, own.end.recv, own.end.conn] {
            refused(ia.evd_dequeue(evd), Error::InvalidEvd)?;
            refused(ia.evd_wait(evd, 0).map_err(Error::from), Error::InvalidEvd)?;
            refused(ia.evd_free(evd), Error::InvalidEvd)?;
        }
        refused(ia.lmr_free(own.region.lmr), Error::InvalidLmr)?;
        refused(ia.rmr_free(own.rmr), Error::InvalidRmr)?;
        refused(ia.pz_free(own.end.pz), Error::InvalidPz)?;
        refused(ia.address_handle_free(own.addr), Error::InvalidAh)?;
        // The objects that took the places are untouched.
        check_eq!(living.end.state()?, EpStateRc::Unconnected);
        living.end.idle()?;
        check_eq!(ia.lmr_query(living.region.lmr, LmrParamMask::ALL)?.length, 64);
        // Neither a local segment nor a peer reaches anything through the freed region.
        let target = f.region(&f.a, peer.a.pz, 64, OPEN)?;
        let (at, stale) = (own.region.remote(0), own.region.context()?);
        let source = f.region(&f.b, peer.b.pz, 64, OPEN)?;
        source.fill(1);
        f.b.post_rdma_write(peer.b.ep, &[source.whole()], 1, SIGNALLED, at, stale)?;
        peer.b.done(1, DtoStatus::RemoteAccess)?;
        let pair = f.pair()?;
        f.a.post_send(pair.a.ep, &[own.region.whole()], 2, SIGNALLED)?;
        pair.a.done(2, DtoStatus::LocalProtection)?;
        target.untouched()?;
        own.region.untouched()?;
        living.region.untouched()
    }),
];
