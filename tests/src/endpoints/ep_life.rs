//! Endpoints in special situations: freed and reset with work outstanding, created on full EVDs,
//! and calls that a state refuses (pages it_ep_free, it_ep_reset, it_ep_rc_create, it_ep_state_t,
//! it_ep_attributes_t).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::datagrams::ud::{datagrams, peer};
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, evd_param, sevd};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Delays the next request of an endpoint by this many milliseconds.
fn hold(f: &Fixture, end: &End, milliseconds: u64) -> Outcome {
    f.inject_into(end, Injection::Delay, 1, milliseconds * 1_000_000)
}

/// Posts requests of each kind on a connected pair's active end. All of them complete.
fn busy(f: &Fixture, pair: &Pair, base: u64) -> Outcome {
    for cookie in base..base + 4 {
        f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
        f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
        f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?;
        f.b.post_send(pair.b.ep, &[], cookie, SIGNALLED)?;
    }
    for cookie in base..base + 4 {
        pair.b.done(cookie, DtoStatus::Success)?;
        pair.b.recv_done(cookie, DtoStatus::Success)?;
    }
    Ok(())
}

/// Takes all events that are left in an endpoint's EVDs, and checks that each is a completion of
/// this endpoint with one of these cookies. Returns how many there were.
fn leftovers(end: &End, cookies: core::ops::Range<u64>) -> Result<usize, Failure> {
    let mut count = 0;
    for (evd, kind) in [(end.request, EventType::DTO_SEND_CMPL), (end.recv, EventType::DTO_RC_RECV_CMPL)] {
        loop {
            match end.ia.evd_dequeue(evd) {
                Ok(Event::Dto(done)) => {
                    check_eq!((done.event_number, done.evd, done.ep), (kind, evd, end.ep));
                    check!(cookies.contains(&done.cookie), "cookie {}", done.cookie);
                    // The page lets a reset drop what it finds, so this may be what ended before or
                    // what the end of the connection flushed.
                    check!(matches!(done.dto_status, DtoStatus::Success | DtoStatus::Flushed));
                    count += 1;
                }
                Err(Error::QueueEmpty) => break,
                other => {
                    return Err(Failure::new(alloc::format!("unexpected: {other:?}")));
                }
            }
        }
    }
    Ok(count)
}

/// A region, and a wide and a narrow RMR to link to it.
struct Windows {
    region: Region,
    rmrs: [RmrHandle; 2],
}

impl Windows {
    /// A region and two RMRs in the zone of the endpoint.
    fn new(f: &Fixture, end: &End) -> Result<Windows, Failure> {
        let region = f.region(&end.ia, end.pz, PAGE, MemPriv::LOCAL)?;
        let rmrs = [end.ia.rmr_create(end.pz, RmrType::Wide)?, end.ia.rmr_create(end.pz, RmrType::Narrow)?];
        Ok(Windows { region, rmrs })
    }

    /// Posts a link of one of the RMRs to the region.
    fn link(&self, end: &End, which: usize, cookie: u64) -> Result<RmrContext, Error> {
        let (addr, mode, privs) = (self.region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
        let (rmr, lmr) = (self.rmrs[which], self.region.lmr);
        end.ia.rmr_link(rmr, lmr, addr, 64, mode, privs, end.ep, cookie, SIGNALLED)
    }

    /// Fails unless the endpoint is in this state and refuses all links and unlinks because of it.
    fn refused(&self, end: &End, state: EpStateRc) -> Outcome {
        check_eq!(end.state()?, state);
        for which in 0..2 {
            refused(self.link(end, which, 1), Error::InvalidEpState)?;
            refused(end.ia.rmr_unlink(self.rmrs[which], end.ep, 1, SIGNALLED), Error::InvalidEpState)?;
            check!(!end.ia.rmr_query(self.rmrs[which], RmrParamMask::LINKED)?.linked);
        }
        end.idle()
    }

    /// Fails unless the endpoint takes all links and unlinks, and they complete with this status.
    fn taken(&self, end: &End, status: DtoStatus) -> Outcome {
        for which in 0..2 {
            self.link(end, which, 1)?;
            end.ia.rmr_unlink(self.rmrs[which], end.ep, 2, SIGNALLED)?;
            end.done(1, status)?;
            end.done(2, status)?;
        }
        Ok(())
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Events of a freed endpoint may stay queued, and harm neither its EVDs nor a later endpoint.
    test("ep::freed_with_events_queued", &["it_ep_free V01", "A.it_ep_free O01"], |f| {
        let pair = f.pair()?;
        busy(f, &pair, 0)?;
        for cookie in 4..8 {
            f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
        }
        f.a.ep_disconnect(pair.a.ep, &[])?;
        f.a.ep_free(pair.a.ep)?;
        refused(f.a.ep_query(pair.a.ep, EpParamMask::ALL), Error::InvalidEp)?;
        // Events that remain are unchanged by the free.
        leftovers(&pair.a, 0..8)?;
        while let Ok(event) = f.a.evd_dequeue(pair.a.conn) {
            check_eq!(event.event_number(), EventType::CM_MSG_CONN_DISCONNECT);
        }
        // All objects that the endpoint used can be freed, and new ones can take their place.
        f.a.pz_free(pair.a.pz)?;
        for evd in [pair.a.request, pair.a.recv, pair.a.conn] {
            f.a.evd_free(evd)?;
        }
        check_eq!(f.a.object_counts().ep, 0);
        for _ in 0..20 {
            let pair = f.pair()?;
            busy(f, &pair, 0)?;
            for end in [&pair.a, &pair.b] {
                end.ia.ep_free(end.ep)?;
                end.ia.pz_free(end.pz)?;
                for evd in [end.request, end.recv, end.conn] {
                    end.ia.evd_free(evd)?;
                }
            }
        }
        Ok(())
    }),
    // Links that were outstanding when the endpoint was freed have no effect and keep no object
    // busy.
    test("ep::freed_with_links_outstanding", &["it_ep_free V03"], |f| {
        let pair = f.pair()?;
        let windows = Windows::new(f, &pair.a)?;
        let buffer = f.buffer(PAGE)?;
        let lmr = f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?;
        let pages = [IoAddr(buffer.bus())];
        let (list, mode) = (Iobl::pages(&pages, PAGE as u64, 0), AddrMode::Absolute);
        // The Send is delayed, so neither link has started when the endpoint is freed.
        hold(f, &pair.a, 5_000)?;
        f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
        windows.link(&pair.a, 0, 2)?;
        f.a.lmr_link(lmr, buffer.addr(), &list, PAGE as u64, mode, OPEN, pair.a.ep, 3, SIGNALLED)?;
        f.a.ep_free(pair.a.ep)?;
        // The links were dropped: nothing is linked, and the RMRs and the regions can be freed.
        check!(!f.a.rmr_query(windows.rmrs[0], RmrParamMask::LINKED)?.linked);
        check!(!f.a.lmr_query(lmr, LmrParamMask::LINKED)?.linked);
        for rmr in windows.rmrs {
            f.a.rmr_free(rmr)?;
        }
        f.a.lmr_free(lmr)?;
        f.a.lmr_free(windows.region.lmr)?;
        // A shared receive queue can be freed as well.
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 4)?;
        let mut attr = attributes();
        attr.rc.srq = srq;
        let end = f.end(&f.b, &attributes())?;
        let ep = f.b.ep_rc_create(end.pz, end.request, end.recv, end.conn, EpFlags::SRQ, &attr)?;
        f.b.post_recv(srq, &[], 1, DtoFlags::COMPLETION)?;
        f.b.ep_free(ep)?;
        f.b.post_recv(srq, &[], 2, DtoFlags::COMPLETION)?;
        f.b.srq_free(srq)?;
        Ok(())
    }),
    // Completions from before a reset are not mistaken for those of the next connection.
    test("ep::what_a_reset_leaves", &["it_ep_reset B03"], |f| {
        let pair = f.pair()?;
        for round in 0..6 {
            let base = round * 100;
            busy(f, &pair, base)?;
            f.a.post_recv(pair.a.ep, &[], base + 4, DtoFlags::COMPLETION)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for end in [&pair.a, &pair.b] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                end.ia.ep_reset(end.ep)?;
            }
            // In every other round, old completions are still queued when the endpoint is connected
            // again.
            if round % 2 == 0 {
                leftovers(&pair.a, base..base + 5)?;
            }
            f.connect(&pair.a, &pair.b)?;
            f.b.post_recv(pair.b.ep, &[], base + 50, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], base + 50, SIGNALLED)?;
            pair.b.recv_done(base + 50, DtoStatus::Success)?;
            // The completion of the new connection comes behind all old ones, and once.
            loop {
                let done = pair.a.reap()?;
                check!((base..=base + 50).contains(&done.cookie), "cookie {}", done.cookie);
                if done.cookie == base + 50 {
                    check_eq!((done.ep, done.dto_status), (pair.a.ep, DtoStatus::Success));
                    break;
                }
            }
            leftovers(&pair.a, base..base + 5)?;
        }
        Ok(())
    }),
    // RMR links and unlinks are refused unless the endpoint is connected or nonoperational.
    test("ep::rmr_links_in_each_state", &["it_ep_state_t F07 S16 S17"], |f| {
        check_eq!(EpStateRc::PassiveWaitRdmaTransReq as u32, 6);
        let (a, b) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let (of_a, of_b) = (Windows::new(f, &a)?, Windows::new(f, &b)?);
        of_a.refused(&a, EpStateRc::Unconnected)?;
        let listener = f.listen(&f.b)?;
        f.dial(&a, &listener, CnEstFlags::THREE_WAY, &[])?;
        of_a.refused(&a, EpStateRc::Active1ConnectionPending)?;
        f.b.ep_accept(b.ep, listener.request()?.cn_est_id, &[])?;
        let Event::ConnAcceptArrival { cn_est_id, .. } = a.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?
        else {
            return Err(Failure::new("not the arrival of an acceptance"));
        };
        of_a.refused(&a, EpStateRc::Active2ConnectionPending)?;
        of_b.refused(&b, EpStateRc::PassiveConnectionPending)?;
        f.a.ep_accept(a.ep, cn_est_id, &[])?;
        for (end, windows) in [(&a, &of_a), (&b, &of_b)] {
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            windows.taken(end, DtoStatus::Success)?;
        }
        f.a.ep_disconnect(a.ep, &[])?;
        for (end, windows) in [(&a, &of_a), (&b, &of_b)] {
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            windows.taken(end, DtoStatus::Flushed)?;
        }
        f.a.ep_reset(a.ep)?;
        of_a.refused(&a, EpStateRc::Unconnected)
    }),
    // An endpoint can be created on an EVD that has overflowed, and works once there is room.
    test("ep::created_on_a_connect_evd_that_overflowed", &["it_ep_rc_create B09"], |f| {
        let conn =
            f.a.evd_create(EventType::CM_MSG_EVENT_STREAM, EvdFlags::OVERFLOW_NOTIFY, 1, 1, EvdHandle::NULL)?;
        let room = evd_param(&f.a, conn)?.sevd_queue_size;
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let pz = f.a.pz_create()?;
        let create = || f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &attributes());
        let first = End { ia: f.a.clone(), pz, request: dto, recv: dto, conn, ep: create()? };
        let listener = f.listen_with(&f.b, ListenFlags::empty(), 64)?;
        for _ in 0..=room {
            f.dial(&first, &listener, CnEstFlags::TWO_WAY, &[])?;
            f.a.ep_disconnect(first.ep, &[])?;
            f.a.ep_reset(first.ep)?;
        }
        check!(evd_param(&f.a, conn)?.evd_overflowed, "an EVD of {room} entries did not overflow");
        let second = End { ep: create()?, ..first.clone() };
        // The EVD works like any other once it has room again.
        for _ in 0..room {
            first.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        }
        let passive = f.end(&f.b, &attributes())?;
        f.connect(&second, &passive)?;
        check_eq!(second.state()?, EpStateRc::Connected);
        Ok(())
    }),
    // An endpoint of either service type reports the attributes of its type, and a query for one of
    // the other type's is refused.
    test("ep::attributes_of_the_service_type", &["it_ep_attributes_t B01"], |f| {
        let (rc, ud) = (f.end(&f.a, &attributes())?, peer(&f.a, &datagrams())?);
        let of_rc = f.a.ep_query(rc.ep, EpParamMask::ALL)?;
        let of_ud = f.a.ep_query(ud.ep, EpParamMask::ALL)?;
        check_eq!((of_rc.service_type, of_ud.service_type), (ServiceTypes::RC, ServiceTypes::UD));
        check!(of_rc.attr.rc.rdma_read_enable && of_rc.attr.ud == UdAttributes::default());
        check!(!of_ud.attr.rc.rdma_read_enable && of_ud.attr.rc.rdma_read_ord == 0);
        check_eq!(of_ud.attr.ud.ep_info.ud_ep_key, datagrams().ud.ep_info.ud_ep_key);
        let no = Error::InvalidEpType;
        for mask in [EpParamMask::EP_ID, EpParamMask::EP_KEY] {
            refused(f.a.ep_query(rc.ep, mask), no)?;
            f.a.ep_query(ud.ep, mask)?;
        }
        for mask in [EpParamMask::RDMA_RD_ENABLE, EpParamMask::MAX_ORD, EpParamMask::SRQ] {
            refused(f.a.ep_query(ud.ep, mask), no)?;
            f.a.ep_query(rc.ep, mask)?;
        }
        Ok(())
    }),
];
