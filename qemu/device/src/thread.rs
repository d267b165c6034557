//! The device's thread: it runs the model of all NICs of one guest or of several.
//!
//! The thread polls while there is work. After `SPIN` without work it arms the doorbells, so that
//! drivers kick, and sleeps on the doorbells' eventfds and the links' sockets, at most until the
//! model's next deadline. It waits for nothing else: what it has to print or to write goes to other
//! threads (`reporter`, [`Capture`]), since a terminal, a pipe or a disk may be slow. The thread
//! owns the NICs' ports, so after its end nothing accesses a guest's memory.
//!
//! When it has to end it powers all NICs off, and goes on until the peers of their streams know of
//! the end, or two seconds are over ([`Fabric::is_leaving`]): a connection that a guest has closed
//! ends in good order though the guest has ended at once, and also if a packet is lost.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use links::{Capture, Link, Missing};
use nic_model::{Fabric, NicConfig, NicId, Progress, port};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::counters;
use crate::error::{Error, Result};
use crate::frontend::Port;
use crate::pulse::{Pulse, Watch};
use crate::reporter::Reporter;

/// How long the device polls without work before it sleeps: longer than a guest takes between two
/// posts, and short enough that the guest's own thread gets the CPU on a small machine.
const SPIN: Duration = Duration::from_micros(15);
/// Units of work before the thread reads the clock and its stop flag again.
const BUDGET: u32 = 64;

/// How often the counters are written to their file.
const REPORTS: Duration = Duration::from_secs(1);

/// What the port of a NIC is plugged into.
pub type Wire = Box<dyn Link + Send>;

/// A NIC's port and its wire.
pub struct Plugged {
    /// The GUID of the NIC's node.
    pub node_guid: u64,
    /// The port.
    pub port: port::Config,
    /// Its link.
    pub wire: Wire,
}

/// What the NICs of a device are plugged into, and where it writes.
pub struct Plugs {
    /// For each NIC, unless there are short cuts.
    pub plugged: Vec<Plugged>,
    /// The file with all frames.
    pub capture: Option<Capture>,
    /// The file with the NICs' counters.
    pub counters: Option<PathBuf>,
    /// Prints a line for the user.
    pub complain: fn(&str),
}

/// A request to the thread.
enum Order {
    /// To end.
    Stop,
    /// To power these NICs off, and to drop the sender when that is done.
    PowerOff(Range<usize>, mpsc::Sender<()>),
    /// To power these NICs off and on again, and to drop the sender when that is done.
    PowerCycle(Range<usize>, mpsc::Sender<()>),
}

/// The running device of one guest or of several; dropping it ends it.
#[derive(Debug)]
pub struct Device {
    orders: mpsc::Sender<Order>,
    /// Whether there are orders. The thread reads only this word while it polls.
    asked: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts a device with a NIC behind each port. [`Frontend::start`](crate::frontend::Frontend)
    /// is for users: it makes the model known to this crate, which is optimised.
    pub(crate) fn start<P: Port>(ports: Vec<P>, plugs: Plugs) -> Result<Device> {
        let failed = |e| Error::system("start the device", e);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed(e.into()))?;
        let sleep_on = wake.try_clone().map_err(failed)?;
        let asked = Arc::new(AtomicBool::new(false));
        let (orders, arriving) = mpsc::channel();
        let inbox = Inbox { asked: asked.clone(), orders: arriving, wake: sleep_on };
        let pulse = Arc::new(Pulse::new(ports.len()));
        let felt = pulse.clone();
        // The model is created in its thread, since it need not be `Send`.
        let (ready, made) = mpsc::channel();
        let run = move || match power_on(ports, plugs) {
            Ok(mut running) => {
                let _ = ready.send(Ok(()));
                running.drive(&inbox, &felt);
                running.report();
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("device".into()).spawn(run);
        let thread = thread.map_err(failed)?;
        match made.recv() {
            Ok(result) => result?,
            Err(_) => return Err(Error::Model("the device ended before it began".into())),
        }
        Ok(Device { orders, asked, pulse, wake, thread: Some(thread) })
    }

    /// How regularly the heartbeats of its NICs come.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Waits until each NIC has shown a heartbeat, at most for `limit`: a mute NIC shows none.
    pub fn wait_for_beats(&self, limit: Duration) {
        let (before, begun) = (self.pulse.beats(), Instant::now());
        while self.pulse.beats().iter().zip(&before).any(|(now, before)| now == before)
            && begun.elapsed() < limit
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Powers NICs off for good, because their guest has ended or asks for a dead device. After the
    /// return they access nothing of the guest's; the other NICs continue.
    pub fn power_off(&self, nics: Range<usize>) {
        let (done, is_done) = mpsc::channel();
        self.order(Order::PowerOff(nics, done));
        // An error means that the thread dropped the sender, or has ended.
        let _ = is_done.recv();
    }

    /// Powers NICs off and on again, because their guest has ended and another one may come. After
    /// the return they access nothing of the former guest's.
    pub fn power_cycle(&self, nics: Range<usize>) {
        let (done, is_done) = mpsc::channel();
        self.order(Order::PowerCycle(nics, done));
        let _ = is_done.recv();
    }

    /// Ends the device for good. After the return it accesses nothing of any guest's. It waits
    /// until the peers of streams know of the end, for two seconds at most.
    pub fn kill(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // After a panic, which has been printed, the thread has ended too.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        // This fails if the thread has ended.
        let _ = self.orders.send(order);
        // Release: a thread that reads this mark finds the order.
        self.asked.store(true, Ordering::Release);
        // This fails only if 2^64 - 2 wake-ups are pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The doorbell of a NIC.
struct Doorbell {
    nic: NicId,
    eventfd: OwnedFd,
    /// How often it woke the thread.
    rang: u64,
}

/// The receiving end of the thread's orders.
struct Inbox {
    asked: Arc<AtomicBool>,
    orders: mpsc::Receiver<Order>,
    wake: OwnedFd,
}

impl Inbox {
    /// Carries out the orders that have arrived. False if the thread has to end.
    fn obey<P: Port>(&self, fabric: &mut Fabric<P>, doorbells: &[Doorbell]) -> bool {
        // Acquire: the sender of the order set the mark after it sent. A later order sets it again.
        self.asked.swap(false, Ordering::Acquire);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => return false,
                Order::PowerOff(nics, _done) => {
                    doorbells.get(nics).into_iter().flatten().for_each(|one| fabric.power_off(one.nic));
                }
                Order::PowerCycle(nics, _done) => {
                    doorbells.get(nics).into_iter().flatten().for_each(|one| fabric.power_cycle(one.nic));
                }
            }
        }
        true
    }
}

/// The model of all NICs, and what the thread needs to run it.
struct Running<P: Port> {
    fabric: Fabric<P>,
    doorbells: Vec<Doorbell>,
    capture: Option<Capture>,
    counts: bool,
    reporter: Reporter,
}

fn power_on<P: Port>(ports: Vec<P>, plugs: Plugs) -> Result<Running<P>> {
    let Plugs { plugged, capture, counters, complain } = plugs;
    let mut plugged = plugged.into_iter();
    let mut fabric = Fabric::new();
    let mut doorbells: Vec<Doorbell> = Vec::new();
    for (number, port) in (0..).zip(ports) {
        let failed = |e: &dyn std::error::Error| Error::Model(format!("NIC {number}: {e}"));
        let (kick, mut config) = (port.kick()?, NicConfig::numbered(number, port.dma_limit()));
        let plugged = plugged.next();
        config.node_guid = plugged.as_ref().map_or(config.node_guid, |plugged| plugged.node_guid);
        let nic = fabric.add_nic(config, port).map_err(|e| failed(&e))?;
        match plugged {
            Some(Plugged { wire, port, .. }) => fabric.attach(nic, wire, &port).map_err(|e| failed(&e))?,
            None => doorbells.iter().for_each(|other| fabric.connect(other.nic, nic)),
        }
        doorbells.push(Doorbell { nic, eventfd: kick, rang: 0 });
    }
    let counts = counters.is_some();
    let reporter = Reporter::start(counters, complain)?;
    Ok(Running { fabric, doorbells, capture, counts, reporter })
}

impl<P: Port> Running<P> {
    fn drive(&mut self, inbox: &Inbox, pulse: &Pulse) {
        let mut watch = Watch::new(pulse);
        let origin = Instant::now();
        let now =
            || platform::Instant::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let mut report_at = now();
        let mut ends = false;
        loop {
            let mut idle_since = now();
            loop {
                if inbox.asked.load(Ordering::Acquire) && !inbox.obey(&mut self.fabric, &self.doorbells) {
                    ends = true;
                    self.doorbells.iter().for_each(|one| self.fabric.power_off(one.nic));
                }
                if ends && !self.fabric.is_leaving() {
                    return;
                }
                let time = now();
                let progress = self.fabric.poll(time, BUDGET);
                for (index, doorbell) in self.doorbells.iter().enumerate() {
                    watch.look(index, self.fabric.heartbeat(doorbell.nic).unwrap_or(0));
                }
                if self.counts && time >= report_at {
                    self.write_counters();
                    report_at = time + REPORTS;
                }
                if progress == Progress::Worked {
                    idle_since = time;
                } else if time.since(idle_since) >= SPIN {
                    break;
                }
                std::hint::spin_loop();
            }
            if self.fabric.prepare_sleep() {
                let time = now();
                let timeout = self.fabric.next_deadline().map(|deadline| deadline.since(time));
                for index in self.sleep(&inbox.wake, timeout) {
                    let doorbell = &mut self.doorbells[index];
                    doorbell.rang += 1;
                    self.fabric.kicked(doorbell.nic);
                }
            }
            self.fabric.awake();
        }
    }

    /// Waits for a doorbell, for a link, for `wake`, or for the timeout; returns the indices of the
    /// doorbells that rang.
    fn sleep(&self, wake: &OwnedFd, timeout: Option<Duration>) -> Vec<usize> {
        let kicks = self.doorbells.iter().map(|one| PollFd::new(&one.eventfd, PollFlags::IN));
        let links = self.doorbells.iter().filter_map(|one| self.fabric.wire(one.nic)?.poll_fd());
        let mut fds: Vec<PollFd<'_>> = kicks.chain([PollFd::new(wake, PollFlags::IN)]).chain(links).collect();
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        // The writer has set the mark before, and the loop reads it next.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        let all = self.doorbells.iter().enumerate().zip(&fds);
        let rang = all.filter(|(_, fd)| fd.revents().contains(PollFlags::IN));
        rang.map(|((index, doorbell), _)| {
            // This does not block, since QEMU and the launcher both set O_NONBLOCK; an empty
            // eventfd is no error.
            let _ = rustix::io::read(&doorbell.eventfd, &mut [0; 8]);
            index
        })
        .collect()
    }

    fn write_counters(&mut self) {
        self.counts &= self.reporter.takes_counters();
        if self.counts {
            let nics = self.doorbells.iter().map(|one| (one.nic, one.rang));
            self.reporter.counters(counters::of_all(&self.fabric, nics));
        }
    }

    /// Writes the final counters, and reports an incomplete capture.
    fn report(mut self) {
        self.write_counters();
        if let Some(capture) = &self.capture {
            capture.flush();
            if let Some(missing) = capture.missing() {
                self.reporter.complain(incomplete(&missing));
            }
        }
        self.reporter.finish();
    }
}

/// The line about a capture that lacks frames.
fn incomplete(missing: &Missing) -> String {
    let frames = missing.frames;
    match missing.error {
        Some(error) => format!("ferrovia: the capture lacks {frames} frames: {error}"),
        None => {
            format!("ferrovia: the capture lacks {frames} frames, for which its reader or disk was too slow")
        }
    }
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
        type Wire = Wire;

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

        fn dma_limit(&self) -> u64 {
            self.ram.limit()
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
        let complain: fn(&str) = |line| panic!("{line}");
        let plugs = Plugs { plugged: Vec::new(), capture: None, counters: None, complain };
        let mut device = Device::start(ports, plugs).expect("it starts");
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
        // The heartbeat of a NIC that is powered off stops; that of the other one continues.
        device.power_off(0..1);
        let [still, beating] = [0, 1].map(|nic| word(&memories[nic], registers::STATUS_HEARTBEAT));
        for beats in 1..4 {
            until("the other's heart beats", || {
                word(&memories[1], registers::STATUS_HEARTBEAT).wrapping_sub(beating) >= beats
            });
        }
        assert_eq!(word(&memories[0], registers::STATUS_HEARTBEAT), still);
        device.power_off(5..9);
        device.kill();
        device.power_off(1..2);
        for registers in &memories {
            assert_eq!(Arc::strong_count(registers), 1, "the device still maps the guest's memory");
        }
        device.kill();
    }
}
