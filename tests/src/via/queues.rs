//! Work queues: posting, completion in place, taking completed descriptors (2.1.1, 2.3, 6.2, 6.4.1;
//! pages VipPostSend, VipPostRecv, VipSendDone, VipRecvDone).

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{broken, retire};
use super::world::*;
use crate::thread::{Signal, Thread, at_once};
use crate::{Failure, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

pub(crate) const TESTS: &[Test] = &[
    // Descriptors leave a queue in the order of their posts, each Send with one Receive; none
    // leaves before the head is complete. The NIC processes earlier descriptors while more are
    // posted.
    test(
        "via_queues::in_order",
        &[
            "VipPostSend B01",
            "VipPostRecv B01",
            "VipSendDone B01 B02 VIP_NOT_DONE",
            "VipRecvDone B01 B02 VIP_NOT_DONE",
            "via-1.5.3 S01",
            "via-2.3.1 B01",
            "via-6.2 B04",
            "via-6.4.1 B01",
            "via-11.2 A02",
        ],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    a.fill(1);
                    refused(a.nic.send_done(a.vi), Error::NotDone)?;
                    refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    for number in 0..8 {
                        b.receive(number, &[b.data(number * 8, 8)])?;
                    }
                    for _ in 0..2 {
                        refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    }
                    for number in 0..6 {
                        a.send(number, &[a.data(number * 8, 8)], None)?;
                        // The descriptor is complete, and still on the queue, while the next one is
                        // posted.
                        success(w.done(&a.descriptor(number)?)?)?;
                        success(w.done(&b.descriptor(number)?)?)?;
                    }
                    for number in 0..6 {
                        check_eq!(a.nic.send_done(a.vi)?, a.descriptor(number)?.address());
                        check_eq!(b.nic.recv_done(b.vi)?, b.descriptor(number)?.address());
                        check_eq!(b.bytes(number * 8, 8), a.bytes(number * 8, 8));
                    }
                    for _ in 0..2 {
                        refused(a.nic.send_done(a.vi), Error::NotDone)?;
                        refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    }
                    check_eq!(b.bytes(48, 16), [0; 16]);
                    for number in 6..8 {
                        check_eq!(b.descriptor(number)?.status(), Status::empty());
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // A post returns before the data has moved; the status word shows when it has. Until then the
    // NIC owns the descriptor, and does not change it.
    test(
        "via_queues::posts_do_not_wait",
        &["via-2.1.1 B02", "via-2.3.1 B05", "VIP_CONTROL_SEGMENT F08"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Reception)?;
                b.receive(0, &[b.data(0, 8)])?;
                let posted = b.region.bytes(0, descriptor_len(1));
                w.inject(&b, Injection::StallResponder, u32::MAX, 0)?;
                a.send(0, &[a.data(0, 8)], None)?;
                check_eq!(
                    (a.descriptor(0)?.status(), b.descriptor(0)?.status()),
                    (Status::empty(), Status::empty())
                );
                for _ in 0..2 {
                    refused(a.nic.send_done(a.vi), Error::NotDone)?;
                }
                check_eq!(b.region.bytes(0, descriptor_len(1)), posted);
                w.inject(&b, Injection::StallResponder, 0, 0)?;
                success(w.done(&a.descriptor(0)?)?)?;
                success(w.done(&b.descriptor(0)?)?)?;
                a.sent_well(0)?;
                b.received_well(0)
            })
        },
    ),
    // Once a poll returns Done, the length, immediate data and payload are final, and the
    // descriptor may be used again at once.
    test("via_queues::the_status_is_last", &["via-6.4.1 B03 B04", "via-2.3.2 B06"], |f| {
        world(f, |w| {
            const COUNT: u32 = 200;
            let (a, b) = w.pair(LEVEL)?;
            b.receive(0, &[b.data(0, 1000)])?;
            let (nic, vi, region) = (a.nic.clone(), a.vi, a.region.clone());
            let (again, to) = (Signal::new(f.platform()), b.remote(2000));
            let ready = again.clone();
            let sender = Thread::spawn(f.platform(), "sender", move || {
                for number in 0..COUNT {
                    let len = number as usize * 4 + 4;
                    region.write(DATA, &[number as u8 | 1; 1000][..len]);
                    let (descriptor, data) = (region.descriptor(0, SEGMENTS)?, region.segment(DATA, len));
                    if number % 2 == 0 {
                        descriptor.send(&[data], Some(number))?;
                    } else {
                        descriptor.rdma_write(&to, &[data], Some(number))?;
                    }
                    nic.post_send(vi, descriptor.address(), region.handle)?;
                    nic.send_wait(vi, LONG)?;
                    success(descriptor.status())?;
                    // The receiver has posted its next receive.
                    ready.wait(number + 1)?;
                }
                Ok::<(), Failure>(())
            })?;
            for number in 0..COUNT {
                let descriptor = b.descriptor(0)?;
                check!(at_once(f.platform(), || descriptor.is_done()), "message {number}");
                let (status, length) = (descriptor.status(), descriptor.length() as usize);
                check_eq!(descriptor.immediate(), number);
                success(status)?;
                let written = operation(status) == Status::OP_REMOTE_RDMA_WRITE;
                check_eq!(written, number % 2 == 1);
                let len = number as usize * 4 + 4;
                check_eq!(length, if written { 0 } else { len });
                let bytes = b.bytes(if written { 2000 } else { 0 }, len);
                check!(bytes.iter().all(|&byte| byte == number as u8 | 1), "message {number}");
                check_eq!(b.nic.recv_done(b.vi)?, descriptor.address());
                b.receive(0, &[b.data(0, 1000)])?;
                again.raise();
            }
            sender.join()??;
            Ok(())
        })
    }),
    // RDMA without immediate data takes no Receive, and the peer gets no event. An RDMA Write with
    // immediate data takes a Receive when its data has arrived.
    test("via_queues::rdma_is_silent", &["via-2.3.2 B04 B05", "via-11.2.2 A05"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let cq = w.b.create_cq(4)?;
                let a = w.side(&w.a, level, NO_CQS)?;
                let b = w.side(&w.b, level, [CqHandle::NULL, cq])?;
                w.connect(&a, &b)?;
                a.fill(5);
                b.receive(0, &[])?;
                a.rdma_write(0, &b.remote(0), &[a.data(0, 500)], None)?;
                // The Read is carried out after the Write.
                a.rdma_read(1, &b.remote(0), &[a.data(1000, 500)])?;
                a.sent_well(0)?;
                a.sent_well(1)?;
                check_eq!((b.bytes(0, 500), a.bytes(1000, 500)), (a.bytes(0, 500), a.bytes(0, 500)));
                refused(b.nic.cq_done(cq), Error::NotDone)?;
                refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                check_eq!(b.descriptor(0)?.status(), Status::empty());
                a.rdma_write(2, &b.remote(600), &[a.data(0, 500)], Some(3))?;
                check_eq!(b.nic.cq_wait(cq, LONG)?, (b.vi, true));
                check_eq!((b.descriptor(0)?.immediate(), b.bytes(600, 500)), (3, a.bytes(0, 500)));
                check_eq!(b.nic.recv_done(b.vi)?, b.descriptor(0)?.address());
                a.sent_well(2)?;
                refused(b.nic.cq_done(cq), Error::NotDone)?;
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // A post writes the address and the handle of its descriptor into the previous one, which may
    // be in another region.
    test("via_queues::posts_are_linked", &["VIP_CONTROL_SEGMENT F01 F02"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let region = w.region(&b.nic, 4096, &open_memory(b.ptag))?;
            let (first, last) = (b.descriptor(0)?, b.descriptor(2)?);
            let middle = region.descriptor(128, 1)?;
            for descriptor in [&first, &middle, &last] {
                descriptor.receive(&[b.data(0, 8)])?;
            }
            b.post_recv(0)?;
            check_eq!((first.next(), first.next_handle()), (0, 0));
            b.nic.post_recv(b.vi, middle.address(), region.handle)?;
            check_eq!((first.next(), first.next_handle()), (middle.address(), region.handle.as_raw()));
            b.post_recv(2)?;
            check_eq!((middle.next(), middle.next_handle()), (last.address(), b.region.handle.as_raw()));
            check_eq!((last.next(), last.next_handle()), (0, 0));
            let bytes = region.bytes(128, 12);
            check_eq!(bytes[..8], last.address().to_le_bytes());
            check_eq!(bytes[8..], b.region.handle.as_raw().to_le_bytes());
            for descriptor in [&first, &middle, &last] {
                a.send(0, &[a.data(0, 8)], None)?;
                a.sent_well(0)?;
                check_eq!(b.nic.recv_wait(b.vi, LONG)?, descriptor.address());
                success(descriptor.status())?;
            }
            Ok(())
        })
    }),
    // There are two kinds of events, completions and errors: the descriptor shows its own error,
    // and an asynchronous error reports the loss of the connection.
    test("via_queues::errors_and_completions", &["via-11.2.2 B01"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let errors = w.errors(&b.nic)?;
            b.receive(0, &[b.data(0, 1)])?;
            a.send(0, &[a.data(0, 8)], None)?;
            // The descriptor shows the error, and an asynchronous error reports the loss of the
            // connection.
            failed(b.received(0)?, Status::LENGTH_ERROR)?;
            errors.expect(&b, ErrorCode::ConnLost)?;
            broken(w, &a)
        })
    }),
];
