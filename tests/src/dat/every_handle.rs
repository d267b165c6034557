//! Each handle argument of each call: null, freed, of another IA, of IT-API, of another type. The
//! call fails with the subtype of that argument, and changes nothing. Also: every call on a dead
//! device.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use privileged_api as it;

use super::events::invalid;
use super::every_call::{CALLS, Call, Handles, Objects, Role};
use super::world::*;
use crate::fixture::{self, Fixture, PAGE};
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A kind of bad handle, and how to make one for each role.
type Bad = (&'static str, fn(&World<'_>, &Objects, Role) -> Result<u64, Failure>);

/// The handle of a freed object.
fn freed(w: &World<'_>, objects: &Objects, role: Role) -> Result<u64, Failure> {
    let ia = &objects.ia;
    let pz = ia.pz_create()?;
    let word = match role.kind() {
        HandleType::Pz => {
            let pz = ia.pz_create()?;
            ia.pz_free(pz)?;
            pz.as_raw()
        }
        HandleType::Lmr => {
            let lmr = w.region_in(ia, pz, PAGE, OPEN)?.lmr.lmr_handle;
            ia.lmr_free(lmr)?;
            lmr.as_raw()
        }
        HandleType::Rmr => {
            let rmr = ia.rmr_create(pz)?;
            ia.rmr_free(rmr)?;
            rmr.as_raw()
        }
        HandleType::Srq => {
            let srq = ia.srq_create(pz, &SrqAttr::default())?;
            ia.srq_free(srq)?;
            srq.as_raw()
        }
        HandleType::Evd => {
            let flags = match role {
                Role::Connect => EvdFlags::CONNECTION,
                Role::Requests => EvdFlags::CR,
                Role::Software => EvdFlags::SOFTWARE,
                _ => EvdFlags::DTO,
            };
            let evd = evd(ia, flags)?;
            ia.evd_free(evd)?;
            evd.as_raw()
        }
        HandleType::Cno => {
            let cno = ia.cno_create(None)?;
            ia.cno_free(cno)?;
            cno.as_raw()
        }
        HandleType::Ep => {
            let attr = if role == Role::Datagram { datagrams() } else { attributes() };
            let end = w.end(ia, &attr)?;
            ia.ep_free(end.ep)?;
            end.ep.as_raw()
        }
        HandleType::Psp => {
            let (_, psp) = ia.psp_create_any(evd(ia, EvdFlags::CR)?, PspFlags::Consumer)?;
            ia.psp_free(psp)?;
            psp.as_raw()
        }
        HandleType::Rsp => {
            let requests = evd(ia, EvdFlags::CR)?;
            let (free, probe) = ia.psp_create_any(requests, PspFlags::Consumer)?;
            ia.psp_free(probe)?;
            let rsp = ia.rsp_create(free, w.end(ia, &attributes())?.ep, requests)?;
            ia.rsp_free(rsp)?;
            rsp.as_raw()
        }
        HandleType::Cr => {
            let requests = evd(ia, EvdFlags::CR)?;
            let (conn_qual, psp) = ia.psp_create_any(requests, PspFlags::Consumer)?;
            let dialer = w.end(&w.a, &attributes())?;
            dial(&dialer, address(ia)?, conn_qual, &[])?;
            let cr = request(ia, requests)?;
            ia.cr_reject(cr, &[])?;
            expect(&w.a, dialer.connect, EventNumber::CONNECTION_PEER_REJECTED)?;
            ia.psp_free(psp)?;
            cr.as_raw()
        }
        _ => {
            let (_, (end, ah)) = w.resolved()?;
            ia.ib_ud_ah_free(end.ep, ah.ah)?;
            ah.ah.as_raw()
        }
    };
    Ok(word)
}

/// The handle of an IT-API object of the same kind on the same NIC; if IT-API has no such kind, of
/// a zone.
fn of_the_other_face(w: &World<'_>, _: &Objects, role: Role) -> Result<u64, Failure> {
    let ia = &w.f.b;
    let end = w.f.end(ia, &fixture::attributes())?;
    Ok(match role.kind() {
        HandleType::Lmr => w.f.region(ia, end.pz, PAGE, fixture::OPEN)?.lmr.as_raw(),
        HandleType::Rmr => ia.rmr_create(end.pz, it::RmrType::Wide)?.as_raw(),
        HandleType::Srq => ia.srq_create(end.pz, 1, 4)?.as_raw(),
        HandleType::Evd => match role {
            Role::Recv => end.recv.as_raw(),
            Role::Connect => end.conn.as_raw(),
            _ => end.request.as_raw(),
        },
        HandleType::Ep => end.ep.as_raw(),
        HandleType::IbExt => {
            let path = fixture::path(ia, &w.f.listen(ia)?.address)?;
            ia.address_handle_create(end.pz, &path, it::AhFlags::PATH_COMPLETE)?.as_raw()
        }
        _ => end.pz.as_raw(),
    })
}

/// A handle of another type: a zone's, and for zones an endpoint's.
fn of_another_type(_: &World<'_>, objects: &Objects, role: Role) -> Result<u64, Failure> {
    Ok(objects.handles.get(if role == Role::Pz { Role::Ep } else { Role::Pz }))
}

/// Makes each call with one bad handle at a time.
fn with_bad_handles(bad: Bad, objects: &Objects, words: &[(Role, u64)], call: &Call) -> Outcome {
    let (what, _) = bad;
    for &(role, subtype) in call.handles {
        let any_type = subtype == Subtype::InvalidHandle1 && role == Role::Pz;
        if what == "null" && call.nullable.contains(&role) || what == "another type's" && any_type {
            continue;
        }
        let word = words.iter().find(|(of, _)| *of == role).map_or(0, |(_, word)| *word);
        let handles: Handles = objects.handles.with(role, word);
        check_eq!((call.make)(objects, &handles), Some(invalid(subtype)), "{} {what} {role:?}", call.name);
    }
    Ok(())
}

/// Makes every call with such handles, and checks that nothing has changed.
fn refused_everywhere(f: &Fixture, bad: Bad) -> Outcome {
    world(f, |w| {
        let objects = Objects::new(w)?;
        let mut words = Vec::new();
        for role in super::every_call::ROLES {
            words.push((role, bad.1(w, &objects, role)?));
        }
        let before = objects.state()?;
        for call in CALLS {
            with_bad_handles(bad, &objects, &words, call)?;
        }
        check_eq!(objects.state()?, before);
        Ok(())
    })
}

/// The error of every call on a dead device.
const DEAD: Error = Error::new(ErrorType::InternalError, Subtype::None);

pub(crate) const TESTS: &[Test] = &[
    test("dat_handles::null", &[], |f| refused_everywhere(f, ("null", |_, _, _| Ok(0)))),
    test("dat_handles::freed", &[], |f| refused_everywhere(f, ("freed", freed))),
    test("dat_handles::of_another_ia", &[], |f| {
        // Each IA assigns the same words to the same roles, so the words of two IAs differ only by
        // the IA.
        world(f, |other| {
            let foreign = Objects::new(other)?.handles;
            world(f, |w| {
                let objects = Objects::new(w)?;
                let words: Vec<_> =
                    super::every_call::ROLES.iter().map(|role| (*role, foreign.get(*role))).collect();
                let before = objects.state()?;
                for call in CALLS {
                    with_bad_handles(("foreign", |_, _, _| Ok(0)), &objects, &words, call)?;
                }
                check_eq!(objects.state()?, before);
                Ok(())
            })
        })
    }),
    test("dat_handles::of_the_other_face", &[], |f| {
        refused_everywhere(f, ("the other API's", of_the_other_face))
    }),
    test("dat_handles::of_another_type", &[], |f| refused_everywhere(f, ("another type's", of_another_type))),
    // A word that no call ever returned, of each type and of none.
    test("dat_handles::made_up", &[], |f| {
        for word in [1, u64::MAX, 1 << 63, 0x00ff_ffff] {
            world(f, |w| {
                let objects = Objects::new(w)?;
                let words: Vec<_> = super::every_call::ROLES.iter().map(|role| (*role, word)).collect();
                for call in CALLS {
                    with_bad_handles(("made up", |_, _, _| Ok(0)), &objects, &words, call)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }),
    // IT-API refuses the handles of DAT's objects.
    test("dat_handles::in_the_other_face", &[], |f| {
        world(f, |w| {
            let (objects, ia) = (Objects::new(w)?, &f.b);
            for role in super::every_call::ROLES {
                let handle = it::Handle::from_raw(objects.handles.get(role));
                refused(ia.get_handle_type(handle), it::Error::InvalidHandle)?;
            }
            let h = |role| objects.handles.get(role);
            let ep = it::EpHandle::from_raw(h(Role::Ep));
            let none = it::DtoFlags::COMPLETION;
            refused(ia.post_send(ep, &[], 1, none), it::Error::InvalidEp)?;
            refused(ia.post_recv(ep, &[], 1, none), it::Error::InvalidEp)?;
            refused(ia.ep_free(ep), it::Error::InvalidEp)?;
            refused(ia.pz_free(it::PzHandle::from_raw(h(Role::Pz))), it::Error::InvalidPz)?;
            refused(ia.lmr_free(it::LmrHandle::from_raw(h(Role::Lmr))), it::Error::InvalidLmr)?;
            refused(ia.rmr_free(it::RmrHandle::from_raw(h(Role::Rmr))), it::Error::InvalidRmr)?;
            refused(ia.srq_free(it::SrqHandle::from_raw(h(Role::Srq))), it::Error::InvalidSrq)?;
            refused(ia.evd_dequeue(it::EvdHandle::from_raw(h(Role::Recv))), it::Error::InvalidEvd)?;
            refused(ia.evd_free(it::EvdHandle::from_raw(h(Role::Recv))), it::Error::InvalidEvd)?;
            objects.state().map(drop)
        })
    }),
];

/// The tests that leave a dead device behind.
pub(crate) const DEATHS: &[Test] = &[
    // Every call fails, every waiter returns, and the IA can be closed.
    test("dat_death::every_call_is_refused", &[], |f| {
        world(f, |w| {
            let (objects, ia) = (Objects::new(w)?, &w.b);
            let cno = ia.cno_create(None)?;
            let mut waiters = Vec::new();
            for flags in [EvdFlags::DTO, EvdFlags::SOFTWARE, EvdFlags::CONNECTION] {
                let (ia, evd) = (ia.clone(), evd(ia, flags)?);
                waiters.push(Thread::spawn(f.platform(), "waiter", move || {
                    ia.evd_wait(evd, TIMEOUT_INFINITE, 1).err().map(Error::from)
                })?);
            }
            let on_cno = ia.clone();
            waiters.push(Thread::spawn(f.platform(), "waiter", move || {
                on_cno.cno_wait(cno, TIMEOUT_INFINITE).err()
            })?);
            (f.setup.kill)();
            check!(eventually(f.platform(), || ia.pz_create() == Err(DEAD)), "the IA is not disabled");
            for waiter in waiters {
                check_eq!(waiter.join()?, Some(DEAD));
            }
            objects.all_refused(DEAD)?;
            ia.ia_close(CloseFlags::Abrupt)?;
            objects.all_refused(invalid(Subtype::InvalidHandleIa))
        })
    })
    .kills(),
];
