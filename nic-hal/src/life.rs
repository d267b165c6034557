//! Whether the device is alive, as far as the driver can see.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::registers::{HEARTBEAT_DEAD_MS, State};
use platform::sync::Mutex;
use platform::{Instant, Signal};

use crate::Death;

/// The longest time that one look counts for: if the driver did not run, the device is not to
/// blame.
const MAX_STEP_NS: u64 = 500_000_000;

/// The device's life. Death is final.
pub(crate) struct Life {
    /// 0 while alive, else a code and, above 32 bits, a detail.
    death: AtomicU64,
    signal: Arc<Signal>,
    watch: Mutex<Watch>,
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
        Life { death: AtomicU64::new(0), signal, watch: Mutex::new(Watch::default()) }
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
    pub(crate) fn watch(&self, now: Instant, state: u32, fault: u32, heartbeat: u32) {
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
            watch.stuck_ns >= HEARTBEAT_DEAD_MS * 1_000_000
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

    #[test]
    fn a_heartbeat_that_stands_still_is_death_after_its_time_and_no_sooner() {
        let life = life();
        let ready = State::Ready as u32;
        let step = MAX_STEP_NS / 1_000_000 / 5;
        let look = |ms: u64, heartbeat| {
            life.watch(Instant::from_nanos(ms * 1_000_000), ready, 0, heartbeat);
            life.death()
        };
        look(0, 7);
        for ms in (step..HEARTBEAT_DEAD_MS).step_by(step as usize) {
            assert_eq!(look(ms, 7), None, "{ms} ms");
        }
        assert_eq!(look(HEARTBEAT_DEAD_MS - 1, 7), None);
        assert_eq!(look(HEARTBEAT_DEAD_MS, 7), Some(Death::Heartbeat));
    }
}
