//! What comes before what (2.5, 6.3.1, 7.3), for every kind of request on every level: completions
//! and effects of requests of which the first one is late, requests behind an RDMA Read that waits
//! for its answer, fences, and requests behind one that gets lost.
//!
//! The pairs of a test are late at the same time, so that it takes as long as one of them.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::each::{Kind, named};
use super::levels::{broken, retire, shows};
use super::world::*;
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, test};

/// Why a machine without packets cannot fail a test of what is under way at once.
const ONE_AT_A_TIME: &str = "without packets a request begins when the one before is done";

/// Connected pairs, one for each of these kinds.
fn pairs(
    w: &World<'_>,
    level: ReliabilityLevel,
    kinds: impl Iterator<Item = Kind>,
) -> Result<Vec<(Side, Side, Kind)>, Failure> {
    let mut pairs = Vec::new();
    for kind in kinds {
        let (a, b) = w.pair(level)?;
        pairs.push((a, b, kind));
    }
    Ok(pairs)
}

/// Retires both ends of each pair.
fn all_retire(pairs: &[(Side, Side, Kind)]) -> Outcome {
    for (a, b, _) in pairs {
        retire(a)?;
        retire(b)?;
    }
    Ok(())
}

/// The kinds that move data to the peer.
fn sends_and_writes(level: ReliabilityLevel) -> impl Iterator<Item = Kind> {
    Kind::of(level).filter(|kind| *kind != Kind::Read)
}

/// The first request of `a` is late, for each pair of kinds. The second one completes after it,
/// takes its receive after it, and overwrites its data.
fn late_first(w: &World<'_>, level: ReliabilityLevel) -> Outcome {
    let kinds = || sends_and_writes(level);
    let firsts: Vec<Kind> = kinds().flat_map(|first| kinds().map(move |_| first)).collect();
    let pairs = pairs(w, level, kinds().flat_map(|_| kinds()))?;
    for (&first, (a, b, second)) in firsts.iter().zip(&pairs) {
        w.inject(a, Injection::Delay, 1, 5_000_000)?;
        a.write(0, &[1; 8]);
        a.write(8, &[2; 8]);
        first.post(a, b, 0, &[a.data(0, 8)])?;
        second.post(a, b, 1, &[a.data(8, 8)])?;
    }
    let mut early = None;
    w.until("all are complete", || {
        let mut all = true;
        for (first, (a, b, second)) in firsts.iter().zip(&pairs) {
            let both = first.takes_receive() && second.takes_receive();
            for (side, seen) in [(a, true), (b, both)] {
                // The second one is read first: a descriptor that is complete stays complete.
                let [later, earlier] = [1, 0].map(|at| side.descriptor(at).is_ok_and(|d| d.is_done()));
                if seen && later && !earlier {
                    early = Some((*first, *second));
                }
                all &= !seen || later && earlier;
            }
        }
        all
    })?;
    check_eq!(early, None, "{level:?}: the second one was complete first");
    for (&first, (a, b, second)) in firsts.iter().zip(&pairs) {
        for (number, kind) in [first, *second].into_iter().enumerate() {
            a.sent_well(number)?;
            if kind.takes_receive() {
                b.received_well(number)?;
            }
        }
        w.until("the second one's data is there", || b.bytes(0, 8) == [2; 8])?;
    }
    all_retire(&pairs)
}

/// A request behind an RDMA Read whose answer gets lost several times. The queue returns the Read
/// first; on Reliable Reception the peer sees nothing of the request before the Read is complete.
fn behind_a_held_read(w: &World<'_>, level: ReliabilityLevel) -> Outcome {
    let pairs = pairs(w, level, sends_and_writes(level))?;
    for (a, b, kind) in &pairs {
        b.write(4096, &[1; 8]);
        a.write(0, &[2; 8]);
        // The peer carries the Read out, so that it can carry out what is behind it.
        w.inject(a, Injection::DropResponses, 4, 0)?;
        a.rdma_read(0, &b.remote(4096), &[a.data(100, 8)])?;
        kind.post(a, b, 1, &[a.data(0, 8)])?;
    }
    let mut taken: Vec<Vec<u64>> = pairs.iter().map(|_| Vec::new()).collect();
    let mut passed = None;
    w.until("all are taken off their queues", || {
        let mut all = true;
        for ((a, b, kind), taken) in pairs.iter().zip(&mut taken) {
            let done = |side: &Side, number| side.descriptor(number).is_ok_and(|d| d.is_done());
            // What the peer sees, first: a Read that is complete stays complete.
            let seen = b.bytes(0, 1) == [2] || kind.takes_receive() && done(b, 1);
            if seen && !done(a, 0) {
                passed = Some(*kind);
            }
            taken.extend(a.nic.send_done(a.vi));
            all &= taken.len() == 2 && seen;
        }
        all
    })?;
    check!(passed.is_none() || level == ReliabilityLevel::Delivery, "{passed:?} before the Read was done");
    for ((a, b, kind), taken) in pairs.iter().zip(taken) {
        check_eq!(taken, [a.descriptor(0)?.address(), a.descriptor(1)?.address()], "{kind:?}");
        success(a.descriptor(0)?.status())?;
        success(a.descriptor(1)?.status())?;
        if kind.takes_receive() {
            b.received_well(1)?;
        }
        check_eq!((a.bytes(100, 8), b.bytes(0, 8)), ([1; 8].to_vec(), [2; 8].to_vec()));
    }
    all_retire(&pairs)
}

/// A request with a fence behind a Write and an RDMA Read that waits for its answer. The request
/// sends what the Read brings.
fn behind_a_fence(w: &World<'_>, level: ReliabilityLevel) -> Outcome {
    let pairs = pairs(w, level, sends_and_writes(level))?;
    for (a, b, kind) in &pairs {
        b.write(4096, &[9; 8]);
        w.inject(b, Injection::HoldReads, 2, 0)?;
        a.rdma_write(0, &b.remote(5000), &[a.data(500, 8)], None)?;
        a.rdma_read(1, &b.remote(4096), &[a.data(0, 8)])?;
        if kind.takes_receive() {
            b.receive(2, &[b.data(0, 8)])?;
        }
        let fenced = a.descriptor(2)?;
        kind.format(&fenced, b, &[a.data(0, 8)])?;
        fenced.set_control(fenced.segments(), fenced.control() | Control::QUEUE_FENCE);
        a.post_send(2)?;
    }
    let mut passed = None;
    w.until("all are complete", || {
        let mut all = true;
        for (a, b, kind) in &pairs {
            let done = |side: &Side, number| side.descriptor(number).is_ok_and(|d| d.is_done());
            let complete = done(a, 2);
            let seen = complete || kind.takes_receive() && done(b, 2);
            if seen && !(done(a, 0) && done(a, 1)) {
                passed = Some(*kind);
            }
            all &= complete;
        }
        all
    })?;
    check_eq!(passed, None, "it did not wait for the fence");
    for (a, b, kind) in &pairs {
        for number in 0..3 {
            a.sent_well(number)?;
        }
        if kind.takes_receive() {
            b.received_well(2)?;
        }
        // On Reliable Delivery a Write is complete before it is there.
        w.until("the data that the Read brought", || b.bytes(0, 8) == [9; 8]).map_err(named(level, *kind))?;
    }
    all_retire(&pairs)
}

/// A request whose peer gives no answer, and two behind it.
fn behind_a_lost_one(w: &World<'_>, level: ReliabilityLevel) -> Result<Vec<(Side, Side, Kind)>, Failure> {
    let pairs = pairs(w, level, Kind::of(level))?;
    for (a, b, kind) in &pairs {
        w.inject(b, Injection::StallResponder, u32::MAX, 0)?;
        a.write(0, &[3; 8]);
        for number in 0..3 {
            kind.post(a, b, number, &[a.data(0, 8)])?;
        }
    }
    Ok(pairs)
}

pub(crate) const TESTS: &[Test] = &[
    // Sends and RDMA Writes complete in the order of their posts, also if the first one is late,
    // and so do receives; what the second one writes is not overwritten by the first one.
    test(
        "via_sequence::completions_keep_the_order_of_the_posts",
        &["via-2.5 B06", "via-2.5.1 O02", "via-6.3.1 B03 B05"],
        |f| {
            world(f, |w| {
                for level in LEVELS {
                    late_first(w, level)?;
                }
                Ok(())
            })
        },
    ),
    // Receives complete in the order of the messages, whichever virtual interface they are for.
    test("via_sequence::receives_complete_as_messages_arrive", &["via-11.2.2 A02"], |f| {
        world(f, |w| {
            let level = ReliabilityLevel::Reception;
            let cq = w.b.create_cq(16)?;
            let mut near = Vec::new();
            let mut far = Vec::new();
            for _ in 0..2 {
                let (a, b) = (w.side(&w.a, level, NO_CQS)?, w.side(&w.b, level, [CqHandle::NULL, cq])?);
                w.connect(&a, &b)?;
                near.push(a);
                far.push(b);
            }
            let order = [0, 1, 0, 0, 1, 1, 0];
            for (number, at) in order.into_iter().enumerate() {
                far[at].receive(number, &[])?;
            }
            for (number, at) in order.into_iter().enumerate() {
                // On Reliable Reception a Send that is complete has arrived.
                near[at].send(number, &[], None)?;
                near[at].sent_well(number)?;
            }
            for (number, at) in order.into_iter().enumerate() {
                check_eq!(w.b.cq_wait(cq, LONG)?, (far[at].vi, true), "message {number}");
                check_eq!(w.b.recv_done(far[at].vi)?, far[at].descriptor(number)?.address());
            }
            Ok(())
        })
    }),
    // A request may or may not pass an RDMA Read that waits for its answer, but not on Reliable
    // Reception; the queue returns the Read first.
    test("via_sequence::what_passes_a_held_read", &["via-6.3.1 B04 B07 B10 B12 B15 O01"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                behind_a_held_read(w, level)?;
            }
            if f.setup.packets { Ok(()) } else { not_shown(ONE_AT_A_TIME) }
        })
    }),
    // RDMA Reads complete in the order of their posts: the first one waits for its answer, and the
    // third one may not be carried out.
    test("via_sequence::reads_do_not_pass_reads", &["via-6.3.1 B06"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                let closed = w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?;
                b.fill(5);
                w.inject(&b, Injection::HoldReads, 2, 0)?;
                for number in 0..4 {
                    let from = if number == 2 { closed.remote(0) } else { b.remote(1000 * number) };
                    a.rdma_read(number, &from, &[a.data(1000 * number, 60)])?;
                }
                let mut early = false;
                w.until("all are complete", || {
                    let done = |number| a.descriptor(number).is_ok_and(|d| d.is_done());
                    let [last, third, second, first] = [3, 2, 1, 0].map(done);
                    early |= last && !third || third && !second || second && !first;
                    last && third && second && first
                })?;
                check!(!early, "{level:?}: complete before an earlier one");
                a.sent_well(0)?;
                a.sent_well(1)?;
                failed(a.sent(2)?, Status::RDMA_PROT_ERROR)?;
                failed(a.sent(3)?, Status::DESC_FLUSHED_ERROR)?;
                for number in 0..4 {
                    let came = a.bytes(1000 * number, 60) == b.bytes(1000 * number, 60);
                    check_eq!(came, number < 2, "{level:?}: Read {number}");
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // On Reliable Reception each request sees the effect of all earlier ones and of no later one:
    // RDMA Reads between Writes to the same bytes, of which the first one waits for its answer.
    test("via_sequence::reception_is_in_strict_order", &["via-2.5.3 B04"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(ReliabilityLevel::Reception)?;
            w.inject(&b, Injection::HoldReads, 2, 0)?;
            b.receive(0, &[b.data(8, 8)])?;
            for number in 0..8 {
                a.write(8 * number, &[number as u8 + 1; 8]);
            }
            for number in 0..8 {
                match number % 2 {
                    0 => a.rdma_write(number, &b.remote(0), &[a.data(8 * number, 8)], None)?,
                    _ => a.rdma_read(number, &b.remote(0), &[a.data(1000 + 8 * number, 8)])?,
                }
            }
            a.send(8, &[a.data(0, 8)], None)?;
            for number in 0..9 {
                a.sent_well(number)?;
            }
            b.received_well(0)?;
            for number in (1..8).step_by(2) {
                check_eq!(a.bytes(1000 + 8 * number, 8), [number as u8; 8], "Read {number}");
            }
            if f.setup.packets { Ok(()) } else { not_shown(ONE_AT_A_TIME) }
        })
    }),
    // A request with a fence begins when all earlier ones are complete, here an RDMA Read that
    // waits for its answer; so for each kind of request.
    test("via_sequence::fences", &["via-6.3.1.2 A01 B01", "VIP_CONTROL F06"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                behind_a_fence(w, level)?;
            }
            // On Unreliable Delivery a fence delays no request for ever.
            let (a, b) = w.pair(ReliabilityLevel::Unreliable)?;
            a.rdma_write(0, &b.remote(0), &[a.data(0, 8)], None)?;
            for (number, kind) in sends_and_writes(ReliabilityLevel::Unreliable).enumerate() {
                if kind.takes_receive() {
                    b.receive(number, &[b.data(0, 8)])?;
                }
                let fenced = a.descriptor(number + 1)?;
                kind.format(&fenced, &b, &[a.data(0, 8)])?;
                fenced.set_control(fenced.segments(), fenced.control() | Control::QUEUE_FENCE);
                a.post_send(number + 1)?;
            }
            for number in 0..5 {
                a.sent_well(number)?;
            }
            if f.setup.packets { Ok(()) } else { not_shown(ONE_AT_A_TIME) }
        })
    }),
    // A request gets lost, and the peer is given up. On Reliable Reception that request shows it,
    // and none behind it succeeds or has an effect. On Reliable Delivery more of them may have
    // succeeded, since they complete when they have left; an RDMA Read never does. The state is
    // Error in the end.
    test("via_sequence::what_follows_a_lost_request", &["via-2.5.2 B10", "via-7.3 L01"], |f| {
        world(f, |w| {
            let (delivery, reception) = (ReliabilityLevel::Delivery, ReliabilityLevel::Reception);
            let levels =
                [(delivery, behind_a_lost_one(w, delivery)?), (reception, behind_a_lost_one(w, reception)?)];
            for (level, pairs) in &levels {
                for (a, b, kind) in pairs {
                    let reads = *kind == Kind::Read;
                    let first = a.sent(0)?;
                    let as_shown = if reads { reception } else { *level };
                    shows(as_shown, first, Status::TRANSPORT_ERROR).map_err(named(*level, *kind))?;
                    for number in 1..3 {
                        let status = a.sent(number)?;
                        if reads || *level == reception || !is_success(status) {
                            failed(status, Status::DESC_FLUSHED_ERROR).map_err(named(*level, *kind))?;
                        }
                    }
                    broken(w, a)?;
                    b.untouched()?;
                }
            }
            for (_, pairs) in &levels {
                all_retire(pairs)?;
            }
            Ok(())
        })
    })
    .limit(120),
];
