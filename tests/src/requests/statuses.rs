//! The status of each completed work request, according to the page's table for InfiniBand (page
//! it_dto_status_t).

use core::result::Result;

use nic_abi::admin::Injection;
use nic_abi::cqe::Status;
use privileged_api::*;

use crate::datagrams::ud::two;
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, test};

/// A request of the active side to a peer that has memory and Receives for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
}

const WAYS: [Way; 5] = [Way::Send, Way::Write, Way::Read, Way::FetchAdd, Way::CompareSwap];

/// Those that the transport has.
fn ways(f: &Fixture) -> Result<&'static [Way], Failure> {
    Ok(if f.a.ia_query()?.atomic_support { &WAYS } else { &WAYS[..3] })
}

/// A connected pair, and a region on each side with all privileges.
struct Operands {
    pair: Pair,
    own: Region,
    peer: Region,
}

#[track_caller]
fn operands(f: &Fixture) -> Result<Operands, Failure> {
    let (pair, own, peer) = f.open_pair()?;
    Ok(Operands { pair, own, peer })
}

impl Operands {
    /// Posts the request on the active side.
    #[track_caller]
    fn post(&self, way: Way, cookie: u64) -> Outcome {
        let End { ia, ep, .. } = &self.pair.a;
        let (segment, flags) = (self.own.segment(0, 8), SIGNALLED);
        let (at, context) = (self.peer.remote(0), self.peer.context()?);
        match way {
            Way::Send => {
                let End { ia: there, ep: to, .. } = &self.pair.b;
                there.post_recv(*to, &[self.peer.whole()], cookie, DtoFlags::COMPLETION)?;
                ia.post_send(*ep, &[segment], cookie, flags)?;
            }
            Way::Write => ia.post_rdma_write(*ep, &[segment], cookie, flags, at, context)?,
            Way::Read => ia.post_rdma_read(*ep, &[segment], cookie, flags, at, context)?,
            Way::FetchAdd | Way::CompareSwap => {
                let op = match way {
                    Way::FetchAdd => AtomicOp::FetchAndAdd,
                    _ => AtomicOp::CompareAndSwap,
                };
                ia.post_atomic(*ep, op, 1, 0, &segment, cookie, flags, at, context)?;
            }
        }
        Ok(())
    }

    /// Makes the device complete the next request with this status.
    fn spoil(&self, f: &Fixture, status: Status) -> Outcome {
        f.inject_into(&self.pair.a, Injection::Failure, 1, status as u64)
    }
}

/// A region that is linked to a page through the endpoint.
fn linked(f: &Fixture, end: &End, cookie: u64) -> Result<Region, Failure> {
    let buffer = f.buffer(PAGE)?;
    let lmr = end.ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
    let pages = [IoAddr(buffer.bus())];
    let iobl = Iobl::pages(&pages, PAGE as u64, 0);
    let (addr, mode, length) = (buffer.addr(), AddrMode::Absolute, PAGE as u64);
    let context = end.ia.lmr_link(lmr, addr, &iobl, length, mode, OPEN, end.ep, cookie, SIGNALLED)?;
    Ok(Region { buffer, lmr, context })
}

/// Links a new RMR to a whole region.
fn window(end: &End, region: &Region, cookie: u64) -> Result<(RmrHandle, RmrContext), Failure> {
    let rmr = end.ia.rmr_create(end.pz, RmrType::Narrow)?;
    let (addr, length) = (region.buffer.addr(), region.buffer.len() as u64);
    let (mode, privs) = (AddrMode::Absolute, MemPriv::REMOTE);
    let context = end.ia.rmr_link(rmr, region.lmr, addr, length, mode, privs, end.ep, cookie, SIGNALLED)?;
    Ok((rmr, context))
}

/// Takes the next completion, which must be a success with this number and cookie.
#[track_caller]
fn worked(end: &End, number: EventType, cookie: u64) -> Outcome {
    let done = end.reap()?;
    match (done.event_number, done.cookie, done.dto_status) == (number, cookie, DtoStatus::Success) {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("expected {number:?} of {cookie}, got {done:?}"))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A request that the peer refuses as invalid fails with a status of its own, not as a
    // protection error.
    test("statuses::what_the_peer_refuses_as_invalid", &["it_dto_status_t A27"], |f| {
        // A request with an unknown operation.
        for way in WAYS {
            let operands = self::operands(f)?;
            // So are its repetitions, if the network loses it.
            f.inject_into(&operands.pair.a, Injection::BadRequest, 100, 0)?;
            operands.post(way, 1)?;
            // The page of it_post_atomic calls what makes an atomic invalid an access violation.
            let status = match way {
                Way::FetchAdd | Way::CompareSwap => DtoStatus::RemoteAccess,
                Way::Send | Way::Write | Way::Read => DtoStatus::RemoteResponder,
            };
            operands.pair.a.done(1, status)?;
            operands.pair.a.broken()?;
        }
        // A message that is longer than the endpoint accepts, in either direction. That is not a
        // protection error.
        for write in [true, false] {
            let short = EpAttributes { max_dto_payload_size: 64, ..attributes() };
            let pair = f.pair_of(&attributes(), &short)?;
            let (own, peer) =
                (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            let (segment, at, context) = ([own.segment(0, 65)], peer.remote(0), peer.context()?);
            match write {
                true => f.a.post_rdma_write(pair.a.ep, &segment, 1, SIGNALLED, at, context)?,
                false => f.a.post_rdma_read(pair.a.ep, &segment, 1, SIGNALLED, at, context)?,
            }
            pair.a.done(1, DtoStatus::RemoteResponder)?;
            pair.a.broken()?;
            peer.untouched()?;
        }
        Ok(())
    }),
    // Each kind of request completes with its own event number and success.
    test(
        "statuses::every_kind_of_request_succeeds",
        &["it_dto_status_t B01", "it_dto_events F05-F08"],
        |f| {
            let operands = self::operands(f)?;
            let (a, b) = (&operands.pair.a, &operands.pair.b);
            for (cookie, &way) in ways(f)?.iter().enumerate() {
                let number = match way {
                    Way::Send => EventType::DTO_SEND_CMPL,
                    Way::Write => EventType::DTO_RDMA_WRITE_CMPL,
                    Way::Read => EventType::DTO_RDMA_READ_CMPL,
                    Way::FetchAdd => EventType::DTO_FETCH_ADD_CMPL,
                    Way::CompareSwap => EventType::DTO_CMP_SWAP_CMPL,
                };
                operands.post(way, cookie as u64)?;
                worked(a, number, cookie as u64)?;
            }
            let received = b.reap_recv()?;
            check_eq!(received.event_number, EventType::DTO_RC_RECV_CMPL);
            check_eq!(received.dto_status, DtoStatus::Success);
            // Links and unlinks of regions and of RMRs.
            let region = linked(f, b, 10)?;
            worked(b, EventType::LMR_LINK_CMPL, 10)?;
            let (rmr, _) = window(b, &operands.peer, 11)?;
            worked(b, EventType::RMR_LINK_CMPL, 11)?;
            f.b.rmr_unlink(rmr, b.ep, 12, SIGNALLED)?;
            worked(b, EventType::RMR_BIND_CMPL, 12)?;
            f.b.lmr_unlink(region.lmr, b.ep, 13, SIGNALLED)?;
            worked(b, EventType::LMR_LINK_CMPL, 13)?;
            // A Send that unlinks.
            let region = linked(f, b, 14)?;
            worked(b, EventType::LMR_LINK_CMPL, 14)?;
            f.b.post_recv(b.ep, &[], 15, DtoFlags::COMPLETION)?;
            f.a.post_send_and_unlink(a.ep, &[], 16, SIGNALLED, region.context()?)?;
            worked(a, EventType::DTO_SEND_CMPL, 16)?;
            check_eq!(b.reap_recv()?.unlinked_mr_handle.as_raw(), region.lmr.as_raw());
            if f.setup.transport == Transport::Iwarp {
                return Ok(());
            }
            let two = two(f)?;
            two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 200)], 17, SIGNALLED)?;
            let done = two.a.delivers(f, &two.b, (18, 17), DtoStatus::Success, || {
                two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 18, SIGNALLED, &two.to_b)
            });
            done.map(drop)
        },
    ),
    // An answer that does not fit the request fails it with IT_DTO_ERR_BAD_RESPONSE.
    test("statuses::an_answer_that_makes_no_sense", &["it_dto_status_t F09 F22"], |f| {
        check_eq!(DtoStatus::BadResponse.as_raw(), 6);
        for way in WAYS {
            let operands = self::operands(f)?;
            f.inject_into(&operands.pair.a, Injection::BadResponse, 1, 0)?;
            operands.post(way, 1)?;
            operands.pair.a.done(1, DtoStatus::BadResponse)?;
            operands.pair.a.broken()?;
        }
        Ok(())
    }),
    // Each status of the adapter has the status that the page's table for InfiniBand gives.
    test("statuses::the_adapters_statuses_are_translated", &["it_dto_status_t F08 F18 F21 F27"], |f| {
        let table = [
            (Status::LocalLength, DtoStatus::LocalLength),
            (Status::LocalQpOperation, DtoStatus::LocalEp),
            (Status::LocalProtection, DtoStatus::LocalProtection),
            (Status::RemoteAccess, DtoStatus::RemoteAccess),
            (Status::RemoteOperation, DtoStatus::RemoteResponder),
            (Status::RetryExceeded, DtoStatus::Transport),
            (Status::RnrRetryExceeded, DtoStatus::ReceiverNotReady),
        ];
        for (status, expected) in table {
            let operands = self::operands(f)?;
            operands.spoil(f, status)?;
            operands.post(Way::Write, 1)?;
            operands.pair.a.done(1, expected)?;
            operands.pair.a.broken()?;
            operands.peer.untouched()?;
        }
        check_eq!((DtoStatus::LocalEp.as_raw(), DtoStatus::RmrOperationFailed.as_raw()), (2, 5));
        check_eq!(DtoStatus::PartialPacket.as_raw(), 11);
        // Statuses of links and unlinks.
        for (status, expected) in [
            (Status::WindowBind, DtoStatus::RmrOperationFailed),
            (Status::MemoryManagement, DtoStatus::LocalMmOperation),
            (Status::LocalQpOperation, DtoStatus::LocalEp),
        ] {
            let operands = self::operands(f)?;
            operands.spoil(f, status)?;
            window(&operands.pair.a, &operands.own, 2)?;
            operands.pair.a.done(2, expected)?;
            operands.pair.a.broken()?;
            let operands = self::operands(f)?;
            let (rmr, _) = window(&operands.pair.a, &operands.own, 1)?;
            worked(&operands.pair.a, EventType::RMR_LINK_CMPL, 1)?;
            operands.spoil(f, status)?;
            f.a.rmr_unlink(rmr, operands.pair.a.ep, 3, SIGNALLED)?;
            operands.pair.a.done(3, expected)?;
            operands.pair.a.broken()?;
            f.a.rmr_free(rmr)?;
        }
        let operands = self::operands(f)?;
        operands.spoil(f, Status::MemoryManagement)?;
        linked(f, &operands.pair.a, 4)?;
        operands.pair.a.done(4, DtoStatus::LocalMmOperation)?;
        operands.pair.a.broken()
    }),
    // An inconsistency of the local endpoint completes with IT_DTO_ERR_LOCAL_EP.
    test("statuses::the_local_endpoint", &["it_dto_status_t F05"], |f| {
        for &way in ways(f)? {
            let operands = self::operands(f)?;
            operands.spoil(f, Status::LocalQpOperation)?;
            operands.post(way, 1)?;
            operands.pair.a.done(1, DtoStatus::LocalEp)?;
            operands.pair.a.broken()?;
            operands.peer.untouched()?;
        }
        Ok(())
    }),
    // A link that grants more than the region allows fails.
    test("statuses::links_beyond_what_the_region_allows", &["it_dto_status_t A16 A17"], |f| {
        // iWARP has no such rule (iwarp_ia::rmrs_need_no_local_write).
        Need::InfiniBand.of(&f.a)?;
        // Every region grants local read, so a link may always grant remote read.
        for (has, wants) in [
            (MemPriv::LOCAL_READ, MemPriv::REMOTE_WRITE),
            (MemPriv::LOCAL_READ, MemPriv::REMOTE | MemPriv::ATOMIC),
        ] {
            for rmr_type in [RmrType::Narrow, RmrType::Wide] {
                let pair = f.pair()?;
                let region = f.region(&f.a, pair.a.pz, PAGE, has)?;
                let rmr = f.a.rmr_create(pair.a.pz, rmr_type)?;
                let (addr, mode) = (region.buffer.addr(), AddrMode::Absolute);
                f.a.rmr_link(rmr, region.lmr, addr, 64, mode, wants, pair.a.ep, 1, SIGNALLED)?;
                pair.a.done(1, DtoStatus::RmrOperationFailed)?;
                pair.a.broken()?;
                check!(!f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
            }
        }
        Ok(())
    }),
    // A region to which an RMR is linked, or that is shared, cannot be unlinked.
    test("statuses::unlinks_of_what_is_in_use", &["it_dto_status_t A45 A46"], |f| {
        // An RMR is linked to it.
        let pair = f.pair()?;
        let region = linked(f, &pair.a, 1)?;
        pair.a.done(1, DtoStatus::Success)?;
        let (rmr, _) = window(&pair.a, &region, 2)?;
        pair.a.done(2, DtoStatus::Success)?;
        f.a.lmr_unlink(region.lmr, pair.a.ep, 3, SIGNALLED)?;
        pair.a.done(3, DtoStatus::LocalMmOperation)?;
        pair.a.broken()?;
        check!(f.a.lmr_query(region.lmr, LmrParamMask::LINKED)?.linked);
        f.a.rmr_free(rmr)?;
        // Other regions share its memory.
        let pair = f.pair()?;
        let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let memory = LmrMemory::buffer(&region.buffer);
        let (mode, flags) = (AddrMode::Absolute, LmrFlags::SHARED);
        let (lmr, _) = f.a.lmr_create(pair.a.pz, memory, PAGE as u64, mode, OPEN, flags, 0)?;
        check!(f.a.lmr_query(lmr, LmrParamMask::FLAG)?.flags.contains(LmrFlags::SHARED));
        f.a.lmr_unlink(lmr, pair.a.ep, 4, SIGNALLED)?;
        pair.a.done(4, DtoStatus::LocalMmOperation)?;
        pair.a.broken()?;
        check!(f.a.lmr_query(lmr, LmrParamMask::LINKED)?.linked);
        Ok(())
    }),
];
