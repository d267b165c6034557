//! The life of a descriptor (1.5.3, 5.1, 6.1, 6.2), for every kind of request on every level: what
//! is posted before there is a connection, who owns a descriptor until it is complete, and what its
//! completion shows.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::each::{Kind, named};
use super::levels::retire;
use super::world::*;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// All kinds of requests.
const KINDS: [Kind; 5] = [Kind::Send, Kind::SendImmediate, Kind::Write, Kind::WriteImmediate, Kind::Read];
/// The bytes of a control segment that a completion writes: of a request, and of a receive.
const OF_REQUEST: &[(usize, usize)] = &[(24, 32)];
const OF_RECEIVE: &[(usize, usize)] = &[(12, 16), (20, 32)];

/// The bytes of a descriptor but for those that a completion writes.
fn owned(side: &Side, number: usize, written: &[(usize, usize)]) -> Result<Vec<u8>, Failure> {
    let at = (side.descriptor(number)?.address() - side.region.address(0)) as usize;
    let mut bytes = side.region.bytes(at, descriptor_len(SEGMENTS));
    for &(from, to) in written {
        bytes[from..to].fill(0);
    }
    Ok(bytes)
}

/// Watches a descriptor until it is complete: its status is zero and its other bytes are as posted
/// up to then, and its queue does not return it before.
fn watch(w: &World<'_>, side: &Side, number: usize, receives: bool) -> Outcome {
    let written = if receives { OF_RECEIVE } else { OF_REQUEST };
    let (descriptor, posted) = (side.descriptor(number)?, owned(side, number, written)?);
    let mut changed = None;
    let mut taken = Err(Error::NotDone);
    w.until("the descriptor is taken off its queue", || {
        taken = if receives { side.nic.recv_done(side.vi) } else { side.nic.send_done(side.vi) };
        let status = descriptor.status();
        if owned(side, number, written).ok().as_ref() != Some(&posted)
            || !status.is_empty() && !descriptor.is_done()
            || taken.is_ok() && status.is_empty()
        {
            changed = Some(status);
        }
        taken.is_ok()
    })?;
    check_eq!(changed, None, "changed before it was complete");
    check_eq!(taken, Ok(descriptor.address()));
    // Its queue returns it once.
    let again = if receives { side.nic.recv_done(side.vi) } else { side.nic.send_done(side.vi) };
    check_eq!(again, Err(Error::NotDone));
    success(descriptor.status())
}

/// Takes the next entry of the completion queue, which must be of this receive queue. The
/// descriptor has its status by then, and stays on its queue until it is taken off.
fn receive_entry(side: &Side, cq: CqHandle, number: usize) -> Result<Status, Failure> {
    check_eq!(side.nic.cq_wait(cq, LONG)?, (side.vi, true));
    let descriptor = side.descriptor(number)?;
    check!(descriptor.is_done(), "the entry was there before the status");
    check_eq!(side.nic.recv_done(side.vi)?, descriptor.address());
    Ok(descriptor.status())
}

pub(crate) const TESTS: &[Test] = &[
    // Without a connection, before the first one or after one, requests of each kind complete in
    // error, and nothing of them reaches the peer. Receives wait: for the connection, and then for
    // a message that takes one, which an RDMA Write without immediate data does not.
    test("via_ended::before_the_connection", &["via-3.3 B03", "via-6.2 B02 B03"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.peer(level)?, level, NO_CQS)?);
                for messenger in [Kind::WriteImmediate, Kind::Send] {
                    a.write(0, &[7; 8]);
                    b.receive(0, &[b.data(1000, 8)])?;
                    for (number, kind) in KINDS.into_iter().enumerate() {
                        kind.format(&a.descriptor(number)?, &b, &[a.data(0, 8)])?;
                        a.post_send(number)?;
                        let status = a.sent(number)?;
                        failed(status, Status::DESC_FLUSHED_ERROR).map_err(named(level, kind))?;
                        check_eq!(operation(status), kind.operation());
                    }
                    refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    w.connect(&a, &b)?;
                    // The queue pair is in order, so what had left before is there now.
                    a.rdma_write(0, &b.remote(500), &[a.data(0, 8)], None)?;
                    a.sent_well(0)?;
                    w.until("the Write is there", || b.bytes(500, 8) == [7; 8])?;
                    if level.is_reliable() {
                        a.rdma_read(1, &b.remote(500), &[a.data(600, 8)])?;
                        a.sent_well(1)?;
                    }
                    refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    check_eq!(b.descriptor(0)?.status(), Status::empty());
                    b.write(500, &[0; 8]);
                    b.untouched()?;
                    messenger.format(&a.descriptor(2)?, &b, &[a.data(0, 8)])?;
                    a.post_send(2)?;
                    a.sent_well(2)?;
                    b.received_well(0)?;
                    a.disconnect()?;
                    b.disconnect()?;
                    b.write(0, &[0; DATA_LEN]);
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // The provider owns a descriptor until it is complete, here while its request is late: nothing
    // of it changes, and its queue does not return it; afterwards it stays on the queue until it is
    // taken off. So for requests and receives.
    test("via_ended::until_it_is_complete", &["via-6.1 B04", "via-1.5.3 S01"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                for kind in Kind::of(level) {
                    w.inject(&a, Injection::Delay, 1, 2_000_000)?;
                    kind.post(&a, &b, 0, &[a.data(0, 8)])?;
                    watch(w, &a, 0, false).map_err(named(level, kind))?;
                    if kind.takes_receive() {
                        w.done(&b.descriptor(0)?)?;
                        b.received_well(0)?;
                        w.inject(&a, Injection::Delay, 1, 2_000_000)?;
                        kind.post(&a, &b, 1, &[a.data(0, 8)])?;
                        watch(w, &b, 1, true).map_err(named(level, kind))?;
                        a.sent_well(1)?;
                    }
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // Each receive that is complete has a status and one entry of its completion queue, in the
    // order of the posts: the first one, which succeeds; the second one, which fails; and those
    // that are flushed behind it, on Unreliable Delivery by a disconnect.
    test(
        "via_ended::each_receive_has_an_entry",
        &["via-6.1 B05", "via-6.3.1 B03", "via-1.5.3 S01", "VipCQDone B02"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let peer = w.peer(level)?;
                    let cq = peer.create_cq(16)?;
                    let a = w.side(&w.a, level, NO_CQS)?;
                    let b = w.side(&peer, level, [CqHandle::NULL, cq])?;
                    for kind in Kind::of(level).filter(|kind| kind.takes_receive()) {
                        w.connect(&a, &b)?;
                        for number in 0..4 {
                            b.receive(number, &[b.data(0, 8)])?;
                            kind.format(&a.descriptor(number)?, &b, &[a.data(0, 8)])?;
                        }
                        a.post_send(0)?;
                        success(receive_entry(&b, cq, 0)?).map_err(named(level, kind))?;
                        w.inject(&b, Injection::Corrupt, 1, 0)?;
                        a.post_send(1)?;
                        let spoiled = receive_entry(&b, cq, 1)?;
                        failed(spoiled, Status::TRANSPORT_ERROR).map_err(named(level, kind))?;
                        if !level.is_reliable() {
                            refused(b.nic.cq_done(cq), Error::NotDone)?;
                            b.disconnect()?;
                        }
                        for number in 2..4 {
                            let flushed = receive_entry(&b, cq, number)?;
                            failed(flushed, Status::DESC_FLUSHED_ERROR).map_err(named(level, kind))?;
                        }
                        check_eq!(b.nic.cq_done(cq), Err(Error::NotDone), "{level:?} {kind:?}");
                        a.disconnect()?;
                        b.disconnect()?;
                        a.drain();
                    }
                    retire(&a)?;
                    retire(&b)?;
                    peer.destroy_cq(cq)?;
                }
                Ok(())
            })
        },
    ),
    // Immediate data arrives unchanged with Sends and RDMA Writes; the receive of a message without
    // says that it has none. An RDMA Read ignores it and takes no receive.
    test("via_ended::immediate_data", &["VIP_CONTROL_SEGMENT F06"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                a.fill(1);
                let receive = b.descriptor(0)?;
                for value in [0, 1, 0x8000_0001, u32::MAX] {
                    for writes in [false, true] {
                        b.receive(0, &[b.data(0, 8)])?;
                        receive.set_immediate(!value);
                        match writes {
                            false => a.send(0, &[a.data(0, 8)], Some(value))?,
                            true => a.rdma_write(0, &b.remote(0), &[a.data(0, 8)], Some(value))?,
                        }
                        a.sent_well(0)?;
                        b.received_well(0)?;
                        check!(receive.status().contains(Status::IMMEDIATE), "{level:?} {writes}");
                        check_eq!(receive.immediate(), value, "{level:?} {writes}");
                    }
                    b.receive(0, &[b.data(0, 8)])?;
                    a.send(0, &[a.data(0, 8)], None)?;
                    a.sent_well(0)?;
                    b.received_well(0)?;
                    check!(!receive.status().contains(Status::IMMEDIATE), "{level:?}");
                    if level.is_reliable() {
                        b.receive(0, &[b.data(0, 8)])?;
                        let read = a.descriptor(1)?;
                        read.rdma_read(&b.remote(100), &[a.data(200, 8)])?;
                        read.set_control(read.segments(), read.control() | Control::IMMEDIATE);
                        read.set_immediate(value);
                        a.post_send(1)?;
                        a.sent_well(1)?;
                        refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                        check_eq!(receive.status(), Status::empty());
                        a.send(0, &[], None)?;
                        a.sent_well(0)?;
                        b.received_well(0)?;
                    }
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
];
