//! How regularly the heartbeats of a device's NICs come: their number, and the longest time between
//! two beats, by the clock and by the processor time of the device's thread.
//!
//! On a busy machine the device's thread may get no processor for a while, which the device cannot
//! prevent. The processor time shows the delays that the device itself causes: it stands still
//! while the thread sleeps or waits for a processor.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

/// The longest times between two beats of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// By the clock.
    pub wall: Duration,
    /// By the processor time of the device's thread.
    pub work: Duration,
}

#[derive(Debug, Default)]
struct Nic {
    beats: AtomicU32,
    wall: AtomicU64,
    work: AtomicU64,
}

/// The beats of each NIC of a device. The device's thread writes it, other threads read it.
#[derive(Debug)]
pub struct Pulse(Vec<Nic>);

impl Pulse {
    /// For a device with this many NICs, before the first beat.
    pub fn new(nics: usize) -> Pulse {
        Pulse((0..nics).map(|_| Nic::default()).collect())
    }

    /// The number of beats of each NIC.
    pub fn beats(&self) -> Vec<u32> {
        self.0.iter().map(|nic| nic.beats.load(Ordering::Acquire)).collect()
    }

    /// The longest times between two beats of each NIC.
    pub fn gaps(&self) -> Vec<Gaps> {
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        self.0.iter().map(|nic| Gaps { wall: time(&nic.wall), work: time(&nic.work) }).collect()
    }
}

/// The device's thread's record of the last beat of each NIC.
pub struct Watch<'a> {
    pulse: &'a Pulse,
    last: Vec<Option<(u32, Instant, Duration)>>,
}

impl Watch<'_> {
    /// Begins before the first beat.
    pub fn new(pulse: &Pulse) -> Watch<'_> {
        Watch { pulse, last: vec![None; pulse.0.len()] }
    }

    /// Checks the heartbeat of NIC number `index`.
    #[inline]
    pub fn look(&mut self, index: usize, heartbeat: u32) {
        let last = self.last.get_mut(index);
        if let Some(last) = last.filter(|last| last.is_none_or(|(seen, ..)| seen != heartbeat)) {
            let (now, work) = (Instant::now(), work());
            let nic = &self.pulse.0[index];
            if let Some((_, then, before)) = *last {
                let longest = |of: &AtomicU64, gap: Duration| {
                    of.fetch_max(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
                };
                longest(&nic.wall, now.saturating_duration_since(then));
                longest(&nic.work, work.saturating_sub(before));
            }
            nic.beats.fetch_add(1, Ordering::Release);
            *last = Some((heartbeat, now, work));
        }
    }
}

/// The processor time of this thread.
fn work() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_of_each_nic_is_kept() {
        let pulse = Pulse::new(2);
        let mut watch = Watch::new(&pulse);
        for heartbeat in [7, 7, 8, 9, 9] {
            watch.look(0, heartbeat);
        }
        watch.look(1, 7);
        assert_eq!(pulse.beats(), [3, 1], "a beat is a change, and the first look");
        let gaps = pulse.gaps();
        assert!(gaps[0].wall > Duration::ZERO);
        assert_eq!(gaps[1], Gaps::default(), "one beat has no gap");
    }
}
