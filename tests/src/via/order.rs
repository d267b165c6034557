//! Order of processing (6.3): queues are first in, first out; which requests may pass which, and
//! what RDMA checks before data moves. What `sequence` shows is late in time.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::each::{Kind, named};
use super::levels::{broken, retire, shows};
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

/// An RDMA request to a target with one fault: no byte moves. An RDMA Read shows it, and on
/// Reliable Reception a Write; with immediate data the receive that it took does. The reliable
/// levels end the connection, on Unreliable Delivery it lives.
fn refused_by_target(w: &World<'_>, level: ReliabilityLevel, what: Spoiled, kind: Kind) -> Outcome {
    let peer = w.peer(level)?;
    let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&peer, level, NO_CQS)?);
    let reads = kind == Kind::Read;
    let others_of_level = !reads && level.is_reliable();
    if what == Spoiled::Interface {
        let mut closed = attributes(b.ptag, level);
        (closed.enable_rdma_write, closed.enable_rdma_read) = (reads, others_of_level);
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
    b.receive(0, &[])?;
    let data = [a.data(0, 64)];
    match kind {
        Kind::Read => a.rdma_read(0, &to, &data)?,
        Kind::WriteImmediate => a.rdma_write(0, &to, &data, Some(1))?,
        _ => a.rdma_write(0, &to, &data, None)?,
    }
    match reads {
        true => failed(a.sent(0)?, Status::RDMA_PROT_ERROR)?,
        false => shows(level, a.sent(0)?, Status::RDMA_PROT_ERROR)?,
    }
    if kind == Kind::WriteImmediate {
        failed(b.received(0)?, Status::PROTECTION_ERROR)?;
        b.receive(0, &[])?;
    }
    if level.is_reliable() {
        broken(w, &b)?;
    } else {
        // A message that arrives behind it.
        a.send(1, &[], None)?;
        a.sent_well(1)?;
        b.received_well(0)?;
    }
    a.untouched()?;
    check!(target.bytes(0, 4096) == before, "bytes moved");
    retire(&a)?;
    retire(&b)?;
    b.nic.deregister_mem(target.address(0), target.handle)?;
    b.nic.destroy_ptag(tag)?;
    // The tag of the region is the interface's, unless the fault is in it.
    match b.nic.destroy_ptag(b.ptag) {
        Ok(()) | Err(Error::InvalidParameter) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Sends and RDMA Writes complete in the order of their posts, and so do receives. Both queues
    // return them in that order.
    test("via_order::queues_are_first_in_first_out", &["via-6.3.1 B02", "via-5.3 B01"], |f| {
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
    }),
    // The RDMA Read fails. On Reliable Reception later requests have no effect; on Reliable
    // Delivery they may have one.
    test("via_order::what_follows_a_read_that_fails", &["via-6.3.1 B11 B13 B14 B16"], |f| {
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
    }),
    // Sends and RDMA Writes do not pass one another, in any combination, even if the first one is
    // late.
    test("via_order::sends_and_writes_do_not_pass", &["via-6.3.1 B08"], |f| {
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
    test("via_order::reads_do_not_pass_what_is_before_them", &["via-6.3.1 B09"], |f| {
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
    // Before data moves, the target checks the handle, the address, the bounds, the tag, and the
    // rights of the region and of the virtual interface: on each level, for RDMA Writes with and
    // without immediate data and for RDMA Reads.
    test(
        "via_order::the_target_checks_rdma",
        &["via-6.3.2 B01", "VIP_STATUS VIP_STATUS_RDMA_PROT_ERROR"],
        |f| {
            world(f, |w| {
                let faults = [
                    Spoiled::Handle,
                    Spoiled::Address,
                    Spoiled::Bounds,
                    Spoiled::Tag,
                    Spoiled::Region,
                    Spoiled::Interface,
                ];
                for level in LEVELS {
                    for kind in Kind::of(level) {
                        if !matches!(kind, Kind::Write | Kind::WriteImmediate | Kind::Read) {
                            continue;
                        }
                        for what in faults {
                            let checked = refused_by_target(w, level, what, kind).map_err(named(level, kind));
                            checked.map_err(|failure| {
                                let message = alloc::format!("{what:?}: {}", failure.message);
                                Failure { message, ..failure }
                            })?;
                        }
                    }
                }
                Ok(())
            })
        },
    ),
    // Immediate data arrives with the data of its descriptor: when the receive is complete, both
    // have arrived.
    test("via_order::immediate_data_comes_with_the_data", &["via-6.3 B01"], |f| {
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
