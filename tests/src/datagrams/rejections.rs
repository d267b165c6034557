//! Connections and service requests that a peer refuses or redirects, and messages that cross or
//! are late (pages it_cm_msg_events and its part of appendix A). The peer is a client of the agent
//! that sends messages no IT-API consumer can send.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use kernel_agent::{
    AsyncEvent, Client, CmEvent, CmEventKind, ConnectionId, Death, ResolutionEvent, ResolutionEventKind,
    ResolutionRequestId, Transports, Upcalls,
};
use nic_abi::admin::Injection;
use platform::sync::Mutex;
use privileged_api::*;
use roce::cm::redirection::Redirection;
use roce::cm::rej::Reason;
use roce::{Gid, PKey, QKey, Qpn, ServiceId};

use crate::check::some;
use crate::datagrams::sidr::reply;
use crate::fixture::{End, Fixture, MOMENT, SIGNALLED, attributes, path, sevd};
use crate::thread::eventually;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The service ID at which the peer listens.
const SERVICE: u64 = 0x1000_0000_0000_4711;
/// The additional information of code 24 is a whole ClassPortInfo.
const ELSEWHERE: Redirection = Redirection {
    gid: Gid([0; 16]),
    traffic_class: 0x20,
    sl: 3,
    flow_label: 0x1_2345,
    lid: 0,
    pkey: PKey(0xffff),
    qpn: Qpn::GSI,
    qkey: QKey::GSI,
};

/// The requests that the peer got: their identifiers, and the index of the GID at which each
/// arrived.
#[derive(Default)]
struct Asked {
    connections: Mutex<Vec<(ConnectionId, u8)>>,
    resolutions: Mutex<Vec<(ResolutionRequestId, u8)>>,
}

impl Upcalls for Asked {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, event: CmEvent<'_>) {
        if let CmEventKind::Request { source_gid, .. } = event.kind {
            self.connections.lock().push((event.connection, source_gid));
        }
    }

    fn resolution(&self, event: ResolutionEvent<'_>) {
        if let ResolutionEventKind::Request { request, source_gid, .. } = event.kind {
            self.resolutions.lock().push((request, source_gid));
        }
    }

    fn catastrophic(&self, _: Death) {}
}

/// A client of `b`'s agent that listens at the service ID.
struct Peer<'a> {
    f: &'a Fixture,
    asked: Arc<Asked>,
    client: Arc<Client>,
}

impl Peer<'_> {
    fn new(f: &Fixture) -> Result<Peer<'_>, Failure> {
        let asked = Arc::new(Asked::default());
        let upcalls: Arc<dyn Upcalls> = asked.clone();
        let client = f.setup.b.agent.attach(Arc::downgrade(&upcalls))?;
        let peer = Peer { f, asked, client };
        peer.client.listen(ServiceId(SERVICE), Transports::RC, 0)?;
        Ok(peer)
    }

    /// The GIDs at which the peer can be reached.
    fn gids(&self) -> Vec<[u8; 16]> {
        let gids = &self.f.setup.b.agent.identity().gids;
        gids.iter().copied().filter(|gid| *gid != [0; 16]).collect()
    }

    /// Starts to connect to the peer and takes the request.
    #[track_caller]
    fn dialled(&self, end: &End, route: &Path) -> Result<(ConnectionId, u8), Failure> {
        let qual = ConnQual::service_id(SERVICE);
        end.ia.ep_connect(end.ep, route, None, &qual, CnEstFlags::TWO_WAY, &[])?;
        let mut request = None;
        eventually(self.f.platform(), || {
            request = self.asked.connections.lock().pop();
            request.is_some()
        });
        some(request, "a connection request")
    }

    /// Rejects a connection with this reason and additional information.
    fn reject(&self, id: ConnectionId, reason: Reason, information: &[u8]) -> Outcome {
        Ok(self.client.reject_because(id, reason, information, b"no")?)
    }

    /// The identifier and the status of the next UD service request, as the agent reports it.
    #[track_caller]
    fn resolving(&self) -> Result<(ResolutionRequestId, u8), Failure> {
        let mut request = None;
        eventually(self.f.platform(), || {
            request = self.asked.resolutions.lock().pop();
            request.is_some()
        });
        some(request, "a service request")
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        self.client.detach();
    }
}

/// The path from `a` to the peer's GID.
fn route_to(f: &Fixture, gid: [u8; 16]) -> Result<Path, Failure> {
    path(&f.a, &NetAddr::IbGid(gid))
}

/// Takes the rejection, checks the endpoint's state, and resets the endpoint.
#[track_caller]
fn rejected(end: &End) -> Result<(RejectReason, Option<Path>), Failure> {
    let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
    let Event::ConnNonpeerReject { ep, reject_reason_code, dst_path, .. } = event else {
        return Err(Failure::new("not a rejection"));
    };
    check_eq!((ep, end.state()?), (end.ep, EpStateRc::Nonoperational));
    end.ia.ep_reset(end.ep)?;
    Ok((reject_reason_code, dst_path))
}

/// Starts to connect and gives up, and drops the message that informs the peer.
fn given_up(f: &Fixture, active: &End) -> Outcome {
    f.inject(0, Injection::DropManagement, 1, 0)?;
    f.a.ep_disconnect(active.ep, &[])?;
    check_eq!(active.state()?, EpStateRc::Nonoperational);
    active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // Each reason of a rejection has the reason code that the page gives.
    test(
        "rejections::every_reason",
        &["it_cm_msg_events B07 F08 F32 F33 F35 F37-F41", "A.it_cm_msg_events O01"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            check_eq!((RejectReason::BadPath.as_raw(), RejectReason::StaleConn.as_raw()), (2, 3));
            check_eq!((RejectReason::BadOrd.as_raw(), RejectReason::Resources.as_raw()), (4, 5));
            check_eq!(RejectReason::BadConnParms.as_raw(), 6);
            let peer = Peer::new(f)?;
            let end = f.end(&f.a, &attributes())?;
            let route = route_to(f, some(peer.gids().first().copied(), "a GID")?)?;
            let table = [
                // Those behind 31 are not in the page's table. None is a timeout or a bad format.
                (RejectReason::Other, &[4, 5, 6, 7, 8, 9, 29, 30, 31, 2, 11, 18, 23, 33, 34, 255, 65535][..]),
                (RejectReason::BadPath, &[12, 13, 14, 15, 16, 17, 24, 25, 26, 32]),
                (RejectReason::StaleConn, &[10]),
                (RejectReason::BadOrd, &[27]),
                // Reported at once, like all other reasons.
                (RejectReason::Resources, &[1, 3]),
            ];
            for (expected, numbers) in table {
                for &number in numbers {
                    f.a.post_recv(end.ep, &[], 1, DtoFlags::COMPLETION)?;
                    let (id, _) = peer.dialled(&end, &route)?;
                    peer.reject(id, Reason(number), &[])?;
                    end.recv_done(1, DtoStatus::Flushed)?;
                    let (answer, dst_path) = rejected(&end)?;
                    check_eq!(answer, expected, "code {number}");
                    // Without a suggested path the event has the path of the request.
                    let suggested = (expected == RejectReason::BadPath).then_some(route);
                    check_eq!(dst_path, suggested, "code {number}");
                }
            }
            Ok(())
        },
    ),
    // A rejection may suggest another path, which can be used for the next attempt.
    test("rejections::a_path_is_suggested", &["it_cm_msg_events F07 F38"], |f| {
        Need::InfiniBand.of(&f.a)?;
        let peer = Peer::new(f)?;
        let end = f.end(&f.a, &attributes())?;
        let gids = peer.gids();
        let (first, last) = (some(gids.first().copied(), "a GID")?, some(gids.last().copied(), "a GID")?);
        let route = route_to(f, first)?;
        let ib = some(route.ib().copied(), "an InfiniBand path")?;
        let other = some(route_to(f, last)?.ib().copied(), "an InfiniBand path")?;
        let all = Redirection { gid: Gid(last), ..ELSEWHERE };
        let redirected = IbNetEndpoint { sl: 3, traffic_class: 0x20, flow_label: 0x1_2345, ..other };
        let cases: [(u16, &[u8], IbNetEndpoint); 9] = [
            (12, &last, other),
            (25, &last, other),
            (24, &all.emit(), redirected),
            (14, &[5], IbNetEndpoint { sl: 5, ..ib }),
            (15, &[0x44], IbNetEndpoint { traffic_class: 0x44, ..ib }),
            (16, &[7], IbNetEndpoint { hop_limit: 7, ..ib }),
            (17, &[10], IbNetEndpoint { packet_rate: 10, ..ib }),
            (26, &[3], IbNetEndpoint { path_mtu: 3, ..ib }),
            (32, &[0x0, 0x12, 0x34], IbNetEndpoint { flow_label: 0x1234, ..ib }),
        ];
        for (number, information, expected) in cases {
            let (id, at) = peer.dialled(&end, &route)?;
            check_eq!(usize::from(at), 0);
            peer.reject(id, Reason(number), information)?;
            let (answer, dst_path) = rejected(&end)?;
            check_eq!(answer, RejectReason::BadPath);
            let suggested = some(dst_path, "a path")?;
            check_eq!(suggested.ib().copied(), Some(expected), "code {number}");
            check_eq!((suggested.spigot_id, suggested.timeout), (route.spigot_id, route.timeout));
            // Connect again along the suggested path.
            let (id, at) = peer.dialled(&end, &suggested)?;
            check_eq!(peer.f.setup.b.agent.identity().gids[usize::from(at)], expected.remote_port_gid);
            peer.reject(id, Reason::INVALID_SERVICE_ID, &[])?;
            check_eq!(rejected(&end)?, (RejectReason::Other, None));
        }
        // The information names no valid port, or is shorter than the name of a port.
        for information in [&[0; 16][..], &[0xff; 16], &last[..15]] {
            let (id, _) = peer.dialled(&end, &route)?;
            peer.reject(id, Reason::PORT_REDIRECTION, information)?;
            check_eq!(rejected(&end)?, (RejectReason::BadPath, Some(route)));
        }
        Ok(())
    }),
    // A reply may redirect to another path, which can be used for the next request.
    test("rejections::a_service_is_redirected", &["it_cm_msg_events F16 F23"], |f| {
        Need::InfiniBand.of(&f.a)?;
        check_eq!(UdSvcStatus::Redirected as u32, 4);
        let peer = Peer::new(f)?;
        let gids = peer.gids();
        let (first, last) = (some(gids.first().copied(), "a GID")?, some(gids.last().copied(), "a GID")?);
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 8, 1)?;
        let qual = ConnQual::service_id(SERVICE);
        let route = route_to(f, first)?;
        let handle = f.a.ud_service_request_handle_create(&qual, evd, &route, &[])?;
        f.a.ud_service_request(handle)?;
        let to = Redirection { gid: Gid(last), ..ELSEWHERE };
        let (request, _) = peer.resolving()?;
        peer.client.redirect_resolution(request, &to, b"there")?;
        let answer = reply(&f.a, evd)?;
        check_eq!((answer.status, answer.ud_svc), (UdSvcStatus::Redirected, handle));
        check_eq!(answer.ep_info, RemoteEpInfo::default());
        check!(some(answer.private_data, "private data")?.starts_with(b"there"));
        let there = some(answer.dst_path, "a path")?;
        let ib = some(there.ib().copied(), "an InfiniBand path")?;
        check_eq!(ib.remote_port_gid, last);
        check_eq!((ib.sl, ib.traffic_class, ib.flow_label), (3, 0x20, 0x1_2345));
        // The path in the reply is complete, so it can be used for a request.
        f.a.ud_service_request_handle_free(handle)?;
        let handle = f.a.ud_service_request_handle_create(&qual, evd, &there, &[])?;
        f.a.ud_service_request(handle)?;
        let (request, at) = peer.resolving()?;
        check_eq!(f.setup.b.agent.identity().gids[usize::from(at)], last);
        // A redirection to no GID.
        let nowhere = Redirection { gid: Gid([0; 16]), ..ELSEWHERE };
        peer.client.redirect_resolution(request, &nowhere, &[])?;
        let answer = reply(&f.a, evd)?;
        check_eq!((answer.status, answer.dst_path), (UdSvcStatus::Rejected, None));
        Ok(())
    }),
    // An acceptance after the active side gave up is answered, and causes no event there.
    test("rejections::a_late_acceptance", &["A.it_cm_msg_events B05 B06"], |f| {
        for &flags in f.handshakes()? {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, flags, &[])?;
            let request = listener.request()?;
            given_up(f, &active)?;
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            // The passive side is answered with a rejection and does not wait until it times out.
            passive.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            refused(f.a.evd_dequeue(active.conn), Error::QueueEmpty)?;
            listener.free()?;
        }
        Ok(())
    }),
    // An arrival that was queued before the disconnect stays queued, but its identifier is invalid.
    test(
        "rejections::an_arrival_ahead_of_the_disconnect",
        &["A.it_cm_msg_events B02", "it_cm_msg_events O01"],
        |f| {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, CnEstFlags::THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let pending = EpStateRc::Active2ConnectionPending;
            check!(eventually(f.platform(), || active.state().is_ok_and(|state| state == pending)));
            f.a.ep_disconnect(active.ep, &[])?;
            let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
            let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                return Err(Failure::new("not the arrival of an acceptance"));
            };
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            refused(f.a.ep_accept(active.ep, cn_est_id, &[]), Error::InvalidCnEstId)?;
            // Each side gets the event for the end of a connection once, whichever side ends it.
            let pair = f.pair()?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for end in [&pair.a, &pair.b] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                check!(end.ia.evd_wait(end.conn, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            }
            Ok(())
        },
    ),
    // Data that arrives before the last message establishes the connection, without private data.
    test(
        "rejections::data_before_the_last_message",
        &["A.it_cm_msg_events A04", "it_cm_msg_events V02"],
        |f| {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, CnEstFlags::THREE_WAY, &[])?;
            f.b.post_recv(passive.ep, &[], 1, DtoFlags::COMPLETION)?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
            let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                return Err(Failure::new("not the arrival of an acceptance"));
            };
            // The last message is delayed, and the active side sends data before it arrives.
            f.inject(nic_abi::ident::QPN_GSI, Injection::Delay, 1, 200_000_000)?;
            f.a.ep_accept(active.ep, cn_est_id, b"late")?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            f.a.post_send(active.ep, &[], 2, SIGNALLED)?;
            active.done(2, DtoStatus::Success)?;
            passive.recv_done(1, DtoStatus::Success)?;
            let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check!(matches!(event, Event::ConnEstablished { private_data: None, .. }), "{event:?}");
            check_eq!(passive.state()?, EpStateRc::Connected);
            // A message that follows on the same path arrives behind the late message, which caused
            // no event.
            f.a.ep_disconnect(active.ep, b"end")?;
            passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            refused(f.b.evd_dequeue(passive.conn), Error::QueueEmpty)
        },
    ),
    // The active side may lower its read depth after it learned the peer's.
    test("rejections::reads_given_up_after_connecting", &["it_cm_msg_events B12"], |f| {
        let with = |ird, ord| {
            let rc = RcAttributes { rdma_read_ird: ird, rdma_read_ord: ord, ..attributes().rc };
            EpAttributes { rc, ..attributes() }
        };
        let (active, passive) = (f.end(&f.a, &with(8, 3))?, f.end(&f.b, &with(4, 1))?);
        let listener = f.listen(&f.b)?;
        f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        let event = active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        let Event::ConnEstablished { rdma_read_ird, .. } = event else {
            return Err(Failure::new("not established"));
        };
        let own = f.a.ep_query(active.ep, EpParamMask::ALL)?.attr.rc;
        check!(rdma_read_ird != own.rdma_read_ord, "the peer takes {rdma_read_ird}");
        f.a.ep_modify(active.ep, EpParamMask::MAX_ORD, &with(8, 1))?;
        check_eq!(f.a.ep_query(active.ep, EpParamMask::MAX_ORD)?.attr.rc.rdma_read_ord, 1);
        f.a.post_rdma_read(active.ep, &[], 1, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
        active.done(1, DtoStatus::Success)
    }),
];
