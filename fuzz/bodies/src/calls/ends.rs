//! The two connected endpoints with which a consumer begins: of queue pairs, or of virtual
//! interfaces.

use common::it_pair::{Pair, Side, Sizes};
use privileged_api::*;

/// How long anything may take, microseconds.
const PATIENCE: u64 = 30_000_000;
const SIZES: Sizes = Sizes { requests: 8, message: 1 << 16 };

/// An endpoint, its IA, and what belongs to it.
pub(crate) struct End {
    pub(super) ia: Ia,
    pub(super) pz: PzHandle,
    pub(super) ep: EpHandle,
    pub(super) requests: EvdHandle,
    pub(super) receives: EvdHandle,
}

/// Two of queue pairs.
pub(crate) fn infiniband(a: Ia, b: Ia) -> [End; 2] {
    let Pair { a, b } = Pair::connect(a, b, SIZES).unwrap_or_else(|failure| panic!("{failure}"));
    [a, b].map(|side| {
        let Side { ia, pz, ep, requests, receives, .. } = side;
        End { ia, pz, ep, requests, receives }
    })
}

/// Two of virtual interfaces, on IAs over VIA.
pub(crate) fn via(a: Ia, b: Ia) -> [End; 2] {
    connected(a, b).unwrap_or_else(|error| panic!("endpoints over VIA: {error}"))
}

fn connected(a: Ia, b: Ia) -> Result<[End; 2]> {
    let ((a, a_events), (b, b_events)) = (end(a)?, end(b)?);
    let qual = ConnQual::port(7777);
    let arrivals =
        b.ia.evd_create(EventType::CM_REQ_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?;
    let (listening, _) = b.ia.listen_create(1, arrivals, ListenFlags::CONN_QUAL_INPUT, Some(&qual))?;
    let (paths, _) = a.ia.get_pathinfo(1, &address(&b.ia), 1)?;
    a.ia.ep_connect(a.ep, &paths[0], None, &qual, CnEstFlags::TWO_WAY, &[])?;
    let Event::ConnRequest(request) = b.ia.evd_wait(arrivals, PATIENCE)?.0 else { panic!("not a request") };
    b.ia.ep_accept(b.ep, request.cn_est_id, &[])?;
    for (end, events) in [(&a, a_events), (&b, b_events)] {
        let (event, _) = end.ia.evd_wait(events, PATIENCE)?;
        assert!(matches!(event, Event::ConnEstablished { .. }), "{event:?}");
    }
    b.ia.listen_free(listening)?;
    b.ia.evd_free(arrivals)?;
    Ok([a, b])
}

/// An endpoint that is not connected, and the EVD of its connection.
fn end(ia: Ia) -> Result<(End, EvdHandle)> {
    let evd = |stream, size| ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL);
    let pz = ia.pz_create()?;
    let requests = evd(EventType::DTO_EVENT_STREAM, SIZES.requests + 1)?;
    let receives = evd(EventType::DTO_EVENT_STREAM, SIZES.requests + 1)?;
    let events = evd(EventType::CM_MSG_EVENT_STREAM, 5)?;
    let attributes = EpAttributes {
        max_dto_payload_size: SIZES.message,
        max_request_dtos: SIZES.requests,
        max_recv_dtos: SIZES.requests,
        rc: RcAttributes { rdma_read_enable: true, rdma_write_enable: true, ..RcAttributes::default() },
        ..EpAttributes::default()
    };
    let ep = ia.ep_rc_create(pz, requests, receives, events, EpFlags::empty(), &attributes)?;
    Ok((End { ia, pz, ep, requests, receives }, events))
}

/// The first address of an IA.
pub(super) fn address(ia: &Ia) -> NetAddr {
    let spigots = ia.ia_query().map_or(Vec::new(), |info| info.spigot_info);
    let first = spigots.first().and_then(|spigot| spigot.net_addr.first());
    *first.expect("an address of the port")
}
