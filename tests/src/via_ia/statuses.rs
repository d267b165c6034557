//! The statuses of requests that fail on endpoints over VIA (page it_dto_status_t, table for VIA).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use super::{open, open_pair, spoil};
use crate::fixture::{Fixture, OPEN, PAGE, Pair, Region, SIGNALLED};
use crate::{Failure, Outcome, Test, check_eq, test};

/// A pair, and a page on each side.
type Ends<'a> = (&'a Fixture, &'a Pair, &'a Region, &'a Region);

/// Does something that fails at the active side with this status, and checks that both ends lose
/// their connection, once.
#[track_caller]
fn fails(v: &Fixture, status: DtoStatus, act: impl FnOnce(Ends<'_>) -> Outcome) -> Outcome {
    let (pair, own, peer) = open_pair(v)?;
    act((v, &pair, &own, &peer))?;
    pair.a.done(1, status)?;
    over(&pair)
}

/// Takes the one event of the end of the connection at both ends, and frees them. The passive side
/// may learn of an error at the active side by the end of the connection alone.
#[track_caller]
fn over(pair: &Pair) -> Outcome {
    for (end, other) in
        [(&pair.a, EventType::CM_MSG_CONN_BROKEN), (&pair.b, EventType::CM_MSG_CONN_DISCONNECT)]
    {
        let number = end.event()?.event_number();
        if number != EventType::CM_MSG_CONN_BROKEN && number != other {
            return Err(Failure::new(alloc::format!("the end of the connection: {number:?}")));
        }
        if end.state()? != EpStateRc::Nonoperational {
            return Err(Failure::new("still operational"));
        }
        match end.ia.evd_dequeue(end.conn) {
            Err(Error::QueueEmpty) => end.ia.ep_free(end.ep)?,
            other => return Err(Failure::new(alloc::format!("another event: {other:?}"))),
        }
    }
    Ok(())
}

/// Posts a Receive of so many bytes at the passive side.
fn receive(pair: &Pair, peer: &Region, len: usize) -> Outcome {
    Ok(pair.b.ia.post_recv(pair.b.ep, &[peer.segment(0, len)], 7, DtoFlags::COMPLETION)?)
}

/// Posts a Send of these segments.
fn send(pair: &Pair, segments: &[LmrTriplet]) -> Outcome {
    Ok(pair.a.ia.post_send(pair.a.ep, segments, 1, SIGNALLED)?)
}

/// Posts an RDMA Write of these segments to the peer's page.
fn write(pair: &Pair, segments: &[LmrTriplet], to: RdmaAddr, context: RmrContext) -> Outcome {
    Ok(pair.a.ia.post_rdma_write(pair.a.ep, segments, 1, SIGNALLED, to, context)?)
}

/// Posts an RDMA Read into these segments.
fn read(pair: &Pair, segments: &[LmrTriplet], from: RdmaAddr, context: RmrContext) -> Outcome {
    Ok(pair.a.ia.post_rdma_read(pair.a.ep, segments, 1, SIGNALLED, from, context)?)
}

/// A region with these privileges in the zone of the passive side.
fn guarded(v: &Fixture, pair: &Pair, privs: MemPriv) -> Result<Region, Failure> {
    v.region(&v.b, pair.b.pz, PAGE, privs)
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A message that is longer than the endpoint's payload size: the sender's Local Length.
    test("via_ia_statuses::too_long", &["it_dto_status_t F39"], |f| {
        let v = f.over_via()?;
        let short = EpAttributes { max_dto_payload_size: 100, ..open() };
        for way in 0..3 {
            let pair = v.pair_of(&short, &short)?;
            let (own, peer) = (super::page(&v, &pair.a)?, super::page(&v, &pair.b)?);
            let (segments, to) = ([own.segment(0, 50), own.segment(50, 51)], peer.remote(0));
            match way {
                0 => send(&pair, &segments)?,
                1 => write(&pair, &segments, to, peer.context()?)?,
                _ => read(&pair, &segments, to, peer.context()?)?,
            }
            pair.a.done(1, DtoStatus::LocalLength)?;
            over(&pair)?;
        }
        Ok(())
    }),
    // A Send that does not fit its Receive: Local Length there, and not Partial Packet. The sender,
    // whose table has nothing for it, gets Transport; so it does if there is no Receive or a bad
    // one.
    test(
        "via_ia_statuses::sends_without_a_fit_receive",
        &["it_dto_status_t V02", "it_post_recv V04", "it_post_send V01"],
        |f| {
            let v = f.over_via()?;
            let (pair, own, peer) = open_pair(&v)?;
            receive(&pair, &peer, 10)?;
            receive(&pair, &peer, 10)?;
            send(&pair, &[own.segment(0, 11)])?;
            pair.a.done(1, DtoStatus::Transport)?;
            pair.b.recv_done(7, DtoStatus::LocalLength)?;
            pair.b.recv_done(7, DtoStatus::Flushed)?;
            over(&pair)?;
            fails(&v, DtoStatus::Transport, |(_, pair, own, _)| send(pair, &[own.segment(0, 8)]))?;
            let (pair, own, peer) = open_pair(&v)?;
            receive(&pair, &peer, PAGE + 1)?;
            send(&pair, &[own.segment(0, 8)])?;
            pair.a.done(1, DtoStatus::Transport)?;
            pair.b.recv_done(7, DtoStatus::LocalProtection)?;
            over(&pair)
        },
    ),
    // A descriptor that the device finds badly formatted.
    test("via_ia_statuses::format", &["it_dto_status_t F40"], |f| {
        let v = f.over_via()?;
        fails(&v, DtoStatus::LocalEp, |(v, pair, own, peer)| {
            let format = nic_abi::cqe::Status::LocalQpOperation as u64;
            v.inject_into(&pair.a, Injection::Failure, 1, format)?;
            write(pair, &[own.segment(0, 8)], peer.remote(0), peer.context()?)
        })
    }),
    // A local segment that the endpoint may not use, of each request and of a Receive.
    test("via_ia_statuses::local_protection", &["it_dto_status_t F41", "it_post_rdma_write V02"], |f| {
        let v = f.over_via()?;
        let beyond: fn(Ends<'_>) -> Result<LmrTriplet, Failure> =
            |(_, _, own, _)| Ok(own.segment(PAGE - 4, 8));
        let freed: fn(Ends<'_>) -> Result<LmrTriplet, Failure> = |(v, pair, _, _)| {
            let region = v.region(&v.a, pair.a.pz, PAGE, OPEN)?;
            v.a.lmr_free(region.lmr)?;
            Ok(region.segment(0, 8))
        };
        let foreign: fn(Ends<'_>) -> Result<LmrTriplet, Failure> =
            |(v, _, _, _)| Ok(v.region(&v.a, v.a.pz_create()?, PAGE, OPEN)?.segment(0, 8));
        let null: fn(Ends<'_>) -> Result<LmrTriplet, Failure> =
            |(_, _, _, _)| Ok(LmrTriplet::new(LmrHandle::NULL, 0, 8));
        for bad in [beyond, freed, foreign, null] {
            for way in 0..3 {
                fails(&v, DtoStatus::LocalProtection, |ends| {
                    let (_, pair, _, peer) = ends;
                    let segment = [bad(ends)?];
                    receive(pair, peer, 8)?;
                    match way {
                        0 => send(pair, &segment),
                        1 => write(pair, &segment, peer.remote(0), peer.context()?),
                        _ => read(pair, &segment, peer.remote(0), peer.context()?),
                    }
                })?;
            }
        }
        // The sink of an RDMA Read needs the right to write.
        fails(&v, DtoStatus::LocalProtection, |(v, pair, _, peer)| {
            let sink = v.region(&v.a, pair.a.pz, PAGE, MemPriv::LOCAL_READ)?;
            read(pair, &[sink.segment(0, 8)], peer.remote(0), peer.context()?)
        })
    }),
    // What is posted when the connection ends, and afterwards, is flushed.
    test("via_ia_statuses::flushed", &["it_dto_status_t F42"], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        receive(&pair, &peer, 8)?;
        v.a.post_recv(pair.a.ep, &[own.segment(0, 8)], 5, DtoFlags::COMPLETION)?;
        v.b.ep_disconnect(pair.b.ep, &[])?;
        pair.b.recv_done(7, DtoStatus::Flushed)?;
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        pair.a.recv_done(5, DtoStatus::Flushed)?;
        for flags in [SIGNALLED, DtoFlags::empty()] {
            v.a.post_send(pair.a.ep, &[own.segment(0, 8)], 6, flags)?;
            pair.a.done(6, DtoStatus::Flushed)?;
            v.a.post_recv(pair.a.ep, &[own.segment(0, 8)], 8, DtoFlags::COMPLETION)?;
            let flushed = pair.a.reap_recv()?;
            check_eq!((flushed.cookie, flushed.dto_status), (8, DtoStatus::Flushed));
        }
        Ok(())
    }),
    // Memory of the peer that may not be used, by a Write and by a Read.
    test("via_ia_statuses::remote_access", &["it_dto_status_t F43", "it_post_rdma_read V01"], |f| {
        let v = f.over_via()?;
        for reads in [false, true] {
            let act = |pair: &Pair, segment: LmrTriplet, at, context| match reads {
                false => write(pair, &[segment], at, context),
                true => read(pair, &[segment], at, context),
            };
            let status = DtoStatus::RemoteAccess;
            fails(&v, status, |(_, pair, own, peer)| {
                act(pair, own.segment(0, 8), peer.remote(PAGE - 4), peer.context()?)
            })?;
            fails(&v, status, |(_, pair, own, peer)| {
                act(pair, own.segment(0, 8), peer.remote(0), RmrContext::default())
            })?;
            let other = if reads { MemPriv::REMOTE_WRITE } else { MemPriv::REMOTE_READ };
            fails(&v, status, |(v, pair, own, _)| {
                let closed = guarded(v, pair, MemPriv::LOCAL | other)?;
                act(pair, own.segment(0, 8), closed.remote(0), closed.context()?)
            })?;
            // Nothing is accessed where no byte is moved.
            let (pair, own, _) = open_pair(&v)?;
            act(&pair, own.segment(0, 0), RdmaAddr(0), RmrContext::default())?;
            pair.a.done(1, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // Data that was corrupt, and a peer that does not answer: Transport at the sender. Corrupt data
    // is Transport at the Receive, too.
    test("via_ia_statuses::transport", &["it_dto_status_t F44"], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        receive(&pair, &peer, 8)?;
        spoil(&v, &pair, Injection::Corrupt, 1)?;
        send(&pair, &[own.segment(0, 8)])?;
        pair.a.done(1, DtoStatus::Transport)?;
        pair.b.recv_done(7, DtoStatus::Transport)?;
        over(&pair)?;
        fails(&v, DtoStatus::Transport, |(v, pair, own, peer)| {
            spoil(v, pair, Injection::Corrupt, 1)?;
            write(pair, &[own.segment(0, 8)], peer.remote(0), peer.context()?)
        })
    })
    .limit(120),
    // A message of which a part is missing: Partial Packet at the Receive.
    test("via_ia_statuses::partial_packet", &["it_dto_status_t F45"], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        receive(&pair, &peer, 8)?;
        spoil(&v, &pair, Injection::Truncate, 1)?;
        send(&pair, &[own.segment(0, 8)])?;
        pair.a.done(1, DtoStatus::Transport)?;
        pair.b.recv_done(7, DtoStatus::PartialPacket)?;
        over(&pair)
    }),
    // Whatever way the device makes a request end, the status is one of VIA's.
    test("via_ia_statuses::none_of_infiniband", &["it_dto_status_t B04"], |f| {
        let v = f.over_via()?;
        for byte in 1..=u8::MAX {
            let Some(status) = nic_abi::cqe::Status::from_byte(byte) else { continue };
            for way in 0..3 {
                let (pair, own, peer) = open_pair(&v)?;
                receive(&pair, &peer, 8)?;
                v.inject_into(&pair.a, Injection::Failure, 1, status as u64)?;
                let segment = [own.segment(0, 8)];
                match way {
                    0 => send(&pair, &segment)?,
                    1 => write(&pair, &segment, peer.remote(0), peer.context()?)?,
                    _ => read(&pair, &segment, peer.remote(0), peer.context()?)?,
                }
                let ended = pair.a.reap()?.dto_status;
                let of_via = [
                    DtoStatus::LocalLength,
                    DtoStatus::LocalEp,
                    DtoStatus::LocalProtection,
                    DtoStatus::Flushed,
                    DtoStatus::RemoteAccess,
                    DtoStatus::Transport,
                ];
                if !of_via.contains(&ended) {
                    return Err(Failure::new(alloc::format!("{status:?} became {ended:?}")));
                }
                v.a.lmr_free(own.lmr)?;
                v.b.lmr_free(peer.lmr)?;
                for end in [&pair.a, &pair.b] {
                    end.ia.ep_free(end.ep)?;
                    for evd in [end.request, end.recv, end.conn] {
                        end.ia.evd_free(evd)?;
                    }
                    end.ia.pz_free(end.pz)?;
                }
            }
        }
        Ok(())
    }),
];
