//! Completion queues (3.4; pages VipCreateCQ, VipDestroyCQ, VipResizeCQ, VipCQDone).

use core::result::Result;

use vipl::*;

use super::levels::{exchange, retire};
use super::nics::most;
use super::world::*;
use crate::thread::{Signal, Thread};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// Waits for the next entry, which must be this one.
#[track_caller]
fn entry(nic: &Nic, cq: CqHandle, vi: ViHandle, receive: bool) -> Outcome {
    check_eq!(nic.cq_wait(cq, LONG)?, (vi, receive));
    Ok(())
}

/// Sends messages of no bytes from `a`; waits until all have arrived, without the completion queue.
#[track_caller]
fn messages(w: &World<'_>, a: &Side, b: &Side, count: usize) -> Outcome {
    for number in 0..count {
        b.receive(number, &[])?;
        a.send(number, &[], None)?;
        w.done(&a.descriptor(number)?)?;
        w.done(&b.descriptor(number)?)?;
    }
    Ok(())
}

/// Takes all entries, each of which must be of this receive queue. Returns their number.
#[track_caller]
fn entries(nic: &Nic, cq: CqHandle, of: &Side) -> Result<usize, Failure> {
    let mut count = 0;
    loop {
        match nic.cq_done(cq) {
            Ok(found) => check_eq!(found, (of.vi, true)),
            Err(Error::NotDone) => return Ok(count),
            Err(error) => return Err(error.into()),
        }
        count += 1;
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Two virtual interfaces share a completion queue; on another one only one work queue of the
    // interface is tied. Each entry names the virtual interface and the work queue. When an entry
    // is there, the descriptor is complete, and stays on its work queue until the consumer takes it
    // there.
    test(
        "via_cqs::entries_name_the_work_queue",
        &[
            "via-1.5.3 F01",
            "via-2.4 B01 B02",
            "via-3.4 B01-B03",
            "via-6 B01 B02",
            "via-6.4.1 B05",
            "via-11.2.1.3 A01",
            "via-11.2.2 A01 A06",
            "via-11.3 B13",
            "VipCQDone B01 B02 F01 VIP_INVALID_PARAMETER VIP_NOT_DONE",
            "VipCreateVi B02 B03",
        ],
        |f| {
            world(f, |w| {
                let (nic, null) = (&w.a, CqHandle::NULL);
                let (shared, sends) = (nic.create_cq(16)?, nic.create_cq(16)?);
                let first = w.side(nic, LEVEL, [sends, shared])?;
                let second = w.side(nic, LEVEL, [null, shared])?;
                let (one, two) = (w.side(&w.b, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?);
                w.connect(&first, &one)?;
                w.connect(&second, &two)?;
                for cq in [shared, sends] {
                    refused(nic.cq_done(cq), Error::NotDone)?;
                }
                for (near, far) in [(&second, &two), (&first, &one), (&second, &two)] {
                    near.receive(0, &[near.data(0, 8)])?;
                    far.send(0, &[far.data(0, 8)], None)?;
                    far.sent_well(0)?;
                    entry(nic, shared, near.vi, true)?;
                    success(near.descriptor(0)?.status())?;
                    refused(nic.cq_done(shared), Error::NotDone)?;
                    refused(nic.recv_wait(near.vi, 0), Error::ErrorResource)?;
                    check_eq!(nic.recv_done(near.vi)?, near.descriptor(0)?.address());
                    far.receive(1, &[])?;
                    near.send(1, &[], None)?;
                    far.received_well(1)?;
                    if near.vi == first.vi {
                        entry(nic, sends, near.vi, false)?;
                        refused(nic.send_wait(near.vi, 0), Error::ErrorResource)?;
                        check_eq!(nic.send_done(near.vi)?, near.descriptor(1)?.address());
                    } else {
                        // Its send queue is tied to no completion queue.
                        near.sent_well(1)?;
                    }
                    for cq in [shared, sends] {
                        refused(nic.cq_done(cq), Error::NotDone)?;
                    }
                }
                for cq in [null, CqHandle::from_raw(shared.as_raw() ^ 1 << 40)] {
                    refused(nic.cq_done(cq), Error::InvalidParameter)?;
                }
                Ok(())
            })
        },
    ),
    // A work queue can be tied only to an existing completion queue of its own NIC.
    test("via_cqs::of_another_nic", &["VipCreateVi VIP_INVALID_PARAMETER", "via-3.1 B03"], |f| {
        world(f, |w| {
            let (ptag, null) = (w.a.create_ptag()?, CqHandle::NULL);
            let (foreign, gone) = (w.b.create_cq(4)?, w.a.create_cq(4)?);
            w.a.destroy_cq(gone)?;
            let all = attributes(ptag, LEVEL);
            for cq in [foreign, gone, CqHandle::from_raw(7)] {
                refused(w.a.create_vi(&all, cq, null), Error::InvalidParameter)?;
                refused(w.a.create_vi(&all, null, cq), Error::InvalidParameter)?;
            }
            check_eq!(w.a.opening_counts().vis, 0);
            refused(w.a.destroy_cq(foreign), Error::InvalidParameter)?;
            // Memory of one NIC's opening cannot be used with the other one either.
            let near = w.side(&w.a, ReliabilityLevel::Unreliable, NO_CQS)?;
            let far = w.side(&w.b, ReliabilityLevel::Unreliable, NO_CQS)?;
            let errors = w.errors(&w.a)?;
            w.connect(&near, &far)?;
            far.descriptor(0)?.send(&[], None)?;
            w.a.post_send(near.vi, far.descriptor(0)?.address(), far.region.handle)?;
            errors.expect(&near, ErrorCode::PostDesc)?;
            check_eq!(far.descriptor(0)?.status(), Status::empty());
            w.a.destroy_ptag(ptag)?;
            Ok(())
        })
    }),
    // A thread takes the descriptor off its work queue before the entry is taken: the entry stays,
    // and its work queue is empty.
    test("via_cqs::an_entry_without_a_descriptor", &["VipCQDone B04"], |f| {
        world(f, |w| {
            let cq = w.b.create_cq(4)?;
            let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, [CqHandle::NULL, cq])?);
            w.connect(&a, &b)?;
            messages(w, &a, &b, 1)?;
            check_eq!(b.nic.recv_done(b.vi)?, b.descriptor(0)?.address());
            entry(&b.nic, cq, b.vi, true)?;
            refused(b.nic.recv_done(b.vi), Error::NotDone)
        })
    }),
    // A completion queue keeps as many entries as it was created for. Further entries are lost, but
    // the descriptors complete, and the queue still works. A resize changes the number, up or down,
    // and keeps the queued entries, or is refused.
    test(
        "via_cqs::capacity",
        &["VipCreateCQ B01", "VipResizeCQ A01 B01 VIP_INVALID_PARAMETER", "via-3.4 L02", "via-6.4.1 O01"],
        |f| {
            world(f, |w| {
                let cq = w.b.create_cq(4)?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, [CqHandle::NULL, cq])?);
                w.connect(&a, &b)?;
                let count = |round| {
                    messages(w, &a, &b, round)?;
                    let found = entries(&b.nic, cq, &b)?;
                    check_eq!(a.drain() + b.drain(), 2 * round);
                    Ok::<usize, Failure>(found)
                };
                check_eq!(count(4)?, 4);
                let kept = count(20)?;
                check!((4..20).contains(&kept), "{kept} of 20 entries");
                check_eq!(count(4)?, 4);
                b.nic.resize_cq(cq, 32)?;
                check_eq!(count(32)?, 32);
                // The entries that are queued are compared with the number that is asked for.
                for queued in [8, 7, 6, 4, 2] {
                    messages(w, &a, &b, queued)?;
                    for fewer in 1..queued as u32 {
                        refused(b.nic.resize_cq(cq, fewer), Error::ErrorResource)?;
                    }
                    b.nic.resize_cq(cq, queued as u32)?;
                    check_eq!(entries(&b.nic, cq, &b)?, queued);
                    check_eq!(a.drain() + b.drain(), 2 * queued);
                    b.nic.resize_cq(cq, 32)?;
                }
                b.nic.resize_cq(cq, 2)?;
                check_eq!(count(2)?, 2);
                refused(b.nic.resize_cq(cq, 0), Error::InvalidParameter)?;
                refused(b.nic.resize_cq(CqHandle::NULL, 8), Error::InvalidParameter)?;
                exchange_alone(&a, &b)
            })
        },
    ),
    // Messages arrive while the queue is resized: all complete, and each entry comes once.
    test("via_cqs::resized_under_load", &["via-3.4 B05 O01", "via-11.3 B14"], |f| {
        world(f, |w| {
            const COUNT: u32 = 256;
            let cq = w.b.create_cq(128)?;
            let a = w.side(&w.a, LEVEL, NO_CQS)?;
            let b = w.side(&w.b, LEVEL, [CqHandle::NULL, cq])?;
            w.connect(&a, &b)?;
            for number in 0..DESCRIPTORS {
                b.receive(number, &[])?;
            }
            let free = Signal::new(f.platform());
            let sender = {
                let (nic, vi, region, free) = (a.nic.clone(), a.vi, a.region.clone(), free.clone());
                Thread::spawn(f.platform(), "sender", move || {
                    for number in 0..COUNT {
                        // A receive is posted for each message.
                        free.wait((number + 1).saturating_sub(DESCRIPTORS as u32))?;
                        let descriptor = region.descriptor(0, 0)?;
                        descriptor.send(&[], Some(number))?;
                        nic.post_send(vi, descriptor.address(), region.handle)?;
                        nic.send_wait(vi, LONG)?;
                        success(descriptor.status())?;
                    }
                    Ok::<(), Failure>(())
                })?
            };
            for number in 0..COUNT {
                entry(&b.nic, cq, b.vi, true)?;
                let at = number as usize % DESCRIPTORS;
                let receive = b.descriptor(at)?;
                check_eq!(b.nic.recv_done(b.vi)?, receive.address());
                success(receive.status())?;
                check_eq!(receive.immediate(), number);
                b.receive(at, &[])?;
                free.raise();
                if number % 8 == 0 {
                    b.nic.resize_cq(cq, [512, 128, 1024, 64][number as usize / 8 % 4])?;
                }
            }
            sender.join()??;
            refused(b.nic.cq_done(cq), Error::NotDone)
        })
    }),
    // A completion queue to which a work queue is tied cannot be destroyed, and still works.
    test(
        "via_cqs::destroy",
        &["via-3.4 B06", "VipDestroyCQ B01 VIP_ERROR_RESOURCE VIP_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let cq = w.b.create_cq(4)?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, [cq, cq])?);
                w.connect(&a, &b)?;
                refused(b.nic.destroy_cq(cq), Error::ErrorResource)?;
                messages(w, &a, &b, 1)?;
                entry(&b.nic, cq, b.vi, true)?;
                b.drain();
                b.disconnect()?;
                refused(b.nic.destroy_cq(cq), Error::ErrorResource)?;
                b.nic.destroy_vi(b.vi)?;
                b.nic.destroy_cq(cq)?;
                for cq in [cq, CqHandle::NULL] {
                    refused(b.nic.destroy_cq(cq), Error::InvalidParameter)?;
                    refused(b.nic.cq_done(cq), Error::InvalidParameter)?;
                    refused(b.nic.resize_cq(cq, 4), Error::InvalidParameter)?;
                }
                check_eq!(b.nic.opening_counts().cqs, 0);
                Ok(())
            })
        },
    ),
    // Completion queues of the largest size are created until there is no memory for another one.
    // The failed creation leaves nothing behind. When one is destroyed, there is room again.
    test("via_cqs::without_memory", &["via-3.4 B04", "VIP_NIC_ATTRIBUTES F15"], |f| {
        world(f, |w| {
            let nic = &w.a;
            let dma = || (f.setup.usage)().dma;
            let (before, largest) = (dma(), nic.query_nic()?.max_cq_entries);
            let cqs = most(|| nic.create_cq(largest))?;
            let (full, count) = (dma(), nic.opening_counts().cqs);
            let again = nic.create_cq(largest);
            let after = (dma(), nic.opening_counts().cqs);
            let [first, rest @ ..] = &cqs[..] else { return Err(Failure::new("not even one queue")) };
            nic.destroy_cq(*first)?;
            let room = nic.create_cq(largest);
            for cq in rest.iter().chain(&room) {
                nic.destroy_cq(*cq)?;
            }
            check_eq!((again, after), (Err(Error::ErrorResource), (full, count)));
            check!(room.is_ok() && count == cqs.len(), "{room:?}");
            check_eq!((nic.opening_counts().cqs, dma()), (0, before));
            let (a, b) = w.pair(LEVEL)?;
            exchange(&a, &b)?;
            retire(&a)
        })
    }),
];

/// A message whose receive queue is tied to a completion queue: it arrives as usual.
fn exchange_alone(a: &Side, b: &Side) -> Outcome {
    b.receive(0, &[b.data(0, 4)])?;
    a.write(0, b"good");
    a.send(0, &[a.data(0, 4)], None)?;
    a.sent_well(0)?;
    Ok(())
}
