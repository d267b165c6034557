//! How many RDMA Reads may be outstanding: negotiated by responder and initiator, and what happens
//! without negotiation (chapter 5.1.1, 5.2.3).

use privileged_api::*;

use crate::connections::connect::{THREE_WAY, TWO_WAY, arrival, exchange_messages, sides};
use crate::connections::establish::not_made;
use crate::fixture::{End, Fixture, OPEN, PAGE, SIGNALLED, attributes, path, sevd, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Attributes with these depths.
fn depths(ird: u32, ord: u32) -> EpAttributes {
    let rc = RcAttributes { rdma_read_ird: ird, rdma_read_ord: ord, ..attributes().rc };
    EpAttributes { rc, ..attributes() }
}

/// Sets one or both depths.
fn set(end: &End, mask: EpParamMask, ird: u32, ord: u32) -> Result<()> {
    end.ia.ep_modify(end.ep, mask, &depths(ird, ord))
}

/// The endpoint's depths.
fn depths_of(end: &End) -> core::result::Result<(u32, u32), Failure> {
    let rc = end.ia.ep_query(end.ep, EpParamMask::ALL)?.attr.rc;
    Ok((rc.rdma_read_ird, rc.rdma_read_ord))
}

/// Posts `count` reads of eight bytes to different places, and returns how many succeeded before
/// the first failure.
fn read(f: &Fixture, active: &End, passive: &End, count: usize) -> core::result::Result<usize, Failure> {
    let (sink, source) = (f.region(&f.a, active.pz, PAGE, OPEN)?, f.region(&f.b, passive.pz, PAGE, OPEN)?);
    source.fill(6);
    let context = source.context()?;
    for n in 0..count {
        let (segment, from) = (sink.segment(8 * n, 8), source.remote(8 * n));
        f.a.post_rdma_read(active.ep, &[segment], n as u64, SIGNALLED, from, context)?;
    }
    let mut good = 0;
    for n in 0..count {
        let done = active.reap()?;
        check_eq!(done.cookie, n as u64);
        match done.dto_status {
            DtoStatus::Success if good == n => good += 1,
            DtoStatus::Success => return Err(Failure::new("a Read succeeded behind one that failed")),
            _ => {}
        }
    }
    // The data of each successful read has arrived, and nothing else was written.
    check!(sink.bytes(0, 8 * good) == source.bytes(0, 8 * good));
    check!(sink.bytes(8 * count, PAGE - 8 * count).iter().all(|&byte| byte == 0));
    Ok(good)
}

/// Checks that twelve reads, which are more than may be outstanding, all succeed.
fn reads_succeed(f: &Fixture, active: &End, passive: &End) -> Outcome {
    check_eq!(read(f, active, passive, 12)?, 12, "Reads that succeeded");
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // If each side lowers its depths to those of the other one, no number of reads can exceed them.
    test("depths::adjusted_by_both", &["5.2.3 B03 B06 V01 V02", "it_ia_info_t F60 F61"], |f| {
        let info = f.a.ia_query()?;
        check!(info.rdma_read_ird_modifiable && info.rdma_read_ord_increasable);
        let (active, passive) = (f.end(&f.a, &depths(5, 2))?, f.end(&f.b, &depths(8, 7))?);
        let listener = f.listen(&f.b)?;
        f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
        let request = listener.request()?;
        check_eq!((request.rdma_read_ird, request.rdma_read_ord), (5, 2));
        // The responder takes the smaller of its own depth and the initiator's, while it is
        // still unconnected.
        check_eq!(passive.state()?, EpStateRc::Unconnected);
        let both = EpParamMask::MAX_IRD | EpParamMask::MAX_ORD;
        set(&passive, both, 8.min(request.rdma_read_ord), 7.min(request.rdma_read_ird))?;
        check_eq!(depths_of(&passive)?, (2, 5));
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        let event = active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
            return Err(Failure::new("not established"));
        };
        check_eq!((rdma_read_ird, rdma_read_ord), (2, 5));
        // The responder's event has the depths of the initiator's request, regardless of later
        // changes.
        set(&active, EpParamMask::MAX_ORD, 0, 1)?;
        let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
            return Err(Failure::new("not established"));
        };
        check_eq!((rdma_read_ird, rdma_read_ord), (5, 2));
        check_eq!(depths_of(&active)?, (5, 1));
        reads_succeed(f, &active, &passive)?;
        // While connected, ORD can be changed within what the peer accepted.
        for ord in [2, 1, 2] {
            set(&active, EpParamMask::MAX_ORD, 0, ord)?;
            check_eq!(depths_of(&active)?, (5, ord));
            reads_succeed(f, &active, &passive)?;
        }
        // IRD can be changed without a connection only.
        check_eq!(set(&active, EpParamMask::MAX_IRD, 1, 0), Err(Error::InvalidEpState));
        check_eq!(depths_of(&active)?, (5, 2));
        Ok(())
    }),
    // More reads than the peer accepts either succeed or break the connection: chapter 5.1.1 says
    // that the connection may be terminated.
    test("depths::more_than_the_peer_takes", &["5.1.1 A01"], |f| {
        let (active, passive) = (f.end(&f.a, &depths(1, 1))?, f.end(&f.b, &depths(1, 1))?);
        f.connect(&active, &passive)?;
        // Exceed the negotiated depth on purpose.
        set(&active, EpParamMask::MAX_ORD, 0, 16)?;
        let count = 48;
        match read(f, &active, &passive, count)? {
            good if good == count => check_eq!(active.state()?, EpStateRc::Connected),
            _ => active.broken()?,
        }
        Ok(())
    }),
    // Request and acceptance carry the read depths of their endpoints.
    test(
        "connect::read_depths_travel",
        &[
            "it_cm_msg_events F05 F06 V03",
            "5.1.1 B02 B03",
            "5.2.3 B01 B02 B04 B05",
            "it_ep_connect B03",
            "it_listen_create B04 B05",
            "it_cm_req_events F08 F09",
            "it_ia_info_t F40",
        ],
        |f| {
            check!(f.a.ia_query()?.ird_ord_ia_support);
            let depths = |ird, ord| {
                let rc = RcAttributes { rdma_read_ird: ird, rdma_read_ord: ord, ..attributes().rc };
                EpAttributes { rc, ..attributes() }
            };
            for &flags in f.handshakes()? {
                let (active, passive) = (f.end(&f.a, &depths(4, 3))?, f.end(&f.b, &depths(3, 2))?);
                let listener = f.listen(&f.b)?;
                let ird = |end: &End| -> Result<u32, Failure> {
                    Ok(end.ia.ep_query(end.ep, EpParamMask::MAX_IRD)?.attr.rc.rdma_read_ird)
                };
                // The endpoint may be granted more than it asked for. The request carries the
                // granted depth.
                let (active_ird, passive_ird) = (ird(&active)?, ird(&passive)?);
                f.dial(&active, &listener, flags, &[])?;
                let request = listener.request()?;
                check_eq!((request.rdma_read_ird, request.rdma_read_ord), (active_ird, 3));
                f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
                let (event, id) = if flags == TWO_WAY {
                    (active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?, None)
                } else {
                    let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
                    let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                        return Err(Failure::new("not the arrival of an acceptance"));
                    };
                    (event, Some(cn_est_id))
                };
                let (Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. }
                | Event::ConnAcceptArrival { rdma_read_ird, rdma_read_ord, .. }) = event
                else {
                    return Err(Failure::new("no depths"));
                };
                check!(rdma_read_ird <= passive_ird && rdma_read_ird >= 3, "IRD {rdma_read_ird}");
                check_eq!(rdma_read_ord, 2);
                if let Some(id) = id {
                    f.a.ep_accept(active.ep, id, &[])?;
                }
                // The passive side's event has the depths of the active side's request, regardless
                // of what it answered.
                let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
                    return Err(Failure::new("not established"));
                };
                check_eq!((rdma_read_ird, rdma_read_ord), (active_ird, 3));
            }
            Ok(())
        },
    ),
    // The active side refuses a connection on which it could exceed the peer's depth, unless it
    // lowers its own.
    test(
        "connect::more_reads_than_the_peer_takes",
        &[
            "A.it_ep_attributes_t B03 B04",
            "it_ep_attributes_t F14",
            "it_ep_accept B07 B08 IT_ERR_INVALID_EP_ATTR",
            "5.1.1 B01",
            "it_status_t F34",
            "it_cm_msg_events F34",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            // The active side may have 8 reads outstanding; the passive side's endpoint accepts 1.
            let high_ord = RcAttributes { rdma_read_ord: 8, ..attributes().rc };
            let low_ird = RcAttributes { rdma_read_ird: 1, ..attributes().rc };
            let active = f.end(&f.a, &EpAttributes { rc: high_ord, ..attributes() })?;
            let passive = f.end(&f.b, &EpAttributes { rc: low_ird, ..attributes() })?;
            let granted = f.b.ep_query(passive.ep, EpParamMask::MAX_IRD)?.attr.rc.rdma_read_ird;
            check!(granted < 8, "the device grants {granted}");
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            check_eq!(request.rdma_read_ord, 8);
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            // Only the active side knows both depths. Its endpoint refuses the acceptance, or its
            // consumer lowers ORD.
            let event = active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            check_eq!((reject_reason_code, reject_reason_code.as_raw()), (RejectReason::BadOrd, 4));
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            // The passive side's attempt fails as well.
            not_made(&passive, RejectReason::BadOrd)?;
            f.a.ep_reset(active.ep)?;
            let passive = f.end(&f.b, &EpAttributes { rc: low_ird, ..attributes() })?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidEpAttr)?;
            check_eq!(Error::InvalidEpAttr as u32, 33);
            check_eq!(active.state()?, EpStateRc::Active2ConnectionPending);
            // With a lower ORD the same acceptance can be accepted.
            let rc = RcAttributes { rdma_read_ord: 1, ..high_ord };
            f.a.ep_modify(active.ep, EpParamMask::MAX_ORD, &EpAttributes { rc, ..attributes() })?;
            f.a.ep_accept(active.ep, id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            exchange_messages(&active, &passive)
        },
    ),
    // The active side of a three-way connection may change its depths before it accepts.
    test(
        "connect::depths_adjusted_after_the_arrival",
        &["it_cm_msg_events B11", "it_ep_attributes_t S03 S04", "it_ep_modify F06"],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            let rc = RcAttributes { rdma_read_ord: 1, ..attributes().rc };
            let mask = EpParamMask::MAX_IRD | EpParamMask::MAX_ORD;
            f.a.ep_modify(active.ep, mask, &EpAttributes { rc, ..attributes() })?;
            f.a.ep_accept(active.ep, id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check_eq!(f.a.ep_query(active.ep, EpParamMask::MAX_ORD)?.attr.rc.rdma_read_ord, 1);
            for cookie in 0..8 {
                f.a.post_rdma_read(active.ep, &[], cookie, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            }
            for cookie in 0..8 {
                active.done(cookie, DtoStatus::Success)?;
            }
            Ok(())
        },
    ),
    // Reads that wait when the consumer sets ORD to 0 end, and so does what is behind them. Those
    // that were sent before may succeed.
    test("connect::reads_that_wait_when_they_are_forbidden", &[], |f| {
        Need::Waiting.of(&f.a)?;
        let (pair, own, peer) = f.open_pair()?;
        let context = peer.context()?;
        // The peer has no Receive.
        f.a.post_send(pair.a.ep, &[], 0, SIGNALLED)?;
        for cookie in 1..5 {
            let flags = SIGNALLED | DtoFlags::BARRIER_FENCE;
            f.a.post_rdma_read(pair.a.ep, &[own.segment(0, 8)], cookie, flags, peer.remote(0), context)?;
        }
        set(&pair.a, EpParamMask::MAX_ORD, 0, 0)?;
        f.b.post_recv(pair.b.ep, &[], 9, DtoFlags::COMPLETION)?;
        pair.a.done(0, DtoStatus::Success)?;
        let mut failed = None;
        for cookie in 1..5 {
            let done = pair.a.reap()?;
            check_eq!(done.cookie, cookie);
            match (done.dto_status, failed) {
                (DtoStatus::Success, None) => {}
                (DtoStatus::LocalEp, None) => failed = Some(cookie),
                (DtoStatus::Flushed, Some(_)) => {}
                (status, _) => return Err(Failure::new(alloc::format!("Read {cookie}: {status:?}"))),
            }
        }
        check!(failed.is_some_and(|cookie| cookie <= 2), "the first that failed: {failed:?}");
        pair.a.broken()
    }),
    // The adapter always negotiates the depths, so a consumer that suppresses this is refused.
    test(
        "connect::depths_cannot_be_suppressed",
        &["it_ep_connect B05 V07", "it_ia_info_t B03 F41", "it_listen_create B07 V01"],
        |f| {
            let info = f.a.ia_query()?;
            check!(info.ird_ord_ia_support && !info.ird_ord_suppressible);
            check_eq!((CnEstFlags::SUPPRESS_IRD_ORD.bits(), ListenFlags::SUPPRESS_IRD_ORD.bits()), (4, 2));
            let (active, _, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            for &flags in f.handshakes()? {
                let flags = flags | CnEstFlags::SUPPRESS_IRD_ORD;
                let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[]);
                refused(dial, Error::InvalidCnEstFlags)?;
            }
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
            let id = spigot(&f.b)?.spigot_id;
            let listen = f.b.listen_create(id, evd, ListenFlags::SUPPRESS_IRD_ORD, None);
            refused(listen, Error::InvalidFlags)?;
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!(f.b.object_counts().listen, 1);
            refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)
        },
    ),
];
