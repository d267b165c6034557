//! A guest's output: lines on its serial port; heartbeats and control lines on its debug port.

/// The longest line; a longer one is cut into several.
const LONGEST: usize = 16 << 10;

/// Collects bytes into lines.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
}

impl LineBuffer {
    /// Takes the next bytes; returns the lines that they complete, without their ends.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                lines.extend(self.take_line());
            } else {
                self.bytes.push(byte);
                if self.bytes.len() == LONGEST {
                    lines.extend(self.take_line());
                }
            }
        }
        lines
    }

    /// The bytes after the last line end, if there are any.
    pub fn rest(&mut self) -> Option<String> {
        if self.bytes.is_empty() { None } else { self.take_line() }
    }

    fn take_line(&mut self) -> Option<String> {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// One message on a guest's debug port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A heartbeat: the guest's threads are running.
    Beat,
    /// The first thread is running.
    FirstThread,
    /// The guest asks the launcher to end its device for good, with all NICs, as if the device's
    /// process were killed.
    KillDevice,
    /// The guest ends by itself once the word at this bus address is not 0 any more.
    StopWord(u64),
    /// The guest answers questions here.
    Mailbox(MailboxPlace),
    /// An unknown control line.
    Unknown(String),
}

/// Where a guest takes questions and puts its answers (`mailbox.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxPlace {
    /// Its bus address.
    pub address: u64,
    /// The bytes of the longest question.
    pub question: u64,
    /// The bytes of the longest answer.
    pub answer: u64,
}

impl MailboxPlace {
    fn parse(text: &str) -> Option<MailboxPlace> {
        let mut words = text.strip_prefix("mailbox ")?.split(' ').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        Some(MailboxPlace { address: next()?, question: next()?, answer: next()? })
    }
}

/// Reads the debug port. `.` is a heartbeat, wherever it stands. `S` outside a control line is the
/// start of the first thread. Any other byte begins or continues a control line, which a line end
/// completes.
#[derive(Debug, Default)]
pub struct DebugPort {
    line: Vec<u8>,
}

impl DebugPort {
    /// Takes the next bytes; returns the messages that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Note> {
        let mut notes = Vec::new();
        for &byte in bytes {
            match byte {
                // Another thread may write a heartbeat in the middle of a control line.
                b'.' => notes.push(Note::Beat),
                b'S' if self.line.is_empty() => notes.push(Note::FirstThread),
                b'\n' => notes.push(Self::control(&std::mem::take(&mut self.line))),
                _ if self.line.len() < LONGEST => self.line.push(byte),
                _ => {}
            }
        }
        notes
    }

    fn control(line: &[u8]) -> Note {
        let text = String::from_utf8_lossy(line);
        let stop_word = text.strip_prefix("stop-word ").and_then(|address| address.parse().ok());
        if let Some(place) = MailboxPlace::parse(&text) {
            return Note::Mailbox(place);
        }
        match (&*text, stop_word) {
            ("kill", _) => Note::KillDevice,
            (_, Some(address)) => Note::StopWord(address),
            _ => Note::Unknown(text.into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_pieces() {
        let mut buffer = LineBuffer::default();
        assert!(buffer.feed(b"one").is_empty());
        assert_eq!(buffer.feed(b" line\r\ntwo\n\nthr"), ["one line", "two", ""]);
        assert_eq!(buffer.rest().as_deref(), Some("thr"));
        assert_eq!(buffer.rest(), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_not_lost() {
        let mut buffer = LineBuffer::default();
        assert_eq!(buffer.feed(b"a\xffb\n"), ["a\u{fffd}b"]);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut buffer = LineBuffer::default();
        let lines = buffer.feed(&vec![b'x'; 2 * LONGEST + 1]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST, LONGEST]);
        assert_eq!(buffer.rest().as_deref(), Some("x"));
    }

    #[test]
    fn heartbeats_may_come_amid_control_lines() {
        let mut port = DebugPort::default();
        assert_eq!(port.feed(b"S..ki"), [Note::FirstThread, Note::Beat, Note::Beat]);
        assert_eq!(port.feed(b".ll\n."), [Note::Beat, Note::KillDevice, Note::Beat]);
        assert_eq!(port.feed(b"kill 1\n"), [Note::Unknown("kill 1".into())]);
        assert_eq!(port.feed(b"\n"), [Note::Unknown("".into())]);
        assert_eq!(port.feed(b"stop-word 40.96\n"), [Note::Beat, Note::StopWord(4096)]);
        let place = MailboxPlace { address: 4096, question: 64, answer: 128 };
        assert_eq!(port.feed(b"mailbox 4096 64 128\n"), [Note::Mailbox(place)]);
        assert_eq!(port.feed(b"mailbox 1 2\n"), [Note::Unknown("mailbox 1 2".into())]);
        assert_eq!(port.feed(b"stop-word -1\n"), [Note::Unknown("stop-word -1".into())]);
    }
}
