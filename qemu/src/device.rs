//! The device's thread: it drives the model of all NICs of a guest.
//!
//! The thread polls while there is work. After `SPIN` without work it asks the driver for kicks and
//! sleeps on the doorbells' eventfds, until the model's next deadline at most. The thread owns the
//! NICs' ports, so after its end nothing accesses the guest's memory: for the guest this is a
//! device whose process was killed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nic_model::{Fabric, NicConfig, NicId, Progress};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::error::{Error, Result};
use crate::frontend::Port;
use crate::pulse::{Pulse, Watch};

/// How long the device looks for work before it sleeps: longer than a guest takes between two
/// posts, and short enough that the guest's own thread gets the CPU on a small machine.
const SPIN: Duration = Duration::from_micros(15);
/// Units of work before the thread reads the clock and its stop flag again.
const BUDGET: u32 = 64;

/// The running device of a guest; dropping it ends it.
#[derive(Debug)]
pub struct Device {
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts a device with a NIC behind each port, joined by short cuts. Its DMA reaches the bus
    /// addresses below `dma_limit`.
    pub fn start<P: Port>(ports: Vec<P>, dma_limit: u64) -> Result<Device> {
        let failed = |e| Error::system("start the device", e);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed(e.into()))?;
        let sleep_on = wake.try_clone().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let pulse = Arc::new(Pulse::new(ports.len()));
        let felt = pulse.clone();
        // The model is made in its thread, since it need not be `Send`.
        let (ready, made) = mpsc::channel();
        let thread = std::thread::Builder::new().name("device".into()).spawn(move || {
            match power_on(ports, dma_limit) {
                Ok((fabric, doorbells)) => {
                    let _ = ready.send(Ok(()));
                    drive(fabric, &doorbells, &sleep_on, &asked, &felt);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        });
        let thread = thread.map_err(failed)?;
        match made.recv() {
            Ok(result) => result?,
            Err(_) => return Err(Error::Tool("the device ended before it began".into())),
        }
        Ok(Device { stop, pulse, wake, thread: Some(thread) })
    }

    /// How regularly the hearts of its NICs beat.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Waits until the heart of each NIC has beaten, for `limit` at most: a mute NIC's does not.
    pub fn wait_for_beats(&self, limit: Duration) {
        let (before, begun) = (self.pulse.beats(), Instant::now());
        while self.pulse.beats().iter().zip(&before).any(|(now, before)| now == before)
            && begun.elapsed() < limit
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the device for good. After this returned, it accesses nothing of the guest's.
    pub fn kill(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It fails only if 2^64 - 2 wake-ups are pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // After a panic, which has been printed, the thread has ended too.
            let _ = thread.join();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A NIC and its doorbell's eventfd.
type Doorbell = (NicId, OwnedFd);

fn power_on<P: Port>(ports: Vec<P>, dma_limit: u64) -> Result<(Fabric<P>, Vec<Doorbell>)> {
    let mut fabric = Fabric::new();
    let mut doorbells: Vec<Doorbell> = Vec::new();
    for (number, port) in (0..).zip(ports) {
        let kick = port.kick()?;
        let nic = fabric
            .add_nic(NicConfig::numbered(number, dma_limit), port)
            .map_err(|e| Error::Tool(format!("NIC {number}: {e}")))?;
        for (other, _) in &doorbells {
            fabric.connect(*other, nic);
        }
        doorbells.push((nic, kick));
    }
    Ok((fabric, doorbells))
}

fn drive<P: Port>(
    mut fabric: Fabric<P>,
    doorbells: &[Doorbell],
    wake: &OwnedFd,
    stop: &AtomicBool,
    pulse: &Pulse,
) {
    let mut watch = Watch::new(pulse);
    let origin = Instant::now();
    let now =
        || platform::Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    while !stop.load(Ordering::Acquire) {
        let mut idle_since = now();
        loop {
            let time = now();
            let progress = fabric.poll(time, BUDGET);
            for (index, (nic, _)) in doorbells.iter().enumerate() {
                watch.look(index, fabric.heartbeat(*nic).unwrap_or(0));
            }
            if progress == Progress::Worked {
                idle_since = time;
            } else if time.since(idle_since) >= SPIN {
                break;
            }
            if stop.load(Ordering::Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        if fabric.prepare_sleep() {
            let time = now();
            let timeout = fabric.next_deadline().map(|deadline| deadline.since(time));
            for nic in sleep(doorbells, wake, timeout) {
                fabric.kicked(nic);
            }
        }
        fabric.awake();
    }
}

/// Waits for a doorbell, for `wake`, or for the timeout; returns the NICs whose doorbell rang.
fn sleep(doorbells: &[Doorbell], wake: &OwnedFd, timeout: Option<Duration>) -> Vec<NicId> {
    let mut fds: Vec<PollFd<'_>> =
        doorbells.iter().map(|(_, kick)| PollFd::new(kick, PollFlags::IN)).collect();
    fds.push(PollFd::new(wake, PollFlags::IN));
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
        return Vec::new();
    }
    let rang = doorbells.iter().zip(&fds).filter(|(_, fd)| fd.revents().contains(PollFlags::IN));
    rang.map(|((nic, kick), _)| {
        // It does not block, since QEMU and we both set O_NONBLOCK; that nothing is there is no
        // error.
        let _ = rustix::io::read(kick, &mut [0; 8]);
        *nic
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{GuestRam, SharedMemory};
    use nic_abi::{pci, registers};
    use platform::SharedSlice;

    struct TestPort {
        ram: GuestRam,
        registers: Arc<SharedMemory>,
        kick: Arc<OwnedFd>,
    }

    impl nic_model::Frontend for TestPort {
        type Memory = GuestRam;

        fn registers(&self) -> SharedSlice<'_> {
            self.registers.slice()
        }

        fn memory(&self) -> &GuestRam {
            &self.ram
        }

        fn raise(&self, vector: u16) {
            assert!(vector < pci::VECTORS);
        }
    }

    impl Port for TestPort {
        fn kick(&self) -> Result<OwnedFd> {
            Ok(self.kick.try_clone().expect("a descriptor"))
        }
    }

    fn word(registers: &SharedMemory, offset: usize) -> u32 {
        registers.slice().atomic_u32(offset).expect("aligned").load(Ordering::Acquire)
    }

    /// Waits until the device has done something, and panics if it takes too long.
    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_device_has_an_identity_a_heartbeat_and_an_end() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        let eventfd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
        let kick = Arc::new(eventfd);
        let memories: Vec<Arc<SharedMemory>> = (0..2)
            .map(|_| Arc::new(SharedMemory::new("registers", registers::SIZE).expect("1 MiB")))
            .collect();
        let ports = memories
            .iter()
            .map(|registers| TestPort { ram: ram.clone(), registers: registers.clone(), kick: kick.clone() })
            .collect();
        let mut device = Device::start(ports, ram.limit()).expect("it starts");
        for registers in &memories {
            let magic =
                registers.slice().atomic_u64(registers::IDENTITY).expect("aligned").load(Ordering::Acquire);
            assert_eq!(magic, registers::MAGIC, "the identity is there before the guest is");
            let before = word(registers, registers::STATUS_HEARTBEAT);
            until("its heart beats while it sleeps", || {
                word(registers, registers::STATUS_HEARTBEAT) != before
            });
        }
        // A kick wakes it, and it carries out the reset that the driver asks for.
        let control = memories[1].slice();
        control
            .atomic_u32(registers::CONTROL_REQUEST + 4)
            .expect("aligned")
            .store(registers::CONTROL_RESET, Ordering::Relaxed);
        control.atomic_u32(registers::CONTROL_REQUEST).expect("aligned").store(7, Ordering::Release);
        rustix::io::write(&*kick, &1u64.to_ne_bytes()).expect("ring");
        until("it answers", || word(&memories[1], registers::STATUS_ACKNOWLEDGED) == 7);
        device.kill();
        for registers in &memories {
            assert_eq!(Arc::strong_count(registers), 1, "nothing of the guest's is left to it");
        }
        device.kill();
    }
}
