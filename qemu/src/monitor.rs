//! QEMU's monitor: stops the guest's CPUs and clock, and lets them run again.
//!
//! The protocol is QMP: one JSON object per line. QEMU answers each command with an object with
//! `return` or `error`. Greetings and events may come in between, and are ignored.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connection to a QEMU's monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    /// The bytes after the last line end.
    rest: Vec<u8>,
    /// Commands are accepted only after the first one, which negotiates.
    negotiated: bool,
}

impl Monitor {
    /// Talks over `stream`.
    pub fn new(stream: UnixStream) -> Monitor {
        Monitor { stream, rest: Vec::new(), negotiated: false }
    }

    /// Stops the guest's CPUs and its clock. False if QEMU does not say that it has done so.
    pub fn stop(&mut self) -> bool {
        self.negotiate() && self.command("stop")
    }

    /// Lets the guest run again.
    pub fn resume(&mut self) -> bool {
        self.negotiate() && self.command("cont")
    }

    fn negotiate(&mut self) -> bool {
        self.negotiated = self.negotiated || self.command("qmp_capabilities");
        self.negotiated
    }

    /// Executes a command. False if QEMU refuses it, or does not answer in time.
    fn command(&mut self, name: &str) -> bool {
        let command = format!("{{\"execute\": \"{name}\"}}\n");
        let deadline = Instant::now() + PATIENCE;
        if self.stream.write_all(command.as_bytes()).is_err() {
            return false;
        }
        loop {
            while let Some(line) = self.line() {
                let object: Value = serde_json::from_slice(&line).unwrap_or_default();
                if object.get("return").is_some() {
                    return true;
                }
                if object.get("error").is_some() {
                    return false;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let mut bytes = [0; 1024];
            // A time-out of zero would mean no time-out.
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            match self.stream.read(&mut bytes) {
                Ok(n) if n > 0 => self.rest.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return false,
            }
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
        assert_eq!(commands, names.map(|name| format!("{{\"execute\": \"{name}\"}}")));
    }

    #[test]
    fn a_refusal_and_an_end_are_no_success() {
        let refused = &["{\"return\": {}}\n", "{\"error\": {\"class\": \"GenericError\"}}\n"];
        asked(refused, |monitor| assert!(!monitor.stop()));
        asked(&[], |monitor| assert!(!monitor.stop()));
    }
}
