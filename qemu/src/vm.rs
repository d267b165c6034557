//! One QEMU with a guest in it: its start, its output, its end.
//!
//! QEMU inherits all its connections to the launcher as descriptors (sockets and anonymous memory),
//! so nothing except the user's own image files has a name in the file system. QEMU gets SIGKILL
//! when the thread that started it ends; so a `Vm` stays in its thread. QEMU is in its own process
//! group, so Ctrl-C and Ctrl-Z reach only the launcher, where [`crate::guests`] handles them.

use std::io::{ErrorKind, Read};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nic_model::GuestMemory;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::console::{DebugPort, LineBuffer, Note};
use crate::disk_watch::DiskWatch;
use crate::disks::{self, Disk};
use crate::error::{Error, Result};
use crate::handed::Handed;
use crate::mailbox::Mailbox;
use crate::monitor::{Monitor, Report};
use crate::process;
use crate::setup::Qemu;
use device::frontend::{Attachment, Frontend};
use device::memory::GuestRam;

/// How long a guest may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Before its first heartbeat: this includes the firmware's time, on a busy machine.
    pub first_beat: Duration,
    /// Between two heartbeats.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { first_beat: Duration::from_secs(30), silence: Duration::from_secs(10) }
    }
}

/// The longest time between two looks at a guest that counts as its silence.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// A guest writes this plus its status to the exit device, so that no status of a guest equals one
/// of QEMU's own.
const STATUS_BASE: i32 = 0x10;
/// QEMU's status after a guest's status 0.
const SUCCESS: i32 = STATUS_BASE << 1 | 1;

/// The status of an image whose kernel panicked (`kernel`, exit codes).
pub const STATUS_PANIC: u8 = 100;
/// The status of an image in which the CPU raised a fault.
pub const STATUS_FAULT: u8 = 101;

/// The parts of a guest.
#[derive(Debug)]
pub struct Config {
    /// The emulator.
    pub qemu: Qemu,
    /// The kernel image.
    pub image: PathBuf,
    /// The number of running CPUs.
    pub cpus: u32,
    /// The size of the RAM in bytes, a multiple of 1 MiB.
    pub memory: u64,
    /// The number of NICs.
    pub nics: usize,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// The kernel's command line.
    pub command_line: String,
    /// A file that the guest finds as a module.
    pub module: Option<Handed>,
    /// How many of its disks have no medium at first (`Vm::attach`).
    pub slots: usize,
    /// Whether other guests have the same disks.
    pub shares_disks: bool,
    /// How long it may be silent.
    pub patience: Patience,
    /// Whether its CPUs are stopped until it is released.
    pub held: bool,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The guest reported this status.
    Status(u8),
    /// The guest stopped without a status.
    NoStatus,
    /// QEMU ended by itself.
    QemuDied {
        /// Its status or signal.
        status: String,
        /// The first line of its standard error.
        stderr: String,
    },
}

impl Exit {
    /// Interprets QEMU's status and standard error. `lived` says whether the guest showed any sign
    /// of life. A program other than QEMU may end with any status, so without such a sign no status
    /// counts as success.
    fn read(status: ExitStatus, stderr: &str, lived: bool) -> Exit {
        let died = |otherwise: &str| {
            let status = match status.signal() {
                Some(signal) => format!("signal {signal}"),
                None => status.to_string(),
            };
            Exit::died(&status, stderr.as_bytes(), otherwise)
        };
        match status.code() {
            // QEMU also ends with 0 after a signal.
            Some(0) if stderr.contains("terminating on signal") => died(""),
            Some(0) => Exit::NoStatus,
            Some(SUCCESS) if !lived => died("no guest ran in it"),
            // isa-debug-exit ends QEMU with code << 1 | 1.
            Some(code) if code & 1 == 1 && code >> 1 >= STATUS_BASE => {
                u8::try_from((code >> 1) - STATUS_BASE).map_or(Exit::NoStatus, Exit::Status)
            }
            _ => died("it gave no reason"),
        }
    }

    /// QEMU's end, with the first line of its standard error.
    fn died(status: &str, stderr: &[u8], otherwise: &str) -> Exit {
        let text = String::from_utf8_lossy(stderr);
        let first = text.lines().map(str::trim).find(|line| !line.is_empty());
        Exit::QemuDied { status: status.into(), stderr: first.unwrap_or(otherwise).to_owned() }
    }

    /// The guest's status, or an error if there is none.
    pub fn status(self) -> Result<u8> {
        match self {
            Exit::Status(status) => Ok(status),
            Exit::NoStatus => Err(Error::NoStatus),
            Exit::QemuDied { status, stderr } => Err(Error::QemuDied { status, stderr }),
        }
    }
}

/// An event of a guest.
#[derive(Debug)]
pub enum Event {
    /// It wrote a line on its serial port.
    Line(String),
    /// Its first thread runs.
    FirstThread,
    /// It ended.
    Ended(Exit),
    /// Its heartbeat has stopped for this long.
    Stalled(Duration),
    /// The deadline passed.
    Deadline,
}

/// A QEMU that is ready to be started: everything that it inherits exists.
pub(crate) struct Prepared {
    config: Config,
    ram: GuestRam,
    attachments: Vec<Box<dyn Attachment>>,
    command: Command,
    serial: UnixStream,
    debug: UnixStream,
    monitor: UnixStream,
    /// QEMU's ends of these three.
    _theirs: [UnixStream; 3],
}

impl Prepared {
    /// Creates all parts of a guest. Returns also the device's sides of its NICs, so that their
    /// device can run before QEMU does.
    pub fn new<F: Frontend>(config: Config, frontend: &F) -> Result<(Prepared, Vec<F::Port>)> {
        let ram = GuestRam::new(config.memory)?;
        let mut attachments = Vec::new();
        let mut ports = Vec::new();
        for index in 0..config.nics {
            let (attachment, port) = frontend.attach(index, &ram)?;
            attachments.push(attachment);
            ports.push(port);
        }
        let pair = || UnixStream::pair().map_err(|e| Error::system("make a socket pair for QEMU", e));
        let (serial, qemu_serial) = pair()?;
        let (debug, qemu_debug) = pair()?;
        let (monitor, qemu_monitor) = pair()?;
        let ports_of_qemu = [&qemu_serial, &qemu_debug, &qemu_monitor].map(|stream| stream.as_raw_fd());
        let mut inherited = vec![ram.fd().as_raw_fd()];
        inherited.extend(ports_of_qemu);
        inherited.extend(config.module.as_ref().map(Handed::descriptor));
        inherited.extend(attachments.iter().flat_map(|a| a.inherited()));

        let mut command = Command::new(&config.qemu.path);
        command.args(arguments(&config, &ram, ports_of_qemu)).arg("-kernel").arg(&config.image);
        command.args(config.module.iter().flat_map(Handed::arguments));
        command.args(attachments.iter().flat_map(|a| a.arguments()));
        let common = disks::Common { cpus: config.cpus, are_shared: config.shares_disks };
        command.args(disks::arguments(&config.disks, common));
        command.args(disks::slots(config.slots, common));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        process::bind(&mut command, Signal::KILL, inherited);
        let _theirs = [qemu_serial, qemu_debug, qemu_monitor];
        Ok((Prepared { config, ram, attachments, command, serial, debug, monitor, _theirs }, ports))
    }

    /// Starts QEMU.
    pub fn start(self) -> Result<Vm> {
        let Prepared { config, ram, mut attachments, mut command, serial, debug, monitor, _theirs } = self;
        let started = Instant::now();
        let mut child =
            command.spawn().map_err(|source| Error::File { path: config.qemu.path.clone(), source })?;
        for attachment in &mut attachments {
            attachment.started();
        }
        let opened = watch(&mut child, &serial, &debug);
        let (pidfd, stderr) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Without this handle its end could not be noticed, so it must not run.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error);
            }
        };
        Ok(Vm {
            child,
            pidfd,
            serial,
            debug,
            monitor: Monitor::new(monitor),
            disks: DiskWatch::new(&config.disks),
            attached: vec![None; config.slots],
            attachments_made: 0,
            mailbox: Mailbox::new(ram.clone()),
            stop_word: None,
            stderr,
            stderr_text: Vec::new(),
            lines: LineBuffer::default(),
            notes: DebugPort::default(),
            started,
            has_beaten: false,
            silence: Duration::ZERO,
            looked: started,
            was_stopped: false,
            patience: config.patience,
            lived: false,
            ended: false,
            ram,
            _attachments: attachments,
            _of_this_thread: PhantomData,
        })
    }
}

/// The result of [`Vm::hear`].
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// The guest asks for the end of its device.
    pub kill_device: bool,
    /// QEMU has stopped the guest, which it does not do by itself unless it cannot go on.
    stopped: bool,
}

/// A running QEMU; dropping it ends it.
pub(crate) struct Vm {
    child: Child,
    pidfd: OwnedFd,
    serial: UnixStream,
    debug: UnixStream,
    monitor: Monitor,
    disks: DiskWatch,
    /// The block node of each disk that had no medium at first, if it has one now.
    attached: Vec<Option<String>>,
    attachments_made: u64,
    mailbox: Mailbox,
    /// Where the guest looks whether it is asked to stop, if it does so.
    stop_word: Option<u64>,
    stderr: ChildStderr,
    stderr_text: Vec<u8>,
    lines: LineBuffer,
    notes: DebugPort,
    started: Instant,
    /// Whether its heart has beaten.
    has_beaten: bool,
    /// How long it has been silent, while both it and this process could run.
    silence: Duration,
    /// When its silence was last looked at.
    looked: Instant,
    /// Whether a signal or a debugger had stopped QEMU then.
    was_stopped: bool,
    patience: Patience,
    /// Whether the guest has written anything, which is a sign of life.
    lived: bool,
    ended: bool,
    ram: GuestRam,
    _attachments: Vec<Box<dyn Attachment>>,
    /// QEMU ends when the thread that started it ends.
    _of_this_thread: PhantomData<*const ()>,
}

impl Vm {
    /// The guest's memory.
    pub fn memory(&self) -> &GuestRam {
        &self.ram
    }

    /// When QEMU was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether QEMU has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The descriptors that become readable when something happens: the first one at QEMU's end.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 5] {
        let monitor = self.monitor.descriptor();
        [self.pidfd.as_fd(), self.serial.as_fd(), self.debug.as_fd(), self.stderr.as_fd(), monitor]
    }

    /// Asks the guest to end by itself. False if it does not listen.
    pub fn ask_to_stop(&self) -> bool {
        let word = self.stop_word.and_then(|address| self.ram.get(address, 4).ok());
        let Some(word) = word.as_ref().and_then(|word| word.atomic_u32(0).ok()) else { return false };
        word.store(1, Ordering::Release);
        true
    }

    /// Where the guest is asked.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Gives one of the disks without a medium a file. Returns which one.
    pub fn attach(&mut self, disk: &Disk) -> std::result::Result<usize, String> {
        let free = self.attached.iter().position(Option::is_none);
        let slot = free.ok_or("there is no slot left for another file; see --slots")?;
        disks::check(std::slice::from_ref(disk)).map_err(|error| error.to_string())?;
        let path = disk.path.to_str().ok_or("the path is no UTF-8")?;
        let bytes = disk.path.metadata().map_err(|error| error.to_string())?.len();
        self.attachments_made += 1;
        let node = format!("file{}", self.attachments_made);
        self.monitor.open_file(&node, path)?;
        let name = disks::slot_name(slot);
        let placed = self.monitor.place(&name, &node).and_then(|()| self.monitor.set_size(&name, bytes));
        if let Err(why) = placed {
            // The file is closed again, if that is possible.
            let _ = self.monitor.place(&name, &disks::no_medium(slot));
            let _ = self.monitor.close_file(&node);
            return Err(why);
        }
        self.disks.add(name, disk, bytes);
        self.attached[slot] = Some(node);
        Ok(slot)
    }

    /// Takes the file out of such a disk. The guest does not use it any more.
    pub fn detach(&mut self, slot: usize) -> std::result::Result<(), String> {
        let node = self.attached.get_mut(slot).and_then(Option::take).ok_or("the slot is empty")?;
        let name = disks::slot_name(slot);
        self.disks.remove(&name);
        self.monitor.place(&name, &disks::no_medium(slot))?;
        self.monitor.close_file(&node)
    }

    /// Changes the size of a disk and its file, and tells the guest.
    pub fn resize_disk(&mut self, node: &str, bytes: u64) -> std::result::Result<(), String> {
        self.monitor.set_size(node, bytes)?;
        self.disks.has_now(node, bytes);
        Ok(())
    }

    /// How long the guest may still be silent, or how long until its silence has to be looked at
    /// again, if that is sooner.
    pub fn patience_left(&self) -> Duration {
        self.patience().saturating_sub(self.silence).min(LONGEST_STEP)
    }

    fn patience(&self) -> Duration {
        if self.has_beaten { self.patience.silence } else { self.patience.first_beat }
    }

    /// For how long the guest has been silent, if that is too long. All that it has written must
    /// have been heard.
    pub fn is_silent(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let step = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        // If this process did not run, the guest is not to blame.
        self.silence += step.min(LONGEST_STEP);
        // A QEMU that was stopped at one end of the step has its whole patience after it: it may
        // have been continued just now.
        let is_stopped = is_stopped(self.child.id());
        if std::mem::replace(&mut self.was_stopped, is_stopped) || is_stopped {
            self.was_continued();
        }
        (self.silence >= self.patience()).then_some(self.silence)
    }

    fn beat(&mut self) {
        self.has_beaten = true;
        self.was_continued();
    }

    /// Stops the guest's CPUs and clock; false if QEMU does not obey.
    pub fn stop(&mut self) -> bool {
        self.monitor.stop()
    }

    /// Lets a guest that [`Vm::stop`] has stopped run again.
    pub fn resume(&mut self) {
        self.monitor.resume();
    }

    /// The time until now does not count as silence, since the guest was stopped.
    pub fn was_continued(&mut self) {
        (self.silence, self.looked) = (Duration::ZERO, Instant::now());
    }

    /// Ends QEMU.
    pub fn end(&mut self) {
        self.mailbox.close();
        if !std::mem::replace(&mut self.ended, true) {
            // Both fail only if QEMU has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Reads all that QEMU has written so far. If `gone`, QEMU has ended: then the event of its end
    /// is the last one.
    pub fn hear(&mut self, gone: bool) -> Result<Heard> {
        let mut heard = Heard::default();
        self.listen(&mut heard);
        if heard.stopped && !gone {
            self.end();
            let exit = Exit::died("it stopped the guest", &self.stderr_text, "it gave no reason");
            heard.events.push(Event::Ended(exit));
        } else if gone {
            let status = self.child.wait().map_err(|e| Error::system("wait for QEMU", e))?;
            self.listen(&mut heard);
            heard.events.extend(self.lines.rest().map(Event::Line));
            let exit = Exit::read(status, &String::from_utf8_lossy(&self.stderr_text), self.lived);
            heard.events.push(Event::Ended(exit));
            self.ended = true;
            self.mailbox.close();
        }
        Ok(heard)
    }

    fn listen(&mut self, heard: &mut Heard) {
        let mut bytes_heard = 0;
        drain(&mut self.serial, |bytes| {
            bytes_heard += bytes.len();
            heard.events.extend(self.lines.feed(bytes).into_iter().map(Event::Line));
        });
        let mut notes = Vec::new();
        drain(&mut self.debug, |bytes| {
            bytes_heard += bytes.len();
            notes.extend(self.notes.feed(bytes));
        });
        self.lived |= bytes_heard > 0;
        for note in notes {
            match note {
                Note::Beat => {
                    self.beat();
                    self.watch_sizes();
                }
                Note::FirstThread => {
                    self.beat();
                    heard.events.push(Event::FirstThread);
                }
                Note::KillDevice => heard.kill_device = true,
                Note::StopWord(address) => self.stop_word = Some(address),
                Note::Mailbox(place) => self.mailbox.announce(place),
                Note::Unknown(line) => complain!("ferrovia: the guest's debug port said {line:?}"),
            }
        }
        drain(&mut self.stderr, |bytes| self.stderr_text.extend_from_slice(bytes));
        for report in self.monitor.hear() {
            match report {
                Report::DiskError { node, operation, reason } => {
                    let line = self.disks.failed(&node, &operation, &reason, Instant::now());
                    line.into_iter().for_each(|line| complain!("ferrovia: {line}"));
                }
                Report::Stopped => heard.stopped = true,
            }
        }
    }

    /// Tells the user and QEMU about image files that have another size now.
    fn watch_sizes(&mut self) {
        for resized in self.disks.look() {
            complain!("ferrovia: {}", resized.line);
            if resized.can_follow
                && let Err(why) = self.monitor.set_size(&resized.node, resized.bytes)
            {
                complain!("ferrovia: {} does not get its new size: {why}", resized.node);
            }
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a process is stopped, by a signal or by a debugger.
fn is_stopped(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state is behind the name, which is in brackets and may contain anything.
    let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

/// Prepares the descriptors that the guest's loop polls.
fn watch(child: &mut Child, serial: &UnixStream, debug: &UnixStream) -> Result<(OwnedFd, ChildStderr)> {
    let failed = |e: std::io::Error| Error::system("watch QEMU", e);
    let pid = Pid::from_child(child);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
    serial.set_nonblocking(true).map_err(failed)?;
    debug.set_nonblocking(true).map_err(failed)?;
    let stderr = child.stderr.take().ok_or_else(|| failed(ErrorKind::NotFound.into()))?;
    rustix::io::ioctl_fionbio(stderr.as_fd(), true).map_err(|e| failed(e.into()))?;
    Ok((pidfd, stderr))
}

/// Reads until there is nothing more at the moment. An error stops it too, since QEMU may be
/// ending.
pub(crate) fn drain(from: &mut impl Read, mut take: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => take(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// QEMU's arguments, except those for the image, the NICs and the disks.
fn arguments(config: &Config, ram: &GuestRam, [serial, debug, monitor]: [RawFd; 3]) -> Vec<String> {
    let size = config.memory >> 20;
    let cpus = config.cpus;
    // If only one CPU is possible, TCG makes the guest's atomic operations non-atomic. They would
    // not be atomic with respect to the device, which is outside QEMU.
    let most_cpus = cpus.max(2);
    let mut arguments = vec![
        "-nodefaults".into(),
        "-no-user-config".into(),
        "-no-reboot".into(),
        "-display".into(),
        "none".into(),
        "-M".into(),
        // Devices that the guest does not use, and for which the firmware would search a third of
        // its time.
        "q35,memory-backend=ram0,sata=off,smbus=off,usb=off,vmport=off,i8042=off".into(),
        // The firmware does not look for something to boot on the disks. Its drivers for them would
        // stay in RAM where QEMU then puts the files beside the kernel (`-initrd`).
        "-boot".into(),
        "strict=on".into(),
        "-smp".into(),
        format!("{cpus},maxcpus={most_cpus}"),
        "-m".into(),
        format!("{size}M"),
        "-object".into(),
        format!(
            "memory-backend-file,id=ram0,size={size}M,mem-path=/proc/self/fd/{},share=on",
            ram.fd().as_raw_fd()
        ),
        "-chardev".into(),
        format!("socket,id=com1,fd={serial}"),
        "-serial".into(),
        "chardev:com1".into(),
        "-chardev".into(),
        format!("socket,id=debug,fd={debug}"),
        "-chardev".into(),
        format!("socket,id=monitor,fd={monitor}"),
        "-mon".into(),
        "chardev=monitor,mode=control".into(),
        "-device".into(),
        "isa-debugcon,iobase=0xe9,chardev=debug".into(),
        "-device".into(),
        "isa-debug-exit,iobase=0xf4,iosize=0x04".into(),
        "-append".into(),
        config.command_line.clone(),
    ];
    arguments.extend(config.qemu.accelerator.arguments().map(String::from));
    if config.held {
        arguments.push("-S".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(raw: i32, stderr: &str) -> Exit {
        Exit::read(ExitStatus::from_raw(raw), stderr, true)
    }

    #[test]
    fn the_guests_status_differs_from_qemus_own() {
        assert_eq!(exit(33 << 8, ""), Exit::Status(0));
        assert_eq!(exit(35 << 8, ""), Exit::Status(1));
        assert_eq!(exit(233 << 8, ""), Exit::Status(STATUS_PANIC));
        assert_eq!(exit(235 << 8, ""), Exit::Status(STATUS_FAULT));
        assert_eq!(exit(255 << 8, ""), Exit::Status(111));
        assert_eq!(exit(0, "chatter"), Exit::NoStatus);
    }

    #[test]
    fn success_is_believed_only_of_a_guest_that_lived() {
        let silent = |raw, stderr| Exit::read(ExitStatus::from_raw(raw), stderr, false);
        let error = silent(33 << 8, "").status().expect_err("nothing ran").to_string();
        assert_eq!(error, "QEMU ended early (exit status: 33): no guest ran in it");
        assert_eq!(silent(35 << 8, ""), Exit::Status(1), "a failure is one anyway");
        assert_eq!(silent(0, ""), Exit::NoStatus);
    }

    #[test]
    fn a_qemu_that_is_asked_to_end_is_quoted() {
        let error = exit(0, "qemu: terminating on signal 15 from pid 7 (kill)").status();
        let error = error.expect_err("it has no status").to_string();
        assert!(error.contains("terminating on signal 15"), "{error}");
    }

    #[test]
    fn a_qemu_that_dies_is_quoted() {
        let died = exit(1 << 8, "\nqemu: -device nic: no such thing\nmore\n");
        let Exit::QemuDied { status, stderr } = &died else { panic!("{died:?}") };
        assert_eq!(
            (status.as_str(), stderr.as_str()),
            ("exit status: 1", "qemu: -device nic: no such thing")
        );
        let died = exit(6, "").status().expect_err("it has no status");
        assert_eq!(died.to_string(), "QEMU ended early (signal 6): it gave no reason");
        assert!(exit(34 << 8, "").status().is_err(), "an even code is none of the exit device's");
    }
}
