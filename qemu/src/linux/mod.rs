//! Linux guests with Soft-RoCE or siw, for comparison and for tests: [`image`] makes the kernel and
//! its RAM disk of Debian's packages, [`Linux`] runs a guest, [`storage`] makes it use and serve
//! disks, [`blktests`] makes it run other people's tests.

pub mod blktests;
pub mod image;
mod modules;
pub mod programs;
mod siw;
pub mod storage;
mod tools;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::accel::Accelerator;
use crate::cpu_time::CpuTime;
use crate::disks::ERRORS;
use crate::error::{Error, Result};
use crate::process;
use crate::quoting::in_list;
use crate::setup::Qemu;
use image::{Image, Kernel};

/// Gets all that guests and tests are made of; what is there already stays.
pub fn prepare() -> Result<()> {
    Image::with_tools()?;
    Image::with(Kernel::Newer)?;
    programs::find()?;
    Ok(())
}

/// How long the guest may take to boot.
const BOOT: Duration = Duration::from_secs(120);
/// The time beyond its own limit that a command may take on a busy machine.
const SLACK: Duration = Duration::from_secs(60);
/// How long a short command may take.
const STEP: Duration = Duration::from_secs(30);

/// The guest's end of the stream socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// QEMU listens.
    Listen,
    /// QEMU connects.
    Connect,
}

/// A guest's network device.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The guest's end of the link.
    pub side: Side,
    /// The link's socket.
    pub link: &'a Path,
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: &'a [&'a str],
    /// The link's MTU.
    pub mtu: u32,
    /// The last byte of its MAC.
    pub mac: u8,
}

/// A running Linux guest; dropping it ends it.
#[derive(Debug)]
pub struct Linux {
    qemu: Child,
    agent: BufReader<UnixStream>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status. If it took too long, the status of `timeout`.
    pub status: i32,
    /// Its output to standard output and standard error.
    pub text: String,
}

impl Linux {
    /// Boots a guest, and waits until it takes commands. The guest ends when this thread ends.
    pub fn boot(qemu: &Qemu, image: &Image, device: &Device<'_>) -> Result<Linux> {
        Linux::boot_with_disk(qemu, image, device, None)
    }

    /// As [`Linux::boot`], with a file of the host as the read-only disk `/dev/vda`.
    pub fn boot_with_disk(
        qemu: &Qemu,
        image: &Image,
        device: &Device<'_>,
        disk: Option<&Path>,
    ) -> Result<Linux> {
        let mut linux = Linux::start(qemu, image, device, disk)?;
        linux.read_until(&["@@ready"], &mut String::new(), Instant::now() + BOOT)?;
        Ok(linux)
    }

    fn start(qemu: &Qemu, image: &Image, device: &Device<'_>, disk: Option<&Path>) -> Result<Linux> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::system("make a socket pair", e))?;
        let agent = theirs.as_raw_fd();
        let Device { side, link, addresses, mtu, mac } = device;
        let server = if *side == Side::Listen { "on" } else { "off" };
        let mut command = Command::new(&qemu.path);
        // On a CPU with ERMS (`-cpu max`) Linux copies and clears memory by `rep movsb`, which QEMU
        // emulates byte by byte: a block of 128 KiB then takes both sides half as long again.
        let accel = match qemu.accelerator {
            Accelerator::Kvm => Accelerator::Kvm.arguments(),
            Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "qemu64"],
        };
        let options = "-nodefaults -no-user-config -no-reboot -display none -M q35 -smp 1,maxcpus=2 -m 768M \
                       -serial null -serial chardev:agent -name linux,debug-threads=on";
        command.args(options.split_whitespace()).args(accel);
        command.args(["-chardev".into(), format!("socket,id=agent,fd={agent}")]);
        let mut netdev = OsString::from(format!("stream,id=link,server={server},addr.type=unix,addr.path="));
        netdev.push(in_list(link.as_os_str()));
        command.arg("-netdev").arg(netdev);
        command
            .arg("-device")
            .arg(format!("virtio-net-pci,netdev=link,mac=52:54:00:12:34:{mac:02x},romfile="));
        if let Some(disk) = disk {
            let mut drive = OsString::from("if=none,id=disk,format=raw,readonly=on,file=");
            drive.push(in_list(disk.as_os_str()));
            command.arg("-drive").arg(drive);
            command.args(["-device", &format!("virtio-blk-pci,drive=disk,romfile=,{ERRORS}")]);
        }
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        let addresses = addresses.join(",");
        command
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 mitigations=off addresses={addresses} mtu={mtu}"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        process::bind(&mut command, Signal::KILL, vec![agent]);
        let qemu = command.spawn().map_err(|source| Error::File { path: qemu.path.clone(), source })?;
        Ok(Linux { qemu, agent: BufReader::new(ours) })
    }

    /// Makes the guest speak iWARP (siw) instead of RoCE. No connection may be open.
    pub fn use_iwarp(&mut self) -> Result<()> {
        let line = "set -e; modprobe siw; rdma link delete rxe0; rdma link add siw0 type siw netdev eth0";
        self.succeed(line, STEP).map(drop)
    }

    /// Loads the modules that nvme_auth requests under other names.
    pub fn load_for_authentication(&mut self) -> Result<()> {
        // Some of them are parts of the kernel.
        let line = "for name in hmac sha256_generic sha512_generic dh_generic; do modprobe $name; done";
        self.run(line, STEP).map(drop)
    }

    /// Runs a command line of the guest's shell, without quotation marks, for `limit` at most.
    pub fn run(&mut self, line: &str, limit: Duration) -> Result<Outcome> {
        self.run_answering(line, limit, |_| String::new())
    }

    /// The same for a command that asks: it writes `@@ask ` and a question as a line to the serial
    /// port of commands, /dev/ttyS1, and reads a line there, the answer.
    pub fn run_answering(
        &mut self,
        line: &str,
        limit: Duration,
        mut answer: impl FnMut(&str) -> String,
    ) -> Result<Outcome> {
        if line.contains(['\n', '\'']) {
            return Err(Error::Tool(format!("not a command for the Linux guest: {line}")));
        }
        let seconds = limit.as_secs().max(1);
        let failed = |e| Error::system("give the Linux guest a command", e);
        writeln!(self.agent.get_mut(), "timeout {seconds} dash -c '{line}'").map_err(failed)?;
        let deadline = Instant::now() + limit + SLACK;
        let mut text = String::new();
        let status = loop {
            let (mark, rest) = self.read_until(&["@@status ", "@@ask "], &mut text, deadline)?;
            if mark == 0 {
                break rest;
            }
            writeln!(self.agent.get_mut(), "{}", answer(&rest)).map_err(failed)?;
        };
        let status =
            status.parse().map_err(|_| Error::Tool(format!("the Linux guest's status is {status:?}")))?;
        Ok(Outcome { status, text })
    }

    /// Runs a command line that has to succeed, and returns its output. If it fails, the error also
    /// contains the last messages of the kernel.
    pub fn succeed(&mut self, line: &str, limit: Duration) -> Result<String> {
        let Outcome { status, text } = self.run(line, limit)?;
        if status == 0 {
            return Ok(text);
        }
        let Outcome { text: kernel, .. } = self.run("dmesg | tail -n 20", STEP)?;
        let kernel = format!("The kernel's last messages:\n{kernel}");
        Err(Error::Tool(format!("Linux: {line}: status {status}\n{text}{kernel}")))
    }

    /// The CPU time that the guest's QEMU has used until now.
    pub fn cpu_time(&self) -> Result<CpuTime> {
        CpuTime::of_qemu(self.qemu.id()).map_err(|e| Error::system("read the CPU time of QEMU", e))
    }

    /// Adds lines to the text until one begins with one of `marks`. Returns the place of that one
    /// in the list, and the rest of its line.
    fn read_until(
        &mut self,
        marks: &[&str],
        text: &mut String,
        deadline: Instant,
    ) -> Result<(usize, String)> {
        let failed = |e: std::io::Error| Error::system("read the Linux guest's serial port", e);
        let mut line = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Tool(format!("the Linux guest is silent; it wrote:\n{text}")));
            }
            self.agent.get_ref().set_read_timeout(Some(left)).map_err(failed)?;
            match self.agent.read_until(b'\n', &mut line) {
                Ok(0) => return Err(Error::Tool(format!("the Linux guest has ended; it wrote:\n{text}"))),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) => return Err(failed(error)),
            }
            let whole = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
            let whole = whole.trim_end();
            let found = marks.iter().enumerate().find_map(|(i, mark)| Some((i, whole.strip_prefix(mark)?)));
            if let Some((mark, rest)) = found {
                return Ok((mark, rest.to_owned()));
            }
            text.push_str(whole);
            text.push('\n');
        }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // Both fail only if QEMU has ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
