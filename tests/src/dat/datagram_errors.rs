//! Datagrams with immediate data, and the errors of Sends of datagrams (page dat_ib_post_send_ud).

use dat::*;
use privileged_api as it;

use super::datagrams::*;
use super::resolving::{is_freed, point, state};
use super::world::*;
use crate::datagrams::ud;
use crate::fixture::{PAGE, SIGNALLED};
use crate::{Test, check, check_eq, refused, some, test};

const BAD_ENDPOINT: Error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
const BAD_ADDRESS: Error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle2);

pub(crate) const TESTS: &[Test] = &[
    // The completion of a Receive says that its datagram had immediate data, and has the number as
    // it was sent. No call of DAT sends such a datagram, so the sender is an IT-API consumer.
    test(
        "dat_datagrams::immediate_data_arrives",
        &[
            "DAT_IB_DTOS A02 F08",
            "DAT_IB_EXT_TYPE F05",
            "DAT_IB_IMMED_DATA B01 F01",
            "DAT_IB_EXTENSION_EVENT_DATA F03",
        ],
        |f| {
            world(f, |w| {
                let two = two(w)?;
                let peer = ud::peer(&f.a, &ud::datagrams())?;
                let ep_info = it::RemoteEpInfo { ud_ep_id: two.of_b.qpn, ud_ep_key: two.of_b.qkey };
                let to = it::DgRemoteEpAddr::IbUd { addr: ud::address(&f.a, peer.pz, &f.b)?, ep_info };
                let source = f.region(&f.a, peer.pz, 64, crate::fixture::OPEN)?;
                source.fill(8);
                for (cookie, number) in (0..).zip([0xdead_beef, 0, 1, u32::MAX]) {
                    two.b.receive(&[two.into.segment(0, 64)], cookie)?;
                    let length = cookie as usize * 5;
                    let event = delivered(w, &two.b, || {
                        let piece = [source.segment(0, length)];
                        f.a.post_sendto_immediate(peer.ep, &piece, 9, SIGNALLED, &to, number)?;
                        peer.sent(9, it::DtoStatus::Success)
                    })?;
                    check_eq!(event.event_number.as_raw(), 0x40000);
                    let done = some(event.dto(), "a completion")?;
                    check_eq!((done.user_cookie, done.status), (cookie, DtoStatus::Success));
                    check_eq!((done.operation, done.operation.as_raw()), (Dto::IB_RECV_UD_IMMED, 15));
                    check_eq!(done.transferred_length, (FRONT + length) as u64);
                    let extension = some(event.extension, "extension data")?;
                    check_eq!((extension.ext_type as u32, extension.status as u32), (4, 0));
                    check_eq!((extension.ext_type, extension.immed), (IbExtType::RecvImmedData, number));
                    check_eq!(two.into.bytes(FRONT, length), source.bytes(0, length));
                }
                // A datagram without immediate data has no number.
                two.works(w)
            })
        },
    ),
    // Only a datagram endpoint of this IA sends datagrams, and only to address handles of its zone
    // that are not freed. A datagram endpoint does nothing else.
    test("dat_datagrams::wrong_handles_are_refused", &["dat_ib_post_send_ud DAT_INVALID_HANDLE"], |f| {
        world(f, |w| {
            let two = two(w)?;
            let (connected, _) = w.pair()?;
            let freed = w.end(&w.a, &datagrams())?;
            w.a.ep_free(freed.ep)?;
            let other_face = ud::peer(&f.a, &ud::datagrams())?;
            let piece = [two.from.segment(0, 8)];
            let send = |ep, ah| {
                let to = IbAddrHandle { ah, ..two.of_b };
                w.a.ib_post_send_ud(ep, &piece, &to, 1, PLAIN)
            };
            for ep in [
                EpHandle::NULL,
                connected.ep,
                freed.ep,
                two.b.ep,
                EpHandle::from_raw(two.a.pz.as_raw()),
                EpHandle::from_raw(u64::MAX),
                EpHandle::from_raw(other_face.ep.as_raw()),
            ] {
                refused(send(ep, two.of_b.ah), BAD_ENDPOINT)?;
            }
            // An endpoint in the zone of the first one can use its address handles; an endpoint in
            // another zone cannot.
            let zone = w.end(&w.a, &datagrams())?;
            let (of_other, _) = w.resolve(&zone, &two.b)?;
            let gone = w.resolve(&two.a, &two.b)?.0.ah;
            w.a.ib_ud_ah_free(two.a.ep, gone)?;
            is_freed(&two.a, gone)?;
            let foreign = ud::address(&f.a, other_face.pz, &f.b)?;
            for ah in [
                AhHandle::NULL,
                two.of_a.ah,
                of_other.ah,
                gone,
                AhHandle::from_raw(two.a.ep.as_raw()),
                AhHandle::from_raw(foreign.as_raw()),
            ] {
                refused(send(two.a.ep, ah), BAD_ADDRESS)?;
            }
            let (pz, recv, requests) = (two.a.pz, two.a.recv, two.a.request);
            let near = End {
                ep: w.a.ep_create(pz, recv, requests, two.a.connect, Some(&datagrams()))?,
                ..two.a.clone()
            };
            w.resolve(&near, &two.b)?;
            w.a.ib_post_send_ud(near.ep, &piece, &two.of_b, 6, PLAIN)?;
            near.done(6, DtoStatus::Success)?;
            // Calls that only connections allow.
            let (ep, place) = (two.a.ep, two.from.remote(0, 8));
            refused(w.a.ep_post_send(ep, &piece, 1, PLAIN), BAD_ENDPOINT)?;
            refused(w.a.ep_post_rdma_write(ep, &piece, 1, &place, PLAIN), BAD_ENDPOINT)?;
            refused(w.a.ep_post_rdma_read(ep, &piece, 1, &place, PLAIN), BAD_ENDPOINT)?;
            refused(w.a.ib_post_rdma_write_with_immed(ep, &piece, 1, &place, 2, PLAIN), BAD_ENDPOINT)?;
            refused(w.a.ib_post_fetch_and_add(ep, 1, &piece[0], 1, &place, PLAIN), BAD_ENDPOINT)?;
            refused(w.a.ib_post_cmp_and_swap(ep, 1, 2, &piece[0], 1, &place, PLAIN), BAD_ENDPOINT)?;
            check_eq!(w.a.ep_get_status(ep)?, (EpState::Connected, true, true));
            nothing(&w.a, two.a.request)?;
            two.works(w)
        })
    }),
    // Datagrams can be sent while the endpoint is connected: from the first remote endpoint that it
    // resolves, or that resolves it, until it disconnects. Receives can be posted in all states. In
    // DISCONNECTED a Send is refused and not flushed, since its address handle is freed.
    test(
        "dat_datagrams::only_a_connected_endpoint_sends",
        &["dat_ib_post_send_ud A01 A02 DAT_INVALID_STATE"],
        |f| {
            world(f, |w| {
                let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
                let into = w.region(&a, PAGE, MemPriv::ALL)?;
                let post = |to: &IbAddrHandle| w.a.ib_post_send_ud(a.ep, &[], to, 1, PLAIN);
                let receive = |cookie| a.receive(&[into.segment(cookie as usize * 64, 64)], cookie);
                refused(post(&IbAddrHandle::NONE), state(Subtype::InvalidStateEpUnconnected))?;
                receive(0)?;
                point.ask(&a, &[])?;
                check_eq!(a.state()?, EpState::ActiveConnectionPending);
                refused(post(&IbAddrHandle::NONE), state(Subtype::InvalidStateEpActConnPending))?;
                receive(1)?;
                w.b.cr_accept(point.asked()?, b.ep, &[])?;
                let of_b = super::resolving::established(&a)?.0.remote_ah;
                let of_a = super::resolving::established(&b)?.0.remote_ah;
                post(&of_b)?;
                a.done(1, DtoStatus::Success)?;
                // While the endpoint resolves another one it stays connected.
                point.ask(&a, &[])?;
                let _unanswered = point.asked()?;
                post(&of_b)?;
                a.done(1, DtoStatus::Success)?;
                receive(2)?;
                for cookie in 0..3 {
                    let event = delivered(w, &a, || {
                        w.b.ib_post_send_ud(b.ep, &[], &of_a, 4, PLAIN)?;
                        b.done(4, DtoStatus::Success).map(drop)
                    })?;
                    let taken = event.dto().map(|done| done.user_cookie);
                    check!(f.setup.lossy || taken == Some(cookie), "{taken:?}");
                }
                w.a.ep_disconnect(a.ep, CloseFlags::Abrupt)?;
                expect(&w.a, a.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                refused(post(&of_b), state(Subtype::InvalidStateEpDisconnected))?;
                receive(3)?;
                w.a.ep_reset(a.ep)?;
                refused(post(&of_b), state(Subtype::InvalidStateEpUnconnected))?;
                nothing(&w.a, a.request)?;
                let (of_b, _) = point.resolve(&a, &b)?;
                post(&of_b)?;
                a.done(1, DtoStatus::Success).map(drop)
            })
        },
    ),
    // As many Sends as the endpoint can have are taken, and no more. A Send counts until its
    // completion is taken.
    test("dat_datagrams::a_full_queue_refuses", &["dat_ib_post_send_ud DAT_INSUFFICIENT_RESOURCES"], |f| {
        world(f, |w| {
            let two = two_of(w, &EpAttr { max_request_dtos: 5, ..datagrams() }, &datagrams())?;
            let full = Error::new(ErrorType::InsufficientResources, Subtype::ResourceTep);
            for cookie in 0..5 {
                two.post(&[two.from.segment(0, 8)], cookie, PLAIN)?;
            }
            refused(two.post(&[], 5, PLAIN), full)?;
            refused(two.post(&[], 5, CompletionFlags::SUPPRESS), full)?;
            check_eq!(w.a.ep_get_status(two.a.ep)?, (EpState::Connected, true, false));
            two.a.done(0, DtoStatus::Success)?;
            two.post(&[], 6, PLAIN)?;
            refused(two.post(&[], 7, PLAIN), full)?;
            for cookie in [1, 2, 3, 4, 6] {
                two.a.done(cookie, DtoStatus::Success)?;
            }
            nothing(&w.a, two.a.request)?;
            two.works(w)
        })
    }),
    // A bad segment fails the Send: the completion says so, nothing is sent, and the endpoint is in
    // DISCONNECTED, where it can only be freed. Other endpoints are not affected.
    test("dat_datagrams::bad_memory_fails_the_send", &["DAT_IB_STATUS B01 F02"], |f| {
        world(f, |w| {
            let other = two(w)?;
            for kind in 0..4 {
                let two = two(w)?;
                let freed = w.region(&two.a, 64, MemPriv::ALL)?;
                w.a.lmr_free(freed.lmr.lmr_handle)?;
                let bad = match kind {
                    0 => LmrTriplet::new(LmrContext::default(), 0, 8),
                    1 => other.from.segment(0, 8),
                    2 => two.from.segment(2 * PAGE - 4, 8),
                    _ => freed.segment(0, 8),
                };
                two.b.receive(&[two.into.segment(0, 100)], 4)?;
                let to = &two.of_b;
                w.a.ib_post_send_ud(two.a.ep, &[two.from.segment(0, 8), bad], to, kind, PLAIN)?;
                let (done, number, extension) = two.a.done(kind, DtoStatus::LocalProtection)?;
                check_eq!((number, done.operation), (EventNumber::IB_DTO, Dto::IB_SEND_UD));
                let extension = some(extension, "extension data")?;
                check_eq!((extension.ext_type, extension.status as u32), (IbExtType::UdSend, 1));
                check_eq!(two.a.state()?, EpState::Disconnected);
                // A Receive that is posted now is flushed.
                two.a.receive(&[two.from.segment(0, 64)], 5)?;
                two.a.received(5, DtoStatus::Flushed)?;
                nothing(&w.b, two.b.recv)?;
                other.works(w)?;
                refused(w.a.ep_reset(two.a.ep), state(Subtype::InvalidStateEpDisconnected))?;
                w.a.ep_free(two.a.ep)?;
            }
            Ok(())
        })
    }),
    // A datagram that does not fit its Receive is lost. The Receive waits for one that fits, and
    // neither endpoint gets an error.
    test("dat_datagrams::one_that_does_not_fit_is_lost", &[], |f| {
        world(f, |w| {
            let two = two(w)?;
            two.b.receive(&[two.into.segment(0, FRONT + 7)], 1)?;
            two.send(&[two.from.segment(0, 8)], 3)?;
            let event = delivered(w, &two.b, || two.send(&[two.from.segment(0, 7)], 3))?;
            let done = some(event.dto(), "a completion")?;
            check_eq!((done.user_cookie, done.status), (1, DtoStatus::Success));
            check_eq!(done.transferred_length as usize, FRONT + 7);
            check_eq!((two.a.state()?, two.b.state()?), (EpState::Connected, EpState::Connected));
            two.works(w)
        })
    }),
];
