//! Why connections of endpoints over VIA are not made (page it_cm_msg_events, table for VIA).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use super::open;
use crate::check::some;
use crate::fixture::{End, Fixture, Listener, attributes, path, sevd, spigot};
use crate::{Failure, Outcome, Test, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;

/// Takes the event that no connection is made, for this reason, and checks the endpoint.
#[track_caller]
pub(super) fn not_made(end: &End, reason: RejectReason) -> Outcome {
    let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
    let Event::ConnNonpeerReject { reject_reason_code, dst_path, .. } = event else {
        return Err(Failure::new("not a rejection"));
    };
    match (reject_reason_code, dst_path, end.state()?) {
        (code, None, EpStateRc::Nonoperational) if code == reason => Ok(()),
        other => Err(Failure::new(alloc::format!("expected {reason:?}, got {other:?}"))),
    }
}

/// Dials with a short timeout.
#[track_caller]
fn dial(f: &Fixture, end: &End, listener: &Listener) -> Outcome {
    let route = Path { timeout: 300_000, ..path(&f.a, &listener.address)? };
    f.a.ep_connect(end.ep, &route, None, &listener.conn_qual, TWO_WAY, &[])?;
    Ok(())
}

/// Loses all messages of the connection manager of `a`'s NIC, or none any more.
fn lose(f: &Fixture, lost: bool) -> Outcome {
    f.inject(0, Injection::DropManagement, if lost { 10_000 } else { 0 }, 0)
}

/// The service ID that stands for port 0x5678: 2, and the first seven bytes of the SHA-256 of the
/// port's two bytes (docs/decisions/via.md).
pub(super) const SERVICE: ConnQual = ConnQual::service_id(0x020b_b404_b255_c823);

/// Listens for a qualifier.
fn listen(ia: &Ia, qual: &ConnQual) -> Result<(EvdHandle, ListenHandle), Failure> {
    let evd = sevd(ia, EventType::CM_REQ_EVENT_STREAM, 16, 1)?;
    let (listen, _) =
        ia.listen_create(spigot(ia)?.spigot_id, evd, ListenFlags::CONN_QUAL_INPUT, Some(qual))?;
    Ok((evd, listen))
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Each way in which no connection comes about has its reason, and no other reason is reported.
    test("via_ia_rejections::reasons", &["it_cm_msg_events B08 B09 F42 F43"], |f| {
        let v = f.over_via()?;
        // There is no listener: VIP_NO_MATCH.
        let listener = v.listen(&v.b)?;
        let end = v.end(&v.a, &open())?;
        let route = path(&v.a, &listener.address)?;
        let nobody = ConnQual::port(7);
        v.a.ep_connect(end.ep, &route, None, &nobody, TWO_WAY, &[])?;
        not_made(&end, RejectReason::Other)?;
        // The listener never answers: VIP_TIMEOUT.
        v.a.ep_reset(end.ep)?;
        dial(&v, &end, &listener)?;
        let request = listener.request()?;
        not_made(&end, RejectReason::Timeout)?;
        // It has given up. An accept is too late, and finds that out by an event.
        let passive = v.end(&v.b, &open())?;
        v.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        not_made(&passive, RejectReason::Other)?;
        // No answer comes: VIP_NOT_REACHABLE.
        v.a.ep_reset(end.ep)?;
        lose(&v, true)?;
        let dialled = dial(&v, &end, &listener).and_then(|()| not_made(&end, RejectReason::Timeout));
        lose(&v, false)?;
        dialled?;
        // The peer's consumer rejects: VIP_REJECT is an event of its own.
        v.a.ep_reset(end.ep)?;
        v.dial(&end, &listener, TWO_WAY, &[])?;
        v.b.reject(listener.request()?.cn_est_id, &[])?;
        let event = end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        check_eq!(end.state()?, EpStateRc::Nonoperational);
        let Event::ConnPeerReject { private_data: None, .. } = event else {
            return Err(Failure::new(alloc::format!("not of the peer: {event:?}")));
        };
        Ok(())
    }),
    // An accept that the asking side never confirms ends by another reason than a request without
    // an answer.
    test("via_ia_rejections::timeout_of_an_accept", &["it_cm_msg_events V04"], |f| {
        let v = f.over_via()?;
        let (active, passive, listener) = (v.end(&v.a, &open())?, v.end(&v.b, &open())?, v.listen(&v.b)?);
        dial(&v, &active, &listener)?;
        let request = listener.request()?;
        lose(&v, true)?;
        let accepted = v.b.ep_accept(passive.ep, request.cn_est_id, &[]);
        let ended = not_made(&passive, RejectReason::Other);
        lose(&v, false)?;
        accepted?;
        ended
    }),
    // A peer without resources for the connection.
    test("via_ia_rejections::no_resources", &["it_cm_msg_events F44"], |f| {
        let v = f.over_via_limited(Limits { connections: 0, ..Limits::NONE })?;
        let (active, listener) = (v.end(&v.a, &open())?, v.listen(&v.b)?);
        v.dial(&active, &listener, TWO_WAY, &[])?;
        not_made(&active, RejectReason::Resources)?;
        refused(v.b.evd_dequeue(listener.evd), Error::QueueEmpty)
    }),
    // Endpoints of InfiniBand and of VIA do not connect, in neither direction: what they tell each
    // other does not fit.
    test("via_ia_rejections::ends_of_another_kind", &[], |f| {
        let v = f.over_via()?;
        let (port, service) = (ConnQual::port(0x5678), SERVICE);
        let (evd, listening) = listen(&v.b, &port)?;
        let address = some(spigot(&f.b)?.net_addr.first().copied(), "an address")?;
        let pair = f.end(&f.a, &attributes())?;
        for data in [&[][..], &[1, 2, 3], &[1; 92]] {
            let route = path(&f.a, &address)?;
            f.a.ep_connect(pair.ep, &route, None, &service, TWO_WAY, data)?;
            not_made(&pair, RejectReason::Other)?;
            f.a.ep_reset(pair.ep)?;
        }
        refused(v.b.evd_dequeue(evd), Error::QueueEmpty)?;
        v.b.listen_free(listening)?;
        // The other direction: the accept is rejected.
        let (evd, _) = listen(&f.b, &service)?;
        let (active, passive) = (v.end(&v.a, &open())?, f.end(&f.b, &attributes())?);
        let address = some(spigot(&v.b)?.net_addr.first().copied(), "an address")?;
        let route = path(&v.a, &address)?;
        // Another version, level and priority, and nothing that an end would say.
        let fits = [2, 2, 0, 3, 0, 16, 0, 0];
        let unlike = |at: usize, value| {
            let mut data = fits;
            data[at] = value;
            data
        };
        for data in [&[][..], &unlike(0, 1), &unlike(1, 1), &unlike(2, 1), &[9; 196]] {
            v.a.ep_connect(active.ep, &route, None, &port, TWO_WAY, &[])?;
            let (event, _) = f.b.evd_wait(evd, crate::fixture::WAIT)?;
            let Event::ConnRequest(request) = event else { return Err(Failure::new("not a request")) };
            f.b.ep_accept(passive.ep, request.cn_est_id, data)?;
            not_made(&active, RejectReason::Other)?;
            let rejected = passive.event()?.event_number();
            check_eq!(rejected, EventType::CM_MSG_CONN_PEER_REJECT);
            v.a.ep_reset(active.ep)?;
            f.b.ep_reset(passive.ep)?;
        }
        Ok(())
    }),
];
