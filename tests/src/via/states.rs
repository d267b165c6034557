//! The states of a virtual interface (chapter 5): the transitions between them, and what its queues
//! do in each.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::connect::{Answer, ask};
use super::errors::provoke;
use super::levels::{broken, exchange, quiet, retire};
use super::world::*;
use crate::thread::Thread;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// A virtual interface with a pending connection request that no server accepts.
pub(super) fn pending(w: &World<'_>, level: ReliabilityLevel) -> Result<(Side, Answer), Failure> {
    let a = w.side(&w.a, level, NO_CQS)?;
    let answer = ask(w, &a, b"client", &w.b.address(b"nobody waits for this")?, LONG)?;
    w.until("it is pending", || a.state() == Ok(ViState::ConnectPending))?;
    Ok((a, answer))
}

/// Ends the attempt of a pending virtual interface.
#[track_caller]
fn give_up(a: &Side, answer: Answer) -> Outcome {
    a.disconnect()?;
    check_eq!(answer.join()?, Err(Error::ErrorResource));
    check_eq!(a.state()?, ViState::Idle);
    Ok(())
}

/// Checks that each operation of the send queue completes in error, as flushed.
#[track_caller]
fn sends_are_flushed(a: &Side) -> Outcome {
    a.send(20, &[a.data(0, 8)], None)?;
    a.rdma_write(21, &a.remote(0), &[a.data(0, 8)], None)?;
    for (number, operation_bits) in [(20, Status::empty()), (21, Status::OP_RDMA_WRITE)] {
        let status = a.sent(number)?;
        failed(status, Status::DESC_FLUSHED_ERROR)?;
        check_eq!(operation(status), operation_bits);
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // Idle after its creation, pending while it connects, connected at both ends when the calls
    // return, Idle after a disconnect; the peer is in Error until it disconnects.
    test(
        "via_states::the_way_of_a_connection",
        &["via-5 S01", "via-5.1 S01 S02", "via-5.2 S01 S02", "via-5.3 S01", "via-5.4 S01"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.b, level, NO_CQS)?);
                    let states = || -> Result<_, Failure> { Ok((a.state()?, b.state()?)) };
                    check_eq!(states()?, (ViState::Idle, ViState::Idle));
                    let server = w.b.address(b"server")?;
                    for _ in 0..2 {
                        let answer = ask(w, &a, b"client", &server, LONG)?;
                        let request = w.b.connect_wait(&server, None, LONG)?;
                        check_eq!(states()?, (ViState::ConnectPending, ViState::Idle));
                        w.b.connect_accept(request.conn, b.vi)?;
                        check_eq!(b.state()?, ViState::Connected);
                        answer.join()??;
                        check_eq!(states()?, (ViState::Connected, ViState::Connected));
                        a.disconnect()?;
                        check_eq!(a.state()?, ViState::Idle);
                        broken(w, &b)?;
                        b.disconnect()?;
                        check_eq!(states()?, (ViState::Idle, ViState::Idle));
                    }
                }
                Ok(())
            })
        },
    ),
    // A call that a state does not allow returns InvalidParameter (DestroyVi: ErrorResource), and
    // changes nothing: a connection attempt continues, and so does a connection.
    test("via_states::what_a_state_does_not_allow", &["via-5 A01 B01"], |f| {
        world(f, |w| {
            let server = w.b.address(b"server")?;
            let own = w.a.address(b"client")?;
            let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
            let all_refused = |side: &Side, to: &NetAddress| -> Outcome {
                let (state, now) = side.nic.query_vi(side.vi)?;
                let invalid = Error::InvalidParameter;
                let from = side.nic.address(b"client")?;
                refused(side.nic.connect_request(side.vi, &from, to, LONG), invalid)?;
                refused(side.nic.set_vi_attributes(side.vi, &now), invalid)?;
                refused(side.nic.destroy_vi(side.vi), Error::ErrorResource)?;
                check_eq!(side.nic.query_vi(side.vi)?, (state, now));
                Ok(())
            };
            let answer = ask(w, &a, b"client", &server, LONG)?;
            let request = w.b.connect_wait(&server, Some(&own), LONG)?;
            all_refused(&a, &server)?;
            w.b.connect_accept(request.conn, b.vi)?;
            answer.join()??;
            for (side, to) in [(&a, &server), (&b, &own)] {
                all_refused(side, to)?;
            }
            exchange(&a, &b)?;
            b.disconnect()?;
            broken(w, &a)?;
            all_refused(&a, &server)?;
            a.disconnect()?;
            w.connect(&a, &b)
        })
    }),
    // An attempt that times out or is rejected leaves the virtual interface Idle, and so does a
    // disconnect, which ends the attempt.
    test("via_states::attempts_that_fail", &["via-5.1 S03", "via-5.2 S03 S04"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, server) = (w.side(&w.a, level, NO_CQS)?, w.b.address(b"server")?);
                check_eq!(ask(w, &a, b"client", &server, 20)?.join()?, Err(Error::Timeout));
                check_eq!(a.state()?, ViState::Idle);
                let answer = ask(w, &a, b"client", &server, LONG)?;
                // The earlier request may still be pending at the server.
                while !answer.is_done() {
                    if let Ok(request) = w.b.connect_wait(&server, None, 10) {
                        w.b.connect_reject(request.conn)?;
                    }
                }
                check_eq!((answer.join()?, a.state()?), (Err(Error::Reject), ViState::Idle));
                let (pending, answer) = pending(w, level)?;
                give_up(&pending, answer)?;
            }
            Ok(())
        })
    }),
    // Receives can be posted to an idle virtual interface, and wait there. A disconnect, which
    // succeeds in Idle too, flushes them. Sends complete in error at once.
    test("via_states::queues_in_idle", &["via-5.1 A02 A03 B01-B03"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let a = w.side(&w.a, level, NO_CQS)?;
                for number in 0..3 {
                    a.receive(number, &[a.data(0, 8)])?;
                }
                sends_are_flushed(&a)?;
                refused(a.nic.recv_done(a.vi), Error::NotDone)?;
                check_eq!(a.descriptor(0)?.status(), Status::empty());
                a.disconnect()?;
                check_eq!(a.state()?, ViState::Idle);
                for number in 0..3 {
                    check!(a.descriptor(number)?.is_done());
                    failed(a.received(number)?, Status::DESC_FLUSHED_ERROR)?;
                }
                a.untouched()?;
                // Messages of the connection take the receives that were posted before it.
                let peer = w.peer(level)?;
                let b = w.side(&peer, level, NO_CQS)?;
                a.receive(0, &[a.data(0, 8)])?;
                b.write(0, &[6; 8]);
                w.connect(&b, &a)?;
                b.send(0, &[b.data(0, 8)], None)?;
                b.sent_well(0)?;
                a.received_well(0)?;
                check_eq!(a.bytes(0, 8), [6; 8]);
            }
            Ok(())
        })
    }),
    // The same holds while it is pending: receives wait, Sends complete in error, and no message is
    // sent or received.
    test("via_states::queues_while_pending", &["via-5.2 B01-B03"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, answer) = pending(w, level)?;
                a.receive(0, &[a.data(0, 8)])?;
                sends_are_flushed(&a)?;
                refused(a.nic.recv_done(a.vi), Error::NotDone)?;
                give_up(&a, answer)?;
                failed(a.received(0)?, Status::DESC_FLUSHED_ERROR)?;
                let peer = w.peer(level)?;
                let b = w.side(&peer, level, NO_CQS)?;
                let server = peer.address(b"server")?;
                let answer = ask(w, &a, b"client", &server, LONG)?;
                let request = peer.connect_wait(&server, None, LONG)?;
                a.receive(0, &[a.data(0, 8)])?;
                check_eq!(
                    (a.state()?, a.nic.recv_done(a.vi)),
                    (ViState::ConnectPending, Err(Error::NotDone))
                );
                a.untouched()?;
                peer.connect_accept(request.conn, b.vi)?;
                answer.join()??;
                b.send(0, &[b.data(0, 8)], None)?;
                b.sent_well(0)?;
                a.received_well(0)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // An error of an idle virtual interface calls no handler. The next attempt to connect it, by
    // either call, returns ErrorResource; the attempt after that succeeds.
    test("via_states::errors_in_idle", &["via-5.1 A04 B04"], |f| {
        world(f, |w| {
            for serves in [false, true] {
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
                let errors = w.errors(if serves { &w.b } else { &w.a })?;
                let server = w.b.address(b"server")?;
                let faulty = if serves { &b } else { &a };
                // The event of the error precedes the event of the queue's next descriptor.
                let came = crate::thread::Signal::new(f.platform());
                let raises = came.clone();
                let handler = move |_: u64, _: &Nic, _: ViHandle, _: u64| raises.raise();
                faulty.nic.send_notify(faulty.vi, 0, alloc::boxed::Box::new(handler))?;
                provoke(faulty)?;
                faulty.send(1, &[], None)?;
                came.wait(1)?;
                if serves {
                    let answer = ask(w, &a, b"client", &server, LONG)?;
                    let request = w.b.connect_wait(&server, None, LONG)?;
                    refused(w.b.connect_accept(request.conn, b.vi), Error::ErrorResource)?;
                    check_eq!((a.state()?, b.state()?), (ViState::ConnectPending, ViState::Idle));
                    w.b.connect_accept(request.conn, b.vi)?;
                    answer.join()??;
                } else {
                    let answer = ask(w, &a, b"client", &server, LONG)?;
                    check_eq!((answer.join()?, a.state()?), (Err(Error::ErrorResource), ViState::Idle));
                    w.connect(&a, &b)?;
                }
                exchange(&a, &b)?;
                check_eq!(errors.count(), 0);
                quiet(&errors, faulty)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // The client's confirmation is lost, so the accept is pending when the client's first message
    // comes. There is no receive for it, which is an error: the server is in Error. The accept
    // succeeded, and the error handler learns of the end once.
    test("via_states::breaks_while_pending", &["via-5.2 S05"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.b, level, NO_CQS)?);
                let errors = w.errors(&b.nic)?;
                let server = w.b.address(b"server")?;
                let answer = ask(w, &a, b"client", &server, LONG)?;
                let request = w.b.connect_wait(&server, None, LONG)?;
                f.inject(0, Injection::DropManagement, 1, 0)?;
                let (nic, vi) = (b.nic.clone(), b.vi);
                let accept =
                    Thread::spawn(f.platform(), "server", move || nic.connect_accept(request.conn, vi))?;
                answer.join()??;
                a.send(0, &[], None)?;
                accept.join()??;
                broken(w, &b)?;
                // The client's disconnect may arrive before the event of the server's NIC.
                let mut codes: Vec<u32> = errors.wait(2)?.iter().map(|e| e.error_code as u32).collect();
                codes.sort();
                check_eq!(codes, [ErrorCode::ConnLost as u32, ErrorCode::RecvqEmpty as u32]);
                broken(w, &a)?;
                retire(&a)?;
                retire(&b)?;
                check_eq!(errors.count(), 2);
            }
            Ok(())
        })
    }),
    // In Error all posted descriptors complete in error, on both queues, and no message is
    // received. Messages that had not left when the error occurred do not leave.
    test("via_states::queues_in_error", &["via-5.4 B01-B03"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                let errors = w.errors(&b.nic)?;
                for number in 0..3 {
                    a.receive(number, &[a.data(1000, 8)])?;
                }
                a.write(0, &[3; 8]);
                let mut wrong = a.data(0, 8);
                wrong.handle ^= 1;
                a.send(10, &[wrong], None)?;
                for number in 11..15 {
                    a.rdma_write(number, &b.remote(0), &[a.data(0, 8)], None)?;
                }
                b.write(100, &[4; 8]);
                b.rdma_write(0, &a.remote(2000), &[b.data(100, 0)], None)?;
                failed(a.sent(10)?, Status::PROTECTION_ERROR)?;
                for number in 11..15 {
                    failed(a.sent(number)?, Status::DESC_FLUSHED_ERROR)?;
                }
                for number in 0..3 {
                    failed(a.received(number)?, Status::DESC_FLUSHED_ERROR)?;
                }
                broken(w, &a)?;
                b.rdma_write(1, &a.remote(2000), &[b.data(100, 8)], None)?;
                b.send(2, &[b.data(100, 8)], None)?;
                errors.expect(&b, ErrorCode::ConnLost)?;
                for _ in 0..3 {
                    w.until("the peer's requests end", || b.nic.send_done(b.vi).is_ok())?;
                }
                sends_are_flushed(&a)?;
                a.receive(0, &[])?;
                failed(a.received(0)?, Status::DESC_FLUSHED_ERROR)?;
                check_eq!(a.state()?, ViState::Error);
                check_eq!((a.bytes(1000, 8), a.bytes(2000, 8)), ([0; 8].to_vec(), [0; 8].to_vec()));
                check_eq!(b.bytes(0, 8), [0; 8]);
                retire(&a)?;
                retire(&b)?;
            }
            // On Unreliable Delivery the peer's disconnect leads to Error.
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            a.receive(0, &[])?;
            b.disconnect()?;
            failed(a.received(0)?, Status::DESC_FLUSHED_ERROR)?;
            broken(w, &a)?;
            sends_are_flushed(&a)?;
            a.receive(0, &[])?;
            failed(a.received(0)?, Status::DESC_FLUSHED_ERROR)?;
            a.disconnect()?;
            w.connect(&a, &b)?;
            exchange(&a, &b)
        })
    }),
    // The NIC is closed during attempts of both kinds to connect: the calls return.
    test("via_states::closing_ends_attempts", &[], |f| {
        world(f, |w| {
            let (a, answer) = pending(w, LEVEL)?;
            let b = w.side(&w.b, LEVEL, NO_CQS)?;
            let server = w.b.address(b"server")?;
            let late = ask(w, &w.side(&w.a, LEVEL, NO_CQS)?, b"client", &server, LONG)?;
            let request = w.b.connect_wait(&server, None, LONG)?;
            a.nic.close_nic()?;
            refused(answer.join()?, Error::InvalidParameter)?;
            refused(late.join()?, Error::InvalidParameter)?;
            refused(w.b.connect_accept(request.conn, b.vi), Error::Timeout)?;
            check_eq!(b.state()?, ViState::Idle);
            Ok(())
        })
    })
    .limit(120),
];
