//! The levels of reliability (2.5, chapter 7): what each level guarantees when a message is lost,
//! late, corrupt or incomplete, when the peer does not answer, and when an end makes an error.

use nic_abi::admin::Injection;
use privileged_api::{Features, Limits};
use vipl::*;

use super::world::*;
use crate::fixture::pattern;
use crate::thread::Thread;
use crate::{Outcome, Test, check, check_eq, refused, test};

/// The descriptor for a message after all others of a test.
const LAST: usize = DESCRIPTORS - 1;

/// Sends a message, which must arrive. The queues of both ends must be empty.
#[track_caller]
pub(super) fn exchange(a: &Side, b: &Side) -> Outcome {
    b.receive(LAST, &[b.data(0, 64)])?;
    a.send(LAST, &[a.data(0, 64)], None)?;
    a.sent_well(LAST)?;
    b.received_well(LAST)?;
    check_eq!(b.bytes(0, 64), a.bytes(0, 64));
    Ok(())
}

/// Checks that no error of this virtual interface is pending: the next error must be one that this
/// function provokes.
#[track_caller]
pub(super) fn quiet(errors: &Errors, side: &Side) -> Outcome {
    side.nic.post_send(side.vi, side.descriptor(LAST)?.address() + 8, side.region.handle)?;
    errors.expect(side, ErrorCode::PostDesc)?;
    Ok(())
}

/// Destroys a virtual interface, deregisters its region, and destroys its tag unless something else
/// uses it: a NIC has few of them.
#[track_caller]
pub(super) fn retire(side: &Side) -> Outcome {
    side.destroy()?;
    side.nic.deregister_mem(side.region.address(0), side.region.handle)?;
    match side.nic.destroy_ptag(side.ptag) {
        Ok(()) | Err(Error::ErrorResource) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a connection is broken at this end.
#[track_caller]
pub(super) fn broken(w: &World<'_>, side: &Side) -> Outcome {
    let seen = || side.nic.query_vi(side.vi).map(|(state, _)| state);
    w.until("the virtual interface is in Error", || seen() == Ok(ViState::Error))
}

/// Checks how a Send or RDMA Write shows an error at the peer: on Reliable Reception with this bit,
/// on the other levels not at all.
#[track_caller]
pub(super) fn shows(level: ReliabilityLevel, status: Status, error: Status) -> Outcome {
    match level {
        ReliabilityLevel::Reception => failed(status, error),
        _ => success(status),
    }
}

/// Sends numbered messages of different lengths, four at a time, and checks that each arrives once,
/// whole and in order: a Send and an RDMA Write with immediate data in turn. On a reliable level an
/// RDMA Write of the next number is in front of each, and has arrived when the message has. A fifth
/// receive is left over.
fn stream(level: ReliabilityLevel, a: &Side, b: &Side, rounds: usize) -> Outcome {
    const AT_ONCE: usize = 4;
    const ROOM: usize = DATA_LEN / 2 / AT_ONCE;
    /// Where the numbers of the Writes are; and of which ring of sources at `a`.
    const NUMBER: usize = DATA_LEN / 2;
    let number_of = |bytes: &[u8]| bytes.first_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes));
    b.receive(0, &[b.data(0, ROOM)])?;
    for round in 0..rounds {
        let place = |number: usize| number % AT_ONCE * ROOM;
        let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
        let length = |number: usize| number * 97 % (ROOM - 8) + 1;
        for number in numbers.clone() {
            b.receive((number + 1) % 8, &[b.data(place(number + 1), ROOM)])?;
            let at = NUMBER + 4 * (number % 8);
            a.write(at, &(number as u32 + 1).to_le_bytes());
            if level.is_reliable() {
                a.rdma_write(8 + number % 8, &b.remote(NUMBER), &[a.data(at, 4)], None)?;
            }
            a.write(place(number), &pattern(number as u8, length(number)));
            let data = [a.data(place(number), length(number))];
            match number % 2 {
                0 => a.send(number % 8, &data, Some(number as u32))?,
                _ => a.rdma_write(number % 8, &b.remote(place(number)), &data, Some(number as u32))?,
            }
        }
        let last = numbers.end - 1;
        for number in numbers {
            if level.is_reliable() {
                a.sent_well(8 + number % 8)?;
            }
            a.sent_well(number % 8)?;
            b.received_well(number % 8)?;
            let (received, sent) = (b.descriptor(number % 8)?, number % 2 == 0);
            let expected = if sent { length(number) } else { 0 };
            check_eq!((received.immediate(), received.length() as usize), (number as u32, expected));
            check!(b.bytes(place(number), length(number)) == pattern(number as u8, length(number)));
            let written = number_of(&b.bytes(NUMBER, 4)) as usize;
            let in_order = (number..=last).contains(&written.wrapping_sub(1));
            check!(!level.is_reliable() || in_order, "{written} at {number}");
        }
    }
    check_eq!(b.nic.recv_done(b.vi), Err(Error::NotDone));
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A NIC has all three levels. An interface without reliable connections has the unreliable one,
    // and refuses the others.
    test("via_levels::which_levels_there_are", &["via-2.5 A01 B01 O01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let side = w.side(&w.a, level, NO_CQS)?;
                check_eq!(side.nic.query_vi(side.vi)?.1.reliability_level, level);
            }
            // The agent listens for one provider at a time, and next for the provider below.
            w.a.close_nic()?;
            w.b.close_nic()?;
            let provider = privileged_api::Provider::new(f.platform().clone());
            let features = Features::all().difference(Features::RC);
            let agent = f.setup.a.agent.clone();
            provider.add_limited("limited", agent, Limits { features, ..Limits::NONE })?;
            let nic = Provider::new(provider.interfaces()).open_nic("limited")?;
            let ptag = nic.create_ptag()?;
            let create = |level| nic.create_vi(&attributes(ptag, level), CqHandle::NULL, CqHandle::NULL);
            let [unreliable, reliable @ ..] = LEVELS;
            let created = create(unreliable).map(drop);
            let refusals = reliable.map(|level| create(level).map(drop));
            nic.close_nic()?;
            check_eq!(created, Ok(()));
            check_eq!(refusals, [Err(Error::InvalidReliabilityLevel); 2]);
            Ok(())
        })
    }),
    // Ends of different levels are not connected, ends of the same level are.
    test("via_levels::both_ends_have_the_same_level", &["via-2.5 B02"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let a = w.side(&w.a, level, NO_CQS)?;
                let (own, server) = (w.a.address(b"client")?, w.b.address(b"levels")?);
                let (nic, vi, to) = (a.nic.clone(), a.vi, server.clone());
                let client =
                    Thread::spawn(f.platform(), "client", move || nic.connect_request(vi, &own, &to, LONG))?;
                let request = w.b.connect_wait(&server, None, LONG)?;
                for other in LEVELS.into_iter().filter(|&other| other != level) {
                    let b = w.side(&w.b, other, NO_CQS)?;
                    refused(w.b.connect_accept(request.conn, b.vi), Error::InvalidReliabilityLevel)?;
                    check_eq!((a.state()?, b.state()?), (ViState::ConnectPending, ViState::Idle));
                    retire(&b)?;
                }
                let b = w.side(&w.b, level, NO_CQS)?;
                w.b.connect_accept(request.conn, b.vi)?;
                client.join()??;
                check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // Requests and answers get lost, so requests are repeated: each message arrives once, whole and
    // in order.
    test(
        "via_levels::reliable_levels_deliver_all_once_and_in_order",
        &["via-2.5 B05 B06", "via-2.5.2 B01"],
        |f| {
            world(f, |w| {
                for level in RELIABLE {
                    let (a, b) = w.pair(level)?;
                    for what in [Injection::DropRequests, Injection::DropResponses] {
                        w.inject(&a, what, 2, 0)?;
                    }
                    w.inject(&b, Injection::StallResponder, 2, 0)?;
                    stream(level, &a, &b, 16)?;
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    )
    .limit(120),
    // A message takes one receive on each level, even if the network repeats it or loses its
    // answer.
    test("via_levels::a_message_takes_one_receive", &["via-2.5 B04", "via-2.5.1 B01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                w.inject(&a, Injection::DropResponses, u32::from(level.is_reliable()) * 2, 0)?;
                stream(level, &a, &b, 4)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // RDMA Writes work on each level. RDMA Reads work on the reliable levels, and their data is
    // there when they are complete; on Unreliable Delivery they are a format error, and no data
    // moves.
    test("via_levels::rdma_by_level", &["via-2.5 B09 B10", "via-2.5.1 B04", "via-2.5.2 B07"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                a.fill(1);
                a.rdma_write(0, &b.remote(10), &[a.data(0, 3000)], None)?;
                a.sent_well(0)?;
                w.until("the data is there", || b.bytes(10, 3000) == a.bytes(0, 3000))?;
                b.fill(2);
                a.rdma_read(1, &b.remote(4000), &[a.data(100, 3000)])?;
                let status = a.sent(1)?;
                check_eq!(operation(status), Status::OP_RDMA_READ);
                if level == ReliabilityLevel::Unreliable {
                    failed(status, Status::FORMAT_ERROR)?;
                    check!(a.bytes(0, DATA_LEN) == pattern(1, DATA_LEN));
                    exchange(&a, &b)?;
                } else {
                    success(status)?;
                    check!(a.bytes(100, 3000) == b.bytes(4000, 3000));
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // On Reliable Reception no request after a failed one has an effect.
    test("via_levels::nothing_follows_a_failure", &["via-2.5 B12", "via-2.5.3 B03"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Reception)?;
            let closed = w.region(&b.nic, 4096, &MemAttributes::new(b.ptag))?;
            a.fill(3);
            for number in 0..5 {
                let to = if number == 1 { closed.remote(0) } else { b.remote(100 * number) };
                a.rdma_write(number, &to, &[a.data(0, 100)], None)?;
            }
            a.sent_well(0)?;
            failed(a.sent(1)?, Status::RDMA_PROT_ERROR)?;
            for number in 2..5 {
                failed(a.sent(number)?, Status::DESC_FLUSHED_ERROR)?;
            }
            broken(w, &b)?;
            check_eq!(b.bytes(0, 100), a.bytes(0, 100));
            check_eq!(b.bytes(100, 500).iter().position(|&byte| byte != 0), None);
            closed.untouched()
        })
    }),
    // A short message of one virtual interface gets through while another one sends messages of the
    // maximum length without pause.
    test("via_levels::long_messages_do_not_starve_short_ones", &["via-2.5.1 B06"], |f| {
        world(f, |w| {
            let (long, sink) = w.pair(ReliabilityLevel::Unreliable)?;
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let length = long.nic.query_vi(long.vi)?.1.max_transfer_size as usize;
            let data = w.region(&long.nic, length, &MemAttributes::new(long.ptag))?;
            for number in 0..8 {
                long.descriptor(number)?.send(&[data.segment(0, length)], None)?;
                long.post_send(number)?;
            }
            let mut again = 0;
            for _ in 0..50 {
                b.receive(LAST, &[b.data(0, 8)])?;
                a.send(LAST, &[a.data(0, 8)], None)?;
                w.until("the short message is there", || {
                    // Keeps the other virtual interface busy.
                    while let Ok(address) = long.nic.send_done(long.vi) {
                        let number = (0..8).find(|&number| {
                            long.descriptor(number).is_ok_and(|found| found.address() == address)
                        });
                        let descriptor = long.descriptor(number.unwrap_or(0));
                        let Ok(descriptor) = descriptor else { return false };
                        again += usize::from(descriptor.send(&[data.segment(0, length)], None).is_ok());
                        let _ = long.nic.post_send(long.vi, address, long.region.handle);
                    }
                    b.descriptor(LAST).is_ok_and(|receive| receive.is_done())
                })?;
                a.sent_well(LAST)?;
                b.received_well(LAST)?;
            }
            check!(again > 0, "the long messages did not move");
            retire(&sink)
        })
    }),
];
