//! Sending and receiving datagrams (page dat_ib_post_send_ud and section 2.3 of the IB extensions).

use alloc::vec;
use core::result::Result;
use core::time::Duration;

use dat::*;

use super::world::*;
use crate::fixture::{PAGE, pattern, spigot};
use crate::thread::pause;
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, refused, some, test};

/// Bytes in front of each received message, which hold the header.
pub(crate) const FRONT: usize = 40;
/// How long a test on a lossy network waits for a datagram before it sends another one, in
/// microseconds, and how many it sends.
const LATE: u32 = 100_000;
const ATTEMPTS: u32 = 100;
/// How late a datagram of a lossy network may arrive, out of order or twice.
const SETTLED: Duration = Duration::from_millis(20);

/// Sends a datagram and returns the event of the Receive that it completes. Repeats it until one
/// arrives, for a lossy network.
#[track_caller]
pub(crate) fn delivered(w: &World<'_>, to: &End, send: impl Fn() -> Outcome) -> Result<Event, Failure> {
    send()?;
    for _ in 0..if w.f.setup.lossy { ATTEMPTS } else { 0 } {
        match to.ia.evd_wait(to.recv, LATE, 1) {
            Err(failure) if failure.error == ErrorType::TimeoutExpired => send()?,
            Err(failure) => return Err(failure.into()),
            Ok((event, _)) => {
                // Datagrams that are late or repeated find no Receive then.
                pause(w.f.platform(), SETTLED);
                return Ok(event);
            }
        }
    }
    next(&to.ia, to.recv)
}

/// Checks the event of a Receive that a datagram of this length completed.
#[track_caller]
pub(crate) fn is_datagram(event: &Event, to: &End, cookie: u64, length: usize) -> Outcome {
    check_eq!((event.event_number, event.evd_handle), (EventNumber::IB_DTO, to.recv));
    let expected = DtoCompletion {
        ep_handle: to.ep,
        user_cookie: cookie,
        status: DtoStatus::Success,
        transferred_length: (FRONT + length) as u64,
        operation: Dto::IB_RECV_UD,
    };
    check_eq!(event.dto(), Some(&expected));
    let extension = some(event.extension, "extension data")?;
    check_eq!((extension.ext_type, extension.status), (IbExtType::UdRecv, IbStatus::Success));
    Ok(())
}

/// Two endpoints with each other's address, and a region of two pages on each side.
pub(crate) struct Two {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) of_b: IbAddrHandle,
    pub(crate) of_a: IbAddrHandle,
    pub(crate) from: Region,
    pub(crate) into: Region,
}

/// Two resolved endpoints with these attributes.
#[track_caller]
pub(crate) fn two_of(w: &World<'_>, a: &EpAttr, b: &EpAttr) -> Result<Two, Failure> {
    let (a, b) = (w.end(&w.a, a)?, w.end(&w.b, b)?);
    let (of_b, of_a) = w.resolve(&a, &b)?;
    let open = MemPriv::LOCAL_READ | MemPriv::LOCAL_WRITE;
    let (from, into) = (w.region(&a, 2 * PAGE, open)?, w.region(&b, 2 * PAGE, open)?);
    from.fill(3);
    Ok(Two { a, b, of_b, of_a, from, into })
}

/// Two resolved endpoints.
#[track_caller]
pub(crate) fn two(w: &World<'_>) -> Result<Two, Failure> {
    two_of(w, &datagrams(), &datagrams())
}

impl Two {
    /// Posts a datagram to `b`.
    pub(crate) fn post(
        &self,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> dat::Result<()> {
        self.a.ia.ib_post_send_ud(self.a.ep, segments, &self.of_b, cookie, flags)
    }

    /// Sends a datagram to `b` and takes its completion.
    #[track_caller]
    pub(crate) fn send(&self, segments: &[LmrTriplet], cookie: u64) -> Outcome {
        self.post(segments, cookie, PLAIN)?;
        self.a.done(cookie, DtoStatus::Success).map(drop)
    }

    /// Checks that a datagram goes from `a` to `b`.
    #[track_caller]
    pub(crate) fn works(&self, w: &World<'_>) -> Outcome {
        self.b.receive(&[self.into.segment(0, 100)], 77)?;
        let event = delivered(w, &self.b, || self.send(&[self.from.segment(0, 60)], 78))?;
        is_datagram(&event, &self.b, 77, 60)?;
        check_eq!(self.into.bytes(FRONT, 60), self.from.bytes(0, 60));
        Ok(())
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A datagram of several segments reaches the endpoint that its address names, and no other one.
    // Its message is behind the 40 bytes of the header. Either side can send first, and the events
    // have the right numbers and types.
    test(
        "dat_datagrams::a_datagram_arrives_behind_its_header",
        &[
            "dat-ib-2.3 B01",
            "dat_ib_post_send_ud B01-B03 F04",
            "dat-ib-usage B05 B06 L01",
            "DAT_IB_DTOS F06 F07",
            "DAT_IB_EXT_TYPE F09 F10",
            "DAT_IB_ADDR_HANDLE F01",
        ],
        |f| {
            world(f, |w| {
                let Two { a, b, of_b, of_a, from, into } = two(w)?;
                check_eq!((Dto::IB_SEND_UD.as_raw(), Dto::IB_RECV_UD.as_raw()), (13, 14));
                // Another endpoint of the same node, also resolved, gets nothing.
                let other = w.end(&w.b, &datagrams())?;
                w.resolve(&a, &other)?;
                other.receive(&[into.segment(PAGE, 100)], 1)?;
                // The server sends first: it has the client's address from the accept.
                let sides = [(&b, &a, of_a, &into, &from), (&a, &b, of_b, &from, &into)];
                for (cookie, (end, to, ah, source, sink)) in (u64::MAX - 9..).step_by(4).zip(sides) {
                    source.fill(cookie as u8);
                    sink.write(0, &[0; PAGE]);
                    let mut places = [sink.segment(1, 17), sink.segment(101, 300)];
                    to.receive(&places, cookie)?;
                    // The consumer may reuse the lists of segments at once.
                    places.fill(LmrTriplet::default());
                    let event = delivered(w, to, || {
                        let mut pieces =
                            [source.segment(3, 50), source.segment(40, 20), source.segment(1000, 31)];
                        end.ia.ib_post_send_ud(end.ep, &pieces, &ah, cookie + 1, PLAIN)?;
                        pieces.fill(LmrTriplet::default());
                        let event = next(&end.ia, end.request)?;
                        check_eq!((event.event_number, event.evd_handle), (EventNumber::IB_DTO, end.request));
                        let done = *some(event.dto(), "a completion")?;
                        check_eq!((done.user_cookie, done.ep_handle), (cookie + 1, end.ep));
                        check_eq!((done.status, done.operation), (DtoStatus::Success, Dto::IB_SEND_UD));
                        let extension = some(event.extension, "extension data")?;
                        check_eq!((extension.ext_type as u32, extension.status as u32), (8, 0));
                        Ok(())
                    })?;
                    is_datagram(&event, to, cookie, 101)?;
                    check_eq!(event.extension.map(|extension| extension.ext_type as u32), Some(9));
                    let mut expected = source.bytes(3, 50);
                    expected.extend(source.bytes(40, 20));
                    expected.extend(source.bytes(1000, 31));
                    let mut landed = sink.bytes(1, 17);
                    landed.extend(sink.bytes(101, 300));
                    check_eq!(landed[FRONT..][..101], expected[..]);
                    check!(landed[FRONT + 101..].iter().all(|&byte| byte == 0), "bytes behind the message");
                    // The header is of IP version 4, in the last 20 bytes, with both addresses.
                    let (own, far) = (address(&w.a)?, address(&w.b)?);
                    let (source, sink) = if to.ep == b.ep { (own, far) } else { (far, own) };
                    let octets =
                        |at: usize| landed[at..].first_chunk::<4>().map(|four| IaAddress::from(*four));
                    check_eq!((landed[20] >> 4, octets(32), octets(36)), (4, Some(source), Some(sink)));
                }
                nothing(&w.b, other.recv)
            })
        },
    ),
    // Messages of every length up to the port's MTU arrive in Receives of just that length and the
    // header. One byte more is refused and posts nothing; so is one byte more than the endpoint's
    // own longest message.
    test(
        "dat_datagrams::messages_have_a_longest",
        &["dat-ib-2.3 L01", "dat_ib_post_send_ud DAT_LENGTH_ERROR", "dat-ib-usage L01"],
        |f| {
            world(f, |w| {
                let long = Error::from(ErrorType::LengthError);
                let two = two(w)?;
                let mtu = spigot(&f.a)?.max_ud_send_len;
                let attr = w.a.ep_query(two.a.ep, EpParamMask::ALL)?.ep_attr;
                check_eq!(attr.max_message_size, mtu as u64);
                for (cookie, length) in (1..).zip([0, 1, 40, mtu - 1, mtu]) {
                    two.into.write(0, &vec![0; 2 * PAGE]);
                    two.b.receive(&[two.into.segment(8, FRONT + length)], cookie)?;
                    let segments =
                        [two.from.segment(1, length / 2), two.from.segment(PAGE, length - length / 2)];
                    let segments = if length == 0 { &[][..] } else { &segments[..] };
                    let event = delivered(w, &two.b, || two.send(segments, 2))?;
                    is_datagram(&event, &two.b, cookie, length)?;
                    let mut expected = two.from.bytes(1, length / 2);
                    expected.extend(two.from.bytes(PAGE, length - length / 2));
                    check_eq!(two.into.bytes(8 + FRONT, length), expected);
                }
                let short = EpAttr { max_message_size: 100, ..datagrams() };
                let little = two_of(w, &short, &datagrams())?;
                for (two, most) in [(&two, mtu), (&little, 100)] {
                    let one = [two.from.segment(0, most + 1)];
                    let several = [two.from.segment(0, most), two.from.segment(0, 1)];
                    let huge = LmrTriplet::new(two.from.lmr.lmr_context, 0, u64::MAX);
                    for segments in [&one[..], &several, &[huge, huge]] {
                        refused(two.post(segments, 3, PLAIN), long)?;
                    }
                    let idle = (EpState::Connected, true, true);
                    check_eq!(w.a.ep_get_status(two.a.ep)?, idle);
                    nothing(&w.a, two.a.request)?;
                }
                little.b.receive(&[little.into.segment(0, 140)], 4)?;
                let event = delivered(w, &little.b, || little.send(&[little.from.segment(0, 100)], 5))?;
                is_datagram(&event, &little.b, 4, 100)
            })
        },
    ),
    // Datagrams complete Receives in the order in which they were sent, if none is lost.
    test("dat_datagrams::datagrams_arrive_in_order", &["dat-ib-2.3 A01 B03"], |f| {
        if f.setup.lossy {
            return not_shown("datagrams may get lost, or arrive twice or out of order");
        }
        world(f, |w| {
            let two = two(w)?;
            for n in 0..32 {
                two.b.receive(&[two.into.segment(n as usize * 64, 64)], n)?;
            }
            for n in 0..32 {
                two.post(&[two.from.segment(n as usize, 8)], n, PLAIN)?;
            }
            for n in 0..32 {
                two.a.done(n, DtoStatus::Success)?;
                let event = next(&w.b, two.b.recv)?;
                is_datagram(&event, &two.b, n, 8)?;
                check_eq!(two.into.bytes(n as usize * 64 + FRONT, 8), two.from.bytes(n as usize, 8));
            }
            Ok(())
        })
    }),
    // A Send of a datagram completes whether or not a Receive is there, and no error is reported.
    // The consumer may reuse the memory from then on: the bytes that arrive are those from before.
    test("dat_datagrams::completion_frees_the_memory_only", &["dat-ib-2.3 B02 O02"], |f| {
        world(f, |w| {
            let two = two(w)?;
            let sent = pattern(3, 200);
            // From now on datagrams leave at once: the neighbour is known.
            two.works(w)?;
            let other = w.end(&w.b, &datagrams())?;
            let (_, of_other) = w.resolve(&other, &two.a)?;
            // No Receive is posted.
            for cookie in 0..3 {
                two.send(&[two.from.segment(0, 200)], cookie)?;
            }
            // What is behind them has arrived, so they have been dropped.
            other.receive(&[two.into.segment(0, 240)], 3)?;
            delivered(w, &other, || {
                w.a.ib_post_send_ud(two.a.ep, &[two.from.segment(0, 200)], &of_other, 3, PLAIN)?;
                two.a.done(3, DtoStatus::Success).map(drop)
            })?;
            two.b.receive(&[two.into.segment(0, 240)], 4)?;
            if !f.setup.lossy {
                nothing(&w.b, two.b.recv)?;
            }
            let event = delivered(w, &two.b, || {
                two.from.write(0, &sent);
                two.send(&[two.from.segment(0, 200)], 5)?;
                two.from.write(0, &[0xee; 200]);
                Ok(())
            })?;
            is_datagram(&event, &two.b, 4, 200)?;
            check_eq!(two.into.bytes(FRONT, 200), sent);
            // The endpoint is freed, or has another key.
            w.b.ep_free(two.b.ep)?;
            two.send(&[two.from.segment(0, 200)], 6)?;
            let strange = IbAddrHandle { qkey: 1, ..two.of_b };
            w.a.ib_post_send_ud(two.a.ep, &[], &strange, 7, PLAIN)?;
            two.a.done(7, DtoStatus::Success)?;
            check_eq!(two.a.state()?, EpState::Connected);
            nothing(&w.a, w.asynchronous[0])
        })
    }),
    // A suppressed Send that succeeds makes no event, and one that fails makes one.
    test("dat_datagrams::a_send_can_be_suppressed", &["dat_ib_post_send_ud F01"], |f| {
        world(f, |w| {
            check_eq!(CompletionFlags::SUPPRESS.bits(), 0x01);
            let two = two(w)?;
            for _ in 0..3 {
                two.post(&[two.from.segment(0, 8)], 1, CompletionFlags::SUPPRESS)?;
            }
            nothing(&w.a, two.a.request)?;
            two.send(&[two.from.segment(0, 8)], 2)?;
            nothing(&w.a, two.a.request)?;
            let bad = LmrTriplet::new(LmrContext::default(), 0, 8);
            two.post(&[bad], 3, CompletionFlags::SUPPRESS)?;
            two.a.done(3, DtoStatus::LocalProtection).map(drop)
        })
    }),
    // A waiter on solicited Receives wakes for a datagram that was sent with that flag, and not for
    // others.
    test("dat_datagrams::a_send_can_be_solicited", &["dat_ib_post_send_ud F02"], |f| {
        if f.setup.lossy {
            return not_shown("datagrams may get lost, or arrive twice or out of order");
        }
        world(f, |w| {
            check_eq!(CompletionFlags::SOLICITED_WAIT.bits(), 0x02);
            let waits = EpAttr { recv_completion_flags: CompletionFlags::SOLICITED_WAIT, ..datagrams() };
            let two = two_of(w, &datagrams(), &waits)?;
            for n in 0..3 {
                two.b.receive(&[two.into.segment(n as usize * 64, 64)], n)?;
            }
            two.send(&[], 1)?;
            two.send(&[], 2)?;
            let (_, _, idle) = w.a.ep_get_status(two.a.ep)?;
            check!(idle);
            nothing(&w.b, two.b.recv)?;
            two.post(&[], 3, CompletionFlags::SOLICITED_WAIT)?;
            two.a.done(3, DtoStatus::Success)?;
            let (event, more) = w.b.evd_wait(two.b.recv, LONG, 1)?;
            is_datagram(&event, &two.b, 0, 0)?;
            check_eq!(more, 2);
            for n in 1..3 {
                is_datagram(&w.b.evd_dequeue(two.b.recv)?, &two.b, n, 0)?;
            }
            Ok(())
        })
    }),
    // If the endpoint's requests may be unsignalled, such a Send makes an event but wakes no
    // waiter. On other endpoints the flag is refused.
    test(
        "dat_datagrams::a_send_can_be_unsignalled",
        &["dat_ib_post_send_ud F03 DAT_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let quiet = CompletionFlags::UNSIGNALLED;
                check_eq!(quiet.bits(), 0x04);
                let attr = EpAttr { request_completion_flags: quiet, ..datagrams() };
                let two_quiet = two_of(w, &attr, &datagrams())?;
                two_quiet.post(&[], 1, quiet)?;
                nothing(&w.a, two_quiet.a.request)?;
                two_quiet.post(&[], 2, PLAIN)?;
                let (event, more) = w.a.evd_wait(two_quiet.a.request, LONG, 1)?;
                check_eq!((event.dto().map(|done| done.user_cookie), more), (Some(1), 1));
                check_eq!(w.a.evd_dequeue(two_quiet.a.request)?.dto().map(|done| done.user_cookie), Some(2));
                let two = two(w)?;
                let bad = Error::from(ErrorType::InvalidParameter);
                refused(two.post(&[], 3, quiet), bad)?;
                nothing(&w.a, two.a.request)?;
                two.works(w)
            })
        },
    ),
    // Too many segments, and flags that a datagram cannot have, are refused, and nothing is posted.
    // The longest list of segments is accepted.
    test("dat_datagrams::wrong_posts_are_refused", &["dat_ib_post_send_ud DAT_INVALID_PARAMETER"], |f| {
        world(f, |w| {
            let bad = Error::from(ErrorType::InvalidParameter);
            let attr = EpAttr { max_request_iov: 3, max_recv_iov: 2, ..datagrams() };
            let two = two_of(w, &attr, &attr)?;
            let piece = two.from.segment(0, 4);
            refused(two.post(&[piece; 4], 1, PLAIN), bad)?;
            refused(two.post(&[LmrTriplet::new(piece.lmr_context(), 0, 0); 4], 1, PLAIN), bad)?;
            let undefined = [0x10, 0x20, 0x40, 0x8000_0000].map(CompletionFlags::from_bits_retain);
            let fence = CompletionFlags::BARRIER_FENCE;
            for flags in [fence, fence | CompletionFlags::SUPPRESS].into_iter().chain(undefined) {
                refused(two.post(&[piece], 1, flags), bad)?;
            }
            let places = [two.into.segment(0, 50); 3];
            refused(w.b.ep_post_recv(two.b.ep, &places, 1, PLAIN), bad)?;
            refused(w.b.ep_post_recv(two.b.ep, &[], 1, PLAIN), bad)?;
            let flagged = w.b.ep_post_recv(two.b.ep, &places[..1], 1, CompletionFlags::SUPPRESS);
            refused(flagged, Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg5))?;
            for end in [&two.a, &two.b] {
                check_eq!(end.ia.ep_get_status(end.ep)?, (EpState::Connected, true, true));
            }
            two.b.receive(&places[..2], 2)?;
            let event = delivered(w, &two.b, || two.send(&[piece; 3], 3))?;
            is_datagram(&event, &two.b, 2, 12)?;
            two.works(w)
        })
    }),
];
