//! Handlers for descriptors and for entries of completion queues (pages VipSendNotify,
//! VipRecvNotify, VipCQNotify).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use platform::sync::Mutex;
use vipl::*;

use super::waits::{no_cqs, no_vis};
use super::world::*;
use crate::thread::Signal;
use crate::{Outcome, Test, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// The arguments of a handler: its context, the NIC, the virtual interface, and the descriptor or,
/// for a completion queue, 1 for the receive queue.
type Called = (u64, NicHandle, ViHandle, u64);

/// Records the calls of handlers.
#[derive(Clone)]
struct Calls {
    came: Signal,
    /// While a test holds this lock, handlers cannot finish.
    list: Arc<Mutex<Vec<Called>>>,
}

impl Calls {
    fn new(w: &World<'_>) -> Calls {
        Calls { came: Signal::new(w.f.platform()), list: Arc::default() }
    }

    fn record(&self, called: Called) {
        self.list.lock().push(called);
        self.came.raise();
    }

    fn descriptor(&self) -> DescriptorHandler {
        let calls = self.clone();
        Box::new(move |context, nic, vi, descriptor| calls.record((context, nic.handle(), vi, descriptor)))
    }

    fn entry(&self) -> CqHandler {
        let calls = self.clone();
        Box::new(move |context, nic, vi, receives| calls.record((context, nic.handle(), vi, receives.into())))
    }

    /// Waits until handlers were called exactly with these arguments.
    #[track_caller]
    fn are(&self, expected: &[Called]) -> Outcome {
        self.came.wait(expected.len() as u32)?;
        check_eq!(*self.list.lock(), expected);
        Ok(())
    }

    /// How many handlers wait or run.
    fn handlers(&self) -> usize {
        Arc::strong_count(&self.list) - 1
    }
}

/// One of the two work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Send,
    Receive,
}

const QUEUES: [Queue; 2] = [Queue::Send, Queue::Receive];

impl Queue {
    /// The end of a pair that uses this queue: the first one sends.
    fn of<'a>(self, (a, b): (&'a Side, &'a Side)) -> &'a Side {
        if self == Queue::Send { a } else { b }
    }

    fn notify(self, side: &Side, context: u64, handler: DescriptorHandler) -> Result<(), Error> {
        match self {
            Queue::Send => side.nic.send_notify(side.vi, context, handler),
            Queue::Receive => side.nic.recv_notify(side.vi, context, handler),
        }
    }

    fn done(self, side: &Side) -> Result<u64, Error> {
        match self {
            Queue::Send => side.nic.send_done(side.vi),
            Queue::Receive => side.nic.recv_done(side.vi),
        }
    }
}

/// Sends a message, and waits until both descriptors with this number are complete.
#[track_caller]
fn message(w: &World<'_>, a: &Side, b: &Side, number: usize) -> Outcome {
    b.receive(number, &[])?;
    a.send(number, &[], None)?;
    success(w.done(&a.descriptor(number)?)?)?;
    success(w.done(&b.descriptor(number)?)?)
}

/// Waits until the handler thread has no work left: it answers a later request on another virtual
/// interface of the NIC, so all earlier handlers have run.
#[track_caller]
fn all_due_have_run(w: &World<'_>, nic: &Nic) -> Outcome {
    let (side, calls) = (w.side(nic, LEVEL, NO_CQS)?, Calls::new(w));
    side.send(0, &[], None)?;
    w.done(&side.descriptor(0)?)?;
    nic.send_notify(side.vi, 0, calls.descriptor())?;
    calls.came.wait(1)
}

pub(crate) const TESTS: &[Test] = &[
    // A descriptor that is complete already is taken off the queue, and passed to the handler with
    // its context, the NIC and the virtual interface, but not inside the call.
    test(
        "via_notify::what_is_complete_goes_to_the_handler",
        &["VipSendNotify B01 F01 O01", "VipRecvNotify B01 F01 O01"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(LEVEL)?;
                message(w, &a, &b, 0)?;
                for queue in QUEUES {
                    let (side, calls) = (queue.of((&a, &b)), Calls::new(w));
                    let outside = calls.list.lock();
                    // A handler that ran inside the call would deadlock on this lock.
                    let notified = queue.notify(side, 77, calls.descriptor());
                    let untaken = queue.done(side);
                    drop(outside);
                    check_eq!((notified, untaken), (Ok(()), Err(Error::NotDone)));
                    calls.are(&[(77, side.nic.handle(), side.vi, side.descriptor(0)?.address())])?;
                }
                Ok(())
            })
        },
    ),
    // Otherwise the handler gets the next descriptor that completes, and no other one: one call of
    // notify makes one call of a handler. The second descriptor stays on the queue.
    test(
        "via_notify::the_next_descriptor_goes_to_the_handler",
        &["VipSendNotify B02 B03", "VipRecvNotify B02 B03"],
        |f| {
            world(f, |w| {
                for queue in QUEUES {
                    let (a, b) = w.pair(LEVEL)?;
                    let (side, calls) = (queue.of((&a, &b)), Calls::new(w));
                    queue.notify(side, 1, calls.descriptor())?;
                    check_eq!(calls.came.count(), 0);
                    for number in 0..2 {
                        message(w, &a, &b, number)?;
                    }
                    calls.are(&[(1, side.nic.handle(), side.vi, side.descriptor(0)?.address())])?;
                    all_due_have_run(w, &side.nic)?;
                    check_eq!(calls.came.count(), 1);
                    check_eq!(queue.done(side), Ok(side.descriptor(1)?.address()));
                }
                Ok(())
            })
        },
    ),
    // Destroying the virtual interface drops the waiting handlers; so does closing the NIC.
    test(
        "via_notify::destruction_cancels_handlers",
        &["VipSendNotify B04", "VipRecvNotify B04", "VipCQNotify B05"],
        |f| {
            world(f, |w| {
                for closes in [false, true] {
                    let nic = w.another()?;
                    let (side, cq, calls) = (w.side(&nic, LEVEL, NO_CQS)?, nic.create_cq(4)?, Calls::new(w));
                    for queue in QUEUES {
                        queue.notify(&side, 0, calls.descriptor())?;
                    }
                    nic.cq_notify(cq, 0, calls.entry())?;
                    check_eq!(calls.handlers(), 3);
                    if closes {
                        nic.close_nic()?;
                    } else {
                        nic.destroy_vi(side.vi)?;
                        check_eq!(calls.handlers(), 1);
                        nic.destroy_cq(cq)?;
                        all_due_have_run(w, &nic)?;
                    }
                    check_eq!((calls.handlers(), calls.came.count()), (0, 0));
                }
                Ok(())
            })
        },
    ),
    // A queue that is tied to a completion queue accepts no handlers; the other queue does.
    test(
        "via_notify::tied_queues_have_no_handlers",
        &["VipSendNotify B05 VIP_ERROR_RESOURCE", "VipRecvNotify B05 VIP_ERROR_RESOURCE"],
        |f| {
            world(f, |w| {
                let (cq, calls) = (w.a.create_cq(4)?, Calls::new(w));
                let sends = w.side(&w.a, LEVEL, [cq, CqHandle::NULL])?;
                let receives = w.side(&w.a, LEVEL, [CqHandle::NULL, cq])?;
                refused(Queue::Send.notify(&sends, 0, calls.descriptor()), Error::ErrorResource)?;
                refused(Queue::Receive.notify(&receives, 0, calls.descriptor()), Error::ErrorResource)?;
                check_eq!(calls.handlers(), 0);
                Queue::Receive.notify(&sends, 0, calls.descriptor())?;
                Ok(Queue::Send.notify(&receives, 0, calls.descriptor())?)
            })
        },
    ),
    // Handles that are null, destroyed, of another opening or of another type. A handler cannot be
    // null. Refused calls drop their handlers.
    test(
        "via_notify::bad_handles",
        &[
            "VipSendNotify VIP_INVALID_PARAMETER",
            "VipRecvNotify VIP_INVALID_PARAMETER",
            "VipCQNotify VIP_INVALID_PARAMETER",
        ],
        |f| {
            world(f, |w| {
                let calls = Calls::new(w);
                for vi in no_vis(w)? {
                    refused(w.a.send_notify(vi, 0, calls.descriptor()), Error::InvalidParameter)?;
                    refused(w.a.recv_notify(vi, 0, calls.descriptor()), Error::InvalidParameter)?;
                }
                for cq in no_cqs(w)? {
                    refused(w.a.cq_notify(cq, 0, calls.entry()), Error::InvalidParameter)?;
                }
                check_eq!(calls.handlers(), 0);
                Ok(())
            })
        },
    ),
    // As many handlers can wait as the queue has room for descriptors.
    test("via_notify::handlers_are_bounded", &[], |f| {
        world(f, |w| {
            let (ptag, calls) = (w.a.create_ptag()?, Calls::new(w));
            let vi = w.a.create_vi_sized(&attributes(ptag, LEVEL), CqHandle::NULL, CqHandle::NULL, [1, 2])?;
            w.a.send_notify(vi, 0, calls.descriptor())?;
            refused(w.a.send_notify(vi, 0, calls.descriptor()), Error::ErrorResource)?;
            w.a.recv_notify(vi, 0, calls.descriptor())?;
            w.a.recv_notify(vi, 0, calls.descriptor())?;
            refused(w.a.recv_notify(vi, 0, calls.descriptor()), Error::ErrorResource)?;
            check_eq!(calls.handlers(), 3);
            w.a.destroy_vi(vi)?;
            check_eq!(calls.handlers(), 0);
            Ok(())
        })
    }),
    // Handlers are called in the order of their calls, with the descriptors in queue order.
    test("via_notify::handlers_take_turns", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let calls = Calls::new(w);
            let mut expected = Vec::new();
            for number in 0..8 {
                Queue::Receive.notify(&b, number, calls.descriptor())?;
                expected.push((number, b.nic.handle(), b.vi, b.descriptor(number as usize)?.address()));
            }
            for number in 0..8 {
                message(w, &a, &b, number)?;
            }
            calls.are(&expected)
        })
    }),
    // A handler may ask for the next descriptor, disconnect and destroy the virtual interface, and
    // close the NIC.
    test("via_notify::handlers_may_make_any_call", &[], |f| {
        world(f, |w| {
            let nic = w.another()?;
            let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&nic, LEVEL, NO_CQS)?);
            w.connect(&a, &b)?;
            let ended = Signal::new(f.platform());
            let results = Arc::new(Mutex::new(Vec::new()));
            let (raises, list) = (ended.clone(), results.clone());
            let second = move |_: u64, nic: &Nic, vi: ViHandle, _: u64| {
                let results = [
                    nic.destroy_vi(vi),
                    nic.disconnect(vi),
                    nic.destroy_vi(vi),
                    nic.destroy_vi(vi),
                    nic.close_nic(),
                    nic.create_ptag().map(drop),
                ];
                list.lock().extend(results);
                raises.raise();
            };
            let first = move |_: u64, nic: &Nic, vi: ViHandle, _: u64| {
                let _ = nic.recv_notify(vi, 0, Box::new(second));
            };
            nic.recv_notify(b.vi, 0, Box::new(first))?;
            for number in 0..2 {
                b.receive(number, &[])?;
                a.send(number, &[], None)?;
                a.sent_well(number)?;
            }
            ended.wait(1)?;
            let (busy, gone) = (Err(Error::ErrorResource), Err(Error::InvalidParameter));
            check_eq!(*results.lock(), [busy, Ok(()), Ok(()), gone, Ok(()), gone]);
            Ok(())
        })
    }),
    // Handlers get entries of a completion queue: one that is queued already, then the next one. A
    // handler gets its context, the NIC, the virtual interface and the queue, one entry for each
    // call of notify; the descriptor stays on its queue.
    test("via_notify::entries_go_to_handlers", &["VipCQNotify B01-B04 F01 O01"], |f| {
        world(f, |w| {
            let cq = w.a.create_cq(16)?;
            let side = w.side(&w.a, LEVEL, [cq; 2])?;
            let calls = Calls::new(w);
            let sent = |number: usize| -> Outcome {
                // Without a connection a Send completes at once.
                side.send(number, &[], None)?;
                w.done(&side.descriptor(number)?)?;
                Ok(())
            };
            sent(0)?;
            side.receive(10, &[])?;
            side.disconnect()?;
            w.done(&side.descriptor(10)?)?;
            let outside = calls.list.lock();
            let notified = w.a.cq_notify(cq, 5, calls.entry());
            drop(outside);
            check_eq!(notified, Ok(()));
            calls.are(&[(5, w.a.handle(), side.vi, 0)])?;
            check_eq!(w.a.send_done(side.vi), Ok(side.descriptor(0)?.address()));
            w.a.cq_notify(cq, 6, calls.entry())?;
            let both = [(5, w.a.handle(), side.vi, 0), (6, w.a.handle(), side.vi, 1)];
            calls.are(&both)?;
            check_eq!(w.a.recv_done(side.vi), Ok(side.descriptor(10)?.address()));
            check_eq!(w.a.cq_done(cq), Err(Error::NotDone));
            w.a.cq_notify(cq, 7, calls.entry())?;
            all_due_have_run(w, &w.a)?;
            check_eq!(calls.came.count(), 2);
            for number in 1..3 {
                sent(number)?;
            }
            calls.are(&[both[0], both[1], (7, w.a.handle(), side.vi, 0)])?;
            all_due_have_run(w, &w.a)?;
            check_eq!(calls.came.count(), 3);
            check_eq!(w.a.cq_done(cq), Ok((side.vi, false)));
            Ok(())
        })
    }),
];
