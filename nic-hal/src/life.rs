//! Whether the device is alive, as far as the driver can see.
//!
//! A device whose heartbeat stands still may be stopped, as a process by SIGSTOP, and go on later;
//! or it is gone for good. The driver cannot tell, so it waits for a while before it gives the
//! device up. The time in which the heartbeat stands still does not count towards the limit of a
//! command, since the device does not run in it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use nic_abi::registers::{self, HEARTBEAT_DEAD_MS, State};
use platform::sync::Mutex;
use platform::{Instant, Signal};

use crate::Death;
use crate::mapped::Registers;

/// The longest time that one look counts for: if the driver did not run, the device is not to
/// blame.
const MAX_STEP_NS: u64 = 500_000_000;
/// The time between two looks of a thread that waits for an answer.
const PERIOD: Duration = Duration::from_millis(100);
/// A heartbeat that has not changed for this time stands still: the device does not run.
const STANDS_STILL: Duration = Duration::from_millis(500);

/// The device's life. Death is final.
pub(crate) struct Life {
    /// 0 while alive, else a code and, above 32 bits, a detail.
    death: AtomicU64,
    signal: Arc<Signal>,
    watch: Mutex<Watch>,
    /// How long the heartbeat may stand still.
    silence_ns: AtomicU64,
}

/// The limit of a command: the device may take so much time in which it runs.
pub(crate) struct Limit {
    deadline: Instant,
    heartbeat: u32,
    /// When the heartbeat changed last, as far as this thread saw.
    changed: Instant,
    next_look: Instant,
}

impl Limit {
    /// A limit that begins now.
    pub(crate) fn new(now: Instant, time: Duration, registers: &Registers) -> Limit {
        let heartbeat = registers.status(registers::STATUS_HEARTBEAT);
        Limit { deadline: now + time, heartbeat, changed: now, next_look: now + PERIOD }
    }

    /// Declares the device dead if it has taken too long, or if it is dead for another reason. The
    /// dispatcher thread may be held up, or be the one that waits, so this looks at all signs.
    pub(crate) fn check(&mut self, now: Instant, life: &Life, registers: &Registers) {
        if now >= self.next_look {
            self.next_look = now + PERIOD;
            life.look(now, registers);
        }
        if self.is_over(now, registers.status(registers::STATUS_HEARTBEAT)) {
            life.end(Death::CommandTimeout);
        }
    }

    /// When to look again at the latest, in order not to miss the limit.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        if self.deadline > now { self.deadline } else { now + PERIOD }
    }

    fn is_over(&mut self, now: Instant, heartbeat: u32) -> bool {
        let silence = now.since(self.changed);
        if heartbeat != self.heartbeat {
            (self.heartbeat, self.changed) = (heartbeat, now);
            self.deadline = self.deadline + silence.saturating_sub(STANDS_STILL);
        }
        now >= self.deadline && now.since(self.changed) < STANDS_STILL
    }
}

#[derive(Default)]
struct Watch {
    heartbeat: u32,
    last_look: Option<Instant>,
    stuck_ns: u64,
}

fn encode(death: Death) -> u64 {
    match death {
        Death::Heartbeat => 1,
        Death::Failed(fault) => 2 | u64::from(fault) << 32,
        Death::CommandTimeout => 3,
        Death::Protocol => 4,
        Death::Closed => 5,
    }
}

fn decode(code: u64) -> Option<Death> {
    match code as u32 {
        1 => Some(Death::Heartbeat),
        2 => Some(Death::Failed((code >> 32) as u32)),
        3 => Some(Death::CommandTimeout),
        4 => Some(Death::Protocol),
        5 => Some(Death::Closed),
        _ => None,
    }
}

impl Life {
    pub(crate) fn new(signal: Arc<Signal>) -> Life {
        let silence_ns = AtomicU64::new(HEARTBEAT_DEAD_MS * 1_000_000);
        Life { death: AtomicU64::new(0), signal, watch: Mutex::new(Watch::default()), silence_ns }
    }

    /// Sets how long the heartbeat may stand still.
    pub(crate) fn bear_silence(&self, time: Duration) {
        self.silence_ns.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn death(&self) -> Option<Death> {
        decode(self.death.load(Ordering::Acquire))
    }

    /// Declares the device dead and wakes all waiters. The first reason holds, and is returned.
    pub(crate) fn end(&self, death: Death) -> Death {
        let code = encode(death);
        match self.death.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                if death != Death::Closed {
                    log::error!("RNIC: {death}");
                }
                self.signal.raise();
                death
            }
            Err(earlier) => decode(earlier).unwrap_or(death),
        }
    }

    /// Declares the device dead if its status page says so, or if its heartbeat stopped.
    pub(crate) fn look(&self, now: Instant, registers: &Registers) {
        let status = |offset| registers.status(offset);
        let (state, fault) = (status(registers::STATUS_STATE), status(registers::STATUS_FAULT));
        self.watch(now, state, fault, status(registers::STATUS_HEARTBEAT));
    }

    fn watch(&self, now: Instant, state: u32, fault: u32, heartbeat: u32) {
        if self.death().is_some() {
            return;
        }
        match State::from_word(state) {
            Some(State::Ready) => {}
            Some(State::Failed) => {
                self.end(Death::Failed(fault));
                return;
            }
            Some(State::Idle) | None => {
                self.end(Death::Protocol);
                return;
            }
        }
        let stuck = {
            let mut watch = self.watch.lock();
            let step = watch.last_look.map_or(0, |last| now.since(last).as_nanos() as u64);
            if watch.last_look.is_none() || watch.heartbeat != heartbeat {
                watch.stuck_ns = 0;
            } else {
                watch.stuck_ns += step.min(MAX_STEP_NS);
            }
            watch.heartbeat = heartbeat;
            watch.last_look = Some(now);
            watch.stuck_ns >= self.silence_ns.load(Ordering::Relaxed)
        };
        if stuck {
            self.end(Death::Heartbeat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life() -> Life {
        Life::new(Arc::new(Signal::new(host::Machine::new(1).platform())))
    }

    #[test]
    fn the_first_reason_of_a_death_holds() {
        for death in
            [Death::Heartbeat, Death::Failed(7), Death::CommandTimeout, Death::Protocol, Death::Closed]
        {
            let life = life();
            assert_eq!(life.death(), None);
            assert_eq!(life.end(death), death);
            assert_eq!((life.end(Death::Failed(8)), life.death()), (death, Some(death)));
        }
    }

    #[test]
    fn a_device_in_no_state_of_a_running_one_is_dead() {
        for (state, death) in
            [(0, Death::Protocol), (1, Death::Closed), (2, Death::Failed(9)), (3, Death::Protocol)]
        {
            let life = life();
            life.watch(Instant::from_nanos(0), state, 9, 0);
            assert_eq!(life.end(Death::Closed), death, "state {state}");
        }
    }

    /// For half as long the device is only stopped, whatever the driver asks for meanwhile.
    #[test]
    fn a_heartbeat_that_stands_still_is_death_after_its_time_and_no_sooner() {
        for limit in [HEARTBEAT_DEAD_MS, 1000] {
            let life = life();
            life.bear_silence(Duration::from_millis(limit));
            let ready = State::Ready as u32;
            let step = MAX_STEP_NS / 1_000_000 / 5;
            let look = |ms: u64, heartbeat| {
                life.watch(Instant::from_nanos(ms * 1_000_000), ready, 0, heartbeat);
                life.death()
            };
            look(0, 7);
            for ms in (step..limit).step_by(step as usize) {
                assert_eq!(look(ms, 7), None, "{ms} ms");
            }
            assert_eq!(look(limit - 1, 7), None);
            assert_eq!(look(limit, 7), Some(Death::Heartbeat));
        }
    }

    #[test]
    fn the_time_in_which_the_heartbeat_stands_still_is_not_a_commands() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let limit = || Limit { deadline: at(2000), heartbeat: 0, changed: at(0), next_look: at(0) };
        let mut runs = limit();
        assert!((1..2000).all(|ms| !runs.is_over(at(ms), ms as u32)));
        assert!(runs.is_over(at(2000), 2000));
        // Stopped from 1,000 ms to 6,000 ms: half a second passes until that is known.
        let mut stopped = limit();
        assert!((1..=1000).all(|ms| !stopped.is_over(at(ms), ms as u32)));
        assert!((1001..6000).all(|ms| !stopped.is_over(at(ms), 1000)));
        assert!((6000..6500).all(|ms| !stopped.is_over(at(ms), ms as u32)));
        assert!(stopped.is_over(at(6500), 6500));
        // A device that stands still is not late.
        let mut silent = limit();
        assert!((500..100_000).all(|ms| !silent.is_over(at(ms), 0)));
        // The driver did not run: the device may not have had the command for long.
        assert!(!limit().is_over(at(50_000), 9));
    }
}
