//! How long the driver waits for the device, in a time that passes only while it waits.

extern crate ferrovia_nic_hal as nic_hal;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use host::fake::identity;
use host::{Arena, HostPlatform, Os};
use nic_abi::admin::Bench;
use nic_abi::registers::{
    CONTROL_REQUEST, CONTROL_RESET, SIZE, STATUS_ACKNOWLEDGED, STATUS_HEARTBEAT, STATUS_STATE,
};
use nic_hal::{Death, Error, InterruptHandler, Nic, Transport};
use platform::sync::atomic::AtomicU32 as Word;
use platform::{Instant, OutOfMemory, SharedSlice, Wake};
use zerocopy::IntoBytes;

/// A device that carries out each reset and start after a time, and no command, and its clock.
struct Device {
    registers: Box<[AtomicU64]>,
    now: AtomicU64,
    /// How long a request takes, and when the last one came.
    takes: AtomicU64,
    kicked: AtomicU64,
    /// From when to when it does not run.
    stopped: [AtomicU64; 2],
}

impl Device {
    fn word(&self, offset: usize) -> &AtomicU32 {
        SharedSlice::from(&self.registers[..]).atomic_u32(offset).unwrap()
    }

    fn work(&self) {
        let [from, until] = [0, 1].map(|n| self.stopped[n].load(Ordering::Relaxed));
        if (from..until).contains(&self.now.load(Ordering::Relaxed)) {
            return;
        }
        self.word(STATUS_HEARTBEAT).fetch_add(1, Ordering::Relaxed);
        let request = self.word(CONTROL_REQUEST).load(Ordering::Acquire);
        let due = self.kicked.load(Ordering::Relaxed) + self.takes.load(Ordering::Relaxed);
        if self.now.load(Ordering::Relaxed) >= due {
            let reset = self.word(CONTROL_REQUEST + 4).load(Ordering::Relaxed) == CONTROL_RESET;
            self.word(STATUS_STATE).store(u32::from(!reset), Ordering::Release);
            self.word(STATUS_ACKNOWLEDGED).store(request, Ordering::Release);
        }
    }
}

#[derive(Clone)]
struct Handle(Arc<Device>);

impl Transport for Handle {
    fn registers(&self) -> SharedSlice<'_> {
        SharedSlice::from(&self.0.registers[..])
    }

    fn kick(&self) {
        self.0.kicked.store(self.0.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn vectors(&self) -> u16 {
        1
    }

    fn set_vector(&self, _: u16, _: Option<InterruptHandler>) -> bool {
        true
    }
}

impl Os for Handle {
    fn now(&self) -> Instant {
        // A thread that polls sees that time passes.
        Instant::from_nanos(self.0.now.fetch_add(100, Ordering::Relaxed))
    }

    fn wait(&self, _: &Word, _: u32, deadline: Option<Instant>) -> Wake {
        self.0.now.fetch_max(deadline.expect("nothing wakes it").as_nanos(), Ordering::Relaxed);
        self.0.work();
        Wake::TimedOut
    }

    fn wake(&self, _: &Word) {}

    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory> {
        unreachable!()
    }

    fn current_thread(&self) -> u64 {
        1
    }
}

fn open() -> (Nic, Arc<Device>) {
    let registers = (0..SIZE / 8).map(|_| AtomicU64::new(0)).collect();
    let [now, takes, kicked] = [const { AtomicU64::new(0) }; 3];
    let stopped = [const { AtomicU64::new(0) }; 2];
    let device = Arc::new(Device { registers, now, takes, kicked, stopped });
    let handle = Handle(device.clone());
    handle.registers().write(nic_abi::registers::IDENTITY, identity().as_bytes()).unwrap();
    let platform = HostPlatform::on(Arc::new(Arena::new(1 << 20)), Box::new(handle.clone()));
    (Nic::open(Arc::new(platform), Arc::new(handle)).expect("it opens"), device)
}

#[test]
#[cfg_attr(miri, ignore = "thousands of steps, and each borrows a register file of 1 MiB anew")]
fn a_reset_may_take_two_seconds_and_that_of_a_dead_device_a_fifth_of_one() {
    for (dead, takes, closes) in
        [(false, 1_900, true), (false, 2_100, false), (true, 190, true), (true, 210, false)]
    {
        let (driver, device) = open();
        if dead {
            driver.condemn();
        }
        device.takes.store(takes * 1_000_000, Ordering::Relaxed);
        assert_eq!(driver.close(), closes, "{takes} ms");
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of steps, and each borrows a register file of 1 MiB anew")]
fn a_device_is_dead_after_two_seconds_without_an_answer_and_after_two_minutes_in_a_benchmark() {
    let lasts = |command: fn(&Nic) -> Result<(), Error>| {
        let (driver, device) = open();
        let begin = device.now.load(Ordering::Relaxed);
        assert_eq!(command(&driver), Err(Error::DeviceDead(Death::CommandTimeout)));
        Duration::from_nanos(device.now.load(Ordering::Relaxed) - begin).as_millis()
    };
    assert_eq!(lasts(|driver| driver.create_pd(1)), 2_000);
    assert_eq!(lasts(|driver| driver.testing().bench(&Bench::default()).map(|_| ())), 120_000);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of steps, and each borrows a register file of 1 MiB anew")]
fn memory_of_a_transfer_that_was_not_answered_waits_for_a_reset() {
    let (driver, _device) = open();
    let buffer = driver.stream_buffer(16).expect("memory");
    assert_eq!(driver.send_stream(7, &buffer, &[1]), Err(Error::DeviceDead(Death::CommandTimeout)));
    drop(buffer);
    assert_eq!(driver.quarantined(), 1);
    assert!(driver.close());
    assert_eq!(driver.quarantined(), 0);
}

/// A process that is stopped for some seconds and continued is not dead, and its command has the
/// time in which it runs. One that is stopped for longer than the driver bears is.
#[test]
#[cfg_attr(miri, ignore = "thousands of steps, and each borrows a register file of 1 MiB anew")]
fn a_device_that_is_stopped_for_a_while_is_not_dead() {
    for (from, until, ends, death) in [
        (1_000, 7_000, 2_000 + 6_000 - 500, Death::CommandTimeout),
        (1_000, 12_000, 11_000, Death::Heartbeat),
    ] {
        let (driver, device) = open();
        let begin = device.now.load(Ordering::Relaxed);
        for (at, ms) in device.stopped.iter().zip([from, until]) {
            at.store(begin + ms * 1_000_000, Ordering::Relaxed);
        }
        assert_eq!(driver.create_pd(1), Err(Error::DeviceDead(death)));
        let lasted = Duration::from_nanos(device.now.load(Ordering::Relaxed) - begin).as_millis();
        // The driver looks at the heartbeat ten times a second.
        assert!((ends..=ends + 200).contains(&lasted), "{death:?} after {lasted} ms");
    }
}
