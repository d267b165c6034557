//! Waiting for descriptors and for entries of completion queues (pages VipSendWait, VipRecvWait,
//! VipCQWait; 6.4.2): what ends a wait, and what cannot be waited for.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use nic_abi::admin::Injection;
use platform::sync::Mutex;
use vipl::*;

use super::levels::quiet;
use super::world::*;
use crate::support::refusal::no_handles;
use crate::thread::{Signal, Thread, pause};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// A call that waits.
pub(super) type Wait<T> = Box<dyn FnOnce() -> T + Send>;

/// Starts a thread that makes this call, and gives it time to wait.
#[track_caller]
pub(super) fn waiter<T: Send + 'static>(w: &World<'_>, wait: Wait<T>) -> Result<Thread<T>, Failure> {
    let begins = Signal::new(w.f.platform());
    let begun = begins.clone();
    let thread = Thread::spawn(w.f.platform(), "waiter", move || {
        begun.raise();
        wait()
    })?;
    begins.wait(1)?;
    pause(w.f.platform(), Duration::from_millis(SHORT.into()));
    Ok(thread)
}

/// Waits for the send queue, or for the receive queue.
fn wait_on(side: &Side, receives: bool, timeout: u32) -> Wait<Result<u64, Error>> {
    let (nic, vi) = (side.nic.clone(), side.vi);
    Box::new(move || match receives {
        true => nic.recv_wait(vi, timeout),
        false => nic.send_wait(vi, timeout),
    })
}

/// Waits for a completion queue.
fn wait_for_cq(nic: &Nic, cq: CqHandle, timeout: u32) -> Wait<Result<(ViHandle, bool), Error>> {
    let nic = nic.clone();
    Box::new(move || nic.cq_wait(cq, timeout))
}

/// Makes a call, which must return without waiting.
#[track_caller]
fn at_once<T>(w: &World<'_>, call: impl FnOnce() -> T) -> Result<T, Failure> {
    let before = (w.f.setup.usage)().waits;
    let returned = call();
    check_eq!((w.f.setup.usage)().waits, before, "the call waited");
    Ok(returned)
}

/// A pair. The send queue of the first end and the receive queue of the second end are each tied to
/// a completion queue of their NIC.
fn tied(w: &World<'_>) -> Result<(Side, Side, [CqHandle; 2]), Failure> {
    let cqs = [w.a.create_cq(16)?, w.b.create_cq(16)?];
    let a = w.side(&w.a, LEVEL, [cqs[0], CqHandle::NULL])?;
    let b = w.side(&w.b, LEVEL, [CqHandle::NULL, cqs[1]])?;
    w.connect(&a, &b)?;
    Ok((a, b, cqs))
}

/// Handles that name no virtual interface of `w.a`: null, destroyed, of another opening, of another
/// type, and with one wrong bit.
pub(super) fn no_vis(w: &World<'_>) -> Result<Vec<ViHandle>, Failure> {
    let gone = w.side(&w.a, LEVEL, NO_CQS)?;
    let (foreign, cq) = (w.side(&w.b, LEVEL, NO_CQS)?, w.a.create_cq(1)?);
    gone.destroy()?;
    Ok(no_handles(ViHandle::from_raw, gone.vi.as_raw(), foreign.vi.as_raw(), cq.as_raw()))
}

/// Handles that name no completion queue of `w.a`.
pub(super) fn no_cqs(w: &World<'_>) -> Result<Vec<CqHandle>, Failure> {
    let (gone, foreign) = (w.a.create_cq(1)?, w.b.create_cq(1)?);
    let vi = w.side(&w.a, LEVEL, NO_CQS)?.vi;
    w.a.destroy_cq(gone)?;
    Ok(no_handles(CqHandle::from_raw, gone.as_raw(), foreign.as_raw(), vi.as_raw()))
}

pub(crate) const TESTS: &[Test] = &[
    // A completed descriptor is returned without waiting, also with a timeout of 0, and taken off
    // the queue. An entry of a completion queue names the virtual interface and the queue, and
    // leaves the descriptor on that queue.
    test(
        "via_waits::what_is_complete_is_returned_at_once",
        &["VipSendWait B01", "VipRecvWait B01", "VipCQWait B01 B03 F01"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(LEVEL)?;
                b.receive(0, &[])?;
                a.send(0, &[], None)?;
                let (send, receive) = (a.descriptor(0)?, b.descriptor(0)?);
                success(w.done(&send)?)?;
                success(w.done(&receive)?)?;
                check_eq!(at_once(w, || a.nic.send_wait(a.vi, INFINITE))?, Ok(send.address()));
                check_eq!(at_once(w, || b.nic.recv_wait(b.vi, 0))?, Ok(receive.address()));
                check_eq!(a.nic.send_done(a.vi), Err(Error::NotDone));
                check_eq!(b.nic.recv_done(b.vi), Err(Error::NotDone));
                let (a, b, cqs) = tied(w)?;
                b.receive(0, &[])?;
                a.send(0, &[], None)?;
                success(w.done(&a.descriptor(0)?)?)?;
                success(w.done(&b.descriptor(0)?)?)?;
                for (side, cq, receives) in [(&a, cqs[0], false), (&b, cqs[1], true)] {
                    // The NIC writes the entry after the status.
                    let mut entry = Err(Error::NotDone);
                    w.until("an entry", || {
                        entry = side.nic.cq_wait(cq, 0);
                        entry != Err(Error::Timeout)
                    })?;
                    check_eq!(entry, Ok((side.vi, receives)));
                    check_eq!(side.nic.cq_wait(cq, 0), Err(Error::Timeout));
                    let taken =
                        if receives { side.nic.recv_done(side.vi) } else { side.nic.send_done(side.vi) };
                    check_eq!(taken, Ok(side.descriptor(0)?.address()));
                }
                Ok(())
            })
        },
    ),
    // Without a completion a wait blocks, and ends when its time is over: on an empty queue, and on
    // one whose head is not complete. The descriptor stays on the queue.
    test(
        "via_waits::the_time_runs_out",
        &["VipSendWait B02 VIP_TIMEOUT", "VipRecvWait B02 VIP_TIMEOUT", "VipCQWait B02 VIP_TIMEOUT"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(LEVEL)?;
                let cq = w.a.create_cq(1)?;
                let runs_out = |timeout: u32, wait: &dyn Fn(u32) -> Result<(), Error>| -> Outcome {
                    let (begun, waits) = (f.platform().now(), (f.setup.usage)().waits);
                    refused(wait(timeout), Error::Timeout)?;
                    let (took, time) =
                        (f.platform().now().since(begun), Duration::from_millis(timeout.into()));
                    check!(took >= time, "the wait ended before its time");
                    let now = (f.setup.usage)().waits;
                    check!(timeout == 0 || now == 0 || now > waits, "the call did not block");
                    Ok(())
                };
                for timeout in [0, 10] {
                    runs_out(timeout, &|timeout| a.nic.send_wait(a.vi, timeout).map(drop))?;
                    runs_out(timeout, &|timeout| b.nic.recv_wait(b.vi, timeout).map(drop))?;
                    runs_out(timeout, &|timeout| w.a.cq_wait(cq, timeout).map(drop))?;
                }
                b.receive(0, &[])?;
                runs_out(10, &|timeout| b.nic.recv_wait(b.vi, timeout).map(drop))?;
                a.send(0, &[], None)?;
                a.sent_well(0)?;
                b.received_well(0)
            })
        },
    ),
    // A thread that waits without a limit, or longer than the test takes, wakes when a descriptor
    // completes, and gets the descriptor that a poll would have returned.
    test(
        "via_waits::a_completion_ends_the_wait",
        &["VipSendWait B02", "VipRecvWait B02", "VipCQWait B02", "via-6.4.1.1 B03", "via-6.4.2 B03"],
        |f| {
            world(f, |w| {
                for timeout in [INFINITE, 3_600_000] {
                    let (a, b) = w.pair(LEVEL)?;
                    b.receive(0, &[])?;
                    let receiver = waiter(w, wait_on(&b, true, timeout))?;
                    let sender = waiter(w, wait_on(&a, false, timeout))?;
                    check!(!receiver.is_done() && !sender.is_done(), "nothing is complete");
                    a.send(0, &[], None)?;
                    check_eq!(sender.join()?, Ok(a.descriptor(0)?.address()));
                    check_eq!(receiver.join()?, Ok(b.descriptor(0)?.address()));
                    success(a.descriptor(0)?.status())?;
                    success(b.descriptor(0)?.status())?;
                    let (a, b, cqs) = tied(w)?;
                    let sender = waiter(w, wait_for_cq(&w.a, cqs[0], timeout))?;
                    let receiver = waiter(w, wait_for_cq(&w.b, cqs[1], timeout))?;
                    check!(!receiver.is_done() && !sender.is_done(), "nothing is complete");
                    b.receive(0, &[])?;
                    a.send(0, &[], None)?;
                    check_eq!(sender.join()?, Ok((a.vi, false)));
                    check_eq!(receiver.join()?, Ok((b.vi, true)));
                }
                Ok(())
            })
        },
    ),
    // A queue that is tied to a completion queue cannot be waited for, whether or not it has
    // complete descriptors; the other queue of the virtual interface can.
    test(
        "via_waits::tied_queues_cannot_be_waited_for",
        &["VipSendWait B03 VIP_ERROR_RESOURCE", "VipRecvWait B03 VIP_ERROR_RESOURCE", "VipCQWait A01"],
        |f| {
            world(f, |w| {
                let (a, b, _) = tied(w)?;
                for timeout in [0, 10, INFINITE] {
                    refused(a.nic.send_wait(a.vi, timeout), Error::ErrorResource)?;
                    refused(b.nic.recv_wait(b.vi, timeout), Error::ErrorResource)?;
                }
                b.receive(0, &[])?;
                a.send(0, &[], None)?;
                w.done(&a.descriptor(0)?)?;
                w.done(&b.descriptor(0)?)?;
                refused(a.nic.send_wait(a.vi, INFINITE), Error::ErrorResource)?;
                refused(b.nic.recv_wait(b.vi, INFINITE), Error::ErrorResource)?;
                refused(a.nic.recv_wait(a.vi, 0), Error::Timeout)?;
                refused(b.nic.send_wait(b.vi, 0), Error::Timeout)
            })
        },
    ),
    // Handles that are null, destroyed, of another opening or of another type.
    test(
        "via_waits::bad_handles",
        &[
            "VipSendWait VIP_INVALID_PARAMETER",
            "VipRecvWait VIP_INVALID_PARAMETER",
            "VipCQWait VIP_INVALID_PARAMETER",
        ],
        |f| {
            world(f, |w| {
                for vi in no_vis(w)? {
                    refused(w.a.send_wait(vi, INFINITE), Error::InvalidParameter)?;
                    refused(w.a.recv_wait(vi, INFINITE), Error::InvalidParameter)?;
                }
                for cq in no_cqs(w)? {
                    refused(w.a.cq_wait(cq, INFINITE), Error::InvalidParameter)?;
                }
                Ok(())
            })
        },
    ),
    // Destroying an object ends the waits on it, and so does closing the NIC.
    test("via_waits::destruction_ends_waits", &[], |f| {
        world(f, |w| {
            let (side, cq) = (w.side(&w.a, LEVEL, NO_CQS)?, w.a.create_cq(4)?);
            let queues = [false, true].map(|receives| waiter(w, wait_on(&side, receives, INFINITE)));
            let entries = waiter(w, wait_for_cq(&w.a, cq, INFINITE))?;
            side.destroy()?;
            w.a.destroy_cq(cq)?;
            for queue in queues {
                refused(queue?.join()?, Error::InvalidParameter)?;
            }
            refused(entries.join()?, Error::InvalidParameter)?;
            let (nic, server) = (w.another()?, w.a.address(b"nobody asks for this")?);
            let (side, cq) = (w.side(&nic, LEVEL, NO_CQS)?, nic.create_cq(4)?);
            side.receive(0, &[])?;
            let queues = [false, true].map(|receives| waiter(w, wait_on(&side, receives, INFINITE)));
            let entries = waiter(w, wait_for_cq(&nic, cq, INFINITE))?;
            let waits = nic.clone();
            let requests = waiter(w, Box::new(move || waits.connect_wait(&server, None, INFINITE)))?;
            nic.close_nic()?;
            for queue in queues {
                refused(queue?.join()?, Error::InvalidParameter)?;
            }
            refused(entries.join()?, Error::InvalidParameter)?;
            refused(requests.join()?, Error::InvalidParameter)
        })
    }),
    // A disconnect ends the wait for a receive with its flushed descriptor.
    test("via_waits::a_disconnect_flushes_to_the_waiter", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            b.receive(0, &[])?;
            let receiver = waiter(w, wait_on(&b, true, INFINITE))?;
            a.disconnect()?;
            check_eq!(receiver.join()?, Ok(b.descriptor(0)?.address()));
            failed(b.descriptor(0)?.status(), Status::DESC_FLUSHED_ERROR)
        })
    }),
    // Each of several threads that wait on one queue gets one descriptor.
    test("via_waits::each_descriptor_ends_one_wait", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let mut waiters = Vec::new();
            for number in 0..4 {
                b.receive(number, &[])?;
                waiters.push(waiter(w, wait_on(&b, true, LONG))?);
            }
            let mut expected = Vec::new();
            for number in 0..4 {
                a.send(number, &[], None)?;
                a.sent_well(number)?;
                expected.push(b.descriptor(number)?.address());
            }
            let mut taken = Vec::new();
            for waiter in waiters {
                taken.push(waiter.join()??);
            }
            taken.sort_unstable();
            check_eq!(taken, expected);
            refused(b.nic.recv_wait(b.vi, 0), Error::Timeout)
        })
    }),
    // Handlers may wait for descriptors that complete during the wait.
    test("via_waits::handlers_may_wait", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let (called, waited) = (Signal::new(f.platform()), Arc::new(Mutex::new(Vec::new())));
            let (calls, results) = (called.clone(), waited.clone());
            let handler = move |_: u64, nic: &Nic, vi: ViHandle, first: u64| {
                let second = nic.recv_wait(vi, LONG);
                let nothing = nic.send_wait(vi, 1).map(drop);
                *results.lock() = Vec::from([(Ok(first), Ok(())), (second, nothing)]);
                calls.raise();
            };
            b.nic.recv_notify(b.vi, 0, Box::new(handler))?;
            for number in 0..2 {
                b.receive(number, &[])?;
                a.send(number, &[], None)?;
                a.sent_well(number)?;
            }
            called.wait(1)?;
            let expected = [
                (Ok(b.descriptor(0)?.address()), Ok(())),
                (Ok(b.descriptor(1)?.address()), Err(Error::Timeout)),
            ];
            check_eq!(*waited.lock(), expected);
            Ok(())
        })
    }),
    // The four ways to find a completion: the status word of a descriptor, a wait on a work queue,
    // polling a completion queue, and a wait on one. All of them find the same descriptor with the
    // same status.
    test("via_waits::the_four_ways", &["via-6.4.2 B01"], |f| {
        world(f, |w| {
            for way in 0..4 {
                let (a, b, cqs) = tied(w)?;
                let (cq, plain) = (cqs[1], w.side(&w.b, LEVEL, NO_CQS)?);
                let on_cq = way >= 2;
                let receiver = if on_cq { &b } else { &plain };
                if !on_cq {
                    a.disconnect()?;
                    w.connect(&a, &plain)?;
                }
                receiver.receive(0, &[receiver.data(0, 8)])?;
                a.send(0, &[a.data(0, 5)], Some(9))?;
                let descriptor = receiver.descriptor(0)?;
                let found = match way {
                    0 => {
                        w.done(&descriptor)?;
                        receiver.nic.recv_done(receiver.vi)?
                    }
                    1 => receiver.nic.recv_wait(receiver.vi, LONG)?,
                    _ => {
                        let mut entry = Err(Error::NotDone);
                        w.until("an entry", || {
                            entry = if way == 2 { w.b.cq_done(cq) } else { w.b.cq_wait(cq, LONG) };
                            entry != Err(Error::NotDone)
                        })?;
                        check_eq!(entry, Ok((receiver.vi, true)));
                        receiver.nic.recv_done(receiver.vi)?
                    }
                };
                check_eq!((found, descriptor.length(), descriptor.immediate()), (descriptor.address(), 5, 9));
                success(descriptor.status())?;
            }
            Ok(())
        })
    }),
    // A descriptor can be taken exactly when the status word of the queue's head is Done.
    test("via_waits::the_status_of_the_head_decides", &["via-6.4.2 B02"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            w.inject(&b, Injection::HoldReads, 1, 0)?;
            let read = a.descriptor(0)?;
            a.rdma_read(0, &b.remote(0), &[a.data(0, 8)])?;
            let mut early = false;
            let mut taken = Err(Error::NotDone);
            w.until("the Read is taken off", || {
                let done = read.is_done();
                taken = a.nic.send_done(a.vi);
                // The descriptor may complete between the read of the status and the call.
                early |= done && taken == Err(Error::NotDone) || taken.is_ok() && !read.is_done();
                taken != Err(Error::NotDone)
            })?;
            check_eq!((taken, early), (Ok(read.address()), false));
            let errors = w.errors(&a.nic)?;
            quiet(&errors, &a)
        })
    }),
];
