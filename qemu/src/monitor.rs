//! QEMU's monitor: stops the guest's CPUs and clock, lets them run again, and tells what happens to
//! its disks; gives disks other files.
//!
//! The protocol is QMP: one JSON object per line. QEMU answers each command, in order, with an
//! object with `return` or `error`. Events may come in between. QEMU sends none before the first
//! command, which negotiates, so that command is sent when the connection is made; its answer is
//! read later.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use serde_json::{Value, json};

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest line that is kept. QEMU's events have some hundred bytes.
const LONGEST: usize = 64 << 10;

/// The connection to a QEMU's monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    /// The bytes after the last line end.
    rest: Vec<u8>,
    /// The number of commands that QEMU has not answered yet.
    unanswered: u32,
    /// Whether the launcher has asked QEMU to stop the guest.
    asked_to_stop: bool,
    events: Vec<Report>,
    /// What QEMU said to the last command that it refused.
    refusal: String,
}

/// An event that QEMU reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A request of the guest to a disk failed.
    DiskError {
        /// The name of the disk's block node.
        node: String,
        /// `read` or `write`; a flush counts as a write.
        operation: String,
        /// The host's error.
        reason: String,
    },
    /// QEMU has stopped the guest, without being asked.
    Stopped,
}

impl Monitor {
    /// Talks over `stream`.
    pub fn new(stream: UnixStream) -> Monitor {
        let mut monitor = Monitor {
            stream,
            rest: Vec::new(),
            unanswered: 0,
            asked_to_stop: false,
            events: Vec::new(),
            refusal: String::new(),
        };
        // If this fails QEMU has ended, which its owner notices.
        monitor.send(&json!({"execute": "qmp_capabilities"}));
        monitor
    }

    /// Becomes readable when there may be events.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Stops the guest's CPUs and its clock. False if QEMU does not say that it has done so.
    pub fn stop(&mut self) -> bool {
        self.asked_to_stop = true;
        self.command(&json!({"execute": "stop"}))
    }

    /// Lets the guest run again.
    pub fn resume(&mut self) -> bool {
        // QEMU has sent the event of the stop that was asked for before it answered.
        self.asked_to_stop = false;
        self.command(&json!({"execute": "cont"}))
    }

    /// Opens a file as a block node, for reading and writing.
    pub fn open_file(&mut self, node: &str, path: &str) -> Result<(), String> {
        let options = json!({
            "driver": "file", "node-name": node, "filename": path, "read-only": false,
            "discard": "unmap", "cache": {"direct": false}, "aio": "threads",
        });
        self.execute("blockdev-add", options)
    }

    /// Closes it.
    pub fn close_file(&mut self, node: &str) -> Result<(), String> {
        self.execute("blockdev-del", json!({"node-name": node}))
    }

    /// Has a disk use a block node, in place of the one that it has.
    pub fn place(&mut self, disk: &str, node: &str) -> Result<(), String> {
        let options = json!({"driver": "raw", "node-name": disk, "file": node, "discard": "unmap"});
        self.execute("blockdev-reopen", json!({"options": [options]}))
    }

    /// Makes a disk and its file so large, and tells the guest.
    pub fn set_size(&mut self, node: &str, bytes: u64) -> Result<(), String> {
        self.execute("block_resize", json!({"node-name": node, "size": bytes}))
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<(), String> {
        self.refusal.clear();
        if self.command(&json!({"execute": command, "arguments": arguments})) {
            return Ok(());
        }
        let refusal = std::mem::take(&mut self.refusal);
        Err(if refusal.is_empty() { "QEMU does not answer".into() } else { format!("QEMU: {refusal}") })
    }

    /// The events since the last call. Never blocks.
    pub fn hear(&mut self) -> Vec<Report> {
        let mut bytes = [0; 4096];
        while let Ok((read, _)) = rustix::net::recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT)
            && read > 0
        {
            self.take(&bytes[..read]);
        }
        std::mem::take(&mut self.events)
    }

    fn send(&mut self, command: &Value) -> bool {
        self.unanswered += 1;
        self.stream.write_all(format!("{command}\n").as_bytes()).is_ok()
    }

    /// Executes a command. False if QEMU refuses it, or does not answer in time.
    fn command(&mut self, command: &Value) -> bool {
        let deadline = Instant::now() + PATIENCE;
        if !self.send(command) {
            return false;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut bytes = [0; 1024];
            // A time-out of zero would mean no time-out.
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            let answer = match self.stream.read(&mut bytes) {
                Ok(n) if n > 0 => self.take(&bytes[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
                _ => return false,
            };
            if self.unanswered == 0
                && let Some(success) = answer
            {
                return success;
            }
        }
    }

    /// Takes bytes from QEMU. Returns whether the last command that they answer succeeded.
    fn take(&mut self, bytes: &[u8]) -> Option<bool> {
        self.rest.extend_from_slice(bytes);
        let mut answer = None;
        while let Some(line) = self.line() {
            let object: Value = serde_json::from_slice(&line).unwrap_or_default();
            let success = object.get("return").is_some();
            if success || object.get("error").is_some() {
                self.unanswered = self.unanswered.saturating_sub(1);
                if let Some(why) = object["error"]["desc"].as_str() {
                    self.refusal = why.lines().next().unwrap_or_default().to_owned();
                }
                answer = Some(success);
            } else {
                self.event(&object);
            }
        }
        if self.rest.len() > LONGEST {
            self.rest.clear();
        }
        answer
    }

    fn event(&mut self, object: &Value) {
        let text = |name: &str| object["data"][name].as_str().unwrap_or_default().to_owned();
        match object["event"].as_str() {
            Some("BLOCK_IO_ERROR") => self.events.push(Report::DiskError {
                node: text("node-name"),
                operation: text("operation"),
                reason: text("reason"),
            }),
            Some("STOP") if !self.asked_to_stop => self.events.push(Report::Stopped),
            _ => {}
        }
    }

    /// The next complete line.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        Some(self.rest.drain(..=end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A monitor, and the commands that its QEMU got. Each command gets the next of `answers`.
    fn asked(answers: &'static [&'static str], ask: impl FnOnce(&mut Monitor)) -> Vec<String> {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let qemu = std::thread::spawn(move || {
            let mut writer = theirs.try_clone().expect("a descriptor");
            writer.write_all(b"{\"QMP\": {}}\r\n").expect("greet");
            let mut answers = answers.iter();
            let mut commands = Vec::new();
            for line in BufReader::new(theirs).lines() {
                commands.push(line.expect("text"));
                let Some(answer) = answers.next() else { break };
                writer.write_all(answer.as_bytes()).expect("answer");
            }
            commands
        });
        ask(&mut Monitor::new(ours));
        qemu.join().expect("no panic")
    }

    #[test]
    fn a_guest_is_stopped_and_resumed() {
        let answers =
            &["{\"return\": {}}\r\n", "{\"event\": \"STOP\"}\n{\"return\": {}}\n", "{\"return\": {}}\n"];
        let commands = asked(answers, |monitor| assert!(monitor.stop() && monitor.resume()));
        let names = ["qmp_capabilities", "stop", "cont"];
        assert_eq!(commands, names.map(|name| format!("{{\"execute\":\"{name}\"}}")));
    }

    #[test]
    fn a_refusal_and_an_end_are_no_success() {
        let refused = &["{\"return\": {}}\n", "{\"error\": {\"class\": \"GenericError\"}}\n"];
        asked(refused, |monitor| assert!(!monitor.stop()));
        asked(&[], |monitor| assert!(!monitor.stop()));
    }

    #[test]
    fn events_are_kept_wherever_they_come() {
        const ERROR: &str = "{\"return\": {}}\n{\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"device\": \"\", \
                     \"node-name\": \"disk0\", \"operation\": \"write\", \"action\": \"report\", \
                     \"nospace\": true, \"reason\": \"No space left on device\"}}\nnoise\n";
        const STOPS: &str = "{\"event\": \"STOP\"}\n{\"return\": {}}\n";
        const RESUMES: &str = "{\"return\": {}}\n{\"event\": \"STOP\"}\n";
        asked(&[ERROR, STOPS, RESUMES], |monitor| {
            assert!(monitor.stop() && monitor.resume());
            // The last event may still be on its way.
            let mut heard = monitor.hear();
            while heard.len() < 2 {
                heard.extend(monitor.hear());
            }
            let error = Report::DiskError {
                node: "disk0".into(),
                operation: "write".into(),
                reason: "No space left on device".into(),
            };
            assert_eq!(heard, [error, Report::Stopped], "the first STOP was asked for");
        });
    }

    #[test]
    fn an_endless_line_is_dropped() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let mut monitor = Monitor::new(ours);
        for _ in 0..20 {
            theirs.write_all(&[b'x'; 8 << 10]).expect("room in the socket");
            assert!(monitor.hear().is_empty());
        }
        assert!(monitor.rest.len() <= LONGEST);
    }
}
