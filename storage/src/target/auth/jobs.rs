//! Powers in groups, which take long: a step at a time, between other work.
//!
//! Each queue has one job at most. They are done one after the other, in the order in which they
//! came.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use zeroize::Zeroizing;

use super::responder::Job;
use crate::auth::{Groups, Power, Random};
use crate::target::server::Target;

/// The part of the thread's time that steps may take while there is other work: one in so many.
const SHARE: u64 = 4;

/// A queue by its number, and its endpoint, which no later queue with this number has.
type Owner = (u32, u64);

/// The jobs of all queues.
pub(crate) struct Jobs {
    /// `None` if the platform has none. Then no host can authenticate.
    random: Option<Random>,
    groups: Groups,
    waiting: VecDeque<(Owner, Job)>,
    now: Option<(Owner, Power)>,
    /// No step is done before this time while there is other work.
    next: u64,
}

impl Jobs {
    pub(crate) fn new(random: Option<Random>, queues: usize) -> Jobs {
        let (groups, waiting) = (Groups::default(), VecDeque::with_capacity(queues));
        Jobs { random, groups, waiting, now: None, next: 0 }
    }

    /// The source of random numbers, if there is one.
    pub(super) fn random(&self) -> Option<&Random> {
        self.random.as_ref()
    }

    pub(super) fn add(&mut self, owner: Owner, job: Job) {
        self.waiting.push_back((owner, job));
    }

    /// Forgets the job of a queue that has ended.
    pub(crate) fn forget(&mut self, owner: Owner) {
        self.waiting.retain(|(other, _)| *other != owner);
        self.now.take_if(|(other, _)| *other == owner);
    }
}

/// What became of a step.
enum Step {
    /// There is nothing to do.
    Idle,
    /// A job goes on.
    More,
    /// A job is done.
    Done(Owner, Option<Zeroizing<Box<[u8]>>>),
}

impl Jobs {
    fn step(&mut self) -> Step {
        let Some((owner, power)) = &mut self.now else {
            let Some((owner, job)) = self.waiting.pop_front() else { return Step::Idle };
            let power = match job.value {
                None => self.groups.begin(job.group, job.exponent),
                Some(value) => self.groups.continued(job.group, &value, job.exponent),
            };
            let Some(power) = power else { return Step::Done(owner, None) };
            self.now = Some((owner, power));
            return Step::More;
        };
        let owner = *owner;
        let Some(result) = power.step() else { return Step::More };
        self.now = None;
        Step::Done(owner, Some(result))
    }
}

impl Target {
    /// Does a step of a job, unless there was other work in this round, and steps have had their
    /// share of the time. True if there is more to do, or a host can go on.
    pub(in crate::target) fn compute(&mut self, has_worked: bool) -> bool {
        if self.jobs.now.is_none() && self.jobs.waiting.is_empty() {
            return false;
        }
        if has_worked && self.clock < self.jobs.next {
            return true;
        }
        let begun = self.now();
        let step = self.jobs.step();
        let ended = self.now();
        self.jobs.next = ended + (SHARE - 1) * ended.saturating_sub(begun);
        match step {
            Step::Idle => false,
            Step::More => true,
            Step::Done((number, endpoint), result) => {
                self.computed(number, endpoint, result);
                true
            }
        }
    }
}
