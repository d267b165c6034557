//! Running guests: one, or several whose NICs are on one device and reach each other by short cuts.
//!
//! [`Guests::next`] waits for an event of any guest. At Ctrl-C it asks the guests that listen to
//! end by themselves, and goes on until they have ended, for [`STOP_TIME`] at most. At a second
//! Ctrl-C, and if no guest listens, it returns an error at once. At Ctrl-Z it stops the guests'
//! CPUs and clocks before it stops this process. It lets them run again once this process has been
//! continued and the NICs have shown a heartbeat: to the guests no time has passed. (SIGSTOP cannot
//! be caught: the guests run without a device until the process is continued. The device tells the
//! drivers then.)
//!
//! The NICs of a guest that has ended are powered off, so packets from other guests to them are
//! lost. The device and the other guests continue.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::network::Network;
use crate::signals::{Asked, Signals};
use crate::vm::{Config, Event, Exit, Prepared, Vm, drain};
use device::Device;
use device::frontend::Frontend;
use device::memory::GuestRam;
use device::pulse::Gaps;

/// How long a guest that was asked to end may take.
pub const STOP_TIME: Duration = Duration::from_secs(10);
/// How long stopped guests wait for a heartbeat of their NICs when they are continued.
const FIRST_BEATS: Duration = Duration::from_millis(500);

/// Running guests on one device, numbered in the order of their start; dropping this ends them.
pub struct Guests {
    members: Vec<Member>,
    device: Device,
    events: VecDeque<(usize, Event)>,
    signals: &'static Signals,
    stopping: Option<Stopping>,
    calls: Option<Calls>,
}

/// Something for the thread of a guest to do.
type Call = Box<dyn FnOnce(&mut Vm) + Send>;

/// Calls that may wait for the guest's thread.
const MOST_CALLS: usize = 4;

/// What other threads have the thread of a guest do.
struct Calls {
    waiting: Receiver<Call>,
    /// Readable when there may be a call.
    wake: UnixStream,
}

/// Has the thread of a guest do something with it.
#[derive(Clone)]
pub(crate) struct Caller {
    calls: SyncSender<Call>,
    wake: Arc<UnixStream>,
}

impl Caller {
    /// Of a guest that has ended.
    pub fn ended() -> std::io::Result<Caller> {
        let (calls, _) = sync_channel(1);
        Ok(Caller { calls, wake: Arc::new(UnixStream::pair()?.0) })
    }

    /// Does it, and returns its result; `None` if the guest has ended.
    pub fn with<T: Send + 'static>(&self, act: impl FnOnce(&mut Vm) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        let call: Call = Box::new(move |vm| drop(answer.send(act(vm))));
        self.calls.send(call).ok()?;
        // It fails if as many bytes as the socket holds are unread, or if the guest has ended.
        let _ = (&*self.wake).write(&[0]);
        answered.recv().ok()
    }
}

/// The user wants the launcher to end, and some guests have been asked to end by themselves.
#[derive(Clone, Copy)]
struct Stopping {
    /// The signal that the user sent.
    signal: i32,
    /// When they must have ended.
    until: Instant,
}

struct Member {
    vm: Vm,
    /// Whether it has been asked to end by itself.
    asked_to_stop: bool,
    /// The range of its NICs on the device.
    nics: Range<usize>,
}

impl Guests {
    /// Starts a guest for each configuration, with the NICs attached by `frontend`, plugged into
    /// `network`, and their device running.
    pub fn start(
        configs: impl IntoIterator<Item = Config>,
        frontend: &impl Frontend,
        network: &Network,
    ) -> Result<Guests> {
        let (mut prepared, mut ports) = (Vec::new(), Vec::new());
        for config in configs {
            let (guest, its_ports) = Prepared::new(config, frontend)?;
            let first = ports.len();
            ports.extend(its_ports);
            prepared.push((guest, first..ports.len()));
        }
        let (signals, nics) = (Signals::watch()?, ports.len());
        let device = frontend.start(ports, network.open(nics)?)?;
        let members = prepared
            .into_iter()
            .map(|(guest, nics)| Ok(Member { vm: guest.start()?, asked_to_stop: false, nics }));
        let members = members.collect::<Result<_>>()?;
        Ok(Guests { members, device, events: VecDeque::new(), signals, stopping: None, calls: None })
    }

    /// A handle by which other threads have this one do something with the first guest, whenever
    /// it is in [`Guests::next`].
    pub(crate) fn caller(&mut self) -> Result<Caller> {
        let failed = |e| Error::system("make a socket", e);
        let (wake, wakes) = UnixStream::pair().map_err(failed)?;
        for socket in [&wake, &wakes] {
            socket.set_nonblocking(true).map_err(failed)?;
        }
        let (calls, waiting) = sync_channel(MOST_CALLS);
        self.calls = Some(Calls { waiting, wake });
        Ok(Caller { calls, wake: Arc::new(wakes) })
    }

    /// Does what other threads ask for.
    fn take_calls(&mut self) {
        let Some(calls) = &mut self.calls else { return };
        drain(&mut calls.wake, |_| ());
        while let Ok(call) = calls.waiting.try_recv() {
            call(&mut self.members[0].vm);
        }
    }

    /// A guest's memory.
    pub fn memory(&self, guest: usize) -> &GuestRam {
        self.members[guest].vm.memory()
    }

    /// When the QEMU of a guest was started.
    pub fn started(&self, guest: usize) -> Instant {
        self.members[guest].vm.started()
    }

    /// The numbers of the running guests.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.members).filter(|(_, member)| !member.vm.has_ended()).map(|(number, _)| number)
    }

    /// Starts the CPUs of a guest that was started with them stopped ([`Config::held`]).
    pub fn release(&mut self, guest: usize) {
        let vm = &mut self.members[guest].vm;
        // If QEMU does not obey, the guest stays silent, which is detected.
        vm.resume();
        vm.was_continued();
    }

    /// Ends a guest.
    pub fn end(&mut self, guest: usize) {
        let Member { vm, nics, .. } = &mut self.members[guest];
        vm.end();
        self.device.power_off(nics.clone());
    }

    /// Waits for the next event of any guest, at most until `deadline`. `None` at the deadline, and
    /// when no guest runs and all events have been returned. A signal that asks the launcher to end
    /// is an error, unless a guest has been asked to end by itself and does so.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<(usize, Event)>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let running = self.members.iter().map(|member| &member.vm).filter(|vm| !vm.has_ended());
            let Some(patience) = running.map(Vm::patience_left).min() else { return Ok(None) };
            let now = Instant::now();
            if let Some(Stopping { signal, until }) = self.stopping {
                let is_stopping = |member: &Member| member.asked_to_stop && !member.vm.has_ended();
                let are_stopping = self.members.iter().any(is_stopping);
                if are_stopping && now >= until {
                    complain!("ferrovia: the guest has not stopped after {} s", STOP_TIME.as_secs());
                }
                if !are_stopping || now >= until {
                    return Err(Error::Interrupted(signal));
                }
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let stopped_at = self.stopping.map(|stopping| stopping.until);
            let until = [deadline, stopped_at].into_iter().flatten().fold(now + patience, Instant::min);
            self.poll(until.saturating_duration_since(now))?;
            // Heartbeats that came while this process was stopped, or got no CPU, have been counted
            // by now.
            if self.events.is_empty() {
                let mut running = self.members.iter_mut().enumerate().filter(|(_, one)| !one.vm.has_ended());
                let silent = running.find_map(|(number, one)| Some((number, one.vm.is_silent()?)));
                if let Some((number, silence)) = silent {
                    return Ok(Some((number, Event::Stalled(silence))));
                }
            }
        }
    }

    /// Asks the guests that listen to end by themselves. An error if none does, or if they have
    /// been asked before.
    fn stop(&mut self, signal: i32) -> Result<()> {
        if self.stopping.is_none() {
            for member in self.members.iter_mut().filter(|member| !member.vm.has_ended()) {
                member.asked_to_stop = member.vm.ask_to_stop();
            }
            if self.members.iter().any(|member| member.asked_to_stop) {
                complain!("ferrovia: the guest is asked to stop; a second signal ends it at once");
                self.stopping = Some(Stopping { signal, until: Instant::now() + STOP_TIME });
                return Ok(());
            }
        }
        Err(Error::Interrupted(signal))
    }

    /// Stops this process and its guests, until the process is continued.
    fn suspend(&mut self) -> Result<()> {
        let mut running: Vec<&mut Vm> =
            self.members.iter_mut().map(|member| &mut member.vm).filter(|vm| !vm.has_ended()).collect();
        // If a QEMU does not obey, its guest keeps running, and detects that its NICs are silent.
        let stopped: Vec<bool> = running.iter_mut().map(|vm| vm.stop()).collect();
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
            .map_err(|e| Error::system("stop", e))?;
        self.device.wait_for_beats(FIRST_BEATS);
        for (vm, stopped) in running.iter_mut().zip(stopped) {
            if stopped {
                vm.resume();
            }
            vm.was_continued();
        }
        Ok(())
    }

    /// The longest times between two heartbeats of each NIC.
    pub fn gaps(&self) -> Vec<Gaps> {
        self.device.pulse().gaps()
    }

    /// Waits for the guests' descriptors, and makes events of what they report.
    fn poll(&mut self, timeout: Duration) -> Result<()> {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let mut first_of = Vec::new();
        for number in self.running() {
            first_of.push((number, fds.len()));
            let descriptors = self.members[number].vm.descriptors();
            fds.extend(descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        fds.extend(self.signals.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.calls.iter().map(|calls| PollFd::new(&calls.wake, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::system("wait for QEMU", e)),
        }
        let gone = |first: usize| !fds[first].revents().is_empty();
        let heard: Vec<(usize, bool)> = first_of.iter().map(|(number, at)| (*number, gone(*at))).collect();
        match self.signals.arrived() {
            Some(Asked::End(signal)) => self.stop(signal)?,
            // Poll the descriptors again: much may have happened while the process was stopped.
            Some(Asked::Stop) => return self.suspend(),
            None => {}
        }
        self.take_calls();
        for (number, gone) in heard {
            let Member { vm, nics, .. } = &mut self.members[number];
            let heard = vm.hear(gone)?;
            if heard.kill_device || vm.has_ended() {
                self.device.power_off(nics.clone());
            }
            self.events.extend(heard.events.into_iter().map(|event| (number, event)));
        }
        Ok(())
    }
}

/// A single running guest with its own device; dropping it ends it.
pub struct Guest(Guests);

impl Guest {
    /// Starts a guest, with the NICs attached by `frontend` and their device running.
    pub fn start(config: Config, frontend: &impl Frontend, network: &Network) -> Result<Guest> {
        Guests::start([config], frontend, network).map(Guest)
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestRam {
        self.0.memory(0)
    }

    /// When QEMU was started.
    pub fn started(&self) -> Instant {
        self.0.started(0)
    }

    /// See [`Guests::caller`].
    pub(crate) fn caller(&mut self) -> Result<Caller> {
        self.0.caller()
    }

    /// Where the guest is asked.
    pub(crate) fn mailbox(&self) -> Mailbox {
        self.0.members[0].vm.mailbox().clone()
    }

    /// The longest times between two heartbeats of each NIC.
    pub fn gaps(&self) -> Vec<Gaps> {
        self.0.gaps()
    }

    /// Waits for the next event, at most until `deadline`. A signal that asks the launcher to end
    /// is an error.
    ///
    /// After [`Event::Ended`] there are no more events.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Event> {
        match self.0.next(deadline)? {
            Some((_, event)) => Ok(event),
            None if self.0.running().next().is_none() => Ok(Event::Ended(Exit::NoStatus)),
            None => Ok(Event::Deadline),
        }
    }
}
