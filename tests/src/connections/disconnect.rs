//! The end of connections, also of those that were not established: disconnecting, giving up,
//! freeing (pages it_ep_disconnect, it_ep_free, it_ep_state_t, it_cm_msg_events).

use privileged_api::*;

use crate::connections::connect::{THREE_WAY, TWO_WAY, arrival, sides, silent};
use crate::connections::establish::not_made;
use crate::connections::private_data::{carries, private_data};
use crate::fixture::{OPEN, SIGNALLED, attributes, pattern};
use crate::requests::errors::impatient;
use crate::{Test, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // A disconnect ends the connection on both sides, with one event each.
    test(
        "connect::disconnected_by_either_side",
        &[
            "it_ep_state_t A01 A03 B01 S39 S40 S45 V10",
            "A.it_ep_disconnect B01 B02",
            "it_ep_disconnect B01-B04 S01",
            "it_cm_msg_events B02 F26 S03",
            "it_ia_info_t F47",
            "it_event_t F20",
        ],
        |f| {
            let limit = f.a.ia_query()?.disconnect_private_data_len;
            // iWARP's disconnects carry no private data.
            for (by_active, len) in [(true, 0), (false, 0), (true, limit), (false, limit.min(1))] {
                let pair = f.pair()?;
                let (first, second) = if by_active { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
                let data = pattern(5, len);
                first.ia.ep_disconnect(first.ep, &data)?;
                check_eq!(first.state()?, EpStateRc::Nonoperational);
                first.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                let event = second.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                check_eq!(event.event_number().as_raw(), 0x2003);
                carries(private_data(&event), &data, MAX_PRIV_DATA)?;
                check_eq!(second.state()?, EpStateRc::Nonoperational);
                // Each side gets one event, regardless of how often it disconnects.
                for end in [first, second] {
                    end.ia.ep_disconnect(end.ep, &[])?;
                    silent(end)?;
                }
            }
            Ok(())
        },
    ),
    // If both sides disconnect at the same time, each gets one event.
    test(
        "connect::disconnected_by_both_at_once",
        &["it_cm_msg_events B02", "it_ep_state_t A03", "it_ep_disconnect V04", "A.it_ep_disconnect V01"],
        |f| {
            for _ in 0..10 {
                let pair = f.pair()?;
                f.a.ep_disconnect(pair.a.ep, &[])?;
                f.b.ep_disconnect(pair.b.ep, &[])?;
                for end in [&pair.a, &pair.b] {
                    end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                    check_eq!(end.state()?, EpStateRc::Nonoperational);
                    end.ia.ep_disconnect(end.ep, &[])?;
                    silent(end)?;
                }
            }
            Ok(())
        },
    ),
    // A disconnect flushes the outstanding requests of both sides.
    test(
        "connect::disconnect_flushes",
        &[
            "it_cm_msg_events B13 S03",
            "it_dto_events B08",
            "it_ep_disconnect B06",
            "it_ep_state_t A04",
            "4.7 B05",
        ],
        |f| {
            let pair = f.pair()?;
            for cookie in 0..5 {
                f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
                f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
            }
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for cookie in 0..5 {
                pair.a.recv_done(cookie, DtoStatus::Flushed)?;
                pair.b.recv_done(cookie, DtoStatus::Flushed)?;
            }
            pair.a.idle()?;
            pair.b.idle()?;
            // The page leaves open whether this event comes before the completions.
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            Ok(())
        },
    ),
    // The active side may give up before the passive side answers, and no connection comes of it.
    test(
        "connect::given_up_by_the_active_side",
        &["it_ep_state_t S09 S26 S44", "it_ep_disconnect B01"],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.a.post_recv(active.ep, &[], 1, DtoFlags::COMPLETION)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            f.a.ep_disconnect(active.ep, &[])?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            active.recv_done(1, DtoStatus::Flushed)?;
            silent(&active)?;
            // The passive side may accept the request whether or not it was withdrawn before, but
            // gets no connection.
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            not_made(&passive, RejectReason::Other)?;
            silent(&passive)
        },
    ),
    // The active side may give up instead of accepting, which invalidates the identifier.
    test(
        "connect::given_up_after_the_arrival",
        &[
            "it_ep_state_t S30",
            "it_ep_disconnect V03",
            "it_cm_msg_events V01",
            "A.it_cm_msg_events B03",
            "A.it_ep_state_t V03",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.ep_disconnect(active.ep, b"not conveyed")?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
            // No consumer called it_reject, so this is no peer reject.
            not_made(&passive, RejectReason::Other)?;
            silent(&passive)
        },
    ),
    // The active side may free its endpoint instead of accepting, and the passive side's attempt
    // fails.
    test(
        "connect::freed_after_the_arrival",
        &["it_ep_state_t S33", "A.it_cm_msg_events B04", "A.it_ep_free A01 B02", "it_ep_free B05"],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.ep_free(active.ep)?;
            let spare = f.end(&f.a, &attributes())?;
            refused(f.a.ep_accept(spare.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
            not_made(&passive, RejectReason::Other)
        },
    ),
    // The passive side may give up after its accept, and the active side's attempt fails.
    test("connect::given_up_by_the_passive_side", &["it_ep_state_t S29 S34"], |f| {
        let (active, passive, listener) = sides(f)?;
        f.dial(&active, &listener, THREE_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        arrival(&active)?;
        check_eq!(passive.state()?, EpStateRc::PassiveConnectionPending);
        f.b.ep_disconnect(passive.ep, &[])?;
        check_eq!(passive.state()?, EpStateRc::Nonoperational);
        passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        not_made(&active, RejectReason::Other)
    }),
    // An error at either end breaks the connection at both; no consumer disconnected it.
    test(
        "connect::errors_break_the_connection_at_both_ends",
        &["it_ep_state_t A02 S41 S42", "it_cm_msg_events S06"],
        |f| {
            // A local error, of which the peer's device does not learn.
            let pair = f.pair()?;
            let elsewhere = f.region(&f.a, f.a.pz_create()?, 64, OPEN)?;
            f.a.post_send(pair.a.ep, &[elsewhere.whole()], 1, SIGNALLED)?;
            pair.a.done(1, DtoStatus::LocalProtection)?;
            for end in [&pair.a, &pair.b] {
                end.broken()?;
                silent(end)?;
            }
            // An access for which there is no right.
            let pair = f.pair()?;
            f.a.post_rdma_write(
                pair.a.ep,
                &[f.region(&f.a, pair.a.pz, 64, OPEN)?.whole()],
                1,
                SIGNALLED,
                RdmaAddr(0),
                RmrContext(0x7777_7700),
            )?;
            pair.a.done(1, DtoStatus::RemoteAccess)?;
            for end in [&pair.a, &pair.b] {
                end.broken()?;
                silent(end)?;
            }
            // A message for which no Receive is posted: the receiver's endpoint did nothing wrong.
            let pair = impatient(f, ConnAttributes { rnr_retry_count: 1, ..ConnAttributes::default() })?;
            f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
            pair.a.done(1, DtoStatus::ReceiverNotReady)?;
            for end in [&pair.a, &pair.b] {
                end.broken()?;
                silent(end)?;
            }
            Ok(())
        },
    ),
];
