//! Order of processing (6.3): queues are first in, first out; which requests may pass which,
//! fences, and what RDMA checks before data moves.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{broken, retire};
use super::world::*;
use crate::{Failure, Outcome, Test, check, check_eq, test};

/// Waits until all of these descriptors are complete, and checks all the time that none completes
/// before an earlier one.
fn complete_in_order(w: &World<'_>, descriptors: &[Descriptor<'_>]) -> Outcome {
    let mut early = None;
    w.until("all are complete", || {
        // Read from the last one on: a descriptor that is complete stays complete.
        let mut later = false;
        let mut all = true;
        for (number, descriptor) in descriptors.iter().enumerate().rev() {
            let done = descriptor.is_done();
            if later && !done {
                early = Some(number);
            }
            later |= done;
            all &= done;
        }
        all
    })?;
    check_eq!(early, None, "completed behind a later one");
    Ok(())
}

/// The descriptors with these numbers.
fn descriptors(side: &Side, numbers: core::ops::Range<usize>) -> Result<Vec<Descriptor<'_>>, Failure> {
    numbers.map(|number| side.descriptor(number)).collect()
}

/// Posts a request with a queue fence.
#[track_caller]
fn post_fenced(side: &Side, number: usize) -> Outcome {
    let descriptor = side.descriptor(number)?;
    descriptor.set_control(descriptor.segments(), descriptor.control() | Control::QUEUE_FENCE);
    side.post_send(number)
}

/// The fault that a test of protection injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoiled {
    Handle,
    Address,
    Bounds,
    Tag,
    Region,
    Interface,
}

/// An RDMA request to a target with one fault: a protection error, and no byte moves.
fn refused_by_target(w: &World<'_>, what: Spoiled, reads: bool) -> Outcome {
    let level = ReliabilityLevel::Reception;
    let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.b, level, NO_CQS)?);
    if what == Spoiled::Interface {
        let mut closed = attributes(b.ptag, level);
        (closed.enable_rdma_write, closed.enable_rdma_read) = (reads, !reads);
        b.nic.set_vi_attributes(b.vi, &closed)?;
    }
    w.connect(&a, &b)?;
    let (tag, mut open) = (b.nic.create_ptag()?, open_memory(b.ptag));
    match what {
        Spoiled::Tag => open.ptag = tag,
        Spoiled::Region => (open.enable_rdma_write, open.enable_rdma_read) = (reads, !reads),
        _ => {}
    }
    let target = w.region(&b.nic, 4096, &open)?;
    target.fill(7);
    let before = target.bytes(0, 4096);
    let mut to = target.remote(0);
    match what {
        Spoiled::Handle => to.handle ^= 1,
        Spoiled::Address => to.address -= 1,
        Spoiled::Bounds => to.address += 4096 - 63,
        _ => {}
    }
    match reads {
        true => a.rdma_read(0, &to, &[a.data(0, 64)])?,
        false => a.rdma_write(0, &to, &[a.data(0, 64)], None)?,
    }
    failed(a.sent(0)?, Status::RDMA_PROT_ERROR)?;
    broken(w, &b)?;
    a.untouched()?;
    check!(target.bytes(0, 4096) == before);
    retire(&a)?;
    retire(&b)
}

pub(crate) const TESTS: &[Test] = &[
    // Sends and RDMA Writes complete in the order of their posts, and so do receives. Both queues
    // return them in that order.
    test(
        "via_order::queues_are_first_in_first_out",
        &["via-6.3.1.B02", "via-6.3.1.B03", "via-6.3.1.B05", "via-5.3.B01"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    for number in 0..16 {
                        b.receive(number, &[b.data(64 * number, 64)])?;
                    }
                    a.fill(9);
                    for number in 0..32 {
                        let data = [a.data(64 * number, 64)];
                        match number % 2 {
                            0 => a.send(number, &data, None)?,
                            _ => a.rdma_write(number, &b.remote(4096 + 64 * number), &data, None)?,
                        }
                    }
                    complete_in_order(w, &descriptors(&a, 0..32)?)?;
                    complete_in_order(w, &descriptors(&b, 0..16)?)?;
                    for number in 0..32 {
                        a.sent_well(number)?;
                    }
                    for number in 0..16 {
                        b.received_well(number)?;
                        check_eq!(b.bytes(64 * number, 64), a.bytes(128 * number, 64));
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // RDMA Reads with late answers complete in the order of their posts.
    test("via_order::reads_do_not_pass_reads", &["via-6.3.1.B06"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                b.fill(5);
                w.inject(&b, Injection::HoldReads, 2, 0)?;
                for number in 0..6 {
                    a.rdma_read(number, &b.remote(1000 * number), &[a.data(1000 * number, 900)])?;
                }
                complete_in_order(w, &descriptors(&a, 0..6)?)?;
                for number in 0..6 {
                    a.sent_well(number)?;
                    check!(a.bytes(1000 * number, 900) == b.bytes(1000 * number, 900));
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // A Send may or may not pass an RDMA Read that waits for its answer; the queue returns the Read
    // first. On Reliable Reception the peer gets the Send, and a later Write, only when the Read is
    // complete.
    test(
        "via_order::what_passes_a_held_read",
        &[
            "via-6.3.1.B04",
            "via-6.3.1.B07",
            "via-6.3.1.B10",
            "via-6.3.1.B12",
            "via-6.3.1.B15",
            "via-6.3.1.O01",
        ],
        |f| {
            world(f, |w| {
                for level in RELIABLE {
                    let (a, b) = w.pair(level)?;
                    b.receive(0, &[b.data(0, 8)])?;
                    b.write(4096, &[1; 8]);
                    a.write(0, &[2; 8]);
                    w.inject(&b, Injection::HoldReads, 2, 0)?;
                    a.rdma_read(0, &b.remote(4096), &[a.data(100, 8)])?;
                    a.rdma_write(1, &b.remote(5000), &[a.data(0, 8)], None)?;
                    a.send(2, &[a.data(0, 8)], None)?;
                    let (read, receive) = (a.descriptor(0)?, b.descriptor(0)?);
                    let mut passed = false;
                    w.until("the Write and the Send are there", || {
                        let seen = b.bytes(5000, 1) == [2] || receive.is_done();
                        passed |= seen && !read.is_done();
                        seen && receive.is_done()
                    })?;
                    check!(!passed || level == ReliabilityLevel::Delivery, "before the Read was complete");
                    for number in 0..3 {
                        a.sent_well(number)?;
                    }
                    b.received_well(0)?;
                    check_eq!((a.bytes(100, 8), b.bytes(5000, 8)), ([1; 8].to_vec(), [2; 8].to_vec()));
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // The RDMA Read fails. On Reliable Reception later requests have no effect; on Reliable
    // Delivery they may have one.
    test(
        "via_order::what_follows_a_read_that_fails",
        &["via-6.3.1.B11", "via-6.3.1.B13", "via-6.3.1.B14", "via-6.3.1.B16"],
        |f| {
            world(f, |w| {
                for level in RELIABLE {
                    for writes in [false, true] {
                        let (a, b) = w.pair(level)?;
                        let closed = w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?;
                        b.receive(0, &[b.data(0, 8)])?;
                        a.write(0, &[2; 8]);
                        a.rdma_read(0, &closed.remote(0), &[a.data(100, 8)])?;
                        match writes {
                            true => a.rdma_write(1, &b.remote(100), &[a.data(0, 8)], None)?,
                            false => a.send(1, &[a.data(0, 8)], None)?,
                        }
                        failed(a.sent(0)?, Status::RDMA_PROT_ERROR)?;
                        let (second, received) = (a.sent(1)?, b.received(0)?);
                        broken(w, &b)?;
                        if level == ReliabilityLevel::Reception {
                            failed(second, Status::DESC_FLUSHED_ERROR)?;
                            failed(received, Status::DESC_FLUSHED_ERROR)?;
                            b.untouched()?;
                        }
                        check_eq!(a.bytes(100, 8), [0; 8]);
                        retire(&a)?;
                        retire(&b)?;
                    }
                }
                Ok(())
            })
        },
    ),
    // Sends and RDMA Writes do not pass one another, in any combination, even if the first one is
    // late.
    test("via_order::sends_and_writes_do_not_pass", &["via-6.3.1.B08"], |f| {
        world(f, |w| {
            for level in LEVELS {
                for pairing in 0..4 {
                    let (a, b) = w.pair(level)?;
                    let kinds = [pairing & 1 != 0, pairing & 2 != 0];
                    w.inject(&a, Injection::Delay, 1, 2_000_000)?;
                    a.write(0, &[1; 8]);
                    a.write(8, &[2; 8]);
                    for (number, writes) in kinds.into_iter().enumerate() {
                        b.receive(number, &[b.data(64 * number, 8)])?;
                        let data = [a.data(8 * number, 8)];
                        match writes {
                            true => {
                                a.rdma_write(number, &b.remote(64 * number), &data, Some(number as u32))?
                            }
                            false => a.send(number, &data, Some(number as u32))?,
                        }
                    }
                    let mut passed = false;
                    w.until("both are there", || {
                        let second = b.bytes(64, 1) == [2];
                        passed |= second && b.bytes(0, 1) != [1];
                        second
                    })?;
                    check!(!passed, "the second one was there first");
                    complete_in_order(w, &descriptors(&a, 0..2)?)?;
                    for number in 0..2 {
                        a.sent_well(number)?;
                        b.received_well(number)?;
                        check_eq!(b.descriptor(number)?.immediate(), number as u32);
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
            }
            Ok(())
        })
    }),
    // An RDMA Read returns the data of earlier Sends and Writes.
    test("via_order::reads_do_not_pass_what_is_before_them", &["via-6.3.1.B09"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                w.inject(&a, Injection::Delay, 1, 2_000_000)?;
                w.inject(&b, Injection::StallResponder, 1, 0)?;
                b.receive(0, &[b.data(0, 8)])?;
                a.write(0, &[7; 16]);
                a.send(0, &[a.data(0, 8)], None)?;
                a.rdma_write(1, &b.remote(8), &[a.data(8, 8)], None)?;
                a.rdma_read(2, &b.remote(0), &[a.data(100, 16)])?;
                for number in 0..3 {
                    a.sent_well(number)?;
                }
                check_eq!(a.bytes(100, 16), [7; 16]);
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // A request with a fence begins when all earlier ones are complete: here an RDMA Read whose
    // answer is delayed, into the memory that the fenced Send reads.
    test("via_order::fences", &["via-6.3.1.2.B01", "via-6.3.1.2.A01", "VIP_CONTROL.F06"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                b.receive(0, &[b.data(0, 8)])?;
                b.write(4096, &[9; 8]);
                w.inject(&b, Injection::HoldReads, 2, 0)?;
                a.rdma_write(0, &b.remote(5000), &[a.data(500, 8)], None)?;
                a.rdma_read(1, &b.remote(4096), &[a.data(0, 8)])?;
                a.descriptor(2)?.send(&[a.data(0, 8)], None)?;
                post_fenced(&a, 2)?;
                let receive = b.descriptor(0)?;
                w.done(&receive)?;
                check!(a.descriptor(0)?.is_done() && a.descriptor(1)?.is_done(), "before the fence");
                for number in 0..3 {
                    a.sent_well(number)?;
                }
                b.received_well(0)?;
                check_eq!(b.bytes(0, 8), [9; 8], "what the Read brought");
                retire(&a)?;
                retire(&b)?;
            }
            // On Unreliable Delivery a fence delays no request for ever.
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            b.receive(0, &[])?;
            a.rdma_write(0, &b.remote(0), &[a.data(0, 8)], None)?;
            a.descriptor(1)?.send(&[], None)?;
            post_fenced(&a, 1)?;
            a.sent_well(0)?;
            a.sent_well(1)?;
            b.received_well(0)
        })
    }),
    // Before data moves, the target checks the handle, the address, the bounds, the tag, and the
    // rights of the region and of the virtual interface.
    test(
        "via_order::the_target_checks_rdma",
        &["via-6.3.2.B01", "VIP_STATUS.VIP_STATUS_RDMA_PROT_ERROR"],
        |f| {
            world(f, |w| {
                for what in [
                    Spoiled::Handle,
                    Spoiled::Address,
                    Spoiled::Bounds,
                    Spoiled::Tag,
                    Spoiled::Region,
                    Spoiled::Interface,
                ] {
                    for reads in [false, true] {
                        let checked = refused_by_target(w, what, reads);
                        let named = |failure: Failure| {
                            let message = alloc::format!("{what:?}, reads {reads}: {}", failure.message);
                            Failure { message, ..failure }
                        };
                        checked.map_err(named)?;
                    }
                }
                Ok(())
            })
        },
    ),
    // Immediate data arrives with the data of its descriptor: when the receive is complete, both
    // have arrived.
    test("via_order::immediate_data_comes_with_the_data", &["via-6.3.B01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                a.fill(4);
                let receive = b.descriptor(0)?;
                for writes in [false, true] {
                    b.receive(0, &[b.data(0, 4000)])?;
                    match writes {
                        true => a.rdma_write(0, &b.remote(0), &[a.data(100, 4000)], Some(0x1111_2222))?,
                        false => a.send(0, &[a.data(0, 4000)], Some(0x3333_4444))?,
                    }
                    let status = w.done(&receive)?;
                    success(status)?;
                    check!(status.contains(Status::IMMEDIATE), "{status:?}");
                    let (immediate, from) = if writes { (0x1111_2222, 100) } else { (0x3333_4444, 0) };
                    check_eq!(receive.immediate(), immediate);
                    check!(b.bytes(0, 4000) == a.bytes(from, 4000));
                    a.sent_well(0)?;
                    b.received_well(0)?;
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
];
