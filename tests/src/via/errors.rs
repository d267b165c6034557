//! Asynchronous errors (page VipErrorCallback, 9.10.3): the errors, the end that gets them, the
//! error descriptor, and the handler that is called.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::result::Result;
use core::time::Duration;

use nic_abi::admin::Injection;
use platform::sync::Mutex;
use vipl::*;

use super::levels::{broken, exchange, quiet, retire, shows};
use super::world::*;
use crate::thread::{Signal, pause};
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// The number of an operation in an error descriptor: bits 18:16 of a status.
const fn op_code(operation: Status) -> u32 {
    operation.bits() >> 16
}

/// How many errors of this NIC went to a handler or to the log.
fn reported(nic: &Nic) -> Result<u64, Failure> {
    match nic.query_system_management_info(InfoType::Errors as u32)? {
        SystemManagementInfo::Errors { reported, .. } => Ok(reported),
        other => Err(Failure::new(alloc::format!("not the errors: {other:?}"))),
    }
}

/// Posts a descriptor that is misaligned, an asynchronous error of this virtual interface.
#[track_caller]
pub(super) fn provoke(side: &Side) -> Outcome {
    Ok(side.nic.post_send(side.vi, side.descriptor(0)?.address() + 32, side.region.handle)?)
}

/// An RDMA Write or Read of `a` fails at `b`. The descriptor of `a` shows what its level shows, and
/// the handler of `b` gets this error, with this operation.
fn fails_at_target(
    w: &World<'_>,
    harm: Option<Injection>,
    reads: bool,
    shown: Status,
    code: ErrorCode,
) -> Outcome {
    for level in RELIABLE {
        let (a, b) = w.pair(level)?;
        let (at_a, at_b) = (w.errors(&a.nic)?, w.errors(&b.nic)?);
        let closed = w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?;
        let to = match harm {
            Some(what) => {
                w.inject(&b, what, 1, 0)?;
                b.remote(0)
            }
            None => closed.remote(0),
        };
        if reads {
            a.rdma_read(0, &to, &[a.data(0, 8)])?;
            failed(a.sent(0)?, shown)?;
        } else {
            a.rdma_write(0, &to, &[a.data(0, 8)], None)?;
            shows(level, a.sent(0)?, shown)?;
        }
        let error = at_b.expect(&b, code)?;
        // At the target, a Write is the peer's.
        let operation = if reads { Status::OP_RDMA_READ } else { Status::OP_REMOTE_RDMA_WRITE };
        check_eq!((error.op_code, error.resource_code), (op_code(operation), ResourceCode::Vi));
        at_b.expect(&b, ErrorCode::ConnLost)?;
        at_a.expect(&a, ErrorCode::ConnLost)?;
        at_b.found_the_state()?;
        closed.untouched()?;
        retire(&a)?;
        retire(&b)?;
    }
    Ok(())
}

/// Deregisters the region of a descriptor while an RDMA Read waits for its answer. False if the NIC
/// had not begun with the descriptor, which is another error.
fn deregistered_under_way(w: &World<'_>, level: ReliabilityLevel) -> Result<bool, Failure> {
    let (a, b) = w.pair(level)?;
    let errors = w.errors(&a.nic)?;
    let region = w.region(&a.nic, 4096, &open_memory(a.ptag))?;
    w.inject(&b, Injection::HoldReads, u32::MAX, 0)?;
    let descriptor = region.descriptor(0, 2)?;
    descriptor.rdma_read(&b.remote(0), &[a.data(0, 8)])?;
    a.nic.post_send(a.vi, region.address(0), region.handle)?;
    // Nothing shows that the NIC has begun, so the test waits.
    pause(w.f.platform(), Duration::from_millis(SHORT.into()));
    a.nic.deregister_mem(region.address(0), region.handle)?;
    w.inject(&b, Injection::HoldReads, 0, 0)?;
    let found = some(errors.wait(1)?.first().copied(), "an error")?;
    let begun = found.error_code != ErrorCode::PostDesc;
    if begun {
        errors.expect(&a, ErrorCode::CompProt)?;
        check_eq!((found.descriptor, found.op_code), (region.address(0), op_code(Status::OP_RDMA_READ)));
        check_eq!(found.resource_code, ResourceCode::Descriptor);
        check_eq!(descriptor.status(), Status::empty());
        refused(a.nic.send_done(a.vi), Error::NotDone)?;
        broken(w, &a)?;
    }
    retire(&a)?;
    retire(&b)?;
    Ok(begun)
}

pub(crate) const TESTS: &[Test] = &[
    // The handler gets its context and the error, outside all calls. Another handler replaces it,
    // and `None` restores the default, which logs: the former handler is dropped.
    test("via_errors::the_handler", &["VipErrorCallback B01-B03 F01 O01", "via-6.4.1.1 B04"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let (came, list) = (Signal::new(f.platform()), Arc::new(Mutex::new(alloc::vec::Vec::new())));
            let handler = || -> Option<ErrorHandler> {
                let (came, list) = (came.clone(), list.clone());
                Some(Box::new(move |context, error| {
                    list.lock().push((context, error.error_code, error.vi));
                    came.raise();
                }))
            };
            a.nic.error_callback(7, handler())?;
            let outside = list.lock();
            let provoked = provoke(&a);
            drop(outside);
            provoked?;
            came.wait(1)?;
            a.nic.error_callback(8, handler())?;
            // The former handler may still be running.
            w.until("one handler is left", || Arc::strong_count(&list) == 2)?;
            provoke(&a)?;
            came.wait(2)?;
            let code = ErrorCode::PostDesc;
            check_eq!(*list.lock(), [(7, code, a.vi), (8, code, a.vi)]);
            let before = reported(&a.nic)?;
            a.nic.error_callback(9, None)?;
            w.until("no handler is left", || Arc::strong_count(&list) == 1)?;
            provoke(&a)?;
            w.until("the error is logged", || reported(&a.nic).is_ok_and(|now| now == before + 1))?;
            check_eq!(came.count(), 2);
            exchange(&a, &b)
        })
    }),
    // A closed NIC accepts no handler, and the close drops the handler that was set. The handler of
    // one opening gets no error of another one.
    test("via_errors::openings_have_a_handler_each", &["VipErrorCallback VIP_INVALID_PARAMETER"], |f| {
        world(f, |w| {
            let nic = w.another()?;
            let token = Arc::new(());
            let keeps = token.clone();
            nic.error_callback(0, Some(Box::new(move |_, _| drop(keeps.clone()))))?;
            let side = w.side(&w.a, ReliabilityLevel::Unreliable, NO_CQS)?;
            let other = w.side(&w.b, ReliabilityLevel::Unreliable, NO_CQS)?;
            w.connect(&side, &other)?;
            let (errors, before) = (w.errors(&w.a)?, reported(&nic)?);
            provoke(&side)?;
            errors.expect(&side, ErrorCode::PostDesc)?;
            check_eq!(reported(&nic)?, before);
            nic.close_nic()?;
            check_eq!(Arc::strong_count(&token), 1);
            refused(nic.error_callback(0, None), Error::InvalidParameter)?;
            refused(nic.error_callback(0, Some(Box::new(|_, _| ()))), Error::InvalidParameter)
        })
    }),
    // The error handler may make any call: it replaces itself, and closes the NIC.
    test("via_errors::the_handler_may_make_any_call", &[], |f| {
        world(f, |w| {
            let nic = w.another()?;
            let (a, b) = (w.side(&nic, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
            w.connect(&a, &b)?;
            let (ended, results) = (Signal::new(f.platform()), Arc::new(Mutex::new(None)));
            let (raises, list, opened) = (ended.clone(), results.clone(), nic.clone());
            let handler = move |_: u64, error: &ErrorDescriptor| {
                let found = [
                    opened.error_callback(1, None),
                    opened.disconnect(error.vi),
                    opened.close_nic(),
                    opened.error_callback(2, None),
                ];
                *list.lock() = Some(found);
                raises.raise();
            };
            nic.error_callback(0, Some(Box::new(handler)))?;
            b.disconnect()?;
            ended.wait(1)?;
            let expected = [Ok(()), Ok(()), Ok(()), Err(Error::InvalidParameter)];
            check_eq!(*results.lock(), Some(expected));
            Ok(())
        })
    }),
    // A post whose address and handle name no descriptor: misaligned, with another handle, outside
    // the region, across its end, in a region with another tag; on either queue. The queue never
    // returns it.
    test(
        "via_errors::post_descriptor",
        &["VipErrorCallback VIP_ERROR_POST_DESC", "VIP_ERROR_DESCRIPTOR F01 F02 F04 F06 F07"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
                for receives in [false, true] {
                    let side = if receives { &b } else { &a };
                    let errors = w.errors(&side.nic)?;
                    let tag = side.nic.create_ptag()?;
                    let foreign = w.region(&side.nic, 4096, &open_memory(tag))?;
                    let short = w.region(&side.nic, 64 + 16, &open_memory(side.ptag))?;
                    let good = side.descriptor(0)?.address();
                    let posts = [
                        (good + 1, side.region.handle),
                        (good + 32, side.region.handle),
                        (good, MemHandle::from_raw(side.region.handle.as_raw() ^ 1)),
                        (good, MemHandle::from_raw(0)),
                        (side.region.address(DATA + DATA_LEN), side.region.handle),
                        (short.address(64), short.handle),
                        (foreign.address(0), foreign.handle),
                        (!63, side.region.handle),
                        (0, side.region.handle),
                    ];
                    for (address, handle) in posts {
                        if receives {
                            // The NIC reads a receive descriptor when a message needs it.
                            b.nic.post_recv(b.vi, address, handle)?;
                            a.send(0, &[], None)?;
                            a.sent_well(0)?;
                        } else {
                            a.nic.post_send(a.vi, address, handle)?;
                        }
                        let error = errors.expect(side, ErrorCode::PostDesc)?;
                        let code = if receives { op_code(Status::OP_RECEIVE) } else { 0 };
                        check_eq!((error.descriptor, error.op_code), (address, code));
                        check_eq!(
                            (error.resource_code, error.cq),
                            (ResourceCode::Descriptor, CqHandle::NULL)
                        );
                    }
                    refused(side.nic.send_done(side.vi), Error::NotDone)?;
                    refused(side.nic.recv_done(side.vi), Error::NotDone)?;
                    check_eq!(side.state()?, ViState::Connected);
                }
                exchange(&a, &b)
            })
        },
    ),
    // The connection is lost because the peer disconnects: on each level the virtual interface goes
    // to Error, and the handler is called once.
    test("via_errors::connection_lost", &["VipErrorCallback VIP_ERROR_CONN_LOST"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                let errors = w.errors(&b.nic)?;
                a.disconnect()?;
                let error = errors.expect(&b, ErrorCode::ConnLost)?;
                check_eq!((error.resource_code, error.descriptor), (ResourceCode::Vi, 0));
                check_eq!(b.state()?, ViState::Error);
                quiet(&errors, &b)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // One descriptor more is posted than a queue has room for. The post succeeds; the error names
    // the descriptor and the queue.
    test("via_errors::overrun", &["VipErrorCallback VIP_ERROR_VI_OVERRUN"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let errors = w.errors(&b.nic)?;
            let room = b.nic.query_nic()?.max_descriptors_per_queue as usize;
            for number in 0..room {
                b.receive(number % DESCRIPTORS, &[])?;
            }
            check_eq!(errors.count(), 0);
            b.post_recv(5)?;
            let error = errors.expect(&b, ErrorCode::ViOverrun)?;
            let at = b.descriptor(5)?.address();
            check_eq!((error.descriptor, error.op_code), (at, op_code(Status::OP_RECEIVE)));
            check_eq!((error.resource_code, error.error_code as u32), (ResourceCode::Vi, 3));
            // The other descriptors are still on the queue, in their order.
            b.disconnect()?;
            for number in 0..room {
                check_eq!(b.nic.recv_done(b.vi)?, b.descriptor(number % DESCRIPTORS)?.address());
            }
            refused(b.nic.recv_done(b.vi), Error::NotDone)?;
            a.disconnect()
        })
    }),
    // An RDMA request fails at its target, whose handler gets the error: protection of a Write and
    // of a Read, corrupt data, a missing part. The Read has an error code of its own.
    test(
        "via_errors::rdma_that_fails_at_its_target",
        &[
            "VipErrorCallback A01 A02 VIP_ERROR_RDMAR_PROT VIP_ERROR_RDMAW_ABORT",
            "VipErrorCallback VIP_ERROR_RDMAW_DATA VIP_ERROR_RDMAW_PROT",
            "VIP_ERROR_DESCRIPTOR F05",
            "via-2.5.3 B02",
        ],
        |f| {
            world(f, |w| {
                let (protection, transport) = (Status::RDMA_PROT_ERROR, Status::TRANSPORT_ERROR);
                fails_at_target(w, None, false, protection, ErrorCode::RdmawProt)?;
                fails_at_target(w, Some(Injection::Corrupt), false, transport, ErrorCode::RdmawData)?;
                fails_at_target(w, Some(Injection::Truncate), false, transport, ErrorCode::RdmawAbort)?;
                fails_at_target(w, None, true, protection, ErrorCode::RdmarProt)?;
                check_eq!(ErrorCode::RdmarProt as u32, 7);
                Ok(())
            })
        },
    ),
    // With immediate data the receive that the RDMA Write takes shows the error, and the handler of
    // the target is not called.
    test("via_errors::rdma_with_immediate_data_that_fails", &["VipErrorCallback B04"], |f| {
        world(f, |w| {
            for level in LEVELS {
                for (harm, bits) in [
                    (None, Status::PROTECTION_ERROR),
                    (Some(Injection::Corrupt), Status::TRANSPORT_ERROR),
                    (Some(Injection::Truncate), Status::PARTIAL_ERROR),
                ] {
                    let (a, b) = w.pair(level)?;
                    let errors = w.errors(&b.nic)?;
                    let closed = w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?;
                    b.receive(0, &[])?;
                    if let Some(what) = harm {
                        w.inject(&b, what, 1, 0)?;
                    }
                    let to = if harm.is_some() { b.remote(0) } else { closed.remote(0) };
                    a.rdma_write(0, &to, &[a.data(0, 8)], Some(1))?;
                    let status = b.received(0)?;
                    failed(status, bits)?;
                    check_eq!(operation(status), Status::OP_REMOTE_RDMA_WRITE);
                    if level.is_reliable() {
                        errors.expect(&b, ErrorCode::ConnLost)?;
                        broken(w, &b)?;
                    }
                    quiet(&errors, &b)?;
                    retire(&a)?;
                    retire(&b)?;
                }
            }
            Ok(())
        })
    }),
    // The region of a descriptor is deregistered while the NIC processes it, here an RDMA Read
    // whose answer is delayed: the NIC cannot write its status, and writes nothing.
    test("via_errors::completion_protection", &["VipErrorCallback VIP_ERROR_COMP_PROT"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let mut tries = 0;
                while !deregistered_under_way(w, level)? {
                    tries += 1;
                    check!(tries < 50, "the NIC never begins in time");
                }
            }
            Ok(())
        })
    }),
    // Errors that no handler takes in time are bounded, and lost ones are counted; those of another
    // virtual interface are not displaced.
    test("via_errors::errors_that_wait_are_bounded", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let (c, d) = (
                w.side(&w.a, ReliabilityLevel::Unreliable, NO_CQS)?,
                w.side(&w.b, ReliabilityLevel::Unreliable, NO_CQS)?,
            );
            w.connect(&c, &d)?;
            let (came, gate) = (Signal::new(f.platform()), Arc::new(Mutex::new(0u32)));
            let (raises, waits, vi) = (came.clone(), gate.clone(), c.vi);
            let handler = move |_: u64, error: &ErrorDescriptor| {
                *waits.lock() += 1;
                if error.vi == vi {
                    raises.raise();
                }
            };
            w.a.error_callback(0, Some(Box::new(handler)))?;
            for _ in 0..500 {
                provoke(&a)?;
            }
            provoke(&c)?;
            came.wait(1)?;
            check!(*gate.lock() <= 501);
            // A descriptor that was lost has its place until the queue is looked at.
            a.drain();
            exchange(&a, &b)
        })
    }),
    // No error of a virtual interface is reported after it was destroyed: neither one that waits
    // while a handler runs, nor one that the agent reports later.
    test("via_errors::destruction_forgets_errors", &[], |f| {
        world(f, |w| {
            let level = ReliabilityLevel::Unreliable;
            let ((a, _b), (c, d)) = (w.pair(level)?, w.pair(level)?);
            let (runs, goes_on) = (Signal::new(f.platform()), Signal::new(f.platform()));
            let (raises, waits) = (runs.clone(), goes_on.clone());
            let handler = move |_: u64, _: &ErrorDescriptor| {
                raises.raise();
                let _ = waits.wait(1);
            };
            w.a.error_callback(0, Some(Box::new(handler)))?;
            provoke(&a)?;
            runs.wait(1)?;
            for _ in 0..8 {
                provoke(&c)?;
            }
            c.disconnect()?;
            d.disconnect()?;
            c.drain();
            retire(&c)?;
            let errors = w.errors(&w.a)?;
            goes_on.raise();
            quiet(&errors, &a)
        })
    }),
];
