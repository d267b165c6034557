//! The levels of reliability (2.5, chapter 7): what each of them promises when a message is lost,
//! late, corrupt or incomplete, when the peer does not answer, and when an end makes a mistake.

use alloc::format;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::{Features, Limits};
use vipl::*;

use super::world::*;
use crate::fixture::pattern;
use crate::thread::Thread;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The number of a descriptor for a message after the others of a test.
const LAST: usize = DESCRIPTORS - 1;
/// More than a device has done when the test ends.
const ALL: u32 = u32::MAX;

/// Sends a message, which must arrive: the queues of both ends are empty.
#[track_caller]
pub(super) fn exchange(a: &Side, b: &Side) -> Outcome {
    b.receive(LAST, &[b.data(0, 64)])?;
    a.send(LAST, &[a.data(0, 64)], None)?;
    a.sent_well(LAST)?;
    b.received_well(LAST)?;
    check_eq!(b.bytes(0, 64), a.bytes(0, 64));
    Ok(())
}

/// Checks that no error of this virtual interface waits: one that is provoked now comes first.
#[track_caller]
pub(super) fn quiet(errors: &Errors, side: &Side) -> Outcome {
    side.nic.post_send(side.vi, side.descriptor(LAST)?.address() + 8, side.region.handle)?;
    errors.expect(side, ErrorCode::PostDesc)?;
    Ok(())
}

/// Destroys a virtual interface, and what of its region and its tag nothing else uses: a NIC has
/// few.
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

/// Checks what a Send or RDMA Write shows of an error beyond this end: on Reliable Reception this
/// bit, on the other levels none.
#[track_caller]
pub(super) fn shows(level: ReliabilityLevel, status: Status, error: Status) -> Outcome {
    match level {
        ReliabilityLevel::Reception => failed(status, error),
        _ => success(status),
    }
}

/// A connected pair, the errors of both ends, and two receives of 100 bytes at the second end.
fn watched(w: &World<'_>, level: ReliabilityLevel) -> Result<(Side, Side, [Errors; 2]), Failure> {
    let (a, b) = w.pair(level)?;
    let errors = [w.errors(&a.nic)?, w.errors(&b.nic)?];
    a.fill(level as u8);
    for number in 0..2 {
        b.receive(number, &[b.data(0, 100)])?;
    }
    Ok((a, b, errors))
}

/// Checks what is left of a connection after an error at the second end: on Unreliable Delivery it
/// goes on with the second receive, and no handler is called; on the other levels it is broken at
/// both ends, the receive is flushed, and each handler is called once.
fn afterwards(
    w: &World<'_>,
    level: ReliabilityLevel,
    (a, b): (&Side, &Side),
    errors: &[Errors; 2],
) -> Outcome {
    if level == ReliabilityLevel::Unreliable {
        check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
        a.send(1, &[a.data(0, 100)], None)?;
        a.sent_well(1)?;
        b.received_well(1)?;
        check_eq!(b.bytes(0, 100), a.bytes(0, 100));
    } else {
        failed(b.received(1)?, Status::DESC_FLUSHED_ERROR)?;
        for (side, errors) in [a, b].into_iter().zip(errors) {
            errors.expect(side, ErrorCode::ConnLost)?;
            broken(w, side)?;
        }
    }
    for (side, errors) in [a, b].into_iter().zip(errors) {
        quiet(errors, side)?;
    }
    retire(a)?;
    retire(b)
}

/// Spoils the next message that `b` receives, and checks what both ends see of it on each level.
fn spoiled(w: &World<'_>, what: Injection, at_receiver: Status) -> Outcome {
    for level in LEVELS {
        let (a, b, errors) = watched(w, level)?;
        w.inject(&b, what, 1, 0)?;
        a.send(0, &[a.data(0, 100)], None)?;
        shows(level, a.sent(0)?, Status::TRANSPORT_ERROR)?;
        failed(b.received(0)?, at_receiver)?;
        check_eq!(b.descriptor(0)?.length(), 0);
        afterwards(w, level, (&a, &b), &errors)?;
    }
    Ok(())
}

/// Sends numbered messages of changing length, four at a time, and checks that each arrives once,
/// whole and in its turn. A fifth receive is left over.
fn stream(a: &Side, b: &Side, rounds: usize) -> Outcome {
    const AT_ONCE: usize = 4;
    const ROOM: usize = DATA_LEN / AT_ONCE;
    b.receive(0, &[b.data(0, ROOM)])?;
    for round in 0..rounds {
        let place = |number: usize| number % AT_ONCE * ROOM;
        let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
        let length = |number: usize| number * 97 % (ROOM - 8) + 1;
        for number in numbers.clone() {
            b.receive((number + 1) % 8, &[b.data(place(number + 1), ROOM)])?;
            a.write(place(number), &pattern(number as u8, length(number)));
            a.send(number % 8, &[a.data(place(number), length(number))], Some(number as u32))?;
        }
        for number in numbers {
            a.sent_well(number % 8)?;
            b.received_well(number % 8)?;
            let received = b.descriptor(number % 8)?;
            check_eq!((received.immediate(), received.length() as usize), (number as u32, length(number)));
            check!(b.bytes(place(number), length(number)) == pattern(number as u8, length(number)));
        }
    }
    check_eq!(b.nic.recv_done(b.vi), Err(Error::NotDone));
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A NIC has all three levels. An interface without reliable connections has the unreliable one,
    // and refuses the others.
    test("via_levels::which_levels_there_are", &["via-2.5.B01", "via-2.5.O01", "via-2.5.A01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let side = w.side(&w.a, level, NO_CQS)?;
                check_eq!(side.nic.query_vi(side.vi)?.1.reliability_level, level);
            }
            // The other provider below listens in the place of this one.
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
    test("via_levels::both_ends_have_the_same_level", &["via-2.5.B02"], |f| {
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
    // Corrupt data shows in the receive that took it on each level, and the data of a connection
    // that goes on is intact.
    test(
        "via_levels::corrupt_data_is_detected",
        &[
            "via-2.5.B03",
            "via-2.5.B08",
            "via-2.5.1.B02",
            "via-2.5.2.B02",
            "VIP_STATUS.VIP_STATUS_TRANSPORT_ERROR",
            "VIP_STATUS.A01",
        ],
        |f| world(f, |w| spoiled(w, Injection::Corrupt, Status::TRANSPORT_ERROR)),
    ),
    // So does a message of which a part is missing.
    test(
        "via_levels::incomplete_messages_are_detected",
        &["via-2.5.3.B02", "VIP_STATUS.VIP_STATUS_PARTIAL_ERROR.recv"],
        |f| world(f, |w| spoiled(w, Injection::Truncate, Status::PARTIAL_ERROR)),
    ),
    // Requests and answers get lost, so requests are repeated: each message arrives once, whole and
    // in its turn.
    test(
        "via_levels::reliable_levels_deliver_all_once_and_in_order",
        &["via-2.5.B05", "via-2.5.B06", "via-2.5.2.B01", "via-2.5.3.B04"],
        |f| {
            world(f, |w| {
                for level in RELIABLE {
                    let (a, b) = w.pair(level)?;
                    for what in [Injection::DropRequests, Injection::DropResponses] {
                        w.inject(&a, what, 2, 0)?;
                    }
                    w.inject(&b, Injection::StallResponder, 2, 0)?;
                    stream(&a, &b, 16)?;
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    )
    .limit(120),
    // A message takes one receive on each level, also if the network repeats it or if the answer to
    // it is lost.
    test(
        "via_levels::a_message_takes_one_receive",
        &["via-2.5.B04", "via-2.5.1.B01", "via-2.5.1.O02"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    w.inject(&a, Injection::DropResponses, u32::from(level.is_reliable()) * 2, 0)?;
                    stream(&a, &b, 4)?;
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // The peer answers nothing. Sends of Unreliable and of Reliable Delivery are complete when they
    // have left. Unreliable Delivery reports no loss, and goes on. On Reliable Delivery the handler
    // reports it, and on Reliable Reception the descriptor of the Send does; the descriptors behind
    // it are flushed.
    test(
        "via_levels::a_peer_that_does_not_answer",
        &[
            "via-2.5.B07",
            "via-2.5.B11",
            "via-2.5.1.O01",
            "via-2.5.1.B05",
            "via-2.5.2.B06",
            "via-2.5.2.B09",
            "via-2.5.2.O01",
            "via-2.5.2.B10",
            "via-2.5.2.S01",
            "via-2.5.3.B01",
            "via-7.2.B01",
            "via-7.2.B02",
            "via-7.3.B01",
            "via-7.3.S01",
            "via-7.3.L01",
        ],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b, errors) = watched(w, level)?;
                    w.inject(&b, Injection::StallResponder, ALL, 0)?;
                    for number in 0..3 {
                        a.send(number, &[a.data(0, 100)], None)?;
                    }
                    shows(level, a.sent(0)?, Status::TRANSPORT_ERROR)?;
                    for number in 1..3 {
                        let status = a.sent(number)?;
                        // Those that had not left yet are flushed.
                        if level != ReliabilityLevel::Delivery || !is_success(status) {
                            let flushed = level.is_reliable().then_some(Status::DESC_FLUSHED_ERROR);
                            failed(status, flushed.unwrap_or(Status::empty()))?;
                        }
                    }
                    if level == ReliabilityLevel::Unreliable {
                        check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
                        w.inject(&b, Injection::StallResponder, 0, 0)?;
                        a.send(0, &[a.data(0, 100)], None)?;
                        a.sent_well(0)?;
                        b.received_well(0)?;
                    } else {
                        failed(b.received(0)?, Status::DESC_FLUSHED_ERROR)?;
                    }
                    afterwards(w, level, (&a, &b), &errors)?;
                    check_eq!(b.bytes(0, 1) == [0], level != ReliabilityLevel::Unreliable);
                }
                Ok(())
            })
        },
    )
    .limit(120),
    // Requests are late: on each level the message still arrives.
    test("via_levels::a_late_message", &[], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b, errors) = watched(w, level)?;
                w.inject(&a, Injection::Delay, 1, 3_000_000)?;
                a.send(0, &[a.data(0, 100)], None)?;
                a.sent_well(0)?;
                b.received_well(0)?;
                check_eq!(b.bytes(0, 100), a.bytes(0, 100));
                b.disconnect()?;
                errors[0].expect(&a, ErrorCode::ConnLost)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // A mistake of this end shows in its descriptor. Unreliable Delivery goes on, and no handler is
    // called. The other levels break the connection, flush all that is posted, and call it.
    test(
        "via_levels::a_mistake_of_this_end",
        &[
            "via-2.5.1.B03",
            "via-2.5.2.B05",
            "via-2.5.2.B08",
            "via-2.5.3.S01",
            "via-5.3.S03",
            "via-7.B01",
            "via-7.B02",
            "via-7.2.S01",
            "via-7.3.A01",
        ],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b, errors) = watched(w, level)?;
                    for number in 10..13 {
                        a.receive(number, &[a.data(0, 100)])?;
                    }
                    let mut wrong = a.data(0, 100);
                    wrong.handle ^= 1;
                    a.send(0, &[wrong], None)?;
                    failed(a.sent(0)?, Status::PROTECTION_ERROR)?;
                    if level == ReliabilityLevel::Unreliable {
                        check_eq!(a.nic.recv_done(a.vi), Err(Error::NotDone));
                        a.send(0, &[a.data(0, 100)], None)?;
                        a.sent_well(0)?;
                        b.received_well(0)?;
                    } else {
                        for number in 10..13 {
                            failed(a.received(number)?, Status::DESC_FLUSHED_ERROR)?;
                        }
                        failed(b.received(0)?, Status::DESC_FLUSHED_ERROR)?;
                    }
                    afterwards(w, level, (&a, &b), &errors)?;
                }
                Ok(())
            })
        },
    ),
    // A message finds no receive. It is dropped on Unreliable Delivery; on the other levels both
    // ends learn of it, and the connection is broken.
    test(
        "via_levels::a_message_without_a_receive",
        &["via-2.5.2.B03", "VipErrorCallback.VIP_ERROR_RECVQ_EMPTY"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    let errors = [w.errors(&a.nic)?, w.errors(&b.nic)?];
                    let writes = level as usize % 2;
                    match writes {
                        0 => a.send(0, &[a.data(0, 100)], None)?,
                        _ => a.rdma_write(0, &b.remote(0), &[a.data(0, 8)], Some(1))?,
                    }
                    shows(level, a.sent(0)?, Status::REMOTE_DESC_ERROR)?;
                    if level == ReliabilityLevel::Unreliable {
                        exchange(&a, &b)?;
                    } else {
                        errors[1].expect(&b, ErrorCode::RecvqEmpty)?;
                        for (side, errors) in [&a, &b].into_iter().zip(&errors) {
                            errors.expect(side, ErrorCode::ConnLost)?;
                            broken(w, side)?;
                        }
                    }
                    for (side, errors) in [&a, &b].into_iter().zip(&errors) {
                        quiet(errors, side)?;
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // A message does not fit into its receive: that one shows it, and nothing is written behind it.
    test(
        "via_levels::a_message_too_long_for_its_receive",
        &["via-2.5.2.B04", "VIP_STATUS.VIP_STATUS_LENGTH_ERROR.recv"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b, errors) = watched(w, level)?;
                    a.send(0, &[a.data(0, 101)], None)?;
                    shows(level, a.sent(0)?, Status::REMOTE_DESC_ERROR)?;
                    failed(b.received(0)?, Status::LENGTH_ERROR)?;
                    check_eq!(b.bytes(100, 100).iter().position(|&byte| byte != 0), None);
                    afterwards(w, level, (&a, &b), &errors)?;
                }
                Ok(())
            })
        },
    ),
    // RDMA Writes go through on each level. RDMA Reads do on the reliable ones, and have their data
    // when they are complete; on Unreliable Delivery they are a format error, and nothing moves.
    test(
        "via_levels::rdma_by_level",
        &["via-2.5.B09", "via-2.5.B10", "via-2.5.1.B04", "via-2.5.2.B07"],
        |f| {
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
        },
    ),
    // On Reliable Reception nothing behind a request that fails has an effect.
    test("via_levels::nothing_follows_a_failure", &["via-2.5.B12", "via-2.5.3.B03"], |f| {
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
    // A short message of one virtual interface goes through while another one sends the longest
    // messages without end.
    test("via_levels::long_messages_do_not_starve_short_ones", &["via-2.5.1.B06"], |f| {
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
                    // Keeps the other one busy.
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
    // The port goes down: the handler is called at every level, though no virtual interface has
    // done anything. Messages that are sent meanwhile are lost on Unreliable Delivery, and break
    // the connection on the other levels.
    test("via_levels::the_link_is_lost", &["via-7.B03", "via-7.1.B01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                let errors = w.errors(&a.nic)?;
                f.port(false)?;
                let shown = errors.wait(1);
                a.send(0, &[a.data(0, 8)], None)?;
                let sent = a.sent(0);
                if level.is_reliable() {
                    broken(w, &a)?;
                }
                f.port(true)?;
                let [error, ..] = shown?[..] else { return Err(Failure::new("no error")) };
                check_eq!((error.resource_code, error.error_code), (ResourceCode::Nic, ErrorCode::ConnLost));
                check_eq!((error.nic, error.vi, error.cq), (a.nic.handle(), ViHandle::NULL, CqHandle::NULL));
                shows(level, sent?, Status::TRANSPORT_ERROR)?;
                w.until("the port is up", || f.setup.a.agent.port_up())?;
                if level == ReliabilityLevel::Unreliable {
                    check_eq!(a.state()?, ViState::Connected);
                    exchange(&a, &b)?;
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    })
    .limit(120),
];

/// The device dies under connections of each level with descriptors on their queues: all waits end,
/// the handler is called, and all calls but closing return ErrorResource.
pub(crate) const DEATHS: &[Test] = &[test("via_levels::the_device_dies", &[], |f| {
    world(f, |w| {
        let mut waiters = Vec::new();
        let errors = w.errors(&w.a)?;
        let mut sides = Vec::new();
        for level in LEVELS {
            let (a, b) = w.pair(level)?;
            a.receive(0, &[a.data(0, 8)])?;
            for receives in [false, true] {
                let (nic, vi) = (a.nic.clone(), a.vi);
                let body =
                    move || if receives { nic.recv_wait(vi, INFINITE) } else { nic.send_wait(vi, INFINITE) };
                waiters.push((level, Thread::spawn(f.platform(), "waiter", body)?));
            }
            sides.push((a, b));
        }
        (f.setup.kill)();
        for (level, waiter) in waiters {
            let ended = waiter.join()?;
            check!(ended == Err(Error::ErrorResource), "{}", format!("{level:?}: {ended:?}"));
        }
        let [error, ..] = errors.wait(1)?[..] else { return Err(Failure::new("no error")) };
        check_eq!((error.resource_code, error.vi), (ResourceCode::Nic, ViHandle::NULL));
        for (a, _) in &sides {
            refused(a.nic.post_send(a.vi, 0, a.region.handle), Error::ErrorResource)?;
            refused(a.nic.query_vi(a.vi), Error::ErrorResource)?;
            refused(a.nic.disconnect(a.vi), Error::ErrorResource)?;
        }
        Ok(())
    })
})
.kills()];
