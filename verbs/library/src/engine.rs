//! The device, and who does its work: a thread of its own, or threads of the program that poll.
//!
//! The device's thread polls while there is work. Then it asks the driver and the link to wake it,
//! and sleeps. A thread of the program whose polls find nothing (`ibv_poll_cq`) does a piece of the
//! work itself: on a machine with few CPUs the device's thread would have to wait for the very CPU
//! on which the program polls. After [`TAKEN`] such polls in a row the device's thread leaves the
//! work to the program, and only looks every [`PATROL`] whether it still polls. A program that is
//! going to wait for an event says so (`leave`), and the thread is back at once.
//!
//! Locks: that of the fabric, which no call of the program waits for.
#![expect(unsafe_code, reason = "cancellation is C's; a descriptor of the link is polled without its lock")]

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use links::Link;
use nic_hal::Transport;
use nic_model::{Fabric, NicId, Progress};
use platform::Platform;
use rustix::event::{PollFd, PollFlags, Timespec};
use verbs::Stepped;

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
/// How often the thread looks whether the program still polls.
const PATROL: Duration = Duration::from_micros(500);

/// What the lock is for.
struct State {
    fabric: Fabric<Port>,
    /// The thread sleeps, and the driver and the link were asked to wake it.
    asleep: bool,
    /// Polls when the thread went to sleep.
    polls_then: u32,
}

/// The device.
pub(crate) struct Engine {
    state: Mutex<State>,
    id: NicId,
    nic: Arc<InProcess>,
    clock: Arc<dyn Platform>,
    /// Polls of the program that found nothing.
    polls: AtomicU32,
    /// The thread has left the work to the program.
    on_patrol: AtomicBool,
}

impl Engine {
    pub(crate) fn new(
        fabric: Fabric<Port>,
        id: NicId,
        nic: Arc<InProcess>,
        clock: Arc<dyn Platform>,
    ) -> Engine {
        Engine {
            state: Mutex::new(State { fabric, asleep: false, polls_then: 0 }),
            id,
            nic,
            clock,
            polls: AtomicU32::new(0),
            on_patrol: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work; for ever. In the device's thread.
    pub(crate) fn drive(&self) {
        loop {
            self.work();
            self.sleep();
        }
    }

    /// Does the work until there has been none for a while.
    fn work(&self) {
        let mut idle_since = self.clock.now();
        let (mut since, mut polls) = (idle_since, self.polls.load(Ordering::Relaxed));
        loop {
            let now = self.clock.now();
            if self.polls.load(Ordering::Relaxed).wrapping_sub(polls) >= TAKEN {
                self.patrol();
                idle_since = self.clock.now();
                (since, polls) = (idle_since, self.polls.load(Ordering::Relaxed));
                continue;
            }
            if now.since(since) >= SPIN {
                (since, polls) = (now, self.polls.load(Ordering::Relaxed));
            }
            if self.lock().fabric.poll(now, BUDGET) == Progress::Worked {
                idle_since = now;
            } else if now.since(idle_since) >= SPIN {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Leaves the work to the program as long as it polls, and does not say that it will wait.
    fn patrol(&self) {
        self.on_patrol.store(true, Ordering::Release);
        loop {
            let polls = self.polls.load(Ordering::Relaxed);
            let kicked = self.wait(None, Some(PATROL));
            if kicked || self.polls.load(Ordering::Relaxed) == polls {
                break;
            }
        }
        self.on_patrol.store(false, Ordering::Release);
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
            let timeout = state.fabric.next_deadline().map(|deadline| deadline.since(self.clock.now()));
            let link = state.fabric.wire(self.id).and_then(|wire| wire.poll_fd());
            // SAFETY: the link is there as long as this thread. If a poll of the program makes it
            // close the descriptor meanwhile, that poll has kicked this thread, which at worst
            // wakes for nothing.
            (timeout, link.map(|fd| unsafe { core::mem::transmute::<PollFd<'_>, PollFd<'static>>(fd) }))
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

impl Stepped for Engine {
    fn step(&self) -> bool {
        // Dropped after the lock.
        let _uncancelled = Uncancelled::begin();
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        let Ok(mut state) = self.state.try_lock() else { return false };
        if state.asleep {
            // It is woken if there is work. A poll of the device now would take that back.
            if polls.wrapping_sub(state.polls_then) < TAKEN {
                return false;
            }
            state.asleep = false;
            state.fabric.awake();
            self.nic.kick();
        }
        state.fabric.poll(self.clock.now(), STEP) == Progress::Worked
    }

    fn leave(&self) {
        if self.on_patrol.load(Ordering::Acquire) {
            self.nic.kick();
        }
    }
}
