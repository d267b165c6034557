//! Faults on each level (2.5, chapter 7): messages that are lost, late, corrupt or incomplete, a
//! peer that does not answer, errors of either end, a link and a device that fail.

use alloc::format;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::each::{Kind, named};
use super::levels::{broken, exchange, quiet, retire, shows};
use super::states::pending;
use super::world::*;
use crate::thread::Thread;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// More operations than a device executes before the test ends.
const ALL: u32 = u32::MAX;

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

/// Checks the connection after an error at the second end. On Unreliable Delivery it still works
/// with the second receive, and no handler is called. On the other levels it is broken at both
/// ends, the receive is flushed, and each handler is called once.
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

/// Injects a fault into the next message that `b` receives, and checks what both ends report on
/// each level, for each kind of request that takes a receive.
fn spoiled(w: &World<'_>, what: Injection, at_receiver: Status) -> Outcome {
    for level in LEVELS {
        for kind in Kind::of(level).filter(|kind| kind.takes_receive()) {
            let (a, b, errors) = watched(w, level)?;
            w.inject(&b, what, 1, 0)?;
            kind.format(&a.descriptor(0)?, &b, &[a.data(0, 100)])?;
            a.post_send(0)?;
            shows(level, a.sent(0)?, Status::TRANSPORT_ERROR).map_err(named(level, kind))?;
            failed(b.received(0)?, at_receiver).map_err(named(level, kind))?;
            check_eq!(b.descriptor(0)?.length(), 0);
            afterwards(w, level, (&a, &b), &errors).map_err(named(level, kind))?;
        }
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // Corrupt data shows in the receive that the message took, on each level. If the connection
    // survives, later data is intact.
    test(
        "via_faults::corrupt_data_is_detected",
        &[
            "via-2.5.3 B02",
            "via-2.5 B03 B08",
            "via-2.5.1 B02",
            "via-2.5.2 B02",
            "VIP_STATUS A01 VIP_STATUS_TRANSPORT_ERROR",
        ],
        |f| world(f, |w| spoiled(w, Injection::Corrupt, Status::TRANSPORT_ERROR)),
    ),
    // So does a message with a missing part.
    test(
        "via_faults::incomplete_messages_are_detected",
        &["via-2.5.3 B02", "VIP_STATUS.VIP_STATUS_PARTIAL_ERROR recv"],
        |f| world(f, |w| spoiled(w, Injection::Truncate, Status::PARTIAL_ERROR)),
    ),
    // The peer does not answer. Sends on Unreliable and on Reliable Delivery complete when they
    // have left. Unreliable Delivery reports no loss and still works. On Reliable Delivery the
    // handler reports the loss, and on Reliable Reception the descriptor of the Send does; later
    // descriptors are flushed.
    test(
        "via_faults::a_peer_that_does_not_answer",
        &[
            "via-2.5 B07 B11",
            "via-2.5.1 B05 O01",
            "via-2.5.2 B09 O01 S01",
            "via-2.5.3 B01",
            "via-7.2 B01 B02",
            "via-7.3 B01 S01",
        ],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b, errors) = watched(w, level)?;
                    let lost = if level.is_reliable() { ALL } else { 3 };
                    w.inject(&b, Injection::StallResponder, lost, 0)?;
                    for number in 0..3 {
                        a.send(number, &[a.data(0, 100)], None)?;
                    }
                    shows(level, a.sent(0)?, Status::TRANSPORT_ERROR)?;
                    for number in 1..3 {
                        let status = a.sent(number)?;
                        // Sends that had not left are flushed.
                        if level != ReliabilityLevel::Delivery || !is_success(status) {
                            let flushed = level.is_reliable().then_some(Status::DESC_FLUSHED_ERROR);
                            failed(status, flushed.unwrap_or(Status::empty()))?;
                        }
                    }
                    if level == ReliabilityLevel::Unreliable {
                        check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
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
    test("via_faults::a_late_message", &[], |f| {
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
    // An error of this end shows in its descriptor. On Unreliable Delivery the connection survives,
    // and no handler is called. On the other levels the connection breaks, all posted descriptors
    // are flushed, and the handler is called.
    test(
        "via_faults::a_mistake_of_this_end",
        &[
            "via-2.5.1 B03",
            "via-2.5.2 B05 B08",
            "via-2.5.3 S01",
            "via-5.3 S03",
            "via-6.3 B02",
            "via-7 B01 B02",
            "via-7.2 S01",
            "via-7.3 A01",
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
    // A message finds no receive. On Unreliable Delivery it is dropped; on the other levels both
    // ends get an error, and the connection breaks.
    test(
        "via_faults::a_message_without_a_receive",
        &["via-2.5.2 B03", "via-7.1 A01", "VipErrorCallback VIP_ERROR_RECVQ_EMPTY"],
        |f| {
            world(f, |w| {
                for (level, writes) in LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)]) {
                    let (a, b) = w.pair(level)?;
                    let errors = [w.errors(&a.nic)?, w.errors(&b.nic)?];
                    match writes {
                        false => a.send(0, &[a.data(0, 100)], None)?,
                        true => a.rdma_write(0, &b.remote(0), &[a.data(0, 8)], Some(1))?,
                    }
                    shows(level, a.sent(0)?, Status::REMOTE_DESC_ERROR)?;
                    if level == ReliabilityLevel::Unreliable {
                        // The message has been dropped when a later one has arrived.
                        w.arrived(&a, &b)?;
                        exchange(&a, &b)?;
                    } else {
                        let empty = errors[1].expect(&b, ErrorCode::RecvqEmpty)?;
                        let by = if writes { Status::OP_REMOTE_RDMA_WRITE } else { Status::OP_RECEIVE };
                        check_eq!(empty.op_code, by.bits() >> 16);
                        for (side, errors) in [&a, &b].into_iter().zip(&errors) {
                            errors.expect(side, ErrorCode::ConnLost)?;
                            errors.found_the_state()?;
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
    // A message does not fit into its receive: the receive shows the error, and nothing is written
    // after its end.
    test(
        "via_faults::a_message_too_long_for_its_receive",
        &["via-2.5.2 B04", "VIP_STATUS.VIP_STATUS_LENGTH_ERROR recv"],
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
    // The port goes down: the handler is called on every level, although no virtual interface has
    // done anything. Messages that are sent then are lost on Unreliable Delivery, and break the
    // connection on the other levels.
    test("via_faults::the_link_is_lost", &["via-2.5.3 O01", "via-7 B03", "via-7.1 B01"], |f| {
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
/// the handler is called, all calls but QueryVi and closing return ErrorResource, and virtual
/// interfaces that were connected or pending are in Error.
pub(crate) const DEATHS: &[Test] =
    &[test("via_faults::the_device_dies", &["via-5.2 S05", "via-5.3 S02"], |f| {
        world(f, |w| {
            let mut waiters = Vec::new();
            let errors = w.errors(&w.a)?;
            let mut sides = Vec::new();
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                a.receive(0, &[a.data(0, 8)])?;
                for receives in [false, true] {
                    let (nic, vi) = (a.nic.clone(), a.vi);
                    let body = move || {
                        if receives { nic.recv_wait(vi, INFINITE) } else { nic.send_wait(vi, INFINITE) }
                    };
                    waiters.push((level, Thread::spawn(f.platform(), "waiter", body)?));
                }
                sides.push((a, b));
            }
            let idle = w.side(&w.a, ReliabilityLevel::Delivery, NO_CQS)?;
            let (asks, answer) = pending(w, ReliabilityLevel::Delivery)?;
            (f.setup.kill)();
            check_eq!(answer.join()?, Err(Error::ErrorResource));
            for (level, waiter) in waiters {
                let ended = waiter.join()?;
                check!(ended == Err(Error::ErrorResource), "{}", format!("{level:?}: {ended:?}"));
            }
            let [error, ..] = errors.wait(1)?[..] else { return Err(Failure::new("no error")) };
            check_eq!((error.resource_code, error.vi), (ResourceCode::Nic, ViHandle::NULL));
            for (a, _) in &sides {
                refused(a.nic.post_send(a.vi, 0, a.region.handle), Error::ErrorResource)?;
                refused(a.nic.disconnect(a.vi), Error::ErrorResource)?;
                check_eq!(a.state()?, ViState::Error);
            }
            check_eq!((asks.state()?, idle.state()?), (ViState::Error, ViState::Idle));
            Ok(())
        })
    })
    .kills()];
