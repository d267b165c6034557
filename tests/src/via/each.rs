//! What holds for every kind of request on every level: its length, its number of segments, the
//! moment at which it completes, its status and its entry in a completion queue; and the order and
//! the fairness of queues that have work at the same time.

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::{exchange, retire};
use super::world::*;
use crate::{Failure, Outcome, Test, check, check_eq, not_shown, test};

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
}

impl Kind {
    /// Those that a level has.
    pub(super) fn of(level: ReliabilityLevel) -> impl Iterator<Item = Kind> {
        let all = [Kind::Send, Kind::SendImmediate, Kind::Write, Kind::WriteImmediate, Kind::Read];
        all.into_iter().filter(move |kind| level.is_reliable() || *kind != Kind::Read)
    }

    pub(super) fn takes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::SendImmediate | Kind::WriteImmediate)
    }

    /// Formats a request of `a` with these segments, to or from the beginning of `b`'s data.
    pub(super) fn format(self, descriptor: &Descriptor<'_>, b: &Side, data: &[DataSegment]) -> Outcome {
        match self {
            Kind::Send => descriptor.send(data, None)?,
            Kind::SendImmediate => descriptor.send(data, Some(7))?,
            Kind::Write => descriptor.rdma_write(&b.remote(0), data, None)?,
            Kind::WriteImmediate => descriptor.rdma_write(&b.remote(0), data, Some(7))?,
            Kind::Read => descriptor.rdma_read(&b.remote(0), data)?,
        }
        Ok(())
    }

    /// Posts a request of `a`, and before it a receive at `b` with the same number if it takes one.
    pub(super) fn post(self, a: &Side, b: &Side, number: usize, data: &[DataSegment]) -> Outcome {
        if self.takes_receive() {
            b.receive(number, &[b.data(0, DATA_LEN)])?;
        }
        self.format(&a.descriptor(number)?, b, data)?;
        a.post_send(number)
    }

    /// The operation in the status of a request that is complete.
    pub(super) fn operation(self) -> Status {
        match self {
            Kind::Send | Kind::SendImmediate => Status::empty(),
            Kind::Write | Kind::WriteImmediate => Status::OP_RDMA_WRITE,
            Kind::Read => Status::OP_RDMA_READ,
        }
    }
}

/// Says of what kind and level a failure was.
pub(super) fn named(level: ReliabilityLevel, kind: Kind) -> impl Fn(Failure) -> Failure {
    move |failure| Failure { message: alloc::format!("{level:?} {kind:?}: {}", failure.message), ..failure }
}

/// What is wrong with a request's length.
#[derive(Clone, Copy)]
enum Length {
    /// The control segment says other than the sum of the segments.
    Says(u32),
    /// The sum is one more than the longest transfer of the virtual interface.
    TooLong,
}

/// A request with a wrong length ends with a length error, and no byte moves.
fn wrong_length(a: &Side, b: &Side, kind: Kind, wrong: Length, most: usize) -> Outcome {
    let length = if matches!(wrong, Length::TooLong) { most + 1 } else { 8 };
    let descriptor = a.descriptor(0)?;
    kind.format(&descriptor, b, &[a.data(0, length)])?;
    if let Length::Says(length) = wrong {
        descriptor.set_length(length);
    }
    let before = (a.bytes(0, DATA_LEN), b.bytes(0, DATA_LEN));
    a.post_send(0)?;
    let status = a.sent(0)?;
    failed(status, Status::LENGTH_ERROR)?;
    check_eq!(operation(status), kind.operation());
    check!(before == (a.bytes(0, DATA_LEN), b.bytes(0, DATA_LEN)), "bytes moved");
    Ok(())
}

/// On Reliable Delivery a Send or RDMA Write completes when it has left: here while the peer gives
/// no answer, and the connection lives. On Reliable Reception it completes when the peer has
/// answered: here it does not while another pair exchanges a message. False if so much time has
/// passed that the NIC has given the peer up.
fn moment(w: &World<'_>, level: ReliabilityLevel, kind: Kind) -> Result<bool, Failure> {
    let ((a, b), (c, d)) = (w.pair(level)?, w.pair(level)?);
    a.fill(6);
    w.inject(&b, Injection::StallResponder, u32::MAX, 0)?;
    kind.post(&a, &b, 0, &[a.data(0, 100)])?;
    let descriptor = a.descriptor(0)?;
    let early = match level {
        ReliabilityLevel::Delivery => is_success(w.done(&descriptor)?),
        _ => {
            exchange(&c, &d)?;
            descriptor.is_done()
        }
    };
    let lives = a.state()? == ViState::Connected;
    w.inject(&b, Injection::StallResponder, 0, 0)?;
    if lives {
        check_eq!(early, level == ReliabilityLevel::Delivery, "complete without an answer");
        a.sent_well(0)?;
        w.until("the data arrives", || b.bytes(0, 100) == a.bytes(0, 100))?;
    }
    for side in [&a, &b, &c, &d] {
        retire(side)?;
    }
    Ok(lives)
}

/// So many queues of one NIC with requests of this kind, which may begin at the same moment: none
/// is far ahead while all have work.
fn shares(w: &World<'_>, level: ReliabilityLevel, kind: Kind, queues: usize) -> Outcome {
    const COUNT: usize = DESCRIPTORS;
    let (cq, peer) = (w.a.create_cq((queues * COUNT) as u32)?, w.peer(level)?);
    let mut pairs = Vec::new();
    for _ in 0..queues {
        let a = w.side(&w.a, level, [cq, CqHandle::NULL])?;
        let b = w.side(&peer, level, NO_CQS)?;
        w.connect(&a, &b)?;
        pairs.push((a, b));
    }
    w.inject(&pairs[0].0, Injection::Hold, 1, 1)?;
    for (a, b) in &pairs {
        for number in 0..COUNT {
            kind.post(a, b, number, &[a.data(0, 64)])?;
        }
    }
    w.inject(&pairs[0].0, Injection::Hold, 1, 0)?;
    let mut served = alloc::vec![0; queues];
    let mut most = 0;
    for _ in 0..queues * COUNT {
        let (vi, _) = w.a.cq_wait(cq, LONG)?;
        let at = pairs.iter().position(|(a, _)| a.vi == vi).unwrap_or(0);
        let a = &pairs[at].0;
        check_eq!(a.nic.send_done(vi)?, a.descriptor(served[at])?.address());
        success(a.descriptor(served[at])?.status())?;
        served[at] += 1;
        let (least, all) = (served.iter().min(), served.iter().max());
        if let (Some(least), Some(all)) = (least, all)
            && *all < COUNT
        {
            most = most.max(all - least);
        }
    }
    check!(w.f.setup.lossy || most <= COUNT / 2, "{queues} queues: one was ahead by {most} of {COUNT}");
    for (a, b) in &pairs {
        retire(a)?;
        retire(b)?;
    }
    Ok(w.a.destroy_cq(cq)?)
}

/// Takes the next entry of a completion queue, which must be of this virtual interface's send
/// queue, and then the descriptor. Returns its status.
fn entry(side: &Side, cq: CqHandle, number: usize) -> Result<Status, Failure> {
    check_eq!(side.nic.cq_wait(cq, LONG)?, (side.vi, false));
    check_eq!(side.nic.send_done(side.vi)?, side.descriptor(number)?.address());
    Ok(side.descriptor(number)?.status())
}

pub(crate) const TESTS: &[Test] = &[
    // The Length of a descriptor is the sum of its segments, and at most what the virtual interface
    // allows: for Sends and RDMA, with and without immediate data.
    test(
        "via_each::wrong_lengths",
        &["VIP_CONTROL_SEGMENT F07", "VIP_STATUS VIP_STATUS_LENGTH_ERROR", "VIP_DATA_SEGMENT L02"],
        |f| {
            world(f, |w| {
                const MOST: usize = 5000;
                let wrong = [Length::Says(7), Length::Says(9), Length::Says(0), Length::TooLong];
                for level in LEVELS {
                    let sized =
                        |ptag| ViAttributes { max_transfer_size: MOST as u64, ..attributes(ptag, level) };
                    let peer = w.peer(level)?;
                    let (a, b) = (w.side_with(&w.a, NO_CQS, sized)?, w.side_with(&peer, NO_CQS, sized)?);
                    w.connect(&a, &b)?;
                    for (kind, wrong) in Kind::of(level).flat_map(|kind| wrong.map(|wrong| (kind, wrong))) {
                        a.fill(1);
                        b.fill(2);
                        wrong_length(&a, &b, kind, wrong, MOST).map_err(named(level, kind))?;
                        if level.is_reliable() {
                            a.disconnect()?;
                            b.disconnect()?;
                            w.connect(&a, &b)?;
                        }
                    }
                    retire(&a)?;
                    retire(&b)?;
                }
                Ok(())
            })
        },
    ),
    // A descriptor of each kind has room for 252 data segments, each with its own byte.
    test("via_each::segments", &["via-6.1.1 L02", "VIP_DATA_SEGMENT L01"], |f| {
        world(f, |w| {
            const COUNT: usize = 252;
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                let region = w.region(&a.nic, 2 * crate::fixture::PAGE, &open_memory(a.ptag))?;
                let descriptor = region.descriptor(0, COUNT + 1)?;
                let data: Vec<DataSegment> = (0..COUNT).map(|at| a.data(3 * at, 1)).collect();
                for kind in Kind::of(level) {
                    a.fill(3);
                    b.fill(5);
                    if kind.takes_receive() {
                        b.receive(0, &[b.data(0, DATA_LEN)])?;
                    }
                    kind.format(&descriptor, &b, &data)?;
                    a.nic.post_send(a.vi, descriptor.address(), region.handle)?;
                    check_eq!(a.nic.send_wait(a.vi, LONG)?, descriptor.address());
                    success(descriptor.status()).map_err(named(level, kind))?;
                    check_eq!(descriptor.length() as usize, COUNT);
                    if kind.takes_receive() {
                        b.received_well(0)?;
                    }
                    let moved = || (0..COUNT).all(|at| a.bytes(3 * at, 1) == b.bytes(at, 1));
                    w.until("the bytes are there", moved).map_err(named(level, kind))?;
                }
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
    // When requests complete, by level: as soon as the data has left, or when the peer has it.
    test("via_each::the_moment_of_completion", &["via-2.5.2 B06", "via-2.5.3 B01"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                for kind in Kind::of(level).filter(|kind| *kind != Kind::Read) {
                    let mut tries = 0;
                    while !moment(w, level, kind).map_err(named(level, kind))? {
                        tries += 1;
                        check!(tries < 4, "{level:?} {kind:?}: complete when the peer was given up");
                    }
                }
            }
            Ok(())
        })
    }),
    // Each descriptor that is complete has a status and one entry of its completion queue: the
    // first one, which succeeds; the second one, which fails; and those that are flushed behind it,
    // on Unreliable Delivery by a disconnect. So on each level, for each kind of request.
    test("via_each::each_completion_has_an_entry", &["via-6.1 B05", "via-6.4.1 B05"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let cq = w.a.create_cq(16)?;
                let peer = w.peer(level)?;
                let a = w.side(&w.a, level, [cq, CqHandle::NULL])?;
                let b = w.side(&peer, level, NO_CQS)?;
                for kind in Kind::of(level) {
                    w.connect(&a, &b)?;
                    let mut nowhere = a.data(0, 8);
                    nowhere.handle ^= 1;
                    let reliable = level.is_reliable();
                    w.inject(&a, Injection::Hold, 1, reliable.into())?;
                    kind.post(&a, &b, 0, &[a.data(0, 8)])?;
                    kind.post(&a, &b, 1, &[nowhere])?;
                    if !reliable {
                        w.done(&a.descriptor(1)?)?;
                        w.inject(&a, Injection::Hold, 1, 1)?;
                    }
                    for number in 2..4 {
                        kind.post(&a, &b, number, &[a.data(0, 8)])?;
                    }
                    if !reliable {
                        a.disconnect()?;
                    }
                    w.inject(&a, Injection::Hold, 1, 0)?;
                    for number in 0..4 {
                        let errors = match number {
                            0 => Status::empty(),
                            1 => Status::PROTECTION_ERROR,
                            _ => Status::DESC_FLUSHED_ERROR,
                        };
                        let status = entry(&a, cq, number).map_err(named(level, kind))?;
                        failed(status, errors).map_err(named(level, kind))?;
                        check_eq!(operation(status), kind.operation());
                    }
                    check_eq!(a.nic.cq_done(cq), Err(Error::NotDone), "{level:?} {kind:?}");
                    a.disconnect()?;
                    b.disconnect()?;
                    b.drain();
                }
                retire(&a)?;
                retire(&b)?;
                w.a.destroy_cq(cq)?;
            }
            Ok(())
        })
    }),
    // Queues of one NIC have work from the same moment on, and one completion queue shows what the
    // NIC does: each queue is served in the order of its posts, they take turns, and while all have
    // work none is ahead of another one by more than a few turns.
    test("via_each::queues_share_the_nic", &["via-6.3.1 B01", "via-11.2.2 A03", "via-8 A03"], |f| {
        world(f, |w| {
            for (level, queues) in LEVELS.into_iter().flat_map(|level| [(level, 2), (level, 12)]) {
                for kind in [Kind::Send, Kind::Write, Kind::Read] {
                    if level.is_reliable() || kind != Kind::Read {
                        shares(w, level, kind, queues).map_err(named(level, kind))?;
                    }
                }
            }
            match f.setup.lossy {
                true => not_shown("a queue whose packet got lost waits for its timer"),
                false => Ok(()),
            }
        })
    }),
];
