//! A Linux guest with Soft-RoCE, whose network device is on a UNIX stream socket.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::image::image;

/// How long the guest may take to boot.
const BOOT: Duration = Duration::from_secs(120);
/// How much longer than its own limit a command may take on a machine that has other things to do.
const SLACK: Duration = Duration::from_secs(60);
/// How long the steps around a command may take.
const STEP: Duration = Duration::from_secs(60);

/// A running Linux guest; dropping it ends it.
pub struct Linux {
    qemu: Child,
    agent: BufReader<UnixStream>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status; that of `timeout` if it took too long.
    pub status: i32,
    /// What it wrote to standard output and standard error.
    pub text: String,
}

impl Linux {
    /// Boots a guest with these addresses on the stream socket at `link`, where ours listens, and
    /// waits until it takes commands.
    pub fn boot(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        Linux::boot_with("server=off", link, addresses, mtu)
    }

    /// The same, but the guest's QEMU listens at `link`, so one image of ours after the other can
    /// connect to it.
    pub fn listen(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        Linux::boot_with("server=on", link, addresses, mtu)
    }

    fn boot_with(side: &str, link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        let image = image();
        let qemu = qemu::setup::find_qemu(None, None).expect("QEMU");
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let agent = std::os::fd::AsRawFd::as_raw_fd(&theirs);
        let mut command = Command::new(&qemu.path);
        let options = "-nodefaults -no-user-config -no-reboot -display none -M q35 -accel tcg,thread=multi \
                       -cpu max -smp 1,maxcpus=2 -m 768M -serial null -serial chardev:agent";
        command.args(options.split_whitespace());
        command.args(["-chardev".into(), format!("socket,id=agent,fd={agent}")]);
        command.arg("-netdev").arg(format!(
            "stream,id=link,{side},addr.type=unix,addr.path={}",
            link.to_str().expect("a plain path")
        ));
        command.args(["-device", "virtio-net-pci,netdev=link,mac=52:54:00:12:34:02,romfile="]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        let words = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off addresses={} mtu={mtu}",
            addresses.join(",")
        );
        command.args(["-append", &words]).stdin(Stdio::null()).stdout(Stdio::null());
        qemu::process::bind(&mut command, Signal::KILL, vec![agent]);
        let qemu = command.spawn().expect("start QEMU");
        drop(theirs);
        let mut linux = Linux { qemu, agent: BufReader::new(ours) };
        let (_, ready) = linux.read_until("@@ready", Instant::now() + BOOT);
        assert_eq!(ready, "", "the guest is ready");
        linux
    }

    /// Runs a command line of the guest's shell, for `limit` at most.
    pub fn run(&mut self, line: &str, limit: Duration) -> Outcome {
        assert!(!line.contains(['\n', '\'']), "one line without quotation marks");
        let seconds = limit.as_secs().max(1);
        let sent = writeln!(self.agent.get_mut(), "timeout {seconds} dash -c '{line}'");
        sent.expect("the guest takes commands");
        let (text, status) = self.read_until("@@status ", Instant::now() + limit + SLACK);
        Outcome { status: status.parse().expect("a status"), text }
    }

    /// Runs a command that has to succeed; returns what it wrote.
    #[track_caller]
    pub fn succeed(&mut self, line: &str, limit: Duration) -> String {
        let Outcome { status, text } = self.run(line, limit);
        self.check(status, line, text)
    }

    /// Starts a server in the background, for `limit` at most, and waits until it listens.
    #[track_caller]
    pub fn serve(&mut self, line: &str, limit: Duration) {
        let limit = limit.as_secs();
        let start = format!(
            "rm -f /tmp/status; (timeout {limit} {line} >/tmp/said 2>&1; echo $? >/tmp/status) & \
             until rdma resource show cm_id | grep LISTEN; do [ -e /tmp/status ] && exit 1; sleep 0.1; done"
        );
        let Outcome { status, .. } = self.run(&start, STEP);
        if status != 0 {
            self.served(line);
            panic!("{line} does not listen");
        }
    }

    /// Waits until the server `line` has ended, which has to succeed; returns what it wrote.
    #[track_caller]
    pub fn served(&mut self, line: &str) -> String {
        let end = "until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/said; exit $(cat /tmp/status)";
        let Outcome { status, text } = self.run(end, STEP);
        self.check(status, line, text)
    }

    #[track_caller]
    fn check(&mut self, status: i32, line: &str, text: String) -> String {
        if status != 0 {
            let Outcome { text: kernel, .. } = self.run("dmesg | tail -n 20", STEP);
            panic!("Linux: {line}: status {status}\n{text}\nThe kernel's last messages:\n{kernel}");
        }
        text
    }

    /// The text before a line that begins with `mark`, and the rest of that line.
    fn read_until(&mut self, mark: &str, deadline: Instant) -> (String, String) {
        let (mut text, mut line) = (String::new(), Vec::new());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the guest is silent; it wrote:\n{text}");
            self.agent.get_ref().set_read_timeout(Some(left)).expect("a timeout");
            match self.agent.read_until(b'\n', &mut line) {
                Ok(0) => panic!("the guest has ended; it wrote:\n{text}"),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) => panic!("the guest's serial port: {error}"),
            }
            let whole = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
            let whole = whole.trim_end();
            if let Some(rest) = whole.strip_prefix(mark) {
                return (text, rest.to_owned());
            }
            text.push_str(whole);
            text.push('\n');
        }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
