//! Descriptors: operations, reserved fields, segments, lengths, addresses (6.1, 10.2 to 10.4).

use core::result::Result;

use vipl::*;

use super::levels::{broken, retire};
use super::nics::most;
use super::world::*;
use crate::fixture::{PAGE, pattern};
use crate::thread::at_once;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const UNRELIABLE: ReliabilityLevel = ReliabilityLevel::Unreliable;

/// Fails if a status has a reserved bit, an undefined operation, an operation of the other queue,
/// or immediate data that was not sent.
#[track_caller]
fn sound(status: Status, receive: bool) -> Outcome {
    let bits = status.bits();
    check_eq!((bits & 0xfe00, bits & 0xfff0_0000), (0, 0), "reserved bits");
    let operation = operation(status).bits() >> 16;
    check!(operation <= 4 && (operation & 1 == 1) == receive, "{status:?}");
    check!(receive || !status.contains(Status::IMMEDIATE), "{status:?}");
    check!(status.contains(Status::DONE), "{status:?}");
    Ok(())
}

/// A Send whose descriptor `change` has changed ends with these errors, and the next Send arrives.
#[track_caller]
fn bad_send(a: &Side, b: &Side, errors: Status, change: impl FnOnce(&Descriptor<'_>) -> Outcome) -> Outcome {
    a.descriptor(0)?.send(&[a.data(0, 8)], None)?;
    change(&a.descriptor(0)?)?;
    a.post_send(0)?;
    let status = a.sent(0)?;
    failed(status, errors)?;
    sound(status, false)?;
    b.receive(0, &[b.data(0, 8)])?;
    a.send(0, &[a.data(8, 8)], None)?;
    a.sent_well(0)?;
    b.received_well(0)?;
    check_eq!(b.bytes(0, 8), a.bytes(8, 8));
    Ok(())
}

/// A Receive whose descriptor `change` has changed ends with these errors when a message arrives,
/// and no data is written.
#[track_caller]
fn bad_receive(
    a: &Side,
    b: &Side,
    errors: Status,
    change: impl FnOnce(&Descriptor<'_>) -> Outcome,
) -> Outcome {
    b.write(100, &[0; 8]);
    b.descriptor(0)?.receive(&[b.data(100, 8)])?;
    change(&b.descriptor(0)?)?;
    b.post_recv(0)?;
    a.send(0, &[a.data(0, 8)], None)?;
    let status = b.received(0)?;
    failed(status, errors)?;
    sound(status, true)?;
    a.sent_well(0)?;
    check_eq!(b.bytes(100, 8), [0; 8]);
    Ok(())
}

/// Sends `sent` bytes, in segments of these lengths, into a receive of one segment.
#[track_caller]
fn transfer(a: &Side, b: &Side, lengths: &[usize], room: usize) -> Result<Status, Failure> {
    let mut at = 0;
    let mut segments = alloc::vec::Vec::new();
    for &length in lengths {
        segments.push(a.data(at, length));
        at += length;
    }
    b.receive(0, &[b.data(0, room)])?;
    a.send(0, &segments, None)?;
    a.sent_well(0)?;
    check_eq!(a.descriptor(0)?.length() as usize, at);
    let status = b.received(0)?;
    if is_success(status) {
        check_eq!((b.descriptor(0)?.length() as usize, b.bytes(0, at)), (at, a.bytes(0, at)));
    }
    Ok(status)
}

/// Deregisters the memory of a Send as soon as its first bytes have arrived. False if all of it had
/// left, or if it could not be stopped.
fn partly_sent(w: &World<'_>) -> Result<bool, Failure> {
    const LEN: usize = 8 << 20;
    let large = |ptag| ViAttributes {
        max_transfer_size: LEN as u64,
        ..attributes(ptag, ReliabilityLevel::Reception)
    };
    let (a, b) = (w.side_with(&w.a, NO_CQS, large)?, w.side_with(&w.b, NO_CQS, large)?);
    w.connect(&a, &b)?;
    let from = w.region(&a.nic, LEN, &open_memory(a.ptag))?;
    let to = w.region(&b.nic, LEN, &open_memory(b.ptag))?;
    from.write(0, &[1]);
    b.receive(0, &[to.segment(0, LEN)])?;
    a.send(0, &[from.segment(0, LEN)], None)?;
    check!(at_once(w.f.platform(), || to.bytes(0, 1) == [1]));
    a.nic.deregister_mem(from.address(0), from.handle)?;
    let status = a.sent(0)?;
    if !is_success(status) {
        let partial = Status::PROTECTION_ERROR | Status::PARTIAL_ERROR;
        sound(status, false)?;
        if status.contains(Status::PARTIAL_ERROR) {
            failed(status, partial)?;
            broken(w, &a)?;
        }
    }
    b.nic.deregister_mem(to.address(0), to.handle)?;
    retire(&a)?;
    retire(&b)?;
    Ok(status.contains(Status::PARTIAL_ERROR))
}

pub(crate) const TESTS: &[Test] = &[
    // Each operation, with its code in the status of both ends; the immediate data if it was sent;
    // and a status without reserved bits.
    test(
        "via_descriptors::operations",
        &["VIP_CONTROL A01 B01 B02 F01", "VIP_STATUS F01 F11-F20", "via-2.3.2 A02 B08", "via-6.4.1 B02"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    let (a, b) = w.pair(level)?;
                    a.fill(8);
                    let ends = |of: &Side, number, wanted: Status, receive| -> Result<Status, Failure> {
                        let status = if receive { of.received(number)? } else { of.sent(number)? };
                        success(status)?;
                        sound(status, receive)?;
                        check_eq!(status.bits() & 0xffff, 1);
                        check_eq!(operation(status), wanted);
                        Ok(status)
                    };
                    for immediate in [None, Some(0x8765_4321)] {
                        // The Receive uses a descriptor that is formatted as a Send.
                        b.descriptor(0)?.send(&[b.data(0, 8)], (immediate.is_none()).then_some(7))?;
                        b.post_recv(0)?;
                        a.send(0, &[a.data(0, 8)], immediate)?;
                        let status = ends(&b, 0, Status::OP_RECEIVE, true)?;
                        let receive = b.descriptor(0)?;
                        check_eq!(status.contains(Status::IMMEDIATE), immediate.is_some());
                        check_eq!(receive.control().contains(Control::IMMEDIATE), immediate.is_some());
                        if let Some(immediate) = immediate {
                            check_eq!(receive.immediate(), immediate);
                        }
                        check_eq!((receive.length(), b.bytes(0, 8)), (8, a.bytes(0, 8)));
                        ends(&a, 0, Status::empty(), false)?;
                    }
                    b.receive(0, &[b.data(0, 8)])?;
                    a.rdma_write(0, &b.remote(50), &[a.data(0, 9)], None)?;
                    ends(&a, 0, Status::OP_RDMA_WRITE, false)?;
                    a.rdma_write(1, &b.remote(60), &[a.data(0, 9)], Some(5))?;
                    let status = ends(&b, 0, Status::OP_REMOTE_RDMA_WRITE, true)?;
                    check!(status.contains(Status::IMMEDIATE));
                    check_eq!(b.descriptor(0)?.immediate(), 5);
                    check_eq!((b.bytes(50, 9), b.bytes(60, 9)), (a.bytes(0, 9), a.bytes(0, 9)));
                    ends(&a, 1, Status::OP_RDMA_WRITE, false)?;
                    if level != UNRELIABLE {
                        b.write(70, b"read");
                        let read = a.descriptor(2)?;
                        read.rdma_read(&b.remote(70), &[a.data(100, 4)])?;
                        read.set_control(read.segments(), Control::RDMA_READ | Control::IMMEDIATE);
                        read.set_immediate(9);
                        b.receive(1, &[])?;
                        a.post_send(2)?;
                        ends(&a, 2, Status::OP_RDMA_READ, false)?;
                        check_eq!(a.bytes(100, 4), b"read");
                        refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // Reserved fields and bits, and operations that do not exist, that the receive queue does not
    // take, or that the level lacks.
    test(
        "via_descriptors::format",
        &["VIP_CONTROL F02-F04 F07", "VIP_CONTROL_SEGMENT B04 F05", "VIP_ADDRESS_SEGMENT F03", "via-6.2 B01"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(UNRELIABLE)?;
                a.fill(2);
                let format = Status::FORMAT_ERROR;
                for bit in 4..16 {
                    let reserved = Control::from_bits_retain(1 << bit);
                    bad_send(&a, &b, format, |descriptor| {
                        descriptor.set_control(1, reserved);
                        Ok(())
                    })?;
                    bad_receive(&a, &b, format, |descriptor| {
                        descriptor.set_control(1, reserved);
                        Ok(())
                    })?;
                }
                for value in [1, 1 << 31] {
                    bad_send(&a, &b, format, |descriptor| {
                        descriptor.set_reserved(value);
                        Ok(())
                    })?;
                    bad_receive(&a, &b, format, |descriptor| {
                        descriptor.set_reserved(value);
                        Ok(())
                    })?;
                    bad_send(&a, &b, format, |descriptor| {
                        let to = AddressSegment { reserved: value, ..b.remote(0) };
                        Ok(descriptor.rdma_write(&to, &[a.data(0, 8)], None)?)
                    })?;
                }
                let third = Control::RDMA_WRITE | Control::RDMA_READ;
                for (operation, sends) in
                    [(third, false), (Control::RDMA_READ, false), (Control::RDMA_WRITE, true)]
                {
                    let formed = |descriptor: &Descriptor<'_>, of: &Side, to: &Side| -> Outcome {
                        descriptor.rdma_write(&to.remote(200), &[of.data(100, 8)], None)?;
                        descriptor.set_control(2, operation);
                        Ok(())
                    };
                    bad_receive(&a, &b, format, |descriptor| formed(descriptor, &b, &a))?;
                    if !sends {
                        // This level has no RDMA Read.
                        bad_send(&a, &b, format, |descriptor| formed(descriptor, &a, &b))?;
                    }
                }
                check_eq!(a.bytes(200, 8), pattern(2, 208)[200..]);
                // RDMA without its address segment.
                bad_send(&a, &b, format, |descriptor| {
                    descriptor.set_control(0, Control::RDMA_WRITE);
                    descriptor.set_length(0);
                    Ok(())
                })
            })
        },
    ),
    // The length of a transfer is the sum of its segments, from zero to the maximum of the virtual
    // interface. A longer one is an error and is not split; so is a wrong sum. A Receive uses the
    // length of its segments.
    test(
        "via_descriptors::lengths",
        &[
            "via-6.1.1 A02 B01-B03 L03",
            "via-8 A02",
            "VIP_CONTROL_SEGMENT B01 B02",
            "VIP_DATA_SEGMENT F03 L02",
        ],
        |f| {
            world(f, |w| {
                const MOST: usize = 5000;
                let sized =
                    |ptag| ViAttributes { max_transfer_size: MOST as u64, ..attributes(ptag, UNRELIABLE) };
                let peer = w.peer(UNRELIABLE)?;
                let (a, b) = (w.side_with(&w.a, NO_CQS, sized)?, w.side_with(&peer, NO_CQS, sized)?);
                w.connect(&a, &b)?;
                check!(w.a.query_nic()?.max_transfer_size > MOST as u64);
                a.fill(1);
                let lists: [&[usize]; 9] = [
                    &[],
                    &[0],
                    &[1],
                    &[0, 0, 0],
                    &[10, 0, 10],
                    &[50],
                    &[MOST - 1],
                    &[MOST],
                    &[1000, 0, 1, 2000, 1999],
                ];
                for list in lists {
                    success(transfer(&a, &b, list, MOST)?)?;
                }
                success(transfer(&a, &b, &[50], 100)?)?;
                let length = Status::LENGTH_ERROR;
                for list in [&[MOST + 1][..], &[MOST, 1], &[2500, 2501]] {
                    bad_send(&a, &b, length, |descriptor| {
                        let all: alloc::vec::Vec<_> = list.iter().map(|&length| a.data(0, length)).collect();
                        Ok(descriptor.send(&all, None)?)
                    })?;
                }
                for wrong in [0, 7, 9, u32::MAX] {
                    bad_send(&a, &b, length, |descriptor| {
                        descriptor.set_length(wrong);
                        Ok(())
                    })?;
                }
                b.descriptor(0)?.receive(&[b.data(0, 20)])?;
                b.descriptor(0)?.set_length(0xdead_beef);
                b.post_recv(0)?;
                a.send(0, &[a.data(0, 13)], None)?;
                a.sent_well(0)?;
                b.received_well(0)?;
                check_eq!(b.descriptor(0)?.length(), 13);
                refused(b.nic.recv_done(b.vi), Error::NotDone)
            })
        },
    ),
    // A message that is larger than its Receive, or for which there is no Receive, is an error of
    // that transfer. The Receive shows the error, with a length of 0; a reliable connection breaks.
    test(
        "via_descriptors::overruns",
        &["via-2.3.1 B03 B04", "via-2.3.2 B07", "via-6.4.1 A01 B06 S01"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    for case in 0..3 {
                        let (a, b) = w.pair(level)?;
                        a.fill(3);
                        match case {
                            0 => {
                                b.receive(0, &[b.data(0, 20), b.data(40, 30)])?;
                                a.send(0, &[a.data(0, 100)], None)?;
                                let status = b.received(0)?;
                                failed(status, Status::LENGTH_ERROR)?;
                                sound(status, true)?;
                                check_eq!(b.descriptor(0)?.length(), 0);
                                check_eq!(
                                    (b.bytes(20, 20), b.bytes(70, 50)),
                                    (alloc::vec![0; 20], alloc::vec![0; 50])
                                );
                            }
                            1 => a.send(0, &[a.data(0, 100)], None)?,
                            _ => a.rdma_write(0, &b.remote(0), &[a.data(0, 100)], Some(1))?,
                        }
                        let status = a.sent(0)?;
                        match level {
                            ReliabilityLevel::Reception => failed(status, Status::REMOTE_DESC_ERROR)?,
                            _ => success(status)?,
                        }
                        if level == UNRELIABLE {
                            w.arrived(&a, &b)?;
                            b.receive(1, &[b.data(0, 100)])?;
                            a.send(1, &[a.data(50, 60)], None)?;
                            a.sent_well(1)?;
                            b.received_well(1)?;
                            check_eq!(b.bytes(0, 60), a.bytes(50, 60));
                            check_eq!((a.state()?, b.state()?), (ViState::Connected, ViState::Connected));
                        } else {
                            broken(w, &a)?;
                            broken(w, &b)?;
                        }
                        retire(&a)?;
                        retire(&b)?;
                    }
                }
                Ok(())
            })
        },
    ),
    // As many segments as the NIC's attributes say are accepted; one more is a format error, on
    // both queues.
    test(
        "via_descriptors::segments",
        &["via-6.1.1 L01 L02", "VIP_DATA_SEGMENT L01", "VIP_NIC_ATTRIBUTES F13"],
        |f| {
            world(f, |w| {
                let most = w.a.query_nic()?.max_segments_per_desc as usize;
                check!(most >= 252, "{most}");
                let (a, b) = w.pair(UNRELIABLE)?;
                a.fill(4);
                let of = |side: &Side| w.region(&side.nic, 4 * PAGE, &open_memory(side.ptag));
                let (from, to) = (of(&a)?, of(&b)?);
                let bytes = |side: &Side, count: usize| -> alloc::vec::Vec<DataSegment> {
                    (0..count).map(|at| side.data(2 * at, 1)).collect()
                };
                let room = most + 1;
                for (sent, received) in [(most, most), (most + 1, most), (most, most + 1)] {
                    let (send, receive) = (from.descriptor(0, room)?, to.descriptor(0, room)?);
                    receive.receive(&bytes(&b, received))?;
                    b.nic.post_recv(b.vi, receive.address(), to.handle)?;
                    send.send(&bytes(&a, sent), None)?;
                    a.nic.post_send(a.vi, send.address(), from.handle)?;
                    check_eq!(a.nic.send_wait(a.vi, LONG)?, send.address());
                    if sent > most {
                        failed(send.status(), Status::FORMAT_ERROR)?;
                        a.send(0, &[], None)?;
                        a.sent_well(0)?;
                    } else {
                        success(send.status())?;
                    }
                    check_eq!(b.nic.recv_wait(b.vi, LONG)?, receive.address());
                    if received > most {
                        failed(receive.status(), Status::FORMAT_ERROR)?;
                    } else {
                        success(receive.status())?;
                    }
                    if sent == received {
                        check_eq!(receive.length() as usize, most);
                        for at in 0..most {
                            check_eq!(b.bytes(2 * at, 2), [a.bytes(2 * at, 1)[0], 0]);
                        }
                    }
                }
                Ok(())
            })
        },
    ),
    // Where a descriptor may be: on a 64-byte boundary, wholly in one registered region, with the
    // region's handle. Elsewhere the descriptor is never processed: the call returns success, and
    // an asynchronous error reports it.
    test(
        "via_descriptors::places",
        &["via-3.2.1 B01", "via-6.1 A01 B01-B03 L01", "VipPostSend B02", "via-11.2 A01"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(UNRELIABLE)?;
                let errors = w.errors(&a.nic)?;
                let region = w.region(&a.nic, 2 * PAGE, &open_memory(a.ptag))?;
                // A descriptor across two pages.
                let across = region.descriptor(PAGE - 64, 6)?;
                across.send(&[a.data(0, 3), a.data(3, 3), a.data(6, 3)], None)?;
                b.receive(0, &[b.data(0, 9)])?;
                a.fill(7);
                a.nic.post_send(a.vi, across.address(), region.handle)?;
                check_eq!(a.nic.send_wait(a.vi, LONG)?, across.address());
                success(across.status())?;
                b.received_well(0)?;
                check_eq!(b.bytes(0, 9), a.bytes(0, 9));
                // The segments extend beyond the region's end, but the control segment does not, so
                // its status can show the error.
                let buffer = f.buffer(PAGE)?;
                let short =
                    a.nic.register_mem(Memory::buffer(&buffer), PAGE as u64 - 16, &open_memory(a.ptag))?;
                let last = Descriptor::at(&buffer, PAGE - 64, 2)?;
                last.send(&[a.data(0, 3), a.data(3, 3)], None)?;
                b.receive(0, &[b.data(100, 9)])?;
                a.nic.post_send(a.vi, last.address(), short)?;
                check_eq!(a.nic.send_wait(a.vi, LONG)?, last.address());
                failed(last.status(), Status::PROTECTION_ERROR)?;
                // The control segment is not in the region.
                let handle = a.region.handle;
                let at = a.descriptor(1)?.address();
                a.descriptor(1)?.send(&[a.data(0, 9)], None)?;
                let places = [
                    (at + 32, handle),
                    (at + 1, handle),
                    (at, region.handle),
                    (at, MemHandle::NULL),
                    (at, MemHandle::from_raw(handle.as_raw() ^ 0x1_0000)),
                    (a.region.address(0) + (1 << 40), handle),
                    (a.region.address(0) - 64, handle),
                    (0, handle),
                    (u64::MAX - 63, handle),
                ];
                for (address, handle) in places {
                    a.nic.post_send(a.vi, address, handle)?;
                    let error = errors.expect(&a, ErrorCode::PostDesc)?;
                    check_eq!(error.descriptor, address);
                    refused(a.nic.send_done(a.vi), Error::NotDone)?;
                }
                check_eq!(a.descriptor(1)?.status(), Status::empty());
                // Nothing was sent.
                refused(b.nic.recv_done(b.vi), Error::NotDone)?;
                a.send(0, &[a.data(0, 9)], None)?;
                a.sent_well(0)?;
                b.received_well(0)?;
                check_eq!(b.bytes(100, 9), a.bytes(0, 9));
                Ok(())
            })
        },
    ),
    // The memory of a Send is deregistered when a part of the message has left.
    test("via_descriptors::partly_sent", &["VIP_STATUS VIP_STATUS_PARTIAL_ERROR"], |f| {
        world(f, |w| {
            // The whole message may have left before the deregistration.
            for _ in 0..100 {
                if partly_sent(w)? {
                    return Ok(());
                }
            }
            Err(Failure::new("each message was gone in time"))
        })
    }),
    // A queue holds as many descriptors as the NIC's attributes say; one more is an asynchronous
    // error. The longest discriminator is accepted, and a longer one is refused.
    test("via_descriptors::as_many_as_the_nic_says", &["VIP_NIC_ATTRIBUTES F07 F12"], |f| {
        world(f, |w| {
            let known = w.a.query_nic()?;
            let longest = alloc::vec![b'd'; known.max_discriminator_len.into()];
            let server = w.b.address(&longest)?;
            refused(w.b.address(&[&longest[..], b"d"].concat()), Error::InvalidParameter)?;
            let (a, b) = (w.side(&w.a, UNRELIABLE, NO_CQS)?, w.side(&w.b, UNRELIABLE, NO_CQS)?);
            let asked = super::connect::ask(w, &a, &longest, &server, LONG)?;
            let request = w.b.connect_wait(&server, None, LONG)?;
            check_eq!(request.remote_addr.discriminator(), longest);
            w.b.connect_accept(request.conn, b.vi)?;
            asked.join()??;
            let errors = w.errors(&w.a)?;
            a.descriptor(0)?.receive(&[])?;
            for _ in 0..known.max_descriptors_per_queue {
                a.post_recv(0)?;
            }
            check_eq!(errors.count(), 0);
            a.post_recv(0)?;
            errors.expect(&a, ErrorCode::ViOverrun)?;
            a.disconnect()?;
            let taken = most(|| a.nic.recv_done(a.vi).map_err(|_| Error::ErrorResource))?;
            check_eq!(taken.len(), known.max_descriptors_per_queue as usize);
            Ok(())
        })
    }),
];
