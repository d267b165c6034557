//! Affiliated events of endpoints over VIA (page it_affiliated_event_t, table for VIA).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use super::{open_pair, spoil};
use crate::fixture::{Fixture, PAGE, Pair, Region, SIGNALLED, WAIT, sevd};
use crate::{Failure, Outcome, Test, check_eq, refused, test};

/// What the active side does, and how the passive side is spoiled before.
type Act = fn(&Fixture, &Pair, &Region, &Region) -> Outcome;

/// Has the active side do something, and checks the one affiliated event of the passive side: its
/// number and its endpoint, which is not operational by then. Returns the pair.
#[track_caller]
fn raises(v: &Fixture, number: EventType, act: Act) -> Result<Pair, Failure> {
    let (pair, own, peer) = open_pair(v)?;
    let affiliated = [&v.a, &v.b].map(|ia| sevd(ia, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1));
    let [at_a, at_b] = affiliated;
    let (at_a, at_b) = (at_a?, at_b?);
    act(v, &pair, &own, &peer)?;
    let (event, _) = v.b.evd_wait(at_b, WAIT)?;
    let expected =
        Event::Affiliated { event_number: number, evd: at_b, cause: AffiliatedCause::Ep(pair.b.ep) };
    if event != expected {
        return Err(Failure::new(alloc::format!("expected {number:?}, got {event:?}")));
    }
    pair.b.broken()?;
    pair.a.broken()?;
    for (ia, evd) in [(&v.a, at_a), (&v.b, at_b)] {
        refused(ia.evd_dequeue(evd), Error::QueueEmpty)?;
        ia.evd_free(evd)?;
    }
    Ok(pair)
}

/// As [`raises`], and the active side's request ends with this status.
#[track_caller]
fn raises_and_ends(v: &Fixture, number: EventType, status: DtoStatus, act: Act) -> Outcome {
    let pair = raises(v, number, act)?;
    let ended = pair.a.reap()?;
    match (ended.cookie, ended.dto_status) {
        (1, found) if found == status => Ok(()),
        other => Err(Failure::new(alloc::format!("expected {status:?}, got {other:?}"))),
    }
}

fn send(v: &Fixture, pair: &Pair, own: &Region) -> Outcome {
    Ok(v.a.post_send(pair.a.ep, &[own.segment(0, 8)], 1, SIGNALLED)?)
}

fn write(v: &Fixture, pair: &Pair, own: &Region, peer: &Region, at: usize) -> Outcome {
    let (segment, to) = (own.segment(0, 8), peer.remote(at));
    Ok(v.a.post_rdma_write(pair.a.ep, &[segment], 1, SIGNALLED, to, peer.context()?)?)
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A Send without a Receive is dropped: the receiver's event says so, and the sender's request
    // ends with Transport.
    test("via_ia_asynchronous::no_receive", &["it_affiliated_event_t F45 V05"], |f| {
        let v = f.over_via()?;
        let number = EventType::ASYNC_AFF_EP_REQ_DROPPED;
        raises_and_ends(&v, number, DtoStatus::Transport, |v, pair, own, _| send(v, pair, own))
    }),
    // A Write and a Read of memory that may not be used, a Write whose data is corrupt, and one of
    // which a part is missing.
    test("via_ia_asynchronous::rdma", &["it_affiliated_event_t B05 F44 F46-F48"], |f| {
        let v = f.over_via()?;
        let number = EventType::ASYNC_AFF_EP_RDMAW_ACCESS_VIOLATION;
        raises_and_ends(&v, number, DtoStatus::RemoteAccess, |v, pair, own, peer| {
            write(v, pair, own, peer, PAGE)
        })?;
        let number = EventType::ASYNC_AFF_EP_RDMAR_ACCESS_VIOLATION;
        raises_and_ends(&v, number, DtoStatus::RemoteAccess, |v, pair, own, peer| {
            let (sink, from) = (own.segment(0, 8), peer.remote(PAGE));
            Ok(v.a.post_rdma_read(pair.a.ep, &[sink], 1, SIGNALLED, from, peer.context()?)?)
        })?;
        let number = EventType::ASYNC_AFF_EP_RDMAW_CORRUPT_DATA;
        raises_and_ends(&v, number, DtoStatus::Transport, |v, pair, own, peer| {
            spoil(v, pair, Injection::Corrupt, 1)?;
            write(v, pair, own, peer, 0)
        })?;
        let number = EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE;
        raises_and_ends(&v, number, DtoStatus::Transport, |v, pair, own, peer| {
            spoil(v, pair, Injection::Truncate, 1)?;
            write(v, pair, own, peer, 0)
        })
    }),
    // A descriptor whose status cannot be written has no completion: the endpoint has failed.
    test("via_ia_asynchronous::a_status_that_is_lost", &["it_affiliated_event_t F43"], |f| {
        let v = f.over_via()?;
        let pair = raises(&v, EventType::ASYNC_AFF_EP_FAILURE, |v, pair, own, peer| {
            for cookie in [5, 6] {
                v.b.post_recv(pair.b.ep, &[peer.segment(0, 8)], cookie, DtoFlags::COMPLETION)?;
            }
            spoil(v, pair, Injection::LoseStatus, 1)?;
            send(v, pair, own)
        })?;
        // The next one is flushed; the lost one is off the queue then.
        pair.b.recv_done(6, DtoStatus::Flushed)?;
        refused(v.b.evd_dequeue(pair.b.recv), Error::QueueEmpty)?;
        check_eq!(v.b.ep_outstanding(pair.b.ep)?, (0, 0));
        Ok(())
    }),
];
