//! What the peer refuses: the request has succeeded, the connection breaks afterwards, and an
//! affiliated event at each end says why (pages it_affiliated_event_t, it_dto_status_t,
//! it_post_rdma_write, it_post_rdma_read, it_post_send, it_post_recv, it_post_send_and_unlink).

use nic_abi::admin::Injection;
use privileged_api::*;

use super::{Scene, closed, open, page};
use crate::fixture::{PAGE, SIGNALLED};
use crate::requests::errors::affiliated;
use crate::{Outcome, Test, check, check_eq, test};

const REMOTE_ACCESS: EventType = EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION;
const LOCAL_ACCESS: EventType = EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION;

impl Scene {
    /// The connection breaks, with these events at the end that asked, and at its peer.
    #[track_caller]
    fn breaks(self, here: Option<EventType>, there: Option<EventType>) -> Outcome {
        for (end, evd, number) in [(&self.pair.b, self.there, there), (&self.pair.a, self.here, here)] {
            if let Some(number) = number {
                affiliated(&end.ia, evd, number, end.ep)?;
            }
            end.broken()?;
            check!(end.ia.evd_dequeue(evd) == Err(Error::QueueEmpty), "one event is enough");
        }
        self.end()
    }
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // An RDMA Write to memory that the peer may not write: success first, then an event at each
    // end. Nothing is written.
    test(
        "iwarp_ia::writes_that_are_refused",
        &["it_post_rdma_write A13", "it_affiliated_event_t F19 F32 F38"],
        |f| {
            let f = f.over_iwarp()?;
            for case in 0..4 {
                let scene = match case {
                    3 => Scene::of(&f, &open(), &closed())?,
                    _ => Scene::new(&f)?,
                };
                let (own, peer) = (&scene.own, &scene.peer);
                let unwritable =
                    f.region(&f.b, scene.pair.b.pz, PAGE, MemPriv::LOCAL | MemPriv::REMOTE_READ)?;
                let (at, context) = match case {
                    0 => (peer.remote(PAGE - 4), peer.context()?),
                    1 => (peer.remote(0), RmrContext(u32::MAX)),
                    2 => (unwritable.remote(0), unwritable.context()?),
                    _ => (peer.remote(0), peer.context()?),
                };
                // One segment of the wire: those before the one that is refused would be placed.
                let short = [own.segment(0, 8)];
                f.a.post_rdma_write(scene.pair.a.ep, &short, 7, SIGNALLED, at, context)?;
                scene.pair.a.done(7, DtoStatus::Success)?;
                peer.untouched()?;
                scene.breaks(Some(REMOTE_ACCESS), Some(LOCAL_ACCESS))?;
            }
            Ok(())
        },
    ),
    // An RDMA Read of memory that the peer may not read completes in error, and the peer has an
    // event.
    test(
        "iwarp_ia::reads_that_are_refused",
        &["it_post_rdma_read A12 A14", "it_affiliated_event_t F15 F34", "it_dto_status_t F34 O01"],
        |f| {
            let f = f.over_iwarp()?;
            for case in 0..3 {
                let scene = Scene::new(&f)?;
                let (own, peer) = (&scene.own, &scene.peer);
                let before = own.all();
                let unreadable =
                    f.region(&f.b, scene.pair.b.pz, PAGE, MemPriv::LOCAL | MemPriv::REMOTE_WRITE)?;
                let (at, context) = match case {
                    0 => (peer.remote(1), peer.context()?),
                    1 => (peer.remote(0), RmrContext(u32::MAX)),
                    _ => (unreadable.remote(0), unreadable.context()?),
                };
                f.a.post_rdma_read(scene.pair.a.ep, &[own.whole()], 7, SIGNALLED, at, context)?;
                scene.pair.a.done(7, DtoStatus::RemoteAccess)?;
                check_eq!(own.all(), before);
                scene.breaks(None, Some(EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION))?;
            }
            Ok(())
        },
    ),
    // A Send without a Receive succeeds, and breaks the connection.
    test(
        "iwarp_ia::a_send_without_a_receive",
        &[
            "it_post_send A05 A07",
            "it_post_recv A05 A07",
            "it_post_send_and_unlink A04 A06",
            "it_affiliated_event_t F14 F20 F33 F39",
        ],
        |f| {
            let f = f.over_iwarp()?;
            for unlinks in [false, true] {
                let scene = Scene::new(&f)?;
                let (ep, segments) = (scene.pair.a.ep, [scene.own.segment(0, 64)]);
                match unlinks {
                    false => f.a.post_send(ep, &segments, 3, SIGNALLED)?,
                    true => f.a.post_send_and_unlink(ep, &segments, 3, SIGNALLED, scene.peer.context()?)?,
                }
                scene.pair.a.done(3, DtoStatus::Success)?;
                let here = EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION;
                scene.breaks(Some(here), Some(EventType::ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION))?;
            }
            Ok(())
        },
    ),
    // A Send that is longer than its Receive: the Receive fails, the Send has succeeded.
    test(
        "iwarp_ia::a_send_that_is_too_long",
        &[
            "it_post_send A10",
            "it_post_recv A10",
            "it_post_send_and_unlink A09",
            "it_affiliated_event_t F21 F40",
            "it_dto_status_t F29",
        ],
        |f| {
            let f = f.over_iwarp()?;
            for unlinks in [false, true] {
                let scene = Scene::new(&f)?;
                f.b.post_recv(scene.pair.b.ep, &[scene.peer.segment(0, 63)], 4, DtoFlags::COMPLETION)?;
                let (ep, segments) = (scene.pair.a.ep, [scene.own.segment(0, 64)]);
                match unlinks {
                    false => f.a.post_send(ep, &segments, 3, SIGNALLED)?,
                    true => f.a.post_send_and_unlink(ep, &segments, 3, SIGNALLED, scene.peer.context()?)?,
                }
                scene.pair.a.done(3, DtoStatus::Success)?;
                scene.pair.b.recv_done(4, DtoStatus::LocalLength)?;
                scene.breaks(Some(EventType::ASYNC_AFF_EP_R_RECV_LENGTH_ERROR), None)?;
            }
            Ok(())
        },
    ),
    // A Send whose region the peer may not unlink: no completion of the sender shows it, and the
    // connection breaks.
    test("iwarp_ia::an_unlink_that_is_refused", &["it_post_send_and_unlink A20"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        f.b.post_recv(scene.pair.b.ep, &[scene.peer.whole()], 4, DtoFlags::COMPLETION)?;
        // A region that was created linked cannot be unlinked by a peer.
        let other = page(&f, &scene.pair.b)?;
        let segments = [scene.own.segment(0, 64)];
        f.a.post_send_and_unlink(scene.pair.a.ep, &segments, 3, SIGNALLED, other.context()?)?;
        scene.pair.a.done(3, DtoStatus::Success)?;
        check!(scene.pair.b.reap_recv()?.dto_status != DtoStatus::Success);
        scene.pair.a.broken()?;
        scene.pair.b.broken()?;
        scene.pair.a.idle()
    }),
    // What is outstanding when the connection ends is flushed; so is what is posted afterwards.
    test("iwarp_ia::flushed", &["it_dto_status_t F28 F32"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let ep = scene.pair.a.ep;
        f.b.post_recv(scene.pair.b.ep, &[scene.peer.whole()], 1, DtoFlags::COMPLETION)?;
        f.a.post_recv(ep, &[], 2, DtoFlags::COMPLETION)?;
        f.a.post_send(ep, &[scene.own.segment(0, 8)], 3, SIGNALLED)?;
        scene.pair.a.done(3, DtoStatus::Success)?;
        scene.pair.b.recv_done(1, DtoStatus::Success)?;
        f.a.ep_disconnect(ep, &[])?;
        scene.pair.a.recv_done(2, DtoStatus::Flushed)?;
        f.a.post_send(ep, &[scene.own.segment(0, 8)], 4, SIGNALLED)?;
        scene.pair.a.done(4, DtoStatus::Flushed)
    }),
    // Memory of this end that a request may not use fails the request itself.
    test("iwarp_ia::local_memory", &["it_dto_status_t F31"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let freed = page(&f, &scene.pair.a)?;
        let segment = freed.segment(0, 8);
        f.a.lmr_free(freed.lmr)?;
        f.a.post_send(scene.pair.a.ep, &[segment], 5, SIGNALLED)?;
        scene.pair.a.done(5, DtoStatus::LocalProtection)?;
        scene.pair.a.broken()?;
        scene.pair.b.broken()
    }),
    // A request of this end that fails by the endpoint's fault says so.
    test("iwarp_ia::an_endpoint_that_fails", &["it_dto_status_t F30"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        f.inject_into(&scene.pair.a, Injection::Failure, 1, nic_abi::cqe::Status::LocalQpOperation as u64)?;
        f.a.post_send(scene.pair.a.ep, &[scene.own.segment(0, 8)], 6, SIGNALLED)?;
        scene.pair.a.done(6, DtoStatus::LocalEp)?;
        scene.pair.a.broken()
    }),
];
