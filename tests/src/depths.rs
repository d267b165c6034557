//! How many RDMA Reads may be outstanding: the responder's and the initiator's part of the negotiation, and what happens without it (chapter 5.1.1, 5.2.3).

use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, SIGNALLED, attributes};
use crate::{Failure, Outcome, Test, check, check_eq, test};

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
fn told(end: &End) -> core::result::Result<(u32, u32), Failure> {
    let rc = end.ia.ep_query(end.ep, EpParamMask::ALL)?.attr.rc;
    Ok((rc.rdma_read_ird, rc.rdma_read_ord))
}

/// Reads eight bytes so many times, to different places; returns how many succeeded before the first that did not.
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
    // What is said to have come has come, and nothing else was touched.
    check!(sink.bytes(0, 8 * good) == source.bytes(0, 8 * good));
    check!(sink.bytes(8 * count, PAGE - 8 * count).iter().all(|&byte| byte == 0));
    Ok(good)
}

fn within(f: &Fixture, active: &End, passive: &End) -> Outcome {
    check_eq!(read(f, active, passive, 12)?, 12, "Reads that succeeded");
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    test(
        "depths::adjusted_by_both",
        &["5.2.3.V01", "5.2.3.V02", "5.2.3.B03", "5.2.3.B06", "it_ia_info_t.F60", "it_ia_info_t.F61"],
        |f| {
            let info = f.a.ia_query()?;
            check!(info.rdma_read_ird_modifiable && info.rdma_read_ord_increasable);
            let (active, passive) = (f.end(&f.a, &depths(5, 2))?, f.end(&f.b, &depths(8, 7))?);
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
            let request = listener.request()?;
            check_eq!((request.rdma_read_ird, request.rdma_read_ord), (5, 2));
            // The responder takes the lesser of its own and the initiator's, while it is still unconnected.
            check_eq!(passive.state()?, EpStateRc::Unconnected);
            let both = EpParamMask::MAX_IRD | EpParamMask::MAX_ORD;
            set(&passive, both, 8.min(request.rdma_read_ord), 7.min(request.rdma_read_ird))?;
            check_eq!(told(&passive)?, (2, 5));
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            let event = active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
                return Err(Failure::new("not established"));
            };
            check_eq!((rdma_read_ird, rdma_read_ord), (2, 5));
            // What the responder is told is what the initiator asked for, whatever it does afterwards.
            set(&active, EpParamMask::MAX_ORD, 0, 1)?;
            let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
                return Err(Failure::new("not established"));
            };
            check_eq!((rdma_read_ird, rdma_read_ord), (5, 2));
            check_eq!(told(&active)?, (5, 1));
            within(f, &active, &passive)?;
            // ORD goes up again while the connection stands, as far as the peer takes it, and down.
            for ord in [2, 1, 2] {
                set(&active, EpParamMask::MAX_ORD, 0, ord)?;
                check_eq!(told(&active)?, (5, ord));
                within(f, &active, &passive)?;
            }
            // IRD only without a connection.
            check_eq!(set(&active, EpParamMask::MAX_IRD, 1, 0), Err(Error::InvalidEpState));
            check_eq!(told(&active)?, (5, 2));
            Ok(())
        },
    ),
    test("depths::more_than_the_peer_takes", &["5.1.1.A01"], |f| {
        let (active, passive) = (f.end(&f.a, &depths(1, 1))?, f.end(&f.b, &depths(1, 1))?);
        f.connect(&active, &passive)?;
        // Against all that was negotiated.
        set(&active, EpParamMask::MAX_ORD, 0, 16)?;
        let count = 48;
        match read(f, &active, &passive, count)? {
            good if good == count => check_eq!(active.state()?, EpStateRc::Connected),
            _ => active.broken()?,
        }
        Ok(())
    }),
];
