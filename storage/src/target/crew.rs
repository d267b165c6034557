//! The threads of a target: one manager, and workers beside it.
//!
//! Each thread has a [`Target`] of its own: completion queues and receives for each port, hosts'
//! queues, commands, and for each namespace memory, a handle of the disk, and a copy of what is
//! decided about it. So threads share nothing on the way of a Read or a Write. The manager's is the
//! one that listens. It has the admin queues, controllers, timers of hosts, reservations, and what
//! operators change, and serves I/O queues, too: with one thread it serves all.
//!
//! A connection for an I/O queue goes to the thread with the fewest, and stays there. What concerns
//! several threads is a message: a routine that another thread carries out between two of its
//! rounds ([`Crew::send`]). Messages of one thread to another keep their order. What has to hold in
//! all threads before somebody hears of it (a namespace is gone, a host has reserved one), the
//! manager has the workers do, and waits until they have ([`Target::everywhere`]). That takes as
//! long as a round of a worker, which never waits for the manager, so nobody waits for ever.
//!
//! | what | where it is decided | how the others know |
//! |---|---|---|
//! | the connection and the Connect of an I/O queue | the manager, the worker has the queue | messages there and back |
//! | a controller | the manager | a copy beside its I/O queues, which lives as long as these |
//! | reservations | the manager | a copy for each namespace; an Acquire also waits for the disk requests of all threads |
//! | namespaces, ANA states, hosts, drain | the manager | all have it before the answer or the event |
//! | a port's end, a disk that is gone or silent | whoever notices | messages |
//! | requests left to disks (`earlier`) | the thread that has them | messages to all |
//! | a command that is to be aborted | the thread that has it | the manager waits for the answer |

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use platform::Signal;
use platform::sync::Mutex;

use super::control::Shared;
use super::identity::ControllerId;
use super::server::Target;
use crate::Error;

/// The number of the manager's thread.
pub(crate) const MANAGER: usize = 0;

/// An I/O queue of a worker, as the manager knows it.
pub(crate) struct Placed {
    pub(crate) worker: usize,
    pub(crate) address: IpAddr,
    /// The entries that are promised to it.
    pub(crate) entries: usize,
    /// It serves no controller yet, or its host has not authenticated.
    pub(crate) is_stranger: bool,
    /// What its Connect has made of it: the controller, and its number there.
    pub(crate) queue: Option<(ControllerId, u16)>,
}

/// What a thread knows of the others.
pub(crate) struct Crew {
    /// Its own number.
    pub(crate) me: usize,
    /// What each thread shares, the manager's first.
    pub(crate) all: Arc<[Arc<Shared>]>,
    /// The manager's: queues of workers, by the numbers that it gave them.
    pub(crate) placed: BTreeMap<u64, Placed>,
    /// The next of these numbers, and the next name of a fence.
    pub(crate) next: u64,
}

impl Crew {
    pub(crate) fn new(me: usize, all: Arc<[Arc<Shared>]>) -> Crew {
        Crew { me, all, placed: BTreeMap::new(), next: 1 }
    }

    pub(crate) fn is_manager(&self) -> bool {
        self.me == MANAGER
    }

    /// Whether there are workers beside the manager.
    pub(crate) fn has_workers(&self) -> bool {
        self.all.len() > 1
    }

    /// The numbers of the other threads.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.all.len()).filter(move |&one| one != me)
    }

    /// A number that none had before.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Has another thread do something between two rounds. False if it has ended.
    ///
    /// A thread's messages are about its queues, their commands and the namespaces, each of which
    /// causes few at a time: so the bounds of these are the bounds of what may wait.
    pub(crate) fn send(&self, to: usize, act: impl FnOnce(&mut Target) + Send + 'static) -> bool {
        self.all[to].send(Box::new(act))
    }

    /// Has all other threads do something, and does not wait.
    pub(crate) fn send_all(&self, act: impl Fn(&mut Target) + Clone + Send + 'static) {
        for other in self.others() {
            let act = act.clone();
            self.send(other, move |target| act(target));
        }
    }
}

/// What a thread waits for that has asked others.
struct Answers<T> {
    /// The answers so far, and how many are missing.
    state: Mutex<(Vec<T>, usize)>,
    signal: Signal,
}

/// Answers when it is dropped at the latest.
struct Answerer<T>(Arc<Answers<T>>);

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        self.0.state.lock().1 -= 1;
        self.0.signal.raise();
    }
}

impl Target {
    /// Has all workers do something, and waits until they have. Returns the answers of those that
    /// have not ended. Only for the manager.
    pub(super) fn everywhere<T: Send + 'static>(
        &self,
        act: impl Fn(&mut Target) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        match self.crew.has_workers() {
            true => self.with_each(self.crew.others(), |_| act.clone()),
            false => Vec::new(),
        }
    }

    /// The same for some workers, each of which does something else.
    pub(super) fn with_each<T: Send + 'static, A: FnOnce(&mut Target) -> T + Send + 'static>(
        &self,
        workers: impl Iterator<Item = usize>,
        mut act: impl FnMut(usize) -> A,
    ) -> Vec<T> {
        debug_assert!(self.crew.is_manager(), "a worker never waits for others");
        let signal = Signal::new(self.platform.clone());
        let answers = Arc::new(Answers { state: Mutex::new((Vec::new(), 0)), signal });
        for worker in workers {
            answers.state.lock().1 += 1;
            let (answerer, act) = (Answerer(answers.clone()), act(worker));
            self.crew.send(worker, move |target| {
                let answer = act(target);
                answerer.0.state.lock().0.push(answer);
            });
        }
        loop {
            let seen = answers.signal.value();
            {
                let mut state = answers.state.lock();
                if state.1 == 0 {
                    return core::mem::take(&mut state.0);
                }
            }
            answers.signal.wait(seen, None);
        }
    }

    /// Carries out what other threads have sent. Each message is short.
    pub(super) fn take_messages(&mut self) {
        let shared = self.shared.clone();
        while let Some(message) = shared.take_message() {
            message(self);
        }
    }

    /// How many queues all threads have.
    pub(super) fn count_of_queues(&self) -> usize {
        self.queues.len() + self.crew.placed.len()
    }
}

/// A worker of a target with several threads ([`Target::workers`]). A thread runs it.
pub struct Worker(pub(super) Target);

impl Worker {
    /// Serves hosts' queues until the target ends, and frees all that the worker made.
    ///
    /// # Errors
    ///
    /// Like those of [`Target::run`].
    pub fn run(self) -> Result<(), Error> {
        self.0.run()
    }
}
