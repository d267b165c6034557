//! Flags of work requests: which call takes which flags, and the effects of coalescing and
//! notification (page it_dto_flags_t).

use core::result::Result;

use privileged_api::*;

use crate::datagrams::ud::{Two, two};
use crate::fixture::{End, Fixture, MOMENT, OPEN, PAGE, Pair, Region, SIGNALLED, WAIT, attributes, sevd};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A call that posts a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Send,
    SendAndUnlink,
    Write,
    Read,
    Atomic,
    RmrLink,
    RmrUnlink,
    LmrLink,
    LmrUnlink,
    Recv,
    Sendto,
    Recvfrom,
}

/// All of them.
const CALLS: [Call; 12] = [
    Call::Send,
    Call::SendAndUnlink,
    Call::Write,
    Call::Read,
    Call::Atomic,
    Call::RmrLink,
    Call::RmrUnlink,
    Call::LmrLink,
    Call::LmrUnlink,
    Call::Recv,
    Call::Sendto,
    Call::Recvfrom,
];

impl Call {
    /// The flags that the call takes, according to the tables of the page.
    fn options(self) -> DtoFlags {
        let all = DtoFlags::COMPLETION | DtoFlags::NOTIFY | DtoFlags::COALESCE;
        all | match self {
            Call::Send | Call::SendAndUnlink => DtoFlags::SOLICITED_WAIT | DtoFlags::BARRIER_FENCE,
            Call::Sendto => DtoFlags::SOLICITED_WAIT,
            Call::Write | Call::Read | Call::Atomic | Call::RmrLink | Call::LmrLink => {
                DtoFlags::BARRIER_FENCE
            }
            Call::RmrUnlink | Call::LmrUnlink => DtoFlags::BARRIER_FENCE | DtoFlags::UNLINK_FENCE,
            Call::Recv | Call::Recvfrom => DtoFlags::empty(),
        }
    }
}

/// The objects that the calls use.
struct Operands {
    pair: Pair,
    own: Region,
    peer: Region,
    /// A region of `a`, which is not linked before a call that links it, and linked before a call
    /// that unlinks it.
    lmr: LmrHandle,
    rmr: RmrHandle,
    two: Two,
}

#[track_caller]
fn operands(f: &Fixture) -> Result<Operands, Failure> {
    let (pair, own, peer) = f.open_pair()?;
    let lmr = f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?;
    let rmr = f.a.rmr_create(pair.a.pz, RmrType::Narrow)?;
    Ok(Operands { pair, own, peer, lmr, rmr, two: two(f)? })
}

impl Operands {
    /// Makes the call.
    fn post(&self, call: Call, cookie: u64, flags: DtoFlags) -> Result<(), Error> {
        let End { ia, ep, .. } = &self.pair.a;
        let (segment, mode) = (self.own.segment(0, 8), AddrMode::Absolute);
        let (at, context) = (self.peer.remote(0), self.peer.context.unwrap_or_default());
        let (addr, page) = (self.own.buffer.addr(), PAGE as u64);
        match call {
            Call::Send => ia.post_send(*ep, &[segment], cookie, flags),
            // The context is invalid, so nothing is unlinked: here only the refusal of the call
            // counts.
            Call::SendAndUnlink => ia.post_send_and_unlink(*ep, &[segment], cookie, flags, RmrContext(0)),
            Call::Write => ia.post_rdma_write(*ep, &[segment], cookie, flags, at, context),
            Call::Read => ia.post_rdma_read(*ep, &[segment], cookie, flags, at, context),
            Call::Atomic => {
                let op = AtomicOp::FetchAndAdd;
                ia.post_atomic(*ep, op, 1, 0, &segment, cookie, flags, at, context)
            }
            Call::RmrLink => {
                let privs = MemPriv::REMOTE_READ;
                ia.rmr_link(self.rmr, self.own.lmr, addr, 8, mode, privs, *ep, cookie, flags).map(drop)
            }
            Call::RmrUnlink => ia.rmr_unlink(self.rmr, *ep, cookie, flags),
            Call::LmrLink => {
                let pages = [IoAddr(self.own.buffer.bus())];
                let iobl = Iobl::pages(&pages, page, 0);
                ia.lmr_link(self.lmr, addr, &iobl, page, mode, OPEN, *ep, cookie, flags).map(drop)
            }
            Call::LmrUnlink => ia.lmr_unlink(self.lmr, *ep, cookie, flags),
            Call::Recv => ia.post_recv(*ep, &[segment], cookie, flags),
            Call::Sendto => self.two.a.ia.post_sendto(self.two.a.ep, &[], cookie, flags, &self.two.to_b),
            Call::Recvfrom => {
                let into = self.two.into.segment(0, 100);
                self.two.b.ia.post_recvfrom(self.two.b.ep, &[into], cookie, flags)
            }
        }
    }

    /// Prepares what `call` needs, posts it with these flags and takes its completion. The
    /// completion comes because of COMPLETION, or is that of the request behind it.
    fn works(&self, f: &Fixture, call: Call, flags: DtoFlags) -> Outcome {
        let (a, b) = (&self.pair.a, &self.pair.b);
        match call {
            Call::Send => b.ia.post_recv(b.ep, &[self.peer.whole()], 1, DtoFlags::COMPLETION)?,
            Call::RmrUnlink => self.plain(Call::RmrLink)?,
            Call::LmrUnlink => self.plain(Call::LmrLink)?,
            _ => {}
        }
        self.post(call, 2, flags)?;
        match call {
            Call::Recv => {
                b.ia.post_send(b.ep, &[], 3, SIGNALLED)?;
                b.done(3, DtoStatus::Success)?;
                return a.recv_done(2, DtoStatus::Success);
            }
            Call::Recvfrom => {
                let Two { a, b, to_b, .. } = &self.two;
                let post = || a.ia.post_sendto(a.ep, &[], 3, SIGNALLED, to_b);
                return a.delivers(f, b, (3, 2), DtoStatus::Success, post).map(drop);
            }
            Call::Sendto => {
                self.two.a.ia.post_sendto(self.two.a.ep, &[], 4, SIGNALLED, &self.two.to_b)?;
                if flags.contains(DtoFlags::COMPLETION) {
                    self.sent(2)?;
                }
                return self.sent(4);
            }
            _ => {}
        }
        // This request releases a request that was held back.
        a.ia.post_rdma_write(a.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
        if flags.contains(DtoFlags::COMPLETION) {
            a.done(2, DtoStatus::Success)?;
        }
        a.done(4, DtoStatus::Success)?;
        match call {
            Call::Send => b.recv_done(1, DtoStatus::Success)?,
            Call::RmrLink => self.plain(Call::RmrUnlink)?,
            Call::LmrLink => self.plain(Call::LmrUnlink)?,
            _ => {}
        }
        Ok(())
    }

    /// Makes the call with the usual flags and takes its completion, which must be a success.
    fn plain(&self, call: Call) -> Outcome {
        self.post(call, 9, SIGNALLED)?;
        self.pair.a.done(9, DtoStatus::Success)
    }

    /// Takes the completion of a datagram, which must be a success.
    fn sent(&self, cookie: u64) -> Outcome {
        let done = crate::fixture::completion(&self.two.a.ia, self.two.a.request)?;
        check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
        Ok(())
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Each combination of flags is accepted or refused for each posting call by the page's tables.
    test("dto_flags::which_call_takes_which", &["it_dto_flags_t B26 B27 B31"], |f| {
        let operands = operands(f)?;
        for call in CALLS {
            let options = call.options();
            let least = match call {
                Call::Recv | Call::Recvfrom => DtoFlags::COMPLETION,
                _ => DtoFlags::empty(),
            };
            for flags in (0..0x100).map(DtoFlags::from_bits_retain) {
                let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
                if alone || !options.contains(flags) || !flags.contains(least) {
                    let posted = operands.post(call, 1, flags);
                    check_eq!(posted, Err(Error::InvalidDtoFlags), "{call:?} with {flags:?}");
                } else if call != Call::SendAndUnlink {
                    operands.works(f, call, flags)?;
                }
            }
        }
        // Sends that unlink a region, with each legal combination of flags.
        let End { ia, ep, .. } = &operands.pair.b;
        let lmr = ia.lmr_create_unlinked(operands.pair.b.pz, 1, LmrFlags::NONE, 0)?;
        let (pages, page) = ([IoAddr(operands.peer.buffer.bus())], PAGE as u64);
        let (iobl, addr) = (Iobl::pages(&pages, page, 0), operands.peer.buffer.addr());
        for flags in (0..0x80).map(DtoFlags::from_bits_retain) {
            let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
            if alone || !Call::SendAndUnlink.options().contains(flags) {
                continue;
            }
            let mode = AddrMode::Absolute;
            let context = ia.lmr_link(lmr, addr, &iobl, page, mode, OPEN, *ep, 5, SIGNALLED)?;
            operands.pair.b.done(5, DtoStatus::Success)?;
            ia.post_recv(*ep, &[], 6, DtoFlags::COMPLETION)?;
            let context = context.unwrap_or_default();
            f.a.post_send_and_unlink(operands.pair.a.ep, &[], 7, flags, context)?;
            f.a.post_rdma_write(operands.pair.a.ep, &[], 8, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            if flags.contains(DtoFlags::COMPLETION) {
                operands.pair.a.done(7, DtoStatus::Success)?;
            }
            operands.pair.a.done(8, DtoStatus::Success)?;
            operands.pair.b.recv_done(6, DtoStatus::Success)?;
        }
        f.a.rmr_free(operands.rmr)?;
        Ok(())
    })
    .limit(120),
    // Coalesced requests are checked at once, and executed in order with the next request that is
    // not coalesced.
    test("dto_flags::coalesced", &["it_dto_flags_t B11 F07 F14"], |f| {
        check_eq!(DtoFlags::COALESCE.bits(), 0x40);
        let pair = f.pair()?;
        let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
        own.fill(5);
        let (at, context) = (peer.remote(0), peer.context()?);
        let held = SIGNALLED | DtoFlags::COALESCE;
        // A bad argument is reported at once, although the request would be held back.
        let many = alloc::vec![own.segment(0, 1); 1000];
        refused(f.a.post_send(pair.a.ep, &many, 1, held), Error::InvalidNumSegments)?;
        refused(f.a.post_send(EpHandle::NULL, &[], 1, held), Error::InvalidEp)?;
        let never = held | DtoFlags::UNLINK_LOCAL_SINK;
        refused(f.a.post_rdma_write(pair.a.ep, &[], 1, never, at, context), Error::InvalidDtoFlags)?;
        for round in 0..20 {
            // The last of these requests releases all others, and they are executed in order.
            f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION | DtoFlags::COALESCE)?;
            f.b.post_recv(pair.b.ep, &[], 2, DtoFlags::COMPLETION)?;
            f.a.post_rdma_write(pair.a.ep, &[own.whole()], 1, held, at, context)?;
            f.a.post_send(pair.a.ep, &[], 2, held)?;
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 3, held, at, context)?;
            f.a.post_send(pair.a.ep, &[], 4, SIGNALLED)?;
            for cookie in 1..=4 {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            pair.b.recv_done(1, DtoStatus::Success)?;
            pair.b.recv_done(2, DtoStatus::Success)?;
            check!(peer.all() == own.all(), "round {round}");
        }
        pair.a.idle()
    }),
    // Coalesced requests use entries of their queue, and one too many is refused.
    test("dto_flags::coalesced_requests_take_room", &["it_dto_flags_t L01 O03"], |f| {
        let small = EpAttributes { max_request_dtos: 5, max_recv_dtos: 3, ..attributes() };
        let pair = f.pair_of(&small, &attributes())?;
        let granted = f.a.ep_query(pair.a.ep, EpParamMask::ALL)?.attr;
        let (requests, receives) = (granted.max_request_dtos as u64, granted.max_recv_dtos as u64);
        let held = SIGNALLED | DtoFlags::COALESCE;
        let write =
            |cookie, flags| f.a.post_rdma_write(pair.a.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0));
        for _ in 0..3 {
            for cookie in 0..requests {
                write(cookie, held)?;
            }
            for flags in [held, SIGNALLED] {
                refused(write(99, flags), Error::TooManyPosts)?;
            }
            for cookie in 0..receives {
                f.a.post_recv(pair.a.ep, &[], cookie, held)?;
            }
            refused(f.a.post_recv(pair.a.ep, &[], 99, held), Error::TooManyPosts)?;
            // All requests were executed.
            for cookie in 0..requests {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            for cookie in 0..receives {
                f.b.post_send(pair.b.ep, &[], cookie, SIGNALLED)?;
                pair.b.done(cookie, DtoStatus::Success)?;
                pair.a.recv_done(cookie, DtoStatus::Success)?;
            }
        }
        pair.a.idle()
    }),
    // The adapter does not know the notify flag, so the library must keep it for each request.
    test("dto_flags::the_library_keeps_the_notify_flag", &["it_dto_flags_t F09"], |f| {
        // The threshold is never reached, so the flag alone decides whether an event notifies.
        let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 16, 0)?;
        let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 16, 0)?;
        let end = f.end_on(&f.a, &EpAttributes { max_request_dtos: 8, ..attributes() }, request, recv)?;
        f.connect(&end, &f.end(&f.b, &attributes())?)?;
        let write =
            |cookie, flags| f.a.post_rdma_write(end.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0));
        write(1, DtoFlags::COMPLETION)?;
        check!(f.a.evd_wait(request, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
        write(2, SIGNALLED)?;
        let (event, _) = f.a.evd_wait(request, WAIT)?;
        check_eq!(event.dto().map(|done| done.cookie), Some(1));
        let (event, _) = f.a.evd_wait(request, WAIT)?;
        check_eq!(event.dto().map(|done| done.cookie), Some(2));
        Ok(())
    }),
];
