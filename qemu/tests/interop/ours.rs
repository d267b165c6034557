//! Our side: the launcher with an image whose NIC is on the link.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use qemu::process;
use rustix::process::Signal;
use serde_json::Value;

/// How long the image may take to be built, and to boot.
const PATIENCE: Duration = Duration::from_secs(900);

/// A running launcher; dropping it ends it.
pub struct Ours {
    launcher: Child,
    lines: Receiver<String>,
    /// The lines that were read.
    seen: Vec<String>,
    counters: PathBuf,
}

impl Ours {
    /// Starts the launcher with these arguments and a NIC that listens on the socket `folder/link`,
    /// with the addresses 10.0.0.1/24 and fd00::1/64.
    pub fn start(folder: &Path, arguments: &[&str]) -> Ours {
        Ours::start_with("stream", folder, arguments)
    }

    /// The same, but the NIC connects to `folder/link`, where Linux listens.
    pub fn connect(folder: &Path, arguments: &[&str]) -> Ours {
        Ours::start_with("stream-connect", folder, arguments)
    }

    /// The same, but the NIC is on a switch, which listens on `folder/link` for several guests.
    pub fn start_on_switch(folder: &Path, arguments: &[&str]) -> Ours {
        Ours::start_with("switch", folder, arguments)
    }

    /// The same as [`Ours::connect`], for one of several images on a link: with this address alone,
    /// such as 10.0.0.3/24.
    pub fn connect_as(address: &str, folder: &Path, arguments: &[&str]) -> Ours {
        Ours::start_on("stream-connect", address, folder, arguments)
    }

    fn start_with(kind: &str, folder: &Path, arguments: &[&str]) -> Ours {
        Ours::start_on(kind, "10.0.0.1/24,fd00::1/64", folder, arguments)
    }

    fn start_on(kind: &str, addresses: &str, folder: &Path, arguments: &[&str]) -> Ours {
        let link = format!("{kind}:{}", link(folder).display());
        Ours::start_on_links(&[(link, addresses)], folder, arguments)
    }

    /// Starts the launcher with these arguments and a NIC on each of these links, with these
    /// addresses, between which are commas.
    pub fn start_on_links(links: &[(String, &str)], folder: &Path, arguments: &[&str]) -> Ours {
        let program = std::env::current_exe().expect("this program");
        let programs = program.parent().and_then(Path::parent).expect("target/PROFILE/deps");
        let counters = folder.join(format!("counters-{}.json", links[0].1.replace('/', "-")));
        let mut command = Command::new(programs.join("ferrovia"));
        command.args(arguments);
        for (link, addresses) in links {
            command.args(["--link", link, "--ip", addresses]);
        }
        command.arg("--counters").arg(&counters);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        process::bind(&mut command, Signal::TERM, Vec::new());
        let mut launcher = command.spawn().expect("start the launcher");
        let output = BufReader::new(launcher.stdout.take().expect("its output"));
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ours { launcher, lines, seen: Vec::new(), counters }
    }

    /// Waits for a line that begins with `start`, after those that were waited for before.
    #[track_caller]
    pub fn wait_for(&mut self, start: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("our side wrote no line {start:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("our side ended without a line {start:?}"),
            }
            if self.seen.last().is_some_and(|line| line.starts_with(start)) {
                return;
            }
        }
    }

    /// Waits for so many lines with this text in them, after those that were waited for before.
    #[track_caller]
    pub fn wait_for_text(&mut self, text: &str, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut found = 0;
        while found < count {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    found += usize::from(line.contains(text));
                    self.seen.push(line);
                }
                Err(error) => panic!("our side wrote {found} lines with {text:?}, not {count}: {error}"),
            }
        }
    }

    /// Waits until the image has ended, which has to succeed.
    #[track_caller]
    pub fn succeed(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // Its output ends with it.
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("our side does not end"),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.launcher.wait().expect("its status");
        assert!(ExitStatus::success(&status), "our side: {status}");
    }

    /// Waits until the counter of this name, which the launcher writes once a second, is `count` or
    /// more.
    #[track_caller]
    pub fn wait_for_count(&self, name: &str, count: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.counter(name) < Some(count) {
            assert!(Instant::now() < deadline, "{name} is {:?}, not {count}", self.counter(name));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn counter(&self, name: &str) -> Option<u64> {
        self.counters()?.get(name)?.as_u64()
    }

    fn counters(&self) -> Option<Value> {
        let text = std::fs::read(&self.counters).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?.get(0).cloned()
    }

    /// What our side wrote, and its counters that are not 0: for a test that has failed.
    fn explain(&mut self) {
        self.seen.extend(self.lines.try_iter());
        eprintln!("our side wrote:");
        for line in &self.seen {
            eprintln!("  {line}");
        }
        let counters = self.counters();
        for (name, count) in counters.iter().filter_map(Value::as_object).flatten() {
            if count.as_u64() != Some(0) {
                eprintln!("  {name} {count}");
            }
        }
    }
}

/// The socket of the link in a folder.
pub fn link(folder: &Path) -> PathBuf {
    folder.join("link")
}

impl Drop for Ours {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.explain();
        }
        // Both fail only if it has ended; its QEMU ends with it.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}
