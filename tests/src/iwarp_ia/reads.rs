//! RDMA Reads over iWARP: the memory that they fill counts as written by the peer, and they can
//! unlink it (pages it_post_rdma_read, it_dto_flags_t, it_ia_info_t).

use privileged_api::*;

use super::{Scene, closed, open};
use crate::fixture::{PAGE, SIGNALLED};
use crate::remote::link::linked;
use crate::remote::rmr;
use crate::{Test, check, check_eq, refused, test};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Without the right of remote writes, of the sink or of the endpoint, a Read fails, and its
    // memory is as before; a Read of no bytes needs neither.
    test(
        "iwarp_ia::the_sink_counts_as_written_by_the_peer",
        &["it_post_rdma_read A18 A21 B22", "it_dto_status_t A07"],
        |f| {
            let f = f.over_iwarp()?;
            for case in 0..2 {
                let attr = if case == 0 { open() } else { closed() };
                let scene = Scene::of(&f, &attr, &open())?;
                let ep = scene.pair.a.ep;
                let privs = if case == 0 { MemPriv::LOCAL } else { crate::fixture::OPEN };
                let sink = f.region(&f.a, scene.pair.a.pz, PAGE, privs)?;
                let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
                let nothing = LmrTriplet { length: 0, ..sink.whole() };
                f.a.post_rdma_read(ep, &[nothing], 1, SIGNALLED, at, context)?;
                scene.pair.a.done(1, DtoStatus::Success)?;
                f.a.post_rdma_read(ep, &[sink.whole()], 2, SIGNALLED, at, context)?;
                scene.pair.a.done(2, DtoStatus::LocalProtection)?;
                sink.untouched()?;
                scene.pair.a.broken()?;
                scene.pair.b.broken()?;
                scene.end()?;
            }
            Ok(())
        },
    ),
    // A Read with the flag to unlink its sink unlinks it once the data is there. The flag is for
    // one segment, and for Reads to LMRs and to RMRs; no other call takes it.
    test("iwarp_ia::a_read_unlinks_its_sink", &["it_dto_flags_t B30 F23"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let ep = scene.pair.a.ep;
        scene.peer.fill(3);
        let flags = SIGNALLED | DtoFlags::UNLINK_LOCAL_SINK;
        let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
        let two = [scene.own.segment(0, 8), scene.own.segment(8, 8)];
        refused(f.a.post_rdma_read(ep, &two, 1, flags, at, context), Error::InvalidDtoFlags)?;
        refused(f.a.post_rdma_read(ep, &[], 1, flags, at, context), Error::InvalidDtoFlags)?;
        refused(f.a.post_rdma_write(ep, &two[..1], 1, flags, at, context), Error::InvalidDtoFlags)?;
        refused(f.a.post_send(ep, &two[..1], 1, flags), Error::InvalidDtoFlags)?;
        let bad = Error::InvalidDtoFlags;
        refused(f.a.post_send_and_unlink(ep, &two[..1], 1, flags, context), bad)?;
        refused(f.a.post_recv(ep, &two[..1], 1, flags), bad)?;
        refused(f.a.lmr_unlink(scene.own.lmr, ep, 1, flags), bad)?;
        let rmr = f.a.rmr_create(scene.pair.a.pz, RmrType::Narrow)?;
        let link = rmr::Link::of(rmr, &scene.own);
        refused(rmr::Link { flags, ..link }.post(&scene.pair.a, 1), bad)?;
        refused(f.a.rmr_unlink(rmr, ep, 1, flags), bad)?;
        check!(linked(&f.a, scene.own.lmr)?);
        link.made(&scene.pair.a)?;
        let piece = RmrTriplet { rmr, addr: scene.own.buffer.addr() as u64, length: 8 };
        f.a.post_rdma_read_to_rmr(ep, &[piece], 3, flags, at, context)?;
        scene.pair.a.done(3, DtoStatus::Success)?;
        check!(!f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
        f.a.post_rdma_read(ep, &[scene.own.segment(0, 8)], 2, flags, at, context)?;
        scene.pair.a.done(2, DtoStatus::Success)?;
        check_eq!(scene.own.bytes(0, 8), scene.peer.bytes(0, 8));
        check!(!linked(&f.a, scene.own.lmr)?);
        Ok(())
    }),
    // A sink to which an RMR is linked stays linked, and the Read fails.
    test("iwarp_ia::a_sink_with_an_rmr_is_not_unlinked", &["it_dto_status_t A09"], |f| {
        let f = f.over_iwarp()?;
        for rmr_type in rmr::TYPES {
            let scene = Scene::new(&f)?;
            let end = &scene.pair.a;
            let rmr = f.a.rmr_create(end.pz, rmr_type)?;
            rmr::Link::of(rmr, &scene.own).made(end)?;
            let flags = SIGNALLED | DtoFlags::UNLINK_LOCAL_SINK;
            let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
            f.a.post_rdma_read(end.ep, &[scene.own.segment(0, 8)], 2, flags, at, context)?;
            end.done(2, DtoStatus::LocalProtection)?;
            end.broken()?;
            check!(linked(&f.a, scene.own.lmr)? && f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            f.a.rmr_free(rmr)?;
            scene.end()?;
        }
        Ok(())
    }),
];
