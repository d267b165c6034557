//! The error bits of a descriptor's status (10.2): the causes of each bit, by level and by
//! operation.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{broken, exchange, retire};
use super::world::*;
use crate::{Failure, Outcome, Test, check_eq, test};

/// A connected pair on a level.
type Ends = (ReliabilityLevel, Side, Side);

/// The operations of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
}

const KINDS: [Kind; 4] = [Kind::Send, Kind::Write, Kind::WriteImmediate, Kind::Read];

/// Posts an operation of 8 bytes as descriptor 0. `to` is the target of RDMA.
#[track_caller]
fn post(side: &Side, kind: Kind, to: &AddressSegment) -> Outcome {
    let data = [side.data(0, 8)];
    match kind {
        Kind::Send => side.send(0, &data, None),
        Kind::Write => side.rdma_write(0, to, &data, None),
        Kind::WriteImmediate => side.rdma_write(0, to, &data, Some(1)),
        Kind::Read => side.rdma_read(0, to, &data),
    }
}

/// For each operation on each level: `prepare` injects a fault at the second end of a pair, the
/// first end posts the operation, and its status must be what `expected` returns. The pairs run
/// concurrently.
fn matrix(
    w: &World<'_>,
    kinds: &[Kind],
    prepare: impl Fn(&Side, &Side, Kind) -> Result<AddressSegment, Failure>,
    expected: impl Fn(ReliabilityLevel, Kind) -> Status,
) -> Outcome {
    let mut posted: Vec<(Ends, Kind)> = Vec::new();
    for level in LEVELS {
        for &kind in kinds {
            // Unreliable Delivery has no RDMA Read.
            if kind == Kind::Read && !level.is_reliable() {
                continue;
            }
            let (a, b) = w.pair(level)?;
            let to = prepare(&a, &b, kind)?;
            post(&a, kind, &to)?;
            posted.push(((level, a, b), kind));
        }
    }
    for ((level, a, b), kind) in posted {
        let status = a.sent(0)?;
        let bits = Status::from_bits_retain(status.bits() & Status::ERROR_MASK.bits());
        check_eq!(bits, expected(level, kind), "{level:?} {kind:?}");
        retire(&a)?;
        retire(&b)?;
    }
    Ok(())
}

/// The status that Reliable Reception shows for an error of the peer.
fn on_reception(level: ReliabilityLevel, error: Status) -> Status {
    if level == ReliabilityLevel::Reception { error } else { Status::empty() }
}

/// The name of a format error, and a function that makes it.
type Spoil = (&'static str, fn(&Side, &Descriptor<'_>) -> Outcome);

/// Each way to format a request badly.
const BAD_REQUESTS: &[Spoil] = &[
    ("a reserved field", |_, descriptor| {
        descriptor.set_reserved(1);
        Ok(())
    }),
    ("no such operation", |_, descriptor| {
        descriptor.set_control(1, Control::RDMA_WRITE | Control::RDMA_READ);
        Ok(())
    }),
    ("an RDMA Write without an address", |_, descriptor| {
        descriptor.set_control(0, Control::RDMA_WRITE);
        descriptor.set_length(0);
        Ok(())
    }),
    ("a reserved field of the address", |side, descriptor| {
        descriptor.rdma_write(&AddressSegment { reserved: 1, ..side.remote(0) }, &[], None)?;
        Ok(())
    }),
    ("more segments than there may be", |_, descriptor| {
        descriptor.set_control(254, Control::empty());
        Ok(())
    }),
    ("an RDMA Read", |side, descriptor| {
        descriptor.rdma_read(&side.remote(0), &[])?;
        Ok(())
    }),
];

/// Each way to format a receive badly.
const BAD_RECEIVES: &[Spoil] = &[
    ("a reserved field", |_, descriptor| {
        descriptor.set_reserved(1 << 31);
        Ok(())
    }),
    ("an RDMA Write", |_, descriptor| {
        descriptor.set_control(0, Control::RDMA_WRITE);
        Ok(())
    }),
    ("an RDMA Read", |_, descriptor| {
        descriptor.set_control(0, Control::RDMA_READ);
        Ok(())
    }),
    ("a reserved bit", |_, descriptor| {
        descriptor.set_control(0, Control::from_bits_retain(0x8000));
        Ok(())
    }),
    ("more segments than there may be", |_, descriptor| {
        descriptor.set_control(253, Control::empty());
        Ok(())
    }),
];

/// Checks that this data segment is a protection error of a Send, and of a Receive on Reliable
/// Delivery; and that an RDMA Read does not write data to it.
fn unusable(w: &World<'_>, segment: impl Fn(&Side) -> Result<DataSegment, Failure>, sends: bool) -> Outcome {
    if sends {
        let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
        a.send(0, &[segment(&a)?], None)?;
        failed(a.sent(0)?, Status::PROTECTION_ERROR)?;
        exchange(&a, &b)?;
        b.receive(0, &[segment(&b)?])?;
        a.send(0, &[a.data(0, 8)], None)?;
        a.sent_well(0)?;
        failed(b.received(0)?, Status::PROTECTION_ERROR)?;
        exchange(&a, &b)?;
        retire(&a)?;
        retire(&b)?;
    }
    let (a, b) = w.pair(ReliabilityLevel::Delivery)?;
    a.rdma_read(0, &b.remote(0), &[segment(&a)?])?;
    failed(a.sent(0)?, Status::PROTECTION_ERROR)?;
    broken(w, &a)?;
    retire(&a)?;
    retire(&b)
}

pub(crate) const TESTS: &[Test] = &[
    // Each format fault of a request or a receive is a format error and no other error, on each
    // level; so is each reserved bit. On Unreliable Delivery the connection survives.
    test("via_statuses::format_errors", &["VIP_STATUS VIP_STATUS_FORMAT_ERROR"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            let wrong = |what: &str, status: Status| {
                failed(status, Status::FORMAT_ERROR).map_err(|failure| Failure {
                    message: alloc::format!("{what}: {}", failure.message),
                    ..failure
                })
            };
            for (what, spoil) in BAD_REQUESTS {
                let descriptor = a.descriptor(0)?;
                descriptor.send(&[a.data(0, 8)], None)?;
                spoil(&a, &descriptor)?;
                a.post_send(0)?;
                wrong(what, a.sent(0)?)?;
            }
            for bit in 4..16 {
                let descriptor = a.descriptor(0)?;
                descriptor.send(&[], None)?;
                descriptor.set_control(0, Control::from_bits_retain(1 << bit));
                a.post_send(0)?;
                wrong("a reserved bit", a.sent(0)?)?;
            }
            for (what, spoil) in BAD_RECEIVES {
                let descriptor = b.descriptor(0)?;
                descriptor.receive(&[])?;
                spoil(&b, &descriptor)?;
                b.post_recv(0)?;
                a.send(0, &[], None)?;
                a.sent_well(0)?;
                wrong(what, b.received(0)?)?;
            }
            exchange(&a, &b)?;
            for level in RELIABLE {
                // The last one, an RDMA Read, is no fault on this level.
                for (what, spoil) in &BAD_REQUESTS[..BAD_REQUESTS.len() - 1] {
                    let (a, b) = w.pair(level)?;
                    let descriptor = a.descriptor(0)?;
                    descriptor.send(&[a.data(0, 8)], None)?;
                    spoil(&a, &descriptor)?;
                    a.post_send(0)?;
                    wrong(what, a.sent(0)?)?;
                    broken(w, &a)?;
                    retire(&a)?;
                    retire(&b)?;
                }
            }
            Ok(())
        })
    }),
    // A data segment with a wrong handle, address, bounds, tag or right is a protection error at
    // either end, and as the sink of an RDMA Read.
    test("via_statuses::protection_errors", &["VIP_STATUS VIP_STATUS_PROTECTION_ERROR"], |f| {
        world(f, |w| {
            let handle = |side: &Side| {
                let data = side.data(0, 8);
                Ok(DataSegment { handle: data.handle ^ 1, ..data })
            };
            unusable(w, handle, true)?;
            let before =
                |side: &Side| Ok(DataSegment { address: side.region.address(0) - 1, ..side.data(0, 8) });
            unusable(w, before, true)?;
            unusable(w, |side| Ok(side.data(DATA_LEN - 7, 8)), true)?;
            unusable(w, |side| Ok(DataSegment { address: u64::MAX - 3, ..side.data(0, 8) }), true)?;
            let of_another_tag = |side: &Side| {
                let tag = side.nic.create_ptag()?;
                let region = w.region(&side.nic, 4096, &open_memory(tag))?;
                Ok(region.segment(0, 8))
            };
            unusable(w, of_another_tag, true)?;
            // Constants can be sent, but not be written. The machine may keep them in memory that
            // devices cannot access.
            static CONSTANTS: [u8; 64] = [5; 64];
            if f.platform().translate(CONSTANTS.as_ptr().addr()).is_none() {
                return Ok(());
            }
            let constants = |side: &Side| {
                let memory = MemAttributes::new(side.ptag);
                let handle = side.nic.register_mem(Memory::Static(&CONSTANTS), 64, &memory)?;
                let address = CONSTANTS.as_ptr().addr() as u64;
                Ok(DataSegment { address, handle: handle.as_raw(), length: 8 })
            };
            unusable(w, constants, false)?;
            check_eq!(CONSTANTS, [5; 64]);
            Ok(())
        })
    }),
    // The data segments of a request exceed the maximum transfer size, or do not add up to its
    // length: a length error on each level.
    test("via_statuses::length_errors", &["VIP_STATUS VIP_STATUS_LENGTH_ERROR"], |f| {
        world(f, |w| {
            for level in LEVELS {
                for wrong in 0..3 {
                    let peer = w.peer(level)?;
                    let small = |ptag| ViAttributes { max_transfer_size: 1000, ..attributes(ptag, level) };
                    let a = w.side_with(&w.a, NO_CQS, small)?;
                    let b = w.side_with(&peer, NO_CQS, small)?;
                    w.connect(&a, &b)?;
                    b.receive(0, &[b.data(0, 4000)])?;
                    a.send(0, &[a.data(0, 500), a.data(0, 500)], None)?;
                    a.sent_well(0)?;
                    b.received_well(0)?;
                    let descriptor = a.descriptor(0)?;
                    descriptor
                        .send(&[a.data(0, 500), a.data(0, if wrong == 0 { 501 } else { 500 })], None)?;
                    match wrong {
                        1 => descriptor.set_length(999),
                        2 => descriptor.set_length(1001),
                        _ => {}
                    }
                    a.post_send(0)?;
                    failed(a.sent(0)?, Status::LENGTH_ERROR)?;
                    retire(&a)?;
                    retire(&b)?;
                }
            }
            Ok(())
        })
    }),
    // Descriptors that are posted when the connection ends are flushed, whether an error or a call
    // ended it. Their status names the operation of the descriptor.
    test("via_statuses::flushed", &["VIP_STATUS VIP_STATUS_DESC_FLUSHED_ERROR"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                for by_call in [false, true] {
                    let (a, b) = w.pair(level)?;
                    w.inject(&b, Injection::HoldReads, u32::MAX, 0)?;
                    a.receive(10, &[a.data(0, 8)])?;
                    a.rdma_read(0, &b.remote(0), &[a.data(0, 8)])?;
                    let descriptor = a.descriptor(1)?;
                    descriptor.send(&[], None)?;
                    descriptor.set_control(0, Control::QUEUE_FENCE);
                    a.post_send(1)?;
                    if by_call {
                        a.disconnect()?;
                    } else {
                        b.disconnect()?;
                        broken(w, &a)?;
                    }
                    let (read, send, receive) = (a.sent(0)?, a.sent(1)?, a.received(10)?);
                    for status in [read, send, receive] {
                        failed(status, Status::DESC_FLUSHED_ERROR)?;
                    }
                    check_eq!(operation(read), Status::OP_RDMA_READ);
                    check_eq!((operation(send), operation(receive)), (Status::empty(), Status::OP_RECEIVE));
                    retire(&a)?;
                    retire(&b)?;
                }
            }
            Ok(())
        })
    }),
    // The peer does not answer. On the send queue of Reliable Reception every descriptor shows a
    // transport error; on Reliable Delivery only an RDMA Read does, and on Unreliable Delivery
    // none.
    test("via_statuses::transport_errors_by_level", &["VIP_STATUS B01"], |f| {
        world(f, |w| {
            let silent = |_: &Side, b: &Side, _| {
                w.inject(b, Injection::StallResponder, u32::MAX, 0)?;
                b.receive(0, &[b.data(0, 8)])?;
                Ok(b.remote(0))
            };
            matrix(w, &KINDS, silent, |level, kind| match kind {
                Kind::Read => Status::TRANSPORT_ERROR,
                _ => on_reception(level, Status::TRANSPORT_ERROR),
            })
        })
    })
    .limit(120),
    // RDMA to memory that is not enabled for it: RDMA Reads show the error, and on Reliable
    // Reception Writes too. Sends do not.
    test("via_statuses::rdma_protection_errors_by_level", &["VIP_STATUS B02"], |f| {
        world(f, |w| {
            let closed = |_: &Side, b: &Side, _| {
                b.receive(0, &[b.data(0, 8)])?;
                Ok(w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?.remote(0))
            };
            matrix(w, &KINDS, closed, |level, kind| match kind {
                Kind::Send => Status::empty(),
                Kind::Read => Status::RDMA_PROT_ERROR,
                Kind::Write | Kind::WriteImmediate => on_reception(level, Status::RDMA_PROT_ERROR),
            })
        })
    }),
    // The peer's descriptor has a fault, or there is none. On Reliable Reception Sends and RDMA
    // Writes with immediate data show the error. No other request shows it.
    test(
        "via_statuses::remote_descriptor_errors_by_level",
        &["VIP_STATUS B03 VIP_STATUS_REMOTE_DESC_ERROR"],
        |f| {
            world(f, |w| {
                let takes = |kind| matches!(kind, Kind::Send | Kind::WriteImmediate);
                let expected = |level, kind| match takes(kind) {
                    true => on_reception(level, Status::REMOTE_DESC_ERROR),
                    false => Status::empty(),
                };
                matrix(w, &KINDS, |_, b, _| Ok(b.remote(0)), expected)?;
                let format = |_: &Side, b: &Side, _| {
                    let descriptor = b.descriptor(0)?;
                    descriptor.receive(&[b.data(0, 8)])?;
                    descriptor.set_reserved(1);
                    b.post_recv(0)?;
                    Ok(b.remote(0))
                };
                matrix(w, &KINDS, format, expected)?;
                let length = |_: &Side, b: &Side, _| {
                    b.receive(0, &[b.data(0, 7)])?;
                    Ok(b.remote(0))
                };
                matrix(w, &[Kind::Send, Kind::Write], length, expected)?;
                let protection = |_: &Side, b: &Side, _| {
                    let data = b.data(0, 8);
                    b.receive(0, &[DataSegment { handle: data.handle ^ 1, ..data }])?;
                    Ok(b.remote(0))
                };
                matrix(w, &[Kind::Send, Kind::Write], protection, expected)
            })
        },
    ),
];
