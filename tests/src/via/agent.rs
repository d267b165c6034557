//! What the kernel agent does for consumers, and what works while it does nothing (2.1.1, 2.4,
//! 6.4.1.1, 11.3).

use alloc::sync::{Arc, Weak};
use core::result::Result;
use core::time::Duration;

use kernel_agent::{AsyncEvent, CmEvent, Death, Upcalls};
use nic_abi::admin::Injection;
use vipl::*;

use super::connect::ask;
use super::levels::exchange;
use super::world::*;
use crate::thread::{Signal, Thread, pause};
use crate::{Failure, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// A client of the agent whose upcalls block the thread that handles interrupts.
struct Holder {
    entered: Signal,
    release: Signal,
}

impl Upcalls for Holder {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, event: AsyncEvent) {
        if matches!(event, AsyncEvent::Port { up: false }) {
            self.entered.raise();
            let _ = self.release.wait(1);
        }
    }

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

/// Runs `test` while the agent handles no interrupt of `a`'s NIC.
fn without_interrupts<T>(w: &World<'_>, test: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let signal = || Signal::new(w.f.platform());
    let holder = Arc::new(Holder { entered: signal(), release: signal() });
    let upcalls: Weak<dyn Upcalls> = Arc::downgrade(&(holder.clone() as Arc<dyn Upcalls>));
    let client = w.f.setup.a.agent.attach(upcalls)?;
    let outcome = (|| {
        w.f.inject(0, Injection::Port, 1, 0)?;
        let held = holder.entered.wait(1);
        w.f.inject(0, Injection::Port, 1, 1)?;
        held?;
        test()
    })();
    holder.release.raise();
    client.detach();
    outcome
}

/// Starts a thread that waits for the next descriptor of a receive queue.
fn waiter(w: &World<'_>, side: &Side) -> Result<Thread<Result<u64, Error>>, Failure> {
    let (nic, vi) = (side.nic.clone(), side.vi);
    Thread::spawn(w.f.platform(), "waiter", move || nic.recv_wait(vi, LONG))
}

/// Starts a thread that makes this call. It returns how often it has slept meanwhile, and whether
/// the call succeeded.
fn sleeper(
    w: &World<'_>,
    call: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<Thread<(u64, bool)>, Failure> {
    let setup = w.f.setup.clone();
    Thread::spawn(w.f.platform(), "sleeper", move || {
        let before = (setup.usage)().waits;
        let succeeded = call().is_ok();
        ((setup.usage)().waits - before, succeeded)
    })
}

/// Gives threads the time to begin to wait.
fn moment(w: &World<'_>) {
    pause(w.f.platform(), Duration::from_millis(SHORT.into()));
}

pub(crate) const TESTS: &[Test] = &[
    // While the kernel agent handles no interrupt, consumers can still post and poll: the NIC
    // processes descriptors, and writes their status and the entries of completion queues. The
    // thread that posts and polls never waits.
    test(
        "via_agent::the_fast_path_goes_without_it",
        &["via-2.1.1 B03", "via-2.4 B03", "via-6.4.1.1 B01"],
        |f| {
            world(f, |w| {
                let nic = w.another()?;
                let cq = nic.create_cq(64)?;
                let (a, b) = (w.side(&w.a, LEVEL, NO_CQS)?, w.side(&nic, LEVEL, [CqHandle::NULL, cq])?);
                w.connect(&a, &b)?;
                a.fill(1);
                without_interrupts(w, || {
                    let waits = || (f.setup.usage)().waits;
                    let before = waits();
                    for number in 0..100 {
                        let at = number % DESCRIPTORS;
                        b.receive(at, &[b.data(8 * at, 8)])?;
                        a.send(at, &[a.data(8 * at, 8)], None)?;
                        let found = crate::thread::at_once(f.platform(), || a.nic.send_done(a.vi).is_ok());
                        check!(found, "message {number}");
                        let mut entry = Err(Error::NotDone);
                        crate::thread::at_once(f.platform(), || {
                            entry = nic.cq_done(cq);
                            entry.is_ok()
                        });
                        check_eq!(entry?, (b.vi, true));
                        check_eq!(nic.recv_done(b.vi)?, b.descriptor(at)?.address());
                        success(b.descriptor(at)?.status())?;
                        check_eq!(b.bytes(8 * at, 8), a.bytes(8 * at, 8));
                    }
                    check_eq!(waits(), before);
                    Ok(())
                })
            })
        },
    ),
    // A waiting thread sleeps until its queue has a completion; threads that wait on other queues
    // stay asleep.
    test("via_agent::the_right_thread_wakes", &["via-6 A01", "via-11.3 B02"], |f| {
        world(f, |w| {
            let cq = w.b.create_cq(4)?;
            let sides = [NO_CQS, NO_CQS, [CqHandle::NULL, cq]].map(|cqs| w.side(&w.b, LEVEL, cqs));
            let [first, second, tied] = sides;
            let far = [first?, second?, tied?];
            let mut near = alloc::vec::Vec::new();
            for side in &far {
                let peer = w.side(&w.a, LEVEL, NO_CQS)?;
                w.connect(&peer, side)?;
                side.receive(0, &[])?;
                near.push(peer);
            }
            let (one, two) = (waiter(w, &far[0])?, waiter(w, &far[1])?);
            let nic = w.b.clone();
            let three = Thread::spawn(f.platform(), "waiter", move || nic.cq_wait(cq, LONG))?;
            moment(w);
            check!(!one.is_done() && !two.is_done() && !three.is_done());
            near[1].send(0, &[], None)?;
            check_eq!(two.join()??, far[1].descriptor(0)?.address());
            moment(w);
            check!(!one.is_done() && !three.is_done());
            near[2].send(0, &[], None)?;
            check_eq!(three.join()??, (far[2].vi, true));
            check!(!one.is_done());
            near[0].send(0, &[], None)?;
            check_eq!(one.join()??, far[0].descriptor(0)?.address());
            Ok(())
        })
    }),
    // A thread that waits for a send queue, a receive queue or a completion queue sleeps until the
    // agent handles the interrupt of that queue: while it handles none, the completions are there,
    // and the threads sleep on. (A thread that begins late finds its completion, which shows
    // nothing.)
    test("via_agent::a_waiter_sleeps_until_the_interrupt", &["via-11.3 B12 B15"], |f| {
        world(f, |w| {
            let cq = w.a.create_cq(4)?;
            let plain = w.side(&w.a, LEVEL, NO_CQS)?;
            let tied = w.side(&w.a, LEVEL, [CqHandle::NULL, cq])?;
            let far = [w.side(&w.b, LEVEL, NO_CQS)?, w.side(&w.b, LEVEL, NO_CQS)?];
            w.connect(&plain, &far[0])?;
            w.connect(&tied, &far[1])?;
            for _ in 0..50 {
                for side in [&plain, &tied, &far[0]] {
                    side.receive(0, &[])?;
                }
                let (nic, vi) = (w.a.clone(), plain.vi);
                let receives = sleeper(w, move || nic.recv_wait(vi, LONG).map(drop));
                let nic = w.a.clone();
                let sends = sleeper(w, move || nic.send_wait(vi, LONG).map(drop));
                let nic = w.a.clone();
                let entries = sleeper(w, move || nic.cq_wait(cq, LONG).map(drop));
                let threads = [receives?, sends?, entries?];
                let asleep = without_interrupts(w, || {
                    moment(w);
                    plain.send(1, &[], None)?;
                    for far in &far {
                        far.send(1, &[], None)?;
                    }
                    for (side, number) in [(&plain, 0), (&plain, 1), (&tied, 0), (&far[0], 0)] {
                        success(w.done(&side.descriptor(number)?)?)?;
                    }
                    Ok(threads.iter().all(|thread| !thread.is_done()))
                })?;
                let (mut slept, counted) = (asleep, (f.setup.usage)().waits > 0);
                for thread in threads {
                    let (waits, succeeded) = thread.join()?;
                    check!(succeeded, "the wait failed");
                    slept &= waits > 0 || !counted;
                }
                for side in [&tied, &far[0], &far[1]] {
                    w.until("what is complete is taken", || side.drain() > 0)?;
                }
                if slept {
                    return Ok(());
                }
            }
            Err(Failure::new("no thread sleeps until the interrupt"))
        })
    }),
    // Two threads wait on one queue: each gets one descriptor.
    test("via_agent::two_threads_wait_on_a_queue", &["via-11.2.2 A08"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let waiters = [waiter(w, &b)?, waiter(w, &b)?];
            moment(w);
            for number in 0..2 {
                b.receive(number, &[])?;
            }
            for number in 0..2 {
                a.send(number, &[], None)?;
                a.sent_well(number)?;
            }
            let [first, second] = waiters.map(Thread::join);
            let mut taken = [first??, second??];
            taken.sort();
            check_eq!(taken, [b.descriptor(0)?.address(), b.descriptor(1)?.address()]);
            refused(b.nic.recv_done(b.vi), Error::NotDone)
        })
    }),
    // Each asynchronous error reaches the handler once, while no thread of the consumer makes a
    // call.
    test("via_agent::each_error_is_delivered", &["via-6.4.1.1 B02", "via-11.3 B17"], |f| {
        world(f, |w| {
            let (a, _b) = w.pair(ReliabilityLevel::Unreliable)?;
            let errors = w.errors(&a.nic)?;
            const COUNT: usize = 20;
            for number in 1..=COUNT {
                let address = 64 * number as u64;
                a.nic.post_send(a.vi, address, a.region.handle)?;
                let came = errors.wait(number)?;
                check_eq!((came.len(), came[number - 1].descriptor), (number, address));
            }
            moment(w);
            check_eq!(errors.count(), COUNT);
            Ok(())
        })
    }),
    // A NIC is usable when it is open, and the agent handles the peers' connection management by
    // itself: a request waits, and the loss of a connection is reported, without a server thread
    // that waits for them.
    test("via_agent::connections_need_no_thread", &["via-11.3 B01 B11"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            exchange(&a, &b)?;
            let errors = w.errors(&b.nic)?;
            let client = w.side(&w.a, LEVEL, NO_CQS)?;
            let server = b.nic.address(b"server")?;
            let asked = ask(w, &client, b"client", &server, LONG)?;
            w.until("the request waits", || {
                let info = b.nic.query_system_management_info(InfoType::Objects as u32);
                matches!(info, Ok(SystemManagementInfo::Objects { waiting_requests: 1, .. }))
            })?;
            a.disconnect()?;
            errors.expect(&b, ErrorCode::ConnLost)?;
            let request = b.nic.connect_wait(&server, None, 0)?;
            b.nic.connect_reject(request.conn)?;
            check_eq!(asked.join()?, Err(Error::Reject));
            Ok(())
        })
    }),
];
