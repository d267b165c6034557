//! The device, and who does its work: a thread of its own, or threads of the program that poll.
//!
//! The device's thread polls while there is work. Then it asks the driver and the link to wake it,
//! and sleeps. A thread of the program whose polls find nothing (`ibv_poll_cq`) does a piece of the
//! work itself: on a machine with few CPUs the device's thread would have to wait for the very CPU
//! on which the program polls. After [`TAKEN`] such polls in a row the device's thread leaves the
//! work to the program, and only looks every [`PATROL`] whether it still polls. A program that is
//! going to wait for an event says so (`leave`), and the thread is back at once.
//!
//! Locks: that of the fabric. Of the calls of the program only the making of an address handle
//! waits for it.
#![expect(unsafe_code, reason = "cancellation is C's; a descriptor of the link is polled without its lock")]

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use links::Link;
use nic_model::{Fabric, NicId, Progress};
use platform::{Instant, Platform};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::machine::{InProcess, Port};

/// How long the device polls without work before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Units of work before the thread reads the clock again, and lets others have the device.
const BUDGET: u32 = 64;
/// Units of work in a poll of the program.
const STEP: u32 = 16;
/// Polls without a completion, within [`SPIN`] or while the thread sleeps, after which it leaves
/// the work to the program. A program that waits for events makes one for each event.
const TAKEN: u32 = 32;
/// How long the thread keeps the work when a program has stopped polling while there was some:
/// twice this, and up to that when it does so again.
const KEPT: Duration = Duration::from_millis(5);
const MOST_KEPT: Duration = Duration::from_secs(1);
/// How long the program waits for the MAC of an address, and how often it looks.
const MEETING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_micros(100);
/// How often the thread looks whether the program still polls.
const PATROL: Duration = Duration::from_micros(500);
/// After how many looks at a program that polls all the time it is trusted more.
const LOOKS: u32 = 20;

/// What the lock is for.
struct State {
    fabric: Fabric<Port>,
    /// The thread sleeps, and the driver and the link were asked to wake it.
    asleep: bool,
    /// Polls when the thread went to sleep.
    polls_then: u32,
    /// For what the thread sleeps beside kicks: until then, and for this descriptor.
    wakes_at: Option<Instant>,
    sleeps_on: Option<RawFd>,
}

/// Whether the thread leaves the work to a program that polls.
struct Trust {
    /// Not before.
    keeps_until: Option<Instant>,
    /// For how long not, the last time.
    kept: Duration,
}

impl Trust {
    fn new() -> Trust {
        Trust { keeps_until: None, kept: KEPT }
    }

    fn is_lost(&self, now: Instant) -> bool {
        self.keeps_until.is_some_and(|until| now < until)
    }

    /// The program stopped polling while there was work.
    fn lose(&mut self, now: Instant) {
        self.kept = (self.kept * 2).min(MOST_KEPT);
        self.keeps_until = Some(now + self.kept);
    }

    /// The program has polled for long.
    fn gain(&mut self) {
        self.kept = (self.kept / 2).max(KEPT);
    }
}

/// The device.
pub struct Engine {
    state: Mutex<State>,
    id: NicId,
    nic: Arc<InProcess>,
    clock: Arc<dyn Platform>,
    /// Polls of the program that found nothing.
    polls: AtomicU32,
    /// The thread does not leave the work to the program now.
    keeps: AtomicBool,
    /// The link's descriptor stays the same, so that others can work while the thread polls it.
    helped: bool,
    /// The thread has left the work to the program.
    on_patrol: AtomicBool,
}

impl Engine {
    pub(crate) fn new(
        fabric: Fabric<Port>,
        id: NicId,
        nic: Arc<InProcess>,
        clock: Arc<dyn Platform>,
        helped: bool,
    ) -> Engine {
        Engine {
            state: Mutex::new(State {
                fabric,
                asleep: false,
                polls_then: 0,
                wakes_at: None,
                sleeps_on: None,
            }),
            id,
            nic,
            clock,
            polls: AtomicU32::new(0),
            keeps: AtomicBool::new(false),
            helped,
            on_patrol: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work; for ever. In the device's thread.
    pub(crate) fn drive(&self) {
        let mut trust = Trust::new();
        loop {
            self.work(&mut trust);
            self.sleep();
        }
    }

    /// Does the work until there has been none for a while. A program that polls its memory may
    /// wait for the CPU: the thread does not spin beside it.
    fn work(&self, trust: &mut Trust) {
        let mut idle_since = self.clock.now();
        let (mut since, mut polls) = (idle_since, self.polls.load(Ordering::Relaxed));
        loop {
            let mut now = self.clock.now();
            let mut stopped = false;
            let keeps = trust.is_lost(now);
            self.keeps.store(keeps, Ordering::Relaxed);
            if !keeps && self.polls.load(Ordering::Relaxed).wrapping_sub(polls) >= TAKEN {
                stopped = self.patrol(trust);
                now = self.clock.now();
                idle_since = now;
                (since, polls) = (now, self.polls.load(Ordering::Relaxed));
            } else if now.since(since) >= SPIN {
                (since, polls) = (now, self.polls.load(Ordering::Relaxed));
            }
            if self.lock().fabric.poll(now, BUDGET) == Progress::Worked {
                if stopped {
                    trust.lose(now);
                }
                idle_since = now;
            } else if keeps || now.since(idle_since) >= SPIN {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Leaves the work to the program as long as it polls, and does not say that it will wait.
    /// Returns whether it stopped without saying so.
    fn patrol(&self, trust: &mut Trust) -> bool {
        self.on_patrol.store(true, Ordering::Release);
        let mut looks = 0;
        let stopped = loop {
            let polls = self.polls.load(Ordering::Relaxed);
            if self.wait(None, Some(PATROL)) {
                break false;
            }
            if self.polls.load(Ordering::Relaxed) == polls {
                break true;
            }
            looks += 1;
            if looks % LOOKS == 0 {
                trust.gain();
            }
        };
        self.on_patrol.store(false, Ordering::Release);
        stopped
    }

    /// Sleeps until there is work, or the program does it.
    fn sleep(&self) {
        let (timeout, link) = {
            let mut state = self.lock();
            if !state.fabric.prepare_sleep() {
                state.fabric.awake();
                return;
            }
            state.asleep = true;
            state.polls_then = self.polls.load(Ordering::Relaxed);
            state.wakes_at = state.fabric.next_deadline();
            let timeout = state.wakes_at.map(|deadline| deadline.since(self.clock.now()));
            let link = state.fabric.wire(self.id).and_then(|wire| wire.poll_fd());
            let descriptor = link.as_ref().map(|fd| fd.as_fd().as_raw_fd());
            // SAFETY: the link is there as long as this thread. If a poll of the program makes it
            // close the descriptor meanwhile, that poll has kicked this thread, which at worst
            // wakes for nothing.
            let link = link.map(|fd| unsafe { core::mem::transmute::<PollFd<'_>, PollFd<'static>>(fd) });
            state.sleeps_on = descriptor;
            (timeout, link)
        };
        let kicked = self.wait(link, timeout);
        let mut state = self.lock();
        if std::mem::take(&mut state.asleep) {
            state.fabric.awake();
        }
        if kicked {
            state.fabric.kicked(self.id);
        }
    }

    /// The driver has something for the device. If its thread sleeps, the driver's thread does it,
    /// so that nobody waits until the other one has a CPU. Returns whether nothing is left for
    /// which the device's thread has to wake.
    pub(crate) fn help(&self) -> bool {
        // Dropped after the lock.
        let _uncancelled = Uncancelled::begin();
        let Ok(mut state) = self.state.try_lock() else { return false };
        if !state.asleep || !self.helped {
            return false;
        }
        state.fabric.kicked(self.id);
        state.fabric.poll(self.clock.now(), STEP);
        // As in `sleep`, and the thread's sleep is still the right one.
        let idle = state.fabric.prepare_sleep();
        let link = state.fabric.wire(self.id).and_then(|wire| wire.poll_fd());
        let descriptor = link.map(|fd| fd.as_fd().as_raw_fd());
        let in_time =
            state.fabric.next_deadline().is_none_or(|next| state.wakes_at.is_some_and(|at| at <= next));
        idle && in_time && descriptor == state.sleeps_on
    }

    /// Waits for a kick, for the link, or for the timeout; returns whether there was a kick.
    fn wait(&self, link: Option<PollFd<'static>>, timeout: Option<Duration>) -> bool {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(&self.nic.kicks, PollFlags::IN)];
        fds.extend(link);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return false;
        }
        let kicked = fds.first().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if kicked {
            let _ = rustix::io::read(&self.nic.kicks, &mut [0; 8]);
        }
        kicked
    }
}

unsafe extern "C" {
    /// POSIX's; the crate `libc` does not have it.
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

/// Keeps the calling thread from being cancelled in a call of the kernel, where it would never let
/// go of the device.
struct Uncancelled(c_int);

impl Uncancelled {
    fn begin() -> Uncancelled {
        const DISABLE: c_int = 1;
        let mut former = 0;
        // SAFETY: it changes a word of this thread.
        unsafe { pthread_setcancelstate(DISABLE, &mut former) };
        Uncancelled(former)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

impl Engine {
    /// Does a piece of the device's work, of bounded length, in a poll of the program that found
    /// nothing; returns whether there was any. It does not wait: if another thread does the work
    /// now, it returns false at once.
    pub fn step(&self) -> bool {
        // Dropped after the lock.
        let _uncancelled = Uncancelled::begin();
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        let Ok(mut state) = self.state.try_lock() else { return false };
        if state.asleep {
            // It is woken if there is work. A poll of the device now would take that back.
            if self.keeps.load(Ordering::Relaxed) || polls.wrapping_sub(state.polls_then) < TAKEN {
                return false;
            }
            state.asleep = false;
            state.fabric.awake();
            self.nic.wake();
        }
        state.fabric.poll(self.clock.now(), STEP) == Progress::Worked
    }

    /// Waits for the way to a peer's address, but not for long: datagrams of a burst would be lost
    /// while the device looks for it.
    pub fn meet(&self, from: [u8; 16], to: [u8; 16]) {
        let _uncancelled = Uncancelled::begin();
        let begun = self.clock.now();
        loop {
            let now = self.clock.now();
            let known = self.lock().fabric.way(self.id, from, to, now).is_some();
            if known || now.since(begun) >= MEETING {
                return;
            }
            // The device's thread asks, and takes the answer.
            self.nic.wake();
            std::thread::sleep(LOOK);
        }
    }

    /// The program is going to wait for an event: the device's own thread has to do the work.
    pub fn leave(&self) {
        if self.on_patrol.load(Ordering::Acquire) {
            self.nic.wake();
        }
    }
}
