//! What goes wrong with disks while hosts use them: stalls, blocks that fail, flushes that fail.

use std::sync::Arc;

use block::Fault;
use platform::Instant;
use platform::random::Random;

use super::plan;
use super::shared::Shared;
use crate::harness::story::{Story, Tally};

/// What happens to a disk for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Requests do not complete.
    Stall,
    /// Requests for some blocks fail.
    Blocks,
    /// Flushes fail, and writes with FUA.
    Flushes,
}

/// The faults of all disks.
pub(super) struct Faults {
    shared: Arc<Shared>,
    random: Random,
    story: Story,
    /// For each disk what happens, and until when.
    now: Vec<Option<(Kind, Instant)>>,
}

impl Faults {
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, story: &Story) -> Faults {
        let now = shared.disks.iter().map(|_| None).collect();
        Faults { shared: shared.clone(), random: Random::new(seed), story: story.of("disks"), now }
    }

    /// Ends what is due, and begins something now and then.
    pub(super) fn act(&mut self, tally: &mut Tally) {
        if self.shared.plan.is_quiet {
            return;
        }
        let now = self.shared.now();
        for number in 0..self.now.len() {
            match self.now[number] {
                Some((_, until)) if now < until => {}
                Some(_) => self.end(number),
                None if self.random.rarely(6) => self.begin(number, now, tally),
                None => {}
            }
        }
    }

    fn begin(&mut self, number: usize, now: Instant, tally: &mut Tally) {
        let random = &mut self.random;
        let kind = [Kind::Stall, Kind::Stall, Kind::Blocks, Kind::Flushes][random.below(4) as usize];
        // Some last longer than any keep-alive timeout.
        let lasts = plan::time(random, 31);
        let faulty = &self.shared.disks[number];
        self.story.tell(|| format!("{kind:?} of disk {number} for {lasts:?}"));
        match kind {
            Kind::Stall => {
                tally.fault("disks that stalled", 1);
                faulty.disk.stall();
            }
            Kind::Blocks => {
                tally.fault("disks with blocks that failed", 1);
                let first = random.below(self.shared.plan.disks[number].blocks);
                faulty.begin();
                faulty.disk.fail(first..first + 1 + random.below(32), Fault::Media);
            }
            Kind::Flushes => {
                tally.fault("disks whose flushes failed", 1);
                faulty.begin();
                faulty.disk.fail_flushes(Some(Fault::Media));
            }
        }
        self.now[number] = Some((kind, now + lasts));
    }

    fn end(&mut self, number: usize) {
        let faulty = &self.shared.disks[number];
        match self.now[number].take() {
            Some((Kind::Stall, _)) => faulty.disk.release(),
            Some(_) => faulty.end(),
            None => return,
        }
        self.story.tell(|| format!("disk {number} is well again"));
    }

    /// Ends everything.
    pub(super) fn end_all(&mut self) {
        (0..self.now.len()).for_each(|number| self.end(number));
    }
}
