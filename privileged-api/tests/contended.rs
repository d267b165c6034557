//! Receives that are posted while another thread holds a lock that the poster needs. The hooks of
//! the stack's locks decide which thread runs, and belong to the whole process: so this file has
//! one test.

extern crate ferrovia_privileged_api as privileged_api;

mod support;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};

use privileged_api::*;
use support::*;

std::thread_local! {
    /// What this thread does before it takes a lock.
    static BEFORE_LOCK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// What this thread does when it finds a lock taken.
    static TAKEN: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

fn before_lock() {
    BEFORE_LOCK.with_borrow_mut(|act| act.as_mut().map(|act| act()));
}

fn taken() {
    TAKEN.with_borrow_mut(|act| act.as_mut().map(|act| act()));
    std::thread::yield_now();
}

/// What the paused thread reports.
enum Step {
    /// It is about to take a lock, and may hold others.
    Paused,
    Done,
}

/// Runs `call` in a thread that pauses before each lock. `meanwhile` runs during each pause, which
/// ends with it, or as soon as it finds a lock taken. Returns in how many pauses that happened, and
/// how many there were.
fn in_each_pause(call: impl FnOnce() + Send, mut meanwhile: impl FnMut(u64)) -> (u64, u64) {
    let (reports, steps): (Sender<Step>, Receiver<Step>) = channel();
    let (resume, resumed) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let report = reports.clone();
            BEFORE_LOCK.set(Some(Box::new(move || {
                report.send(Step::Paused).expect("the other thread");
                resumed.recv().expect("the other thread");
            })));
            call();
            BEFORE_LOCK.set(None);
            reports.send(Step::Done).expect("the other thread");
        });
        let (mut contended, mut pauses) = (0, 0);
        while let Step::Paused = steps.recv().expect("the thread") {
            let (found, finds) = channel();
            let resume_early = resume.clone();
            let mut found = Some(found);
            TAKEN.set(Some(Box::new(move || {
                if let Some(found) = found.take() {
                    found.send(()).expect("this thread");
                    resume_early.send(()).expect("the thread");
                }
            })));
            meanwhile(pauses);
            TAKEN.set(None);
            match finds.try_recv() {
                Ok(()) => contended += 1,
                Err(_) => resume.send(()).expect("the thread"),
            }
            pauses += 1;
        }
        (contended, pauses)
    })
}

#[test]
fn a_receive_is_posted_although_another_thread_holds_its_locks() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    platform::sync::set_yield(taken);
    platform::sync::set_preemption(before_lock);
    let buffer = world.buffer(4096);
    let (region, _) = b.lmr(&buffer, MemPriv::LOCAL);
    let segment = LmrTriplet::new(region, buffer.addr() as u64, 8);
    const SLOW: u64 = 1000;
    // A Receive of two segments takes the slow path: the table entry's lock, and then the queue's.
    let (contended, pauses) = in_each_pause(
        || b.ia.post_recv(b.ep, &[segment; 2], SLOW, SIGNALED).unwrap(),
        |cookie| b.ia.post_recv(b.ep, &[segment], cookie, SIGNALED).unwrap(),
    );
    // Builds without debug assertions never pause.
    if cfg!(debug_assertions) {
        assert!(pauses >= 2, "{pauses} locks");
        assert!(contended >= 1, "no post found a lock taken");
    }
    let mut expected: BTreeSet<u64> = (0..pauses).chain([SLOW]).collect();
    for cookie in 0..=pauses {
        a.ia.post_send(a.ep, &[], cookie, SIGNALED).unwrap();
        a.success(a.requests);
        assert!(expected.remove(&b.success(b.receives).cookie), "each Receive is posted once");
    }
    b.ia.lmr_free(region).unwrap();
    done(&world, &[&a, &b]);
}
