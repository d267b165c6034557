//! When a descriptor shows an error, the state is Error already, although no event of it was
//! handled yet (10.2, 7.2, 7.3).
//!
//! The tests keep the agents' dispatcher threads busy, so that the events of the errors wait.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use vipl::*;

use super::levels::retire;
use super::world::*;
use crate::fixture::SIGNALLED;
use crate::thread::Signal;
use crate::{Failure, Outcome, Test, check_eq, test};

/// Runs a part of a test while callbacks keep the dispatcher threads of both agents: no event of a
/// NIC is handled meanwhile, and no connection can be made.
fn without_events(w: &World<'_>, part: impl FnOnce() -> Outcome) -> Outcome {
    let (f, pair) = (w.f, w.f.pair()?);
    let (inside, over) = (Signal::new(f.platform()), Signal::new(f.platform()));
    for (ia, evd) in [(&f.a, pair.a.request), (&f.b, pair.b.recv)] {
        let (inside, over) = (inside.clone(), over.clone());
        let callback = move |ia: &privileged_api::Ia, evd| {
            inside.raise();
            let _ = over.wait(1);
            while ia.evd_dequeue(evd).is_ok() {}
        };
        ia.evd_callback_attach(evd, Box::new(callback))?;
    }
    f.b.post_recv(pair.b.ep, &[], 1, SIGNALLED)?;
    f.a.post_send(pair.a.ep, &[], 2, SIGNALLED)?;
    let outcome = inside.wait(if f.setup.is_apart() { 2 } else { 1 }).and_then(|()| part());
    over.raise();
    outcome
}

/// An error of a connected pair, by the end whose descriptor shows it.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A request of `a` whose data is in no region: a Send, an RDMA Write, an RDMA Read.
    Own(u8),
    /// An RDMA Read, and on Reliable Reception an RDMA Write, of memory that the peer does not
    /// open.
    Closed(bool),
    /// The data of a Send, or of an RDMA Write with immediate data, arrives corrupt or incomplete
    /// at `b`.
    Spoiled(Injection, bool),
}

const FAULTS: [Fault; 9] = [
    Fault::Own(0),
    Fault::Own(1),
    Fault::Own(2),
    Fault::Closed(true),
    Fault::Closed(false),
    Fault::Spoiled(Injection::Corrupt, false),
    Fault::Spoiled(Injection::Corrupt, true),
    Fault::Spoiled(Injection::Truncate, false),
    Fault::Spoiled(Injection::Truncate, true),
];

/// Provokes a fault. Waits until a descriptor shows it, without a call, and returns the end that it
/// is at and the bits. `None` if the level does not show the fault.
fn provoke(
    w: &World<'_>,
    level: ReliabilityLevel,
    (a, b): (&Side, &Side),
    fault: Fault,
) -> Result<Option<(bool, Status)>, Failure> {
    let reception = level == ReliabilityLevel::Reception;
    let mut nowhere = a.data(0, 8);
    nowhere.handle ^= 1;
    Ok(Some(match fault {
        Fault::Own(kind) => {
            match kind {
                0 => a.send(0, &[nowhere], None)?,
                1 => a.rdma_write(0, &b.remote(0), &[nowhere], None)?,
                _ => a.rdma_read(0, &b.remote(0), &[nowhere])?,
            }
            (true, Status::PROTECTION_ERROR)
        }
        Fault::Closed(reads) => {
            if !reads && !reception {
                return Ok(None);
            }
            let closed = w.region(&b.nic, 64, &MemAttributes::new(b.ptag))?;
            match reads {
                true => a.rdma_read(0, &closed.remote(0), &[a.data(0, 8)])?,
                false => a.rdma_write(0, &closed.remote(0), &[a.data(0, 8)], None)?,
            }
            (true, Status::RDMA_PROT_ERROR)
        }
        Fault::Spoiled(what, writes) => {
            w.inject(b, what, 1, 0)?;
            b.receive(0, &[b.data(0, 8)])?;
            match writes {
                true => a.rdma_write(0, &b.remote(100), &[a.data(0, 8)], Some(1))?,
                false => a.send(0, &[a.data(0, 8)], None)?,
            }
            let corrupt = what == Injection::Corrupt;
            (false, if corrupt { Status::TRANSPORT_ERROR } else { Status::PARTIAL_ERROR })
        }
    }))
}

pub(crate) const TESTS: &[Test] = &[
    // An error on a reliable level shows in a descriptor of this end, and QueryVi says Error from
    // then on: for each kind of request, each kind of error, and both ends. A Disconnect at once
    // does not hide the end of the connection from the error handler, which is called once.
    test(
        "via_shown::the_state_is_that_of_the_descriptor",
        &["VIP_STATUS VIP_STATUS_TRANSPORT_ERROR", "via-7.2 S01", "via-7.3 S01", "via-2.5.2 B08"],
        |f| {
            world(f, |w| {
                for level in RELIABLE {
                    let mut pairs = Vec::new();
                    for _ in FAULTS {
                        pairs.push(w.pair(level)?);
                    }
                    let errors = [w.errors(&w.a)?, w.errors(&w.b)?];
                    without_events(w, || {
                        for ((a, b), fault) in pairs.iter().zip(FAULTS) {
                            let shown = provoke(w, level, (a, b), fault)?;
                            let Some((at_a, bits)) = shown else { continue };
                            let (side, errors) = if at_a { (a, &errors[0]) } else { (b, &errors[1]) };
                            let descriptor = side.descriptor(0)?;
                            failed(w.done(&descriptor)?, bits)?;
                            check_eq!(side.state()?, ViState::Error, "{level:?} {fault:?}");
                            side.disconnect()?;
                            check_eq!(side.state()?, ViState::Idle);
                            errors.expect(side, ErrorCode::ConnLost)?;
                        }
                        Ok(())
                    })?;
                    for (a, b) in &pairs {
                        retire(a)?;
                        retire(b)?;
                    }
                }
                Ok(())
            })
        },
    ),
    // The events of such errors come later, and report nothing a second time: the interfaces are
    // connected again, and no error of theirs reaches the handler.
    test("via_shown::the_end_is_reported_once", &["VipErrorCallback VIP_ERROR_CONN_LOST"], |f| {
        world(f, |w| {
            for level in RELIABLE {
                let (a, b) = w.pair(level)?;
                let errors = w.errors(&a.nic)?;
                without_events(w, || {
                    provoke(w, level, (&a, &b), Fault::Own(0))?;
                    w.done(&a.descriptor(0)?)?;
                    a.disconnect()?;
                    errors.expect(&a, ErrorCode::ConnLost).map(drop)
                })?;
                a.drain();
                b.disconnect()?;
                w.connect(&a, &b)?;
                super::levels::exchange(&a, &b)?;
                super::levels::quiet(&errors, &a)?;
                errors.expect(&a, ErrorCode::ConnLost)?;
                check_eq!(errors.count(), 3);
                retire(&a)?;
                retire(&b)?;
            }
            Ok(())
        })
    }),
];
